// embershard.embedding._native: module entry; each role binds itself in its own file.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace embershard {
void bind_batch(nb::module_& m);
void bind_table(nb::module_& m);
void bind_wire(nb::module_& m);
}  // namespace embershard

NB_MODULE(_native, m) {
  // A run that is stopped may leave a reading thread behind, which holds on to its objects.
  nb::set_leak_warnings(false);
  embershard::bind_batch(m);
  embershard::bind_table(m);
  embershard::bind_wire(m);
}
