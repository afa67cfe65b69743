// Sorts (key, row) pairs by key: one pass into as many buckets as there are pairs, then a small sort a bucket. Linear for
// keys that spread over their range, as hashed ones do; never worse than std::sort by more than two passes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace embershard {

using KeyRow = std::pair<uint64_t, uint32_t>;

inline void sort_by_key(std::vector<KeyRow>& entries) {
  const size_t n = entries.size();
  if (n < 64) {
    std::sort(entries.begin(), entries.end());
    return;
  }
  uint64_t low = entries[0].first, high = low;
  for (const KeyRow& entry : entries) {
    low = std::min(low, entry.first);
    high = std::max(high, entry.first);
  }
  const int range_bits = std::bit_width(high - low), bucket_bits = std::bit_width(n) - 1;
  const int shift = std::max(range_bits - bucket_bits, 0);
  std::vector<uint32_t> starts((size_t{1} << bucket_bits) + 2);  // starts[b + 1]: where bucket b is filled from
  for (const KeyRow& entry : entries) ++starts[((entry.first - low) >> shift) + 2];
  for (size_t i = 2; i < starts.size(); ++i) starts[i] += starts[i - 1];
  std::vector<KeyRow> sorted(n);
  for (const KeyRow& entry : entries) sorted[starts[((entry.first - low) >> shift) + 1]++] = entry;
  for (size_t bucket = 0; bucket + 1 < starts.size(); ++bucket) {
    const auto first = sorted.begin() + starts[bucket], last = sorted.begin() + starts[bucket + 1];
    if (last - first > 1) std::sort(first, last);
  }
  entries.swap(sorted);
}

}  // namespace embershard
