// Refused values and types as messages that name column, row and value.
#pragma once

#include <cstdint>
#include <string>

#include "column.h"
#include "faults.h"
#include "values.h"

namespace embershard {

inline std::string in_column(const std::string& column, const std::string& rest) { return "column '" + column + "': " + rest; }

[[noreturn]] inline void refuse_type(const std::string& name, const Column& column, const std::string& expected) {
  const Column* values = &column;
  while (values->is_list() && !values->children.empty() && !values->is_map()) values = &values->children[0];
  std::string hint;
  if (values->is_float()) hint = "; ids do not pass through float, bucketize it or cast the column to an integer type";
  else if (values->physical == Physical::other) hint = "; it needs a named transform";
  throw Fault{FaultKind::column_type, in_column(name, "expected " + expected + ", got " + column.type_name() + hint)};
}

inline std::string id_text(IdKind id) {
  return id == IdKind::int64 ? "int64 ids" : id == IdKind::uint64 ? "uint64 ids" : "text ids";
}

// Calls `read` and names column and row in what it refuses.
template <typename Read>
void naming(const std::string& name, const Column& column, const std::string& type_expected, int64_t first_row,
            FaultKind kind, Read&& read) {
  try {
    read();
  } catch (const ValueFault& fault) {
    if (fault.index < 0) refuse_type(name, column, fault.expected.empty() ? type_expected : fault.expected);
    throw Fault{kind, in_column(name, "expected " + fault.expected + ", got " + fault.got + " (row " +
                                          std::to_string(first_row + fault.index) + ")")};
  }
}

}  // namespace embershard
