#include "column.h"

#include <cstdlib>
#include <cstring>

namespace embershard {
namespace {

Physical physical_of(const char* format) {
  switch (format[0]) {
    case 'n': return Physical::null_;
    case 'b': return Physical::boolean;
    case 'c': return Physical::int8;
    case 's': return Physical::int16;
    case 'i': return Physical::int32;
    case 'l': return Physical::int64;
    case 'C': return Physical::uint8;
    case 'S': return Physical::uint16;
    case 'I': return Physical::uint32;
    case 'L': return Physical::uint64;
    case 'e': return Physical::float16;
    case 'f': return Physical::float32;
    case 'g': return Physical::float64;
    case 'u':
    case 'z': return Physical::text32;
    case 'U':
    case 'Z': return Physical::text64;
    case 'v': return format[1] == 'u' || format[1] == 'z' ? Physical::text_view : Physical::other;
    case 'w': return Physical::text_fixed;
    case '+': break;
    default: return Physical::other;
  }
  switch (format[1]) {
    case 'l':
    case 'm': return Physical::list32;
    case 'L': return Physical::list64;
    case 'v': return format[2] == 'l' ? Physical::list_view32 : Physical::list_view64;
    case 'w': return Physical::list_fixed;
    case 's': return Physical::struct_;
    default: return Physical::other;
  }
}

std::string scalar_name(const char* format) {
  const std::string_view f = format;
  if (f.starts_with("ts")) return "timestamp";
  if (f.starts_with("td")) return "date";
  if (f.starts_with("tt")) return "time";
  if (f.starts_with("tD")) return "duration";
  if (f.starts_with("ti")) return "interval";
  if (f.starts_with("d:")) return "decimal";
  switch (format[0]) {
    case 'n': return "null";
    case 'b': return "bool";
    case 'c': return "int8";
    case 's': return "int16";
    case 'i': return "int32";
    case 'l': return "int64";
    case 'C': return "uint8";
    case 'S': return "uint16";
    case 'I': return "uint32";
    case 'L': return "uint64";
    case 'e': return "float16";
    case 'f': return "float32";
    case 'g': return "float64";
    case 'u': return "string";
    case 'U': return "large_string";
    case 'z': return "binary";
    case 'Z': return "large_binary";
    case 'v': return f == "vu" ? "string_view" : "binary_view";
    case 'w': return "fixed_size_binary";
    default: return "type '" + std::string(f) + "'";
  }
}

}  // namespace

Column view_column(const ArrowSchema& schema, const ArrowArray& array, int64_t extra_offset, int64_t length) {
  Column column;
  column.physical = physical_of(schema.format);
  column.format = schema.format;
  column.name = schema.name == nullptr ? "" : schema.name;
  column.length = length;
  column.offset = array.offset + extra_offset;
  column.buffers = array.buffers;
  column.array = &array;
  if (array.n_buffers > 0 && array.null_count != 0 && column.physical != Physical::null_)
    column.validity = static_cast<const uint8_t*>(array.buffers[0]);
  if (column.physical == Physical::text_fixed) column.fixed_width = std::atoll(schema.format + 2);
  if (column.physical == Physical::list_fixed) column.fixed_width = std::atoll(schema.format + 3);
  if (schema.dictionary != nullptr && array.dictionary != nullptr)
    column.dictionary =
        std::make_unique<Column>(view_column(*schema.dictionary, *array.dictionary, 0, array.dictionary->length));
  for (int64_t i = 0; i < schema.n_children && i < array.n_children; ++i)
    if (column.physical == Physical::struct_)  // a struct's slice is not passed on to its children by the exporter
      column.children.push_back(view_column(*schema.children[i], *array.children[i], column.offset, length));
    else
      column.children.push_back(view_column(*schema.children[i], *array.children[i], 0, array.children[i]->length));
  return column;
}

Column null_column(std::string_view name, int64_t length) {
  Column column;
  column.name = name;
  column.length = length;
  return column;
}

Column::Run Column::list_slot(int64_t i) const {
  if (!is_valid(i)) return {0, 0};
  switch (physical) {
    case Physical::list32: {
      const int32_t* offsets = values<int32_t>();
      return {offsets[i], int64_t{offsets[i + 1]} - offsets[i]};
    }
    case Physical::list64: {
      const int64_t* offsets = values<int64_t>();
      return {offsets[i], offsets[i + 1] - offsets[i]};
    }
    case Physical::list_view32: return {values<int32_t>(1)[i], values<int32_t>(2)[i]};
    case Physical::list_view64: return {values<int64_t>(1)[i], values<int64_t>(2)[i]};
    default: return {(offset + i) * fixed_width, fixed_width};
  }
}

std::string Column::type_name() const {
  if (dictionary != nullptr) return "dictionary<" + dictionary->type_name() + ">";
  if (is_map()) return "map";
  if (is_list()) return "list<" + (children.empty() ? std::string("null") : children[0].type_name()) + ">";
  if (physical == Physical::struct_) return "struct";
  return scalar_name(format);
}

}  // namespace embershard
