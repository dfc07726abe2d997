#include "model/profile.h"

#include <set>

#include "base/json.h"
#include "model/names.h"

namespace orrery::model {
namespace {

using base::ErrorCode;

constexpr std::string_view kSchema = "orrery.profile/1";
// seconds; nothing is measured in less than a picosecond
constexpr base::DoubleRange kTime{1e-12, 1e7};
constexpr base::DoubleRange kTimeOrZero{0.0, 1e7};
constexpr base::DoubleRange kBandwidth{1.0, 1e18};  // bytes per second
constexpr base::DoubleRange kFactor{1e-6, 1e6};
constexpr base::IntRange kCount{1, std::int64_t{1} << 50};
constexpr base::IntRange kCountOrZero{0, std::int64_t{1} << 50};

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

/// Faults where values do not ascend strictly; wrong values (0) were reported by their reader.
class Ascending {
 public:
  void next(base::Reader& r, std::string_view key, std::int64_t value) {
    if (value > 0 && value <= last_) {
      r.error(key, ErrorCode::kInconsistent, "points must ascend: '{}' {} follows {}", key, value,
              last_);
    }
    last_ = value > 0 ? value : last_;
  }

 private:
  std::int64_t last_ = 0;
};

Provenance read_provenance(base::Reader& parent) {
  base::Reader r(parent.required_object("provenance"), "provenance", parent.sink());
  if (!r.has("source")) r.required_string("source");
  const auto source = r.optional_string("source");
  if (source && source->empty()) {
    r.error("source", ErrorCode::kBadValue, "'source' is empty: say where the numbers come from");
  }
  Provenance p{.source = source.value_or(""),
               .machine = r.optional_string("machine").value_or(""),
               .software = r.optional_string("software").value_or(""),
               .date = r.optional_string("date").value_or(""),
               .note = r.optional_string("note").value_or("")};
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
  p.samples = r.optional_int("samples", kCountOrZero).value_or(0);
  if (p.seconds_median > 0 &&
      (p.seconds_p10 > p.seconds_median || p.seconds_p90 < p.seconds_median)) {
    r.error("seconds_median", ErrorCode::kInconsistent,
            "percentiles of {} are out of order: {}, {}, {}", what, p.seconds_p10, p.seconds_median,
            p.seconds_p90);
  }
  r.finish();
  return p;
}

LayerTimes read_layer(const base::Node& node, const std::string& what, base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  LayerTimes layer{.model = r.required_string("model"),
                   .sequence = r.required_int("sequence", kCount),
                   .hidden = r.required_int("hidden", kCount),
                   .precision = r.required_enum("precision", names_up_to(Precision::kBFloat16)),
                   .points = {}};
  Ascending batches;
  const auto points = r.required_list("points");
  for (std::size_t i = 0; i < points.size(); ++i) {
    base::Reader point(points[i], fmt::format("{}.points[{}]", what, i), sink);
    layer.points.push_back(
        {.batch = point.required_int("batch", kCount),
         .layer_seconds_per_sample = point.required_double("layer_seconds_per_sample", kTime),
         .other_seconds_per_sample =
             point.required_double("other_seconds_per_sample", kTimeOrZero)});
    batches.next(point, "batch", layer.points.back().batch);
    point.finish();
  }
  if (points.empty() && r.has("points"))
    r.error("points", ErrorCode::kMissingKey, "{} has no points", what);
  r.finish();
  return layer;
}

std::vector<CollectivePoint> read_collective_points(base::Reader& r, const std::string& what) {
  std::vector<CollectivePoint> points;
  Ascending bytes;
  const auto nodes = r.optional_list("points").value_or(std::vector<base::Node>{});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    base::Reader point(nodes[i], fmt::format("{}.points[{}]", what, i), r.sink());
    points.push_back({.bytes = point.required_int("bytes", kCount),
                      .seconds = point.required_double("seconds", kTime)});
    bytes.next(point, "bytes", points.back().bytes);
    point.finish();
  }
  return points;
}

CollectiveTimes read_collective(const base::Node& node, const std::string& what,
                                base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  CollectiveTimes c;
  c.op = r.required_enum("op", names_up_to(Collective::kPointToPoint));
  c.size = r.required_int("size", {2, 1 << 30});
  c.stride = r.optional_int("stride", {1, 1 << 30}).value_or(c.stride);
  c.hosts = r.optional_int("hosts", {1, 1 << 30}).value_or(c.hosts);
  c.bus_bandwidth = r.optional_double("bus_bandwidth_bytes_per_second", kBandwidth).value_or(0.0);
  c.latency_seconds = r.optional_double("latency_seconds", kTimeOrZero).value_or(0.0);
  c.link_rate = r.optional_double("link_rate_bytes_per_second", kBandwidth).value_or(0.0);
  c.points = read_collective_points(r, what);
  const bool bandwidth = r.has("bus_bandwidth_bytes_per_second"), points = r.has("points");
  if (bandwidth && points) {
    r.error("points", ErrorCode::kInconsistent,
            "{} has both points and 'bus_bandwidth_bytes_per_second'", what);
  } else if (!bandwidth && c.points.empty() && node.is_object()) {
    r.error("points", ErrorCode::kMissingKey, "{} needs points or 'bus_bandwidth_bytes_per_second'",
            what);
  }
  if (points && !bandwidth && r.has("latency_seconds")) {
    r.error("latency_seconds", ErrorCode::kInconsistent, "{}: measured points contain the latency",
            what);
  }
  if (c.hosts > c.size && c.size > 0) {
    r.error("hosts", ErrorCode::kInconsistent, "{}: {} ranks cannot stand on {} hosts", what,
            c.size, c.hosts);
  }
  r.finish();
  return c;
}

StepCommunication read_step_communication(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "step_communication", sink);
  const StepCommunication c{.factor = r.required_double("factor", {1.0, 100.0}),
                            .issue_seconds = r.required_double("issue_seconds", {0.0, 1.0}),
                            .fabric_share = r.required_double("fabric_share", {1e-3, 1.0})};
  r.finish();
  return c;
}

Control read_control(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "control", sink);
  Control c;
  c.compute_seconds = r.required_double("compute_seconds", kTime);
  c.collective_seconds =
      r.optional_double("collective_seconds", kTimeOrZero).value_or(c.collective_seconds);
  c.spread = r.optional_double("spread", {0.0, 1e6}).value_or(c.spread);
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
      r.sink().error(nodes[i].span(), ErrorCode::kInconsistent, "{} repeats an earlier entry",
                     entry(key, i));
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

void read_scalars(base::Reader& r, Profile& p) {
  p.composition_factor =
      r.optional_double("composition_factor", kFactor).value_or(p.composition_factor);
  p.composition_residual =
      r.optional_double("composition_residual", {0.0, 1e6}).value_or(p.composition_residual);
  p.overlap_slowdown =
      r.optional_double("overlap_slowdown", {1.0, 1e3}).value_or(p.overlap_slowdown);
  p.overlaps = r.optional_bool("overlaps").value_or(p.overlaps);
  p.launch_seconds = r.optional_double("launch_seconds", kTimeOrZero).value_or(p.launch_seconds);
  p.context_bytes = r.optional_int("context_bytes", kCountOrZero).value_or(p.context_bytes);
}

base::Json to_json(const OperatorPoint& p) {
  return {{"shape", to_json(p.shape)},          {"phase", to_string(p.phase)},
          {"seconds_median", p.seconds_median}, {"seconds_p10", p.seconds_p10},
          {"seconds_p90", p.seconds_p90},       {"samples", p.samples}};
}

base::Json to_json(const LayerTimes& l) {
  base::Json points = base::Json::array();
  for (const LayerPoint& p : l.points) {
    points.push_back({{"batch", p.batch},
                      {"layer_seconds_per_sample", p.layer_seconds_per_sample},
                      {"other_seconds_per_sample", p.other_seconds_per_sample}});
  }
  return {{"model", l.model},
          {"sequence", l.sequence},
          {"hidden", l.hidden},
          {"precision", to_string(l.precision)},
          {"points", std::move(points)}};
}

base::Json to_json(const CollectiveTimes& c) {
  base::Json json{
      {"op", to_string(c.op)}, {"size", c.size}, {"stride", c.stride}, {"hosts", c.hosts}};
  if (c.link_rate > 0) json["link_rate_bytes_per_second"] = c.link_rate;
  if (c.bus_bandwidth > 0) {
    json["bus_bandwidth_bytes_per_second"] = c.bus_bandwidth;
    json["latency_seconds"] = c.latency_seconds;
    return json;
  }
  json["points"] = base::Json::array();
  for (const CollectivePoint& p : c.points)
    json["points"].push_back({{"bytes", p.bytes}, {"seconds", p.seconds}});
  return json;
}

template <class T>
base::Json list_to_json(const std::vector<T>& list) {
  base::Json json = base::Json::array();
  for (const T& item : list) json.push_back(to_json(item));
  return json;
}

}  // namespace

std::string_view to_string(Collective op) {
  switch (op) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kAllGather: return "all_gather";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kPointToPoint: return "point_to_point";
  }
  return "";
}

base::Result<Profile> read_profile(const base::Node& root) {
  base::ErrorSink sink;
  base::Reader r(root, "profile", sink);
  const std::string schema = r.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    r.error("schema", ErrorCode::kUnsupported, "schema '{}', but this reads '{}'", schema, kSchema);
  }
  if (!sink.ok()) return sink.result(Profile{});  // the other keys mean what their schema says
  Profile p;
  p.name = r.required_string("name");
  p.provenance = read_provenance(r);
  p.device = r.optional_string("device").value_or("");
  p.surfaces = read_list<ComputeSurface>(r, "surfaces", read_surface);
  if (const auto framework = r.optional_object("framework"))
    p.framework = read_framework(*framework, sink);
  p.operators = read_list<OperatorPoint>(r, "operators", read_operator);
  p.layers = read_list<LayerTimes>(r, "layers", read_layer);
  p.collectives = read_list<CollectiveTimes>(r, "collectives", read_collective);
  if (const auto step = r.optional_object("step_communication"))
    p.step_communication = read_step_communication(*step, sink);
  if (const auto control = r.optional_object("control")) p.control = read_control(*control, sink);
  if (const auto spread = r.optional_object("spread")) p.spread = read_spread(*spread, sink);
  read_scalars(r, p);
  r.finish();
  if (sink.ok()) check_repeats(r, p);
  return sink.result(std::move(p));
}

base::Result<Profile> load_profile(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_profile(root);
}

base::Json to_json(const Control& c) {
  return {{"compute_seconds", c.compute_seconds},
          {"collective_seconds", c.collective_seconds},
          {"spread", c.spread}};
}

base::Json to_json(const Profile& p) {
  base::Json json{{"schema", kSchema},
                  {"name", p.name},
                  {"provenance",
                   {{"source", p.provenance.source},
                    {"machine", p.provenance.machine},
                    {"software", p.provenance.software},
                    {"date", p.provenance.date},
                    {"note", p.provenance.note}}},
                  {"device", p.device},
                  {"operators", list_to_json(p.operators)},
                  {"composition_factor", p.composition_factor},
                  {"composition_residual", p.composition_residual},
                  {"layers", list_to_json(p.layers)},
                  {"collectives", list_to_json(p.collectives)},
                  {"overlap_slowdown", p.overlap_slowdown},
                  {"overlaps", p.overlaps},
                  {"launch_seconds", p.launch_seconds},
                  {"context_bytes", p.context_bytes}};
  if (!p.surfaces.empty()) json["surfaces"] = list_to_json(p.surfaces);
  if (p.framework) json["framework"] = to_json(*p.framework);
  if (const StepCommunication& c = p.step_communication; c != StepCommunication{}) {
    json["step_communication"] = {
        {"factor", c.factor}, {"issue_seconds", c.issue_seconds}, {"fabric_share", c.fabric_share}};
  }
  if (p.control) json["control"] = to_json(*p.control);
  if (p.spread) {
    for (const auto& [name, field] : kSpreadFields)
      json["spread"][std::string(name)] = (*p.spread).*field;
  }
  return json;
}

}  // namespace orrery::model
