#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace embershard {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kLargestChunk = size_t{64} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Mapped memory aligned to huge pages when it is large enough to hold one.
void* map_chunk(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t span = huge ? bytes + kHugePage : bytes;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  if (!huge) return raw;
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = round_up(start, kHugePage);
  if (aligned > start) munmap(raw, aligned - start);
  const uintptr_t end = start + span, aligned_end = aligned + bytes;
  if (end > aligned_end) munmap(reinterpret_cast<void*>(aligned_end), end - aligned_end);
#ifdef MADV_HUGEPAGE
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
#endif
  return reinterpret_cast<void*>(aligned);
}

}  // namespace

Arena::~Arena() {
  for (auto [chunk, bytes] : chunks_) munmap(chunk, bytes);
}

void* Arena::allocate(size_t bytes) {
  bytes = rounded(bytes);
  std::lock_guard guard(mutex_);
  auto found = free_.lower_bound(bytes);
  if (found != free_.end()) {
    auto [size, block] = *found;
    if (size > bytes) {
      auto node = free_.extract(found);
      node.key() = size - bytes;
      node.mapped() = block + bytes;
      free_.insert(std::move(node));
    } else {
      free_.erase(found);
    }
    used_ += bytes;
    return block;
  }
  if (static_cast<size_t>(end_ - cursor_) < bytes) add_chunk(bytes);
  char* block = cursor_;
  cursor_ += bytes;
  used_ += bytes;
  return block;
}

void Arena::deallocate(void* block, size_t bytes) {
  if (block == nullptr) return;
  bytes = rounded(bytes);
  std::lock_guard guard(mutex_);
  free_.emplace(bytes, static_cast<char*>(block));
  used_ -= bytes;
}

void Arena::add_chunk(size_t at_least) {
  size_t bytes = std::clamp(mapped_ / 8, kFirstChunk, kLargestChunk);
  bytes = std::max(bytes, at_least);
  bytes = round_up(bytes, bytes >= kHugePage ? kHugePage : size_t{4096});
  chunks_.reserve(chunks_.size() + 1);
  if (cursor_ < end_) free_.emplace(end_ - cursor_, cursor_);
  cursor_ = end_ = nullptr;
  char* chunk = static_cast<char*>(map_chunk(bytes));
  chunks_.emplace_back(chunk, bytes);
  cursor_ = chunk;
  end_ = chunk + bytes;
  mapped_ += bytes;
}

size_t Arena::used_bytes() const {
  std::lock_guard guard(mutex_);
  return used_;
}

size_t Arena::free_bytes() const {
  std::lock_guard guard(mutex_);
  return mapped_ - used_;
}

}  // namespace embershard
