#include "search/table/instance_repair.h"

#include <algorithm>
#include <optional>

#include "base/numbers.h"

namespace orrery::search {
namespace {

constexpr int kPasses = 16;

const InstanceOption& option(const Instance& instance, const OptionPath& path, std::size_t layer) {
  return instance.layers[layer][as_index(path[layer])];
}
std::int64_t move_ps(const Instance& instance, std::size_t boundary, std::int32_t from,
                     std::int32_t to) {
  return instance.transition(boundary, as_index(from), as_index(to));
}

/// Totals of the first i layers of a path, transitions among them counted.
std::vector<PathTotals> prefixes(const Instance& instance, const OptionPath& path) {
  std::vector<PathTotals> sums(path.size() + 1);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const InstanceOption& o = option(instance, path, i);
    const std::int64_t move = i == 0 ? 0 : move_ps(instance, i - 1, path[i - 1], path[i]);
    sums[i + 1] = {sums[i].time_ps + o.time_ps + move, sums[i].memory_bytes + o.memory_bytes};
  }
  return sums;
}

/// `head` up to some layer, `tail` from there.
void join(const Instance& instance, const OptionPath& head, const OptionPath& tail,
          InstanceAnswer& best) {
  const std::vector<PathTotals> before = prefixes(instance, head), after = prefixes(instance, tail);
  std::optional<std::size_t> at;  // layer of the joint
  for (std::size_t i = 1; i < head.size(); ++i) {
    const std::int64_t memory =
        before[i].memory_bytes + after.back().memory_bytes - after[i].memory_bytes;
    const std::int64_t time = before[i].time_ps + move_ps(instance, i - 1, head[i - 1], tail[i]) +
                              after.back().time_ps - after[i].time_ps -
                              move_ps(instance, i - 1, tail[i - 1], tail[i]);
    if (memory > instance.budget_bytes || time >= best.totals.time_ps) continue;
    best.totals = {time, memory};
    at = i;
  }
  if (!at) return;
  best.choices = head;
  std::copy(tail.begin() + static_cast<std::ptrdiff_t>(*at), tail.end(),
            best.choices.begin() + static_cast<std::ptrdiff_t>(*at));
}

/// One pass of single changes. True when something changed.
bool improve(const Instance& instance, InstanceAnswer& best) {
  bool changed = false;
  const std::size_t n = instance.layers.size();
  for (std::size_t i = 0; i < n; ++i) {
    const auto around = [&](std::int32_t s) {
      std::int64_t ps = instance.layers[i][as_index(s)].time_ps;
      if (i > 0) ps += move_ps(instance, i - 1, best.choices[i - 1], s);
      if (i + 1 < n) ps += move_ps(instance, i, s, best.choices[i + 1]);
      return ps;
    };
    const std::int64_t now = around(best.choices[i]),
                       held = option(instance, best.choices, i).memory_bytes;
    std::int64_t least = now;
    std::int32_t chosen = best.choices[i];
    for (std::size_t s = 0; s < instance.layers[i].size(); ++s) {
      const auto candidate = static_cast<std::int32_t>(s);
      if (best.totals.memory_bytes - held + instance.layers[i][s].memory_bytes >
              instance.budget_bytes ||
          around(candidate) >= least)
        continue;
      least = around(candidate);
      chosen = candidate;
    }
    if (chosen == best.choices[i]) continue;
    best.choices[i] = chosen;
    best.totals.time_ps += least - now;
    best.totals.memory_bytes += option(instance, best.choices, i).memory_bytes - held;
    changed = true;
  }
  return changed;
}

}  // namespace

void repair(const Instance& instance, const OptionPath& beyond, InstanceAnswer& best) {
  if (!beyond.empty()) {
    const OptionPath within = best.choices;
    join(instance, beyond, within, best);
    join(instance, within, beyond, best);
  }
  for (int pass = 0; pass < kPasses && improve(instance, best); ++pass) continue;
}

}  // namespace orrery::search
