#include "plan/lowering/lower.h"

#include <map>

#include "base/numbers.h"
#include "plan/lowering/partition_parts.h"
#include "plan/program/schedule.h"

namespace orrery::plan {

namespace {

/// Assembles the classes of a Program from the templates of its layers.
class Assembler {
 public:
  Assembler(const Plan& plan, const ModelSpec& model, Program& program)
      : plan_(plan), b_(program, model, context_of(plan, model)), program_(program) {}

  void build() {
    program_.world_size = plan_.world_size();
    program_.devices_per_stage = plan_.devices_per_stage();
    program_.plan_fingerprint = fingerprint(plan_);
    std::int64_t layer = 0;
    Layout now(plan_.vocabulary);
    for (const Stage& stage : plan_.stages) {
      std::vector<Block>& blocks = blocks_.emplace_back();
      int changes = 0;
      for (const LayerRun& run : stage.runs)
        for (int k = 0; k < run.count; ++k) {
          const Layout own(run);
          if (own != now) ++changes;
          blocks.push_back({run, now, layer++, changes});
          now = own;
        }
    }
    for (int rank = 0; rank < plan_.pipeline_degree(); ++rank) {
      RankClass c;
      c.stage = rank;
      c.count = plan_.devices_per_stage();
      c.first_rank = rank * c.count;
      c.first_layer = range(plan_.stage_of(rank, 0)).first;
      c.end_layer = range(plan_.stage_of(rank, plan_.virtual_stages - 1)).end;
      for (int v = 0; v < plan_.virtual_stages && plan_.virtual_stages > 1; ++v) {
        const LayerRange next = range(plan_.stage_of(rank, v));
        if (!c.chunks.empty() && c.chunks.back().end == next.first)
          c.chunks.back().end = next.end;
        else
          c.chunks.push_back(next);
      }
      rank_class(c);
      program_.classes.push_back(std::move(c));
    }
  }

 private:
  static LayerContext context_of(const Plan& plan, const ModelSpec& model) {
    LayerContext c;
    c.token_chunks = token_chunks(plan, model);
    c.precision = plan.precision;
    c.sequence = plan.sequence;
    c.micro_batch_sequences = plan.micro_batch_sequences();
    c.micro_batches = plan.micro_batches;
    c.global_batch = plan.global_batch;
    c.stages = plan.head_rank() + 1;
    c.prefetch_depth = plan.prefetch_depth;
    c.split_backward = splits_backward(plan.schedule);
    return c;
  }

  /// A block, and how many changes of layout there are on its stage up to it, the one in front of
  /// it included.
  struct Block {
    LayerRun run;   // of which it is one
    Layout before;  // in which the residual stream comes
    std::int64_t layer = 0;
    int layout_number = 0;
    Layout layout() const { return Layout(run); }
  };
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
  const std::vector<Block>& blocks(int stage) const { return blocks_[as_index(stage)]; }
  std::vector<Block> backwards(int stage) const {
    return {blocks(stage).rbegin(), blocks(stage).rend()};
  }
  LayerRange range(int stage) const {
    return {blocks(stage).front().layer, blocks(stage).back().layer + 1};
  }
  bool is_last(int stage) const { return stage + 1 == as_int(plan_.stages.size()); }

  bool has_kinds() const { return program_.spec.kinds() > 1; }
  /// "" for a model of one kind of block.
  std::string kind_name(int kind) const {
    return has_kinds() ? program_.spec.runs[as_index(kind)].name + " " : "";
  }
  /// Kind of the block in front of `layer`, whose output the residual stream is there; of the first
  /// block before it.
  int kind_before(std::int64_t layer) const {
    return layer == 0 ? 0 : program_.spec.kind_of(layer - 1);
  }
  std::string companion_tag(int layout_number) const {
    return b_.has_companion() && layout_number > 0 ? fmt::format(" #{}", layout_number + 1) : "";
  }

  /// The templates of this name; made once, with the builder at blocks of a kind and a layout.
  template <class Make>  // LayerPair()
  const LayerTemplates& templates(const std::string& name, int kind, int layout_number, Make make) {
    if (const auto found = templates_.find(name); found != templates_.end()) return found->second;
    b_.enter(kind);
    b_.enter_layout(layout_number);
    return templates_.emplace(name, add_templates(b_, name, make())).first->second;
  }
  const LayerTemplates& templates(const Block& block) {
    const int kind = program_.spec.kind_of(block.layer);
    const bool reads_companion =
        has_kinds() && program_.spec.runs[as_index(kind)].shape.cross_attention;
    if (!block.run.partition.empty())
      return templates("block[" + partition_tag(block.run) + "]", kind, block.layout_number,
                       [&] { return partition_pair(b_, block.run); });
    return templates(kind_name(kind) + "block[" + strategy_tag(block.run.strategy) +
                         (reads_companion ? companion_tag(block.layout_number) : "") + "]",
                     kind, block.layout_number, [&] { return block_pair(b_, block.run.strategy); });
  }
  const LayerTemplates& embedding() {
    return templates("embedding", 0, 0, [&] { return embedding_pair(b_, plan_.vocabulary); });
  }
  const LayerTemplates& head() {
    return templates("head", 0, 0, [&] { return head_pair(b_, plan_.vocabulary); });
  }
  /// In front of `layer`; `layout_number` is that of `from`.
  const LayerTemplates& reshard(const Layout& from, const Layout& to, std::int64_t layer,
                                int layout_number) {
    const int kind = kind_before(layer);
    const bool before_head = layer == program_.spec.layers;
    return templates(
        fmt::format("{}reshard[{} to {}{}{}]", kind_name(kind), from.tag(), to.tag(),
                    companion_tag(layout_number), b_.has_companion() && before_head ? " head" : ""),
        kind, layout_number, [&] { return reshard_pair(b_, from, to, before_head); });
  }
  const LayerTemplates& decoder_end(const Layout& l, int layout_number) {
    return templates(fmt::format("decoder end[{}{}]", l.tag(), companion_tag(layout_number)),
                     program_.spec.last_kind(), layout_number,
                     [&] { return decoder_end_pair(b_, l); });
  }

  static Stream transfer_stream(bool second_arm, bool forward, bool send) {
    if (second_arm)
      return forward ? (send ? Stream::kSecondForwardSend : Stream::kSecondForwardReceive)
                     : (send ? Stream::kSecondBackwardSend : Stream::kSecondBackwardReceive);
    return forward ? (send ? Stream::kForwardSend : Stream::kForwardReceive)
                   : (send ? Stream::kBackwardSend : Stream::kBackwardReceive);
  }

  /// Point-to-point transfer of the residual stream (or its gradient) in front of `layer`, both
  /// sides in `l`, between `stage` and the one before it (else behind it). From the last pipeline
  /// rank the activation goes on to the first, or back where stages are placed as a V. A companion
  /// goes with it.
  TemplateId transfer(const Layout& l, int stage, std::int64_t layer, int layout_number,
                      bool before, bool forward, bool send) {
    const int rank = plan_.rank_of(stage), peer = plan_.rank_of(before ? stage - 1 : stage + 1);
    const bool returns = before ? peer > rank : peer < rank;
    const bool second_arm = returns && is_v_shaped(plan_.schedule);
    const std::string_view way = second_arm ? " back" : returns ? " wrap" : "";
    const int kind = kind_before(layer);
    const std::string name = fmt::format(
        "{}{}_{}[{}{}{}]", kind_name(kind), send ? "send" : "receive",
        forward ? "activation" : "gradient", l.tag(), way, companion_tag(layout_number));
    if (const auto found = transfers_.find(name); found != transfers_.end()) return found->second;
    b_.enter(kind);
    Op op;
    op.kind = OpKind::kExchange;
    op.name = fmt::format("{}({})", send ? "send" : "receive", forward ? "x" : "dx");
    op.stream = transfer_stream(second_arm, forward, send);
    BufferRefs buffers{forward ? b_.stream(l, 0) : b_.stream_gradient(l, 0)};
    const bool decoder = b_.model().cross_attention;
    if (b_.has_companion())
      buffers.push_back(forward ? b_.companion(l, decoder, layout_number)
                                : b_.companion_gradient(l, decoder, layout_number));
    for (const BufferRef& buffer : buffers) {
      op.legs.push_back({send, (peer - rank) * plan_.devices_per_stage(), buffer});
      op.bytes += b_.decl(buffer).bytes();
    }
    if (send)
      op.reads = op.frees = buffers;
    else
      op.writes = buffers;
    // The decoder's blocks read the encoder's output until their backward has ended: it dies with
    // the gradients that are sent.
    if (b_.has_companion() && decoder && send) {
      if (forward)
        op.frees.pop_back();
      else
        op.frees.push_back(b_.companion(l, true, layout_number));
    }
    return transfers_.emplace(name, b_.add(name, {std::move(op)})).first->second;
  }

  Item compute_item(const LayerTemplates& set, std::int64_t layer, bool backward) {
    Item i;
    i.call = {backward ? set.backward : set.forward, layer};
    const TemplateId gather = backward ? set.gather_backward : set.gather_forward;
    if (!empty(gather)) i.gather = {gather, layer};
    if (backward && !has_weight(set)) synchronise(i, set);
    return i;
  }
  bool has_weight(const LayerTemplates& set) const {
    return set.weight.valid() && !empty(set.weight);
  }
  void synchronise(Item& i, const LayerTemplates& set) const {
    if (!empty(set.sync)) i.sync = {set.sync, i.call.layer};
    i.sync_always = set.reduces_per_micro_batch;
    if (set.sync_last.valid()) i.sync_last = {set.sync_last, i.call.layer};
  }
  void add_reshard(Pass& pass, const Layout& from, const Layout& to, std::int64_t layer,
                   int layout_number, bool backward) {
    if (from == to) return;
    const LayerTemplates& r = reshard(from, to, layer, layout_number);
    pass.add(backward ? r.backward : r.forward, layer);
  }

  Pass forward_pass(int stage) {
    const Block &first = blocks(stage).front(), &last = blocks(stage).back();
    const std::int64_t end = range(stage).end;
    Pass p;
    if (stage == 0)
      p.items.push_back(compute_item(embedding(), 0, false));
    else if (!plan_.turns_at(stage))
      p.add(transfer(first.before, stage, first.layer, 0, true, true, false), first.layer);
    for (const Block& b : blocks(stage)) {
      add_reshard(p, b.before, b.layout(), b.layer, b.layout_number - 1, false);
      p.items.push_back(compute_item(templates(b), b.layer, false));
    }
    if (plan_.turns_at(stage + 1)) return p;
    if (!is_last(stage)) {
      p.add(transfer(last.layout(), stage, end, last.layout_number, false, true, true), end);
    } else {
      add_reshard(p, last.layout(), Layout(plan_.vocabulary), end, last.layout_number, false);
      Item item = compute_item(head(), end, false);
      if (head().reduces_per_micro_batch) synchronise(item, head());
      p.items.push_back(item);
    }
    return p;
  }

  Pass backward_pass(int stage) {
    const Block &first = blocks(stage).front(), &last = blocks(stage).back();
    const std::int64_t end = range(stage).end;
    Pass p;
    if (!is_last(stage)) {
      if (!plan_.turns_at(stage + 1))
        p.add(transfer(last.layout(), stage, end, last.layout_number, false, false, false), end);
    } else {
      add_reshard(p, last.layout(), Layout(plan_.vocabulary), end, last.layout_number, true);
      if (b_.has_companion()) p.add(decoder_end(last.layout(), last.layout_number).backward, end);
    }
    for (const Block& b : backwards(stage)) {
      p.items.push_back(compute_item(templates(b), b.layer, true));
      add_reshard(p, b.before, b.layout(), b.layer, b.layout_number - 1, true);
    }
    if (stage == 0)
      p.items.push_back(compute_item(embedding(), 0, true));
    else if (!plan_.turns_at(stage))
      p.add(transfer(first.before, stage, first.layer, 0, true, false, true), first.layer);
    return p;
  }

  /// Weight gradients, in the order of the backward; none unless the schedule splits it.
  Pass weight_pass(int stage) {
    Pass p;
    for (const Block& b : backwards(stage)) {
      const LayerTemplates& set = templates(b);
      if (!has_weight(set)) continue;
      p.add(set.weight, b.layer);
      synchronise(p.items.back(), set);
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
      passes.push_back(stage_passes(plan_.stage_of(c.stage, v)));

    std::vector<PassCall> zero, update;
    const auto state = [&](const LayerTemplates& set, std::int64_t layer) {
      if (!empty(set.zero_gradient)) zero.push_back({set.zero_gradient, layer});
      if (!empty(set.update)) update.push_back({set.update, layer});
      for (const RankClass::Persistent& p : set.program.classes.front().persistent)
        c.persistent.push_back({p.buffer, layer});
    };
    if (c.stage == 0) state(embedding(), 0);
    for (int v = 0; v < plan_.virtual_stages; ++v)
      for (const Block& b : blocks(plan_.stage_of(c.stage, v))) state(templates(b), b.layer);
    if (c.stage == plan_.head_rank()) {
      state(head(), c.end_layer);
      zero.push_back({zero_loss(), c.end_layer});
      c.persistent.push_back({loss_buffer(b_).buffer, 0});
    }
    c.body = compress(zero, 0, false);
    const std::vector<PassNode> order = pass_order(plan_.schedule, c.stage, plan_.pipeline_degree(),
                                                   plan_.virtual_stages, plan_.micro_batches);
    for (Node& n : schedule_nodes(order, passes)) c.body.push_back(std::move(n));
    for (Node& n : compress(update, 0, false)) c.body.push_back(std::move(n));
  }

  TemplateId zero_loss() {
    model::SegmentShape s;
    s.kind = kZeroGradient;
    s.elements = 1;
    return b_.add("zero_loss", {compute(b_, "zero(loss)", s, kF, {}, {}, {loss_buffer(b_)})});
  }

  const Plan& plan_;
  Builder b_;
  Program& program_;
  std::vector<std::vector<Block>> blocks_;  // by stage
  std::map<std::string, LayerTemplates> templates_;
  std::map<std::string, TemplateId> transfers_;
};

}  // namespace

base::Result<Program> lower(const Plan& plan, const ModelSpec& model) {
  base::Diagnostics faults = validate(plan, model);
  if (!faults.empty()) return tl::unexpected(std::move(faults));
  Program program;
  Assembler(plan, model, program).build();
  return program;
}

}  // namespace orrery::plan
