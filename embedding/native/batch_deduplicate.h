// De-duplication of a batch's keys, many tables in one call, and what is counted by unique key. The NumPy twins are in
// embedding/batch_rows_reference.py.
#pragma once

#include <cstdint>
#include <vector>

namespace embershard {

// What one batch asks of `table_count` tables: keys of feature f are keys[starts[f] .. starts[f + 1]), of table table_of[f].
struct KeyedFeatures {
  const uint64_t* keys;
  const int64_t* starts;    // feature_count + 1, ascending, starts[0] == 0
  const int32_t* table_of;  // feature_count, each in [0, table_count)
  int64_t feature_count;
  int64_t table_count;
};

// Where the answer goes. `unique` and `occurrences` need room for all keys of the batch.
struct UniqueKeys {
  uint64_t* unique;       // table after table, each in order of first occurrence
  int32_t* inverse;       // per key of the batch, its place in `unique`
  uint32_t* occurrences;  // per unique key
  int64_t* splits;        // table_count + 1
};

// Scratch that a caller keeps between batches, so that a call allocates nothing once it has seen its largest batch.
struct DeduplicationScratch {
  std::vector<uint32_t> slots;
};

// Number of unique keys. Deterministic: depends on the keys and their order only.
int64_t deduplicate(const KeyedFeatures& features, const UniqueKeys& out, DeduplicationScratch& scratch);

// Which examples of a batch were clicked, and the features whose keys are counted: the keys of feature f and example b are
// at offsets[f * examples + b] .. next.
struct ClickedExamples {
  const bool* clicked;
  int64_t examples;
  const int64_t* offsets;
  const int64_t* features;
  int64_t feature_count;
};

// Adds to `clicks` one for each key in a clicked example; `inverse` is the key's place there.
void count_clicks(const ClickedExamples& batch, const int32_t* inverse, uint32_t* clicks);

}  // namespace embershard
