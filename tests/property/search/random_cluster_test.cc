// Laws of find_plan on random clusters: one or two hosts, random rates, latencies, models, batches
// and spaces. A better machine, more room or more freedom is never slower. What a search proved on
// the better machine is held against what it found on the other.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "search/loop/planner.h"
#include "search/programs/pipeline_program.h"
#include "tests/oracle/search/real_options.h"
#include "tests/support/law.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {
namespace {

struct Case {
  Machine machine;
  model::ModelSpec model;
  PlanRequest request;
};

Case draw_case() {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  Case c;
  c.machine = random_machine(rng, 8);
  c.model =
      block_kind(static_cast<int>(rng.below(kBlockKinds)), static_cast<int>(between(rng, 1, 6)));
  c.request.cluster = "random";
  c.request.hosts = c.machine.hosts;
  c.request.global_batch = c.machine.devices() * between(rng, 1, 3);
  c.request.memory_bytes = between(rng, 10, 200) * 1'000'000;
  c.request.space = random_space(rng);
  c.request.top = 1;
  c.request.relax = false;
  return c;
}

PlanAnswer answer_of(const Case& c) {
  auto answer = find_plan(cost_of(c.machine, c.model), c.request);
  RC_ASSERT(answer.has_value());
  return *std::move(answer);
}

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();
/// No plan of the space is faster.
std::int64_t proved(const PlanAnswer& a) {
  return a.candidates.empty() ? (a.status == Status::kInfeasible ? kNothing : 0)
                              : a.certificate.bound_ps;
}
/// A plan of the space is as fast.
std::int64_t found(const PlanAnswer& a) {
  return a.candidates.empty() ? kNothing : a.certificate.cost_ps;
}

TEST(RandomCluster, MoreMemoryIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer before = answer_of(c);
    c.request.memory_bytes += *rc::gen::inRange<std::int64_t>(0, 30'000'000);
    const PlanAnswer after = answer_of(c);
    draws.asserts(found(before) != kNothing);
    RC_ASSERT(proved(after) <= found(before));
  });
}

TEST(RandomCluster, MoreBandwidthIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer before = answer_of(c);
    c.machine.link_bytes_per_second += *rc::gen::inRange<std::int64_t>(0, 100'000'000'000);
    c.machine.card_bytes_per_second += *rc::gen::inRange<std::int64_t>(0, 100'000'000'000);
    const PlanAnswer after = answer_of(c);
    draws.asserts(found(before) != kNothing);
    RC_ASSERT(proved(after) <= found(before));
  });
}

TEST(RandomCluster, FasterDevicesAreNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer before = answer_of(c);
    c.machine.gigaflops += *rc::gen::inRange<std::int64_t>(0, 100'000);
    c.machine.memory_bytes_per_second += *rc::gen::inRange<std::int64_t>(0, 2'000'000'000'000);
    const PlanAnswer after = answer_of(c);
    draws.asserts(found(before) != kNothing);
    RC_ASSERT(proved(after) <= found(before));
  });
}

TEST(RandomCluster, LessLatencyIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer before = answer_of(c);
    c.machine.latency_ns = *rc::gen::inRange<std::int64_t>(0, c.machine.latency_ns + 1);
    c.machine.launch_ns = *rc::gen::inRange<std::int64_t>(0, c.machine.launch_ns + 1);
    const PlanAnswer after = answer_of(c);
    draws.asserts(found(before) != kNothing);
    RC_ASSERT(proved(after) <= found(before));
  });
}

TEST(RandomCluster, ALargerSpaceIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer before = answer_of(c);
    Space& s = c.request.space;
    for (bool* on : {&s.data, &s.zero1, &s.zero2, &s.zero3, &s.tensor, &s.sequence_parallel,
                     &s.pipeline, &s.recompute_full, &s.recompute_selective, &s.hybrid, &s.ring,
                     &s.ulysses, &s.strided, &s.expert, &s.reduce_per_micro_batch,
                     &s.reduce_per_step, &s.reduce_at_end, &s.tensor_alone, &s.recompute_none}) {
      *on = *on || *rc::gen::arbitrary<bool>();
    }
    const PlanAnswer after = answer_of(c);
    draws.asserts(found(before) != kNothing);
    RC_ASSERT(proved(after) <= found(before));
  });
}

// Times are k times as long before they are rounded up: ceil(k x) <= k ceil(x).
TEST(RandomCluster, AMachineThatIsSlowerInEverythingIsAsMuchSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const auto k = *rc::gen::inRange<std::int64_t>(2, 6);
    for (std::int64_t* rate : {&c.machine.link_bytes_per_second, &c.machine.card_bytes_per_second,
                               &c.machine.gigaflops, &c.machine.memory_bytes_per_second}) {
      *rate *= k;
    }
    const PlanAnswer fast = answer_of(c);
    for (std::int64_t* rate : {&c.machine.link_bytes_per_second, &c.machine.card_bytes_per_second,
                               &c.machine.gigaflops, &c.machine.memory_bytes_per_second}) {
      *rate /= k;
    }
    c.machine.latency_ns *= k;
    c.machine.launch_ns *= k;
    const PlanAnswer slow = answer_of(c);
    RC_ASSERT((found(fast) == kNothing) == (found(slow) == kNothing));
    draws.asserts(found(fast) != kNothing);
    if (found(fast) == kNothing) return;
    RC_ASSERT(proved(slow) <= k * found(fast));
    // Each of some ten thousand operations at most is rounded by less than a picosecond.
    RC_ASSERT(k * (proved(fast) - 10'000) <= found(slow));
  });
}

RC_GTEST_PROP(RandomCluster, ScalingAllTimesOfAPipelineScalesItsOptimum, ()) {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  RealMachine machine(rng);
  for (int n = 0; n < 2; ++n) {
    PipelineProblem p = real_pipeline(rng, machine, {.layers = 12, .layouts = 4, .options = 8});
    set_budgets(rng, p);
    Effort effort;
    const auto before = solve_pipeline(p, kForbidden, effort);
    const std::int64_t k = between(rng, 2, 1000);
    for (PipelineStage& stage : p.stages) {
      for (LayerOption& o : stage.layers.options) {
        o.steady_ps *= k;
        o.once_ps *= k;
      }
      for (auto* times :
           {&stage.layers.transition_ps, &stage.layers.entry_ps, &stage.layers.exit_ps,
            &stage.send_ps, &stage.receive_ps, &stage.return_ps}) {
        for (std::int64_t& ps : *times) ps *= k;
      }
      stage.steady_ps *= k;
      stage.once_ps *= k;
    }
    const auto after = solve_pipeline(p, kForbidden, effort);
    RC_ASSERT(before.has_value() == after.has_value());
    RC_ASSERT((!before || after->cost_ps == k * before->cost_ps));
  }
}

// The space is the union of its pipeline degrees and micro-batches.
TEST(RandomCluster, TheOptimumIsTheBestOfItsParts) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const PlanAnswer whole = answer_of(c);
    std::int64_t best_proved = kNothing;
    for (int pp = 1; pp <= c.machine.devices(); pp *= 2) {
      for (std::int64_t m = 1; m <= c.request.global_batch; ++m) {
        if (c.request.global_batch % m != 0) continue;
        Case part = c;
        part.request.space.fix_pp = pp;
        part.request.space.fix_micro_batches = m;
        const PlanAnswer answer = answer_of(part);
        RC_ASSERT(proved(whole) <= found(answer));
        best_proved = std::min(best_proved, proved(answer));
      }
    }
    draws.asserts(found(whole) != kNothing);
    RC_ASSERT(best_proved <= found(whole));
  });
}

}  // namespace
}  // namespace orrery::search
