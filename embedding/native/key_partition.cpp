#include "key_partition.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "scratch.h"

namespace embershard {
namespace {

// Keys updated under one set of locks, in whole tablets: many, as the gradients of a group are read with gaps between them.
constexpr size_t kLargestGroup = 8192, kSmallestGroup = 1024;
constexpr size_t kGroupsPerThread = 8;  // so that threads end at about the same time

}  // namespace

// Adds the request's keys to `counts`, of each tablet. Neighbours are counted apart, or each would wait for the one before it
// wherever they are of one tablet.
void TableGroup::count_keys(const Request& request, uint32_t* counts) const {
  constexpr size_t kApart = 4;
  const size_t n = request.size(), count = tablets();
  const uint64_t* keys = request.keys;
  const int bits = tablet_bits_;
  size_t i = 0;
  if (n >= 4 * kApart * count) {
    std::vector<uint32_t>& scratch_counts = scratch().counts;
    scratch_counts.assign(kApart * count, 0);
    uint32_t* apart = scratch_counts.data();
    for (; i + kApart <= n; i += kApart) {
      for (size_t k = 0; k < kApart; ++k) ++apart[k * count + embershard::tablet_of(keys[i + k], bits)];
    }
    for (size_t k = 0; k < kApart; ++k) {
      for (size_t tablet = 0; tablet < count; ++tablet) counts[tablet] += apart[k * count + tablet];
    }
  }
  for (; i < n; ++i) ++counts[embershard::tablet_of(keys[i], bits)];
}

// `occurrences`: of each key, or nullptr if they are not asked for.
void TableGroup::partition(const Request& request, const uint32_t* occurrences, const bool* mask, Partition& partition) const {
  const size_t n = request.size(), threads = pool_.threads();
  const size_t wanted = threads == 1 ? kLargestGroup : std::clamp(n / (kGroupsPerThread * threads), kSmallestGroup, kLargestGroup);
  int bits = 0;
  while (bits < tablet_bits_ && (n >> (bits + 1)) >= wanted) ++bits;
  partition.group_bits = bits;
  partition.is_unique = false;
  partition.starts.assign((size_t{1} << bits) + 1, 0);
  uint32_t* starts = partition.starts.data();
  partition.key_counts.assign(tablets(), 0);
  partition.keys.resize(n);
  partition.entries.resize(n);
  uint32_t* key_counts = partition.key_counts.data();
  count_keys(request, key_counts);
  const int shift = tablet_bits_ - bits;
  for (size_t tablet = 0; tablet < tablets(); ++tablet) {
    if (mask != nullptr && !mask[tablet]) key_counts[tablet] = 0;
    starts[(tablet >> shift) + 1] += key_counts[tablet];
  }
  for (size_t group = 0; group < partition.groups(); ++group) starts[group + 1] += starts[group];
  const uint64_t* given = request.keys;
  uint64_t* keys = partition.keys.data();
  Partition::Entry* entries = partition.entries.data();
  for (size_t i = 0; i < n; ++i) {
    const uint64_t key = given[i];
    if (mask != nullptr && !mask[tablet_of(key)]) continue;
    const uint32_t at = starts[embershard::tablet_of(key, bits)]++;
    keys[at] = key;
    entries[at] = {static_cast<uint32_t>(i), occurrences == nullptr ? 0 : occurrences[i]};
  }
  for (size_t group = partition.groups(); group > 0; --group) starts[group] = starts[group - 1];
  starts[0] = 0;
}

TableGroup::PreparedKeys TableGroup::prepare(const Request& request, const uint32_t* occurrences) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  PreparedKeys prepared;
  prepared.partition_ = spare_partition();
  Partition& parted = prepared.partition_;
  partition(request, occurrences, nullptr, parted);
  UniqueCheck unique(*this, request, parted, nullptr);
  unique.run();
  unique.end();
  parted.is_unique = true;
  prepared.group_ = this;
  prepared.tables_.assign(request.tables, request.tables + request.table_count);
  prepared.splits_.assign(request.splits, request.splits + request.table_count + 1);
  return prepared;
}

TableGroup::Partition TableGroup::spare_partition() {
  std::lock_guard guard(spare_mutex_);
  if (spare_.empty()) return {};
  Partition spare = std::move(spare_.back());
  spare_.pop_back();
  return spare;
}

void TableGroup::keep_spare(Partition&& partition) {
  std::lock_guard guard(spare_mutex_);
  if (spare_.size() < kMostSpare) spare_.push_back(std::move(partition));
}

TableGroup::UniqueCheck::UniqueCheck(const TableGroup& group, const Request& request, const Partition& partition, const bool* mask)
    : request_(request),
      partition_(partition),
      groups_(mask == nullptr ? partition.groups() : 0),
      left_(groups_) {
  if (mask != nullptr) group.check_unique(request);
}

bool TableGroup::UniqueCheck::run() {
  for (size_t group; (group = cursor_.fetch_add(1, std::memory_order_relaxed)) < groups_;) {
    try {
      look_through(group);
    } catch (...) {
      std::lock_guard guard(mutex_);
      if (failure_ == nullptr || group < failed_) {
        failure_ = std::current_exception();
        failed_ = group;
      }
    }
    left_.fetch_sub(1, std::memory_order_release);
  }
  while (left_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  return failure_ == nullptr;
}

void TableGroup::UniqueCheck::end() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void TableGroup::UniqueCheck::look_through(size_t group) const {
  DuplicateFinder& duplicates = scratch().duplicates;
  partition_.for_each_table(request_, partition_.starts[group], partition_.starts[group + 1], [&](size_t t, size_t begin, size_t end) {
    const size_t found = duplicates.find(partition_.keys.data() + begin, end - begin);
    if (found != end - begin) throw DuplicateKey{t, partition_.keys[begin + found]};
  });
}

}  // namespace embershard
