// The table group for Python: checks shapes and ids, releases the GIL, maps errors. Arrays are used where they lie.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "key_partition.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embershard {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Values of a type that is told beside them: float, or uint16_t for the two 16-bit types.
using Values = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadValues = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Owned = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class T, class A>
Owned<T> to_numpy(std::vector<T, A>&& values) {
  auto* held = new std::vector<T, A>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T, A>*>(p); });
  return Owned<T>(held->data(), {held->size()}, owner);
}

void expect_length(const char* what, size_t expected, size_t got) {
  if (expected != got) {
    throw std::invalid_argument("expected " + std::string(what) + " of length " + std::to_string(expected) + ", got " +
                                std::to_string(got));
  }
}

template <class A>
RowType type_of(const char* what, int type, const A& values) {
  const auto row_type = static_cast<RowType>(type);
  const bool is_float32 = row_type == RowType::float32;
  if (values.dtype() != (is_float32 ? nb::dtype<float>() : nb::dtype<uint16_t>())) {
    throw nb::type_error((std::string(what) + ": expected " + (is_float32 ? "float32" : "uint16")).c_str());
  }
  return row_type;
}

// A table group with what is needed to check arguments before the core sees them.
class BoundTableGroup {
 public:
  BoundTableGroup(int tablet_bits, size_t threads, const std::string& kernels)
      : group_(checked_bits(tablet_bits), std::max<size_t>(threads, 1), kernels) {}

  int32_t add_table(const TableSpec& spec) {
    nb::gil_scoped_release release;
    std::unique_lock guard(widths_mutex_);
    const int32_t id = group_.add_table(spec);
    widths_.emplace_back(spec.dim, spec.state_width);
    return id;
  }

  void drop_table(int32_t table) {
    nb::gil_scoped_release release;
    group_.drop_table(table);
  }

  void lookup(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys, const Vector<const int64_t>& splits,
              int absent, int type, const Values& out) {
    const Request request = checked(tables, keys, splits);
    const RowType row_type = type_of("out", type, out);
    expect_length("out", total(request, &Widths::first), out.size());
    nb::gil_scoped_release release;
    group_.lookup(request, static_cast<AbsentRows>(absent), row_type, out.data());
  }

  TableGroup::PreparedKeys prepare(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys,
                       const Vector<const int64_t>& splits, const Vector<const uint32_t>& occurrences) {
    const Request request = checked(tables, keys, splits);
    expect_length("occurrences", request.size(), occurrences.size());
    nb::gil_scoped_release release;
    return group_.prepare(request, occurrences.data());
  }

  nb::tuple apply_gradients(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys,
                            const Vector<const int64_t>& splits, int type, const ReadValues& gradients,
                            const Vector<const uint32_t>& occurrences, const UpdateStep& step,
                            const std::optional<Vector<const bool>>& mask,
                            const std::optional<Vector<const uint32_t>>& clicks, TableGroup::PreparedKeys* prepared) {
    const Request request = checked(tables, keys, splits);
    if (prepared != nullptr && (mask.has_value() || !prepared->take(group_, request))) {
      throw std::invalid_argument("expected keys that were prepared for this push to all tablets, and not used yet");
    }
    const RowType row_type = type_of("gradients", type, gradients);
    expect_length("gradients", total(request, &Widths::first), gradients.size());
    expect_length("occurrences", request.size(), occurrences.size());
    if (clicks.has_value()) expect_length("clicks", request.size(), clicks->size());
    const bool* tablets = checked_mask(mask);
    UpdateReport report;
    {
      nb::gil_scoped_release release;
      report = group_.apply_gradients(request, {row_type, gradients.data()}, occurrences.data(), step, tablets,
                                      clicks.has_value() ? clicks->data() : nullptr,
                                      prepared);
    }
    nb::list updates;
    for (const TableUpdate& update : report.tables) {
      updates.append(nb::make_tuple(update.applied, update.created, update.not_admitted, update.non_finite,
                                    update.over_limit, update.evicted));
    }
    nb::list refused;
    for (auto& named : report.refused_keys) refused.append(nb::cast(named));
    return nb::make_tuple(updates, refused);
  }

  int64_t assign(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys, const Vector<const int64_t>& splits,
                 const Vector<const float>& weights, const std::optional<Vector<const float>>& state, bool if_absent,
                 uint32_t now, const std::optional<Vector<const bool>>& mask) {
    const Request request = checked(tables, keys, splits);
    expect_length("weights", total(request, &Widths::first), weights.size());
    if (state.has_value()) expect_length("state", total(request, &Widths::second), state->size());
    const bool* tablets = checked_mask(mask);
    nb::gil_scoped_release release;
    return group_.assign(request, {weights.data(), state.has_value() ? state->data() : nullptr, if_absent, now}, tablets);
  }

  int64_t erase(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys, const Vector<const int64_t>& splits,
                const std::optional<Vector<const bool>>& mask) {
    const Request request = checked(tables, keys, splits);
    const bool* tablets = checked_mask(mask);
    nb::gil_scoped_release release;
    return group_.erase(request, tablets);
  }

  // Expired keys per table, and the next cursor (position in `tables`, tablet, hash).
  nb::tuple expire(const std::vector<int32_t>& tables, uint32_t now, uint64_t max_rows, bool removes,
                   const std::optional<Vector<const bool>>& mask, const std::tuple<size_t, size_t, uint64_t>& cursor) {
    for (int32_t table : tables) check_table(table);
    const bool* tablets = checked_mask(mask);
    ExpiryCursor at{std::get<0>(cursor), std::get<1>(cursor), std::get<2>(cursor)};
    std::vector<std::vector<uint64_t>> expired;
    {
      nb::gil_scoped_release release;
      expired = group_.expire(tables, now, max_rows, removes, tablets, at);
    }
    nb::list keys;
    for (auto& of_table : expired) keys.append(to_numpy(std::move(of_table)));
    return nb::make_tuple(keys, nb::make_tuple(at.table, at.tablet, at.hash));
  }

  nb::tuple snapshot(size_t tablet, const std::vector<int32_t>& tables, std::optional<uint32_t> since) {
    check_tablet(tablet);
    std::vector<TableRows> parts;
    TabletState state{};
    {
      nb::gil_scoped_release release;
      state = group_.snapshot(tablet, tables, !since.has_value(), since.value_or(0), parts);
    }
    nb::list rows;
    for (TableRows& part : parts) {
      rows.append(nb::make_tuple(to_numpy(std::move(part.keys)), to_numpy(std::move(part.weights)), to_numpy(std::move(part.state)),
                                 to_numpy(std::move(part.count)), to_numpy(std::move(part.touched_at)),
                                 to_numpy(std::move(part.version)), to_numpy(std::move(part.admission_keys)),
                                 to_numpy(std::move(part.admission_counts)), to_numpy(std::move(part.erased_keys)),
                                 to_numpy(std::move(part.erased_versions)), to_numpy(std::move(part.clicks))));
    }
    return nb::make_tuple(state.version, state.push_count, state.erased_since, state.is_whole, rows);
  }

  // `tables`: (id, keys, weights as bytes, state, count, touched_at, version, admission keys, counts, erased keys, versions,
  // clicks or none of them) each.
  void import_tablet(size_t tablet, const nb::list& tables, uint32_t version, uint64_t push_count, uint32_t erased_since,
                     bool is_whole) {
    check_tablet(tablet);
    std::vector<TableRowsView> views;
    std::vector<nb::object> held;
    for (nb::handle handle : tables) {
      auto part = nb::cast<nb::tuple>(handle);
      const auto id = nb::cast<int32_t>(part[0]);
      check_table(id);
      const auto keys = keep<const uint64_t>(part[1], held);
      const auto weights = keep<const uint8_t>(part[2], held);
      const auto state = keep<const float>(part[3], held);
      const auto count = keep<const uint32_t>(part[4], held);
      const auto touched_at = keep<const uint32_t>(part[5], held);
      const auto row_version = keep<const uint32_t>(part[6], held);
      const auto admission_keys = keep<const uint64_t>(part[7], held);
      const auto admission_counts = keep<const uint32_t>(part[8], held);
      const auto erased_keys = keep<const uint64_t>(part[9], held);
      const auto erased_versions = keep<const uint32_t>(part[10], held);
      const auto clicks = keep<const uint32_t>(part[11], held);
      const size_t n = keys.size();
      expect_length("weights in bytes", n * group_.weight_bytes(id), weights.size());
      expect_length("state", n * widths(id).second, state.size());
      expect_length("count", n, count.size());
      expect_length("touched_at", n, touched_at.size());
      expect_length("version", n, row_version.size());
      expect_length("admission counts", admission_keys.size(), admission_counts.size());
      expect_length("erased versions", erased_keys.size(), erased_versions.size());
      if (clicks.size() != 0) expect_length("clicks", n, clicks.size());
      views.push_back(TableRowsView{id, n, admission_keys.size(), erased_keys.size(), keys.data(),
                                    reinterpret_cast<const char*>(weights.data()), state.data(), count.data(),
                                    touched_at.data(), row_version.data(), admission_keys.data(), admission_counts.data(),
                                    erased_keys.data(), erased_versions.data(),
                                    clicks.size() == 0 ? nullptr : clicks.data()});
    }
    nb::gil_scoped_release release;
    group_.import_tablet(tablet, views, TabletState{version, push_count, erased_since, is_whole});
  }

  void drop_tablet(size_t tablet) {
    check_tablet(tablet);
    nb::gil_scoped_release release;
    group_.drop_tablet(tablet);
  }

  uint32_t cut(size_t tablet) {
    check_tablet(tablet);
    nb::gil_scoped_release release;
    return group_.cut(tablet);
  }

  uint32_t version(size_t tablet) {
    check_tablet(tablet);
    nb::gil_scoped_release release;
    return group_.version(tablet);
  }

  Owned<uint64_t> push_counts() {
    std::vector<uint64_t> counts(group_.tablets());
    {
      nb::gil_scoped_release release;
      group_.push_counts(counts.data());
    }
    return to_numpy(std::move(counts));
  }

  nb::tuple stats(int32_t table) {
    check_table(table);
    PartStats stats;
    {
      nb::gil_scoped_release release;
      stats = group_.stats(table);
    }
    return nb::make_tuple(to_numpy(std::move(stats.rows_by_tablet)), stats.rows, stats.slots, stats.weight_bytes,
                          stats.state_bytes, stats.counter_bytes, stats.index_bytes, stats.free_bytes);
  }

 private:
  using Widths = std::pair<uint32_t, uint32_t>;  // dim, state width

  static int checked_bits(int tablet_bits) {
    if (tablet_bits < 0 || tablet_bits > 16) {
      throw std::invalid_argument("expected tablet_bits in 0..16, got " + std::to_string(tablet_bits));
    }
    return tablet_bits;
  }

  template <class T>
  static Vector<T> keep(const nb::object& array, std::vector<nb::object>& held) {
    held.push_back(array);
    return nb::cast<Vector<T>>(array);
  }

  Widths widths(int32_t table) const {
    std::shared_lock guard(widths_mutex_);
    return widths_[static_cast<size_t>(table)];
  }

  void check_table(int32_t table) const {
    std::shared_lock guard(widths_mutex_);
    if (table < 0 || static_cast<size_t>(table) >= widths_.size()) {
      throw std::invalid_argument("expected a table id below " + std::to_string(widths_.size()) + ", got " +
                                  std::to_string(table));
    }
  }

  void check_tablet(size_t tablet) const {
    if (tablet >= group_.tablets()) {
      throw std::invalid_argument("expected a tablet below " + std::to_string(group_.tablets()) + ", got " +
                                  std::to_string(tablet));
    }
  }

  Request checked(const Vector<const int32_t>& tables, const Vector<const uint64_t>& keys,
                  const Vector<const int64_t>& splits) const {
    expect_length("splits", tables.size() + 1, splits.size());
    if (keys.size() >= kNoRow) throw std::invalid_argument("expected fewer than 2^32 - 1 keys in a request");
    for (size_t t = 0; t < tables.size(); ++t) {
      check_table(tables.data()[t]);
      if (splits.data()[t] > splits.data()[t + 1]) throw std::invalid_argument("expected ascending splits");
      for (size_t other = 0; other < t; ++other) {
        if (tables.data()[other] == tables.data()[t]) throw std::invalid_argument("expected distinct tables in a request");
      }
    }
    if (splits.data()[0] != 0) throw std::invalid_argument("expected splits to begin with 0");
    expect_length("keys (the last split)", static_cast<size_t>(splits.data()[tables.size()]), keys.size());
    return Request{tables.data(), tables.size(), keys.data(), splits.data()};
  }

  size_t total(const Request& request, uint32_t Widths::* width) const {
    size_t sum = 0;
    for (size_t t = 0; t < request.table_count; ++t) {
      sum += static_cast<size_t>(request.splits[t + 1] - request.splits[t]) * (widths(request.tables[t]).*width);
    }
    return sum;
  }

  const bool* checked_mask(const std::optional<Vector<const bool>>& mask) const {
    if (!mask.has_value()) return nullptr;
    expect_length("tablet mask", group_.tablets(), mask->size());
    return mask->data();
  }

  TableGroup group_;
  mutable std::shared_mutex widths_mutex_;
  std::vector<Widths> widths_;
};

void translate_duplicate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const DuplicateKey& duplicate) {
    // The Python side names the table; it reads these two numbers.
    PyErr_SetObject(PyExc_KeyError, nb::make_tuple(duplicate.table, duplicate.key).ptr());
  }
}

TableSpec make_spec(int row_type, uint64_t stream_base, const std::vector<BlockSpec>& blocks) {
  TableSpec spec;
  spec.row_type = static_cast<RowType>(row_type);
  spec.stream_base = stream_base;
  spec.blocks = blocks;
  for (BlockSpec& block : spec.blocks) {
    block.column = spec.dim;
    block.state_column = spec.state_width;
    spec.dim += block.dim;
    spec.state_width += block.state_width;
  }
  return spec;
}

template <class Enum>
auto enum_property(Enum BlockSpec::* member) {
  return std::make_pair([member](const BlockSpec& block) { return static_cast<int>(block.*member); },
                        [member](BlockSpec& block, int value) { block.*member = static_cast<Enum>(value); });
}

void bind_specs(nb::module_& m) {
  auto block = nb::class_<BlockSpec>(m, "BlockSpec")
                   .def(nb::init<>())
                   .def_rw("dim", &BlockSpec::dim)
                   .def_rw("state_width", &BlockSpec::state_width)
                   .def_rw("low", &BlockSpec::low)
                   .def_rw("span", &BlockSpec::span)
                   .def_rw("below_high", &BlockSpec::below_high)
                   .def_rw("mean", &BlockSpec::mean)
                   .def_rw("std", &BlockSpec::std)
                   .def_rw("lr", &BlockSpec::lr)
                   .def_rw("weight_decay", &BlockSpec::weight_decay)
                   .def_rw("catch_up", &BlockSpec::catch_up)
                   .def_rw("clip_value", &BlockSpec::clip_value)
                   .def_rw("clip_norm", &BlockSpec::clip_norm)
                   .def_rw("max_norm", &BlockSpec::max_norm)
                   .def_rw("sum_gradients", &BlockSpec::sum_gradients)
                   .def_rw("eps", &BlockSpec::eps)
                   .def_rw("initial_accumulator", &BlockSpec::initial_accumulator)
                   .def_rw("beta1", &BlockSpec::beta1)
                   .def_rw("one_minus_beta1", &BlockSpec::one_minus_beta1)
                   .def_rw("beta2", &BlockSpec::beta2)
                   .def_rw("one_minus_beta2", &BlockSpec::one_minus_beta2)
                   .def_rw("beta1_exact", &BlockSpec::beta1_exact)
                   .def_rw("beta2_exact", &BlockSpec::beta2_exact)
                   .def_rw("nesterov", &BlockSpec::nesterov)
                   .def_rw("corrects_by_row", &BlockSpec::corrects_by_row)
                   .def_rw("l1", &BlockSpec::l1)
                   .def_rw("l2", &BlockSpec::l2)
                   .def_rw("beta", &BlockSpec::beta);
  const auto initializer = enum_property(&BlockSpec::initializer);
  const auto optimizer = enum_property(&BlockSpec::optimizer);
  const auto decay_mode = enum_property(&BlockSpec::decay_mode);
  block.def_prop_rw("initializer", initializer.first, initializer.second)
      .def_prop_rw("optimizer", optimizer.first, optimizer.second)
      .def_prop_rw("decay_mode", decay_mode.first, decay_mode.second);
  nb::class_<TableSpec>(m, "TableSpec")
      .def("__init__",
           [](TableSpec* self, int row_type, uint64_t stream_base, const std::vector<BlockSpec>& blocks) {
             new (self) TableSpec(make_spec(row_type, stream_base, blocks));
           },
           "row_type"_a, "stream_base"_a, "blocks"_a)
      .def_rw("admission_count", &TableSpec::admission_count)
      .def_rw("counter_limit", &TableSpec::counter_limit)
      .def_rw("admission_probability", &TableSpec::admission_probability)
      .def_rw("row_limit", &TableSpec::row_limit)
      .def_rw("ttl_seconds", &TableSpec::ttl_seconds)
      .def_rw("min_l2", &TableSpec::min_l2)
      .def_rw("min_score", &TableSpec::min_score)
      .def_rw("show_weight", &TableSpec::show_weight)
      .def_rw("click_weight", &TableSpec::click_weight)
      .def_rw("half_life_seconds", &TableSpec::half_life_seconds)
      .def_rw("trainable", &TableSpec::trainable)
      .def_rw("unknown_table", &TableSpec::unknown_table)
      .def_prop_rw("admission", [](const TableSpec& spec) { return static_cast<int>(spec.admission); },
                   [](TableSpec& spec, int value) { spec.admission = static_cast<AdmissionKind>(value); })
      .def_prop_rw("capacity_order", [](const TableSpec& spec) { return static_cast<int>(spec.capacity_order); },
                   [](TableSpec& spec, int value) { spec.capacity_order = static_cast<CapacityOrder>(value); })
      .def("give_vectors", [](TableSpec& spec, const Vector<const uint64_t>& keys, const Vector<const float>& vectors) {
        expect_length("vectors", keys.size() * spec.dim, vectors.size());
        spec.init_keys.assign(keys.data(), keys.data() + keys.size());
        spec.init_vectors.assign(vectors.data(), vectors.data() + vectors.size());
      });
  nb::class_<UpdateStep>(m, "UpdateStep")
      .def("__init__",
           [](UpdateStep* self, uint32_t examples, int64_t step, uint32_t now, float lr_scale, uint64_t unit, uint64_t batch) {
             new (self) UpdateStep{examples, step, now, lr_scale, unit, batch};
           },
           "examples"_a, "step"_a, "now"_a, "lr_scale"_a, "unit"_a, "batch"_a);
}

}  // namespace

void bind_table(nb::module_& m) {
  nb::register_exception_translator(translate_duplicate, nullptr);
  bind_specs(m);
  m.def("kernel_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* const* set = available_kernels(); *set != nullptr; ++set) names.emplace_back((*set)->name);
    return names;
  });
  nb::class_<TableGroup::PreparedKeys>(m, "PreparedKeys");
  nb::class_<BoundTableGroup>(m, "TableGroup")
      .def(nb::init<int, size_t, const std::string&>(), "tablet_bits"_a, "threads"_a, "kernels"_a)
      .def("add_table", &BoundTableGroup::add_table, "spec"_a)
      .def("drop_table", &BoundTableGroup::drop_table, "table"_a)
      .def("lookup", &BoundTableGroup::lookup, "tables"_a.noconvert(), "keys"_a.noconvert(), "splits"_a.noconvert(),
           "absent"_a, "type"_a, "out"_a.noconvert())
      .def("apply_gradients", &BoundTableGroup::apply_gradients, "tables"_a.noconvert(), "keys"_a.noconvert(),
           "splits"_a.noconvert(), "type"_a, "gradients"_a.noconvert(), "occurrences"_a.noconvert(), "step"_a,
           "mask"_a.noconvert().none(), "clicks"_a.noconvert().none(), "prepared"_a.none() = nb::none())
      .def("prepare", &BoundTableGroup::prepare, "tables"_a.noconvert(), "keys"_a.noconvert(), "splits"_a.noconvert(),
           "occurrences"_a.noconvert(), nb::keep_alive<0, 1>())
      .def("assign", &BoundTableGroup::assign, "tables"_a.noconvert(), "keys"_a.noconvert(), "splits"_a.noconvert(),
           "weights"_a.noconvert(), "state"_a.noconvert().none(), "if_absent"_a, "now"_a, "mask"_a.noconvert().none())
      .def("erase", &BoundTableGroup::erase, "tables"_a.noconvert(), "keys"_a.noconvert(), "splits"_a.noconvert(),
           "mask"_a.noconvert().none())
      .def("snapshot", &BoundTableGroup::snapshot, "tablet"_a, "tables"_a, "since"_a.none())
      .def("import_tablet", &BoundTableGroup::import_tablet, "tablet"_a, "tables"_a, "version"_a,
           "push_count"_a, "erased_since"_a, "is_whole"_a)
      .def("expire", &BoundTableGroup::expire, "tables"_a, "now"_a, "max_rows"_a, "removes"_a, "mask"_a.noconvert().none(),
           "cursor"_a)
      .def("drop_tablet", &BoundTableGroup::drop_tablet, "tablet"_a)
      .def("cut", &BoundTableGroup::cut, "tablet"_a)
      .def("version", &BoundTableGroup::version, "tablet"_a)
      .def("push_counts", &BoundTableGroup::push_counts)
      .def("stats", &BoundTableGroup::stats, "table"_a);
}

}  // namespace embershard
