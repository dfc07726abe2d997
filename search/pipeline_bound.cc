#include "search/pipeline_bound.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace orrery::search {
namespace {

std::int64_t narrow(__int128 value) {
  return value >= static_cast<__int128>(kForbidden) ? kForbidden : static_cast<std::int64_t>(value);
}
std::int64_t least(const std::vector<std::int64_t>& values) { return values.empty() ? 0 : std::ranges::min(values); }

}  // namespace

StageRelaxation::StageRelaxation(const PipelineStage& stage) : options_(stage.layers.options), order_(options_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  const auto& given = stage.layers.options;
  std::ranges::sort(order_, [&](std::int32_t x, std::int32_t y) {
    const auto mx = given[static_cast<std::size_t>(x)].memory_bytes, my = given[static_cast<std::size_t>(y)].memory_bytes;
    return mx != my ? mx < my : x < y;
  });
  std::int64_t transient = kForbidden;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    options_[i] = given[static_cast<std::size_t>(order_[i])];
    transient = std::min(transient, options_[i].transient_bytes);
  }
  const LayerProblem& p = stage.layers;
  capacity_ = p.budget_bytes - std::max(p.transient_floor_bytes, transient) - least(stage.arrival_bytes) - least(stage.departure_bytes);
  // Any path enters and leaves somewhere.
  path_ps_ = std::min(kForbidden, least(p.entry_ps) + least(p.exit_ps));
}

void StageRelaxation::weigh(const Weights& weights) {
  weights_ = weights;
  cost_.resize(options_.size());
  hull_.clear();
  for (std::size_t i = 0; i < options_.size(); ++i) {
    cost_[i] = static_cast<__int128>(weights.steady) * options_[i].steady_ps + static_cast<__int128>(weights.once) * options_[i].once_ps;
    if (!hull_.empty() && cost_[i] >= cost_[hull_.back()]) continue;
    if (!hull_.empty() && options_[hull_.back()].memory_bytes == options_[i].memory_bytes) hull_.pop_back();
    while (hull_.size() >= 2) {
      const std::size_t l = hull_[hull_.size() - 2], m = hull_.back();
      const __int128 rise = options_[i].memory_bytes - options_[l].memory_bytes;
      if ((cost_[m] - cost_[l]) * rise < (cost_[i] - cost_[l]) * (options_[m].memory_bytes - options_[l].memory_bytes)) break;
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
  const std::int64_t spare = capacity_ - options_[s.b].memory_bytes * layers;  // spare / difference layers are on a
  const __int128 saved = (cost_[s.b] - cost_[s.a]) * spare / difference;
  const auto heavy = static_cast<std::int64_t>(static_cast<__int128>(spare) * (options_[s.a].steady_ps - options_[s.b].steady_ps) / difference);
  return {cost_[s.b] * layers - saved + path, path_ps_ + options_[s.b].steady_ps * layers + heavy};
}

std::vector<std::int32_t> StageRelaxation::keep(int layers, __int128 slack) const {
  std::vector<std::int32_t> kept;
  const Segment s = segment(layers);
  if (!s.feasible) return kept;
  const __int128 scale = s.a == s.b ? 1 : options_[s.a].memory_bytes - options_[s.b].memory_bytes;
  const __int128 price = cost_[s.b] - cost_[s.a];
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const __int128 reduced = scale * (cost_[i] - cost_[s.a]) + price * (options_[i].memory_bytes - options_[s.a].memory_bytes);
    if (reduced < scale * (slack + 1)) kept.push_back(order_[i]);  // the bound itself is rounded
  }
  std::ranges::sort(kept);
  return kept;
}

StageRelaxation::Price StageRelaxation::price(int layers) const {
  const Segment s = segment(layers);
  if (!s.feasible || s.a == s.b) return {s.feasible, 0, 1};
  return {true, cost_[s.b] - cost_[s.a], options_[s.a].memory_bytes - options_[s.b].memory_bytes};
}

PipelineBound::PipelineBound(const PipelineProblem& problem) : problem_(problem) {
  for (const PipelineStage& stage : problem.stages) {
    stages_.emplace_back(stage);
    counts_.push_back(stage.counts);
  }
  floors();
}

__int128 PipelineBound::stage_constant(std::size_t i, const Weights& w) const {
  const PipelineStage& s = problem_.stages[i];
  return static_cast<__int128>(w.steady) * s.steady_ps + static_cast<__int128>(w.once) * (s.once_ps + least(s.send_ps));
}

void PipelineBound::find_reach() {
  const std::size_t n = stages_.size();
  const std::int64_t all = problem_.layers;
  std::vector<std::int64_t> least_before(n + 1, 0), most_before(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) {
    least_before[i + 1] = least_before[i] + counts_[i].front();
    most_before[i + 1] = std::min(all, most_before[i] + counts_[i].back());
  }
  reach_.assign(n + 1, {1, 0});
  std::int64_t least_after = 0, most_after = 0;
  for (std::size_t i = n + 1; i-- > 0;) {
    const std::int64_t first = std::max(least_before[i], all - most_after), last = std::min(most_before[i], all - least_after);
    if (first <= last) reach_[i] = {static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
    if (i == 0) break;
    least_after += counts_[i - 1].front();
    most_after = std::min(all, most_after + counts_[i - 1].back());
  }
}

void PipelineBound::floors() {
  const std::size_t n = stages_.size();
  find_reach();
  const auto width = static_cast<std::size_t>(problem_.layers) + 1;
  floor_.assign(n, {});
  rest_total_.assign(n + 1, std::vector<std::int64_t>(width, kForbidden));
  rest_steady_ = rest_total_;
  rest_total_[n][width - 1] = rest_steady_[n][width - 1] = 0;
  for (std::size_t i = n; i-- > 0;) {
    floor_[i].resize(counts_[i].size());
    stages_[i].weigh({1, 1});
    for (std::size_t c = 0; c < counts_[i].size(); ++c)
      floor_[i][c].total_ps = narrow(stages_[i].at(counts_[i][c]).bound + stage_constant(i, {1, 1}));
    stages_[i].weigh({1, 0});
    for (std::size_t c = 0; c < counts_[i].size(); ++c)
      floor_[i][c].steady_ps = narrow(stages_[i].at(counts_[i][c]).bound + stage_constant(i, {1, 0}));
    for (std::size_t c = 0; c < counts_[i].size(); ++c) {
      if (floor_[i][c].total_ps >= kForbidden) continue;
      for_each_place(i, counts_[i][c], [&](std::size_t k, std::size_t after) {
        const std::int64_t total = rest_total_[i + 1][after];
        if (total >= kForbidden) return;
        rest_total_[i][k] = std::min(rest_total_[i][k], total + floor_[i][c].total_ps);
        rest_steady_[i][k] = std::min(rest_steady_[i][k], std::max(rest_steady_[i + 1][after], floor_[i][c].steady_ps));
      });
    }
  }
}

std::int64_t PipelineBound::value() const {
  std::int64_t bound = kForbidden;
  if (rest_total_[0][0] < kForbidden) bound = narrow(rest_total_[0][0] + static_cast<__int128>(problem_.micro_batches - 1) * rest_steady_[0][0]);
  if (!rest_.empty()) bound = std::max(bound, narrow(ceil_divide(rest_[0][0], unit_)));
  return bound;
}

Weights PipelineBound::weights(std::size_t i) const { return {unit_ + (problem_.micro_batches - 1) * share_[i], unit_}; }

std::int64_t PipelineBound::steady_limit(std::int64_t cutoff_ps) const {
  if (problem_.micro_batches == 1 || cutoff_ps >= kForbidden) return kForbidden;
  return std::min(kForbidden, (cutoff_ps - rest_total_[0][0]) / (problem_.micro_batches - 1));
}

void PipelineBound::price(const std::vector<std::int64_t>& share) {
  const std::size_t n = stages_.size();
  const auto width = static_cast<std::size_t>(problem_.layers) + 1;
  share_ = share;
  done_.assign(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) done_[i + 1] = done_[i] + share_[i];
  rest_.assign(n + 1, std::vector<__int128>(width, kNoAnswer * unit_));
  rest_[n][width - 1] = 0;
  value_.assign(n, {});
  for (std::size_t i = n; i-- > 0;) {
    const Weights w = weights(i);
    stages_[i].weigh(w);
    const __int128 constant = stage_constant(i, w);
    for (const int count : counts_[i]) {
      StageRelaxation::Value v = stages_[i].at(count);
      if (v.bound < kNoAnswer) v.bound += constant;
      value_[i].push_back(v);
      for_each_place(i, count, [&](std::size_t k, std::size_t after) { rest_[i][k] = std::min(rest_[i][k], v.bound + rest_[i + 1][after]); });
    }
  }
}

std::vector<int> PipelineBound::cheapest() const {
  std::vector<int> counts;
  std::size_t k = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    std::size_t best = 0;
    for (std::size_t c = 0; c < counts_[i].size(); ++c) {
      const std::size_t next = k + static_cast<std::size_t>(counts_[i][c]);
      if (next < rest_[i + 1].size() && value_[i][c].bound + rest_[i + 1][next] == rest_[i][k]) best = c;
    }
    counts.push_back(counts_[i][best]);
    k += static_cast<std::size_t>(counts_[i][best]);
  }
  return counts;
}

std::vector<int> PipelineBound::most_even() const {
  const std::size_t n = stages_.size();
  const std::int64_t limit = rest_steady_[0][0];
  std::vector<std::vector<std::int64_t>> rest(n + 1, std::vector<std::int64_t>(static_cast<std::size_t>(problem_.layers) + 1, kForbidden));
  std::vector<std::vector<int>> choice(n, std::vector<int>(rest.front().size(), 0));
  rest[n].back() = 0;
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t c = 0; c < counts_[i].size(); ++c) {
      if (floor_[i][c].total_ps >= kForbidden || floor_[i][c].steady_ps > limit) continue;
      for_each_place(i, counts_[i][c], [&](std::size_t k, std::size_t after) {
        if (rest[i + 1][after] >= kForbidden || rest[i + 1][after] + floor_[i][c].total_ps >= rest[i][k]) return;
        rest[i][k] = rest[i + 1][after] + floor_[i][c].total_ps;
        choice[i][k] = counts_[i][c];
      });
    }
  }
  std::vector<int> counts;
  std::size_t k = 0;
  for (std::size_t i = 0; i < n; ++i) {
    counts.push_back(choice[i][k]);
    k += static_cast<std::size_t>(choice[i][k]);
  }
  return counts;
}

std::vector<int> PipelineBound::partition() const {
  const auto estimate = [&](const std::vector<int>& counts) {
    std::int64_t total = 0, slowest = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const Floor& floor = floor_[i][index_of(i, counts[i])];
      total += floor.total_ps;
      slowest = std::max(slowest, floor.steady_ps);
    }
    return static_cast<__int128>(total) + static_cast<__int128>(problem_.micro_batches - 1) * slowest;
  };
  std::vector<int> liked = cheapest(), even = most_even();
  return estimate(even) < estimate(liked) ? even : liked;
}

std::size_t PipelineBound::index_of(std::size_t stage, int count) const {
  return static_cast<std::size_t>(std::ranges::find(counts_[stage], count) - counts_[stage].begin());
}

std::int64_t PipelineBound::slowest_stage() const {
  const std::vector<int> counts = cheapest();
  std::int64_t slowest = 0, at = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t c = index_of(i, counts[i]);
    const std::int64_t steady = value_[i][c].steady_ps + problem_.stages[i].steady_ps;
    if (steady <= slowest) continue;
    slowest = steady;
    at = static_cast<std::int64_t>(i);
  }
  return at;
}

bool PipelineBound::tighten(std::int64_t cutoff_ps, std::int64_t finest) {
  const auto n = static_cast<std::int64_t>(stages_.size());
  cutoff_ps_ = cutoff_ps;
  if (rest_total_[0][0] >= kForbidden) return false;
  const std::int64_t limit = steady_limit(cutoff_ps);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    std::vector<int> open;
    for (std::size_t c = 0; c < counts_[i].size(); ++c) {
      if (floor_[i][c].total_ps < kForbidden && floor_[i][c].steady_ps <= limit) open.push_back(counts_[i][c]);
    }
    if (open.empty()) return false;
    counts_[i] = std::move(open);
  }
  floors();
  if (rest_total_[0][0] >= kForbidden) return false;
  const std::int64_t m = problem_.micro_batches;
  unit_ = n * (m <= 4096 ? 32 : 2);
  if (share_.empty()) share_.assign(stages_.size(), unit_ / n);
  price(share_);
  if (n > 1 && m > 1) {
    for (std::int64_t step = unit_ / 4; step >= std::max<std::int64_t>(1, unit_ / finest); step /= 2) {
      const auto slow = static_cast<std::size_t>(slowest_stage());
      const std::vector<std::int64_t> kept = share_;
      const __int128 before = rest_[0][0];
      std::vector<std::int64_t> share = share_;
      std::int64_t moved = 0;
      for (std::size_t i = 0; i < share.size(); ++i) {
        const std::int64_t take = i == slow ? 0 : std::min(share[i], (step * share[i] + unit_ - 1) / unit_);
        share[i] -= take;
        moved += take;
      }
      share[slow] += moved;
      price(share);
      if (rest_[0][0] <= before) price(kept);
    }
  }
  if (value() >= cutoff_ps) return false;
  const auto width = static_cast<std::size_t>(problem_.layers) + 1;
  before_.assign(stages_.size() + 1, std::vector<__int128>(width, kNoAnswer * unit_));
  before_[0][0] = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    for (std::size_t c = 0; c < counts_[i].size(); ++c) {
      for_each_place(i, counts_[i][c], [&](std::size_t k, std::size_t after) {
        before_[i + 1][after] = std::min(before_[i + 1][after], before_[i][k] + value_[i][c].bound);
      });
    }
  }
  return true;
}

/// Least Lagrangian bound of the answers where the stage has `count` layers.
__int128 PipelineBound::through(std::size_t i, int count) const {
  const std::size_t c = index_of(i, count);
  __int128 best = kNoAnswer * unit_;
  for_each_place(i, count, [&](std::size_t k, std::size_t after) { best = std::min(best, before_[i][k] + value_[i][c].bound + rest_[i + 1][after]); });
  return best;
}

std::vector<std::int32_t> PipelineBound::options(std::size_t stage, int count) const {
  const __int128 slack = static_cast<__int128>(unit_) * cutoff_ps_ - through(stage, count);
  if (slack <= 0) return {};
  return stages_[stage].keep(count, slack);
}

std::int64_t PipelineBound::with_rest(std::int64_t slowest, std::int64_t sum, std::size_t next, int layers) const {
  const auto k = static_cast<std::size_t>(layers);
  if (rest_total_[next][k] >= kForbidden) return kForbidden;
  const std::int64_t m = problem_.micro_batches;
  const std::int64_t plain = sum + rest_total_[next][k] + (m - 1) * std::max(slowest, rest_steady_[next][k]);
  const __int128 weighted = static_cast<__int128>(unit_) * sum + static_cast<__int128>(m - 1) * done_[next] * slowest + rest_[next][k];
  return std::max(plain, narrow(ceil_divide(weighted, unit_)));
}

FrontierLimits PipelineBound::limits(std::size_t i, int layers_before, int count, std::int64_t slowest, std::int64_t sum, std::int64_t constant,
                                     std::int64_t cutoff_ps) const {
  const PipelineStage& stage = problem_.stages[i];
  const std::int64_t m = problem_.micro_batches;
  const auto after = static_cast<std::size_t>(layers_before + count);
  FrontierLimits limits{steady_limit(cutoff_ps) - stage.steady_ps, 0, 0};
  if (rest_total_[i + 1][after] >= kForbidden) return limits;
  const std::int64_t others = sum + constant + rest_total_[i + 1][after] + (m - 1) * std::max(slowest, rest_steady_[i + 1][after]);
  limits.total_ps = cutoff_ps - others;
  const Weights w = weights(i);
  const __int128 spent = static_cast<__int128>(unit_) * (sum + constant - stage.steady_ps) + static_cast<__int128>(m - 1) * done_[i] * slowest +
                         rest_[i + 1][after] + static_cast<__int128>(w.steady) * stage.steady_ps;
  limits.weighted = static_cast<__int128>(unit_) * cutoff_ps - spent;
  return limits;
}

}  // namespace orrery::search
