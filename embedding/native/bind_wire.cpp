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

// Bytes that nobody has set yet, and their memory. The caller sets them before the bytes are seen by anyone else: then it is
// as if they had been made so, and a message needs no copy from where it was put together.
nb::tuple unset_bytes(size_t size) {
  PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw nb::python_error();
  nb::object bytes = nb::steal(made);
  nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> memory(PyBytes_AS_STRING(made), {size}, bytes);
  return nb::make_tuple(bytes, memory);
}

void narrow(const std::string& type, const Vector<const float>& values, const Vector<uint16_t>& out) {
  const RowType row_type = type_named(type);
  const size_t count = equal_length(values, out);
  const float* from = values.data();
  uint16_t* to = out.data();
  nb::gil_scoped_release release;
  for (size_t start = 0; start < count; start += kPiece)
    best_kernels().narrow_any(row_type, from + start, static_cast<uint32_t>(std::min(kPiece, count - start)), to + start);
}

}  // namespace

void bind_wire(nb::module_& m) {
  m.def("unset_bytes", &unset_bytes, "size"_a);
  m.def("widen", &widen, "type"_a, "bits"_a.noconvert(), "out"_a.noconvert());
  m.def("narrow", &narrow, "type"_a, "values"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace embershard
