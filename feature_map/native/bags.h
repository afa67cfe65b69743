// Bags: the value hashes of each row of one column, with the rules for missing values already applied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"
#include "column.h"
#include "values.h"

namespace embershard {

// How one click-log column becomes values. Column numbers index the plan's column list.
struct ValueSource {
  int column = -1;
  int weights_column = -1;  // parallel weights, or -1
  IdKind id = IdKind::int64;
  NullMarkers markers;
  bool skip_missing = false;            // a null row has no value; else it has `missing`
  uint64_t missing = missing_hash();    // what a null row stands for: the missing hash, or a default value's
  bool is_list = false;                 // a column of no type, or not there, is null lists; else null scalars
  bool keep_null_elements = false;      // null elements of a list stand as the missing hash; else they are dropped
  std::string delimiter;                // text is split into values at it, where not empty
  std::string weight_delimiter;         // `value:weight` pieces, where not empty
  int64_t max_length = 0;               // values a row at most; 0: no limit
  bool keep_last = true;                // which of them stay
};

struct Bags {
  int64_t rows = 0;
  bool is_scalar = true;   // exactly one value a row; `ends` is empty then
  bool is_weighted = false;
  Buffer<uint64_t> h;
  Buffer<int64_t> ends;    // row i's values are h[ends[i-1] : ends[i]]
  Buffer<float> weights;

  void reset(int64_t row_count) {
    rows = row_count;
    is_scalar = true;
    is_weighted = false;
    h.clear();
    ends.clear();
    weights.clear();
  }
  bool has_one_each() const {
    if (is_scalar) return true;
    if (h.size() != rows) return false;
    for (int64_t row = 0; row < rows; ++row)
      if (ends[row] != row + 1) return false;
    return true;
  }
  int64_t begin_of(int64_t row) const { return is_scalar ? row : (row == 0 ? 0 : ends[row - 1]); }
  int64_t end_of(int64_t row) const { return is_scalar ? row + 1 : ends[row]; }
};

// Scratch memory that is kept between calls of one thread.
struct Scratch {
  Buffer<uint64_t> h;
  Buffer<uint8_t> valid;
  Buffer<double> numbers;
};

// Bags of rows [start, start + count) of a column. Throws ValueFault whose index counts rows from `start`.
void read_bags(const Column& column, const Column* weights, const ValueSource& source, int64_t start, int64_t count,
               Scratch& scratch, Bags& bags);

}  // namespace embershard
