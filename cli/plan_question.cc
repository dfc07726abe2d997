#include "cli/plan_question.h"

#include <algorithm>
#include <array>

#include "base/ids.h"
#include "base/text.h"
#include "cli/gpus.h"
#include "search/space/space_text.h"

namespace orrery::cli {
namespace {

std::string names_of(const std::vector<search::SpaceWord>& words) {
  std::vector<std::string> names;
  for (const search::SpaceWord& w : words) names.emplace_back(w.name);
  return base::join(names, ", ");
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const search::Target& t : search::targets()) names.emplace_back(t.name);
  return names;
}

/// The space of --space and --fix, with the faults of both.
Result<search::Space> space_of(const base::Options& options, const CostModel& cost) {
  base::ErrorSink sink;
  const bool target = options.has("target");  // its row says what it has
  search::Space space =
      search::usual_space(cost.options().sequence, target || cost.overlaps_tensor());
  space.recompute_operator = target;
  if (options.has("space"))
    space = sink.take(search::restrict_to_dimensions(options.string("space"), space), space);
  if (options.has("fix"))
    space = sink.take(search::fix_values(options.string("fix"), space), space);
  return sink.result(space);
}

/// --gpus, or --cluster and --hosts.
Result<GpuCluster> machine_of(const base::Options& options) {
  if (!options.has("gpus")) {
    if (options.has("cluster"))
      return GpuCluster{options.string("cluster"), options.count("hosts")};
    return refuse(kUsage, "--cluster NAME, or --gpus 64xH100", "on which cluster?");
  }
  for (const char* other : {"cluster", "hosts"})
    if (options.given(other))
      return refuse(kUsage, "leave one of them out", "--gpus and --{} do not go together", other);
  return cluster_of_gpus(options.string("gpus"));
}

constexpr std::array kMinimise = {Minimise::kTime, Minimise::kMoney, Minimise::kEnergy};

std::vector<std::string> minimise_names() {
  std::vector<std::string> names;
  for (const Minimise what : kMinimise) names.emplace_back(to_string(what));
  return names;
}

Minimise minimise_of(const base::Options& options) {
  const std::string name = options.string("minimise");
  return *std::ranges::find(kMinimise, name, [](Minimise what) { return to_string(what); });
}

Result<std::optional<search::Target>> target_of(const base::Options& options) {
  if (!options.has("target")) return std::nullopt;
  TRY(const search::Target target, search::find_target(options.string("target")));
  return target;
}

}  // namespace

std::string_view to_string(Minimise what) {
  return base::EnumNames<Minimise::kEnergy>("time", "money", "energy")[what];
}

std::vector<base::OptionSpec> question_options(bool needed, const char* max_states) {
  return joined(
      {{model_option(needed), cluster_option(false), hosts_option(),
        text_option("gpus", "NxDEVICE",
                    "in place of --cluster and --hosts: so many of a device, as 64xH100, in hosts "
                    "of the catalog"),
        memory_option(), global_batch_option(), sequence_option(), precision_option()},
       adapter_options(),
       price_options(),
       {integer_option("max-states", "N", {0},
                       "stop after so many states of the dynamic program, with a certified gap (0: "
                       "never)",
                       max_states),
        text_option("space", "D,...",
                    "only these dimensions: usual (those searched without this option), " +
                        names_of(search::space_dimensions())),
        text_option(
            "fix", "K=V,...",
            "fixed values: " + names_of(search::space_keys()) + "; as tp=8,pp=2,recompute=none"),
        choice_option("minimise", "WHAT", minimise_names(),
                      "what the plan takes least of; money, energy: on as many of the hosts as "
                      "take least (docs/commands.md)",
                      "time"),
        choice_option("target", "T", target_names(),
                      "only what this framework can run (docs/commands.md)")}});
}

Result<PlanQuestion> question_of(const base::Options& options, std::optional<int> hosts) {
  TRY(GpuCluster machine, machine_of(options));
  if (hosts) machine.hosts = *hosts;
  TRY(const auto target, target_of(options));
  TRY(PriceNames prices, price_names(options));
  if (target) prices.usual = target->software;
  TRY(const model::Adapter adapter, adapter_of(options));
  TRY(Scene scene, make_scene(options.string("model"), machine.cluster, machine.hosts, prices,
                              precision_of(options), sequence_of(options), 0, {}, adapter));
  if (!hosts) TRY_VOID(check_hosts(options, scene.cost.topology()));
  search::PlanRequest request;
  TRY(request.space, space_of(options, scene.cost));
  request.cluster = machine.cluster;
  request.hosts = machine.hosts;
  request.memory_bytes = memory_of(options);
  request.global_batch = options.integer("global-batch");
  request.max_states = static_cast<std::uint64_t>(options.integer("max-states"));
  const Minimise what = minimise_of(options);
  if (what == Minimise::kEnergy) request.objective = costmodel::Objective::kEnergy;
  return PlanQuestion{target, what, std::move(scene), std::move(request)};
}

Result<search::PlanAnswer> answer_to(const PlanQuestion& question) {
  const auto& [target, minimise, scene, request] = question;
  return target ? search::find_plan_for(*target, scene.cost, request)
                : search::find_plan(scene.cost, request);
}

}  // namespace orrery::cli
