#pragma once
/// \file
/// The cheapest order of a count vector's layers whose peak memory fits: the leaves of
/// layer_program.h.
///
/// Canonical order: equal layers stand together as a run, the runs of a layout too, larger
/// transients first; without gathers that needs least (exchange argument, as earliest due date).
/// Left to choose is the order of the layouts; where the form is but a lower bound, that of a
/// layout's runs as well, and the problem's check decides. What stands beside the full forward
/// memory, run by run (c layers of option s behind one with g' gathered, before one with g'';
/// σ_s(k) = k σ_s):
///
///     need' = max(need - σ_s(c),
///                 t_s + g' - σ_s(c - 1),        backward of the run's first layer
///                 t_s + g_s [c > 1],            backward of its last
///                 f_s + g_s - σ_s(1) [c > 1],   forward of its last but one
///                 f_s + g'')                    forward of its last
///
/// Depth-first over the orders, cheapest path and larger transients first; the first that fits on
/// the cheapest path ends the search. Sets are small: every further layout costs a transition.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "search/programs/layer_program.h"
#include "search/programs/layout_paths.h"

namespace orrery::search {

/// An option that survived dominance.
struct Column {
  std::int32_t option = 0;
  LayerOption values;
  // Rounds of the search are over few values: least transient of its class; least gather of all
  // that gather, or none.
  std::int64_t round_transient_bytes = 0, round_neighbour_bytes = 0;
};

struct RunOrder {
  std::vector<std::size_t> columns;  // one entry a run
  std::int64_t path_ps = 0;
  std::int64_t need_bytes = 0;  // what stands beside Σ m
};

/// The left side of the constraint of layer_program.h for one sequence of options.
std::int64_t peak_of(const LayerProblem& problem, const std::vector<std::int32_t>& sequence);

class LayerOrder {
 public:
  LayerOrder(const LayerProblem& problem, const std::vector<Column>& columns,
             const LayoutPaths& paths);

  /// Cheapest order with path < `path_limit` and need <= `spare` that the problem's check accepts.
  /// @pre some count is positive.
  std::optional<RunOrder> find(const std::vector<std::int32_t>& counts, std::uint64_t layouts,
                               std::int64_t path_limit, std::int64_t spare);
  /// True when the last find() found nothing, and left an order out, had one refused that was not
  /// the only one, or found too little room for one where gathers may want equal layers apart.
  [[nodiscard]] bool undecided() const {
    return best_.columns.empty() &&
           (((refused_ > 0 || cramped_) && runs_.size() > 1) || nodes_ > kNodes);
  }
  /// What the last find() took, in nodes of the search over counts.
  [[nodiscard]] std::uint64_t effort() const {
    return static_cast<std::uint64_t>(kCheckNodes * refused_ + nodes_ / 8);
  }
  /// Options of all layers in that order.
  [[nodiscard]] std::vector<std::int32_t> sequence(const std::vector<std::int32_t>& counts,
                                                   const RunOrder& order) const;

 private:
  [[nodiscard]] std::int64_t after(const RunOrder& trail, std::int64_t need,
                                   std::size_t column) const;
  void descend(std::size_t left, std::int64_t need);
  /// Whatever the order, runs in equal layers or not. Of G layers that gather, one at least stands
  /// before each of the last G - 1 layers of a stage, and its weights are gathered while these run
  /// backward: from the back, one of them fits when t + least g of another <= spare + Σ σ behind
  /// it. Any layer fits when t <= spare + Σ σ behind it at least. Every layer that fits leaves
  /// more room for the rest, so that placing those that need least first gets farthest.
  [[nodiscard]] bool every_order_needs_more(std::int64_t spare);
  /// Orders that the check may refuse before a count vector is given up.
  static constexpr int kRefusals = 8;
  static constexpr int kNodes = 1000;         // of the search over orders, likewise
  static constexpr int kCheckNodes = 16;      // an exact check takes about as long as so many
  static constexpr std::size_t kFewRuns = 4;  // so few stand in every order
  void close(std::int64_t need);
  [[nodiscard]] bool accepted();

  const LayerProblem& problem_;
  const std::vector<Column>& columns_;
  const LayoutPaths& paths_;
  std::vector<std::size_t> by_transient_;  // columns, larger transients first
  // of one find()
  const std::vector<std::int32_t>* counts_ = nullptr;
  std::vector<std::size_t> runs_;   // columns used, larger transients first
  std::vector<std::int32_t> left_;  // [layout] runs not yet placed
  std::vector<bool> placed_;        // [index in runs_]
  std::vector<std::pair<std::int64_t, std::size_t>> waiting_;  // what a run needs, its column
  std::int64_t spare_ = 0, least_need_ = 0, least_path_ = 0;
  RunOrder trail_, best_;
  int refused_ = 0, nodes_ = 0;
  bool gathers_ = false, cramped_ = false;
  bool every_order_ = false;
};

}  // namespace orrery::search
