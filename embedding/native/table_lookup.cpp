#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "scratch.h"

namespace embershard {
namespace {

constexpr size_t kLookupBlock = 16384;  // keys read under one set of locks

}  // namespace

void TableGroup::lookup_range(const Request& request, AbsentRows absent, const size_t* offsets, size_t begin, size_t end,
                              RowType type, void* out) {
  const int64_t* splits = request.splits;
  const size_t value_bytes = type == RowType::float32 ? sizeof(float) : sizeof(uint16_t);
  std::vector<uint32_t>& missing = scratch().missing;
  std::vector<float>& wide = scratch().row;
  size_t t = static_cast<size_t>(std::upper_bound(splits, splits + request.table_count + 1, static_cast<int64_t>(begin)) - splits) - 1;
  for (; begin < end; ++t) {
    const size_t count = std::min(end, static_cast<size_t>(splits[t + 1])) - begin;
    if (count == 0) continue;
    const Table& table = this->table(request.tables[t]);
    const uint64_t* keys = request.keys + begin;
    const size_t dim = table.dim();
    char* rows = static_cast<char*>(out) + (offsets[t] + (begin - static_cast<size_t>(splits[t])) * dim) * value_bytes;
    if (missing.size() < count) missing.resize(count);
    const RowSource source = {table.parts.get(), &table.store, table.spec.row_type, table.dim(), tablet_bits_};
    const size_t missing_count = kernels_.read_rows(source, keys, count, type, rows, missing.data());
    float* widened = room_for(dim, wide);
    for (size_t i = 0; i < missing_count; ++i) {
      char* row = rows + size_t{missing[i]} * dim * value_bytes;
      float* weights = type == RowType::float32 ? reinterpret_cast<float*>(row) : widened;
      absent_row(table, keys[missing[i]], absent, weights);
      if (type != RowType::float32) kernels_.narrow_any(type, weights, table.dim(), reinterpret_cast<uint16_t*>(row));
    }
    begin += count;
  }
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

void TableGroup::lookup(const Request& request, AbsentRows absent, RowType type, void* out) {
  std::shared_lock structure(structure_);
  require(request.tables, request.table_count);
  const size_t* offsets = value_offsets(request);
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
      lookup_range(request, absent, offsets, begin, end, type, out);
    }
  };
  share_out(n, work);
}

}  // namespace embershard
