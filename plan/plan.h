#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/json.h"
#include "base/result.h"
#include "model/spec.h"
#include "model/dtype.h"

namespace orrery::plan {

enum class Recompute : std::uint8_t { kNone, kSelective, kFull };
enum class GradReduce : std::uint8_t { kStep, kMicroBatch };
enum class Schedule : std::uint8_t { kGPipe, k1F1B };

/// How one layer is spread over the `tp * dp` ranks of its stage. Ranks of a stage are numbered tp innermost:
/// local rank r has tensor index r % tp and data index r / tp.
struct LayerStrategy {
  int tp = 1;                       // tensor-parallel degree
  int dp = 1;                       // data-parallel degree
  int zero = 0;                     // sharded over dp: 1 optimizer, 2 + gradients, 3 + parameters (gradients in full while several
                                    // micro-batches accumulate with grad_reduce = step)
  bool sequence_parallel = false;   // Megatron: norms and residual stream are split along the sequence over tp
  Recompute recompute = Recompute::kNone;
  GradReduce grad_reduce = GradReduce::kStep;  // zero 2, 3 may reduce after every micro-batch

  bool operator==(const LayerStrategy&) const = default;
  /// Layers whose activations lie alike between blocks need no resharding.
  [[nodiscard]] bool same_layout(const LayerStrategy& o) const {
    return tp == o.tp && dp == o.dp && sequence_parallel == o.sequence_parallel;
  }
};
/// "tp2 dp4 zero3 sp recompute=full", the notation used in tables and messages.
std::string to_string(const LayerStrategy& s);
std::string_view to_string(Schedule s);
std::string_view to_string(Recompute r);

/// Layers [first, first + count) of the block stack with one strategy.
struct LayerRun {
  int count = 0;
  LayerStrategy strategy;
  bool operator==(const LayerRun&) const = default;
};

struct Stage {
  std::vector<LayerRun> runs;  // in order; sum of counts = blocks of the stage
  [[nodiscard]] int layers() const;
  bool operator==(const Stage&) const = default;
};

/// What to do: the answer of the search, the input of lowering. World size = stages * devices_per_stage.
struct Plan {
  std::string model;               // catalog name or path
  std::string model_fingerprint;
  std::string cluster;             // catalog name or path
  int hosts = 1;
  model::Precision precision = model::Precision::kBFloat16;
  std::int64_t sequence = 0;       // tokens per sequence
  std::int64_t global_batch = 0;   // sequences per step
  std::int64_t micro_batches = 1;  // per step; global_batch / micro_batches sequences cross a stage at once
  Schedule schedule = Schedule::k1F1B;
  std::vector<Stage> stages;
  LayerStrategy vocabulary;        // embedding and head: tp = vocabulary parallel, zero 0..3; no sp, no recompute
  int prefetch_depth = 1;          // ZeRO-3: gathered layers alive beside the one in use

  [[nodiscard]] int pipeline_degree() const { return static_cast<int>(stages.size()); }
  [[nodiscard]] int devices_per_stage() const { return vocabulary.tp * vocabulary.dp; }
  [[nodiscard]] int world_size() const { return pipeline_degree() * devices_per_stage(); }
  [[nodiscard]] std::int64_t micro_batch_sequences() const { return global_batch / micro_batches; }
  bool operator==(const Plan&) const = default;
};

/// Largest world that a plan may ask for.
inline constexpr std::int64_t kMaxWorldSize = 1 << 20;

/// Every layer alike, every stage with layers / pp of them. World size = tp * dp * pp, and
/// micro_batches = global_batch / (dp * micro_batch).
struct UniformOptions {
  int tp = 1, pp = 1, dp = 1, zero = 0;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  Schedule schedule = Schedule::k1F1B;
  std::int64_t micro_batch = 1;    // sequences of one micro-batch on one data-parallel rank
  std::int64_t global_batch = 1;
  std::int64_t sequence = 0;       // 0: model's max_positions
  model::Precision precision = model::Precision::kBFloat16;
};
/// Errors: pp that does not divide the layers, dp * micro_batch that does not divide the global batch (nothing is ever rounded; the
/// hint names the nearest values), and those of validate().
base::Result<Plan> uniform_plan(const model::ModelSpec& model, const std::string& cluster, int hosts,
                                const UniformOptions& options);

/// All faults of a plan against its model, each naming the field: divisibility of heads, kv heads, ffn and sequence by tp,
/// of batch by micro-batches and dp; sums of layers; equal products tp*dp; ranges. Empty = valid.
[[nodiscard]] base::Diagnostics validate(const Plan& plan, const model::ModelSpec& model);

/// The same plan in its one canonical form: neighbouring runs of a stage with equal strategies joined, empty runs dropped.
Plan canonical(Plan plan);

/// Plan JSON (schema `orrery.plan/1`, docs/schemas.md): canonical bytes, sorted keys, canonical runs, every field present.
base::Json to_json(const Plan& plan);
/// Reads the schema strictly; read_plan(to_json(p)) == canonical(p). Errors: all faults of the file, each at line:column. Whether
/// the plan suits a model is validate()'s question.
base::Result<Plan> read_plan(const base::Node& root);
base::Result<Plan> load_plan(const std::string& path);
/// Digest of the canonical bytes.
std::string fingerprint(const Plan& plan);

}  // namespace orrery::plan
