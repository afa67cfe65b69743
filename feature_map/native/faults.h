// What encoding throws. Bindings turn it into the Python error of the same name.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace embershard {

enum class FaultKind { column_type, value, label, missing_column };

// A refused column or value; `message` is complete.
struct Fault {
  FaultKind kind;
  std::string message;
};

// A refused value at `index` of a flat column; whoever knows the column's name and rows turns it into a Fault.
struct ValueFault {
  int64_t index;
  std::string expected;
  std::string got;
};

}  // namespace embershard
