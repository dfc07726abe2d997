#include "sim/simulate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "plan/memory.h"
#include "sim/interpreter.h"

namespace orrery::sim {
namespace {

std::string category_of(const plan::Program& program, const plan::Op& op) {
  switch (op.kind) {
    case plan::OpKind::kCompute: return std::string(model::to_string(program.segments[op.segment].kind));
    case plan::OpKind::kCollective: return std::string(model::to_string(op.collective));
    case plan::OpKind::kExchange: return "exchange";
  }
  ORRERY_CHECK(false, "kind out of range");
}

std::int64_t bytes_of(const plan::Program& program, const plan::Op& op) {
  std::int64_t bytes = op.kind == plan::OpKind::kCollective ? op.bytes : 0;
  for (const plan::Leg& leg : op.legs) bytes += program.buffers[leg.buffer.buffer].bytes();
  return bytes;
}

void add_spans(const plan::Program& program, const PreparedClass& k, const ClassOutcome& out, plan::Timeline& timeline) {
  for (std::uint32_t i = 0; i < k.op_count(); ++i) {
    const plan::OpInstance& instance = k.expansion.ops[i];
    const plan::Op& op = *instance.op;
    plan::Span span;
    span.rank = k.rank_class->first_rank;
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

StageReport stage_report(const plan::Program& program, const PreparedClass& k, const ClassOutcome& out, std::int64_t context_bytes) {
  const plan::StaticMemory memory = plan::static_memory(program, *k.rank_class);
  StageReport s;
  s.parts = out.parts;
  s.busy_compute_ps = out.busy_compute_ps;
  s.exposed_tensor_ps = out.exposed_ps[static_cast<std::size_t>(Activity::kTensor)];
  s.exposed_data_ps = out.exposed_ps[static_cast<std::size_t>(Activity::kData)];
  s.exposed_pipeline_ps = out.exposed_ps[static_cast<std::size_t>(Activity::kPipeline)];
  s.idle_ps = out.idle_ps;
  s.recompute_ps = out.recompute_ps;
  s.optimizer_ps = out.optimizer_ps;
  s.peak_memory_bytes = memory.peak_bytes + context_bytes;
  s.memory_at_peak = memory.at_peak;
  s.timeline_peak_bytes = out.peak_bytes + context_bytes;
  return s;
}

/// Times of every operation, by class and issue index.
std::string fingerprint_of(const plan::Program& program, const Outcome& outcome) {
  base::Fingerprint f;
  f.add(program.fingerprint());
  for (std::size_t c = 0; c < outcome.classes.size(); ++c) {
    const ClassOutcome& out = outcome.classes[c];
    f.add(c).add(out.start_ps.size());
    for (std::size_t i = 0; i < out.start_ps.size(); ++i) f.add(out.start_ps[i]).add(out.end_ps[i]);
  }
  return f.hex();
}

/// Shares of the step, averages over ranks, and rates. MFU = 3 x forward matmul FLOPs of the batch / (step x peak x ranks).
void add_totals(const plan::Program& program, const costmodel::CostModel& cost, SimReport& report) {
  if (report.step_time_ps <= 0) return;
  const double step_s = static_cast<double>(report.step_time_ps) / 1e12;
  const auto batch = static_cast<double>(program.global_batch);
  report.samples_per_s = batch / step_s;
  report.tokens_per_s = batch * static_cast<double>(program.sequence) / step_s;
  report.mfu = 3.0 * program.spec.forward_matmul_flops(program.sequence) * batch / (step_s * cost.peak().raw() * program.world_size);
  double ranks = 0, idle = 0, exposed = 0;
  for (std::size_t c = 0; c < report.stages.size(); ++c) {
    const StageReport& s = report.stages[c];
    const double n = program.classes[c].count;
    ranks += n;
    idle += n * static_cast<double>(s.idle_ps);
    exposed += n * static_cast<double>(s.exposed_tensor_ps + s.exposed_data_ps + s.exposed_pipeline_ps);
  }
  const double rank_time = ranks * static_cast<double>(report.step_time_ps);
  report.bubble_fraction = idle / rank_time;
  report.exposed_communication_fraction = exposed / rank_time;
}

plan::Timeline timeline_of(const plan::Program& program, const PreparedStep& step, const Outcome& outcome, std::int64_t context_bytes) {
  plan::Timeline t;
  t.origin = "predicted";
  t.model = program.model;
  t.plan_fingerprint = program.plan_fingerprint;
  t.program_fingerprint = program.fingerprint();
  t.step_time_ps = outcome.step_ps;
  for (std::size_t c = 0; c < step.classes.size(); ++c) {
    add_spans(program, step.classes[c], outcome.classes[c], t);
    for (const auto& [at, bytes] : outcome.classes[c].memory) {
      t.memory.push_back({step.classes[c].rank_class->first_rank, at, bytes + context_bytes});
    }
  }
  return t;
}

}  // namespace

base::Result<SimReport> simulate(const plan::Program& program, const costmodel::CostModel& cost, const SimOptions& options) {
  if (static_cast<std::int64_t>(program.world_size) > static_cast<std::int64_t>(cost.topology().device_count())) {
    return base::fail(base::ErrorCode::kInconsistent, "the program needs {} devices and cluster '{}' has {}", program.world_size,
                      cost.topology().name(), cost.topology().device_count());
  }
  if (program.precision != cost.options().precision) {
    return base::fail(base::ErrorCode::kInconsistent, "the program computes in {} and the prices are for {}", model::to_string(program.precision),
                      model::to_string(cost.options().precision));
  }
  const std::int64_t slowdown = std::max<std::int64_t>(cost.overlap_slowdown_ppm(), 1'000'000);
  kernel::EventQueue queue;
  FlowNetwork network(cost.topology(), slowdown, queue, Interpreter::kFlowEvent);
  TRY(const PreparedStep step, prepare(program, cost, network, !options.picture));
  Interpreter interpreter(step, network, queue,
                          {.overlaps = cost.overlaps(), .slowdown_ppm = slowdown, .memory_samples = options.timeline});
  TRY(const Outcome outcome, interpreter.run());

  SimReport report;
  report.step_time_ps = outcome.step_ps;
  report.events = outcome.events;
  for (std::size_t c = 0; c < step.classes.size(); ++c) {
    report.stages.push_back(stage_report(program, step.classes[c], outcome.classes[c], cost.context_bytes()));
  }
  add_totals(program, cost, report);
  report.fingerprint = fingerprint_of(program, outcome);
  if (options.picture) report.picture = picture_of(program, step, outcome, network);
  if (options.timeline) report.timeline = timeline_of(program, step, outcome, cost.context_bytes());
  return report;
}

}  // namespace orrery::sim
