#include <atomic>

#include "scratch.h"

namespace embershard {
namespace {

constexpr size_t kErasedAhead = 16;  // how many keys before it is erased a key's bucket is fetched

}  // namespace

int64_t TableGroup::erase(const Request& request, const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  Partition& parted = scratch().partition;
  partition(request, nullptr, mask, parted);
  std::atomic<int64_t> erased{0};
  change_groups(request, parted, mask, [&](GroupShare& share) {
    share.for_each([&](size_t group) {
      erased.fetch_add(erase_group(request, parted, group), std::memory_order_relaxed);
      parted.for_each_tablet(group, [&](size_t tablet) {
        for (size_t t = 0; t < request.table_count; ++t) trim_erased_of(table(request.tables[t]).parts[tablet], tablet);
      });
    });
  });
  return erased;
}

int64_t TableGroup::erase_group(const Request& request, const Partition& parted, size_t group) {
  const size_t end = parted.starts[group + 1];
  int64_t erased = 0;
  size_t t = 0;
  for (size_t entry = parted.starts[group]; entry < end; ++entry) {
    while (static_cast<int64_t>(parted.entries[entry].position) >= request.splits[t + 1]) ++t;
    Table& used = table(request.tables[t]);
    if (const size_t ahead = entry + kErasedAhead; ahead < end && static_cast<int64_t>(parted.entries[ahead].position) < request.splits[t + 1]) {
      const uint64_t key = parted.keys[ahead];
      __builtin_prefetch(used.parts[tablet_of(key)].home_bucket(index_hash(key)), 1, 3);
    }
    const size_t tablet = tablet_of(parted.keys[entry]);
    erased += remove_row(used, used.parts[tablet], parted.keys[entry], tablets_[tablet].version);
  }
  return erased;
}

}  // namespace embershard
