// Joules of a step: worked by hand, and against an integral over its timeline.
#include "sim/report/energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "sim/cells/rank_cells.h"
#include "sim/report/report.h"
#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

using costmodel::Draw;
using costmodel::kPowerShares;
using costmodel::MachinePower;
using costmodel::PowerKind;
using plan::Stream;
using testing::kMicrosecond;
using testing::StepMaker;

constexpr std::int64_t kSecond = 1'000'000'000'000;
constexpr Draw kNone;

double share(PowerKind kind) { return kPowerShares[as_index(kind)]; }
double joules(const StepEnergy& e, PowerKind kind) { return e.devices[as_index(kind)]; }

/// `hosts` hosts of `n` devices of 100 to 700 W around a switch; a host draws 1 kW, switches
/// between hosts 50 W a device.
topologies::Topology powered(int n, int hosts = 1) {
  topologies::TopologyBuilder b("powered");
  topologies::DeviceModel model;
  model.name = "test device";
  model.peak_fp32 = model.peak_bf16 = base::FlopsPerSecond(1e12);
  model.memory_bandwidth = base::BytesPerSecond(1e12);
  model.memory_bytes = std::int64_t{1} << 34;
  model.power = base::Watts(700);
  model.idle_power = base::Watts(100);
  const auto index = b.add_model(model);
  b.set_host_power(0, base::Watts(1000));
  const auto hub = b.add_vertex(topologies::VertexKind::kSwitch, "hub", 0);
  for (int i = 0; i < n; ++i)
    b.add_duplex(b.add_device(fmt::format("gpu[{}]", i), 0, index), hub, 1'000'000'000,
                 base::Seconds(), "link");
  b.add_duplex(hub, b.add_vertex(topologies::VertexKind::kNic, "nic", 0), 1'000'000'000,
               base::Seconds(), "pcie");
  const std::vector<std::uint32_t> counts = {static_cast<std::uint32_t>(hosts)};
  topologies::FabricSpec core;
  core.name = "core";
  core.kind = "ib";
  core.bytes_per_second = 1'000'000'000;
  core.device_power = base::Watts(50);
  auto made = std::move(b).build_cluster(counts, core);
  ORRERY_CHECK(made.has_value(), "{}", base::to_string(made.error()));
  return *std::move(made);
}

MachinePower machine_of(const topologies::Topology& t) {
  auto power = MachinePower::of(t);
  ORRERY_CHECK(power.has_value());
  return *std::move(power);
}

// The worked example of energy.h: 640 W, then 190 W a device.
TEST(StepEnergy, WorkedExample) {
  const std::vector<std::vector<PowerPiece>> pieces = {
      {{0, {PowerKind::kProduct, 0.9}, kNone}, {kSecond, kNone, kNone}}};
  const StepEnergy e =
      step_energy(pieces, {{{{0, 0}, {0, 0}}, {}, 1000}}, machine_of(powered(2)), 2 * kSecond, 100);
  EXPECT_NEAR(e.total(), 3660, 1e-9);
  EXPECT_NEAR(joules(e, PowerKind::kProduct), 1080, 1e-9);
  EXPECT_NEAR(joules(e, PowerKind::kWait), 180, 1e-9);
  EXPECT_NEAR(e.idle, 400, 1e-9);
  EXPECT_NEAR(e.hosts, 2000, 1e-9);
  EXPECT_NEAR(e.joules_per_token, 36.6, 1e-9);
  EXPECT_NEAR(e.device.mean, 415, 1e-9);
  EXPECT_NEAR(e.device.most, 640, 1e-9);
  EXPECT_NEAR(e.device.least, 190, 1e-9);
  EXPECT_NEAR(e.host.most, 2280, 1e-9);
  EXPECT_NEAR(e.host.least, 1380, 1e-9);
  EXPECT_NEAR(e.cluster.mean, 1830, 1e-9);
  EXPECT_NEAR(e.waiting_watts, 1380, 1e-9);
}

TEST(StepEnergy, CommunicationAddsToComputeUpToTheLimit) {
  const std::vector<std::vector<PowerPiece>> pieces = {
      {{0, {PowerKind::kProduct, 0.9}, {PowerKind::kInHost, 0.5}}}};
  const StepEnergy e =
      step_energy(pieces, {{{{0, 0}}, {}, 1000}}, machine_of(powered(1)), kSecond, 1);
  EXPECT_NEAR(e.device.most, 700, 1e-9);
  EXPECT_NEAR(joules(e, PowerKind::kProduct), 540, 1e-9);
  EXPECT_NEAR(joules(e, PowerKind::kInHost), 60, 1e-9);
}

// Two classes that take turns: each device swings, the host does not. One more device is idle.
TEST(StepEnergy, PeaksOfAHostAreThoseOfItsDevicesTogether) {
  const PowerPiece busy{0, {PowerKind::kProduct, 0.9}, kNone}, waits{0, kNone, kNone};
  const auto at = [](PowerPiece p, std::int64_t ps) {
    p.from_ps = ps;
    return p;
  };
  const std::vector<std::vector<PowerPiece>> pieces = {{busy, at(waits, kSecond)},
                                                       {waits, at(busy, kSecond)}};
  const StepEnergy e =
      step_energy(pieces, {{{{0, 0}, {1, 0}}, {0}, 1000}}, machine_of(powered(3)), 2 * kSecond, 1);
  EXPECT_NEAR(e.device.most, 640, 1e-9);
  EXPECT_NEAR(e.host.most, 640 + 190 + 100 + 1000, 1e-9);
  EXPECT_NEAR(e.host.least, e.host.most, 1e-9);
  EXPECT_NEAR(e.total(), 2 * 1930, 1e-9);
  EXPECT_NEAR(e.idle, 2 * 300, 1e-9);
}

SimReport run(const StepMaker& m, topologies::Topology topology) {
  auto report =
      simulate(m.program, m.cost(std::move(topology)), {.timeline = true, .energy = true});
  ORRERY_CHECK(report.has_value(), "{}", base::to_string(report.error()));
  return *std::move(report);
}

// 100 us of a kernel that hardly works (u = 0.15) beside 60 us of an all-reduce (u = 0.5).
TEST(StepEnergy, FollowsTheSimulatedStep) {
  StepMaker m(2);
  m.stages(1, 2);
  m.run_once(0, {m.compute("long", 100 * kMicrosecond),
                 m.all_reduce("gradients", m.group(2, 1), 60'000, Stream::kData)});
  const SimReport r = run(m, powered(2));
  ASSERT_EQ(r.step_time_ps, 100 * kMicrosecond);
  const StepEnergy& e = *r.energy;
  EXPECT_NEAR(joules(e, PowerKind::kMemory), 2 * 600 * 100e-6 * 0.15, 1e-12);
  EXPECT_NEAR(joules(e, PowerKind::kInHost), 2 * 600 * 60e-6 * share(PowerKind::kInHost), 1e-12);
  EXPECT_NEAR(e.device.least, 100 + 600 * 0.15, 1e-3);
  EXPECT_NEAR(e.device.most, 100 + 600 * (0.15 + share(PowerKind::kInHost)), 1e-3);
  EXPECT_EQ(e.fabric, 0);
}

// The same over two hosts of one device.
TEST(StepEnergy, CommunicationBetweenHostsIsOfItsOwnKind) {
  StepMaker m(2);
  m.stages(1, 2);
  m.run_once(0, {m.all_reduce("gradients", m.group(2, 1), 60'000, Stream::kData)});
  const SimReport r = run(m, powered(1, 2));
  const StepEnergy& e = *r.energy;
  const double seconds = real(r.step_time_ps) / 1e12;
  EXPECT_NEAR(joules(e, PowerKind::kAcrossHosts),
              2 * 600 * seconds * share(PowerKind::kAcrossHosts), 1e-12);
  EXPECT_EQ(joules(e, PowerKind::kInHost), 0);
  EXPECT_NEAR(e.fabric, 2 * 50 * seconds, 1e-12);
  EXPECT_NEAR(e.hosts, 2 * 1000 * seconds, 1e-12);
  EXPECT_EQ(e.host_count, 2U);
}

/// What a rank draws, integrated over its spans interval by interval.
double integral(const plan::Timeline& t, int rank) {
  std::set<std::int64_t> cuts = {0, t.step_time_ps};
  for (const plan::Span& s : t.spans)
    if (s.rank == rank) cuts.insert({s.start_ps, s.start_ps + s.duration_ps});
  double sum = 0;
  for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
    bool computes = false, talks = false;
    for (const plan::Span& s : t.spans) {
      if (s.rank != rank || s.start_ps > *at || s.start_ps + s.duration_ps <= *at) continue;
      (s.phase.empty() ? talks : computes) = true;
    }
    const double u = talks ? share(PowerKind::kInHost) + (computes ? share(PowerKind::kWait) : 0)
                           : share(PowerKind::kWait);
    sum += (100 + 600 * u) * real(*std::next(at) - *at) / 1e12;
  }
  return sum;
}

TEST(StepEnergy, SumsByKindAreTheIntegralOverTheTimeline) {
  const StepMaker m =
      testing::pipeline({.stages = 4, .micro_batches = 6, .message_bytes = 300, .stash_bytes = 40});
  const SimReport r = run(m, powered(4));
  double expected = 1000 * real(r.step_time_ps) / 1e12;
  for (int rank = 0; rank < 4; ++rank) expected += integral(r.timeline, rank);
  double by_kind = r.energy->idle + r.energy->hosts + r.energy->fabric;
  for (const double kind : r.energy->devices) by_kind += kind;
  EXPECT_NEAR(r.energy->total(), expected, 1e-9 * expected);
  EXPECT_NEAR(by_kind, expected, 1e-9 * expected);
  EXPECT_GT(joules(*r.energy, PowerKind::kInHost), 0);
  EXPECT_GT(joules(*r.energy, PowerKind::kWait), 0);
  EXPECT_NEAR(r.energy->cluster.mean * real(r.step_time_ps) / 1e12, expected, 1e-9 * expected);
}

// Every rank by itself, and the cells of those that are alike.
TEST(StepEnergy, OfRanksOneByOneIsThatOfTheirCells) {
  StepMaker m(8);
  m.stages(2, 4);
  const auto x = m.buffer("x", 30'000);
  const auto send = m.exchange("send", Stream::kForwardSend, {{true, 4, x}}),
             receive = m.exchange("receive", Stream::kForwardReceive, {{false, -4, x}});
  m.run_once(0, {m.compute("first", 20 * kMicrosecond),
                 m.all_reduce("sum", m.group(4, 1), 50'000, Stream::kData), send});
  m.run_once(1, {receive, m.compute("second", 40 * kMicrosecond)});
  const costmodel::CostModel cost = m.cost(powered(4, 2));
  const StepEnergy whole = *run(m, powered(4, 2)).energy;
  for (const bool fold : {false, true}) {
    const auto step = RankStep::make({{.program = &m.program, .costs = {cost}}}, {.fold = fold});
    ASSERT_TRUE(step.has_value());
    const auto ran = step->run({}, SimOptions{.energy = true});
    ASSERT_TRUE(ran.has_value());
    const StepEnergy& e = *ran->report.energy;
    EXPECT_NEAR(e.total(), whole.total(), 1e-9 * whole.total());
    for (std::size_t k = 0; k < e.devices.size(); ++k)
      EXPECT_NEAR(e.devices[k], whole.devices[k], 1e-9 * whole.total()) << k;
    EXPECT_EQ(e.cluster.most, whole.cluster.most);
    EXPECT_EQ(e.cluster.least, whole.cluster.least);
    EXPECT_EQ(e.host.most, whole.host.most);
  }
}

TEST(StepEnergy, IsThereOnlyWhenAsked) {
  StepMaker m(1);
  m.stages(1, 1);
  m.run_once(0, {m.compute("work", kMicrosecond)});
  EXPECT_FALSE(m.run(powered(1)).energy.has_value());
}

TEST(StepEnergy, JsonAndTextSayWhatWasAssumed) {
  StepEnergy e;
  e.hosts = 3.6e9;
  e.pue = 1.5;
  e.assumed = {"a guess"};
  EXPECT_EQ(to_json(e).at("site_mwh"), 1.5);
  EXPECT_EQ(to_json(e).at("assumed"), base::Json{"a guess"});
  EXPECT_THAT(to_text(e), ::testing::HasSubstr("assumed      a guess"));
}

}  // namespace
}  // namespace orrery::sim
