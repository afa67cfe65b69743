#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "row_finder.h"
#include "scratch.h"

namespace embershard {

// Sets the rows of the keys of a range of tablets, whose locks are held alone.
class TableGroup::Assign {
 public:
  Assign(TableGroup& group, const Request& request, Partition& partition, const GivenRows& given, const size_t* offsets)
      : group_(group),
        finder_(group.kernels_, group.tablet_bits_),
        blocks_(group, request, partition, offsets, given.weights, sizeof(float)),
        request_(request),
        partition_(partition),
        given_(given),
        row_(room_for(group.widest(request), scratch().row)) {
    const float* state = given.state;
    for (size_t t = 0; t < request.table_count; ++t) {
      const Table& table = group.table(request.tables[t]);
      streams_.push_back(table.is_float32() && table.store.streams_weights());
    }
    for (size_t t = 0; given.state != nullptr && t < request.table_count; ++t) {
      states_.push_back(state);
      state += static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * group.table(request.tables[t]).spec.state_width;
    }
  }

  // Makes the new rows among entries [begin, end) of tables with a limit, before `run`, and marks the keys that are left out.
  void plan(size_t begin, size_t end) {
    partition_.for_each_table(request_, begin, end, [&](size_t t, size_t first, size_t stop) {
      Table& table = group_.table(request_.tables[t]);
      if (table.spec.row_limit != 0) plan_table(table, first, stop);
    });
  }

  // Rows set among entries [begin, end) of the partition.
  int64_t run(size_t begin, size_t end) {
    int64_t done = 0;
    blocks_.start(begin, end);
    const auto next = [&](KeyBlock& block) {
      if (!blocks_.next(block)) return false;
      block.streams_weights = streams_[block.table_index];
      return true;
    };
    finder_.run(next, [&](KeyBlock& block, const Ahead& ahead) { done += set(block, ahead); });
    end_streams();
    return done;
  }

 private:
  void plan_table(Table& table, size_t begin, size_t end) {
    std::vector<uint64_t> keys;  // of one tablet
    group_.for_each_sorted(partition_, begin, end, [&](size_t tablet, std::span<const KeyEntry> sorted) {
      Part& part = table.parts[tablet];
      size_t fresh = 0;
      keys.clear();
      for (const auto [key, entry] : sorted) {
        keys.push_back(key);
        const bool is_new = part.find(key) == kNoRow;
        fresh += is_new;
        partition_.skipped[entry] = !is_new && given_.if_absent;
      }
      Room room = make_room({table, part, tablet, group_.tablet_bits_, group_.tablets_[tablet].version}, keys, fresh);
      for (const auto [key, entry] : sorted) {
        if (part.find(key) != kNoRow) continue;
        if (room.rows == 0) {
          partition_.skipped[entry] = 1;
          continue;
        }
        table.create(part, key, row_);  // whole at once, as a later one may find no memory
        --room.rows;
      }
      if (room.evicted != 0) group_.trim_erased_of(part, tablet);
    });
  }

  int64_t set(KeyBlock& block, const Ahead& ahead) {
    Table& table = *block.table;
    const bool leaves_old = given_.if_absent && table.spec.row_limit == 0;  // else they are skipped
    const size_t width = table.spec.state_width;
    int64_t done = 0;
    for (size_t i = 0; i < block.count; ++i) {
      ahead.fetch(i);
      const size_t entry = block.first + i;
      if (!partition_.skipped.empty() && partition_.skipped[entry]) continue;
      uint32_t row = block.rows[i];
      const size_t tablet = group_.tablet_of(block.keys[i]);
      if (row == kNoRow) {
        Part& part = table.parts[tablet];
        row = finder_.insert(part, [&] { return table.insert(part, block.keys[i]); });
      } else if (leaves_old) {
        continue;
      }
      const auto* weights = reinterpret_cast<const float*>(block.values[i]);
      RowCounters* counters = table.store.counters(row);
      if (block.streams_weights) {
        stream_lines(reinterpret_cast<float*>(table.store.weights(row)), weights, block.value_bytes);
        table.start_state(weights, RowStore::state(counters));
      } else {
        table.store_initial(row, weights);
      }
      if (given_.state != nullptr) {
        const size_t at = partition_.entries[entry].position - static_cast<size_t>(request_.splits[block.table_index]);
        std::memcpy(RowStore::state(counters), states_[block.table_index] + at * width, width * sizeof(float));
      }
      counters->touched_at = given_.now;
      counters->version = group_.tablets_[tablet].version;
      ++done;
    }
    ahead.fetch_from(block.count);
    return done;
  }

  TableGroup& group_;
  RowFinder finder_;
  BlockCutter blocks_;
  const Request& request_;
  Partition& partition_;
  const GivenRows given_;
  float* row_;
  std::vector<const float*> states_;  // of each table, if states are given
  std::vector<bool> streams_;         // whether each table's weights are streamed
};

int64_t TableGroup::assign(const Request& request, const GivenRows& given, const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  const size_t* offsets = value_offsets(request);
  if (!kernels_.are_finite(given.weights, offsets[request.table_count])) {
    throw std::invalid_argument("expected finite weights, got nan or infinity");
  }
  Partition& parted = scratch().partition;
  partition(request, nullptr, mask, parted);
  const bool any_plan = std::any_of(request.tables, request.tables + request.table_count,
                                    [&](int32_t id) { return table(id).spec.row_limit != 0; });
  parted.skipped.assign(any_plan ? request.size() : 0, 0);
  std::atomic<int64_t> done{0};
  change_groups(request, parted, mask, [&](GroupShare& share) {
    Assign assign(*this, request, parted, given, offsets);
    share.for_each([&](size_t group) {
      if (any_plan) assign.plan(parted.starts[group], parted.starts[group + 1]);
      done.fetch_add(assign.run(parted.starts[group], parted.starts[group + 1]), std::memory_order_relaxed);
    });
  });
  return done;
}

}  // namespace embershard
