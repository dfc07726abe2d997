/// A step of few micro-batches says how long one of many takes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/numbers.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "sim/simulate.h"
#include "topologies/topology.h"

namespace orrery::sim {
namespace {

using plan::Schedule;

constexpr std::int64_t kSequence = 4096;

/// As Megatron-Core on H100: overlap slows computing, tensor collectives run in pieces.
costmodel::CostModel cost_on(std::uint32_t hosts) {
  model::Profile profile;
  profile.name = "overlap";
  profile.overlap_slowdown = 1.1;
  return costmodel::CostModel::make(model::find_model("llama-2-7b").value(),
                                    topologies::catalog_topology("dgx-h100", hosts).value(),
                                    profile, {model::Precision::kBFloat16, kSequence})
      .value();
}

plan::Program program_of(const costmodel::CostModel& cost, plan::UniformOptions options,
                         std::int64_t micro_batches) {
  options.global_batch = options.dp * micro_batches;
  options.sequence = kSequence;
  options.uneven_stages = true;
  const plan::Plan plan = plan::uniform_plan(cost.model(), "dgx-h100", 1, options).value();
  return plan::lower(plan, cost.model()).value();
}

std::vector<plan::UniformOptions> shapes() {
  return {{.tp = 2, .pp = 1, .dp = 4, .zero = 3, .sequence_parallel = true, .tensor_pieces = 4},
          {.tp = 1, .pp = 1, .dp = 8, .zero = 2},
          {.tp = 2, .pp = 2, .dp = 2, .zero = 1},
          {.tp = 2, .pp = 4, .dp = 1},
          {.tp = 1,
           .pp = 4,
           .dp = 2,
           .zero = 1,
           .schedule = Schedule::kInterleaved,
           .virtual_stages = 4},
          {.tp = 2,
           .pp = 2,
           .dp = 2,
           .zero = 3,
           .sequence_parallel = true,
           .grad_reduce = plan::GradReduce::kMicroBatch,
           .tensor_pieces = 4,
           .schedule = Schedule::kInterleaved,
           .virtual_stages = 5}};
}

TEST(ExtrapolatedStep, OfNoMoreMicroBatchesIsTheStep) {
  const costmodel::CostModel cost = cost_on(1);
  for (const plan::UniformOptions& shape : shapes()) {
    const plan::Program few = program_of(cost, shape, 2 * shape.pp);
    EXPECT_EQ(extrapolated_step_ps(few, cost, 2 * shape.pp).value(),
              simulated_step_ps(few, cost).value());
  }
}

TEST(ExtrapolatedStep, OfManyMicroBatchesIsAboutTheirStep) {
  constexpr double kError = 5e-4;  // search::kLookErrorPpm
  const costmodel::CostModel cost = cost_on(1);
  for (const plan::UniformOptions& shape : shapes()) {
    const plan::Program few = program_of(cost, shape, 2 * shape.pp);
    for (const std::int64_t times : {4, 7}) {
      const double whole =
          real(simulated_step_ps(program_of(cost, shape, times * shape.pp), cost).value().value());
      EXPECT_NEAR(real(extrapolated_step_ps(few, cost, times * shape.pp).value()), whole,
                  kError * whole)
          << "pp" << shape.pp << " times " << times;
    }
  }
}

/// How far two shorter steps are from a step of 48 micro-batches a rank, as a share of it.
template <class ProgramOf>
double error_of_two(const costmodel::CostModel& cost, std::int64_t ranks,
                    const ProgramOf& program_of_times) {
  constexpr std::int64_t kTimes = 48;
  const double whole = real(simulated_step_ps(program_of_times(kTimes), cost).value().value());
  return real(extrapolated_step_ps(program_of_times(4), program_of_times(8), cost, kTimes * ranks)
                  .value()) /
             whole -
         1;
}
constexpr double kTwoStepsError = 1e-3;  // search::kLookUnlikeErrorPpm

// 32 layers over five ranks and over three of five virtual stages: the first have more to do.
TEST(ExtrapolatedStep, OfRanksThatAreNotAlikeIsThatOfTwoShorterSteps) {
  const costmodel::CostModel cost = cost_on(1);
  const std::vector<plan::UniformOptions> shapes = {
      {.tp = 1, .pp = 5, .dp = 1},
      {.tp = 2, .pp = 3, .dp = 1, .zero = 1, .sequence_parallel = true, .tensor_pieces = 4},
      {.tp = 2, .pp = 3, .dp = 1, .schedule = Schedule::kInterleaved, .virtual_stages = 5}};
  for (const plan::UniformOptions& shape : shapes) {
    const double error = error_of_two(cost, shape.pp, [&](std::int64_t times) {
      return program_of(cost, shape, times * shape.pp);
    });
    fmt::print("llama-2-7b, slowed, pp{}: {:+.3f} %\n", shape.pp, 100 * error);
    EXPECT_LE(std::abs(error), kTwoStepsError) << "pp" << shape.pp;
  }
}

// Blocks of several kinds, an encoder before a decoder, a first stage that recomputes, and layers
// that the ranks do not divide.
TEST(ExtrapolatedStep, OfOtherPipelinesIsThatOfTwoShorterSteps) {
  constexpr std::int64_t kTokens = 512;
  struct Case {
    const char *model, *cluster;
    int hosts;
    plan::UniformOptions options;
    bool first_recomputes = false;
  };
  const std::vector<Case> cases = {
      {"t5-large", "dgx-h100", 1, {.pp = 4, .dp = 2, .zero = 1}, true},
      {"deepseek-v2-lite", "dgx-h100", 1, {.pp = 4, .dp = 2, .zero = 1}, true},
      {"gemma-2-9b", "dgx-h100", 1, {.pp = 4, .dp = 2, .zero = 1}, true},
      {"bloom", "dgx-h100", 8, {.tp = 8, .pp = 8}},
      {"bloom", "dgx-h100", 8, {.tp = 8, .pp = 4, .dp = 2, .zero = 1}},
      {"bloom", "mi300x", 8, {.tp = 8, .pp = 8}},
      {"llama-3-405b", "dgx-h100", 16, {.tp = 8, .pp = 16}},
      {"llama-2-7b", "rtx-titan-pcie", 2, {.pp = 5, .dp = 3, .zero = 1}},
      {"mixtral-8x7b", "dgx-h100", 4, {.pp = 5, .dp = 4, .ep = 4, .zero = 1}}};
  for (const Case& c : cases) {
    const auto model = model::find_model(c.model).value();
    const auto cost =
        costmodel::CostModel::make(
            model,
            topologies::catalog_topology(c.cluster, static_cast<std::uint32_t>(c.hosts)).value(),
            std::nullopt, {.precision = model::Precision::kBFloat16, .sequence = kTokens})
            .value();
    const double error = error_of_two(cost, c.options.pp, [&](std::int64_t times) {
      plan::UniformOptions options = c.options;
      options.global_batch = options.dp * options.pp * times;
      options.sequence = kTokens;
      options.uneven_stages = true;
      plan::Plan plan = plan::uniform_plan(model, c.cluster, c.hosts, options).value();
      if (c.first_recomputes)
        plan.stages.front().runs.front().strategy.recompute = plan::Recompute::kFull;
      return plan::lower(plan, model).value();
    });
    fmt::print("{} on {}, pp{}: {:+.3f} %\n", c.model, c.cluster, c.options.pp, 100 * error);
    EXPECT_LE(std::abs(error), kTwoStepsError) << c.model << " on " << c.cluster;
  }
}

void expect_near(const StepEnergy& got, const StepEnergy& whole) {
  constexpr double kError = 5e-4;
  const double joules = kError * whole.total();
  for (std::size_t kind = 0; kind < got.devices.size(); ++kind)
    EXPECT_NEAR(got.devices[kind], whole.devices[kind], joules) << "kind " << kind;
  for (const auto part : {&StepEnergy::idle, &StepEnergy::hosts, &StepEnergy::fabric})
    EXPECT_NEAR(got.*part, whole.*part, joules);
  EXPECT_NEAR(got.joules_per_token, whole.joules_per_token, kError * whole.joules_per_token);
  for (const auto power : {&StepEnergy::device, &StepEnergy::host, &StepEnergy::cluster}) {
    EXPECT_NEAR((got.*power).mean, (whole.*power).mean, kError * (whole.*power).mean);
    EXPECT_NEAR((got.*power).most, (whole.*power).most, 0.01 * (whole.*power).most);
  }
}

/// A field of a stage is a share of the step to one in two thousand.
TEST(ExtrapolatedReport, OfTwoShorterStepsIsAboutThatOfTheLongOne) {
  constexpr double kError = 5e-4;
  const costmodel::CostModel cost = cost_on(1);
  for (const plan::UniformOptions& shape : shapes()) {
    const std::int64_t p = shape.pp, m = 50 * p + p / 2 * 2;
    const SimReport whole = simulate(program_of(cost, shape, m), cost, {.energy = true}).value();
    const SimReport got = extrapolated_report(program_of(cost, shape, 8 * p),
                                              program_of(cost, shape, 16 * p), cost, m, true)
                              .value();
    expect_near(*got.energy, *whole.energy);
    const double error = kError * real(whole.step_time_ps);
    EXPECT_EQ(got.simulated_micro_batches, 16 * p);
    EXPECT_NEAR(real(got.step_time_ps), real(whole.step_time_ps), error) << "pp" << p;
    EXPECT_NEAR(got.tokens_per_s, whole.tokens_per_s, kError * whole.tokens_per_s);
    EXPECT_NEAR(got.mfu, whole.mfu, kError * whole.mfu);
    EXPECT_NEAR(got.bubble_fraction, whole.bubble_fraction, kError);
    EXPECT_NEAR(got.exposed_communication_fraction, whole.exposed_communication_fraction, kError);
    ASSERT_EQ(got.stages.size(), whole.stages.size());
    for (std::size_t s = 0; s < got.stages.size(); ++s) {
      const StageReport &a = got.stages[s], &b = whole.stages[s];
      EXPECT_EQ(std::accumulate(a.parts.begin(), a.parts.end(), std::int64_t{0}), got.step_time_ps);
      for (std::size_t part = 0; part < a.parts.size(); ++part)
        EXPECT_NEAR(real(a.parts[part]), real(b.parts[part]), error)
            << "pp" << p << " part " << part;
      EXPECT_NEAR(real(a.busy_compute_ps), real(b.busy_compute_ps), error);
      EXPECT_NEAR(real(a.idle_ps), real(b.idle_ps), error);
      EXPECT_EQ(a.peak_memory_bytes, b.peak_memory_bytes);
      EXPECT_EQ(a.memory_at_peak, b.memory_at_peak);
    }
  }
}

}  // namespace
}  // namespace orrery::sim
