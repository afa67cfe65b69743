// Finds the rows of the keys of a push or an assign, block after block, so that the cache misses of several blocks overlap.
//
//   start    the bucket of each key          its line is prefetched
//   find     the key in its bucket           the next bucket is prefetched if the key may have passed its own
//   fetch    row after row prefetched, in between the caller's work on the rows of an earlier block
//   passed   such keys                       their rows are prefetched
//   finish   the caller's work on the block
// A block takes one step a turn, so that its lines have a turn's time to arrive; four small blocks are on their way, as a
// burst of more prefetches than the CPU has line buffers (16 or so) would wait for itself.
//
// Thread safety: none; the locks of the keys' tablets are held.
#pragma once

#include <cstddef>
#include <cstdint>

#include "table.h"
#include "tablet.h"

namespace embershard {

// Keys of one table and their rows, kNoRow where there is none.
struct KeyBlock {
  static constexpr size_t kSize = kMostWrites;

  Table* table;
  size_t table_index;    // within the request
  size_t first;          // the caller's number of the first key
  size_t count;
  const uint64_t* keys;
  const char* values[kSize];  // what the caller brings each: gradients as they travel, or weights
  size_t value_bytes;
  bool streams_weights = false;  // they are written without being read
  uint32_t rows[kSize];

  const Bucket* buckets[kSize];
  uint8_t passed[kSize];  // numbers of the keys that may lie behind their home
  size_t passed_count;
  uint64_t moves;         // of the finder, when the buckets were found
};

class RowFinder {
 public:
  RowFinder(const Kernels& kernels, int tablet_bits) : kernels_(kernels), tablet_bits_(tablet_bits) {}

  // What `insert` gives, which puts a row into the part. If that moved the part's index, buckets found before are found again.
  template <typename Insert>
  uint32_t insert(const Part& part, Insert insert) {
    const uint32_t buckets = part.bucket_count();
    const uint32_t row = insert();
    if (part.bucket_count() != buckets) ++moves_;
    return row;
  }

  // next(block) sets the block's table, table_index, first, count and keys, and is false at the end. finish(block, ahead) gets its
  // rows, and fetches those ahead (Ahead).
  template <typename Next, typename Finish>
  void run(Next next, Finish finish) {
    KeyBlock ring[4];
    size_t blocks = SIZE_MAX;  // how many there are, once known
    for (size_t turn = 0; blocks == SIZE_MAX || turn < blocks + 3; ++turn) {
      Ahead ahead;
      if (blocks == SIZE_MAX) {
        KeyBlock& started = ring[turn % 4];
        if (next(started)) {
          start(started);
          ahead.buckets = started.buckets;
          ahead.bucket_count = started.count;
        } else {
          blocks = turn;
        }
      }
      if (turn >= 1 && turn - 1 < blocks) {
        KeyBlock& found = ring[(turn - 1) % 4];
        find(found);
        ahead.store = &found.table->store;
        ahead.rows = found.rows;
        ahead.values = found.values;
        ahead.count = found.count;
        ahead.value_bytes = found.value_bytes;
        ahead.weight_bytes = found.streams_weights ? 0 : found.table->store.weight_bytes();
      }
      if (turn >= 3 && turn - 3 < blocks) {
        finish(ring[(turn - 3) % 4], ahead);
      } else {
        ahead.fetch_from(0);
      }
      if (turn >= 2 && turn - 2 < blocks) find_passed(ring[(turn - 2) % 4]);
    }
  }

 private:
  void start(KeyBlock& block) const {
    const Part* parts = block.table->parts.get();
    for (size_t i = 0; i < block.count; ++i) {
      const uint64_t key = block.keys[i];
      block.buckets[i] = parts[tablet_of(key, tablet_bits_)].home_bucket(index_hash(key));
    }
    block.moves = moves_;
  }

  void find(KeyBlock& block) const {
    if (block.moves != moves_) start(block);
    block.passed_count = kernels_.find_rows(block.buckets, block.keys, block.count, block.rows, block.passed);
    for (size_t i = 0; i < block.passed_count; ++i) {
      const size_t at = block.passed[i];
      __builtin_prefetch(part_of(block, at).after(block.buckets[at]), 0, 3);
    }
  }

  void find_passed(KeyBlock& block) const {
    for (size_t i = 0; i < block.passed_count; ++i) {
      const size_t at = block.passed[i];
      block.rows[at] = part_of(block, at).find(block.keys[at]);
      if (block.rows[at] != kNoRow) block.table->store.prefetch_row(block.rows[at]);
    }
  }

  const Part& part_of(const KeyBlock& block, size_t at) const { return block.table->parts[tablet_of(block.keys[at], tablet_bits_)]; }

  const Kernels& kernels_;
  const int tablet_bits_;
  uint64_t moves_ = 0;
};

}  // namespace embershard
