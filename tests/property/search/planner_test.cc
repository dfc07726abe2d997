// Laws of find_plan: room and freedom never hurt, answers do not depend on threads, everything it
// emits is correct.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "search/loop/planner.h"
#include "tests/support/law.h"
#include "tests/unit/search/checked_answer.h"
#include "tests/unit/search/tiny_fixture.h"

namespace orrery::search {
namespace {

struct Case {
  int devices, layers;
  std::int64_t memory_bytes, global_batch;
  Space space;
};

Case draw_case() {
  Case c{};
  c.devices = *rc::gen::element(1, 2, 4);
  c.layers = *rc::gen::inRange(1, 5);
  c.memory_bytes = *rc::gen::inRange<std::int64_t>(10, 100) * 1'000'000;
  c.global_batch = *rc::gen::element<std::int64_t>(1, 4, 6);
  c.space.zero1 = *rc::gen::arbitrary<bool>();
  c.space.zero3 = *rc::gen::arbitrary<bool>();
  c.space.recompute_full = *rc::gen::arbitrary<bool>();
  c.space.sequence_parallel = *rc::gen::arbitrary<bool>();
  c.space.pipeline = *rc::gen::arbitrary<bool>();
  c.space.interleaved = *rc::gen::arbitrary<bool>();
  c.space.zero_bubble = *rc::gen::arbitrary<bool>();
  c.space.idle = *rc::gen::arbitrary<bool>();
  return c;
}

PlanAnswer answer_of(const Case& c, int threads = 1) {
  const costmodel::CostModel cost = tiny_cost(c.devices, c.layers);
  PlanRequest request;
  request.cluster = "tiny";
  request.memory_bytes = c.memory_bytes;
  request.global_batch = c.global_batch;
  request.space = c.space;
  request.threads = threads;
  request.top = 4;
  auto answer = find_plan(cost, request);
  RC_ASSERT(answer.has_value());
  RC_ASSERT(checkers_fault(cost, *answer).empty());
  return *std::move(answer);
}

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();
/// What is proved of an answer: no plan of its space is faster. A budget answer (planner.h) proves
/// its bound.
std::int64_t proved(const PlanAnswer& a) {
  if (a.status == Status::kInfeasible) return kNothing;
  return a.status == Status::kOptimal ? a.certificate.cost_ps : a.certificate.bound_ps;
}
/// The plan it found.
std::int64_t found(const PlanAnswer& a) {
  return a.candidates.empty() ? kNothing : a.certificate.cost_ps;
}

TEST(FindPlan, MoreMemoryIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const std::int64_t before = found(answer_of(c));
    draws.asserts(before != kNothing);
    c.memory_bytes += *rc::gen::inRange<std::int64_t>(0, 20) * 1'000'000;
    RC_ASSERT(proved(answer_of(c)) <= before);
  });
}

TEST(FindPlan, ALargerSpaceIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    const std::int64_t before = found(answer_of(c));
    draws.asserts(before != kNothing);
    c.space.zero1 = c.space.zero3 = c.space.recompute_full = c.space.sequence_parallel =
        c.space.pipeline = true;
    c.space.interleaved = c.space.zero_bubble = c.space.idle = true;
    RC_ASSERT(proved(answer_of(c)) <= before);
  });
}

TEST(FindPlan, OneMoreDeviceIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    c.space.idle = true;
    c.devices = *rc::gen::inRange(1, 8);
    const std::int64_t before = found(answer_of(c));
    draws.asserts(before != kNothing);
    ++c.devices;
    RC_ASSERT(proved(answer_of(c)) <= before);
  });
}

TEST(FindPlan, OneMoreHostIsNeverSlower) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    Case c = draw_case();
    c.space.idle = true;
    const auto answer_on = [&](std::uint32_t hosts) {
      const auto cost = costmodel::CostModel::make(
          tiny_model(c.layers), topologies::catalog_topology("rtx-titan-pcie", hosts).value(),
          std::nullopt, {model::Precision::kBFloat16, 128});
      PlanRequest request;
      request.cluster = "rtx-titan-pcie";
      request.hosts = static_cast<int>(hosts);
      request.memory_bytes = c.memory_bytes + cost->context_bytes();
      request.global_batch = c.global_batch;
      request.space = c.space;
      request.top = 1;
      auto answer = find_plan(*cost, request);
      RC_ASSERT(answer.has_value());
      return *std::move(answer);
    };
    const auto hosts = *rc::gen::inRange<std::uint32_t>(1, 3);
    const std::int64_t before = found(answer_on(hosts));
    draws.asserts(before != kNothing);
    RC_ASSERT(proved(answer_on(hosts + 1)) <= before);
  });
}

RC_GTEST_PROP(FindPlan, ThreadsDoNotChangeTheAnswer, ()) {
  const Case c = draw_case();
  const PlanAnswer one = answer_of(c, 1), two = answer_of(c, 2);
  RC_ASSERT(one.status == two.status);
  RC_ASSERT(one.states == two.states);
  RC_ASSERT(one.order_changes == two.order_changes);
  RC_ASSERT(one.pruned.size() == two.pruned.size());
  RC_ASSERT(one.candidates.size() == two.candidates.size());
  for (std::size_t i = 0; i < one.candidates.size(); ++i) {
    RC_ASSERT(plan::to_json(one.candidates[i].plan) == plan::to_json(two.candidates[i].plan));
    RC_ASSERT(one.candidates[i].report.fingerprint == two.candidates[i].report.fingerprint);
  }
}

TEST(FindPlan, EveryCandidateIsValidChecksAndFits) {
  tests::expect_law({.least_share = 0.5}, [](tests::Draws& draws) {
    const Case c = draw_case();
    const PlanAnswer answer = answer_of(c);
    const model::ModelSpec model = tiny_model(c.layers);
    draws.asserts(!answer.candidates.empty());
    for (const Candidate& candidate : answer.candidates) {
      RC_ASSERT(plan::validate(candidate.plan, model).empty());
      const auto program = plan::lower(candidate.plan, model);
      RC_ASSERT(program.has_value());
      RC_ASSERT(plan::check(*program).empty());
      for (const sim::StageReport& stage : candidate.report.stages)
        RC_ASSERT(stage.peak_memory_bytes <= c.memory_bytes);
    }
    RC_ASSERT(std::ranges::is_sorted(answer.candidates, {},
                                     [](const Candidate& a) { return a.report.step_time_ps; }));
    for (const Pruned& pruned : answer.pruned) RC_ASSERT(!pruned.text.empty());
    if (answer.status == Status::kInfeasible) RC_ASSERT(answer.shortfall_bytes > 0);
  });
}

}  // namespace
}  // namespace orrery::search
