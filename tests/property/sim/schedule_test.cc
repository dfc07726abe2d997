/// Schedules of equal stages on the simulated clock against their published bubbles, exactly; any
/// lowered plan makes progress.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "costmodel/closed_form/closed_form.h"
#include "plan/lowering/lower.h"
#include "tests/property/plan/random_plan.h"
#include "tests/support/operation_time.h"
#include "tests/unit/costmodel/machines.h"
#include "tests/unit/sim/scheduled_step.h"

namespace orrery::sim {
namespace {

using testing::ScheduledOptions;
using testing::ScheduledStep;

// A rate at which a message takes a picosecond, and no latency: as good as free.
constexpr std::int64_t kFast = 4'000'000'000'000;

std::int64_t step_ps(const ScheduledOptions& o, bool overlaps,
                     std::int64_t bytes_per_second = kFast) {
  ScheduledStep step(o);
  step.maker.profile.overlaps = overlaps;
  return step.maker.run(testing::star(o.ranks, bytes_per_second, 0)).step_time_ps;
}
std::int64_t time() { return 1'000'000 * *rc::gen::inRange<std::int64_t>(1, 40); }
/// No path has more messages than passes.
std::int64_t slack(const ScheduledOptions& o) {
  return 4 * o.ranks * o.chunks * (o.micro_batches + 1);
}

// (m + (p-1)/v)(F + B) with F, B of a rank (arXiv 2104.04473, section 2.2).
RC_GTEST_PROP(Interleaved, BubbleIsAVthOfOneForwardOneBackward, (bool overlaps)) {
  ScheduledOptions o{.schedule = plan::Schedule::kInterleaved,
                     .ranks = *rc::gen::inRange(2, 6),
                     .chunks = *rc::gen::inRange(2, 5)};
  o.micro_batches = o.ranks * *rc::gen::inRange(1, 5);
  o.forward_ps = time();
  o.backward_ps = time();
  const std::int64_t want = (o.micro_batches * o.chunks + o.ranks - 1) *
                            (o.forward_ps + o.backward_ps),
                     got = step_ps(o, overlaps);
  RC_ASSERT(got >= want);
  RC_ASSERT(got <= want + slack(o));
}

// m (F + B + W) + (p-1) max(F, B, F + B - W) for m >= p; below that each missing micro-batch leaves
// F + B more of the pipeline unfilled, or less if W > B.
RC_GTEST_PROP(ZeroBubble, BubbleIsWhatWeightGradientsLeave, (bool overlaps)) {
  ScheduledOptions o{.schedule = plan::Schedule::kZeroBubbleH1, .ranks = *rc::gen::inRange(1, 7)};
  o.micro_batches = *rc::gen::inRange(1, 15);
  o.forward_ps = time();
  o.backward_ps = time();
  o.weight_ps = time();
  const std::int64_t f = o.forward_ps, b = o.backward_ps, w = o.weight_ps, p = o.ranks,
                     k = std::min(p, o.micro_batches);
  const std::int64_t want =
      o.micro_batches * (f + b + w) + (k - 1) * std::max({f, b, f + b - w}) + (p - k) * (f + b);
  const std::int64_t got = step_ps(o, overlaps);
  if (o.micro_batches >= p || w <= b) RC_ASSERT(got >= want);
  RC_ASSERT(got <= want + slack(o));
}

ScheduledOptions v_shaped(plan::Schedule schedule, int micro_batches_per_rank) {
  ScheduledOptions o{.schedule = schedule, .ranks = *rc::gen::inRange(2, 7), .chunks = 2};
  o.micro_batches = micro_batches_per_rank * o.ranks + *rc::gen::inRange(0, 15);
  return o;
}

// F = B = W of a chunk: all ranks work from the first pass that reaches them to the end, so what is
// idle is the way down the first arm (arXiv 2401.10241, section 6).
RC_GTEST_PROP(ZeroBubbleV, IsIdleForTheWayDownAlone, (bool overlaps)) {
  ScheduledOptions o = v_shaped(plan::Schedule::kZeroBubbleV, 2);
  o.forward_ps = o.backward_ps = o.weight_ps = time();
  const std::int64_t want = (6 * o.micro_batches + o.ranks - 1) * o.forward_ps,
                     got = step_ps(o, overlaps);
  RC_ASSERT(got >= want);
  RC_ASSERT(got <= want + slack(o));
}

// At most (p - 1)(F + 2B - W) of a chunk: (PP/2 - 1)(F&B + B - 3W) of the authors, whose B has the
// weights in it and whose F&B is here both in turn (github.com/deepseek-ai/DualPipe). There both
// start together and send behind both; here each starts and sends by itself, and F = B = W leaves
// the way down alone.
RC_GTEST_PROP(DualPipeV, BubbleIsAtMostThatOfItsAuthors, (bool overlaps)) {
  ScheduledOptions o = v_shaped(plan::Schedule::kDualPipeV, 2);
  o.forward_ps = time();
  o.weight_ps = time();
  o.backward_ps = std::max(o.forward_ps, o.weight_ps) + time();
  const std::int64_t f = o.forward_ps, b = o.backward_ps, w = o.weight_ps, hops = o.ranks - 1,
                     work = 2 * o.micro_batches * (f + b + w), got = step_ps(o, overlaps);
  RC_ASSERT(got >= work + hops * f);
  RC_ASSERT(got <= work + hops * (f + 2 * b - w) + slack(o));
  o.backward_ps = o.weight_ps = f;
  const std::int64_t alike = (6 * o.micro_batches + hops) * f, alike_got = step_ps(o, overlaps);
  RC_ASSERT(alike_got >= alike);
  RC_ASSERT(alike_got <= alike + slack(o));
}

// Never longer than 1F1B with the backward in one piece.
RC_GTEST_PROP(ZeroBubble, IsNeverLongerThanOneForwardOneBackward, ()) {
  ScheduledOptions o{.schedule = plan::Schedule::kZeroBubbleH1, .ranks = *rc::gen::inRange(1, 7)};
  o.micro_batches = *rc::gen::inRange(1, 15);
  o.forward_ps = time();
  o.backward_ps = time();
  o.weight_ps = time();
  ScheduledOptions plain = o;
  plain.schedule = plan::Schedule::k1F1B;
  plain.backward_ps += o.weight_ps;
  RC_ASSERT(step_ps(o, true) <= step_ps(plain, true) + slack(o));
}

// One thread per rank that blocks in receives, slow messages, any schedule: every pass ends, and no
// rank works more than its share.
RC_GTEST_PROP(Schedules, MakeProgressHoweverSlowTheMessages, (bool overlaps)) {
  ScheduledOptions o{.schedule = static_cast<plan::Schedule>(*rc::gen::inRange(0, 6)),
                     .ranks = *rc::gen::inRange(2, 6)};
  o.micro_batches = *rc::gen::inRange(1, 9);
  if (o.schedule == plan::Schedule::kInterleaved) {
    o.chunks = *rc::gen::inRange(2, 4);
    o.micro_batches = o.ranks * *rc::gen::inRange(1, 4);
  }
  if (plan::is_v_shaped(o.schedule)) o.chunks = 2;
  o.message_bytes = 4 * *rc::gen::inRange<std::int64_t>(1, 20'000);
  ScheduledStep step(o);
  step.maker.profile.overlaps = overlaps;
  const auto report =
      simulate(step.maker.program, step.maker.cost(testing::star(o.ranks, 1'000'000'000, 0)));
  if (!report) RC_FAIL(base::to_string(report.error()));
  const std::int64_t passes = plan::splits_backward(o.schedule) ? 3 : 2;
  for (const StageReport& s : report->stages)
    RC_ASSERT(s.busy_compute_ps == passes * o.chunks * o.micro_batches * testing::kMicrosecond);
}

// Lowered plans of every schedule, stages even and lopsided: the clock agrees with the issue order
// about memory, never beats the busiest rank, and without overlap the step is at most all ranks in
// turn.
RC_GTEST_PROP(Schedules, LoweredPlansRunInBoundsOfTheirWork, (std::uint64_t seed, bool overlaps)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const auto program = plan::lower(plan, model);
  if (!program) RC_FAIL(base::to_string(program.error()));
  model::Profile profile;
  profile.name = "test";
  profile.device = "T100";
  profile.overlaps = overlaps;
  const auto cost = costmodel::CostModel::make(model, costmodel::machines::cluster(16), profile,
                                               {plan.precision, plan.sequence})
                        .value();
  const auto report = simulate(*program, cost);
  if (!report) RC_FAIL(base::to_string(report.error()));
  const auto closed = costmodel::plan_cost(cost, plan).value();
  std::int64_t busiest = 0;
  for (std::size_t r = 0; r < report->stages.size(); ++r) {
    busiest = std::max(busiest, report->stages[r].busy_compute_ps);
    RC_ASSERT(report->stages[r].peak_memory_bytes ==
              closed.stage_peak_bytes[r] + cost.context_bytes());
  }
  RC_ASSERT(report->step_time_ps >= busiest);
  std::int64_t all = 0;
  for (std::size_t c = 0; c < program->classes.size(); ++c) {
    const plan::RankClass& k = program->classes[c];
    plan::for_each_op(*program, k, [&](const plan::OpInstance& o) {
      all += tests::op_ps(cost, *program, *o.op, k.first_rank, k.count);
    });
  }
  if (!overlaps) RC_ASSERT(report->step_time_ps <= all);
}

// The page's picture of lowered plans is the step: its memory peaks where the clock's does, its
// blocks are busy as long as the operations last.
RC_GTEST_PROP(Picture, ShowsTheStepThatWasSimulated, (std::uint64_t seed)) {
  const auto [model, plan] = plan::random_plan(seed, 4);
  const auto program = plan::lower(plan, model).value();
  const auto cost = costmodel::CostModel::make(model, costmodel::machines::cluster(16),
                                               std::nullopt, {plan.precision, plan.sequence})
                        .value();
  const auto report = simulate(program, cost, {.timeline = true, .picture = true}).value();
  std::int64_t busy = 0, lasting = 0;
  for (const plan::Span& s : report.timeline.spans) lasting += s.duration_ps;
  for (std::size_t c = 0; c < report.stages.size(); ++c) {
    const Picture::Stage& stage = report.picture.stages[c];
    for (const Picture::Block& b : stage.blocks) {
      busy += b.busy_ps;
      RC_ASSERT(0 <= b.start_ps && b.start_ps <= b.end_ps && b.end_ps <= report.step_time_ps);
    }
    std::int64_t highest = 0;
    for (const Picture::Memory& m : stage.memory)
      highest = std::max(highest, std::accumulate(m.bytes.begin(), m.bytes.end(), std::int64_t{0}));
    RC_ASSERT(highest + cost.context_bytes() == report.stages[c].timeline_peak_bytes);
    RC_ASSERT(static_cast<int>(stage.memory.size()) <= kMemoryBins);
  }
  RC_ASSERT(busy == lasting);
}

}  // namespace
}  // namespace orrery::sim
