#include "search/pipeline_multipliers.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "search/pipeline_bound.h"

namespace orrery::search {
namespace {

/// Shares of a stage are of a few hundredths; prices need more digits.
constexpr std::int64_t kDigits = std::int64_t{1} << 20;

std::int64_t least(const std::vector<std::int64_t>& values) { return values.empty() ? 0 : std::ranges::min(values); }

/// One stage under given weights: V_i of the header.
class StageDual {
 public:
  StageDual(const PipelineStage& stage, StageRelaxation& relaxation, const Weights& weights) {
    relaxation.weigh(weights);
    for (const int count : stage.counts) {
      const StageRelaxation::Price p = relaxation.price(count);
      const __int128 rounded = p.feasible ? (p.time * kDigits + p.bytes / 2) / p.bytes : kRay;
      prices_.push_back(static_cast<std::int64_t>(std::min<__int128>(rounded, kRay)));
    }
    normalize(prices_);
    for (const std::int64_t price : prices_) lines_.push_back(line(stage, relaxation, weights, price));
    lines_.push_back(line(stage, relaxation, weights, 0));
  }
  /// Ascending, each once; 0 is known to all.
  static void normalize(std::vector<std::int64_t>& prices) {
    std::ranges::sort(prices);
    prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
    std::erase(prices, 0);
  }
  [[nodiscard]] const std::vector<std::int64_t>& prices() const { return prices_; }
  [[nodiscard]] __int128 value(int count) const {
    __int128 best = lines_.front().constant + lines_.front().slope * count;
    for (const Line& l : lines_) best = std::max(best, l.constant + l.slope * count);
    return best;
  }

 private:
  struct Line {
    __int128 constant = 0, slope = 0;
  };
  static Line line(const PipelineStage& stage, const StageRelaxation& relaxation, const Weights& w, std::int64_t price) {
    const auto scaled = [&](std::int64_t steady, std::int64_t once) {
      return (static_cast<__int128>(w.steady) * steady + static_cast<__int128>(w.once) * once) * kDigits;
    };
    Line l{.constant = scaled(stage.steady_ps, stage.once_ps + least(stage.send_ps)) - static_cast<__int128>(price) * relaxation.capacity_bytes()};
    bool first = true;
    for (const LayerOption& o : stage.layers.options) {
      const __int128 cost = scaled(o.steady_ps, o.once_ps) + static_cast<__int128>(price) * o.memory_bytes;
      l.slope = first ? cost : std::min(l.slope, cost);
      first = false;
    }
    return l;
  }

  std::vector<std::int64_t> prices_;
  std::vector<Line> lines_;
};

/// Least of the stages' values joined (their sum, their largest) over counts that add up to `layers`.
template <class Join>
__int128 best_partition(const PipelineProblem& problem, const std::vector<StageDual>& stages, Join join) {
  const auto width = static_cast<std::size_t>(problem.layers) + 1;
  constexpr __int128 kNever = static_cast<__int128>(1) << 120;
  std::vector<__int128> rest(width, kNever);
  rest.back() = 0;
  for (std::size_t i = stages.size(); i-- > 0;) {
    std::vector<__int128> with(width, kNever);
    for (const int count : problem.stages[i].counts) {
      const __int128 value = stages[i].value(count);
      for (std::size_t k = 0; k + static_cast<std::size_t>(count) < width; ++k) {
        const __int128 behind = rest[k + static_cast<std::size_t>(count)];
        if (behind < kNever) with[k] = std::min(with[k], join(value, behind));
      }
    }
    rest = std::move(with);
  }
  return rest.front();
}

std::int64_t picoseconds(__int128 value, std::int64_t unit) {
  return static_cast<std::int64_t>(std::min<__int128>(ceil_divide(value, unit), kForbidden));
}

/// The mean form, by the weights that the ascent of PipelineBound ends with.
PipelineMultipliers mean_form(const PipelineProblem& problem, std::vector<StageRelaxation>& relaxations) {
  const auto n = static_cast<std::int64_t>(problem.stages.size());
  const std::int64_t m = problem.micro_batches;
  std::optional<PipelineBound> bound;  // where there is a slowest stage to weigh
  if (n > 1 && m > 1) bound.emplace(problem);
  const bool weighed = bound && bound->tighten(kForbidden);
  const std::int64_t unit = weighed ? bound->unit() : n;
  PipelineMultipliers result{.unit = unit * kDigits, .weights = {}, .prices = {}};
  std::vector<StageDual> stages;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const std::int64_t share = weighed ? (bound->weights(i).steady - unit) / (m - 1) : unit / n;
    stages.emplace_back(problem.stages[i], relaxations[i], Weights{unit + (m - 1) * share, unit});
    result.weights.push_back(share * kDigits);
    result.prices.push_back(stages.back().prices());
  }
  result.bound_ps = picoseconds(best_partition(problem, stages, std::plus<>()), result.unit);
  return result;
}

/// The two terms apart.
PipelineMultipliers split_form(const PipelineProblem& problem, std::vector<StageRelaxation>& relaxations) {
  PipelineMultipliers result{.unit = kDigits, .weights = std::vector<std::int64_t>(problem.stages.size(), 0), .prices = {}};
  std::vector<StageDual> once, cycle;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    once.emplace_back(problem.stages[i], relaxations[i], Weights{1, 1});
    cycle.emplace_back(problem.stages[i], relaxations[i], Weights{1, 0});
    result.prices.push_back(once.back().prices());
    result.prices.back().insert(result.prices.back().end(), cycle.back().prices().begin(), cycle.back().prices().end());
    StageDual::normalize(result.prices.back());
  }
  const __int128 slowest = best_partition(problem, cycle, [](__int128 a, __int128 b) { return std::max(a, b); });
  const __int128 sum = best_partition(problem, once, std::plus<>());
  // A ray is beyond any cost once, too.
  const __int128 beyond = static_cast<__int128>(kForbidden) * kDigits;
  result.bound_ps = picoseconds(std::min(sum, beyond) + (problem.micro_batches - 1) * std::min(slowest, beyond), kDigits);
  return result;
}

}  // namespace

PipelineMultipliers pipeline_multipliers(const PipelineProblem& problem) {
  std::vector<StageRelaxation> relaxations(problem.stages.begin(), problem.stages.end());
  PipelineMultipliers mean = mean_form(problem, relaxations);
  if (problem.stages.size() == 1 || problem.micro_batches == 1) return mean;
  PipelineMultipliers split = split_form(problem, relaxations);
  return split.bound_ps > mean.bound_ps ? split : mean;
}

}  // namespace orrery::search
