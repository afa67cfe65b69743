// Anonymous mapped memory whose pages are taken when they are first written.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string_view>

namespace embershard {

constexpr size_t kHugePage = size_t{2} << 20;

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Zeroed memory, aligned to huge pages if it is as large as one. Throws std::bad_alloc.
inline char* map_memory(size_t bytes) {
  const bool large = bytes >= kHugePage;
  const size_t span = large ? bytes + kHugePage : bytes;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  if (!large) return static_cast<char*>(raw);
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = round_up(start, kHugePage);
  if (aligned > start) munmap(raw, aligned - start);
  const uintptr_t end = start + span, aligned_end = aligned + round_up(bytes, 4096);
  if (end > aligned_end) munmap(reinterpret_cast<void*>(aligned_end), end - aligned_end);
  return reinterpret_cast<char*>(aligned);
}

inline void unmap_memory(void* memory, size_t bytes) { munmap(memory, bytes); }

// Asks for huge pages in [start, end); a hint, so a refusal is no error.
inline void prefer_huge_pages([[maybe_unused]] char* start, [[maybe_unused]] char* end) {
#ifdef MADV_HUGEPAGE
  auto* first = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
  if (first + kHugePage <= end) madvise(first, static_cast<size_t>(end - first), MADV_HUGEPAGE);
#endif
}

// Whether a text like "always madvise [never]", as the system has it, forbids huge pages.
inline bool is_never(std::string_view setting) { return setting.find("[never]") != std::string_view::npos; }

// Whether this machine's administrator forbids huge pages; asked once.
inline bool forbids_huge_pages() {
  static const bool forbids = [] {
    char setting[64] = {};
    std::FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file == nullptr) return false;
    const size_t length = std::fread(setting, 1, sizeof setting, file);
    std::fclose(file);
    return is_never({setting, length});
  }();
  return forbids;
}

// Puts pages that are in use already on huge ones, at once where the system can (Linux 6.1), else when it gets to it. A hint too,
// but one that Linux takes where huge pages are off, unless it is kept from it here.
inline void collapse_pages([[maybe_unused]] char* start, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  if (forbids_huge_pages()) return;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  madvise(start, bytes, MADV_HUGEPAGE);
  madvise(start, bytes, kCollapse);
#endif
}

}  // namespace embershard
