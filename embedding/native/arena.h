// Memory of one table's index: 64-byte aligned blocks cut from large mapped chunks (huge pages where they fit).
//
// Thread safety: any thread. Invariants: 1. a block never moves. 2. free blocks side by side are one free block.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace embershard {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Contents are undefined. Throws std::bad_alloc; nothing is changed then.
  void* allocate(size_t bytes);
  void deallocate(void* block, size_t bytes);

  // Bytes in free blocks that were in use once.
  size_t free_bytes() const;

 private:
  void add_free(char* block, size_t bytes);
  void add_chunk(size_t at_least);

  mutable std::mutex mutex_;
  std::vector<std::pair<char*, size_t>> chunks_;
  std::map<char*, size_t> free_by_address_;
  std::set<std::pair<size_t, char*>> free_by_size_;
  char* cursor_ = nullptr;  // the rest of the last chunk, never used
  char* end_ = nullptr;
  size_t mapped_ = 0;
  size_t free_ = 0;
};

}  // namespace embershard
