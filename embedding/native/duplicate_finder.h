// Finds a key that stands twice in a run of keys, without allocation in steady state and without clearing between runs.
//
// A slot holds base + position; values below the current base are leftovers of earlier runs. Thread safety: one a thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace embershard {

class DuplicateFinder {
 public:
  // Position of a key that stands earlier in the run too, or `n`.
  size_t find(const uint64_t* keys, size_t n) {
    if (n < 2) return n;
    const int bits = std::bit_width(n * 2 - 1);
    const size_t mask = (size_t{1} << bits) - 1;
    if (slots_.size() <= mask || base_ + n > UINT32_MAX) {
      slots_.assign(std::max(slots_.size(), mask + 1), 0);
      base_ = 1;
    }
    const auto base = static_cast<uint32_t>(base_);
    uint32_t* slots = slots_.data();
    size_t found = n;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t key = keys[i];
      size_t slot = ((key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL) >> (64 - bits);
      while (slots[slot] >= base) {
        if (keys[slots[slot] - base] == key) [[unlikely]] {
          found = i;
          break;
        }
        slot = (slot + 1) & mask;
      }
      if (found != n) [[unlikely]] break;
      slots[slot] = base + static_cast<uint32_t>(i);
    }
    base_ += n;
    return found;
  }

 private:
  std::vector<uint32_t> slots_;
  uint64_t base_ = 1;
};

}  // namespace embershard
