// Numbers as the buckets they fall in.
#pragma once

#include "bags.h"
#include "plan.h"

namespace embershard {

// Bags of rows [start, start + count): bucket i holds edges[i-1] <= x < edges[i]; soft buckets are the two centres around
// x, weighted by nearness. Throws ValueFault.
void read_buckets(const Column& column, const FeaturePlan& feature, int64_t start, int64_t count, Scratch& scratch,
                  Bags& bags);

}  // namespace embershard
