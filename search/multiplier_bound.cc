#include "search/multiplier_bound.h"

#include <algorithm>
#include <limits>

#include "search/exact.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;
using plan::LayerStrategy;
using plan::Schedule;

/// What something in a stage adds: o, N, d, b of the header.
struct Part {
  std::int64_t once_ps = 0, steady_ps = 0, late_ps = 0, bytes = 0;
  Part& operator+=(const Part& o) {
    once_ps += o.once_ps, steady_ps += o.steady_ps, late_ps += o.late_ps, bytes += o.bytes;
    return *this;
  }
};

/// All stages of a family, priced.
class Stages {
 public:
  Stages(costmodel::LayerCosts& costs, const Family& family, const std::vector<LayerStrategy>& strategies)
      : costs_(costs), frame_(family.frame), p_(family.ranks), devices_(family.devices), count_(p_ * frame_.virtual_stages) {
    context_ = {.precision = frame_.precision, .sequence = frame_.sequence, .micro_batch_sequences = frame_.micro_batch_sequences(),
                .micro_batches = frame_.micro_batches, .global_batch = frame_.global_batch, .stages = p_, .prefetch_depth = frame_.prefetch_depth,
                .split_backward = frame_.schedule == Schedule::kZeroBubbleH1};
    for (const LayerStrategy& l : strategies) streams_.push_back(stream(l));
    for (int s = 0; s < count_; ++s) {
      layers_.emplace_back();
      transient_.push_back(std::numeric_limits<std::int64_t>::max());
      for (std::size_t i = 0; i < strategies.size(); ++i) {
        const LayerCost& c = costs_.block(strategies[i], context_, first_rank(s), devices_);
        layers_.back().push_back(part(c, s));
        transient_.back() = std::min(transient_.back(), streams_[i] * (s + 1 < count_ ? 2 : 1) + backward_peak(c, s));
      }
      joints_.emplace_back();
      if (s > 0) joints_.back() += transfer(s - 1, s);
      if (s + 1 < count_) joints_.back() += transfer(s + 1, s);
      if (s > 0 && held(s) < frame_.micro_batches && frame_.virtual_stages == 1) joints_.back().bytes += *std::ranges::min_element(streams_);
    }
  }

  /// L of the header for one vocabulary; nothing: the claim is malformed or leaves 128 bits.
  std::optional<std::int64_t> bound(const LayerStrategy& vocabulary, const ProblemMultipliers& k, std::int64_t budget, bool even) {
    const int layers = static_cast<int>(costs_.cost().model().layers);
    Exact weights = 0;
    for (const std::int64_t w : k.weights) weights = w < 0 ? Exact{k.unit} + 1 : weights + w;
    bool usable = k.unit >= 1 && weights <= k.unit && k.weights.size() == static_cast<std::size_t>(p_) && k.prices.size() == k.weights.size();
    for (const auto& prices : k.prices) usable = usable && std::ranges::none_of(prices, [](std::int64_t price) { return price < 0; });
    if (!usable) return std::nullopt;
    Checked exact;
    std::vector<std::optional<Exact>> rest(static_cast<std::size_t>(layers) + 1);  // [layers before]
    rest.back() = 0;
    for (int s = count_; s-- > 0;) {
      std::vector<std::optional<Exact>> with(rest.size());
      const std::vector<Line> lines = lines_of(s, vocabulary, k, budget, exact);
      for (int n = even ? layers / count_ : 1; n <= (even ? layers / count_ : layers - count_ + 1); ++n) {
        std::optional<Exact> value;
        for (const Line& l : lines) value = std::max(value, std::optional(exact.plus(l.fixed, exact.times(n, l.slope))));
        for (std::size_t before = 0, after = static_cast<std::size_t>(n); after < rest.size(); ++before, ++after) {
          if (!value || !rest[after]) continue;
          const Exact all = exact.plus(*value, *rest[after]);
          if (!with[before] || all < *with[before]) with[before] = all;
        }
      }
      rest = std::move(with);
    }
    if (exact.overflow || !rest.front()) return std::nullopt;
    return static_cast<std::int64_t>(std::clamp<Exact>(round_up(*rest.front(), k.unit), 0, kBeyondAnyCost));
  }

  /// Without a price of memory: equal weights; or some rank has its share of the layers at least, in every cycle.
  std::int64_t plain_bound(const LayerStrategy& vocabulary, std::int64_t budget, bool even) {
    const auto p = static_cast<std::size_t>(p_);
    ProblemMultipliers k;
    k.unit = p_;
    k.weights.assign(p, 1);
    k.prices.resize(p);
    const auto equal = bound(vocabulary, k, budget, even);
    k.weights.assign(p, 0);
    const auto once = bound(vocabulary, k, budget, even);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& stage : layers_) least = std::min(least, std::ranges::min(stage, {}, &Part::steady_ps).steady_ps);
    return std::max(equal.value_or(0), once.value_or(0) + cycles() * ((costs_.cost().model().layers + p_ - 1) / p_) * least);
  }

 private:
  struct Line {
    Exact fixed = 0, slope = 0;  // of V_s(n) for one price
  };
  [[nodiscard]] int first_rank(int s) const { return s % p_ * devices_; }
  [[nodiscard]] std::int64_t cycles() const { return frame_.micro_batches - (frame_.schedule == Schedule::kInterleaved ? 0 : 1); }

  /// h_s: forwards of the stage before its rank's first backward (plan/schedule.h).
  [[nodiscard]] std::int64_t held(int s) const {
    const std::int64_t m = frame_.micro_batches, p = p_, v = frame_.virtual_stages;
    if (v == 1) return frame_.schedule == Schedule::kGPipe ? m : std::min<std::int64_t>(p - s, m);
    const std::int64_t forwards = std::min(m * v, 2 * (p - s % p - 1) + (v - 1) * p + 1);
    std::int64_t held = 0;
    for (std::int64_t k = 0; k < forwards; ++k) held += k % (p * v) / p == s / p ? 1 : 0;
    return held;
  }
  [[nodiscard]] Part part(const LayerCost& c, int s) const {
    Part t{.steady_ps = c.forward_ps + c.backward_ps + c.weight_ps, .bytes = c.persistent_bytes + held(s) * c.forward.delta_bytes};
    if (s < p_) t.once_ps = c.forward_ps + c.backward_sync_ps;
    else t.late_ps = c.backward_sync_ps - c.backward_ps;
    if (frame_.schedule == Schedule::kInterleaved && s + 1 == p_) t.once_ps -= t.steady_ps;
    if (frame_.schedule == Schedule::kZeroBubbleH1) t.once_ps += s == 0 ? c.weight_sync_ps : -c.weight_ps;
    if (s % p_ == 0) t.once_ps += c.update_ps;
    return t;
  }
  [[nodiscard]] std::int64_t stream(const LayerStrategy& l) const {
    const std::int64_t tokens = frame_.sequence / l.cp / (l.sequence_parallel ? l.tp : 1);
    return frame_.micro_batch_sequences() / l.dp * tokens * costs_.cost().model().hidden * model::element_bytes(model::compute_dtype(frame_.precision));
  }
  /// Of one of the h_s micro-batches that are held; gradients are reduced behind every one, or behind the last.
  [[nodiscard]] std::int64_t backward_peak(const LayerCost& c, int s) const {
    const bool reduces = c.reduces_per_micro_batch || held(s) == 1;
    return reduces ? std::max(c.backward.peak_bytes, c.backward.delta_bytes + c.sync.peak_bytes) : c.backward.peak_bytes;
  }
  Part transfer(int from, int to) {
    LayerCost c;
    c.forward_ps = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t bytes : streams_)
      c.forward_ps = std::min(c.forward_ps, costs_.exchange_ps(first_rank(from), devices_, first_rank(to) - first_rank(from), bytes));
    return costs_.cost().overlaps() ? Part{.once_ps = to < p_ ? c.forward_ps : 0} : part(c, to);
  }
  /// All of a stage but its layers.
  Part fixed(int s, const LayerStrategy& v) {
    Part t = joints_[static_cast<std::size_t>(s)];
    std::int64_t transient = transient_[static_cast<std::size_t>(s)];
    if (s == 0) {
      t += part(costs_.embedding(v, context_, 0, devices_), s);
      t.bytes -= held(s) * stream(v);  // its output is the first layer's input
    }
    if (s + 1 == count_) {
      const LayerCost& c = costs_.head(v, context_, first_rank(s), devices_);
      const std::int64_t kept = stream(v) + c.forward.delta_bytes;  // by a head that has run forward
      t += part(c, s);
      t.bytes += held(s) * stream(v) + model::element_bytes(model::DType::kFloat32);  // and the loss, zeroed once
      if (p_ == 1) t.once_ps += costs_.cost().segment_ps({.kind = model::SegmentKind::kZeroGradient, .elements = 1}, model::Phase::kF);
      transient = std::max(transient - kept, std::max(c.forward.peak_bytes - c.forward.delta_bytes, backward_peak(c, s)));
    }
    if (frame_.virtual_stages == 1) t.bytes += transient;
    return t;
  }
  std::vector<Line> lines_of(int s, const LayerStrategy& vocabulary, const ProblemMultipliers& k, std::int64_t budget, Checked& exact) {
    const auto rank = static_cast<std::size_t>(s % p_);
    std::vector<std::int64_t> prices = k.prices[rank];
    if (prices.empty() || frame_.virtual_stages == 1) prices.push_back(0);
    if (frame_.virtual_stages > 1) prices.resize(1);  // the stages of a rank share its memory, so they share its price
    const Part own = fixed(s, vocabulary);
    std::vector<Line> lines;
    for (const std::int64_t price : prices) {
      const auto scaled = [&](const Part& t) {
        const Exact cycle = exact.times(exact.times(cycles(), k.weights[rank]), t.steady_ps), late = exact.times(k.weights[rank], t.late_ps);
        return exact.plus(exact.plus(exact.times(k.unit, t.once_ps), exact.plus(cycle, late)), exact.times(price, t.bytes));
      };
      Line l{.fixed = exact.plus(scaled(own), s < p_ ? -exact.times(price, budget) : 0)};
      bool first = true;
      for (const Part& t : layers_[static_cast<std::size_t>(s)]) {
        const Exact value = scaled(t);
        l.slope = first ? value : std::min(l.slope, value);
        first = false;
      }
      lines.push_back(l);
    }
    return lines;
  }

  costmodel::LayerCosts& costs_;
  plan::Plan frame_;
  int p_, devices_, count_;  // ranks; devices of each; stages
  plan::LayerContext context_;
  std::vector<std::vector<Part>> layers_;  // [stage][strategy]
  std::vector<Part> joints_;               // [stage] transfers
  std::vector<std::int64_t> streams_;      // [strategy] bytes between layers
  std::vector<std::int64_t> transient_;    // [stage]
};

}  // namespace

std::optional<std::int64_t> multiplier_bound(costmodel::LayerCosts& costs, const Space& space, const Family& family, const ProblemMultipliers& k,
                                             std::int64_t budget_bytes) {
  const std::vector<LayerStrategy> strategies = stated_strategies(space, family, costs.cost());
  if (strategies.empty()) return kBeyondAnyCost;
  return Stages(costs, family, strategies).bound(k.vocabulary, k, budget_bytes, space.even_stages);
}

SpaceBound space_bound(costmodel::LayerCosts& costs, const SpaceProof& proof, const plan::Plan& plan, std::int64_t budget_bytes) {
  SpaceBound result{.bound_ps = kBeyondAnyCost};
  for (const Family& family : stated_families(proof.space, plan, costs.cost())) {
    const std::vector<LayerStrategy> strategies = stated_strategies(proof.space, family, costs.cost());
    if (strategies.empty()) continue;
    Stages stages(costs, family, strategies);
    const plan::Plan& f = family.frame;
    const bool own = plan.pipeline_degree() == family.ranks && plan.virtual_stages == f.virtual_stages && plan.micro_batches == f.micro_batches &&
                     plan.schedule == f.schedule && std::ranges::all_of(plan.stages, [&](const plan::Stage& stage) {
                       return std::ranges::all_of(stage.runs, [&](const plan::LayerRun& run) { return std::ranges::count(strategies, run.strategy) > 0; });
                     });
    for (const LayerStrategy& vocabulary : stated_vocabularies(proof.space, family, costs.cost())) {
      result.holds_plan = result.holds_plan || (own && vocabulary == plan.vocabulary);
      std::int64_t best = stages.plain_bound(vocabulary, budget_bytes, proof.space.even_stages);
      for (const ProblemMultipliers& k : proof.problems) {
        const bool fits = k.stages == family.ranks * f.virtual_stages && k.virtual_stages == f.virtual_stages && k.micro_batches == f.micro_batches;
        if (!fits || k.vocabulary != vocabulary) continue;  // good multipliers of one schedule are not bad for another
        const auto bound = stages.bound(vocabulary, k, budget_bytes, proof.space.even_stages);
        result.malformed = result.malformed || !bound;
        best = std::max(best, bound.value_or(0));
      }
      result.bound_ps = std::min(result.bound_ps, best);
    }
  }
  return result;
}

}  // namespace orrery::search
