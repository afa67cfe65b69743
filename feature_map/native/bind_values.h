// What bindings share: rules from plain dicts, Arrow capsules, NumPy arrays over a buffer's memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "bags.h"
#include "memory_pool.h"
#include "plan.h"

namespace embershard {

namespace nb = nanobind;

template <typename T>
T get(nb::handle spec, const char* name, T otherwise) {
  nb::dict dict = nb::cast<nb::dict>(spec);
  return dict.contains(name) ? nb::cast<T>(dict[name]) : otherwise;
}

inline IdKind id_of(nb::handle spec) {
  const std::string id = get<std::string>(spec, "id", "int64");
  if (id == "text") return IdKind::text;
  if (id == "uint64") return IdKind::uint64;
  if (id == "int64") return IdKind::int64;
  throw nb::value_error(("expected id int64, uint64 or text, got " + id).c_str());
}

inline NullMarkers markers_of(nb::handle spec) {
  NullMarkers markers;
  for (nb::handle text : get(spec, "null_texts", nb::list())) {
    const nb::bytes bytes = nb::cast<nb::bytes>(text);
    markers.texts.emplace_back(bytes.c_str(), bytes.size());
  }
  markers.integers = get(spec, "null_integers", std::vector<uint64_t>());
  markers.numbers = get(spec, "null_numbers", std::vector<double>());
  return markers;
}

inline ValueSource value_source_of(nb::handle spec) {
  ValueSource source;
  source.column = get(spec, "column", -1);
  source.weights_column = get(spec, "weights_column", -1);
  source.id = id_of(spec);
  source.markers = markers_of(spec);
  source.skip_missing = get(spec, "skip_missing", false);
  source.missing = get(spec, "missing", missing_hash());
  source.is_list = get(spec, "is_list", false);
  source.keep_null_elements = get(spec, "keep_null_elements", false);
  source.delimiter = get(spec, "delimiter", std::string());
  source.weight_delimiter = get(spec, "weight_delimiter", std::string());
  source.max_length = get(spec, "max_length", int64_t{0});
  source.keep_last = get(spec, "keep_last", true);
  return source;
}

// A NumPy array over the buffer's memory, freed with the array.
template <typename T>
nb::object array_of(Buffer<T>& buffer, std::initializer_list<size_t> shape) {
  buffer.reserve(1);
  T* memory = buffer.release();
  nb::capsule owner(memory, [](void* p) noexcept { pool_free(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(memory, shape.size(), shape.begin(), owner));
}

// (arrow_schema, arrow_array) capsules, which must outlive the chunk.
inline RecordChunk chunk_of(nb::handle capsules) {
  const nb::tuple both = nb::cast<nb::tuple>(capsules);
  const void* schema = PyCapsule_GetPointer(both[0].ptr(), "arrow_schema");
  const void* array = schema == nullptr ? nullptr : PyCapsule_GetPointer(both[1].ptr(), "arrow_array");
  if (array == nullptr) throw nb::python_error();
  return {static_cast<const ArrowSchema*>(schema), static_cast<const ArrowArray*>(array)};
}

}  // namespace embershard
