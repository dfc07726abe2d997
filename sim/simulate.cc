#include "sim/simulate.h"

#include <algorithm>
#include <string>

#include "base/fingerprint.h"
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

}  // namespace

base::Result<SimReport> simulate(const plan::Program& program, const costmodel::CostModel& cost,
                                 const SimOptions& options) {
  TRY_VOID(check_fits(program, cost));
  const std::int64_t slowdown = std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000);
  kernel::EventQueue queue;
  FlowNetwork network(cost.topology(), slowdown, queue, Interpreter::kFlowEvent);
  TRY(const PreparedStep step, prepare(program, cost, network, !options.picture));
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
  return report;
}

base::Result<std::optional<std::int64_t>> simulated_step_ps(const plan::Program& program,
                                                            const costmodel::CostModel& cost,
                                                            std::int64_t cutoff_ps) {
  TRY_VOID(check_fits(program, cost));
  const std::int64_t slowdown = std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000);
  const bool fuses = cost.overlaps() && slowdown == 1'000'000;
  FusedProgram fused;
  if (fuses) fused = fuse(program);
  kernel::EventQueue queue;
  FlowNetwork network(cost.topology(), slowdown, queue, Interpreter::kFlowEvent);
  TRY(const PreparedStep step,
      fuses ? prepare(fused, cost, network) : prepare(program, cost, network));
  Interpreter interpreter(
      step, network, queue,
      {.overlaps = cost.overlaps(), .slowdown_ppm = slowdown, .cutoff_ps = cutoff_ps});
  TRY(const Outcome outcome, interpreter.run());
  if (outcome.cut_off || outcome.step_ps > cutoff_ps) return std::nullopt;
  return outcome.step_ps;
}

}  // namespace orrery::sim
