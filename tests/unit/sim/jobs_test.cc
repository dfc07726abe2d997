// Several jobs over one trunk, and a trunk that changes in the middle of a step: by hand, to the
// picosecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/cells/rank_cells.h"
#include "tests/unit/sim/step_maker.h"
#include "topologies/builder.h"

namespace orrery::sim {
namespace {

using ::testing::ElementsAre;
using testing::kMicrosecond;
using testing::StepMaker;

constexpr std::int64_t kTrunk = 10'000'000'000;  // bytes/s: 100 µs for the message below
constexpr std::int64_t kMessage = 1'000'000;

/// Four hosts of one device; 0 and 1 on the left switch, 2 and 3 on the right one, one trunk
/// between the switches.
topologies::Topology dumbbell() {
  topologies::TopologyBuilder b("dumbbell");
  const auto index = testing::test_device(b);
  const auto left = b.add_vertex(topologies::VertexKind::kSwitch, "left", topologies::kNoHost),
             right = b.add_vertex(topologies::VertexKind::kSwitch, "right", topologies::kNoHost);
  for (std::uint32_t host = 0; host < 4; ++host) {
    b.add_duplex(b.add_device("gpu", host, index), host < 2 ? left : right, 10 * kTrunk,
                 base::Seconds(0), "cable");
  }
  b.add_duplex(left, right, kTrunk, base::Seconds(0), "trunk");
  auto made = std::move(b).build();
  ORRERY_CHECK(made.has_value(), "{}", base::to_string(made.error()));
  return *std::move(made);
}

/// Two stages: `compute_ps` of work on the first, then a message to the second.
StepMaker message_after(std::int64_t compute_ps) {
  StepMaker m(2);
  m.stages(2, 1);
  const auto x = m.buffer("x", kMessage);
  m.run_once(
      0, {testing::writing(m.compute("work", compute_ps), {x}),
          testing::freeing(m.exchange("send", plan::Stream::kForwardSend, {{true, 1, x}}), {x})});
  m.run_once(1, {testing::freeing(
                    m.exchange("receive", plan::Stream::kForwardReceive, {{false, -1, x}}), {x})});
  return m;
}

RankJob on(const StepMaker& m, const topologies::Topology& t, std::vector<std::uint32_t> hosts,
           std::int64_t start_ps = 0) {
  return {
      .program = &m.program, .costs = {m.cost(t.with_hosts_first(hosts))}, .start_ps = start_ps};
}

RankOutcome run(std::vector<RankJob> jobs, const RankScene& scene) {
  auto step = RankStep::make(std::move(jobs), scene);
  ORRERY_CHECK(step.has_value(), "{}", base::to_string(step.error()));
  auto outcome = step->run();
  ORRERY_CHECK(outcome.has_value(), "{}", base::to_string(outcome.error()));
  return *std::move(outcome);
}

TEST(Jobs, TwoAtOnceShareTheTrunkAndStepsFollowOneAnother) {
  const topologies::Topology t = dumbbell();
  const StepMaker m = message_after(50 * kMicrosecond);
  for (const bool fold : {true, false}) {
    const RankOutcome both = run({on(m, t, {0, 2}), on(m, t, {1, 3})}, {.steps = 2, .fold = fold});
    EXPECT_EQ(both.step_ps, 250 * kMicrosecond);  // 50 + 2 · 100
    EXPECT_THAT(both.cells.steps_end_ps,
                ElementsAre(ElementsAre(250 * kMicrosecond, 500 * kMicrosecond),
                            ElementsAre(250 * kMicrosecond, 500 * kMicrosecond)));
    ASSERT_EQ(both.job_links.size(), 2U);
    for (const auto& links : both.job_links) {
      ASSERT_EQ(links.size(), 3U);
      for (const Picture::Link& l : links) EXPECT_EQ(l.bytes, kMessage);
      EXPECT_DOUBLE_EQ(links.back().share, 0.4);  // 100 of 250 µs of the trunk
    }
  }
}

// The other job is 110 µs late: 40 µs alone, then both until ours has sent its last 60 % in 120
// µs, by when the other has sent 60 %.
TEST(Jobs, WhoComesLateSharesWhatIsLeft) {
  const topologies::Topology t = dumbbell();
  const StepMaker m = message_after(50 * kMicrosecond);
  const RankOutcome both = run({on(m, t, {0, 2}), on(m, t, {3, 1}, 40 * kMicrosecond)}, {});
  EXPECT_EQ(both.step_ps, 150 * kMicrosecond) << "the other way on a full-duplex trunk";
  const RankOutcome same = run({on(m, t, {0, 2}), on(m, t, {1, 3}, 40 * kMicrosecond)}, {});
  EXPECT_EQ(same.step_ps, (50 + 40 + 120) * kMicrosecond);
  EXPECT_THAT(same.cells.steps_end_ps[1], ElementsAre((210 + 40) * kMicrosecond));
  EXPECT_EQ(same.job_links[1].back().bytes, kMessage * 6 / 10);
}

// 20 µs of the trunk as built, 60 µs at a quarter, the rest as built: 200 000 + 150 000 + 650 000
// bytes.
TEST(Jobs, AMessageGoesOnWithWhatItHasLeftWhenItsLinkChanges) {
  const topologies::Topology t = dumbbell();
  const StepMaker m = message_after(50 * kMicrosecond);
  std::vector<topologies::LinkRate> quarter;
  for (std::uint32_t l = 0; l < t.links().size(); ++l)
    if (t.links()[l].kind == "trunk") quarter.push_back({topologies::LinkId(l), kTrunk / 4});
  const costmodel::CostModel as_built = m.cost(t), slow = m.cost(t.with_links(quarter));
  const auto step = [&](std::vector<costmodel::CostModel> costs,
                        std::vector<std::int64_t> from_ps) {
    RankScene scene{.from_ps = std::move(from_ps),
                    .background = std::vector<std::vector<BackgroundFlow>>(costs.size())};
    // Rank 1 is device 1, on the same side; the message of this program has to cross: hosts 0 and
    // 2.
    for (costmodel::CostModel& c : costs)
      c = c.on(c.topology().with_hosts_first(std::vector<std::uint32_t>{0, 2}));
    return run({{.program = &m.program, .costs = std::move(costs)}}, scene);
  };
  const RankOutcome changed =
      step({as_built, slow, as_built}, {0, 70 * kMicrosecond, 130 * kMicrosecond});
  EXPECT_EQ(changed.step_ps, (50 + 20 + 60 + 65) * kMicrosecond);
  for (const Picture::Link& l : changed.links) EXPECT_EQ(l.bytes, kMessage);
  EXPECT_DOUBLE_EQ(changed.links.back().share, 1e6 / (135e-6 * 1e10 + 60e-6 * 2.5e9));
  EXPECT_EQ(step({as_built, slow}, {0, 150 * kMicrosecond}).step_ps, 150 * kMicrosecond);
  EXPECT_EQ(step({as_built, slow}, {0, 149 * kMicrosecond}).step_ps, 153 * kMicrosecond);
}

}  // namespace
}  // namespace orrery::sim
