#include "plan/lowering/lower.h"

#include <map>

#include <fmt/format.h>

#include "plan/lowering/lower_parts.h"
#include "plan/program/schedule.h"

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
    for (const Stage& stage : plan_.stages) {
      ranges_.push_back({layer, layer + stage.layers()});
      layer = ranges_.back().end;
    }
    for (int rank = 0; rank < plan_.pipeline_degree(); ++rank) {
      RankClass c;
      c.stage = rank;
      c.count = plan_.devices_per_stage();
      c.first_rank = rank * c.count;
      c.first_layer = range(stage_of(rank, 0)).first;
      c.end_layer = range(stage_of(rank, plan_.virtual_stages - 1)).end;
      for (int v = 0; v < plan_.virtual_stages && plan_.virtual_stages > 1; ++v)
        c.chunks.push_back(range(stage_of(rank, v)));
      rank_class(c);
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
    c.split_backward = plan.schedule == Schedule::kZeroBubbleH1;
    return c;
  }

  /// A call of a pass, with what goes before (gather) and after (sync) it.
  struct Item {
    PassCall call, gather, sync, sync_last;
    bool sync_always = false;
  };
  struct Pass {
    std::vector<Item> items;
    void add(TemplateId call, std::int64_t layer) {
      items.push_back({{call, layer}, {}, {}, {}, false});
    }
  };

  bool empty(TemplateId id) const { return program_.templates[id].ops.empty(); }
  int stage_of(int rank, int chunk) const { return chunk * plan_.pipeline_degree() + rank; }
  const LayerRange& range(int stage) const { return ranges_[static_cast<std::size_t>(stage)]; }
  bool is_last(int stage) const { return stage + 1 == static_cast<int>(plan_.stages.size()); }

  bool has_kinds() const { return program_.spec.kinds() > 1; }
  /// "" for a model of one kind of block.
  std::string kind_name(int kind) const {
    return has_kinds() ? program_.spec.runs[static_cast<std::size_t>(kind)].name + " " : "";
  }
  /// Kind of the block in front of `layer`, whose output the residual stream is there; of the first
  /// block before it.
  int kind_before(std::int64_t layer) const {
    return layer == 0 ? 0 : program_.spec.kind_of(layer - 1);
  }
  std::string companion_tag(int layout_number) const {
    return b_.has_companion() && layout_number > 0 ? fmt::format(" #{}", layout_number + 1) : "";
  }

  const LayerSet& layer_set(const LayerStrategy& s, std::int64_t layer, int layout_number) {
    const int kind = program_.spec.kind_of(layer);
    const bool reads_companion =
        has_kinds() && program_.spec.runs[static_cast<std::size_t>(kind)].shape.cross_attention;
    const std::string tag = strategy_tag(s) + (reads_companion ? companion_tag(layout_number) : ""),
                      name = kind_name(kind) + "block[" + tag + "]";
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    b_.enter(kind);
    b_.enter_layout(layout_number);
    return blocks_.emplace(name, add_templates(b_, name, block_pair(b_, s))).first->second;
  }
  const LayerSet& named(const std::string& name,
                        LayerPair (*make)(Builder&, const LayerStrategy&)) {
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    return blocks_.emplace(name, add_templates(b_, name, make(b_, plan_.vocabulary))).first->second;
  }
  const LayerSet& embedding() { return named("embedding", embedding_pair); }
  const LayerSet& head() { return named("head", head_pair); }
  /// In front of `layer`; `layout_number` is that of `from`.
  const LayerSet& reshard(const Layout& from, const Layout& to, std::int64_t layer,
                          int layout_number) {
    const int kind = kind_before(layer);
    const bool before_head = layer == program_.spec.layers;
    const std::string name =
        fmt::format("{}reshard[{} to {}{}{}]", kind_name(kind), from.tag(), to.tag(),
                    companion_tag(layout_number), b_.has_companion() && before_head ? " head" : "");
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    b_.enter(kind);
    b_.enter_layout(layout_number);
    return blocks_.emplace(name, add_templates(b_, name, reshard_pair(b_, from, to, before_head)))
        .first->second;
  }
  const LayerSet& decoder_end(const Layout& l, int layout_number) {
    const std::string name =
        fmt::format("decoder end[{}{}]", l.tag(), companion_tag(layout_number));
    if (const auto found = blocks_.find(name); found != blocks_.end()) return found->second;
    b_.enter(program_.spec.last_kind());
    b_.enter_layout(layout_number);
    return blocks_.emplace(name, add_templates(b_, name, decoder_end_pair(b_, l))).first->second;
  }

  /// Point-to-point transfer of the residual stream (or its gradient) in front of `layer`, both
  /// sides in `l`, between `stage` and the one before it (else behind it). From the last pipeline
  /// rank the activation goes on to the first. A companion goes with it.
  TemplateId transfer(const Layout& l, int stage, std::int64_t layer, int layout_number,
                      bool before, bool forward, bool send) {
    const int ranks = plan_.pipeline_degree(), rank = stage % ranks,
              peer = (rank + (before ? ranks - 1 : 1)) % ranks;
    const bool wraps = before ? rank == 0 : peer == 0;
    const int kind = kind_before(layer);
    const std::string name =
        fmt::format("{}{}_{}[{}{}{}]", kind_name(kind), send ? "send" : "receive",
                    forward ? "activation" : "gradient", l.tag(), wraps ? " wrap" : "",
                    companion_tag(layout_number));
    if (const auto found = transfers_.find(name); found != transfers_.end()) return found->second;
    b_.enter(kind);
    Op op;
    op.kind = OpKind::kExchange;
    op.name = fmt::format("{}({})", send ? "send" : "receive", forward ? "x" : "dx");
    op.stream = forward ? (send ? Stream::kForwardSend : Stream::kForwardReceive)
                        : (send ? Stream::kBackwardSend : Stream::kBackwardReceive);
    std::vector<BufferRef> buffers{forward ? b_.stream(l, 0) : b_.stream_gradient(l, 0)};
    const bool decoder = b_.model().cross_attention;
    if (b_.has_companion())
      buffers.push_back(forward ? b_.companion(l, decoder, layout_number)
                                : b_.companion_gradient(l, decoder, layout_number));
    for (const BufferRef& buffer : buffers) {
      op.legs.push_back({send, (peer - rank) * plan_.devices_per_stage(), buffer});
      op.bytes += program_.buffers[buffer.buffer].bytes();
    }
    if (send)
      op.reads = op.frees = buffers;
    else
      op.writes = buffers;
    // The decoder's blocks read the encoder's output until their backward has ended: it dies with
    // the gradients that are sent.
    if (b_.has_companion() && decoder && forward && send) op.frees.pop_back();
    if (b_.has_companion() && decoder && !forward && send)
      op.frees.push_back(b_.companion(l, true, layout_number));
    return transfers_.emplace(name, b_.add(name, {std::move(op)})).first->second;
  }

  Item compute_item(const LayerSet& set, std::int64_t layer, bool backward) {
    Item i;
    i.call = {backward ? set.backward : set.forward, layer};
    const TemplateId gather = backward ? set.gather_backward : set.gather_forward;
    if (!empty(gather)) i.gather = {gather, layer};
    if (backward && !has_weight(set)) synchronise(i, set);
    return i;
  }
  bool has_weight(const LayerSet& set) const { return set.weight.valid() && !empty(set.weight); }
  void synchronise(Item& i, const LayerSet& set) const {
    if (!empty(set.sync)) i.sync = {set.sync, i.call.layer};
    i.sync_always = set.reduces_per_micro_batch;
    if (set.sync_last.valid()) i.sync_last = {set.sync_last, i.call.layer};
  }
  void add_reshard(Pass& pass, const Layout& from, const Layout& to, std::int64_t layer,
                   int layout_number, bool backward) {
    if (from == to) return;
    const LayerSet& r = reshard(from, to, layer, layout_number);
    pass.add(backward ? r.backward : r.forward, layer);
  }

  /// Strategy of every block of a stage, in order.
  std::vector<LayerStrategy> strategies(int s) const {
    std::vector<LayerStrategy> all;
    for (const LayerRun& run : plan_.stages[static_cast<std::size_t>(s)].runs)
      all.insert(all.end(), static_cast<std::size_t>(run.count), run.strategy);
    return all;
  }

  /// Layout in which the residual stream enters a stage.
  Layout entry(int stage) const {
    return Layout(stage == 0 ? plan_.vocabulary : strategies(stage - 1).back());
  }
  /// How many changes of layout there are in front of every block of a stage, the one in front of
  /// it included.
  std::vector<int> layout_numbers(int stage) const {
    std::vector<int> numbers;
    Layout now = entry(stage);
    int n = 0;
    for (const LayerStrategy& s : strategies(stage)) {
      if (Layout(s) != now) ++n;
      now = Layout(s);
      numbers.push_back(n);
    }
    return numbers;
  }

  Pass forward_pass(int stage) {
    const std::vector<LayerStrategy> layers = strategies(stage);
    const std::vector<int> numbers = layout_numbers(stage);
    const auto [first, end] = range(stage);
    Pass p;
    Layout now = entry(stage);
    if (stage == 0)
      p.items.push_back(compute_item(embedding(), 0, false));
    else
      p.add(transfer(now, stage, first, 0, true, true, false), first);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::int64_t layer = first + static_cast<std::int64_t>(i);
      add_reshard(p, now, Layout(layers[i]), layer, numbers[i] - 1, false);
      p.items.push_back(compute_item(layer_set(layers[i], layer, numbers[i]), layer, false));
      now = Layout(layers[i]);
    }
    if (!is_last(stage)) {
      p.add(transfer(now, stage, end, numbers.back(), false, true, true), end);
    } else {
      add_reshard(p, now, Layout(plan_.vocabulary), end, numbers.back(), false);
      Item item = compute_item(head(), end, false);
      if (head().reduces_per_micro_batch) synchronise(item, head());
      p.items.push_back(item);
    }
    return p;
  }

  Pass backward_pass(int stage) {
    const std::vector<LayerStrategy> layers = strategies(stage);
    const std::vector<int> numbers = layout_numbers(stage);
    const auto [first, end] = range(stage);
    Pass p;
    const Layout last(layers.back());
    if (!is_last(stage)) {
      p.add(transfer(last, stage, end, numbers.back(), false, false, false), end);
    } else {
      add_reshard(p, last, Layout(plan_.vocabulary), end, numbers.back(), true);
      if (b_.has_companion()) p.add(decoder_end(last, numbers.back()).backward, end);
    }
    for (std::size_t i = layers.size(); i-- > 0;) {
      const std::int64_t layer = first + static_cast<std::int64_t>(i);
      p.items.push_back(compute_item(layer_set(layers[i], layer, numbers[i]), layer, true));
      const Layout here(layers[i]);
      const Layout before = i > 0 ? Layout(layers[i - 1]) : entry(stage);
      add_reshard(p, before, here, layer, numbers[i] - 1, true);
      if (i == 0 && stage > 0) p.add(transfer(before, stage, layer, 0, true, false, true), layer);
    }
    if (stage == 0) p.items.push_back(compute_item(embedding(), 0, true));
    return p;
  }

  /// Weight gradients, in the order of the backward; none unless the schedule splits it.
  Pass weight_pass(int stage) {
    const std::vector<LayerStrategy> layers = strategies(stage);
    const std::vector<int> numbers = layout_numbers(stage);
    Pass p;
    for (std::size_t i = layers.size(); i-- > 0;) {
      const std::int64_t layer = range(stage).first + static_cast<std::int64_t>(i);
      const LayerSet& set = layer_set(layers[i], layer, numbers[i]);
      if (!has_weight(set)) continue;
      Item item;
      item.call = {set.weight, layer};
      synchronise(item, set);
      p.items.push_back(item);
    }
    return p;
  }

  /// Calls in issue order; `last`: also the reductions that happen once per step.
  std::vector<PassCall> calls(const Pass& pass, bool last) const {
    std::vector<PassCall> compute, gathers;
    for (const Item& i : pass.items) {
      compute.push_back(i.call);
      gathers.push_back(i.gather);
      const auto synchronises = [&](const PassCall& sync, bool now) {
        if (!now || !sync.call.valid()) return;
        compute.push_back(sync);
        gathers.push_back({});
      };
      synchronises(i.sync, last || i.sync_always);
      synchronises(i.sync_last, last);
    }
    return with_prefetch(compute, gathers, plan_.prefetch_depth);
  }

  StagePasses stage_passes(int stage) {
    const Pass forward = forward_pass(stage), backward = backward_pass(stage),
               weight = weight_pass(stage);
    StagePasses passes{calls(forward, false), calls(backward, false), calls(backward, true),
                       calls(weight, false), calls(weight, true)};
    if (is_last(stage) && !head().reduces_per_micro_batch && !empty(head().sync))
      passes.backward_last.insert(passes.backward_last.begin(), {head().sync, range(stage).end});
    return passes;
  }

  void rank_class(RankClass& c) {
    std::vector<StagePasses> passes;
    for (int v = 0; v < plan_.virtual_stages; ++v)
      passes.push_back(stage_passes(stage_of(c.stage, v)));

    std::vector<PassCall> zero, update;
    const auto state = [&](const LayerSet& set, std::int64_t layer) {
      if (!empty(set.zero_gradient)) zero.push_back({set.zero_gradient, layer});
      if (!empty(set.update)) update.push_back({set.update, layer});
      for (BufferId id : set.persistent) c.persistent.push_back({id, layer});
    };
    if (c.stage == 0) state(embedding(), 0);
    for (int v = 0; v < plan_.virtual_stages; ++v) {
      const int stage = stage_of(c.stage, v);
      const std::vector<LayerStrategy> layers = strategies(stage);
      const std::vector<int> numbers = layout_numbers(stage);
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const std::int64_t layer = range(stage).first + static_cast<std::int64_t>(i);
        state(layer_set(layers[i], layer, numbers[i]), layer);
      }
    }
    if (c.stage + 1 == plan_.pipeline_degree()) {
      state(head(), c.end_layer);
      zero.push_back({zero_loss(), c.end_layer});
      c.persistent.push_back({loss().buffer, 0});
    }
    c.body = compress(zero, 0, false);
    const std::vector<PassNode> order = pass_order(plan_.schedule, c.stage, plan_.pipeline_degree(),
                                                   plan_.virtual_stages, plan_.micro_batches);
    for (Node& n : schedule_nodes(order, passes)) c.body.push_back(std::move(n));
    for (Node& n : compress(update, 0, false)) c.body.push_back(std::move(n));
  }

  BufferRef loss() {  // as the head declared it
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
  std::vector<LayerRange> ranges_;  // by stage
  std::map<std::string, LayerSet> blocks_;
  std::map<std::string, TemplateId> transfers_;
};

}  // namespace

base::Result<Program> lower(const Plan& plan, const model::ModelSpec& model) {
  base::Diagnostics faults = validate(plan, model);
  if (!faults.empty()) return tl::unexpected(std::move(faults));
  Program program;
  Assembler(plan, model, program).build();
  return program;
}

}  // namespace orrery::plan
