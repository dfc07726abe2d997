#include "sim/report/step_report.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/program/memory.h"
#include "sim/report/step_energy.h"

namespace orrery::sim {
namespace {

std::string category_of(const plan::Program& program, const plan::Op& op) {
  switch (op.kind) {
    case plan::OpKind::kCompute:
      return std::string(model::to_string(program.segments[op.segment].kind));
    case plan::OpKind::kCollective: return std::string(model::to_string(op.collective));
    case plan::OpKind::kExchange: return "exchange";
    case plan::OpKind::kCopy: return "copy";
  }
  ORRERY_CHECK(false, "kind out of range");
}

std::int64_t bytes_of(const plan::Program& program, const plan::Op& op) {
  const bool stated = op.kind == plan::OpKind::kCollective || op.kind == plan::OpKind::kCopy;
  std::int64_t bytes = stated ? op.bytes : 0;
  for (const plan::Leg& leg : op.legs) bytes += program.buffers[leg.buffer.buffer].bytes();
  return bytes;
}

void add_spans(const plan::Program& program, const PreparedClass& k, const ClassOutcome& out,
               int rank, plan::Timeline& timeline) {
  for (std::uint32_t i = 0; i < k.op_count(); ++i) {
    const plan::OpInstance& instance = k.expansion.ops[i];
    const plan::Op& op = *instance.op;
    plan::Span span;
    span.rank = rank;
    span.stream = op.stream;
    span.name = op.name;
    span.category = category_of(program, op);
    if (op.kind == plan::OpKind::kCompute) span.phase = model::to_string(op.phase);
    span.layer = instance.layer;
    span.micro_batch = instance.micro_batch;
    span.template_id = instance.source.raw();
    span.template_index = instance.index;
    span.start_ps = out.start_ps[i];
    span.duration_ps = out.end_ps[i] - out.start_ps[i];
    span.bytes = bytes_of(program, op);
    timeline.spans.push_back(std::move(span));
  }
}

StageReport stage_report(const plan::Program& program, const PreparedClass& k,
                         const ClassOutcome& out, const costmodel::CostModel& cost) {
  const plan::StaticMemory memory = plan::static_memory(program, *k.rank_class, cost.loss_bytes());
  StageReport s;
  s.host_bytes = memory.host_bytes;
  s.parts = out.parts;
  s.busy_compute_ps = out.busy_compute_ps;
  s.exposed_tensor_ps = out.exposed_ps[as_index(Activity::kTensor)];
  s.exposed_data_ps = out.exposed_ps[as_index(Activity::kData)];
  s.exposed_pipeline_ps = out.exposed_ps[as_index(Activity::kPipeline)];
  s.idle_ps = out.idle_ps;
  s.recompute_ps = out.recompute_ps;
  s.optimizer_ps = out.optimizer_ps;
  s.peak_memory_bytes = cost.reserved_bytes(memory.peak_bytes);
  s.memory_at_peak = memory.at_peak;
  s.timeline_peak_bytes = cost.reserved_bytes(out.peak_bytes);
  return s;
}

/// Shares of the step, averages over ranks, and rates. MFU = the batch's training_matmul_flops
/// / (step x peak x ranks).
void add_totals(const plan::Program& program, const costmodel::CostModel& cost,
                const FinishedStep& finished, SimReport& report) {
  if (report.step_time_ps <= 0) return;
  const double step_s = seconds(report.step_time_ps);
  const auto batch = real(program.global_batch);
  report.samples_per_s = batch / step_s;
  report.tokens_per_s = batch * real(program.sequence) / step_s;
  report.mfu = program.spec.training_matmul_flops(program.sequence) * batch /
               (step_s * cost.peak(program.world_size).raw() * program.world_size);
  report.ranks = program.world_size;
  report.model_flops_per_s_rank = report.mfu * cost.peak(program.world_size).raw();
  double ranks = 0, idle = 0, exposed = 0;
  std::vector<std::int64_t> ranks_alike(finished.outcome.classes.size(), 0);
  for (const std::uint32_t c : finished.class_of_rank) ++ranks_alike[c];
  for (std::size_t c = 0; c < ranks_alike.size(); ++c) {
    const ClassOutcome& out = finished.outcome.classes[c];
    const auto n = real(ranks_alike[c]);
    ranks += n;
    idle += n * real(out.idle_ps);
    exposed += n * real(out.all_exposed_ps());
  }
  const double rank_time = ranks * real(report.step_time_ps);
  report.bubble_fraction = idle / rank_time;
  report.exposed_communication_fraction = exposed / rank_time;
}

plan::Timeline timeline_of(const plan::Program& program, const FinishedStep& finished,
                           const costmodel::CostModel& cost) {
  plan::Timeline t;
  t.origin = "predicted";
  t.model = program.model;
  t.plan_fingerprint = program.plan_fingerprint;
  t.program_fingerprint = program.fingerprint();
  t.step_time_ps = finished.outcome.step_ps;
  for (std::size_t s = 0; s < finished.shown.size(); ++s) {
    const ClassOutcome& out = finished.outcome.classes[finished.shown[s]];
    add_spans(program, finished.step.classes[finished.shown[s]], out, finished.rank[s], t);
    for (const auto& [at, bytes] : out.memory)
      t.memory.push_back({finished.rank[s], at, cost.reserved_bytes(bytes)});
  }
  return t;
}

}  // namespace

base::Result<void> check_fits(const plan::Program& program, const costmodel::CostModel& cost) {
  if (std::cmp_greater(program.world_size, cost.topology().device_count())) {
    return base::fail(base::ErrorCode::kInconsistent,
                      "the program needs {} devices and cluster '{}' has {}", program.world_size,
                      cost.topology().name(), cost.topology().device_count());
  }
  if (program.precision != cost.options().precision) {
    return base::fail(
        base::ErrorCode::kInconsistent, "the program computes in {} and the prices are for {}",
        model::to_string(program.precision), model::to_string(cost.options().precision));
  }
  return {};
}

SimReport step_report(const plan::Program& program, const costmodel::CostModel& cost,
                      const FinishedStep& finished, const SimOptions& options) {
  SimReport report;
  report.step_time_ps = finished.outcome.step_ps;
  report.events = finished.outcome.events;
  for (const std::uint32_t c : finished.shown) {
    report.stages.push_back(
        stage_report(program, finished.step.classes[c], finished.outcome.classes[c], cost));
  }
  add_totals(program, cost, finished, report);
  if (options.picture)
    report.picture =
        picture_of(program, finished.step, finished.outcome, finished.network, finished.shown);
  if (options.energy && report.step_time_ps > 0) report.energy = energy_of(program, cost, finished);
  if (options.timeline) report.timeline = timeline_of(program, finished, cost);
  return report;
}

void add_times(const ClassOutcome& outcome, base::Fingerprint& fingerprint) {
  std::vector<std::int64_t> times;
  times.reserve(2 * outcome.start_ps.size());
  for (std::size_t i = 0; i < outcome.start_ps.size(); ++i) {
    times.push_back(outcome.start_ps[i]);
    times.push_back(outcome.end_ps[i]);
  }
  fingerprint.add(times);
}

}  // namespace orrery::sim
