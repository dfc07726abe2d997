#include "search/table/instance_dual.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
InstanceClasses::InstanceClasses(const Instance& instance) : instance_(&instance) {
  for (std::size_t i = 0; i < instance.layers.size(); ++i) {
    // One table for all boundaries: as the layer before.
    if (i > 1 && instance.transition_ps.size() == 1) {
      of_.push_back(of_.back());
      representative_.push_back(representative_.back());
      continue;
    }
    const std::size_t options = instance.layers[i].size();
    std::vector<std::size_t> of(options, 0), representatives{0};
    for (std::size_t s = 1; s < options && i > 0 && !instance.transition_ps.empty(); ++s) {
      const auto same = [&](std::size_t r) {
        for (std::size_t from = 0; from < instance.layers[i - 1].size(); ++from) {
          if (instance.transition(i - 1, from, r) != instance.transition(i - 1, from, s))
            return false;
        }
        return true;
      };
      const auto found = std::ranges::find_if(representatives, same);
      of[s] = as_index(found - representatives.begin());
      if (found == representatives.end()) representatives.push_back(s);
    }
    of_.push_back(std::move(of));
    representative_.push_back(std::move(representatives));
  }
}

Potentials price_paths(const Instance& instance, const InstanceClasses& classes,
                       const MemoryPrice& price) {
  const std::size_t n = instance.layers.size();
  Potentials p{price, {std::vector<Potentials::Way>(classes.count(0))}};
  for (std::size_t i = 1; i <= n; ++i) {
    std::vector<Potentials::Way> ways(i < n ? classes.count(i) : 1);
    for (std::size_t s = 0; s < instance.layers[i - 1].size(); ++s) {
      const InstanceOption& o = instance.layers[i - 1][s];
      const auto& [value, before, last] = p.ways[i - 1][classes.of(i - 1, s)];
      const Wide here = value + price.of(o.time_ps, o.memory_bytes);
      for (std::size_t c = 0; c < ways.size(); ++c) {
        const std::int64_t move = i < n ? classes.transition(i - 1, s, c) : 0;
        const Potentials::Way way{
            here + price.of(move, 0),
            {before.time_ps + o.time_ps + move, before.memory_bytes + o.memory_bytes},
            static_cast<std::int32_t>(s)};
        if (ways[c].last < 0 || way < ways[c]) ways[c] = way;
      }
    }
    p.ways.push_back(std::move(ways));
  }
  return p;
}

OptionPath path_to(const InstanceClasses& classes, const Potentials& potentials, std::size_t layer,
                   std::size_t of_class) {
  OptionPath path(layer);
  for (std::size_t i = layer; i > 0; --i) {
    path[i - 1] = potentials.ways[i][of_class].last;
    of_class = classes.of(i - 1, as_index(path[i - 1]));
  }
  return path;
}

InstanceDual solve_dual(const Instance& instance, const InstanceClasses& classes) {
  const std::size_t n = instance.layers.size();
  const std::int64_t budget = instance.budget_bytes;
  InstanceDual dual;
  const auto solve = [&](const MemoryPrice& price) {
    return price_paths(instance, classes, price);
  };
  Potentials light = solve({0, 1});
  dual.least_memory = light.totals();
  dual.feasible = light.totals().memory_bytes <= budget;
  if (!dual.feasible) return dual;
  Potentials fast = solve({1, 0});
  if (fast.totals().memory_bytes <= budget) light = fast;
  while (fast.totals().memory_bytes > budget) {
    const std::int64_t price = light.totals().time_ps - fast.totals().time_ps;
    const std::int64_t scale = fast.totals().memory_bytes - light.totals().memory_bytes;
    ORRERY_CHECK(price > 0 && scale > 0);
    const std::int64_t common = std::gcd(price, scale);
    dual.best = {scale / common, price / common};
    Potentials next = solve(dual.best);
    if (next.value() == dual.best.of(fast.totals().time_ps, fast.totals().memory_bytes)) {
      dual.beyond_path = path_to(classes, fast, n, 0);
      fast = std::move(next);
      break;
    }
    (next.totals().memory_bytes <= budget ? light : fast) = std::move(next);
  }
  dual.within = light.totals();
  dual.within_path = path_to(classes, light, n, 0);
  dual.potentials = std::move(fast);
  dual.bound_ps = dual.best.bound_ps(dual.potentials.value() - dual.best.of(0, budget));
  return dual;
}

}  // namespace orrery::search
