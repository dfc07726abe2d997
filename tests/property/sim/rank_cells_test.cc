// Folded steps equal unfolded ones to the picosecond, operation by operation and rank by rank, on
// random pairs of a machine and a plan.
#include "sim/cells/rank_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "plan/lowering/lower.h"
#include "sim/simulate.h"
#include "tests/property/plan/random_plan.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"

namespace orrery::sim {
namespace {

/// Hosts of devices around a switch, joined by an oversubscribed core; perhaps one link of all is
/// slow.
topologies::Topology machine(base::Rng& rng, std::uint32_t devices, bool slow_link) {
  const std::uint32_t sizes[] = {1, 2, 4, 8, 16};
  std::uint32_t per_host = sizes[rng.below(5)];
  while (devices % per_host != 0) per_host /= 2;
  const std::uint32_t hosts = devices / per_host;
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  const std::int64_t inside = between(1'000'000'000, 90'000'000'000),
                     across = between(1'000'000'000, 20'000'000'000);
  // the device's or host's link up
  const auto slow = static_cast<std::uint32_t>(rng.below(devices + hosts));
  topologies::TopologyBuilder b("random");
  const auto model = b.add_model(costmodel::machines::device());
  const auto core = b.add_vertex(topologies::VertexKind::kSwitch, "core", topologies::kNoHost);
  const auto cable = [&](topologies::VertexId from, topologies::VertexId to, std::int64_t rate,
                         bool degraded, const char* kind) {
    b.add_link(from, to, degraded && slow_link ? rate / 7 : rate, base::Seconds(1e-6), kind);
    b.add_link(to, from, rate, base::Seconds(1e-6), kind);
  };
  for (std::uint32_t h = 0; h < hosts; ++h) {
    const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "switch", h);
    for (std::uint32_t i = 0; i < per_host; ++i) {
      const auto device = b.add_device("gpu" + std::to_string(i), h, model);
      cable(device, hub, inside, slow == h * per_host + i, "nvlink");
    }
    cable(hub, core, across, slow == devices + h, "ib");
  }
  auto built = std::move(b).build();
  ORRERY_CHECK(built.has_value(), "{}", base::to_string(built.error()));
  return *std::move(built);
}

struct Case {
  plan::Program program;
  costmodel::CostModel cost;
  RankOptions options;
};

Case draw(std::uint64_t seed, bool asymmetric) {
  base::Rng rng(seed);
  plan::RandomPlan random = plan::PlanDraw(seed).draw(16);
  auto program = plan::lower(random.plan, random.model);
  const int least = 2 << seed % 5;
  // 16 devices for 8 heads: not every draw is a plan
  for (std::uint64_t again = 0; !program || program->world_size < least; ++again) {
    random = plan::PlanDraw(base::derive(seed, again)).draw(16);
    program = plan::lower(random.plan, random.model);
  }
  const auto world = static_cast<std::uint32_t>(program->world_size);
  const bool slow_link = asymmetric && rng.below(2) == 0;
  model::Profile profile;
  profile.name = "random";
  profile.overlap_slowdown = rng.below(2) == 0 ? 1.0 : 1.3;
  auto cost = costmodel::CostModel::make(
      random.model, machine(rng, world, slow_link), profile,
      {.precision = program->precision,
       .sequence = program->sequence,
       .library = seed % 2 == 0 ? nullptr : costmodel::tunings::library()});
  ORRERY_CHECK(cost.has_value(), "{}", base::to_string(cost.error()));
  Case c{*std::move(program), *std::move(cost), {}};
  if (asymmetric && (!slow_link || rng.below(2) == 0)) {
    c.options.compute_ppm.assign(world, 1'000'000);
    c.options.compute_ppm[rng.below(world)] = 1'370'000;  // a straggler
  }
  return c;
}

class RankCells : public ::testing::TestWithParam<bool> {};

TEST_P(RankCells, FoldedEqualsUnfoldedToThePicosecond) {
  std::size_t ranks = 0, cells = 0, large = 0, symmetric = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Case c = draw(seed, GetParam());
    const auto folded = simulate_ranks(c.program, c.cost, c.options);
    c.options.fold = false;
    const auto unfolded = simulate_ranks(c.program, c.cost, c.options);
    ASSERT_TRUE(unfolded.has_value())
        << "seed " << seed << ": " << base::to_string(unfolded.error());
    ASSERT_TRUE(folded.has_value()) << "seed " << seed << ": " << base::to_string(folded.error());
    ASSERT_EQ(folded->step_ps, unfolded->step_ps) << "seed " << seed;
    for (int r = 0; r < static_cast<int>(folded->cell_of_rank.size()); ++r) {
      ASSERT_EQ(folded->of(r).start_ps, unfolded->of(r).start_ps)
          << "seed " << seed << ", rank " << r;
      ASSERT_EQ(folded->of(r).end_ps, unfolded->of(r).end_ps) << "seed " << seed << ", rank " << r;
    }
    ASSERT_EQ(folded->fingerprint, unfolded->fingerprint);
    if (folded->cells.classes.size() == c.program.classes.size() && c.options.compute_ppm.empty()) {
      const auto stages = simulate(c.program, c.cost);
      ASSERT_TRUE(stages.has_value());
      // parts of a byte differ: rank_cells.h
      const auto step = static_cast<double>(stages->step_time_ps);
      ASSERT_NEAR(static_cast<double>(folded->step_ps), step, 1e-5 * step) << "seed " << seed;
      ++symmetric;
    }
    ranks += unfolded->cells.classes.size();
    cells += folded->cells.classes.size();
    large += unfolded->cells.classes.size() >= 32 ? 1 : 0;
  }
  EXPECT_LT(cells, GetParam() ? ranks * 9 / 10 : ranks / 5);
  EXPECT_GT(large, 20U);
  EXPECT_GT(symmetric, GetParam() ? 0U : 60U);
}
INSTANTIATE_TEST_SUITE_P(WithAndWithoutAsymmetry, RankCells, ::testing::Bool());

void expect_same(const ClassOutcome& a, const ClassOutcome& b) {
  EXPECT_EQ(a.start_ps, b.start_ps);
  EXPECT_EQ(a.end_ps, b.end_ps);
  EXPECT_EQ(a.busy_compute_ps, b.busy_compute_ps);
  EXPECT_EQ(a.idle_ps, b.idle_ps);
  EXPECT_EQ(a.exposed_ps, b.exposed_ps);
  EXPECT_EQ(a.parts, b.parts);
  EXPECT_EQ(a.recompute_ps, b.recompute_ps);
  EXPECT_EQ(a.optimizer_ps, b.optimizer_ps);
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.memory, b.memory);
}

// Operations in chains and transfers foreseen to the end, beside an event for each: the same times,
// accounts, memory and bytes on every rank, in fewer events.
TEST_P(RankCells, ChainsAndForesightChangeNothingButTheNumberOfEvents) {
  std::uint64_t together = 0, apart = 0;
  for (std::uint64_t seed = 1000; seed < 1080; ++seed) {
    const Case c = draw(seed, GetParam());
    const bool fold = seed % 2 == 0;
    const Jitter jitter{.sigma_ppm = fold ? 0 : 50'000, .seed = seed};
    const auto run = [&](bool step_by_step) {
      std::vector<RankJob> jobs;
      jobs.push_back(
          {.program = &c.program, .costs = {c.cost}, .compute_ppm = c.options.compute_ppm});
      RankScene scene{.steps = seed % 4 == 0 ? 2 : 1, .fold = fold, .step_by_step = step_by_step};
      const auto link =
          topologies::LinkId(static_cast<std::uint32_t>(seed % c.cost.topology().links().size()));
      if (seed % 3 == 0)
        scene.background = {{{.bytes_per_second = c.cost.topology().link(link).bytes_per_second / 2,
                              .loads = {{link, 1}}}}};
      return RankStep::make(std::move(jobs), scene)->run(jitter, SimOptions{.timeline = true});
    };
    const auto quick = run(false), slow = run(true);
    ASSERT_TRUE(quick.has_value() && slow.has_value()) << "seed " << seed;
    ASSERT_EQ(quick->step_ps, slow->step_ps) << "seed " << seed;
    ASSERT_EQ(quick->fingerprint, slow->fingerprint) << "seed " << seed;
    ASSERT_EQ(quick->cells.sent_bytes, slow->cells.sent_bytes) << "seed " << seed;
    ASSERT_EQ(quick->cells.steps_end_ps, slow->cells.steps_end_ps) << "seed " << seed;
    for (std::size_t k = 0; k < quick->cells.classes.size() && !HasFailure(); ++k)
      expect_same(quick->cells.classes[k], slow->cells.classes[k]);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    together += quick->cells.events;
    apart += slow->cells.events;
  }
  EXPECT_LT(together, apart * 3 / 4);
}

// Four stages of 16 ranks: a slow rank is distinguished, with those that work with it; the other
// replicas stay together.
TEST(RankCells, AStragglerSplitsOnlyTheCellsThatItReaches) {
  constexpr std::size_t world = 64;
  const model::ModelSpec model = model::find_model("llama-tiny").value();
  const plan::Plan plan =
      plan::uniform_plan(model, "", 1,
                         {.tp = 2, .pp = 4, .dp = 8, .global_batch = 32, .sequence = 64})
          .value();
  base::Rng rng(8);
  Case c{plan::lower(plan, model).value(),
         costmodel::CostModel::make(model, machine(rng, world, false), std::nullopt,
                                    {.precision = plan.precision, .sequence = plan.sequence})
             .value(),
         {}};
  const auto alike = simulate_ranks(c.program, c.cost, c.options);
  c.options.compute_ppm.assign(world, 1'000'000);
  c.options.compute_ppm[5] = 2'000'000;
  const auto slow = simulate_ranks(c.program, c.cost, c.options);
  ASSERT_TRUE(alike.has_value() && slow.has_value());
  EXPECT_EQ(alike->cells.classes.size(), 4U);
  EXPECT_GT(slow->cells.classes.size(), 4U);
  EXPECT_LT(slow->cells.classes.size(), world);
  EXPECT_GT(slow->step_ps, alike->step_ps);
}

// What ComputePrices takes for granted (compute.h, slowest of many).
TEST(RankCells, AStepOfUnlikeRanksTakesAsLongAsIfAllWereTheSlowest) {
  const model::ModelSpec model = model::find_model("llama-tiny").value();
  for (const int tp : {1, 2}) {
    const plan::Plan plan =
        plan::uniform_plan(model, "", 1, {.tp = tp, .dp = 8, .global_batch = 32, .sequence = 64})
            .value();
    const auto world = static_cast<std::uint32_t>(plan.world_size());
    base::Rng rng(3);
    Case c{plan::lower(plan, model).value(),
           costmodel::CostModel::make(model, machine(rng, world, false), std::nullopt,
                                      {.precision = plan.precision, .sequence = plan.sequence})
               .value(),
           {}};
    for (std::uint32_t r = 0; r < world; ++r)
      c.options.compute_ppm.push_back(1'000'000 + static_cast<std::int64_t>(rng.below(60'000)));
    const auto unlike = simulate_ranks(c.program, c.cost, c.options);
    const std::int64_t slowest = std::ranges::max(c.options.compute_ppm);
    c.options.compute_ppm.assign(world, slowest);
    const auto alike = simulate_ranks(c.program, c.cost, c.options);
    ASSERT_TRUE(unlike.has_value() && alike.has_value());
    // Exact but for links that tensor groups share at other instants.
    EXPECT_NEAR(static_cast<double>(unlike->step_ps) / static_cast<double>(alike->step_ps), 1,
                0.002)
        << "tp " << tp;
  }
}

TEST(RankCells, SpeedsAreOnePositiveNumberForEachRank) {
  Case c = draw(8, false);
  c.options.compute_ppm = {1'000'000};
  EXPECT_FALSE(simulate_ranks(c.program, c.cost, c.options).has_value());
  c.options.compute_ppm.assign(static_cast<std::size_t>(c.program.world_size), 0);
  EXPECT_FALSE(simulate_ranks(c.program, c.cost, c.options).has_value());
}

}  // namespace
}  // namespace orrery::sim
