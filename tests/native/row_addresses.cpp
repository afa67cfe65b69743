// Addresses of rows beyond 2^31 weights and 2^32 bytes: every row has memory of its own, and a few are written and read.
//
// The memory is only reserved; pages are taken for the rows that are written.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory_map.h"
#include "row_store.h"

using namespace embershard;

namespace {

void expect(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "row addresses: %s does not hold\n", what);
    std::exit(1);
  }
}

struct Span {
  const char* first;
  size_t bytes;
  bool operator<(const Span& other) const { return first < other.first; }
};

void check(uint32_t dim, uint32_t bytes_per_weight, uint32_t state_width, bool keeps_clicks, uint32_t wanted) {
  RowStore store(dim, bytes_per_weight, state_width, keeps_clicks);
  expect(store.weight_bytes() == dim * bytes_per_weight, "the size of a row's weights");
  std::vector<uint32_t> rows;
  for (uint32_t length = 1; rows.size() < wanted; length = length == RowStore::kLongestRun ? 1 : length * 2) {
    const RowRun run = store.take(length);
    expect(run.count >= 1 && run.count <= length, "a run is no longer than asked for");
    for (uint32_t i = 0; i < run.count; ++i) rows.push_back(run.first + i);
  }
  std::sort(rows.begin(), rows.end());
  expect(std::adjacent_find(rows.begin(), rows.end()) == rows.end(), "a row is handed out once");
  std::vector<Span> spans;
  spans.reserve(2 * rows.size());
  for (uint32_t row : rows) {
    spans.push_back({store.weights(row), store.weight_bytes()});
    spans.push_back({reinterpret_cast<const char*>(store.counters(row)), store.state_bytes()});
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    expect(spans[i - 1].first + spans[i - 1].bytes <= spans[i].first, "rows do not overlap");
  }
  const std::vector<uint32_t> written = {rows.front(), rows[wanted / 2], rows[wanted - 2], rows[wanted - 1]};
  for (uint32_t row : written) {
    std::memset(store.weights(row), static_cast<int>(row % 251), store.weight_bytes());
    std::memset(static_cast<void*>(store.counters(row)), static_cast<int>(row % 241), store.state_bytes());
  }
  for (uint32_t row : written) {
    const auto* weights = reinterpret_cast<const unsigned char*>(store.weights(row));
    const auto* counters = reinterpret_cast<const unsigned char*>(store.counters(row));
    expect(weights[0] == row % 251 && weights[store.weight_bytes() - 1] == row % 251, "weights are read back");
    if (keeps_clicks) {
      const auto* clicks = reinterpret_cast<const unsigned char*>(store.clicks(store.counters(row)));
      const auto* state = reinterpret_cast<const unsigned char*>(RowStore::state(store.counters(row)) + state_width);
      expect(clicks == state && clicks + sizeof(uint32_t) == counters + store.state_bytes(), "clicks end the row");
    }
    expect(counters[0] == row % 241 && counters[store.state_bytes() - 1] == row % 241, "state is read back");
  }
}

// All row numbers there are; a table that has none left says so, and goes on with those that are given back.
void check_limit() {
  RowStore store(1, 2, 0, false);
  uint64_t taken = 0;
  RowRun last = {};
  bool is_refused = false;
  try {
    for (;; taken += last.count) last = store.take(RowStore::kLongestRun);
  } catch (const std::runtime_error&) {  // a logic_error would be a ValueError in Python: nothing was changed
    is_refused = true;
  }
  expect(is_refused, "the end of row numbers is a runtime_error");
  expect(taken + RowStore::kLongestRun >= kNoRow && taken < kNoRow, "all row numbers are used");
  store.give_back(last);
  expect(store.take(RowStore::kLongestRun).first == last.first, "a row that was given back is taken again");
}

}  // namespace

int main() {
  expect(is_never("always madvise [never]\n"), "an administrator's never");
  expect(!is_never("always [madvise] never\n") && !is_never(""), "that other settings are not never");
  check(4096, 2, 0, false, 540'000);          // float16, sgd: 2.2·10^9 weights, 4.4 GB
  check(4096, 4, 2 * 4096 + 1, false, 280'000);  // float32, adam: 2.3·10^9 state values, 13.8 GB
  check(1, 4, 0, false, 3'000'000);           // the narrowest row
  check(3, 4, 3, true, 100'000);              // a row with clicks
  check_limit();
  std::puts("row addresses: ok");
  return 0;
}
