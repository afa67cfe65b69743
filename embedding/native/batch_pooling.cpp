#include "batch_pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "batch_threads.h"

namespace embershard {

namespace {

constexpr int64_t kMaxDim = 4096;
constexpr int64_t kPartsPerThread = 4;  // so that threads end at about the same time

// Width known to the compiler (1, 8, 16, 32, 64) or at run time (0).
template <int64_t N>
struct Width {
  static constexpr bool kInLanes = N > 0 && N % 4 == 0;
  int64_t value;
  constexpr int64_t operator()() const { return N > 0 ? N : value; }
  using Vector = float[N > 0 ? N : kMaxDim];  // small enough for registers where the width is known
};

// Four floats at a time, written out: compilers unroll loops this short and then leave them scalar. Lanes never mix, so
// the bits are those of the plain loop.
typedef float Lanes __attribute__((vector_size(16), aligned(4), may_alias));

struct LanesAt {
  int64_t d;
  Lanes load(const float* from) const { return *reinterpret_cast<const Lanes*>(from + d); }
  void store(float* to, Lanes value) const { *reinterpret_cast<Lanes*>(to + d) = value; }
};

struct FloatAt {
  int64_t d;
  float load(const float* from) const { return from[d]; }
  void store(float* to, float value) const { to[d] = value; }
};

template <class W, class Body>
[[gnu::always_inline]] inline void for_each_column(W width, Body&& body) {
  if constexpr (W::kInLanes) {
    for (int64_t d = 0; d < width(); d += 4) body(LanesAt{d});
  } else {
    for (int64_t d = 0; d < width(); ++d) body(FloatAt{d});
  }
}

template <class Body>
void with_width(int64_t dim, Body&& body) {
  switch (dim) {
    case 1: return body(Width<1>{dim});
    case 8: return body(Width<8>{dim});
    case 16: return body(Width<16>{dim});
    case 32: return body(Width<32>{dim});
    case 64: return body(Width<64>{dim});
    default: return body(Width<0>{dim});
  }
}

// How far ahead of the example at work rows are fetched into the cache.
constexpr int64_t kPrefetchExamples = 2;

struct Bag {
  int64_t start;
  int64_t stop;
};

inline Bag bag_of(const Bags& bags, const Field& field, int64_t example) {
  const int64_t* offsets = bags.offsets + field.feature * bags.examples;
  if (field.scalar) return {offsets[0] + example, offsets[0] + example + 1};
  return {offsets[example], offsets[example + 1]};
}

inline float weight_of(const Bags& bags, int64_t value) { return bags.weights ? bags.weights[value] : 1.0f; }

// What the bag's weighted sum is divided by: 1, Σw or √Σw²; 0 marks a bag that gives zeros.
float divisor_of(const Bags& bags, const Bag& bag, Pooling pooling) {
  if (bag.start == bag.stop) return 0.0f;
  if (pooling == Pooling::kSum || pooling == Pooling::kMax) return 1.0f;
  float total = 0.0f;
  for (int64_t i = bag.start; i < bag.stop; ++i) {
    const float w = weight_of(bags, i);
    total += pooling == Pooling::kMean ? w : w * w;
  }
  return pooling == Pooling::kMean ? total : std::sqrt(total);
}

inline const float* row_at(const float* rows, const RowBlock& block, int32_t row) {
  return rows + (row - block.row_start) * block.width + block.first_column;
}

inline float* row_at(float* rows, const RowBlock& block, int32_t row) {
  return rows + (row - block.row_start) * block.width + block.first_column;
}

template <class W>
[[gnu::noinline]] void pool_bag(const float* rows, const RowBlock& block, const Bags& bags, const Bag& bag, Pooling pooling, W width,
              float* __restrict out) {
  const int64_t dim = width();
  const float divisor = divisor_of(bags, bag, pooling);
  if (divisor == 0.0f) {
    std::fill_n(out, dim, 0.0f);
    return;
  }
  for (int64_t i = bag.start; i < bag.stop; ++i) {
    const float* row = row_at(rows, block, bags.inverse[i]);
    const float w = weight_of(bags, i);
    if (i == bag.start) {
      for (int64_t d = 0; d < dim; ++d) out[d] = w * row[d];
    } else if (pooling == Pooling::kMax) {
      for (int64_t d = 0; d < dim; ++d) out[d] = std::max(out[d], w * row[d]);
    } else {
      for (int64_t d = 0; d < dim; ++d) out[d] += w * row[d];
    }
  }
  if (pooling == Pooling::kMean || pooling == Pooling::kSqrtN) {
    for (int64_t d = 0; d < dim; ++d) out[d] /= divisor;
  }
}

// One value of weight 1: the common case, kept small enough to be inlined into every loop.
inline bool is_one_row(const Bags& bags, const Field& field) { return field.scalar && !bags.weights; }

inline int32_t only_row(const Bags& bags, const Field& field, int64_t example) {
  return bags.inverse[bags.offsets[field.feature * bags.examples] + example];
}

template <class W>
[[gnu::always_inline]] inline void pool_field(const float* rows, const RowBlock& block, const Bags& bags,
                                              const Field& field, int64_t example, W width, float* out) {
  if (is_one_row(bags, field)) {
    const float* row = row_at(rows, block, only_row(bags, field, example));
    for_each_column(width, [&](auto at) { at.store(out, at.load(row)); });
  } else {
    pool_bag(rows, block, bags, bag_of(bags, field, example), field.pooling, width, out);
  }
}

// Each component's gradient goes to the first value that holds the maximum.
template <class W>
void spread_max(const float* rows, const RowBlock& block, const Bags& bags, const Bag& bag, W width,
                const float* gradient, float* row_gradients) {
  for (int64_t d = 0; d < width(); ++d) {
    int64_t best = bag.start;
    float best_value = weight_of(bags, best) * row_at(rows, block, bags.inverse[best])[d];
    for (int64_t i = bag.start + 1; i < bag.stop; ++i) {
      const float value = weight_of(bags, i) * row_at(rows, block, bags.inverse[i])[d];
      if (value > best_value) {
        best = i;
        best_value = value;
      }
    }
    row_at(row_gradients, block, bags.inverse[best])[d] += weight_of(bags, best) * gradient[d];
  }
}

template <class W>
[[gnu::noinline]] void spread_bag(const float* rows, const RowBlock& block, const Bags& bags, const Bag& bag,
                                  Pooling pooling, W width, const float* gradient, float* row_gradients) {
  const int64_t dim = width();
  const float divisor = divisor_of(bags, bag, pooling);
  if (divisor == 0.0f) return;
  if (pooling == Pooling::kMax) return spread_max(rows, block, bags, bag, width, gradient, row_gradients);
  for (int64_t i = bag.start; i < bag.stop; ++i) {
    float* row = row_at(row_gradients, block, bags.inverse[i]);
    const float w = weight_of(bags, i);
    for (int64_t d = 0; d < dim; ++d) row[d] += w * gradient[d] / divisor;
  }
}

template <class W>
[[gnu::always_inline]] inline void spread_field(const float* rows, const RowBlock& block, const Bags& bags,
                                                const Field& field, int64_t example, W width, const float* gradient,
                                                float* row_gradients) {
  if (is_one_row(bags, field)) {
    float* row = row_at(row_gradients, block, only_row(bags, field, example));
    for_each_column(width, [&](auto at) { at.store(row, at.load(row) + at.load(gradient)); });
  } else {
    spread_bag(rows, block, bags, bag_of(bags, field, example), field.pooling, width, gradient, row_gradients);
  }
}

[[gnu::always_inline]] inline void prefetch_example(const float* rows, const RowBlock& block, const Bags& bags, const Fields& fields,
                      int64_t example) {
  if (example >= bags.examples) return;
  for (int64_t f = 0; f < fields.count; ++f) {
    const Bag bag = bag_of(bags, fields.data[f], example);
    if (bag.start == bag.stop) continue;
    const float* row = rows + (bags.inverse[bag.start] - block.row_start) * block.width;
    __builtin_prefetch(row);
    __builtin_prefetch(row + block.width - 1);
  }
}

int64_t values_of(const Fields& fields) {
  int64_t values = 0;
  for (int64_t f = 0; f < fields.count; ++f) values += fields.data[f].values;
  return values;
}

// work(begin, end) on ranges that make up all examples.
template <class Work>
void share_examples(const Bags& bags, const Fields& fields, Work&& work) {
  const int64_t parts = values_of(fields) < kThreadedValues ? 1 : kPartsPerThread * static_cast<int64_t>(batch_threads());
  const int64_t size = (bags.examples + parts - 1) / parts;
  for_each_part(static_cast<size_t>(parts), [&](size_t part) {
    const int64_t begin = std::min(bags.examples, static_cast<int64_t>(part) * size);
    work(begin, std::min(bags.examples, begin + size));
  });
}

// work(fields) on sets of fields, no two of which have a row in common: each set keeps the order of its fields, so that a
// row's gradients are summed in the same order as by one thread.
template <class Work>
void share_fields(const Fields& fields, Work&& work) {
  const size_t threads = values_of(fields) < kThreadedValues ? 1 : batch_threads();
  if (threads == 1) return work(fields);
  struct Cluster {  // fields whose ranges of rows overlap
    int32_t last_row = 0;
    int64_t values = 0;
    std::vector<int64_t> members;
  };
  std::vector<int64_t> by_row(static_cast<size_t>(fields.count));
  std::iota(by_row.begin(), by_row.end(), 0);
  std::erase_if(by_row, [&](int64_t f) { return fields.data[f].values == 0; });
  std::sort(by_row.begin(), by_row.end(), [&](int64_t a, int64_t b) { return fields.data[a].first_row < fields.data[b].first_row; });
  std::vector<Cluster> clusters;
  for (int64_t f : by_row) {
    const Field& field = fields.data[f];
    if (clusters.empty() || field.first_row > clusters.back().last_row) clusters.emplace_back();
    Cluster& cluster = clusters.back();
    cluster.last_row = std::max(cluster.last_row, field.last_row);
    cluster.values += field.values;
    cluster.members.push_back(f);
  }
  std::sort(clusters.begin(), clusters.end(), [](const Cluster& a, const Cluster& b) { return a.values > b.values; });
  std::vector<Cluster> sets(std::min(threads, clusters.size()));
  for (const Cluster& cluster : clusters) {  // the largest first, each to the smallest set
    Cluster& set = *std::min_element(sets.begin(), sets.end(), [](const Cluster& a, const Cluster& b) { return a.values < b.values; });
    set.values += cluster.values;
    set.members.insert(set.members.end(), cluster.members.begin(), cluster.members.end());
  }
  for_each_part(sets.size(), [&](size_t part) {
    std::vector<int64_t>& members = sets[part].members;
    std::sort(members.begin(), members.end());
    std::vector<Field> own;
    for (int64_t f : members) own.push_back(fields.data[f]);
    work(Fields{own.data(), static_cast<int64_t>(own.size())});
  });
}

}  // namespace

void pool_rows(const float* rows, const RowBlock& block, const Bags& bags, const Fields& fields, float* out,
               int64_t out_stride) {
  share_examples(bags, fields, [&](int64_t begin, int64_t end) {
    with_width(block.dim, [&](auto width) {
      for (int64_t b = begin; b < end; ++b) {
        prefetch_example(rows, block, bags, fields, b + kPrefetchExamples);
        for (int64_t f = 0; f < fields.count; ++f) {
          pool_field(rows, block, bags, fields.data[f], b, width, out + b * out_stride + fields.data[f].column);
        }
      }
    });
  });
}

void sum_row_gradients(const float* rows, const RowBlock& block, const Bags& bags, const Fields& all_fields,
                       const float* gradient, int64_t gradient_stride, float* row_gradients) {
  share_fields(all_fields, [&](const Fields& fields) {
    with_width(block.dim, [&](auto width) {
      for (int64_t b = 0; b < bags.examples; ++b) {
        prefetch_example(row_gradients, block, bags, fields, b + kPrefetchExamples);
        for (int64_t f = 0; f < fields.count; ++f) {
          spread_field(rows, block, bags, fields.data[f], b, width,
                       gradient + b * gradient_stride + fields.data[f].column, row_gradients);
        }
      }
    });
  });
}

void pool_interaction(const float* rows, const RowBlock& factors, int64_t linear_column, const Bags& bags,
                      const Fields& fields, const InteractionOutput& out) {
  RowBlock linear = factors;
  linear.first_column = linear_column;
  linear.dim = 1;
  share_examples(bags, fields, [&](int64_t begin, int64_t end) {
    with_width(factors.dim, [&](auto width) {
      const int64_t dim = width();
      typename decltype(width)::Vector sums, squares;
      for (int64_t b = begin; b < end; ++b) {
        prefetch_example(rows, factors, bags, fields, b + kPrefetchExamples);
        std::fill_n(sums, dim, 0.0f);
        std::fill_n(squares, dim, 0.0f);
        float first_order = 0.0f;
        for (int64_t f = 0; f < fields.count; ++f) {
          const Field& field = fields.data[f];
          float* pooled = out.fields + b * out.stride + field.column;
          pool_field(rows, factors, bags, field, b, width, pooled);
          for_each_column(width, [&](auto at) {
            const auto e = at.load(pooled);
            at.store(sums, at.load(sums) + e);
            at.store(squares, at.load(squares) + e * e);
          });
          if (linear_column >= 0) {
            float weight;
            pool_field(rows, linear, bags, field, b, Width<1>{1}, &weight);
            first_order += weight;
          }
        }
        float second_order = 0.0f;
        for (int64_t d = 0; d < dim; ++d) second_order += sums[d] * sums[d] - squares[d];
        std::copy_n(sums, dim, out.factor_sums + b * dim);
        out.first_order[b] = first_order;
        out.second_order[b] = 0.5f * second_order;
      }
    });
  });
}

void sum_interaction_gradients(const float* rows, const RowBlock& factors, int64_t linear_column, const Bags& bags,
                               const Fields& all_fields, const InteractionForward& forward,
                               const InteractionGradient& gradient, float* row_gradients) {
  RowBlock linear = factors;
  linear.first_column = linear_column;
  linear.dim = 1;
  share_fields(all_fields, [&](const Fields& fields) {
    with_width(factors.dim, [&](auto width) {
      typename decltype(width)::Vector sums, own;
      for (int64_t b = 0; b < bags.examples; ++b) {
        prefetch_example(row_gradients, factors, bags, fields, b + kPrefetchExamples);
        std::copy_n(forward.factor_sums + b * width(), width(), sums);
        const float second_order = gradient.second_order ? gradient.second_order[b] : 0.0f;
        for (int64_t f = 0; f < fields.count; ++f) {
          const Field& field = fields.data[f];
          const float* e = forward.fields + b * forward.stride + field.column;
          for_each_column(width, [&](auto at) { at.store(own, second_order * (at.load(sums) - at.load(e))); });
          if (gradient.fields) {
            const float* from = gradient.fields + b * gradient.stride + field.column;
            for_each_column(width, [&](auto at) { at.store(own, at.load(from) + at.load(own)); });
          }
          spread_field(rows, factors, bags, field, b, width, own, row_gradients);
          if (linear_column >= 0 && gradient.first_order) {
            spread_field(rows, linear, bags, field, b, Width<1>{1}, gradient.first_order + b, row_gradients);
          }
        }
      }
    });
  });
}

}  // namespace embershard
