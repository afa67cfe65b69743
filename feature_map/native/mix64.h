// Murmur3's 64-bit finaliser (fmix64) and its inverse: a bijection of uint64.
// Source: A. Appleby, MurmurHash3 (public domain), function fmix64.
#pragma once

#include <cstdint>

namespace embershard {

constexpr uint64_t mix64(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  return h;
}

constexpr uint64_t unmix64(uint64_t h) {
  h ^= h >> 33;
  h *= 0x9cb4b2f8129337dbULL;
  h ^= h >> 33;
  h *= 0x4f74430c22a54005ULL;
  h ^= h >> 33;
  return h;
}

static_assert(unmix64(mix64(0x0123456789abcdefULL)) == 0x0123456789abcdefULL);

}  // namespace embershard
