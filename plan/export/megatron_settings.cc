/// \file
/// Rules held here because Megatron-LM's parser does not, or only in the first step: experts'
/// groups (ep * edp = cp * dp), 2 * cp chunks of a sequence, uneven stages by the layout alone, as
/// many ranks on every host.
#include "plan/export/megatron_settings.h"

#include <algorithm>

#include "base/numbers.h"
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

}  // namespace

Plan nearest_megatron(const Plan& plan, const ExportRequest& request) {
  Plan p = plan;
  if (p.schedule != Schedule::kInterleaved) {
    join_virtual_stages(p);
    p.schedule = Schedule::k1F1B;
  }
  make_uniform(p, nearest_strategy(usual_strategy(plan), plan), request.model);
  take_recompute(p);
  p.prefetch_depth = 1;
  return p;
}

base::Diagnostics megatron_faults(const Plan& plan, const ExportRequest& request) {
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

std::vector<Rule> megatron_rules() {
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

namespace {

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

class Settings {
 public:
  void flag(std::string_view section, std::string_view name) {
    all_.push_back({section, std::string(name), {}});
  }
  void number(std::string_view section, std::string_view name, std::int64_t value) {
    all_.push_back({section, std::string(name), std::to_string(value)});
  }
  void word(std::string_view section, std::string_view name, std::string_view value) {
    all_.push_back({section, std::string(name), std::string(value), true});
  }
  std::vector<MegatronSetting> take() { return std::move(all_); }

 private:
  std::vector<MegatronSetting> all_;
};

void add_pipeline(Settings& out, const Plan& plan) {
  out.number("model", "pipeline_model_parallel_size", plan.pipeline_degree());
  if (!even_stages(plan)) {
    out.word("model", "pipeline_model_parallel_layout", layout_text(plan));
  } else if (plan.virtual_stages > 1) {
    out.number("model", "num_virtual_stages_per_pipeline_rank", plan.virtual_stages);
  }
}

void add_sharding(Settings& out, const LayerStrategy& s) {
  constexpr std::string_view kShardings[] = {"no_shard", "optim", "optim_grads",
                                             "optim_grads_params"};
  if (s.zero > 0) out.flag("ddp", "use_distributed_optimizer");
  if (s.zero >= 2) {
    out.flag("ddp", "use_megatron_fsdp");
    out.word("ddp", "data_parallel_sharding_strategy", kShardings[s.zero]);
    out.word("checkpoint", "ckpt_format", "fsdp_dtensor");
  }
  if (s.shard > 0) out.number("ddp", "num_distributed_optimizer_instances", s.replicas() / s.shard);
  if (s.shard > 0 && s.zero >= 2) out.word("ddp", "outer_dp_sharding_strategy", "no_shard");
  if (s.replicas() > 1 && s.grad_reduce != GradReduce::kEnd) {
    out.flag("ddp", "overlap_grad_reduce");
    if (s.zero > 0) out.flag("ddp", "overlap_param_gather");
  }
}

void add_recompute(Settings& out, const Plan& plan) {
  const Recompute most = most_recompute(plan);
  if (most == Recompute::kNone) return;
  if (most == Recompute::kSelective) return out.word("model", "recompute_granularity", "selective");
  const int recomputed = recomputed_layers(plan);
  const bool all = recomputed >= std::ranges::max(stage_sizes(plan));
  out.word("model", "recompute_granularity", "full");
  out.word("model", "recompute_method", all ? "uniform" : "block");
  out.number("model", "recompute_num_layers", all ? 1 : recomputed);
}

int experts_degree(const Plan& plan) {
  int ep = 1;
  for (const LayerStrategy& s : layers_of(plan)) ep = std::max(ep, s.ep);
  return ep;
}

bool folds_experts(const Plan& plan) {
  return std::ranges::any_of(layers_of(plan), &LayerStrategy::folded);
}

}  // namespace

std::vector<MegatronSetting> megatron_settings(const Plan& plan) {
  const LayerStrategy& s = first_layer(plan);
  Settings out;
  out.number("model", "tensor_model_parallel_size", s.tp);
  if (s.sequence_parallel) out.flag("model", "sequence_parallel");
  if (s.tensor_pieces > 1) out.flag("comm_overlap", "tp_comm_overlap");
  add_pipeline(out, plan);
  if (s.cp > 1) {
    out.number("model", "context_parallel_size", s.cp);
    out.word("model", "cp_comm_type", s.context == ContextKind::kRing ? "p2p" : "a2a");
  }
  if (experts_degree(plan) > 1 || folds_experts(plan)) {
    out.number("model", "expert_model_parallel_size", experts_degree(plan));
    out.number("model", "expert_tensor_parallel_size", folds_experts(plan) ? 1 : s.tp);
    out.word("model", "moe_token_dispatcher_type", "alltoall");
  }
  add_sharding(out, s);
  add_recompute(out, plan);
  out.number("train", "micro_batch_size", rank_sequences(plan));
  out.number("train", "global_batch_size", plan.global_batch);
  out.number("model", "seq_length", plan.sequence);
  return out.take();
}

}  // namespace orrery::plan
