// The answer of the planner against every uniform plan of five problems: one strategy for
// all layers, layers spread evenly, every degree, schedule, number of virtual stages, micro-batch,
// ZeRO stage, recomputation. Each is lowered and simulated; none that fits is faster than the
// answer by more than 0.1 %. The experiment experiments/answers does the same by the command line
// for larger problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "costmodel/cost_model.h"
#include "costmodel/profiles/profiles.h"
#include "plan/lowering/lower.h"
#include "plan/program/plan.h"
#include "search/loop/planner.h"
#include "sim/simulate.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

using plan::Recompute;
using plan::Schedule;

/// Share of the answer's step time by which a uniform plan may be faster.
constexpr double kBar = 0.001;

struct Problem {
  std::string model, cluster;
  int hosts = 1;
  std::int64_t global_batch = 0, sequence = 0;
  int ep = 1;             // experts, where a block has some
  bool v_shaped = false;  // with schedules of stages in a V
};

bool divides(std::int64_t degree, std::int64_t n) { return n % degree == 0; }

/// 1F1B, GPipe and ZB-H1, or the interleaved schedule with 2, 3, ... virtual stages.
void add_schedules(const plan::UniformOptions& o, std::int64_t layers,
                   std::vector<plan::UniformOptions>& out) {
  out.push_back(o);
  if (o.pp == 1) return;
  for (const Schedule s : {Schedule::kGPipe, Schedule::kZeroBubbleH1}) {
    out.push_back(o);
    out.back().schedule = s;
  }
  if (!divides(o.pp, o.global_batch / (o.dp * o.micro_batch))) return;
  for (int v = 2; o.pp * v <= layers; ++v) {
    out.push_back(o);
    out.back().schedule = Schedule::kInterleaved;
    out.back().virtual_stages = v;
  }
}

/// What layers may do with the degrees of `o`.
void add_strategies(const plan::UniformOptions& o, std::int64_t layers,
                    std::vector<plan::UniformOptions>& out) {
  for (int zero = 0; zero <= (o.dp > 1 ? 3 : 0); ++zero) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const bool sequence_parallel : {false, true}) {
        if (sequence_parallel && o.tp == 1) continue;
        plan::UniformOptions own = o;
        own.zero = zero;
        own.recompute = recompute;
        own.sequence_parallel = sequence_parallel;
        add_schedules(own, layers, out);
      }
    }
  }
}

/// Where 1F1B is possible, the schedules of two stages a rank in a V.
void add_v_shaped(std::int64_t layers, std::vector<plan::UniformOptions>& out) {
  for (std::size_t i = 0, n = out.size(); i < n; ++i) {
    if (out[i].schedule != Schedule::k1F1B || out[i].pp == 1 || 2 * out[i].pp > layers) continue;
    for (const Schedule s : {Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
      out.push_back(out[i]);
      out.back().schedule = s;
    }
  }
}

/// All uniform plans, those that no model or schedule allows among them.
std::vector<plan::UniformOptions> uniform_options(const Problem& p, int devices,
                                                  std::int64_t layers) {
  std::vector<plan::UniformOptions> out;
  for (int tp = 1; tp <= devices; ++tp) {
    for (int pp = 1; divides(tp, devices) && pp <= devices / tp; ++pp) {
      const int dp = devices / tp / pp;
      if (tp * pp * dp != devices || pp > layers || !divides(dp, p.global_batch)) continue;
      if (!divides(p.ep, dp)) continue;
      for (std::int64_t b = 1; b <= p.global_batch / dp; ++b) {
        if (!divides(dp * b, p.global_batch)) continue;
        plan::UniformOptions o;
        o.tp = tp;
        o.pp = pp;
        o.dp = dp;
        o.ep = p.ep;
        o.micro_batch = b;
        o.global_batch = p.global_batch;
        o.sequence = p.sequence;
        o.uneven_stages = true;
        add_strategies(o, layers, out);
      }
    }
  }
  if (p.v_shaped) add_v_shaped(layers, out);
  return out;
}

struct Sweep {
  int priced = 0;   // plans that were lowered and simulated
  int fitting = 0;  // of these, in the device's memory
  std::int64_t fastest_ps = 0;
  std::string fastest;
};

std::string describe(const plan::UniformOptions& o) {
  return fmt::format("tp{} pp{} dp{} ep{} zero{} micro-batch {} {} v{} recompute={}{}", o.tp, o.pp,
                     o.dp, o.ep, o.zero, o.micro_batch, plan::to_string(o.schedule),
                     o.virtual_stages, plan::to_string(o.recompute),
                     o.sequence_parallel ? " sp" : "");
}

/// Step time, or nothing: no plan, or more memory than the device has.
std::optional<std::int64_t> price(const plan::UniformOptions& o, const Problem& p,
                                  const costmodel::CostModel& cost, Sweep& sweep) {
  const auto plan = plan::uniform_plan(cost.model(), p.cluster, p.hosts, o);
  if (!plan) return std::nullopt;
  const auto program = plan::lower(*plan, cost.model());
  if (!program) return std::nullopt;
  const auto report = sim::simulate(*program, cost);
  EXPECT_TRUE(report.has_value()) << describe(o);
  if (!report) return std::nullopt;
  ++sweep.priced;
  const std::int64_t limit = cost.topology().device_model(0).memory_bytes;
  for (const sim::StageReport& stage : report->stages)
    if (stage.peak_memory_bytes > limit) return std::nullopt;
  ++sweep.fitting;
  return report->step_time_ps;
}

base::Result<costmodel::CostModel> cost_of(const Problem& p) {
  TRY(model::ModelSpec model, model::find_model(p.model));
  TRY(topologies::Topology topology,
      topologies::catalog_topology(p.cluster, static_cast<std::uint32_t>(p.hosts)));
  TRY(std::optional<model::Profile> profile, costmodel::device_profile(topology, model));
  TRY(auto library, costmodel::usual_library(topology));
  return costmodel::CostModel::make(model, std::move(topology), std::move(profile),
                                    {.precision = model::Precision::kBFloat16,
                                     .sequence = p.sequence,
                                     .library = std::move(library)});
}

Sweep sweep_of(const Problem& p, const costmodel::CostModel& cost) {
  Sweep sweep;
  const auto devices = static_cast<int>(cost.topology().device_count());
  for (const plan::UniformOptions& o : uniform_options(p, devices, cost.model().layers)) {
    const auto step_ps = price(o, p, cost, sweep);
    if (!step_ps || (sweep.fastest_ps > 0 && *step_ps >= sweep.fastest_ps)) continue;
    sweep.fastest_ps = *step_ps;
    sweep.fastest = describe(o);
  }
  return sweep;
}

PlanRequest request_of(const Problem& p) {
  PlanRequest request;
  request.cluster = p.cluster;
  request.hosts = p.hosts;
  request.global_batch = p.global_batch;
  request.space.zero_bubble_v = request.space.dual_pipe_v = p.v_shaped;
  return request;
}

/// The answer holds, and so many plans were priced and fit.
void expect_unbeaten(const Problem& p, int priced, int fitting) {
  const auto cost = cost_of(p);
  ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
  const auto answer = find_plan(*cost, request_of(p));
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  ASSERT_FALSE(answer->candidates.empty());
  const auto ours = answer->candidates.front().report.step_time_ps;
  const Sweep sweep = sweep_of(p, *cost);
  fmt::print("{} on {} x {}: answer {:.6f} s, fastest of {} uniform plans {:.6f} s ({})\n", p.model,
             p.hosts, p.cluster, static_cast<double>(ours) / 1e12, sweep.fitting,
             static_cast<double>(sweep.fastest_ps) / 1e12, sweep.fastest);
  EXPECT_LE(static_cast<double>(ours) * (1 - kBar), static_cast<double>(sweep.fastest_ps))
      << sweep.fastest;
  EXPECT_EQ(sweep.priced, priced);
  EXPECT_EQ(sweep.fitting, fitting);
}

// Expected times are 20 % low there; what was simulated of a plan counts, though it was cut off.
TEST(RunnersUp, AreNotSaidToBeFasterThanTheAnswer) {
  const Problem p{.model = "gpt-oss-20b",
                  .cluster = "rtx-titan-pcie",
                  .hosts = 8,
                  .global_batch = 64,
                  .sequence = 2048};
  const auto cost = cost_of(p);
  ASSERT_TRUE(cost.has_value()) << base::to_string(cost.error());
  PlanRequest request = request_of(p);
  request.top = 1;
  const auto answer = find_plan(*cost, request);
  ASSERT_TRUE(answer.has_value()) << base::to_string(answer.error());
  ASSERT_FALSE(answer->runners_up.empty());
  for (const RunnerUp& r : answer->runners_up)
    EXPECT_GE(r.expected_ps, answer->candidates.front().report.step_time_ps);
}

TEST(UniformSweep, NoUniformPlanBeatsTheAnswerOnPipelinesOverPcie) {
  expect_unbeaten(
      {.model = "gpt2", .cluster = "rtx-titan-pcie", .global_batch = 16, .sequence = 1024}, 1641,
      1641);
}

// One micro-batch: with zero 2 gradients are a shard, which makes room for it.
TEST(UniformSweep, NoUniformPlanBeatsTheAnswerWhereMemoryIsTight) {
  expect_unbeaten(
      {.model = "gpt2-xl", .cluster = "rtx-titan-pcie", .global_batch = 48, .sequence = 1024}, 2334,
      2249);
}

TEST(UniformSweep, NoUniformPlanBeatsTheAnswerForAMixture) {
  expect_unbeaten(
      {.model = "mixtral-tiny", .cluster = "dgx-1-v100", .global_batch = 32, .sequence = 128}, 1314,
      1314);
}

// Its first block is dense: what splits experts is no strategy of that block.
TEST(UniformSweep, NoUniformPlanBeatsTheAnswerForAMixtureBehindADenseBlock) {
  expect_unbeaten({.model = "deepseek-moe-16b",
                   .cluster = "dgx-1-v100",
                   .hosts = 4,
                   .global_batch = 32,
                   .sequence = 2048,
                   .ep = 4},
                  3444, 3259);
}

TEST(UniformSweep, NoUniformPlanBeatsTheAnswerForEncoderAndDecoder) {
  expect_unbeaten(
      {.model = "t5-small", .cluster = "dgx-1-v100", .global_batch = 16, .sequence = 512}, 732,
      732);
}

TEST(UniformSweep, NoUniformPlanBeatsTheAnswerWithStagesInAV) {
  expect_unbeaten({.model = "gpt2-xl",
                   .cluster = "rtx-titan-pcie",
                   .global_batch = 8,
                   .sequence = 1024,
                   .v_shaped = true},
                  795, 792);
}

}  // namespace
}  // namespace orrery::search
