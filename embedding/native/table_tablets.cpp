#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "sort_by_key.h"
#include "table_group.h"

namespace embershard {
namespace {

void sorted_entries(const KeyMap& map, uint32_t above, bool all, std::vector<uint64_t>& keys, std::vector<uint32_t>& values) {
  std::vector<std::pair<uint64_t, uint32_t>> entries;
  map.for_each([&](uint64_t key, uint32_t value) {
    if (all || value > above) entries.emplace_back(key, value);
  });
  std::sort(entries.begin(), entries.end());
  for (auto [key, value] : entries) {
    keys.push_back(key);
    values.push_back(value);
  }
}

TableRows copy_part(const Table& table, const Part& part, bool whole, uint32_t since) {
  std::vector<KeyRow> entries;
  entries.reserve(whole ? part.rows() : 0);
  part.for_each([&](uint64_t key, uint32_t row) {
    if (whole || table.store.counters(row)->version > since) entries.emplace_back(key, row);
  });
  sort_by_key(entries);
  const size_t n = entries.size(), state_width = table.spec.state_width, weight_bytes = table.store.weight_bytes();
  TableRows rows;
  rows.keys.resize(n);
  rows.weights.resize(n * weight_bytes);
  rows.state.resize(n * state_width);
  rows.count.resize(n);
  rows.touched_at.resize(n);
  rows.version.resize(n);
  const bool keeps_clicks = table.spec.keeps_clicks();
  if (keeps_clicks) rows.clicks.resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (i + 8 < n) {
      __builtin_prefetch(table.store.weights(entries[i + 8].second));
      __builtin_prefetch(table.store.counters(entries[i + 8].second));
    }
    const auto [key, row] = entries[i];
    RowCounters* counters = table.store.counters(row);
    rows.keys[i] = key;
    std::memcpy(rows.weights.data() + i * weight_bytes, table.store.weights(row), weight_bytes);
    if (state_width != 0) std::memcpy(rows.state.data() + i * state_width, RowStore::state(counters), state_width * sizeof(float));
    rows.count[i] = counters->count;
    rows.touched_at[i] = counters->touched_at;
    rows.version[i] = counters->version;
    if (keeps_clicks) rows.clicks[i] = *table.store.clicks(counters);
  }
  if (const PartExtras* extras = part.extras_or_null()) {
    sorted_entries(extras->admission, 0, true, rows.admission_keys, rows.admission_counts);
    sorted_entries(extras->erased, since, whole, rows.erased_keys, rows.erased_versions);
  }
  return rows;
}

}  // namespace

TabletState TableGroup::snapshot(size_t tablet, const std::vector<int32_t>& tables, bool whole, uint32_t since,
                                 std::vector<TableRows>& out) {
  std::shared_lock structure(structure_);
  require(tables.data(), tables.size());
  LockedTablets lock(tablets_.get(), true);
  lock.add(tablet);
  const Tablet& from = tablets_[tablet];
  whole = whole || since < from.erased_since;
  out.reserve(tables.size());
  for (int32_t id : tables) out.push_back(copy_part(table(id), table(id).parts[tablet], whole, whole ? 0 : since));
  return TabletState{from.version, from.push_count, from.erased_since, whole};
}

void TableGroup::import_tablet(size_t tablet, const std::vector<TableRowsView>& views, TabletState state) {
  std::shared_lock structure(structure_);
  for (const TableRowsView& view : views) require(&view.table, 1);
  LockedTablets lock(tablets_.get(), false);
  lock.add(tablet);
  if (state.is_whole) clear_tablet(tablet);
  for (const TableRowsView& view : views) import_rows(table(view.table), tablet, view, state);
  tablets_[tablet].version = state.version;
  tablets_[tablet].push_count = state.push_count;
  tablets_[tablet].erased_since = state.erased_since;
}

void TableGroup::import_rows(Table& used, size_t tablet, const TableRowsView& view, TabletState state) {
  Part& part = used.parts[tablet];
  if (PartExtras* extras = part.extras_or_null()) {
    extras->admission.clear();
    if (state.erased_since > tablets_[tablet].erased_since) {
      KeyMap kept;
      extras->erased.for_each([&](uint64_t key, uint32_t version) {
        if (version > state.erased_since) kept.set(key, version);
      });
      extras->erased = std::move(kept);
    }
  }
  for (size_t i = 0; i < view.erasures; ++i) {
    part.erase(view.erased_keys[i], used.store);
    part.extras().erased.set(view.erased_keys[i], view.erased_versions[i]);
  }
  for (size_t i = 0; i < view.admissions; ++i) part.extras().admission.set(view.admission_keys[i], view.admission_counts[i]);
  PartExtras* extras = part.extras_or_null();
  const bool ascending = std::adjacent_find(view.keys, view.keys + view.rows, std::greater_equal<>()) == view.keys + view.rows;
  const bool was_empty = ascending && part.is_empty();
  if (was_empty) part.reserve(view.rows, used.arena);
  const size_t state_bytes = used.spec.state_width * sizeof(float);
  for (size_t i = 0; i < view.rows; ++i) {
    uint32_t row = was_empty ? kNoRow : part.find(view.keys[i]);
    if (row == kNoRow) row = part.insert(view.keys[i], used.store, used.arena);
    if (extras != nullptr) extras->erased.erase(view.keys[i]);
    RowCounters* counters = used.store.counters(row);
    *counters = RowCounters{view.count[i], view.touched_at[i], view.version[i]};
    if (used.spec.keeps_clicks()) *used.store.clicks(counters) = view.clicks == nullptr ? 0 : view.clicks[i];
    std::memcpy(used.store.weights(row), view.weights + i * used.store.weight_bytes(), used.store.weight_bytes());
    if (state_bytes != 0) std::memcpy(RowStore::state(counters), view.state + i * used.spec.state_width, state_bytes);
  }
}

void TableGroup::clear_tablet(size_t tablet) {
  for (auto& held : tables_) {
    if (held != nullptr) held->parts[tablet].clear(held->store, held->arena);
  }
}

void TableGroup::drop_tablet(size_t tablet) {
  std::shared_lock structure(structure_);
  LockedTablets lock(tablets_.get(), false);
  lock.add(tablet);
  clear_tablet(tablet);
  tablets_[tablet].erased_since = tablets_[tablet].version;
}

uint32_t TableGroup::cut(size_t tablet) {
  LockedTablets lock(tablets_.get(), false);
  lock.add(tablet);
  return ++tablets_[tablet].version;
}

uint32_t TableGroup::version(size_t tablet) {
  LockedTablets lock(tablets_.get(), true);
  lock.add(tablet);
  return tablets_[tablet].version;
}

void TableGroup::push_counts(uint64_t* out) {
  for (size_t tablet = 0; tablet < tablets(); ++tablet) {
    LockedTablets lock(tablets_.get(), true);
    lock.add(tablet);
    out[tablet] = tablets_[tablet].push_count;
  }
}

PartStats TableGroup::stats(int32_t id) {
  std::shared_lock structure(structure_);
  require(&id, 1);
  Table& used = table(id);
  PartStats stats;
  for (size_t tablet = 0; tablet < tablets(); ++tablet) {
    LockedTablets lock(tablets_.get(), true);
    lock.add(tablet);
    const Part& part = used.parts[tablet];
    stats.rows_by_tablet.push_back(part.rows());
    stats.rows += part.rows();
    stats.slots += static_cast<int64_t>(part.slots());
    stats.index_bytes += static_cast<int64_t>(part.index_bytes() + sizeof(Part));
    if (const PartExtras* extras = part.extras_or_null()) {
      stats.counter_bytes += static_cast<int64_t>(sizeof(PartExtras) + extras->admission.bytes() + extras->erased.bytes());
    }
  }
  stats.weight_bytes = stats.rows * used.store.weight_bytes();
  stats.state_bytes = stats.rows * static_cast<int64_t>(used.spec.state_width * sizeof(float));
  stats.counter_bytes += stats.rows * used.store.state_bytes() - stats.state_bytes;
  stats.free_bytes = static_cast<int64_t>(used.arena.free_bytes()) +
                     (static_cast<int64_t>(used.store.touched_rows()) - stats.rows) *
                         (used.store.weight_bytes() + used.store.state_bytes());
  return stats;
}

}  // namespace embershard
