#include "plan/lowering/builder.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

std::string Layout::tag() const {
  // many a second: fmt::format takes five times as long
  const std::string context = cp > 1 ? " cp" + std::to_string(cp) : "";
  return "tp" + std::to_string(tp) + (strided ? " strided" : "") + context + " dp" +
         std::to_string(dp) + (sequence_parallel ? " sp" : "");
}

std::string strategy_tag(const LayerStrategy& s) {
  std::string tag = Layout(s).tag();
  const auto add = [&](std::string_view word, auto... number) {
    tag += word;
    (tag.append(std::to_string(number)), ...);
  };
  if (s.cp > 1) add(" "), add(to_string(s.context));
  if (s.ep > 1) add(" ep", s.ep);
  add(" z", s.zero);
  if (s.operators != ShardedOperators::kAll) add(" "), add(to_string(s.operators));
  if (s.slices > 1) add(" slices", s.slices);
  if (s.shard > 0) add(" shard", s.shard);
  if (s.grad_reduce == GradReduce::kMicroBatch) add(" mb");
  if (s.recompute != Recompute::kNone)
    add(s.recompute == Recompute::kFull ? " full" : " selective");
  return tag;
}

Builder::Builder(Program& program, const model::ModelSpec& model, const LayerContext& context)
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
  return kind_ == 0 ? "" : model_.runs[static_cast<std::size_t>(kind_)].name + " ";
}

BufferId Builder::buffer(BufferDecl decl) {
  const auto [place, fresh] = buffers_.try_emplace(decl.name);
  if (fresh) return place->second = program_.buffers.push_back(std::move(decl));
  ORRERY_CHECK(program_.buffers[place->second].shape == decl.shape,
               "buffer '{}' declared twice with different shapes", decl.name);
  return place->second;
}

BufferRef Builder::local(const std::string& name, const Layout& layout,
                         std::vector<std::int64_t> shape, model::DType dtype) {
  BufferDecl d;
  d.name = prefix() + name + " [" + layout.tag() + "]";
  d.dtype = dtype;
  d.shape = std::move(shape);
  return {buffer(std::move(d)), 0};
}

GroupId Builder::group(const std::string& name, int size, int stride) {
  const Group wanted{name, size, stride};
  for (std::uint32_t i = 0; i < program_.groups.size(); ++i)
    if (program_.groups[GroupId(i)] == wanted) return GroupId(i);
  return program_.groups.push_back(wanted);
}

SegmentId Builder::segment(const SegmentShape& shape) {
  for (std::uint32_t i = 0; i < program_.segments.size(); ++i)
    if (program_.segments[SegmentId(i)] == shape) return SegmentId(i);
  return program_.segments.push_back(shape);
}

PoolId Builder::pool(const std::string& name) {
  for (std::uint32_t i = 0; i < program_.pools.size(); ++i)
    if (program_.pools[PoolId(i)].name == name) return PoolId(i);
  return program_.pools.push_back({name, context_.prefetch_depth + 1});
}

BufferRef Builder::stream_buffer(const char* name, const Layout& l, std::int64_t hidden,
                                 std::int64_t token_share, int layer_offset) {
  const bool first = hidden == model_.hidden && token_share == model_.token_share;
  BufferDecl d;
  d.name = first ? name : fmt::format("{} of {}", name, hidden);
  d.name += " [" + l.tag() + "]";
  d.dtype = dtype();
  d.shape = {sequences(l), tokens(l) * model().token_share / token_share, hidden};
  return {buffer(std::move(d)), layer_offset};
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
  BufferDecl d;
  d.name = layout_number == 0 ? name : fmt::format("{} {}", name, layout_number + 1);
  d.name += " [" + l.tag() + "]";
  d.dtype = dtype();
  d.shape = {sequences(l), tokens(l), model().hidden};
  d.scope = Scope::kMicroBatch;
  return {buffer(std::move(d)), 0};
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

UnitState Builder::unit(const std::string& name, std::vector<Parameter> parameters,
                        const LayerStrategy& layer_strategy, Scope scope) {
  LayerStrategy strategy = layer_strategy;
  strategy.recompute = Recompute::kNone;
  const std::string key =
      (scope == Scope::kLayer ? prefix() : "") + name + " [" + strategy_tag(strategy) + "]";
  if (const auto found = units_.find(key); found != units_.end()) return found->second;
  ParameterUnit u;
  u.name = key;
  u.strategy = strategy;
  for (Parameter& p : parameters) {
    p.offset = u.elements;
    u.elements += std::accumulate(p.local_shape.begin(), p.local_shape.end(), std::int64_t{1},
                                  std::multiplies<>());
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
  const std::int64_t padded = u.padded, shard = zero == 0 ? padded : padded / owners;

  UnitState s;
  s.scope = scope;
  s.unit = program_.units.push_back(std::move(u));
  const auto state = [&](const char* what, BufferCategory category, model::DType type,
                         std::int64_t elements) {
    BufferDecl d;
    d.name = std::string(what) + " of " + key;
    d.category = category;
    d.dtype = type;
    d.shape = {elements};
    d.scope = scope;
    d.persistent = true;
    d.unit = s.unit;
    return buffer(std::move(d));
  };
  const bool full_gradient = zero < 2 || !reduces_parts(strategy, context_.micro_batches);
  s.parameter = state("parameter", BufferCategory::kParameter, dtype(), zero == 3 ? shard : padded);
  s.gradient = state("gradient", BufferCategory::kGradient, model::DType::kFloat32,
                     full_gradient ? padded : shard);
  s.moment1 = state("moment 1", BufferCategory::kOptimizer, model::DType::kFloat32, shard);
  s.moment2 = state("moment 2", BufferCategory::kOptimizer, model::DType::kFloat32, shard);
  s.has_master = context_.precision == model::Precision::kBFloat16;
  if (s.has_master)
    s.master = state("master", BufferCategory::kOptimizer, model::DType::kFloat32, shard);
  units_.emplace(key, s);
  return s;
}

UnitUse Builder::use(const UnitState& state, const std::string& user) {
  const ParameterUnit& u = program_.units[state.unit];
  UnitUse w;
  w.state = state;
  w.weights_forward = w.weights_backward = {state.parameter, 0};
  w.gradient = {state.gradient, 0};
  w.gathered = effective_zero(u.strategy) == 3;
  w.parts = reduces_parts(u.strategy, context_.micro_batches);
  const auto temporary = [&](const std::string& what, BufferCategory category, model::DType type) {
    BufferDecl d;
    d.name = what + " of " + u.name + " in " + user;
    d.category = category;
    d.dtype = type;
    d.shape = {u.padded};
    d.unit = state.unit;
    return BufferRef{buffer(std::move(d)), 0};
  };
  if (w.gathered) {
    w.weights_forward = temporary("gathered forward", BufferCategory::kCommunication, dtype());
    w.weights_backward = temporary("gathered backward", BufferCategory::kCommunication, dtype());
  }
  if (w.parts)
    w.gradient = temporary("gradient part", BufferCategory::kGradient, model::DType::kFloat32);
  return w;
}

TemplateId Builder::add(std::string name, std::vector<Op> ops) {
  return program_.templates.push_back({std::move(name), std::move(ops)});
}

ParameterView view_of(const ParameterUnit& unit, std::initializer_list<const char*> names) {
  ParameterView v;
  for (const char* suffix : names) {
    bool found = false;
    for (std::size_t i = 0; i < unit.parameters.size() && !found; ++i) {
      const Parameter& p = unit.parameters[i];
      if (!p.name.ends_with(suffix)) continue;
      found = true;
      if (v.parameters.empty()) {
        v.offset = p.offset;
        v.shape = p.local_shape;
      } else {
        v.shape[0] += p.local_shape[0];
      }
      v.parameters.push_back(static_cast<int>(i));
    }
    ORRERY_CHECK(found, "unit '{}' has no parameter '{}'", unit.name, suffix);
  }
  return v;
}

Op compute(Builder& b, std::string name, const SegmentShape& shape, Phase phase,
           std::vector<BufferRef> reads, std::vector<BufferRef> writes,
           std::vector<BufferRef> updates) {
  Op op;
  op.name = std::move(name);
  op.segment = b.segment(shape);
  op.phase = phase;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.updates = std::move(updates);
  return op;
}

Op with_weights(Op op, const UnitUse& use, std::vector<ParameterView> views, bool backward) {
  op.unit = use.state.unit;
  op.views = std::move(views);
  op.weights = backward ? use.weights_backward : use.weights_forward;
  if (backward) op.gradients = use.gradient;
  return op;
}

Op with_gradient(Op op, const UnitUse& use, std::vector<ParameterView> views) {
  op.unit = use.state.unit;
  op.views = std::move(views);
  op.gradients = use.gradient;
  return op;
}

namespace {
Op collective(Builder& b, std::string name, Stream stream, Collective what, GroupId group,
              BufferId whole) {
  Op op;
  op.kind = OpKind::kCollective;
  op.name = std::move(name);
  op.stream = stream;
  op.collective = what;
  op.group = group;
  op.bytes = b.program().buffers[whole].bytes();
  return op;
}
}  // namespace

Op all_reduce(Builder& b, std::string name, Stream stream, GroupId group, BufferRef buffer,
              Reduce reduce) {
  Op op = collective(b, std::move(name), stream, Collective::kAllReduce, group, buffer.buffer);
  op.reduce = reduce;
  op.updates = {buffer};
  return op;
}

Op all_gather(Builder& b, std::string name, Stream stream, GroupId group, BufferRef from,
              BufferRef to, int dim) {
  Op op = collective(b, std::move(name), stream, Collective::kAllGather, group, to.buffer);
  op.dim = dim;
  op.reads = {from};
  op.writes = {to};
  return op;
}

Op reduce_scatter(Builder& b, std::string name, Stream stream, GroupId group, BufferRef from,
                  BufferRef to, int dim) {
  Op op = collective(b, std::move(name), stream, Collective::kReduceScatter, group, from.buffer);
  op.dim = dim;
  op.reads = {from};
  op.writes = {to};
  return op;
}

Op all_to_all(Builder& b, std::string name, Stream stream, GroupId group, BufferRef from,
              BufferRef to, int dim, std::vector<std::int64_t> sections) {
  Op op = collective(b, std::move(name), stream, Collective::kAllToAll, group, from.buffer);
  op.dim = dim;
  op.sections = std::move(sections);
  op.reads = {from};
  op.writes = {to};
  return op;
}

Op ring_shift(Builder& b, std::string name, Stream stream, GroupId group, BufferRef from,
              BufferRef to) {
  Op op = collective(b, std::move(name), stream, Collective::kPointToPoint, group, from.buffer);
  op.reads = {from};
  op.writes = {to};
  return op;
}

Op gather_op(Builder& b, const UnitUse& use, BufferRef gathered) {
  const GroupId group = b.program().units[use.state.unit].shard_group;
  return all_gather(b, "all_gather(weights)", Stream::kData, group, {use.state.parameter, 0},
                    gathered, 0);
}

std::vector<Op> gather_ops(Builder& b, const std::vector<UnitUse>& units,
                           const std::vector<Op>& users) {
  std::vector<Op> ops;
  for (const UnitUse& u : units) {
    if (!u.gathered || u.sliced) continue;
    for (const BufferRef& gathered : {u.weights_forward, u.weights_backward}) {
      const auto reads = [&](const Op& op) { return op.weights == gathered; };
      if (std::ranges::none_of(users, reads)) continue;
      Op op = gather_op(b, u, gathered);
      if (ops.empty()) op.acquire = b.gather_pool();
      ops.push_back(std::move(op));
    }
  }
  return ops;
}

namespace {
SegmentShape flat(Builder& b, SegmentKind kind, model::DType dtype, std::int64_t elements) {
  SegmentShape s = b.shape(kind, Layout{}, 0, 0);
  s.dtype = dtype;
  s.sequences = s.tokens = 0;
  s.elements = elements;
  return s;
}
}  // namespace

std::vector<Op> zero_part_ops(Builder& b, const UnitUse& use) {
  if (!use.parts) return {};
  const std::int64_t n = b.program().buffers[use.gradient.buffer].elements();
  return {compute(b, "zero(gradient part)",
                  flat(b, SegmentKind::kZeroGradient, model::DType::kFloat32, n), Phase::kF, {},
                  {use.gradient})};
}

std::vector<Op> zero_gradient_ops(Builder& b, const UnitState& state) {
  const std::int64_t n = b.program().buffers[state.gradient].elements();
  return {compute(b, "zero(gradient)",
                  flat(b, SegmentKind::kZeroGradient, model::DType::kFloat32, n), Phase::kF, {}, {},
                  {{state.gradient, 0}})};
}

namespace {
/// Shards of several micro-batches add up before they cross the replicas.
bool reduces_replicas_late(Builder& b, const UnitUse& use) {
  return use.parts && b.context().micro_batches > 1 &&
         b.program().groups[b.program().units[use.state.unit].replica_group].size > 1;
}
}  // namespace

std::vector<Op> sync_ops(Builder& b, const UnitUse& use, std::int64_t replicated_elements) {
  const ParameterUnit& unit = b.program().units[use.state.unit];
  std::vector<Op> ops;
  if (replicated_elements > 0) {
    Op op = all_reduce(b, "all_reduce(replicated gradients)", Stream::kTensor, unit.tensor_group,
                       use.gradient);
    op.slice_elements = replicated_elements;
    op.bytes = replicated_elements * model::element_bytes(model::DType::kFloat32);
    ops.push_back(std::move(op));
  }
  if (unit.strategy.replicas() == 1) return ops;
  const std::int64_t owned = unit.padded / b.program().groups[unit.shard_group].size;
  const bool replicated = b.program().groups[unit.replica_group].size > 1;
  if (use.parts) {
    BufferDecl d;
    d.name = fmt::format("reduced {}", b.program().buffers[use.gradient.buffer].name);
    d.category = BufferCategory::kGradient;
    d.shape = {owned};
    d.unit = use.state.unit;
    const BufferRef reduced{b.buffer(std::move(d)), 0};
    Op scatter = reduce_scatter(b, "reduce_scatter(gradient)", Stream::kData, unit.shard_group,
                                use.gradient, reduced, 0);
    scatter.frees = {use.gradient};
    ops.push_back(std::move(scatter));
    if (replicated && !reduces_replicas_late(b, use))
      ops.push_back(
          all_reduce(b, "all_reduce(owned gradient)", Stream::kData, unit.replica_group, reduced));
    Op add = compute(b, "accumulate(gradient)",
                     flat(b, SegmentKind::kAccumulate, model::DType::kFloat32, owned), Phase::kF,
                     {reduced}, {}, {{use.state.gradient, 0}});
    add.stream = Stream::kData;
    add.frees = {reduced};
    ops.push_back(std::move(add));
  } else if (effective_zero(unit.strategy) == 0) {
    ops.push_back(
        all_reduce(b, "all_reduce(gradient)", Stream::kData, unit.data_group, use.gradient));
  } else {
    Op op = collective(b, "reduce_scatter(gradient)", Stream::kData, Collective::kReduceScatter,
                       unit.shard_group, use.gradient.buffer);
    op.updates = {use.gradient};
    ops.push_back(std::move(op));
    if (replicated) {
      Op across = all_reduce(b, "all_reduce(owned gradient)", Stream::kData, unit.replica_group,
                             use.gradient);
      across.slice_group = unit.shard_group;
      across.bytes = owned * model::element_bytes(model::DType::kFloat32);
      ops.push_back(std::move(across));
    }
  }
  return ops;
}

std::vector<Op> update_ops(Builder& b, const UnitUse& use) {
  const UnitState& state = use.state;
  const ParameterUnit& unit = b.program().units[state.unit];
  const int zero = effective_zero(unit.strategy);
  const std::int64_t shard = b.program().buffers[state.moment1].elements();
  std::vector<BufferRef> updates{{state.parameter, 0}, {state.moment1, 0}, {state.moment2, 0}};
  if (state.has_master) updates.push_back({state.master, 0});
  std::vector<Op> ops;
  if (use.tied) {
    const int stage = unit.strategy.ranks();
    ops.push_back(all_reduce(b, "all_reduce(tied)", Stream::kData,
                             b.group("tied", 2, (b.context().stages - 1) * stage),
                             {state.gradient, 0}));
  }
  if (reduces_replicas_late(b, use))
    ops.push_back(all_reduce(b, "all_reduce(owned gradient)", Stream::kData, unit.replica_group,
                             {state.gradient, 0}));
  Op step = compute(b, "adamw", flat(b, SegmentKind::kAdamW, b.dtype(), shard), Phase::kF,
                    {{state.gradient, 0}}, {}, std::move(updates));
  step.unit = state.unit;
  ops.push_back(std::move(step));
  if (zero == 1 || zero == 2) {
    Op op = collective(b, "all_gather(parameters)", Stream::kData, Collective::kAllGather,
                       unit.shard_group, state.parameter);
    op.updates = {{state.parameter, 0}};
    ops.push_back(std::move(op));
  }
  return ops;
}

}  // namespace orrery::plan
