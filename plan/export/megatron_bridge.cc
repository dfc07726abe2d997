/// \file
/// Megatron-Bridge (github.com/NVIDIA-NeMo/Megatron-Bridge, 067f987): fields of its ConfigContainer
/// by a Python function that a recipe's configuration goes through, checked there by validate().
/// The names are Megatron-LM's arguments (megatron_settings.h) but for virtual stages and the
/// precision, which is one word here.
///
/// CommOverlapConfig, which tensor-parallel overlap needs, decides for itself that gradients are
/// reduced beside the backward wherever there are replicas.
#include "base/numbers.h"
#include "plan/export/megatron_settings.h"

namespace orrery::plan {
namespace {

Plan nearest(const Plan& plan, const ExportRequest& request) {
  Plan p = nearest_megatron(plan, request);
  const auto beside = [](LayerStrategy& s) {
    if (s.grad_reduce == GradReduce::kEnd) s.grad_reduce = GradReduce::kStep;
  };
  if (first_layer(p).tensor_pieces == 1) return p;
  beside(p.vocabulary);
  for (Stage& stage : p.stages) {
    for (LayerRun& run : stage.runs) beside(run.strategy);
  }
  return p;
}

/// In order of model::Precision.
constexpr std::string_view kPrecisions[] = {"",
                                            "bf16_mixed",
                                            "bf16_with_fp8_delayed_scaling_mixed",
                                            "bf16_with_fp8_current_scaling_mixed",
                                            "bf16_with_fp8_subchannel_scaling_mixed",
                                            "bf16_with_mxfp8_mixed",
                                            "bf16_with_nvfp4_mixed"};

std::string line_of(const MegatronSetting& s) {
  if (s.section == "comm_overlap")
    return fmt::format("    cfg.comm_overlap = CommOverlapConfig({}=True)\n", s.name);
  const bool turns = s.name == "num_virtual_stages_per_pipeline_rank";
  const std::string value =
      s.value.empty() ? "True" : (s.text ? fmt::format("\"{}\"", s.value) : s.value);
  return fmt::format("    cfg.{}.{} = {}\n", s.section,
                     turns ? "virtual_pipeline_model_parallel_size" : s.name, value);
}

void write(ExportedPlan& out, const ExportRequest& request) {
  const Plan& plan = out.plan;
  const Launch launch = launch_of(plan, request);
  std::string body;
  for (const MegatronSetting& s : megatron_settings(plan)) body += line_of(s);
  body += fmt::format("    cfg.dataset.seq_length = {}\n", plan.sequence);
  const std::string_view precision = kPrecisions[as_index(as_int(plan.precision))];
  if (!precision.empty()) body += fmt::format("    cfg.mixed_precision = \"{}\"\n", precision);
  const bool overlap = first_layer(plan).tensor_pieces > 1;
  out.text = fmt::format(
      "# Megatron-Bridge 067f987: a plan for {} on {}, {} ranks, {} of them data-parallel, {} "
      "micro-batches.\n# torchrun --nproc-per-node {} --nnodes {} with a recipe's configuration: "
      "apply_plan(llama3_70b_pretrain_config())\n{}\n\ndef apply_plan(cfg):\n{}    return cfg\n",
      plan.model, plan.cluster, plan.world_size(), first_layer(plan).dp, plan.micro_batches,
      launch.ranks, launch.hosts,
      overlap ? "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n" : "", body);
  out.settings = {{"ranks", std::to_string(plan.world_size()), "torchrun"},
                  {"layers", std::to_string(request.model.layers), "the recipe's model"}};
  if (precision.empty())
    out.settings.push_back({"mixed_precision", "None", "the recipe's configuration"});
}

std::vector<Rule> rules() {
  std::vector<Rule> rules = megatron_rules();
  for (Rule& rule : rules) {
    if (rule.field == "grad_reduce")
      rule.why =
          "gradients are reduced beside or behind the last backward of a step, always beside it "
          "with tensor-parallel overlap, by Megatron-FSDP after every micro-batch";
  }
  return rules;
}

}  // namespace

constinit const Exporter kMegatronBridgeExporter{
    {Framework::kMegatronBridge, "megatron-bridge", "Megatron-Bridge", "067f987",
     "a Python function over its ConfigContainer", "megatron-bridge", "megatron"},
    nearest,
    megatron_faults,
    write,
    rules};

}  // namespace orrery::plan
