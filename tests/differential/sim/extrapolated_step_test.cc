/// A step of few micro-batches says how long one of many takes.
#include <gtest/gtest.h>

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

// 32 layers over five ranks and over three of five virtual stages: the first have more to do.
TEST(ExtrapolatedStep, OfRanksThatAreNotAlikeIsThatOfTwoShorterSteps) {
  constexpr double kError = 1e-3;  // search::kLookUnlikeErrorPpm
  const costmodel::CostModel cost = cost_on(1);
  const std::vector<plan::UniformOptions> shapes = {
      {.tp = 1, .pp = 5, .dp = 1},
      {.tp = 2, .pp = 3, .dp = 1, .zero = 1, .sequence_parallel = true, .tensor_pieces = 4},
      {.tp = 2, .pp = 3, .dp = 1, .schedule = Schedule::kInterleaved, .virtual_stages = 5}};
  for (const plan::UniformOptions& shape : shapes) {
    const std::int64_t p = shape.pp;
    const auto program = [&](std::int64_t times) { return program_of(cost, shape, times * p); };
    const plan::Program few = program(4), more = program(8);
    const auto said = [&](std::int64_t times) {
      return extrapolated_step_ps(few, more, cost, times * p).value();
    };
    const double whole = real(simulated_step_ps(program(48), cost).value().value());
    EXPECT_NEAR(real(said(48)), whole, kError * whole) << "pp" << p;
  }
}

// Layers of other kinds, an encoder before a decoder, and strategies that differ by stage.
TEST(ExtrapolatedStep, OfOtherKindsOfPipelinesIsThatOfTwoShorterSteps) {
  constexpr double kError = 1e-3;  // search::kLookUnlikeErrorPpm
  const auto topology = topologies::catalog_topology("dgx-h100", 1).value();
  for (const char* name : {"t5-large", "deepseek-v2-lite", "gemma-2-9b"}) {
    const auto model = model::find_model(name).value();
    const auto cost =
        costmodel::CostModel::make(model, topology, std::nullopt,
                                   {.precision = model::Precision::kBFloat16, .sequence = 512})
            .value();
    const auto program = [&](std::int64_t times) {
      const plan::UniformOptions options{.pp = 4,
                                         .dp = 2,
                                         .zero = 1,
                                         .global_batch = 2 * 4 * times,
                                         .sequence = 512,
                                         .uneven_stages = true};
      plan::Plan plan = plan::uniform_plan(model, "dgx-h100", 1, options).value();
      plan.stages.front().runs.front().strategy.recompute = plan::Recompute::kFull;
      return plan::lower(plan, model).value();
    };
    const double whole = real(simulated_step_ps(program(48), cost).value().value());
    const double said = real(extrapolated_step_ps(program(4), program(8), cost, 4 * 48).value());
    EXPECT_NEAR(said, whole, kError * whole) << name;
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
