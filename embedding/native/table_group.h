// All tables of one process, cut into tablets: the batched verbs.
//
// Thread safety: any mix of verbs from any threads. A verb that reads or changes rows holds the locks of the tablets it is
// at, shared or alone; locks are taken in ascending tablet order. Adding or dropping a table waits for running verbs.
// Invariants: 1. lookup writes nothing but its output. 2. a verb that throws DuplicateKey or std::invalid_argument has
// changed nothing. 3. no result depends on the order of keys, on the number of threads or on other tablets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "policies.h"
#include "table.h"
#include "tablet.h"
#include "thread_pool.h"

namespace embershard {

// Keys of several tables, concatenated: those of tables[t] are keys[splits[t] .. splits[t + 1]).
struct Request {
  const int32_t* tables;
  size_t table_count;
  const uint64_t* keys;
  const int64_t* splits;

  size_t size() const { return table_count == 0 ? 0 : static_cast<size_t>(splits[table_count]); }
};

// One row of values a key, table after table. Rows of a 16-bit type are widened where they are used.
struct Gradients {
  RowType type;
  const void* values;

  size_t value_bytes() const { return type == RowType::float32 ? sizeof(float) : sizeof(uint16_t); }
};

struct DuplicateKey {
  size_t table;  // position in the request
  uint64_t key;
};

enum class AbsentRows : int { initial, zeros, unseen };

struct TableUpdate {
  int64_t applied = 0, created = 0, not_admitted = 0, non_finite = 0, over_limit = 0, evicted = 0;
};

struct UpdateReport {
  std::vector<TableUpdate> tables;                   // by position in the request
  std::vector<std::vector<uint64_t>> refused_keys;   // ascending
};

// Leaves numbers unset on resize: a snapshot writes each of its bytes once.
template <class T>
struct UnsetAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UnsetAllocator<U>;
  };
  template <class U>
  void construct(U* p) noexcept {
    ::new (static_cast<void*>(p)) U;
  }
  template <class U, class... Args>
  void construct(U* p, Args&&... args) {
    ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
  }
};
template <class T>
using UnsetVector = std::vector<T, UnsetAllocator<T>>;

// Rows of one table in one tablet, ascending by key; see TableRows in table_group.py.
struct TableRows {
  UnsetVector<uint64_t> keys;
  UnsetVector<uint8_t> weights;
  UnsetVector<float> state;
  UnsetVector<uint32_t> count, touched_at, version, clicks;  // clicks: empty where the table keeps none
  std::vector<uint64_t> admission_keys, erased_keys;
  std::vector<uint32_t> admission_counts, erased_versions;
};

// The same, borrowed, for import.
struct TableRowsView {
  int32_t table;
  size_t rows, admissions, erasures;
  const uint64_t* keys;
  const char* weights;
  const float* state;
  const uint32_t *count, *touched_at, *version;
  const uint64_t* admission_keys;
  const uint32_t* admission_counts;
  const uint64_t* erased_keys;
  const uint32_t* erased_versions;
  const uint32_t* clicks;  // or nullptr: zeros
};

struct TabletState {
  uint32_t version;
  uint64_t push_count;
  uint32_t erased_since;  // keys erased at this version or before may be forgotten
  bool is_whole;
};

// Where the next scan for expired rows begins: position in the list of tables, tablet, `index_hash` of the key.
struct ExpiryCursor {
  size_t table = 0;
  size_t tablet = 0;
  uint64_t hash = 0;
};

struct PartStats {
  std::vector<int64_t> rows_by_tablet;
  int64_t rows = 0, slots = 0;
  int64_t weight_bytes = 0, state_bytes = 0, counter_bytes = 0, index_bytes = 0, free_bytes = 0;
};

// What assign gives its keys.
struct GivenRows {
  const float* weights;  // one row a key, table after table
  const float* state;    // likewise, or nullptr
  bool if_absent;
  uint32_t now;
};

using KeyEntry = std::pair<uint64_t, size_t>;  // a key and the number of its entry in a partition

class TableGroup {
 public:
  class PreparedKeys;

  // `kernels`: name of the kernel set, or empty for the best one.
  TableGroup(int tablet_bits, size_t threads, const std::string& kernels);
  ~TableGroup();
  TableGroup(const TableGroup&) = delete;
  TableGroup& operator=(const TableGroup&) = delete;

  size_t tablets() const { return size_t{1} << tablet_bits_; }
  size_t weight_bytes(int32_t table) const { return this->table(table).store.weight_bytes(); }

  int32_t add_table(TableSpec spec);
  void drop_table(int32_t table);

  // Rows of all keys, table after table, as `type`. A key may stand more than once.
  void lookup(const Request& request, AbsentRows absent, RowType type, void* out);
  // `mask` (tablets() bools) or nullptr for all; `clicks`, one a key, or nullptr for none; `prepared`, if
  // there is one, was taken for this request, and there is no mask.
  UpdateReport apply_gradients(const Request& request, const Gradients& gradients, const uint32_t* occurrences,
                               const UpdateStep& step, const bool* mask, const uint32_t* clicks = nullptr,
                               PreparedKeys* prepared = nullptr);
  // The partition of a push to all tablets, made before its gradients are there. Any thread. Throws DuplicateKey.
  PreparedKeys prepare(const Request& request, const uint32_t* occurrences);
  // Rows set. New keys for which a full part finds no room are left out, the largest first. Throws std::invalid_argument for
  // weights that are not finite.
  int64_t assign(const Request& request, const GivenRows& given, const bool* mask);
  int64_t erase(const Request& request, const bool* mask);
  // Per table, ascending keys that its policies let go at `now`, among the next `max_rows` rows from the cursor on, of the
  // tablets in the mask (null: all); they are erased if `removes`. The cursor moves on, back to the start after the last.
  std::vector<std::vector<uint64_t>> expire(const std::vector<int32_t>& tables, uint32_t now, uint64_t max_rows, bool removes,
                                            const bool* mask, ExpiryCursor& cursor);

  // All tables' rows of one tablet at one moment, in the order of `tables`.
  TabletState snapshot(size_t tablet, const std::vector<int32_t>& tables, bool whole, uint32_t since,
                       std::vector<TableRows>& out);
  // Replaces the tablet (`state.is_whole`), or merges rows and erasures into it. Keys of a view ascend.
  void import_tablet(size_t tablet, const std::vector<TableRowsView>& tables, TabletState state);
  void drop_tablet(size_t tablet);
  uint32_t cut(size_t tablet);
  uint32_t version(size_t tablet);
  void push_counts(uint64_t* out);
  PartStats stats(int32_t table);

 private:
  static constexpr size_t kMostSpare = 8;
  static constexpr size_t kThreadedKeys = 8192;  // smaller requests stay on the calling thread

  struct Partition;
  struct Scratch;
  class Assign;
  class BlockCutter;
  class GroupShare;
  class Push;
  class UniqueCheck;

  static Scratch& scratch();
  size_t tablet_of(uint64_t key) const { return embershard::tablet_of(key, tablet_bits_); }
  Table& table(int32_t id) const { return *tables_[static_cast<size_t>(id)]; }
  // Throws std::invalid_argument if one of the tables has been dropped.
  void require(const int32_t* tables, size_t count) const;
  void partition(const Request& request, const uint32_t* occurrences, const bool* mask, Partition& partition) const;
  void count_keys(const Request& request, uint32_t* counts) const;
  void check_unique(const Request& request) const;
  // Memory of an earlier one for a partition that is handed from thread to thread, so that it allocates nothing in steady state.
  Partition spare_partition();
  void keep_spare(Partition&& partition);
  // Erases the keys of one group of tablets, whose locks are held alone.
  int64_t erase_group(const Request& request, const Partition& parted, size_t group);
  template <typename Work>
  void change_groups(const Request& request, const Partition& partition, const bool* mask, Work work);
  // visit(tablet, keys) for the keys of one table among entries [begin, end): by tablet, with their entries, ascending.
  template <typename Visit>
  void for_each_sorted(const Partition& partition, size_t begin, size_t end, Visit visit) const;
  // dim of the widest table.
  uint32_t widest(const Request& request) const;
  // Where each table's values begin among a request's: Σ of its tables' keys · dim. Valid until the thread's next verb.
  const size_t* value_offsets(const Request& request) const;
  void import_rows(Table& table, size_t tablet, const TableRowsView& view, TabletState state);
  void clear_tablet(size_t tablet);
  void lookup_range(const Request& request, AbsentRows absent, const size_t* offsets, size_t begin, size_t end, RowType type,
                    void* out);
  void widen_all(const Gradients& gradients, std::vector<float>& out) const;
  void absent_row(const Table& table, uint64_t key, AbsentRows absent, float* out) const;
  // Runs the work of so many keys on the table threads, or on the calling thread alone.
  void share_out(size_t keys, const std::function<void(size_t)>& work) { keys < kThreadedKeys ? work(0) : pool_.run(work); }
  void trim_erased_of(Part& part, size_t tablet) {
    if (trim_erased(part)) tablets_[tablet].erased_since = tablets_[tablet].version;
  }

  const int tablet_bits_;
  const Kernels& kernels_;
  std::unique_ptr<Tablet[]> tablets_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::shared_mutex structure_;  // alone: add or drop tables; shared: every verb
  std::mutex spare_mutex_;
  std::vector<Partition> spare_;
  ThreadPool pool_;
};

}  // namespace embershard
