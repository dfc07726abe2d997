#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/closed_form/pass_memory.h"
#include "costmodel/closed_form/stage_memory.h"
#include "costmodel/closed_form/step_times.h"
#include "plan/lowering/builder.h"
#include "plan/program/schedule.h"
#include "topologies/device_order.h"

namespace orrery::costmodel {
namespace {

using enum plan::Schedule;
using plan::LayerStrategy;
using plan::TemplateMemory;

class PlanPricer {
 public:
  PlanPricer(LayerCosts& costs, const plan::Plan& plan)
      : costs_(costs), cost_(costs.cost()), plan_(plan), vocabulary_{.strategy = plan.vocabulary} {
    context_ = {.precision = plan.precision,
                .sequence = plan.sequence,
                .micro_batch_sequences = plan.micro_batch_sequences(),
                .micro_batches = plan.micro_batches,
                .global_batch = plan.global_batch,
                .stages = plan.head_rank() + 1,
                .prefetch_depth = plan.prefetch_depth,
                .split_backward = plan::splits_backward(plan.schedule)};
    const model::ModelSpec& model = cost_.model();
    companion_ = model.encoder_decoder();
    if (model.kinds() == 1) return;
    std::int64_t layer = 0;
    for (const plan::Stage& stage : plan.stages) {
      split_.push_back(by_kind(stage, layer));
      first_layer_.push_back(layer);
      layer += stage.layers();
    }
  }

  PlanCost price() {
    PlanCost out;
    const StepTimes step = step_times(out);
    out.step_ps = closed_form_ps(step) + energy_ps_;
    out.pass_by_pass_ps = pass_by_pass_ps(step, costs_.pass_orders()) + energy_ps_;
    out.energy_ps = energy_ps_;
    return out;
  }

  /// Without memory.
  StepForms forms(bool passes) {
    counts_memory_ = false;
    PlanCost unused;
    const StepTimes step = step_times(unused);
    return {closed_form_ps(step) + energy_ps_,
            passes ? pass_by_pass_ps(step, costs_.pass_orders()) + energy_ps_ : 0, energy_ps_};
  }

  std::int64_t peak(int r) {
    PlanCost out;
    std::vector<StageTimes> times(plan_.stages.size());
    rank(r, times, out);
    return out.stage_peak_bytes.front();
  }

 private:
  StepTimes step_times(PlanCost& out) {
    std::vector<StageTimes> times(plan_.stages.size());
    for (int r = 0; r < ranks(); ++r) rank(r, times, out);
    return {plan_.schedule,      ranks(),          plan_.virtual_stages,
            plan_.micro_batches, cost_.overlaps(), std::move(times)};
  }

  int stages() const { return as_int(plan_.stages.size()); }
  int ranks() const { return plan_.pipeline_degree(); }
  /// Layers of one strategy and one kind.
  const std::vector<plan::LayerRun>& runs(int s) const {
    return split_.empty() ? plan_.stages[as_index(s)].runs : split_[as_index(s)].runs;
  }
  struct Split {
    std::vector<plan::LayerRun> runs;
    std::vector<int> kinds;
  };
  Split by_kind(const plan::Stage& stage, std::int64_t layer) const {
    Split out;
    for (const plan::LayerRun& run : stage.runs) {
      for (int i = 0; i < run.count; ++i, ++layer) {
        const int kind = cost_.model().kind_of(layer);
        if (i == 0 || out.kinds.back() != kind)
          out.runs.push_back({0, run.strategy}), out.kinds.push_back(kind);
        ++out.runs.back().count;
      }
    }
    return out;
  }
  /// Of the ith run of a stage; of the block before it, whose output the residual stream is there.
  int kind(int s, std::size_t i) const { return split_.empty() ? 0 : split_[as_index(s)].kinds[i]; }
  int kind_before(int s, std::size_t i) const {
    if (split_.empty()) return 0;
    if (i > 0) return kind(s, i - 1);
    const std::int64_t layer = first_layer_[as_index(s)];
    return layer == 0 ? 0 : cost_.model().kind_of(layer - 1);
  }
  const model::BlockShape& shape_before(int s) const {
    if (split_.empty()) return cost_.model();
    return cost_.model().runs[as_index(kind_before(s, 0))].shape;
  }

  int devices() const { return plan_.devices_per_stage(); }
  int first_rank(int s) const { return plan_.rank_of(s) * devices(); }
  const LayerCost& block(int s, std::size_t i) {
    if (block_ == nullptr || block_at_ != std::pair(s, i)) {
      context_.kind = kind(s, i);
      block_ = &costs_.block(runs(s)[i], context_, first_rank(s), devices());
      block_at_ = {s, i};
    }
    return *block_;
  }
  const LayerCost& embedding() {
    if (embedding_ == nullptr)
      embedding_ = &costs_.embedding(plan_.vocabulary, context_, 0, devices());
    return *embedding_;
  }
  const LayerCost& head() {
    if (head_ == nullptr)
      head_ = &costs_.head(plan_.vocabulary, context_, first_rank(stages() - 1), devices());
    return *head_;
  }
  /// In front of the ith run of a stage. Null when the layouts agree.
  const LayerCost* reshard(int s, std::size_t i, const plan::LayerRun& from,
                           const plan::LayerRun& to) {
    if (plan::same_layout(from, to)) return nullptr;
    context_.kind = kind_before(s, i);
    context_.before_head = i == runs(s).size();
    return &costs_.reshard(from, to, context_, first_rank(s), devices());
  }

  /// Layout in which the residual stream enters a stage, and leaves it.
  const plan::LayerRun& entry(int s) {
    return s == 0 ? vocabulary_ : plan_.stages[as_index(s) - 1].runs.back();
  }

  /// Residual stream between stage s - 1 and s; of an encoder-decoder the companion beside it is as
  /// large.
  std::int64_t boundary_bytes(int s) {
    const plan::Layout layout(entry(s));
    const model::BlockShape& before = shape_before(s);
    const std::int64_t tokens = plan_.sequence / before.token_share / layout.cp /
                                (layout.sequence_parallel ? layout.tp : 1);
    return context_.micro_batch_sequences / layout.dp * tokens * (before.hidden / layout.parts) *
           model::element_bytes(model::compute_dtype(plan_.precision));
  }
  std::int64_t sent_bytes(int s) { return boundary_bytes(s) * (companion_ ? 2 : 1); }
  /// Between stage s - 1 and s it is the encoder's output, which the blocks of stage s - 1 read as
  /// well.
  bool in_decoder(int s) const { return shape_before(s).cross_attention; }
  /// What dies with a send between stage s - 1 and s: the blocks of stage s - 1 need the encoder's
  /// output until their gradient is sent (plan/lowering/lower.cc).
  std::int64_t freed_activation_bytes(int s) {
    return boundary_bytes(s) * (companion_ && !in_decoder(s) ? 2 : 1);
  }
  std::int64_t freed_gradient_bytes(int s) {
    const int streams = in_decoder(s) ? 3 : 2;
    return boundary_bytes(s) * (companion_ ? streams : 1);
  }
  /// Transfer of a stage's output to the next stage; of its gradient back.
  std::int64_t transfer_ps(int from, int to) {
    return costs_.exchange_ps(first_rank(from), devices(), first_rank(to) - first_rank(from),
                              sent_bytes(std::max(from, to)));
  }

  struct Passes {
    Passes(int depth, bool counts)
        : forward(depth, counts),
          backward(depth, counts),
          backward_last(depth, counts),
          weight(0, counts),
          weight_last(0, counts) {}
    PassCalls forward, backward, backward_last, weight, weight_last;
  };
  struct Once {
    explicit Once(bool counts) : zero(0, counts), update(0, counts) {}
    PassCalls zero, update;
  };
  /// Of `count` equal layers; the same below.
  void state(const LayerCost& c, int count, StageTimes& t, StageMemory& m, Once& p) {
    energy_ps_ += count * c.energy_ps;
    t.zero_ps += count * c.zero_gradient_ps;
    t.late_ps += count * c.late_forward_ps;
    t.update_ps += count * (c.update_ps - c.zero_gradient_ps);
    t.updates.add(count, c.states);
    m.persistent_bytes += count * c.persistent_bytes;
    p.zero.add({{c.zero_gradient}}, count);
    p.update.add({{c.update, {}, c.states.bytes}}, count);
  }
  void forward_of(const LayerCost& c, int count, StageTimes& t, Passes& p) {
    t.add_first_forward(count, c.forward_ps - c.copies.held_forward_ps, c.gather_updated_ps,
                        cost_.overlap_slowdown_ppm() > 1'000'000 ? c.late_forward_ps : 0);
    if (t.forward_ps == 0) t.forward_ends.gather_ps = c.gather_forward_ps;
    t.forward_ends.layer_ps = c.forward_ps;
    if (c.copies.out_ps > 0)
      t.copied_out.add(t.forward_ps, count, c.forward_ps - c.copies.held_forward_ps,
                       c.copies.out_ps, c.copies.held_forward_ps);
    t.forward_ps += count * c.forward_ps;
    p.forward.add({{c.forward, c.gather_forward, c.copied_bytes}}, count);
  }
  void backward_of(const LayerCost& c, int count, StageTimes& t, Passes& p) {
    if (t.backward_ps == 0) t.backward_ends.gather_ps = c.gather_backward_ps;
    t.backward_ends.layer_ps = c.backward_ps;
    if (c.copies.in_ps > 0)
      t.copied_in.add(t.backward_ps, count, c.backward_ps - c.copies.held_backward_ps,
                      c.copies.in_ps, c.copies.held_backward_ps);
    t.backward_ends.reduction_ps = c.splits ? 0 : c.reduction_each_ps;
    t.backward_ps += count * c.backward_ps;
    t.backward_sync_ps += count * c.last_backward_ps();
    t.weight_ps += count * c.weight_ps;
    t.weight_sync_ps += count * c.weight_sync_ps;
    t.last_backward.push_back(c.splits ? ReducedRun{count, c.backward_ps, 0}
                                       : reduced(count, c.backward_ps, c.last_backward_ps(), c));
    if (c.splits) t.last_weight.push_back(reduced(count, c.weight_ps, c.weight_sync_ps, c));
    const PassCalls::Call backward{c.backward, c.gather_backward};
    const auto add = [&](PassCalls& pass, const PassCalls::Call& call, bool reduces) {
      if (reduces)
        pass.add({call, {c.sync}}, count);
      else
        pass.add({call}, count);
    };
    add(p.backward, backward, c.reduces_per_micro_batch && !c.splits);
    add(p.backward_last, backward, !c.splits);
    if (!c.splits) return;
    add(p.weight, {c.weight}, c.reduces_per_micro_batch);
    add(p.weight_last, {c.weight}, true);
  }
  /// The layers of the last micro-batch. Where the gathers that they wait for stand behind
  /// reductions, they take what they take together.
  ReducedRun reduced(int count, std::int64_t pass_ps, std::int64_t sync_ps,
                     const LayerCost& c) const {
    if (!cost_.overlaps()) return {count, sync_ps, 0};
    if (c.gather_backward_ps > 0) return {count, sync_ps, c.reduction_ps};
    const double slowdown = real(cost_.overlap_slowdown_ppm()) / 1e6 - 1;
    return {count, pass_ps, c.reduction_ps,
            std::llround(slowdown * real(std::min(pass_ps, c.reduction_ps)))};
  }
  static TemplateMemory received(std::int64_t bytes) {
    return {.delta_bytes = bytes, .peak_bytes = bytes};
  }
  static TemplateMemory sent(std::int64_t bytes) {
    return {.delta_bytes = -bytes, .peak_bytes = 0};
  }
  /// What the backward of every micro-batch does alike.
  static void in_backward(const TemplateMemory& m, Passes& p) {
    p.backward.add({{m}});
    p.backward_last.add({{m}});
  }
  static void in_backward(std::int64_t ps, const TemplateMemory& m, StageTimes& t, Passes& p) {
    t.backward_ps += ps;
    t.backward_sync_ps += ps;
    t.last_backward.push_back({1, ps, 0});
    in_backward(m, p);
  }
  static void backward_change(const LayerCost* c, StageTimes& t, Passes& p) {
    if (c != nullptr) in_backward(c->backward_ps, c->backward, t, p);
  }

  void forward_pass(int s, StageTimes& t, Passes& p) {
    if (s == 0) {
      forward_of(embedding(), 1, t, p);
    } else if (!plan_.turns_at(s)) {
      p.forward.add({{received(sent_bytes(s))}});
      t.receive_forward_ps = transfer_ps(s - 1, s);
    }
    const plan::LayerRun* now = &entry(s);
    const auto change = [&](std::size_t i, const plan::LayerRun& to) {
      if (const LayerCost* c = reshard(s, i, *now, to)) forward_of(*c, 1, t, p);
      now = &to;
    };
    const std::vector<plan::LayerRun>& all = runs(s);
    for (std::size_t i = 0; i < all.size(); ++i) {
      change(i, all[i]);
      forward_of(block(s, i), all[i].count, t, p);
    }
    if (plan_.turns_at(s + 1)) return;
    if (s + 1 < stages()) return p.forward.add({{sent(freed_activation_bytes(s + 1))}});
    change(all.size(), vocabulary_);
    forward_of(head(), 1, t, p);
    if (head().reduces_per_micro_batch) p.forward.add({{head().sync}});
  }

  void backward_pass(int s, StageTimes& t, Passes& p) {
    const std::vector<plan::LayerRun>& all = runs(s);
    const plan::LayerRun& end = all.back();
    if (s + 1 < stages()) {
      if (!plan_.turns_at(s + 1)) {
        in_backward(received(sent_bytes(s + 1)), p);
        t.receive_backward_ps = transfer_ps(s + 1, s);
      }
    } else {
      t.backward_ps += head().backward_ps;
      t.backward_sync_ps += head().last_backward_ps();
      t.last_backward.push_back(reduced(1, head().backward_ps, head().last_backward_ps(), head()));
      if (!head().reduces_per_micro_batch) p.backward_last.add({{head().sync}});
      backward_change(reshard(s, all.size(), end, vocabulary_), t, p);
      if (companion_) decoder_end(end.strategy, t, p);
    }
    for (std::size_t i = all.size(); i-- > 0;) {
      backward_of(block(s, i), all[i].count, t, p);
      backward_change(reshard(s, i, i > 0 ? all[i - 1] : entry(s), all[i]), t, p);
    }
    if (s == 0) return backward_of(embedding(), 1, t, p);
    if (!plan_.turns_at(s)) in_backward(sent(freed_gradient_bytes(s)), p);
  }

  /// On the devices of the last stage.
  std::int64_t zeroing_ps(std::int64_t elements, model::DType type) const {
    const model::SegmentShape zero{
        .kind = model::SegmentKind::kZeroGradient, .dtype = type, .elements = elements};
    return cost_.segment_ps(zero, model::Phase::kF,
                            cost_.kinds_of(first_rank(stages() - 1), devices()));
  }

  /// The gradient of the encoder's output, zero behind the last block.
  void decoder_end(const LayerStrategy& layout, StageTimes& t, Passes& p) {
    const model::DType type = model::compute_dtype(plan_.precision);
    const std::int64_t elements = context_.micro_batch_sequences / layout.dp *
                                  (plan_.sequence / (layout.sequence_parallel ? layout.tp : 1)) *
                                  cost_.model().runs.back().shape.hidden;
    in_backward(zeroing_ps(elements, type), received(elements * model::element_bytes(type)), t, p);
  }

  ChunkMemory stage(int s, StageTimes& t) {
    Passes p(plan_.prefetch_depth, counts_memory_);
    forward_pass(s, t, p);
    backward_pass(s, t, p);
    if (!counts_memory_) return {};
    ChunkMemory m{p.forward.pass_memory(), p.backward.memory(), p.backward_last.memory(),
                  p.weight.memory(), p.weight_last.memory()};
    if (s + 1 < stages() && !plan_.turns_at(s + 1))
      m.sent_activation_bytes = freed_activation_bytes(s + 1);
    if (s > 0 && !plan_.turns_at(s)) m.sent_gradient_bytes = freed_gradient_bytes(s);
    return m;
  }

  /// Whether a virtual stage is like the one before it on its rank.
  bool repeats(int s) {
    const int before = s - ranks();
    return split_.empty() && before >= ranks() && s + 1 < stages() &&
           plan_.stages[as_index(s)] == plan_.stages[as_index(before)] &&
           entry(s).alike(entry(before));
  }

  void rank(int r, std::vector<StageTimes>& times, PlanCost& out) {
    StageTimes& first = times[as_index(r)];
    StageMemory m;
    m.v_shaped = plan::is_v_shaped(plan_.schedule);
    Once once(counts_memory_);
    if (r == 0) state(embedding(), 1, first, m, once);
    std::int64_t pass_ps = 0, sync_ps = 0;
    for (int v = 0; v < plan_.virtual_stages; ++v) {
      const int s = plan_.stage_of(r, v);
      for (std::size_t i = 0; i < runs(s).size(); ++i)
        state(block(s, i), runs(s)[i].count, first, m, once);
      StageTimes& t = times[as_index(s)];
      if (repeats(s)) {
        t = times[as_index(s - ranks())];
        m.chunks.push_back(m.chunks.back());
      } else {
        m.chunks.push_back(stage(s, t));
      }
      pass_ps += t.forward_ps + t.backward_ps + t.weight_ps;
      sync_ps += t.backward_sync_ps - t.backward_ps + t.weight_sync_ps - t.weight_ps;
    }
    if (r == plan_.head_rank()) {
      state(head(), 1, first, m, once);
      loss(first, m);
    }
    out.stage_ps.push_back(pass_ps);
    out.stage_sync_ps.push_back(sync_ps + first.zero_ps + first.late_ps + first.update_ps);
    if (!counts_memory_) return;
    m.zero_gradient = once.zero.memory();
    m.update = once.update.pass_memory();
    out.stage_peak_bytes.push_back(peak_bytes(
        m,
        costs_.pass_order(plan_.schedule, r, ranks(), plan_.virtual_stages, plan_.micro_batches)));
  }

  /// The loss is one number of the last stage, zeroed once.
  void loss(StageTimes& t, StageMemory& m) {
    t.zero_ps += zeroing_ps(1, model::DType::kFloat32);
    m.persistent_bytes += model::element_bytes(model::DType::kFloat32);
  }

  LayerCosts& costs_;
  const CostModel& cost_;
  const plan::Plan& plan_;
  const plan::LayerRun vocabulary_;
  plan::LayerContext context_;
  // of models with blocks of several kinds, else empty
  std::vector<Split> split_;               // [stage]
  std::vector<std::int64_t> first_layer_;  // [stage]
  // found last
  const LayerCost *embedding_ = nullptr, *head_ = nullptr, *block_ = nullptr;
  std::pair<int, std::size_t> block_at_;
  bool companion_ = false;  // an encoder-decoder
  bool counts_memory_ = true;
  std::int64_t energy_ps_ = 0;
};

}  // namespace

base::Result<PlanCost> plan_cost(const CostModel& cost, const plan::Plan& plan) {
  LayerCosts costs(cost);
  return plan_cost(costs, plan);
}

base::Result<PlanCost> plan_cost(LayerCosts& costs, const plan::Plan& plan) {
  const CostModel& cost = costs.cost();
  auto faults = plan::validate(plan, cost.model());
  if (faults.empty() && as_u32(plan.world_size()) > cost.topology().device_count()) {
    faults.push_back(base::make_error(
        base::ErrorCode::kInconsistent, "the plan needs {} devices, cluster '{}' has {}",
        plan.world_size(), cost.topology().name(), cost.topology().device_count()));
  }
  if (!faults.empty()) return base::fail(std::move(faults));
  TRY_VOID(topologies::check_device_order(cost.topology(), plan.device_order));
  TRY_VOID(cost.check_copies(plan));
  return PlanPricer(costs, plan).price();
}

std::int64_t step_ps(LayerCosts& costs, const plan::Plan& plan) {
  return PlanPricer(costs, plan).forms(false).closed_form_ps;
}

StepForms step_forms(LayerCosts& costs, const plan::Plan& plan) {
  return PlanPricer(costs, plan).forms(true);
}

std::int64_t stage_peak_bytes(LayerCosts& costs, const plan::Plan& plan, int stage) {
  return PlanPricer(costs, plan).peak(stage);
}

}  // namespace orrery::costmodel
