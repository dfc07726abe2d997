#include "search/programs/pipeline_multipliers.h"

#include <algorithm>
#include <utility>

#include "base/numbers.h"
#include "search/programs/convex_cost.h"
#include "search/programs/pipeline_bound.h"

namespace orrery::search {
namespace {

/// Shares of a stage are of a few hundredths; prices need more digits.
constexpr std::int64_t kDigits = std::int64_t{1} << 20;

std::int64_t least(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : std::ranges::min(values);
}

/// One stage under given weights: V_i of the header.
class StageDual {
 public:
  StageDual(const PipelineStage& stage, StageRelaxation& relaxation, const Weights& weights) {
    relaxation.weigh(weights);
    for (std::int64_t count = stage.fewest; count <= stage.most;) {
      const StageRelaxation::Price p = relaxation.price(as_int(count));
      const __int128 rounded = p.feasible ? (p.time * kDigits + p.bytes / 2) / p.bytes : kRay;
      prices_.push_back(static_cast<std::int64_t>(std::min<__int128>(rounded, kRay)));
      if (!p.feasible) break;  // nor do more layers fit
      count = std::int64_t{1} + relaxation.alike_up_to(as_int(count));
    }
    normalize(prices_);
    std::vector<Line> lines{line(stage, relaxation, weights, 0)};
    for (const std::int64_t price : prices_)
      lines.push_back(line(stage, relaxation, weights, price));
    value_ = ConvexCost(lines, stage.fewest, stage.most);
  }
  /// Ascending, each once; 0 is known to all.
  static void normalize(std::vector<std::int64_t>& prices) {
    std::ranges::sort(prices);
    prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
    std::erase(prices, 0);
  }
  [[nodiscard]] const std::vector<std::int64_t>& prices() const { return prices_; }
  [[nodiscard]] const ConvexCost& value() const { return value_; }

 private:
  static Line line(const PipelineStage& stage, const StageRelaxation& relaxation, const Weights& w,
                   std::int64_t price) {
    const auto scaled = [&](std::int64_t steady, std::int64_t once) {
      return (static_cast<__int128>(w.steady) * steady + static_cast<__int128>(w.once) * once) *
             kDigits;
    };
    Line l{.constant = scaled(stage.steady_ps, stage.once_ps + least(stage.send_ps)) -
                       static_cast<__int128>(price) * relaxation.capacity_bytes()};
    bool first = true;
    for (const LayerOption& o : stage.layers.options) {
      const __int128 cost =
          scaled(o.steady_ps, o.once_ps) + static_cast<__int128>(price) * o.memory_bytes;
      l.slope = first ? cost : std::min(l.slope, cost);
      first = false;
    }
    return l;
  }

  std::vector<std::int64_t> prices_;
  ConvexCost value_;
};

std::int64_t picoseconds(__int128 value, std::int64_t unit) {
  return static_cast<std::int64_t>(std::min<__int128>(ceil_divide(value, unit), kForbidden));
}

/// Weights w_i = share / unit.
struct Shares {
  std::int64_t unit = 1;
  std::vector<std::int64_t> of_stage;
};

/// The mean form.
PipelineMultipliers mean_form(const PipelineProblem& problem,
                              std::vector<StageRelaxation>& relaxations, const Shares& shares) {
  const std::int64_t unit = shares.unit, m = problem.micro_batches;
  PipelineMultipliers result{.unit = unit * kDigits, .weights = {}, .prices = {}};
  std::vector<ConvexCost> stages;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const std::int64_t share = shares.of_stage[i];
    const StageDual dual(problem.stages[i], relaxations[i], Weights{unit + (m - 1) * share, unit});
    stages.push_back(dual.value());
    result.weights.push_back(share * kDigits);
    result.prices.push_back(dual.prices());
  }
  result.bound_ps = picoseconds(LeastSum(stages).value(problem.layers), result.unit);
  return result;
}

/// The two terms apart.
PipelineMultipliers split_form(const PipelineProblem& problem,
                               std::vector<StageRelaxation>& relaxations) {
  PipelineMultipliers result{.unit = kDigits,
                             .weights = std::vector<std::int64_t>(problem.stages.size(), 0),
                             .prices = {}};
  std::vector<ConvexCost> once, cycle;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const StageDual all(problem.stages[i], relaxations[i], Weights{1, 1}),
        one(problem.stages[i], relaxations[i], Weights{1, 0});
    once.push_back(all.value());
    cycle.push_back(one.value());
    result.prices.push_back(all.prices());
    result.prices.back().insert(result.prices.back().end(), one.prices().begin(),
                                one.prices().end());
    StageDual::normalize(result.prices.back());
  }
  const __int128 slowest = least_maximum(cycle, problem.layers);
  const __int128 sum = LeastSum(once).value(problem.layers);
  // A ray is beyond any cost once, too.
  const __int128 beyond = static_cast<__int128>(kForbidden) * kDigits;
  result.bound_ps = picoseconds(
      std::min(sum, beyond) + (problem.micro_batches - 1) * std::min(slowest, beyond), kDigits);
  return result;
}

}  // namespace

PipelineMultipliers pipeline_multipliers(const PipelineProblem& problem) {
  const auto n = static_cast<std::int64_t>(problem.stages.size());
  Shares shares{n, std::vector<std::int64_t>(problem.stages.size(), 1)};
  // One stage, or one micro-batch: there is no slowest stage to weigh.
  if (n == 1 || problem.micro_batches == 1) {
    std::vector<StageRelaxation> relaxations(problem.stages.begin(), problem.stages.end());
    return mean_form(problem, relaxations, shares);
  }
  PipelineBound bound(problem);
  if (bound.tighten(kForbidden)) {
    shares = {bound.unit(), {}};
    for (std::size_t i = 0; i < problem.stages.size(); ++i) {
      shares.of_stage.push_back((bound.weights(i).steady - bound.unit()) /
                                (problem.micro_batches - 1));
    }
  }
  std::vector<StageRelaxation> relaxations = std::move(bound).relaxations();
  PipelineMultipliers mean = mean_form(problem, relaxations, shares);
  PipelineMultipliers split = split_form(problem, relaxations);
  return split.bound_ps > mean.bound_ps ? split : mean;
}

}  // namespace orrery::search
