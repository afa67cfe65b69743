// Row kernels: initial weights, optimizer steps, row type conversion. One set per instruction set; all give the same bits.
//
// The definition is NumPy: initializers.py, optimizers.py, row_types.py. Compiled with -ffp-contract=off.
#pragma once

#include <cstddef>
#include <cstdint>

#include "part.h"
#include "table_spec.h"

namespace embershard {

constexpr float kGradientLimit = 1e15F;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// A block's constants for one push.
struct BlockPlan {
  const BlockSpec* spec;
  const float* corrections;  // bias corrections for steps 1 .. kCachedCorrections
  float request_correction;
  float lr;              // spec.lr · lr_scale, or spec.lr for ftrl
  float gradient_scale;  // examples for `sum`, else 1
  float lr_scale;        // ftrl: factor on the gradient
  float decay_factor;    // max(1 − lr·weight_decay, 0)
  float step;
  bool plain;  // no scaling, clipping, decay or max_norm: the gradient is used as it lies
};

constexpr int64_t kCachedCorrections = 4096;

// float32 √(1 − β2^t) / (1 − β1^t), t ≥ 1.
float bias_correction(double beta1, double beta2, int64_t steps);

// Where one float32 row and its gradient lie.
struct RowUpdate {
  float* weights;
  const float* gradient;
  float* state;
};

// Where the rows of one table are.
struct RowSource {
  const Part* parts;
  const RowStore* store;
  RowType type;
  uint32_t dim;
  int tablet_bits;
};

struct Kernels {
  const char* name;

  // Initial weights of the block's columns for the key whose stream is `stream`.
  void (*draw_block)(const BlockSpec& block, uint64_t stream, float* weights);
  // State of a row that starts with `weights` (the block's).
  void (*start_state)(const BlockSpec& block, const float* weights, float* state);
  // Whether every scaled component of the row is finite and within kGradientLimit.
  bool (*accepts)(const BlockPlan* plans, size_t blocks, const float* gradient);
  // One optimizer step of every block, unless the gradient is refused (false; nothing is changed). `scratch` holds the
  // widest block.
  bool (*update_row)(const BlockPlan* plans, size_t blocks, float* weights, const float* gradient, float* state,
                     float* scratch);
  // update_row on each of several float32 rows of one table; `applied` says which were not refused. Fetches what is ahead.
  void (*update_rows)(const BlockPlan* plans, size_t blocks, size_t rows, const RowUpdate* updates,
                      const Ahead& ahead, bool* applied, float* scratch);
  float (*sum_of_squares)(const float* x, uint32_t n);
  bool (*are_finite)(const float* x, size_t n);

  // Row of each of `count` keys in its bucket, kNoRow where it is not there. `passed` gets the numbers of those that may
  // lie in a later bucket, or whose bucket has no room for them; how many is returned.
  size_t (*find_rows)(const Bucket* const* buckets, const uint64_t* keys, size_t count, uint32_t* rows, uint8_t* passed);
  // Rows of one table's keys, as `type`. The rows of absent keys are not written: `absent` gets their numbers, ascending, and
  // how many is returned.
  size_t (*read_rows)(const RowSource& source, const uint64_t* keys, size_t count, RowType type, void* out, uint32_t* absent);

  void (*widen)(RowType type, const uint16_t* row, uint32_t n, float* weights);
  // `count` rows of `dim` values, one after another in `out`.
  void (*widen_rows)(RowType type, const uint16_t* const* rows, size_t count, uint32_t dim, float* out);
  // Nearest, ties to even; a finite value never becomes infinite.
  void (*narrow_nearest)(RowType type, const float* weights, uint32_t n, uint16_t* row);
  // The same, but NaN and infinite values stay what they are.
  void (*narrow_any)(RowType type, const float* values, uint32_t n, uint16_t* out);
  // Up or down at random with the probability of the remainder; `stream` seeds the bits.
  void (*narrow_stochastic)(RowType type, const float* weights, uint32_t n, uint64_t stream, uint16_t* row);
};

// The fastest set this CPU has.
const Kernels& best_kernels();
// Sets this CPU can run, by name ("baseline", "avx2", "avx512"), slowest first; ends with nullptr.
const Kernels* const* available_kernels();

}  // namespace embershard
