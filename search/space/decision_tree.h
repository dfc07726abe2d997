#pragma once
/// \file
/// Galvatron's decision tree (Miao et al., VLDB 2023, arXiv 2211.13878, section 3.2): which
/// strategies one layer may use.
///
/// For G devices of a pipeline stage, a path is an ordered sequence of distinct paradigms, each of
/// degree >= 2, whose degrees multiply to G; the order says which paradigm takes consecutive ranks.
/// Pruning keeps no path with both DP and SDP in it: SDP alone moves the same bytes and holds less.
/// One tree per pipeline degree P (powers of two up to N), over G = N / P devices.
///
/// The planner's own tree (`layer_strategies`) crosses these with what later systems added: ZeRO-1
/// and ZeRO-2, hybrid sharding, Megatron sequence parallelism, ring and Ulysses context
/// parallelism, experts, recomputation, gradients reduced once or per micro-batch. Order of ranks:
/// tensor groups on neighbours (they move most bytes), or across (strided). Every path that is cut
/// keeps its reason.
#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/program/plan.h"
#include "search/space/space.h"

namespace orrery::search {

enum class Paradigm : std::uint8_t { kData, kShardedData, kTensor };
std::string_view to_string(Paradigm paradigm);

struct TreeEdge {
  Paradigm paradigm = Paradigm::kData;
  int degree = 1;
  bool operator==(const TreeEdge&) const = default;
};
using TreePath = std::vector<TreeEdge>;  // outermost ranks first
std::string to_string(const TreePath& path);

struct PrunedPath {
  TreePath path;
  std::string reason;
};

/// The published tree of one stage.
struct DecisionTree {
  std::vector<TreePath> leaves;
  std::vector<PrunedPath> pruned;
};
/// @pre devices >= 1.
DecisionTree grow_tree(int devices);

/// Sizes of the published trees over all P = 1, 2, 4, ... N. Worked example, N = 8: 34 unpruned, 22
/// pruned (11 + 7 + 3 + 1), 44 with recomputation.
struct TreeCounts {
  std::int64_t unpruned = 0;
  std::int64_t pruned = 0;
  std::vector<std::int64_t> pruned_by_pipeline;  // P = 1, 2, 4, ...
  std::int64_t with_recomputation = 0;
};
TreeCounts count_trees(int devices);

/// What a stage must divide.
struct TreeContext {
  int devices = 1;                         // of one stage
  std::int64_t sequence = 0;               // tokens
  std::int64_t micro_batch_sequences = 0;  // of the whole stage
  std::int64_t micro_batches = 1;
  int devices_per_host = 1;
};
struct StrategyTree {
  // canonical order: tp, zero, ep, sp, operators, slices, recompute, grad_reduce ascending
  std::vector<plan::LayerStrategy> leaves;
  std::vector<Pruned> pruned;
};
/// Strategies of one block: tp a power of two that divides devices, heads, kv heads and ffn; dp =
/// devices / tp divides the micro-batch; of mixtures, ep a power of two that divides dp and the
/// experts; slices a power of two up to 16 that divides what the sharded products contract.
StrategyTree layer_strategies(const model::ModelSpec& model, const Space& space,
                              const TreeContext& context);
/// Strategies of embedding and head: tp and zero only.
StrategyTree vocabulary_strategies(const model::ModelSpec& model, const Space& space,
                                   const TreeContext& context);

}  // namespace orrery::search
