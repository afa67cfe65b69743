#include "memory_pool.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace embershard {
namespace {

constexpr size_t kHeader = 64;                   // keeps what follows aligned; holds the size class
constexpr size_t kKeptBytes = size_t{96} << 20;  // free memory held at most
constexpr int kFirstClass = 12;                  // 4 KiB
constexpr int kLastClass = 26;                   // 64 MiB; larger blocks are not kept

struct Pool {
  std::mutex mutex;
  std::array<std::vector<void*>, kLastClass + 1> free_blocks;
  size_t kept = 0;
};

// Never destroyed: arrays may outlive static destruction.
Pool& pool() {
  static Pool* const made = new Pool;
  return *made;
}

int class_of(size_t bytes) {
  const int bits = static_cast<int>(std::bit_width(bytes == 0 ? 0 : bytes - 1));
  return bits < kFirstClass ? kFirstClass : bits;
}

// Tries, never waits: in a child forked while another thread held the lock it is held for ever, and the system's own
// allocator, which knows of forks, takes over.
std::unique_lock<std::mutex> try_lock(Pool& shared) {
  std::unique_lock lock(shared.mutex, std::try_to_lock);
  for (int tries = 0; tries < 200 && !lock; ++tries) lock.try_lock();
  return lock;
}

uint64_t& header(void* block) { return *static_cast<uint64_t*>(block); }

}  // namespace

void* pool_allocate(size_t bytes) {
  if (bytes > (size_t{1} << 62)) throw std::bad_alloc();
  const int size_class = class_of(bytes + kHeader);
  if (size_class <= kLastClass) {
    Pool& shared = pool();
    const std::unique_lock lock = try_lock(shared);
    std::vector<void*>& blocks = shared.free_blocks[static_cast<size_t>(size_class)];
    if (lock && !blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      shared.kept -= size_t{1} << size_class;
      return static_cast<char*>(block) + kHeader;
    }
  }
  void* block = std::aligned_alloc(kHeader, size_t{1} << size_class);
  if (block == nullptr) throw std::bad_alloc();
  header(block) = static_cast<uint64_t>(size_class);
  return static_cast<char*>(block) + kHeader;
}

void pool_free(void* memory) noexcept {
  if (memory == nullptr) return;
  void* block = static_cast<char*>(memory) - kHeader;
  const int size_class = static_cast<int>(header(block));
  if (size_class <= kLastClass) {
    Pool& shared = pool();
    const std::unique_lock lock = try_lock(shared);
    if (lock && shared.kept + (size_t{1} << size_class) <= kKeptBytes) {
      try {
        shared.free_blocks[static_cast<size_t>(size_class)].push_back(block);
        shared.kept += size_t{1} << size_class;
        return;
      } catch (const std::bad_alloc&) {
        // falls through to the system
      }
    }
  }
  std::free(block);
}

size_t pool_capacity(const void* memory) noexcept {
  return (size_t{1} << header(static_cast<char*>(const_cast<void*>(memory)) - kHeader)) - kHeader;
}

}  // namespace embershard
