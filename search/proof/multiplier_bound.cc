#include "search/proof/multiplier_bound.h"

#include <algorithm>
#include <limits>

#include "base/numbers.h"
#include "search/proof/exact.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;

enum class Form { kMean, kOnce, kCycle };  // the header's two, the second in its two terms
/// V_s of one price: of the stage's own parts, and of the layers before.
struct Line {
  Exact fixed = 0;
  std::vector<Exact> layers;
};

/// L of one problem.
class Bound {
 public:
  Bound(costmodel::LayerCosts& costs, StageParts& parts, const LayerStrategy& vocabulary,
        const ProblemMultipliers& k, const costmodel::MemoryLimit& budget, bool even)
      : costs_(costs), parts_(parts), k_(k), budget_(budget), even_(even) {
    for (int s = 0; s < parts.stages(); ++s) own_.push_back(parts.own(s, vocabulary));
  }

  std::optional<std::int64_t> value() {
    if (!usable()) return std::nullopt;
    const Exact mean = over_cuts(Form::kMean),
                split = exact_.plus(over_cuts(Form::kOnce), exact_.times(parts_.micro_batches() - 1,
                                                                         over_cuts(Form::kCycle)));
    if (exact_.overflow) return std::nullopt;
    return static_cast<std::int64_t>(
        std::clamp<Exact>(round_up(std::max(mean, split), k_.unit), 0, kBeyondAnyCost));
  }
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  /// No negative numbers, weights of one at most, as many as there are ranks.
  [[nodiscard]] bool usable() const {
    Exact sum = 0;
    bool fine = k_.unit >= 1 && k_.weights.size() == as_index(parts_.stages()) &&
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
  Exact over_cuts(Form form) {
    const auto layers = as_index(parts_.layers()), stages = as_index(parts_.stages());
    std::vector<std::optional<Exact>> rest(layers + 1);  // [layers before]
    rest.back() = 0;
    for (int s = parts_.stages(); s-- > 0;) {
      std::vector<std::optional<Exact>> with(rest.size());
      const std::vector<Line> lines = lines_of(form, s);
      for (std::size_t n = even_ ? layers / stages : 1;
           n <= (even_ ? layers / stages : layers - stages + 1); ++n) {
        std::optional<Exact> value;
        for (std::size_t before = 0, after = n; after < rest.size(); ++before, ++after) {
          if (!rest[after]) continue;
          // Ranges of as many equal layers cost the same.
          if (!value || !parts_.one_kind()) value = of_range(lines, before, after);
          const Exact all = form == Form::kCycle ? std::max(*value, *rest[after])
                                                 : exact_.plus(*value, *rest[after]);
          if (!with[before] || all < *with[before]) with[before] = all;
        }
      }
      rest = std::move(with);
    }
    return rest.front().value();  // every family has cuts
  }
  Exact of_range(const std::vector<Line>& lines, std::size_t from, std::size_t to) {
    std::optional<Exact> value;
    looks_ += lines.size();
    for (const Line& l : lines)
      value = std::max(
          value, std::optional(exact_.plus(l.fixed, exact_.plus(l.layers[to], -l.layers[from]))));
    return value.value();
  }

  std::vector<Line> lines_of(Form form, int s) {
    const auto stage = as_index(s);
    const Exact alpha = form == Form::kCycle ? 0 : k_.unit;
    Exact beta = 0;
    if (form == Form::kCycle) beta = k_.unit;
    if (form == Form::kMean) beta = exact_.times(parts_.micro_batches() - 1, k_.weights[stage]);
    std::vector<std::int64_t> prices = k_.prices[stage];
    prices.push_back(0);
    const model::ModelSpec& model = costs_.cost().model();
    std::vector<Line> lines;
    for (const std::int64_t price : prices) {
      const auto value = [&](const PartCost& t) {
        return exact_.plus(
            exact_.plus(exact_.times(alpha, t.once_ps), exact_.times(beta, t.steady_ps)),
            exact_.times(price, t.bytes));
      };
      std::vector<Exact> least;  // [kind]
      for (int k = 0; k < model.kinds(); ++k) {
        least.push_back(value(parts_.layer(s, k).front()));
        looks_ += parts_.layer(s, k).size();
        for (const PartCost& t : parts_.layer(s, k))
          least.back() = std::min(least.back(), value(t));
      }
      Line l{exact_.plus(value(own_[stage]), -exact_.times(price, parts_.limit_of(s, budget_))),
             {0}};
      for (int layer = 0; layer < parts_.layers(); ++layer)
        l.layers.push_back(exact_.plus(l.layers.back(), least[as_index(model.kind_of(layer))]));
      lines.push_back(std::move(l));
    }
    return lines;
  }

  costmodel::LayerCosts& costs_;
  StageParts& parts_;
  const ProblemMultipliers& k_;
  const costmodel::MemoryLimit& budget_;
  bool even_;
  std::vector<PartCost> own_;  // [stage]
  Checked exact_;
  std::uint64_t looks_ = 0;
};

}  // namespace

FamilyBound::FamilyBound(costmodel::LayerCosts& costs, const Space& space, const Family& family,
                         costmodel::MemoryLimit budget)
    : costs_(costs),
      family_(family),
      budget_(std::move(budget)),
      even_stages_(space.even_stages),
      strategies_(stated_strategies(space, family, costs.cost())) {
  // as long as to list the strategies of a kind, and to price one of them on a stage
  constexpr std::uint64_t kLooksOfKind = 500'000, kLooksOfPart = 50;
  if (strategies_.empty()) return;
  parts_.emplace(costs, family, strategies_);
  for (const std::vector<LayerStrategy>& of_kind : strategies_)
    looks_ += kLooksOfKind + kLooksOfPart * of_kind.size() * as_index(family.ranks);
}

std::optional<std::int64_t> FamilyBound::of(const LayerStrategy& vocabulary,
                                            const ProblemMultipliers& k) {
  if (!parts_) return kBeyondAnyCost;
  Bound bound(costs_, *parts_, vocabulary, k, budget_, even_stages_);
  const std::optional<std::int64_t> value = bound.value();
  looks_ += bound.looks();
  return value;
}

bool FamilyBound::holds(const plan::Plan& plan) const {
  const plan::Plan& f = family_.frame;
  if (plan.pipeline_degree() != family_.ranks || plan.virtual_stages != f.virtual_stages ||
      plan.micro_batches != f.micro_batches || plan.schedule != f.schedule)
    return false;
  std::int64_t layer = 0;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) {
      for (int i = 0; i < run.count; ++i, ++layer) {
        const auto kind = as_index(costs_.cost().model().kind_of(layer));
        if (std::ranges::find(strategies_[kind], run.strategy) == strategies_[kind].end())
          return false;
      }
    }
  }
  return true;
}

SpaceBound space_bound(costmodel::LayerCosts& costs, const SpaceProof& proof,
                       const plan::Plan& plan, const costmodel::MemoryLimit& budget) {
  SpaceBound result{.bound_ps = kBeyondAnyCost};
  for (const Family& family : stated_families(proof.space, plan, costs.cost())) {
    FamilyBound bound(costs, proof.space, family, budget);
    if (!bound.has_plans()) continue;
    const bool own = bound.holds(plan);
    ProblemMultipliers plain;
    plain.unit = family.ranks;
    plain.weights.assign(as_index(family.ranks), 1);
    plain.prices.resize(plain.weights.size());
    for (const LayerStrategy& vocabulary : stated_vocabularies(proof.space, family, costs.cost())) {
      result.holds_plan = result.holds_plan || (own && vocabulary == plan.vocabulary);
      std::int64_t best = bound.of(vocabulary, plain).value_or(0);
      for (const ProblemMultipliers& k : proof.problems) {
        // good multipliers of one schedule are not bad for another
        if (k.stages != family.ranks || k.virtual_stages != 1 ||
            k.micro_batches != family.frame.micro_batches || k.vocabulary != vocabulary)
          continue;
        const auto proved = bound.of(vocabulary, k);
        result.malformed = result.malformed || !proved;
        best = std::max(best, proved.value_or(0));
      }
      result.bound_ps = std::min(result.bound_ps, best);
    }
  }
  return result;
}

}  // namespace orrery::search
