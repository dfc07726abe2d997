#include <bit>
#include <numeric>

#include "base/file.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/html/partition_picture.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "plan/program/plan.h"
#include "search/partition/partition_search.h"

namespace orrery::cli {

using search::ConventionalAnswer;
using search::OperatorChoice;
using search::PartitionAnswer;

namespace {

constexpr std::array kPhaseNames{"forward", "backward", "gradient"};

/// "mlp in=K,P2x2; mlp out=N,P2x2".
Result<void> read_fixed(const std::string& text, search::PartitionRequest& request) {
  for (const std::string& part : base::split(text, ';')) {
    if (base::trim(part).empty() && !base::trim(text).empty()) continue;  // behind the last one
    const std::size_t equals = part.find('=');
    if (equals == part.npos)
      return refuse(kBadValue, "write operator=sequence; operator=sequence, e.g. 'mlp in=K,P2x2'",
                    "--fix '{}' has no '='", part);
    const std::string name(base::trim(part.substr(0, equals)));
    if (request.fixed.contains(name))
      return refuse(kBadValue, "give each operator one sequence", "--fix names '{}' twice", name);
    TRY(request.fixed[name],
        plan::parse_sequence(std::string(base::trim(part.substr(equals + 1)))));
  }
  return {};
}

Result<search::PartitionRequest> request_of(const Options& o, const Topology& cluster,
                                            std::int64_t tokens) {
  const int devices = o.given("devices") ? o.count("devices") : as_int(cluster.device_count());
  if (!std::has_single_bit(as_u32(devices)) || devices > 1 << plan::kMostBits)
    return refuse(kBadValue, "1, 2, 4 .. 64: id bits of devices are what a sequence splits",
                  "{} devices are no power of two up to {}", devices, 1 << plan::kMostBits);
  search::PartitionRequest request{.bits = std::countr_zero(as_u32(devices)),
                                   .sequences = o.integer("micro-batch"),
                                   .tokens = tokens,
                                   .layers = o.count("layers"),
                                   .skews = o.flag("skew") ? 1 : 0,
                                   .primitives = !o.flag("no-primitives"),
                                   .fused_attention = o.flag("fused-attention")};
  // seconds a GiB, as picoseconds a byte
  request.memory_weight = o.real("memory-weight") * 1e12 / real(std::int64_t{1} << 30);
  if (o.has("fix")) TRY_VOID(read_fixed(o.string("fix"), request));
  return request;
}

/// Less than nothing: the readers' parts of a sum save half of its all-reduce.
std::string show_signed(std::int64_t ps) {
  if (ps == 0) return "-";
  return ps < 0 ? "-" + show_time(-ps) : show_time(ps);
}

std::string show_or_dash(std::int64_t ps) { return ps == 0 ? "-" : show_time(ps); }

void print_answer(const PartitionAnswer& answer) {
  for (const search::LayerChoice& layer : answer.layers) {
    fmt::print("{} layer{}: {} each, {} a device\n", layer.count, layer.count == 1 ? "" : "s",
               show_time(layer.time_ps()), show_bytes(layer.memory_bytes()));
    fmt::print("  {:<12} {:<14} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}\n", "operator",
               "partition", "forward", "backward", "gradient", "hidden", "reduce", "layout");
    for (const OperatorChoice& op : layer.operators) {
      const auto& [f, b, g] = op.price.phases;
      const auto hidden = [](const search::PhasePrice& p) { return p.moves_ps - p.exposed_ps; };
      const auto busy = [](const search::PhasePrice& p) { return p.compute_ps + p.exposed_ps; };
      fmt::print("  {:<12} {:<14} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}\n", op.name,
                 to_string(op.sequence), show_or_dash(busy(f)), show_or_dash(busy(b)),
                 show_or_dash(busy(g)), show_or_dash(hidden(f) + hidden(b) + hidden(g)),
                 show_or_dash(f.reduce_ps + b.reduce_ps + g.reduce_ps),
                 show_signed(op.forward_move_ps + op.backward_move_ps - op.scatter_ps));
    }
  }
}

void print_conventional(const std::vector<ConventionalAnswer>& all, const PartitionAnswer& best) {
  if (all.empty()) return;
  fmt::print("\nconventional (batch over data, features and heads over tensor devices)\n");
  fmt::print("  {:>4} {:>6} {:>8} {:>12} {:>12} {:>14}\n", "data", "tensor", "streams", "time",
             "memory", "time of best");
  for (const ConventionalAnswer& c : all)
    fmt::print("  {:>4} {:>6} {:>8} {:>12} {:>12} {:>13.1f}%\n", c.data, c.tensor,
               c.sequence_parallel ? "split" : "whole", show_time(c.answer.time_ps),
               show_bytes(c.answer.memory_bytes),
               100 * real(best.time_ps) / real(c.answer.time_ps));
}

Json answer_json(const PartitionAnswer& answer) {
  Json layers = Json::array();
  for (const search::LayerChoice& layer : answer.layers) {
    Json operators = Json::array();
    for (const OperatorChoice& op : layer.operators) {
      Json phases = Json::object();
      for (std::size_t i = 0; i < kPhaseNames.size(); ++i) {
        const search::PhasePrice& p = op.price.phases[i];
        phases[kPhaseNames[i]] = {{"steps", p.steps},
                                  {"compute_ps", p.compute_ps},
                                  {"moves_ps", p.moves_ps},
                                  {"exposed_ps", p.exposed_ps},
                                  {"all_reduce_ps", p.reduce_ps}};
      }
      operators.push_back({{"name", op.name},
                           {"sequence", to_string(op.sequence)},
                           {"phases", std::move(phases)},
                           {"state_bytes", op.price.state_bytes},
                           {"stash_bytes", op.price.stash_bytes},
                           {"forward_layout_ps", op.forward_move_ps},
                           {"backward_layout_ps", op.backward_move_ps},
                           {"scatter_ps", op.scatter_ps}});
    }
    layers.push_back({{"count", layer.count},
                      {"time_ps", layer.time_ps()},
                      {"memory_bytes", layer.memory_bytes()},
                      {"operators", std::move(operators)}});
  }
  return {{"time_ps", answer.time_ps},
          {"memory_bytes", answer.memory_bytes},
          {"layers", std::move(layers)}};
}

/// Linear operators of the first layer.
std::string picture_of(const PartitionAnswer& answer) {
  std::vector<DrawnOperator> drawn;
  for (const OperatorChoice& op : answer.layers.front().operators)
    if (op.price.state_bytes > 0) drawn.push_back({op.name, op.sequence});
  return draw_partitions(drawn);
}

/// A step of one micro-batch, every layer of the model as the answer has its layers in turn. The
/// vocabulary's sequences are split as often as they halve, its columns over the other devices.
Result<plan::Plan> plan_of(const PartitionAnswer& answer, const search::PartitionRequest& request,
                           const Options& o, const Scene& scene) {
  const model::ModelSpec& model = scene.model;
  const int devices = 1 << request.bits,
            data = as_int(std::gcd<std::int64_t>(devices, request.sequences));
  plan::Plan plan{.model = o.string("model"),
                  .model_fingerprint = model.fingerprint(),
                  .cluster = o.string("cluster"),
                  .hosts = o.count("hosts"),
                  .precision = scene.cost.options().precision,
                  .sequence = request.tokens,
                  .global_batch = request.sequences,
                  .stages = {plan::Stage{}},
                  .vocabulary = {.tp = devices / data, .dp = data}};
  if (model.layers % request.layers != 0)
    return refuse(kInconsistent, "--layers that divides them", "{} layers of {} do not fill {}",
                  request.layers, model.name, model.layers);
  for (std::int64_t first = 0; first < model.layers; first += request.layers)
    for (const search::LayerChoice& layer : answer.layers) {
      plan::LayerRun run{.count = layer.count, .strategy = {.dp = devices}};
      for (std::size_t i = 0; i < plan::partitioned_operators().size(); ++i)
        run.partition.push_back(layer.operators[i].sequence);
      plan.stages.front().runs.push_back(std::move(run));
    }
  plan = plan::canonical(std::move(plan));
  if (base::Diagnostics faults = plan::validate(plan, model); !faults.empty())
    return tl::unexpected(std::move(faults));
  return plan;
}

Result<int> run(const Options& o, const Invocation&) {
  TRY(const PriceNames prices, price_names(o));
  TRY(const Scene scene, make_scene(o.string("model"), o.string("cluster"), o.count("hosts"),
                                    prices, precision_of(o), sequence_of(o)));
  TRY_VOID(check_hosts(o, scene.cost.topology()));
  TRY(const search::PartitionRequest request,
      request_of(o, scene.cost.topology(), scene.cost.options().sequence));
  const Stopwatch watch;
  TRY(const search::PartitionSearch search, search::PartitionSearch::make(scene.cost, request));
  const PartitionAnswer best = search.best();
  std::optional<double> seconds;
  if (o.flag("timing")) seconds = watch.seconds();
  if (o.has("svg")) {
    TRY_VOID(base::write_file_atomic(o.string("svg"), picture_of(best)));
    say("picture written to {}\n", o.string("svg"));
  }
  if (o.has("out")) {
    TRY(const plan::Plan plan, plan_of(best, request, o, scene));
    TRY_VOID(base::write_json(o.string("out"), plan::to_json(plan)));
    say("plan written to {}\n", o.string("out"));
  }
  const std::vector<ConventionalAnswer> conventional = search.conventional();
  if (!o.flag("json")) {
    print_answer(best);
    print_conventional(conventional, best);
    if (seconds) fmt::print("search{}\n", describe_seconds(seconds));
    return 0;
  }
  Json document({{"schema", "orrery.partition/1"},
                 {"model", scene.model.name},
                 {"cluster", scene.cost.topology().name()},
                 {"devices", 1 << request.bits},
                 {"sequences", request.sequences},
                 {"tokens", request.tokens},
                 {"tick_ps", search.tick_ps()},
                 {"best", answer_json(best)}});
  Json& others = document["conventional"] = Json::array();
  for (const ConventionalAnswer& c : conventional) {
    Json one = answer_json(c.answer);
    one["data"] = c.data;
    one["tensor"] = c.tensor;
    one["sequence_parallel"] = c.sequence_parallel;
    others.push_back(std::move(one));
  }
  if (seconds) document["seconds"] = *seconds;
  print_json(document);
  return 0;
}

}  // namespace

Command partition_command() {
  return {
      {.name = "partition",
       .summary = "spatial-temporal partition of every operator of a layer (PrimePar)",
       .examples = {{"orrery partition --model llama-2-7b --cluster dgx-1-v100 --precision "
                     "fp32 --micro-batch 8 --sequence-length 2048",
                     "which split of which dimension, beside Megatron-LM's"},
                    {"orrery partition --model llama-2-7b --cluster dgx-a100 --micro-batch 8 "
                     "--fix 'mlp in=K,P2x2; mlp out=N,P2x2'",
                     "the same with two operators given"}},
       .options = joined(
           {{model_option(true), cluster_option(true), hosts_option()},
            price_options(),
            {precision_option(),
             sequence_option(),
             integer_option("devices", "N", {1, 64},
                            "power of two of devices, from the first on (default: all)"),
             integer_option("micro-batch", "N", {1, 1 << 20},
                            "sequences of a micro-batch, over all devices", "8"),
             integer_option("layers", "N", {1, 4096}, "equal layers in a row", "1"),
             {.name = "memory-weight",
              .value_name = "S",
              .type = base::OptionType::kDouble,
              .default_value = "0",
              .min = 0,
              .max = 100,
              .help = "seconds that a GiB of a device's memory is worth"},
             flag_option("skew", "primitives may be skewed by one place, along chains"),
             flag_option("no-primitives", "splits alone, no temporal steps"),
             flag_option("fused-attention",
                         "attention may be one operation where devices have whole heads; else its "
                         "scores are stored, as in the paper"),
             text_option("fix", "LIST", "sequences of operators: 'mlp in=K,P2x2; mlp out=N,P2x2'"),
             output_option("svg", "FILE", "draw it: which device holds which block at which step"),
             output_option("out", "FILE",
                           "write a plan with the best partition in every layer (orrery.plan/1)"),
             timing_option(),
             json_option()}})},
      run};
}

}  // namespace orrery::cli
