// The texts behind keys: a set of (key, text) that grows until its owner takes everything out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bags.h"
#include "buffer.h"
#include "column.h"

namespace embershard {

// Two texts with one key.
struct KeyCollision {
  uint64_t key;
  std::string kept, other;
};

// Thread safety: none; the owner locks.
class TextMemory {
 public:
  // Remembers `text` unless the key is known; a known key with another text is a collision.
  void add(uint64_t key, std::string_view text);
  // Every text of rows [0, length) of a column, read as `source` says, under key mix64(murmur3(text) ^ salt).
  void add_column(const Column& column, const ValueSource& source, uint64_t salt);

  // The text behind a key; false if it is not known.
  bool find(uint64_t key, std::string_view* text) const;

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes() const;
  int64_t collision_count() const { return collision_count_; }
  const std::vector<KeyCollision>& collisions() const { return collisions_; }  // the first few

  // All entries in ascending order of key: keys, text ends (offsets[0] = 0) and text bytes. The set is empty afterwards.
  struct Taken {
    Buffer<uint64_t> keys;
    Buffer<int64_t> offsets;
    Buffer<char> bytes;
  };
  Taken take();

 private:
  struct Entry {
    uint64_t key;
    int64_t start;
    int32_t size;
  };
  size_t slot_of(uint64_t key) const;
  void grow();
  std::string_view text_of(const Entry& entry) const {
    return {bytes_.data() + entry.start, static_cast<size_t>(entry.size)};
  }

  std::vector<uint32_t> slots_;  // entry number + 1; 0: free
  std::vector<Entry> entries_;
  Buffer<char> bytes_;
  int64_t collision_count_ = 0;
  std::vector<KeyCollision> collisions_;
};

}  // namespace embershard
