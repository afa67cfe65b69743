// Bodies of one kernel set; included once per instruction set, inside a namespace that kernels.cpp opens. No include guard.
//
// Plain loops that the compiler vectorises: element-wise float operations in a fixed order, so vector width changes no bit.
// Reductions go through 16 lanes that fold by halves, as `sum_of_squares` in optimizers.py.

inline uint64_t mixed(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  return h;
}

inline float quotient(float numerator, float denominator) {
  const float q = numerator / denominator;
  return denominator > 0.0F ? q : 0.0F;
}

float sum_of_squares(const float* __restrict x, uint32_t n) {
  float lanes[16] = {};
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (uint32_t lane = 0; lane < 16; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (uint32_t lane = 0; i + lane < n; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (uint32_t lane = 0; lane < 8; ++lane) lanes[lane] += lanes[lane + 8];
  for (uint32_t lane = 0; lane < 4; ++lane) lanes[lane] += lanes[lane + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

bool are_finite(const float* __restrict x, size_t n) {
  constexpr uint32_t kExponent = 0x7f800000U;  // all of its bits stand in nan and infinity alone
  uint32_t others = 0;
  for (size_t i = 0; i < n; ++i) others |= static_cast<uint32_t>((__builtin_bit_cast(uint32_t, x[i]) & kExponent) == kExponent);
  return others == 0;
}

// --- initial weights --------------------------------------------------------------------------------------------------

inline double natural_log(double x) {
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double mantissa = __builtin_bit_cast(double, (bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    exponent += 1;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double x2 = s * s;
  double series = 1.0 / 19.0;
  for (int k = 17; k >= 1; k -= 2) series = series * x2 + 1.0 / k;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * series;
}

// Algorithm AS 241, PPND7; see initializers.py.
inline double normal_quantile(double p) {
  const double q = p - 0.5;
  const double magnitude = q < 0.0 ? -q : q;
  if (magnitude <= 0.425) {
    const double r = 0.180625 - q * q;
    const double top = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double bottom = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return q * top / bottom;
  }
  const double smaller = p < 1.0 - p ? p : 1.0 - p;
  double r = __builtin_sqrt(-natural_log(smaller));
  double value;
  if (r <= 5.0) {
    r = r - 1.6;
    const double top = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
    const double bottom = (0.12021132975 * r + 0.73700164250) * r + 1.0;
    value = top / bottom;
  } else {
    r = r - 5.0;
    const double top = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150;
    const double bottom = (0.012258202635 * r + 0.24197894225) * r + 1.0;
    value = top / bottom;
  }
  return q < 0.0 ? -value : value;
}

inline double open_unit(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

void draw_block(const BlockSpec& block, uint64_t stream, float* __restrict weights) {
  const uint32_t dim = block.dim;
  const uint64_t first = stream + (static_cast<uint64_t>(block.column) + 1) * kGolden;
  switch (block.initializer) {
    case InitializerKind::constant:
      for (uint32_t c = 0; c < dim; ++c) weights[c] = block.low;
      return;
    case InitializerKind::uniform: {
      const float low = block.low, span = block.span, below_high = block.below_high;
      for (uint32_t c = 0; c < dim; ++c) {
        const auto unit = static_cast<float>(static_cast<int32_t>(mixed(first + c * kGolden) >> 40)) * 0x1p-24F;
        const float value = low + span * unit;
        weights[c] = value < below_high ? value : below_high;
      }
      return;
    }
    case InitializerKind::normal:
      for (uint32_t c = 0; c < dim; ++c) {
        weights[c] = static_cast<float>(block.mean + block.std * normal_quantile(open_unit(mixed(first + c * kGolden))));
      }
      return;
    case InitializerKind::truncated_normal:
      for (uint32_t c = 0; c < dim; ++c) {
        const double p = 0.02275013194817921 + 0.9544997361036416 * open_unit(mixed(first + c * kGolden));
        double deviate = normal_quantile(p);
        deviate = deviate < -2.0 ? -2.0 : deviate;
        deviate = deviate > 2.0 ? 2.0 : deviate;
        weights[c] = static_cast<float>(block.mean + block.std * deviate);
      }
      return;
  }
}

// --- optimizers -------------------------------------------------------------------------------------------------------

inline float ftrl_curvature(const BlockSpec& block, float root) { return (block.beta + root) / block.lr + block.l2; }

inline void ftrl_seat(const BlockSpec& block, const float* __restrict w, float* __restrict z, const float* __restrict n) {
  for (uint32_t c = 0; c < block.dim; ++c) {
    const float pull = w[c] * ftrl_curvature(block, __builtin_sqrtf(n[c]));
    const float seated = -pull - __builtin_copysignf(block.l1, w[c]);
    z[c] = w[c] == 0.0F ? 0.0F : seated;
  }
}

void start_state(const BlockSpec& block, const float* __restrict weights, float* __restrict state) {
  for (uint32_t c = 0; c < block.state_width; ++c) state[c] = 0.0F;
  if (block.optimizer == OptimizerKind::adagrad) {
    for (uint32_t c = 0; c < block.dim; ++c) state[c] = block.initial_accumulator;
  } else if (block.optimizer == OptimizerKind::rowwise_adagrad) {
    state[0] = block.initial_accumulator;
  } else if (block.optimizer == OptimizerKind::ftrl) {
    ftrl_seat(block, weights, state, state + block.dim);
  }
}

// The widths that most rows have are compiled for themselves: a constant width unrolls to a few vectors.

// Bits of the largest magnitude: they order as the magnitudes do, and what is not finite is above all that is.
constexpr int32_t kLimitBits = __builtin_bit_cast(int32_t, kGradientLimit);

[[gnu::always_inline]] inline int32_t larger(int32_t largest, float scaled) {
  const int32_t magnitude = __builtin_bit_cast(int32_t, scaled) & 0x7fffffff;
  return magnitude > largest ? magnitude : largest;
}

[[gnu::always_inline]] inline int32_t largest_magnitude(uint32_t d, const float* __restrict g, float scale) {
  int32_t largest = 0;
  for (uint32_t c = 0; c < d; ++c) largest = larger(largest, g[c] * scale);
  return largest;
}

inline bool accepts(const BlockPlan* plans, size_t blocks, const float* __restrict gradient) {
  int32_t largest = 0;
  for (size_t block = 0; block < blocks; ++block) {
    const uint32_t d = plans[block].spec->dim;
    const float* __restrict g = gradient + plans[block].spec->column;
    const float scale = plans[block].gradient_scale;
    const int32_t of_block = d == 16 ? largest_magnitude(16, g, scale) : largest_magnitude(d, g, scale);
    largest = of_block > largest ? of_block : largest;
  }
  return largest <= kLimitBits;
}

inline float corrected_rate(const BlockPlan& plan, float* step) {
  const BlockSpec& block = *plan.spec;
  *step = *step + 1.0F;
  if (!block.corrects_by_row) return plan.lr * plan.request_correction;
  const auto t = static_cast<int64_t>(*step);
  const float correction =
      t <= kCachedCorrections ? plan.corrections[t] : bias_correction(block.beta1_exact, block.beta2_exact, t);
  return plan.lr * correction;
}

[[gnu::always_inline]] inline void adagrad(uint32_t d, float lr, float eps, float* __restrict w, const float* __restrict g,
                                           float* __restrict s) {
  for (uint32_t c = 0; c < d; ++c) {
    const float a = s[c] + g[c] * g[c];
    s[c] = a;
    w[c] = w[c] - quotient(lr * g[c], __builtin_sqrtf(a) + eps);
  }
}

inline void apply_formula(const BlockPlan& plan, float* __restrict w, const float* __restrict g, float* __restrict s) {
  const BlockSpec& block = *plan.spec;
  const uint32_t d = block.dim;
  const float lr = plan.lr;
  switch (block.optimizer) {
    case OptimizerKind::sgd:
      for (uint32_t c = 0; c < d; ++c) w[c] = w[c] - lr * g[c];
      return;
    case OptimizerKind::momentum: {
      const float beta = block.beta1;
      if (block.nesterov) {
        for (uint32_t c = 0; c < d; ++c) {
          s[c] = beta * s[c] + g[c];
          w[c] = w[c] - lr * (g[c] + beta * s[c]);
        }
      } else {
        for (uint32_t c = 0; c < d; ++c) {
          s[c] = beta * s[c] + g[c];
          w[c] = w[c] - lr * s[c];
        }
      }
      return;
    }
    case OptimizerKind::adagrad: {
      if (d == 16) {
        adagrad(16, lr, block.eps, w, g, s);
      } else if (d == 1) {
        adagrad(1, lr, block.eps, w, g, s);
      } else {
        adagrad(d, lr, block.eps, w, g, s);
      }
      return;
    }
    case OptimizerKind::rowwise_adagrad: {
      s[0] = s[0] + sum_of_squares(g, d) / static_cast<float>(d);
      const float multiplier = quotient(lr, __builtin_sqrtf(s[0]) + block.eps);
      for (uint32_t c = 0; c < d; ++c) w[c] = w[c] - multiplier * g[c];
      return;
    }
    case OptimizerKind::adam: {
      const float beta1 = block.beta1, rest1 = block.one_minus_beta1;
      const float beta2 = block.beta2, rest2 = block.one_minus_beta2;
      const float eps = block.eps, rate = corrected_rate(plan, s + 2 * d);
      float* __restrict m = s;
      float* __restrict v = s + d;
      for (uint32_t c = 0; c < d; ++c) {
        m[c] = beta1 * m[c] + rest1 * g[c];
        v[c] = beta2 * v[c] + (rest2 * g[c]) * g[c];
        w[c] = w[c] - quotient(rate * m[c], __builtin_sqrtf(v[c]) + eps);
      }
      return;
    }
    case OptimizerKind::rowwise_adam: {
      const float beta1 = block.beta1, rest1 = block.one_minus_beta1;
      const float mean_square = sum_of_squares(g, d) / static_cast<float>(d);
      s[d] = block.beta2 * s[d] + block.one_minus_beta2 * mean_square;
      const float rate = corrected_rate(plan, s + d + 1);
      const float multiplier = quotient(rate, __builtin_sqrtf(s[d]) + block.eps);
      for (uint32_t c = 0; c < d; ++c) {
        s[c] = beta1 * s[c] + rest1 * g[c];
        w[c] = w[c] - multiplier * s[c];
      }
      return;
    }
    case OptimizerKind::rmsprop: {
      const float alpha = block.beta2, rest = block.one_minus_beta2, eps = block.eps;
      for (uint32_t c = 0; c < d; ++c) {
        const float v = alpha * s[c] + (rest * g[c]) * g[c];
        s[c] = v;
        w[c] = w[c] - quotient(lr * g[c], __builtin_sqrtf(v) + eps);
      }
      return;
    }
    case OptimizerKind::ftrl: {
      float* __restrict z = s;
      float* __restrict n = s + d;
      const float l1 = block.l1;
      for (uint32_t c = 0; c < d; ++c) {
        const float root_before = __builtin_sqrtf(n[c]);
        const float squares = n[c] + g[c] * g[c];
        const float root = __builtin_sqrtf(squares);
        const float pulled = (z[c] + g[c]) - ((root - root_before) / lr) * w[c];
        const float curvature = ftrl_curvature(block, root);
        const float moved = (__builtin_copysignf(l1, pulled) - pulled) / curvature;
        n[c] = squares;
        z[c] = pulled;
        w[c] = (__builtin_fabsf(pulled) > l1) & (curvature > 0.0F) ? moved : 0.0F;
      }
      return;
    }
  }
}

// Twin: `_decay`.
inline void decay(const BlockPlan& plan, float* __restrict w, float* __restrict g, float* __restrict s) {
  const BlockSpec& block = *plan.spec;
  const uint32_t d = block.dim;
  if (block.catch_up) {
    float& last = s[block.state_width - 1];
    float skipped = 0.0F;
    if (last > 0.0F) {
      skipped = plan.step - last - 1.0F;
      skipped = skipped > 0.0F ? skipped : 0.0F;
    }
    last = last > plan.step ? last : plan.step;
    double result = 1.0, square = plan.decay_factor;
    for (auto rest = static_cast<int64_t>(skipped); rest != 0; rest >>= 1) {
      if (rest & 1) result *= square;
      square *= square;
    }
    const auto factor = static_cast<float>(result);
    for (uint32_t c = 0; c < d; ++c) w[c] = w[c] * factor;
  }
  if (block.decay_mode == DecayMode::l2) {
    for (uint32_t c = 0; c < d; ++c) g[c] = g[c] + block.weight_decay * w[c];
  } else {
    for (uint32_t c = 0; c < d; ++c) w[c] = w[c] * plan.decay_factor;
  }
  if (block.optimizer == OptimizerKind::ftrl && (block.catch_up || block.decay_mode == DecayMode::decoupled)) {
    ftrl_seat(block, w, s, s + d);
  }
}

inline void update_block(const BlockPlan& plan, float* __restrict w, const float* __restrict gradient,
                         float* __restrict s, float* __restrict g) {
  if (plan.plain) {
    apply_formula(plan, w, gradient, s);
    return;
  }
  const BlockSpec& block = *plan.spec;
  const uint32_t d = block.dim;
  for (uint32_t c = 0; c < d; ++c) g[c] = gradient[c] * plan.gradient_scale;
  if (block.optimizer == OptimizerKind::ftrl) {
    for (uint32_t c = 0; c < d; ++c) g[c] = g[c] * plan.lr_scale;
  }
  if (block.clip_value != kNoLimit) {
    const float limit = block.clip_value;
    for (uint32_t c = 0; c < d; ++c) {
      const float raised = g[c] > -limit ? g[c] : -limit;
      g[c] = raised < limit ? raised : limit;
    }
  }
  if (block.clip_norm != kNoLimit) {
    const float norm = __builtin_sqrtf(sum_of_squares(g, d));
    if (norm > block.clip_norm) {
      const float scale = block.clip_norm / norm;
      for (uint32_t c = 0; c < d; ++c) g[c] = g[c] * scale;
    }
  }
  if (block.decay_mode != DecayMode::none) decay(plan, w, g, s);
  apply_formula(plan, w, g, s);
  if (block.max_norm != kNoLimit) {
    const float norm = __builtin_sqrtf(sum_of_squares(w, d));
    if (norm > block.max_norm) {
      const float scale = block.max_norm / norm;
      for (uint32_t c = 0; c < d; ++c) w[c] = w[c] * scale;
      if (block.optimizer == OptimizerKind::ftrl) ftrl_seat(block, w, s, s + d);
    }
  }
}

bool update_row(const BlockPlan* plans, size_t blocks, float* __restrict weights, const float* __restrict gradient,
                float* __restrict state, float* __restrict scratch) {
  if (!accepts(plans, blocks, gradient)) return false;
  for (size_t block = 0; block < blocks; ++block) {
    const BlockSpec& spec = *plans[block].spec;
    update_block(plans[block], weights + spec.column, gradient + spec.column, state + spec.state_column, scratch);
  }
  return true;
}

using Floats [[gnu::vector_size(64)]] = float;
using Magnitudes [[gnu::vector_size(64)]] = int32_t;

// Bits of the largest magnitude of all rows' gradients. Whole vectors are folded once for all rows; spelled as vectors, as
// GCC takes the loop over the lanes apart into scalars.
[[gnu::always_inline]] inline int32_t largest_of_rows(uint32_t d, const BlockPlan& plan, size_t rows, const RowUpdate* updates) {
  const float scale = plan.gradient_scale;
  Magnitudes lanes = {};
  int32_t largest = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float* __restrict g = updates[row].gradient + plan.spec->column;
    uint32_t c = 0;
    for (; c + 16 <= d; c += 16) {
      Floats gradient;
      __builtin_memcpy(&gradient, g + c, sizeof(gradient));
      const Magnitudes magnitudes = reinterpret_cast<Magnitudes>(gradient * scale) & 0x7fffffff;
      lanes = magnitudes > lanes ? magnitudes : lanes;
    }
    for (; c < d; ++c) largest = larger(largest, g[c] * scale);
  }
  for (uint32_t lane = 0; lane < 16; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  return largest;
}

// Whether all rows' gradients are within the limit.
inline bool accepts_all(const BlockPlan& plan, size_t rows, const RowUpdate* updates) {
  const uint32_t d = plan.spec->dim;
  const int32_t largest = d == 16  ? largest_of_rows(16, plan, rows, updates)
                          : d == 1 ? largest_of_rows(1, plan, rows, updates)
                                   : largest_of_rows(d, plan, rows, updates);
  return largest <= kLimitBits;
}

[[gnu::always_inline]] inline void adagrad_rows(uint32_t d, const BlockPlan& plan, size_t rows, const RowUpdate* updates,
                                                const Ahead& ahead) {
  const BlockSpec& spec = *plan.spec;
  for (size_t row = 0; row < rows; ++row) {
    ahead.fetch(row);
    const RowUpdate& update = updates[row];
    adagrad(d, plan.lr, spec.eps, update.weights + spec.column, update.gradient + spec.column, update.state + spec.state_column);
  }
}

void update_rows(const BlockPlan* plans, size_t blocks, size_t rows, const RowUpdate* updates, const Ahead& ahead,
                 bool* applied, float* __restrict scratch) {
  bool all = true;
  for (size_t block = 0; block < blocks; ++block) all = all && accepts_all(plans[block], rows, updates);
  if (!all) {
    ahead.fetch_from(0);
    for (size_t row = 0; row < rows; ++row) {
      const RowUpdate& update = updates[row];
      applied[row] = update_row(plans, blocks, update.weights, update.gradient, update.state, scratch);
    }
    return;
  }
  for (size_t row = 0; row < rows; ++row) applied[row] = true;
  for (size_t block = 0; block < blocks; ++block) {
    const BlockPlan& plan = plans[block];
    const BlockSpec& spec = *plan.spec;
    const Ahead fetched = block + 1 == blocks ? ahead : Ahead{};
    const bool is_plain_adagrad = plan.plain && spec.optimizer == OptimizerKind::adagrad;
    if (is_plain_adagrad && spec.dim == 16) {
      adagrad_rows(16, plan, rows, updates, fetched);
    } else if (is_plain_adagrad && spec.dim == 1) {
      adagrad_rows(1, plan, rows, updates, fetched);
    } else {
      for (size_t row = 0; row < rows; ++row) {
        fetched.fetch(row);
        const RowUpdate& update = updates[row];
        update_block(plan, update.weights + spec.column, update.gradient + spec.column, update.state + spec.state_column, scratch);
      }
    }
  }
  ahead.fetch_from(rows);
}
