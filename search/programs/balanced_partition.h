#pragma once
/// \file
/// Galvatron-BMW's partition search (TKDE 2024, arXiv 2307.02031, section "bi-objective
/// optimization of workload balance"): a heuristic over the layers of each stage. The planner does
/// not use it: pipeline_program.h finds the best partition. It is kept beside the exact one to say
/// how balanced a plan is, and how much balance alone would lose
/// (tests/oracle/search/balanced_partition_test.cc).
///
/// Balance degrees of a partition into stages M_i, C(M_i) their times, O(M_i) their peak memory:
///
///     α_t = 1 - max_i C(M_i) / Σ_i C(M_i),   α_m = 1 - max_i O(M_i) / Σ_i O(M_i),   both in [0, 1
///     - 1/P], equal stages at the end.
///
/// Steps:
/// 1. p_m, p_t: the partitions balanced by memory and by time, with given layers' values w_j and
///    what stages hold besides, v_i (embedding, head). The paper leaves the rule open; this is the
///    public system's (Hetu-Galvatron, pp_division_memory_balanced), which gives the 90 examples of
///    tests/differential/search/balanced_partition_test.cc: with A = (Σ w + Σ v) / P,
///      a. stages from the first on take layers while A - (what the stage has) >= w / 2 of the next
///      layer; the last takes the rest; b. stages from the first on, while above 1.3 A, hand their
///      last layer to the next one; c. an empty stage takes a layer of the next one, first to last,
///      then of the one before, last to first.
/// 2. Start from p_m. Optimise each stage (the caller's StageOptimizer: with layers' strategies
///    free, C and O depend on it).
/// 3. Of the slowest stage (largest steady time, the first of equals) move the first layer to the
///    stage before, and, apart from that, the last layer to the stage behind. Such a partition is
///    accepted if
///      no stage is slower than the slowest was, every stage fits, no stage holds more than the
///      fullest one of p_t.
/// 4. Go on from every accepted partition, each once; the answer is the one of least Σ_i A_i + (m -
///    1) max_i N_i (pipeline_program.h).
///
/// Cost: O(P) stages optimised for each partition visited, in practice some dozens. No proof of
/// anything: the best partition need not be reachable.
///
/// Worked example (BalancedPartition.WorkedExample): layers of time 4, 1, 1, 1, 1 and memory 1
/// each, two stages, m = 3, no limit. p_m = (3, 2): times 6 and 2, α_t = 1 - 6/8, α_m = 1 - 3/5,
/// cost 8 + 2·6 = 20. p_t = (1, 4) holds up to 4. From (3, 2) the last layer of stage 0 moves: (2,
/// 3), times 5 and 3, cost 18; then (1, 4), times 4 and 4, cost 16, the answer.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace orrery::search {

/// Layers of each stage, all positive.
using Partition = std::vector<int>;

/// 1 - max / Σ; 0 for one stage. @pre values are not negative; nothing at all counts as one equal
/// stage each.
double balance_degree(const std::vector<std::int64_t>& stage_values);

/// Step 1. Exact in integers: sums of layers and rest times 20 below 2^127. @pre as many layers as
/// stages at least, values >= 0.
Partition balanced_division(const std::vector<std::int64_t>& layer_values,
                            const std::vector<std::int64_t>& stage_values);

/// One stage with its best strategies.
struct StageLoad {
  std::int64_t steady_ps = 0;  // of one micro-batch
  std::int64_t once_ps = 0;    // of a step besides
  std::int64_t peak_bytes = 0;
};
class StageOptimizer {
 public:
  virtual ~StageOptimizer() = default;
  /// Layers [first, first + count) as stage `stage`; nothing when they do not fit.
  virtual std::optional<StageLoad> best(std::size_t stage, int first, int count) = 0;
};

struct BalancedPartition {
  Partition partition;
  std::vector<StageLoad> stages;
  std::int64_t cost_ps = 0;
  double time_balance = 0, memory_balance = 0;  // α_t over steady times, α_m over peaks
  int visited = 0;                              // partitions whose stages were optimised
};

/// Steps 2 to 4 from `memory_balanced`, held against `time_balanced`. Nothing when the start does
/// not fit. When p_t does not fit, its stages' limit is left to StageOptimizer. @pre both have the
/// same stages and layers.
std::optional<BalancedPartition> balance(const Partition& memory_balanced,
                                         const Partition& time_balanced, std::int64_t micro_batches,
                                         StageOptimizer& optimizer);

}  // namespace orrery::search
