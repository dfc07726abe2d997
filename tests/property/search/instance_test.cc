// Laws of orrery solve, on instances too large to enumerate.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "search/proof/certificate_check.h"
#include "search/table/instance_program.h"
#include "tests/oracle/search/random_instance.h"
#include "tests/support/law.h"

namespace orrery::search {
namespace {

Instance draw_instance() {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  InstanceShape shape{.layers = 24, .options = 6, .scale = 1'000'003, .collinear = false};
  shape.equal_layers = *rc::gen::arbitrary<bool>();
  shape.runs = *rc::gen::arbitrary<bool>();
  return random_instance(rng, shape);
}

/// Time, or nothing when infeasible. (RC_ASSERT takes its expression apart: || inside needs its own
/// brackets to stop early.) Every answer is proved and passes the checker.
std::optional<std::int64_t> time_of(const Instance& instance) {
  const Solution s = solve_instance(instance);
  RC_ASSERT(check_solution(instance, s).holds());
  if (s.status == Status::kInfeasible) return std::nullopt;
  RC_ASSERT(s.status == Status::kOptimal);
  return s.time_ps;
}

TEST(InstanceLaws, MoreMemoryIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Instance instance = draw_instance();
    const auto before = time_of(instance);
    instance.budget_bytes += *rc::gen::inRange<std::int64_t>(0, 20'000'000);
    const auto after = time_of(instance);
    draws.asserts(before.has_value());
    RC_ASSERT((!before || (after && *after <= *before)));
  });
}

TEST(InstanceLaws, ScalingTimesScalesTheOptimum) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Instance instance = draw_instance();
    const auto before = time_of(instance);
    const auto factor = *rc::gen::inRange<std::int64_t>(2, 1000);
    for (auto& layer : instance.layers) {
      for (InstanceOption& o : layer) o.time_ps *= factor;
    }
    for (auto& table : instance.transition_ps) {
      for (std::int64_t& t : table) t *= factor;
    }
    const auto after = time_of(instance);
    RC_ASSERT(before.has_value() == after.has_value());
    draws.asserts(before.has_value());
    RC_ASSERT((!before || *after == *before * factor));
  });
}

TEST(InstanceLaws, WithoutTransitionsNothingIsSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Instance instance = draw_instance();
    const auto before = time_of(instance);
    instance.transition_ps.clear();
    const auto after = time_of(instance);
    draws.asserts(before.has_value());
    RC_ASSERT((!before || (after && *after <= *before)));
  });
}

TEST(InstanceLaws, FixingTheOptimumsOptionOfALayerKeepsItAndForbiddingItIsNeverFaster) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Instance instance = draw_instance();
    instance.transition_ps.clear();  // its tables would lose a row with the option
    const Solution s = solve_instance(instance);
    RC_PRE(s.status == Status::kOptimal);
    const auto layer = *rc::gen::inRange<std::size_t>(0, instance.layers.size());
    const auto choice = static_cast<std::ptrdiff_t>(s.choices[layer]);
    Instance fixed = instance, without = instance;
    fixed.layers[layer] = {instance.layers[layer][static_cast<std::size_t>(choice)]};
    RC_ASSERT(time_of(fixed) == s.time_ps);
    draws.asserts(instance.layers[layer].size() > 1);
    if (instance.layers[layer].size() == 1) return;
    without.layers[layer].erase(without.layers[layer].begin() + choice);
    const auto other = time_of(without);
    RC_ASSERT((!other || *other >= s.time_ps));
  });
}

}  // namespace
}  // namespace orrery::search
