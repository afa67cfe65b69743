// Text columns row by row: through a dictionary, cut at delimiters, element by element of lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "bags.h"
#include "column.h"
#include "values.h"

namespace embershard {

// Text of rows of a text column, through its dictionary if it has one.
class TextRows {
 public:
  explicit TextRows(const Column& column) : column_(column), text_(column.dictionary ? *column.dictionary : column) {}

  bool is_text() const { return text_.is_text(); }
  // False for null.
  bool at(int64_t row, std::string_view* text) const {
    if (!column_.is_valid(row)) return false;
    const int64_t slot = column_.dictionary ? code(row) : row;
    if (!text_.is_valid(slot)) return false;
    *text = text_at(text_, slot);
    return true;
  }

 private:
  int64_t code(int64_t row) const {
    switch (column_.physical) {
      case Physical::int8: return column_.values<int8_t>()[row];
      case Physical::uint8: return column_.values<uint8_t>()[row];
      case Physical::int16: return column_.values<int16_t>()[row];
      case Physical::uint16: return column_.values<uint16_t>()[row];
      case Physical::int32: return column_.values<int32_t>()[row];
      case Physical::uint32: return column_.values<uint32_t>()[row];
      default: return column_.values<int64_t>()[row];
    }
  }

  const Column& column_;
  const Column& text_;
};

inline bool is_null_text(std::string_view text, const ValueSource& source) {
  return std::find(source.markers.texts.begin(), source.markers.texts.end(), text) != source.markers.texts.end();
}

// The pieces between delimiters; empty text has none.
template <typename Function>
void for_each_piece(std::string_view text, std::string_view delimiter, Function&& function) {
  for (size_t from = 0; !text.empty() && from <= text.size();) {
    const size_t found = delimiter.size() == 1 ? text.find(delimiter[0], from) : text.find(delimiter, from);
    const size_t end = found == std::string_view::npos ? text.size() : found;
    function(text.substr(from, end - from));
    from = end + delimiter.size();
    if (found == std::string_view::npos) break;
  }
}

struct WeightedPiece {
  std::string_view value, weight;
  bool has_weight = false;
};

// `value:weight` cut at the last delimiter; an empty delimiter cuts nothing.
inline WeightedPiece cut_weight(std::string_view piece, std::string_view delimiter) {
  const size_t found = delimiter.empty() ? std::string_view::npos : piece.rfind(delimiter);
  if (found == std::string_view::npos) return {piece, {}, false};
  return {piece.substr(0, found), piece.substr(found + delimiter.size()), true};
}

// Every text that the source makes a value of; nulls and null markers have none. Columns of other types have none.
template <typename Function>
void for_each_text(const Column& column, const ValueSource& source, Function&& function) {
  if (column.is_list()) {
    const Column& values = column.is_map() ? column.children[0].children[0] : column.children[0];
    const TextRows texts(values);
    if (!texts.is_text()) return;
    for (int64_t row = 0; row < column.length; ++row) {
      const Column::Run run = column.list_slot(row);
      for (int64_t i = run.start; i < run.start + run.count; ++i) {
        std::string_view text;
        if (texts.at(i, &text) && !is_null_text(text, source)) function(text);
      }
    }
    return;
  }
  const TextRows texts(column);
  if (!texts.is_text()) return;
  for (int64_t row = 0; row < column.length; ++row) {
    std::string_view text;
    if (!texts.at(row, &text) || is_null_text(text, source)) continue;
    if (source.delimiter.empty()) {
      function(text);
      continue;
    }
    for_each_piece(text, source.delimiter, [&](std::string_view piece) {
      const std::string_view value = cut_weight(piece, source.weight_delimiter).value;
      if (!value.empty() && !is_null_text(value, source)) function(value);
    });
  }
}

}  // namespace embershard
