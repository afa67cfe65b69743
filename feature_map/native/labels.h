// What stands beside the features: labels, example weights, event times. Each throws ValueFault on what it refuses.
#pragma once

#include "bags.h"
#include "plan.h"

namespace embershard {

// out[row * stride] in [0, 1].
void read_labels(const Column& column, const LabelPlan& label, int64_t start, int64_t count, Scratch& scratch,
                 float* out, int64_t stride);
// Finite, at least 0.
void read_example_weights(const Column& column, int64_t start, int64_t count, Scratch& scratch, float* out);
// Seconds since 1970, from an integer column.
void read_event_times(const Column& column, int64_t start, int64_t count, Scratch& scratch, int64_t* out);

}  // namespace embershard
