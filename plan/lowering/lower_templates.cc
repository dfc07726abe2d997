#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "plan/lowering/lower_parts.h"
#include "plan/lowering/partition_parts.h"

namespace orrery::plan {

void append(Ops& to, Ops from) { std::move(from.begin(), from.end(), std::back_inserter(to)); }

void zero_parts(Builder& b, const UnitUses& units, Ops& ops) {
  Ops zero;
  for (const UnitUse& u : units)
    if (!u.sliced) append(zero, zero_part_ops(b, u));
  ops.insert(ops.begin(), zero.begin(), zero.end());
}

BufferRef backward_weights(const UnitUses& units, const BufferRef& forward) {
  const auto unit = std::ranges::find(units, forward, &UnitUse::weights_forward);
  // a slice is gathered for each of its uses
  return unit == units.end() || unit->sliced ? forward : unit->weights_backward;
}

void place_frees(Builder& b, LayerPair& pair, const std::function<bool(const BufferRef&)>& keep) {
  place_frees(pair.forward, pair.backward, [&](const BufferRef& r) {
    const auto is_part = [&r](const UnitUse& u) { return u.parts && r == u.gradient; };
    return b.decl(r).persistent || std::ranges::any_of(pair.units, is_part) || keep(r);
  });
}

namespace {

bool is_block_product(SegmentKind kind) {
  return kind == kQkv || kind == kProjection || kind == kMlpIn || kind == kMlpOut ||
         kind == kExpertIn || kind == kExpertOut;
}

/// The last of `ops` that reads `r`; null when none does.
Op* last_reader(Ops& ops, const BufferRef& r) {
  const auto found =
      std::find_if(ops.rbegin(), ops.rend(), [&](const Op& op) { return contains(op.reads, r); });
  return found == ops.rend() ? nullptr : &*found;
}

}  // namespace

bool is_product(SegmentKind kind) {
  return is_block_product(kind) || kind == kLatentProduct || kind == kLogits;
}

void split_backward(Builder& b, LayerPair& pair) {
  for (Op& op : pair.backward) {
    for (const BufferRef& r : op.updates)
      ORRERY_CHECK(last_reader(pair.weight, r) == nullptr,
                   "'{}' changes what a weight gradient is to read", op.name);
    const bool apart = op.phase == kG;
    if (op.kind != OpKind::kCompute || !(apart || op.phase == kBG) ||
        !is_block_product(b.program().segments[op.segment].kind))
      continue;
    if (apart) {
      pair.weight.push_back(op);
      continue;
    }
    Op weight = op;
    weight.phase = kG;
    weight.weights.reset();
    weight.writes.clear();
    weight.updates.clear();
    weight.frees.clear();
    weight.acquire.reset();
    weight.release.reset();
    pair.weight.push_back(std::move(weight));
    op.phase = kB;
    op.gradients.reset();
    op.reads.resize(1);  // the gradient of its output; the input is for the weights only
  }
  std::erase_if(pair.backward, [&](const Op& op) {
    return op.kind == OpKind::kCompute && op.phase == kG &&
           is_block_product(b.program().segments[op.segment].kind);
  });
  for (Op& op : pair.backward)
    std::erase_if(op.frees, [&](const BufferRef& r) {
      Op* reader = last_reader(pair.weight, r);
      if (reader != nullptr) reader->frees.push_back(r);
      return reader != nullptr;
    });
}

LayerTemplates add_templates(Builder& b, const std::string& name, LayerPair pair) {
  LayerTemplates t;
  RankClass& state = t.program.classes.emplace_back();
  const bool split = b.context().split_backward;
  if (split) split_backward(b, pair);
  Ops zero, sync, sync_last, update;
  reduce_slices(b, pair.units, split ? pair.weight : pair.backward);
  t.reduces_per_micro_batch = std::ranges::any_of(pair.units, &UnitUse::parts);
  for (const UnitUse& u : pair.units) {
    const ParameterUnit& unit = b.unit(u);
    const bool at_end = unit.strategy.grad_reduce == GradReduce::kEnd;
    if ((u.owned || u.parts) && !(u.sliced && u.parts))
      append(at_end                                  ? update
             : u.parts || !t.reduces_per_micro_batch ? sync
                                                     : sync_last,
             sync_ops(b, u, partial_elements(unit)));
    if (!u.owned) continue;
    append(zero, zero_gradient_ops(b, u.state));
    append(update, update_ops(b, u));
    append(at_end ? update : zero, gather_updated_ops(b, u));
    for (const BufferRef& r : u.state.persistent()) state.persistent.push_back({r.buffer, 0});
    if (u.state.copies.valid()) state.persistent.push_back({u.state.copies, 0});
  }
  copy_states(b, update);
  Ops gather_forward = gather_ops(b, pair.units, pair.forward);
  Ops gather_backward = gather_ops(b, pair.units, pair.backward);
  if (!gather_forward.empty()) pair.forward.back().release = b.gather_pool();
  if (!gather_backward.empty()) pair.backward.back().release = b.gather_pool();
  if (pair.offload) gather_backward.push_back(offload(b, pair));
  const auto add = [&](const char* what, Ops& ops) { return b.add(name + what, std::move(ops)); };
  t.forward = add(".forward", pair.forward);
  t.backward = add(split ? ".backward_input" : ".backward", pair.backward);
  t.gather_forward = add(".gather_forward", gather_forward);
  t.gather_backward = add(".gather_backward", gather_backward);
  t.zero_gradient = add(".zero_gradient", zero);
  t.sync = add(".sync", sync);
  if (!sync_last.empty()) t.sync_last = add(".sync_last", sync_last);
  t.update = add(".update", update);
  if (split) t.weight = add(".backward_weight", pair.weight);
  return t;
}

namespace {

template <class Make>  // LayerPair(Builder&)
LayerTemplates lower_alone(const char* name, const ModelSpec& model, const LayerContext& context,
                           Make make) {
  Program program;
  Builder b(program, model, context);
  LayerTemplates out = add_templates(b, name, make(b));
  program.classes = std::move(out.program.classes);
  out.program = std::move(program);
  return out;
}

}  // namespace

LayerTemplates lower_block(const ModelSpec& model, const LayerStrategy& strategy,
                           const LayerContext& context) {
  return lower_alone("block", model, context, [&](Builder& b) { return block_pair(b, strategy); });
}

LayerTemplates lower_partitioned(const ModelSpec& model, const LayerRun& run,
                                 const LayerContext& context) {
  return lower_alone("block", model, context, [&](Builder& b) { return partition_pair(b, run); });
}

namespace {

/// Operations that only read the weights: which gathers there are. `backward`: the units that a
/// backward reads.
LayerPair readers(const UnitUses& forward, const UnitUses& backward) {
  LayerPair pair;
  pair.units = forward;
  for (const UnitUse& u : forward) pair.forward.emplace_back().weights = u.weights_forward;
  for (const UnitUse& u : backward) pair.backward.emplace_back().weights = u.weights_backward;
  return pair;
}

}  // namespace

LayerTemplates lower_block_weights(const ModelSpec& model, const LayerStrategy& strategy,
                                   const LayerContext& context) {
  return lower_alone("block", model, context, [&](Builder& b) {
    const UnitUses units = block_units(b, strategy).all;
    return readers(units, units);
  });
}

LayerTemplates lower_embedding_weights(const ModelSpec& model, const LayerStrategy& vocabulary,
                                       const LayerContext& context) {
  return lower_alone("embedding", model, context, [&](Builder& b) {
    const UnitUses units = embedding_units(b, vocabulary);
    // Tables have no gradient to hand on; a norm (BERT, Swin) or a product behind them does.
    const bool normed = model.patch_norm || model.embedding_norm || model.embedding_hidden > 0;
    LayerPair pair =
        readers(units, normed && !model.frozen() ? UnitUses{units.back()} : UnitUses{});
    if (model.relative_buckets > 0) pair.forward.pop_back();  // read by nothing
    return pair;
  });
}

LayerTemplates lower_head_weights(const ModelSpec& model, const LayerStrategy& vocabulary,
                                  const LayerContext& context) {
  return lower_alone("head", model, context, [&](Builder& b) {
    LayerPair pair = readers(head_units(b, vocabulary), {});
    if (model.post_norm && model.pooler) pair.forward.pop_back();  // no loss reads a pooler
    return pair;
  });
}

LayerTemplates lower_embedding(const ModelSpec& model, const LayerStrategy& vocabulary,
                               const LayerContext& context) {
  return lower_alone("embedding", model, context,
                     [&](Builder& b) { return embedding_pair(b, vocabulary); });
}

LayerTemplates lower_head(const ModelSpec& model, const LayerStrategy& vocabulary,
                          const LayerContext& context) {
  return lower_alone("head", model, context, [&](Builder& b) { return head_pair(b, vocabulary); });
}

LayerTemplates lower_reshard(const ModelSpec& model, const LayerStrategy& from,
                             const LayerStrategy& to, const LayerContext& context) {
  return lower_reshard(model, LayerRun{.strategy = from}, LayerRun{.strategy = to}, context);
}

LayerTemplates lower_reshard(const ModelSpec& model, const LayerRun& from, const LayerRun& to,
                             const LayerContext& context) {
  return lower_alone("reshard", model, context, [&](Builder& b) {
    return reshard_pair(b, Layout(from), Layout(to), context.before_head);
  });
}

}  // namespace orrery::plan
