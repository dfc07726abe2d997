#include "search/programs/pipeline_bound.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

/// Of a value times kScale.
__int128 rounded_up(__int128 scaled) { return ceil_divide(scaled, StageRelaxation::kScale); }
std::int64_t narrow(__int128 value) {
  return value >= static_cast<__int128>(kForbidden) ? kForbidden : static_cast<std::int64_t>(value);
}
std::int64_t least(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : std::ranges::min(values);
}

}  // namespace

StageRelaxation::StageRelaxation(const PipelineStage& stage) : given_(&stage.layers.options) {
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;  // memory, option
  order.reserve(given_->size());
  std::int64_t transient = kForbidden;
  for (const LayerOption& o : *given_) {
    order.emplace_back(o.memory_bytes, as_u32(order.size()));
    transient = std::min(transient, o.transient_bytes);
  }
  std::ranges::sort(order);
  for (const auto& [memory, i] : order) {
    const LayerOption& o = (*given_)[i];
    // Weights are at least as high on steady time. Those that beat many are among the last.
    const bool beaten = std::any_of(options_.rbegin(), options_.rend(), [&](const LayerOption& k) {
      return k.steady_ps <= o.steady_ps && k.steady_ps + k.once_ps <= o.steady_ps + o.once_ps;
    });
    if (!beaten) options_.push_back(o);
  }
  const LayerProblem& p = stage.layers;
  capacity_ = p.budget_bytes - std::max(p.transient_floor_bytes, transient) -
              least(stage.arrival_bytes) - least(stage.departure_bytes);
  // Any path enters and leaves somewhere.
  path_ps_ = std::min(kForbidden, least(p.entry_ps) + least(p.exit_ps));
}

void StageRelaxation::weigh(const Weights& weights) {
  weights_ = weights;
  cost_.resize(options_.size());
  hull_.clear();
  for (std::size_t i = 0; i < options_.size(); ++i) {
    cost_[i] = cost_of(options_[i]);
    if (!hull_.empty() && cost_[i] >= cost_[hull_.back()]) continue;
    if (!hull_.empty() && options_[hull_.back()].memory_bytes == options_[i].memory_bytes)
      hull_.pop_back();
    while (hull_.size() >= 2) {
      const std::size_t l = hull_[hull_.size() - 2], m = hull_.back();
      const __int128 rise = options_[i].memory_bytes - options_[l].memory_bytes;
      if ((cost_[m] - cost_[l]) * rise <
          (cost_[i] - cost_[l]) * (options_[m].memory_bytes - options_[l].memory_bytes))
        break;
      hull_.pop_back();
    }
    hull_.push_back(i);
  }
}

/// The two hull points around the mean memory of a layer.
StageRelaxation::Segment StageRelaxation::segment(int layers) const {
  Segment s;
  if (hull_.empty() || path_ps_ >= kForbidden) return s;
  const auto fits = [&](std::size_t h) { return options_[h].memory_bytes * layers <= capacity_; };
  if (!fits(hull_.front())) return s;
  s.feasible = true;
  const auto beyond = std::ranges::partition_point(hull_, fits);
  s.b = *(beyond - 1);
  s.a = beyond == hull_.end() ? s.b : *beyond;
  return s;
}

StageRelaxation::Value StageRelaxation::at(int layers) const {
  const Segment s = segment(layers);
  if (!s.feasible) return {};
  const __int128 path = static_cast<__int128>(weights_.steady) * path_ps_;
  if (s.a == s.b) return {cost_[s.a] * layers + path, path_ps_ + options_[s.a].steady_ps * layers};
  const std::int64_t difference = options_[s.a].memory_bytes - options_[s.b].memory_bytes;
  // spare / difference layers are on a
  const std::int64_t spare = capacity_ - options_[s.b].memory_bytes * layers;
  const __int128 saved = (cost_[s.b] - cost_[s.a]) * spare / difference;
  const auto heavy =
      static_cast<std::int64_t>(static_cast<__int128>(spare) *
                                (options_[s.a].steady_ps - options_[s.b].steady_ps) / difference);
  return {cost_[s.b] * layers - saved + path, path_ps_ + options_[s.b].steady_ps * layers + heavy};
}

ConvexCost StageRelaxation::cost(int fewest, int most, __int128 constant) const {
  if (hull_.empty() || path_ps_ >= kForbidden || capacity_ < 0) return {};
  const std::int64_t fewest_bytes = options_[hull_.front()].memory_bytes;
  if (fewest_bytes > 0) most = as_int(std::min<std::int64_t>(most, capacity_ / fewest_bytes));
  // Beyond all that is priced; keeps sums in range.
  constexpr __int128 kDearest = static_cast<__int128>(1) << 68;
  std::vector<Line> lines;
  lines.reserve(hull_.size());
  constant = kScale * (constant + static_cast<__int128>(weights_.steady) * path_ps_);
  for (std::size_t h = hull_.size(); h-- > 0;) {
    __int128 price = 0;
    if (h + 1 < hull_.size()) {
      const std::size_t a = hull_[h + 1], b = hull_[h];
      const std::int64_t difference = options_[a].memory_bytes - options_[b].memory_bytes;
      price = std::min(kDearest, ((cost_[b] - cost_[a]) * kScale + difference / 2) / difference);
    }
    __int128 slope = kNever;
    for (const std::size_t i : hull_)
      slope = std::min(slope, kScale * cost_[i] + price * options_[i].memory_bytes);
    lines.push_back({constant - price * capacity_, slope});
  }
  return {lines, fewest, most};
}

std::vector<std::int32_t> StageRelaxation::keep(int layers, __int128 slack) const {
  std::vector<std::int32_t> kept;
  const Segment s = segment(layers);
  if (!s.feasible) return kept;
  const __int128 scale = s.a == s.b ? 1 : options_[s.a].memory_bytes - options_[s.b].memory_bytes;
  // the bound itself is rounded
  const __int128 price = cost_[s.b] - cost_[s.a], limit = scale * (slack + 1);
  for (std::size_t i = 0; i < given_->size(); ++i) {
    const LayerOption& o = (*given_)[i];
    if (scale * (cost_of(o) - cost_[s.a]) + price * (o.memory_bytes - options_[s.a].memory_bytes) <
        limit)
      kept.push_back(static_cast<std::int32_t>(i));
  }
  return kept;
}

StageRelaxation::Price StageRelaxation::price(int layers) const {
  const Segment s = segment(layers);
  if (!s.feasible || s.a == s.b) return {s.feasible, 0, 1};
  return {true, cost_[s.b] - cost_[s.a], options_[s.a].memory_bytes - options_[s.b].memory_bytes};
}

int StageRelaxation::alike_up_to(int layers) const {
  const std::int64_t light = options_[segment(layers).b].memory_bytes;
  return light == 0
             ? std::numeric_limits<int>::max()
             : as_int(std::min<std::int64_t>(std::numeric_limits<int>::max(), capacity_ / light));
}

PipelineBound::PipelineBound(const PipelineProblem& problem) : problem_(problem) {
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const PipelineStage& stage = problem.stages[i];
    stages_.emplace_back(stage);
    const auto cost = [&](const Weights& w) {
      stages_[i].weigh(w);
      return stages_[i].cost(stage.fewest, stage.most, stage_constant(i, w));
    };
    total_.push_back(cost({1, 1}));
    steady_.push_back(cost({1, 0}));
  }
  if (restrict_counts()) plain();
}

__int128 PipelineBound::stage_constant(std::size_t i, const Weights& w) const {
  const PipelineStage& s = problem_.stages[i];
  return static_cast<__int128>(w.steady) * s.steady_ps +
         static_cast<__int128>(w.once) * (s.once_ps + least(s.send_ps));
}

/// Numbers of layers that the other stages can complete; false: there is no partition.
bool PipelineBound::restrict_counts() {
  std::int64_t fewest = 0, most = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    total_[i].restrict_to(steady_[i].fewest(), steady_[i].most());
    if (!total_[i].possible()) return false;
    fewest += total_[i].fewest();
    most += total_[i].most();
  }
  if (problem_.layers < fewest || problem_.layers > most) return false;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto low = as_int(std::max<std::int64_t>(0, problem_.layers - (most - total_[i].most())));
    const auto high = as_int(problem_.layers - (fewest - total_[i].fewest()));
    total_[i].restrict_to(low, high);
    steady_[i].restrict_to(low, high);
  }
  return true;
}

void PipelineBound::plain() {
  least_total_ = LeastSum(total_).value(problem_.layers);
  least_slowest_ = least_maximum(steady_, problem_.layers);
}

std::int64_t PipelineBound::value() const {
  if (least_total_ >= kNever) return kForbidden;
  const __int128 bound =
      rounded_up(least_total_) +
      static_cast<__int128>(problem_.micro_batches - 1) * rounded_up(least_slowest_);
  return std::max(narrow(bound), weighed_.least >= kNever
                                     ? 0
                                     : narrow(ceil_divide(rounded_up(weighed_.least), unit_)));
}

std::int64_t PipelineBound::steady_limit(std::int64_t cutoff_ps) const {
  if (problem_.micro_batches == 1 || cutoff_ps >= kForbidden) return kForbidden;
  return std::min(kForbidden,
                  (cutoff_ps - narrow(rounded_up(least_total_))) / (problem_.micro_batches - 1));
}

PipelineBound::Weighed PipelineBound::price(std::vector<std::int64_t> share) {
  Weighed w{.share = std::move(share), .done = {0}, .cost = {}, .partition = {}};
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    w.done.push_back(w.done.back() + w.share[i]);
    const Weights weights = weights_of(w.share[i]);
    stages_[i].weigh(weights);
    w.cost.push_back(
        stages_[i].cost(total_[i].fewest(), total_[i].most(), stage_constant(i, weights)));
  }
  const LeastSum sum(w.cost);
  w.least = sum.value(problem_.layers);
  w.partition = sum.partition(problem_.layers);
  return w;
}

std::vector<int> PipelineBound::most_even() const {
  std::vector<ConvexCost> even = total_;
  const __int128 limit = rounded_up(least_slowest_) * kScale;
  for (std::size_t i = 0; i < even.size(); ++i)
    even[i].restrict_to(even[i].fewest(), steady_[i].most_within(limit));
  return LeastSum(even, false).partition(problem_.layers);
}

__int128 PipelineBound::estimate(const std::vector<int>& counts) const {
  __int128 total = 0, slowest = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += rounded_up(total_[i].at(counts[i]));
    slowest = std::max(slowest, rounded_up(steady_[i].at(counts[i])));
  }
  return total + (problem_.micro_batches - 1) * slowest;
}

std::vector<int> PipelineBound::partition() const {
  std::vector<int> even = most_even();
  return estimate(even) < estimate(weighed_.partition) ? even : weighed_.partition;
}

std::size_t PipelineBound::slowest_stage() const {
  std::int64_t slowest = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const std::int64_t steady =
        stages_[i].at(weighed_.partition[i]).steady_ps + problem_.stages[i].steady_ps;
    if (steady <= slowest) continue;
    slowest = steady;
    at = i;
  }
  return at;
}

void PipelineBound::ascend(std::int64_t finest) {
  std::size_t slow = slowest_stage();
  bool refused = false;
  for (std::int64_t step = unit_ / 4; step >= std::max<std::int64_t>(1, unit_ / finest);
       step /= 2) {
    std::vector<std::int64_t> share = weighed_.share;
    std::int64_t moved = 0;
    for (std::size_t i = 0; i < share.size(); ++i) {
      const std::int64_t take =
          i == slow ? 0 : std::min(share[i], (step * share[i] + unit_ - 1) / unit_);
      share[i] -= take;
      moved += take;
    }
    share[slow] += moved;
    Weighed next = price(std::move(share));
    refused = next.least <= weighed_.least;
    if (refused) continue;
    weighed_ = std::move(next);
    slow = slowest_stage();
  }
  for (std::size_t i = 0; refused && i < stages_.size(); ++i) stages_[i].weigh(weights(i));
}

bool PipelineBound::tighten(std::int64_t cutoff_ps, std::int64_t finest) {
  const auto n = static_cast<std::int64_t>(stages_.size());
  cutoff_ps_ = cutoff_ps;
  rest_.clear();
  if (least_total_ >= kNever) return false;
  const __int128 limit = static_cast<__int128>(steady_limit(cutoff_ps)) * kScale;
  for (ConvexCost& steady : steady_) steady.restrict_to(steady.fewest(), steady.most_within(limit));
  if (!restrict_counts()) return false;
  plain();
  const std::int64_t m = problem_.micro_batches;
  unit_ = n * (m <= 4096 ? 32 : 2);
  weighed_ = price(weighed_.share.empty() ? std::vector<std::int64_t>(stages_.size(), unit_ / n)
                                          : weighed_.share);
  if (n > 1 && m > 1) ascend(finest);
  sum_.emplace(weighed_.cost);
  if (value() >= cutoff_ps) return false;
  fix_counts();
  return true;
}

/// Units that stand between the least bound with `count` layers in the stage and the cutoff; not
/// above 0: no answer has it.
__int128 PipelineBound::slack(std::size_t i, int count) const {
  const __int128 through = sum_->value_through(problem_.layers, i, count);
  return static_cast<__int128>(unit_) * cutoff_ps_ - rounded_up(through);
}

/// The bound through (stage, count) is convex in the count: those with slack are an interval around
/// the cheapest partition's.
void PipelineBound::fix_counts() {
  if (cutoff_ps_ >= kForbidden) return;
  std::vector<std::pair<int, int>> open;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const int best = weighed_.partition[i];
    const auto last = [&](int bound) {
      int in = best;
      for (int out = bound; in != out;) {
        const int middle = in + (out - in + (out > in ? 1 : -1)) / 2;
        if (slack(i, middle) > 0)
          in = middle;
        else
          out = middle + (out > in ? -1 : 1);
      }
      return in;
    };
    open.emplace_back(last(weighed_.cost[i].fewest()), last(weighed_.cost[i].most()));
  }
  for (std::size_t i = 0; i < stages_.size(); ++i)
    weighed_.cost[i].restrict_to(open[i].first, open[i].second);
  sum_.emplace(weighed_.cost);
}

std::vector<std::int32_t> PipelineBound::options(std::size_t stage, int count) const {
  const __int128 left = slack(stage, count);
  if (left <= 0) return {};
  return stages_[stage].keep(count, left);
}

/// From the last stage on, between the places that the numbers of layers left can reach.
void PipelineBound::tabulate() {
  const std::size_t n = stages_.size();
  const std::vector<ConvexCost>& open = weighed_.cost;
  first_place_.assign(n + 1, 0);
  std::vector<int> last_place(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    first_place_[i + 1] = first_place_[i] + open[i].fewest();
    last_place[i + 1] = std::min(problem_.layers, last_place[i] + open[i].most());
  }
  rest_.assign(n + 1, {});
  ConvexCost total = ConvexCost::nothing(), weighted = total;
  for (std::size_t i = n + 1; i-- > 0;) {
    if (i < n) {
      ConvexCost own = total_[i];
      own.restrict_to(open[i].fewest(), open[i].most());
      total = ConvexCost(own, total);
      weighted = ConvexCost(open[i], weighted);
    }
    first_place_[i] = std::max(first_place_[i], problem_.layers - total.most());
    last_place[i] = std::min(last_place[i], problem_.layers - total.fewest());
    for (int place = first_place_[i]; place <= last_place[i]; ++place) {
      const int left = problem_.layers - place;
      rest_[i].push_back({.total_ps = narrow(rounded_up(total.at(left))),
                          .steady_ps = 0,
                          .weighted = rounded_up(weighted.at(left))});
    }
    if (i < n) tabulate_slowest(i);
  }
}

/// min over the stage's layers c of max(N(c), the rest's): N does not fall with c, and the rest's
/// not with the layers left, so the best c grows with the layers left.
void PipelineBound::tabulate_slowest(std::size_t i) {
  const ConvexCost& open = weighed_.cost[i];
  const int next_first = first_place_[i + 1],
            next_last = next_first + as_int(rest_[i + 1].size()) - 1;
  const auto slowest = [&](int place, int c) {
    return std::max(narrow(rounded_up(steady_[i].at(c))),
                    rest_[i + 1][as_index(place + c - next_first)].steady_ps);
  };
  const auto held_by_rest = [&](int place, int c) {
    return rounded_up(steady_[i].at(c)) < rest_[i + 1][as_index(place + c - next_first)].steady_ps;
  };
  int c = open.fewest();
  for (std::size_t k = rest_[i].size(); k-- > 0;) {
    const int place = first_place_[i] + as_int(k);
    const int fewest = std::max(open.fewest(), next_first - place),
              most = std::min(open.most(), next_last - place);
    c = std::max(c, fewest);
    while (c < most && held_by_rest(place, c)) ++c;
    rest_[i][k].steady_ps =
        c > fewest ? std::min(slowest(place, c), slowest(place, c - 1)) : slowest(place, c);
  }
}

const PipelineBound::Rest& PipelineBound::rest(std::size_t next, int layers) {
  static constexpr Rest kNothing;
  if (rest_.empty()) tabulate();
  const int k = layers - first_place_[next];
  return k < 0 || k >= as_int(rest_[next].size()) ? kNothing : rest_[next][as_index(k)];
}

std::int64_t PipelineBound::with_rest(std::int64_t slowest, std::int64_t sum, std::size_t next,
                                      int layers) {
  const Rest& r = rest(next, layers);
  if (r.total_ps >= kForbidden) return kForbidden;
  const std::int64_t m = problem_.micro_batches;
  const std::int64_t plain = sum + r.total_ps + (m - 1) * std::max(slowest, r.steady_ps);
  const __int128 weighted = static_cast<__int128>(unit_) * sum +
                            static_cast<__int128>(m - 1) * weighed_.done[next] * slowest +
                            r.weighted;
  return std::max(plain, narrow(ceil_divide(weighted, unit_)));
}

FrontierLimits PipelineBound::limits(std::size_t i, int layers_before, int count,
                                     std::int64_t slowest, std::int64_t sum, std::int64_t constant,
                                     std::int64_t cutoff_ps) {
  const PipelineStage& stage = problem_.stages[i];
  const std::int64_t m = problem_.micro_batches;
  FrontierLimits limits{steady_limit(cutoff_ps) - stage.steady_ps, 0, 0};
  const Rest& r = rest(i + 1, layers_before + count);
  if (r.total_ps >= kForbidden) return limits;
  const std::int64_t others =
      sum + constant + r.total_ps + (m - 1) * std::max(slowest, r.steady_ps);
  limits.total_ps = cutoff_ps - others;
  const Weights w = weights(i);
  const __int128 spent = static_cast<__int128>(unit_) * (sum + constant - stage.steady_ps) +
                         static_cast<__int128>(m - 1) * weighed_.done[i] * slowest + r.weighted +
                         static_cast<__int128>(w.steady) * stage.steady_ps;
  limits.weighted = static_cast<__int128>(unit_) * cutoff_ps - spent;
  return limits;
}

}  // namespace orrery::search
