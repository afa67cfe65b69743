#include "part.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace embershard {
namespace {

constexpr uint32_t kLargestPageShift = 8;
constexpr size_t kPageBytes = size_t{64} << 10;

}  // namespace

RowLayout::RowLayout(uint32_t dim, uint32_t bytes_per_weight, uint32_t state_width)
    : weight_bytes(dim * bytes_per_weight),
      state_bytes(static_cast<uint32_t>(sizeof(RowCounters) + size_t{state_width} * sizeof(float))) {
  while (page_shift < kLargestPageShift && (size_t{2} << page_shift) * (weight_bytes + state_bytes) <= kPageBytes) {
    ++page_shift;
  }
}

uint32_t Part::row_capacity(const RowLayout& layout) const {
  return page_count_ == 0 ? 0 : first_page_rows_ + ((page_count_ - 1) << layout.page_shift);
}

uint32_t Part::insert(uint64_t key, const RowLayout& layout, Arena& arena) {
  if (buckets_ == nullptr || rows_ + 1 > bucket_count() * (kBucketSlots - 1)) grow_index(arena);
  uint32_t row = free_row_;
  if (row != kNoRow) {
    free_row_ = counters(layout, row)->count;
  } else {
    if (used_rows_ == row_capacity(layout)) grow_rows(layout, arena);
    row = used_rows_++;
  }
  put(buckets_, bucket_bits_, key, row);
  ++rows_;
  return row;
}

void Part::put(Bucket* buckets, uint32_t bucket_bits, uint64_t key, uint32_t row) {
  const uint32_t mask = (1U << bucket_bits) - 1;
  uint32_t at = static_cast<uint32_t>((index_hash(key) >> 1) >> (63 - bucket_bits));
  while (buckets[at].taken == kBucketSlots) at = (at + 1) & mask;
  Bucket& bucket = buckets[at];
  bucket.keys[bucket.taken] = key;
  bucket.rows[bucket.taken] = row;
  ++bucket.taken;
}

uint32_t Part::erase(uint64_t key, const RowLayout& layout) {
  if (rows_ == 0) return kNoRow;
  const uint32_t mask = bucket_count() - 1;
  uint32_t at = home(key), slot = kBucketSlots;
  for (;; at = (at + 1) & mask) {
    const Bucket& bucket = buckets_[at];
    for (slot = 0; slot < bucket.taken && bucket.keys[slot] != key;) ++slot;
    if (slot < bucket.taken) break;
    if (bucket.taken < kBucketSlots) return kNoRow;
  }
  const uint32_t row = buckets_[at].rows[slot];
  // Take the key out; a bucket that was full may have sent keys onwards, so pull one back, which may leave the next hole.
  for (;;) {
    Bucket& bucket = buckets_[at];
    const bool was_full = bucket.taken == kBucketSlots;
    --bucket.taken;
    bucket.keys[slot] = bucket.keys[bucket.taken];
    bucket.rows[slot] = bucket.rows[bucket.taken];
    if (!was_full) break;
    bool pulled = false;
    for (uint32_t from = (at + 1) & mask; from != at && !pulled; from = (from + 1) & mask) {
      const Bucket& source = buckets_[from];
      for (uint32_t other = 0; other < source.taken; ++other) {
        if (((from - home(source.keys[other])) & mask) >= ((from - at) & mask)) {
          bucket.keys[bucket.taken] = source.keys[other];
          bucket.rows[bucket.taken] = source.rows[other];
          ++bucket.taken;
          at = from;
          slot = other;
          pulled = true;
          break;
        }
      }
      if (!pulled && source.taken < kBucketSlots) break;
    }
    if (!pulled) break;
  }
  counters(layout, row)->count = free_row_;
  free_row_ = row;
  --rows_;
  return row;
}

void Part::grow_index(Arena& arena) {
  const uint32_t bits = buckets_ == nullptr ? 0 : bucket_bits_ + 1;
  const size_t bytes = sizeof(Bucket) << bits;
  auto* larger = static_cast<Bucket*>(arena.allocate(bytes));
  for (uint32_t bucket = 0; bucket < (1U << bits); ++bucket) larger[bucket].taken = 0;
  for_each([&](uint64_t key, uint32_t row) { put(larger, bits, key, row); });
  if (buckets_ != nullptr) arena.deallocate(buckets_, sizeof(Bucket) << bucket_bits_);
  buckets_ = larger;
  bucket_bits_ = bits;
}

void Part::grow_rows(const RowLayout& layout, Arena& arena) {
  const uint32_t full_page = 1U << layout.page_shift;
  const bool grows_first = page_count_ == 0 || (page_count_ == 1 && first_page_rows_ < full_page);
  const uint32_t page_rows = grows_first ? std::min(std::max(1U, first_page_rows_ * 2), full_page) : full_page;
  const bool directory_full = !grows_first && (page_count_ & (page_count_ - 1)) == 0;
  if (pages_ == nullptr || directory_full) {
    const size_t entries = std::max<size_t>(1, size_t{page_count_} * 2);
    auto* larger = static_cast<Page*>(std::realloc(pages_, entries * sizeof(Page)));
    if (larger == nullptr) throw std::bad_alloc();
    pages_ = larger;
  }
  auto* block = static_cast<char*>(arena.allocate(layout.page_bytes(page_rows)));
  const Page page = {block, block + Arena::rounded(size_t{page_rows} * layout.weight_bytes)};
  if (!grows_first) {
    pages_[page_count_++] = page;
    return;
  }
  if (page_count_ == 1) {
    std::memcpy(page.weights, pages_[0].weights, size_t{first_page_rows_} * layout.weight_bytes);
    std::memcpy(page.state, pages_[0].state, size_t{first_page_rows_} * layout.state_bytes);
    arena.deallocate(pages_[0].weights, layout.page_bytes(first_page_rows_));
  }
  pages_[0] = page;
  page_count_ = 1;
  first_page_rows_ = page_rows;
}

void Part::clear(const RowLayout& layout, Arena& arena) {
  if (buckets_ != nullptr) arena.deallocate(buckets_, sizeof(Bucket) << bucket_bits_);
  for (uint32_t page = 0; page < page_count_; ++page) {
    const uint32_t rows = page == 0 ? first_page_rows_ : 1U << layout.page_shift;
    arena.deallocate(pages_[page].weights, layout.page_bytes(rows));
  }
  std::free(pages_);
  buckets_ = nullptr;
  pages_ = nullptr;
  bucket_bits_ = rows_ = used_rows_ = first_page_rows_ = page_count_ = 0;
  free_row_ = kNoRow;
  extras_.reset();
}

size_t Part::index_bytes() const {
  return (buckets_ == nullptr ? 0 : sizeof(Bucket) << bucket_bits_) + size_t{page_count_} * sizeof(Page);
}

size_t Part::free_row_bytes(const RowLayout& layout) const {
  return size_t{row_capacity(layout) - rows_} * (layout.weight_bytes + layout.state_bytes);
}

}  // namespace embershard
