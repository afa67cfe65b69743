// Rows of one table in one tablet: an index of 64-byte buckets from keys to row numbers.
//
//   bucket   5 keys, their row numbers, how many are taken, whether a key had to pass it by: one cache line a probe
//
// Thread safety: none; guarded by the tablet's lock. Const members may run side by side.
// Invariants: 1. the taken slots of a bucket come first. 2. a key lies in its home bucket, or after it and all buckets
// between are marked as passed. 3. homes ascend with the key's hash, so buckets are nearly in hash order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "key_map.h"
#include "row_store.h"

namespace embershard {

constexpr uint32_t kBucketSlots = 5;

// Bijection of the key; its top bits choose the home bucket, so that raw, unmixed keys spread too.
inline uint64_t index_hash(uint64_t key) { return (key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL; }

struct alignas(64) Bucket {
  uint64_t keys[kBucketSlots];
  uint32_t rows[kBucketSlots];
  uint16_t taken;
  uint16_t is_passed;

  // One bit for each slot that holds `key`, taken or not.
  uint32_t slots_with(uint64_t key) const {
    uint32_t hit = 0;
    for (uint32_t slot = 0; slot < kBucketSlots; ++slot) hit |= static_cast<uint32_t>(keys[slot] == key) << slot;
    return hit;
  }
  uint32_t find(uint64_t key) const {
    const uint32_t hit = slots_with(key) & ((1U << taken) - 1);
    return hit != 0 ? rows[__builtin_ctz(hit)] : kNoRow;
  }
};
static_assert(sizeof(Bucket) == 64);

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
  bool is_empty() const { return rows_ == 0; }

  // Where a key with this `index_hash` is looked for first; a bucket without keys if the part has never had one.
  const Bucket* home_bucket(uint64_t hash) const { return buckets_ + home_of(hash, bucket_count_); }

  const Bucket* after(const Bucket* bucket) const {
    return bucket + 1 == buckets_ + bucket_count_ ? buckets_ : bucket + 1;
  }

  // Row number of `key`, or kNoRow, from `bucket` on.
  uint32_t find(uint64_t key, const Bucket* bucket) const {
    for (uint32_t looked = 0; looked < bucket_count_; ++looked) {
      const uint32_t row = bucket->find(key);
      if (row != kNoRow || !bucket->is_passed) return row;
      bucket = after(bucket);
    }
    return kNoRow;
  }
  uint32_t find(uint64_t key) const { return rows_ == 0 ? kNoRow : find(key, home_bucket(index_hash(key))); }

  // Make the index large enough for `rows` rows, as large as it would have grown by itself. Throws std::bad_alloc.
  void reserve(uint64_t rows, Arena& arena) {
    if (rows > uint64_t{bucket_count_} * (kBucketSlots - 1)) grow_index(rows, arena);
  }

  // Number of a row for `key`, which must be absent. Its weights, counters and state are not set.
  // Throws std::bad_alloc, std::runtime_error (no row number is left); nothing is changed then.
  uint32_t insert(uint64_t key, RowStore& store, Arena& arena);
  // Row number that `key` had, or kNoRow. The row may be given to another key from now on.
  uint32_t erase(uint64_t key, const RowStore& store);
  // Give everything back.
  void clear(RowStore& store, Arena& arena);

  PartExtras& extras() {
    if (extras_ == nullptr) extras_ = std::make_unique<PartExtras>();
    return *extras_;
  }
  PartExtras* extras_or_null() const { return extras_.get(); }

  template <typename Visit>  // visit(key, row)
  void for_each(Visit visit) const {
    for (uint32_t at = 0; at < bucket_count_; ++at) {
      for (uint32_t slot = 0; slot < buckets_[at].taken; ++slot) visit(buckets_[at].keys[slot], buckets_[at].rows[slot]);
    }
  }

  // visit(key, row) in order of `index_hash`, from `hash` on, for at most `budget` keys, which is reduced.
  // True with `hash` at the next key if there are more.
  template <typename Visit>
  bool for_each_by_hash(uint64_t& hash, uint64_t& budget, Visit visit) const {
    struct Entry {
      uint64_t hash, key;
      uint32_t row;
    };
    std::vector<Entry> entries;
    if (rows_ == 0) return false;
    for (uint32_t home = home_of(hash, bucket_count_); home < bucket_count_; ++home) {
      entries.clear();
      uint32_t at = home;
      for (uint32_t looked = 0; looked < bucket_count_; ++looked) {
        const Bucket& bucket = buckets_[at];
        for (uint32_t slot = 0; slot < bucket.taken; ++slot) {
          const uint64_t key_hash = index_hash(bucket.keys[slot]);
          if (key_hash >= hash && home_of(key_hash, bucket_count_) == home) {
            entries.push_back({key_hash, bucket.keys[slot], bucket.rows[slot]});
          }
        }
        if (!bucket.is_passed) break;
        at = after(at);
      }
      std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
      for (const Entry& entry : entries) {
        if (budget == 0) {
          hash = entry.hash;
          return true;
        }
        --budget;
        visit(entry.key, entry.row);
      }
    }
    return false;
  }

  size_t index_bytes() const { return size_t{bucket_count_} * sizeof(Bucket) + runs_.capacity() * sizeof(RowRun); }
  size_t slots() const { return size_t{bucket_count_} * kBucketSlots; }
  uint32_t bucket_count() const { return bucket_count_; }

 private:
  static uint32_t home_of(uint64_t hash, uint32_t bucket_count) {
    return static_cast<uint32_t>(((hash >> 32) * bucket_count) >> 32);
  }
  static void put(Bucket* buckets, uint32_t bucket_count, uint64_t key, uint32_t row);
  uint32_t distance(uint32_t from, uint32_t to) const { return to >= from ? to - from : to + bucket_count_ - from; }
  uint32_t after(uint32_t bucket) const { return bucket + 1 == bucket_count_ ? 0 : bucket + 1; }
  bool pull_back(uint32_t& at, uint32_t& slot);
  void grow_index(uint64_t rows, Arena& arena);
  void take_run(RowStore& store);

  static Bucket kNoKeys;  // stands for the index of a part that never had a key; never written

  Bucket* buckets_ = &kNoKeys;
  uint32_t bucket_count_ = 0;
  uint32_t rows_ = 0;
  uint32_t free_row_ = kNoRow;  // linked through the rows' count
  uint32_t run_next_ = 0, run_end_ = 0;
  std::vector<RowRun> runs_;
  std::unique_ptr<PartExtras> extras_;
};
static_assert(sizeof(Part) == 64);

}  // namespace embershard
