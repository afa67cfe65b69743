// Numeric columns to float32: nulls filled, then a chain of transforms. Only + − × ÷ and integer steps, so that the bits
// agree on every CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "bags.h"

namespace embershard {

struct NumberStep {
  enum class Kind : uint8_t { clip, log1p, signed_log1p, affine } kind;
  double a = 0;  // clip: low; affine: x → (x − a) · b
  double b = 0;  // clip: high
};

struct NumberSource {
  int column = -1;
  NullMarkers markers;
  bool has_fill = false;  // a null is read as `fill`, before the steps; else the output is 0
  double fill = 0;
  bool has_indicator = false;  // one more output column: 1 where the value was null
  int64_t width = 1;           // numbers a row; above 1 the column is lists of this length
  std::vector<NumberStep> steps;

  int64_t output_width() const { return width + (has_indicator ? 1 : 0); }
};

// Applies the steps in place; finite in, finite out, within float32.
void apply_steps(const std::vector<NumberStep>& steps, int64_t count, double* x);

// Rows [start, start + count) into out[row * stride], … output_width() floats a row. Throws ValueFault.
void read_dense(const Column& column, const NumberSource& source, int64_t start, int64_t count, Scratch& scratch,
                float* out, int64_t stride);

}  // namespace embershard
