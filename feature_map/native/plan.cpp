#include "plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "buckets.h"
#include "faults.h"
#include "labels.h"
#include "mix64.h"
#include "mix_kernels.h"
#include "refusals.h"

namespace embershard {
namespace {

constexpr int64_t kBlockRows = 4096;  // scratch of a block stays in the second-level cache
constexpr int64_t kMaxCombinations = 1 << 20;  // of one row in one cross

// The plan's columns in one chunk; the first row of the chunk in the batch.
struct ChunkView {
  std::vector<Column> columns;
  std::vector<bool> is_there;
  int64_t length = 0;
  int64_t first_row = 0;
};

class Encoder {
 public:
  Encoder(const PlanParts& parts, int64_t dense_width, const std::vector<RecordChunk>& chunks)
      : parts_(parts), dense_width_(dense_width) {
    for (const RecordChunk& chunk : chunks) add_chunk(chunk);
  }

  Encoded run() {
    out_.size = rows_;
    encode_features();
    encode_dense();
    encode_labels();
    encode_example_weight();
    encode_group();
    encode_event_time();
    return std::move(out_);
  }

 private:
  void add_chunk(const RecordChunk& chunk) {
    ChunkView view;
    view.length = chunk.array->length;
    view.first_row = rows_;
    const int64_t children = std::min(chunk.schema->n_children, chunk.array->n_children);
    int64_t guess = 0;  // columns mostly stand in the plan's order
    for (size_t c = 0; c < parts_.columns.size(); ++c) {
      const std::string& name = parts_.columns[c];
      int64_t found = -1;
      for (int64_t tried = 0; tried < children && found < 0; ++tried) {
        const int64_t candidate = (guess + tried) % children;
        if (name == chunk.schema->children[candidate]->name) found = candidate;
      }
      view.is_there.push_back(found >= 0);
      if (found < 0) {
        view.columns.push_back(null_column(name, view.length));
        if (parts_.is_required[c]) missing_column(name, *chunk.schema);
        continue;
      }
      guess = found + 1;
      view.columns.push_back(
          view_column(*chunk.schema->children[found], *chunk.array->children[found], chunk.array->offset, view.length));
    }
    rows_ += view.length;
    chunks_.push_back(std::move(view));
  }

  [[noreturn]] static void missing_column(const std::string& name, const ArrowSchema& schema) {
    std::string there;
    for (int64_t i = 0; i < std::min<int64_t>(schema.n_children, 60); ++i)
      there += std::string(i == 0 ? "'" : ", '") + schema.children[i]->name + "'";
    throw Fault{FaultKind::missing_column, in_column(name, "expected it in the records, got columns [" + there + "]")};
  }

  // Is a column that may be left out (label and the like) in every chunk?
  bool is_everywhere(int column) const {
    if (column < 0 || chunks_.empty()) return false;
    return std::all_of(chunks_.begin(), chunks_.end(), [&](const ChunkView& c) { return c.is_there[column]; });
  }

  template <typename Function>
  void for_blocks(Function&& function) {
    for (const ChunkView& chunk : chunks_)
      for (int64_t start = 0; start < chunk.length; start += kBlockRows)
        function(chunk, start, std::min(kBlockRows, chunk.length - start));
  }

  // --- embedded features ---------------------------------------------------------------------------------------------

  void encode_features() {
    const int64_t features = static_cast<int64_t>(parts_.features.size());
    out_.offsets.resize(features * rows_ + 1);
    out_.offsets[0] = 0;
    out_.keys.reserve(features * rows_ + 1);
    int64_t* offset = out_.offsets.data() + 1;
    for (const FeaturePlan& feature : parts_.features) {
      bool is_scalar = true;
      for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
        if (emit_plain_lists(feature, chunk, start, count, offset)) {
          for (int64_t row = 0; row < count && is_scalar; ++row) is_scalar = offset[row] == offset[row - 1] + 1;
        } else if (!emit_plain(feature, chunk, start, count, offset)) {
          encode_block(feature, chunk, start, count);
          emit(feature.salt, offset);
          is_scalar &= bags_.has_one_each();
        }
        offset += count;
      });
      out_.is_scalar.push_back(is_scalar);
    }
  }

  void encode_block(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count) {
    is_mixed_ = false;
    switch (feature.kind) {
      case FeaturePlan::Kind::values: read_part(feature.parts[0], chunk, start, count, bags_); break;
      case FeaturePlan::Kind::cross: cross(feature, chunk, start, count); break;
      case FeaturePlan::Kind::lookup: look_up(feature, chunk, start, count); break;
      case FeaturePlan::Kind::buckets:
      case FeaturePlan::Kind::soft_buckets: bucketize(feature, chunk, start, count); break;
      case FeaturePlan::Kind::constant:
        bags_.reset(count);
        bags_.h.resize(count);
        bags_.h.fill(feature.constant);
        break;
    }
  }

  void read_part(const ValueSource& source, const ChunkView& chunk, int64_t start, int64_t count, Bags& bags) {
    const Column& column = chunk.columns[source.column];
    const Column* weights = source.weights_column < 0 ? nullptr : &chunk.columns[source.weights_column];
    naming(parts_.columns[source.column], column, id_text(source.id), chunk.first_row + start, FaultKind::value,
           [&] { read_bags(column, weights, source, start, count, scratch_, bags); });
  }

  // Are values 64 bits wide already, with nothing but nulls between them and mixing?
  static bool is_plain(const ValueSource& source, const Column& column) {
    const bool is_wide = column.physical == (source.id == IdKind::uint64 ? Physical::uint64 : Physical::int64);
    return is_wide && source.id != IdKind::text && column.dictionary == nullptr && source.markers.integers.empty() &&
           source.delimiter.empty() && source.weights_column < 0;
  }

  // The ids themselves, or null where more than mixing is to do.
  static const uint64_t* plain_ids(const ValueSource& source, const ChunkView& chunk) {
    const Column& column = chunk.columns[source.column];
    const bool drops_rows = column.may_have_nulls() && source.skip_missing;
    return is_plain(source, column) && !drops_rows ? column.values<uint64_t>() : nullptr;
  }

  // The same for lists whose elements need nothing but mixing and lie one after the other.
  bool emit_plain_lists(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count,
                        int64_t* offset) {
    if (feature.kind != FeaturePlan::Kind::values || out_.has_weights) return false;
    const ValueSource& source = feature.parts[0];
    const Column& column = chunk.columns[source.column];
    const bool is_narrow = column.physical == Physical::list32;
    if ((!is_narrow && column.physical != Physical::list64) || column.is_map() || column.may_have_nulls()) return false;
    const Column& elements = column.children[0];
    if (elements.may_have_nulls() || !is_plain(source, elements) || source.max_length > 0) return false;
    const int64_t base = out_.keys.size();
    const int64_t first = column.list_slot(start).start;
    const Column::Run last = column.list_slot(start + count - 1);
    const int64_t total = last.start + last.count - first;
    mix_keys(elements.values<uint64_t>() + first, feature.salt, total, out_.keys.extend(total));
    if (is_narrow) {
      const int32_t* ends = column.values<int32_t>() + start + 1;
      for (int64_t row = 0; row < count; ++row) offset[row] = base + ends[row] - first;
    } else {
      const int64_t* ends = column.values<int64_t>() + start + 1;
      for (int64_t row = 0; row < count; ++row) offset[row] = base + ends[row] - first;
    }
    return true;
  }

  // Values and crosses of plain ids go straight from the columns to the output. False: not such a feature.
  bool emit_plain(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count, int64_t* offset) {
    const bool is_values = feature.kind == FeaturePlan::Kind::values;
    if ((!is_values && feature.kind != FeaturePlan::Kind::cross) || out_.has_weights) return false;
    for (const ValueSource& part : feature.parts)
      if (plain_ids(part, chunk) == nullptr) return false;
    const ValueSource& first = feature.parts[0];
    const Column& column = chunk.columns[first.column];
    if (!is_values)
      for (const ValueSource& part : feature.parts)
        if (chunk.columns[part.column].may_have_nulls()) return false;
    const int64_t base = out_.keys.size();
    uint64_t* keys = out_.keys.extend(count);
    if (is_values) {
      mix_keys(plain_ids(first, chunk) + start, feature.salt, count, keys);
      scratch_.valid.resize(count);
      if (!read_validity(column, start, count, scratch_.valid.data()))
        replace_invalid(scratch_.valid.data(), mix64(first.missing ^ feature.salt), count, keys);
    } else {
      mix_pairs(plain_ids(first, chunk) + start, plain_ids(feature.parts[1], chunk) + start, feature.salt, count, keys);
    }
    for (size_t p = 2; p < feature.parts.size(); ++p)
      mix_into(plain_ids(feature.parts[p], chunk) + start, count, keys);
    for (int64_t row = 0; row < count; ++row) offset[row] = base + row + 1;
    return true;
  }

  // Appends bags_ to the output: keys, ends (absolute) and weights.
  void emit(uint64_t salt, int64_t* offset) {
    const int64_t base = out_.keys.size();
    const int64_t n = bags_.h.size();
    uint64_t* keys = out_.keys.extend(n);
    if (is_mixed_) copy_values<uint64_t>(keys, bags_.h.data(), n);
    else mix_keys(bags_.h.data(), salt, n, keys);
    if (bags_.is_scalar)
      for (int64_t row = 0; row < bags_.rows; ++row) offset[row] = base + row + 1;
    else
      for (int64_t row = 0; row < bags_.rows; ++row) offset[row] = base + bags_.ends[row];
    if (bags_.is_weighted && !out_.has_weights) {
      out_.has_weights = true;
      out_.weights.resize(base);
      out_.weights.fill(1.0F);
    }
    if (!out_.has_weights) return;
    float* weights = out_.weights.extend(n);
    if (bags_.is_weighted) copy_values<float>(weights, bags_.weights.data(), n);
    else std::fill(weights, weights + n, 1.0F);
  }

  // k = salt; for h in parts: k = mix64(k ^ h), over every combination of the parts' values, last part fastest.
  void cross(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count) {
    const size_t parts = feature.parts.size();
    part_bags_.resize(std::max(part_bags_.size(), parts));
    bool is_scalar = true, is_weighted = false;
    for (size_t p = 0; p < parts; ++p) {
      read_part(feature.parts[p], chunk, start, count, part_bags_[p]);
      is_scalar &= part_bags_[p].is_scalar;
      is_weighted |= part_bags_[p].is_weighted;
    }
    bags_.reset(count);
    is_mixed_ = true;
    if (is_scalar && !is_weighted) {
      bags_.h.resize(count);
      mix_keys(part_bags_[0].h.data(), feature.salt, count, bags_.h.data());
      for (size_t p = 1; p < parts; ++p) mix_into(part_bags_[p].h.data(), count, bags_.h.data());
      return;
    }
    bags_.is_scalar = false;
    bags_.is_weighted = is_weighted;
    for (int64_t row = 0; row < count; ++row) {
      check_combinations(feature, row, chunk.first_row + start + row);
      combine(feature, row, 0, feature.salt, 1.0F);
      bags_.ends.push_back(bags_.h.size());
    }
  }

  // Two long lists in one row would fill the memory before anybody sees why.
  void check_combinations(const FeaturePlan& feature, int64_t row, int64_t row_of_all) const {
    double combinations = 1.0;
    for (size_t p = 0; p < feature.parts.size(); ++p)
      combinations *= static_cast<double>(part_bags_[p].end_of(row) - part_bags_[p].begin_of(row));
    if (combinations <= static_cast<double>(kMaxCombinations)) return;
    const std::string& name = parts_.columns[feature.parts[0].column];
    throw Fault{FaultKind::value, in_column(name, "expected at most " + std::to_string(kMaxCombinations) +
                                                      " combinations of a row's values in a cross, got " +
                                                      std::to_string(static_cast<int64_t>(std::min(combinations, 1e18))) +
                                                      " (row " + std::to_string(row_of_all) + ")")};
  }

  void combine(const FeaturePlan& feature, int64_t row, size_t part, uint64_t key, float weight) {
    if (part == feature.parts.size()) {
      bags_.h.push_back(key);
      if (bags_.is_weighted) bags_.weights.push_back(weight);
      return;
    }
    const Bags& bags = part_bags_[part];
    for (int64_t i = bags.begin_of(row); i < bags.end_of(row); ++i)
      combine(feature, row, part + 1, mix64(key ^ bags.h[i]), bags.is_weighted ? weight * bags.weights[i] : weight);
  }

  void look_up(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count) {
    const size_t parts = feature.parts.size();
    part_bags_.resize(std::max(part_bags_.size(), parts));
    for (size_t p = 0; p < parts; ++p) {
      read_part(feature.parts[p], chunk, start, count, part_bags_[p]);
      const int column = feature.parts[p].column;
      if (parts > 1 && !part_bags_[p].is_scalar)
        refuse_type(parts_.columns[column], chunk.columns[column], "one value a row to match several columns");
    }
    bags_.reset(count);
    bags_.is_scalar = part_bags_[0].is_scalar && !feature.skip_absent;
    for (int64_t row = 0; row < count; ++row) {
      if (parts == 1) {
        for (int64_t i = part_bags_[0].begin_of(row); i < part_bags_[0].end_of(row); ++i)
          add_looked_up(feature, part_bags_[0].h[i]);
      } else {
        uint64_t folded = 0;
        for (size_t p = 0; p < parts; ++p) folded = mix64(folded ^ part_bags_[p].h[row]);
        add_looked_up(feature, folded);
      }
      if (!bags_.is_scalar) bags_.ends.push_back(bags_.h.size());
    }
  }

  void add_looked_up(const FeaturePlan& feature, uint64_t h) {
    const auto found = feature.table->find(h);
    if (found != feature.table->end()) bags_.h.push_back(found->second);
    else if (!feature.skip_absent) bags_.h.push_back(feature.constant);
  }

  void bucketize(const FeaturePlan& feature, const ChunkView& chunk, int64_t start, int64_t count) {
    const Column& column = chunk.columns[feature.number.column];
    naming(parts_.columns[feature.number.column], column, "numbers", chunk.first_row + start, FaultKind::value,
           [&] { read_buckets(column, feature, start, count, scratch_, bags_); });
  }

  // --- the other columns ---------------------------------------------------------------------------------------------

  void encode_dense() {
    out_.dense_width = dense_width_;
    out_.dense.resize(rows_ * dense_width_);
    int64_t at = 0;
    for (const NumberSource& source : parts_.dense) {
      for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
        const Column& column = chunk.columns[source.column];
        float* out = out_.dense.data() + (chunk.first_row + start) * dense_width_ + at;
        naming(parts_.columns[source.column], column, "numbers", chunk.first_row + start, FaultKind::value,
               [&] { read_dense(column, source, start, count, scratch_, out, dense_width_); });
      });
      at += source.output_width();
    }
  }

  void encode_labels() {
    const auto is_missing = [&](const LabelPlan& label) { return !is_everywhere(label.column); };
    if (parts_.labels.empty() || std::any_of(parts_.labels.begin(), parts_.labels.end(), is_missing)) return;
    const int64_t labels = static_cast<int64_t>(parts_.labels.size());
    out_.label_count = labels;
    out_.label.resize(rows_ * labels);
    for (int64_t l = 0; l < labels; ++l)
      for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
        const LabelPlan& label = parts_.labels[static_cast<size_t>(l)];
        const std::string& name = parts_.columns[label.column];
        float* out = out_.label.data() + (chunk.first_row + start) * labels + l;
        naming(name, chunk.columns[label.column], "labels", chunk.first_row + start, FaultKind::label,
               [&] { read_labels(chunk.columns[label.column], label, start, count, scratch_, out, labels); });
      });
  }

  void encode_example_weight() {
    const int c = parts_.example_weight_column;
    if (!is_everywhere(c)) return;
    out_.has_example_weight = true;
    out_.example_weight.resize(rows_);
    for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
      float* out = out_.example_weight.data() + chunk.first_row + start;
      naming(parts_.columns[c], chunk.columns[c], "numbers", chunk.first_row + start, FaultKind::value, [&] {
        read_example_weights(chunk.columns[c], start, count, scratch_, out);
      });
    });
  }

  void encode_group() {
    const int c = parts_.group.column;
    if (!is_everywhere(c)) return;
    out_.has_group = true;
    for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
      read_part(parts_.group.source, chunk, start, count, bags_);
      if (!bags_.is_scalar || bags_.h.size() != count) refuse_type(parts_.columns[c], chunk.columns[c], "one id a row");
      copy_values<uint64_t>(out_.group.extend(count), bags_.h.data(), count);
    });
  }

  void encode_event_time() {
    const int c = parts_.event_time_column;
    if (!is_everywhere(c)) return;
    out_.has_event_time = true;
    for_blocks([&](const ChunkView& chunk, int64_t start, int64_t count) {
      int64_t* out = out_.event_time.extend(count);
      naming(parts_.columns[c], chunk.columns[c], "seconds", chunk.first_row + start, FaultKind::value, [&] {
        read_event_times(chunk.columns[c], start, count, scratch_, out);
      });
    });
  }

  const PlanParts& parts_;
  const int64_t dense_width_;
  std::vector<ChunkView> chunks_;
  int64_t rows_ = 0;
  Scratch scratch_;
  Bags bags_;
  std::vector<Bags> part_bags_;
  bool is_mixed_ = false;  // bags_.h holds keys already
  Encoded out_;
};

}  // namespace

Plan::Plan(PlanParts parts) : parts_(std::move(parts)) {
  for (const NumberSource& source : parts_.dense) dense_width_ += source.output_width();
}

void read_column(const RecordChunk& chunk, const std::string& name, const NumberSource& source, Buffer<double>& x) {
  x.clear();
  for (int64_t i = 0; i < std::min(chunk.schema->n_children, chunk.array->n_children); ++i) {
    if (name != chunk.schema->children[i]->name) continue;
    const Column column =
        view_column(*chunk.schema->children[i], *chunk.array->children[i], chunk.array->offset, chunk.array->length);
    naming(name, column, "numbers", 0, FaultKind::value, [&] {
      for (int64_t row = 0; row < (column.is_list() ? column.length : 1); ++row) {
        const Column& numbers = column.is_list() ? column.children[0] : column;
        const Column::Run run = column.is_list() ? column.list_slot(row) : Column::Run{0, column.length};
        double* values = x.extend(run.count);
        Buffer<uint8_t> valid(run.count);
        const bool all_valid = read_numbers(numbers, source.markers, run.start, run.count, values, valid.data());
        apply_steps(source.steps, run.count, values);
        for (int64_t v = 0; !all_valid && v < run.count; ++v)
          if (!valid[v]) values[v] = std::numeric_limits<double>::quiet_NaN();
      }
    });
  }
}

Encoded Plan::encode(const std::vector<RecordChunk>& chunks) const {
  return Encoder(parts_, dense_width_, chunks).run();
}

}  // namespace embershard
