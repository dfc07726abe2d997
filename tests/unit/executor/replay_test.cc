// Any rank of a plan, alone: its memory is the Program's, and its communication takes the time that
// it is given.
#include "executor/runtime/replay.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/state/device.h"
#include "executor/transport/communicator.h"
#include "plan/lowering/lower.h"
#include "plan/program/expand.h"
#include "plan/program/memory.h"

namespace orrery::executor {
namespace {

constexpr std::int64_t kMillisecondPs = 1'000'000'000;

plan::Program program_of(plan::UniformOptions options) {
  const model::ModelSpec model = model::find_model("gpt2-tiny").value();
  options.global_batch = 8;
  options.precision = model::Precision::kFloat32;
  return plan::lower(plan::uniform_plan(model, "local", 1, options).value(), model).value();
}

/// Every operation that communicates takes `ps`.
ReplayedRank rank_with(const plan::Program& program, int rank, std::int64_t ps) {
  ReplayedRank replayed{.rank = rank, .op_ps = {}};
  plan::for_each_op(program, program.class_of(rank), [&](const plan::OpInstance& o) {
    replayed.op_ps.push_back(o.op->kind == plan::OpKind::kCompute ? 0 : ps);
  });
  return replayed;
}

RunReport replayed(const plan::Program& program, int rank, std::int64_t ps) {
  RunOptions options;
  options.device = "cpu";
  options.timeline = true;
  base::Result<RunReport> report = replay(program, rank_with(program, rank, ps), options);
  EXPECT_TRUE(report) << base::to_string(report.error());
  return report ? *std::move(report) : RunReport{};
}

class Replay : public testing::TestWithParam<int> {};  // ZeRO

TEST_P(Replay, EveryRankHasTheMemoryOfTheProgram) {
  const plan::Program program =
      program_of({.tp = 2, .pp = 2, .dp = 2, .zero = GetParam(), .micro_batch = 2});
  ASSERT_EQ(program.world_size, 8);
  for (int rank = 0; rank < program.world_size; ++rank) {
    const plan::RankClass& k = program.class_of(rank);
    const RunReport report = replayed(program, rank, 0);
    ASSERT_EQ(report.peak_memory_bytes.size(), 2U);
    EXPECT_EQ(report.peak_memory_bytes[as_index(k.stage)],
              plan::static_memory(program, k).peak_bytes)
        << "rank " << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Zero, Replay, testing::Values(0, 1, 3));

TEST(Replay, CommunicationTakesItsTime) {
  const plan::Program program =
      program_of({.tp = 2, .pp = 2, .dp = 2, .zero = 3, .micro_batch = 2});
  const RunReport report = replayed(program, 5, 2 * kMillisecondPs);
  std::int64_t waits = 0, communication_ps = 0;
  for (const plan::Span& s : report.timeline.spans) {
    EXPECT_EQ(s.rank, 5);
    const bool waited_for = s.phase.empty() && s.stream != plan::Stream::kBackwardSend;
    if (!waited_for) continue;
    EXPECT_GE(s.duration_ps, 2 * kMillisecondPs) << s.name;
    communication_ps += s.duration_ps;
    ++waits;
  }
  EXPECT_GT(waits, 20);
  EXPECT_GE(report.steps.back().seconds, 1e-12 * static_cast<double>(communication_ps));
}

TEST(Replay, ASendHoldsNobodyUntilItIsWaitedFor) {
  const auto communicator =
      make_replay_communicator(0, 2, {0, 20 * kMillisecondPs}, c10::Device(c10::kCPU)).value();
  communicator->at({.operation = "send", .number = 1});
  const Stopwatch clock;
  const auto transfer =
      communicator->post({{.send = true, .peer = 1, .lane = 0, .tensor = at::empty({4})}}).value();
  EXPECT_FALSE(transfer->test().value());
  EXPECT_LT(clock.seconds(), 0.02);
  EXPECT_TRUE(transfer->wait());
  EXPECT_GE(clock.seconds(), 0.02);
  EXPECT_TRUE(transfer->test().value());
}

// Along both dimensions, and where the own part already lies in its slot.
TEST(Replay, AnAllGatherRepeatsTheOwnPart) {
  const auto communicator = make_stub_communicator(1, 3);
  const std::vector<int> ranks{0, 1, 2};
  const Channel channel = communicator->channel(ranks, plan::Stream::kData).value();
  const at::Tensor part = at::arange(4).view({2, 2});
  for (const int dim : {0, 1}) {
    at::Tensor whole =
        at::empty(dim == 0 ? at::IntArrayRef{6, 2} : at::IntArrayRef{2, 6}, at::kLong);
    ASSERT_TRUE(communicator->all_gather(channel, part, whole, dim));
    EXPECT_TRUE(at::equal(whole, at::cat({part, part, part}, dim)));
  }
  at::Tensor flat = at::arange(12);
  const at::Tensor own = flat.narrow(0, 4, 4);
  ASSERT_TRUE(communicator->all_gather(channel, own, flat, 0));
  EXPECT_TRUE(at::equal(flat, at::arange(4, 8).repeat({3})));
}

TEST(Replay, ARankThatThePlanDoesNotHaveIsRefused) {
  const plan::Program program = program_of({.dp = 2, .micro_batch = 2});
  for (const int rank : {-1, 2}) {
    const auto report = replay(program, {.rank = rank, .op_ps = {}}, {});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().front().code, base::ErrorCode::kOutOfRange);
    EXPECT_THAT(base::to_string(report.error()), testing::HasSubstr("0 to 1"));
  }
}

}  // namespace
}  // namespace orrery::executor
