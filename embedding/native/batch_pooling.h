// Rows of unique keys to examples and back: pooling of bags, and the sum of gradients of equal keys.
// The NumPy twins are in embedding/batch_rows.py. All sums run in a fixed order: by example, then field, then value,
// whatever the number of threads.
#pragma once

#include <cstdint>

namespace embershard {

enum class Pooling : uint8_t { kSum = 0, kMean = 1, kSqrtN = 2, kMax = 3 };

// Bags of a batch, feature-major: bag (feature, b) holds inverse[offsets[feature * examples + b] .. next).
struct Bags {
  const int32_t* inverse;  // row numbers, counted over all row groups
  const int64_t* offsets;
  const float* weights;  // per value, or null where every value weighs 1
  int64_t examples;
};

// One feature's place among the bags and in the output: columns [column, column + dim).
struct Field {
  int64_t feature;
  int64_t column;
  Pooling pooling;
  bool scalar;        // every bag holds exactly one value
  int32_t first_row;  // of all its values, if it has any
  int32_t last_row;
  int64_t values;
};

// Columns [first_column, first_column + dim) of rows (n, width); row r of the batch is row r - row_start here.
struct RowBlock {
  int64_t width;
  int64_t row_start;
  int64_t first_column;
  int64_t dim;
};

struct Fields {
  const Field* data;
  int64_t count;
};

// out(b, field.column + d) = pooled rows of the bag; an empty bag, or one whose weights sum to 0, gives zeros.
void pool_rows(const float* rows, const RowBlock& block, const Bags& bags, const Fields& fields, float* out,
               int64_t out_stride);

// row_gradients(r, first_column + d) += what pool_rows' backward gives for gradient (B, out_stride). `rows` is read for
// max pooling only.
void sum_row_gradients(const float* rows, const RowBlock& block, const Bags& bags, const Fields& fields,
                       const float* gradient, int64_t gradient_stride, float* row_gradients);

// Pooled `factors` into `out` as pool_rows, and per example of the factorization machine
// first_order(b) = sum of the fields' pooled `linear` weight (dim 1; 0 when linear_column is negative),
// factor_sums(b, d) = sum of the fields' factors, second_order(b) = 1/2 sum over d of (factor_sums^2 - sum of squares).
// Source: Rendle 2010, "Factorization Machines", lemma 3.1.
struct InteractionOutput {
  float* fields;  // (B, stride)
  int64_t stride;
  float* first_order;   // (B,)
  float* second_order;  // (B,)
  float* factor_sums;   // (B, dim)
};
void pool_interaction(const float* rows, const RowBlock& factors, int64_t linear_column, const Bags& bags,
                      const Fields& fields, const InteractionOutput& out);

// What the backward needs of the forward: its pooled factors and their sums.
struct InteractionForward {
  const float* fields;  // (B, stride)
  int64_t stride;
  const float* factor_sums;  // (B, dim)
};

// Any of the three may be null (zero).
struct InteractionGradient {
  const float* fields;  // (B, stride), gradient of the pooled factors
  int64_t stride;
  const float* first_order;   // (B,)
  const float* second_order;  // (B,)
};

// Backward of pool_interaction into row_gradients (n, width), which is added to.
void sum_interaction_gradients(const float* rows, const RowBlock& factors, int64_t linear_column, const Bags& bags,
                               const Fields& fields, const InteractionForward& forward,
                               const InteractionGradient& gradient, float* row_gradients);

}  // namespace embershard
