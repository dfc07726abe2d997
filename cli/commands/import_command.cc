#include <algorithm>
#include <array>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/closed_form/closed_form.h"
#include "plan/import/import.h"

namespace orrery::cli {

namespace {

/// The text of a file by one of the readers.
using TextReader = Result<plan::ImportedPlan> (*)(std::string_view, const std::string&,
                                                  const plan::ImportTarget&);

/// What a file of this kind cannot say (plan::BesideFile), as options.
constexpr std::array<std::string_view, 6> kBeside{
    "micro-batch", "micro-batches",        "pp",
    "recompute",   "no-sequence-parallel", "reduce-every-micro-batch"};

struct Kind {
  std::string_view name;
  TextReader read;
  std::vector<std::string_view> beside = {};  // of kBeside
};

/// A file that is JSON or YAML.
template <Result<plan::ImportedPlan> (*kRead)(const base::Node&, const plan::ImportTarget&)>
Result<plan::ImportedPlan> read_node(std::string_view text, const std::string& name,
                                     const plan::ImportTarget& target) {
  TRY(const base::Node root, base::Node::parse_text(text, name));
  return kRead(root, target);
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kinds{
      {"galvatron",
       read_node<plan::import_galvatron>,
       {"no-sequence-parallel", "reduce-every-micro-batch"}},
      {"megatron", plan::import_megatron},
      {"megatron-bridge", plan::import_megatron_bridge},
      {"torchtitan", plan::import_torchtitan},
      {"deepspeed", read_node<plan::import_deepspeed>, {"pp", "recompute"}},
      {"accelerate",
       read_node<plan::import_accelerate>,
       {"micro-batch", "micro-batches", "recompute"}}};
  return kinds;
}

Result<Kind> kind_of(const Options& options) {
  const std::string& kind = options.string("KIND");
  std::vector<std::string> names;
  for (const Kind& k : kinds()) names.emplace_back(k.name);
  const auto found = std::ranges::find(kinds(), kind, &Kind::name);
  if (found == kinds().end())
    return refuse(kBadValue, base::did_you_mean(kind, names, "frameworks"), "cannot import '{}'",
                  kind);
  for (const std::string_view name : kBeside) {
    if (options.given(name) && std::ranges::find(found->beside, name) == found->beside.end())
      return refuse(kUsage, "leave it out", "--{} is said by the file of {}, or by nothing", name,
                    kind);
  }
  return *found;
}

plan::BesideFile beside_of(const Options& options) {
  return {.micro_batch = options.integer("micro-batch"),
          .micro_batches = options.integer("micro-batches"),
          .stages = options.count("pp"),
          .recompute = options.flag("recompute"),
          .sequence_parallel = !options.flag("no-sequence-parallel"),
          .reduce_every_micro_batch = options.flag("reduce-every-micro-batch")};
}

std::vector<base::OptionSpec> beside_options() {
  constexpr base::IntRange kMany{1, 1 << 20};
  return {integer_option("micro-batch", "N", kMany,
                         "accelerate: sequences of a micro-batch on a data-parallel rank", "1"),
          integer_option("micro-batches", "N", kMany, "accelerate: micro-batches a step", "1"),
          integer_option("pp", "N", {1, 1 << 20}, "deepspeed: stages of PipelineModule", "1"),
          flag_option("recompute", "deepspeed, accelerate: the program recomputes all layers"),
          flag_option("no-sequence-parallel", "galvatron: sequence_parallel is off"),
          flag_option("reduce-every-micro-batch", "galvatron: async_grad_reduce is off")};
}

Result<int> run(const Options& options, const Invocation&) {
  TRY(const Kind kind, kind_of(options));
  const int hosts = options.count("hosts");
  TRY(const ModelSpec model, model::find_model(options.string("model")));
  TRY(const Topology cluster, find_cluster(options.string("cluster"), hosts));
  TRY_VOID(check_hosts(options, cluster));
  plan::ImportTarget target{
      .model = model, .cluster = options.string("cluster"), .hosts = hosts, .precision = {}};
  const auto devices = static_cast<std::int64_t>(cluster.device_count());
  target.devices = options.has("devices") ? options.integer("devices") : devices;
  if (target.devices > devices)
    return base::fail(kInconsistent, "--devices {}, cluster '{}' has {}", target.devices,
                      cluster.name(), devices);
  target.sequence = sequence_of(options);
  target.beside = beside_of(options);
  if (options.has("precision")) target.precision = precision_of(options);
  const std::string file = options.string("FILE");
  TRY(const std::string text, base::read_file(file));
  TRY(const plan::ImportedPlan imported, kind.read(text, file, target));
  TRY_VOID(base::write_json(options.string("out"), plan::to_json(imported.plan)));
  for (const std::string& note : imported.notes) say("note: {}\n", note);

  // What it costs here, where the plan can be lowered.
  TRY(const PriceNames prices, price_names(options));
  TRY(const Scene scene, make_scene(options.string("model"), options.string("cluster"), hosts,
                                    prices, imported.plan.precision, imported.plan.sequence));
  const auto priced = costmodel::plan_cost(scene.cost, imported.plan);
  Json json{{"schema", "orrery.import/1"},
            {"plan", plan::to_json(imported.plan)},
            {"notes", imported.notes}};
  if (priced) {
    json["closed_form_ps"] = priced->step_ps;
    json["origin"] = origin_json(scene.cost);
  } else {
    say("note: the plan cannot be simulated here\n{}\n", base::to_string(priced.error()));
  }
  if (options.flag("json")) {
    print_json(json);
  } else {
    fmt::print("{}", describe(imported.plan));
    if (priced)
      fmt::print("closed form: {} a step; prices: {}\n", show_time(priced->step_ps),
                 describe_origin(scene.cost));
  }
  say("plan written to {}\n", options.string("out"));
  return 0;
}

base::OptionSpec precision_of_file() {
  base::OptionSpec o = precision_option();
  o.default_value.clear();
  o.help = "training precision (default: the file's)";
  return o;
}

}  // namespace

Command import_command() {
  return {
      {.name = "import",
       .summary = "turn another framework's plan into a plan file",
       .examples = {{"orrery import galvatron galvatron_config.json --model llama-2-7b --cluster "
                     "dgx-a100 --out plan.json",
                     "then 'orrery simulate --plan plan.json'"},
                    {"orrery import megatron pretrain.sh --model llama-3-70b --cluster dgx-h100 "
                     "--hosts 8 --out plan.json",
                     "arguments in a script or one per line"}},
       .positionals =
           {{.name = "KIND",
             .help = "whose plan it is",
             .choices = {"galvatron", "megatron", "torchtitan", "deepspeed", "accelerate"}},
            {.name = "FILE",
             .help = "galvatron_config_*.json, Megatron-LM arguments, TorchTitan's TOML, "
                     "DeepSpeed's JSON, or Accelerate's YAML"}},
       .options =
           joined({{model_option(true), cluster_option(true), hosts_option(),
                    integer_option("devices", "N", {1, 1 << 20},
                                   "ranks when the file does not say (default: all devices)"),
                    sequence_option(), precision_of_file()},
                   beside_options(),
                   price_options(),
                   {required(output_option("out", "FILE", "write the plan (orrery.plan/1)")),
                    json_option()}})},
      run};
}

}  // namespace orrery::cli
