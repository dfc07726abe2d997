#include "costmodel/coverage.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/lowering/lower.h"
#include "plan/program/plan.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::costmodel {
namespace {

plan::Program program_of(const plan::UniformOptions& options) {
  const model::ModelSpec model = model::find_model("llama-tiny").value();
  return plan::lower(plan::uniform_plan(model, "test", 1, options).value(), model).value();
}

Coverage coverage(const plan::Program& program, const std::optional<model::Profile>& profile) {
  const model::ModelSpec model = model::find_model("llama-tiny").value();
  return coverage_of(CostModel::make(model, machines::cluster(1), profile, {}).value(),
                     std::span(&program, 1));
}

double share(const Coverage& c, PriceSource source) {
  return c.compute[static_cast<std::size_t>(source)];
}

/// Every operation of a Program, as if measured.
model::Profile measured(const plan::Program& program) {
  model::Profile profile{.name = "all"};
  for (const plan::Template& t : program.templates) {
    for (const plan::Op& op : t.ops) {
      if (op.kind != plan::OpKind::kCompute) continue;
      profile.operators.push_back({.shape = program.segments[op.segment],
                                   .phase = op.phase,
                                   .seconds_median = 1e-3,
                                   .seconds_p10 = 1e-3,
                                   .seconds_p90 = 1e-3,
                                   .samples = 1});
    }
  }
  return profile;
}

TEST(Coverage, WithoutAProfileAllIsFromTheDatasheet) {
  const Coverage c = coverage(program_of({}), std::nullopt);
  EXPECT_NEAR(share(c, PriceSource::kRoofline), 1, 1e-9);
  EXPECT_TRUE(c.beyond.empty());
  EXPECT_TRUE(c.unmeasured.empty());
}

TEST(Coverage, WhatWasMeasuredIsExact) {
  const plan::Program program = program_of({});
  const Coverage c = coverage(program, measured(program));
  EXPECT_GT(share(c, PriceSource::kMeasured), 0.999);  // sums in fp32 have no point in bf16
  EXPECT_NEAR(std::accumulate(c.compute.begin(), c.compute.end(), 0.0), 1, 1e-6);
}

TEST(Coverage, MoreSequencesThanMeasuredLieBeyondAndFewerBetween) {
  const plan::Program one = program_of({.micro_batch = 1, .global_batch = 4}),
                      two = program_of({.micro_batch = 2, .global_batch = 4}),
                      four = program_of({.micro_batch = 4, .global_batch = 4});
  const Coverage beyond = coverage(four, measured(one));
  EXPECT_GT(share(beyond, PriceSource::kBeyond), 0.9);
  ASSERT_FALSE(beyond.beyond.empty());
  EXPECT_GE(beyond.beyond.front().share, beyond.beyond.back().share);
  model::Profile both = measured(one);
  const model::Profile larger = measured(four);
  both.operators.insert(both.operators.end(), larger.operators.begin(), larger.operators.end());
  const Coverage between = coverage(two, both);
  EXPECT_GT(share(between, PriceSource::kBetween), 0.9);
  EXPECT_LT(share(between, PriceSource::kBeyond), 0.01);
}

TEST(Coverage, CollectivesWithoutTimesAreCounted) {
  const plan::Program program = program_of({.tp = 2, .global_batch = 4});
  model::Profile profile = measured(program);
  const Coverage none = coverage(program, profile);
  ASSERT_FALSE(none.unmeasured.empty());
  EXPECT_EQ(none.unmeasured.front().size, 2);
  EXPECT_GT(none.unmeasured.front().operations, 0);
  for (const auto& u : none.unmeasured)
    profile.collectives.push_back({.op = u.op, .size = u.size, .bus_bandwidth = 1e10});
  EXPECT_TRUE(coverage(program, profile).unmeasured.empty());
}

}  // namespace
}  // namespace orrery::costmodel
