#include "bags.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "faults.h"
#include "text_rows.h"

namespace embershard {
namespace {

// Builds ragged bags row by row.
class BagWriter {
 public:
  BagWriter(const ValueSource& source, Bags& bags) : source_(source), bags_(bags) {
    bags.is_scalar = false;
    bags.ends.reserve(bags.rows);
  }

  void add(uint64_t h, float weight = 1.0F) {
    bags_.h.push_back(h);
    if (bags_.is_weighted) bags_.weights.push_back(weight);
  }
  void end_row() {
    const int64_t begin = bags_.ends.empty() ? 0 : bags_.ends[bags_.ends.size() - 1];
    const int64_t surplus = source_.max_length > 0 ? bags_.h.size() - begin - source_.max_length : 0;
    if (surplus > 0) {
      if (source_.keep_last) {
        drop_front(bags_.h, begin, surplus);
        if (bags_.is_weighted) drop_front(bags_.weights, begin, surplus);
      }
      bags_.h.resize(begin + source_.max_length);
      if (bags_.is_weighted) bags_.weights.resize(begin + source_.max_length);
    }
    bags_.ends.push_back(bags_.h.size());
  }

 private:
  template <typename T>
  static void drop_front(Buffer<T>& values, int64_t begin, int64_t count) {
    std::memmove(values.data() + begin, values.data() + begin + count,
                 static_cast<size_t>(values.size() - begin - count) * sizeof(T));
  }

  const ValueSource& source_;
  Bags& bags_;
};

void read_weights(const Column& column, int64_t start, int64_t count, Scratch& scratch) {
  static const NullMarkers none;
  scratch.numbers.resize(count);
  scratch.valid.resize(std::max(scratch.valid.size(), count));
  if (read_numbers(column, none, start, count, scratch.numbers.data(), scratch.valid.data())) return;
  for (int64_t i = 0; i < count; ++i)
    if (!scratch.valid[i]) throw ValueFault{i, "a finite weight", "null, NaN or infinity"};
}

void read_scalars(const Column& column, const Column* weights, const ValueSource& source, int64_t start, int64_t count,
                  Scratch& scratch, Bags& bags) {
  if (weights != nullptr) {
    read_weights(*weights, start, count, scratch);
    bags.is_weighted = true;
    float* w = bags.weights.extend(count);
    for (int64_t i = 0; i < count; ++i) w[i] = static_cast<float>(scratch.numbers[i]);
  }
  uint64_t* h = bags.h.extend(count);
  scratch.valid.resize(count);
  uint8_t* valid = scratch.valid.data();
  if (read_hashes(column, source.id, source.markers, start, count, h, valid)) return;
  if (!source.skip_missing) {
    for (int64_t i = 0; i < count; ++i) h[i] = valid[i] ? h[i] : source.missing;
    return;
  }
  bags.is_scalar = false;
  int64_t* ends = bags.ends.extend(count);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (valid[i]) {
      h[kept] = h[i];
      if (bags.is_weighted) bags.weights[kept] = bags.weights[i];
      ++kept;
    }
    ends[i] = kept;
  }
  bags.h.resize(kept);
  if (bags.is_weighted) bags.weights.resize(kept);
}

// Where the elements of each row lie, and whether they fill one range of the child in row order.
struct Elements {
  Buffer<int64_t> starts, counts;
  int64_t first = 0, total = 0;
  bool is_contiguous = true;
};

Elements find_elements(const Column& column, int64_t start, int64_t count) {
  Elements elements;
  elements.starts.resize(count);
  elements.counts.resize(count);
  int64_t next = -1;
  for (int64_t i = 0; i < count; ++i) {
    const Column::Run run = column.list_slot(start + i);
    elements.starts[i] = run.start;
    elements.counts[i] = run.count;
    elements.total += run.count;
    if (run.count == 0) continue;
    if (next < 0) elements.first = run.start;
    else if (run.start != next) elements.is_contiguous = false;
    next = run.start + run.count;
  }
  return elements;
}

// Hashes of all elements, row after row, into `h`; returns whether all are valid.
bool hash_elements(const Column& values, const ValueSource& source, const Elements& elements, uint64_t* h,
                   uint8_t* valid) {
  const int64_t rows = elements.counts.size();
  if (elements.is_contiguous) {
    try {
      return read_hashes(values, source.id, source.markers, elements.first, elements.total, h, valid);
    } catch (ValueFault& fault) {
      int64_t row = 0, end = 0;
      for (; fault.index >= 0 && row < rows; ++row)
        if ((end += elements.counts[row]) > fault.index) break;
      if (fault.index >= 0) fault.index = row;
      throw;
    }
  }
  bool all_valid = true;
  std::fill(valid, valid + elements.total, uint8_t{1});
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t n = elements.counts[row];
    try {
      if (n == 0) continue;
      if (read_hashes(values, source.id, source.markers, elements.starts[row], n, h + at, valid + at))
        std::fill(valid + at, valid + at + n, uint8_t{1});
      else
        all_valid = false;
    } catch (ValueFault& fault) {
      if (fault.index >= 0) fault.index = row;
      throw;
    }
    at += n;
  }
  return all_valid;
}

void weigh_elements(const Column& weights, const Elements& elements, Scratch& scratch, Buffer<float>& out) {
  float* w = out.extend(elements.total);
  for (int64_t row = 0; row < elements.counts.size(); ++row) {
    try {
      read_weights(weights, elements.starts[row], elements.counts[row], scratch);
    } catch (ValueFault& fault) {
      fault.index = row;
      throw;
    }
    for (int64_t i = 0; i < elements.counts[row]; ++i) *w++ = static_cast<float>(scratch.numbers[i]);
  }
}

void read_lists(const Column& column, const Column* weights, const ValueSource& source, int64_t start, int64_t count,
                Scratch& scratch, Bags& bags) {
  const bool is_map = column.is_map();
  const Column& values = is_map ? column.children[0].children[0] : column.children[0];
  const Elements elements = find_elements(column, start, count);
  Buffer<float> element_weights;
  if (is_map) {
    weigh_elements(column.children[0].children[1], elements, scratch, element_weights);
  } else if (weights != nullptr) {
    if (!weights->is_list()) throw ValueFault{-1, "a list of weights", weights->type_name()};
    const Elements lists = find_elements(*weights, start, count);
    for (int64_t row = 0; row < count; ++row)
      if (lists.counts[row] != elements.counts[row])
        throw ValueFault{row, std::to_string(elements.counts[row]) + " weights, one a value",
                         std::to_string(lists.counts[row])};
    weigh_elements(weights->children[0], lists, scratch, element_weights);
  }
  bags.is_weighted = is_map || weights != nullptr;
  scratch.h.resize(elements.total);
  scratch.valid.resize(elements.total);
  const uint64_t* h = scratch.h.data();
  const uint8_t* valid = scratch.valid.data();
  const bool all_valid = hash_elements(values, source, elements, scratch.h.data(), scratch.valid.data());
  if (all_valid && source.max_length == 0) {
    copy_values(bags.h.extend(elements.total), h, elements.total);
    bags.weights = std::move(element_weights);
    bags.is_scalar = false;
    int64_t* ends = bags.ends.extend(count);
    int64_t end = 0;
    for (int64_t row = 0; row < count; ++row) ends[row] = end += elements.counts[row];
    return;
  }
  BagWriter writer(source, bags);
  int64_t at = 0;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < elements.counts[row]; ++i, ++at) {
      const float weight = bags.is_weighted ? element_weights[at] : 1.0F;
      if (all_valid || valid[at]) writer.add(h[at], weight);
      else if (source.keep_null_elements) writer.add(missing_hash(), weight);
    }
    writer.end_row();
  }
}

void read_delimited(const Column& column, const ValueSource& source, int64_t start, int64_t count, Bags& bags) {
  const TextRows texts(column);
  if (!texts.is_text()) throw ValueFault{-1, "delimited text", column.type_name()};
  const bool is_weighted = !source.weight_delimiter.empty();
  bags.is_weighted = is_weighted;
  BagWriter writer(source, bags);
  for (int64_t row = 0; row < count; ++row, writer.end_row()) {
    std::string_view text;
    if (!texts.at(start + row, &text) || is_null_text(text, source)) continue;
    for_each_piece(text, source.delimiter, [&](std::string_view piece) {
      double weight = 1.0;
      const WeightedPiece cut = cut_weight(piece, source.weight_delimiter);
      if (cut.has_weight && (!parse_number(cut.weight, &weight) || !std::isfinite(weight)))
        throw ValueFault{row, "value" + source.weight_delimiter + "weight with a finite weight", quoted(piece)};
      if (!cut.value.empty() && !is_null_text(cut.value, source))
        writer.add(hash_text_value(cut.value, source.id, row), static_cast<float>(weight));
      else if (source.keep_null_elements)
        writer.add(missing_hash(), static_cast<float>(weight));
    });
  }
}

}  // namespace

void read_bags(const Column& column, const Column* weights, const ValueSource& source, int64_t start, int64_t count,
               Scratch& scratch, Bags& bags) {
  bags.reset(count);
  if (column.physical == Physical::null_ && (source.is_list || !source.delimiter.empty())) {
    bags.is_weighted = weights != nullptr || !source.weight_delimiter.empty();
    BagWriter writer(source, bags);
    for (int64_t row = 0; row < count; ++row) writer.end_row();
  } else if (column.is_list()) {
    read_lists(column, weights, source, start, count, scratch, bags);
  } else if (!source.delimiter.empty()) {
    read_delimited(column, source, start, count, bags);
  } else {
    read_scalars(column, weights, source, start, count, scratch, bags);
  }
}

}  // namespace embershard
