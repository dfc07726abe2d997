#include <algorithm>

#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

LayerSet add_templates(Builder& b, const std::string& name, LayerPair pair) {
  LayerSet t;
  const bool split = b.context().split_backward;
  if (split) split_backward(b, pair);
  std::vector<Op> zero, sync, sync_last, update;
  const auto append = [](std::vector<Op>& to, std::vector<Op> from) {
    for (Op& op : from) to.push_back(std::move(op));
  };
  reduce_slices(b, pair.units, split ? pair.weight : pair.backward);
  t.reduces_per_micro_batch =
      std::ranges::any_of(pair.units, [](const UnitUse& u) { return u.parts; });
  for (const UnitUse& u : pair.units) {
    const ParameterUnit& unit = b.program().units[u.state.unit];
    const bool partial = unit.strategy.sequence_parallel && unit.strategy.tp > 1;
    if ((u.owned || u.parts) && !(u.sliced && u.parts))
      append(u.parts || !t.reduces_per_micro_batch ? sync : sync_last,
             sync_ops(b, u, partial ? replicated_elements(unit) : 0));
    if (!u.owned) continue;
    append(zero, zero_gradient_ops(b, u.state));
    append(update, update_ops(b, u));
    for (BufferId id : {u.state.parameter, u.state.gradient, u.state.moment1, u.state.moment2})
      t.persistent.push_back(id);
    if (u.state.has_master) t.persistent.push_back(u.state.master);
  }
  std::vector<Op> gather_forward = gather_ops(b, pair.units, pair.forward);
  std::vector<Op> gather_backward = gather_ops(b, pair.units, pair.backward);
  if (!gather_forward.empty()) pair.forward.back().release = b.gather_pool();
  if (!gather_backward.empty()) pair.backward.back().release = b.gather_pool();
  t.forward = b.add(name + ".forward", std::move(pair.forward));
  t.backward = b.add(name + (split ? ".backward_input" : ".backward"), std::move(pair.backward));
  t.gather_forward = b.add(name + ".gather_forward", std::move(gather_forward));
  t.gather_backward = b.add(name + ".gather_backward", std::move(gather_backward));
  t.zero_gradient = b.add(name + ".zero_gradient", std::move(zero));
  t.sync = b.add(name + ".sync", std::move(sync));
  if (!sync_last.empty()) t.sync_last = b.add(name + ".sync_last", std::move(sync_last));
  t.update = b.add(name + ".update", std::move(update));
  if (split) t.weight = b.add(name + ".backward_weight", std::move(pair.weight));
  return t;
}

namespace {

template <class Make>  // LayerPair(Builder&)
LayerTemplates lower_alone(const char* name, const model::ModelSpec& model,
                           const LayerContext& context, Make make) {
  LayerTemplates out;
  Builder b(out.program, model, context);
  const LayerSet set = add_templates(b, name, make(b));
  out.forward = set.forward;
  out.backward = set.backward;
  out.weight = set.weight;
  out.gather_forward = set.gather_forward;
  out.gather_backward = set.gather_backward;
  out.zero_gradient = set.zero_gradient;
  out.sync = set.sync;
  out.sync_last = set.sync_last;
  out.update = set.update;
  out.reduces_per_micro_batch = set.reduces_per_micro_batch;
  RankClass state;
  for (BufferId id : set.persistent) state.persistent.push_back({id, 0});
  out.program.classes.push_back(std::move(state));
  return out;
}

}  // namespace

LayerTemplates lower_block(const model::ModelSpec& model, const LayerStrategy& strategy,
                           const LayerContext& context) {
  return lower_alone("block", model, context, [&](Builder& b) { return block_pair(b, strategy); });
}

namespace {

/// Operations that only read the weights: which gathers there are. `backward`: the units that a
/// backward reads.
LayerPair readers(const std::vector<UnitUse>& forward, const std::vector<UnitUse>& backward) {
  LayerPair pair;
  pair.units = forward;
  for (const UnitUse& u : forward) pair.forward.emplace_back().weights = u.weights_forward;
  for (const UnitUse& u : backward) pair.backward.emplace_back().weights = u.weights_backward;
  return pair;
}

}  // namespace

LayerTemplates lower_block_weights(const model::ModelSpec& model, const LayerStrategy& strategy,
                                   const LayerContext& context) {
  return lower_alone("block", model, context, [&](Builder& b) {
    const std::vector<UnitUse> units = block_units(b, strategy).all;
    return readers(units, units);
  });
}

LayerTemplates lower_embedding_weights(const model::ModelSpec& model,
                                       const LayerStrategy& vocabulary,
                                       const LayerContext& context) {
  return lower_alone("embedding", model, context, [&](Builder& b) {
    const std::vector<UnitUse> units = embedding_units(b, vocabulary);
    // Tables have no gradient to hand on; a norm behind them (BERT, Swin) does.
    LayerPair pair =
        readers(units, model.post_norm || model.patch_norm ? std::vector<UnitUse>{units.back()}
                                                           : std::vector<UnitUse>{});
    if (model.relative_buckets > 0) pair.forward.pop_back();  // read by nothing
    return pair;
  });
}

LayerTemplates lower_head_weights(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                                  const LayerContext& context) {
  return lower_alone("head", model, context, [&](Builder& b) {
    LayerPair pair = readers(head_units(b, vocabulary), {});
    if (model.post_norm && model.pooler) pair.forward.pop_back();  // no loss reads a pooler
    return pair;
  });
}

LayerTemplates lower_embedding(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                               const LayerContext& context) {
  return lower_alone("embedding", model, context,
                     [&](Builder& b) { return embedding_pair(b, vocabulary); });
}

LayerTemplates lower_head(const model::ModelSpec& model, const LayerStrategy& vocabulary,
                          const LayerContext& context) {
  return lower_alone("head", model, context, [&](Builder& b) { return head_pair(b, vocabulary); });
}

LayerTemplates lower_reshard(const model::ModelSpec& model, const LayerStrategy& from,
                             const LayerStrategy& to, const LayerContext& context) {
  return lower_alone("reshard", model, context, [&](Builder& b) {
    return reshard_pair(b, Layout(from), Layout(to), context.before_head);
  });
}

}  // namespace orrery::plan
