// EMBERSHARD_CLONES: compile a function once per instruction set; the loader picks the best one the CPU has.
// Integer code gives the same bits in every clone; float code does because of -ffp-contract=off.
#pragma once

// Kernels' helpers must be inlined, or the clones call one common version of them.
#if defined(__GNUC__)
#define EMBERSHARD_INLINE inline __attribute__((always_inline))
#else
#define EMBERSHARD_INLINE inline
#endif

// arch=x86-64-v4 asks for features; arch=skylake-avx512 would ask for that very CPU model.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(EMBERSHARD_NO_CLONES) &&                                    \
    ((defined(__clang__) && __clang_major__ >= 17) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12))
#define EMBERSHARD_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define EMBERSHARD_CLONES
#endif
