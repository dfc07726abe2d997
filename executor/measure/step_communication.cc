#include "executor/measure/step_communication.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "base/numbers.h"
#include "executor/measure/microbench.h"
#include "executor/measure/recorded_training.h"

namespace orrery::executor {
namespace {

/// A collective by what its time alone depends on.
using Kind = std::tuple<model::Collective, plan::GroupId, std::int64_t>;

bool counts(const plan::Op& op) {
  if (op.kind != plan::OpKind::kCollective) return false;
  return op.collective == model::Collective::kAllReduce ||
         op.collective == model::Collective::kAllGather ||
         op.collective == model::Collective::kReduceScatter;
}

base::Result<double> seconds_alone(Site& site, const plan::Program& program, const Kind& kind) {
  Communicator& world = *site.communicator;
  const auto& [collective, group_id, bytes] = kind;
  TRY(const Channel channel, channel_of(world, program.groups[group_id], plan::Stream::kData));
  return time_collective(world, channel, collective, bytes, site.device);
}

}  // namespace

base::Result<ComposedStep> collectives_in_step(Site& site, const plan::Program& program) {
  std::map<Kind, std::int64_t> kinds;
  std::vector<double> seconds;
  TRY_VOID(train_together(site, program, program.spec.vocab,
                          [&](const RecordedStep& step) {
                            double all = 0;
                            kinds.clear();
                            for (const plan::Span& s : step.spans) {
                              const plan::Op& op = operation_of(program, s);
                              if (!counts(op)) continue;
                              all += 1e-12 * real(s.duration_ps);
                              ++kinds[{op.collective, op.group, op.bytes}];
                            }
                            seconds.push_back(all);
                          },
                          {.warm = 1, .steps = 5}));
  ComposedStep composed;
  TRY(composed.seconds, mean_over_ranks(*site.communicator, timing_of(std::move(seconds)).median));
  for (const auto& [kind, count] : kinds) {
    TRY(const double alone, seconds_alone(site, program, kind));
    composed.medians += alone * real(count);
    composed.operations += real(count);
  }
  return composed;
}

model::StepCommunication fit_step_communication(std::span<const ComposedStep> steps) {
  const Composition c = fit_composition(steps);
  if (c.factor >= 1) return {.factor = c.factor, .issue_seconds = c.overhead};
  double bb = 0, b1 = 0;
  for (const ComposedStep& s : steps) {
    const double b = s.operations / s.seconds;
    bb += b * b;
    b1 += b * (1 - s.medians / s.seconds);
  }
  return {.factor = 1, .issue_seconds = std::max(0.0, b1 / bb)};
}

}  // namespace orrery::executor
