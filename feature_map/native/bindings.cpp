// embershard.feature_map._native: whole Arrow columns to keys. Checks arguments, releases the GIL, maps errors.
#include <nanobind/nanobind.h>

#include "mix64.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.def("mix64", [](uint64_t value) { return embershard::mix64(value); }, nb::arg("value"));
  m.def("unmix64", [](uint64_t value) { return embershard::unmix64(value); }, nb::arg("value"));
}
