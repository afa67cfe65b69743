#include "table_group.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "scratch.h"

namespace embershard {
namespace {

const Kernels& choose_kernels(const std::string& name) {
  if (name.empty()) return best_kernels();
  for (const Kernels* const* set = available_kernels(); *set != nullptr; ++set) {
    if (name == (*set)->name) return **set;
  }
  throw std::invalid_argument("expected a kernel set this CPU has, got " + name);
}

}  // namespace

TableGroup::Scratch& TableGroup::scratch() {
  thread_local Scratch scratch;
  return scratch;
}

TableGroup::TableGroup(int tablet_bits, size_t threads, const std::string& kernels)
    : tablet_bits_(tablet_bits),
      kernels_(choose_kernels(kernels)),
      tablets_(std::make_unique<Tablet[]>(size_t{1} << tablet_bits)),
      pool_(threads) {}

TableGroup::~TableGroup() = default;

int32_t TableGroup::add_table(TableSpec spec) {
  std::unique_lock structure(structure_);
  tables_.push_back(std::make_unique<Table>(std::move(spec), tablets(), kernels_));
  return static_cast<int32_t>(tables_.size()) - 1;
}

void TableGroup::drop_table(int32_t table) {
  std::unique_lock structure(structure_);
  tables_[static_cast<size_t>(table)].reset();
}

void TableGroup::require(const int32_t* tables, size_t count) const {
  for (size_t t = 0; t < count; ++t) {
    if (tables_[static_cast<size_t>(tables[t])] == nullptr) {
      throw std::invalid_argument("expected a table that is there, got one that was dropped");
    }
  }
}

void TableGroup::check_unique(const Request& request) const {
  DuplicateFinder& duplicates = scratch().duplicates;
  for (size_t t = 0; t < request.table_count; ++t) {
    const uint64_t* keys = request.keys + request.splits[t];
    const auto n = static_cast<size_t>(request.splits[t + 1] - request.splits[t]);
    const size_t found = duplicates.find(keys, n);
    if (found != n) throw DuplicateKey{t, keys[found]};
  }
}

int64_t TableGroup::assign(const Request& request, const float* weights, const float* state, bool if_absent, uint32_t now,
                           const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  check_unique(request);
  int64_t done = 0;
  for (size_t t = 0; t < request.table_count; ++t) {
    Table& used = table(request.tables[t]);
    const auto n = static_cast<size_t>(request.splits[t + 1] - request.splits[t]);
    done += assign_rows(used, {request.keys + request.splits[t], n, weights, state, if_absent, now}, mask);
    weights += n * used.dim();
    if (state != nullptr) state += n * used.spec.state_width;
  }
  return done;
}

int64_t TableGroup::assign_rows(Table& used, const GivenRows& given, const bool* mask) {
  int64_t done = 0;
  std::vector<std::pair<uint64_t, size_t>> sorted;  // (key, position): tablets lie side by side in key order
  sorted.reserve(given.count);
  for (size_t i = 0; i < given.count; ++i) {
    if (mask == nullptr || mask[tablet_of(given.keys[i])]) sorted.emplace_back(given.keys[i], i);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint64_t> keys;  // of one tablet
  std::vector<float> row_scratch(used.dim());
  for (size_t begin = 0; begin < sorted.size(); begin += keys.size()) {
    const size_t tablet = tablet_of(sorted[begin].first);
    keys.clear();
    for (size_t i = begin; i < sorted.size() && tablet_of(sorted[i].first) == tablet; ++i) keys.push_back(sorted[i].first);
    LockedTablets lock(tablets_.get(), false);
    lock.add(tablet);
    Part& part = used.parts[tablet];
    const uint32_t version = tablets_[tablet].version;
    const auto fresh = std::count_if(keys.begin(), keys.end(), [&](uint64_t key) { return part.find(key) == kNoRow; });
    Room room = make_room({used, part, tablet, tablet_bits_, version}, keys, static_cast<size_t>(fresh));
    for (size_t i = begin; i < begin + keys.size(); ++i) {
      const auto [key, position] = sorted[i];
      uint32_t row = part.find(key);
      if (row != kNoRow ? given.if_absent : room.rows == 0) continue;
      if (row == kNoRow) {
        row = used.create(part, key, row_scratch.data());
        --room.rows;
      }
      used.store_initial(row, given.weights + position * used.dim());
      RowCounters* counters = used.store.counters(row);
      const size_t width = used.spec.state_width;
      if (given.state != nullptr) std::memcpy(RowStore::state(counters), given.state + position * width, width * sizeof(float));
      counters->touched_at = given.now;
      counters->version = version;
      ++done;
    }
    if (room.evicted != 0) trim_erased_of(part, tablet);
  }
  return done;
}

std::vector<std::vector<uint64_t>> TableGroup::expire(const std::vector<int32_t>& ids, uint32_t now, uint64_t max_rows,
                                                      bool removes, const bool* mask,
                                                      ExpiryCursor& cursor) {
  std::shared_lock structure(structure_);
  require(ids.data(), ids.size());
  std::vector<std::vector<uint64_t>> expired(ids.size());
  std::vector<float> row_scratch;
  for (; cursor.table < ids.size(); cursor = {cursor.table + 1, 0, 0}) {
    Table& used = table(ids[cursor.table]);
    if (!evicts_by_age_or_value(used.spec)) continue;
    row_scratch.resize(used.dim());
    for (; cursor.tablet < tablets(); ++cursor.tablet, cursor.hash = 0) {
      if (mask != nullptr && !mask[cursor.tablet]) continue;
      Part& part = used.parts[cursor.tablet];
      std::vector<uint64_t> leaving;
      LockedTablets lock(tablets_.get(), !removes);
      lock.add(cursor.tablet);
      const bool more = part.for_each_by_hash(cursor.hash, max_rows, [&](uint64_t key, uint32_t row) {
        if (is_expired(used, row, now, row_scratch.data())) leaving.push_back(key);
      });
      if (removes) {
        for (uint64_t key : leaving) remove_row(used, part, key, tablets_[cursor.tablet].version);
        if (!leaving.empty()) trim_erased_of(part, cursor.tablet);
      }
      auto& all = expired[cursor.table];
      all.insert(all.end(), leaving.begin(), leaving.end());
      if (more) {
        for (auto& keys : expired) std::sort(keys.begin(), keys.end());
        return expired;
      }
    }
  }
  cursor = {};
  for (auto& keys : expired) std::sort(keys.begin(), keys.end());
  return expired;
}

}  // namespace embershard
