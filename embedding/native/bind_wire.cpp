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

// Arrays of a push or pull come from far away, mostly from what another core has written: lines of the piece that is kAhead
// values on are asked for while one is converted.
constexpr size_t kPiece = 128, kAhead = 8 * kPiece;

template <class From, class To, class Convert>
void by_pieces(const From* from, To* to, size_t count, Convert convert) {
  for (size_t start = 0; start < count; start += kPiece) {
    const size_t size = std::min(kPiece, count - start);
    for (size_t i = 0; i < kPiece; i += 64 / sizeof(From)) __builtin_prefetch(from + start + kAhead + i, 0, 3);
    for (size_t i = 0; i < kPiece; i += 64 / sizeof(To)) __builtin_prefetch(to + start + kAhead + i, 1, 3);
    convert(from + start, static_cast<uint32_t>(size), to + start);
  }
}

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
  nb::gil_scoped_release release;
  by_pieces(bits.data(), out.data(), count,
            [&](const uint16_t* from, uint32_t n, float* to) { best_kernels().widen(row_type, from, n, to); });
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
  nb::gil_scoped_release release;
  by_pieces(values.data(), out.data(), count,
            [&](const float* from, uint32_t n, uint16_t* to) { best_kernels().narrow_any(row_type, from, n, to); });
}

}  // namespace

void bind_wire(nb::module_& m) {
  m.def("unset_bytes", &unset_bytes, "size"_a);
  m.def("widen", &widen, "type"_a, "bits"_a.noconvert(), "out"_a.noconvert());
  m.def("narrow", &narrow, "type"_a, "values"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace embershard
