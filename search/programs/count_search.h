#pragma once
/// \file
/// Depth-first search over count vectors: step 4 of layer_program.h, for one round (T, γ).
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numbers.h"
#include "search/programs/layer_order.h"
#include "search/programs/layer_program.h"
#include "search/programs/layout_paths.h"
#include "search/programs/memory_conditions.h"

namespace orrery::search {

/// A complete count vector with its cheapest order that fits.
struct Counts {
  const std::vector<std::int32_t>* of = nullptr;  // [column]
  const RunOrder* order = nullptr;
  std::int64_t steady_ps = 0, once_ps = 0, memory_bytes = 0;
};

/// Sink: `__int128 cutoff() const` (exclusive, may fall while the search runs); `void offer(const
/// Counts&)`.
template <class Sink>
class CountSearch {
 public:
  CountSearch(const LayerProblem& problem, const std::vector<Column>& columns,
              const Weights& weights, std::int64_t steady_limit, Effort& effort, Sink& sink)
      : problem_(problem),
        columns_(columns),
        paths_(problem),
        orders_(problem, columns, paths_),
        conditions_(problem, columns, paths_, weights),
        weights_(weights),
        steady_limit_(steady_limit),
        effort_(effort),
        sink_(sink) {}

  [[nodiscard]] const LayerOrder& orders() const { return orders_; }

  /// Round (T, γ): a quick lower bound of its objective, never above prepare()'s below the cutoff.
  __int128 least_level(std::int64_t transient, std::int64_t neighbours) {
    return conditions_.least_level(transient, neighbours);
  }
  /// Round (T, γ): a lower bound of its objective; kNoAnswer when nothing fits. Prepares run().
  __int128 prepare(std::int64_t transient, std::int64_t neighbours) {
    transient_ = transient;
    neighbours_ = neighbours;
    const __int128 bound = conditions_.choose(transient, neighbours);
    return bound >= sink_.cutoff() ? bound : std::max(bound, conditions_.price());
  }

  /// Offers every count vector of the round below the cutoff.
  void run() {
    // The tightest condition leads: its two basic options are split in the leaves.
    sides_ = conditions_.sides();
    const MemorySide& lead = sides_.front();
    order_.clear();
    least_steady_ = kForbidden;
    for (std::size_t i = 0; i < conditions_.allowed().size(); ++i) {
      least_steady_ = std::min(least_steady_, option(i).steady_ps);
      if (i != lead.lp.a && i != lead.lp.b) order_.push_back(i);
    }
    std::ranges::sort(order_, [&](std::size_t x, std::size_t y) {
      return lead.reduced[x] != lead.reduced[y] ? lead.reduced[x] > lead.reduced[y] : x < y;
    });
    counts_.assign(columns_.size(), 0);
    State root;
    for (std::size_t k = 0; k < sides_.size(); ++k) root.left[k] = sides_[k].capacity;
    if (open(root, problem_.layers)) visit(0, problem_.layers, root);
  }

 private:
  static constexpr std::size_t kSides = MemoryConditions::kSides;

  struct State {
    std::array<__int128, kSides> reduced{};
    std::array<std::int64_t, kSides> left{};
    std::int64_t steady_ps = 0, once_ps = 0, memory_bytes = 0;
    std::uint64_t layouts = 0;
    bool widest = false;     // some layer has a transient of class T
    bool narrowest = false;  // some layer has a gather of class γ
  };

  const LayerOption& option(std::size_t item) const {
    return columns_[conditions_.allowed()[item]].values;
  }
  /// Brings a transient of class T; a gather of class γ.
  bool widest(std::size_t item) const {
    return columns_[conditions_.allowed()[item]].round_transient_bytes == transient_;
  }
  bool narrowest(std::size_t item) const {
    return columns_[conditions_.allowed()[item]].round_neighbour_bytes == neighbours_;
  }

  /// False when no completion of this node can be below the cutoff.
  bool open(const State& s, int layers) const {
    if (s.steady_ps + least_steady_ * layers > steady_limit_) return false;
    const __int128 cutoff = sink_.cutoff();
    for (std::size_t k = 0; k < sides_.size(); ++k) {
      const MemorySide& side = sides_[k];
      if (s.left[k] < side.least_weight * layers) return false;
      __int128 more = conditions_.layouts_cost(side, s.layouts);
      // Answers without transient T or g = γ belong to another round.
      if (!s.widest) more = std::max(more, side.widest);
      if (!s.narrowest) more = std::max(more, side.narrowest);
      if (side.lp.value + s.reduced[k] + more >= side.lp.scale * cutoff) return false;
    }
    return true;
  }

  State take(const State& s, std::size_t item, int count) {
    const LayerOption& o = option(item);
    State next = s;
    for (std::size_t k = 0; k < sides_.size(); ++k) {
      next.reduced[k] += sides_[k].reduced[item] * count;
      next.left[k] -= sides_[k].items[item].memory * count;
    }
    next.steady_ps += o.steady_ps * count;
    next.once_ps += o.once_ps * count;
    next.memory_bytes += o.memory_bytes * count;
    if (count > 0) {
      next.layouts |= std::uint64_t{1} << o.layout;
      next.widest = next.widest || widest(item);
      next.narrowest = next.narrowest || narrowest(item);
    }
    counts_[conditions_.allowed()[item]] += count;
    return next;
  }
  void give_back(std::size_t item, int count) { counts_[conditions_.allowed()[item]] -= count; }

  void visit(std::size_t depth, int layers, const State& s) {
    if (!effort_.spend()) return;
    if (depth == order_.size() || layers == 0) {
      leaf(layers, s);
      return;
    }
    const std::size_t item = order_[depth];
    for (int count = 0; count <= layers; ++count) {
      const State next = take(s, item, count);
      // Every part of the bound grows with the count, but for the transient and the gather that the
      // first one brings.
      const bool go = open(next, layers - count);
      if (go) visit(depth + 1, layers - count, next);
      give_back(item, count);
      if (!go && (count > 0 || (s.widest && s.narrowest))) break;
    }
  }

  void leaf(int layers, const State& s) {
    const LinearRelaxation& lp = sides_.front().lp;
    if (layers == 0 || lp.a == lp.b) {
      close(s, layers, layers);
      return;
    }
    const std::int64_t light = sides_.front().items[lp.b].memory;
    const std::int64_t difference = sides_.front().items[lp.a].memory - light;
    const std::int64_t spare = s.left.front() - light * layers;
    // Cost falls with the number on the heavy option; memory beyond the relaxation decides how many
    // fit.
    int least = 0, most = as_int(std::min<std::int64_t>(layers, spare / difference));
    const auto reach = [&](bool reached, bool by_heavy, bool by_light) {
      if (reached) return;
      if (!by_light) least = std::max(least, by_heavy ? 1 : layers + 1);
      if (!by_heavy) most = std::min(most, layers - 1);
    };
    reach(s.widest, widest(lp.a), widest(lp.b));
    reach(s.narrowest, narrowest(lp.a), narrowest(lp.b));
    for (int heavy = most; heavy >= least; --heavy) {
      if (!close(s, layers, heavy)) break;
    }
  }

  /// False when this cost and every higher one is at the cutoff.
  bool close(const State& s, int layers, int heavy) {
    const LinearRelaxation& lp = sides_.front().lp;
    State next = take(s, lp.a, heavy);
    next = take(next, lp.b, layers - heavy);
    const bool below = finish(next, paths_.superset_cost(s.layouts));
    give_back(lp.b, layers - heavy);
    give_back(lp.a, heavy);
    return below;
  }

  bool finish(const State& s, std::int64_t least_path) {
    const __int128 a = weights_.steady;
    const __int128 cost = a * s.steady_ps + static_cast<__int128>(weights_.once) * s.once_ps;
    const __int128 room = sink_.cutoff() - cost;
    if (a * least_path >= room) return false;
    if (!s.widest || !s.narrowest) return true;
    std::int64_t path_limit = std::min(kForbidden, steady_limit_ - s.steady_ps + 1);
    if (a > 0 && (room + a - 1) / a < path_limit)
      path_limit = static_cast<std::int64_t>((room + a - 1) / a);
    const auto order =
        orders_.find(counts_, s.layouts, path_limit, problem_.budget_bytes - s.memory_bytes);
    effort_.undecided = effort_.undecided || orders_.undecided();
    effort_.states += orders_.effort();
    effort_.ticks += 4 * orders_.effort();
    if (!order) return true;
    sink_.offer(Counts{&counts_, &*order, s.steady_ps + order->path_ps, s.once_ps,
                       s.memory_bytes + order->need_bytes});
    return true;
  }

  const LayerProblem& problem_;
  const std::vector<Column>& columns_;
  LayoutPaths paths_;
  LayerOrder orders_;
  MemoryConditions conditions_;
  Weights weights_;
  std::int64_t steady_limit_;
  Effort& effort_;
  Sink& sink_;

  std::int64_t transient_ = 0, neighbours_ = 0;  // of the round
  std::span<const MemorySide> sides_;
  std::int64_t least_steady_ = 0;
  std::vector<std::size_t> order_;
  std::vector<std::int32_t> counts_;
};

}  // namespace orrery::search
