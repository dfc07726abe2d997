#pragma once
/// \file
/// What a layer costs at least that has a given plan, and the few plans that layers of little cost
/// can have.
///
/// Of the graph of segmented_program.h the two edges that jump cost nothing or something; without
/// them a layer is a chain of operators i = 0 .. 10, and
///
///   after_10(p) = 0,       after_i(p)  = min over q of e_i,i+1(p, q) + n_i+1(q) + after_i+1(q)
///   before_0(p) = n_0(p),  before_i(q) = min over p of before_i-1(p) + e_i-1,i(p, q) + n_i(q)
///   before_i(p) + after_i(p) <= every layer with plan p of operator i
///
/// (n_10 = 0: the stream behind is the next layer's; attention in one operation is another way from
/// the scores to behind the values.) The bounds are tight: most edges are on the chain. So a limit
/// a little above the least bound leaves few plans, and before_i is asked of these alone.
///
/// Invariants:
///   1. A layer of a cost up to the limit has only plans that are kept.
///   2. Cells are asked for once behind every operator, and again only in rows of kept plans; a row
///      no further than columns can lower its least.
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "search/partition/segmented_program.h"

namespace orrery::search {

/// An edge from an operator's classes, its cells found when they are asked for.
struct ChainEdge {
  std::vector<int> column;  // [plan behind, as they were given]: by first appearance
  /// Cells [class][first], [class][first + 1], ..
  std::function<void(std::size_t row, std::size_t first, std::span<Ticks> cells)> cells;
  /// No cell is below -(row's + column's).
  std::vector<Ticks> saved_by_row, saved_by_column;
};

class ChainBounds {
 public:
  /// The edge from operator `from` to the next one, whose plans are given in some order.
  using EdgeOf = std::function<ChainEdge(int from, const PlanNumbers& behind)>;
  using Operators = std::array<OperatorTable, plan::kLayerOperators>;
  /// Operators and `fused` must outlive this object. @pre no edge that jumps is below 0.
  ChainBounds(const Operators& operators, const FusedTable& fused, const EdgeOf& edge_of);

  /// No layer costs less.
  std::int64_t least() const;
  /// Plans that a layer of at most `limit` may have, ascending; streams have the same.
  std::array<PlanNumbers, plan::kLayerOperators> within(std::int64_t limit) const;

 private:
  struct Edge {
    ChainEdge chain;
    PlanNumbers order;                // plans behind, by what it costs from them on
    std::vector<std::int64_t> least;  // [column] from its cheapest plan on
    std::vector<std::int64_t> bound;  // [column] of it and all later ones, whatever the row saves
  };
  const OperatorTable& op(int i) const { return operators_[static_cast<std::size_t>(i)]; }
  std::int64_t own(int i, int plan) const;
  std::int64_t from(int i, int plan) const;
  Edge edge_from(int i, const EdgeOf& edge_of) const;
  std::vector<std::int64_t> after_rows(const Edge& edge, std::size_t rows) const;
  std::vector<std::int64_t> reached(const Edge& edge, const std::vector<std::int64_t>& before,
                                    std::int64_t limit) const;
  void find_fused();

  const Operators& operators_;
  const FusedTable& fused_;
  std::array<std::vector<std::int64_t>, plan::kLayerOperators> after_;  // [class]
  std::vector<std::int64_t> from_fused_;  // [scores] from the values in one operation with it on
  std::array<Edge, plan::kLayerOperators - 1> edges_;  // [operator before]
};

/// Of layers of at most `limit` ticks the best n in a row take runs[n]. Whether all stacks of
/// runs.size() - 1 layers with others among them take more than runs.back(). k others part k + 1
/// runs:
///
///   min over k > 0, n_0 + .. + n_k = layers - k of  k (limit + 1) + sum of runs[n_i]  >
///   runs[layers]
///
bool proves(std::span<const std::int64_t> runs, std::int64_t limit);
/// The least limit that does, with these runs.
std::int64_t proving_limit(std::span<const std::int64_t> runs);

}  // namespace orrery::search
