#include "plan/lowering/builder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {

std::int64_t elements_of(const Parameter& p) {
  return std::accumulate(p.local_shape.begin(), p.local_shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

BufferRefs UnitState::persistent() const {
  if (!gradient.valid()) return {{parameter}};
  BufferRefs all{{parameter}, {gradient}, {moment1}, {moment2}};
  if (master.valid()) all.push_back({master});
  return all;
}

Builder::Builder(Program& program, const ModelSpec& model, const LayerContext& context)
    : program_(program), model_(model), context_(context) {
  program_.model = model.name;
  program_.spec = model;
  program_.precision = context.precision;
  program_.sequence = context.sequence;
  program_.global_batch = context.global_batch;
  program_.micro_batches = context.micro_batches;
  for (int k = 0; k < model.kinds() && model.kinds() > 1; ++k) views_.push_back(model.of_kind(k));
  enter(context.kind);
}

std::string Builder::prefix() const {
  return kind_ == 0 ? "" : model_.runs[as_index(kind_)].name + " ";
}

std::string Builder::named(std::string name, const Layout& l) {
  if (!(l == tagged_)) {  // one layout has many buffers
    tagged_ = l;
    tag_ = l.tag();
  }
  return std::move(name.append(" [").append(tag_).append("]"));
}

BufferId Builder::buffer(BufferDecl decl) {
  const auto [place, fresh] = buffers_.try_emplace(decl.name);
  if (fresh) return place->second = program_.buffers.push_back(std::move(decl));
  ORRERY_CHECK(program_.buffers[place->second].shape == decl.shape,
               "buffer '{}' declared twice with different shapes", decl.name);
  return place->second;
}

BufferRef Builder::local(const std::string& name, const Layout& layout, Extents shape,
                         model::DType dtype) {
  return {buffer({.name = named(prefix() + name, layout),
                  .dtype = dtype,
                  .shape = std::move(shape),
                  .unit = {}})};
}

namespace {

template <class I, class T>
I interned(base::IdVector<I, T>& list, const T& wanted) {
  for (const I id : list.ids())
    if (list[id] == wanted) return id;
  return list.push_back(wanted);
}

}  // namespace

GroupId Builder::group(const std::string& name, int size, int stride) {
  return interned(program_.groups, {name, size, stride});
}

GroupId Builder::group(const Group& group) { return interned(program_.groups, group); }

RedistributionId Builder::redistribution(const Redistribution& r) {
  return interned(program_.redistributions, r);
}

SegmentId Builder::segment(const SegmentShape& shape) { return interned(program_.segments, shape); }

PoolId Builder::pool(const std::string& name, int capacity) {
  for (const PoolId id : program_.pools.ids())
    if (program_.pools[id].name == name) return id;
  return program_.pools.push_back({name, capacity});
}

BufferRef Builder::stream_buffer(const char* name, const Layout& l, std::int64_t hidden,
                                 std::int64_t token_share, int layer_offset) {
  const bool first = hidden == model_.hidden && token_share == model_.token_share;
  return {buffer({.name = named(first ? name : fmt::format("{} of {}", name, hidden), l),
                  .dtype = dtype(),
                  .shape = {sequences(l), tokens(l) * model().token_share / token_share,
                            hidden / l.parts},
                  .unit = {}}),
          layer_offset};
}

BufferRef Builder::stream(const Layout& l, int layer_offset) {
  return stream_buffer("x", l, model().hidden, model().token_share, layer_offset);
}
BufferRef Builder::stream_gradient(const Layout& l, int layer_offset) {
  return stream_buffer("dx", l, model().hidden, model().token_share, layer_offset);
}
BufferRef Builder::input(const Layout& l) {
  return stream_buffer("x", l, model().input_hidden(), model().input_token_share(), 0);
}
BufferRef Builder::input_gradient(const Layout& l) {
  return stream_buffer("dx", l, model().input_hidden(), model().input_token_share(), 0);
}

BufferRef Builder::companion_buffer(const char* name, const Layout& l, int layout_number) {
  return {buffer(
      {.name = named(layout_number == 0 ? name : fmt::format("{} {}", name, layout_number + 1), l),
       .dtype = dtype(),
       .shape = {sequences(l), tokens(l), model().hidden},
       .scope = Scope::kMicroBatch,
       .unit = {}})};
}
BufferRef Builder::companion(const Layout& l, bool decoder, int layout_number) {
  return companion_buffer(decoder ? "encoder output" : "decoder input", l, layout_number);
}
BufferRef Builder::companion_gradient(const Layout& l, bool decoder, int layout_number) {
  return companion_buffer(decoder ? "d encoder output" : "d decoder input", l, layout_number);
}

SegmentShape Builder::shape(SegmentKind kind, const Layout& l, std::int64_t in,
                            std::int64_t out) const {
  SegmentShape s;
  s.kind = kind;
  s.dtype = dtype();
  s.sequences = sequences(l);
  s.tokens = tokens(l);
  s.in = in;
  s.out = out;
  s.norm = model_.norm;
  s.activation = model_.activation;
  s.gated = model_.gated_mlp;
  s.epsilon = model_.norm_epsilon;
  return s;
}

UnitState Builder::unit(const std::string& name, Parameters parameters,
                        const LayerStrategy& layer_strategy, Scope scope) {
  LayerStrategy strategy = layer_strategy;
  strategy.recompute = Recompute::kNone;
  strategy.tensor_pieces = 1;
  const bool frozen = model_.frozen() && name != kAdapters;
  if (frozen && effective_zero(strategy) < 3) strategy.zero = strategy.shard = 0;
  const std::string key =
      (scope == Scope::kLayer ? prefix() : "") + name + " [" + strategy_tag(strategy) + "]";
  if (const auto found = units_.find(key); found != units_.end()) return found->second;
  ParameterUnit u;
  u.name = key;
  u.strategy = strategy;
  u.frozen = frozen;
  for (Parameter& p : parameters) {
    p.offset = u.elements;
    u.elements += elements_of(p);
  }
  u.parameters = std::move(parameters);
  const int zero = effective_zero(strategy);
  const int owners = zero == 0 ? strategy.replicas() : strategy.shard_ranks(),
            copies = strategy.replicas() / owners;
  u.padded = zero == 0 ? u.elements : (u.elements + owners - 1) / owners * owners;
  const Layout layout(strategy);
  const int stride = layout.token_stride() * strategy.ep;
  u.data_group = group(strategy.ep > 1 ? "expert data" : "data", strategy.replicas(), stride);
  u.shard_group = copies == 1 ? u.data_group : group("shard", owners, stride);
  u.replica_group = group("replica", copies, stride * owners);
  u.tensor_group = tensor_group(layout);
  return add_unit(std::move(u), scope);
}

UnitState Builder::unit(const std::string& name, Parameters parameters, const Sequence& partition,
                        std::uint32_t summed, const LayerStrategy& run) {
  ParameterUnit u;
  u.name =
      fmt::format("{}{} [partition {}{}]", prefix(), name, to_string(partition), sharding_tag(run));
  if (const auto found = units_.find(u.name); found != units_.end()) return found->second;
  for (Parameter& p : parameters) {
    p.offset = u.elements;
    u.elements += elements_of(p);
  }
  u.parameters = std::move(parameters);
  u.partition = partition;
  u.data_group = u.shard_group = group(Group::of_bits("data", summed));
  const int owners = program_.groups[u.data_group].size;
  u.strategy = {.dp = owners, .zero = run.zero, .grad_reduce = run.grad_reduce};
  u.padded = run.zero == 0 ? u.elements : (u.elements + owners - 1) / owners * owners;
  u.replica_group = group("replica", 1, 1);
  u.tensor_group = group("tensor", 1, 1);
  return add_unit(std::move(u), Scope::kLayer);
}

UnitState Builder::add_unit(ParameterUnit u, Scope scope) {
  const std::string key = u.name;
  const bool frozen = u.frozen;
  const LayerStrategy strategy = u.strategy;
  const int zero = effective_zero(strategy);
  const std::int64_t padded = u.padded,
                     shard = zero == 0 ? padded : padded / program_.groups[u.shard_group].size;
  UnitState s;
  s.scope = scope;
  s.unit = program_.units.push_back(std::move(u));
  const auto state = [&](const char* what, BufferCategory category, std::int64_t elements,
                         model::DType type = kFloat32) {
    return buffer({.name = std::string(what) + " of " + key,
                   .category = category,
                   .dtype = type,
                   .shape = {elements},
                   .scope = scope,
                   .persistent = true,
                   .unit = s.unit});
  };
  const BufferCategory states =
      strategy.states == States::kHost ? BufferCategory::kHost : BufferCategory::kOptimizer;
  const bool full_gradient = zero < 2 || !reduces_parts(strategy, context_.micro_batches);
  s.parameter = state("parameter", BufferCategory::kParameter, zero == 3 ? shard : padded, dtype());
  if (!frozen) {
    s.gradient = state("gradient", BufferCategory::kGradient, full_gradient ? padded : shard);
    s.moment1 = state("moment 1", states, shard);
    s.moment2 = state("moment 2", states, shard);
  }
  if (!frozen && context_.precision != model::Precision::kFloat32)
    s.master = state("master", states, shard);
  std::int64_t quantised = 0;
  for (const Parameter& p : program_.units[s.unit].parameters)
    if (p.quantised && format() != model::Format::kNone) quantised += elements_of(p);
  if (quantised > 0 && zero < 3)
    s.copies = state("quantised", BufferCategory::kParameter, 2 * quantised, operand_dtype());
  units_.emplace(key, s);
  return s;
}

UnitUse Builder::use(const UnitState& state, const std::string& user) {
  const ParameterUnit& u = program_.units[state.unit];
  UnitUse w;
  w.state = state;
  w.weights_forward = w.weights_backward = {state.parameter};
  w.gradient = {state.gradient};
  w.gathered = effective_zero(u.strategy) == 3;
  w.parts = !u.frozen && reduces_parts(u.strategy, context_.micro_batches);
  const auto temporary = [&](const char* what, BufferCategory category, model::DType type) {
    return BufferRef{buffer({.name = what + (" of " + u.name) + " in " + user,
                             .category = category,
                             .dtype = type,
                             .shape = {u.padded},
                             .unit = state.unit})};
  };
  if (w.gathered) {
    w.weights_forward = temporary("gathered forward", BufferCategory::kCommunication, dtype());
    w.weights_backward = temporary("gathered backward", BufferCategory::kCommunication, dtype());
  }
  if (w.parts) w.gradient = temporary("gradient part", BufferCategory::kGradient, kFloat32);
  return w;
}

TemplateId Builder::add(std::string name, Ops ops) {
  return program_.templates.push_back({std::move(name), std::move(ops)});
}

void Builder::quantise(SegmentShape& product, const BufferRef& input, const UnitUse& use) const {
  product.format = format();
  if (product.format == model::Format::kNone) return;
  product.quantises_input = decl(input).dtype == dtype();
  product.quantises_weights = use.gathered && !context_.keeps_copies;
}

ParameterView Builder::view(const UnitUse& use, Names names) const {
  const Parameters& parameters = unit(use).parameters;
  ParameterView v;
  for (const char* suffix : names) {
    const auto p = std::ranges::find_if(
        parameters, [&](const Parameter& one) { return one.name.ends_with(suffix); });
    ORRERY_CHECK(p != parameters.end(), "unit '{}' has no parameter '{}'", unit(use).name, suffix);
    if (v.parameters.empty()) {
      v.offset = p->offset;
      v.shape = p->local_shape;
    } else {
      v.shape[0] += p->local_shape[0];
    }
    v.parameters.push_back(as_int(p - parameters.begin()));
  }
  return v;
}

Op compute(Builder& b, std::string name, const SegmentShape& shape, Phase phase, BufferRefs reads,
           BufferRefs writes, BufferRefs updates) {
  Op op;
  op.name = std::move(name);
  op.segment = b.segment(shape);
  op.phase = phase;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.updates = std::move(updates);
  return op;
}

Op with_weights(Op op, const UnitUse& use, Views views) {
  const bool forward = op.phase == kF;
  op.weights = forward ? use.weights_forward : use.weights_backward;
  op = with_gradient(std::move(op), use, std::move(views));
  if (forward) op.gradients.reset();
  return op;
}

Op with_gradient(Op op, const UnitUse& use, Views views) {
  op.unit = use.state.unit;
  op.views = std::move(views);
  if (use.state.gradient.valid()) op.gradients = use.gradient;
  return op;
}

Op sum(Builder& b, const Layout& l, std::string name, BufferRef what, BufferRef to) {
  SegmentShape s = b.shape(kAccumulate, l, 0, 0);
  s.elements = b.decl(to).elements();
  return compute(b, std::move(name), s, kF, {what}, {}, {to});
}

Op collective(Builder& b, Collective kind, const std::string& what, Stream stream, GroupId group,
              BufferRef buffer) {
  Op op;
  op.kind = OpKind::kCollective;
  op.name = std::string(to_string(kind)) + "(" + what + ")";
  op.stream = stream;
  op.collective = kind;
  op.group = group;
  op.bytes = b.decl(buffer).bytes();
  op.updates = {buffer};
  return op;
}

Op all_reduce(Builder& b, const std::string& what, Stream stream, GroupId group, BufferRef buffer) {
  return collective(b, Collective::kAllReduce, what, stream, group, buffer);
}

Op collective(Builder& b, Collective kind, const std::string& what, Stream stream, GroupId group,
              BufferRef from, BufferRef to, int dim) {
  Op op = collective(b, kind, what, stream, group, kind == Collective::kAllGather ? to : from);
  if (kind == Collective::kPointToPoint) op.name = "shift(" + what + ")";
  op.dim = dim;
  op.updates.clear();
  op.reads = {from};
  op.writes = {to};
  return op;
}

Op gather_op(Builder& b, const UnitUse& use, BufferRef gathered) {
  return collective(b, Collective::kAllGather, "weights", Stream::kData, b.unit(use).shard_group,
                    {use.state.parameter}, gathered);
}

Ops gather_ops(Builder& b, const UnitUses& units, const Ops& users) {
  Ops ops;
  const auto uses = [](const Op& op, const BufferRef& weights) {
    return op.weights == weights || std::ranges::find(op.reads, weights) != op.reads.end();
  };
  for (const UnitUse& u : units) {
    if (!u.gathered || u.sliced) continue;
    for (const BufferRef& gathered : {u.weights_forward, u.weights_backward}) {
      if (std::ranges::none_of(users, [&](const Op& op) { return uses(op, gathered); })) continue;
      Op op = gather_op(b, u, gathered);
      if (ops.empty()) op.acquire = b.gather_pool();
      ops.push_back(std::move(op));
    }
  }
  return ops;
}

namespace {

SegmentShape flat(Builder& b, SegmentKind kind, std::int64_t elements,
                  model::DType dtype = kFloat32) {
  SegmentShape s = b.shape(kind, Layout{}, 0, 0);
  s.dtype = dtype;
  s.sequences = s.tokens = 0;
  s.elements = elements;
  return s;
}

/// Shards of several micro-batches add up before they cross the replicas.
bool reduces_replicas_late(Builder& b, const UnitUse& use) {
  return use.parts && b.context().micro_batches > 1 &&
         b.program().groups[b.unit(use).replica_group].size > 1;
}

/// Where replicas talk once a step: beside what computes, or in turn with it.
Stream replica_stream(const ParameterUnit& unit) {
  return unit.strategy.grad_reduce == GradReduce::kEnd ? Stream::kCompute : Stream::kData;
}

Op reduce_owned(Builder& b, const UnitUse& use, BufferRef gradient) {
  const ParameterUnit& unit = b.unit(use);
  return all_reduce(b, "owned gradient", replica_stream(unit), unit.replica_group, gradient);
}

}  // namespace

Op zeroed(Builder& b, std::string name, BufferRef part) {
  return compute(b, std::move(name), flat(b, kZeroGradient, b.decl(part).elements()), kF, {},
                 {part});
}

Op summed(Builder& b, std::string name, BufferRef what, BufferRef to) {
  return compute(b, std::move(name), flat(b, kAccumulate, b.decl(to).elements()), kF, {what}, {},
                 {to});
}

Ops zero_part_ops(Builder& b, const UnitUse& use) {
  if (!use.parts) return {};
  return {zeroed(b, "zero(gradient part)", use.gradient)};
}

Ops zero_gradient_ops(Builder& b, const UnitState& state) {
  if (!state.gradient.valid()) return {};
  const BufferRef gradient{state.gradient};
  return {compute(b, "zero(gradient)", flat(b, kZeroGradient, b.decl(gradient).elements()), kF, {},
                  {}, {gradient})};
}

Ops sync_ops(Builder& b, const UnitUse& use, std::int64_t replicated_elements) {
  const ParameterUnit& unit = b.unit(use);
  if (unit.frozen) return {};
  Ops ops;
  if (replicated_elements > 0) {
    ops.push_back(
        all_reduce(b, "replicated gradients", Stream::kTensor, unit.tensor_group, use.gradient));
    ops.back().slice_elements = replicated_elements;
    ops.back().bytes = replicated_elements * model::element_bytes(kFloat32);
  }
  if (unit.strategy.replicas() == 1) return ops;
  const std::int64_t owned = unit.padded / b.program().groups[unit.shard_group].size;
  const bool replicated = b.program().groups[unit.replica_group].size > 1;
  if (use.parts) {
    const BufferRef reduced{b.buffer({.name = "reduced " + b.decl(use.gradient).name,
                                      .category = BufferCategory::kGradient,
                                      .shape = {owned},
                                      .unit = use.state.unit})};
    ops.push_back(collective(b, Collective::kReduceScatter, "gradient", Stream::kData,
                             unit.shard_group, use.gradient, reduced));
    ops.back().frees = {use.gradient};
    if (replicated && !reduces_replicas_late(b, use)) ops.push_back(reduce_owned(b, use, reduced));
    ops.push_back(compute(b, "accumulate(gradient)", flat(b, kAccumulate, owned), kF, {reduced}, {},
                          {{use.state.gradient}}));
    ops.back().stream = Stream::kData;
    ops.back().frees = {reduced};
  } else if (effective_zero(unit.strategy) == 0) {
    ops.push_back(all_reduce(b, "gradient", replica_stream(unit), unit.data_group, use.gradient));
  } else {
    ops.push_back(collective(b, Collective::kReduceScatter, "gradient", replica_stream(unit),
                             unit.shard_group, use.gradient));
    if (replicated) {
      ops.push_back(reduce_owned(b, use, use.gradient));
      ops.back().slice_group = unit.shard_group;
      ops.back().bytes = owned * model::element_bytes(kFloat32);
    }
  }
  return ops;
}

Ops update_ops(Builder& b, const UnitUse& use) {
  const ParameterUnit& unit = b.unit(use);
  if (unit.frozen) return {};
  BufferRefs updates = use.state.persistent();
  const BufferRef gradient = updates[1];
  updates.erase(updates.begin() + 1);
  const std::int64_t shard = b.decl(updates[1]).elements();
  Ops ops;
  if (use.tied)
    ops.push_back(all_reduce(b, "tied", replica_stream(unit),
                             b.group("tied", 2, (b.context().stages - 1) * unit.strategy.ranks()),
                             gradient));
  if (reduces_replicas_late(b, use)) ops.push_back(reduce_owned(b, use, gradient));
  SegmentShape adamw = flat(b, kAdamW, shard, b.dtype());
  if (use.state.copies.valid()) adamw.format = b.format();
  ops.push_back(compute(b, "adamw", adamw, kF, {gradient}, {}, std::move(updates)));
  ops.back().unit = use.state.unit;
  return ops;
}

Ops gather_updated_ops(Builder& b, const UnitUse& use) {
  const ParameterUnit& unit = b.unit(use);
  const int zero = effective_zero(unit.strategy);
  if (unit.frozen || zero == 0 || zero == 3) return {};
  return {collective(b, Collective::kAllGather, "parameters", replica_stream(unit),
                     unit.shard_group, {use.state.parameter})};
}

}  // namespace orrery::plan
