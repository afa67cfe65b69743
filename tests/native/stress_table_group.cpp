// Stress of the table group under a sanitizer: every verb from several threads at once, then the accounts are checked.
//
// Accounting: SGD with lr 1 and gradient 1 from weights of 0 makes every weight −(times pushed), and the row's count the
// same number; both are conserved by growth, erasing of other keys, snapshots and eviction of another table.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "key_partition.h"
#include "table_group.h"

using namespace embershard;

namespace {

constexpr int kTabletBits = 3;
constexpr size_t kKeys = 3000, kBatch = 400;
constexpr int kPushes = 60, kPushers = 2;

void expect(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "stress: %s does not hold\n", what);
    std::exit(1);
  }
}

TableSpec spec_of(OptimizerKind optimizer, uint32_t dim, RowType type) {
  TableSpec spec;
  BlockSpec block;
  block.dim = dim;
  block.optimizer = optimizer;
  block.state_width = optimizer == OptimizerKind::sgd ? 0 : 2 * dim + 1;
  block.lr = 1;
  block.beta1 = block.beta2 = 0.9F;
  block.one_minus_beta1 = block.one_minus_beta2 = 0.1F;
  block.beta1_exact = block.beta2_exact = 0.9;
  block.eps = 1e-8F;
  spec.row_type = type;
  spec.blocks = {block};
  spec.dim = dim;
  spec.state_width = block.state_width;
  return spec;
}

std::vector<uint64_t> sample(std::mt19937_64& random, const std::vector<uint64_t>& from, size_t count) {
  std::vector<uint64_t> keys = from;
  for (size_t i = 0; i < count; ++i) std::swap(keys[i], keys[i + random() % (keys.size() - i)]);
  keys.resize(count);
  return keys;
}

struct Call {  // a request for the same keys of all tables
  std::vector<int32_t> tables;
  std::vector<uint64_t> keys;
  std::vector<int64_t> splits;

  Call(const std::vector<int32_t>& ids, const std::vector<uint64_t>& of_each) : tables(ids), splits{0} {
    for (size_t t = 0; t < ids.size(); ++t) {
      keys.insert(keys.end(), of_each.begin(), of_each.end());
      splits.push_back(static_cast<int64_t>(keys.size()));
    }
  }
  Request request() const { return Request{tables.data(), tables.size(), keys.data(), splits.data()}; }
};

}  // namespace

int main() {
  TableGroup group(kTabletBits, 2, "");
  TableSpec counting = spec_of(OptimizerKind::sgd, 3, RowType::float32);
  counting.click_weight = 1;  // clicks are kept, and no score lets a row go
  const int32_t counted = group.add_table(counting);
  TableSpec expiring = spec_of(OptimizerKind::adam, 5, RowType::bfloat16);
  expiring.ttl_seconds = 3;
  expiring.row_limit = 1500;
  expiring.capacity_order = CapacityOrder::lru;
  const int32_t expires = group.add_table(expiring);
  const int32_t unknown = group.add_table(spec_of(OptimizerKind::adam, 5, RowType::float32));
  TableSpec admitting = spec_of(OptimizerKind::adam, 5, RowType::float32);
  admitting.admission = AdmissionKind::min_count;
  admitting.admission_count = 3;
  admitting.counter_limit = 500;
  admitting.unknown_table = unknown;
  const int32_t admits = group.add_table(admitting);
  const std::vector<int32_t> all = {counted, expires, admits};

  std::mt19937_64 seeds(1);
  std::vector<uint64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = i < 500 ? i : seeds();  // raw and mixed keys
  keys[0] = UINT64_MAX;
  std::vector<uint64_t> many(10'000);  // enough for the table threads
  for (uint64_t& key : many) key = seeds();
  std::atomic<bool> done{false};
  std::atomic<uint32_t> now{1};
  std::vector<std::atomic<uint32_t>> pushed(kKeys);
  std::vector<std::thread> threads;
  for (int pusher = 0; pusher < kPushers; ++pusher) {
    threads.emplace_back([&, pusher] {
      std::mt19937_64 random(static_cast<uint64_t>(pusher) + 7);
      std::vector<uint64_t> positions(kKeys);
      for (size_t i = 0; i < kKeys; ++i) positions[i] = i;
      for (int push = 0; push < kPushes; ++push) {
        const auto chosen = sample(random, positions, kBatch);
        std::vector<uint64_t> of_each;
        for (uint64_t position : chosen) {
          of_each.push_back(keys[position]);
          pushed[position].fetch_add(1, std::memory_order_relaxed);
        }
        const Call call(all, of_each);
        const std::vector<float> gradients(kBatch * (3 + 5 + 5), 1.0F);
        const std::vector<uint16_t> narrow_gradients(kBatch * (3 + 5 + 5), 0x3f80);
        const Gradients given = push % 2 != 0 ? Gradients{RowType::float32, gradients.data()}
                                              : Gradients{RowType::bfloat16, narrow_gradients.data()};
        const std::vector<uint32_t> occurrences(kBatch * all.size(), 1);
        UpdateStep step;
        step.now = now.fetch_add(1);
        TableGroup::PreparedKeys prepared;
        if (push % 3 == 0) prepared = group.prepare(call.request(), occurrences.data());
        const UpdateReport report = group.apply_gradients(call.request(), given, occurrences.data(), step, nullptr,
                                                          occurrences.data(), push % 3 == 0 ? &prepared : nullptr);
        expect(report.tables[0].applied == static_cast<int64_t>(kBatch), "every key of a push is applied");
      }
    });
  }
  std::vector<std::thread> others;
  for (int reader = 0; reader < 2; ++reader) {
    others.emplace_back([&, reader] {
      std::mt19937_64 random(static_cast<uint64_t>(reader) + 70);
      std::vector<float> out(kBatch * (3 + 5 + 5));
      std::vector<uint16_t> narrow_out(out.size());
      while (!done.load()) {
        const Call call(all, sample(random, keys, kBatch));
        group.lookup(call.request(), AbsentRows::unseen, RowType::bfloat16, narrow_out.data());
        for (size_t i = 0; i < kBatch; ++i) {
          expect(narrow_out[3 * i] == narrow_out[3 * i + 1] && narrow_out[3 * i] == narrow_out[3 * i + 2], "a row is read whole");
        }
        group.lookup(call.request(), AbsentRows::unseen, RowType::float32, out.data());
        for (size_t i = 0; i < kBatch; ++i) {
          expect(out[3 * i] == out[3 * i + 1] && out[3 * i] == out[3 * i + 2], "a row is read whole");
        }
      }
    });
  }
  others.emplace_back([&] {
    std::mt19937_64 random(99);
    ExpiryCursor cursor;
    while (!done.load()) {
      std::unique_ptr<bool[]> some(new bool[group.tablets()]);
      for (size_t i = 0; i < group.tablets(); ++i) some[i] = random() % 2 == 0;
      group.expire(all, now.load(), 100, true, random() % 2 == 0 ? some.get() : nullptr, cursor);
      std::vector<TableRows> rows;
      const size_t tablet = random() % group.tablets();
      group.snapshot(tablet, all, random() % 2 == 0, group.cut(tablet) - 1, rows);
      const Call call({expires, admits}, sample(random, keys, 20));
      group.erase(call.request(), nullptr);
      group.stats(expires);
      std::vector<uint64_t> counts(group.tablets());
      group.push_counts(counts.data());
      const int32_t temporary = group.add_table(spec_of(OptimizerKind::sgd, 2, RowType::float32));
      const std::vector<float> weights(20'000, 1.0F);
      group.assign(Call({temporary}, sample(random, keys, 20)).request(), {weights.data(), nullptr, false, 1}, nullptr);
      group.assign(Call({temporary}, many).request(), {weights.data(), nullptr, true, 2}, nullptr);
      group.drop_table(temporary);
    }
  });
  for (auto& thread : threads) thread.join();
  done.store(true);
  for (auto& thread : others) thread.join();

  std::vector<float> weights(kKeys * 3);
  const Call call({counted}, keys);
  group.lookup(call.request(), AbsentRows::zeros, RowType::float32, weights.data());
  uint64_t total = 0;
  for (size_t i = 0; i < kKeys; ++i) {
    expect(weights[3 * i] == -static_cast<float>(pushed[i].load()), "no update is lost");
    total += pushed[i].load();
  }
  uint64_t counted_total = 0, clicks_total = 0;
  TableGroup copy(kTabletBits, 1, "baseline");
  copy.add_table(counting);
  for (size_t tablet = 0; tablet < group.tablets(); ++tablet) {
    std::vector<TableRows> rows;
    const TabletState state = group.snapshot(tablet, {counted}, true, 0, rows);
    const TableRows& r = rows[0];
    for (uint32_t count : r.count) counted_total += count;
    for (uint32_t clicks : r.clicks) clicks_total += clicks;
    copy.import_tablet(tablet,
                       {TableRowsView{0, r.keys.size(), 0, r.erased_keys.size(), r.keys.data(),
                                      reinterpret_cast<const char*>(r.weights.data()), r.state.data(), r.count.data(),
                                      r.touched_at.data(), r.version.data(), nullptr, nullptr, r.erased_keys.data(),
                                      r.erased_versions.data(), r.clicks.data()}},
                       state);
  }
  expect(counted_total == total, "counts are conserved");
  expect(clicks_total == total, "clicks are conserved");
  std::vector<float> copied(kKeys * 3);
  copy.lookup(Call({0}, keys).request(), AbsentRows::zeros, RowType::float32, copied.data());
  expect(copied == weights, "an imported copy reads the same");
  const int64_t held = copy.stats(0).rows;
  expect(group.erase(call.request(), nullptr) == held, "every row can be erased");
  expect(group.stats(counted).rows == 0, "nothing is left after erasing everything");
  std::puts("stress: ok");
  return 0;
}
