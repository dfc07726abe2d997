/// \file
/// TorchTitan v0.2.2 (github.com/pytorch/torchtitan, 73a0e69), the last with TOML: sections and
/// keys of torchtitan/config/job_config.py. plan/import/import.h has their meaning.
///
/// Rules held here because they are met only when training starts: replicas without sharding stand
/// alone (DDP is refused beside another dimension); the parts of ranks that experts take divide
/// shard * cp; tp * 2 * cp divides the sequence; tied embeddings have no pipeline; DualPipeV has a
/// micro-batch for every stage, and experts over ranks without recomputation alone. No stage is
/// compiled whose backward is in two (pytorch/pytorch#162511), as stages in a V have it.
/// Stages are written as lists of modules, which say any split; a pipeline reduces gradients once,
/// after its last backward (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).
#include <algorithm>

#include "base/ids.h"
#include "base/numbers.h"
#include "plan/export/exporter.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

constexpr int kAsyncPieces = 4;  // in which a plan prices collectives beside products

/// DDP sums gradients after every micro-batch, which no plan says.
bool replicates(const LayerStrategy& s, const Plan& plan) {
  return s.zero == 0 && s.tp == 1 && s.cp == 1 && s.ep == 1 && plan.pipeline_degree() == 1 &&
         plan.micro_batches == 1;
}

GradReduce reduces(const LayerStrategy& s, const Plan& plan) {
  if (s.zero == 0) return GradReduce::kStep;
  if (plan.pipeline_degree() > 1) return GradReduce::kEnd;
  return plan.micro_batches > 1 ? GradReduce::kMicroBatch : GradReduce::kStep;
}

LayerStrategy nearest_strategy(LayerStrategy s, const Plan& plan) {
  s.context = ContextKind::kRing;
  s.sequence_parallel = s.tp > 1;
  if (s.replicas() == 1) {
    s.zero = 0;
  } else if (s.zero < 2 && !replicates(s, plan)) {
    s.zero = 2;
  }
  const bool groups = s.zero >= 2 && s.shard > 1 && s.shard < s.replicas() && s.shard % s.cp == 0;
  if (!groups || s.ep > 1) s.shard = 0;
  if (s.ep == 1) s.folded = false;  // without a degree of their own they are split as the others
  s.grad_reduce = reduces(s, plan);
  s.operators = ShardedOperators::kAll;
  s.slices = 1;
  s.strided = false;
  const bool pieces = s.tensor_pieces > 1 && !is_v_shaped(plan.schedule) &&
                      plan.sequence / (s.tp * s.cp) % kAsyncPieces == 0;
  s.tensor_pieces = s.sequence_parallel && pieces ? kAsyncPieces : 1;
  return s;
}

/// Layer i's place among those of its pipeline rank, from 1 on.
std::vector<int> places_of(const Plan& plan) {
  std::vector<int> places, seen(as_index(plan.pipeline_degree()), 0);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    for (int k = 0; k < plan.stages[i].layers(); ++k)
      places.push_back(++seen[as_index(plan.rank_of(as_int(i)))]);
  }
  return places;
}

/// The largest n so that every layer that is recomputed as a whole is an n-th of its rank; 0: none
/// is.
int every_of(const Plan& plan) {
  const std::vector<int> places = places_of(plan);
  const std::vector<LayerStrategy> layers = layers_of(plan);
  for (int n = std::ranges::max(places); n > 0; --n) {
    bool any = false, all = true;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].recompute != Recompute::kFull) continue;
      any = true;
      all = all && places[i] % n == 0;
    }
    if (!any) return 0;
    if (all) return n;
  }
  return 1;
}

void take_recompute(Plan& plan) {
  bool operators = false;
  for (const LayerStrategy& s : layers_of(plan))
    operators =
        operators || s.recompute == Recompute::kOperator || s.recompute == Recompute::kSelective;
  const std::vector<int> places = places_of(plan);
  const bool full = most_recompute(plan) == Recompute::kFull;
  if (operators) {
    const Recompute all = full ? Recompute::kFull : Recompute::kOperator;
    return set_recompute(plan, std::vector<Recompute>(places.size(), all));
  }
  const int n = every_of(plan);
  std::vector<Recompute> recompute;
  for (const int place : places)
    recompute.push_back(n > 0 && place % n == 0 ? Recompute::kFull : Recompute::kNone);
  set_recompute(plan, recompute);
}

model::Precision nearest_precision(model::Precision precision) {
  using enum model::Precision;
  if (precision == kFp8Delayed || precision == kFp8Block) return kFp8Current;
  return precision == kNvFp4 ? kMxFp8 : precision;
}

Plan nearest(const Plan& plan, const ExportRequest& request) {
  Plan p = plan;
  make_uniform(p, nearest_strategy(usual_strategy(plan), plan), request.model);
  take_recompute(p);
  if (p.schedule == Schedule::kZeroBubbleH1 || p.pipeline_degree() == 1)
    p.schedule = Schedule::k1F1B;
  if (p.schedule == Schedule::kDualPipeV && p.micro_batches < std::ssize(p.stages))
    p.schedule = Schedule::kZeroBubbleV;
  p.precision = nearest_precision(p.precision);
  p.prefetch_depth = 1;
  return p;
}

base::Diagnostics faults(const Plan& plan, const ExportRequest& request) {
  FaultList list;
  const model::ModelSpec& m = request.model;
  const LayerStrategy& s = first_layer(plan);
  list.require(m.causal && !m.encoder_decoder() && m.patch_features == 0,
               "its models are decoders over tokens", "a model of family {}", to_string(m.family));
  list.require(!m.tied_embeddings || plan.pipeline_degree() == 1,
               "plan without a pipeline (--space without pipeline)",
               "{} stages of a model whose head shares the embedding", plan.pipeline_degree());
  list.require(plan.schedule != Schedule::kDualPipeV || s.ep == 1 ||
                   most_recompute(plan) == Recompute::kNone,
               "--fix schedule=zb-v, or recompute=none", "recomputed experts in DualPipeV");
  const std::int64_t parts = std::int64_t{s.tp} * (s.cp > 1 ? 2 * s.cp : 1);
  list.require(plan.sequence % parts == 0, fmt::format("a sequence that {} divides", parts),
               "{} tokens in {} parts", plan.sequence, parts);
  return list.take();
}

/// Keys of one section after another.
class TomlText {
 public:
  explicit TomlText(std::string comment) : text_(std::move(comment)) {}
  void section(std::string_view name) { text_ += fmt::format("\n[{}]\n", name); }
  void number(std::string_view key, std::int64_t value) {
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void string(std::string_view key, std::string_view value) {
    text_ += fmt::format("{} = \"{}\"\n", key, value);
  }
  void flag(std::string_view key) { text_ += fmt::format("{} = true\n", key); }
  void raw(std::string_view text) { text_ += text; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]], a stage a line.
std::string modules_text(const Plan& plan) {
  std::string text = "module_fqns_per_model_part = [\n";
  const std::vector<int> sizes = stage_sizes(plan);
  int layer = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += i == 0 ? "  [\"tok_embeddings\"" : "  [";
    for (int k = 0; k < sizes[i]; ++k, ++layer)
      text += fmt::format("{}\"layers.{}\"", i > 0 && k == 0 ? "" : ", ", layer);
    text += i + 1 == sizes.size() ? ", \"norm\", \"output\"],\n" : "],\n";
  }
  return text + "]\n";
}

void write_pipeline(TomlText& out, const Plan& plan) {
  constexpr base::EnumNames<kLastSchedule> kSchedules("GPipe", "1F1B", "Interleaved1F1B", "",
                                                      "ZBVZeroBubble", "DualPipeV");
  out.number("pipeline_parallel_degree", plan.pipeline_degree());
  if (plan.pipeline_degree() == 1) return;
  out.string("pipeline_parallel_schedule", kSchedules[plan.schedule]);
  out.number("pipeline_parallel_microbatch_size", rank_sequences(plan));
  out.raw(modules_text(plan));
}

void write_parallelism(TomlText& out, const Plan& plan) {
  const LayerStrategy& s = first_layer(plan);
  const int replicate = s.zero >= 2 ? s.replicas() / s.shard_ranks() : s.dp;
  int ep = 1, etp = s.tp;
  for (const LayerStrategy& layer : layers_of(plan)) {
    ep = std::max(ep, layer.ep);
    etp = std::min(etp, layer.expert_tensor_degree());
  }
  out.section("parallelism");
  out.number("data_parallel_replicate_degree", replicate);
  out.number("data_parallel_shard_degree", s.dp / replicate);
  if (s.zero >= 2) out.string("fsdp_reshard_after_forward", s.zero == 3 ? "always" : "never");
  out.number("tensor_parallel_degree", s.tp);
  if (s.tensor_pieces > 1) out.flag("enable_async_tensor_parallel");
  write_pipeline(out, plan);
  out.number("context_parallel_degree", s.cp);
  if (s.cp > 1) out.string("context_parallel_rotate_method", "alltoall");
  if (ep == 1) return;
  out.number("expert_parallel_degree", ep);
  out.number("expert_tensor_parallel_degree", etp);
}

void write_recompute(TomlText& out, const Plan& plan) {
  out.section("activation_checkpoint");
  const int n = every_of(plan);
  const bool operators = most_recompute(plan) == Recompute::kOperator;
  if (!operators && n < 2) return out.string("mode", n == 1 ? "full" : "none");
  out.string("mode", "selective");
  out.string("selective_ac_option", operators ? "op" : std::to_string(n));
}

void write_precision(TomlText& out, model::Precision precision) {
  if (precision <= model::Precision::kBFloat16) return;
  const bool blocks = precision == model::Precision::kMxFp8;
  const std::string_view converter = blocks ? "quantize.linear.mx" : "quantize.linear.float8";
  out.section("model");
  out.raw(fmt::format("converters = [\"{}\"]\n", converter));
  out.section(converter);
  out.string("recipe_name", blocks ? "mxfp8_cublas" : "tensorwise");
}

void write(ExportedPlan& out, const ExportRequest&) {
  const Plan& plan = out.plan;
  const bool pipeline = plan.pipeline_degree() > 1;
  TomlText text(fmt::format(
      "# TorchTitan v0.2.2: a plan for {} on {}, {} ranks, {} of them data-parallel, {} "
      "micro-batches.\n",
      plan.model, plan.cluster, plan.world_size(), first_layer(plan).dp, plan.micro_batches));
  text.section("training");
  text.number("local_batch_size", rank_sequences(plan) * (pipeline ? plan.micro_batches : 1));
  text.number("global_batch_size", plan.global_batch);
  text.number("seq_len", plan.sequence);
  text.string("mixed_precision_param",
              plan.precision == model::Precision::kFloat32 ? "float32" : "bfloat16");
  write_parallelism(text, plan);
  write_recompute(text, plan);
  if (!is_v_shaped(plan.schedule)) {
    text.section("compile");
    text.flag("enable");
  }
  write_precision(text, plan.precision);
  out.text = text.take();
  out.settings = {{"[model] name and flavor", plan.model, "sections of the model"},
                  {"ranks", std::to_string(plan.world_size()), "torchrun"}};
  if (is_v_shaped(plan.schedule))
    out.notes.push_back(
        "no stage is compiled whose backward is in two: --software pytorch-eager has its prices");
}

std::vector<Rule> rules() {
  return {{"zero",
           "FSDP is ZeRO-3, or ZeRO-2 without resharding; replicas alone are for data "
           "parallelism by itself, one micro-batch a step"},
          {"grad_reduce", "FSDP reduces after every micro-batch, a pipeline once, at its end"},
          {"shard", "groups hold whole rings of context parallelism"},
          {"operators", "all operators of a layer are sharded alike"},
          {"slices", "products run whole"},
          {"strided", "tensor groups are neighbouring ranks"},
          {"context", "context parallelism is a ring"},
          {"sequence_parallel", "tensor parallelism comes with it"},
          {"tensor_pieces", "asynchronous tensor parallelism is priced in 4 pieces"},
          {"recompute", "nothing, by operator, or whole layers: all, or every n-th of a rank"},
          {"schedule",
           "with one stage a rank 1F1B and GPipe, with several interleaved 1F1B, with two in a V "
           "ZBVZeroBubble and, of enough micro-batches, DualPipeV"},
          {"precision", "fp8 by tensor (tensorwise), or mxfp8"},
          {"prefetch_depth", "FSDP gathers one layer ahead"}};
}

}  // namespace

constinit const Exporter kTorchTitanExporter{
    {Framework::kTorchTitan, "torchtitan", "TorchTitan", "v0.2.2", "a job configuration",
     "pytorch-cudnn", "torchtitan"},
    nearest,
    faults,
    write,
    rules};

}  // namespace orrery::plan
