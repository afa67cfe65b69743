#include "policies.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../../feature_map/native/mix64.h"

namespace embershard {
namespace {

constexpr size_t kFewestErasedKept = 1024;

double integer_power(double base, uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// 0.5^(age / half_life): whole halvings, then the series of exp for the rest.
double halved(uint32_t age, uint32_t half_life) {
  const double x = -(static_cast<double>(age % half_life) / static_cast<double>(half_life)) * 0.6931471805599453;
  double series = 1.0;
  for (int k = 14; k > 0; --k) series = series * x / static_cast<double>(k) + 1.0;
  return series * integer_power(0.5, std::min<uint64_t>(age / half_life, 2000));
}

bool is_thrown_in(const TableSpec& spec, uint64_t stream, uint32_t occurrences, const UpdateStep& step) {
  const uint64_t bits = mix64(mix64(stream ^ mix64(step.unit)) ^ mix64(step.batch + kGolden));
  return static_cast<double>(bits >> 11) * 0x1p-53 >= integer_power(1.0 - spec.admission_probability, occurrences);
}

// Counts the keys that are not admitted yet. `fresh`: positions in `keys` of those without a row.
void admit_by_count(const PlannedPart& planned, std::vector<PlannedKey>& keys, const std::vector<size_t>& fresh) {
  const TableSpec& spec = planned.table.spec;
  KeyMap& counters = planned.part.extras().admission;
  std::vector<size_t> unknown;
  for (size_t position : fresh) {
    PlannedKey& key = keys[position];
    const uint32_t* counted = counters.find(key.key);
    key.counted = counted == nullptr ? 0 : *counted;
    const uint32_t after = saturating_add(key.counted, key.occurrences);
    if (key.counted != 0) counters.set(key.key, after);
    key.is_skipped = after < spec.admission_count;
    if (key.is_skipped && key.counted == 0) unknown.push_back(position);
  }
  const uint64_t quota = std::max<uint64_t>(1, share(spec.counter_limit, planned.tablet, planned.tablet_bits));
  if (counters.size() + unknown.size() > quota) {
    KeyMap halves;
    counters.for_each([&](uint64_t key, uint32_t count) {
      if (count >= 2) halves.set(key, count / 2);
    });
    counters = std::move(halves);
  }
  const size_t room = quota > counters.size() ? quota - counters.size() : 0;
  for (size_t i = 0; i < std::min(room, unknown.size()); ++i) {
    const PlannedKey& key = keys[unknown[i]];
    counters.set(key.key, key.occurrences);
  }
}

void admit(const PlannedPart& planned, std::vector<PlannedKey>& keys, const std::vector<size_t>& fresh) {
  const TableSpec& spec = planned.table.spec;
  if (spec.admission == AdmissionKind::min_count) {
    admit_by_count(planned, keys, fresh);
  } else if (spec.admission == AdmissionKind::probability) {
    for (size_t position : fresh) {
      PlannedKey& key = keys[position];
      key.is_skipped = !is_thrown_in(spec, planned.table.stream(key.key), key.occurrences, planned.step);
    }
  }
}

void train_unknown(const PlannedPart& planned, const std::vector<PlannedKey>& keys, const std::vector<size_t>& held_back) {
  Table& unknown = *planned.unknown;
  float* total = planned.scratch + size_t{2} * unknown.dim();
  uint32_t occurrences = 0;
  for (size_t i = 0; i < held_back.size(); ++i) {
    const PlannedKey& key = keys[held_back[i]];
    for (uint32_t c = 0; c < unknown.dim(); ++c) total[c] = i == 0 ? key.gradient[c] : total[c] + key.gradient[c];
    occurrences = saturating_add(occurrences, key.occurrences);
  }
  if (!unknown.accepts(*planned.unknown_plan, total)) return;
  const uint64_t key = first_key(planned.tablet, planned.tablet_bits);
  Part& part = unknown.parts[planned.tablet];
  uint32_t row = part.find(key);
  if (row == kNoRow) row = unknown.create(part, key, planned.scratch);
  RowWrites write;
  write.add(unknown.store, key, row, total, RowCounters{occurrences, planned.step.now, planned.version});
  unknown.update(*planned.unknown_plan, write, planned.scratch);  // not refused, as the gradient is accepted
}

}  // namespace

uint64_t share(uint64_t total, size_t tablet, int tablet_bits) {
  const uint64_t tablets = uint64_t{1} << tablet_bits;
  return total / tablets + (tablet < total % tablets ? 1 : 0);
}

Room make_room(const PartAt& at, const std::vector<uint64_t>& keys, size_t wanted) {
  const TableSpec& spec = at.table.spec;
  Part& part = at.part;
  if (spec.row_limit == 0) return {wanted, 0};
  const uint64_t quota = share(spec.row_limit, at.tablet, at.tablet_bits);
  if (part.rows() + wanted <= quota) return {wanted, 0};
  size_t excess = 0;
  if (spec.capacity_order != CapacityOrder::refuse) {
    std::vector<std::pair<uint32_t, uint64_t>> leaving;
    part.for_each([&](uint64_t key, uint32_t row) {
      if (std::binary_search(keys.begin(), keys.end(), key)) return;
      const RowCounters* counters = at.table.store.counters(row);
      leaving.emplace_back(spec.capacity_order == CapacityOrder::lru ? counters->touched_at : counters->count, key);
    });
    excess = std::min<size_t>(leaving.size(), part.rows() + wanted - quota + quota / 8);
    std::nth_element(leaving.begin(), leaving.begin() + static_cast<std::ptrdiff_t>(excess), leaving.end());
    for (size_t i = 0; i < excess; ++i) remove_row(at.table, part, leaving[i].second, at.version);
  }
  const size_t rows = quota > part.rows() ? std::min<size_t>(wanted, quota - part.rows()) : 0;
  return {rows, static_cast<int64_t>(excess)};
}

PartPlan plan_part(const PlannedPart& planned, std::vector<PlannedKey>& keys) {
  PartPlan plan;
  std::vector<size_t> fresh;
  for (size_t position = 0; position < keys.size(); ++position) {
    keys[position].is_skipped = false;
    keys[position].counted = 0;
    if (planned.part.find(keys[position].key) == kNoRow) fresh.push_back(position);
  }
  admit(planned, keys, fresh);
  std::vector<size_t> admitted, held_back;
  for (size_t position : fresh) (keys[position].is_skipped ? held_back : admitted).push_back(position);
  std::vector<uint64_t> touched;
  if (planned.table.spec.row_limit != 0) {
    touched.reserve(keys.size());
    for (const PlannedKey& key : keys) touched.push_back(key.key);
  }
  const Room room = make_room(planned, touched, admitted.size());
  plan.evicted = room.evicted;
  for (size_t i = 0; i < admitted.size(); ++i) {
    PlannedKey& key = keys[admitted[i]];
    if (i >= room.rows) {
      key.is_skipped = true;
      ++plan.over_limit;
      continue;
    }
    const uint32_t row = planned.table.create(planned.part, key.key, planned.scratch);
    planned.table.store.counters(row)->count = key.counted;
    if (PartExtras* extras = planned.part.extras_or_null()) extras->admission.erase(key.key);
    ++plan.created;
  }
  if (planned.unknown != nullptr && !held_back.empty()) train_unknown(planned, keys, held_back);
  plan.not_admitted = static_cast<int64_t>(held_back.size());
  return plan;
}

// Defined by `is_expired` in policies.py.
double worth(const Table& table, RowCounters* counters) {
  const auto seen = static_cast<double>(counters->count);
  if (!table.spec.keeps_clicks()) return table.spec.show_weight * seen;
  const auto clicked = static_cast<double>(*table.store.clicks(counters));
  return table.spec.show_weight * (seen - clicked) + table.spec.click_weight * clicked;
}

bool is_expired(const Table& table, uint32_t row, uint32_t now, float* scratch) {
  const TableSpec& spec = table.spec;
  RowCounters* counters = table.store.counters(row);
  const uint32_t age = now > counters->touched_at ? now - counters->touched_at : 0;
  if (spec.ttl_seconds != 0 && age >= spec.ttl_seconds) return true;
  if (spec.min_score > 0 && worth(table, counters) * halved(age, spec.half_life_seconds) < spec.min_score) return true;
  if (!(spec.min_l2 > 0)) return false;
  table.read(row, scratch);
  return std::sqrt(table.sum_of_squares(scratch)) < spec.min_l2;
}

bool remove_row(const Table& table, Part& part, uint64_t key, uint32_t version) {
  if (part.erase(key, table.store) == kNoRow) return false;
  part.extras().erased.set(key, version);
  return true;
}

bool trim_erased(Part& part) {
  PartExtras* extras = part.extras_or_null();
  if (extras == nullptr || extras->erased.size() <= std::max<size_t>(kFewestErasedKept, part.rows())) return false;
  extras->erased.clear();
  return true;
}

}  // namespace embershard
