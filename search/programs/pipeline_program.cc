#include "search/programs/pipeline_program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "search/programs/pipeline_bound.h"

namespace orrery::search {
namespace {

struct Label {
  std::int64_t slowest_ps = 0;  // τ
  std::int64_t sum_ps = 0;      // c
  std::int32_t parent = -1;
  std::int32_t frontier = -1, point = -1;
};

/// The layer program of a stage over the options that may still stand: layouts and options
/// renumbered, answers in the stage's numbers.
class StageProgram final : public MemoryCheck {
 public:
  /// `entry`: layout in which the stage receives (-1: first stage); `last`: of its last layer (-1:
  /// the last stage, any).
  StageProgram(const PipelineProblem& problem, std::size_t stage, int count, int entry, int last,
               std::vector<std::int32_t> options);
  [[nodiscard]] bool possible() const { return !problem_.options.empty(); }
  /// More layouts than the layer program takes: those of the last options were left out.
  [[nodiscard]] bool truncated() const { return truncated_; }
  [[nodiscard]] const LayerProblem& problem() const { return problem_; }
  [[nodiscard]] std::vector<std::int32_t> named(const std::vector<std::int32_t>& sequence) const;
  bool fits(const std::vector<std::int32_t>& sequence) override {
    return whole_.check->fits(stage_, entry_, named(sequence));
  }

 private:
  const PipelineProblem& whole_;
  std::size_t stage_;
  int entry_;
  LayerProblem problem_;
  std::vector<std::int32_t> names_;  // of the options kept
  bool truncated_ = false;
};

StageProgram::StageProgram(const PipelineProblem& problem, std::size_t index, int count, int entry,
                           int last, std::vector<std::int32_t> options)
    : whole_(problem), stage_(index), entry_(entry), names_(std::move(options)) {
  const PipelineStage& stage = problem.stages[index];
  const LayerProblem& all = stage.layers;
  problem_ = {.layers = count,
              .options = {},
              .layouts = 0,
              .transition_ps = {},
              .entry_ps = {},
              .exit_ps = {},
              .transient_floor_bytes = all.transient_floor_bytes,
              .front_transient_bytes = all.front_transient_bytes,
              .front_forward_bytes = all.front_forward_bytes,
              .back_neighbour_bytes = all.back_neighbour_bytes,
              .front_step_bytes = all.front_step_bytes,
              .flight = all.flight,
              .budget_bytes = all.budget_bytes,
              .check = problem.check == nullptr ? nullptr : this};
  std::vector<int> layouts;  // kept, in the stage's numbers
  std::vector<std::int32_t> given = std::move(names_);
  names_.clear();
  for (const std::int32_t name : given) {
    LayerOption option = all.options[as_index(name)];
    const auto known = std::ranges::find(layouts, option.layout);
    if (known == layouts.end() && layouts.size() == as_index(kMaxLayouts)) {
      truncated_ = true;
      continue;
    }
    if (known == layouts.end()) layouts.push_back(option.layout);
    names_.push_back(name);
    option.layout = as_int(std::ranges::find(layouts, option.layout) - layouts.begin());
    problem_.options.push_back(option);
  }
  problem_.layouts = as_int(layouts.size());
  if (layouts.empty()) return;
  const auto change = [&](int from, int to) {
    return from == to ? 0 : problem.change_ps(index, from, to);
  };
  for (const int from : layouts) {
    for (const int to : layouts) problem_.transition_ps.push_back(change(from, to));
  }
  const auto of = [](const std::vector<std::int64_t>& values, int layout) {
    return values.empty() ? 0 : values[as_index(layout)];
  };
  for (const int l : layouts) {
    problem_.entry_ps.push_back(entry < 0 ? of(all.entry_ps, l)
                                          : of(stage.receive_ps, entry) + change(entry, l));
    std::int64_t& exit = problem_.exit_ps.emplace_back(kForbidden);
    if (last < 0) exit = of(all.exit_ps, l);
    if (l == last) exit = of(stage.return_ps, l);
  }
  if (entry >= 0) problem_.budget_bytes -= of(stage.arrival_bytes, entry);
  if (last >= 0) problem_.budget_bytes -= of(stage.departure_bytes, last);
}

std::vector<std::int32_t> StageProgram::named(const std::vector<std::int32_t>& sequence) const {
  std::vector<std::int32_t> result;
  result.reserve(sequence.size());
  for (const std::int32_t position : sequence) result.push_back(names_[as_index(position)]);
  return result;
}

class PipelineSearch {
 public:
  PipelineSearch(const PipelineProblem& problem, std::int64_t cutoff, Effort& effort)
      : problem_(problem), bound_(problem), cutoff_(cutoff), effort_(effort) {}

  std::optional<PipelineAnswer> quick() {
    if (bound_.tighten(cutoff_, kQuickSteps)) incumbents({.states = 400, .layouts = 1});
    return std::move(best_);
  }

  std::optional<PipelineAnswer> solve() {
    if (!bound_.tighten(cutoff_)) return std::nullopt;
    incumbents({.states = 2000, .layouts = 4});
    if (best_ && !bound_.tighten(cutoff_)) return std::move(best_);
    std::vector<Cell> cells{{-1, 0, {0}}};
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
    int layout = -1;
    int layers = 0;
    std::vector<std::int32_t> labels;
  };

  [[nodiscard]] bool last_stage(std::size_t i) const { return i + 1 == problem_.stages.size(); }
  [[nodiscard]] int layout_of(std::size_t stage, std::int32_t option) const {
    return problem_.stages[stage].layers.options[as_index(option)].layout;
  }
  [[nodiscard]] std::int64_t constant_of(std::size_t i, int last) const {
    const PipelineStage& stage = problem_.stages[i];
    return stage.steady_ps + stage.once_ps +
           (stage.send_ps.empty() ? 0 : stage.send_ps[as_index(last)]);
  }

  // of the ascent: finer ones change hardly any partition
  static constexpr std::int64_t kQuickSteps = 64;
  /// How hard to look for a first answer: states of a stage's layer program, layouts that have an
  /// answer.
  struct Quick {
    std::uint64_t states;
    std::size_t layouts;
  };
  /// Answers with one layout everywhere, under the partition that the bound likes: quick upper
  /// bounds.
  void incumbents(const Quick& quick) {
    const std::vector<int> counts = bound_.partition();
    const PipelineStage& first = problem_.stages[0];  // holds the most micro-batches
    std::map<int, PipelineStage> by_layout;
    for (const std::int32_t o : bound_.options(0, counts[0])) {
      const LayerOption& option = first.layers.options[as_index(o)];
      by_layout[option.layout].layers.options.push_back(option);
    }
    std::vector<std::pair<__int128, int>> layouts;  // by what they cost alone, within memory
    for (auto& [layout, stage] : by_layout) {
      stage.layers.budget_bytes = first.layers.budget_bytes;
      stage.layers.transient_floor_bytes = first.layers.transient_floor_bytes;
      StageRelaxation alone(stage);
      alone.weigh(bound_.weights(0));
      const __int128 value = alone.at(counts[0]).bound;
      if (value < kNoAnswer) layouts.emplace_back(value, layout);
    }
    std::ranges::sort(layouts);
    std::size_t found = 0;
    for (const auto& [value, layout] : layouts) {
      if (found >= quick.layouts) break;
      found += uniform(layout, counts, quick.states) ? 1 : 0;
    }
  }
  bool uniform(int layout, const std::vector<int>& counts, std::uint64_t states) {
    PipelineAnswer answer;
    std::int64_t slowest = 0, sum = 0;
    for (std::size_t i = 0; i < problem_.stages.size(); ++i) {
      const PipelineStage& stage = problem_.stages[i];
      std::vector<std::int32_t> options = bound_.options(i, counts[i]);
      std::erase_if(options, [&](std::int32_t o) { return layout_of(i, o) != layout; });
      StageProgram program(problem_, i, counts[i], i == 0 ? -1 : layout,
                           last_stage(i) ? -1 : layout, std::move(options));
      if (!program.possible()) return false;
      Effort some{.limit = states};
      Bounded stage_answer = solve_layers(program.problem(), bound_.weights(i), kNoAnswer, some);
      effort_.states += some.states;
      if (!stage_answer.answer) return false;
      stage_answer.answer->sequence = program.named(stage_answer.answer->sequence);
      slowest = std::max(slowest, stage_answer.answer->steady_ps + stage.steady_ps);
      sum += stage_answer.answer->steady_ps + stage_answer.answer->once_ps + constant_of(i, layout);
      answer.stages.push_back(std::move(*stage_answer.answer));
    }
    answer.cost_ps = sum + (problem_.micro_batches - 1) * slowest;
    offer(std::move(answer));
    return true;
  }
  void offer(PipelineAnswer answer) {
    if (answer.cost_ps >= cutoff_) return;
    cutoff_ = answer.cost_ps;
    best_ = std::move(answer);
  }

  std::vector<Cell> advance(std::size_t i, const std::vector<Cell>& before) {
    std::vector<Cell> after;
    for (int count = bound_.counts(i).fewest(); count <= bound_.counts(i).most(); ++count) {
      const std::vector<std::int32_t> options = bound_.options(i, count);
      std::vector<int> ends{-1};
      if (!last_stage(i)) {
        ends.clear();
        for (const std::int32_t o : options) ends.push_back(layout_of(i, o));
        std::ranges::sort(ends);
        ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      }
      for (const Cell& from : before) {
        const int layers = from.layers + count;
        if (layers > problem_.layers || bound_.with_rest(0, 0, i + 1, layers) >= kForbidden)
          continue;
        for (const int last : ends) {
          const std::vector<Label> labels = extend(i, from, count, last, options);
          if (!labels.empty()) merge(after, last, layers, labels);
        }
      }
    }
    return after;
  }

  std::vector<Label> extend(std::size_t i, const Cell& from, int count, int last,
                            const std::vector<std::int32_t>& options) {
    std::vector<Label> result;
    const PipelineStage& stage = problem_.stages[i];
    const std::int64_t constant = constant_of(i, last);
    if (constant >= kForbidden) return result;
    FrontierLimits limits{0, 0, -kNoAnswer};
    for (const std::int32_t id : from.labels) {
      const Label& label = pool_[as_index(id)];
      const FrontierLimits one =
          bound_.limits(i, from.layers, count, label.slowest_ps, label.sum_ps, constant, cutoff_);
      limits = {one.steady_ps, std::max(limits.total_ps, one.total_ps),
                std::max(limits.weighted, one.weighted)};
    }
    if (limits.total_ps <= 0 || limits.steady_ps < 0) return result;
    StageProgram program(problem_, i, count, from.layout, last, options);
    effort_.undecided = effort_.undecided || program.truncated();
    if (!program.possible() || layer_bound(program.problem(), {1, 1}).value >= limits.total_ps)
      return result;
    const auto frontier = static_cast<std::int32_t>(frontiers_.size());
    frontiers_.push_back(points_of(i, program, limits));
    for (const std::int32_t id : from.labels) {
      const Label label = pool_[as_index(id)];
      for (std::size_t k = 0; k < frontiers_.back().size(); ++k) {
        const LayerAnswer& point = frontiers_.back()[k];
        const Label next{std::max(label.slowest_ps, point.steady_ps + stage.steady_ps),
                         label.sum_ps + point.steady_ps + point.once_ps + constant, id, frontier,
                         static_cast<std::int32_t>(k)};
        if (bound_.with_rest(next.slowest_ps, next.sum_ps, i + 1, from.layers + count) < cutoff_ &&
            effort_.spend())
          result.push_back(next);
      }
    }
    return result;
  }

  std::vector<LayerAnswer> points_of(std::size_t i, StageProgram& program,
                                     const FrontierLimits& limits) {
    const std::int64_t m = problem_.micro_batches;
    std::vector<LayerAnswer> points;
    if (m > 1 && problem_.stages.size() > 1) {
      points = layer_frontier(program.problem(), bound_.weights(i), limits, effort_);
    } else {
      // One stage, or one micro-batch: one point is enough.
      const PipelineStage& stage = problem_.stages[i];
      const __int128 cutoff = problem_.stages.size() > 1 ? static_cast<__int128>(limits.total_ps)
                                                         : static_cast<__int128>(cutoff_) -
                                                               m * stage.steady_ps - stage.once_ps;
      Bounded best = solve_layers(program.problem(), {m, 1}, cutoff, effort_);
      if (best.answer) points.push_back(std::move(*best.answer));
    }
    for (LayerAnswer& point : points) point.sequence = program.named(point.sequence);
    return points;
  }

  void merge(std::vector<Cell>& cells, int layout, int layers, const std::vector<Label>& labels) {
    auto cell = std::ranges::find_if(
        cells, [&](const Cell& c) { return c.layout == layout && c.layers == layers; });
    if (cell == cells.end()) cell = cells.insert(cells.end(), Cell{layout, layers, {}});
    for (const Label& label : labels) {
      const bool beaten = std::ranges::any_of(cell->labels, [&](std::int32_t id) {
        const Label& kept = pool_[as_index(id)];
        return kept.slowest_ps <= label.slowest_ps && kept.sum_ps <= label.sum_ps;
      });
      if (beaten) continue;
      std::erase_if(cell->labels, [&](std::int32_t id) {
        const Label& kept = pool_[as_index(id)];
        return label.slowest_ps <= kept.slowest_ps && label.sum_ps <= kept.sum_ps;
      });
      cell->labels.push_back(static_cast<std::int32_t>(pool_.size()));
      pool_.push_back(label);
    }
  }

  void finish(const Cell& cell) {
    for (const std::int32_t id : cell.labels) {
      const Label& label = pool_[as_index(id)];
      PipelineAnswer answer{label.sum_ps + (problem_.micro_batches - 1) * label.slowest_ps, {}};
      if (answer.cost_ps >= cutoff_) continue;
      for (const Label* l = &label; l->parent >= 0; l = &pool_[as_index(l->parent)]) {
        answer.stages.push_back(frontiers_[as_index(l->frontier)][as_index(l->point)]);
      }
      std::ranges::reverse(answer.stages);
      offer(std::move(answer));
    }
  }

  const PipelineProblem& problem_;
  PipelineBound bound_;
  std::int64_t cutoff_;
  Effort& effort_;
  std::vector<Label> pool_;
  std::vector<std::vector<LayerAnswer>> frontiers_;
  std::optional<PipelineAnswer> best_;
};

}  // namespace

std::int64_t pipeline_bound(const PipelineProblem& problem) {
  return PipelineBound(problem).value();
}

std::optional<PipelineAnswer> quick_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps,
                                             Effort& effort) {
  ORRERY_CHECK(!problem.stages.empty() && problem.layers >= 1 && problem.micro_batches >= 1);
  return PipelineSearch(problem, cutoff_ps, effort).quick();
}

std::optional<PipelineAnswer> solve_pipeline(const PipelineProblem& problem, std::int64_t cutoff_ps,
                                             Effort& effort) {
  ORRERY_CHECK(!problem.stages.empty() && problem.layers >= 1 && problem.micro_batches >= 1);
  return PipelineSearch(problem, cutoff_ps, effort).solve();
}

}  // namespace orrery::search
