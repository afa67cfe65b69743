#include "part.h"

#include <algorithm>
#include <bit>

namespace embershard {

Bucket Part::kNoKeys = {};

uint32_t Part::insert(uint64_t key, RowStore& store, Arena& arena) {
  reserve(uint64_t{rows_} + 1, arena);
  uint32_t row = free_row_;
  if (row != kNoRow) {
    free_row_ = store.counters(row)->count;
  } else {
    if (run_next_ == run_end_) take_run(store);
    row = run_next_++;
  }
  // Where the next new row will be: stores to memory that is not at hand would fill the store buffer.
  if (free_row_ != kNoRow) {
    store.prefetch_row(free_row_);
  } else if (run_next_ != run_end_) {
    store.prefetch_row(run_next_);
  }
  put(buckets_, bucket_count_, key, row);
  ++rows_;
  return row;
}

void Part::put(Bucket* buckets, uint32_t bucket_count, uint64_t key, uint32_t row) {
  uint32_t at = home_of(index_hash(key), bucket_count);
  while (buckets[at].taken == kBucketSlots) {
    buckets[at].is_passed = 1;
    at = at + 1 == bucket_count ? 0 : at + 1;
  }
  Bucket& bucket = buckets[at];
  bucket.keys[bucket.taken] = key;
  bucket.rows[bucket.taken] = row;
  ++bucket.taken;
}

uint32_t Part::erase(uint64_t key, const RowStore& store) {
  if (rows_ == 0) return kNoRow;
  uint32_t at = home_of(index_hash(key), bucket_count_), slot = 0, looked = 0;
  for (;; at = after(at)) {
    const Bucket& bucket = buckets_[at];
    for (slot = 0; slot < bucket.taken && bucket.keys[slot] != key;) ++slot;
    if (slot < bucket.taken) break;
    if (!bucket.is_passed || ++looked == bucket_count_) return kNoRow;
  }
  const uint32_t row = buckets_[at].rows[slot];
  // Take the key out. Keys that passed the bucket are pulled back one by one, so that erasing does not lengthen probes.
  for (bool open = true; open;) {
    Bucket& bucket = buckets_[at];
    --bucket.taken;
    bucket.keys[slot] = bucket.keys[bucket.taken];
    bucket.rows[slot] = bucket.rows[bucket.taken];
    open = bucket.is_passed && pull_back(at, slot);
  }
  store.counters(row)->count = free_row_;
  free_row_ = row;
  --rows_;
  return row;
}

// Copies a key that passed bucket `at` into it; `at` and `slot` become where it was. Without one, the mark is taken off.
bool Part::pull_back(uint32_t& at, uint32_t& slot) {
  Bucket& bucket = buckets_[at];
  for (uint32_t from = after(at); from != at; from = after(from)) {
    const Bucket& source = buckets_[from];
    for (uint32_t other = 0; other < source.taken; ++other) {
      const uint32_t home = home_of(index_hash(source.keys[other]), bucket_count_);
      if (distance(home, from) < distance(at, from)) continue;  // it started after the bucket
      bucket.keys[bucket.taken] = source.keys[other];
      bucket.rows[bucket.taken] = source.rows[other];
      ++bucket.taken;
      at = from;
      slot = other;
      return true;
    }
    if (!source.is_passed) break;
  }
  bucket.is_passed = 0;
  return false;
}

void Part::grow_index(uint64_t rows, Arena& arena) {
  uint32_t count = bucket_count_;
  while (rows > uint64_t{count} * (kBucketSlots - 1)) count = count == 0 ? 1 : count + (count + 1) / 2;
  auto* larger = static_cast<Bucket*>(arena.allocate(size_t{count} * sizeof(Bucket)));
  for (uint32_t bucket = 0; bucket < count; ++bucket) larger[bucket].taken = larger[bucket].is_passed = 0;
  for_each([&](uint64_t key, uint32_t row) { put(larger, count, key, row); });
  if (bucket_count_ != 0) arena.deallocate(buckets_, size_t{bucket_count_} * sizeof(Bucket));
  buckets_ = larger;
  bucket_count_ = count;
}

void Part::take_run(RowStore& store) {
  const uint32_t wanted = std::min(std::bit_floor(std::max(rows_ / 2, 1U)), RowStore::kLongestRun);
  runs_.reserve(runs_.size() == runs_.capacity() ? runs_.size() + runs_.size() / 4 + 1 : runs_.capacity());
  const RowRun run = store.take(wanted);
  runs_.push_back(run);
  run_next_ = run.first;
  run_end_ = run.first + run.count;
}

void Part::clear(RowStore& store, Arena& arena) {
  if (bucket_count_ != 0) arena.deallocate(buckets_, size_t{bucket_count_} * sizeof(Bucket));
  for (const RowRun run : runs_) store.give_back(run);
  runs_ = {};
  buckets_ = &kNoKeys;
  bucket_count_ = rows_ = run_next_ = run_end_ = 0;
  free_row_ = kNoRow;
  extras_.reset();
}

}  // namespace embershard
