#include "executor/runtime/stream_order.h"

#include <gtest/gtest.h>

#include <map>

#include "model/spec.h"
#include "plan/lowering/lower.h"

namespace orrery::executor {
namespace {

plan::Program program_of(const plan::UniformOptions& options) {
  const model::ModelSpec model = *model::find_model("gpt2-tiny");
  return *plan::lower(*plan::uniform_plan(model, "local", 1, options), model);
}

/// Numbers of the operations of a kind, in issue order.
std::vector<std::uint32_t> numbers(const plan::Program& program, int stage, plan::Stream stream) {
  std::vector<std::uint32_t> found;
  std::uint32_t number = 0;
  plan::for_each_op(program, program.classes[as_index(stage)], [&](const plan::OpInstance& o) {
    if (o.op->stream == stream) found.push_back(number);
    ++number;
  });
  return found;
}

// Data parallelism: a gradient's reduction waits for compute, an update for it, and no other
// compute for any.
TEST(StreamOrder, OnlyUpdatesWaitForReductions) {
  const plan::Program program = program_of({.dp = 2, .micro_batch = 4, .global_batch = 8});
  const StreamOrder order(program, program.classes[0]);
  const auto compute = numbers(program, 0, plan::Stream::kCompute),
             data = numbers(program, 0, plan::Stream::kData);
  ASSERT_FALSE(data.empty());
  for (const std::uint32_t op : data) {
    ASSERT_EQ(order.before(op).size(), 1U);
    EXPECT_TRUE(order.awaited(order.before(op)[0]));
  }
  const auto ops = plan::unroll(program, program.classes[0]);
  std::size_t waiting = 0;
  for (const std::uint32_t op : compute) {
    for (const std::uint32_t before : order.before(op)) {
      if (ops[before].op->stream != plan::Stream::kData) continue;
      ++waiting;
      EXPECT_EQ(program.segments[ops[op].op->segment].kind, model::SegmentKind::kAdamW);
    }
  }
  EXPECT_EQ(waiting, data.size());
}

// A receive waits for nobody on its own rank; who computes on what it brought waits for it.
TEST(StreamOrder, ReceivesAreAwaited) {
  const plan::Program program = program_of({.pp = 2, .micro_batch = 2, .global_batch = 8});
  const StreamOrder order(program, program.classes[1]);
  for (const std::uint32_t op : numbers(program, 1, plan::Stream::kForwardReceive)) {
    EXPECT_TRUE(order.before(op).empty());
    EXPECT_TRUE(order.awaited(op));
  }
}

/// Frees of what another stream made than the one that frees it, by the stream that frees.
std::map<plan::Stream, std::size_t> frees_by_another(const plan::Program& program, int stage) {
  const plan::RankClass& rank_class = program.classes[as_index(stage)];
  const StreamOrder order(program, rank_class);
  const std::size_t ops = plan::unroll(program, rank_class).size();
  std::map<plan::Stream, std::size_t> frees;
  for (std::size_t op = 0; op < ops; ++op) {
    order.each_free(op, [&](const StreamOrder::Free& free) {
      if (!free.by_another) return;
      EXPECT_TRUE(order.awaited(op));
      EXPECT_GT(free.bytes, 0);
      ++frees[order.op(op).stream];
    });
  }
  return frees;
}

std::size_t loads(const plan::Program& program, int stage) {
  return numbers(program, stage, plan::Stream::kHost).size();
}

// What a receive made dies behind compute, and the next receive must not have its memory before.
// Activations and gradients are made by compute as well, on the same stage or another: what counts
// is who made this one.
TEST(StreamOrder, FreesOfAnotherStreamAreKnown) {
  const plan::Program program = program_of({.pp = 2, .micro_batch = 2, .global_batch = 8});
  const auto first = frees_by_another(program, 0), last = frees_by_another(program, 1);
  EXPECT_EQ(first.at(plan::Stream::kCompute), 4U + loads(program, 0)) << "gradients, tokens";
  EXPECT_EQ(first.at(plan::Stream::kForwardSend), 4U);
  EXPECT_EQ(last.at(plan::Stream::kCompute), 4U + loads(program, 1)) << "activations, targets";
  EXPECT_EQ(last.at(plan::Stream::kBackwardSend), 4U);
}

TEST(StreamOrder, WhatOtherTemplatesMakeDoesNotMatter) {
  const model::ModelSpec model = *model::find_model("gpt2-tiny");
  plan::Plan plan = *plan::uniform_plan(
      model, "local", 1,
      {.pp = 2, .recompute = plan::Recompute::kFull, .micro_batch = 2, .global_batch = 8});
  plan.stages[1].runs[0].strategy.recompute = plan::Recompute::kNone;
  const plan::Program program = *plan::lower(plan, model);
  EXPECT_EQ(frees_by_another(program, 1).at(plan::Stream::kCompute), 4U + loads(program, 1));
  EXPECT_EQ(frees_by_another(program, 0).at(plan::Stream::kCompute), 4U + loads(program, 0));
}

}  // namespace
}  // namespace orrery::executor
