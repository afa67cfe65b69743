// Batch helpers: de-duplicate keys, expand rows to examples, sum gradients of equal keys.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace embershard {

void bind_batch(nb::module_& m) { m.attr("batch_abi") = 1; }

}  // namespace embershard
