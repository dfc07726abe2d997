#include "search/table/instance_dual.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace orrery::search {
namespace {

struct Whole {
  PathTotals totals;
  Potentials potentials;
};

Whole solve_price(const Instance& instance, const InstanceClasses& classes,
                  const MemoryPrice& price) {
  Whole whole{.totals = {}, .potentials = price_paths(instance, classes, price)};
  whole.totals = whole.potentials.totals.back().front();
  return whole;
}

Wide priced(const MemoryPrice& p, const PathTotals& t) {
  return static_cast<Wide>(p.scale) * t.time_ps + static_cast<Wide>(p.price) * t.memory_bytes;
}

}  // namespace

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
      of[s] = static_cast<std::size_t>(found - representatives.begin());
      if (found == representatives.end()) representatives.push_back(s);
    }
    of_.push_back(std::move(of));
    representative_.push_back(std::move(representatives));
  }
}

Potentials price_paths(const Instance& instance, const InstanceClasses& classes,
                       const MemoryPrice& price) {
  const std::size_t n = instance.layers.size();
  Potentials p{.price = price, .value = {}, .totals = {}, .last = {}};
  p.value.emplace_back(classes.count(0), 0);
  p.totals.emplace_back(classes.count(0));
  p.last.emplace_back(classes.count(0), -1);
  for (std::size_t i = 1; i <= n; ++i) {
    const std::size_t count = i < n ? classes.count(i) : 1;
    std::vector<Wide> value(count);
    std::vector<PathTotals> totals(count);
    std::vector<std::int32_t> last(count, -1);
    for (std::size_t s = 0; s < instance.layers[i - 1].size(); ++s) {
      const InstanceOption& o = instance.layers[i - 1][s];
      const std::size_t own = classes.of(i - 1, s);
      const Wide here = p.value[i - 1][own] + priced(price, {o.time_ps, o.memory_bytes});
      const PathTotals before = p.totals[i - 1][own];
      for (std::size_t c = 0; c < count; ++c) {
        const std::int64_t move = i < n ? classes.transition(i - 1, s, c) : 0;
        const Wide v = here + static_cast<Wide>(price.scale) * move;
        const PathTotals t{before.time_ps + o.time_ps + move, before.memory_bytes + o.memory_bytes};
        const bool less = v != value[c] ? v < value[c]
                          : t.memory_bytes != totals[c].memory_bytes
                              ? t.memory_bytes < totals[c].memory_bytes
                              : t.time_ps < totals[c].time_ps;
        if (last[c] >= 0 && !less) continue;
        value[c] = v;
        totals[c] = t;
        last[c] = static_cast<std::int32_t>(s);
      }
    }
    p.value.push_back(std::move(value));
    p.totals.push_back(std::move(totals));
    p.last.push_back(std::move(last));
  }
  return p;
}

std::vector<std::int32_t> path_to(const InstanceClasses& classes, const Potentials& potentials,
                                  std::size_t layer, std::size_t of_class) {
  std::vector<std::int32_t> path(layer);
  for (std::size_t i = layer; i > 0; --i) {
    path[i - 1] = potentials.last[i][of_class];
    of_class = classes.of(i - 1, static_cast<std::size_t>(path[i - 1]));
  }
  return path;
}

InstanceDual solve_dual(const Instance& instance, const InstanceClasses& classes) {
  const std::size_t n = instance.layers.size();
  const std::int64_t budget = instance.budget_bytes;
  InstanceDual dual;
  Whole light = solve_price(instance, classes, {0, 1});
  dual.least_memory = light.totals;
  dual.feasible = light.totals.memory_bytes <= budget;
  if (!dual.feasible) return dual;
  Whole fast = solve_price(instance, classes, {1, 0});
  if (fast.totals.memory_bytes <= budget) light = fast;
  while (fast.totals.memory_bytes > budget) {
    const std::int64_t price = light.totals.time_ps - fast.totals.time_ps;
    const std::int64_t scale = fast.totals.memory_bytes - light.totals.memory_bytes;
    ORRERY_CHECK(price > 0 && scale > 0);
    const std::int64_t common = std::gcd(price, scale);
    dual.best = {scale / common, price / common};
    Whole next = solve_price(instance, classes, dual.best);
    if (priced(dual.best, next.totals) == priced(dual.best, fast.totals)) {
      dual.beyond_path = path_to(classes, fast.potentials, n, 0);
      fast.potentials = std::move(next.potentials);
      break;
    }
    (next.totals.memory_bytes <= budget ? light : fast) = std::move(next);
  }
  dual.within = light.totals;
  dual.within_path = path_to(classes, light.potentials, n, 0);
  dual.potentials = std::move(fast.potentials);
  const Wide value =
      dual.potentials.value.back().front() - static_cast<Wide>(dual.best.price) * budget;
  const Wide scale = dual.best.scale;
  dual.bound_ps = static_cast<std::int64_t>(value > 0 ? (value + scale - 1) / scale : 0);
  return dual;
}

}  // namespace orrery::search
