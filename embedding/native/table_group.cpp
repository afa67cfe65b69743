#include "table_group.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "duplicate_finder.h"
#include "sort_by_key.h"

namespace embershard {
namespace {

constexpr size_t kGroup = 8;              // keys a turn of the pipeline takes in
constexpr size_t kLag = 4;                // turns between two stages of a key: time for its cache lines to arrive
constexpr size_t kLookupBlock = 16384;    // keys read under one set of locks
constexpr size_t kPushBlock = 2048;       // keys updated under one set of locks, in whole tablets
constexpr size_t kThreadedKeys = 8192;    // smaller requests stay on the calling thread

const Kernels& choose_kernels(const std::string& name) {
  if (name.empty()) return best_kernels();
  for (const Kernels* const* set = available_kernels(); *set != nullptr; ++set) {
    if (name == (*set)->name) return **set;
  }
  throw std::invalid_argument("expected a kernel set this CPU has, got " + name);
}

// Always inlined: GCC takes a function that only prefetches for one without effect and drops the calls to it.
template <int kWrite>
[[gnu::always_inline]] inline void prefetch_bytes(const char* start, size_t bytes) {
  const char* end = start + bytes;
  for (auto line = reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(start) & ~uintptr_t{63}); line < end; line += 64) {
    __builtin_prefetch(line, kWrite, 3);
  }
}

inline void copy_row(float* out, const char* row, size_t bytes) {
  auto* target = reinterpret_cast<char*>(out);
  size_t offset = 0;
  for (; offset + 64 <= bytes; offset += 64) __builtin_memcpy(target + offset, row + offset, 64);
  if (offset != bytes) std::memcpy(target + offset, row + offset, bytes - offset);
}

// Takes keys in by small groups and works on each in four steps, kLag turns apart: start and find leave prefetches that
// the next step meets. Small groups keep the number of cache lines on their way even. `start` gives false at the end.
template <typename Stage, typename Start, typename Find, typename FindPassed, typename Finish>
inline void run_pipeline(Start start, Find find, FindPassed find_passed, Finish finish) {
  constexpr size_t kRing = std::bit_ceil(3 * kLag + 1);
  Stage ring[kRing];
  size_t turns = SIZE_MAX;  // how many there are, once known
  for (size_t turn = 0; turn == 0 || turns == SIZE_MAX || turn < turns + 3 * kLag; ++turn) {
    if (turns == SIZE_MAX && !start(ring[turn % kRing])) turns = turn;
    if (turn >= kLag && turn - kLag < turns) find(ring[(turn - kLag) % kRing]);
    if (turn >= 2 * kLag && turn - 2 * kLag < turns) find_passed(ring[(turn - 2 * kLag) % kRing]);
    if (turn >= 3 * kLag && turn - 3 * kLag < turns) finish(ring[(turn - 3 * kLag) % kRing]);
  }
}

}  // namespace

// The request's keys by group of tablets that lie side by side; within a group in request order, so table after table.
struct TableGroup::Partition {
  int group_bits = 0;
  std::vector<uint32_t> starts;    // groups + 1
  std::vector<uint32_t> order;     // position in the request
  std::vector<uint64_t> keys;
  std::vector<uint8_t> touched;    // per tablet, whether a key of it is wanted
  std::vector<uint8_t> skipped;    // per entry, whether a policy holds it back; empty if no table has one

  size_t groups() const { return size_t{1} << group_bits; }
};

struct TableGroup::Scratch {
  Partition partition;
  DuplicateFinder duplicates;
  std::vector<float> row;
  std::vector<size_t> offsets;
  std::vector<uint8_t> touched;
};

TableGroup::Scratch& TableGroup::scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Locks of a set of tablets, taken in ascending order; released in the destructor.
class TableGroup::LockedTablets {
 public:
  LockedTablets(Tablet* tablets, bool shared) : tablets_(tablets), shared_(shared) {}
  ~LockedTablets() { release(); }
  LockedTablets(const LockedTablets&) = delete;
  LockedTablets& operator=(const LockedTablets&) = delete;

  void add(size_t tablet) {
    shared_ ? tablets_[tablet].lock.lock_shared() : tablets_[tablet].lock.lock();
    held_.push_back(static_cast<uint32_t>(tablet));
  }
  void release() {
    for (uint32_t tablet : held_) shared_ ? tablets_[tablet].lock.unlock_shared() : tablets_[tablet].lock.unlock();
    held_.clear();
  }
  void reserve(size_t count) { held_.reserve(count); }

 private:
  Tablet* tablets_;
  bool shared_;
  std::vector<uint32_t> held_;
};

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

void TableGroup::partition(const Request& request, const bool* mask, Partition& partition) const {
  const size_t n = request.size();
  int bits = 0;
  while (bits < tablet_bits_ && (n >> (bits + 1)) >= kPushBlock) ++bits;
  partition.group_bits = bits;
  partition.starts.assign((size_t{1} << bits) + 1, 0);
  partition.touched.assign(tablets(), 0);
  partition.order.resize(n);
  partition.keys.resize(n);
  uint32_t* starts = partition.starts.data();
  uint8_t* touched = partition.touched.data();
  const int shift = tablet_bits_ - bits;
  for (size_t i = 0; i < n; ++i) {
    const size_t tablet = tablet_of(request.keys[i]);
    if (mask != nullptr && !mask[tablet]) continue;
    touched[tablet] = 1;
    ++starts[tablet >> shift];
  }
  uint32_t sum = 0;
  for (uint32_t& start : partition.starts) sum += std::exchange(start, sum);
  uint32_t* order = partition.order.data();
  uint64_t* keys = partition.keys.data();
  for (size_t i = 0; i < n; ++i) {
    const uint64_t key = request.keys[i];
    const size_t tablet = tablet_of(key);
    if (mask != nullptr && !mask[tablet]) continue;
    const uint32_t at = starts[tablet >> shift]++;
    order[at] = static_cast<uint32_t>(i);
    keys[at] = key;
  }
  for (size_t group = partition.groups(); group > 0; --group) starts[group] = starts[group - 1];
  starts[0] = 0;
}

// As check_unique, for a partition that holds all keys: runs of one group and table stay in the nearest cache.
void TableGroup::check_unique(const Request& request, const Partition& partition) const {
  DuplicateFinder& duplicates = scratch().duplicates;
  for (size_t group = 0; group < partition.groups(); ++group) {
    size_t begin = partition.starts[group];
    const size_t end = partition.starts[group + 1];
    for (size_t t = 0; begin < end; ++t) {
      const auto* order = partition.order.data();
      const auto stop = static_cast<size_t>(
          std::lower_bound(order + begin, order + end, static_cast<uint32_t>(request.splits[t + 1])) - order);
      const size_t found = duplicates.find(partition.keys.data() + begin, stop - begin);
      if (found != stop - begin) throw DuplicateKey{t, partition.keys[begin + found]};
      begin = stop;
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

// --- lookup -----------------------------------------------------------------------------------------------------------

// Reads a range of the request in three stages that overlap: find the bucket, find the row, copy it.
class TableGroup::Lookup {
 public:
  Lookup(const TableGroup& group, const Request& request, AbsentRows absent, const size_t* offsets, float* out)
      : group_(group), request_(request), absent_(absent), offsets_(offsets), out_(out) {}

  void run(size_t begin, size_t end) {
    next_ = begin;
    end_ = end;
    table_ = static_cast<size_t>(std::upper_bound(request_.splits, request_.splits + request_.table_count + 1,
                                                  static_cast<int64_t>(begin)) - request_.splits) - 1;
    run_pipeline<Stage>([&](Stage& stage) { return start(stage); }, [&](Stage& stage) { find(stage); },
                        [&](Stage& stage) { find_passed(stage); }, [&](Stage& stage) { copy(stage); });
  }

 private:
  struct Stage {
    const Table* table = nullptr;
    size_t table_index = 0;
    size_t first = 0;
    size_t count = 0;
    const Part* parts[kGroup];
    const Bucket* buckets[kGroup];
    const char* rows[kGroup];
  };

  bool start(Stage& stage) {
    stage.count = 0;
    if (next_ == end_) return false;
    while (static_cast<int64_t>(next_) >= request_.splits[table_ + 1]) ++table_;
    const Table& table = group_.table(request_.tables[table_]);
    const size_t last = std::min(end_, static_cast<size_t>(request_.splits[table_ + 1]));
    stage.table = &table;
    stage.table_index = table_;
    stage.first = next_;
    stage.count = std::min(kGroup, last - next_);
    for (size_t i = 0; i < stage.count; ++i) {
      const uint64_t key = request_.keys[next_ + i];
      const Part& part = table.parts[group_.tablet_of(key)];
      stage.parts[i] = &part;
      stage.buckets[i] = nullptr;
      if (!part.is_empty()) {
        stage.buckets[i] = part.home_bucket(index_hash(key));
        __builtin_prefetch(stage.buckets[i], 0, 3);
      }
    }
    next_ += stage.count;
    return true;
  }

  // In the home bucket; a key that may have passed it is left for the next turn.
  void find(Stage& stage) {
    for (size_t i = 0; i < stage.count; ++i) {
      stage.rows[i] = nullptr;
      const Bucket* bucket = std::exchange(stage.buckets[i], nullptr);
      if (bucket == nullptr) continue;
      const uint32_t row = bucket->find(request_.keys[stage.first + i]);
      if (row != kNoRow) {
        stage.rows[i] = stage.table->store.weights(row);
        prefetch_bytes<0>(stage.rows[i], stage.table->store.weight_bytes());
      } else if (bucket->is_passed) {
        stage.buckets[i] = stage.parts[i]->after(bucket);
        __builtin_prefetch(stage.buckets[i], 0, 3);
      }
    }
  }

  void find_passed(Stage& stage) {
    for (size_t i = 0; i < stage.count; ++i) {
      if (stage.buckets[i] == nullptr) continue;
      const uint32_t row = stage.parts[i]->find(request_.keys[stage.first + i], stage.buckets[i]);
      if (row == kNoRow) continue;
      stage.rows[i] = stage.table->store.weights(row);
      prefetch_bytes<0>(stage.rows[i], stage.table->store.weight_bytes());
    }
  }

  void copy(const Stage& stage) {
    const Table& table = *stage.table;
    const size_t dim = table.dim();
    float* out = out_ + offsets_[stage.table_index] +
                 (stage.first - static_cast<size_t>(request_.splits[stage.table_index])) * dim;
    for (size_t i = 0; i < stage.count; ++i, out += dim) {
      if (stage.rows[i] != nullptr) {
        if (table.is_float32()) {
          copy_row(out, stage.rows[i], table.store.weight_bytes());
        } else {
          group_.kernels_.widen(table.spec.row_type, reinterpret_cast<const uint16_t*>(stage.rows[i]), table.dim(), out);
        }
      } else {
        group_.absent_row(table, request_.keys[stage.first + i], absent_, out);
      }
    }
  }

  const TableGroup& group_;
  const Request& request_;
  const AbsentRows absent_;
  const size_t* offsets_;
  float* out_;
  size_t next_ = 0, end_ = 0, table_ = 0;
};

void TableGroup::absent_row(const Table& table, uint64_t key, AbsentRows absent, float* out) const {
  if (absent == AbsentRows::initial && table.spec.admission == AdmissionKind::always) {
    table.draw(key, out);
    return;
  }
  std::memset(out, 0, table.dim() * sizeof(float));
  if (absent == AbsentRows::zeros) return;
  if (const float* given = table.given_vector(key)) {
    std::memcpy(out, given, table.dim() * sizeof(float));
  } else if (table.spec.unknown_table >= 0) {
    const Table& unknown = this->table(table.spec.unknown_table);
    const size_t tablet = tablet_of(key);
    const uint32_t row = unknown.parts[tablet].find(first_key(tablet, tablet_bits_));
    if (row != kNoRow) unknown.read(row, out);
  }
}

void TableGroup::lookup(const Request& request, AbsentRows absent, float* out) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  check_unique(request);
  Scratch& mine = scratch();
  mine.offsets.assign(request.table_count + 1, 0);
  for (size_t t = 0; t < request.table_count; ++t) {
    mine.offsets[t + 1] =
        mine.offsets[t] + static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * table(request.tables[t]).dim();
  }
  const size_t* offsets = mine.offsets.data();
  const size_t n = request.size();
  std::atomic<size_t> cursor{0};
  const size_t block = pool_.threads() == 1 || n < kThreadedKeys ? kLookupBlock : std::max<size_t>(kThreadedKeys / 2, n / (4 * pool_.threads()));
  const std::function<void(size_t)> work = [&](size_t) {
    std::vector<uint8_t>& touched = scratch().touched;
    for (;;) {
      const size_t begin = cursor.fetch_add(block, std::memory_order_relaxed);
      if (begin >= n) return;
      const size_t end = std::min(n, begin + block);
      touched.assign(tablets(), 0);
      for (size_t i = begin; i < end; ++i) touched[tablet_of(request.keys[i])] = 1;
      LockedTablets locks(tablets_.get(), true);
      locks.reserve(tablets());
      for (size_t tablet = 0; tablet < tablets(); ++tablet) {
        if (touched[tablet]) locks.add(tablet);
      }
      Lookup(*this, request, absent, offsets, out).run(begin, end);
    }
  };
  if (n < kThreadedKeys) {
    work(0);
  } else {
    pool_.run(work);
  }
}

// --- apply_gradients --------------------------------------------------------------------------------------------------

// Updates the keys of a range of tablets, whose locks are held alone, in three overlapping stages.
class TableGroup::Push {
 public:
  Push(TableGroup& group, const Request& request, Partition& partition, const float* gradients,
       const uint32_t* occurrences, const UpdateStep& step, const size_t* offsets,
       const std::vector<std::vector<BlockPlan>>& plans, UpdateReport& report)
      : group_(group),
        request_(request),
        partition_(partition),
        gradients_(gradients),
        occurrences_(occurrences),
        step_(step),
        offsets_(offsets),
        plans_(plans),
        report_(report) {
    uint32_t widest = 0;
    for (size_t t = 0; t < request.table_count; ++t) widest = std::max(widest, group.table(request.tables[t]).dim());
    std::vector<float>& row = scratch().row;
    if (row.size() < size_t{3} * widest) row.resize(size_t{3} * widest);
    row_ = row.data();
    for (size_t t = 0; t < request.table_count; ++t) {
      const TableSpec& spec = group.table(request.tables[t]).spec;
      unknown_plans_.push_back(spec.unknown_table < 0 ? std::vector<BlockPlan>{} : group.table(spec.unknown_table).plan(step));
    }
  }

  // Decides about the keys of tables with policies among entries [begin, end), before `run`.
  void plan(size_t begin, size_t end) {
    const uint32_t* order = partition_.order.data();
    for (size_t t = 0; begin < end; ++t) {
      const auto stop = static_cast<size_t>(
          std::lower_bound(order + begin, order + end, static_cast<uint32_t>(request_.splits[t + 1])) - order);
      if (needs_plan(group_.table(request_.tables[t]).spec)) plan_table(t, begin, stop);
      begin = stop;
    }
  }

  // Entries [begin, end) of the partition.
  void run(size_t begin, size_t end) {
    next_ = begin;
    end_ = end;
    table_ = table_end_ = 0;  // the first key enters its table
    run_pipeline<Stage>([&](Stage& stage) { return start(stage); }, [&](Stage& stage) { find(stage); },
                        [&](Stage& stage) { find_passed(stage); }, [&](Stage& stage) { update(stage); });
  }

 private:
  struct Stage {
    size_t first = 0;
    size_t count = 0;
    uint32_t tables[kGroup];  // index within the request
    const float* gradients[kGroup];
    Part* parts[kGroup];
    const Bucket* buckets[kGroup];
    uint32_t rows[kGroup];
  };

  void plan_table(size_t table_index, size_t begin, size_t end) {
    Table& table = group_.table(request_.tables[table_index]);
    if (!table.spec.trainable) {
      std::fill(partition_.skipped.begin() + static_cast<std::ptrdiff_t>(begin),
                partition_.skipped.begin() + static_cast<std::ptrdiff_t>(end), uint8_t{1});
      return;
    }
    std::vector<std::pair<uint64_t, size_t>> sorted;  // tablets lie side by side in key order
    for (size_t entry = begin; entry < end; ++entry) sorted.emplace_back(partition_.keys[entry], entry);
    std::sort(sorted.begin(), sorted.end());
    std::vector<PlannedKey> keys;
    for (size_t i = 0; i < sorted.size();) {
      const size_t tablet = group_.tablet_of(sorted[i].first);
      keys.clear();
      for (; i < sorted.size() && group_.tablet_of(sorted[i].first) == tablet; ++i) {
        const float* row_gradient = gradient(sorted[i].second, table_index);
        if (!table.accepts(plans_[table_index], row_gradient)) continue;
        keys.push_back({sorted[i].first, sorted[i].second, row_gradient, occurrences_[partition_.order[sorted[i].second]], 0, false});
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
    }
  }

  const float* gradient(size_t entry, size_t table_index) const {
    const size_t i = partition_.order[entry];
    const size_t dim = group_.table(request_.tables[table_index]).dim();
    return gradients_ + offsets_[table_index] + (i - static_cast<size_t>(request_.splits[table_index])) * dim;
  }

  bool start(Stage& stage) {
    stage.first = next_;
    stage.count = std::min(kGroup, end_ - next_);
    for (size_t i = 0; i < stage.count; ++i) {
      const size_t position = partition_.order[next_ + i];
      if (position >= table_end_) enter_table(position);
      const uint64_t key = partition_.keys[next_ + i];
      Part& part = current_->parts[group_.tablet_of(key)];
      stage.tables[i] = static_cast<uint32_t>(table_);
      stage.parts[i] = &part;
      stage.gradients[i] = gradients_ + offsets_[table_] + (position - table_start_) * dim_;
      stage.buckets[i] = nullptr;
      if (!part.is_empty()) {
        stage.buckets[i] = part.home_bucket(index_hash(key));
        __builtin_prefetch(stage.buckets[i], 0, 3);
      }
      prefetch_bytes<0>(reinterpret_cast<const char*>(stage.gradients[i]), dim_ * sizeof(float));
    }
    next_ += stage.count;
    return stage.count != 0;
  }

  // The table that `position` of the request belongs to; within a group of tablets tables follow one another.
  void enter_table(size_t position) {
    while (static_cast<int64_t>(position) >= request_.splits[table_ + 1]) ++table_;
    current_ = &group_.table(request_.tables[table_]);
    dim_ = current_->dim();
    table_start_ = static_cast<size_t>(request_.splits[table_]);
    table_end_ = static_cast<size_t>(request_.splits[table_ + 1]);
  }

  // In the home bucket; a key that may have passed it, or will if it is new, is left for the next turn.
  void find(Stage& stage) {
    for (size_t i = 0; i < stage.count; ++i) {
      stage.rows[i] = kNoRow;
      stage.buckets[i] = nullptr;
      const Part& part = *stage.parts[i];
      if (part.is_empty()) continue;
      const uint64_t key = partition_.keys[stage.first + i];
      const Bucket* bucket = part.home_bucket(index_hash(key));  // an insert since the last turn may have moved it
      stage.rows[i] = bucket->find(key);
      if (stage.rows[i] != kNoRow) {
        prefetch_row(stage, i);
      } else if (bucket->is_passed || bucket->taken == kBucketSlots) {
        stage.buckets[i] = bucket;
        __builtin_prefetch(part.after(bucket), 0, 3);
      }
    }
  }

  void find_passed(Stage& stage) {
    for (size_t i = 0; i < stage.count; ++i) {
      if (stage.buckets[i] == nullptr) continue;
      stage.rows[i] = stage.parts[i]->find(partition_.keys[stage.first + i]);
      if (stage.rows[i] != kNoRow) prefetch_row(stage, i);
    }
  }

  [[gnu::always_inline]] void prefetch_row(const Stage& stage, size_t i) const {
    const RowStore& store = group_.table(request_.tables[stage.tables[i]]).store;
    prefetch_bytes<1>(store.weights(stage.rows[i]), store.weight_bytes());
    prefetch_bytes<1>(reinterpret_cast<const char*>(store.counters(stage.rows[i])), store.state_bytes());
  }

  // The stage's keys, a run of one table at a time.
  void update(Stage& stage) {
    for (size_t begin = 0; begin < stage.count;) {
      size_t end = begin + 1;
      while (end < stage.count && stage.tables[end] == stage.tables[begin]) ++end;
      update_run(stage, begin, end);
      begin = end;
    }
  }

  void update_run(Stage& stage, size_t begin, size_t end) {
    const size_t table_index = stage.tables[begin];
    Table& table = group_.table(request_.tables[table_index]);
    TableUpdate& report = report_.tables[table_index];
    const std::vector<BlockPlan>& plan = plans_[table_index];
    RowWrite writes[kGroup];
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      const size_t entry = stage.first + i;
      if (!partition_.skipped.empty() && partition_.skipped[entry]) continue;
      const uint64_t key = partition_.keys[entry];
      if (stage.rows[i] == kNoRow) {
        if (!table.accepts(plan, stage.gradients[i])) {
          refuse(table_index, key);
          continue;
        }
        stage.rows[i] = table.create(*stage.parts[i], key, row_);
        ++report.created;
      }
      const RowCounters now = {occurrences_[partition_.order[entry]], step_.now,
                               group_.tablets_[group_.tablet_of(key)].version};
      writes[count++] = {key, stage.rows[i], stage.gradients[i], now};
    }
    bool applied[kGroup];
    table.update(plan, writes, count, row_, applied);
    for (size_t i = 0; i < count; ++i) {
      if (applied[i]) {
        ++report.applied;
      } else {
        refuse(table_index, writes[i].key);
      }
    }
  }

  void refuse(size_t table_index, uint64_t key) {
    ++report_.tables[table_index].non_finite;
    report_.refused_keys[table_index].push_back(key);
  }

  TableGroup& group_;
  const Request& request_;
  Partition& partition_;
  const float* gradients_;
  const uint32_t* occurrences_;
  const UpdateStep& step_;
  const size_t* offsets_;
  const std::vector<std::vector<BlockPlan>>& plans_;
  UpdateReport& report_;
  std::vector<std::vector<BlockPlan>> unknown_plans_;
  float* row_;
  size_t next_ = 0, end_ = 0;
  Table* current_ = nullptr;  // of the key that was started last
  size_t table_ = 0, table_start_ = 0, table_end_ = 0, dim_ = 0;
};

UpdateReport TableGroup::apply_gradients(const Request& request, const float* gradients, const uint32_t* occurrences,
                                         const UpdateStep& step, const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  Scratch& mine = scratch();
  Partition& parted = mine.partition;
  partition(request, mask, parted);
  if (mask == nullptr) {
    check_unique(request, parted);
  } else {
    check_unique(request);
  }
  std::vector<std::vector<BlockPlan>> plans;
  mine.offsets.assign(request.table_count + 1, 0);
  for (size_t t = 0; t < request.table_count; ++t) {
    const Table& used = table(request.tables[t]);
    plans.push_back(used.plan(step));
    mine.offsets[t + 1] = mine.offsets[t] + static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * used.dim();
  }
  const size_t* offsets = mine.offsets.data();
  const bool any_plan = std::any_of(request.tables, request.tables + request.table_count,
                                    [&](int32_t id) { return needs_plan(table(id).spec); });
  parted.skipped.assign(any_plan ? request.size() : 0, 0);
  UpdateReport total;
  total.tables.resize(request.table_count);
  total.refused_keys.resize(request.table_count);
  std::mutex total_mutex;
  std::atomic<size_t> cursor{0};
  const size_t n = request.size();
  const size_t group_tablets = tablets() >> parted.group_bits;
  const std::function<void(size_t)> work = [&](size_t) {
    UpdateReport report;
    report.tables.resize(request.table_count);
    report.refused_keys.resize(request.table_count);
    Push push(*this, request, parted, gradients, occurrences, step, offsets, plans, report);
    LockedTablets locks(tablets_.get(), false);
    for (;;) {
      const size_t group = cursor.fetch_add(1, std::memory_order_relaxed);
      if (group >= parted.groups()) break;
      for (size_t tablet = group * group_tablets; tablet < (group + 1) * group_tablets; ++tablet) {
        if (!parted.touched[tablet]) continue;
        locks.add(tablet);
        ++tablets_[tablet].push_count;
      }
      if (!parted.skipped.empty()) push.plan(parted.starts[group], parted.starts[group + 1]);
      push.run(parted.starts[group], parted.starts[group + 1]);
      locks.release();
    }
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
  };
  if (n < kThreadedKeys) {
    work(0);
  } else {
    pool_.run(work);
  }
  for (auto& keys : total.refused_keys) std::sort(keys.begin(), keys.end());
  return total;
}

// --- assign, erase ----------------------------------------------------------------------------------------------------

int64_t TableGroup::assign(const Request& request, const float* weights, const float* state, bool if_absent, uint32_t now,
                           const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  check_unique(request);
  int64_t done = 0;
  size_t weight_offset = 0, state_offset = 0;
  std::vector<float> row_scratch;
  for (size_t t = 0; t < request.table_count; ++t) {
    Table& used = table(request.tables[t]);
    row_scratch.resize(used.dim());
    for (int64_t i = request.splits[t]; i < request.splits[t + 1]; ++i) {
      const float* row_weights = weights + weight_offset;
      const float* row_state = state == nullptr ? nullptr : state + state_offset;
      weight_offset += used.dim();
      state_offset += used.spec.state_width;
      const uint64_t key = request.keys[i];
      const size_t tablet = tablet_of(key);
      if (mask != nullptr && !mask[tablet]) continue;
      LockedTablets lock(tablets_.get(), false);
      lock.add(tablet);
      Part& part = used.parts[tablet];
      uint32_t row = part.find(key);
      if (row != kNoRow && if_absent) continue;
      if (row == kNoRow) row = used.create(part, key, row_scratch.data());
      used.store_initial(row, row_weights);
      RowCounters* counters = used.store.counters(row);
      if (row_state != nullptr) std::memcpy(RowStore::state(counters), row_state, used.spec.state_width * sizeof(float));
      counters->touched_at = now;
      counters->version = tablets_[tablet].version;
      ++done;
    }
  }
  return done;
}

int64_t TableGroup::erase(const Request& request, const bool* mask) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  check_unique(request);
  int64_t done = 0;
  std::vector<std::pair<uint64_t, size_t>> sorted;  // (key, table), so tablet after tablet
  for (size_t t = 0; t < request.table_count; ++t) {
    for (int64_t i = request.splits[t]; i < request.splits[t + 1]; ++i) {
      if (mask == nullptr || mask[tablet_of(request.keys[i])]) sorted.emplace_back(request.keys[i], t);
    }
  }
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size();) {
    const size_t tablet = tablet_of(sorted[i].first);
    LockedTablets lock(tablets_.get(), false);
    lock.add(tablet);
    for (; i < sorted.size() && tablet_of(sorted[i].first) == tablet; ++i) {
      Table& used = table(request.tables[sorted[i].second]);
      done += remove_row(used, used.parts[tablet], sorted[i].first, tablets_[tablet].version);
    }
    for (size_t t = 0; t < request.table_count; ++t) trim_erased_of(table(request.tables[t]).parts[tablet], tablet);
  }
  return done;
}

std::vector<std::vector<uint64_t>> TableGroup::expire(const std::vector<int32_t>& ids, uint32_t now, uint64_t max_rows,
                                                      bool removes, ExpiryCursor& cursor) {
  std::shared_lock structure(structure_);
  require(ids.data(), ids.size());
  std::vector<std::vector<uint64_t>> expired(ids.size());
  std::vector<float> row_scratch;
  for (; cursor.table < ids.size(); cursor = {cursor.table + 1, 0, 0}) {
    Table& used = table(ids[cursor.table]);
    if (!evicts_by_age_or_value(used.spec)) continue;
    row_scratch.resize(used.dim());
    for (; cursor.tablet < tablets(); ++cursor.tablet, cursor.hash = 0) {
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

// --- whole tablets ----------------------------------------------------------------------------------------------------

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
  stats.counter_bytes += stats.rows * static_cast<int64_t>(sizeof(RowCounters));
  stats.state_bytes = stats.rows * (used.store.state_bytes() - static_cast<int64_t>(sizeof(RowCounters)));
  stats.free_bytes = static_cast<int64_t>(used.arena.free_bytes()) +
                     (static_cast<int64_t>(used.store.touched_rows()) - stats.rows) *
                         (used.store.weight_bytes() + used.store.state_bytes());
  return stats;
}

}  // namespace embershard
