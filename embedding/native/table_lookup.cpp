#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "row_finder.h"
#include "scratch.h"

namespace embershard {
namespace {

constexpr size_t kLookupBlock = 16384;  // keys read under one set of locks

// In steps of a constant size; a rest is copied from the end backwards, so that no width needs a call.
template <size_t kStep>
[[gnu::always_inline]] inline void copy_in_steps(char* out, const char* row, size_t bytes) {
  size_t offset = 0;
  for (; offset + kStep <= bytes; offset += kStep) __builtin_memcpy(out + offset, row + offset, kStep);
  if (offset != bytes) __builtin_memcpy(out + bytes - kStep, row + bytes - kStep, kStep);
}

inline void copy_row(float* out, const char* row, size_t bytes) {
  auto* target = reinterpret_cast<char*>(out);
  if (bytes >= 64) {
    copy_in_steps<64>(target, row, bytes);
  } else if (bytes >= 16) {
    copy_in_steps<16>(target, row, bytes);
  } else {
    copy_in_steps<4>(target, row, bytes);
  }
}

}  // namespace

void TableGroup::lookup_range(const Request& request, AbsentRows absent, const size_t* offsets, size_t begin, size_t end,
                              float* out) {
  const int64_t* splits = request.splits;
  size_t t = static_cast<size_t>(std::upper_bound(splits, splits + request.table_count + 1, static_cast<int64_t>(begin)) - splits) - 1;
  RowFinder<false> finder(kernels_, tablet_bits_);
  finder.run(
      [&](KeyBlock& block) {
        if (begin == end) return false;
        while (static_cast<int64_t>(begin) >= splits[t + 1]) ++t;
        block.table = &table(request.tables[t]);
        block.table_index = t;
        block.first = begin;
        block.count = std::min({KeyBlock::kSize, end - begin, static_cast<size_t>(splits[t + 1]) - begin});
        block.keys = request.keys + begin;
        begin += block.count;
        return true;
      },
      [&](const KeyBlock& block, const RowsAhead<false>& ahead) {
        const size_t in_table = block.first - static_cast<size_t>(splits[block.table_index]);
        copy_rows(block, ahead, absent, out + offsets[block.table_index] + in_table * block.table->dim());
      });
}

void TableGroup::copy_rows(const KeyBlock& block, const RowsAhead<false>& ahead, AbsentRows absent, float* out) const {
  const Table& table = *block.table;
  const size_t dim = table.dim(), bytes = table.store.weight_bytes();
  for (size_t i = 0; i < block.count; ++i, out += dim) {
    ahead.fetch(i);
    const uint32_t row = block.rows[i];
    if (row == kNoRow) {
      absent_row(table, block.keys[i], absent, out);
    } else if (table.is_float32()) {
      copy_row(out, table.store.weights(row), bytes);
    } else {
      kernels_.widen(table.spec.row_type, reinterpret_cast<const uint16_t*>(table.store.weights(row)), table.dim(), out);
    }
  }
  ahead.fetch_from(block.count);
}

void TableGroup::absent_row(const Table& table, uint64_t key, AbsentRows absent, float* out) const {
  if (absent == AbsentRows::initial && table.spec.admission == AdmissionKind::always) {
    table.draw(key, out);
    return;
  }
  std::memset(out, 0, table.dim() * sizeof(float));
  if (absent == AbsentRows::zeros) return;
  if (const float* given = table.given_vector(key)) {
    std::memcpy(out, given, table.dim() * sizeof(float));
  } else if (table.spec.unknown_table >= 0) {
    const Table& unknown = this->table(table.spec.unknown_table);
    const size_t tablet = tablet_of(key);
    const uint32_t row = unknown.parts[tablet].find(first_key(tablet, tablet_bits_));
    if (row != kNoRow) unknown.read(row, out);
  }
}

void TableGroup::lookup(const Request& request, AbsentRows absent, float* out) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  Scratch& mine = scratch();
  mine.offsets.assign(request.table_count + 1, 0);
  for (size_t t = 0; t < request.table_count; ++t) {
    mine.offsets[t + 1] =
        mine.offsets[t] + static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * table(request.tables[t]).dim();
  }
  const size_t* offsets = mine.offsets.data();
  const size_t n = request.size();
  std::atomic<size_t> cursor{0};
  const bool is_alone = pool_.threads() == 1 || n < kThreadedKeys;
  const size_t block = is_alone ? kLookupBlock : std::max(kThreadedKeys / 2, n / (4 * pool_.threads()));
  const std::function<void(size_t)> work = [&](size_t) {
    std::vector<uint8_t>& touched = scratch().touched;
    for (;;) {
      const size_t begin = cursor.fetch_add(block, std::memory_order_relaxed);
      if (begin >= n) return;
      const size_t end = std::min(n, begin + block);
      touched.assign(tablets(), 0);
      for (size_t i = begin; i < end; ++i) touched[tablet_of(request.keys[i])] = 1;
      LockedTablets locks(tablets_.get(), true);
      locks.reserve(tablets());
      for (size_t tablet = 0; tablet < tablets(); ++tablet) {
        if (touched[tablet]) locks.add(tablet);
      }
      lookup_range(request, absent, offsets, begin, end, out);
    }
  };
  if (n < kThreadedKeys) {
    work(0);
  } else {
    pool_.run(work);
  }
}

}  // namespace embershard
