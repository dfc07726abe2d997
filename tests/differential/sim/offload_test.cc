/// Activations and optimizer states on the host: the simulated Program against the closed form, and
/// its limits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>

#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "sim/simulate.h"
#include "topologies/builder.h"

namespace orrery::sim {
namespace {

using plan::Recompute;

/// Eight devices on a switch, each with a port of its own to a processor.
topologies::Topology machine(std::int64_t host_bytes_per_second) {
  topologies::TopologyBuilder b("machine");
  const auto model = b.add_model({.name = "T100-80GB",
                                  .peak_fp32 = base::FlopsPerSecond(10e12),
                                  .peak_bf16 = base::FlopsPerSecond(100e12),
                                  .memory_bandwidth = base::BytesPerSecond(1e12),
                                  .memory_bytes = 80'000'000'000,
                                  .launch_overhead = base::Seconds(1e-6),
                                  .source = "test"});
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", 0);
  const auto cpu = b.add_vertex(topologies::VertexKind::kHostBridge, "cpu", 0);
  for (int i = 0; i < 8; ++i) {
    const auto device = b.add_device("gpu" + std::to_string(i), 0, model);
    b.add_duplex(device, hub, 100'000'000'000, base::Seconds(1e-6), "nvlink");
    const auto port = b.add_vertex(topologies::VertexKind::kSwitch, "port" + std::to_string(i), 0);
    b.add_duplex(device, port, host_bytes_per_second, base::Seconds(0), "pcie");
    b.add_duplex(port, cpu, host_bytes_per_second, base::Seconds(0), "pcie");
  }
  return std::move(b).build_cluster(std::array{std::uint32_t{1}}, std::nullopt).value();
}

struct Answers {
  costmodel::PlanCost closed;
  SimReport simulated;
  std::int64_t copies_ps = 0;  // of a rank's step, one way
  std::int64_t context_bytes = 0;
};
Answers both(const std::string& model_name, std::int64_t layers, plan::UniformOptions options,
             std::int64_t host_bytes_per_second, bool overlaps = true, double slowdown = 1,
             const std::function<void(plan::Plan&)>& change = {}) {
  auto model = model::find_model(model_name).value();
  model.layers = layers;
  model::Profile profile;
  profile.name = "flags";
  profile.overlaps = overlaps;
  profile.overlap_slowdown = slowdown;
  const auto cost =
      costmodel::CostModel::make(model, machine(host_bytes_per_second), profile,
                                 {.precision = options.precision, .sequence = options.sequence})
          .value();
  plan::Plan plan = plan::uniform_plan(model, "machine", 1, options).value();
  if (change) change(plan);
  const plan::Program program = plan::lower(plan, model).value();
  Answers a{.closed = costmodel::plan_cost(cost, plan).value(),
            .simulated = simulate(program, cost).value(),
            .context_bytes = cost.context_bytes()};
  EXPECT_EQ(simulated_step_ps(program, cost).value().value(), a.simulated.step_time_ps);
  plan::for_each_op(program, program.classes[0], [&](const plan::OpInstance& o) {
    if (plan::copies_out(*o.op))
      a.copies_ps += cost.copy_ps(true, o.op->bytes, 0, plan.devices_per_stage()).value();
  });
  return a;
}

std::vector<plan::UniformOptions> one_stage() {
  return {
      {.recompute = Recompute::kOffload, .micro_batch = 2, .global_batch = 4, .sequence = 64},
      {.dp = 4,
       .zero = 3,
       .recompute = Recompute::kOffload,
       .micro_batch = 1,
       .global_batch = 8,
       .sequence = 64},
      {.tp = 2,
       .dp = 2,
       .zero = 1,
       .sequence_parallel = true,
       .recompute = Recompute::kOffload,
       .micro_batch = 1,
       .global_batch = 8,
       .sequence = 64},
  };
}

/// The same with states on the host as well, and these alone.
std::vector<plan::UniformOptions> with_states_there() {
  std::vector<plan::UniformOptions> all = one_stage();
  for (plan::UniformOptions& o : all) o.states = plan::States::kHost;
  const std::size_t n = all.size();
  for (std::size_t i = 0; i < n; ++i) {
    all.push_back(all[i]);
    all.back().recompute = Recompute::kNone;
  }
  all.push_back(all.back());
  all.back().grad_reduce = plan::GradReduce::kEnd;
  return all;
}
std::vector<plan::UniformOptions> all_copies() {
  std::vector<plan::UniformOptions> all = one_stage(), more = with_states_there();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Offload, EqualsTheSimulationOfOneStageWithoutOverlap) {
  for (const char* model : {"gpt2-tiny", "llama-tiny", "mixtral-tiny"}) {
    for (const plan::UniformOptions& o : all_copies()) {
      const Answers a = both(model, 4, o, 1'000'000'000, false);
      EXPECT_EQ(a.simulated.step_time_ps, a.closed.step_ps) << model;
      EXPECT_EQ(a.simulated.step_time_ps, a.closed.pass_by_pass_ps) << model;
      EXPECT_EQ(a.simulated.stages[0].peak_memory_bytes,
                a.closed.stage_peak_bytes[0] + a.context_bytes)
          << model;
    }
  }
}

// An endless rate: the plan that keeps all, to the picosecond.
TEST(Offload, ByAnEndlessRateTakesTheTimeOfAPlanThatKeepsAll) {
  constexpr std::int64_t kEndless = 1'000'000'000'000'000'000;
  for (const char* model : {"gpt2-tiny", "llama-tiny", "mixtral-tiny"}) {
    for (plan::UniformOptions o : one_stage()) {
      for (const int pp : {1, 2}) {
        o.pp = pp;
        const Answers copied = both(model, 4, o, kEndless, true, 1.2);
        o.recompute = Recompute::kNone;
        const Answers kept = both(model, 4, o, kEndless, true, 1.2);
        o.recompute = Recompute::kOffload;
        EXPECT_EQ(copied.simulated.step_time_ps, kept.simulated.step_time_ps) << model;
        EXPECT_EQ(copied.closed.step_ps, kept.closed.step_ps) << model;
        EXPECT_LT(copied.closed.stage_peak_bytes[0], kept.closed.stage_peak_bytes[0]) << model;
      }
    }
  }
}

// A rate next to nothing: what is copied out and back, and next to nothing else.
TEST(Offload, BySlowLinksTakesTheTimeOfItsCopies) {
  for (plan::UniformOptions o : one_stage()) {
    const Answers a = both("llama-tiny", 12, o, 1'000'000);
    EXPECT_NEAR(real(a.simulated.step_time_ps) / real(2 * a.copies_ps), 1, 0.01);
    EXPECT_NEAR(real(a.closed.step_ps) / real(2 * a.copies_ps), 1, 0.01);
  }
}

double over_simulated(std::int64_t ps, const Answers& a) {
  return real(ps) / real(a.simulated.step_time_ps);
}

// Between the limits: pass by pass, which knows where a pass waits for no copy, is as near as for a
// plan that keeps all, to a hundredth. The closed form counts the copies of all layers of a pass,
// where two forwards and two backwards wait for none.
TEST(Offload, IsNearTheSimulationAtEveryRate) {
  using enum plan::Schedule;
  for (const auto schedule : {k1F1B, kGPipe, kInterleaved}) {
    for (const int pp : {1, 2, 4}) {
      if (pp == 1 && schedule != k1F1B) continue;
      const int chunks = schedule == kInterleaved ? 2 : 1, layers = 24 / pp / chunks;
      plan::UniformOptions o{.tp = 2,
                             .pp = pp,
                             .schedule = schedule,
                             .micro_batch = 2,
                             .global_batch = 16,
                             .sequence = 512,
                             .virtual_stages = chunks};
      const Answers kept = both("gpt2", 24, o, 1);
      const double plain = std::abs(over_simulated(kept.closed.pass_by_pass_ps, kept) - 1);
      o.recompute = Recompute::kOffload;
      for (const std::int64_t gigabytes : {1, 5, 10, 20, 40, 80, 300}) {
        const Answers a = both("gpt2", 24, o, gigabytes * 1'000'000'000);
        const double closed = over_simulated(a.closed.step_ps, a),
                     pass_by_pass = over_simulated(a.closed.pass_by_pass_ps, a);
        SCOPED_TRACE(fmt::format("{} pp{} {} GB/s: {} closed, {} pass by pass",
                                 plan::to_string(schedule), pp, gigabytes, closed, pass_by_pass));
        EXPECT_NEAR(pass_by_pass, 1, 0.01 + plain);
        EXPECT_GE(closed, 0.97);
        EXPECT_LE(closed, 1.01 + 2.0 / layers);
      }
    }
  }
}

// A copy takes a picosecond at least.
TEST(Offload, StatesByAnEndlessRateTakeTheTimeOfAPlanThatKeepsThem) {
  constexpr std::int64_t kEndless = 1'000'000'000'000'000'000;
  for (plan::UniformOptions o : with_states_there()) {
    for (const int pp : {1, 2}) {
      o.pp = pp;
      const Answers copied = both("llama-tiny", 4, o, kEndless, true, 1.2);
      o.states = plan::States::kDevice;
      const Answers kept = both("llama-tiny", 4, o, kEndless, true, 1.2);
      o.states = plan::States::kHost;
      const auto expect_alike = [](std::int64_t a, std::int64_t b) {
        EXPECT_NEAR(real(a), real(b), 20);
      };
      expect_alike(copied.simulated.step_time_ps, kept.simulated.step_time_ps);
      expect_alike(copied.closed.step_ps, kept.closed.step_ps);
      expect_alike(copied.closed.pass_by_pass_ps, kept.closed.pass_by_pass_ps);
      EXPECT_LT(copied.closed.stage_peak_bytes[0], kept.closed.stage_peak_bytes[0]);
    }
  }
}

// Two layers are on the device, one comes as the other goes: the copies of a rank one way, and of
// the last layer back. Pass by pass knows it, the closed form is below.
TEST(Offload, StatesAddTheirCopiesOneWayAndTheLastBack) {
  struct Way {
    plan::GradReduce when = plan::GradReduce::kStep;
    bool sequence_parallel = false;
  };
  using enum plan::GradReduce;
  for (const char* model : {"gpt2", "llama-2-7b"}) {
    for (const Way way : {Way{}, {kStep, true}, {kEnd}, {kEnd, true}}) {
      for (const std::int64_t gigabytes : {1, 10, 50}) {
        for (const int pp : {1, 2}) {
          // Both ends of tied tables are summed in turn with the optimizer: the first stage waits
          // for all updates of the last.
          if (way.when == kEnd && pp == 2 && model == std::string_view("gpt2")) continue;
          plan::UniformOptions o{.tp = 2,
                                 .pp = pp,
                                 .dp = 2,
                                 .zero = 1,
                                 .sequence_parallel = way.sequence_parallel,
                                 .grad_reduce = way.when,
                                 .micro_batch = 2,
                                 .global_batch = 8,
                                 .sequence = 512};
          const Answers kept = both(model, 12, o, gigabytes * 1'000'000'000);
          o.states = plan::States::kHost;
          const Answers a = both(model, 12, o, gigabytes * 1'000'000'000);
          SCOPED_TRACE(fmt::format("{} {} GB/s, pp{}, {}{}", model, gigabytes, pp,
                                   plan::to_string(way.when), way.sequence_parallel ? " sp" : ""));
          const std::int64_t added = a.simulated.step_time_ps - kept.simulated.step_time_ps;
          EXPECT_GT(real(added), 0.95 * real(a.copies_ps));
          EXPECT_LT(added, 2 * a.copies_ps);
          const double plain = std::abs(over_simulated(kept.closed.pass_by_pass_ps, kept) - 1);
          EXPECT_NEAR(over_simulated(a.closed.pass_by_pass_ps, a), 1,
                      (way.when == kEnd ? 0.01 : 0.005) + plain);
          EXPECT_LE(over_simulated(a.closed.step_ps, a), 1.001 + plain);
        }
      }
    }
  }
}

// Hybrid sharding with gradients that cross replicas once a step; every other layer's states on the
// device, embedding and head's too.
TEST(Offload, StatesOfSomeLayersAreNearTheSimulation) {
  for (const std::int64_t gigabytes : {1, 10, 50}) {
    for (const int shard : {0, 2}) {
      const auto change = [&](plan::Plan& p) {
        plan::LayerRun run = p.stages[0].runs[0];
        run.strategy.shard = p.vocabulary.shard = shard;
        run.count = 1;
        p.stages[0].runs.clear();
        for (int layer = 0; layer < 12; ++layer) {
          run.strategy.states = layer % 2 == 0 ? plan::States::kHost : plan::States::kDevice;
          p.stages[0].runs.push_back(run);
        }
      };
      const plan::UniformOptions o{.dp = 8,
                                   .zero = 2,
                                   .grad_reduce = plan::GradReduce::kMicroBatch,
                                   .micro_batch = 1,
                                   .global_batch = 16,
                                   .sequence = 512};
      const Answers kept = both("llama-2-7b", 12, o, gigabytes * 1'000'000'000),
                    a = both("llama-2-7b", 12, o, gigabytes * 1'000'000'000, true, 1, change);
      SCOPED_TRACE(fmt::format("{} GB/s, shard {}", gigabytes, shard));
      const double plain = std::abs(over_simulated(kept.closed.pass_by_pass_ps, kept) - 1);
      EXPECT_NEAR(over_simulated(a.closed.pass_by_pass_ps, a), 1, 0.01 + plain);
      EXPECT_NEAR(over_simulated(a.closed.step_ps, a), 1, 0.15);
      EXPECT_EQ(a.simulated.stages[0].peak_memory_bytes,
                a.closed.stage_peak_bytes[0] + a.context_bytes);
    }
  }
}

TEST(Offload, PeakMemoryEqualsTheReports) {
  for (plan::UniformOptions o : all_copies()) {
    for (const int pp : {1, 2, 4}) {
      o.pp = pp;
      o.dp = std::min(o.dp, 2);
      o.micro_batch = 1;
      if (o.tp * o.dp * pp > 8) continue;
      const Answers a = both("llama-tiny", 8, o, 1'000'000'000);
      for (std::size_t s = 0; s < a.closed.stage_peak_bytes.size(); ++s)
        EXPECT_EQ(a.simulated.stages[s].peak_memory_bytes,
                  a.closed.stage_peak_bytes[s] + a.context_bytes)
            << "pp" << pp;
    }
  }
}

TEST(Offload, NeedsAWayToTheHost) {
  const auto model = model::find_model("llama-tiny").value();
  const plan::UniformOptions o{
      .recompute = Recompute::kOffload, .micro_batch = 1, .global_batch = 1, .sequence = 64};
  const auto cost =
      costmodel::CostModel::make(model, topologies::catalog_topology("tpu-v6e-16x16").value(),
                                 std::nullopt, {.precision = o.precision, .sequence = o.sequence})
          .value();
  const plan::Plan plan = plan::uniform_plan(model, "tpu-v6e-16x16", 1, o).value();
  const auto closed = costmodel::plan_cost(cost, plan);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().front().code, base::ErrorCode::kUnsupported);
  const auto simulated = simulate(plan::lower(plan, model).value(), cost);
  ASSERT_FALSE(simulated.has_value());
  EXPECT_EQ(simulated.error().front().code, base::ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace orrery::sim
