#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/show.h"
#include "plan/check.h"
#include "plan/lower.h"
#include "sim/simulate.h"

namespace orrery::cli {

using base::OptionType;

namespace {

base::OptionSpec degree(const char* name, const char* help, const char* default_value = "1") {
  return {.name = name, .value_name = "N", .type = OptionType::kInt, .default_value = default_value, .min = 1, .max = 1 << 20, .help = help};
}

}  // namespace

const base::CommandSpec& simulate_spec() {
  static const base::CommandSpec kSpec{
      .name = "simulate",
      .summary = "predict one plan: step time, memory, where the time goes",
      .examples = {{"orrery simulate --plan plan.json --trace step.json", "a plan that 'orrery plan' wrote, with a timeline for Perfetto"},
                   {"orrery simulate --model llama-3-8b --cluster dgx-h100 --tp 2 --dp 4 --zero 1 --micro-batch 1 --global-batch 64",
                    "one strategy for every layer"}},
      .options = {{.name = "plan", .value_name = "FILE", .help = "plan (orrery.plan/1); the degrees below are for plans without a file"},
                  model_option(false), cluster_option(false), hosts_option(), degree("tp", "tensor-parallel degree"),
                  degree("pp", "pipeline stages"), degree("dp", "data-parallel degree (default: what the cluster has left)", ""),
                  degree("ep", "expert-parallel degree: experts split over ep of the dp ranks"),
                  {.name = "zero", .value_name = "0..3", .type = OptionType::kInt, .default_value = "0", .min = 0, .max = 3, .help = "sharded data parallelism"},
                  degree("micro-batch", "sequences per micro-batch and data-parallel rank"),
                  {.name = "global-batch", .value_name = "B", .type = OptionType::kInt, .default_value = "64", .min = 1, .max = 1 << 24, .help = "sequences per step"},
                  {.name = "schedule", .value_name = "S", .default_value = "1f1b", .choices = {"1f1b", "gpipe", "interleaved", "zb-h1"}, .help = "pipeline schedule"},
                  degree("virtual-stages", "stages per pipeline rank, of the interleaved schedule"),
                  {.name = "recompute", .value_name = "R", .default_value = "none", .choices = {"none", "selective", "full"}, .help = "activations computed again in the backward pass"},
                  {.name = "sequence-parallel", .type = OptionType::kFlag, .help = "split norms and residuals along the sequence over tp"},
                  sequence_option(), precision_option(),
                  {.name = "memory", .value_name = "BYTES", .type = OptionType::kBytes, .min = 1, .help = "limit per device (default: the device's memory)"},
                  profile_option(), {.name = "trace", .value_name = "FILE", .help = "write the predicted timeline (orrery.trace/1)"}, json_option()}};
  return kSpec;
}

namespace {

base::Result<plan::Plan> plan_from_flags(const base::Options& o, const model::ModelSpec& model, const topologies::Topology& cluster) {
  plan::UniformOptions u;
  u.tp = static_cast<int>(o.integer("tp"));
  u.pp = static_cast<int>(o.integer("pp"));
  u.ep = static_cast<int>(o.integer("ep"));
  u.zero = static_cast<int>(o.integer("zero"));
  u.sequence_parallel = o.flag("sequence-parallel");
  const std::string recompute = o.string("recompute");
  u.recompute = recompute == "full" ? plan::Recompute::kFull : recompute == "selective" ? plan::Recompute::kSelective : plan::Recompute::kNone;
  for (const plan::Schedule s : {plan::Schedule::kGPipe, plan::Schedule::k1F1B, plan::Schedule::kInterleaved, plan::Schedule::kZeroBubbleH1})
    if (o.string("schedule") == plan::to_string(s)) u.schedule = s;
  u.virtual_stages = static_cast<int>(o.integer("virtual-stages"));
  u.micro_batch = o.integer("micro-batch");
  u.global_batch = o.integer("global-batch");
  u.sequence = o.has("sequence-length") ? o.integer("sequence-length") : model.max_positions;
  TRY(u.precision, precision_of(o));
  const int devices = static_cast<int>(cluster.device_count()), used = u.tp * u.pp;
  if (!o.has("dp") && devices % used != 0) {
    base::Diagnostic d = base::make_error(base::ErrorCode::kInconsistent, "--tp {} × --pp {} does not divide the cluster's {} devices", u.tp, u.pp, devices);
    d.hint = "name --dp as well, or other degrees";
    return base::fail(std::move(d));
  }
  u.dp = o.has("dp") ? static_cast<int>(o.integer("dp")) : devices / used;
  return plan::uniform_plan(model, o.string("cluster"), static_cast<int>(o.integer("hosts")), u);
}

base::Result<void> check_ranks(const plan::Plan& plan, const topologies::Topology& cluster) {
  if (plan.world_size() <= static_cast<int>(cluster.device_count())) return {};
  base::Diagnostic d = base::make_error(base::ErrorCode::kInconsistent, "the plan has {} ranks, cluster '{}' has {} devices", plan.world_size(), cluster.name(),
                                        cluster.device_count());
  d.hint = fmt::format("--hosts {} would do", (plan.world_size() + static_cast<int>(cluster.devices_per_host()) - 1) / static_cast<int>(cluster.devices_per_host()));
  return base::fail(std::move(d));
}

struct Subject {
  plan::Plan plan;
  Scene scene;
};

base::Result<Subject> subject_of(const base::Options& o) {
  const std::string profile = o.has("profile") ? o.string("profile") : "";
  if (o.has("plan")) {
    TRY(plan::Plan plan, plan::load_plan(o.string("plan")));
    const int hosts = o.given("hosts") ? static_cast<int>(o.integer("hosts")) : plan.hosts;
    TRY(Scene scene, make_scene(o.has("model") ? o.string("model") : plan.model, o.has("cluster") ? o.string("cluster") : plan.cluster, hosts, profile,
                                plan.precision, plan.sequence, plan.world_size()));
    return Subject{std::move(plan), std::move(scene)};
  }
  for (const char* name : {"model", "cluster"})
    if (!o.has(name)) {
      base::Diagnostic d = base::make_error(base::ErrorCode::kUsage, "--{} is missing", name);
      d.hint = "give --plan FILE, or --model and --cluster with degrees";
      return base::fail(std::move(d));
    }
  TRY(const model::Precision precision, precision_of(o));
  const int ranks = o.has("dp") ? static_cast<int>(o.integer("tp") * o.integer("pp") * o.integer("dp")) : 0;
  TRY(Scene scene, make_scene(o.string("model"), o.string("cluster"), static_cast<int>(o.integer("hosts")), profile, precision,
                              o.has("sequence-length") ? o.integer("sequence-length") : 0, ranks));
  TRY(plan::Plan plan, plan_from_flags(o, scene.model, scene.cost.topology()));
  return Subject{std::move(plan), std::move(scene)};
}

std::int64_t worst_peak(const sim::SimReport& report) {
  std::int64_t peak = 0;
  for (const sim::StageReport& s : report.stages) peak = std::max(peak, s.peak_memory_bytes);
  return peak;
}

}  // namespace

base::Result<int> run_simulate(const base::Options& options, const Invocation&) {
  TRY(const Subject subject, subject_of(options));
  const auto& [plan, scene] = subject;
  TRY_VOID(check_ranks(plan, scene.cost.topology()));
  TRY(const plan::Program program, plan::lower(plan, scene.model));
  TRY(const sim::SimReport report, sim::simulate(program, scene.cost, {.timeline = options.has("trace")}));
  const std::int64_t limit = options.has("memory") ? static_cast<std::int64_t>(options.bytes("memory").raw()) : scene.cost.topology().device_model(0).memory_bytes;
  const std::int64_t peak = worst_peak(report);
  const bool fits = peak <= limit;
  if (options.has("trace")) TRY_VOID(base::write_file_atomic(options.string("trace"), plan::to_text(report.timeline)));
  if (options.flag("json")) {
    print_json({{"schema", "orrery.simulation/1"}, {"status", fits ? "ok" : "infeasible"}, {"plan", plan::to_json(plan)}, {"predicted", sim::to_json(report)}, {"origin", origin_json(scene.cost)},
                {"memory_limit_bytes", limit}, {"shortfall_bytes", fits ? 0 : peak - limit}, {"program_fingerprint", program.fingerprint()}});
  } else {
    fmt::print("{}\n{}\nprices: {}\n", describe(plan, scene.cost.topology().device_count()), sim::to_text(report), describe_origin(scene.cost));
  }
  if (options.has("trace")) fmt::print(stderr, "timeline written to {}: open it at ui.perfetto.dev\n", options.string("trace"));
  if (fits) return 0;
  fmt::print(stderr, "does not fit: needs {} per device, {} more than the limit of {}\n", show_bytes(peak), show_bytes(peak - limit), show_bytes(limit));
  return 2;
}

}  // namespace orrery::cli
