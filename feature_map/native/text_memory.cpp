#include "text_memory.h"

#include <algorithm>
#include <cstring>

#include "murmur3.h"
#include "text_rows.h"
#include "values.h"

namespace embershard {
namespace {

constexpr size_t kFirstSlots = 1024;
constexpr size_t kShownCollisions = 16;

}  // namespace

size_t TextMemory::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (key >> 32) & mask;  // keys are mixed: any bits will do
  while (slots_[slot] != 0 && entries_[slots_[slot] - 1].key != key) slot = (slot + 1) & mask;
  return slot;
}

void TextMemory::grow() {
  slots_.assign(std::max(kFirstSlots, slots_.size() * 2), 0);
  for (size_t i = 0; i < entries_.size(); ++i) slots_[slot_of(entries_[i].key)] = static_cast<uint32_t>(i + 1);
}

void TextMemory::add(uint64_t key, std::string_view text) {
  if ((entries_.size() + 1) * 2 > slots_.size()) grow();
  const size_t slot = slot_of(key);
  if (slots_[slot] != 0) {
    const std::string_view known = text_of(entries_[slots_[slot] - 1]);
    if (known == text) return;
    ++collision_count_;
    if (collisions_.size() < kShownCollisions) collisions_.push_back({key, std::string(known), std::string(text)});
    return;
  }
  const int64_t start = bytes_.size();
  const int64_t needed = start + static_cast<int64_t>(text.size());
  bytes_.reserve(needed <= start * 2 ? std::max(needed, start + start / 2) : needed);
  if (!text.empty()) std::memcpy(bytes_.extend(static_cast<int64_t>(text.size())), text.data(), text.size());
  entries_.push_back({key, start, static_cast<int32_t>(text.size())});
  slots_[slot] = static_cast<uint32_t>(entries_.size());
}

void TextMemory::add_column(const Column& column, const ValueSource& source, uint64_t salt) {
  for_each_text(column, source, [&](std::string_view text) {
    add(mix64(murmur3(text.data(), text.size()) ^ salt), text);
  });
}

bool TextMemory::find(uint64_t key, std::string_view* text) const {
  if (slots_.empty()) return false;
  const uint32_t entry = slots_[slot_of(key)];
  if (entry != 0) *text = text_of(entries_[entry - 1]);
  return entry != 0;
}

int64_t TextMemory::bytes() const {
  return bytes_.size() + static_cast<int64_t>(entries_.capacity() * sizeof(Entry) + slots_.size() * sizeof(uint32_t));
}

TextMemory::Taken TextMemory::take() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  Taken taken;
  taken.keys.reserve(size());
  taken.offsets.reserve(size() + 1);
  taken.bytes.reserve(bytes_.size());
  taken.offsets.push_back(0);
  for (const Entry& entry : entries_) {
    taken.keys.push_back(entry.key);
    const std::string_view text = text_of(entry);
    if (!text.empty()) std::memcpy(taken.bytes.extend(entry.size), text.data(), text.size());
    taken.offsets.push_back(taken.bytes.size());
  }
  entries_ = {};
  slots_ = {};
  bytes_ = {};
  return taken;
}

}  // namespace embershard
