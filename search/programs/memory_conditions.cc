#include "search/programs/memory_conditions.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace orrery::search {
MemoryConditions::MemoryConditions(const LayerProblem& problem, const std::vector<Column>& columns,
                                   const LayoutPaths& paths, const Weights& weights)
    : problem_(problem),
      columns_(columns),
      paths_(paths),
      weights_(weights),
      by_memory_(columns.size()) {
  for (const Column& c : columns) whole_.push_back({cost(c.values), c.values.memory_bytes});
  std::iota(by_memory_.begin(), by_memory_.end(), 0U);
  sort_by_memory(whole_, by_memory_);
}

void MemoryConditions::allow() {
  allowed_.clear();
  costs_.clear();
  all_levels_.clear();
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const LayerOption& o = columns_[c].values;
    if (!allowed(columns_[c], transient_, neighbours_)) continue;
    allowed_.push_back(c);
    costs_.push_back(whole_[c].cost);
    if (o.transient_bytes <= transient_) all_levels_.push_back(o.transient_bytes);
  }
  // all of class T lie above its least: T itself is a level
  if (all_levels_.empty()) all_levels_.push_back(transient_);
  std::ranges::sort(all_levels_);
  all_levels_.erase(std::unique(all_levels_.begin(), all_levels_.end()), all_levels_.end());
  level_count_ = std::min(kLevels, all_levels_.size());
  for (std::size_t k = 0; k < level_count_; ++k) {
    levels_[k] =
        all_levels_[level_count_ == 1 ? 0 : k * (all_levels_.size() - 1) / (level_count_ - 1)];
  }
}

std::int64_t MemoryConditions::capacity(std::size_t level) const {
  return level > 0 ? problem_.budget_bytes - levels_[level]
                   : least_capacity(levels_[0], neighbours_);
}

std::int64_t MemoryConditions::least_capacity(std::int64_t level_bytes,
                                              std::int64_t neighbours) const {
  return problem_.budget_bytes - std::max(problem_.transient_floor_bytes,
                                          level_bytes + (problem_.layers > 1 ? neighbours : 0));
}

std::int64_t MemoryConditions::weight(const LayerOption& o, std::size_t level) const {
  return o.memory_bytes - (o.transient_bytes < levels_[level] ? o.stash_bytes : 0);
}

void MemoryConditions::fill(MemorySide& side, const Mix& mix) const {
  side.items.resize(allowed_.size());
  side.capacity = 0;
  for (std::size_t k = 0; k < level_count_; ++k) side.capacity += mix[k] * capacity(k);
  for (std::size_t i = 0; i < allowed_.size(); ++i) {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < level_count_; ++k) {
      if (mix[k] != 0) sum += mix[k] * weight(option(i), k);
    }
    side.items[i] = {costs_[i], sum};
  }
  side.lp = relax(side.items, problem_.layers, side.capacity);
}

/// Level whose condition the fractional optimum of `side` breaks most; -1: none.
int MemoryConditions::most_broken(const MemorySide& side) const {
  const LinearRelaxation& lp = side.lp;
  const __int128 spare = static_cast<__int128>(side.capacity) -
                         static_cast<__int128>(side.items[lp.b].memory) * problem_.layers;
  __int128 most = 0;
  int broken = -1;
  for (std::size_t k = 0; k < level_count_; ++k) {
    const std::int64_t light = weight(option(lp.b), k), heavy = weight(option(lp.a), k);
    __int128 excess = (static_cast<__int128>(light) * problem_.layers - capacity(k)) * lp.scale;
    if (lp.a != lp.b) excess += spare * (heavy - light);
    if (excess <= most) continue;
    most = excess;
    broken = as_int(k);
  }
  return broken;
}

void MemoryConditions::improve(MemorySide& side, Mix& mix) {
  for (int step = kUnit / 2; step >= 1;) {
    const int broken = most_broken(side);
    if (broken < 0) return;
    Mix next = mix;
    int moved = 0;
    for (std::size_t k = 0; k < level_count_; ++k) {
      const int take =
          as_int(k) == broken ? 0 : std::min(next[k], (step * next[k] + kUnit - 1) / kUnit);
      next[k] -= take;
      moved += take;
    }
    next[as_index(broken)] += moved;
    fill(trial_, next);
    if (!trial_.lp.feasible || trial_.lp.above(side.lp)) {
      std::swap(trial_, side);
      mix = next;
      if (!side.lp.feasible) return;
    } else {
      step /= 2;
    }
  }
}

__int128 MemoryConditions::least_level(std::int64_t transient, std::int64_t neighbours) {
  order_.clear();
  std::int64_t level = kForbidden;
  for (const std::uint32_t c : by_memory_) {
    if (!allowed(columns_[c], transient, neighbours)) continue;
    order_.push_back(c);
    level = std::min(level, columns_[c].values.transient_bytes);
  }
  if (level > transient) level = transient;
  const std::int64_t path = paths_.superset_cost(0);
  const LinearRelaxation lp =
      relax(whole_, order_, problem_.layers, least_capacity(level, neighbours));
  if (!lp.feasible || path >= kForbidden) return kNoAnswer;
  __int128 widest = kNever, narrowest = kNever;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (!allowed(columns_[c], transient, neighbours)) continue;
    const bool wide = columns_[c].round_transient_bytes == transient,
               narrow = columns_[c].round_neighbour_bytes == neighbours;
    if (!wide && !narrow) continue;
    const __int128 reduced = lp.reduced(whole_[c], whole_[lp.a]);
    if (wide) widest = std::min(widest, reduced);
    if (narrow) narrowest = std::min(narrowest, reduced);
  }
  if (widest >= kNever || narrowest >= kNever) return kNoAnswer;
  const __int128 more = std::max({widest, narrowest, lp.scale * weights_.steady * path});
  return ceil_divide(lp.value + more, lp.scale);
}

__int128 MemoryConditions::choose(std::int64_t transient, std::int64_t neighbours) {
  transient_ = transient;
  neighbours_ = neighbours;
  allow();
  const std::int64_t path = paths_.superset_cost(0);
  if (allowed_.empty() || path >= kForbidden) return kNoAnswer;
  Mix lowest{}, highest{};
  lowest[0] = kUnit;
  highest[level_count_ - 1] = kUnit;
  active_ = level_count_ > 1 ? 3 : 1;
  MemorySide& best = sides_[0];
  fill(best, lowest);
  if (!best.lp.feasible) return kNoAnswer;
  if (active_ > 1) {
    sides_[1] = best;
    fill(sides_[2], highest);
    if (!sides_[2].lp.feasible) return kNoAnswer;
    Mix mix = lowest;
    if (sides_[2].lp.above(best.lp)) {
      best = sides_[2];
      mix = highest;
    }
    improve(best, mix);
    if (!best.lp.feasible) return kNoAnswer;
  }
  return best.lp.bound() + static_cast<__int128>(weights_.steady) * path;
}

__int128 MemoryConditions::price() {
  __int128 bound = 0;
  for (std::size_t k = 0; k < active_; ++k) {
    MemorySide& side = sides_[k];
    price(side);
    const __int128 layouts = layouts_cost(side, 0);
    if (layouts >= kNever) return kNoAnswer;
    const __int128 more = std::max({layouts, side.widest, side.narrowest});
    bound = std::max(bound, ceil_divide(side.lp.value + more, side.lp.scale));
  }
  return bound;
}

void MemoryConditions::price(MemorySide& side) const {
  const auto k = as_index(problem_.layouts);
  std::array<__int128, kMaxLayouts> least;
  least.fill(kNever);
  side.reduced.resize(side.items.size());
  side.widest = side.narrowest = kNever;
  side.least_weight = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < side.items.size(); ++i) {
    side.reduced[i] = side.lp.reduced(side.items[i], side.items[side.lp.a]);
    __int128& r = least[as_index(option(i).layout)];
    r = std::min(r, side.reduced[i]);
    const Column& c = columns_[allowed_[i]];
    if (c.round_transient_bytes == transient_) side.widest = std::min(side.widest, side.reduced[i]);
    if (c.round_neighbour_bytes == neighbours_)
      side.narrowest = std::min(side.narrowest, side.reduced[i]);
    side.least_weight = std::min(side.least_weight, side.items[i].memory);
  }
  if (!paths_.exact()) return;
  const std::size_t sets = std::size_t{1} << k;
  side.layouts_cost.assign(sets, kNever);
  for (std::size_t set = sets; set-- > 0;) {
    const std::int64_t path = set == 0 ? kForbidden : paths_.cost(set);
    __int128& best = side.layouts_cost[set];
    if (path < kForbidden) best = side.lp.scale * weights_.steady * path;
    for (std::size_t l = 0; l < k; ++l) {
      if ((set >> l & 1U) != 0 || least[l] >= kNever) continue;
      best = std::min(best, side.layouts_cost[set | std::size_t{1} << l] + least[l]);
    }
  }
}

}  // namespace orrery::search
