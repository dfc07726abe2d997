#include <algorithm>

#include "base/check.h"
#include "costmodel/closed_form.h"
#include "costmodel/layer_costs.h"
#include "costmodel/stage_memory.h"
#include "plan/schedule.h"

namespace orrery::costmodel {
namespace {

using plan::LayerStrategy;
using plan::TemplateMemory;

/// Sequence parallelism over one rank is none.
LayerStrategy layout_of(const LayerStrategy& s) {
  return {.tp = s.tp, .dp = s.dp, .sequence_parallel = s.sequence_parallel && s.tp > 1, .cp = s.cp,
          .strided = s.strided && s.tp > 1 && s.replicas() > 1};
}

/// Calls of one pass in issue order, as memory changes; ZeRO-3 gathers run ahead of their layers as plan::with_prefetch places them.
class Pass {
 public:
  void add(const TemplateMemory& call) { push(call, {}); }
  /// `layer` holds its gather: the two are taken apart again.
  void add(const TemplateMemory& layer, const TemplateMemory& gather) {
    if (gather.delta_bytes == 0) return push(layer, {});
    const plan::TemplateId id(static_cast<std::uint32_t>(table_.size()));
    table_.push_back(gather);
    push({.delta_bytes = layer.delta_bytes - gather.delta_bytes, .peak_bytes = layer.peak_bytes - gather.delta_bytes}, {id, 0});
  }
  [[nodiscard]] TemplateMemory memory(int prefetch_depth) const {
    TemplateMemory total;
    for (const auto& call : plan::with_prefetch(calls_, gathers_, prefetch_depth)) total = after(total, table_[call.call.raw()]);
    return total;
  }

 private:
  void push(const TemplateMemory& call, plan::PassCall gather) {
    calls_.push_back({plan::TemplateId(static_cast<std::uint32_t>(table_.size())), 0});
    gathers_.push_back(gather);
    table_.push_back(call);
  }
  std::vector<TemplateMemory> table_;
  std::vector<plan::PassCall> calls_, gathers_;
};

/// One stage: its layers in order, with resharding between them.
struct StageTimes {
  std::int64_t forward_ps = 0, backward_ps = 0, backward_sync_ps = 0, zero_ps = 0, update_ps = 0;
  std::int64_t receive_forward_ps = 0, receive_backward_ps = 0;
};

class PlanPricer {
 public:
  PlanPricer(LayerCosts& costs, const plan::Plan& plan) : costs_(costs), cost_(costs.cost()), plan_(plan) {
    context_ = {.precision = plan.precision,
                .sequence = plan.sequence,
                .micro_batch_sequences = plan.micro_batch_sequences(),
                .micro_batches = plan.micro_batches,
                .global_batch = plan.global_batch,
                .stages = plan.pipeline_degree(),
                .prefetch_depth = plan.prefetch_depth};
    layers_.resize(plan.stages.size());
  }

  PlanCost price() {
    PlanCost out;
    std::vector<StageTimes> times;
    for (int s = 0; s < stages(); ++s) times.push_back(stage(s, out));
    out.step_ps = step(times);
    return out;
  }

  std::int64_t peak(int s) {
    PlanCost out;
    stage(s, out);
    return out.stage_peak_bytes.front();
  }

 private:
  [[nodiscard]] int stages() const { return plan_.pipeline_degree(); }
  /// Strategy of every layer of a stage, unrolled when first asked for.
  const std::vector<LayerStrategy>& layers(int s) {
    auto& all = layers_[static_cast<std::size_t>(s)];
    if (all.empty()) {
      for (const auto& run : plan_.stages[static_cast<std::size_t>(s)].runs) all.insert(all.end(), static_cast<std::size_t>(run.count), run.strategy);
    }
    return all;
  }

  [[nodiscard]] int devices() const { return plan_.devices_per_stage(); }
  const LayerCost& block(int s, const LayerStrategy& strategy) {
    // Neighbours are mostly alike.
    if (known_ == nullptr || known_stage_ != s || known_strategy_ != strategy) {
      known_ = &costs_.block(strategy, context_, s * devices(), devices());
      known_stage_ = s;
      known_strategy_ = strategy;
    }
    return *known_;
  }
  const LayerCost& embedding() { return costs_.embedding(plan_.vocabulary, context_, 0, devices()); }
  const LayerCost& head() { return costs_.head(plan_.vocabulary, context_, (stages() - 1) * devices(), devices()); }
  /// Null when the layouts agree.
  const LayerCost* reshard(int s, const LayerStrategy& from, const LayerStrategy& to) {
    if (from.same_layout(to)) return nullptr;
    return &costs_.reshard(layout_of(from), layout_of(to), context_, s * devices(), devices());
  }

  /// Layout in which the residual stream enters a stage, and leaves it.
  const LayerStrategy& entry(int s) { return s == 0 ? plan_.vocabulary : plan_.stages[static_cast<std::size_t>(s) - 1].runs.back().strategy; }

  std::int64_t boundary_bytes(const LayerStrategy& layout) const {
    const std::int64_t tokens = plan_.sequence / layout.cp / (layout.sequence_parallel ? layout.tp : 1);
    return context_.micro_batch_sequences / layout.dp * tokens * cost_.model().hidden *
           model::element_bytes(model::compute_dtype(plan_.precision));
  }
  /// Transfer of a stage's output to the next stage; of its gradient back.
  std::int64_t transfer_ps(int from, int to) {
    const int count = plan_.devices_per_stage();
    const auto& layout = entry(std::max(from, to));
    return costs_.exchange_ps(from * count, count, (to - from) * count, boundary_bytes(layout));
  }

  struct Passes {
    Pass zero, forward, backward, backward_last, update;
  };
  void state(const LayerCost& c, StageTimes& t, StageMemory& m, Passes& p) {
    t.zero_ps += c.zero_gradient_ps;
    t.update_ps += c.update_ps - c.zero_gradient_ps;
    m.persistent_bytes += c.persistent_bytes;
    p.zero.add(c.zero_gradient);
    p.update.add(c.update);
  }
  void forward_of(const LayerCost& c, StageTimes& t, Passes& p) {
    t.forward_ps += c.forward_ps;
    p.forward.add(c.forward, c.gather_forward);
  }
  void backward_of(const LayerCost& c, StageTimes& t, Passes& p) {
    t.backward_ps += c.backward_ps;
    t.backward_sync_ps += c.backward_sync_ps;
    p.backward.add(c.backward, c.gather_backward);
    if (c.reduces_per_micro_batch) p.backward.add(c.sync);
    p.backward_last.add(c.backward, c.gather_backward);
    p.backward_last.add(c.sync);
  }
  void receive(std::int64_t bytes, Pass& pass) { pass.add({.delta_bytes = bytes, .peak_bytes = bytes}); }
  void send(std::int64_t bytes, Pass& pass) { pass.add({.delta_bytes = -bytes, .peak_bytes = 0}); }
  void backward_change(const LayerCost* c, StageTimes& t, Passes& p) {
    if (c == nullptr) return;
    t.backward_ps += c->backward_ps;
    t.backward_sync_ps += c->backward_ps;
    p.backward.add(c->backward);
    p.backward_last.add(c->backward);
  }

  void forward_pass(int s, StageTimes& t, Passes& p) {
    if (s == 0) {
      forward_of(embedding(), t, p);
    } else {
      receive(boundary_bytes(entry(s)), p.forward);
      t.receive_forward_ps = transfer_ps(s - 1, s);
    }
    LayerStrategy now = entry(s);
    const auto change = [&](const LayerStrategy& to) {
      if (const LayerCost* c = reshard(s, now, to)) forward_of(*c, t, p);
      now = to;
    };
    for (const auto& layer : layers(s)) {
      change(layer);
      forward_of(block(s, layer), t, p);
    }
    if (s + 1 < stages()) return send(boundary_bytes(now), p.forward);
    change(plan_.vocabulary);
    forward_of(head(), t, p);
    if (head().reduces_per_micro_batch) p.forward.add(head().sync);
  }

  void backward_pass(int s, StageTimes& t, Passes& p) {
    const auto& all = layers(s);
    if (s + 1 < stages()) {
      receive(boundary_bytes(all.back()), p.backward);
      receive(boundary_bytes(all.back()), p.backward_last);
      t.receive_backward_ps = transfer_ps(s + 1, s);
    } else {
      t.backward_ps += head().backward_ps;
      t.backward_sync_ps += head().backward_sync_ps;
      if (!head().reduces_per_micro_batch) p.backward_last.add(head().sync);
      backward_change(reshard(s, all.back(), plan_.vocabulary), t, p);
    }
    for (std::size_t i = all.size(); i-- > 0;) {
      backward_of(block(s, all[i]), t, p);
      backward_change(reshard(s, i > 0 ? all[i - 1] : entry(s), all[i]), t, p);
    }
    if (s == 0) return backward_of(embedding(), t, p);
    send(boundary_bytes(entry(s)), p.backward);
    send(boundary_bytes(entry(s)), p.backward_last);
  }

  StageTimes stage(int s, PlanCost& out) {
    StageTimes t;
    StageMemory m;
    Passes p;
    if (s == 0) state(embedding(), t, m, p);
    for (const auto& layer : layers(s)) state(block(s, layer), t, m, p);
    if (s + 1 == stages()) {
      state(head(), t, m, p);
      loss(t, m);
    }
    forward_pass(s, t, p);
    backward_pass(s, t, p);
    m.in_flight = in_flight(plan_.schedule, s, stages(), plan_.micro_batches);
    m.micro_batches = plan_.micro_batches;
    m.zero_gradient = p.zero.memory(0);
    m.forward = p.forward.memory(plan_.prefetch_depth);
    m.backward = p.backward.memory(plan_.prefetch_depth);
    m.backward_last = p.backward_last.memory(plan_.prefetch_depth);
    m.update = p.update.memory(0);
    if (s + 1 < stages()) m.held_activation_bytes = boundary_bytes(layers(s).back());
    if (s > 0) m.held_gradient_bytes = boundary_bytes(entry(s));
    out.stage_ps.push_back(t.forward_ps + t.backward_ps);
    out.stage_sync_ps.push_back(t.backward_sync_ps - t.backward_ps + t.zero_ps + t.update_ps);
    out.stage_peak_bytes.push_back(peak_bytes(m));
    return t;
  }

  /// The loss is one number of the last stage, zeroed once.
  void loss(StageTimes& t, StageMemory& m) {
    model::SegmentShape zero;
    zero.kind = model::SegmentKind::kZeroGradient;
    zero.elements = 1;
    t.zero_ps += cost_.segment_ps(zero, model::Phase::kF);
    m.persistent_bytes += model::element_bytes(model::DType::kFloat32);
  }

  [[nodiscard]] std::int64_t step(const std::vector<StageTimes>& times) const {
    const bool held = !cost_.overlaps();
    std::int64_t start = 0, both = 0, forward = 0, backward = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const StageTimes& t = times[i];
      const std::int64_t f = t.forward_ps + (held ? t.receive_forward_ps : 0), b = t.backward_ps + (held ? t.receive_backward_ps : 0);
      both = std::max(both, f + b);
      forward = std::max(forward, f);
      backward = std::max(backward, b);
      start = std::max(t.zero_ps, i == 0 ? 0 : start + times[i - 1].forward_ps) + t.receive_forward_ps;
    }
    const std::int64_t cycle = plan_.schedule == plan::Schedule::kGPipe ? forward + backward : both;
    std::int64_t end = start + times.back().forward_ps + (plan_.micro_batches - 1) * cycle, last = 0;
    for (auto t = times.rbegin(); t != times.rend(); ++t) {
      end += t->receive_backward_ps + t->backward_sync_ps;
      last = std::max(last, end + t->update_ps);
    }
    return last;
  }

  LayerCosts& costs_;
  const CostModel& cost_;
  const plan::Plan& plan_;
  plan::LayerContext context_;
  std::vector<std::vector<LayerStrategy>> layers_;
  const LayerCost* known_ = nullptr;
  int known_stage_ = 0;
  LayerStrategy known_strategy_;
};

}  // namespace

std::int64_t in_flight(plan::Schedule schedule, int stage, int stages, std::int64_t micro_batches) {
  switch (schedule) {
    case plan::Schedule::kGPipe: return micro_batches;
    case plan::Schedule::k1F1B:
    case plan::Schedule::kInterleaved:
    case plan::Schedule::kZeroBubbleH1: return std::min<std::int64_t>(stages - stage, micro_batches);
  }
  ORRERY_CHECK(false, "schedule out of range");
}

base::Result<PlanCost> plan_cost(const CostModel& cost, const plan::Plan& plan) {
  LayerCosts costs(cost);
  return plan_cost(costs, plan);
}

base::Result<PlanCost> plan_cost(LayerCosts& costs, const plan::Plan& plan) {
  const CostModel& cost = costs.cost();
  auto faults = plan::validate(plan, cost.model());
  if (faults.empty() && static_cast<std::uint32_t>(plan.world_size()) > cost.topology().device_count()) {
    faults.push_back(base::make_error(base::ErrorCode::kInconsistent, "the plan needs {} devices, cluster '{}' has {}", plan.world_size(),
                                      cost.topology().name(), cost.topology().device_count()));
  }
  if (!faults.empty()) return base::fail(std::move(faults));
  return PlanPricer(costs, plan).price();
}

std::int64_t stage_peak_bytes(LayerCosts& costs, const plan::Plan& plan, int stage) { return PlanPricer(costs, plan).peak(stage); }

}  // namespace orrery::costmodel
