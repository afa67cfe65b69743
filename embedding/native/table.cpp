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
      layout(spec.dim, bytes_per_weight(spec.row_type), spec.state_width),
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
}

Table::~Table() = default;

uint64_t Table::stream(uint64_t key) const { return mix64(key ^ spec.stream_base); }

void Table::draw(uint64_t key, float* weights) const {
  const uint64_t key_stream = stream(key);
  for (const BlockSpec& block : spec.blocks) kernels_.draw_block(block, key_stream, weights + block.column);
}

void Table::read(const Part& part, uint32_t row, float* weights) const {
  const char* stored = part.weights(layout, row);
  if (is_float32()) {
    std::memcpy(weights, stored, layout.weight_bytes);
  } else {
    kernels_.widen(spec.row_type, reinterpret_cast<const uint16_t*>(stored), spec.dim, weights);
  }
}

uint32_t Table::create(Part& part, uint64_t key, float* scratch) {
  draw(key, scratch);
  const uint32_t row = part.insert(key, layout, arena);
  *part.counters(layout, row) = RowCounters{0, 0, 0};
  store_initial(part, row, scratch);
  if (PartExtras* extras = part.extras_or_null()) extras->erased.erase(key);
  return row;
}

void Table::store_initial(Part& part, uint32_t row, const float* weights) const {
  char* stored = part.weights(layout, row);
  float* state = Part::state(part.counters(layout, row));
  if (is_float32()) {
    std::memcpy(stored, weights, layout.weight_bytes);
  } else {
    kernels_.narrow_nearest(spec.row_type, weights, spec.dim, reinterpret_cast<uint16_t*>(stored));
  }
  start_state(weights, state);
}

void Table::start_state(const float* weights, float* state) const {
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

bool Table::accepts(const std::vector<BlockPlan>& plan, const float* gradient) const {
  for (const BlockPlan& block : plan) {
    if (!kernels_.is_within_limit(gradient + block.spec->column, block.spec->dim, block.gradient_scale)) return false;
  }
  return true;
}

void Table::update(const std::vector<BlockPlan>& plan, Part& part, uint64_t key, uint32_t row, const float* gradient,
                   uint32_t occurrences, float* scratch) const {
  RowCounters* counters = part.counters(layout, row);
  counters->count = saturating_add(counters->count, occurrences);
  float* state = Part::state(counters);
  char* stored = part.weights(layout, row);
  float* weights = reinterpret_cast<float*>(stored);
  if (!is_float32()) {
    weights = scratch + spec.dim;
    kernels_.widen(spec.row_type, reinterpret_cast<const uint16_t*>(stored), spec.dim, weights);
  }
  for (const BlockPlan& block : plan) {
    kernels_.update_block(block, weights + block.spec->column, gradient + block.spec->column,
                          state + block.spec->state_column, scratch);
  }
  if (!is_float32()) {
    const uint64_t rounding = mix64(stream(key) + (uint64_t{counters->count} << 32));
    kernels_.narrow_stochastic(spec.row_type, weights, spec.dim, rounding, reinterpret_cast<uint16_t*>(stored));
  }
}

}  // namespace embershard
