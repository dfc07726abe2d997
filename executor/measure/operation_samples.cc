#include "executor/measure/operation_samples.h"

#include <algorithm>

#include "base/numbers.h"
#include "plan/program/expand.h"

namespace orrery::executor {

bool is_load(const model::SegmentShape& shape) {
  return shape.kind == model::SegmentKind::kLoadTokens ||
         shape.kind == model::SegmentKind::kLoadTargets;
}

base::Result<model::OperatorPoint> point_over_ranks(const model::SegmentShape& shape,
                                                    model::Phase phase, const Timing& timing,
                                                    Communicator& world) {
  model::OperatorPoint p{.shape = shape, .phase = phase, .samples = timing.samples};
  TRY(p.seconds_median, mean_over_ranks(world, timing.median));
  TRY(p.seconds_p10, mean_over_ranks(world, timing.p10));
  TRY(p.seconds_p90, mean_over_ranks(world, timing.p90));
  return p;
}

const model::OperatorPoint* point_of(const std::vector<model::OperatorPoint>& points,
                                     const model::SegmentShape& shape, model::Phase phase) {
  const auto at = std::ranges::find_if(
      points, [&](const model::OperatorPoint& p) { return p.phase == phase && p.shape == shape; });
  return at == points.end() ? nullptr : &*at;
}

std::size_t OperationSamples::index_of(const model::SegmentShape& shape, model::Phase phase) {
  const auto at = std::ranges::find_if(
      samples_, [&](const Sample& s) { return s.phase == phase && s.shape == shape; });
  if (at != samples_.end()) return as_index(at - samples_.begin());
  samples_.push_back({shape, phase, {}});
  return samples_.size() - 1;
}

void OperationSamples::add(const plan::Program& program, const RecordedStep& step,
                           PlayedProgram& played) {
  const double used = step.used_seconds / step.wall_seconds;
  std::map<const plan::Op*, std::size_t> known;
  std::map<std::size_t, std::pair<double, std::int64_t>> totals;
  double spans = 0;
  for (const plan::Span& s : step.spans) {
    const double seconds = 1e-12 * real(s.duration_ps) * used;
    spans += seconds;
    const plan::Op& op = operation_of(program, s);
    if (op.kind != plan::OpKind::kCompute) continue;
    const model::SegmentShape& shape = program.segments[op.segment];
    if (is_load(shape)) continue;
    const auto [at, fresh] = known.try_emplace(&op, 0);
    if (fresh) at->second = index_of(shape, op.phase);
    samples_[at->second].seconds.push_back(seconds);
    totals[at->second].first += seconds;
    ++totals[at->second].second;
  }
  for (const auto& [index, total] : totals) {
    PlayedProgram::Operation& o = played.operations[index];
    o.totals.push_back(total.first);
    o.occurrences = total.second;
  }
  played.gaps.push_back((step.wall_seconds * used - spans) / real(step.spans.size()));
}

base::Result<std::vector<model::OperatorPoint>> OperationSamples::points(
    Communicator& world) const {
  std::vector<model::OperatorPoint> points;
  for (const Sample& s : samples_) {
    TRY(points.emplace_back(), point_over_ranks(s.shape, s.phase, timing_of(s.seconds), world));
  }
  return points;
}

base::Result<ComposedStep> OperationSamples::composed(
    const PlayedProgram& played, const std::vector<model::OperatorPoint>& points,
    Communicator& world) const {
  ComposedStep step;
  for (const auto& [index, operation] : played.operations) {
    const Sample& s = samples_[index];
    const model::OperatorPoint* const point = point_of(points, s.shape, s.phase);
    if (point == nullptr) continue;
    step.seconds += timing_of(operation.totals).median;
    step.medians += real(operation.occurrences) * point->seconds_median;
    step.operations += real(operation.occurrences);
  }
  TRY(step.seconds, mean_over_ranks(world, step.seconds));
  return step;
}

std::optional<ComposedStep> composed_of(const plan::Program& program, double seconds,
                                        const std::vector<model::OperatorPoint>& points) {
  ComposedStep step{.seconds = seconds};
  bool all = true;
  std::map<const plan::Op*, const model::OperatorPoint*> known;
  plan::for_each_op(program, program.classes.front(), [&](const plan::OpInstance& o) {
    if (o.op->kind != plan::OpKind::kCompute || is_load(program.segments[o.op->segment])) return;
    const auto [at, fresh] = known.try_emplace(o.op, nullptr);
    if (fresh) at->second = point_of(points, program.segments[o.op->segment], o.op->phase);
    all = all && at->second != nullptr;
    if (!all) return;
    step.medians += at->second->seconds_median;
    ++step.operations;
  });
  return all ? std::optional(step) : std::nullopt;
}

}  // namespace orrery::executor
