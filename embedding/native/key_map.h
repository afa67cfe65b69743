// Small map from key to uint32, for admission counters and erased keys: open addressing, 12 bytes a slot in two arrays.
//
// Thread safety: none; guarded by the tablet's lock. Every key pattern is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace embershard {

class KeyMap {
 public:
  size_t size() const { return size_; }
  size_t bytes() const { return capacity_ * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(bool)); }

  // Value of `key`, or nullptr.
  uint32_t* find(uint64_t key) {
    if (size_ == 0) return nullptr;
    for (size_t slot = home(key);; slot = (slot + 1) & (capacity_ - 1)) {
      if (!used_[slot]) return nullptr;
      if (keys_[slot] == key) return &values_[slot];
    }
  }
  const uint32_t* find(uint64_t key) const { return const_cast<KeyMap*>(this)->find(key); }

  void set(uint64_t key, uint32_t value) {
    if ((size_ + 1) * 4 > capacity_ * 3) grow();
    size_t slot = home(key);
    while (used_[slot] && keys_[slot] != key) slot = (slot + 1) & (capacity_ - 1);
    size_ += used_[slot] ? 0 : 1;
    used_[slot] = true;
    keys_[slot] = key;
    values_[slot] = value;
  }

  bool erase(uint64_t key) {
    uint32_t* value = find(key);
    if (value == nullptr) return false;
    size_t hole = static_cast<size_t>(value - values_.get());
    const size_t mask = capacity_ - 1;
    for (size_t slot = (hole + 1) & mask; used_[slot]; slot = (slot + 1) & mask) {
      if (((slot - home(keys_[slot])) & mask) >= ((slot - hole) & mask)) {
        keys_[hole] = keys_[slot];
        values_[hole] = values_[slot];
        hole = slot;
      }
    }
    used_[hole] = false;
    --size_;
    return true;
  }

  void clear() { *this = KeyMap(); }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (size_t slot = 0; slot < capacity_; ++slot) {
      if (used_[slot]) visit(keys_[slot], values_[slot]);
    }
  }

 private:
  size_t home(uint64_t key) const {
    return static_cast<size_t>(((key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL) >> 20) & (capacity_ - 1);
  }

  void grow() {
    KeyMap larger;
    larger.capacity_ = capacity_ == 0 ? 8 : capacity_ * 2;
    larger.keys_ = std::make_unique_for_overwrite<uint64_t[]>(larger.capacity_);
    larger.values_ = std::make_unique_for_overwrite<uint32_t[]>(larger.capacity_);
    larger.used_ = std::make_unique<bool[]>(larger.capacity_);
    for_each([&](uint64_t key, uint32_t value) { larger.set(key, value); });
    *this = std::move(larger);
  }

  std::unique_ptr<uint64_t[]> keys_;
  std::unique_ptr<uint32_t[]> values_;
  std::unique_ptr<bool[]> used_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

}  // namespace embershard
