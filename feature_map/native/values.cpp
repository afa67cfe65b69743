#include "values.h"

#include <algorithm>
#include <array>
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

namespace embershard {
namespace {

constexpr int64_t kBlock = 256;

// --- text ------------------------------------------------------------------------------------------------------------

struct Text {
  const char* data;
  size_t size;
};

template <typename Offset>
struct OffsetText {
  const Offset* offsets;
  const char* bytes;
  const char* end;

  explicit OffsetText(const Column& c)
      : offsets(c.values<Offset>()), bytes(static_cast<const char*>(c.buffers[2])), end(bytes) {
    if (c.length > 0) end = bytes + offsets[c.length];
  }
  Text at(int64_t i) const { return {bytes + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])}; }
  const char* readable_end(int64_t) const { return end; }
  // Are texts [start, start + count) all shorter than 16 bytes, with 16 readable bytes behind each one's start?
  bool is_short_run(int64_t start, int64_t count) const {
    Offset longest = 0;
    for (int64_t i = start; i < start + count; ++i) longest = std::max(longest, offsets[i + 1] - offsets[i]);
    return longest < 16 && end - (bytes + offsets[start + count]) >= 16;
  }
};

struct FixedText {
  const char* bytes;
  int64_t width;
  const char* end;

  explicit FixedText(const Column& c)
      : bytes(static_cast<const char*>(c.buffers[1]) + c.offset * c.fixed_width),
        width(c.fixed_width),
        end(bytes + c.length * c.fixed_width) {}
  Text at(int64_t i) const { return {bytes + i * width, static_cast<size_t>(width)}; }
  const char* readable_end(int64_t) const { return end; }
};

struct ViewText {
  const Column& column;
  const char* views;

  explicit ViewText(const Column& c) : column(c), views(static_cast<const char*>(c.buffers[1]) + c.offset * 16) {}
  Text at(int64_t i) const {
    if (!column.is_valid(i)) return {views, 0};  // a null view may hold anything
    const char* view = views + i * 16;
    int32_t size, buffer, start;
    std::memcpy(&size, view, 4);
    if (size <= 12) return {view + 4, static_cast<size_t>(size)};
    std::memcpy(&buffer, view + 8, 4);
    std::memcpy(&start, view + 12, 4);
    return {static_cast<const char*>(column.buffers[2 + buffer]) + start, static_cast<size_t>(size)};
  }
  const char* readable_end(int64_t i) const {  // no farther than the text itself: its buffer's size is not at hand
    const Text text = at(i);
    return text.data + text.size;
  }
};

struct MurmurBlock {
  std::array<uint64_t, kBlock> h1, h2, k1, k2, length;
};

EMBERSHARD_CLONES void finish_block(const MurmurBlock& block, int64_t count, uint64_t* h) {
  for (int64_t i = 0; i < count; ++i)
    h[i] = murmur3_finish(block.h1[i], block.h2[i], block.k1[i], block.k2[i], block.length[i]);
}

struct ShortTexts {
  std::array<uint64_t, kBlock> k1, k2, length;
};

// Bytes of the first and the second word that belong to a text of this length.
struct TailMasks {
  std::array<uint64_t, 16> low, high;
};

constexpr TailMasks make_tail_masks() {
  TailMasks masks{};
  for (unsigned length = 0; length < 16; ++length) {
    masks.low[length] = length >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * length)) - 1;
    masks.high[length] = length > 8 ? (uint64_t{1} << (8 * (length - 8))) - 1 : 0;
  }
  return masks;
}

constexpr TailMasks kTailMasks = make_tail_masks();

EMBERSHARD_CLONES void finish_short_block(const ShortTexts& block, int64_t count, uint64_t* h) {
  for (int64_t i = 0; i < count; ++i) h[i] = murmur3_finish(0, 0, block.k1[i], block.k2[i], block.length[i]);
}

// Texts shorter than 16 bytes are all tail: two words each, masked.
template <typename Offset>
void hash_short_run(const OffsetText<Offset>& access, int64_t start, int64_t count, uint64_t* h) {
  ShortTexts block;
  for (int64_t i = 0; i < count; ++i) {
    const Text text = access.at(start + i);
    block.k1[i] = load_u64(text.data) & kTailMasks.low[text.size];
    block.k2[i] = load_u64(text.data + 8) & kTailMasks.high[text.size];
    block.length[i] = text.size;
  }
  finish_short_block(block, count, h);
}

template <typename Access>
void hash_texts(const Access& access, int64_t start, int64_t count, uint64_t* h) {
  MurmurBlock block;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    if constexpr (requires { access.is_short_run(start, n); }) {
      if (access.is_short_run(start + done, n)) {
        hash_short_run(access, start + done, n, h + done);
        continue;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t slot = start + done + i;
      const Text text = access.at(slot);
      const MurmurState state = murmur3_begin(text.data, text.size, access.readable_end(slot));
      block.h1[i] = state.h1;
      block.h2[i] = state.h2;
      block.k1[i] = state.k1;
      block.k2[i] = state.k2;
      block.length[i] = state.length;
    }
    finish_block(block, n, h + done);
  }
}

template <typename Function>
void with_text(const Column& column, Function&& function) {
  switch (column.physical) {
    case Physical::text32: return function(OffsetText<int32_t>(column));
    case Physical::text64: return function(OffsetText<int64_t>(column));
    case Physical::text_view: return function(ViewText(column));
    default: return function(FixedText(column));
  }
}

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
