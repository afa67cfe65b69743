// Memory of one table: 64-byte aligned blocks cut from large mapped chunks (huge pages where they fit).
//
// Thread safety: any thread. Invariants: 1. a block never moves. 2. a freed block may be cut up and given out again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace embershard {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Size a request of `bytes` really takes.
  static size_t rounded(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

  // Contents are undefined. Throws std::bad_alloc; nothing is changed then.
  void* allocate(size_t bytes);
  void deallocate(void* block, size_t bytes);

  // Bytes given out, and bytes mapped but not given out (free blocks and the untouched rest of the last chunk).
  size_t used_bytes() const;
  size_t free_bytes() const;

 private:
  void add_chunk(size_t at_least);

  mutable std::mutex mutex_;
  std::vector<std::pair<void*, size_t>> chunks_;
  std::multimap<size_t, char*> free_;
  char* cursor_ = nullptr;
  char* end_ = nullptr;
  size_t mapped_ = 0;
  size_t used_ = 0;
};

}  // namespace embershard
