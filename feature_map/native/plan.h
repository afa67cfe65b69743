// The plan: everything a feature map does to record batches, prepared once; encoding is one call a batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arrow_c_data.h"
#include "bags.h"
#include "numbers.h"

namespace embershard {

// From one or more columns (their hashes folded) to the hash or number a small table has beside them.
using LookupTable = std::unordered_map<uint64_t, uint64_t>;

struct FeaturePlan {
  enum class Kind : uint8_t { values, cross, buckets, soft_buckets, constant, lookup };

  std::string name;
  Kind kind = Kind::values;
  uint64_t salt = 0;
  std::vector<ValueSource> parts;  // one, or the columns of a cross or a lookup
  NumberSource number;             // buckets and soft buckets: the column, markers and fill
  std::vector<double> edges;       // buckets: ascending edges; soft buckets: ascending centres
  uint64_t constant = 0;           // constant; lookup: what stands for a value that is not in the table
  bool skip_absent = false;        // lookup: such a value has no key
  std::shared_ptr<const LookupTable> table;
};

struct LabelPlan {
  int column = -1;
  bool has_threshold = false;  // 1 where the number is at least `threshold`, else 0
  double threshold = 0;
  bool has_positives = false;  // 1 where the value is one of `positives`, else 0
  IdKind id = IdKind::text;
  std::vector<uint64_t> positives;  // their hashes
  NullMarkers markers;
};

struct GroupPlan {
  int column = -1;
  ValueSource source;
};

struct PlanParts {
  std::vector<std::string> columns;
  std::vector<uint8_t> is_required;  // one a column
  std::vector<FeaturePlan> features;
  std::vector<NumberSource> dense;
  std::vector<LabelPlan> labels;
  int example_weight_column = -1;
  GroupPlan group;
  int event_time_column = -1;
};

// What encoding gives; layouts as FeatureBatch documents them. Arrays that are not there are empty.
struct Encoded {
  int64_t size = 0;
  Buffer<uint64_t> keys;
  Buffer<int64_t> offsets;
  Buffer<float> weights;
  std::vector<bool> is_scalar;
  Buffer<float> dense;
  int64_t dense_width = 0;
  Buffer<float> label;
  int64_t label_count = 0;
  Buffer<float> example_weight;
  Buffer<uint64_t> group;
  Buffer<int64_t> event_time;
  bool has_weights = false, has_example_weight = false, has_group = false, has_event_time = false;
};

// One record batch as the C data interface gives it.
struct RecordChunk {
  const ArrowSchema* schema;
  const ArrowArray* array;
};

// Thread safety: immutable; `encode` from any number of threads.
class Plan {
 public:
  explicit Plan(PlanParts parts);
  // Rows of all chunks in order. Throws Fault; nothing is kept.
  Encoded encode(const std::vector<RecordChunk>& chunks) const;

 private:
  PlanParts parts_;
  int64_t dense_width_ = 0;
};

// All numbers of one column (of its lists, where it has lists) after the source's steps, NaN where null; a column that is
// not there has none. Throws Fault.
void read_column(const RecordChunk& chunk, const std::string& name, const NumberSource& source, Buffer<double>& x);

}  // namespace embershard
