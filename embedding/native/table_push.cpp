#include <algorithm>
#include <mutex>
#include <utility>

#include "row_finder.h"
#include "scratch.h"

namespace embershard {

// Updates the keys of a range of tablets, whose locks are held alone.
class TableGroup::Push {
 public:
  Push(TableGroup& group, const Request& request, Partition& partition, const Gradients& gradients, const uint32_t* clicks,
       const UpdateStep& step, const size_t* offsets, const std::vector<std::vector<BlockPlan>>& plans, UpdateReport& report)
      : group_(group),
        finder_(group.kernels_, group.tablet_bits_),
        blocks_(group, request, partition, offsets, gradients.values, gradients.value_bytes()),
        request_(request),
        partition_(partition),
        gradients_(gradients),
        clicks_(clicks),
        step_(step),
        offsets_(offsets),
        plans_(plans),
        report_(report) {
    const size_t widest = group.widest(request);
    row_ = room_for(3 * widest, scratch().row);
    wide_ = room_for(gradients.type == RowType::float32 ? 0 : KeyBlock::kSize * widest, scratch().wide);
    for (size_t t = 0; t < request.table_count; ++t) {
      const TableSpec& spec = group.table(request.tables[t]).spec;
      unknown_plans_.push_back(spec.unknown_table < 0 ? std::vector<BlockPlan>{} : group.table(spec.unknown_table).plan(step));
    }
  }

  // Decides about the keys of tables with policies among entries [begin, end), before `run`.
  void plan(size_t begin, size_t end) {
    partition_.for_each_table(request_, begin, end, [&](size_t t, size_t first, size_t stop) {
      if (needs_plan(group_.table(request_.tables[t]).spec)) plan_table(t, first, stop);
    });
  }

  // Entries [begin, end) of the partition.
  void run(size_t begin, size_t end) {
    blocks_.start(begin, end);
    finder_.run([&](KeyBlock& block) { return blocks_.next(block); },
                [&](KeyBlock& block, const Ahead& ahead) { update(block, ahead); });
  }

 private:
  void plan_table(size_t table_index, size_t begin, size_t end) {
    Table& table = group_.table(request_.tables[table_index]);
    if (!table.spec.trainable) {
      std::fill(partition_.skipped.begin() + static_cast<std::ptrdiff_t>(begin),
                partition_.skipped.begin() + static_cast<std::ptrdiff_t>(end), uint8_t{1});
      return;
    }
    std::vector<PlannedKey> keys;  // of one tablet
    group_.for_each_sorted(partition_, begin, end, [&](size_t tablet, std::span<const KeyEntry> sorted) {
      keys.clear();
      for (const auto [key, entry] : sorted) {
        const auto* row_gradient = reinterpret_cast<const float*>(gradient(entry, table_index));
        if (!table.accepts(plans_[table_index], row_gradient)) continue;
        keys.push_back({key, entry, row_gradient, partition_.entries[entry].occurrences, 0, false});
      }
      const int32_t unknown = table.spec.unknown_table;
      const PlannedPart planned = {table, table.parts[tablet], tablet, group_.tablet_bits_, group_.tablets_[tablet].version,
                                   step_, unknown < 0 ? nullptr : &group_.table(unknown), &unknown_plans_[table_index], row_};
      const PartPlan plan = plan_part(planned, keys);
      if (plan.evicted != 0) group_.trim_erased_of(table.parts[tablet], tablet);
      for (const PlannedKey& key : keys) partition_.skipped[key.entry] = key.is_skipped;
      TableUpdate& report = report_.tables[table_index];
      report.created += plan.created;
      report.not_admitted += plan.not_admitted;
      report.over_limit += plan.over_limit;
      report.evicted += plan.evicted;
    });
  }

  const char* gradient(size_t entry, size_t table_index) const {
    const size_t i = partition_.entries[entry].position;
    const size_t dim = group_.table(request_.tables[table_index]).dim();
    const size_t value = offsets_[table_index] + (i - static_cast<size_t>(request_.splits[table_index])) * dim;
    return static_cast<const char*>(gradients_.values) + value * gradients_.value_bytes();
  }

  // The gradients of a block's keys as float32; valid until the next call.
  void widen_gradients(const KeyBlock& block, const float** rows) const {
    const uint32_t dim = block.table->dim();
    if (gradients_.type == RowType::float32) {
      for (size_t i = 0; i < block.count; ++i) rows[i] = reinterpret_cast<const float*>(block.values[i]);
      return;
    }
    const uint16_t* narrow[KeyBlock::kSize];
    for (size_t i = 0; i < block.count; ++i) narrow[i] = reinterpret_cast<const uint16_t*>(block.values[i]);
    group_.kernels_.widen_rows(gradients_.type, narrow, block.count, dim, wide_);
    for (size_t i = 0; i < block.count; ++i) rows[i] = wide_ + i * dim;
  }

  void update(KeyBlock& block, const Ahead& ahead) {
    Table& table = *block.table;
    TableUpdate& report = report_.tables[block.table_index];
    const std::vector<BlockPlan>& plan = plans_[block.table_index];
    RowWrites writes;
    size_t entries[KeyBlock::kSize];  // of the writes
    const float* gradients[KeyBlock::kSize];
    widen_gradients(block, gradients);
    for (size_t i = 0; i < block.count; ++i) {
      const size_t entry = block.first + i;
      if (!partition_.skipped.empty() && partition_.skipped[entry]) continue;
      const uint64_t key = block.keys[i];
      const float* row_gradient = gradients[i];
      const size_t tablet = group_.tablet_of(key);
      if (block.rows[i] == kNoRow) {
        if (!table.accepts(plan, row_gradient)) {
          refuse(block.table_index, key);
          continue;
        }
        Part& part = table.parts[tablet];
        block.rows[i] = finder_.insert(part, [&] { return table.create(part, key, row_); });
        ++report.created;
      }
      const RowCounters now = {partition_.entries[entry].occurrences, step_.now, group_.tablets_[tablet].version};
      entries[writes.count] = entry;
      writes.add(table.store, key, block.rows[i], row_gradient, now);
    }
    table.update(plan, writes, row_, ahead);
    for (size_t i = 0; i < writes.count; ++i) {
      if (writes.applied[i]) {
        ++report.applied;
      } else {
        refuse(block.table_index, writes.keys[i]);
      }
    }
    if (clicks_ != nullptr && table.spec.keeps_clicks()) add_clicks(table, writes, entries);
  }

  void add_clicks(const Table& table, const RowWrites& writes, const size_t* entries) const {
    for (size_t i = 0; i < writes.count; ++i) {
      if (!writes.applied[i]) continue;
      uint32_t* stored = table.store.clicks(writes.counters[i]);
      *stored = saturating_add(*stored, clicks_[partition_.entries[entries[i]].position]);
    }
  }

  void refuse(size_t table_index, uint64_t key) {
    ++report_.tables[table_index].non_finite;
    report_.refused_keys[table_index].push_back(key);
  }

  TableGroup& group_;
  RowFinder finder_;
  BlockCutter blocks_;
  const Request& request_;
  Partition& partition_;
  const Gradients gradients_;
  const uint32_t* clicks_;  // or nullptr
  const UpdateStep& step_;
  const size_t* offsets_;
  const std::vector<std::vector<BlockPlan>>& plans_;
  UpdateReport& report_;
  std::vector<std::vector<BlockPlan>> unknown_plans_;
  float* row_;
  float* wide_;  // gradients of one block, if they travel in 16 bits
};

void TableGroup::widen_all(const Gradients& gradients, std::vector<float>& out) const {
  constexpr size_t kPiece = size_t{1} << 20;  // kernels count in 32 bits
  const auto* values = static_cast<const uint16_t*>(gradients.values);
  for (size_t start = 0; start < out.size(); start += kPiece) {
    kernels_.widen(gradients.type, values + start, static_cast<uint32_t>(std::min(kPiece, out.size() - start)), out.data() + start);
  }
}

UpdateReport TableGroup::apply_gradients(const Request& request, const Gradients& given, const uint32_t* occurrences,
                                         const UpdateStep& step, const bool* mask, const uint32_t* clicks,
                                         PreparedKeys* prepared) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  Scratch& mine = scratch();
  Partition& parted = prepared == nullptr ? mine.partition : prepared->partition_;
  if (prepared == nullptr) partition(request, occurrences, mask, parted);
  std::vector<std::vector<BlockPlan>> plans;
  for (size_t t = 0; t < request.table_count; ++t) plans.push_back(table(request.tables[t]).plan(step));
  const size_t* offsets = value_offsets(request);
  const bool any_plan = std::any_of(request.tables, request.tables + request.table_count,
                                    [&](int32_t id) { return needs_plan(table(id).spec); });
  parted.skipped.assign(any_plan ? request.size() : 0, 0);
  Gradients gradients = given;
  if (any_plan && given.type != RowType::float32) {
    // Plans hold on to the gradients of whole tablets.
    mine.all_wide.resize(offsets[request.table_count]);
    widen_all(given, mine.all_wide);
    gradients = {RowType::float32, mine.all_wide.data()};
  }
  UpdateReport total;
  total.tables.resize(request.table_count);
  total.refused_keys.resize(request.table_count);
  std::mutex total_mutex;
  change_groups(request, parted, mask, [&](GroupShare& share) {
    UpdateReport report;
    report.tables.resize(request.table_count);
    report.refused_keys.resize(request.table_count);
    Push push(*this, request, parted, gradients, clicks, step, offsets, plans, report);
    share.for_each([&](size_t group) {
      parted.for_each_tablet(group, [&](size_t tablet) { ++tablets_[tablet].push_count; });
      if (!parted.skipped.empty()) push.plan(parted.starts[group], parted.starts[group + 1]);
      push.run(parted.starts[group], parted.starts[group + 1]);
    });
    std::lock_guard guard(total_mutex);
    for (size_t t = 0; t < request.table_count; ++t) {
      TableUpdate& sum = total.tables[t];
      const TableUpdate& part = report.tables[t];
      sum.applied += part.applied;
      sum.created += part.created;
      sum.not_admitted += part.not_admitted;
      sum.non_finite += part.non_finite;
      sum.over_limit += part.over_limit;
      sum.evicted += part.evicted;
      total.refused_keys[t].insert(total.refused_keys[t].end(), report.refused_keys[t].begin(), report.refused_keys[t].end());
    }
  });
  if (prepared != nullptr) keep_spare(std::move(parted));
  for (auto& keys : total.refused_keys) std::sort(keys.begin(), keys.end());
  return total;
}

}  // namespace embershard
