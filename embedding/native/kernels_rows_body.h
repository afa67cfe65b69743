// Bodies of one kernel set, second part: the index, row types, whole rows. See kernels_body.h.

// --- row types --------------------------------------------------------------------------------------------------------

constexpr uint32_t kBfloat16Largest = 0x7f7f, kFloat16Largest = 0x7bff;

inline float float16_to_float32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t magnitude = half & 0x7fffU;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000U;
  uint32_t bits = magnitude < 0x0400U ? __builtin_bit_cast(uint32_t, subnormal) : normal;
  bits = magnitude >= 0x7c00U ? special : bits;
  return __builtin_bit_cast(float, bits | sign);
}

[[gnu::always_inline]] inline void widen_row(RowType type, const uint16_t* __restrict row, uint32_t n, float* __restrict weights) {
  if (type == RowType::bfloat16) {
    for (uint32_t c = 0; c < n; ++c) weights[c] = __builtin_bit_cast(float, static_cast<uint32_t>(row[c]) << 16);
  } else {
    for (uint32_t c = 0; c < n; ++c) weights[c] = float16_to_float32(row[c]);
  }
}

void widen(RowType type, const uint16_t* row, uint32_t n, float* weights) { widen_row(type, row, n, weights); }

void widen_rows(RowType type, const uint16_t* const* rows, size_t count, uint32_t dim, float* out) {
  if (type == RowType::bfloat16 && dim == 16) {
    for (size_t i = 0; i < count; ++i) widen_row(RowType::bfloat16, rows[i], 16, out + i * 16);
  } else {
    for (size_t i = 0; i < count; ++i) widen_row(type, rows[i], dim, out + i * dim);
  }
}

// `random` in [0, 2^24) decides; the middle (2^23 with ties to even done by the caller) is not special here.
inline uint16_t to_bfloat16(float x, uint32_t add) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = ((bits & 0x7fffffffU) + add) >> 16;
  return static_cast<uint16_t>((bits >> 31 << 15) | (magnitude > kBfloat16Largest ? kBfloat16Largest : magnitude));
}

inline uint16_t to_float16(float x, uint32_t random24, bool nearest) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t absolute = bits & 0x7fffffffU;
  uint32_t magnitude;
  if (absolute >= (113U << 23)) {  // normal in float16: drop 13 bits
    const uint32_t add = nearest ? 0x0fffU + (absolute >> 13 & 1U) : random24 >> 11;
    magnitude = (absolute + add - (112U << 23)) >> 13;
  } else {  // subnormal: units of 2^-24
    const float units = __builtin_bit_cast(float, absolute) * 0x1p24F;
    magnitude = static_cast<uint32_t>(static_cast<int32_t>(units));
    const float rest = units - static_cast<float>(static_cast<int32_t>(magnitude));
    const bool up = nearest ? (rest > 0.5F || (rest == 0.5F && (magnitude & 1U)))
                            : static_cast<float>(static_cast<int32_t>(random24)) * 0x1p-24F < rest;
    magnitude += up ? 1U : 0U;
  }
  return static_cast<uint16_t>(sign | (magnitude > kFloat16Largest ? kFloat16Largest : magnitude));
}

void narrow_nearest(RowType type, const float* __restrict weights, uint32_t n, uint16_t* __restrict row) {
  if (type == RowType::bfloat16) {
    for (uint32_t c = 0; c < n; ++c) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, weights[c]);
      row[c] = to_bfloat16(weights[c], 0x7fffU + (bits >> 16 & 1U));
    }
  } else {
    for (uint32_t c = 0; c < n; ++c) row[c] = to_float16(weights[c], 0, true);
  }
}

// Rows hold finite values only; what travels may be anything.
inline uint16_t keep_non_finite(RowType type, float x, uint16_t narrowed) {
  const uint32_t infinite = type == RowType::float16 ? 0x7c00U : 0x7f80U;
  const uint32_t nan = infinite | (type == RowType::float16 ? 0x0200U : 0x0040U);
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t special = (bits >> 16 & 0x8000U) | (magnitude > 0x7f800000U ? nan : infinite);
  return static_cast<uint16_t>(magnitude >= 0x7f800000U ? special : narrowed);
}

inline uint16_t to_any_bfloat16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return keep_non_finite(RowType::bfloat16, x, to_bfloat16(x, 0x7fffU + (bits >> 16 & 1U)));
}

void narrow_any(RowType type, const float* __restrict values, uint32_t n, uint16_t* __restrict out) {
  if (type == RowType::bfloat16) {
    for (uint32_t c = 0; c < n; ++c) out[c] = to_any_bfloat16(values[c]);
  } else {
    for (uint32_t c = 0; c < n; ++c) out[c] = keep_non_finite(type, values[c], to_float16(values[c], 0, true));
  }
}

void narrow_stochastic(RowType type, const float* __restrict weights, uint32_t n, uint64_t stream,
                       uint16_t* __restrict row) {
  for (uint32_t c = 0; c < n; ++c) {
    const auto random24 = static_cast<uint32_t>(mixed(stream + (static_cast<uint64_t>(c) + 1) * kGolden) >> 40);
    row[c] = type == RowType::bfloat16 ? to_bfloat16(weights[c], random24 >> 8) : to_float16(weights[c], random24, false);
  }
}

// --- index ------------------------------------------------------------------------------------------------------------

// As Bucket::slots_with, by vector compare where the set has one.
[[gnu::always_inline]] inline uint32_t slots_with(const Bucket& bucket, uint64_t key) {
#if KERNEL_SET_LEVEL == 2
  return _mm512_cmpeq_epi64_mask(_mm512_load_si512(&bucket), _mm512_set1_epi64(static_cast<int64_t>(key)));
#elif KERNEL_SET_LEVEL == 1
  const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(&bucket));
  const __m256i same = _mm256_cmpeq_epi64(first, _mm256_set1_epi64x(static_cast<int64_t>(key)));
  const auto hit = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(same)));
  return hit | static_cast<uint32_t>(bucket.keys[4] == key) << 4;
#else
  return bucket.slots_with(key);
#endif
}

size_t find_rows(const Bucket* const* buckets, const uint64_t* keys, size_t count, uint32_t* __restrict rows,
                 uint8_t* __restrict passed) {
  size_t passed_count = 0;
  for (size_t i = 0; i < count; ++i) {
    const Bucket& bucket = *buckets[i];
    const uint32_t hit = slots_with(bucket, keys[i]) & ((1U << bucket.taken) - 1);
    const uint32_t row = bucket.rows[__builtin_ctz(hit | 1U << (kBucketSlots - 1))];  // of some slot if there is no hit
    rows[i] = hit != 0 ? row : kNoRow;
    passed[passed_count] = static_cast<uint8_t>(i);
    passed_count += (hit == 0) & (bucket.is_passed | (bucket.taken == kBucketSlots));
  }
  return passed_count;
}

// --- reading rows -----------------------------------------------------------------------------------------------------

// A key takes four steps, some turns apart so that the line each needs has time to arrive: its bucket is fetched; it is
// found there and its row fetched, or the next bucket if it may have passed its home; such a key is found and its row fetched;
// the row is copied. A step whose turn has not come has a number beyond all keys, as unsigned numbers wrap.
constexpr size_t kFindBehind = 16, kPassedBehind = 24, kCopyBehind = 36;
constexpr size_t kReadsOnTheWay = 64;  // a power of two, more than kCopyBehind

template <size_t kStep>
[[gnu::always_inline]] inline void copy_in_steps(char* out, const char* row, size_t bytes) {
  size_t offset = 0;
  for (; offset + kStep <= bytes; offset += kStep) __builtin_memcpy(out + offset, row + offset, kStep);
  if (offset != bytes) __builtin_memcpy(out + bytes - kStep, row + bytes - kStep, kStep);
}

// In steps of a constant size; a rest is copied from the end backwards, so that no width needs a call.
[[gnu::always_inline]] inline void copy_row(char* out, const char* row, size_t bytes) {
  if (bytes >= 64) {
    copy_in_steps<64>(out, row, bytes);
  } else if (bytes >= 16) {
    copy_in_steps<16>(out, row, bytes);
  } else {
    copy_in_steps<4>(out, row, bytes);
  }
}

// A row of any type as another 16-bit type.
void narrow_row(const RowSource& source, const char* row, RowType type, uint16_t* out) {
  if (source.type == type) {
    __builtin_memcpy(out, row, source.dim * sizeof(uint16_t));
  } else if (source.type == RowType::float32) {
    narrow_any(type, reinterpret_cast<const float*>(row), source.dim, out);
  } else {
    constexpr uint32_t kPiece = 64;
    float values[kPiece];
    for (uint32_t c = 0; c < source.dim; c += kPiece) {
      const uint32_t n = source.dim - c < kPiece ? source.dim - c : kPiece;
      widen(source.type, reinterpret_cast<const uint16_t*>(row) + c, n, values);
      narrow_any(type, values, n, out + c);
    }
  }
}

// kDim: the width of rows that lie as float32 (and leave as float32 or bfloat16), or 0 for any.
// Out: float, or uint16_t for rows of the 16-bit `type`.
template <uint32_t kDim, typename Out>
[[gnu::always_inline]] inline size_t read_rows_of(const RowSource& source, const uint64_t* keys, size_t count, RowType type,
                                                  Out* out, uint32_t* absent) {
  const RowStore& store = *source.store;
  const uint32_t dim = kDim == 0 ? source.dim : kDim;
  const uint32_t bytes = kDim == 0 ? store.weight_bytes() : kDim * sizeof(float);
  const auto part_of = [&](uint64_t key) -> const Part& { return source.parts[tablet_of(key, source.tablet_bits)]; };
  const Bucket* buckets[kReadsOnTheWay];
  const char* rows[kReadsOnTheWay];  // nullptr where there is none
  static const char passed{};
  size_t absent_count = 0;
  for (size_t turn = 0; turn < count + kCopyBehind; ++turn) {
    if (turn < count) {
      const Bucket* bucket = part_of(keys[turn]).home_bucket(index_hash(keys[turn]));
      __builtin_prefetch(bucket, 0, 3);
      buckets[turn % kReadsOnTheWay] = bucket;
    }
    if (const size_t i = turn - kFindBehind; i < count) {
      const Bucket& bucket = *buckets[i % kReadsOnTheWay];
      const uint32_t hit = slots_with(bucket, keys[i]) & ((1U << bucket.taken) - 1);
      const char*& row = rows[i % kReadsOnTheWay];
      if (hit != 0) {
        row = store.weights(bucket.rows[__builtin_ctz(hit)]);
        prefetch_bytes<0>(row, bytes);
      } else if (bucket.is_passed) {
        row = &passed;
        __builtin_prefetch(part_of(keys[i]).after(&bucket), 0, 3);
      } else {
        row = nullptr;
      }
    }
    if (const size_t i = turn - kPassedBehind; i < count && rows[i % kReadsOnTheWay] == &passed) {
      const uint32_t number = part_of(keys[i]).find(keys[i]);
      const char*& row = rows[i % kReadsOnTheWay];
      row = number == kNoRow ? nullptr : store.weights(number);
      if (row != nullptr) prefetch_bytes<0>(row, bytes);
    }
    if (const size_t i = turn - kCopyBehind; i < count) {
      const char* row = rows[i % kReadsOnTheWay];
      if (row == nullptr) {
        absent[absent_count++] = static_cast<uint32_t>(i);
      } else if constexpr (sizeof(Out) == sizeof(uint16_t)) {
        if constexpr (kDim != 0) {
          const auto* values = reinterpret_cast<const float*>(row);
          for (uint32_t c = 0; c < kDim; ++c) out[i * kDim + c] = to_any_bfloat16(values[c]);
        } else {
          narrow_row(source, row, type, out + i * dim);
        }
      } else if (kDim != 0 || source.type == RowType::float32) {
        copy_row(reinterpret_cast<char*>(out + i * dim), row, bytes);
      } else {
        widen(source.type, reinterpret_cast<const uint16_t*>(row), dim, out + i * dim);
      }
    }
  }
  return absent_count;
}

size_t read_rows(const RowSource& source, const uint64_t* keys, size_t count, RowType type, void* out, uint32_t* absent) {
  const bool is_plain = source.type == RowType::float32 && source.dim == 16;
  if (type == RowType::float32) {
    auto* rows = static_cast<float*>(out);
    return is_plain ? read_rows_of<16>(source, keys, count, type, rows, absent) : read_rows_of<0>(source, keys, count, type, rows, absent);
  }
  auto* rows = static_cast<uint16_t*>(out);
  if (is_plain && type == RowType::bfloat16) return read_rows_of<16>(source, keys, count, RowType::bfloat16, rows, absent);
  return read_rows_of<0>(source, keys, count, type, rows, absent);
}

constexpr Kernels kSet = {KERNEL_SET_NAME, draw_block, start_state, accepts,    update_row,     update_rows, sum_of_squares, are_finite,
                          find_rows,       read_rows,  widen,       widen_rows, narrow_nearest, narrow_any,  narrow_stochastic};
