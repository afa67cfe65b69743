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

uint32_t TableGroup::widest(const Request& request) const {
  uint32_t widest = 0;
  for (size_t t = 0; t < request.table_count; ++t) widest = std::max(widest, table(request.tables[t]).dim());
  return widest;
}

const size_t* TableGroup::value_offsets(const Request& request) const {
  std::vector<size_t>& offsets = scratch().offsets;
  offsets.assign(request.table_count + 1, 0);
  for (size_t t = 0; t < request.table_count; ++t) {
    offsets[t + 1] = offsets[t] + static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * table(request.tables[t]).dim();
  }
  return offsets.data();
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
