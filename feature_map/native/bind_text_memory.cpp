// TextMemory for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind_values.h"
#include "text_memory.h"

namespace nb = nanobind;

namespace embershard {
namespace {

void add_records(TextMemory& memory, nb::handle capsules, const std::string& column, nb::dict rules, uint64_t salt) {
  const RecordChunk chunk = chunk_of(capsules);
  const ValueSource source = value_source_of(rules);
  nb::gil_scoped_release release;
  for (int64_t i = 0; i < chunk.schema->n_children; ++i)
    if (column == chunk.schema->children[i]->name)
      memory.add_column(
          view_column(*chunk.schema->children[i], *chunk.array->children[i], chunk.array->offset, chunk.array->length),
          source, salt);
}

void add(TextMemory& memory, uint64_t key, nb::bytes text) { memory.add(key, {text.c_str(), text.size()}); }

nb::object find(const TextMemory& memory, uint64_t key) {
  std::string_view text;
  if (!memory.find(key, &text)) return nb::none();
  return nb::bytes(text.data(), text.size());
}

nb::tuple take(TextMemory& memory) {
  TextMemory::Taken taken;
  {
    nb::gil_scoped_release release;
    taken = memory.take();
  }
  const size_t n = static_cast<size_t>(taken.keys.size()), size = static_cast<size_t>(taken.bytes.size());
  Buffer<uint8_t> bytes;
  bytes.resize(taken.bytes.size());
  if (size > 0) std::memcpy(bytes.data(), taken.bytes.data(), size);
  return nb::make_tuple(array_of(taken.keys, {n}), array_of(taken.offsets, {n + 1}), array_of(bytes, {size}));
}

nb::list collisions(const TextMemory& memory) {
  nb::list found;
  for (const KeyCollision& c : memory.collisions())
    found.append(nb::make_tuple(c.key, nb::bytes(c.kept.data(), c.kept.size()), nb::bytes(c.other.data(), c.other.size())));
  return found;
}

}  // namespace

void bind_text_memory(nb::module_& m) {
  nb::class_<TextMemory>(m, "TextMemory", "The texts behind the keys of one key space; the caller locks.")
      .def(nb::init<>())
      .def("add", &add, nb::arg("key"), nb::arg("text"))
      .def("add_records", &add_records, nb::arg("chunk"), nb::arg("column"), nb::arg("rules"), nb::arg("salt"))
      .def("find", &find, nb::arg("key"))
      .def("take", &take)
      .def("collisions", &collisions)
      .def_prop_ro("collision_count", &TextMemory::collision_count)
      .def_prop_ro("bytes", &TextMemory::bytes)
      .def("__len__", &TextMemory::size);
}

}  // namespace embershard
