#include "batch_deduplicate.h"

#include <algorithm>
#include <bit>

namespace embershard {

namespace {

constexpr uint32_t kFree = 0;

// Keys given as they are need not be well mixed, so the slot comes from the top bits of a Fibonacci product.
inline uint64_t slot_of(uint64_t key, int shift) { return (key * 0x9e3779b97f4a7c15ULL) >> shift; }

}  // namespace

int64_t deduplicate(const KeyedFeatures& features, const UniqueKeys& out, DeduplicationScratch& scratch) {
  int64_t count = 0;
  out.splits[0] = 0;
  for (int64_t table = 0; table < features.table_count; ++table) {
    int64_t keys_of_table = 0;
    for (int64_t f = 0; f < features.feature_count; ++f) {
      if (features.table_of[f] == table) keys_of_table += features.starts[f + 1] - features.starts[f];
    }
    const uint64_t capacity = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(keys_of_table, 2)) * 2);
    const uint64_t mask = capacity - 1;
    const int shift = 64 - std::countr_zero(capacity);
    if (scratch.slots.size() < capacity) scratch.slots.resize(capacity);
    uint32_t* const slots = scratch.slots.data();
    std::fill_n(slots, capacity, kFree);

    const int64_t first = count;
    for (int64_t f = 0; f < features.feature_count; ++f) {
      if (features.table_of[f] != table) continue;
      for (int64_t i = features.starts[f]; i < features.starts[f + 1]; ++i) {
        const uint64_t key = features.keys[i];
        uint64_t slot = slot_of(key, shift);
        for (;; slot = (slot + 1) & mask) {
          const uint32_t place = slots[slot];  // place within the table, plus one
          if (place == kFree) {
            slots[slot] = static_cast<uint32_t>(count - first) + 1;
            out.unique[count] = key;
            out.occurrences[count] = 1;
            out.inverse[i] = static_cast<int32_t>(count);
            ++count;
            break;
          }
          const int64_t at = first + place - 1;
          if (out.unique[at] == key) {
            ++out.occurrences[at];
            out.inverse[i] = static_cast<int32_t>(at);
            break;
          }
        }
      }
    }
    out.splits[table + 1] = count;
  }
  return count;
}

void count_clicks(const ClickedExamples& batch, const int32_t* inverse, uint32_t* clicks) {
  for (int64_t k = 0; k < batch.feature_count; ++k) {
    const int64_t* own = batch.offsets + batch.features[k] * batch.examples;
    for (int64_t b = 0; b < batch.examples; ++b) {
      if (!batch.clicked[b]) continue;
      for (int64_t i = own[b]; i < own[b + 1]; ++i) ++clicks[inverse[i]];
    }
  }
}

}  // namespace embershard
