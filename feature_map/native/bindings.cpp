// embershard.feature_map._native: module entry; each role binds itself in its own file.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "mix64.h"
#include "murmur3.h"
#include "values.h"

namespace nb = nanobind;

namespace embershard {
void bind_plan(nb::module_& m);
void bind_text_memory(nb::module_& m);
}  // namespace embershard

NB_MODULE(_native, m) {
  // A run that is stopped may leave a reading thread behind, which holds on to its objects.
  nb::set_leak_warnings(false);
  m.def("mix64", [](uint64_t value) { return embershard::mix64(value); }, nb::arg("value"));
  m.def("unmix64", [](uint64_t value) { return embershard::unmix64(value); }, nb::arg("value"));
  m.def("murmur3", [](nb::bytes text) { return embershard::murmur3(text.c_str(), text.size()); }, nb::arg("text"));
  m.attr("MISSING_HASH") = embershard::missing_hash();
  embershard::bind_plan(m);
  embershard::bind_text_memory(m);
}
