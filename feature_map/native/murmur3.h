// MurmurHash3 x64-128, seed 0, first half of the result: bit-equal to mmh3.hash64(bytes, signed=False)[0].
// Source: A. Appleby, MurmurHash3 (public domain), function MurmurHash3_x64_128.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clones.h"
#include "mix64.h"

namespace embershard {

static_assert(std::endian::native == std::endian::little, "keys are defined on little-endian words");

inline constexpr uint64_t kMurmurC1 = 0x87c37b91114253d5ULL;
inline constexpr uint64_t kMurmurC2 = 0x4cf5ad432745937fULL;

inline uint64_t load_u64(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// A hash after its 16-byte blocks: what is left is the tail of 0 to 15 bytes, zero-padded to two words.
struct MurmurState {
  uint64_t h1 = 0, h2 = 0, k1 = 0, k2 = 0, length = 0;
};

// `readable_end`: bytes up to here may be read (not only those of this text), which saves the careful copy.
EMBERSHARD_INLINE MurmurState murmur3_begin(const char* text, size_t length, const char* readable_end) {
  MurmurState state;
  state.length = length;
  const char* p = text;
  size_t left = length;
  for (; left >= 16; left -= 16, p += 16) {
    uint64_t k1 = load_u64(p), k2 = load_u64(p + 8);
    state.h1 ^= std::rotl(k1 * kMurmurC1, 31) * kMurmurC2;
    state.h1 = (std::rotl(state.h1, 27) + state.h2) * 5 + 0x52dce729;
    state.h2 ^= std::rotl(k2 * kMurmurC2, 33) * kMurmurC1;
    state.h2 = (std::rotl(state.h2, 31) + state.h1) * 5 + 0x38495ab5;
  }
  if (readable_end - p >= 16) {
    const uint64_t w1 = load_u64(p), w2 = load_u64(p + 8);
    const uint64_t low = left >= 8 ? ~0ULL : (1ULL << (8 * left)) - 1;
    const uint64_t high = left > 8 ? (1ULL << (8 * (left - 8))) - 1 : 0;
    state.k1 = w1 & low;
    state.k2 = w2 & high;
  } else if (left > 0) {
    char padded[16] = {};
    std::memcpy(padded, p, left);
    state.k1 = load_u64(padded);
    state.k2 = load_u64(padded + 8);
  }
  return state;
}

EMBERSHARD_INLINE uint64_t murmur3_finish(uint64_t h1, uint64_t h2, uint64_t k1, uint64_t k2, uint64_t length) {
  h2 ^= std::rotl(k2 * kMurmurC2, 33) * kMurmurC1;  // a zero word changes nothing, so an absent tail needs no branch
  h1 ^= std::rotl(k1 * kMurmurC1, 31) * kMurmurC2;
  h1 ^= length;
  h2 ^= length;
  h1 += h2;
  h2 += h1;
  return mix64(h1) + mix64(h2);
}

inline uint64_t murmur3(const char* text, size_t length) {
  const MurmurState s = murmur3_begin(text, length, text + length);
  return murmur3_finish(s.h1, s.h2, s.k1, s.k2, s.length);
}

}  // namespace embershard
