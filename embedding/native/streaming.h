// Stores that go past the caches: a whole line is written without being read first.
//
// They may be seen late by other cores: `end_streams` comes before anything that says they are done.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace embershard {

constexpr size_t kLineBytes = 64;
constexpr size_t kBeyondCaches = size_t{32} << 20;  // so large that whoever reads next finds little of it in caches anyway

#ifdef __SSE2__
constexpr bool kHasStreams = true;

// `to` is the start of a line, `bytes` are whole lines.
inline void stream_lines(float* to, const float* from, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(float); i += 16) {
    const __m128 a = _mm_loadu_ps(from + i), b = _mm_loadu_ps(from + i + 4);
    const __m128 c = _mm_loadu_ps(from + i + 8), d = _mm_loadu_ps(from + i + 12);
    _mm_stream_ps(to + i, a);
    _mm_stream_ps(to + i + 4, b);
    _mm_stream_ps(to + i + 8, c);
    _mm_stream_ps(to + i + 12, d);
  }
}
inline void end_streams() { _mm_sfence(); }
#else
constexpr bool kHasStreams = false;

inline void stream_lines(float* to, const float* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void end_streams() {}
#endif

}  // namespace embershard
