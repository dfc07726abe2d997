#include "base/json.h"
#include "base/numbers.h"
#include "model/names.h"
#include "plan/program/plan.h"

namespace orrery::plan {

using base::Json;

namespace {

using model::names_up_to;

constexpr std::string_view kSchema = "orrery.plan/1";

/// Beside a partition: all that a strategy may say there.
Json sharding_json(const LayerStrategy& s) {
  return {{"zero", s.zero},
          {"recompute", to_string(s.recompute)},
          {"grad_reduce", to_string(s.grad_reduce)}};
}

/// Fields of rarer dimensions stand only where they differ from their default.
Json strategy_json(const LayerStrategy& s) {
  Json json = sharding_json(s);
  json.update({{"tp", s.tp}, {"dp", s.dp}, {"sequence_parallel", s.sequence_parallel}});
  const LayerStrategy plain;
  if (s.cp != plain.cp) json["cp"] = s.cp;
  if (s.context != plain.context) json["context"] = to_string(s.context);
  if (s.ep != plain.ep) json["ep"] = s.ep;
  if (s.folded != plain.folded) json["folded"] = s.folded;
  if (s.shard != plain.shard) json["shard"] = s.shard;
  if (s.operators != plain.operators) json["operators"] = to_string(s.operators);
  if (s.slices != plain.slices) json["slices"] = s.slices;
  if (s.strided != plain.strided) json["strided"] = s.strided;
  if (s.tensor_pieces != plain.tensor_pieces) json["tensor_pieces"] = s.tensor_pieces;
  if (s.states != plain.states) json["states"] = to_string(s.states);
  return json;
}

Json partition_json(const LayerPartition& partition) {
  Json json = Json::object();
  for (std::size_t i = 0; i < partition.size(); ++i)
    json[std::string(partitioned_operators()[i])] = to_string(partition[i]);
  return json;
}

int read_degree(base::Reader& r, std::string_view key) {
  return as_int(r.required_int(key, {1, kMaxWorldSize}));
}

/// What strategies and shardings say alike.
void read_states(base::Reader& r, LayerStrategy& s) {
  s.zero = as_int(r.required_int("zero", {0, 3}));
  s.recompute = r.required_enum("recompute", names_up_to(kLastRecompute));
  s.grad_reduce = r.required_enum("grad_reduce", names_up_to(GradReduce::kEnd));
}

LayerStrategy read_strategy(const base::Node& node, std::string what, base::ErrorSink& sink) {
  base::Reader r(node, std::move(what), sink);
  LayerStrategy s;
  s.tp = read_degree(r, "tp");
  s.dp = read_degree(r, "dp");
  s.sequence_parallel = r.required_bool("sequence_parallel");
  read_states(r, s);
  const auto degree = [&](std::string_view key, int& value, std::int64_t least) {
    if (const auto given = r.optional_int(key, {least, kMaxWorldSize})) value = as_int(*given);
  };
  degree("cp", s.cp, 1);
  degree("ep", s.ep, 1);
  degree("shard", s.shard, 0);
  degree("slices", s.slices, 1);
  degree("tensor_pieces", s.tensor_pieces, 1);
  s.context = r.optional_enum("context", names_up_to(ContextKind::kUlysses)).value_or(s.context);
  s.operators =
      r.optional_enum("operators", names_up_to(ShardedOperators::kMlp)).value_or(s.operators);
  s.strided = r.optional_bool("strided").value_or(s.strided);
  s.folded = r.optional_bool("folded").value_or(s.folded);
  s.states = r.optional_enum("states", names_up_to(States::kHost)).value_or(s.states);
  r.finish();
  return s;
}

LayerStrategy read_sharding(const base::Node& node, std::string what, base::ErrorSink& sink) {
  base::Reader r(node, std::move(what), sink);
  LayerStrategy s;
  read_states(r, s);
  r.finish();
  return s;
}

LayerPartition read_partition(const base::Node& node, std::size_t stage, base::ErrorSink& sink) {
  base::Reader r(node, fmt::format("partition in stage {}", stage), sink);
  LayerPartition partition;
  for (const std::string_view name : partitioned_operators()) {
    base::Result<Sequence> sequence = parse_sequence(r.required_string(name));
    if (sequence) {
      partition.push_back(*std::move(sequence));
    } else {
      sink.add(std::move(sequence.error().front()).at(r.span(name)));
      partition.emplace_back();
    }
  }
  r.finish();
  return partition;
}

Stage read_stage(const base::Node& node, std::size_t index, base::ErrorSink& sink) {
  base::Reader r(node, fmt::format("stage {}", index), sink);
  Stage stage;
  std::int64_t layers = 0;
  for (const base::Node& item : r.required_list("runs")) {
    base::Reader run(item, fmt::format("run {} of stage {}", stage.runs.size(), index), sink);
    LayerRun layer_run;
    layer_run.count = read_degree(run, "count");
    if (const auto partition = run.optional_object("partition")) {
      layer_run.partition = read_partition(*partition, index, sink);
      if (const auto sharding = run.optional_object("sharding"))
        layer_run.strategy =
            read_sharding(*sharding, fmt::format("sharding in stage {}", index), sink);
    } else {
      layer_run.strategy = read_strategy(run.required_object("strategy"),
                                         fmt::format("strategy in stage {}", index), sink);
    }
    run.finish();
    stage.runs.push_back(layer_run);
    layers += layer_run.count;
  }
  if (layers > kMaxWorldSize)
    r.error("runs", base::ErrorCode::kOutOfRange, "{} layers in one stage", layers);
  r.finish();
  return stage;
}

model::Adapter read_adapter(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "adapter", sink);
  const std::int64_t rank = r.required_int("rank", {1, model::kLargestAdapter});
  base::Result<model::Adapter> adapter = model::adapter_of(rank, r.required_string("targets"));
  if (!adapter) sink.add(std::move(adapter.error().front()).at(r.span("targets")));
  r.finish();
  return adapter.value_or(model::Adapter{});
}

}  // namespace

Json to_json(const Plan& plan) {
  const Plan p = canonical(plan);
  Json stages = Json::array();
  for (const Stage& stage : p.stages) {
    Json runs = Json::array();
    for (const LayerRun& run : stage.runs) {
      Json one = {{"count", run.count}};
      if (run.partition.empty()) {
        one["strategy"] = strategy_json(run.strategy);
      } else {
        one["partition"] = partition_json(run.partition);
        one["sharding"] = sharding_json(run.strategy);
      }
      runs.push_back(std::move(one));
    }
    stages.push_back({{"runs", std::move(runs)}});
  }
  Json json = {{"schema", kSchema},
               {"model", p.model},
               {"model_fingerprint", p.model_fingerprint},
               {"cluster", p.cluster},
               {"hosts", p.hosts},
               {"precision", to_string(p.precision)},
               {"sequence", p.sequence},
               {"global_batch", p.global_batch},
               {"micro_batches", p.micro_batches},
               {"schedule", to_string(p.schedule)},
               {"prefetch_depth", p.prefetch_depth},
               {"vocabulary", strategy_json(p.vocabulary)},
               {"stages", std::move(stages)}};
  if (p.virtual_stages != 1) json["virtual_stages"] = p.virtual_stages;
  if (!p.device_order.empty()) json["device_order"] = p.device_order;
  if (p.adapter.rank > 0)
    json["adapter"] = {{"rank", p.adapter.rank}, {"targets", model::targets_of(p.adapter)}};
  return json;
}

base::Result<Plan> read_plan(const base::Node& root) {
  base::ErrorSink sink;
  base::Reader r(root, "plan", sink);
  Plan p;
  const std::string schema = r.required_string("schema");
  if (sink.ok() && schema != kSchema) {
    return base::fail_at(r.span("schema"), base::ErrorCode::kUnsupported, "schema '{}' is not '{}'",
                         schema, kSchema);
  }
  p.model = r.required_string("model");
  p.model_fingerprint = r.required_string("model_fingerprint");
  p.cluster = r.required_string("cluster");
  p.hosts = read_degree(r, "hosts");
  p.precision = r.required_enum("precision", names_up_to(model::kLastPrecision));
  constexpr std::int64_t kLarge = std::int64_t{1} << 32;
  p.sequence = r.required_int("sequence", {1, kLarge});
  p.global_batch = r.required_int("global_batch", {1, kLarge});
  p.micro_batches = r.required_int("micro_batches", {1, kLarge});
  p.schedule = r.required_enum("schedule", names_up_to(kLastSchedule));
  p.virtual_stages = as_int(r.optional_int("virtual_stages", {1, kMaxWorldSize}).value_or(1));
  p.prefetch_depth = as_int(r.required_int("prefetch_depth", {0, 1024}));
  if (const auto adapter = r.optional_object("adapter")) p.adapter = read_adapter(*adapter, sink);
  for (const base::Node& name : r.optional_list("device_order").value_or(std::vector<base::Node>{}))
    p.device_order.push_back(sink.take(name.as_string()));
  p.vocabulary = read_strategy(r.required_object("vocabulary"), "vocabulary", sink);
  for (const base::Node& stage : r.required_list("stages")) {
    p.stages.push_back(read_stage(stage, p.stages.size(), sink));
  }
  for (Stage& stage : p.stages)
    for (LayerRun& run : stage.runs)
      if (!run.partition.empty()) run.strategy.dp = p.vocabulary.ranks();
  if (sink.ok() && p.stages.empty())
    r.error("stages", base::ErrorCode::kOutOfRange, "a plan has at least one stage");
  r.finish();
  return sink.result(canonical(std::move(p)));
}

base::Result<Plan> load_plan(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return read_plan(root);
}

}  // namespace orrery::plan
