/// \file
/// Galvatron 2.4 (github.com/PKU-DAIR/Hetu-Galvatron, cea12ff): galvatron_config_*.json, with a
/// value for every layer. plan/import/import.h has the meaning of its keys. embed_sdp is what that
/// search writes, vocab_sdp what its runtime reads: both are written, and cp_sizes_enc and vcp,
/// which the runtime alone knows, where context parallelism is a ring.
///
/// Rules held here because its parser checks nothing: degrees divide the ranks of a stage (by
/// validate()), a layer with one replica is DDP, one default of ZeRO-0 and 2 for the whole model.
#include <algorithm>

#include "base/json.h"
#include "base/numbers.h"
#include "plan/export/exporter.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

/// What the whole model has in common.
struct Switches {
  int zero = 0;  // of layers that are not ZeRO-3
  bool sequence_parallel = true;
  bool every_micro_batch = true;
};

Switches switches_of(const Plan& plan) {
  std::vector<LayerStrategy> all = layers_of(plan);
  Switches found;
  found.sequence_parallel =
      std::ranges::none_of(all, [](const LayerStrategy& s) { return s.tp > 1; });
  for (const LayerStrategy& s : all)
    found.sequence_parallel = found.sequence_parallel || s.sequence_parallel;
  all.push_back(plan.vocabulary);
  bool shards = false;
  for (const LayerStrategy& s : all) {
    if (s.replicas() == 1) continue;
    if (s.zero == 1 || s.zero == 2) found.zero = 2;
    shards = true;
    found.every_micro_batch = found.every_micro_batch && s.grad_reduce == GradReduce::kMicroBatch;
  }
  found.every_micro_batch = found.every_micro_batch && shards;
  return found;
}

LayerStrategy nearest_strategy(LayerStrategy s, const Switches& switches) {
  if (s.cp == 1 || s.tp > 1) s.context = ContextKind::kRing;
  if (s.zero != 3) s.zero = switches.zero;
  if (s.replicas() == 1) s.zero = 0;
  s.shard = 0;
  s.drop_experts();
  s.operators = ShardedOperators::kAll;
  s.slices = 1;
  s.strided = false;
  s.tensor_pieces = 1;
  s.states = States::kDevice;
  const bool every = switches.every_micro_batch && s.replicas() > 1;
  s.grad_reduce = every ? GradReduce::kMicroBatch : GradReduce::kStep;
  return s;
}

Plan nearest(const Plan& plan, const ExportRequest&) {
  Plan p = plan;
  const Switches switches = switches_of(plan);
  std::vector<LayerStrategy> layers = layers_of(plan);
  for (LayerStrategy& s : layers) {
    s = nearest_strategy(s, switches);
    s.sequence_parallel = switches.sequence_parallel && s.tp > 1;
    if (s.recompute != Recompute::kNone) s.recompute = Recompute::kFull;
  }
  p.vocabulary = nearest_strategy(plan.vocabulary, switches);
  set_layers(p, layers, stage_sizes(plan));
  join_virtual_stages(p);
  if (p.schedule != Schedule::kGPipe) p.schedule = Schedule::k1F1B;
  p.precision = std::min(p.precision, model::Precision::kBFloat16);
  p.prefetch_depth = 1;
  return p;
}

base::Diagnostics faults(const Plan& plan, const ExportRequest& request) {
  FaultList list;
  list.require_whole_hosts(plan, request);
  return list.take();
}

/// "1,1,2": of each item what `number` says.
template <class Items, class Number>
std::string listed(const Items& items, const Number& number) {
  std::string text;
  for (const auto& item : items)
    text += fmt::format("{}{}", text.empty() ? "" : ",", static_cast<int>(number(item)));
  return text;
}

bool ulysses(const LayerStrategy& s) { return s.cp > 1 && s.context == ContextKind::kUlysses; }
/// Of tensor parallelism, or of Ulysses in its place.
int degree(const LayerStrategy& s) { return ulysses(s) ? s.cp : s.tp; }
int ring(const LayerStrategy& s) { return ulysses(s) ? 1 : s.cp; }

void describe_rest(ExportedPlan& out, const Switches& switches) {
  const Plan& plan = out.plan;
  const auto on = [](bool value) { return std::string(value ? "true" : "false"); };
  const bool bf16 = plan.precision == model::Precision::kBFloat16;
  out.beside = {.sequence_parallel = switches.sequence_parallel,
                .reduce_every_micro_batch = switches.every_micro_batch};
  constexpr const char* kRun = "configuration of the run";
  out.settings = {{"sequence_parallel", on(switches.sequence_parallel), kRun},
                  {"async_grad_reduce", on(!switches.every_micro_batch), kRun},
                  {"mixed_precision", bf16 ? "bf16" : "fp32", kRun},
                  {"seq_length", std::to_string(plan.sequence), kRun}};
  if (std::ranges::any_of(layers_of(plan), [](const LayerStrategy& s) { return ring(s) > 1; }))
    out.settings.push_back({"cp_mode", "zigzag", kRun});
}

void write(ExportedPlan& out, const ExportRequest&) {
  const Plan& plan = out.plan;
  const std::vector<LayerStrategy> layers = layers_of(plan);
  const LayerStrategy& v = plan.vocabulary;
  const Switches switches = switches_of(plan);
  const bool rings = ring(v) > 1 || std::ranges::any_of(
                                        layers, [](const LayerStrategy& s) { return ring(s) > 1; });
  const auto is_full = [](const LayerStrategy& s) { return s.recompute == Recompute::kFull; };
  const auto is_sharded = [](const LayerStrategy& s) { return s.zero == 3; };
  base::Json json{
      {"pp_deg", plan.pipeline_degree()},
      {"tp_sizes_enc", listed(layers, degree)},
      {"tp_consecutive_flags", listed(layers, [](const LayerStrategy&) { return 1; })},
      {"dp_types_enc", listed(layers, is_sharded)},
      {"use_sp", listed(layers, ulysses)},
      {"checkpoint", listed(layers, is_full)},
      {"world_size", plan.world_size()},
      {"global_bsz", plan.global_batch},
      {"chunks", plan.micro_batches},
      {"pp_division", listed(stage_sizes(plan), [](int size) { return size; })},
      {"pipeline_type", plan.schedule == Schedule::kGPipe ? "gpipe" : "pipedream_flush"},
      {"default_dp_type", switches.zero == 2 ? "zero2" : "ddp"},
      {"vtp", degree(v)},
      {"vsp", ulysses(v) ? 1 : 0},
      {"embed_sdp", v.zero == 3 ? 1 : 0},
      {"vocab_sdp", v.zero == 3 ? 1 : 0}};
  if (rings) {
    json["cp_sizes_enc"] = listed(layers, ring);
    json["vcp"] = ring(v);
  }
  out.text = base::to_text(json);
  describe_rest(out, switches);
}

std::vector<Rule> rules() {
  constexpr std::string_view kZero =
                                 "ZeRO-3 for each layer, and one of ZeRO-0 and 2 for the others",
                             kReduce =
                                 "gradients are reduced once a step, beside the last backward; "
                                 "or, of sharded ones, after every micro-batch everywhere",
                             kContext = "Ulysses stands in the place of tensor parallelism";
  return {{"zero", kZero},
          {"vocabulary.zero", kZero},
          {"grad_reduce", kReduce},
          {"vocabulary.grad_reduce", kReduce},
          {"context", kContext},
          {"shard", "states are sharded over all replicas"},
          {"vocabulary.shard", "states are sharded over all replicas"},
          {"operators", "all operators of a layer are sharded alike"},
          {"slices", "products run whole"},
          {"strided", "tensor groups are neighbouring ranks"},
          {"vocabulary.strided", "tensor groups are neighbouring ranks"},
          {"sequence_parallel", "one switch for all layers"},
          {"tensor_pieces", "collectives of tensor parallelism run whole"},
          {"ep", "the files of its search split no experts"},
          {"folded", "the files of its search split no experts"},
          {"recompute", "nothing, or whole layers"},
          {"schedule", "GPipe or 1F1B"},
          {"stages", "one stage a rank"},
          {"virtual_stages", "one stage a rank"},
          {"precision", "bf16 or fp32"},
          {"prefetch_depth", "FSDP gathers one layer ahead"}};
}

}  // namespace

constinit const Exporter kGalvatronExporter{
    {Framework::kGalvatron, "galvatron", "Galvatron", "2.4", "a galvatron_config file", "", ""},
    nearest,
    faults,
    write,
    rules};

}  // namespace orrery::plan
