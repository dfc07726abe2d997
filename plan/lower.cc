#include "plan/lower.h"

#include <map>

#include <fmt/format.h>

#include "plan/lower_parts.h"
#include "plan/schedule.h"

namespace orrery::plan {

namespace {

/// Assembles the classes of a Program from the templates of its layers.
class Assembler {
 public:
  Assembler(const Plan& plan, const model::ModelSpec& model, Program& program)
      : plan_(plan), b_(program, model, context_of(plan)), program_(program) {}

  void build() {
    program_.world_size = plan_.world_size();
    program_.devices_per_stage = plan_.devices_per_stage();
    program_.plan_fingerprint = fingerprint(plan_);
    std::int64_t layer = 0;
    for (int s = 0; s < plan_.pipeline_degree(); ++s) {
      RankClass c;
      c.stage = s;
      c.count = plan_.devices_per_stage();
      c.first_rank = s * c.count;
      c.first_layer = layer;
      for (const LayerRun& run : plan_.stages[static_cast<std::size_t>(s)].runs) layer += run.count;
      c.end_layer = layer;
      stage(c);
      program_.classes.push_back(std::move(c));
    }
  }

 private:
  static LayerContext context_of(const Plan& plan) {
    LayerContext c;
    c.precision = plan.precision;
    c.sequence = plan.sequence;
    c.micro_batch_sequences = plan.micro_batch_sequences();
    c.micro_batches = plan.micro_batches;
    c.global_batch = plan.global_batch;
    c.stages = plan.pipeline_degree();
    c.prefetch_depth = plan.prefetch_depth;
    return c;
  }

  /// A call of a pass, with what goes before (gather) and after (sync) it.
  struct Item {
    PassCall call, gather, sync;
    bool sync_always = false;
  };
  struct Pass {
    std::vector<Item> items;
    void add(TemplateId call, std::int64_t layer) { items.push_back({{call, layer}, {}, {}, false}); }
  };

  bool empty(TemplateId id) const { return program_.templates[id].ops.empty(); }

  const LayerSet& layer_set(const LayerStrategy& s) {
    const std::string tag = strategy_tag(s);
    if (const auto found = blocks_.find(tag); found != blocks_.end()) return found->second;
    return blocks_.emplace(tag, add_templates(b_, "block[" + tag + "]", block_pair(b_, s))).first->second;
  }
  const LayerSet& named(const std::string& name, LayerPair (*make)(Builder&, const LayerStrategy&)) {
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    return blocks_.emplace(name, add_templates(b_, name, make(b_, plan_.vocabulary))).first->second;
  }
  const LayerSet& embedding() { return named("embedding", embedding_pair); }
  const LayerSet& head() { return named("head", head_pair); }
  const LayerSet& reshard(const Layout& from, const Layout& to) {
    const std::string name = "reshard[" + from.tag() + " to " + to.tag() + "]";
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    return blocks_.emplace(name, add_templates(b_, name, reshard_pair(b_, from, to))).first->second;
  }

  /// Point-to-point transfer of the residual stream (or its gradient) at block boundary `layer`, both sides in `l`.
  TemplateId transfer(const Layout& l, bool forward, bool send) {
    const std::string name = fmt::format("{}_{}[{}]", send ? "send" : "receive", forward ? "activation" : "gradient", l.tag());
    if (const auto found = transfers_.find(name); found != transfers_.end()) return found->second;
    const BufferRef buffer = forward ? b_.stream(l, 0) : b_.stream_gradient(l, 0);
    Op op;
    op.kind = OpKind::kExchange;
    op.name = fmt::format("{}({})", send ? "send" : "receive", forward ? "x" : "dx");
    op.stream = forward ? (send ? Stream::kForwardSend : Stream::kForwardReceive)
                        : (send ? Stream::kBackwardSend : Stream::kBackwardReceive);
    op.legs = {{send, (forward == send ? 1 : -1) * plan_.devices_per_stage(), buffer}};
    op.bytes = program_.buffers[buffer.buffer].bytes();
    if (send) op.reads = op.frees = {buffer};
    else op.writes = {buffer};
    return transfers_.emplace(name, b_.add(name, {std::move(op)})).first->second;
  }

  Item compute_item(const LayerSet& set, std::int64_t layer, bool backward) {
    Item i;
    i.call = {backward ? set.backward : set.forward, layer};
    const TemplateId gather = backward ? set.gather_backward : set.gather_forward;
    if (!empty(gather)) i.gather = {gather, layer};
    if (backward && !empty(set.sync)) i.sync = {set.sync, layer};
    i.sync_always = set.reduces_per_micro_batch;
    return i;
  }
  void add_reshard(Pass& pass, const Layout& from, const Layout& to, std::int64_t layer, bool backward) {
    if (from == to) return;
    const LayerSet& r = reshard(from, to);
    pass.add(backward ? r.backward : r.forward, layer);
  }

  /// Strategy of every block of a stage, in order.
  std::vector<LayerStrategy> strategies(int s) const {
    std::vector<LayerStrategy> all;
    for (const LayerRun& run : plan_.stages[static_cast<std::size_t>(s)].runs) all.insert(all.end(), static_cast<std::size_t>(run.count), run.strategy);
    return all;
  }

  Pass forward_pass(const RankClass& c) {
    const std::vector<LayerStrategy> layers = strategies(c.stage);
    const Layout vocabulary(plan_.vocabulary);
    Pass p;
    Layout now = vocabulary;
    if (c.stage == 0) {
      p.items.push_back(compute_item(embedding(), 0, false));
    } else {
      now = Layout(strategies(c.stage - 1).back());
      p.add(transfer(now, true, false), c.first_layer);
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::int64_t layer = c.first_layer + static_cast<std::int64_t>(i);
      add_reshard(p, now, Layout(layers[i]), layer, false);
      p.items.push_back(compute_item(layer_set(layers[i]), layer, false));
      now = Layout(layers[i]);
    }
    if (c.stage + 1 < plan_.pipeline_degree()) {
      p.add(transfer(now, true, true), c.end_layer);
    } else {
      add_reshard(p, now, vocabulary, c.end_layer, false);
      Item item = compute_item(head(), c.end_layer, false);
      if (head().reduces_per_micro_batch) item.sync = {head().sync, c.end_layer};
      p.items.push_back(item);
    }
    return p;
  }

  Pass backward_pass(const RankClass& c) {
    const std::vector<LayerStrategy> layers = strategies(c.stage);
    const Layout vocabulary(plan_.vocabulary);
    Pass p;
    const Layout last(layers.back());
    if (c.stage + 1 < plan_.pipeline_degree()) p.add(transfer(last, false, false), c.end_layer);
    else add_reshard(p, last, vocabulary, c.end_layer, true);
    for (std::size_t i = layers.size(); i-- > 0;) {
      const std::int64_t layer = c.first_layer + static_cast<std::int64_t>(i);
      p.items.push_back(compute_item(layer_set(layers[i]), layer, true));
      const Layout here(layers[i]);
      const Layout before = i > 0 ? Layout(layers[i - 1]) : c.stage == 0 ? vocabulary : Layout(strategies(c.stage - 1).back());
      add_reshard(p, before, here, layer, true);
      if (i == 0 && c.stage > 0) p.add(transfer(before, false, true), layer);
    }
    if (c.stage == 0) p.items.push_back(compute_item(embedding(), 0, true));
    return p;
  }

  /// Calls in issue order; `last`: also the reductions that happen once per step.
  std::vector<PassCall> calls(const Pass& pass, bool last) const {
    std::vector<PassCall> compute, gathers;
    for (const Item& i : pass.items) {
      compute.push_back(i.call);
      gathers.push_back(i.gather);
      if (i.sync.call.valid() && (last || i.sync_always)) {
        compute.push_back(i.sync);
        gathers.push_back({});
      }
    }
    return with_prefetch(compute, gathers, plan_.prefetch_depth);
  }

  void stage(RankClass& c) {
    const bool first = c.stage == 0, last = c.stage + 1 == plan_.pipeline_degree();
    const Pass forward = forward_pass(c), backward = backward_pass(c);
    StagePasses passes{calls(forward, false), calls(backward, false), calls(backward, true)};
    if (last && !head().reduces_per_micro_batch && !empty(head().sync))
      passes.backward_last.insert(passes.backward_last.begin(), {head().sync, c.end_layer});

    std::vector<PassCall> zero, update;
    const auto state = [&](const LayerSet& set, std::int64_t layer) {
      if (!empty(set.zero_gradient)) zero.push_back({set.zero_gradient, layer});
      if (!empty(set.update)) update.push_back({set.update, layer});
      for (BufferId id : set.persistent) c.persistent.push_back({id, layer});
    };
    if (first) state(embedding(), 0);
    const std::vector<LayerStrategy> layers = strategies(c.stage);
    for (std::size_t i = 0; i < layers.size(); ++i) state(layer_set(layers[i]), c.first_layer + static_cast<std::int64_t>(i));
    if (last) {
      state(head(), c.end_layer);
      zero.push_back({zero_loss(), c.end_layer});
      c.persistent.push_back({loss().buffer, 0});
    }
    c.body = compress(zero, 0, false);
    for (Node& n : schedule_nodes(plan_.schedule, c.stage, plan_.pipeline_degree(), plan_.micro_batches, passes)) c.body.push_back(std::move(n));
    for (Node& n : compress(update, 0, false)) c.body.push_back(std::move(n));
  }

  BufferRef loss() {   // as the head declared it
    BufferDecl d;
    d.name = "loss";
    d.shape = {1};
    return {b_.buffer(std::move(d)), 0};
  }
  TemplateId zero_loss() {
    model::SegmentShape s;
    s.kind = model::SegmentKind::kZeroGradient;
    s.elements = 1;
    return b_.add("zero_loss", {compute(b_, "zero(loss)", s, Phase::kF, {}, {}, {loss()})});
  }

  const Plan& plan_;
  Builder b_;
  Program& program_;
  std::map<std::string, LayerSet> blocks_;
  std::map<std::string, TemplateId> transfers_;
};

/// What a valid plan may say and lowering does not know.
base::Diagnostics unsupported(const Plan& plan) {
  base::Diagnostics faults;
  const auto refuse = [&](bool used, std::string_view what) {
    if (used) faults.push_back(base::make_error(base::ErrorCode::kUnsupported, "{} cannot be lowered", what));
  };
  const auto check = [&](const LayerStrategy& s) {
    refuse(s.ep > 1, "expert parallelism");
    refuse(s.operators != ShardedOperators::kAll || s.slices > 1, "sharding by operator");
  };
  check(plan.vocabulary);
  for (const Stage& stage : plan.stages)
    for (const LayerRun& run : stage.runs) check(run.strategy);
  refuse(plan.schedule == Schedule::kInterleaved || plan.schedule == Schedule::kZeroBubbleH1, to_string(plan.schedule));
  return faults;
}

}  // namespace

base::Result<Program> lower(const Plan& plan, const model::ModelSpec& model) {
  base::Diagnostics faults = validate(plan, model);
  if (faults.empty()) faults = unsupported(plan);
  if (!faults.empty()) return tl::unexpected(std::move(faults));
  Program program;
  Assembler(plan, model, program).build();
  return program;
}

}  // namespace orrery::plan
