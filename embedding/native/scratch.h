// What a verb needs beside its request; one a thread, so that a verb allocates nothing in steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "duplicate_finder.h"
#include "key_partition.h"

namespace embershard {

// The buffer's floats, at least so many.
inline float* room_for(size_t floats, std::vector<float>& buffer) {
  if (buffer.size() < floats) buffer.resize(floats);
  return buffer.data();
}

struct TableGroup::Scratch {
  Partition partition;
  DuplicateFinder duplicates;
  std::vector<float> row;
  std::vector<float> wide, all_wide;  // gradients of a block, of a push
  std::vector<size_t> offsets;
  std::vector<uint8_t> touched;
  std::vector<uint32_t> missing;
  std::vector<uint32_t> counts;
};

}  // namespace embershard
