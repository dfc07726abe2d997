#pragma once
/// \file
/// Plans of other tools as ours, so that anyone's plan can be simulated and held against the
/// search's.
///
/// Galvatron (`galvatron_config_*.json` of Hetu-Galvatron, read as
/// galvatron/core/runtime/hybrid_parallel_config.py does). Lists are text, one number a layer,
/// separated by commas.
///
///   pp_deg                stages; pp_division layers of each (default: equal, the rest to the
///                         last)
///   tp_sizes_enc          tensor-parallel degree of a layer, with use_sp 1 its Ulysses degree (our
///                         cp)
///   tp_consecutive_flags  0: strided, the data group on neighbouring ranks (default 1)
///   dp_types_enc          1: ZeRO-3, 0: default_dp_type (ddp, zero2, zero3; default ddp)
///   checkpoint            1: full recomputation (default 0)
///   cp_sizes_enc          rings of context parallelism beside the degree (default 1; runtime only)
///   vtp, vsp, vcp         degree of embedding and head, whether it is Ulysses, their ring
///   vocab_sdp             whether they are ZeRO-3; embed_sdp in what its search writes
///   global_bsz, chunks    sequences a step, micro-batches
///   pipeline_type         pipedream_flush (1F1B) or gpipe (default)
///
/// The file may have no world size (all devices are used). Sequence parallelism and when gradients
/// are reduced are elsewhere (BesideFile); its search assumes the first with tensor parallelism.
///
/// Megatron-LM: the arguments of pretrain_gpt.py (megatron/training/arguments.py) in a shell
/// script, one per line, or as `key: value`. Read are `--key value`, `--key=value`, `key: value`,
/// comments, line continuations, quotes and arrays, and variables that the file itself sets to a
/// plain word. Ranks lie as tp, cp, ep, dp, pp, as ours do.
///
///   tensor-, pipeline-, expert-model-parallel-size, context-parallel-size       degrees
///   num-layers-per-virtual-pipeline-stage, num-virtual-stages-per-pipeline-rank interleaved
///   decoder-first-, decoder-last-pipeline-num-layers   layers of the first and the last stage
///   pipeline-model-parallel-layout                     layers of every stage (pipeline_layout.h)
///   cp-comm-type p2p | a2a                             ring | Ulysses
///   use-distributed-optimizer                          ZeRO-1
///   num-distributed-optimizer-instances                hybrid sharding
///   use-megatron-fsdp, use-custom-fsdp, data-parallel-sharding-strategy         ZeRO-1, 2, 3
///   use-torch-fsdp2                                    ZeRO-3
///   sequence-parallel, recompute-*, micro-batch-size, global-batch-size, seq-length, bf16, fp16
///   nproc-per-node, nnodes (of torchrun)               world size; default: all devices
///
/// Megatron-Bridge (Python, megatron/bridge/training/config.py): assignments `cfg.section.field =
/// value`, one a line, of numbers, texts and True, by the names of Megatron-LM's arguments with
/// underscores; virtual_pipeline_model_parallel_size is the number of virtual stages of a rank,
/// mixed_precision names bf16 and recipes of fp8 and fp4, CommOverlapConfig(tp_comm_overlap=True)
/// overlaps reductions too. Fields that stand twice (seq_length of model and dataset) must be
/// equal; what is computed is not read.
///
/// TorchTitan (job configuration in TOML of v0.2.2, torchtitan/config/job_config.py; toml.h):
///
///   [training] local_batch_size, global_batch_size, seq_len, mixed_precision_param
///   [parallelism] data_parallel_replicate_degree, data_parallel_shard_degree    dp; sharded: shard
///     of it and of cp, neighbours; replicate alone: ZeRO-0
///   fsdp_reshard_after_forward always | never          ZeRO-3 | ZeRO-2; default: always without a
///                                                      pipeline
///   tensor_parallel_degree                             with sequence parallelism
///   enable_async_tensor_parallel                       with [compile] enable: 4 pieces
///   pipeline_parallel_degree, _microbatch_size; _schedule GPipe | 1F1B | Interleaved1F1B |
///     ZBVZeroBubble | DualPipeV; module_fqns_per_model_part, or
///     _layers_per_stage, _first_stage_less_layers, _last_stage_less_layers      stages
///   context_parallel_degree                            rings
///   expert_parallel_degree, expert_tensor_parallel_degree (= tensor_parallel_degree)
///   [activation_checkpoint] mode none | selective | full, selective_ac_option op | every n-th
///     layer of a rank
///   [model] converters quantize.linear.float8 | quantize.linear.mx              fp8-current, mxfp8
///
/// FSDP reduces gradients after every micro-batch, a pipeline once, at its end.
///
/// Accelerate (YAML of `accelerate config`, commands/config/config_args.py of 1.15.0):
///
///   distributed_type FSDP | MULTI_GPU                  FSDP version 2 | replicas, ZeRO-0
///   num_processes, mixed_precision no | bf16 | fp16 | fp8 (fp8_config: fp8_backend AO)
///   fsdp_config: fsdp_version 2, fsdp_reshard_after_forward (true: ZeRO-3, false: ZeRO-2),
///     fsdp_activation_checkpointing (all layers)
///   parallelism_config: parallelism_config_dp_replicate_size, _dp_shard_size, _tp_size, _cp_size
///     (rings); sharded over dp_shard and cp, neighbours
///
/// Gradients are reduced once a step. The batch is the training script's (BesideFile).
///
/// DeepSpeed (JSON, deepspeed/runtime/config.py of 0.19):
///
///   train_micro_batch_size_per_gpu, gradient_accumulation_steps, train_batch_size   any two;
///     train_batch_size counts all ranks but those of a sequence or a pipeline
///   zero_optimization: stage; overlap_comm (stage 1: gradients beside the last backward, else
///     behind it); mics_shard_size (stage 3: hybrid sharding)
///   tensor_parallel: autotp_size                       without sequence parallelism
///   sequence_parallel_size                             Ulysses
///   expert_parallel: enabled, autoep_size
///   bf16, fp16: enabled
///
/// ZeRO-2 and 3 reduce gradients of every micro-batch, ZeRO-0 behind the last backward.
///
/// Of Megatron-LM, arguments of the model (num-layers, hidden-size, …) must be the model's. What
/// does not bear on the plan is ignored with a note; what does and cannot be said by a plan is a
/// fault at its place.
#include <optional>

#include "base/config.h"
#include "base/result.h"
#include "model/dtype.h"
#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::plan {

/// What a framework takes from elsewhere than the file that is read: arguments of a training
/// script, code of the model, another file. Readers use what their file cannot say.
struct BesideFile {
  std::int64_t micro_batch = 1;    // Accelerate: sequences on one data-parallel rank
  std::int64_t micro_batches = 1;  // Accelerate: a step (gradient accumulation)
  int stages = 1;                  // DeepSpeed: PipelineModule's num_stages, of as many layers each
  bool recompute = false;  // DeepSpeed, replicas of Accelerate: all layers, by the model's code
  bool sequence_parallel = true;  // Galvatron: one switch, of layers with tensor parallelism
  // Galvatron: async_grad_reduce off, gradients of every micro-batch are reduced (ZeRO-2, 3)
  bool reduce_every_micro_batch = false;
  bool operator==(const BesideFile&) const = default;
};

struct ImportTarget {
  model::ModelSpec model;
  std::string cluster;  // as the user said it: goes into the plan
  int hosts = 1;
  std::int64_t devices = 1;   // ranks to use when the file does not say
  std::int64_t sequence = 0;  // tokens; 0: the file's, else the model's maximum
  // nothing: the file's, else bf16 (Galvatron) or fp32 (Megatron-LM)
  std::optional<model::Precision> precision;
  BesideFile beside = {};
};

struct ImportedPlan {
  Plan plan;
  std::vector<std::string> notes;  // what was assumed or ignored, one sentence each
};

/// Errors: all faults of the file with line and column, then those of validate() at the file.
base::Result<ImportedPlan> import_galvatron(const base::Node& root, const ImportTarget& target);
/// `name` stands for the file in diagnostics.
base::Result<ImportedPlan> import_megatron(std::string_view text, const std::string& name,
                                           const ImportTarget& target);

/// `name` as above.
base::Result<ImportedPlan> import_megatron_bridge(std::string_view text, const std::string& name,
                                                  const ImportTarget& target);
base::Result<ImportedPlan> import_torchtitan(std::string_view text, const std::string& name,
                                             const ImportTarget& target);

base::Result<ImportedPlan> import_accelerate(const base::Node& root, const ImportTarget& target);
base::Result<ImportedPlan> import_deepspeed(const base::Node& root, const ImportTarget& target);

/// Embedding and head as layers of this strategy have them.
LayerStrategy vocabulary_like(LayerStrategy layer);
/// A plan that has only what the target says: model, cluster, hosts.
Plan plan_for(const ImportTarget& target);
/// ep 1 for blocks without experts, of a model that has some elsewhere. Splits runs where a kind of
/// block ends.
void keep_experts_where_they_are(Plan& plan, const model::ModelSpec& model);

/// The faults of validate(), each at the place of the first row whose text its message contains.
struct FaultPlace {
  std::string text;
  base::SourceSpan where;
};
base::Result<ImportedPlan> validated(ImportedPlan imported, const model::ModelSpec& model,
                                     const std::vector<FaultPlace>& places);

}  // namespace orrery::plan
