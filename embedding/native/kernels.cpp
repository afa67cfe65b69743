// The kernel sets: kernels_body.h and kernels_rows_body.h compiled once per instruction set, and the choice between them.
//
// Written out instead of target_clones so that a test can force each set, and so that clang builds the same sets.
#include "kernels.h"

#include "tablet.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace embershard {

float bias_correction(double beta1, double beta2, int64_t steps) {
  double power1 = 1.0, power2 = 1.0;
  for (; steps != 0; steps >>= 1) {
    if (steps & 1) {
      power1 *= beta1;
      power2 *= beta2;
    }
    beta1 *= beta1;
    beta2 *= beta2;
  }
  return static_cast<float>(__builtin_sqrt(1.0 - power2) / (1.0 - power1));
}

namespace baseline {
namespace {
#define KERNEL_SET_NAME "baseline"
#define KERNEL_SET_LEVEL 0
#include "kernels_body.h"
#include "kernels_rows_body.h"
#undef KERNEL_SET_LEVEL
#undef KERNEL_SET_NAME
}  // namespace
}  // namespace baseline

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
namespace avx2 {
namespace {
#define KERNEL_SET_NAME "avx2"
#define KERNEL_SET_LEVEL 1
#include "kernels_body.h"
#include "kernels_rows_body.h"
#undef KERNEL_SET_LEVEL
#undef KERNEL_SET_NAME
}  // namespace
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#endif
namespace avx512 {
namespace {
#define KERNEL_SET_NAME "avx512"
#define KERNEL_SET_LEVEL 2
#include "kernels_body.h"
#include "kernels_rows_body.h"
#undef KERNEL_SET_LEVEL
#undef KERNEL_SET_NAME
}  // namespace
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace {

struct Available {
  const Kernels* sets[4] = {&baseline::kSet, nullptr, nullptr, nullptr};
  int count = 1;

  Available() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) sets[count++] = &avx2::kSet;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq")) {
      sets[count++] = &avx512::kSet;
    }
#endif
  }
};

const Available& available() {
  static const Available sets;
  return sets;
}

}  // namespace

const Kernels& best_kernels() { return *available().sets[available().count - 1]; }
const Kernels* const* available_kernels() { return available().sets; }

}  // namespace embershard
