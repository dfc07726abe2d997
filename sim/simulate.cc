#include "sim/simulate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/numbers.h"
#include "sim/report/extrapolated_report.h"
#include "sim/report/step_report.h"
#include "sim/step/fused_program.h"
#include "sim/step/interpreter.h"

namespace orrery::sim {
namespace {

/// Times of every operation, by class and issue index.
std::string fingerprint_of(const plan::Program& program, const Outcome& outcome) {
  base::Fingerprint f;
  f.add(program.fingerprint());
  for (std::size_t c = 0; c < outcome.classes.size(); ++c) {
    const ClassOutcome& out = outcome.classes[c];
    f.add(c).add(out.start_ps.size());
    add_times(out, f);
  }
  return f.hex();
}

/// A step that was run for its times alone.
struct TimedStep {
  FusedProgram fused;  // what `step` points into
  PreparedStep step;
  Outcome outcome;
};
base::Result<TimedStep> timed_step(const plan::Program& program, const costmodel::CostModel& cost,
                                   std::int64_t cutoff_ps) {
  TRY_VOID(check_fits(program, cost));
  const std::int64_t slowdown = std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000);
  const bool fuses = cost.overlaps() && slowdown == 1'000'000;
  TimedStep timed{fuses ? fuse(program) : without_frees(program), {}, {}};
  kernel::EventQueue queue;
  FlowNetwork network(cost.topology(), slowdown, queue, Interpreter::kFlowEvent);
  TRY(timed.step, prepare(timed.fused, cost, network));
  network.foresee_slowed();
  Interpreter interpreter(timed.step, network, queue,
                          {.overlaps = cost.overlaps(),
                           .slowdown_ppm = slowdown,
                           .accounts = false,
                           .cutoff_ps = cutoff_ps});
  TRY(timed.outcome, interpreter.run());
  return timed;
}

/// From the first backward of a rank until that of `later` micro-batches later.
std::int64_t period_ps(const std::vector<plan::OpInstance>& ops,
                       const std::vector<std::int64_t>& start_ps, std::int64_t later) {
  const auto first = std::ranges::find_if(ops, [](const plan::OpInstance& o) {
    return o.op->kind == plan::OpKind::kCompute && o.op->phase != plan::Phase::kF;
  });
  const auto again = std::find_if(first, ops.end(), [&](const plan::OpInstance& o) {
    return o.op == first->op && o.layer == first->layer &&
           o.micro_batch == first->micro_batch + later;
  });
  ORRERY_CHECK(again != ops.end(), "no backward {} micro-batches later", later);
  return start_ps[as_index(again - ops.begin())] - start_ps[as_index(first - ops.begin())];
}

}  // namespace

base::Result<SimReport> simulate(const plan::Program& program, const costmodel::CostModel& cost,
                                 const SimOptions& options) {
  TRY_VOID(check_fits(program, cost));
  const std::int64_t slowdown = std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000);
  kernel::EventQueue queue;
  FlowNetwork network(cost.topology(), slowdown, queue, Interpreter::kFlowEvent);
  TRY(PreparedStep step, prepare(program, cost, network, !options.picture));
  if (!options.compute.empty()) set_compute(step, options.compute);
  Interpreter interpreter(
      step, network, queue,
      {.overlaps = cost.overlaps(), .slowdown_ppm = slowdown, .memory_samples = options.timeline});
  TRY(const Outcome outcome, interpreter.run());

  FinishedStep finished{step, network, outcome, {}, {}, {}};
  for (std::uint32_t c = 0; c < step.classes.size(); ++c) {
    finished.shown.push_back(c);
    finished.rank.push_back(step.classes[c].rank_class->first_rank);
    finished.class_of_rank.insert(finished.class_of_rank.end(),
                                  as_index(step.classes[c].rank_class->count), c);
  }
  SimReport report = step_report(program, cost, finished, options);
  report.fingerprint = fingerprint_of(program, outcome);
  if (options.alone)
    for (std::size_t c = 0; c < step.classes.size(); ++c)
      report.alone.push_back(rank_alone(step.classes[c], outcome.classes[c], cost.overlaps()));
  return report;
}

base::Result<std::optional<std::int64_t>> simulated_step_ps(const plan::Program& program,
                                                            const costmodel::CostModel& cost,
                                                            std::int64_t cutoff_ps) {
  TRY(const TimedStep timed, timed_step(program, cost, cutoff_ps));
  if (timed.outcome.cut_off || timed.outcome.step_ps > cutoff_ps) return std::nullopt;
  return timed.outcome.step_ps;
}

base::Result<std::int64_t> extrapolated_step_ps(const plan::Program& program,
                                                const costmodel::CostModel& cost,
                                                std::int64_t micro_batches) {
  const std::int64_t ranks = as_int(program.classes.size()), more = micro_batches - 2 * ranks;
  ORRERY_CHECK(program.micro_batches == 2 * ranks && more >= 0, "{} micro-batches on {} ranks",
               program.micro_batches, ranks);
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  TRY(const TimedStep timed, timed_step(program, cost, kNever));
  const std::int64_t period = period_ps(timed.step.classes.back().expansion.ops,
                                        timed.outcome.classes.back().start_ps, ranks);
  return timed.outcome.step_ps + mul_div_up(period, more, ranks);
}

base::Result<std::int64_t> extrapolated_step_ps(const plan::Program& few, const plan::Program& more,
                                                const costmodel::CostModel& cost,
                                                std::int64_t micro_batches) {
  ORRERY_CHECK(few.micro_batches < more.micro_batches, "{} and {} micro-batches", few.micro_batches,
               more.micro_batches);
  TRY(const std::optional<std::int64_t> few_ps, simulated_step_ps(few, cost));
  TRY(const std::optional<std::int64_t> more_ps, simulated_step_ps(more, cost));
  return *few_ps + mul_div_up(*more_ps - *few_ps, micro_batches - few.micro_batches,
                              more.micro_batches - few.micro_batches);
}

base::Result<SimReport> extrapolated_report(const plan::Program& few, const plan::Program& more,
                                            const costmodel::CostModel& cost,
                                            std::int64_t micro_batches, bool energy) {
  TRY(SimReport of_few, simulate(few, cost, {.energy = energy}));
  TRY(SimReport of_more, simulate(more, cost, {.energy = energy}));
  return extrapolated({few.micro_batches, std::move(of_few)},
                      {more.micro_batches, std::move(of_more)}, micro_batches);
}

}  // namespace orrery::sim
