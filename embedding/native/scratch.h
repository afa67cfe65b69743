// What a verb needs beside its request; one a thread, so that a verb allocates nothing in steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "duplicate_finder.h"
#include "table_group.h"

namespace embershard {

// The request's keys by group of tablets that lie side by side; within a group in request order, so table after table.
struct TableGroup::Partition {
  int group_bits = 0;
  std::vector<uint32_t> starts;    // groups + 1
  std::vector<uint32_t> order;     // position in the request
  std::vector<uint64_t> keys;
  std::vector<uint32_t> occurrences;
  std::vector<uint32_t> key_counts;  // per tablet, how many of its keys are wanted
  std::vector<uint8_t> skipped;    // per entry, whether a policy holds it back; empty if no table has one

  size_t groups() const { return size_t{1} << group_bits; }
};

struct TableGroup::Scratch {
  Partition partition;
  DuplicateFinder duplicates;
  std::vector<float> row;
  std::vector<float> wide, all_wide;  // gradients of a block, of a push
  std::vector<size_t> offsets;
  std::vector<uint8_t> touched;
  std::vector<uint32_t> missing;
};

}  // namespace embershard
