#include "search/pipeline_program.h"

#include <algorithm>

#include "base/check.h"
#include "search/layer_relaxation.h"

namespace orrery::search {
namespace {

/// Least possible A and N of a stage with its constants, boundaries free.
struct StageFloor {
  std::int64_t total_ps = 0;
  std::int64_t steady_ps = 0;
};

std::int64_t narrow(__int128 value) {
  return value >= static_cast<__int128>(kForbidden) ? kForbidden : static_cast<std::int64_t>(value);
}

/// The stage with its widest budget at the boundaries.
LayerProblem relaxed(const PipelineStage& stage, int count) {
  LayerProblem p = stage.layers;
  p.layers = count;
  if (!stage.arrival_bytes.empty()) p.budget_bytes -= std::ranges::min(stage.arrival_bytes);
  if (!stage.departure_bytes.empty()) p.budget_bytes -= std::ranges::min(stage.departure_bytes);
  return p;
}
std::int64_t least_send(const PipelineStage& stage) {
  return stage.send_ps.empty() ? 0 : std::ranges::min(stage.send_ps);
}

StageFloor floor_of(const PipelineStage& stage) {
  StageFloor least{kForbidden, kForbidden};
  for (const int count : stage.counts) {
    const LayerProblem p = relaxed(stage, count);
    least.total_ps = std::min(least.total_ps, narrow(layer_bound(p, {1, 1}).value));
    least.steady_ps = std::min(least.steady_ps, narrow(layer_bound(p, {1, 0}).value));
  }
  if (least.total_ps >= kForbidden || least.steady_ps >= kForbidden) return {kForbidden, kForbidden};
  return {least.total_ps + stage.steady_ps + stage.once_ps + least_send(stage), least.steady_ps + stage.steady_ps};
}

/// Lagrangian weights w_i = share_i / unit and what they prove.
struct Dual {
  std::int64_t unit = 1;
  std::vector<std::int64_t> share;      // [stage]
  std::vector<__int128> rest;           // [stage]: Σ over the stages >= it of min unit A + (m - 1) share N
  std::vector<std::int64_t> done;       // [stage]: Σ of shares before it
  std::vector<std::int64_t> steady_ps;  // [stage]: N at the fractional optimum

  Weights weights(std::size_t i, std::int64_t micro_batches) const {
    return {unit + (micro_batches - 1) * share[i], unit};
  }
};

Dual price(const PipelineProblem& problem, std::int64_t unit, std::vector<std::int64_t> share) {
  const std::size_t n = problem.stages.size();
  Dual d{unit, std::move(share), std::vector<__int128>(n + 1, 0), std::vector<std::int64_t>(n + 1, 0),
         std::vector<std::int64_t>(n, 0)};
  for (std::size_t i = 0; i < n; ++i) d.done[i + 1] = d.done[i] + d.share[i];
  for (std::size_t i = n; i-- > 0;) {
    const PipelineStage& stage = problem.stages[i];
    const Weights w = d.weights(i, problem.micro_batches);
    LayerBound least;
    for (const int count : stage.counts) {
      const LayerBound b = layer_bound(relaxed(stage, count), w);
      if (b.value < least.value) least = b;
    }
    d.rest[i] = d.rest[i + 1] + least.value + static_cast<__int128>(w.steady) * stage.steady_ps +
                static_cast<__int128>(w.once) * (stage.once_ps + least_send(stage));
    d.steady_ps[i] = least.steady_ps + stage.steady_ps;
  }
  return d;
}

/// Ascent: weight moves to the stage that is slowest at the current optimum, in halving steps.
Dual best_dual(const PipelineProblem& problem) {
  const std::size_t n = problem.stages.size();
  const std::int64_t unit = static_cast<std::int64_t>(n) * (problem.micro_batches <= 4096 ? 32 : 2);
  Dual best = price(problem, unit, std::vector<std::int64_t>(n, unit / static_cast<std::int64_t>(n)));
  if (n == 1 || problem.micro_batches == 1) return best;
  for (std::int64_t step = unit / 4; step >= 1; step /= 2) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto slow = static_cast<std::size_t>(std::ranges::max_element(best.steady_ps) - best.steady_ps.begin());
      std::vector<std::int64_t> share = best.share;
      std::int64_t moved = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t take = i == slow ? 0 : std::min(share[i], (step * share[i] + unit - 1) / unit);
        share[i] -= take;
        moved += take;
      }
      share[slow] += moved;
      Dual next = price(problem, unit, std::move(share));
      if (next.rest[0] > best.rest[0]) best = std::move(next);
    }
  }
  return best;
}

struct Label {
  std::int64_t slowest_ps = 0;  // τ
  std::int64_t sum_ps = 0;      // c
  std::int32_t parent = -1;
  std::int32_t frontier = -1, point = -1;
};

class PipelineSearch {
 public:
  PipelineSearch(const PipelineProblem& problem, std::int64_t cutoff, Effort& effort)
      : problem_(problem), cutoff_(cutoff), effort_(effort), layouts_(problem.stages.front().layers.layouts) {}

  /// False when no answer can be below the cutoff.
  bool bounded() {
    for (const PipelineStage& stage : problem_.stages) {
      floors_.push_back(floor_of(stage));
      if (floors_.back().total_ps >= kForbidden) return false;
    }
    dual_ = best_dual(problem_);
    return prepare() < cutoff_;
  }

  std::optional<PipelineAnswer> quick() {
    if (bounded()) incumbents();
    return std::move(best_);
  }

  std::optional<PipelineAnswer> solve() {
    if (!bounded()) return std::nullopt;
    incumbents();
    std::vector<Cell> cells{{0, 0, {0}}};
    pool_.assign(1, Label{});
    for (std::size_t i = 0; i < problem_.stages.size(); ++i) cells = advance(i, cells);
    for (const Cell& cell : cells) {
      if (cell.layers == problem_.layers) finish(cell);
    }
    return std::move(best_);
  }

 private:
  /// Labels after a stage, by last layout and layers so far.
  struct Cell {
    int layout = 0;
    int layers = 0;
    std::vector<std::int32_t> labels;
  };

  /// Suffix sums of the floors and the limit on τ. Returns the lower bound of the whole.
  std::int64_t prepare() {
    const std::size_t n = floors_.size();
    rest_total_.assign(n + 1, 0);
    rest_steady_.assign(n + 1, 0);
    for (std::size_t i = n; i-- > 0;) {
      rest_total_[i] = rest_total_[i + 1] + floors_[i].total_ps;
      rest_steady_[i] = std::max(rest_steady_[i + 1], floors_[i].steady_ps);
    }
    return bound(0, 0, 0);
  }
  std::int64_t bound(std::int64_t slowest, std::int64_t sum, std::size_t next) const {
    const std::int64_t plain =
        sum + rest_total_[next] + (problem_.micro_batches - 1) * std::max(slowest, rest_steady_[next]);
    return std::max(plain, narrow(ceil_divide(weighted(slowest, sum, next) + dual_.rest[next], dual_.unit)));
  }
  /// What a label has spent, in units of the dual.
  __int128 weighted(std::int64_t slowest, std::int64_t sum, std::size_t next) const {
    return static_cast<__int128>(dual_.unit) * sum +
           static_cast<__int128>(problem_.micro_batches - 1) * dual_.done[next] * slowest;
  }
  /// Largest N that can stand in an answer below the cutoff.
  std::int64_t steady_limit() const {
    if (problem_.micro_batches == 1) return kForbidden;
    return std::min(kForbidden, (cutoff_ - rest_total_[0]) / (problem_.micro_batches - 1));
  }

  LayerProblem stage_problem(std::size_t i, int count, int entry, int last) const {
    const PipelineStage& stage = problem_.stages[i];
    LayerProblem p = stage.layers;
    p.layers = count;
    const auto k = static_cast<std::size_t>(layouts_);
    if (i > 0) {
      p.entry_ps.assign(k, 0);
      const auto from = static_cast<std::size_t>(entry);
      const std::int64_t receive = stage.receive_ps.empty() ? 0 : stage.receive_ps[from];
      for (std::size_t l = 0; l < k; ++l) {
        p.entry_ps[l] = receive + (p.transition_ps.empty() ? 0 : p.transition_ps[from * k + l]);
      }
      if (!stage.arrival_bytes.empty()) p.budget_bytes -= stage.arrival_bytes[static_cast<std::size_t>(entry)];
    }
    if (i + 1 < problem_.stages.size()) {
      p.exit_ps.assign(k, kForbidden);
      p.exit_ps[static_cast<std::size_t>(last)] =
          stage.return_ps.empty() ? 0 : stage.return_ps[static_cast<std::size_t>(last)];
      if (!stage.departure_bytes.empty()) p.budget_bytes -= stage.departure_bytes[static_cast<std::size_t>(last)];
    }
    return p;
  }

  static constexpr std::uint64_t kQuickStates = 2000;

  /// Answers with one layout everywhere: quick upper bounds.
  void incumbents() {
    for (int layout = 0; layout < layouts_; ++layout) {
      PipelineAnswer answer;
      std::int64_t slowest = 0, sum = 0;
      int left = problem_.layers;
      for (std::size_t i = 0; i < problem_.stages.size(); ++i) {
        const PipelineStage& stage = problem_.stages[i];
        const int count = count_for(i, left);
        left -= count;
        LayerProblem p = stage_problem(i, count, layout, layout);
        std::erase_if(p.options, [&](const LayerOption& o) { return o.layout != layout; });
        std::vector<std::int32_t> kept;  // options of this layout
        for (std::size_t o = 0; o < stage.layers.options.size(); ++o) {
          if (stage.layers.options[o].layout == layout) kept.push_back(static_cast<std::int32_t>(o));
        }
        Effort some{.limit = kQuickStates};
        Bounded found = solve_layers(p, dual_.weights(i, problem_.micro_batches), kNoAnswer, some);
        effort_.states += some.states;
        if (!found.answer) break;
        for (std::int32_t& option : found.answer->sequence) option = kept[static_cast<std::size_t>(option)];
        slowest = std::max(slowest, found.answer->steady_ps + stage.steady_ps);
        sum += found.answer->steady_ps + found.answer->once_ps + stage.steady_ps + stage.once_ps;
        if (!stage.send_ps.empty()) sum += stage.send_ps[static_cast<std::size_t>(layout)];
        answer.stages.push_back(std::move(*found.answer));
      }
      if (answer.stages.size() != problem_.stages.size() || left != 0) continue;
      answer.cost_ps = sum + (problem_.micro_batches - 1) * slowest;
      offer(std::move(answer));
    }
  }
  /// A count for stage i that leaves the later stages solvable, later stages taking the larger ones.
  int count_for(std::size_t i, int left) const {
    int most = 0;
    for (std::size_t j = i + 1; j < problem_.stages.size(); ++j) most += problem_.stages[j].counts.back();
    for (const int count : problem_.stages[i].counts) {
      if (left - count <= most) return count;
    }
    return problem_.stages[i].counts.back();
  }
  void offer(PipelineAnswer answer) {
    if (answer.cost_ps >= cutoff_) return;
    cutoff_ = answer.cost_ps;
    best_ = std::move(answer);
  }

  std::vector<Cell> advance(std::size_t i, const std::vector<Cell>& before) {
    const PipelineStage& stage = problem_.stages[i];
    const bool final_stage = i + 1 == problem_.stages.size();
    std::vector<Cell> after;
    for (const Cell& from : before) {
      for (const int count : stage.counts) {
        const int layers = from.layers + count;
        if (!reachable(i, layers)) continue;
        for (int last = 0; last < (final_stage ? 1 : layouts_); ++last) {
          const std::vector<Label> labels = extend(i, from, count, last);
          if (!labels.empty()) merge(after, last, layers, labels);
        }
      }
    }
    return after;
  }
  bool reachable(std::size_t i, int layers) const {
    int least = layers, most = layers;
    for (std::size_t j = i + 1; j < problem_.stages.size(); ++j) {
      least += problem_.stages[j].counts.front();
      most += problem_.stages[j].counts.back();
    }
    return least <= problem_.layers && problem_.layers <= most;
  }

  std::vector<Label> extend(std::size_t i, const Cell& from, int count, int last) {
    std::vector<Label> result;
    if (from.labels.empty()) return result;
    const PipelineStage& stage = problem_.stages[i];
    const std::int64_t constant =
        stage.steady_ps + stage.once_ps + (stage.send_ps.empty() ? 0 : stage.send_ps[static_cast<std::size_t>(last)]);
    if (constant >= kForbidden) return result;
    const LayerProblem p = stage_problem(i, count, from.layout, last);
    const FrontierLimits limits = limits_of(i, from, constant);
    if (narrow(layer_bound(p, {1, 1}).value) >= limits.total_ps) return result;
    const auto frontier = static_cast<std::int32_t>(frontiers_.size());
    frontiers_.push_back(points_of(i, p, limits));
    for (const std::int32_t id : from.labels) {
      const Label label = pool_[static_cast<std::size_t>(id)];
      for (std::size_t k = 0; k < frontiers_.back().size(); ++k) {
        const LayerAnswer& point = frontiers_.back()[k];
        const Label next{std::max(label.slowest_ps, point.steady_ps + stage.steady_ps),
                         label.sum_ps + point.steady_ps + point.once_ps + constant, id, frontier,
                         static_cast<std::int32_t>(k)};
        if (bound(next.slowest_ps, next.sum_ps, i + 1) < cutoff_ && effort_.spend()) result.push_back(next);
      }
    }
    return result;
  }

  /// What a point of stage i may cost at most, for the label that leaves most.
  FrontierLimits limits_of(std::size_t i, const Cell& from, std::int64_t constant) const {
    const PipelineStage& stage = problem_.stages[i];
    const Weights w = dual_.weights(i, problem_.micro_batches);
    FrontierLimits limits{steady_limit() - stage.steady_ps, 0, -kNoAnswer};
    for (const std::int32_t id : from.labels) {
      const Label& label = pool_[static_cast<std::size_t>(id)];
      const std::int64_t slowest = std::max(label.slowest_ps, floors_[i].steady_ps);
      const std::int64_t others = label.sum_ps + constant + rest_total_[i + 1] +
                                  (problem_.micro_batches - 1) * std::max(slowest, rest_steady_[i + 1]);
      limits.total_ps = std::max(limits.total_ps, cutoff_ - others);
      const __int128 spent = weighted(label.slowest_ps, label.sum_ps + constant - stage.steady_ps, i) +
                             dual_.rest[i + 1] + static_cast<__int128>(w.steady) * stage.steady_ps;
      limits.weighted = std::max(limits.weighted, static_cast<__int128>(dual_.unit) * cutoff_ - spent);
    }
    return limits;
  }

  std::vector<LayerAnswer> points_of(std::size_t i, const LayerProblem& p, const FrontierLimits& limits) {
    const std::int64_t m = problem_.micro_batches;
    if (m > 1 && problem_.stages.size() > 1) return layer_frontier(p, dual_.weights(i, m), limits, effort_);
    // One stage, or one micro-batch: one point is enough.
    const PipelineStage& stage = problem_.stages[i];
    const __int128 cutoff = problem_.stages.size() > 1
                                ? static_cast<__int128>(limits.total_ps)
                                : static_cast<__int128>(cutoff_) - m * stage.steady_ps - stage.once_ps;
    Bounded best = solve_layers(p, {m, 1}, cutoff, effort_);
    if (!best.answer) return {};
    return {std::move(*best.answer)};
  }

  void merge(std::vector<Cell>& cells, int layout, int layers, const std::vector<Label>& labels) {
    auto cell = std::ranges::find_if(cells, [&](const Cell& c) { return c.layout == layout && c.layers == layers; });
    if (cell == cells.end()) cell = cells.insert(cells.end(), Cell{layout, layers, {}});
    for (const Label& label : labels) {
      const bool beaten = std::ranges::any_of(cell->labels, [&](std::int32_t id) {
        const Label& kept = pool_[static_cast<std::size_t>(id)];
        return kept.slowest_ps <= label.slowest_ps && kept.sum_ps <= label.sum_ps;
      });
      if (beaten) continue;
      std::erase_if(cell->labels, [&](std::int32_t id) {
        const Label& kept = pool_[static_cast<std::size_t>(id)];
        return label.slowest_ps <= kept.slowest_ps && label.sum_ps <= kept.sum_ps;
      });
      cell->labels.push_back(static_cast<std::int32_t>(pool_.size()));
      pool_.push_back(label);
    }
  }

  void finish(const Cell& cell) {
    for (const std::int32_t id : cell.labels) {
      const Label& label = pool_[static_cast<std::size_t>(id)];
      PipelineAnswer answer{label.sum_ps + (problem_.micro_batches - 1) * label.slowest_ps, {}};
      if (answer.cost_ps >= cutoff_) continue;
      for (const Label* l = &label; l->parent >= 0; l = &pool_[static_cast<std::size_t>(l->parent)]) {
        answer.stages.push_back(frontiers_[static_cast<std::size_t>(l->frontier)][static_cast<std::size_t>(l->point)]);
      }
      std::ranges::reverse(answer.stages);
      offer(std::move(answer));
    }
  }

  const PipelineProblem& problem_;
  std::int64_t cutoff_;
  Effort& effort_;
  int layouts_;
  std::vector<StageFloor> floors_;
  Dual dual_;
  std::vector<std::int64_t> rest_total_, rest_steady_;  // [stage]: of the stages >= it
  std::vector<Label> pool_;
  std::vector<std::vector<LayerAnswer>> frontiers_;
  std::optional<PipelineAnswer> best_;
};

}  // namespace

std::int64_t pipeline_bound(const PipelineProblem& problem) {
  std::int64_t sum = 0, slowest = 0;
  for (const PipelineStage& stage : problem.stages) {
    const StageFloor floor = floor_of(stage);
    if (floor.total_ps >= kForbidden) return kForbidden;
    sum += floor.total_ps;
    slowest = std::max(slowest, floor.steady_ps);
  }
  const auto n = static_cast<std::int64_t>(problem.stages.size());
  const Dual even = price(problem, n, std::vector<std::int64_t>(problem.stages.size(), 1));
  return std::max(sum + (problem.micro_batches - 1) * slowest, narrow(ceil_divide(even.rest[0], n)));
}

std::optional<PipelineAnswer> quick_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps, Effort& effort) {
  ORRERY_CHECK(!problem.stages.empty() && problem.layers >= 1 && problem.micro_batches >= 1);
  return PipelineSearch(problem, cutoff_ps, effort).quick();
}

std::optional<PipelineAnswer> solve_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps, Effort& effort) {
  ORRERY_CHECK(!problem.stages.empty() && problem.layers >= 1 && problem.micro_batches >= 1);
  return PipelineSearch(problem, cutoff_ps, effort).solve();
}

}  // namespace orrery::search
