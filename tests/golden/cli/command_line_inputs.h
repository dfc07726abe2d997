#pragma once
/// Files that the commands of command_line_cases_fixture.cc read.

namespace orrery::golden {

inline constexpr const char* kPlan = R"({
  "schema": "orrery.plan/1",
)";

inline constexpr const char* kMixture = R"({
  "model_type": "mixtral",
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "intermediate_size": 128,
  "num_local_experts": 4,
  "num_experts_per_tok": 5,
  "vocab_size": 256,
  "max_position_embeddings": 64
})";

inline constexpr const char* kMixtureThatFits = R"({
  "model_type": "mixtral",
  "hidden_size": 1024,
  "num_hidden_layers": 8,
  "num_attention_heads": 16,
  "num_key_value_heads": 8,
  "intermediate_size": 2048,
  "num_local_experts": 8,
  "num_experts_per_tok": 2,
  "vocab_size": 32000,
  "max_position_embeddings": 2048
})";

inline constexpr const char* kCluster = R"(name: small
description: two devices on one switch
device:
  name: D
  peak_fp32: 10TFLOP/s
  latncy: 3us
)";

inline constexpr const char* kProfile =
    R"({"schema": "orrery.profile/1", "name": "two products",
 "provenance": {"source": "made for this test"}, "device": "A100",
 "operators": [{"shape": {"kind": "qkv", "dtype": "bf16", "sequences": 4, "tokens": 1024,
  "in": 768, "out": 2304, "bias": true}, "phase": "F", "seconds_median": 9e-5, "samples": 9},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 1, "tokens": 1024,
                "in": 768, "out": 3072, "bias": true}, "phase": "F", "seconds_median": 4e-5,
                "samples": 9}]}
)";

/// A negative time, a type left out, a unit in place of seconds, an unknown phase, bandwidth and
/// points at once.
inline constexpr const char* kPlantedProfile =
    R"({"schema": "orrery.profile/1", "name": "planted", "provenance": {"source": "made for )"
    R"(this test"},
 "operators": [{"shape": {"kind": "qkv", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 2304}, "phase": "F", "seconds_median": -9e-5},
               {"shape": {"kind": "qkv", "sequences": 4, "tokens": 1024, "in": 768, "out": )"
    R"(2304}, "phase": "F", "seconds_median": 9e-5},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 3072}, "phase": "F", "seconds_median": "40us"},
               {"shape": {"kind": "mlp_in", "dtype": "bf16", "sequences": 4, "tokens": 1024, )"
    R"("in": 768, "out": 3072}, "phase": "X", "seconds_median": 4e-5}],
 "collectives": [{"op": "all_reduce", "size": 8, "bus_bandwidth_bytes_per_second": 1e11, )"
    R"("points": [{"bytes": 1024, "seconds": 1e-5}]}]}
)";

inline constexpr const char* kTruncatedProfile =
    R"({"schema": "orrery.profile/1", "name": "cut", "provenance": {"source": "made for this )"
    R"(test"}, "operators": [{"shape":)";
inline constexpr const char* kOtherProfile =
    R"({"schema": "orrery.profile/1", "name": "other",
 "provenance": {"source": "made for this test"}, "device": "H100",
 "collectives": [{"op": "all_reduce", "size": 8, "bus_bandwidth_bytes_per_second": 1e11}]}
)";

inline constexpr const char* kInstance = R"({"schema": "orrery.instance/1", "budget_bytes": 24,
 "layers": [{"count": 2, "options": [{"name": "fast", "time_ps": 10, "memory_bytes": 9},
  {"name": "small", "time_ps": 17, "memory_bytes": 4}]},
            {"options": [{"name": "fast", "time_ps": 5, "memory_bytes": 12},
             {"name": "small", "time_ps": 9, "memory_bytes": 6}]}],
 "transition_ps": [[0, 3], [3, 0]]}
)";

inline constexpr const char* kWrongInstance = R"({"schema": "orrery.instance/1", "budget_bytes": -3,
 "layers": [{"options": [{"name": "a", "time_ps": 1.5, "memory_bytes": 3},
                         {"name": "a", "time_ps": "3", "memory_byte": 3}]},
            {"options": []}],
 "transition_ps": [[0]]}
)";

inline constexpr const char* kWrongTransitions =
    R"({"schema": "orrery.instance/1", "budget_bytes": 3,
 "layers": [{"options": [{"name": "a", "time_ps": 1, "memory_bytes": 3}, {"name": "b", )"
    R"("time_ps": 3, "memory_bytes": 1}]},
            {"options": [{"name": "a", "time_ps": 1, "memory_bytes": 3}]}],
 "transition_ps": [[0, 3], [3, 0]]}
)";

inline constexpr const char* kScenario = R"(schema: orrery.scenario/1
name: one bad host
seed: 7
links:
  - {host: 1, kind: ib, rate: 0.25} # a quarter of its cards' width
  - {host: 0, at: "gpu[2]", kind: nvlink, failed: true} # traffic goes around, over PCIe
slow:
  - {host: 1, device: 3, slowdown: 1.3}
background:
  - {from: 4, to: 12, rate: 10 GB/s}
failures: {mtbf: 50000 h, checkpoint: 30 s}
)";
inline constexpr const char* kJitter =
    "schema: orrery.scenario/1\nname: noise\njitter: {sigma: 0.03}\n";
inline constexpr const char* kLinks =
    "schema: orrery.scenario/1\nname: half\nlinks: [{host: 1, at: 'nic[0]', rate: 0.5}]\n";
inline constexpr const char* kFails =
    "schema: orrery.scenario/1\nname: six cables for a second\nlinks: [{host: 1, at: 'nic[0-5]', "
    "kind: ib, failed: true, since: 500 ms, until: 1.5 s}]\n";
inline constexpr const char* kBeside = R"(schema: orrery.scenario/1
name: two tenants
hosts: [0, 4, 2, 6]
jobs:
  - {name: the same elsewhere, hosts: [1, 5, 3, 7], start: 20 ms}
steps: 2
)";
inline constexpr const char* kCrowded =
    "schema: orrery.scenario/1\njobs:\n  - {name: twin, hosts: [1]}\n";
inline constexpr const char* kCut =
    "schema: orrery.scenario/1\nlinks:\n  - {host: 1, kind: ib, failed: true}\n";
inline constexpr const char* kWrongScenario = R"(schema: orrery.scenario/1
links:
  - {host: 2, kind: ib, rate: 0.25}
  - {host: 0, at: "nik[1]", failed: true}
  - {host: 0, kind: ib, rate: 0.5, failed: true}
  - {host: 1, kind: nvlink, rate: 50 %}
slow:
  - {host: 1, device: 8, slowdown: 1.3}
  - {device: 3, slowdwn: 1.3}
jitter: {sigma: 2}
background:
  - {from: 0, to: 16, rate: 3 GB/s}
)";
inline constexpr const char* kGalvatron = R"({
    "pp_deg": 2,
    "tp_sizes_enc": "1,1,1,1,1,1,2,2,2,2,2,2",
    "tp_consecutive_flags": "1,1,1,1,1,1,1,1,1,1,1,1",
    "dp_types_enc": "1,1,1,1,1,1,0,0,0,0,0,0",
    "use_sp": "0,0,0,0,0,0,0,0,0,0,0,0",
    "checkpoint": "1,1,0,0,0,0,0,0,0,0,0,0",
    "global_bsz": 64,
    "chunks": 8,
    "pp_division": "6,6",
    "pipeline_type": "pipedream_flush",
    "default_dp_type": "zero2",
    "vtp": 1,
    "vsp": 0
}
)";
inline constexpr const char* kWrongGalvatron = R"({
    "pp_deg": 2,
    "tp_sizes_enc": "1,1,1,1,1,1,2,2,3",
    "dp_types_enc": "1,1,1,1,1,1,0,0,x,0,0,0",
    "global_bsz": 64,
    "chunk": 8,
    "pipeline_type": "pipedream"
}
)";
inline constexpr const char* kMegatron = R"(#!/bin/bash
# pretraining of Llama-2-70B
GPUS_PER_NODE=8
TP=8
TORCHRUN_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes 4)
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 4096"
TRAINING_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size=4 \
    --micro-batch-size 1 --global-batch-size 128
    --sequence-parallel --use-distributed-optimizer --bf16
    --recompute-granularity full --recompute-method block --recompute-num-layers 5
    --lr 1.5e-4
)
torchrun ${TORCHRUN_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
)";
inline constexpr const char* kWrongMegatron = R"(--tensor-model-parallel-size 8
--pipeline-model-paralel-size 4
--num-layers 32
--pipeline-model-parallel-layout Et*3|(tt|)*29,m|L
--micro-batch-size $MBS
--recompute-granularity some
)";

inline constexpr const char* kTorchTitan = R"([job]
dump_folder = "./outputs"

[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 8192

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "always"  # default | never | always
tensor_parallel_degree = 2

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
)";
inline constexpr const char* kWrongTorchTitan = R"([training]
local_batch_size = 0
seq_length = 8192

[parallelism]
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "sometimes"
tensor_parallel_degree = "2"
)";

inline constexpr const char* kDeepSpeed = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "train_batch_size": 64,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true}
}
)";
inline constexpr const char* kAccelerate = R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_activation_checkpointing: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
)";

/// Llama-2-7B on 8 devices with ZeRO-3 everywhere.
inline constexpr const char* kShardedPlan = R"({"schema": "orrery.plan/1", "model": "llama-2-7b",
 "model_fingerprint": "0d25033a8d14f1395fef45eabd12daf2", "cluster": "dgx-a100", "hosts": 1,
 "precision": "bf16", "sequence": 2048, "global_batch": 64, "micro_batches": 4,
 "schedule": "1f1b", "prefetch_depth": 1,
 "vocabulary": {"tp": 1, "dp": 8, "zero": 3, "sequence_parallel": false, "recompute": "none",
                "grad_reduce": "micro_batch"},
 "stages": [{"runs": [{"count": 32, "strategy": {"tp": 1, "dp": 8, "zero": 3,
   "sequence_parallel": false, "recompute": "full", "grad_reduce": "micro_batch"}}]}]}
)";

/// Llama-2-7B on 8 devices: layers and stages unlike, embedding and head apart.
inline constexpr const char* kUnevenPlan = R"({"schema": "orrery.plan/1", "model": "llama-2-7b",
 "model_fingerprint": "0d25033a8d14f1395fef45eabd12daf2", "cluster": "dgx-a100", "hosts": 1,
 "precision": "bf16", "sequence": 2048, "global_batch": 64, "micro_batches": 8,
 "schedule": "1f1b", "prefetch_depth": 1,
 "vocabulary": {"tp": 4, "dp": 1, "zero": 0, "sequence_parallel": false, "recompute": "none",
                "grad_reduce": "step"},
 "stages": [{"runs": [{"count": 8, "strategy": {"tp": 2, "dp": 2, "zero": 3,
   "sequence_parallel": true, "recompute": "full", "grad_reduce": "step"}},
  {"count": 9, "strategy": {"tp": 2, "dp": 2, "zero": 1, "sequence_parallel": true,
   "recompute": "none", "grad_reduce": "step"}}]},
  {"runs": [{"count": 15, "strategy": {"tp": 2, "dp": 2, "zero": 1, "sequence_parallel": true,
   "recompute": "none", "grad_reduce": "step"}}]}]}
)";
inline constexpr const char* kEncoderPlan = R"({"schema": "orrery.plan/1", "model": "t5-small",
 "model_fingerprint": "474b5e5c51f67cc1799a2fdefe93bc04", "cluster": "dgx-1-v100", "hosts": 1,
 "precision": "fp32", "sequence": 512, "global_batch": 16, "micro_batches": 1,
 "schedule": "1f1b", "prefetch_depth": 1,
 "vocabulary": {"tp": 1, "dp": 8, "zero": 1, "sequence_parallel": false, "recompute": "none",
                "grad_reduce": "step"},
 "stages": [{"runs": [{"count": 12, "strategy": {"tp": 1, "dp": 8, "zero": 1,
   "sequence_parallel": false, "recompute": "none", "grad_reduce": "step"}}]}]}
)";

inline constexpr const char* kRows =
    R"(id,cluster,layers,hidden,heads,gpus,tp,pp,micro_batch,global_batch,recompute,)"
    R"(sequence_parallel,virtual_stages,precision,zero,"note, with a comma"
22B,,48,6144,64,8,8,1,4,4,full,no,,fp16,,"Megatron, 22 billion"
22B,,48,6144,64,8,8,1,4,4,selective,yes,,fp16,,"says ""selective"""
175B,dgx-a100,96,12288,96,64,8,8,1,64,selective,yes,3,,1,
uneven,dgx-h100,30,4096,32,64,8,4,1,64,,yes,3,,1,thirty layers in twelve chunks
full,,24,8192,64,8,8,1,16,16,none,no,,,,
slip,,48,6144,64,8,6,1,4,4,ful,no,,,5,
short,,48
batch,,48,6144,64,64,8,1,4,4,full,no,,,,
cluster,dgx-a10,48,6144,64,8,8,1,4,4,full,no,,,,
)";
inline constexpr const char* kMatrix =
    R"(        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV12    PXB     0-31    0
GPU1    NV12     X      SYS     32-63   1
NIC0    PXB     SYS      X

Legend:
)";
inline constexpr const char* kWrongSlurm = R"(SwitchName=leaf0 Nodes=node[00-15
SwitchName=leaf1 Nods=node[16-31]
SwitchName=spine Switches=leaf[0-2]
)";

}  // namespace orrery::golden
