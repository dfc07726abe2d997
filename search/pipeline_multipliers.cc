#include "search/pipeline_multipliers.h"

#include <algorithm>

#include "search/pipeline_bound.h"

namespace orrery::search {
namespace {

/// Shares of a stage are of a few hundredths; prices need more digits.
constexpr std::int64_t kDigits = std::int64_t{1} << 20;

std::int64_t least(const std::vector<std::int64_t>& values) { return values.empty() ? 0 : std::ranges::min(values); }

/// One stage under given weights: V_i of the header.
class StageDual {
 public:
  StageDual(const PipelineStage& stage, const Weights& weights) : stage_(stage), relaxation_(stage), weights_(weights) {
    relaxation_.weigh(weights_);
    for (const int count : stage.counts) {
      const StageRelaxation::Price p = relaxation_.price(count);
      const __int128 rounded = p.feasible ? (p.time * kDigits + p.bytes / 2) / p.bytes : kRay;
      prices_.push_back(static_cast<std::int64_t>(std::min<__int128>(rounded, kRay)));
    }
    std::ranges::sort(prices_);
    prices_.erase(std::unique(prices_.begin(), prices_.end()), prices_.end());
    std::erase(prices_, 0);
    lines_.push_back(line(0));
    for (const std::int64_t price : prices_) lines_.push_back(line(price));
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
  [[nodiscard]] Line line(std::int64_t price) const {
    const auto scaled = [&](std::int64_t steady, std::int64_t once) {
      return (static_cast<__int128>(weights_.steady) * steady + static_cast<__int128>(weights_.once) * once) * kDigits;
    };
    Line l{.constant = scaled(stage_.steady_ps + relaxation_.path_ps(), 0) + scaled(0, stage_.once_ps + least(stage_.send_ps)) -
                       static_cast<__int128>(price) * relaxation_.capacity_bytes()};
    bool first = true;
    for (const LayerOption& o : stage_.layers.options) {
      const __int128 cost = scaled(o.steady_ps, o.once_ps) + static_cast<__int128>(price) * o.memory_bytes;
      l.slope = first ? cost : std::min(l.slope, cost);
      first = false;
    }
    return l;
  }

  const PipelineStage& stage_;
  StageRelaxation relaxation_;
  Weights weights_;
  std::vector<std::int64_t> prices_;
  std::vector<Line> lines_;
};

/// Least Σ values[stage][count] over counts that add up to `layers`.
__int128 best_partition(const PipelineProblem& problem, const std::vector<StageDual>& stages) {
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
        if (behind < kNever) with[k] = std::min(with[k], value + behind);
      }
    }
    rest = std::move(with);
  }
  return rest.front();
}

}  // namespace

PipelineMultipliers pipeline_multipliers(const PipelineProblem& problem) {
  PipelineBound bound(problem);
  const bool fits = bound.tighten(kForbidden);
  const auto n = static_cast<std::int64_t>(problem.stages.size());
  const std::int64_t unit = fits ? bound.unit() : n, m = problem.micro_batches;
  PipelineMultipliers result{.unit = unit * kDigits, .weights = {}, .prices = {}};
  std::vector<StageDual> stages;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const std::int64_t share = fits && m > 1 ? (bound.weights(i).steady - unit) / (m - 1) : unit / n;
    stages.emplace_back(problem.stages[i], Weights{unit + (m - 1) * share, unit});
    result.weights.push_back(share * kDigits);
    result.prices.push_back(stages.back().prices());
  }
  const __int128 value = ceil_divide(best_partition(problem, stages), result.unit);
  result.bound_ps = static_cast<std::int64_t>(std::min<__int128>(value, kForbidden));
  return result;
}

}  // namespace orrery::search
