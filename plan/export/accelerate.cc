/// \file
/// Hugging Face Accelerate 1.15.0 (github.com/huggingface/accelerate, 16cb6eb) with PyTorch FSDP2:
/// the YAML of `accelerate launch --config_file`. plan/import/import.h has the meaning of its keys.
///
/// Rules held here because they are met only when training starts: FSDP needs ranks to shard over
/// (dp_shard or cp), replicas beside tp or cp need dp_shard above 1, replicas alone are MULTI_GPU
/// (the launcher refuses sizes without FSDP). Ranks of a pipeline become data-parallel with ZeRO-3.
#include <algorithm>

#include "base/numbers.h"
#include "plan/export/exporter.h"
#include "plan/export/nearest.h"

namespace orrery::plan {
namespace {

LayerStrategy nearest_strategy(LayerStrategy s, int stages) {
  s.dp *= stages;
  if (stages > 1) s.zero = 3;
  s.drop_experts();
  s.context = ContextKind::kRing;
  const bool alone = s.tp == 1 && s.cp == 1;
  if (s.replicas() == 1) {
    s.zero = 0;
  } else if (s.zero == 1 || (s.zero == 0 && !alone)) {
    s.zero = 2;
  }
  const bool groups =
      s.zero >= 2 && stages == 1 && s.shard < s.replicas() && s.shard > s.cp && s.shard % s.cp == 0;
  if (!groups) s.shard = 0;
  s.grad_reduce = GradReduce::kStep;
  s.operators = ShardedOperators::kAll;
  s.slices = 1;
  s.strided = s.sequence_parallel = false;
  s.tensor_pieces = 1;
  return s;
}

/// As many sequences of a micro-batch on a rank as before, or the next lower number that divides.
void set_micro_batches(Plan& plan, std::int64_t before) {
  const std::int64_t each = plan.global_batch / first_layer(plan).dp;
  std::int64_t sequences = std::min(before, each);
  while (sequences > 1 && each % sequences != 0) --sequences;
  plan.micro_batches = std::max<std::int64_t>(each / std::max<std::int64_t>(sequences, 1), 1);
}

Plan nearest(const Plan& plan, const ExportRequest& request) {
  Plan p = plan;
  const int stages = plan.pipeline_degree();
  const LayerStrategy usual = usual_strategy(plan);
  make_uniform(p, nearest_strategy(usual, stages), request.model);
  const bool full = most_recompute(p) != Recompute::kNone;
  std::vector<LayerStrategy> layers = layers_of(p);
  for (LayerStrategy& s : layers) s.recompute = full ? Recompute::kFull : Recompute::kNone;
  p.virtual_stages = 1;
  p.schedule = Schedule::k1F1B;
  set_layers(p, layers, {as_int(request.model.layers)});
  if (stages > 1) set_micro_batches(p, plan.micro_batch_sequences() / usual.dp);
  if (p.precision > model::Precision::kBFloat16) p.precision = model::Precision::kFp8Current;
  p.prefetch_depth = 1;
  return p;
}

base::Diagnostics faults(const Plan& plan, const ExportRequest& request) {
  FaultList list;
  const LayerStrategy& s = first_layer(plan);
  list.require(s.tp == 1 || s.replicas() > 1, "data or context parallelism as well",
               "tensor parallelism alone, where FSDP has nothing to shard over");
  list.require(s.cp == 1 || plan.sequence % (2 * s.cp) == 0,
               "a sequence that 2 * cp divides, or cp 1", "{} tokens in {} chunks", plan.sequence,
               2 * s.cp);
  list.require_whole_hosts(plan, request);
  return list.take();
}

/// The block's class in transformers, which is what FSDP wraps.
std::string_view layer_class(model::Family family) {
  using enum model::Family;
  switch (family) {
    case kGpt2: return "GPT2Block";
    case kLlama: return "LlamaDecoderLayer";
    case kMistral: return "MistralDecoderLayer";
    case kQwen2: return "Qwen2DecoderLayer";
    case kBert: return "BertLayer";
    case kMixtral: return "MixtralDecoderLayer";
    case kQwen2Moe: return "Qwen2MoeDecoderLayer";
    case kDeepSeek: return "DeepseekDecoderLayer";
    case kT5: return "T5Block";
    case kViT: return "ViTLayer";
    case kSwin: return "SwinLayer";
    case kQwen3: return "Qwen3DecoderLayer";
    case kQwen3Moe: return "Qwen3MoeDecoderLayer";
    case kQwen3Next: return "Qwen3NextDecoderLayer";
    case kQwen35: return "Qwen3_5DecoderLayer";
    case kQwen35Moe: return "Qwen3_5MoeDecoderLayer";
    case kLlama4: return "Llama4TextDecoderLayer";
    case kGemma: return "GemmaDecoderLayer";
    case kGemma2: return "Gemma2DecoderLayer";
    case kGemma3: return "Gemma3DecoderLayer";
    case kPhi: return "PhiDecoderLayer";
    case kPhi3: return "Phi3DecoderLayer";
    case kDeepSeekV2: return "DeepseekV2DecoderLayer";
    case kDeepSeekV3: return "DeepseekV3DecoderLayer";
    case kKimiK2: return "DeepseekV3DecoderLayer";
    case kGptOss: return "GptOssDecoderLayer";
    case kGlm4: return "Glm4DecoderLayer";
    case kGlm4Moe: return "Glm4MoeDecoderLayer";
    case kOlmo: return "OlmoDecoderLayer";
    case kOlmo2: return "Olmo2DecoderLayer";
    case kOlmo3: return "Olmo3DecoderLayer";
    case kOlmoe: return "OlmoeDecoderLayer";
    case kGptNeox: return "GPTNeoXLayer";
    case kFalcon: return "FalconDecoderLayer";
    case kOpt: return "OPTDecoderLayer";
    case kBloom: return "BloomBlock";
    case kStarcoder2: return "Starcoder2DecoderLayer";
    case kGranite: return "GraniteDecoderLayer";
    case kGraniteMoeHybrid: return "GraniteMoeHybridDecoderLayer";
    case kCohere: return "CohereDecoderLayer";
    case kMinimax: return "MiniMaxDecoderLayer";
    case kMinimaxM2: return "MiniMaxM2DecoderLayer";
    case kInternlm2: return "InternLM2DecoderLayer";
    case kNemotron: return "NemotronDecoderLayer";
    case kNemotronH: return "NemotronHBlock";
    case kMamba2: return "Mamba2Block";
    case kRoberta: return "RobertaLayer";
    case kDeepSeekV32: return "DeepseekV32DecoderLayer";
    case kGlmMoeDsa: return "GlmMoeDsaDecoderLayer";
  }
  __builtin_unreachable();
}

std::string fsdp_text(const Plan& plan, const ExportRequest& request) {
  const LayerStrategy& s = first_layer(plan);
  const int replicate = s.replicas() / s.shard_ranks();
  return fmt::format(
      "fsdp_config:\n"
      "  fsdp_version: 2\n"
      "  fsdp_reshard_after_forward: {}\n"
      "  fsdp_activation_checkpointing: {}\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_transformer_layer_cls_to_wrap: {}\n"
      "  fsdp_offload_params: false\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
      "parallelism_config:\n"
      "  parallelism_config_dp_replicate_size: {}\n"
      "  parallelism_config_dp_shard_size: {}\n"
      "  parallelism_config_tp_size: {}\n"
      "  parallelism_config_cp_size: {}\n"
      "  parallelism_config_cp_comm_strategy: alltoall\n",
      s.zero == 3, most_recompute(plan) == Recompute::kFull, layer_class(request.model.family),
      replicate, s.dp / replicate, s.tp, s.cp);
}

void describe_rest(ExportedPlan& out, bool fsdp) {
  const Plan& plan = out.plan;
  const bool recompute = !fsdp && most_recompute(plan) == Recompute::kFull;
  out.beside = {.micro_batch = rank_sequences(plan),
                .micro_batches = plan.micro_batches,
                .recompute = recompute};
  out.settings = {
      {"sequences of a micro-batch on a data-parallel rank", std::to_string(rank_sequences(plan)),
       "training script"},
      {"gradient_accumulation_steps", std::to_string(plan.micro_batches), "training script"},
      {"tokens of a sequence", std::to_string(plan.sequence), "training script"}};
  if (recompute) out.settings.push_back({"recomputation of every layer", "on", "training script"});
  if (first_layer(plan).tp > 1)
    out.notes.push_back(
        "transformers keeps the embedding whole on every tensor rank and gathers logits; the times "
        "and bytes here are of split ones");
}

std::string_view distributed_type(const Plan& plan) {
  if (first_layer(plan).zero >= 2) return "FSDP";
  return plan.world_size() > 1 ? "MULTI_GPU" : "NO";
}

void write(ExportedPlan& out, const ExportRequest& request) {
  const Plan& plan = out.plan;
  const bool fsdp = first_layer(plan).zero >= 2;
  const Launch launch = launch_of(plan, request);
  constexpr std::string_view kPrecisions[] = {"no", "bf16", "fp8"};
  const bool fp8 = plan.precision > model::Precision::kBFloat16;
  out.text = fmt::format(
      "# Accelerate 1.15.0: a plan for {} on {}, {} ranks, {} of them data-parallel.\n"
      "compute_environment: LOCAL_MACHINE\n"
      "distributed_type: {}\n"
      "mixed_precision: {}\n"
      "num_machines: {}\n"
      "num_processes: {}\n"
      "main_training_function: main\n{}{}",
      plan.model, plan.cluster, plan.world_size(), first_layer(plan).dp, distributed_type(plan),
      kPrecisions[fp8 ? 2 : as_int(plan.precision)], launch.hosts, plan.world_size(),
      fp8 ? "fp8_config:\n  fp8_backend: AO\n" : "", fsdp ? fsdp_text(plan, request) : "");
  describe_rest(out, fsdp);
}

std::vector<Rule> rules() {
  return {{"zero",
           "FSDP is ZeRO-3, or ZeRO-2 without resharding; replicas are for data parallelism "
           "alone; ranks of a pipeline share everything out"},
          {"grad_reduce", "gradients are reduced once a step, as the last backward ends"},
          {"shard", "groups hold whole rings of context parallelism, and more than one"},
          {"operators", "all operators of a layer are sharded alike"},
          {"slices", "products run whole"},
          {"strided", "tensor groups are neighbouring ranks"},
          {"context", "context parallelism is a ring"},
          {"sequence_parallel", "tensor parallelism keeps norms and residuals whole"},
          {"tensor_pieces", "collectives of tensor parallelism run whole"},
          {"ep", "experts are not split"},
          {"folded", "experts are not split"},
          {"dp", "ranks of a pipeline become data-parallel"},
          {"micro_batches", "with more data-parallel ranks there are fewer of them"},
          {"recompute", "nothing, or every layer"},
          {"stages", "there are no pipelines"},
          {"schedule", "there are no pipelines"},
          {"virtual_stages", "there are no pipelines"},
          {"precision", "bf16, fp32, or fp8 by tensor"},
          {"prefetch_depth", "FSDP gathers one layer ahead"}};
}

}  // namespace

constinit const Exporter kAccelerateExporter{
    {Framework::kAccelerate, "accelerate", "Accelerate", "1.15.0",
     "a configuration for accelerate launch", "pytorch-eager", "fsdp"},
    nearest,
    faults,
    write,
    rules};

}  // namespace orrery::plan
