#include "search/table/instance_runs.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/numbers.h"
#include "search/table/instance_layouts.h"

namespace orrery::search {
namespace {

constexpr std::size_t kMaxRuns = 4;
constexpr std::size_t kMaxCombinations = 4096;  // of sets of layouts

struct Option {
  std::int64_t time = 0, memory = 0;
  std::size_t index = 0, layout = 0;
  auto operator<=>(const Option&) const = default;
};

struct Run {
  std::vector<std::size_t> layers;
  std::vector<Option> options;  // of one layout none is beaten by another
  std::uint32_t layouts = 0;
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(layers.size()); }
};

using LayoutSets = std::vector<std::uint32_t>;          // [run]
using Counts = std::vector<std::vector<std::int64_t>>;  // [run][option] layers

/// Options of each run restricted to a set of layouts, and the linear relaxation of what is left.
struct Combination {
  LayoutSets sets;                // [run]
  std::int64_t walk_ps = 0;       // H
  std::int64_t bound_ps = 0;      // L, rounded up
  Wide bound = 0;                 // d L
  MemoryPrice price;              // λ = price / scale
  std::vector<std::size_t> base;  // [run]: option of least d t + e m
  std::size_t critical =
      // run that is mixed of base and `heavy`; none: all fits
      std::numeric_limits<std::size_t>::max();
  std::size_t heavy = 0;
};

bool same_options(const std::vector<InstanceOption>& a, const std::vector<InstanceOption>& b) {
  return std::ranges::equal(a, b, [](const InstanceOption& x, const InstanceOption& y) {
    return x.time_ps == y.time_ps && x.memory_bytes == y.memory_bytes;
  });
}

class RunSearch {
 public:
  RunSearch(const Instance& instance, const InstanceLayouts& layouts, InstanceAnswer& best,
            Effort& effort)
      : instance_(instance), layouts_(layouts), best_(best), effort_(effort) {}

  RunsOutcome solve() {
    if (!make_runs() || !make_combinations()) return RunsOutcome::kDoesNotApply;
    for (const Combination& c : combinations_) {
      if (c.bound_ps > best_.totals.time_ps) break;
      search(c);
      if (effort_.exhausted) return RunsOutcome::kExhausted;
    }
    return RunsOutcome::kOptimal;
  }

 private:
  // Preparation.

  bool make_runs() {
    for (std::size_t i = 0; i < instance_.layers.size(); ++i) {
      const auto same = [&](const Run& r) {
        if (!instance_.transition_ps.empty() && r.layers.back() + 1 != i) return false;
        return same_options(instance_.layers[r.layers.front()], instance_.layers[i]);
      };
      auto run = std::ranges::find_if(runs_, same);
      if (run == runs_.end()) {
        if (runs_.size() == kMaxRuns) return false;
        runs_.push_back({.layers = {}, .options = undominated(instance_.layers[i])});
        for (const Option& o : runs_.back().options) runs_.back().layouts |= 1U << o.layout;
        run = std::prev(runs_.end());
      }
      run->layers.push_back(i);
    }
    return instance_.layers.size() >= 2 * runs_.size();
  }

  std::vector<Option> undominated(const std::vector<InstanceOption>& layer) const {
    std::vector<Option> all, kept;
    for (std::size_t s = 0; s < layer.size(); ++s)
      all.push_back({layer[s].time_ps, layer[s].memory_bytes, s, layouts_.of(s)});
    std::ranges::sort(all);
    for (const Option& o : all) {
      const auto beats = [&](const Option& k) {
        return k.layout == o.layout && k.memory <= o.memory;
      };
      if (std::ranges::none_of(kept, beats)) kept.push_back(o);
    }
    return kept;
  }

  /// Every choice of sets that can be walked and whose options of least memory fit, in ascending
  /// order of their bounds.
  bool make_combinations() {
    std::size_t number = 1;
    for (const Run& r : runs_) number *= (std::size_t{1} << std::popcount(r.layouts)) - 1;
    if (number > kMaxCombinations) return false;
    LayoutSets sets;
    for (const Run& r : runs_) sets.push_back(r.layouts);
    for (;;) {
      add_combination(sets);
      // The next subset of the first run's layouts, then of the second's, …
      std::size_t r = 0;
      while (r < runs_.size() && ((sets[r] - 1) & runs_[r].layouts) == 0) {
        sets[r] = runs_[r].layouts;
        ++r;
      }
      if (r == runs_.size()) break;
      sets[r] = (sets[r] - 1) & runs_[r].layouts;
    }
    std::ranges::stable_sort(combinations_, {}, &Combination::bound_ps);
    return true;
  }

  void add_combination(const LayoutSets& sets) {
    Combination c;
    c.sets = sets;
    c.walk_ps = arrange(sets, nullptr);
    if (c.walk_ps >= kForbidden || !relax(c)) return;
    for (std::size_t r = 0; r < runs_.size(); ++r)
      c.bound += priced(c, runs_[r].options[c.base[r]]) * runs_[r].count();
    c.bound += c.price.of(c.walk_ps, -instance_.budget_bytes);
    c.bound_ps = c.price.bound_ps(c.bound);
    combinations_.push_back(std::move(c));
  }

  static Wide priced(const Combination& c, const Option& o) { return c.price.of(o.time, o.memory); }

  struct Step {
    std::size_t run = 0, from = 0, to = 0;
    std::int64_t time = 0, memory = 0;  // saved, spent
  };
  /// Along the lower hull of the allowed options, least memory first.
  void add_steps(std::size_t run, std::uint32_t set, std::vector<std::size_t>& base,
                 std::vector<Step>& steps) const {
    const std::vector<Option>& options = runs_[run].options;
    std::vector<std::size_t> hull;
    for (std::size_t s = options.size(); s-- > 0;) {  // time descending
      if ((set >> options[s].layout & 1U) == 0) continue;
      if (!hull.empty() && options[s].time == options[hull.back()].time &&
          options[s].memory >= options[hull.back()].memory)
        continue;
      while (!hull.empty() && options[hull.back()].memory >= options[s].memory) hull.pop_back();
      const auto below = [&](const Option& a, const Option& b) {
        return static_cast<Wide>(a.time - b.time) * (options[s].memory - a.memory) <=
               static_cast<Wide>(a.time - options[s].time) * (b.memory - a.memory);
      };
      while (hull.size() >= 2 && below(options[hull[hull.size() - 2]], options[hull.back()]))
        hull.pop_back();
      hull.push_back(s);
    }
    base.push_back(hull.front());
    for (std::size_t k = 1; k < hull.size(); ++k) {
      const Option &a = options[hull[k - 1]], &b = options[hull[k]];
      steps.push_back({run, hull[k - 1], hull[k], a.time - b.time, b.memory - a.memory});
    }
  }

  /// Fills base, critical and price; false when not even the options of least memory fit.
  bool relax(Combination& c) const {
    std::vector<Step> steps;
    std::int64_t memory = 0;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      add_steps(r, c.sets[r], c.base, steps);
      memory += runs_[r].options[c.base[r]].memory * runs_[r].count();
    }
    if (memory > instance_.budget_bytes) return false;
    std::ranges::stable_sort(steps, [](const Step& x, const Step& y) {
      return static_cast<Wide>(x.time) * y.memory > static_cast<Wide>(y.time) * x.memory;
    });
    for (const Step& s : steps) {
      memory += s.memory * runs_[s.run].count();
      if (memory > instance_.budget_bytes) {
        const std::int64_t common = std::gcd(s.time, s.memory);
        c.price = {s.memory / common, s.time / common};
        c.critical = s.run;
        c.heavy = s.to;
        break;
      }
      c.base[s.run] = s.to;
    }
    return true;
  }

  // Walks.

  /// Cheapest walk through the sets, run by run; `counts`: layers of each option, without which
  /// round trips are free to use.
  std::int64_t arrange(const LayoutSets& sets, const Counts* counts) {
    const std::size_t n = layouts_.count();
    ways_.assign(runs_.size(), std::vector<Way>(n));
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (std::size_t from = 0; from < n; ++from) {
        if ((sets[r] >> from & 1U) == 0) continue;
        Way enter{r == 0 ? 0 : kForbidden, 0, from};
        for (std::size_t p = 0; r > 0 && p < n; ++p) {
          const std::int64_t way = ways_[r - 1][p].cost;
          if (way < kForbidden && way + layouts_.transition(p, from) < enter.cost)
            enter = {way + layouts_.transition(p, from), p, from};
        }
        for (std::size_t to = 0; to < n; ++to) {
          if ((sets[r] >> to & 1U) == 0 || (from == to && !returns(sets[r], from, r, counts)))
            continue;
          const std::int64_t walk = layouts_.walk(sets[r], from, to);
          if (enter.cost >= kForbidden || walk >= kForbidden ||
              enter.cost + walk >= ways_[r][to].cost)
            continue;
          ways_[r][to] = {enter.cost + walk, enter.exit_before, from};
        }
      }
    }
    return std::ranges::min_element(ways_.back(), {}, &Way::cost)->cost;
  }
  bool returns(std::uint32_t set, std::size_t layout, std::size_t run, const Counts* counts) const {
    if (set == 1U << layout) return true;
    std::int64_t layers = counts == nullptr ? runs_[run].count() : 0;
    for (std::size_t s = 0; counts != nullptr && s < runs_[run].options.size(); ++s) {
      if (runs_[run].options[s].layout == layout) layers += (*counts)[run][s];
    }
    return layers >= 2;
  }

  // Counts.

  struct Variable {
    std::size_t run = 0, option = 0;
    Wide reduced = 0;
  };
  struct State {
    Wide bound = 0;
    std::int64_t time = 0, memory = 0;
  };

  void search(const Combination& c) {
    current_ = &c;
    counts_.clear();
    left_.clear();
    variables_.clear();
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      counts_.emplace_back(runs_[r].options.size(), 0);
      left_.push_back(runs_[r].count());
      const Wide least = priced(c, runs_[r].options[c.base[r]]);
      for (std::size_t s = 0; s < runs_[r].options.size(); ++s) {
        const bool basic = s == c.base[r] || (r == c.critical && s == c.heavy);
        if (basic || (c.sets[r] >> runs_[r].options[s].layout & 1U) == 0) continue;
        variables_.push_back({r, s, priced(c, runs_[r].options[s]) - least});
      }
    }
    std::ranges::stable_sort(variables_, std::greater<>(), &Variable::reduced);
    visit(0, {c.bound, 0, 0});
  }

  bool open(Wide bound) const { return bound <= current_->price.of(best_.totals.time_ps, 0); }

  void visit(std::size_t depth, const State& state) {
    if (!open(state.bound) || !effort_.spend()) return;
    if (depth == variables_.size()) {
      leaf(state);
      return;
    }
    const Variable& v = variables_[depth];
    const Option& o = runs_[v.run].options[v.option];
    const std::int64_t most = left_[v.run];
    State next = state;
    for (std::int64_t count = 0; count <= most && !effort_.exhausted; ++count) {
      if (!open(next.bound) || next.memory > instance_.budget_bytes) break;
      counts_[v.run][v.option] = count;
      left_[v.run] = most - count;
      visit(depth + 1, next);
      next.bound += v.reduced;
      next.time += o.time;
      next.memory += o.memory;
    }
    counts_[v.run][v.option] = 0;
    left_[v.run] = most;
  }

  void leaf(State state) {
    const Combination& c = *current_;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const Option& o = runs_[r].options[c.base[r]];
      counts_[r][c.base[r]] = left_[r];
      state.time += o.time * left_[r];
      state.memory += o.memory * left_[r];
    }
    if (c.critical == std::numeric_limits<std::size_t>::max()) {
      offer(state);
    } else {
      const Option &light = runs_[c.critical].options[c.base[c.critical]],
                   &heavy = runs_[c.critical].options[c.heavy];
      const std::int64_t room = instance_.budget_bytes - state.memory,
                         step = heavy.memory - light.memory;
      std::int64_t many = room < 0 ? -1 : std::min(left_[c.critical], room / step);
      // Fewer heavy ones cost more, unless a walk gets shorter.
      for (; many >= 0 && !effort_.exhausted; --many) {
        const State split{0, state.time - many * (light.time - heavy.time),
                          state.memory + many * step};
        if (split.time + c.walk_ps > best_.totals.time_ps) break;
        counts_[c.critical][c.heavy] = many;
        counts_[c.critical][c.base[c.critical]] = left_[c.critical] - many;
        offer(split);
      }
      counts_[c.critical][c.heavy] = 0;
    }
    for (std::size_t r = 0; r < runs_.size(); ++r) counts_[r][c.base[r]] = 0;
  }

  void offer(const State& state) {
    if (!effort_.spend() || state.memory > instance_.budget_bytes) return;
    LayoutSets sets(runs_.size(), 0);
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (std::size_t s = 0; s < counts_[r].size(); ++s) {
        if (counts_[r][s] > 0) sets[r] |= 1U << runs_[r].options[s].layout;
      }
    }
    const std::int64_t time = state.time + arrange(sets, &counts_);
    if (std::tie(time, state.memory) >= std::tie(best_.totals.time_ps, best_.totals.memory_bytes))
      return;
    best_ = {{time, state.memory}, sequence(sets)};
  }

  /// Options of all layers along the walk that arrange() left in ways_.
  OptionPath sequence(const LayoutSets& sets) const {
    OptionPath choices(instance_.layers.size());
    auto exit =
        as_index(std::ranges::min_element(ways_.back(), {}, &Way::cost) - ways_.back().begin());
    for (std::size_t r = runs_.size(); r-- > 0;) {
      const Way& way = ways_[r][exit];
      const std::vector<std::size_t> order = layouts_.order(sets[r], way.entry, exit);
      const bool round_trip = order.size() > 1 && order.front() == order.back();
      OptionPath options;
      std::int32_t kept = -1;  // the last layer of a round trip
      for (std::size_t k = 0; k + (round_trip ? 1 : 0) < order.size(); ++k) {
        for (std::size_t s = 0; s < runs_[r].options.size(); ++s) {
          const Option& o = runs_[r].options[s];
          if (o.layout == order[k])
            options.insert(options.end(), as_index(counts_[r][s]),
                           static_cast<std::int32_t>(o.index));
        }
        if (k > 0 || !round_trip) continue;
        kept = options.back();
        options.pop_back();
      }
      if (round_trip) options.push_back(kept);
      for (std::size_t i = 0; i < options.size(); ++i) choices[runs_[r].layers[i]] = options[i];
      exit = way.exit_before;
    }
    return choices;
  }

  struct Way {
    std::int64_t cost = kForbidden;
    std::size_t exit_before = 0, entry = 0;
  };

  const Instance& instance_;
  const InstanceLayouts& layouts_;
  InstanceAnswer& best_;
  Effort& effort_;
  std::vector<Run> runs_;
  std::vector<Combination> combinations_;
  std::vector<std::vector<Way>> ways_;  // [run][exit], of the last arrange()
  // of one search()
  const Combination* current_ = nullptr;
  std::vector<Variable> variables_;
  Counts counts_;                   // [run][option]
  std::vector<std::int64_t> left_;  // [run] layers without an option
};

}  // namespace

RunsOutcome search_runs(const Instance& instance, InstanceAnswer& best, Effort& effort) {
  const auto layouts = InstanceLayouts::find(instance);
  if (!layouts) return RunsOutcome::kDoesNotApply;
  return RunSearch(instance, *layouts, best, effort).solve();
}

}  // namespace orrery::search
