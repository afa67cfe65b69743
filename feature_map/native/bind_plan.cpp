// Plan for Python: reads the plan from plain dicts, takes Arrow C data capsules, gives NumPy arrays, maps faults.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind_values.h"
#include "faults.h"
#include "plan.h"

namespace nb = nanobind;

namespace embershard {
namespace {

NumberStep step_of(nb::handle spec) {
  const nb::tuple step = nb::cast<nb::tuple>(spec);
  const std::string kind = nb::cast<std::string>(step[0]);
  const double a = nb::cast<double>(step[1]), b = nb::cast<double>(step[2]);
  if (kind == "clip") return {NumberStep::Kind::clip, a, b};
  if (kind == "log1p") return {NumberStep::Kind::log1p, a, b};
  if (kind == "signed_log1p") return {NumberStep::Kind::signed_log1p, a, b};
  if (kind == "affine") return {NumberStep::Kind::affine, a, b};
  throw nb::value_error(("expected a step clip, log1p, signed_log1p or affine, got " + kind).c_str());
}

NumberSource number_source_of(nb::handle spec) {
  NumberSource source;
  source.column = get(spec, "column", -1);
  source.markers = markers_of(spec);
  source.has_fill = get(spec, "has_fill", false);
  source.fill = get(spec, "fill", 0.0);
  source.has_indicator = get(spec, "has_indicator", false);
  source.width = get(spec, "width", int64_t{1});
  for (nb::handle step : get(spec, "steps", nb::list())) source.steps.push_back(step_of(step));
  return source;
}

FeaturePlan feature_of(nb::handle spec) {
  FeaturePlan feature;
  const std::string kind = get<std::string>(spec, "kind", "values");
  feature.name = get(spec, "name", std::string());
  feature.salt = get(spec, "salt", uint64_t{0});
  for (nb::handle part : get(spec, "parts", nb::list())) feature.parts.push_back(value_source_of(part));
  if (kind == "values") feature.kind = FeaturePlan::Kind::values;
  else if (kind == "cross") feature.kind = FeaturePlan::Kind::cross;
  else if (kind == "buckets") feature.kind = FeaturePlan::Kind::buckets;
  else if (kind == "soft_buckets") feature.kind = FeaturePlan::Kind::soft_buckets;
  else if (kind == "constant") feature.kind = FeaturePlan::Kind::constant;
  else if (kind == "lookup") feature.kind = FeaturePlan::Kind::lookup;
  else throw nb::value_error(("unknown feature kind " + kind).c_str());
  if (feature.kind != FeaturePlan::Kind::constant && feature.parts.empty())
    throw nb::value_error("expected at least one part");
  feature.number = number_source_of(get(spec, "number", nb::dict()));
  feature.edges = get(spec, "edges", std::vector<double>());
  feature.constant = get(spec, "constant", uint64_t{0});
  feature.skip_absent = get(spec, "lookup_skip", false);
  if (feature.kind == FeaturePlan::Kind::lookup) {
    const auto from = get(spec, "lookup_hashes", std::vector<uint64_t>());
    const auto to = get(spec, "lookup_values", std::vector<uint64_t>());
    if (from.size() != to.size()) throw nb::value_error("expected as many lookup values as hashes");
    auto table = std::make_shared<LookupTable>();
    for (size_t i = 0; i < from.size(); ++i) table->emplace(from[i], to[i]);
    feature.table = std::move(table);
  }
  return feature;
}

LabelPlan label_of(nb::handle spec) {
  LabelPlan label;
  label.column = get(spec, "column", -1);
  label.has_threshold = get(spec, "has_threshold", false);
  label.threshold = get(spec, "threshold", 0.0);
  label.has_positives = get(spec, "has_positives", false);
  label.id = id_of(spec);
  label.positives = get(spec, "positives", std::vector<uint64_t>());
  label.markers = markers_of(spec);
  return label;
}

void check_column(int column, const PlanParts& parts) {
  if (column >= static_cast<int>(parts.columns.size())) throw nb::value_error("expected a column number of the plan");
}

PlanParts parts_of(nb::dict spec) {
  PlanParts parts;
  parts.columns = get(spec, "columns", std::vector<std::string>());
  for (nb::handle is_required : get(spec, "is_required", nb::list()))
    parts.is_required.push_back(nb::cast<bool>(is_required) ? 1 : 0);
  if (parts.is_required.size() != parts.columns.size())
    throw nb::value_error("expected one is_required flag a column");
  for (nb::handle feature : get(spec, "features", nb::list())) parts.features.push_back(feature_of(feature));
  for (nb::handle dense : get(spec, "dense", nb::list())) parts.dense.push_back(number_source_of(dense));
  for (nb::handle label : get(spec, "labels", nb::list())) parts.labels.push_back(label_of(label));
  parts.example_weight_column = get(spec, "example_weight_column", -1);
  parts.event_time_column = get(spec, "event_time_column", -1);
  if (spec.contains("group")) parts.group.source = value_source_of(spec["group"]);
  parts.group.column = parts.group.source.column;
  for (const FeaturePlan& feature : parts.features) {
    const bool has_number = feature.kind == FeaturePlan::Kind::buckets || feature.kind == FeaturePlan::Kind::soft_buckets;
    if (has_number && feature.number.column < 0) throw nb::value_error("expected a number column");
    check_column(feature.number.column, parts);
    for (const ValueSource& part : feature.parts) {
      if (part.column < 0 && !has_number) throw nb::value_error("expected a column");
      check_column(part.column, parts);
      check_column(part.weights_column, parts);
    }
  }
  for (const NumberSource& dense : parts.dense) {
    if (dense.column < 0 || dense.width < 1) throw nb::value_error("expected a column and a width of at least 1");
    check_column(dense.column, parts);
  }
  for (const LabelPlan& label : parts.labels) {
    if (label.column < 0) throw nb::value_error("expected a label column");
    check_column(label.column, parts);
  }
  check_column(parts.example_weight_column, parts);
  check_column(parts.event_time_column, parts);
  check_column(parts.group.column, parts);
  return parts;
}

[[noreturn]] void raise(const Fault& fault) {
  const char* name = fault.kind == FaultKind::column_type      ? "ColumnTypeError"
                     : fault.kind == FaultKind::label          ? "LabelError"
                     : fault.kind == FaultKind::missing_column ? "MissingColumnError"
                                                               : "ValueEncodeError";
  nb::object type = nb::module_::import_("embershard.feature_map.errors").attr(name);
  nb::object message = nb::steal(PyUnicode_DecodeUTF8(fault.message.data(),
                                                      static_cast<Py_ssize_t>(fault.message.size()), "replace"));
  PyErr_SetObject(type.ptr(), message.ptr());
  throw nb::python_error();
}

template <typename T>
nb::object optional_array(bool is_there, Buffer<T>& buffer, std::initializer_list<size_t> shape) {
  return is_there ? array_of(buffer, shape) : nb::object(nb::none());
}

// (size, keys, offsets, scalar, dense, label, weights, example_weight, group, event_time)
nb::tuple encode(const Plan& plan, nb::list capsules) {
  std::vector<RecordChunk> chunks;
  for (nb::handle pair : capsules) chunks.push_back(chunk_of(pair));
  Encoded out;
  std::optional<Fault> fault;
  {
    nb::gil_scoped_release release;
    try {
      out = plan.encode(chunks);
    } catch (Fault& caught) {
      fault = std::move(caught);
    }
  }
  if (fault) raise(*fault);
  const size_t rows = static_cast<size_t>(out.size);
  const size_t n = static_cast<size_t>(out.keys.size());
  nb::list scalar;
  for (const bool is_scalar : out.is_scalar) scalar.append(is_scalar);
  const size_t labels = static_cast<size_t>(out.label_count);
  const nb::object label = labels == 1 ? array_of(out.label, {rows}) : optional_array(labels > 1, out.label, {rows, labels});
  const size_t offsets = static_cast<size_t>(out.offsets.size());
  return nb::make_tuple(rows, array_of(out.keys, {n}), array_of(out.offsets, {offsets}), nb::tuple(scalar),
                        array_of(out.dense, {rows, static_cast<size_t>(out.dense_width)}), label,
                        optional_array(out.has_weights, out.weights, {n}),
                        optional_array(out.has_example_weight, out.example_weight, {rows}),
                        optional_array(out.has_group, out.group, {rows}),
                        optional_array(out.has_event_time, out.event_time, {rows}));
}

// Numbers of one column of one chunk as float64, NaN where null, after the steps.
nb::object read_column_numbers(nb::handle capsules, const std::string& column, nb::dict spec) {
  const RecordChunk chunk = chunk_of(capsules);
  NumberSource source = number_source_of(spec);
  Buffer<double> x;
  std::optional<Fault> fault;
  {
    nb::gil_scoped_release release;
    try {
      read_column(chunk, column, source, x);
    } catch (Fault& caught) {
      fault = std::move(caught);
    }
  }
  if (fault) raise(*fault);
  return array_of(x, {static_cast<size_t>(x.size())});
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def("read_numbers", &read_column_numbers, nb::arg("chunk"), nb::arg("column"), nb::arg("spec"));
  nb::class_<Plan>(m, "Plan", "A feature map prepared for encoding; immutable, safe from any thread.")
      .def(
          "__init__", [](Plan* self, nb::dict spec) { new (self) Plan(parts_of(std::move(spec))); }, nb::arg("spec"))
      .def("encode", &encode, nb::arg("chunks"),
           "Encode record batches given as (arrow_schema, arrow_array) capsules; releases the GIL.");
}

}  // namespace embershard
