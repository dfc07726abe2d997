#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "costmodel/closed_form.h"
#include "costmodel/layer_costs.h"
#include "costmodel/stage_memory.h"
#include "plan/schedule.h"

namespace orrery::costmodel {
namespace {

using plan::LayerStrategy;
using plan::TemplateMemory;

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
  std::int64_t forward_ps = 0, backward_ps = 0, backward_sync_ps = 0, weight_ps = 0, weight_sync_ps = 0;
  std::int64_t zero_ps = 0, update_ps = 0;   // of the whole rank, in its first stage
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
                .prefetch_depth = plan.prefetch_depth,
                .split_backward = plan.schedule == plan::Schedule::kZeroBubbleH1};
    layers_.resize(plan.stages.size());
  }

  PlanCost price() {
    PlanCost out;
    std::vector<StageTimes> times(plan_.stages.size());
    for (int r = 0; r < ranks(); ++r) rank(r, times, out);
    out.step_ps = step(times);
    return out;
  }

  std::int64_t peak(int r) {
    PlanCost out;
    std::vector<StageTimes> times(plan_.stages.size());
    rank(r, times, out);
    return out.stage_peak_bytes.front();
  }

 private:
  [[nodiscard]] int stages() const { return static_cast<int>(plan_.stages.size()); }
  [[nodiscard]] int ranks() const { return plan_.pipeline_degree(); }
  /// Strategy of every layer of a stage, unrolled when first asked for.
  const std::vector<LayerStrategy>& layers(int s) {
    auto& all = layers_[static_cast<std::size_t>(s)];
    if (all.empty()) {
      for (const auto& run : plan_.stages[static_cast<std::size_t>(s)].runs) all.insert(all.end(), static_cast<std::size_t>(run.count), run.strategy);
    }
    return all;
  }

  [[nodiscard]] int devices() const { return plan_.devices_per_stage(); }
  [[nodiscard]] int first_rank(int s) const { return s % ranks() * devices(); }
  const LayerCost& block(int s, const LayerStrategy& strategy) {
    // Neighbours are mostly alike.
    if (known_ == nullptr || known_stage_ != s || known_strategy_ != strategy) {
      known_ = &costs_.block(strategy, context_, first_rank(s), devices());
      known_stage_ = s;
      known_strategy_ = strategy;
    }
    return *known_;
  }
  const LayerCost& embedding() { return costs_.embedding(plan_.vocabulary, context_, 0, devices()); }
  const LayerCost& head() { return costs_.head(plan_.vocabulary, context_, first_rank(stages() - 1), devices()); }
  /// Null when the layouts agree.
  const LayerCost* reshard(int s, const LayerStrategy& from, const LayerStrategy& to) {
    if (from.same_layout(to)) return nullptr;
    return &costs_.reshard(from, to, context_, first_rank(s), devices());
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
    const int sender = from % ranks(), receiver = to % ranks();
    return costs_.exchange_ps(sender * count, count, (receiver - sender) * count, boundary_bytes(layout));
  }

  struct Passes {
    Pass forward, backward, backward_last, weight, weight_last;
  };
  struct Once {
    Pass zero, update;
  };
  void state(const LayerCost& c, StageTimes& t, StageMemory& m, Once& p) {
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
    t.weight_ps += c.weight_ps;
    t.weight_sync_ps += c.weight_sync_ps;
    p.backward.add(c.backward, c.gather_backward);
    p.backward_last.add(c.backward, c.gather_backward);
    if (c.splits) {
      p.weight.add(c.weight);
      p.weight_last.add(c.weight);
    }
    if (c.reduces_per_micro_batch) (c.splits ? p.weight : p.backward).add(c.sync);
    (c.splits ? p.weight_last : p.backward_last).add(c.sync);
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

  ChunkMemory stage(int s, StageTimes& t) {
    Passes p;
    forward_pass(s, t, p);
    backward_pass(s, t, p);
    ChunkMemory m;
    m.forward = p.forward.memory(plan_.prefetch_depth);
    m.backward = p.backward.memory(plan_.prefetch_depth);
    m.backward_last = p.backward_last.memory(plan_.prefetch_depth);
    m.weight = p.weight.memory(0);
    m.weight_last = p.weight_last.memory(0);
    if (s + 1 < stages()) m.sent_activation_bytes = boundary_bytes(layers(s).back());
    if (s > 0) m.sent_gradient_bytes = boundary_bytes(entry(s));
    return m;
  }

  void rank(int r, std::vector<StageTimes>& times, PlanCost& out) {
    StageTimes& first = times[static_cast<std::size_t>(r)];
    StageMemory m;
    Once once;
    if (r == 0) state(embedding(), first, m, once);
    std::int64_t pass_ps = 0, sync_ps = 0;
    for (int s = r; s < stages(); s += ranks()) {
      for (const auto& layer : layers(s)) state(block(s, layer), first, m, once);
      StageTimes& t = times[static_cast<std::size_t>(s)];
      m.chunks.push_back(stage(s, t));
      pass_ps += t.forward_ps + t.backward_ps + t.weight_ps;
      sync_ps += t.backward_sync_ps - t.backward_ps + t.weight_sync_ps - t.weight_ps;
    }
    if (r + 1 == ranks()) {
      state(head(), first, m, once);
      loss(first, m);
    }
    m.zero_gradient = once.zero.memory(0);
    m.update = once.update.memory(0);
    out.stage_ps.push_back(pass_ps);
    out.stage_sync_ps.push_back(sync_ps + first.zero_ps + first.update_ps);
    out.stage_peak_bytes.push_back(peak_bytes(m, plan::pass_order(plan_.schedule, r, ranks(), plan_.virtual_stages, plan_.micro_batches)));
  }

  /// The loss is one number of the last stage, zeroed once.
  void loss(StageTimes& t, StageMemory& m) {
    model::SegmentShape zero;
    zero.kind = model::SegmentKind::kZeroGradient;
    zero.elements = 1;
    t.zero_ps += cost_.segment_ps(zero, model::Phase::kF);
    m.persistent_bytes += model::element_bytes(model::DType::kFloat32);
  }

  /// The formula of closed_form.h.
  [[nodiscard]] std::int64_t step(const std::vector<StageTimes>& times) const {
    const auto p = static_cast<std::size_t>(ranks());
    std::int64_t start = 0;
    for (std::size_t i = 0; i < p; ++i) start = std::max(times[i].zero_ps, i == 0 ? 0 : start + times[i - 1].forward_ps) + times[i].receive_forward_ps;
    std::int64_t end = start + times[p - 1].forward_ps + (plan_.micro_batches - 1) * cycle(times) + rest(times), last = 0;
    for (std::size_t i = p; i-- > 0;) {
      end += times[i].receive_backward_ps + times[i].backward_sync_ps;
      last = std::max(last, end + times[i].update_ps);
    }
    return last;
  }
  [[nodiscard]] std::int64_t forward_with_receive(const StageTimes& t) const { return t.forward_ps + (cost_.overlaps() ? 0 : t.receive_forward_ps); }
  [[nodiscard]] std::int64_t backward_with_receive(const StageTimes& t) const { return t.backward_ps + (cost_.overlaps() ? 0 : t.receive_backward_ps); }

  [[nodiscard]] std::int64_t cycle(const std::vector<StageTimes>& times) const {
    std::int64_t forward = 0, backward = 0, all = 0;
    std::vector<std::int64_t> rank(static_cast<std::size_t>(ranks()), 0);
    for (std::size_t i = 0; i < times.size(); ++i) {
      forward = std::max(forward, forward_with_receive(times[i]));
      backward = std::max(backward, backward_with_receive(times[i]));
      std::int64_t& sum = rank[i % rank.size()];
      sum += forward_with_receive(times[i]) + backward_with_receive(times[i]) + times[i].weight_ps;
      all = std::max(all, sum);
    }
    return plan_.schedule == plan::Schedule::kGPipe ? forward + backward : all;
  }

  /// R.
  [[nodiscard]] std::int64_t rest(const std::vector<StageTimes>& times) const {
    const auto p = static_cast<std::size_t>(ranks());
    switch (plan_.schedule) {
      case plan::Schedule::kGPipe:
      case plan::Schedule::k1F1B: return 0;
      case plan::Schedule::kInterleaved: {
        std::vector<std::int64_t> sync(p, 0);
        for (std::size_t i = p; i < times.size(); ++i) sync[i % p] += times[i].backward_sync_ps - times[i].backward_ps;
        return cycle(times) - forward_with_receive(times[p - 1]) - backward_with_receive(times[p - 1]) + *std::max_element(sync.begin(), sync.end());
      }
      case plan::Schedule::kZeroBubbleH1: {
        std::int64_t tail = 0;
        std::vector<std::int64_t> filled;
        for (const StageTimes& t : times) {
          tail = std::max(tail, t.weight_sync_ps);
          filled.push_back(std::min({t.forward_ps, t.backward_ps, t.weight_ps}));
        }
        std::sort(filled.begin(), filled.end());
        const std::int64_t waits = std::min<std::int64_t>(plan_.micro_batches, static_cast<std::int64_t>(p)) - 1;
        return tail - std::accumulate(filled.begin(), filled.begin() + waits, std::int64_t{0});
      }
    }
    ORRERY_CHECK(false, "schedule out of range");
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
    case plan::Schedule::kZeroBubbleH1: return std::min<std::int64_t>(stages - stage, micro_batches);
    case plan::Schedule::kInterleaved: break;
  }
  ORRERY_CHECK(false, "an interleaved schedule holds chunks");
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
