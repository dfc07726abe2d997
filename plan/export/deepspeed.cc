/// \file
/// DeepSpeed 0.19 (github.com/deepspeedai/DeepSpeed, edaa722): the JSON of deepspeed.initialize().
/// plan/import/import.h has the meaning of its keys.
///
/// A pipeline is in no JSON: it is PipelineModule(num_stages, partition_method="type:...") of the
/// training program, with ZeRO 0 or 1, 1F1B and as many layers on each stage, and goes with no
/// other dimension but data parallelism here. Recomputation is the model's code. train_batch_size
/// is left out beside AutoTP and a pipeline, since the parser would count all ranks.
///
/// Rules held here: ZeRO beside a pipeline, AutoTP beside experts or Ulysses, MiCS beside either.
#include <algorithm>

#include "base/json.h"
#include "base/numbers.h"
#include "plan/export/exporter.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

GradReduce reduces(const LayerStrategy& s, bool pipeline, std::int64_t micro_batches) {
  if (s.replicas() == 1) return GradReduce::kStep;
  if (s.zero >= 2) return micro_batches > 1 ? GradReduce::kMicroBatch : GradReduce::kStep;
  return s.zero == 1 && !pipeline && s.grad_reduce != GradReduce::kEnd ? GradReduce::kStep
                                                                       : GradReduce::kEnd;
}

LayerStrategy nearest_strategy(LayerStrategy s, const Plan& plan) {
  const bool pipeline = plan.pipeline_degree() > 1;
  if (s.tp > 1) s.drop_experts();
  s.context = s.cp > 1 ? ContextKind::kUlysses : ContextKind::kRing;
  if (s.replicas() == 1) s.zero = 0;
  if (pipeline) s.zero = std::min(s.zero, 1);
  const bool groups = s.zero == 3 && s.shard < s.replicas() && s.cp == 1 && s.ep == 1;
  if (!groups) s.shard = 0;
  s.grad_reduce = reduces(s, pipeline, plan.micro_batches);
  s.operators = ShardedOperators::kAll;
  s.slices = 1;
  s.strided = s.sequence_parallel = false;
  s.tensor_pieces = 1;
  return s;
}

Plan nearest(const Plan& plan, const ExportRequest& request) {
  Plan p = plan;
  make_uniform(p, nearest_strategy(usual_strategy(plan), plan), request.model);
  const bool full = most_recompute(p) != Recompute::kNone;
  set_recompute(p, std::vector<Recompute>(as_index(request.model.layers),
                                          full ? Recompute::kFull : Recompute::kNone));
  join_virtual_stages(p);
  const int stages = p.pipeline_degree();
  if (request.model.layers % stages == 0) {
    const std::vector<int> even(as_index(stages), as_int(request.model.layers / stages));
    set_layers(p, layers_of(p), even);
  }
  p.schedule = Schedule::k1F1B;
  p.precision = std::min(p.precision, model::Precision::kBFloat16);
  p.prefetch_depth = 1;
  return p;
}

int experts_degree(const Plan& plan) {
  int ep = 1;
  for (const LayerStrategy& s : layers_of(plan)) ep = std::max(ep, s.ep);
  return ep;
}

base::Diagnostics faults(const Plan& plan, const ExportRequest& request) {
  FaultList list;
  const LayerStrategy& s = first_layer(plan);
  const int stages = plan.pipeline_degree();
  list.require(even_stages(plan), "a number of stages that divides the layers",
               "{} layers on {} stages", request.model.layers, stages);
  const bool data_alone = s.tp == 1 && s.cp == 1 && experts_degree(plan) == 1;
  list.require(stages == 1 || data_alone, "orrery plan --target deepspeed", "a pipeline beside {}",
               to_string(s));
  list.require(s.tp == 1 || s.cp == 1, "tp 1 or cp 1", "tensor parallelism beside Ulysses");
  list.require_whole_hosts(plan, request);
  return list.take();
}

base::Json zero_json(const LayerStrategy& s, bool pipeline) {
  base::Json zero{{"stage", s.zero}};
  if (s.zero > 0) zero["overlap_comm"] = s.grad_reduce != GradReduce::kEnd && !pipeline;
  if (s.shard > 0) zero["mics_shard_size"] = s.shard;
  return zero;
}

void describe_rest(ExportedPlan& out) {
  const Plan& plan = out.plan;
  const int stages = plan.pipeline_degree();
  const bool recompute = most_recompute(plan) == Recompute::kFull;
  out.beside = {.stages = stages, .recompute = recompute};
  out.settings = {{"ranks", std::to_string(plan.world_size()), "the launcher"},
                  {"tokens of a sequence", std::to_string(plan.sequence), "training program"}};
  if (stages > 1)
    out.settings.push_back({"PipelineModule(num_stages, partition_method='type:...')",
                            std::to_string(stages), "training program"});
  if (recompute)
    out.settings.push_back({stages > 1 ? "PipelineModule(activation_checkpoint_interval)"
                                       : "recomputation of every layer",
                            stages > 1 ? "1" : "on", "training program"});
  if (first_layer(plan).tp > 1)
    out.notes.push_back(
        "AutoTP splits embedding and head by rules of its own; the times and bytes here are of "
        "ones split over the vocabulary");
}

void write(ExportedPlan& out, const ExportRequest&) {
  const Plan& plan = out.plan;
  const LayerStrategy& s = first_layer(plan);
  const int ep = experts_degree(plan);
  const bool pipeline = plan.pipeline_degree() > 1;
  base::Json json{{"train_micro_batch_size_per_gpu", rank_sequences(plan)},
                  {"gradient_accumulation_steps", plan.micro_batches},
                  {"bf16", {{"enabled", plan.precision == model::Precision::kBFloat16}}},
                  {"zero_optimization", zero_json(s, pipeline)}};
  if (s.tp == 1 && !pipeline) json["train_batch_size"] = plan.global_batch;
  if (s.tp > 1) json["tensor_parallel"] = {{"autotp_size", s.tp}};
  if (ep > 1)
    json["expert_parallel"] = {
        {"enabled", true}, {"autoep_size", ep}, {"expert_tensor_parallel_size", 1}};
  if (s.cp > 1) {
    json["sequence_parallel_size"] = s.cp;
    json["data_parallel_size"] = s.dp;
  }
  out.text = base::to_text(json);
  describe_rest(out);
}

std::vector<Rule> rules() {
  return {{"zero", "a pipeline goes with ZeRO-0 and 1"},
          {"grad_reduce",
           "ZeRO-2 and 3 reduce after every micro-batch, ZeRO-0 and pipelines behind "
           "the last backward"},
          {"shard", "groups of states are MiCS, of ZeRO-3 with data parallelism alone"},
          {"operators", "all operators of a layer are sharded alike"},
          {"slices", "products run whole"},
          {"strided", "tensor groups are neighbouring ranks"},
          {"context", "sequences are split by Ulysses"},
          {"sequence_parallel", "AutoTP keeps norms and residuals whole"},
          {"tensor_pieces", "AutoTP does not run collectives in pieces"},
          {"ep", "AutoTP goes with no experts"},
          {"folded", "AutoTP goes with no experts"},
          {"recompute", "nothing, or every layer, by the model's code"},
          {"stages", "as many layers on every stage"},
          {"schedule", "1F1B"},
          {"virtual_stages", "one stage a rank"},
          {"precision", "bf16 or fp32"},
          {"prefetch_depth", "ZeRO-3 gathers ahead by bytes: one layer is taken"}};
}

}  // namespace

constinit const Exporter kDeepSpeedExporter{
    {Framework::kDeepSpeed, "deepspeed", "DeepSpeed", "0.19.6", "a DeepSpeed configuration",
     "pytorch-eager", "deepspeed"},
    nearest,
    faults,
    write,
    rules};

}  // namespace orrery::plan
