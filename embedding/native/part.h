// Rows of one table in one tablet: an index of 64-byte buckets over pages of rows.
//
//   bucket   5 keys, their row numbers, how many are taken: one cache line a probe
//   page     weights of its rows, then [count, touched_at, version, state] of its rows
//
// Thread safety: none; guarded by the tablet's lock. Const members may run side by side.
// Invariants: 1. rows of full pages never move; only the first page, while it is smaller than a page, is copied to grow.
// 2. the taken slots of a bucket come first. 3. a key lies in its home bucket or after it with only full buckets between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "arena.h"
#include "key_map.h"

namespace embershard {

constexpr uint32_t kNoRow = 0xffffffffU;
constexpr uint32_t kBucketSlots = 5;

// Bijection of the key whose top bits are its home bucket: spreads raw, unmixed keys too.
inline uint64_t index_hash(uint64_t key) { return (key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL; }

struct alignas(64) Bucket {
  uint64_t keys[kBucketSlots];
  uint32_t rows[kBucketSlots];
  uint32_t taken;
};
static_assert(sizeof(Bucket) == 64);

// Bytes of a table's rows, the same for all its parts.
struct RowLayout {
  uint32_t weight_bytes = 0;  // one row's weights
  uint32_t state_bytes = 0;   // one row's counters and state
  uint32_t page_shift = 0;    // log2 rows a page

  RowLayout() = default;
  RowLayout(uint32_t dim, uint32_t bytes_per_weight, uint32_t state_width);
  size_t page_bytes(uint32_t rows) const { return Arena::rounded(size_t{rows} * weight_bytes) + size_t{rows} * state_bytes; }
};

struct RowCounters {
  uint32_t count;
  uint32_t touched_at;
  uint32_t version;
};

struct Page {
  char* weights;
  char* state;
};

// Rarely needed state of a part.
struct PartExtras {
  KeyMap admission;  // key → occurrences counted so far
  KeyMap erased;     // key → version at which it left
};

class alignas(64) Part {
 public:
  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  uint32_t rows() const { return rows_; }

  const Bucket* home_bucket(uint64_t hash) const { return buckets_ + ((hash >> 1) >> (63 - bucket_bits_)); }
  bool is_empty() const { return rows_ == 0; }

  // Row number of `key`, or kNoRow. `bucket` is its home bucket.
  uint32_t find(uint64_t key, const Bucket* bucket) const {
    for (;;) {
      uint32_t hit = 0;
      for (uint32_t slot = 0; slot < kBucketSlots; ++slot) hit |= static_cast<uint32_t>(bucket->keys[slot] == key) << slot;
      hit &= (1U << bucket->taken) - 1;
      if (hit != 0) return bucket->rows[__builtin_ctz(hit)];
      if (bucket->taken < kBucketSlots) return kNoRow;
      bucket = next(bucket);
    }
  }
  uint32_t find(uint64_t key) const { return rows_ == 0 ? kNoRow : find(key, home_bucket(index_hash(key))); }

  char* weights(const RowLayout& layout, uint32_t row) const {
    const uint32_t mask = (1U << layout.page_shift) - 1;
    return pages_[row >> layout.page_shift].weights + size_t{row & mask} * layout.weight_bytes;
  }
  RowCounters* counters(const RowLayout& layout, uint32_t row) const {
    const uint32_t mask = (1U << layout.page_shift) - 1;
    return reinterpret_cast<RowCounters*>(pages_[row >> layout.page_shift].state + size_t{row & mask} * layout.state_bytes);
  }
  static float* state(RowCounters* counters) { return reinterpret_cast<float*>(counters + 1); }

  // Number of a row for `key`, which must be absent. Its weights, counters and state are not set.
  // Throws std::bad_alloc; nothing is changed then.
  uint32_t insert(uint64_t key, const RowLayout& layout, Arena& arena);
  // Row number that `key` had, or kNoRow. The row may be given to another key from now on.
  uint32_t erase(uint64_t key, const RowLayout& layout);
  // Give everything back to the arena.
  void clear(const RowLayout& layout, Arena& arena);

  PartExtras& extras() {
    if (extras_ == nullptr) extras_ = std::make_unique<PartExtras>();
    return *extras_;
  }
  PartExtras* extras_or_null() const { return extras_.get(); }

  template <typename Visit>  // visit(key, row)
  void for_each(Visit visit) const {
    if (rows_ == 0) return;
    for (const Bucket* bucket = buckets_; bucket != buckets_ + bucket_count(); ++bucket) {
      for (uint32_t slot = 0; slot < bucket->taken; ++slot) visit(bucket->keys[slot], bucket->rows[slot]);
    }
  }

  // Bytes of the index, and of rows that hold no key (free rows and the rest of the pages).
  size_t index_bytes() const;
  size_t free_row_bytes(const RowLayout& layout) const;
  size_t slots() const { return buckets_ == nullptr ? 0 : size_t{bucket_count()} * kBucketSlots; }

 private:
  uint32_t bucket_count() const { return 1U << bucket_bits_; }
  const Bucket* next(const Bucket* bucket) const {
    return bucket + 1 == buckets_ + bucket_count() ? buckets_ : bucket + 1;
  }
  uint32_t home(uint64_t key) const { return static_cast<uint32_t>((index_hash(key) >> 1) >> (63 - bucket_bits_)); }
  uint32_t row_capacity(const RowLayout& layout) const;
  void grow_index(Arena& arena);
  void grow_rows(const RowLayout& layout, Arena& arena);
  static void put(Bucket* buckets, uint32_t bucket_bits, uint64_t key, uint32_t row);

  Bucket* buckets_ = nullptr;
  Page* pages_ = nullptr;
  uint32_t bucket_bits_ = 0;
  uint32_t rows_ = 0;
  uint32_t used_rows_ = 0;  // rows ever taken; those not in the free list hold a key
  uint32_t free_row_ = kNoRow;
  uint32_t first_page_rows_ = 0;
  uint32_t page_count_ = 0;
  std::unique_ptr<PartExtras> extras_;
};
static_assert(sizeof(Part) == 64);

}  // namespace embershard
