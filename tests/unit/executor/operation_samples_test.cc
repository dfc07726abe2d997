#include "executor/measure/operation_samples.h"

#include <gtest/gtest.h>

#include "executor/transport/communicator.h"

namespace orrery::executor {
namespace {

using model::Phase;
using model::SegmentKind;

/// Three operations: a load, a norm of either phase, a collective.
plan::Program small_program() {
  plan::Program program;
  model::SegmentShape load, norm;
  load.kind = SegmentKind::kLoadTokens;
  norm.kind = SegmentKind::kNorm;
  norm.in = 64;
  const plan::SegmentId load_id(0), norm_id(1);
  program.segments.push_back(load);
  program.segments.push_back(norm);
  plan::Template t{.name = "block", .ops = {}};
  const auto add = [&](plan::OpKind kind, plan::SegmentId segment, Phase phase) {
    plan::Op& op = t.ops.emplace_back();
    op.kind = kind;
    op.segment = segment;
    op.phase = phase;
  };
  add(plan::OpKind::kCompute, load_id, Phase::kF);
  add(plan::OpKind::kCompute, norm_id, Phase::kF);
  add(plan::OpKind::kCompute, norm_id, Phase::kB);
  add(plan::OpKind::kCollective, norm_id, Phase::kF);
  program.templates.push_back(std::move(t));
  return program;
}

/// (index of the operation, ps) one after another.
std::vector<plan::Span> spans_of(const std::vector<std::pair<std::uint32_t, std::int64_t>>& list) {
  std::vector<plan::Span> spans;
  for (const auto& [index, ps] : list) {
    plan::Span s;
    s.template_index = index;
    s.duration_ps = ps;
    spans.push_back(std::move(s));
  }
  return spans;
}

constexpr std::int64_t kMs = 1'000'000'000;

TEST(OperationSamples, PointsAreMediansOfComputeOperations) {
  const plan::Program program = small_program();
  const auto world = make_self_communicator();
  OperationSamples samples;
  PlayedProgram played;
  const auto first =
      spans_of({{0, 5 * kMs}, {1, 2 * kMs}, {1, 3 * kMs}, {2, 6 * kMs}, {3, 9 * kMs}});
  samples.add(program, {.wall_seconds = 0.030, .used_seconds = 0.030, .spans = first}, played);
  const auto second =
      spans_of({{0, 5 * kMs}, {1, 4 * kMs}, {1, 40 * kMs}, {2, 8 * kMs}, {3, 9 * kMs}});
  samples.add(program, {.wall_seconds = 0.070, .used_seconds = 0.070, .spans = second}, played);
  const auto points = samples.points(*world).value();
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].shape.kind, SegmentKind::kNorm);
  EXPECT_EQ(points[0].phase, Phase::kF);
  EXPECT_EQ(points[0].samples, 4);
  EXPECT_DOUBLE_EQ(points[0].seconds_median, 0.0035);  // of 2, 3, 4 and 40 ms
  EXPECT_EQ(points[1].phase, Phase::kB);
  EXPECT_DOUBLE_EQ(points[1].seconds_median, 0.007);
  // 25 ms of spans in 30 ms, 66 in 70: what lies between, shared by five spans.
  ASSERT_EQ(played.gaps.size(), 2U);
  EXPECT_NEAR(played.gaps[0], 0.001, 1e-12);
  EXPECT_NEAR(played.gaps[1], 0.0008, 1e-12);
}

TEST(OperationSamples, AStepCountsInTheShareOfItsTimeThatItsThreadHad) {
  const plan::Program program = small_program();
  OperationSamples samples;
  PlayedProgram played;
  const auto spans = spans_of({{1, 8 * kMs}});
  samples.add(program, {.wall_seconds = 0.010, .used_seconds = 0.005, .spans = spans}, played);
  EXPECT_DOUBLE_EQ(samples.points(*make_self_communicator()).value()[0].seconds_median, 0.004);
  EXPECT_NEAR(played.gaps[0], 0.001, 1e-12);
}

TEST(OperationSamples, AProgramIsHeldAgainstTheMediansOfAllThatRanIt) {
  const plan::Program program = small_program();
  const auto world = make_self_communicator();
  OperationSamples samples;
  PlayedProgram slow, fast;
  const auto slowly = spans_of({{1, 4 * kMs}, {1, 4 * kMs}, {2, 10 * kMs}, {3, kMs}});
  const auto quickly = spans_of({{1, 2 * kMs}, {1, 2 * kMs}, {1, 2 * kMs}});
  samples.add(program, {.wall_seconds = 0.02, .used_seconds = 0.02, .spans = slowly}, slow);
  samples.add(program, {.wall_seconds = 0.02, .used_seconds = 0.02, .spans = quickly}, fast);
  auto points = samples.points(*world).value();
  ASSERT_DOUBLE_EQ(points[0].seconds_median, 0.002);
  const ComposedStep step = samples.composed(slow, points, *world).value();
  EXPECT_DOUBLE_EQ(step.seconds, 0.018);
  EXPECT_DOUBLE_EQ(step.medians, 0.014);
  EXPECT_DOUBLE_EQ(step.operations, 3);
  points.pop_back();  // what has no point is left out
  const ComposedStep known = samples.composed(slow, points, *world).value();
  EXPECT_DOUBLE_EQ(known.seconds, 0.008);
  EXPECT_DOUBLE_EQ(known.medians, 0.004);
  EXPECT_DOUBLE_EQ(known.operations, 2);
}

// Both operations of two micro-batches, the load and the collective apart.
TEST(OperationSamples, AWholeStepStandsAgainstAllItsPoints) {
  plan::Program program = small_program();
  program.micro_batches = 2;
  plan::Node call, loop;
  call.call = plan::TemplateId(0);
  call.micro_batch_from_loop = loop.is_loop = true;
  loop.axis = plan::Axis::kMicroBatch;
  loop.end = 2;
  loop.body.push_back(call);
  program.classes.emplace_back().body.push_back(loop);
  const model::SegmentShape norm = program.segments[plan::SegmentId(1)];
  std::vector<model::OperatorPoint> points{{.shape = norm, .phase = Phase::kF}};
  points[0].seconds_median = 0.002;
  EXPECT_FALSE(composed_of(program, 0.012, points)) << "no point of the backward";
  points.push_back({.shape = norm, .phase = Phase::kB});
  points[1].seconds_median = 0.003;
  const auto step = composed_of(program, 0.012, points);
  ASSERT_TRUE(step);
  EXPECT_DOUBLE_EQ(step->seconds, 0.012);
  EXPECT_DOUBLE_EQ(step->medians, 0.010);
  EXPECT_DOUBLE_EQ(step->operations, 4);
}

}  // namespace
}  // namespace orrery::executor
