#pragma once
/// \file
/// Which partition each operator of a stack of equal layers gets: segmented dynamic program
/// (PrimePar, ASPLOS 2024, section 5) over the graph of plan/partition/layer_graph.h.
///
/// n_i(p) is the cost of operator i under plan p, e_ij(p, q) that of the change of layout between
/// neighbours. Two edges jump: qkv to values, and the residual. A chain between two operators whose
/// ends are fixed is a product of matrices over (min, +):
///
///   W(q, v)  = min over scores, softmax of their costs and edges, + n(v), or where attention may
///              be one operation e_qkv,scores(q, v) + fused(v); + e_qkv,values(q, v)
///   G(v, S') = min over projection
///   A(S, S') = min over q, v of e(S, q) + W(q, v) + G(v, S') + e_residual(S, S') + n(S')
///   M(S', S) = min over mlp in, activation, mlp out, + e_residual + n(S)
///
/// Layers follow one another as vector times A times M, from a free layout to a free one:
///
///   v_0 = n(S),   v_(l+1) = (v_l A) M,   optimum = min v_L - n(S), for the last stream is the
///                                        layer's behind
///
/// A plan is seen by what follows only through the layout of its output, its *class*, so rows of
/// the matrices are classes. Exact in whole ticks: int32, saturated at kNever.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/partition/layer_graph.h"
#include "search/partition/tick_matrix.h"

namespace orrery::search {

/// A few of an operator's plans.
using PlanNumbers = std::vector<int>;

struct OperatorTable {
  std::vector<Ticks> cost;    // [plan]
  std::vector<int> class_of;  // [plan] layout of its output
  int classes = 0;
};
/// Change of layout, by class of the operator before and layout that the one behind reads.
struct EdgeTable {
  TickMatrix cost;
  std::vector<int> column;  // [plan of the operator behind]
  Ticks at(int from_class, std::size_t plan) const {
    return cost.row(static_cast<std::size_t>(from_class))[column[plan]];
  }
};
/// Attention in one operation, by plan of the values: in place of scores and softmax and of the
/// values' own cost.
struct FusedTable {
  std::vector<Ticks> cost;  // kNever: none; empty: of no plan
  std::vector<int> scores;  // plan of the scores of the same sequence, whose operands it reads
};
struct LayerTables {
  /// By plan::LayerOperator; streams are alike.
  std::array<OperatorTable, plan::kLayerOperators> operators;
  EdgeTable stream_qkv, qkv_scores, scores_softmax, qkv_values, softmax_values, values_projection,
      projection_stream, residual, stream_mlp_in, mlp_in_activation, activation_mlp_out,
      mlp_out_stream;
  FusedTable fused;
};

/// Plan of the softmax of fused attention.
inline constexpr int kFusedPlan = -1;
/// Plans of one layer by operator; its streams in, in the middle and out.
using LayerPlans = std::array<int, plan::kLayerOperators>;
struct PartitionProgram {
  std::int64_t ticks = 0;
  std::vector<std::int64_t> runs;  // [n] ticks of the best n layers in a row, up to all of them
  std::vector<LayerPlans> layers;
};
/// Nothing where every choice has a half of kNever or more.
std::optional<PartitionProgram> solve_partition(const LayerTables& tables, int layers);
/// Cost of given plans. @pre layers join: one's kStreamOut is the next one's kStreamIn.
std::int64_t ticks_of(const LayerTables& tables, std::span<const LayerPlans> layers);

}  // namespace orrery::search
