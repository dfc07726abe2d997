// A host that runs ahead of a device whose operations end only when somebody waits for them: what
// it holds, and whom it waits for.
#include "executor/runtime/late_frees.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "model/spec.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::executor {
namespace {

/// Operations end when they are awaited, or when `all_end` says so.
class SlowStreams : public Streams {
 public:
  base::Result<void> enter(plan::Stream, std::span<const std::uint32_t>, bool) override {
    return {};
  }
  base::Result<void> mark(plan::Stream, std::uint32_t) override { return {}; }
  base::Result<void> await(std::uint32_t operation) override {
    awaited.push_back(operation);
    return {};
  }
  [[nodiscard]] bool ended(std::uint32_t) override { return all_end; }
  base::Result<void> finish() override { return {}; }

  std::vector<std::uint32_t> awaited;
  bool all_end = false;
};

struct Case {
  const char* name;
  plan::UniformOptions options;
};

plan::Program program_of(const plan::UniformOptions& options) {
  const model::ModelSpec model = *model::find_model("gpt2-tiny");
  return *plan::lower(*plan::uniform_plan(model, "local", 1, options), model);
}

/// Issues a step of a class. `issued(op, frees)` sees what is held behind each admission.
template <class Issued>
void issue(const plan::Program& program, const plan::RankClass& rank_class, SlowStreams& streams,
           const Issued& issued) {
  const StreamOrder order(program, rank_class);
  LateFrees frees(program, rank_class, order);
  const std::size_t ops = plan::unroll(program, rank_class).size();
  for (std::size_t op = 0; op < ops; ++op) {
    ASSERT_TRUE(frees.admit(op, streams));
    issued(order, op, frees);
    order.each_free(op, [&](const StreamOrder::Free& free) {
      EXPECT_TRUE(free.users.empty() || order.awaited(free.users.front()));
      frees.hold(op, free, at::empty({1}));
    });
  }
  frees.clear();
  EXPECT_EQ(frees.held_bytes(), 0);
}

class LateFreesOf : public ::testing::TestWithParam<Case> {};

TEST_P(LateFreesOf, StayWithinThePeakAndWaitForNoLastSend) {
  const plan::Program program = program_of(GetParam().options);
  for (const plan::RankClass& rank_class : program.classes) {
    const std::int64_t peak = plan::static_memory(program, rank_class).peak_bytes;
    SlowStreams streams;
    std::array<std::int64_t, plan::kStreams> last;
    last.fill(-1);
    std::size_t held = 0, seen = 0;
    issue(program, rank_class, streams,
          [&](const StreamOrder& order, std::size_t op, const LateFrees& frees) {
            last[as_index(order.op(op).stream)] = static_cast<std::int64_t>(op);
            EXPECT_LE(frees.alive_bytes(op) + frees.held_bytes(), peak) << op;
            if (frees.held_bytes() > 0) ++held;
            for (; seen < streams.awaited.size(); ++seen) {
              const std::uint32_t user = streams.awaited[seen];
              const plan::Op& of = order.op(user);
              EXPECT_LT(user, op);
              if (plan::frees_late(of)) {
                EXPECT_NE(last[as_index(of.stream)], user) << op;
              }
            }
          });
    EXPECT_GT(held, 0U);
  }
}

TEST_P(LateFreesOf, HoldNothingWhereTheDeviceKeepsUp) {
  const plan::Program program = program_of(GetParam().options);
  for (const plan::RankClass& rank_class : program.classes) {
    SlowStreams streams;
    streams.all_end = true;
    issue(program, rank_class, streams,
          [&](const StreamOrder&, std::size_t, const LateFrees& frees) {
            EXPECT_EQ(frees.held_bytes(), 0);
          });
    EXPECT_TRUE(streams.awaited.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, LateFreesOf,
    ::testing::Values(
        Case{"dp", {.dp = 2, .zero = 3, .micro_batch = 2, .global_batch = 8}},
        Case{"tp", {.tp = 2, .sequence_parallel = true, .micro_batch = 2, .global_batch = 8}},
        Case{"pp", {.pp = 2, .micro_batch = 2, .global_batch = 16}},
        Case{"all",
             {.tp = 2,
              .pp = 2,
              .dp = 2,
              .zero = 3,
              .sequence_parallel = true,
              .recompute = plan::Recompute::kFull,
              .micro_batch = 1,
              .global_batch = 16}},
        Case{"offload",
             {.recompute = plan::Recompute::kOffload, .micro_batch = 1, .global_batch = 4}},
        Case{"states_on_the_host",
             {.dp = 2,
              .zero = 1,
              .states = plan::States::kHost,
              .micro_batch = 1,
              .global_batch = 4}}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(LateFrees, TheLargestOfAllOperationsIsThePeak) {
  const plan::Program program = program_of({.tp = 2, .pp = 2, .micro_batch = 2, .global_batch = 8});
  for (const plan::RankClass& rank_class : program.classes) {
    const auto bytes = plan::memory_by_op(program, rank_class);
    const plan::StaticMemory memory = plan::static_memory(program, rank_class);
    EXPECT_EQ(std::ranges::max(bytes), memory.peak_bytes);
    EXPECT_EQ(bytes[as_index(memory.peak_op)], memory.peak_bytes);
  }
}

}  // namespace
}  // namespace orrery::executor
