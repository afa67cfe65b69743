// Row type conversion for Python: whole arrays between float32 and the two 16-bit types, as they travel and lie in rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embershard {

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kPiece = 1 << 20;  // kernels count in 32 bits

RowType type_named(const std::string& name) {
  if (name == "float16") return RowType::float16;
  if (name == "bfloat16") return RowType::bfloat16;
  throw std::invalid_argument("expected float16 or bfloat16, got " + name);
}

template <class A, class B>
size_t equal_length(const A& from, const B& to) {
  if (from.shape(0) != to.shape(0))
    throw std::invalid_argument("expected an output of " + std::to_string(from.shape(0)) + " values, got " +
                                std::to_string(to.shape(0)));
  return from.shape(0);
}

void widen(const std::string& type, const Vector<const uint16_t>& bits, const Vector<float>& out) {
  const RowType row_type = type_named(type);
  const size_t count = equal_length(bits, out);
  const uint16_t* from = bits.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  for (size_t start = 0; start < count; start += kPiece)
    best_kernels().widen(row_type, from + start, static_cast<uint32_t>(std::min(kPiece, count - start)), to + start);
}

// The kernel makes rows, where every value is finite; on the wire infinite and NaN stay what they are, to be refused.
void restore_non_finite(RowType type, const float* values, uint32_t n, uint16_t* bits) {
  const uint32_t infinite = type == RowType::float16 ? 0x7c00U : 0x7f80U;
  const uint32_t nan = infinite | (type == RowType::float16 ? 0x0200U : 0x0040U);
  for (uint32_t c = 0; c < n; ++c) {
    const uint32_t value = __builtin_bit_cast(uint32_t, values[c]);
    const uint32_t magnitude = value & 0x7fffffffU;
    const uint32_t special = (value >> 16 & 0x8000U) | (magnitude > 0x7f800000U ? nan : infinite);
    bits[c] = static_cast<uint16_t>(magnitude >= 0x7f800000U ? special : bits[c]);
  }
}

void narrow(const std::string& type, const Vector<const float>& values, const Vector<uint16_t>& out) {
  const RowType row_type = type_named(type);
  const size_t count = equal_length(values, out);
  const float* from = values.data();
  uint16_t* to = out.data();
  nb::gil_scoped_release release;
  for (size_t start = 0; start < count; start += kPiece) {
    const auto n = static_cast<uint32_t>(std::min(kPiece, count - start));
    best_kernels().narrow_nearest(row_type, from + start, n, to + start);
    restore_non_finite(row_type, from + start, n, to + start);
  }
}

}  // namespace

void bind_wire(nb::module_& m) {
  m.def("widen", &widen, "type"_a, "bits"_a.noconvert(), "out"_a.noconvert());
  m.def("narrow", &narrow, "type"_a, "values"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace embershard
