// Row memory of one table: 32-bit row numbers over large chunks, handed out in short runs.
//
//   chunk    weights of its 2^k rows, then [count, touched_at, version, state, clicks] of its rows; clicks only if kept
//   run      up to 256 rows side by side; a tablet takes one row at first, then longer runs, so that small tables stay small
//
// Thread safety: any thread may take and return runs; a row's memory is guarded by the lock of the tablet that holds it.
// Invariants: 1. a row never moves. 2. untouched memory of a chunk takes no physical page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "streaming.h"

namespace embershard {

constexpr uint32_t kNoRow = 0xffffffffU;

struct Bucket;

struct RowCounters {
  uint32_t count;
  uint32_t touched_at;
  uint32_t version;
};

struct RowRun {
  uint32_t first;
  uint32_t count;
};

// Always inlined: GCC takes a function that only prefetches for one without effect and drops the calls to it.
template <int kWrite>
[[gnu::always_inline]] inline void prefetch_bytes(const void* start, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(start) & ~uintptr_t{63};
  const auto end = reinterpret_cast<uintptr_t>(start) + bytes;
  for (uintptr_t line = first; line < end; line += 64) __builtin_prefetch(reinterpret_cast<const void*>(line), kWrite, 3);
}

class RowStore {
 public:
  static constexpr uint32_t kLongestRun = 256;

  RowStore(uint32_t dim, uint32_t bytes_per_weight, uint32_t state_width, bool keeps_clicks);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  uint32_t weight_bytes() const { return weight_bytes_; }
  uint32_t state_bytes() const { return state_bytes_; }  // counters, state and clicks of one row

  char* weights(uint32_t row) const {
    return chunks_[row >> chunk_shift_] + size_t{row & chunk_mask_} * weight_bytes_;
  }
  RowCounters* counters(uint32_t row) const {
    return reinterpret_cast<RowCounters*>(chunks_[row >> chunk_shift_] + state_offset_ + size_t{row & chunk_mask_} * state_bytes_);
  }
  static float* state(RowCounters* counters) { return reinterpret_cast<float*>(counters + 1); }
  // Only where clicks are kept.
  uint32_t* clicks(RowCounters* counters) const {
    return reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(counters) + state_bytes_ - sizeof(uint32_t));
  }

  // Fetches a row to be changed, and so many bytes of its weights.
  [[gnu::always_inline]] void prefetch_row(uint32_t row, size_t weight_bytes) const {
    prefetch_bytes<1>(weights(row), weight_bytes);
    prefetch_bytes<1>(counters(row), state_bytes_);
  }
  [[gnu::always_inline]] void prefetch_row(uint32_t row) const { prefetch_row(row, weight_bytes_); }

  // A run of at most `wanted` rows (a power of two).
  // Throws std::bad_alloc, std::runtime_error (no row number is left); nothing is changed then.
  RowRun take(uint32_t wanted);
  void give_back(RowRun run);

  // Rows ever handed out; all of them may be resident.
  size_t touched_rows() const;
  // Whether weights that are set as a whole had better be streamed.
  bool streams_weights() const {
    return kHasStreams && weight_bytes_ % kLineBytes == 0 && touched_rows() * weight_bytes_ >= kBeyondCaches;
  }

 private:
  void add_chunk();
  void leave_small_pages(uint64_t rows, uint64_t more);

  uint32_t weight_bytes_, state_bytes_;
  uint32_t chunk_shift_ = 0, chunk_mask_ = 0;
  size_t state_offset_ = 0, chunk_bytes_ = 0;
  char** chunks_ = nullptr;  // room for all chunks there can be; an entry is set before any of its rows is handed out
  size_t directory_bytes_ = 0;

  mutable std::mutex mutex_;
  size_t chunk_count_ = 0;
  uint64_t next_row_ = 0;
  std::vector<RowRun> free_[9];  // by log2 of the run's length
};

// Lines that will be needed soon: rows to be changed, what they are changed with, and buckets of later keys. Whoever works on
// rows now fetches some of these at each, so that the work hides the misses and no burst of them waits for line buffers. A row
// of kNoRow is harmless.
struct Ahead {
  const RowStore* store = nullptr;
  const uint32_t* rows = nullptr;
  const char* const* values = nullptr;
  size_t count = 0, value_bytes = 0, weight_bytes = 0;
  const Bucket* const* buckets = nullptr;
  size_t bucket_count = 0;

  [[gnu::always_inline]] void fetch(size_t i) const {
    if (i < bucket_count) __builtin_prefetch(buckets[i], 0, 3);
    if (i < count) {
      store->prefetch_row(rows[i] == kNoRow ? 0 : rows[i], weight_bytes);
      prefetch_bytes<0>(values[i], value_bytes);
    }
  }
  [[gnu::always_inline]] void fetch_from(size_t i) const {
    for (; i < count || i < bucket_count; ++i) fetch(i);
  }
};

}  // namespace embershard
