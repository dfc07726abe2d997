#include "search/programs/label_program.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace orrery::search {
namespace {

using Wide = __int128;

struct Label {
  Wide cost = 0;
  std::int64_t memory = 0;  // x
  std::int64_t need = 0;    // q
  std::int64_t kept = 0;    // k
  std::int64_t step = 0;    // u
  std::int64_t steady_ps = 0, once_ps = 0;
  std::int32_t option = 0;
  std::int32_t parent = -1;  // in the pool
};

/// A price of memory as a fraction, and for every suffix of layers a lower bound of Σ (cost + price
/// m), scaled by `denominator`.
struct Price {
  Wide numerator = 0, denominator = 1;
  std::vector<Wide> rest;  // [layer]: layers >= layer
};

class LabelSearch {
 public:
  LabelSearch(const LabelProblem& problem, const Weights& weights, Wide cutoff, Effort& effort)
      : problem_(problem), weights_(weights), best_(cutoff), effort_(effort) {}

  std::optional<LayerAnswer> solve() {
    if (prepare()) run();
    return std::move(answer_);
  }

 private:
  Wide cost_of(const LayerOption& o) const {
    return static_cast<Wide>(weights_.steady) * o.steady_ps +
           static_cast<Wide>(weights_.once) * o.once_ps;
  }
  std::int64_t step(int from, int to) const {
    if (problem_.transition_ps.empty()) return 0;
    return problem_.transition_ps[static_cast<std::size_t>(from * problem_.layouts + to)];
  }
  static std::int64_t at(const std::vector<std::int64_t>& v, int l) {
    return v.empty() ? 0 : v[static_cast<std::size_t>(l)];
  }

  /// Suffix minima of memory and of what stays of it, and of cost + price * memory for a ladder of
  /// prices around the mean slope.
  bool prepare() {
    const std::size_t n = problem_.layers.size();
    least_memory_.assign(n + 1, 0);
    least_rest_.assign(n + 1, 0);
    std::int64_t low = kForbidden, high = 0;
    Wide cheap = kNoAnswer, dear = 0;
    for (std::size_t i = n; i-- > 0;) {
      std::int64_t least = kForbidden, least_kept = kForbidden;
      for (const LayerOption& o : problem_.layers[i]) {
        least = std::min(least, o.memory_bytes);
        least_kept = std::min(least_kept, o.memory_bytes - o.stash_bytes);
        low = std::min(low, o.memory_bytes);
        high = std::max(high, o.memory_bytes);
        cheap = std::min(cheap, cost_of(o));
        dear = std::max(dear, cost_of(o));
      }
      if (least >= kForbidden) return false;
      least_memory_[i] = least_memory_[i + 1] + least;
      least_rest_[i] = least_rest_[i + 1] + least_kept;
    }
    prices_.assign(1, Price{});
    if (high > low) {
      for (int k = -6; k <= 6; ++k) {
        Price p{dear - cheap, high - low, {}};
        (k < 0 ? p.denominator : p.numerator) <<= std::abs(k);
        prices_.push_back(p);
      }
    }
    for (Price& p : prices_) {
      p.rest.assign(n + 1, 0);
      for (std::size_t i = n; i-- > 0;) {
        Wide least = kNoAnswer << 40;
        for (const LayerOption& o : problem_.layers[i]) {
          least = std::min(least, p.denominator * cost_of(o) + p.numerator * o.memory_bytes);
        }
        p.rest[i] = p.rest[i + 1] + least;
      }
    }
    return true;
  }

  /// Lower bound of layers >= next given the capacity left reaches best_ - cost.
  bool open(const Label& label, std::size_t next) const {
    if (label.memory + least_memory_[next] + problem_.transient_floor_bytes > problem_.budget_bytes)
      return false;
    if (label.need + least_rest_[next] > problem_.budget_bytes ||
        label.kept + label.step > problem_.budget_bytes)
      return false;
    for (const Price& p : prices_) {
      if (p.denominator * label.cost + p.rest[next] -
              p.numerator *
                  (problem_.budget_bytes - problem_.transient_floor_bytes - label.memory) >=
          p.denominator * best_)
        return false;
    }
    return true;
  }

  /// Keeps what no other label beats in cost, memory and need.
  void keep(std::vector<std::int32_t>& frontier, std::vector<Label>& candidates) {
    std::ranges::stable_sort(candidates, [](const Label& x, const Label& y) {
      if (x.cost != y.cost) return x.cost < y.cost;
      if (x.memory != y.memory) return x.memory < y.memory;
      return x.need != y.need ? x.need < y.need : x.kept < y.kept;
    });
    for (const Label& label : candidates) {
      const bool beaten = std::ranges::any_of(frontier, [&](std::int32_t id) {
        const Label& kept = pool_[static_cast<std::size_t>(id)];
        return kept.memory <= label.memory && kept.need <= label.need && kept.kept <= label.kept &&
               kept.step <= label.step;
      });
      if (beaten) continue;
      frontier.push_back(static_cast<std::int32_t>(pool_.size()));
      pool_.push_back(label);
    }
  }

  /// All labels that end in `previous` (none: the first layer), by one layer of every option.
  void extend(const Label& from, std::int32_t parent, const LayerOption* previous,
              std::size_t layer, std::vector<std::vector<Label>>& next) {
    const auto& options = problem_.layers[layer];
    const std::int64_t forward =
        previous == nullptr ? problem_.front_forward_bytes : previous->forward_bytes;
    const std::int64_t gathered = previous == nullptr ? 0 : previous->neighbour_bytes;
    for (std::size_t k = 0; k < options.size(); ++k) {
      const LayerOption& o = options[k];
      const std::int64_t move =
          previous == nullptr ? at(problem_.entry_ps, o.layout) : step(previous->layout, o.layout);
      if (move >= kForbidden) continue;
      Label label;
      label.cost = from.cost + cost_of(o) + static_cast<Wide>(weights_.steady) * move;
      label.memory = from.memory + o.memory_bytes;
      label.need = std::max(std::max(from.need, from.memory + forward + o.neighbour_bytes) +
                                o.memory_bytes - o.stash_bytes,
                            label.memory + o.transient_bytes + gathered);
      label.kept = from.kept + o.memory_bytes - problem_.flight * o.stash_bytes;
      label.step = std::max(from.step, o.step_bytes);
      label.steady_ps = from.steady_ps + o.steady_ps + move;
      label.once_ps = from.once_ps + o.once_ps;
      label.option = static_cast<std::int32_t>(k);
      label.parent = parent;
      if (!open(label, layer + 1)) continue;
      if (!effort_.spend()) return;
      next[k].push_back(label);
    }
  }

  void run() {
    std::vector<std::vector<std::int32_t>> frontier;  // [last option]
    for (std::size_t layer = 0; layer < problem_.layers.size(); ++layer) {
      std::vector<std::vector<Label>> next(problem_.layers[layer].size());
      if (layer == 0) {
        extend(Label{.need = problem_.front_transient_bytes, .step = problem_.front_step_bytes}, -1,
               nullptr, 0, next);
      }
      for (std::size_t s = 0; s < frontier.size(); ++s) {
        for (const std::int32_t id : frontier[s]) {
          extend(pool_[static_cast<std::size_t>(id)], id, &problem_.layers[layer - 1][s], layer,
                 next);
        }
      }
      frontier.assign(next.size(), {});
      for (std::size_t s = 0; s < next.size(); ++s) keep(frontier[s], next[s]);
    }
    finish(frontier);
  }

  void finish(const std::vector<std::vector<std::int32_t>>& frontier) {
    for (std::size_t s = 0; s < frontier.size(); ++s) {
      const LayerOption& last = problem_.layers.back()[s];
      const std::int64_t leave = at(problem_.exit_ps, last.layout);
      if (leave >= kForbidden) continue;
      for (const std::int32_t id : frontier[s]) {
        const Label& label = pool_[static_cast<std::size_t>(id)];
        const Wide cost = label.cost + static_cast<Wide>(weights_.steady) * leave;
        const std::int64_t behind = std::max(problem_.transient_floor_bytes,
                                             last.forward_bytes + problem_.back_neighbour_bytes);
        const std::int64_t peak =
            std::max({label.need, label.memory + behind, label.kept + label.step});
        if (cost >= best_ || peak > problem_.budget_bytes) continue;
        best_ = cost;
        answer_ = LayerAnswer{trace(id), label.steady_ps + leave, label.once_ps, peak};
      }
    }
  }
  std::vector<std::int32_t> trace(std::int32_t id) const {
    std::vector<std::int32_t> sequence;
    for (; id >= 0; id = pool_[static_cast<std::size_t>(id)].parent) {
      sequence.push_back(pool_[static_cast<std::size_t>(id)].option);
    }
    std::ranges::reverse(sequence);
    return sequence;
  }

  const LabelProblem& problem_;
  Weights weights_;
  Wide best_;
  Effort& effort_;
  // [layer]: Σ of least m, of least m - σ, layers >= layer
  std::vector<std::int64_t> least_memory_, least_rest_;
  std::vector<Price> prices_;
  std::vector<Label> pool_;
  std::optional<LayerAnswer> answer_;
};

}  // namespace

LabelProblem to_labels(const LayerProblem& problem) {
  LabelProblem result{.layers = {},
                      .layouts = problem.layouts,
                      .transition_ps = problem.transition_ps,
                      .entry_ps = problem.entry_ps,
                      .exit_ps = problem.exit_ps,
                      .transient_floor_bytes = problem.transient_floor_bytes,
                      .front_transient_bytes = problem.front_transient_bytes,
                      .front_forward_bytes = problem.front_forward_bytes,
                      .front_step_bytes = problem.front_step_bytes,
                      .back_neighbour_bytes = problem.back_neighbour_bytes,
                      .flight = problem.flight,
                      .budget_bytes = problem.budget_bytes};
  result.layers.assign(static_cast<std::size_t>(problem.layers), problem.options);
  return result;
}

std::optional<LayerAnswer> solve_labels(const LabelProblem& problem, const Weights& weights,
                                        __int128 cutoff, Effort& effort) {
  ORRERY_CHECK(!problem.layers.empty() && problem.layouts >= 1);
  return LabelSearch(problem, weights, cutoff, effort).solve();
}

}  // namespace orrery::search
