#include <algorithm>

#include "base/numbers.h"
#include "plan/import/import.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

// sequences and micro-batches: products with ranks fit
constexpr std::int64_t kLarge = std::int64_t{1} << 32, kMost = std::int64_t{1} << 20;

class DeepSpeedReader {
 public:
  DeepSpeedReader(const base::Node& root, const ImportTarget& target)
      : target_(target), reader_(root, "DeepSpeed configuration", sink_) {}

  base::Result<ImportedPlan> read() {
    Plan& plan = imported_.plan = plan_for(target_);
    plan.sequence = target_.sequence > 0 ? target_.sequence : target_.model.max_positions;
    reader_.allow_unknown();
    read_precision();
    read_degrees();
    read_zero();
    read_batch();
    // one micro-batch is reduced once either way, beside its backward
    if (plan.micro_batches == 1 && layer_.zero >= 2) layer_.grad_reduce = GradReduce::kStep;
    if (target_.beside.recompute) layer_.recompute = Recompute::kFull;
    if (!sink_.ok()) return sink_.result(ImportedPlan{});
    read_stages();
    return validated(std::move(imported_), target_.model,
                     {{"batch", reader_.span("train_micro_batch_size_per_gpu")},
                      {".ep", reader_.span("expert_parallel")},
                      {".tp", reader_.span("tensor_parallel")},
                      {"", reader_.span("zero_optimization")}});
  }

 private:
  /// `key: {"enabled": true}`
  bool enabled(std::string_view key) {
    const auto node = reader_.optional_object(key);
    if (!node) return false;
    base::Reader r(*node, std::string(key), sink_);
    r.allow_unknown();
    return r.optional_bool("enabled").value_or(false);
  }

  void read_precision() {
    const bool bf16 = enabled("bf16"), fp16 = enabled("fp16");
    if (bf16 && fp16)
      reader_.fault("fp16", kInconsistent, "one of them", "bf16 and fp16 are both enabled");
    if (fp16 && !target_.precision)
      imported_.notes.push_back("fp16 is taken as bf16, which has the same sizes");
    const auto own = bf16 || fp16 ? model::Precision::kBFloat16 : model::Precision::kFloat32;
    imported_.plan.precision = target_.precision.value_or(own);
  }

  std::int64_t degree_in(std::string_view key, std::string_view field) {
    const auto node = reader_.optional_object(key);
    if (!node) return 1;
    base::Reader r(*node, std::string(key), sink_);
    r.allow_unknown();
    const std::int64_t degree = r.optional_int(field, {0, kMaxWorldSize}).value_or(1);
    return std::max<std::int64_t>(degree, 1);
  }

  void read_degrees() {
    const std::int64_t tp = degree_in("tensor_parallel", "autotp_size"),
                       sp = reader_.optional_int("sequence_parallel_size", {1, kMaxWorldSize})
                                .value_or(1),
                       ep = enabled("expert_parallel") ? degree_in("expert_parallel", "autoep_size")
                                                       : 1;
    if (tp > 1 && (sp > 1 || ep > 1))
      reader_.fault("tensor_parallel", kUnsupported, "one of them", "AutoTP beside {}",
                    sp > 1 ? "Ulysses" : "experts");
    const std::int64_t stages = target_.beside.stages;
    ranks_ = target_.devices / stages;
    if (target_.devices % stages != 0 || ranks_ % (tp * sp) != 0)
      reader_.error("zero_optimization", kInconsistent,
                    "{} devices do not divide into {} stages of tensor {} × Ulysses {}",
                    target_.devices, stages, tp, sp);
    layer_.tp = as_int(tp);
    layer_.cp = as_int(sp);
    if (sp > 1) layer_.context = ContextKind::kUlysses;
    layer_.ep = as_int(ep);
    layer_.dp = as_int(std::max<std::int64_t>(ranks_ / (tp * sp), 1));
    imported_.notes.push_back(
        fmt::format("the file does not say the world size: {} devices", target_.devices));
  }

  void read_zero() {
    const auto node = reader_.optional_object("zero_optimization");
    const bool pipeline = target_.beside.stages > 1;
    int stage = 0;
    bool overlaps = false;
    if (node) {
      base::Reader r(*node, "zero_optimization", sink_);
      stage = as_int(r.optional_int("stage", {0, 3}).value_or(0));
      overlaps = r.optional_bool("overlap_comm").value_or(stage == 3);
      const auto group = r.optional_int("mics_shard_size", {-1, kMaxWorldSize}).value_or(-1);
      if (group > 0 && stage == 3) layer_.shard = as_int(group);
      read_rest_of(r);
      if (pipeline && stage > 1)
        r.fault("stage", kUnsupported, "stage 0 or 1", "ZeRO-{} beside a pipeline", stage);
    }
    layer_.zero = layer_.replicas() == 1 ? 0 : stage;
    if (layer_.zero == 0) layer_.shard = 0;
    if (layer_.replicas() == 1) return;
    const bool beside = layer_.zero == 1 && overlaps && !pipeline;
    layer_.grad_reduce = beside ? GradReduce::kStep : GradReduce::kEnd;
    if (layer_.zero >= 2) layer_.grad_reduce = GradReduce::kMicroBatch;
  }

  /// An unknown key here is an error there as well.
  void read_rest_of(base::Reader& r) {
    for (const char* key : {"offload_optimizer", "offload_param"}) {
      const auto node = r.optional_object(key);
      if (!node) continue;
      base::Reader offload(*node, key, sink_);
      offload.allow_unknown();
      if (offload.optional_string("device").value_or("none") != "none")
        r.fault(key, kUnsupported, "everything stays on the device",
                "offloading cannot be said in a plan");
    }
    if (r.optional_int("zero_hpz_partition_size", {1, kMaxWorldSize}).value_or(1) > 1)
      r.fault("zero_hpz_partition_size", kUnsupported, "mics_shard_size",
              "a second copy of the parameters in each host");
    for (const char* key : {"contiguous_gradients",
                            "reduce_scatter",
                            "reduce_bucket_size",
                            "allgather_partitions",
                            "allgather_bucket_size",
                            "use_multi_rank_bucket_allreduce",
                            "load_from_fp32_weights",
                            "elastic_checkpoint",
                            "sub_group_size",
                            "cpu_offload",
                            "cpu_offload_param",
                            "cpu_offload_use_pin_memory",
                            "stage3_prefetch_bucket_size",
                            "stage3_param_persistence_threshold",
                            "stage3_model_persistence_threshold",
                            "stage3_max_live_parameters",
                            "stage3_max_reuse_distance",
                            "stage3_gather_16bit_weights_on_model_save",
                            "stage3_module_granularity_threshold",
                            "stage3_use_all_reduce_for_fetch_params",
                            "ignore_unused_parameters",
                            "legacy_stage1",
                            "round_robin_gradients",
                            "zero_quantized_weights",
                            "zero_quantized_nontrainable_weights",
                            "zero_quantized_gradients",
                            "zeropp_loco_param",
                            "mics_hierarchical_params_gather",
                            "memory_efficient_linear",
                            "pipeline_loading_checkpoint",
                            "override_module_apply",
                            "log_trace_cache_warnings"})
      r.ignore(key);
    r.finish();
  }

  /// train_batch_size = micro-batch * accumulation * ranks, of those that the parser counts.
  void read_batch() {
    const auto batch = reader_.optional_int("train_batch_size", {1, kLarge}),
               micro = reader_.optional_int("train_micro_batch_size_per_gpu", {1, kMost}),
               steps = reader_.optional_int("gradient_accumulation_steps", {1, kMost});
    const std::int64_t counted = std::max<std::int64_t>(ranks_ / layer_.cp, 1);
    if (!batch && !micro) {
      reader_.fault("train_micro_batch_size_per_gpu", kMissingKey, "sequences of a micro-batch",
                    "neither train_batch_size nor train_micro_batch_size_per_gpu is there");
      return;
    }
    const std::int64_t whole = batch.value_or(0);
    const std::int64_t of_rank =
        std::clamp<std::int64_t>(micro.value_or(whole / (steps.value_or(1) * counted)), 1, kMost);
    const std::int64_t times = steps.value_or(batch ? whole / (of_rank * counted) : 1);
    if (times < 1 || (batch && of_rank * times * counted != whole)) {
      reader_.fault("train_batch_size", kInconsistent,
                    "micro-batch * gradient_accumulation_steps * ranks",
                    "train_batch_size is {} and there are {} ranks", whole, counted);
      return;
    }
    imported_.plan.micro_batches = times;
    imported_.plan.global_batch = of_rank * times * layer_.dp;
  }

  void read_stages() {
    Plan& plan = imported_.plan;
    const int stages = target_.beside.stages;
    const std::int64_t layers = target_.model.layers;
    for (int i = 0; i < stages; ++i) {
      const std::int64_t size = layers / stages + (i < layers % stages ? 1 : 0);
      plan.stages.push_back({{{as_int(size), layer_}}});
    }
    plan.vocabulary = vocabulary_like(layer_);
    keep_experts_where_they_are(plan, target_.model);
    plan = canonical(std::move(plan));
  }

  const ImportTarget& target_;
  base::ErrorSink sink_;
  base::Reader reader_;
  std::int64_t ranks_ = 1;  // of a stage
  LayerStrategy layer_;
  ImportedPlan imported_;
};

}  // namespace

base::Result<ImportedPlan> import_deepspeed(const base::Node& root, const ImportTarget& target) {
  return DeepSpeedReader(root, target).read();
}

}  // namespace orrery::plan
