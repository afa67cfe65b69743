#include "row_store.h"

#include <bit>
#include <stdexcept>

#include "memory_map.h"

namespace embershard {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr size_t kSmallTable = kHugePage;  // the first bytes of a table's first chunk stay on small pages until they are full
constexpr uint64_t kMostRows = kNoRow;

}  // namespace

RowStore::RowStore(uint32_t dim, uint32_t bytes_per_weight, uint32_t state_width, bool keeps_clicks)
    : weight_bytes_(dim * bytes_per_weight),
      state_bytes_(static_cast<uint32_t>(sizeof(RowCounters) + size_t{state_width} * sizeof(float) +
                                         (keeps_clicks ? sizeof(uint32_t) : 0))) {
  const size_t row_bytes = size_t{weight_bytes_} + state_bytes_;
  chunk_shift_ = static_cast<uint32_t>(std::bit_width(kChunkBytes / row_bytes)) - 1;
  if ((1U << chunk_shift_) < kLongestRun) chunk_shift_ = static_cast<uint32_t>(std::bit_width(kLongestRun)) - 1;
  chunk_mask_ = (1U << chunk_shift_) - 1;
  state_offset_ = round_up(size_t{weight_bytes_} << chunk_shift_, kHugePage);
  chunk_bytes_ = state_offset_ + round_up(size_t{state_bytes_} << chunk_shift_, kHugePage);
  directory_bytes_ = ((kMostRows >> chunk_shift_) + 1) * sizeof(char*);
  chunks_ = reinterpret_cast<char**>(map_memory(directory_bytes_));
  add_chunk();  // so that row 0 has an address: reserved, not taken
}

RowStore::~RowStore() {
  for (size_t chunk = 0; chunk < chunk_count_; ++chunk) unmap_memory(chunks_[chunk], chunk_bytes_);
  unmap_memory(chunks_, directory_bytes_);
}

RowRun RowStore::take(uint32_t wanted) {
  std::lock_guard guard(mutex_);
  const int size = std::bit_width(wanted) - 1;
  for (int larger = size; larger < 9; ++larger) {
    if (free_[larger].empty()) continue;
    RowRun run = free_[larger].back();
    free_[larger].pop_back();
    while (larger > size) {
      --larger;
      run.count /= 2;
      free_[larger].push_back(RowRun{run.first + run.count, run.count});
    }
    return run;
  }
  for (int smaller = size - 1; smaller >= 0; --smaller) {
    if (free_[smaller].empty()) continue;
    const RowRun run = free_[smaller].back();
    free_[smaller].pop_back();
    return run;
  }
  // Runs do not cross chunks, as a chunk is a multiple of the longest run and shorter runs end at their own multiples.
  const uint64_t first = (next_row_ + wanted - 1) / wanted * wanted;
  // No length_error, which is a ValueError in Python and there says that nothing was changed: other keys of the call were.
  if (first + wanted > kMostRows) throw std::runtime_error("expected at most 2^32 - 1 rows in a table, got more");
  while (first >> chunk_shift_ >= chunk_count_) add_chunk();
  for (uint64_t row = next_row_; row < first; ++row) free_[0].push_back(RowRun{static_cast<uint32_t>(row), 1});
  leave_small_pages(next_row_, first + wanted);
  next_row_ = first + wanted;
  return RowRun{static_cast<uint32_t>(first), wanted};
}

void RowStore::give_back(RowRun run) {
  std::lock_guard guard(mutex_);
  while (run.count != 0) {  // a run that was used in part is cut into powers of two
    const int size = std::bit_width(run.count) - 1;
    const uint32_t count = 1U << size;
    free_[size].push_back(RowRun{run.first, count});
    run.first += count;
    run.count -= count;
  }
}

// The rows that came first are often the ones that are asked for most.
void RowStore::leave_small_pages(uint64_t rows, uint64_t more) {
  if (rows >> chunk_shift_ != 0) return;
  const auto fills = [&](size_t bytes) { return rows * bytes < kSmallTable && more * bytes >= kSmallTable; };
  if (fills(weight_bytes_)) collapse_pages(chunks_[0], kSmallTable);
  if (fills(state_bytes_)) collapse_pages(chunks_[0] + state_offset_, kSmallTable);
}

void RowStore::add_chunk() {
  char* chunk = map_memory(chunk_bytes_);
  const size_t small = chunk_count_ == 0 ? kSmallTable : 0;
  prefer_huge_pages(chunk + small, chunk + state_offset_);
  prefer_huge_pages(chunk + state_offset_ + small, chunk + chunk_bytes_);
  chunks_[chunk_count_++] = chunk;
}

size_t RowStore::touched_rows() const {
  std::lock_guard guard(mutex_);
  return next_row_;
}

}  // namespace embershard
