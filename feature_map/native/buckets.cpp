#include "buckets.h"

#include <algorithm>

#include "values.h"

namespace embershard {
namespace {

void add_bucket(Bags& bags, uint64_t h, float weight) {
  bags.h.push_back(h);
  if (bags.is_weighted) bags.weights.push_back(weight);
}

void add_soft_buckets(Bags& bags, const double* centres, int64_t count, int64_t above, double value) {
  if (above == 0 || above == count)
    return add_bucket(bags, static_cast<uint64_t>(above == 0 ? 0 : count - 1), 1.0F);
  const double low = centres[above - 1], high = centres[above];
  const float share = static_cast<float>((value - low) / (high - low));
  add_bucket(bags, static_cast<uint64_t>(above - 1), 1.0F - share);
  if (share > 0.0F) add_bucket(bags, static_cast<uint64_t>(above), share);
}

}  // namespace

void read_buckets(const Column& column, const FeaturePlan& feature, int64_t start, int64_t count, Scratch& scratch,
                  Bags& bags) {
  const NumberSource& number = feature.number;
  scratch.numbers.resize(count);
  scratch.valid.resize(count);
  const double* x = scratch.numbers.data();
  const bool all_valid =
      read_numbers(column, number.markers, start, count, scratch.numbers.data(), scratch.valid.data());
  const bool is_soft = feature.kind == FeaturePlan::Kind::soft_buckets;
  const bool skips = feature.parts[0].skip_missing;
  bags.reset(count);
  bags.is_weighted = is_soft;
  bags.is_scalar = !is_soft && (all_valid || !skips || number.has_fill);
  const double* edges = feature.edges.data();
  const int64_t edge_count = static_cast<int64_t>(feature.edges.size());
  for (int64_t row = 0; row < count; ++row) {
    const bool is_null = !all_valid && !scratch.valid[row];
    if (is_null && !number.has_fill) {
      if (!skips) add_bucket(bags, feature.parts[0].missing, 1.0F);
    } else {
      const double value = is_null ? number.fill : x[row];
      const int64_t above = std::upper_bound(edges, edges + edge_count, value) - edges;
      if (is_soft) add_soft_buckets(bags, edges, edge_count, above, value);
      else add_bucket(bags, static_cast<uint64_t>(above), 1.0F);
    }
    if (!bags.is_scalar) bags.ends.push_back(bags.h.size());
  }
}

}  // namespace embershard
