#include "sim/kernel/max_min.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace orrery::sim::kernel {
namespace {

struct System {
  std::vector<std::int64_t> capacities;
  std::vector<std::int64_t> caps;
  std::vector<std::vector<Consumption>> uses;
};

System random_system() {
  System s;
  const int links = *rc::gen::inRange(1, 8), flows = *rc::gen::inRange(1, 12);
  for (int l = 0; l < links; ++l) s.capacities.push_back(*rc::gen::inRange<std::int64_t>(0, 1000));
  for (int f = 0; f < flows; ++f) {
    std::vector<Consumption> uses;
    for (int l = 0; l < links; ++l) {
      if (*rc::gen::inRange(0, 3) > 0) continue;
      uses.push_back(
          {ConstraintId(static_cast<std::uint32_t>(l)), *rc::gen::inRange<std::int64_t>(1, 6)});
    }
    const bool capped = uses.empty() || *rc::gen::inRange(0, 3) == 0;
    s.caps.push_back(capped ? *rc::gen::inRange<std::int64_t>(0, 300) : MaxMin::kNoCap);
    s.uses.push_back(std::move(uses));
  }
  return s;
}

MaxMin build(const System& s) {
  MaxMin shares;
  for (const auto c : s.capacities) shares.add_constraint(c);
  for (std::size_t f = 0; f < s.caps.size(); ++f) shares.add_variable(s.caps[f], s.uses[f]);
  return shares;
}

/// The definition, not the algorithm: nobody over capacity or cap; everyone at the cap or on a
/// saturated link with the largest rate.
void check_fair(const System& s, const MaxMin& shares) {
  std::vector<std::int64_t> used(s.capacities.size(), 0), weight(s.capacities.size(), 0),
      largest(s.capacities.size(), 0);
  for (std::uint32_t f = 0; f < s.caps.size(); ++f) {
    const VariableId v(f);
    if (!shares.active(v)) continue;
    RC_ASSERT(shares.rate(v) >= 0);
    RC_ASSERT(shares.rate(v) <= s.caps[f]);
    for (const auto& u : s.uses[f]) {
      const auto l = u.constraint.raw();
      used[l] += u.weight * shares.rate(v);
      weight[l] += u.weight;
      largest[l] = std::max(largest[l], shares.rate(v));
    }
  }
  for (std::size_t l = 0; l < used.size(); ++l) RC_ASSERT(used[l] <= s.capacities[l]);
  for (std::uint32_t f = 0; f < s.caps.size(); ++f) {
    const VariableId v(f);
    if (!shares.active(v) || shares.rate(v) == s.caps[f]) continue;
    RC_ASSERT(std::any_of(s.uses[f].begin(), s.uses[f].end(), [&](const Consumption& u) {
      const auto l = u.constraint.raw();
      return s.capacities[l] - used[l] < weight[l] && largest[l] == shares.rate(v);
    }));
  }
}

RC_GTEST_PROP(MaxMinProperty, RatesAreFeasibleAndEveryFlowHasABottleneck, ()) {
  const System s = random_system();
  MaxMin shares = build(s);
  for (std::uint32_t f = 0; f < s.caps.size(); ++f) shares.activate(VariableId(f));
  shares.solve();
  check_fair(s, shares);
}

RC_GTEST_PROP(MaxMinProperty, IncrementalEqualsFromScratch, ()) {
  const System s = random_system();
  MaxMin incremental = build(s);
  const int steps = *rc::gen::inRange(1, 30);
  for (int step = 0; step < steps; ++step) {
    const int changes = *rc::gen::inRange(1, 4);
    std::vector<std::int64_t> before;
    for (std::uint32_t f = 0; f < s.caps.size(); ++f)
      before.push_back(incremental.rate(VariableId(f)));
    for (int k = 0; k < changes; ++k) {
      const VariableId v(
          *rc::gen::inRange<std::uint32_t>(0, static_cast<std::uint32_t>(s.caps.size())));
      if (incremental.active(v))
        incremental.deactivate(v);
      else
        incremental.activate(v);
    }
    const auto changed = incremental.solve();
    const std::set<VariableId> reported(changed.begin(), changed.end());
    MaxMin fresh = build(s);
    for (std::uint32_t f = 0; f < s.caps.size(); ++f) {
      if (incremental.active(VariableId(f))) fresh.activate(VariableId(f));
    }
    fresh.solve();
    for (std::uint32_t f = 0; f < s.caps.size(); ++f) {
      const VariableId v(f);
      RC_ASSERT(incremental.rate(v) == fresh.rate(v));
      if (incremental.active(v) && incremental.rate(v) != before[f])
        RC_ASSERT(reported.contains(v));
    }
    check_fair(s, incremental);
  }
}

}  // namespace
}  // namespace orrery::sim::kernel
