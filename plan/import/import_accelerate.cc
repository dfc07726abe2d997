#include <algorithm>

#include "base/numbers.h"
#include "plan/import/import.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

enum class Kind : std::uint8_t { kFsdp, kReplicas, kSingle };
constexpr base::Named<Kind> kKinds[] = {
    {"FSDP", Kind::kFsdp}, {"MULTI_GPU", Kind::kReplicas}, {"NO", Kind::kSingle}};
constexpr base::Named<int> kPrecisions[] = {{"no", 0}, {"bf16", 1}, {"fp16", 2}, {"fp8", 3}};
constexpr base::Named<int> kStrategies[] = {{"allgather", 0}, {"alltoall", 1}};

class AccelerateReader {
 public:
  AccelerateReader(const base::Node& root, const ImportTarget& target)
      : target_(target), reader_(root, "Accelerate configuration", sink_) {}

  base::Result<ImportedPlan> read() {
    Plan& plan = imported_.plan = plan_for(target_);
    plan.sequence = target_.sequence > 0 ? target_.sequence : target_.model.max_positions;
    kind_ = reader_.required_enum("distributed_type", kKinds);
    world_ = reader_.required_int("num_processes", {1, kMaxWorldSize});
    if (world_ > target_.devices)
      reader_.fault("num_processes", kInconsistent, "use more --hosts",
                    "a plan for {} devices, and there are {}", world_, target_.devices);
    read_precision();
    read_sizes();
    read_fsdp();
    ignore_rest();
    reader_.finish();
    if (!sink_.ok()) return sink_.result(ImportedPlan{});
    return finished();
  }

 private:
  void read_precision() {
    const int found = reader_.optional_enum("mixed_precision", kPrecisions).value_or(0);
    if (found == 2 && !target_.precision)
      imported_.notes.push_back("fp16 is taken as bf16, which has the same sizes");
    model::Precision own = found == 0 ? model::Precision::kFloat32 : model::Precision::kBFloat16;
    if (found == 3) own = fp8();
    imported_.plan.precision = target_.precision.value_or(own);
  }

  /// torchao's, with a scale for each tensor.
  model::Precision fp8() {
    const auto node = reader_.optional_object("fp8_config");
    std::string backend = "AO";
    if (node) {
      base::Reader r(*node, "fp8_config", sink_);
      r.allow_unknown();
      backend = r.optional_string("fp8_backend").value_or(backend);
      if (backend != "AO")
        r.fault("fp8_backend", kUnsupported, "AO, or --precision", "fp8 by '{}'", backend);
    }
    return model::Precision::kFp8Current;
  }

  std::int64_t size(base::Reader& r, const char* name) {
    return r.optional_int(fmt::format("parallelism_config_{}", name), {1, kMaxWorldSize})
        .value_or(1);
  }

  void read_sizes() {
    const auto node = reader_.optional_object("parallelism_config");
    if (!node) {
      (kind_ == Kind::kFsdp ? shard_ : replicate_) = world_;
      layer_.dp = as_int(world_);
      return;
    }
    if (kind_ != Kind::kFsdp)
      reader_.fault("parallelism_config", kInconsistent, "distributed_type FSDP, or drop them",
                    "sizes without FSDP");
    base::Reader r(*node, "parallelism_config", sink_);
    replicate_ = size(r, "dp_replicate_size");
    shard_ = size(r, "dp_shard_size");
    const std::int64_t tp = size(r, "tp_size"), cp = size(r, "cp_size"), sp = size(r, "sp_size");
    if (sp > 1)
      r.fault("parallelism_config_sp_size", kUnsupported, "a DeepSpeed configuration",
              "Ulysses of {} ranks, which DeepSpeed runs", sp);
    for (const char* name : {"cp_backend", "sp_backend", "sp_seq_length",
                             "sp_seq_length_is_variable", "sp_attn_implementation"})
      r.ignore(fmt::format("parallelism_config_{}", name));
    const int strategy =
        r.optional_enum("parallelism_config_cp_comm_strategy", kStrategies).value_or(0);
    if (cp > 1 && strategy == 0)
      imported_.notes.push_back("keys and values of all ranks at once are taken as a ring");
    r.finish();
    std::int64_t ranks = 1;
    for (const std::int64_t d : {replicate_, shard_, tp, cp})
      ranks = std::min(ranks * d, kMaxWorldSize + 1);
    if (ranks != world_ && sp == 1)
      reader_.fault("num_processes", kInconsistent, "their product",
                    "{} processes and sizes of {} in all", world_, ranks);
    if ((tp > 1 || cp > 1) && replicate_ > 1 && shard_ == 1)
      reader_.fault("parallelism_config", kUnsupported, "dp_shard_size above 1",
                    "replicas beside tensor or context parallelism");
    layer_.tp = as_int(tp);
    layer_.cp = as_int(cp);
    layer_.dp = as_int(std::min(replicate_ * shard_, kMaxWorldSize));
  }

  void read_fsdp() {
    const auto node = reader_.optional_object("fsdp_config");
    if (kind_ != Kind::kFsdp || !node) {
      if (kind_ == Kind::kFsdp)
        reader_.fault("fsdp_config", kMissingKey, "fsdp_version: 2", "'fsdp_config' is missing");
      if (target_.beside.recompute) layer_.recompute = Recompute::kFull;
      return;
    }
    base::Reader r(*node, "fsdp_config", sink_);
    r.allow_unknown();
    if (r.optional_int("fsdp_version", {1, 2}).value_or(1) != 2)
      r.fault("fsdp_version", kUnsupported, "fsdp_version: 2", "FSDP of version 1");
    if (r.optional_bool("fsdp_offload_params").value_or(false))
      r.fault("fsdp_offload_params", kUnsupported, "everything stays on the device",
              "offloading cannot be said in a plan");
    layer_.zero = r.optional_bool("fsdp_reshard_after_forward").value_or(true) ? 3 : 2;
    if (r.optional_bool("fsdp_activation_checkpointing").value_or(false))
      layer_.recompute = Recompute::kFull;
    if (sink_.ok() && shard_ == 1 && layer_.cp == 1)
      reader_.fault("parallelism_config", kInconsistent, "dp_shard_size or cp_size above 1",
                    "FSDP has no ranks to shard over");
    if (replicate_ > 1) layer_.shard = as_int(std::min(shard_ * layer_.cp, kMaxWorldSize));
  }

  /// Known, and not part of a plan.
  void ignore_rest() {
    for (const char* key : {"compute_environment",
                            "use_cpu",
                            "debug",
                            "machine_rank",
                            "num_machines",
                            "gpu_ids",
                            "main_process_ip",
                            "main_process_port",
                            "rdzv_backend",
                            "same_network",
                            "main_training_function",
                            "enable_cpu_affinity",
                            "downcast_bf16",
                            "tpu_name",
                            "tpu_zone",
                            "tpu_use_cluster",
                            "tpu_use_sudo",
                            "tpu_env",
                            "command_file",
                            "commands",
                            "dynamo_config",
                            "mpirun_config",
                            "fp8_config",
                            "deepspeed_config",
                            "megatron_lm_config"})
      reader_.ignore(key);
  }

  base::Result<ImportedPlan> finished() {
    Plan& plan = imported_.plan;
    plan.micro_batches = target_.beside.micro_batches;
    plan.global_batch = plan.micro_batches * target_.beside.micro_batch * layer_.dp;
    plan.vocabulary = vocabulary_like(layer_);
    plan.stages = {{{{as_int(target_.model.layers), layer_}}}};
    return validated(std::move(imported_), target_.model, {{"", reader_.span("num_processes")}});
  }

  const ImportTarget& target_;
  base::ErrorSink sink_;
  base::Reader reader_;
  Kind kind_ = Kind::kSingle;
  std::int64_t world_ = 1, replicate_ = 1, shard_ = 1;
  LayerStrategy layer_;
  ImportedPlan imported_;
};

}  // namespace

base::Result<ImportedPlan> import_accelerate(const base::Node& root, const ImportTarget& target) {
  return AccelerateReader(root, target).read();
}

}  // namespace orrery::plan
