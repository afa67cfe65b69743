// The keys of a verb that changes rows, put into groups of tablets for its threads, and the check that they differ.
//
// Thread safety: a partition is made by one thread; all threads of the verb read it and run one check.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

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

// Looks for keys that stand twice, group by group, on all threads that will work on the partition. Runs of one group and table
// stay in the nearest cache. No thread goes on before every group is looked through, so that a refused request changes nothing.
class TableGroup::UniqueCheck {
 public:
  // `mask`: as for the partition. If there is one, all keys are looked through here, those it leaves out too. Throws DuplicateKey.
  UniqueCheck(const TableGroup& group, const Request& request, const Partition& partition, const bool* mask);

  // Whether all keys differ.
  bool run();
  // After all threads' `run`. Throws DuplicateKey, or what else kept a group from being looked through.
  void end() const;

 private:
  void look_through(size_t group) const;

  const Request& request_;
  const Partition& partition_;
  const size_t groups_;
  std::atomic<size_t> cursor_{0}, left_;
  std::mutex mutex_;
  std::exception_ptr failure_;  // of the first group that has one
  size_t failed_ = 0;
};

}  // namespace embershard
