/// \file
/// Megatron-LM core_v0.19.0 (github.com/NVIDIA/Megatron-LM, 5be9626): arguments of pretrain_gpt.py,
/// checked there by megatron/training/arguments.py and TransformerConfig. plan/import/import.h has
/// their meaning.
///
/// Rules held here because that parser does not, or only in the first step: experts' groups
/// (ep * edp = cp * dp), 2 * cp chunks of a sequence, uneven stages by the layout alone, as many
/// ranks on every host.
#include <algorithm>

#include "base/numbers.h"
#include "plan/export/exporter.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

constexpr int kOverlapPieces = 4;  // of Transformer Engine's userbuffers

int pieces_of(const LayerStrategy& s, const Plan& plan) {
  const bool overlaps = s.sequence_parallel && s.tensor_pieces > 1;
  const std::int64_t tokens = plan.sequence / (s.tp * s.cp);
  return overlaps && tokens % kOverlapPieces == 0 ? kOverlapPieces : 1;
}

LayerStrategy nearest_strategy(LayerStrategy s, const Plan& plan) {
  if (s.cp == 1) s.context = ContextKind::kRing;
  if (s.replicas() == 1) s.zero = 0;
  if (s.zero >= 2 && plan.pipeline_degree() > 1) s.zero = 1;
  if (s.zero == 0 || s.shard == s.replicas()) s.shard = 0;
  if (s.zero >= 2) s.grad_reduce = GradReduce::kMicroBatch;
  const bool once = s.replicas() == 1 || s.zero < 2 || plan.micro_batches == 1;
  if (s.replicas() == 1 || (once && s.grad_reduce == GradReduce::kMicroBatch))
    s.grad_reduce = GradReduce::kStep;
  s.operators = ShardedOperators::kAll;
  s.slices = 1;
  s.strided = false;
  s.tensor_pieces = pieces_of(s, plan);
  return s;
}

/// The first N layers of every virtual stage recompute everything; N = 0: none do. So many that no
/// layer that the plan recomputes is left out.
int recomputed_layers(const Plan& plan) {
  int most = 0;
  for (const Stage& stage : plan.stages) {
    int before = 0;
    for (const LayerRun& run : stage.runs) {
      before += run.count;
      if (run.strategy.recompute == Recompute::kFull) most = std::max(most, before);
    }
  }
  return most;
}

void take_recompute(Plan& plan) {
  std::vector<Recompute> layers;
  bool selective = false;
  for (const LayerStrategy& s : layers_of(plan)) {
    layers.push_back(s.recompute == Recompute::kOperator ? Recompute::kFull : s.recompute);
    selective = selective || s.recompute == Recompute::kSelective;
  }
  const bool full = std::ranges::find(layers, Recompute::kFull) != layers.end();
  if (selective) {
    std::ranges::fill(layers, full ? Recompute::kFull : Recompute::kSelective);
    return set_recompute(plan, layers);
  }
  set_recompute(plan, layers);
  const int recomputed = recomputed_layers(plan);
  std::size_t layer = 0;
  for (const int size : stage_sizes(plan)) {
    for (int i = 0; i < size; ++i)
      layers[layer++] = i < recomputed ? Recompute::kFull : Recompute::kNone;
  }
  set_recompute(plan, layers);
}

Plan nearest(const Plan& plan, const ExportRequest& request) {
  Plan p = plan;
  make_uniform(p, nearest_strategy(usual_strategy(plan), plan), request.model);
  take_recompute(p);
  if (p.schedule != Schedule::kInterleaved) p.schedule = Schedule::k1F1B;
  p.prefetch_depth = 1;
  return p;
}

base::Diagnostics faults(const Plan& plan, const ExportRequest& request) {
  FaultList list;
  const model::ModelSpec& m = request.model;
  list.require(!m.encoder_decoder() && m.patch_features == 0,
               "pretrain_gpt.py trains one stack of blocks over tokens", "a model of family {}",
               to_string(m.family));
  const LayerStrategy& s = first_layer(plan);
  list.require(s.cp == 1 || plan.sequence % (2 * s.cp) == 0,
               "a sequence that 2 * cp divides, or cp 1", "{} tokens in {} chunks", plan.sequence,
               2 * s.cp);
  list.require_whole_hosts(plan, request);
  return list.take();
}

/// "Et*10|(t*10|)*5t*11|t*9L": E embedding, t layer, L head, | between stages.
std::string layout_text(const Plan& plan) {
  const std::vector<int> sizes = stage_sizes(plan);
  const auto layers = [](int count) { return count == 1 ? "t" : fmt::format("t*{}", count); };
  std::string text = "E" + layers(sizes.front()) + "|";
  for (std::size_t i = 1; i + 1 < sizes.size();) {
    std::size_t end = i + 1;
    while (end + 1 < sizes.size() && sizes[end] == sizes[i]) ++end;
    const std::string stage = layers(sizes[i]) + "|";
    text += end - i > 1 ? fmt::format("({})*{}", stage, end - i) : stage;
    i = end;
  }
  return text + layers(sizes.back()) + "L";
}

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

void write_sharding(ArgumentText& out, const LayerStrategy& s) {
  constexpr std::string_view kShardings[] = {"no_shard", "optim", "optim_grads",
                                             "optim_grads_params"};
  if (s.zero > 0) out.flag("use-distributed-optimizer");
  if (s.zero >= 2) {
    out.flag("use-megatron-fsdp");
    out.value("data-parallel-sharding-strategy", kShardings[s.zero]);
    out.value("ckpt-format", "fsdp_dtensor");
  }
  if (s.shard > 0) out.value("num-distributed-optimizer-instances", s.replicas() / s.shard);
  if (s.shard > 0 && s.zero >= 2) out.value("outer-dp-sharding-strategy", "no_shard");
  if (s.replicas() > 1 && s.grad_reduce != GradReduce::kEnd) {
    out.flag("overlap-grad-reduce");
    if (s.zero > 0) out.flag("overlap-param-gather");
  }
}

void write_recompute(ArgumentText& out, const Plan& plan) {
  const Recompute most = most_recompute(plan);
  if (most == Recompute::kNone) return;
  if (most == Recompute::kSelective) return out.value("recompute-granularity", "selective");
  const int recomputed = recomputed_layers(plan);
  const bool all = recomputed >= std::ranges::max(stage_sizes(plan));
  out.value("recompute-granularity", "full");
  out.value("recompute-method", all ? "uniform" : "block");
  out.value("recompute-num-layers", all ? 1 : recomputed);
}

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

void write_pipeline(ArgumentText& out, const Plan& plan) {
  out.value("pipeline-model-parallel-size", plan.pipeline_degree());
  if (!even_stages(plan)) {
    out.value("pipeline-model-parallel-layout", fmt::format("\"{}\"", layout_text(plan)));
  } else if (plan.virtual_stages > 1) {
    out.value("num-virtual-stages-per-pipeline-rank", plan.virtual_stages);
  }
}

int experts_degree(const Plan& plan) {
  int ep = 1;
  for (const LayerStrategy& s : layers_of(plan)) ep = std::max(ep, s.ep);
  return ep;
}

std::string plan_arguments(const Plan& plan) {
  const LayerStrategy& s = first_layer(plan);
  ArgumentText out("PLAN_ARGS");
  out.value("tensor-model-parallel-size", s.tp);
  if (s.sequence_parallel) out.flag("sequence-parallel");
  if (s.tensor_pieces > 1) out.flag("tp-comm-overlap");
  write_pipeline(out, plan);
  if (s.cp > 1) {
    out.value("context-parallel-size", s.cp);
    out.value("cp-comm-type", s.context == ContextKind::kRing ? "p2p" : "a2a");
  }
  if (experts_degree(plan) > 1) {
    out.value("expert-model-parallel-size", experts_degree(plan));
    out.value("expert-tensor-parallel-size", s.tp);
    out.value("moe-token-dispatcher-type", "alltoall");
  }
  write_sharding(out, s);
  write_recompute(out, plan);
  out.value("micro-batch-size", rank_sequences(plan));
  out.value("global-batch-size", plan.global_batch);
  out.value("seq-length", plan.sequence);
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

std::vector<Rule> rules() {
  return {{"zero",
           "the distributed optimizer is ZeRO-1; ZeRO-2 and 3 are Megatron-FSDP's, which is "
           "used without a pipeline"},
          {"grad_reduce",
           "gradients are reduced beside or behind the last backward of a step, by "
           "Megatron-FSDP after every micro-batch"},
          {"operators", "all operators of a layer are sharded alike"},
          {"slices", "products run whole"},
          {"strided", "tensor groups are neighbouring ranks"},
          {"tensor_pieces", "Transformer Engine overlaps in 4 pieces, with sequence parallelism"},
          {"recompute",
           "nothing, the attention core, or whole layers: all, or the first N of every "
           "virtual stage"},
          {"schedule", "1F1B, or 1F1B with virtual stages"},
          {"prefetch_depth", "Megatron-FSDP gathers one layer ahead"}};
}

}  // namespace

constinit const Exporter kMegatronExporter{
    {Framework::kMegatron, "megatron", "Megatron-LM", "core_v0.19.0",
     "arguments of pretrain_gpt.py and torchrun", "megatron-core", "megatron"},
    nearest,
    faults,
    write,
    rules};

}  // namespace orrery::plan
