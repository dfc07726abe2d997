// Acceptance of the executor: in fp32, every plan's losses over 30 AdamW steps are those of one
// process to 1e-6, and the bytes counted on its ranks are those that the Program states, to 5 %. A
// few steps more in an arena have the same losses; there gaps between its 512 bytes, and what
// LibTorch makes beside it, are a good part of a model as small as these.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "costmodel/cost_model.h"
#include "plan/check/check.h"
#include "plan/program/memory.h"
#include "plan_cases_fixture.h"
#include "sim/simulate.h"
#include "tests/support/rank_body.h"
#include "tests/unit/costmodel/machines.h"

namespace orrery::executor::testing {
namespace {

class Exactness : public ::testing::TestWithParam<std::string> {};

/// The simulator's order on a machine where communication never runs beside compute, of the ranks
/// that it simulates.
std::map<int, std::vector<std::string>> simulated_order(const plan::Program& program,
                                                        const model::ModelSpec& model) {
  // nothing takes no time
  const model::Profile profile{
      .name = "one thread for each rank", .overlaps = false, .launch_seconds = 1e-6};
  const auto cost = costmodel::CostModel::make(
                        model, costmodel::machines::with_processor(program.world_size), profile,
                        {.precision = model::Precision::kFloat32, .sequence = program.sequence})
                        .value();
  return order_of(program, sim::simulate(program, cost, {.timeline = true}).value().timeline);
}

void expect_the_simulated_order(const PlanCase& c, const std::string& family,
                                const Curve& together) {
  SCOPED_TRACE(family);
  const model::ModelSpec model = model_of(c, family);
  const auto simulated = simulated_order(lowered(c, model), model);
  EXPECT_FALSE(simulated.empty());
  for (const auto& [rank, order] : simulated) {
    ASSERT_TRUE(together.order.contains(rank));
    EXPECT_EQ(together.order.at(rank), order) << "rank " << rank;
  }
}

void expect_like_one_process(const PlanCase& c, const std::string& family, const Curve& together) {
  SCOPED_TRACE(family);
  const model::ModelSpec model = model_of(c, family);
  const plan::Program program = lowered(c, model);
  const auto faults = plan::check(program);
  ASSERT_TRUE(faults.empty()) << faults.front().message;
  const Curve alone = train_alone(model);
  EXPECT_LT(alone.losses.back(), 0.9 * alone.losses.front()) << "the model does not learn";
  const double difference = largest_relative_difference(together.losses, alone.losses);
  EXPECT_LE(difference, 1e-6);
  double memory = 0;
  for (std::size_t stage = 0; stage < program.classes.size(); ++stage) {
    const auto stated =
        static_cast<double>(plan::static_memory(program, program.classes[stage]).peak_bytes);
    const double error = (static_cast<double>(together.peak_memory_bytes[stage]) - stated) / stated;
    EXPECT_NEAR(error, 0, 0.05) << "stage " << stage << ": " << together.peak_memory_bytes[stage]
                                << " counted, " << stated << " stated";
    if (std::abs(error) > std::abs(memory)) memory = error;
  }
  std::printf("%-34s %-6s loss %.1e memory %+.2f%%\n", c.name.c_str(), family.c_str(), difference,
              100 * memory);
}

TEST_P(Exactness, LossesEqualOneProcessBytesTheProgramAndOrderTheSimulator) {
  const PlanCase& c = plan_case(GetParam());
  const std::vector<Curve> curves = train_ranks(c);
  ASSERT_EQ(curves.size(), kFamilies.size());
  for (std::size_t i = 0; i < curves.size(); ++i) {
    expect_like_one_process(c, kFamilies[i], curves[i]);
    expect_the_simulated_order(c, kFamilies[i], curves[i]);
    const Curve alone = train_alone(model_of(c, kFamilies[i]));
    EXPECT_LE(difference_of_first(curves[i].in_arena, alone.losses), 1e-6) << kFamilies[i];
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const PlanCase& c : plan_cases()) all.push_back(c.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Plans, Exactness, ::testing::ValuesIn(names()),
                         [](const auto& tested) { return tested.param; });

// Pipelines and recomputation only move work about: not a bit may change.
TEST(Exactness, PipelineWithRecomputationIsBitExact) {
  const std::vector<Curve> plain = train_ranks(plan_case("pp2_1f1b")),
                           replayed = train_ranks(plan_case("pp2_gpipe_recompute"));
  ASSERT_EQ(plain.size(), replayed.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(plain[i].losses, replayed[i].losses) << kFamilies[i];
}

// Nor do schedules change what is added to what: micro-batches contribute in their order, weight
// gradients apart or not. In a V a tied table has one gradient, to which head and embedding add in
// turn, not one on each of two ranks.
TEST(Exactness, SchedulesAreBitExact) {
  const std::vector<Curve> plain = train_ranks(plan_case("pp2_1f1b"));
  for (const std::string other : {"pp2_interleaved", "pp2_zb_h1", "pp2_zb_v", "pp2_dualpipe_v"}) {
    const std::vector<Curve> curves = train_ranks(plan_case(other));
    ASSERT_EQ(plain.size(), curves.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (other.ends_with("_v") && model_of(plan_case(other), kFamilies[i]).tied_embeddings) {
        EXPECT_LE(largest_relative_difference(curves[i].losses, plain[i].losses), 1e-6);
      } else {
        EXPECT_EQ(plain[i].losses, curves[i].losses) << other << " " << kFamilies[i];
      }
    }
  }
}

// Not a test of its own: what each rank of train_ranks runs.
RANK_BODY(Rank, Trains) {
  find_for_cases([](const std::string& name) {
    RunOptions options = training();
    options.backend = "mpi";
    options.timeline = true;
    options.joins = true;  // in all steps but the last, which is recorded
    RunOptions in_arena = options;
    in_arena.steps = steps_together();
    in_arena.arena = true;
    base::Json out;
    for (const char* family : kFamilies) {
      const PlanCase& c = plan_case(name);
      const plan::Program program = lowered(c, model_of(c, family));
      const auto trained = [&](const RunOptions& how) {
        base::Result<RunReport> report = run(program, how);
        if (!report) throw std::runtime_error(base::to_string(report.error()));
        return *std::move(report);
      };
      const auto losses_of = [](const RunReport& report) {
        std::vector<double> losses;
        for (const StepResult& s : report.steps) losses.push_back(s.loss);
        return losses;
      };
      const RunReport report = trained(options);
      out[family] = {{"losses", losses_of(report)},
                     {"in_arena", losses_of(trained(in_arena))},
                     {"peaks", report.peak_memory_bytes},
                     {"order", order_of(program, report.timeline)}};
    }
    return out;
  });
}

}  // namespace
}  // namespace orrery::executor::testing
