#include "numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "clones.h"
#include "faults.h"

namespace embershard {
namespace {

// ln y for normal y > 0. y = m·2^e with m in [√½, √2); ln m = 2·artanh(s), s = (m − 1) / (m + 1), |s| < 0.172, by its
// series (nine odd terms: error below 1e-15 of s).
EMBERSHARD_INLINE double natural_log(double y) {
  constexpr uint64_t kOne = 0x3ff0000000000000ULL, kSqrtHalf = 0x3fe6a09e667f3bcdULL;
  const uint64_t bits = std::bit_cast<uint64_t>(y) + (kOne - kSqrtHalf);
  // The biased exponent as a double by placing it in the low bits of 2^52: vector units lack 64-bit conversions.
  const double e = std::bit_cast<double>((bits >> 52) | 0x4330000000000000ULL) - (4503599627370496.0 + 1023.0);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffffULL) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return e * 0.6931471805599453 + 2.0 * (s + s * z * p);
}

// ln(1 + x) for x ≥ 0; the quotient restores what 1 + x rounds away.
EMBERSHARD_INLINE double log1p_positive(double x) {
  const double y = 1.0 + x;
  return natural_log(y) + (x - (y - 1.0)) / y;
}

EMBERSHARD_CLONES void apply_clip(double low, double high, int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) {
    const double raised = x[i] < low ? low : x[i];
    x[i] = raised > high ? high : raised;
  }
}

EMBERSHARD_CLONES void apply_log1p_positive(int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = log1p_positive(x[i]);
}

EMBERSHARD_CLONES void apply_signed_log1p(int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t sign = std::bit_cast<uint64_t>(x[i]) & 0x8000000000000000ULL;
    const double size = std::bit_cast<double>(std::bit_cast<uint64_t>(x[i]) ^ sign);
    x[i] = std::bit_cast<double>(std::bit_cast<uint64_t>(log1p_positive(size)) | sign);
  }
}

EMBERSHARD_CLONES void apply_affine(double shift, double scale, int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = (x[i] - shift) * scale;
}

EMBERSHARD_CLONES void replace_nulls(const uint8_t* valid, double with, int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = valid[i] != 0 ? x[i] : with;
}

void write_floats(const double* x, int64_t rows, int64_t width, float* out, int64_t stride) {
  if (width == 1) {
    for (int64_t row = 0; row < rows; ++row) out[row * stride] = static_cast<float>(x[row]);
    return;
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) out[row * stride + i] = static_cast<float>(x[row * width + i]);
}

}  // namespace

void apply_steps(const std::vector<NumberStep>& steps, int64_t count, double* x) {
  constexpr double kBig = std::numeric_limits<double>::max();
  for (const NumberStep& step : steps) {
    switch (step.kind) {
      case NumberStep::Kind::clip: apply_clip(step.a, step.b, count, x); break;
      case NumberStep::Kind::log1p:
        apply_clip(0.0, kBig, count, x);
        apply_log1p_positive(count, x);
        break;
      case NumberStep::Kind::signed_log1p: apply_signed_log1p(count, x); break;
      case NumberStep::Kind::affine:
        apply_affine(step.a, step.b, count, x);
        apply_clip(-kBig, kBig, count, x);
        break;
    }
  }
  constexpr double kFloatMax = std::numeric_limits<float>::max();
  apply_clip(-kFloatMax, kFloatMax, count, x);
}

void read_dense(const Column& column, const NumberSource& source, int64_t start, int64_t count, Scratch& scratch,
                float* out, int64_t stride) {
  const int64_t width = source.width;
  scratch.numbers.resize(count * width);
  scratch.valid.resize(count * width);
  double* x = scratch.numbers.data();
  uint8_t* valid = scratch.valid.data();
  bool all_valid = true;
  if (width == 1 || column.physical == Physical::null_) {
    if (column.is_list()) throw ValueFault{-1, "numbers", column.type_name()};
    all_valid = read_numbers(column, source.markers, start, count, x, valid);
    if (width > 1) std::fill(valid, valid + count * width, uint8_t{0});
  } else {
    if (!column.is_list()) throw ValueFault{-1, "lists of " + std::to_string(width) + " numbers", column.type_name()};
    all_valid = false;
    for (int64_t row = 0; row < count; ++row) {
      const Column::Run run = column.list_slot(start + row);
      uint8_t* row_valid = valid + row * width;
      if (run.count != width && column.is_valid(start + row))
        throw ValueFault{row, std::to_string(width) + " numbers", std::to_string(run.count)};
      std::fill(row_valid, row_valid + width, static_cast<uint8_t>(run.count == width));
      if (run.count != width) continue;
      try {
        if (read_numbers(column.children[0], source.markers, run.start, width, x + row * width, row_valid))
          std::fill(row_valid, row_valid + width, uint8_t{1});
      } catch (ValueFault& fault) {
        if (fault.index >= 0) fault.index = row;
        throw;
      }
    }
  }
  const int64_t total = count * width;
  if (!all_valid) replace_nulls(valid, source.fill, total, x);
  apply_steps(source.steps, total, x);
  if (!all_valid && !source.has_fill) replace_nulls(valid, 0.0, total, x);
  write_floats(x, count, width, out, stride);
  if (!source.has_indicator) return;
  for (int64_t row = 0; row < count; ++row) {
    bool any_null = false;
    for (int64_t i = 0; i < width; ++i) any_null |= !all_valid && !valid[row * width + i];
    out[row * stride + width] = any_null ? 1.0F : 0.0F;
  }
}

}  // namespace embershard
