// What a table is, as the core sees it: plain numbers, checked and filled in by the Python side.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace embershard {

enum class OptimizerKind : int { sgd, momentum, adagrad, rowwise_adagrad, adam, rowwise_adam, rmsprop, ftrl };
enum class InitializerKind : int { constant, uniform, normal, truncated_normal };
enum class DecayMode : int { none, l2, decoupled };
enum class RowType : int { float32, float16, bfloat16 };
enum class AdmissionKind : int { always, min_count, probability };
enum class CapacityOrder : int { refuse, lru, lfu };

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

// One column block. Floats are already rounded from the configuration's doubles, as the NumPy twin rounds them.
struct BlockSpec {
  uint32_t dim = 1;
  uint32_t column = 0;        // first weight column in the row
  uint32_t state_column = 0;  // first state column in the row
  uint32_t state_width = 0;

  InitializerKind initializer = InitializerKind::constant;
  float low = 0, span = 0, below_high = 0;  // uniform; constant uses low
  double mean = 0, std = 0;                 // normal, truncated normal

  OptimizerKind optimizer = OptimizerKind::sgd;
  float lr = 0;
  DecayMode decay_mode = DecayMode::none;
  float weight_decay = 0;
  bool catch_up = false;
  float clip_value = kNoLimit, clip_norm = kNoLimit, max_norm = kNoLimit;
  bool sum_gradients = false;
  float eps = 0;
  float initial_accumulator = 0;
  float beta1 = 0, one_minus_beta1 = 0;  // momentum uses beta1; rmsprop uses beta2 for alpha
  float beta2 = 0, one_minus_beta2 = 0;
  double beta1_exact = 0, beta2_exact = 0;
  bool nesterov = false, corrects_by_row = true;
  float l1 = 0, l2 = 0, beta = 0;  // ftrl
};

struct TableSpec {
  RowType row_type = RowType::float32;
  uint64_t stream_base = 0;  // see initializers.py
  uint32_t dim = 0;
  uint32_t state_width = 0;
  std::vector<BlockSpec> blocks;

  AdmissionKind admission = AdmissionKind::always;
  uint32_t admission_count = 1;
  uint64_t counter_limit = 0;  // keys counted at most, over all tablets
  double admission_probability = 1;
  uint64_t row_limit = 0;  // rows at most, over all tablets; 0: no limit
  CapacityOrder capacity_order = CapacityOrder::refuse;
  uint32_t ttl_seconds = 0;  // 0: none; so for the others
  float min_l2 = 0;
  double min_score = 0, show_weight = 0, click_weight = 0;
  uint32_t half_life_seconds = 1;
  bool trainable = true;
  int32_t unknown_table = -1;        // id of the table of the unknown rows, or -1
  std::vector<uint64_t> init_keys;   // keys whose rows start from a given vector
  std::vector<float> init_vectors;   // dim floats each

  bool keeps_clicks() const { return click_weight > 0; }
};

// What one push says beside keys and gradients.
struct UpdateStep {
  uint32_t examples = 1;
  int64_t step = 1;
  uint32_t now = 0;
  float lr_scale = 1;
  uint64_t unit = 0;
  uint64_t batch = 0;
};

}  // namespace embershard
