// Flat Arrow columns read whole: value hashes (`h` in docs/keys.md) or numbers, with nulls told apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "column.h"

namespace embershard {

enum class IdKind : uint8_t { int64, uint64, text };

// Values that are read as null, in the form each reader compares.
struct NullMarkers {
  std::vector<std::string> texts;
  std::vector<uint64_t> integers;  // two's complement
  std::vector<double> numbers;
};

// Hash that stands for a missing value: murmur3 of "embershard/missing".
uint64_t missing_hash();

// valid[i] = 1 where slot start + i is valid. Returns true, writing nothing, where no slot of the column can be null.
bool read_validity(const Column& column, int64_t start, int64_t count, uint8_t* valid);

// h[i] of values [start, start + count). Returns true where all are valid (then `valid` is unspecified); else valid[i]
// says which are, and h of the others is unspecified. Throws ValueFault (index -1: the type itself is refused).
bool read_hashes(const Column& column, IdKind id, const NullMarkers& markers, int64_t start, int64_t count, uint64_t* h,
                 uint8_t* valid);

// The same for numbers; NaN and infinities count as null.
bool read_numbers(const Column& column, const NullMarkers& markers, int64_t start, int64_t count, double* x,
                  uint8_t* valid);

// Text of slot i of a text column without dictionary; empty for a null slot.
std::string_view text_at(const Column& column, int64_t i);

// Exact integer that `text` spells (optional sign, decimal digits), as two's complement; false if it does not or does not fit.
bool parse_integer(std::string_view text, IdKind id, uint64_t* h);
// Finite or non-finite number that `text` spells; false if it is none.
bool parse_number(std::string_view text, double* x);

// h of one piece of text; throws ValueFault at `index` where an integer id cannot be read from it.
uint64_t hash_text_value(std::string_view text, IdKind id, int64_t index);

// A value as messages show it: text quoted and shortened.
std::string quoted(std::string_view text);

}  // namespace embershard
