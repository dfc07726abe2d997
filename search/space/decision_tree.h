#pragma once
/// \file
/// Galvatron's decision tree (Miao et al., VLDB 2023, arXiv 2211.13878, section 3.2): which
/// strategies one layer may use.
///
/// For G devices of a pipeline stage, a path is an ordered sequence of distinct paradigms, each of
/// degree >= 2, whose degrees multiply to G; the order says which paradigm takes consecutive ranks.
/// Pruning keeps no path with both DP and SDP in it: SDP alone moves the same bytes and holds less.
/// One tree per pipeline degree P (powers of two up to N), over G = N / P devices. Worked example,
/// N = 8: 11 + 7 + 3 + 1 = 22 strategies, 44 with recomputation.
///
/// `layer_strategies` has these and crosses them with what later systems added: ZeRO-1
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

/// What a stage must divide.
struct TreeContext {
  int devices = 1;                         // of one stage
  std::int64_t sequence = 0;               // tokens
  std::int64_t micro_batch_sequences = 0;  // of the whole stage
  std::int64_t micro_batches = 1;
  int devices_per_host = 1;
};
struct StrategyTree {
  // canonical order: tp, zero, ep, sp, tensor_pieces, operators, slices, recompute, grad_reduce,
  // states ascending
  std::vector<plan::LayerStrategy> leaves;
  std::vector<Pruned> pruned;
};
/// Strategies of one block: tp a power of two that divides devices, heads, kv heads and ffn; dp =
/// devices / tp divides the micro-batch; of mixtures, ep a power of two that divides dp and the
/// experts; slices a power of two up to 16 that divides what the sharded products contract.
StrategyTree layer_strategies(const model::ModelSpec& model, const Space& space,
                              const TreeContext& context);
/// Of partitioned layers: what a strategy says beside its degrees (plan::LayerRun); zero as for
/// data parallelism, plain where that is off.
std::vector<plan::LayerStrategy> partition_shardings(const Space& space,
                                                     std::int64_t micro_batches);
/// Strategies of embedding and head: tp and zero only.
StrategyTree vocabulary_strategies(const model::ModelSpec& model, const Space& space,
                                   const TreeContext& context);

}  // namespace orrery::search
