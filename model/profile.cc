#include "model/profile.h"

#include <set>

#include "base/ids.h"
#include "base/numbers.h"
#include "model/config_fields.h"
#include "model/names.h"

namespace orrery::model {
namespace {

using enum base::ErrorCode;

constexpr std::string_view kSchema = "orrery.profile/1";
// seconds; nothing is measured in less than a picosecond
constexpr base::DoubleRange kTime{1e-12, 1e7};
constexpr base::DoubleRange kTimeOrZero{0.0, 1e7};
constexpr base::DoubleRange kBandwidth{1.0, 1e18};  // bytes per second
constexpr base::DoubleRange kFactor{1e-6, 1e6};
constexpr base::DoubleRange kCount{1, 0x1p50};
constexpr base::DoubleRange kCountOrZero{0, 0x1p50};
constexpr base::DoubleRange kRanks{1, 1 << 30};

constexpr Field<Provenance> kProvenance[] = {
    {"machine", &Provenance::machine},
    {"software", &Provenance::software},
    {"date", &Provenance::date},
    {"note", &Provenance::note},
};
constexpr Field<LayerTimes> kLayer[] = {
    {"model", &LayerTimes::model},
    {"sequence", &LayerTimes::sequence, kCount},
    {"hidden", &LayerTimes::hidden, kCount},
};
constexpr Field<LayerPoint> kLayerPoint[] = {
    {"batch", &LayerPoint::batch, kCount},
    {"layer_seconds_per_sample", &LayerPoint::layer_seconds_per_sample, kTime},
    {"other_seconds_per_sample", &LayerPoint::other_seconds_per_sample, kTimeOrZero},
};
constexpr Field<CollectivePoint> kCollectivePoint[] = {
    {"bytes", &CollectivePoint::bytes, kCount},
    {"seconds", &CollectivePoint::seconds, kTime},
};
constexpr Field<CollectiveTimes> kCollectiveFields[] = {
    {"stride", &CollectiveTimes::stride, kRanks},
    {"hosts", &CollectiveTimes::hosts, kRanks},
    {"bus_bandwidth_bytes_per_second", &CollectiveTimes::bus_bandwidth, kBandwidth},
    {"latency_seconds", &CollectiveTimes::latency_seconds, kTimeOrZero},
};
constexpr Field<StepCommunication> kStepCommunication[] = {
    {"factor", &StepCommunication::factor, {1.0, 100.0}},
    {"issue_seconds", &StepCommunication::issue_seconds, {0.0, 1.0}},
    {"fabric_share", &StepCommunication::fabric_share, {1e-3, 1.0}},
};
constexpr Field<Control> kControl[] = {
    {"compute_seconds", &Control::compute_seconds, kTime},
    {"collective_seconds", &Control::collective_seconds, kTimeOrZero},
    {"spread", &Control::spread, {0.0, 1e6}},
};
constexpr Field<Profile> kScalars[] = {
    {"composition_factor", &Profile::composition_factor, kFactor},
    {"composition_residual", &Profile::composition_residual, {0.0, 1e6}},
    {"device_deviation", &Profile::device_deviation, {0.0, 0.5}},
    {"overlap_slowdown", &Profile::overlap_slowdown, {1.0, 1e3}},
    {"overlaps", &Profile::overlaps},
    {"launch_seconds", &Profile::launch_seconds, kTimeOrZero},
    {"context_bytes", &Profile::context_bytes, kCountOrZero},
    {"held_ranks", &Profile::held_ranks, kCountOrZero},
};
constexpr base::EnumNames<Collective::kPointToPoint> kCollectives("all_reduce", "all_gather",
                                                                  "reduce_scatter", "all_to_all",
                                                                  "broadcast", "point_to_point");

std::string entry(std::string_view list, std::size_t index) {
  return fmt::format("{}[{}]", list, index);
}

/// Calls read(node, "list[i]") for the entries of an optional list.
template <class T, class Read>
std::vector<T> read_list(base::Reader& r, std::string_view key, const Read& read) {
  std::vector<T> out;
  const auto nodes = r.optional_list(key).value_or(std::vector<base::Node>{});
  for (std::size_t i = 0; i < nodes.size(); ++i)
    out.push_back(read(nodes[i], entry(key, i), r.sink()));
  return out;
}

/// The entries of "points". Faults where those of the first field do not ascend strictly; wrong
/// values (0) were reported by their reader.
template <class Point, std::size_t N>
std::vector<Point> read_points(base::Reader& r, const std::string& what,
                               const Field<Point> (&fields)[N], std::int64_t Point::*size) {
  std::int64_t last = 0;
  return read_list<Point>(
      r, "points", [&](const base::Node& node, const std::string& which, base::ErrorSink& sink) {
        base::Reader reader(node, fmt::format("{}.{}", what, which), sink);
        Point point;
        read_fields(reader, fields, point);
        const std::int64_t value = point.*size;
        if (value > 0 && value <= last)
          reader.error(fields[0].key, kInconsistent, "points must ascend: '{}' {} follows {}",
                       fields[0].key, value, last);
        if (value > 0) last = value;
        reader.finish();
        return point;
      });
}

Provenance read_provenance(base::Reader& parent) {
  base::Reader r(parent.required_object("provenance"), "provenance", parent.sink());
  if (!r.has("source")) r.required_string("source");
  const auto source = r.optional_string("source");
  if (source && source->empty()) {
    r.error("source", kBadValue, "'source' is empty: say where the numbers come from");
  }
  Provenance p{.source = source.value_or("")};
  read_fields(r, kProvenance, p, Fields::kOptional);
  r.finish();
  return p;
}

OperatorPoint read_operator(const base::Node& node, const std::string& what,
                            base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  OperatorPoint p;
  if (const base::Node shape = r.required_object("shape"); shape.is_object())
    p.shape = sink.take(read_segment_shape(shape));
  p.phase = r.required_enum("phase", names_up_to(Phase::kBG));
  p.seconds_median = r.required_double("seconds_median", kTime);
  p.seconds_p10 = r.optional_double("seconds_p10", kTime).value_or(p.seconds_median);
  p.seconds_p90 = r.optional_double("seconds_p90", kTime).value_or(p.seconds_median);
  p.samples = r.optional_int("samples", {0, std::int64_t{1} << 50}).value_or(0);
  if (p.seconds_median > 0 &&
      (p.seconds_p10 > p.seconds_median || p.seconds_p90 < p.seconds_median)) {
    r.error("seconds_median", kInconsistent, "percentiles of {} are out of order: {}, {}, {}", what,
            p.seconds_p10, p.seconds_median, p.seconds_p90);
  }
  r.finish();
  return p;
}

LayerTimes read_layer(const base::Node& node, const std::string& what, base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  LayerTimes layer;
  read_fields(r, kLayer, layer);
  layer.precision = r.required_enum("precision", names_up_to(kLastPrecision));
  r.required_node("points");
  layer.points = read_points(r, what, kLayerPoint, &LayerPoint::batch);
  if (layer.points.empty() && r.has("points"))
    r.error("points", kMissingKey, "{} has no points", what);
  r.finish();
  return layer;
}

CollectiveTimes read_collective(const base::Node& node, const std::string& what,
                                base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  CollectiveTimes c;
  c.op = r.required_enum("op", names_up_to(Collective::kPointToPoint));
  c.size = r.required_int("size", {2, 1 << 30});
  read_fields(r, kCollectiveFields, c, Fields::kOptional);
  c.points = read_points(r, what, kCollectivePoint, &CollectivePoint::bytes);
  const bool bandwidth = r.has("bus_bandwidth_bytes_per_second"), points = r.has("points");
  if (bandwidth && points) {
    r.error("points", kInconsistent, "{} has both points and 'bus_bandwidth_bytes_per_second'",
            what);
  } else if (!bandwidth && c.points.empty() && node.is_object()) {
    r.error("points", kMissingKey, "{} needs points or 'bus_bandwidth_bytes_per_second'", what);
  }
  if (points && !bandwidth && r.has("latency_seconds")) {
    r.error("latency_seconds", kInconsistent, "{}: measured points contain the latency", what);
  }
  if (c.hosts > c.size && c.size > 0) {
    r.error("hosts", kInconsistent, "{}: {} ranks cannot stand on {} hosts", what, c.size, c.hosts);
  }
  r.finish();
  return c;
}

StepCommunication read_step_communication(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "step_communication", sink);
  StepCommunication c;
  read_fields(r, kStepCommunication, c);
  r.finish();
  return c;
}

Control read_control(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "control", sink);
  Control c;
  r.required_node("compute_seconds");
  read_fields(r, kControl, c, Fields::kOptional);
  r.finish();
  return c;
}

Spread read_spread(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "spread", sink);
  Spread spread;
  for (const auto& [name, field] : kSpreadFields)
    spread.*field = r.optional_double(name, {0.0, 2.0}).value_or(0.0);
  r.finish();
  return spread;
}

/// The same measurement twice: which one holds?
void check_repeats(base::Reader& r, const Profile& p) {
  const auto check = [&r](std::string_view key, const auto& list, const auto& identity) {
    std::set<std::string> seen;
    const auto nodes = r.optional_list(key).value_or(std::vector<base::Node>{});
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (seen.insert(identity(list[i])).second) continue;
      r.sink().error(nodes[i].span(), kInconsistent, "{} repeats an earlier entry", entry(key, i));
    }
  };
  check("surfaces", p.surfaces,
        [](const ComputeSurface& c) { return std::string(to_string(c.dtype)); });
  check("operators", p.operators, [](const OperatorPoint& o) {
    return fmt::format("{} {}", base::to_line(to_json(o.shape)), to_string(o.phase));
  });
  check("layers", p.layers, [](const LayerTimes& l) {
    return fmt::format("{} {} {} {}", l.sequence, l.hidden, to_string(l.precision), l.model);
  });
  check("collectives", p.collectives, [](const CollectiveTimes& c) {
    return fmt::format("{} {} {} {}", to_string(c.op), c.size, c.stride, c.hosts);
  });
}

base::Json to_json(const OperatorPoint& p) {
  return {{"shape", to_json(p.shape)},          {"phase", to_string(p.phase)},
          {"seconds_median", p.seconds_median}, {"seconds_p10", p.seconds_p10},
          {"seconds_p90", p.seconds_p90},       {"samples", p.samples}};
}

base::Json to_json(const LayerTimes& l) {
  base::Json json = fields_to_json(l, kLayer);
  json["precision"] = to_string(l.precision);
  json["points"] = base::Json::array();
  for (const LayerPoint& p : l.points) json["points"].push_back(fields_to_json(p, kLayerPoint));
  return json;
}

base::Json to_json(const CollectiveTimes& c) {
  base::Json json{
      {"op", to_string(c.op)}, {"size", c.size}, {"stride", c.stride}, {"hosts", c.hosts}};
  if (c.bus_bandwidth > 0) {
    json["bus_bandwidth_bytes_per_second"] = c.bus_bandwidth;
    json["latency_seconds"] = c.latency_seconds;
  } else {
    json["points"] = base::Json::array();
    for (const CollectivePoint& p : c.points)
      json["points"].push_back(fields_to_json(p, kCollectivePoint));
  }
  return json;
}

template <class T>
base::Json list_to_json(const std::vector<T>& list) {
  base::Json json = base::Json::array();
  for (const T& item : list) json.push_back(to_json(item));
  return json;
}

}  // namespace

std::string_view to_string(Collective op) { return kCollectives[op]; }

base::Result<Profile> read_profile(const base::Node& root, const ProfileOfName& of_name) {
  base::ErrorSink sink;
  base::Reader r(root, "profile", sink);
  const std::string schema = r.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    r.error("schema", kUnsupported, "schema '{}', but this reads '{}'", schema, kSchema);
  }
  if (!sink.ok()) return sink.result(Profile{});  // the other keys mean what their schema says
  Profile p;
  if (of_name && r.has("like")) {
    auto other = of_name(r.required_string("like"));
    if (!other) {
      for (base::Diagnostic& fault : other.error()) {
        if (fault.where.file.empty()) fault.where = r.span("like");
      }
      return base::fail(std::move(other).error());
    }
    p = *std::move(other);
  }
  p.name = r.required_string("name");
  p.provenance = read_provenance(r);
  p.device = r.optional_string("device").value_or("");
  p.surfaces = read_list<ComputeSurface>(r, "surfaces", read_surface);
  if (const auto framework = r.optional_object("framework"))
    p.framework = read_framework(*framework, p.framework, sink);
  p.operators = read_list<OperatorPoint>(r, "operators", read_operator);
  p.layers = read_list<LayerTimes>(r, "layers", read_layer);
  p.collectives = read_list<CollectiveTimes>(r, "collectives", read_collective);
  if (const auto step = r.optional_object("step_communication"))
    p.step_communication = read_step_communication(*step, sink);
  if (const auto control = r.optional_object("control")) p.control = read_control(*control, sink);
  if (const auto spread = r.optional_object("spread")) p.spread = read_spread(*spread, sink);
  read_fields(r, kScalars, p, Fields::kOptional);
  r.finish();
  if (sink.ok()) check_repeats(r, p);
  return sink.result(std::move(p));
}

base::Result<Profile> load_profile(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_profile(root);
}

base::Json to_json(const Control& c) { return fields_to_json(c, kControl); }

base::Json to_json(const Profile& p) {
  base::Json json = fields_to_json(p, kScalars);
  json["schema"] = kSchema;
  json["name"] = p.name;
  json["provenance"] = fields_to_json(p.provenance, kProvenance);
  json["provenance"]["source"] = p.provenance.source;
  json["device"] = p.device;
  json["operators"] = list_to_json(p.operators);
  json["layers"] = list_to_json(p.layers);
  json["collectives"] = list_to_json(p.collectives);
  if (!p.surfaces.empty()) json["surfaces"] = list_to_json(p.surfaces);
  if (p.framework) json["framework"] = to_json(*p.framework);
  if (p.step_communication != StepCommunication{})
    json["step_communication"] = fields_to_json(p.step_communication, kStepCommunication);
  if (p.control) json["control"] = to_json(*p.control);
  if (p.spread) {
    for (const auto& [name, field] : kSpreadFields)
      json["spread"][std::string(name)] = (*p.spread).*field;
  }
  return json;
}

}  // namespace orrery::model
