// A read-only view of one Arrow array: physical type, buffers, offset, children. Owns nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arrow_c_data.h"

namespace embershard {

enum class Physical : uint8_t {
  null_,
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  float32,
  float64,
  text32,      // string, binary: 32-bit offsets
  text64,      // large_string, large_binary
  text_view,   // string_view, binary_view
  text_fixed,  // fixed_size_binary
  list32,      // list and map: 32-bit offsets
  list64,
  list_view32,
  list_view64,
  list_fixed,
  struct_,
  other,  // dates, timestamps, decimals …: a named transform must come first
};

struct Column {
  Physical physical = Physical::null_;
  const char* format = "n";
  std::string_view name;
  int64_t length = 0;
  int64_t offset = 0;
  const uint8_t* validity = nullptr;  // null: every slot is valid
  const void* const* buffers = nullptr;
  int64_t fixed_width = 0;
  const ArrowArray* array = nullptr;
  std::vector<Column> children;
  std::unique_ptr<Column> dictionary;

  template <typename T>
  const T* values(int buffer = 1) const {
    return static_cast<const T*>(buffers[buffer]) + offset;
  }
  bool is_valid(int64_t i) const {
    if (physical == Physical::null_) return false;
    if (validity == nullptr) return true;
    const int64_t bit = offset + i;
    return (validity[bit >> 3] >> (bit & 7)) & 1;
  }
  bool may_have_nulls() const { return physical == Physical::null_ || validity != nullptr; }
  bool is_list() const { return physical >= Physical::list32 && physical <= Physical::list_fixed; }
  bool is_map() const { return format[0] == '+' && format[1] == 'm'; }
  bool is_text() const { return physical >= Physical::text32 && physical <= Physical::text_fixed; }
  bool is_float() const { return physical >= Physical::float16 && physical <= Physical::float64; }
  bool is_integer() const { return physical >= Physical::boolean && physical <= Physical::uint64; }

  // Elements of list slot i: [start, start + count) of children[0]; a null list has none.
  struct Run {
    int64_t start, count;
  };
  Run list_slot(int64_t i) const;

  // Arrow's name of the type, for messages: `int64`, `timestamp`, `list<…>` …
  std::string type_name() const;
};

// Views an array; `extra_offset` is what a parent struct adds to its children's own offsets.
Column view_column(const ArrowSchema& schema, const ArrowArray& array, int64_t extra_offset, int64_t length);

// A column that is not there: `length` nulls.
Column null_column(std::string_view name, int64_t length);

}  // namespace embershard
