#include "labels.h"

#include <algorithm>
#include <string>

#include "faults.h"
#include "values.h"

namespace embershard {
namespace {

const NullMarkers kNoMarkers;

std::string number_text(double x) {
  std::string text = std::to_string(x);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool was_point = text.back() == '.';
    text.pop_back();
    if (was_point) break;
  }
  return text;
}

float label_of(const LabelPlan& label, double x, int64_t row) {
  if (label.has_threshold) return x >= label.threshold ? 1.0F : 0.0F;
  if (!(x >= 0.0 && x <= 1.0)) throw ValueFault{row, "a label in [0, 1]", number_text(x)};
  return static_cast<float>(x);
}

}  // namespace

void read_labels(const Column& column, const LabelPlan& label, int64_t start, int64_t count, Scratch& scratch,
                 float* out, int64_t stride) {
  scratch.valid.resize(count);
  uint8_t* valid = scratch.valid.data();
  bool all_valid = true;
  if (label.has_positives) {
    scratch.h.resize(count);
    all_valid = read_hashes(column, label.id, label.markers, start, count, scratch.h.data(), valid);
  } else {
    scratch.numbers.resize(count);
    all_valid = read_numbers(column, label.markers, start, count, scratch.numbers.data(), valid);
  }
  const auto end = label.positives.end();
  for (int64_t row = 0; row < count; ++row) {
    if (!all_valid && !valid[row]) throw ValueFault{row, "a label", "null or NaN"};
    if (label.has_positives)
      out[row * stride] = std::find(label.positives.begin(), end, scratch.h[row]) != end ? 1.0F : 0.0F;
    else
      out[row * stride] = label_of(label, scratch.numbers[row], row);
  }
}

void read_example_weights(const Column& column, int64_t start, int64_t count, Scratch& scratch, float* out) {
  scratch.numbers.resize(count);
  scratch.valid.resize(count);
  const double* x = scratch.numbers.data();
  const bool all_valid =
      read_numbers(column, kNoMarkers, start, count, scratch.numbers.data(), scratch.valid.data());
  for (int64_t row = 0; row < count; ++row) {
    if (!all_valid && !scratch.valid[row]) throw ValueFault{row, "an example weight", "null, NaN or infinity"};
    if (x[row] < 0.0) throw ValueFault{row, "an example weight of at least 0", number_text(x[row])};
    out[row] = static_cast<float>(x[row]);
  }
}

void read_event_times(const Column& column, int64_t start, int64_t count, Scratch& scratch, int64_t* out) {
  scratch.h.resize(count);
  scratch.valid.resize(count);
  const bool all_valid =
      read_hashes(column, IdKind::int64, kNoMarkers, start, count, scratch.h.data(), scratch.valid.data());
  for (int64_t row = 0; row < count; ++row) {
    if (!all_valid && !scratch.valid[row]) throw ValueFault{row, "an event time", "null"};
    out[row] = static_cast<int64_t>(scratch.h[row]);
  }
}

}  // namespace embershard
