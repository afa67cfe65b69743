#include "values.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "buffer.h"
#include "clones.h"
#include "faults.h"
#include "murmur3.h"
#include "text_hashes.h"

namespace embershard {
namespace {

bool is_marker(const std::vector<std::string>& markers, std::string_view text) {
  for (const std::string& marker : markers)
    if (marker == text) return true;
  return false;
}

// valid bytes are filled in before the first marker is struck out.
template <typename IsMarker>
bool strike_out(int64_t count, bool all_valid, uint8_t* valid, IsMarker&& is_null) {
  for (int64_t i = 0; i < count; ++i) {
    if ((!all_valid && !valid[i]) || !is_null(i)) continue;
    if (all_valid) {
      std::fill(valid, valid + count, uint8_t{1});
      all_valid = false;
    }
    valid[i] = 0;
  }
  return all_valid;
}

// --- integers --------------------------------------------------------------------------------------------------------

template <typename T>
void widen(const T* source, int64_t count, uint64_t* h) {
  if constexpr (sizeof(T) == 8) {
    for (int64_t i = 0; i < count; ++i) h[i] = static_cast<uint64_t>(source[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) h[i] = static_cast<uint64_t>(static_cast<int64_t>(source[i]));
  }
}

void read_integers(const Column& c, int64_t start, int64_t count, uint64_t* h) {
  switch (c.physical) {
    case Physical::int8: return widen(c.values<int8_t>() + start, count, h);
    case Physical::int16: return widen(c.values<int16_t>() + start, count, h);
    case Physical::int32: return widen(c.values<int32_t>() + start, count, h);
    case Physical::uint8: return widen(c.values<uint8_t>() + start, count, h);
    case Physical::uint16: return widen(c.values<uint16_t>() + start, count, h);
    case Physical::uint32: return widen(c.values<uint32_t>() + start, count, h);
    case Physical::boolean: {
      const uint8_t* bits = static_cast<const uint8_t*>(c.buffers[1]);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t bit = c.offset + start + i;
        h[i] = (bits[bit >> 3] >> (bit & 7)) & 1;
      }
      return;
    }
    default: return widen(c.values<uint64_t>() + start, count, h);
  }
}

std::string integer_text(uint64_t h, bool is_unsigned) {
  return is_unsigned ? std::to_string(h) : std::to_string(static_cast<int64_t>(h));
}

EMBERSHARD_CLONES bool any_top_bit(const uint64_t* h, int64_t count) {
  uint64_t seen = 0;
  for (int64_t i = 0; i < count; ++i) seen |= h[i];
  return (seen >> 63) != 0;
}

// int64 and uint64 ids share bit patterns, so a column of the other sign must not reach the top bit.
void check_sign(const Column& c, IdKind id, bool all_valid, const uint8_t* valid, int64_t count, const uint64_t* h) {
  const bool is_unsigned = c.physical == Physical::uint64;
  if ((id == IdKind::uint64) == is_unsigned || !any_top_bit(h, count)) return;
  for (int64_t i = 0; i < count; ++i)
    if ((all_valid || valid[i]) && (h[i] >> 63) != 0)
      throw ValueFault{i, id == IdKind::uint64 ? "an id in 0 … 2^64-1" : "an id in -2^63 … 2^63-1",
                       integer_text(h[i], is_unsigned)};
}

bool read_integer_hashes(const Column& c, IdKind id, const NullMarkers& markers, int64_t start, int64_t count,
                         uint64_t* h, uint8_t* valid) {
  bool all_valid = read_validity(c, start, count, valid);
  read_integers(c, start, count, h);
  const bool is_unsigned = c.physical == Physical::uint64;
  if (!markers.integers.empty())
    all_valid = strike_out(count, all_valid, valid, [&](int64_t i) {
      return std::find(markers.integers.begin(), markers.integers.end(), h[i]) != markers.integers.end();
    });
  if (id != IdKind::text) {
    check_sign(c, id, all_valid, valid, count, h);
    return all_valid;
  }
  for (int64_t i = 0; i < count; ++i) {
    char digits[24];
    std::string_view text;
    if (c.physical == Physical::boolean) {
      text = h[i] != 0 ? "true" : "false";
    } else {
      const auto end = is_unsigned ? std::to_chars(digits, digits + 24, h[i])
                                   : std::to_chars(digits, digits + 24, static_cast<int64_t>(h[i]));
      text = {digits, static_cast<size_t>(end.ptr - digits)};
    }
    h[i] = murmur3(text.data(), text.size());
  }
  return all_valid;
}

bool read_text_hashes(const Column& c, IdKind id, const NullMarkers& markers, int64_t start, int64_t count,
                      uint64_t* h, uint8_t* valid) {
  bool all_valid = read_validity(c, start, count, valid);
  with_text(c, [&](const auto& access) {
    if (!markers.texts.empty())
      all_valid = strike_out(count, all_valid, valid, [&](int64_t i) {
        const Text text = access.at(start + i);
        return is_marker(markers.texts, {text.data, text.size});
      });
    if (id == IdKind::text) {
      hash_texts(access, start, count, h);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!all_valid && !valid[i]) continue;
      const Text text = access.at(start + i);
      h[i] = hash_text_value({text.data, text.size}, id, i);
    }
  });
  return all_valid;
}

// --- dictionaries ----------------------------------------------------------------------------------------------------

template <typename T>
void widen_codes(const T* source, int64_t count, int64_t* codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<int64_t>(source[i]);
}

void read_codes(const Column& c, int64_t start, int64_t count, int64_t* codes) {
  switch (c.physical) {
    case Physical::int8: return widen_codes(c.values<int8_t>() + start, count, codes);
    case Physical::int16: return widen_codes(c.values<int16_t>() + start, count, codes);
    case Physical::int32: return widen_codes(c.values<int32_t>() + start, count, codes);
    case Physical::uint8: return widen_codes(c.values<uint8_t>() + start, count, codes);
    case Physical::uint16: return widen_codes(c.values<uint16_t>() + start, count, codes);
    case Physical::uint32: return widen_codes(c.values<uint32_t>() + start, count, codes);
    default: return widen_codes(c.values<int64_t>() + start, count, codes);
  }
}

template <typename T, typename Read>
bool read_through_dictionary_rows(const Buffer<int64_t>& codes, int64_t count, bool all_valid, T* out,
                                  uint8_t* valid, Read&& read) {
  for (int64_t i = 0; i < count; ++i) {
    if (!valid[i]) continue;
    uint8_t entry_valid = 1;
    try {
      if (!read(codes[i], 1, out + i, &entry_valid) && !entry_valid) valid[i] = 0, all_valid = false;
    } catch (ValueFault& fault) {
      if (fault.index >= 0) fault.index = i;
      throw;
    }
  }
  return all_valid;
}

// Reads each used entry of the dictionary once and spreads the results; `read(start, count, out, valid)` reads entries.
template <typename T, typename Read>
bool read_through_dictionary(const Column& c, int64_t start, int64_t count, T* out, uint8_t* valid, Read&& read) {
  bool all_valid = read_validity(c, start, count, valid);
  if (all_valid) std::fill(valid, valid + count, uint8_t{1});
  Buffer<int64_t> codes(count);
  read_codes(c, start, count, codes.data());
  const int64_t entries = c.dictionary->length;
  const bool whole = entries <= 2 * count;
  Buffer<T> entry(whole ? entries : 1);
  Buffer<uint8_t> entry_valid(whole ? entries : 1);
  bool entries_valid = true;
  if (whole && entries > 0) {
    // A refused entry may be one that no row uses, so faults are looked into row by row.
    try {
      entries_valid = read(0, entries, entry.data(), entry_valid.data());
    } catch (const ValueFault& fault) {
      if (fault.index < 0) throw;
      return read_through_dictionary_rows(codes, count, all_valid, out, valid, read);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!valid[i]) continue;
      out[i] = entry[codes[i]];
      if (!entries_valid && !entry_valid[codes[i]]) valid[i] = 0, all_valid = false;
    }
    return all_valid;
  }
  return read_through_dictionary_rows(codes, count, all_valid, out, valid, read);
}

// --- numbers ---------------------------------------------------------------------------------------------------------

double half_to_double(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double sign = (half >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(fraction + 1024, exponent - 25);
}

template <typename T>
void to_doubles(const T* source, int64_t count, double* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = static_cast<double>(source[i]);
}

void copy_numbers(const Column& c, int64_t start, int64_t count, double* x) {
  switch (c.physical) {
    case Physical::int8: return to_doubles(c.values<int8_t>() + start, count, x);
    case Physical::int16: return to_doubles(c.values<int16_t>() + start, count, x);
    case Physical::int32: return to_doubles(c.values<int32_t>() + start, count, x);
    case Physical::int64: return to_doubles(c.values<int64_t>() + start, count, x);
    case Physical::uint8: return to_doubles(c.values<uint8_t>() + start, count, x);
    case Physical::uint16: return to_doubles(c.values<uint16_t>() + start, count, x);
    case Physical::uint32: return to_doubles(c.values<uint32_t>() + start, count, x);
    case Physical::uint64: return to_doubles(c.values<uint64_t>() + start, count, x);
    case Physical::float32: return to_doubles(c.values<float>() + start, count, x);
    case Physical::float64: return to_doubles(c.values<double>() + start, count, x);
    case Physical::float16:
      for (int64_t i = 0; i < count; ++i) x[i] = half_to_double(c.values<uint16_t>()[start + i]);
      return;
    default: {
      const uint8_t* bits = static_cast<const uint8_t*>(c.buffers[1]);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t bit = c.offset + start + i;
        x[i] = (bits[bit >> 3] >> (bit & 7)) & 1;
      }
    }
  }
}

EMBERSHARD_CLONES bool all_finite(const double* x, int64_t count) {
  uint64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t exponent = std::bit_cast<uint64_t>(x[i]) & 0x7ff0000000000000ULL;
    bad |= exponent == 0x7ff0000000000000ULL ? 1 : 0;
  }
  return bad == 0;
}

}  // namespace

uint64_t missing_hash() {
  static const uint64_t hash = murmur3("embershard/missing", 18);
  return hash;
}

bool read_validity(const Column& c, int64_t start, int64_t count, uint8_t* valid) {
  if (!c.may_have_nulls()) return true;
  if (c.physical == Physical::null_) {
    std::fill(valid, valid + count, uint8_t{0});
    return count == 0;
  }
  const int64_t first = c.offset + start;
  uint64_t all = 0x0101010101010101ULL;
  int64_t i = 0;
  for (; i + 16 <= count; i += 8) {  // eight slots at once; the two bytes read stay inside the bitmap
    const int64_t bit = first + i;
    const uint64_t bits = ((c.validity[bit >> 3] | (c.validity[(bit >> 3) + 1] << 8)) >> (bit & 7)) & 0xff;
    const uint64_t spread = (bits * 0x0101010101010101ULL) & 0x8040201008040201ULL;
    const uint64_t bytes = ((spread + 0x7f7f7f7f7f7f7f7fULL) >> 7) & 0x0101010101010101ULL;
    std::memcpy(valid + i, &bytes, 8);
    all &= bytes;
  }
  bool all_valid = all == 0x0101010101010101ULL;
  for (; i < count; ++i) {
    const int64_t bit = first + i;
    valid[i] = (c.validity[bit >> 3] >> (bit & 7)) & 1;
    all_valid &= valid[i] != 0;
  }
  return all_valid;
}

bool read_hashes(const Column& c, IdKind id, const NullMarkers& markers, int64_t start, int64_t count, uint64_t* h,
                 uint8_t* valid) {
  if (c.dictionary != nullptr)
    return read_through_dictionary(c, start, count, h, valid, [&](int64_t s, int64_t n, uint64_t* out, uint8_t* ok) {
      return read_hashes(*c.dictionary, id, markers, s, n, out, ok);
    });
  if (c.physical == Physical::null_) return read_validity(c, start, count, valid);
  if (c.is_text()) return read_text_hashes(c, id, markers, start, count, h, valid);
  if (c.is_integer()) return read_integer_hashes(c, id, markers, start, count, h, valid);
  throw ValueFault{-1, "", ""};
}

bool read_numbers(const Column& c, const NullMarkers& markers, int64_t start, int64_t count, double* x,
                  uint8_t* valid) {
  if (c.dictionary != nullptr)
    return read_through_dictionary(c, start, count, x, valid, [&](int64_t s, int64_t n, double* out, uint8_t* ok) {
      return read_numbers(*c.dictionary, markers, s, n, out, ok);
    });
  bool all_valid = read_validity(c, start, count, valid);
  if (c.physical == Physical::null_) return all_valid;
  if (c.is_text()) {
    with_text(c, [&](const auto& access) {
      if (!markers.texts.empty())
        all_valid = strike_out(count, all_valid, valid, [&](int64_t i) {
          const Text text = access.at(start + i);
          return is_marker(markers.texts, {text.data, text.size});
        });
      for (int64_t i = 0; i < count; ++i) {
        if (!all_valid && !valid[i]) continue;
        const Text text = access.at(start + i);
        if (!parse_number({text.data, text.size}, x + i))
          throw ValueFault{i, "a number", quoted({text.data, text.size})};
      }
    });
  } else if (c.is_integer() || c.is_float()) {
    copy_numbers(c, start, count, x);
  } else {
    throw ValueFault{-1, "", ""};
  }
  if (!markers.numbers.empty())
    all_valid = strike_out(count, all_valid, valid, [&](int64_t i) {
      return std::find(markers.numbers.begin(), markers.numbers.end(), x[i]) != markers.numbers.end();
    });
  if ((c.is_float() || c.is_text()) && !all_finite(x, count))
    all_valid = strike_out(count, all_valid, valid, [&](int64_t i) { return !std::isfinite(x[i]); });
  return all_valid;
}

std::string_view text_at(const Column& column, int64_t i) {
  if (!column.is_valid(i)) return {};
  std::string_view found;
  with_text(column, [&](const auto& access) {
    const Text text = access.at(i);
    found = {text.data, text.size};
  });
  return found;
}

bool parse_integer(std::string_view text, IdKind id, uint64_t* h) {
  if (!text.empty() && text[0] == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '-') return false;
  }
  const char* end = text.data() + text.size();
  if (id == IdKind::uint64) {
    const auto result = std::from_chars(text.data(), end, *h);
    return result.ec == std::errc() && result.ptr == end;
  }
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), end, value);
  *h = static_cast<uint64_t>(value);
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_number(std::string_view text, double* x) {
  if (!text.empty() && text[0] == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '-') return false;
  }
#if defined(__cpp_lib_to_chars)
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *x);
  return result.ec == std::errc() && result.ptr == end;
#else
  const std::string copy(text);
  char* stop = nullptr;
  *x = std::strtod(copy.c_str(), &stop);
  return !copy.empty() && stop == copy.c_str() + copy.size() && std::isspace(static_cast<unsigned char>(copy[0])) == 0;
#endif
}

uint64_t hash_text_value(std::string_view text, IdKind id, int64_t index) {
  if (id == IdKind::text) return murmur3(text.data(), text.size());
  uint64_t h = 0;
  if (!parse_integer(text, id, &h))
    throw ValueFault{index, id == IdKind::int64 ? "an int64 id" : "a uint64 id", quoted(text)};
  return h;
}

std::string quoted(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, 60)) {
    if (static_cast<unsigned char>(c) < 32) {
      constexpr char digits[] = "0123456789abcdef";
      shown += "\\x";
      shown += digits[(c >> 4) & 15];
      shown += digits[c & 15];
    } else {
      shown += c;
    }
  }
  return shown + (text.size() > 60 ? "…'" : "'");
}

}  // namespace embershard
