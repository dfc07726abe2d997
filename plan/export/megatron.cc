/// \file
/// Megatron-LM core_v0.19.0 (github.com/NVIDIA/Megatron-LM, 5be9626): arguments of pretrain_gpt.py,
/// checked there by megatron/training/arguments.py and TransformerConfig. plan/import/import.h has
/// their meaning.
#include <algorithm>

#include "base/numbers.h"
#include "plan/export/megatron_settings.h"

namespace orrery::plan {
namespace {

/// The arguments, one a line.
class ArgumentText {
 public:
  explicit ArgumentText(const char* array) { text_ = fmt::format("{}=(\n", array); }
  void flag(std::string_view name) { text_ += fmt::format("  --{}\n", name); }
  template <class T>
  void value(std::string_view name, const T& value) {
    text_ += fmt::format("  --{} {}\n", name, value);
  }
  std::string take() { return text_ + ")\n"; }

 private:
  std::string text_;
};

void write_precision(ArgumentText& out, model::Precision precision) {
  using enum model::Precision;
  if (precision != kFloat32) out.flag("bf16");
  if (precision == kNvFp4) {
    out.value("fp4-format", "e2m1");
    out.value("fp4-recipe", "nvfp4");
  }
  if (precision <= kBFloat16 || precision == kNvFp4) return;
  const bool blocks = precision == kFp8Block || precision == kMxFp8;
  constexpr std::string_view kRecipes[] = {"delayed", "tensorwise", "blockwise", "mxfp8"};
  out.value("fp8-format", blocks ? "e4m3" : "hybrid");
  out.value("fp8-recipe", kRecipes[as_int(precision) - as_int(kFp8Delayed)]);
}

std::string plan_arguments(const Plan& plan) {
  ArgumentText out("PLAN_ARGS");
  for (const MegatronSetting& setting : megatron_settings(plan)) {
    std::string name = setting.name;
    std::ranges::replace(name, '_', '-');
    const bool quoted = setting.value.find_first_of("*|()") != std::string::npos;
    if (setting.value.empty())
      out.flag(name);
    else
      out.value(name, quoted ? fmt::format("\"{}\"", setting.value) : setting.value);
  }
  write_precision(out, plan.precision);
  return out.take();
}

/// Kernels of communication start in order before Blackwell with one connection; FSDP needs more.
std::string environment(const LayerStrategy& s) {
  if (s.zero >= 2) return "unset CUDA_DEVICE_MAX_CONNECTIONS\n";
  return s.tp > 1 || s.cp > 1 ? "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" : "";
}

void write(ExportedPlan& out, const ExportRequest& request) {
  const Plan& plan = out.plan;
  const Launch launch = launch_of(plan, request);
  ArgumentText ranks("LAUNCH_ARGS");
  ranks.value("nproc-per-node", launch.ranks);
  ranks.value("nnodes", launch.hosts);
  out.text = fmt::format(
      "# Megatron-LM core_v0.19.0: a plan for {} on {}, {} ranks, {} of them data-parallel, {} "
      "micro-batches.\n"
      "# Source this file, then: torchrun \"${{LAUNCH_ARGS[@]}}\" pretrain_gpt.py "
      "\"${{PLAN_ARGS[@]}}\" and the\n# arguments of model, data and optimizer.\n{}{}{}",
      plan.model, plan.cluster, plan.world_size(), first_layer(plan).dp, plan.micro_batches,
      environment(first_layer(plan)), ranks.take(), plan_arguments(plan));
  out.settings = {{"--num-layers", std::to_string(request.model.layers), "arguments of the model"},
                  {"--max-position-embeddings", fmt::format("at least {}", plan.sequence),
                   "arguments of the model"}};
}

}  // namespace

constinit const Exporter kMegatronExporter{
    {Framework::kMegatron, "megatron", "Megatron-LM", "core_v0.19.0",
     "arguments of pretrain_gpt.py and torchrun", "megatron-core", "megatron"},
    nearest_megatron,
    megatron_faults,
    write,
    megatron_rules};

}  // namespace orrery::plan
