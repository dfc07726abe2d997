#include "search/proof/multiplier_bound.h"

#include <algorithm>
#include <limits>

#include "search/proof/exact.h"
#include "search/proof/stage_parts.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;

enum class Form { kMean, kOnce, kCycle };  // the header's two, the second in its two terms
struct Line {
  Exact fixed = 0, slope = 0;  // of V_s(n) for one price
};

/// L of one problem.
class Bound {
 public:
  Bound(StageParts& parts, const LayerStrategy& vocabulary, const ProblemMultipliers& k,
        std::int64_t budget, bool even)
      : parts_(parts), k_(k), budget_(budget), even_(even) {
    for (int s = 0; s < parts.stages(); ++s) own_.push_back(parts.own(s, vocabulary));
  }

  std::optional<std::int64_t> value() {
    if (!usable()) return std::nullopt;
    const Exact mean = over_counts(Form::kMean),
                split = exact_.plus(over_counts(Form::kOnce),
                                    exact_.times(parts_.cycles(), over_counts(Form::kCycle)));
    if (exact_.overflow) return std::nullopt;
    return static_cast<std::int64_t>(
        std::clamp<Exact>(round_up(std::max(mean, split), k_.unit), 0, kBeyondAnyCost));
  }

 private:
  /// No negative numbers, weights of one at most, as many as there are ranks.
  [[nodiscard]] bool usable() const {
    Exact sum = 0;
    bool fine = k_.unit >= 1 && k_.weights.size() == static_cast<std::size_t>(parts_.ranks()) &&
                k_.prices.size() == k_.weights.size();
    for (const std::int64_t w : k_.weights) {
      sum += w;
      fine = fine && w >= 0;
    }
    for (const auto& prices : k_.prices)
      fine = fine && std::ranges::none_of(prices, [](std::int64_t price) { return price < 0; });
    return fine && sum <= k_.unit;
  }

  /// Least Σ V_s, of kCycle least max V_s.
  Exact over_counts(Form form) {
    const int layers = parts_.layers(), stages = parts_.stages();
    if (form == Form::kCycle && parts_.virtual_stages()) return share_of_a_rank();
    // [layers before]
    std::vector<std::optional<Exact>> rest(static_cast<std::size_t>(layers) + 1);
    rest.back() = 0;
    for (int s = stages; s-- > 0;) {
      std::vector<std::optional<Exact>> with(rest.size());
      const std::vector<Line> lines = lines_of(form, s);
      for (int n = even_ ? layers / stages : 1;
           n <= (even_ ? layers / stages : layers - stages + 1); ++n) {
        std::optional<Exact> value;
        for (const Line& l : lines)
          value = std::max(value, std::optional(exact_.plus(l.fixed, exact_.times(n, l.slope))));
        for (std::size_t before = 0, after = static_cast<std::size_t>(n); after < rest.size();
             ++before, ++after) {
          if (!rest[after]) continue;
          const Exact all = form == Form::kCycle ? std::max(*value, *rest[after])
                                                 : exact_.plus(*value, *rest[after]);
          if (!with[before] || all < *with[before]) with[before] = all;
        }
      }
      rest = std::move(with);
    }
    return rest.front().value();  // every family has counts
  }

  Exact share_of_a_rank() {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int s = 0; s < parts_.stages(); ++s)
      least =
          std::min(least, std::ranges::min(parts_.layer(s), {}, &PartCost::steady_ps).steady_ps);
    return exact_.times(
        k_.unit, exact_.times((parts_.layers() + parts_.ranks() - 1) / parts_.ranks(), least));
  }

  std::vector<Line> lines_of(Form form, int s) {
    const auto rank = static_cast<std::size_t>(s % parts_.ranks());
    const Exact alpha = form == Form::kCycle ? 0 : k_.unit,
                gamma = form == Form::kMean ? k_.weights[rank] : 0;
    const Exact beta = form == Form::kCycle ? Exact{k_.unit} : exact_.times(parts_.cycles(), gamma);
    std::vector<std::int64_t> prices = k_.prices[rank];
    if (prices.empty() || !parts_.virtual_stages()) prices.push_back(0);
    // the stages of a rank share its memory, so they share its price
    if (parts_.virtual_stages()) prices.resize(1);
    std::vector<Line> lines;
    for (const std::int64_t price : prices) {
      const auto value = [&](const PartCost& t) {
        const Exact times = exact_.plus(
            exact_.times(alpha, t.once_ps),
            exact_.plus(exact_.times(beta, t.steady_ps), exact_.times(gamma, t.late_ps)));
        return exact_.plus(times, exact_.times(price, t.bytes));
      };
      const Exact paid = s < parts_.ranks() ? exact_.times(price, budget_) : 0;
      Line l{.fixed = exact_.plus(value(own_[static_cast<std::size_t>(s)]), -paid),
             .slope = value(parts_.layer(s).front())};
      for (const PartCost& t : parts_.layer(s)) l.slope = std::min(l.slope, value(t));
      lines.push_back(l);
    }
    return lines;
  }

  StageParts& parts_;
  const ProblemMultipliers& k_;
  std::int64_t budget_;
  bool even_;
  std::vector<PartCost> own_;  // [stage]
  Checked exact_;
};

}  // namespace

std::optional<std::int64_t> multiplier_bound(costmodel::LayerCosts& costs, const Space& space,
                                             const Family& family, const ProblemMultipliers& k,
                                             std::int64_t budget_bytes) {
  const std::vector<LayerStrategy> strategies = stated_strategies(space, family, costs.cost());
  if (strategies.empty()) return kBeyondAnyCost;
  StageParts parts(costs, family, strategies);
  return Bound(parts, k.vocabulary, k, budget_bytes, space.even_stages).value();
}

SpaceBound space_bound(costmodel::LayerCosts& costs, const SpaceProof& proof,
                       const plan::Plan& plan, std::int64_t budget_bytes) {
  SpaceBound result{.bound_ps = kBeyondAnyCost};
  for (const Family& family : stated_families(proof.space, plan, costs.cost())) {
    const std::vector<LayerStrategy> strategies =
        stated_strategies(proof.space, family, costs.cost());
    if (strategies.empty()) continue;
    StageParts parts(costs, family, strategies);
    const plan::Plan& f = family.frame;
    const auto stated = [&](const plan::LayerRun& run) {
      return std::ranges::find(strategies, run.strategy) != strategies.end();
    };
    const bool own = plan.pipeline_degree() == family.ranks &&
                     plan.virtual_stages == f.virtual_stages &&
                     plan.micro_batches == f.micro_batches && plan.schedule == f.schedule &&
                     std::ranges::all_of(plan.stages, [&](const plan::Stage& stage) {
                       return std::ranges::all_of(stage.runs, stated);
                     });
    ProblemMultipliers plain;
    plain.unit = family.ranks;
    plain.weights.assign(static_cast<std::size_t>(family.ranks), 1);
    plain.prices.resize(plain.weights.size());
    for (const LayerStrategy& vocabulary : stated_vocabularies(proof.space, family, costs.cost())) {
      const auto bound = [&](const ProblemMultipliers& k) {
        return Bound(parts, vocabulary, k, budget_bytes, proof.space.even_stages).value();
      };
      result.holds_plan = result.holds_plan || (own && vocabulary == plan.vocabulary);
      std::int64_t best = bound(plain).value_or(0);
      for (const ProblemMultipliers& k : proof.problems) {
        const bool same = k.stages == parts.stages() && k.virtual_stages == f.virtual_stages &&
                          k.micro_batches == f.micro_batches;
        // good multipliers of one schedule are not bad for another
        if (!same || k.vocabulary != vocabulary) continue;
        const auto proved = bound(k);
        result.malformed = result.malformed || !proved;
        best = std::max(best, proved.value_or(0));
      }
      result.bound_ps = std::min(result.bound_ps, best);
    }
  }
  return result;
}

}  // namespace orrery::search
