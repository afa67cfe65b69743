// Hashes to keys, whole columns at a time.
#pragma once

#include <cstdint>

namespace embershard {

// keys[i] = mix64(h[i] ^ salt); `h` and `keys` may be the same.
void mix_keys(const uint64_t* h, uint64_t salt, int64_t count, uint64_t* keys);
// keys[i] = mix64(mix64(a[i] ^ salt) ^ b[i]).
void mix_pairs(const uint64_t* a, const uint64_t* b, uint64_t salt, int64_t count, uint64_t* keys);
// keys[i] = mix64(keys[i] ^ h[i]).
void mix_into(const uint64_t* h, int64_t count, uint64_t* keys);
// keys[i] = `with` where not valid[i].
void replace_invalid(const uint8_t* valid, uint64_t with, int64_t count, uint64_t* keys);

}  // namespace embershard
