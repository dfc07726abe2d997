#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/json_fwd.h"
#include "base/numbers.h"
#include "base/result.h"
#include "model/dtype.h"
#include "model/spec.h"
#include "plan/partition/partition.h"

namespace orrery::plan {

/// What the backward computes again: nothing; the attention core; by operator, all but what
/// travelled, the core, the first product and the first of the MLP's (PyTorch's selective
/// checkpointing as TorchTitan sets it; so without sequence parallelism the projection runs again
/// with its all-reduce, and experts and cross-attention as a whole); whole layers. Or nothing, and
/// what the backward reads is in the host's memory meanwhile (offload; plan/lowering/offload.cc).
enum class Recompute : std::uint8_t { kNone, kSelective, kOperator, kFull, kOffload };
inline constexpr Recompute kLastRecompute = Recompute::kOffload;
/// When replicas sum their gradients: of a layer as its last backward of the step ends, beside the
/// backward of the next ones; as every micro-batch's backward ends (zero 2 and 3); behind the last
/// backward of all layers, in turn with the optimizer.
enum class GradReduce : std::uint8_t { kStep, kMicroBatch, kEnd };
/// Where optimizer states (masters, moments) are but for their update: on the device, or in the
/// host's memory, so that the update copies them in and out (plan/lowering/offload.cc).
enum class States : std::uint8_t { kDevice, kHost };
enum class Schedule : std::uint8_t {
  kGPipe,
  k1F1B,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleV,
  kDualPipeV
};
inline constexpr Schedule kLastSchedule = Schedule::kDualPipeV;
/// Two stages a rank, placed as a V: rank r of p runs stages r and 2p - 1 - r, so that the last
/// stage is beside the first.
constexpr bool is_v_shaped(Schedule s) {
  return s == Schedule::kZeroBubbleV || s == Schedule::kDualPipeV;
}
/// Gradients of weights have passes of their own.
constexpr bool splits_backward(Schedule s) {
  return s == Schedule::kZeroBubbleH1 || is_v_shaped(s);
}
/// Which of its stages a rank of a pipeline of `ranks` runs as its chunk-th, and who runs a stage.
int stage_of(Schedule s, int rank, int chunk, int ranks);
int rank_of(Schedule s, int stage, int ranks);
/// How attention sees the whole sequence when tokens are split over cp ranks: ring passes keys and
/// values around (Liu et al., arXiv 2310.01889); Ulysses trades tokens for heads by all-to-all
/// (Jacobs et al., arXiv 2309.14509).
enum class ContextKind : std::uint8_t { kRing, kUlysses };
/// OSDP (IJCAI 2023, arXiv 2209.13258): which operators of a block are sharded by zero 3; the
/// others are replicated (zero 0).
enum class ShardedOperators : std::uint8_t { kAll, kAttention, kMlp };

/// How one layer is spread over the `tp * cp * dp` ranks of its stage. Ranks of a stage are
/// numbered tp innermost, then cp, then dp: local rank r has tensor index r % tp and replica index
/// r / tp, of which cp are innermost. Strided: the replicas are innermost, r has tensor index r /
/// (cp * dp). Ranks of equal tensor index hold the same weights; they are the data group.
struct LayerStrategy {
  int tp = 1;  // tensor-parallel degree
  int dp = 1;  // data-parallel degree
  // sharded over dp: 1 optimizer, 2 + gradients, 3 + parameters (gradients in full while several
  // micro-batches accumulate with grad_reduce = step)
  int zero = 0;
  // Megatron: norms and residual stream are split along the sequence over tp
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  GradReduce grad_reduce = GradReduce::kStep;
  int cp = 1;  // context-parallel degree: tokens split, weights replicated
  ContextKind context = ContextKind::kRing;  // of cp > 1
  // expert-parallel degree: experts split over ep neighbours of the data group
  int ep = 1;
  // with tp > 1 and sequence parallelism: over ep neighbours of all ranks, each expert whole on its
  // rank (Megatron-Core's parallel folding, expert tensor degree 1; arXiv 2504.14960)
  bool folded = false;
  // hybrid sharding: states split over `shard` neighbours of the data group, replicated across; 0:
  // over the whole data group
  int shard = 0;
  ShardedOperators operators = ShardedOperators::kAll;  // of zero 3
  // OSDP operator splitting: a sharded product runs in this many slices of its contraction
  int slices = 1;
  bool strided = false;  // data group on neighbouring ranks, tensor group across
  // with sequence parallelism: gathers and scatters of the tensor group run beside the products
  // they feed and follow, each in this many pieces of the tokens
  int tensor_pieces = 1;
  States states = States::kDevice;

  bool operator==(const LayerStrategy&) const = default;
  [[nodiscard]] int replicas() const { return cp * dp; }  // size of the data group
  [[nodiscard]] int ranks() const { return tp * cp * dp; }
  [[nodiscard]] int shard_ranks() const { return shard == 0 ? replicas() : shard; }
  /// Ranks that experts are split over, and what is left replicates them.
  [[nodiscard]] int expert_ranks() const { return folded ? ranks() : replicas(); }
  [[nodiscard]] int expert_tensor_degree() const { return folded ? 1 : tp; }
  /// How the experts' own parameters lie: replicated over every ep-th of their ranks.
  [[nodiscard]] LayerStrategy of_experts() const {
    LayerStrategy own = *this;
    own.dp = expert_ranks() / ep;
    own.cp = 1;
    own.tp = expert_tensor_degree();
    own.sequence_parallel = own.tp > 1 && sequence_parallel;
    return own;
  }
  /// As a layer has it that has no experts.
  void drop_experts() {
    ep = 1;
    folded = false;
  }
  /// Layers whose activations lie alike between blocks need no resharding.
  [[nodiscard]] bool same_layout(const LayerStrategy& o) const {
    return tp == o.tp && cp == o.cp && dp == o.dp && strided == o.strided &&
           (sequence_parallel && tp > 1) == (o.sequence_parallel && o.tp > 1);
  }
};
/// "tp2 dp4 zero3 sp recompute=full", the notation used in tables and messages.
std::string to_string(const LayerStrategy& s);
/// What of it stands behind the degrees: " zero3 sp recompute=full"; empty: all plain.
std::string beyond_degrees(const LayerStrategy& s);
std::string_view to_string(Schedule s);
std::string_view to_string(Recompute r);
std::string_view to_string(ContextKind c);
std::string_view to_string(ShardedOperators o);
std::string_view to_string(GradReduce g);
std::string_view to_string(States s);

/// How every operator of a layer is partitioned in space and time (plan/partition/partition.h), by
/// LayerOperator up to the last product (plan/partition/layer_graph.h). No sequence for the
/// softmax: attention is one operation, split as scores and values say alike (can_fuse).
using LayerPartition = std::vector<Sequence>;

/// Layers [first, first + count) of the block stack with one strategy, or, where `partition` is not
/// empty, with that in place of its degrees: strategy then is dp over all ranks of the stage, how
/// the states of each parameter are sharded over the devices that hold the same block of it, when
/// these sum its gradients, and recomputation of nothing or of the whole layer.
struct LayerRun {
  int count = 0;
  LayerStrategy strategy;
  LayerPartition partition = {};
  [[nodiscard]] bool alike(const LayerRun& o) const {
    return strategy == o.strategy && partition == o.partition;
  }
  bool operator==(const LayerRun&) const = default;
};
/// The names that operators have in a plan file, by LayerOperator.
std::span<const std::string_view> partitioned_operators();
/// Whether a layer of the plan is partitioned.
bool is_partitioned(const struct Plan& plan);
/// Whether something is copied to the host's memory: activations or states of a layer, states of
/// embedding and head.
bool copies_to_host(const struct Plan& plan);

struct Stage {
  std::vector<LayerRun> runs;  // in order; sum of counts = blocks of the stage
  [[nodiscard]] int layers() const;
  bool operator==(const Stage&) const = default;
};

/// What to do: the answer of the search, the input of lowering. World size = pipeline degree *
/// devices_per_stage. With v virtual stages a pipeline rank (group of devices) runs v stages: as
/// Megatron-LM's interleaved schedule does (arXiv 2104.04473), stage i runs on pipeline rank i %
/// pipeline_degree(), or as a V (is_v_shaped).
struct Plan {
  std::string model;  // catalog name or path
  std::string model_fingerprint;
  std::string cluster;  // catalog name or path
  int hosts = 1;
  model::Precision precision = model::Precision::kBFloat16;
  std::int64_t sequence = 0;      // tokens per sequence
  std::int64_t global_batch = 0;  // sequences per step
  // per step; global_batch / micro_batches sequences cross a stage at once
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  int virtual_stages = 1;  // per pipeline rank; above 1 where interleaved, 2 in a V
  // pipeline_degree() * virtual_stages, in order of layers; counts may differ
  std::vector<Stage> stages;
  // embedding and head: tp = vocabulary parallel, cp, zero 0..3; no sp, no recompute
  LayerStrategy vocabulary;
  int prefetch_depth = 1;  // ZeRO-3: gathered layers (slices) alive beside the one in use
  // Of a cluster with several kinds of device: ranks count hosts with devices of the first model
  // first, and so on (topologies/device_order.h); empty: hosts in the cluster's order.
  std::vector<std::string> device_order = {};
  model::Adapter adapter = {};  // that of its model

  [[nodiscard]] int pipeline_degree() const { return as_int(stages.size()) / virtual_stages; }
  [[nodiscard]] int stage_of(int rank, int chunk) const {
    return plan::stage_of(schedule, rank, chunk, pipeline_degree());
  }
  [[nodiscard]] int rank_of(int stage) const {
    return plan::rank_of(schedule, stage, pipeline_degree());
  }
  /// The pipeline rank of the last stage: the last, or in a V the first.
  [[nodiscard]] int head_rank() const { return rank_of(as_int(stages.size()) - 1); }
  /// Whether the stages on both sides of a boundary, stage - 1 and stage, are one rank's.
  [[nodiscard]] bool turns_at(int stage) const {
    return is_v_shaped(schedule) && stage == pipeline_degree();
  }
  [[nodiscard]] int devices_per_stage() const { return vocabulary.ranks(); }
  [[nodiscard]] int world_size() const { return pipeline_degree() * devices_per_stage(); }
  [[nodiscard]] std::int64_t micro_batch_sequences() const { return global_batch / micro_batches; }
  bool operator==(const Plan&) const = default;
};

/// Largest world that a plan may ask for.
inline constexpr std::int64_t kMaxWorldSize = 1 << 20;

/// Every layer alike, every stage with layers / (pp * virtual_stages) of them. World size =
/// tp * cp * dp * pp, and micro_batches = global_batch / (dp * micro_batch).
struct UniformOptions {
  int tp = 1, pp = 1, dp = 1, ep = 1, zero = 0;
  bool folded = false;  // of layers with experts
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  GradReduce grad_reduce = GradReduce::kStep;
  int tensor_pieces = 1;  // of layers with sequence parallelism
  States states = States::kDevice;
  Schedule schedule = Schedule::k1F1B;
  std::int64_t micro_batch = 1;  // sequences of one micro-batch on one data-parallel rank
  std::int64_t global_batch = 1;
  std::int64_t sequence = 0;  // 0: model's max_positions
  model::Precision precision = model::Precision::kBFloat16;
  // per pipeline rank: layers / (pp * virtual_stages) layers each; 1 in a V: its 2
  int virtual_stages = 1;
  int cp = 1;  // by ring
  // where pp * virtual_stages does not divide the layers: stage_layers() instead of an error
  bool uneven_stages = false;

  [[nodiscard]] int chunks() const {
    return virtual_stages == 1 && is_v_shaped(schedule) ? 2 : virtual_stages;
  }
};
/// Layers of every stage, in order, when they are spread as evenly as they can be: a pipeline rank
/// has ⌊layers / pp⌋ or one more. Rank 0, which holds the most micro-batches and the embedding,
/// and the last, which has the head, get one more last, the others from the back on. Within a rank
/// the longer stages come last, on the last rank first: away from embedding and head. 126 layers on
/// 16 ranks: 7, 8 ... 8, 7, as Llama 3 was trained (arXiv 2407.21783, section 3.3.2). @pre
/// 1 <= pp * virtual_stages <= layers. In a V, whose first rank has embedding and head, the last
/// rank gets one more first and the first last.
std::vector<int> stage_layers(std::int64_t layers, int pp, int virtual_stages,
                              Schedule schedule = Schedule::kInterleaved);
/// Errors: pp * virtual_stages that does not divide the layers, dp * micro_batch that does not
/// divide the global batch (nothing is ever rounded; the hint names the nearest values), and those
/// of validate().
base::Result<Plan> uniform_plan(const model::ModelSpec& model, const std::string& cluster,
                                int hosts, const UniformOptions& options);

/// All faults of a plan against its model, each naming the field: divisibility of heads, kv heads,
/// ffn and sequence by tp, of it by token_chunks(), experts by ep, batch by micro-batches and dp;
/// sums of layers; equal products tp*cp*dp; ranges. Empty = valid.
[[nodiscard]] base::Diagnostics validate(const Plan& plan, const model::ModelSpec& model);

/// Chunks of the zig-zag order (model/segment.h) in which a model keeps the tokens of a sequence:
/// twice the least common multiple of the degrees of its rings; 1 without rings, or without a
/// causal mask. So the ranks of every ring hold pairs of chunks, and layouts with other degrees
/// gather and slice as ever.
int token_chunks(const Plan& plan, const model::ModelSpec& model);

/// The same plan in its one canonical form: neighbouring runs of a stage with equal strategies
/// joined, empty runs dropped.
Plan canonical(Plan plan);

/// Plan JSON (schema `orrery.plan/1`, docs/schemas.md): canonical bytes, sorted keys, canonical
/// runs, every field present.
base::Json to_json(const Plan& plan);
/// Reads the schema strictly; read_plan(to_json(p)) == canonical(p). Errors: all faults of the
/// file, each at line:column. Whether the plan suits a model is validate()'s question.
base::Result<Plan> read_plan(const base::Node& root);
base::Result<Plan> load_plan(const std::string& path);
/// Digest of the canonical bytes.
std::string fingerprint(const Plan& plan);

}  // namespace orrery::plan
