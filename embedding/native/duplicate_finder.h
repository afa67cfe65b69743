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
    return n < kFilteredKeys ? find_in_slots(keys, n) : find_in_filter(keys, n);
  }

 private:
  static constexpr size_t kFilteredKeys = 256;  // fewer go through the slots at once
  static constexpr int kFilterBits = 4;       // 16 bits a key

  static size_t hash(uint64_t key, int bits) { return ((key ^ (key >> 32)) * 0x9e3779b97f4a7c15ULL) >> (64 - bits); }

  // A key whose bit is set already may stand twice; only those few go through the slots, then all keys past their bits.
  size_t find_in_filter(const uint64_t* keys, size_t n) {
    const int bits = std::bit_width(n - 1) + kFilterBits;
    filter_.assign((size_t{1} << bits) / 64, 0);
    suspects_.resize(n);
    uint64_t* filter = filter_.data();
    uint32_t* suspects = suspects_.data();
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = hash(keys[i], bits);
      const uint64_t word = filter[at / 64], bit = uint64_t{1} << (at % 64);
      suspects[count] = static_cast<uint32_t>(i);
      count += (word & bit) != 0;
      filter[at / 64] = word | bit;
    }
    if (count == 0) return n;
    std::fill(filter_.begin(), filter_.end(), 0);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = hash(keys[suspects[i]], bits);
      filter[at / 64] |= uint64_t{1} << (at % 64);
    }
    // The keys that share a bit with a suspect, suspects among them: few enough for the slots.
    size_t kept = 0;
    kept_keys_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      const size_t at = hash(keys[i], bits);
      suspects[kept] = static_cast<uint32_t>(i);
      kept_keys_[kept] = keys[i];
      kept += (filter[at / 64] >> (at % 64)) & 1;
    }
    const size_t found = find_in_slots(kept_keys_.data(), kept);
    return found == kept ? n : suspects[found];
  }

  size_t find_in_slots(const uint64_t* keys, size_t n) {
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
      size_t slot = hash(key, bits);
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

  std::vector<uint32_t> slots_;
  std::vector<uint64_t> filter_, kept_keys_;
  std::vector<uint32_t> suspects_;
  uint64_t base_ = 1;
};

}  // namespace embershard
