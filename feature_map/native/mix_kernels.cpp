#include "mix_kernels.h"

#include "clones.h"
#include "mix64.h"

namespace embershard {

EMBERSHARD_CLONES void mix_keys(const uint64_t* h, uint64_t salt, int64_t count, uint64_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = mix64(h[i] ^ salt);
}

EMBERSHARD_CLONES void mix_pairs(const uint64_t* a, const uint64_t* b, uint64_t salt, int64_t count, uint64_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = mix64(mix64(a[i] ^ salt) ^ b[i]);
}

EMBERSHARD_CLONES void replace_invalid(const uint8_t* valid, uint64_t with, int64_t count, uint64_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = valid[i] != 0 ? keys[i] : with;
}

EMBERSHARD_CLONES void mix_into(const uint64_t* h, int64_t count, uint64_t* keys) {
  for (int64_t i = 0; i < count; ++i) keys[i] = mix64(keys[i] ^ h[i]);
}

}  // namespace embershard
