// The keys of a verb that changes rows: put into groups of tablets, checked to differ, shared out to the verb's threads under
// the groups' locks, and cut into blocks.
//
// Thread safety: a partition is made by one thread; all threads of the verb read it and run one check.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "row_finder.h"
#include "table_group.h"

namespace embershard {

// The request's keys by group of tablets that lie side by side; within a group in request order, so table after table.
struct TableGroup::Partition {
  // Side by side, as each array is written at as many places as there are groups, and these are scarce in the nearest cache.
  struct Entry {
    uint32_t position;  // in the request
    uint32_t occurrences;
  };

  int group_bits = 0;
  std::vector<uint32_t> starts;    // groups + 1
  std::vector<uint64_t> keys;
  std::vector<Entry> entries;      // one a key
  std::vector<uint32_t> key_counts;  // per tablet, how many of its keys are wanted
  std::vector<uint8_t> skipped;    // per entry, whether a policy holds it back; empty if no table has one

  bool is_unique = false;          // the keys are known to differ

  size_t groups() const { return size_t{1} << group_bits; }
  // visit(tablet) for each tablet of the group that has wanted keys, ascending.
  template <typename Visit>
  void for_each_tablet(size_t group, Visit visit) const {
    const size_t tablets = key_counts.size() >> group_bits;
    for (size_t tablet = group * tablets; tablet < (group + 1) * tablets; ++tablet) {
      if (key_counts[tablet] != 0) visit(tablet);
    }
  }
  // visit(table_index, begin, end) for each table of the request with entries among [begin, end), which are of one group.
  template <typename Visit>
  void for_each_table(const Request& request, size_t begin, size_t end, Visit visit) const {
    for (size_t t = 0; begin < end; ++t) {
      const auto stop = static_cast<size_t>(
          std::partition_point(entries.data() + begin, entries.data() + end,
                               [&](const Entry& entry) { return static_cast<int64_t>(entry.position) < request.splits[t + 1]; }) -
          entries.data());
      if (begin < stop) visit(t, begin, stop);
      begin = stop;
    }
  }
};

// A partition that was made, and whose keys were found to differ, before the gradients are there.
class TableGroup::PreparedKeys {
 public:
  // Whether it is of this request to this group and has not been taken before; now it is.
  bool take(const TableGroup& group, const Request& request) {
    const int32_t* tables = request.tables;
    const int64_t* splits = request.splits;
    const bool fits = is_there_ && group_ == &group &&
                      std::equal(tables_.begin(), tables_.end(), tables, tables + request.table_count) &&
                      std::equal(splits_.begin(), splits_.end(), splits, splits + request.table_count + 1);
    is_there_ = is_there_ && !fits;
    return fits;
  }

 private:
  friend class TableGroup;
  const TableGroup* group_ = nullptr;
  bool is_there_ = true;
  Partition partition_;
  std::vector<int32_t> tables_;
  std::vector<int64_t> splits_;
};

// Looks for keys that stand twice, group by group, on all threads that will work on the partition. Runs of one group and table
// stay in the nearest cache. No thread goes on before every group is looked through, so that a refused request changes nothing.
class TableGroup::UniqueCheck {
 public:
  // `mask`: as for the partition. If there is one, all keys are looked through here, those it leaves out too.
  // Throws DuplicateKey.
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

// Hands the groups of a partition to the threads of a verb.
class TableGroup::GroupShare {
 public:
  GroupShare(const TableGroup& group, const Partition& partition) : group_(group), partition_(partition) {}

  // visit(group) for each group that falls to this thread, with the locks of its keys' tablets held alone.
  template <typename Visit>
  void for_each(Visit visit) {
    LockedTablets locks(group_.tablets_.get(), false);
    for (;;) {
      // From the last group to the first: a lookup, which locks upwards, then meets the verb once. Upwards too, it would follow
      // the verb from group to group and wait for all of it.
      const size_t done = cursor_.fetch_add(1, std::memory_order_relaxed);
      if (done >= partition_.groups()) break;
      const size_t group = partition_.groups() - 1 - done;
      partition_.for_each_tablet(group, [&](size_t tablet) { locks.add(tablet); });
      visit(group);
      locks.release();
    }
  }

 private:
  const TableGroup& group_;
  const Partition& partition_;
  std::atomic<size_t> cursor_{0};
};

// Cuts entries of a partition into blocks of one table's keys, each with the values that the request brings it.
class TableGroup::BlockCutter {
 public:
  // `offsets`: per table of the request, where its values begin.
  BlockCutter(const TableGroup& group, const Request& request, const Partition& partition, const size_t* offsets,
              const void* values, size_t value_bytes)
      : group_(group),
        request_(request),
        partition_(partition),
        offsets_(offsets),
        values_(static_cast<const char*>(values)),
        value_bytes_(value_bytes) {}

  // Goes on with entries [begin, end), of one group.
  void start(size_t begin, size_t end) {
    next_ = begin;
    end_ = end;
    table_ = 0;
  }

  // False at the end. Within a group the keys of a table follow one another, in request order.
  bool next(KeyBlock& block) {
    if (next_ == end_) return false;
    const Partition::Entry* entries = partition_.entries.data();
    while (static_cast<int64_t>(entries[next_].position) >= request_.splits[table_ + 1]) ++table_;
    const auto table_end = static_cast<uint32_t>(request_.splits[table_ + 1]);
    size_t count = std::min(KeyBlock::kSize, end_ - next_);
    while (entries[next_ + count - 1].position >= table_end) --count;
    block.table = &group_.table(request_.tables[table_]);
    block.table_index = table_;
    block.first = next_;
    block.count = count;
    block.keys = partition_.keys.data() + next_;
    const size_t dim = block.table->dim();
    const size_t first = offsets_[table_] - static_cast<size_t>(request_.splits[table_]) * dim;
    block.value_bytes = dim * value_bytes_;
    for (size_t i = 0; i < count; ++i) block.values[i] = values_ + (first + entries[next_ + i].position * dim) * value_bytes_;
    next_ += count;
    return true;
  }

 private:
  const TableGroup& group_;
  const Request& request_;
  const Partition& partition_;
  const size_t* offsets_;
  const char* values_;
  size_t value_bytes_;
  size_t next_ = 0, end_ = 0, table_ = 0;
};

template <typename Visit>
void TableGroup::for_each_sorted(const Partition& partition, size_t begin, size_t end, Visit visit) const {
  std::vector<KeyEntry> sorted;  // tablets lie side by side in key order
  for (size_t entry = begin; entry < end; ++entry) sorted.emplace_back(partition.keys[entry], entry);
  std::sort(sorted.begin(), sorted.end());
  for (size_t first = 0, i = 0; first < sorted.size(); first = i) {
    const size_t tablet = tablet_of(sorted[first].first);
    while (i < sorted.size() && tablet_of(sorted[i].first) == tablet) ++i;
    visit(tablet, std::span<const KeyEntry>(&sorted[first], i - first));
  }
}

// `work(share)` on the threads of a verb, once all keys are known to differ. Throws DuplicateKey; nothing has been changed then.
template <typename Work>
void TableGroup::change_groups(const Request& request, const Partition& partition, const bool* mask, Work work) {
  GroupShare share(*this, partition);
  if (partition.is_unique) {
    share_out(request.size(), [&](size_t) { work(share); });
    return;
  }
  UniqueCheck unique(*this, request, partition, mask);
  share_out(request.size(), [&](size_t) {
    if (unique.run()) work(share);
  });
  unique.end();
}

}  // namespace embershard
