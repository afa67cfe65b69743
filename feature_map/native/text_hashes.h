// Text columns without dictionary: where each text lies, and the Murmur3 hashes of many texts at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "column.h"

namespace embershard {

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

// Calls `function` with the access that fits a text column.
template <typename Function>
void with_text(const Column& column, Function&& function) {
  switch (column.physical) {
    case Physical::text32: return function(OffsetText<int32_t>(column));
    case Physical::text64: return function(OffsetText<int64_t>(column));
    case Physical::text_view: return function(ViewText(column));
    default: return function(FixedText(column));
  }
}

// h[i] = murmur3(text start + i). Defined for the four kinds of access above.
template <typename Access>
void hash_texts(const Access& access, int64_t start, int64_t count, uint64_t* h);

}  // namespace embershard
