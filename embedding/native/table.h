// One table: its specification, its parts (one a tablet) and what every verb needs of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "kernels.h"
#include "part.h"
#include "table_spec.h"

namespace embershard {

constexpr size_t kMostWrites = 16;

// Rows of one table and what a push brings them.
struct RowWrites {
  size_t count = 0;
  RowUpdate updates[kMostWrites];
  uint64_t keys[kMostWrites];
  RowCounters* counters[kMostWrites];
  RowCounters now[kMostWrites];
  bool applied[kMostWrites];  // set by Table::update: false where the gradient is refused

  void add(const RowStore& store, uint64_t key, uint32_t row, const float* gradient, RowCounters brought) {
    RowCounters* stored = store.counters(row);
    updates[count] = {reinterpret_cast<float*>(store.weights(row)), gradient, RowStore::state(stored)};
    keys[count] = key;
    counters[count] = stored;
    now[count++] = brought;
  }
};

class Table {
 public:
  Table(TableSpec spec, size_t tablets, const Kernels& kernels);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableSpec spec;
  RowStore store;
  Arena arena;
  const std::unique_ptr<Part[]> parts;

  uint32_t dim() const { return spec.dim; }
  bool is_float32() const { return spec.row_type == RowType::float32; }

  uint64_t stream(uint64_t key) const;
  // Initial weights of `key`, before rounding to the row type: its given vector, or the initializers' draw.
  void draw(uint64_t key, float* weights) const;
  // The vector given for `key`, or nullptr.
  const float* given_vector(uint64_t key) const {
    const uint32_t* at = given_.find(key);
    return at == nullptr ? nullptr : spec.init_vectors.data() + size_t{*at} * spec.dim;
  }
  float sum_of_squares(const float* weights) const { return kernels_.sum_of_squares(weights, spec.dim); }
  // The weights as float32.
  void read(uint32_t row, float* weights) const;

  // A new row with initial weights and state, count 0. `scratch` holds dim() floats.
  uint32_t create(Part& part, uint64_t key, float* scratch);
  // A new row, count 0; its weights and state are not set.
  uint32_t insert(Part& part, uint64_t key);
  // Sets weights (rounded to nearest) and the state that starts with them.
  void store_initial(uint32_t row, const float* weights) const;

  std::vector<BlockPlan> plan(const UpdateStep& step) const;
  // Whether all blocks' gradients are within the limit.
  bool accepts(const std::vector<BlockPlan>& plan, const float* gradient) const {
    return kernels_.accepts(plan.data(), plan.size(), gradient);
  }
  // One optimizer step of every block and the counters of each row whose gradient is not refused; the others are not
  // changed. `scratch` holds 2 · dim() floats. `ahead` is fetched meanwhile.
  void update(const std::vector<BlockPlan>& plan, RowWrites& writes, float* scratch, const Ahead& ahead = {}) const;
  void start_state(const float* weights, float* state) const;

 private:
  bool update_narrow(const std::vector<BlockPlan>& plan, uint64_t key, const RowUpdate& update, uint32_t count,
                     float* scratch) const;

  const Kernels& kernels_;
  std::vector<std::vector<float>> corrections_;  // per block, by step
  KeyMap given_;                                 // key → number of its given vector
};

inline uint32_t saturating_add(uint32_t a, uint32_t b) {
  const uint32_t sum = a + b;
  return sum < a ? UINT32_MAX : sum;
}

}  // namespace embershard
