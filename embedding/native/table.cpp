#include "table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../../feature_map/native/mix64.h"

namespace embershard {
namespace {

uint32_t bytes_per_weight(RowType type) { return type == RowType::float32 ? 4 : 2; }

bool has_correction(const BlockSpec& block) {
  return block.optimizer == OptimizerKind::adam || block.optimizer == OptimizerKind::rowwise_adam;
}

}  // namespace

Table::Table(TableSpec table_spec, size_t tablets, const Kernels& kernels)
    : spec(std::move(table_spec)),
      store(spec.dim, bytes_per_weight(spec.row_type), spec.state_width, spec.keeps_clicks()),
      parts(std::make_unique<Part[]>(tablets)),
      kernels_(kernels) {
  for (const BlockSpec& block : spec.blocks) {
    std::vector<float> corrections;
    if (has_correction(block) && block.corrects_by_row) {
      corrections.resize(kCachedCorrections + 1);
      for (int64_t t = 1; t <= kCachedCorrections; ++t) {
        corrections[static_cast<size_t>(t)] = bias_correction(block.beta1_exact, block.beta2_exact, t);
      }
    }
    corrections_.push_back(std::move(corrections));
  }
  for (size_t i = 0; i < spec.init_keys.size(); ++i) given_.set(spec.init_keys[i], static_cast<uint32_t>(i));
}

Table::~Table() = default;

uint64_t Table::stream(uint64_t key) const { return mix64(key ^ spec.stream_base); }

void Table::draw(uint64_t key, float* weights) const {
  if (const float* given = given_vector(key)) {
    std::memcpy(weights, given, spec.dim * sizeof(float));
    return;
  }
  const uint64_t key_stream = stream(key);
  for (const BlockSpec& block : spec.blocks) kernels_.draw_block(block, key_stream, weights + block.column);
}

void Table::read(uint32_t row, float* weights) const {
  const char* stored = store.weights(row);
  if (is_float32()) {
    std::memcpy(weights, stored, store.weight_bytes());
  } else {
    kernels_.widen(spec.row_type, reinterpret_cast<const uint16_t*>(stored), spec.dim, weights);
  }
}

uint32_t Table::insert(Part& part, uint64_t key) {
  const uint32_t row = part.insert(key, store, arena);
  RowCounters* counters = store.counters(row);
  *counters = RowCounters{0, 0, 0};
  if (spec.keeps_clicks()) *store.clicks(counters) = 0;
  if (PartExtras* extras = part.extras_or_null()) extras->erased.erase(key);
  return row;
}

uint32_t Table::create(Part& part, uint64_t key, float* scratch) {
  const uint32_t row = insert(part, key);
  if (is_float32()) {
    auto* weights = reinterpret_cast<float*>(store.weights(row));
    draw(key, weights);
    start_state(weights, RowStore::state(store.counters(row)));
  } else {
    draw(key, scratch);
    store_initial(row, scratch);
  }
  return row;
}

void Table::store_initial(uint32_t row, const float* weights) const {
  char* stored = store.weights(row);
  if (is_float32()) {
    std::memcpy(stored, weights, store.weight_bytes());
  } else {
    kernels_.narrow_nearest(spec.row_type, weights, spec.dim, reinterpret_cast<uint16_t*>(stored));
  }
  start_state(weights, RowStore::state(store.counters(row)));
}

void Table::start_state(const float* weights, float* state) const {
  if (spec.state_width == 0) return;
  for (const BlockSpec& block : spec.blocks) {
    kernels_.start_state(block, weights + block.column, state + block.state_column);
  }
}

std::vector<BlockPlan> Table::plan(const UpdateStep& step) const {
  std::vector<BlockPlan> plans;
  for (size_t index = 0; index < spec.blocks.size(); ++index) {
    const BlockSpec& block = spec.blocks[index];
    const bool is_ftrl = block.optimizer == OptimizerKind::ftrl;
    BlockPlan plan{};
    plan.spec = &block;
    plan.corrections = corrections_[index].data();
    if (has_correction(block) && !block.corrects_by_row) {
      plan.request_correction = bias_correction(block.beta1_exact, block.beta2_exact, step.step);
    }
    const float scaled_lr = block.lr * step.lr_scale;
    plan.lr = is_ftrl ? block.lr : scaled_lr;
    plan.gradient_scale = block.sum_gradients ? static_cast<float>(step.examples) : 1.0F;
    plan.lr_scale = step.lr_scale;
    plan.decay_factor = std::max(1.0F - scaled_lr * block.weight_decay, 0.0F);
    plan.step = static_cast<float>(step.step);
    plan.plain = plan.gradient_scale == 1.0F && (!is_ftrl || step.lr_scale == 1.0F) && block.clip_value == kNoLimit &&
                 block.clip_norm == kNoLimit && block.max_norm == kNoLimit && block.decay_mode == DecayMode::none;
    plans.push_back(plan);
  }
  return plans;
}

void Table::update(const std::vector<BlockPlan>& plan, RowWrites& writes, float* scratch, const Ahead& ahead) const {
  if (is_float32()) {
    kernels_.update_rows(plan.data(), plan.size(), writes.count, writes.updates, ahead, writes.applied, scratch);
  } else {
    ahead.fetch_from(0);
    for (size_t i = 0; i < writes.count; ++i) {
      const uint32_t times = saturating_add(writes.counters[i]->count, writes.now[i].count);
      writes.applied[i] = update_narrow(plan, writes.keys[i], writes.updates[i], times, scratch);
    }
  }
  for (size_t i = 0; i < writes.count; ++i) {
    if (!writes.applied[i]) continue;
    const RowCounters& now = writes.now[i];
    *writes.counters[i] = RowCounters{saturating_add(writes.counters[i]->count, now.count), now.touched_at, now.version};
  }
}

bool Table::update_narrow(const std::vector<BlockPlan>& plan, uint64_t key, const RowUpdate& update, uint32_t count,
                          float* scratch) const {
  auto* stored = reinterpret_cast<uint16_t*>(update.weights);
  float* weights = scratch + spec.dim;
  kernels_.widen(spec.row_type, stored, spec.dim, weights);
  if (!kernels_.update_row(plan.data(), plan.size(), weights, update.gradient, update.state, scratch)) return false;
  const uint64_t rounding = mix64(stream(key) + (uint64_t{count} << 32));
  kernels_.narrow_stochastic(spec.row_type, weights, spec.dim, rounding, stored);
  return true;
}

}  // namespace embershard
