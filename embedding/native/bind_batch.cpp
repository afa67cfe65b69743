// Batch helpers for Python: checks shapes and ranges, releases the GIL, maps errors. No copies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch_deduplicate.h"
#include "batch_pooling.h"
#include "batch_threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embershard {

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using StridedMatrix = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // rows may be further apart than they are long

[[noreturn]] void refuse(const std::string& what, int64_t expected, int64_t got) {
  throw std::invalid_argument("expected " + what + " " + std::to_string(expected) + ", got " + std::to_string(got));
}

void expect(const char* what, int64_t expected, int64_t got) {
  if (expected != got) refuse(what, expected, got);
}

void expect_at_least(const char* what, int64_t least, int64_t got) {
  if (got < least) refuse(std::string(what) + " at least", least, got);
}

void set_threads(int64_t threads) {
  expect_at_least("threads", 1, threads);
  set_batch_threads(static_cast<size_t>(threads));
}

int64_t deduplicate_keys(const Vector<const uint64_t>& keys, const Vector<const int64_t>& starts,
                         const Vector<const int32_t>& table_of, const Vector<uint64_t>& unique,
                         const Vector<int32_t>& inverse, const Vector<uint32_t>& occurrences,
                         const Vector<int64_t>& splits) {
  const int64_t count = static_cast<int64_t>(keys.shape(0));
  const int64_t features = static_cast<int64_t>(table_of.shape(0));
  const int64_t tables = static_cast<int64_t>(splits.shape(0)) - 1;
  if (count > std::numeric_limits<int32_t>::max()) refuse("fewer keys in a batch than", 1LL << 31, count);
  expect_at_least("length of splits", 1, tables + 1);
  expect("length of starts", features + 1, static_cast<int64_t>(starts.shape(0)));
  expect("first start", 0, starts.data()[0]);
  expect("last start", count, starts.data()[features]);
  for (int64_t f = 0; f < features; ++f) {
    expect_at_least("ascending start", starts.data()[f], starts.data()[f + 1]);
    expect_at_least("table number", 0, table_of.data()[f]);
    expect_at_least("number of tables", table_of.data()[f] + 1, tables);
  }
  expect_at_least("length of unique", count, static_cast<int64_t>(unique.shape(0)));
  expect_at_least("length of inverse", count, static_cast<int64_t>(inverse.shape(0)));
  expect_at_least("length of occurrences", count, static_cast<int64_t>(occurrences.shape(0)));
  const nb::gil_scoped_release release;
  thread_local DeduplicationScratch scratch;
  return deduplicate({keys.data(), starts.data(), table_of.data(), features, tables},
                     {unique.data(), inverse.data(), occurrences.data(), splits.data()}, scratch);
}

void count_clicked_keys(const Vector<const int32_t>& inverse, const Vector<const int64_t>& offsets,
                        const Vector<const int64_t>& features, const Vector<const bool>& clicked,
                        const Vector<uint32_t>& clicks) {
  const auto examples = static_cast<int64_t>(clicked.shape(0));
  const int64_t bags = static_cast<int64_t>(offsets.shape(0)) - 1;
  for (size_t k = 0; k < features.shape(0); ++k) {
    const int64_t feature = features.data()[k];
    expect_at_least("feature number", 0, feature);
    expect_at_least("number of bags", (feature + 1) * examples, bags);
    const int64_t* own = offsets.data() + feature * examples;
    expect_at_least("offset", 0, own[0]);
    for (int64_t b = 0; b < examples; ++b) expect_at_least("ascending offset", own[b], own[b + 1]);
    expect_at_least("length of inverse", own[examples], static_cast<int64_t>(inverse.shape(0)));
    for (int64_t i = own[0]; i < own[examples]; ++i) {
      expect_at_least("place", 0, inverse.data()[i]);
      expect_at_least("number of unique keys", inverse.data()[i] + 1, static_cast<int64_t>(clicks.shape(0)));
    }
  }
  const nb::gil_scoped_release release;
  count_clicks({clicked.data(), examples, offsets.data(), features.data(), static_cast<int64_t>(features.shape(0))},
               inverse.data(), clicks.data());
}

// Bags and fields of one call, checked: after construction no kernel can leave the arrays.
struct CheckedBags {
  Bags bags;
  std::vector<Field> fields;
  Fields view() const { return {fields.data(), static_cast<int64_t>(fields.size())}; }
};

// `fields` is (K, 4): feature, column, pooling, scalar.
CheckedBags check_bags(const Vector<const int32_t>& inverse, const Vector<const int64_t>& offsets,
                       const std::optional<Vector<const float>>& weights, int64_t examples,
                       const Matrix<const int64_t>& fields, const RowBlock& block, int64_t row_count,
                       int64_t out_columns) {
  const int64_t values = static_cast<int64_t>(inverse.shape(0));
  const int64_t bag_count = static_cast<int64_t>(offsets.shape(0)) - 1;
  expect_at_least("dim", 1, block.dim);
  if (block.dim > 4096) refuse("dim at most", 4096, block.dim);
  expect_at_least("first column", 0, block.first_column);
  expect_at_least("row width", block.first_column + block.dim, block.width);
  if (weights) expect("length of weights", values, static_cast<int64_t>(weights->shape(0)));
  expect("columns of fields", 4, static_cast<int64_t>(fields.shape(1)));
  CheckedBags checked{{inverse.data(), offsets.data(), weights ? weights->data() : nullptr, examples}, {}};
  for (size_t k = 0; k < fields.shape(0); ++k) {
    const int64_t* f = fields.data() + 4 * k;
    Field field{f[0], f[1], static_cast<Pooling>(f[2]), f[3] != 0, 0, 0, 0};
    expect_at_least("feature number", 0, field.feature);
    expect_at_least("number of bags", (field.feature + 1) * examples, bag_count);
    expect_at_least("column", 0, field.column);
    expect_at_least("columns of the output", field.column + block.dim, out_columns);
    expect_at_least("pooling", 0, f[2]);
    if (f[2] > static_cast<int64_t>(Pooling::kMax)) refuse("pooling at most", 3, f[2]);
    const int64_t* own = offsets.data() + field.feature * examples;
    const int64_t start = own[0], stop = field.scalar ? own[0] + examples : own[examples];
    expect_at_least("offset", 0, start);
    expect_at_least("length of inverse", stop, values);
    if (!field.scalar) {
      bool ascending = true;
      for (int64_t b = 0; b < examples; ++b) ascending &= own[b] <= own[b + 1];
      if (!ascending) throw std::invalid_argument("expected ascending offsets, got a bag of negative length");
    }
    int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
    for (int64_t i = start; i < stop; ++i) {
      low = std::min(low, inverse.data()[i]);
      high = std::max(high, inverse.data()[i]);
    }
    if (start < stop) {
      expect_at_least("row number", block.row_start, low);
      expect_at_least("number of rows", high + 1 - block.row_start, row_count);
      field.first_row = low;
      field.last_row = high;
      field.values = stop - start;
    }
    checked.fields.push_back(field);
  }
  return checked;
}

template <class T>
int64_t stride_of(const StridedMatrix<T>& matrix) {
  if (matrix.shape(0) > 0 && matrix.shape(1) > 1) expect("column stride", 1, matrix.stride(1));
  return matrix.stride(0);
}

void pool(const Matrix<const float>& rows, int64_t row_start, int64_t first_column, int64_t dim,
          const Vector<const int32_t>& inverse, const Vector<const int64_t>& offsets,
          const std::optional<Vector<const float>>& weights, const Matrix<const int64_t>& fields,
          const StridedMatrix<float>& out) {
  const RowBlock block{static_cast<int64_t>(rows.shape(1)), row_start, first_column, dim};
  const int64_t stride = stride_of(out);
  const CheckedBags checked =
      check_bags(inverse, offsets, weights, static_cast<int64_t>(out.shape(0)), fields, block,
                 static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(out.shape(1)));
  const nb::gil_scoped_release release;
  pool_rows(rows.data(), block, checked.bags, checked.view(), out.data(), stride);
}

void sum_gradients(const Matrix<const float>& rows, int64_t row_start, int64_t first_column, int64_t dim,
                   const Vector<const int32_t>& inverse, const Vector<const int64_t>& offsets,
                   const std::optional<Vector<const float>>& weights, const Matrix<const int64_t>& fields,
                   const StridedMatrix<const float>& gradient, const Matrix<float>& out) {
  const RowBlock block{static_cast<int64_t>(rows.shape(1)), row_start, first_column, dim};
  const int64_t stride = stride_of(gradient);
  expect("rows of out", static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(out.shape(0)));
  expect("columns of out", block.width, static_cast<int64_t>(out.shape(1)));
  const CheckedBags checked =
      check_bags(inverse, offsets, weights, static_cast<int64_t>(gradient.shape(0)), fields, block,
                 static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(gradient.shape(1)));
  const nb::gil_scoped_release release;
  sum_row_gradients(rows.data(), block, checked.bags, checked.view(), gradient.data(), stride, out.data());
}

void pool_with_interaction(const Matrix<const float>& rows, int64_t row_start, int64_t first_column, int64_t dim,
                           int64_t linear_column, const Vector<const int32_t>& inverse,
                           const Vector<const int64_t>& offsets, const std::optional<Vector<const float>>& weights,
                           const Matrix<const int64_t>& fields, const StridedMatrix<float>& out,
                           const Vector<float>& first_order, const Vector<float>& second_order,
                           const Matrix<float>& factor_sums) {
  const RowBlock block{static_cast<int64_t>(rows.shape(1)), row_start, first_column, dim};
  const int64_t examples = static_cast<int64_t>(out.shape(0)), stride = stride_of(out);
  expect_at_least("row width", linear_column + 1, block.width);
  expect("length of first_order", examples, static_cast<int64_t>(first_order.shape(0)));
  expect("length of second_order", examples, static_cast<int64_t>(second_order.shape(0)));
  expect("rows of factor_sums", examples, static_cast<int64_t>(factor_sums.shape(0)));
  expect("columns of factor_sums", dim, static_cast<int64_t>(factor_sums.shape(1)));
  const CheckedBags checked = check_bags(inverse, offsets, weights, examples, fields, block,
                                         static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(out.shape(1)));
  const nb::gil_scoped_release release;
  pool_interaction(rows.data(), block, linear_column, checked.bags, checked.view(),
                   {out.data(), stride, first_order.data(), second_order.data(), factor_sums.data()});
}

void sum_gradients_with_interaction(
    const Matrix<const float>& rows, int64_t row_start, int64_t first_column, int64_t dim, int64_t linear_column,
    const Vector<const int32_t>& inverse, const Vector<const int64_t>& offsets,
    const std::optional<Vector<const float>>& weights, const Matrix<const int64_t>& fields,
    const StridedMatrix<const float>& pooled, const Matrix<const float>& factor_sums,
    const std::optional<StridedMatrix<const float>>& gradient,
    const std::optional<Vector<const float>>& first_order_gradient,
    const std::optional<Vector<const float>>& second_order_gradient, const Matrix<float>& out) {
  const RowBlock block{static_cast<int64_t>(rows.shape(1)), row_start, first_column, dim};
  const int64_t examples = static_cast<int64_t>(pooled.shape(0));
  int64_t columns = static_cast<int64_t>(pooled.shape(1));
  expect_at_least("row width", linear_column + 1, block.width);
  expect("rows of factor_sums", examples, static_cast<int64_t>(factor_sums.shape(0)));
  expect("columns of factor_sums", dim, static_cast<int64_t>(factor_sums.shape(1)));
  if (gradient) {
    expect("rows of gradient", examples, static_cast<int64_t>(gradient->shape(0)));
    columns = std::min(columns, static_cast<int64_t>(gradient->shape(1)));
  }
  if (first_order_gradient) {
    expect("length of first_order_gradient", examples, static_cast<int64_t>(first_order_gradient->shape(0)));
  }
  if (second_order_gradient) {
    expect("length of second_order_gradient", examples, static_cast<int64_t>(second_order_gradient->shape(0)));
  }
  expect("rows of out", static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(out.shape(0)));
  expect("columns of out", block.width, static_cast<int64_t>(out.shape(1)));
  const CheckedBags checked = check_bags(inverse, offsets, weights, examples, fields, block,
                                         static_cast<int64_t>(rows.shape(0)), columns);
  const InteractionForward forward{pooled.data(), stride_of(pooled), factor_sums.data()};
  const InteractionGradient into{gradient ? gradient->data() : nullptr, gradient ? stride_of(*gradient) : 0,
                                 first_order_gradient ? first_order_gradient->data() : nullptr,
                                 second_order_gradient ? second_order_gradient->data() : nullptr};
  const nb::gil_scoped_release release;
  sum_interaction_gradients(rows.data(), block, linear_column, checked.bags, checked.view(), forward, into,
                            out.data());
}

}  // namespace

void bind_batch(nb::module_& m) {
  m.def("set_batch_threads", &set_threads, "threads"_a);
  m.def("use_openmp", [](uintptr_t parallel) { use_openmp(reinterpret_cast<GompParallel>(parallel)); }, "gomp_parallel"_a);
  m.def("batch_threads", &batch_threads);
  m.def("deduplicate", &deduplicate_keys, "keys"_a.noconvert(), "starts"_a.noconvert(), "table_of"_a.noconvert(),
        "unique"_a.noconvert(), "inverse"_a.noconvert(), "occurrences"_a.noconvert(), "splits"_a.noconvert());
  m.def("count_clicks", &count_clicked_keys, "inverse"_a.noconvert(), "offsets"_a.noconvert(), "features"_a.noconvert(),
        "clicked"_a.noconvert(), "clicks"_a.noconvert());
  m.def("pool_rows", &pool, "rows"_a.noconvert(), "row_start"_a, "first_column"_a, "dim"_a, "inverse"_a.noconvert(),
        "offsets"_a.noconvert(), "weights"_a.noconvert().none(), "fields"_a.noconvert(), "out"_a.noconvert());
  m.def("sum_row_gradients", &sum_gradients, "rows"_a.noconvert(), "row_start"_a, "first_column"_a, "dim"_a,
        "inverse"_a.noconvert(), "offsets"_a.noconvert(), "weights"_a.noconvert().none(), "fields"_a.noconvert(),
        "gradient"_a.noconvert(), "out"_a.noconvert());
  m.def("pool_interaction", &pool_with_interaction, "rows"_a.noconvert(), "row_start"_a, "first_column"_a, "dim"_a,
        "linear_column"_a, "inverse"_a.noconvert(), "offsets"_a.noconvert(), "weights"_a.noconvert().none(),
        "fields"_a.noconvert(), "out"_a.noconvert(), "first_order"_a.noconvert(), "second_order"_a.noconvert(),
        "factor_sums"_a.noconvert());
  m.def("sum_interaction_gradients", &sum_gradients_with_interaction, "rows"_a.noconvert(), "row_start"_a,
        "first_column"_a, "dim"_a, "linear_column"_a, "inverse"_a.noconvert(), "offsets"_a.noconvert(),
        "weights"_a.noconvert().none(), "fields"_a.noconvert(), "pooled"_a.noconvert(), "factor_sums"_a.noconvert(),
        "gradient"_a.noconvert().none(), "first_order_gradient"_a.noconvert().none(),
        "second_order_gradient"_a.noconvert().none(), "out"_a.noconvert());
}

}  // namespace embershard
