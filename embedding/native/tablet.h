// A tablet of a table group: one range of the key space over all tables, with its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tablet_lock.h"

namespace embershard {

struct Tablet {
  TabletLock lock;
  uint32_t version = 1;
  uint64_t push_count = 0;
  uint32_t erased_since = 0;
};

// The top bits of the key.
inline size_t tablet_of(uint64_t key, int tablet_bits) { return static_cast<size_t>((key >> 1) >> (63 - tablet_bits)); }

// Locks of a set of tablets, taken in ascending order; released in the destructor.
class LockedTablets {
 public:
  LockedTablets(Tablet* tablets, bool shared) : tablets_(tablets), shared_(shared) {}
  ~LockedTablets() { release(); }
  LockedTablets(const LockedTablets&) = delete;
  LockedTablets& operator=(const LockedTablets&) = delete;

  void add(size_t tablet) {
    shared_ ? tablets_[tablet].lock.lock_shared() : tablets_[tablet].lock.lock();
    held_.push_back(static_cast<uint32_t>(tablet));
  }
  void release() {
    for (uint32_t tablet : held_) shared_ ? tablets_[tablet].lock.unlock_shared() : tablets_[tablet].lock.unlock();
    held_.clear();
  }
  void reserve(size_t count) { held_.reserve(count); }

 private:
  Tablet* tablets_;
  bool shared_;
  std::vector<uint32_t> held_;
};

}  // namespace embershard
