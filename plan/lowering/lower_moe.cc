#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

namespace {

/// Strategy of the experts' unit: their replicas are every ep-th rank of the data group.
LayerStrategy expert_strategy(LayerStrategy s) {
  ORRERY_CHECK(s.replicas() % s.ep == 0);
  s.dp = s.replicas() / s.ep;
  s.cp = 1;
  return s;
}

Parameter expert_parameter(const char* name, std::vector<std::int64_t> shape, int shard_dim,
                           const LayerStrategy& s, Init init) {
  Parameter p;
  p.name = std::string("blocks.{layer}.experts.") + name;
  p.shape = p.local_shape = std::move(shape);
  p.shard_dim = shard_dim;
  p.expert_dim = 0;
  p.local_shape[0] /= s.ep;
  p.local_shape[static_cast<std::size_t>(shard_dim)] /= s.tp;
  p.init = init;
  return p;
}

/// Gates of all experts, then inputs, so that the fused product has one weight tensor.
std::vector<Parameter> expert_parameters(const model::ModelSpec& m, const LayerStrategy& s) {
  std::vector<Parameter> ps;
  if (m.gated_mlp)
    ps.push_back(
        expert_parameter("gate.weight", {m.experts, m.ffn, m.hidden}, 1, s, Init::kNormal));
  ps.push_back(expert_parameter("in.weight", {m.experts, m.ffn, m.hidden}, 1, s, Init::kNormal));
  ps.push_back(
      expert_parameter("out.weight", {m.experts, m.hidden, m.ffn}, 2, s, Init::kNormalScaled));
  return ps;
}

}  // namespace

UnitUse expert_use(Builder& b, const LayerStrategy& strategy) {
  return b.use(b.unit("experts", expert_parameters(b.model(), strategy), expert_strategy(strategy),
                      Scope::kLayer),
               "block");
}

ExpertMlp::ExpertMlp(Builder& b, const LayerStrategy& strategy, const UnitUse& block,
                     const UnitUse& experts)
    : b_(b),
      m_(b.model()),
      s_(strategy),
      l_(strategy),
      full_(strategy),
      block_(block),
      use_(experts) {
  ORRERY_CHECK(m_.experts > 0 && !m_.mlp_bias && m_.experts % s_.ep == 0,
               "{} experts over {} ranks", m_.experts, s_.ep);
  full_.sequence_parallel = false;
  tensor_ = b_.tensor_group(l_);
  expert_ = b_.group("expert", s_.ep, l_.token_stride());
  const std::int64_t bs = b_.sequences(full_), s = b_.tokens(full_),
                     gates = m_.experts_per_token + (gated_shared() ? 1 : 0);
  capacity_ = m_.expert_capacity(s);
  rows_ = bs * m_.experts * capacity_;
  const auto tokens = [&](const char* name, const Layout& l, std::int64_t columns,
                          model::DType type) {
    return b_.local(name, l, {b_.sequences(l), b_.tokens(l), columns}, type);
  };
  gates_ = tokens("gates", l_, gates, model::DType::kFloat32);
  choice_ = tokens("choice", l_, m_.experts_per_token, model::DType::kInt64);
  scores_ = tokens("scores", l_, m_.experts, model::DType::kFloat32);
  whole_gates_ = l_.sequence_parallel ? whole("gates", gates, model::DType::kFloat32) : gates_;
  whole_choice_ =
      l_.sequence_parallel ? whole("choice", m_.experts_per_token, model::DType::kInt64) : choice_;
  slots_ = whole("slots", m_.experts_per_token, model::DType::kInt64);
  rows_in_ = padded("rows", m_.hidden);
  u_ = padded("expert u", m_.mlp_in_features() / s_.tp);
  g_ = padded("expert g", m_.ffn / s_.tp);
  rows_out_ = padded("rows out", m_.hidden);
}

BufferRef ExpertMlp::whole(const std::string& name, std::int64_t columns, model::DType type) {
  return b_.local(name + " whole", l_, {b_.sequences(full_), b_.tokens(full_), columns}, type);
}
BufferRef ExpertMlp::padded(const std::string& name, std::int64_t columns) {
  return b_.local(name, l_, {rows_, columns}, b_.dtype());
}

SegmentShape ExpertMlp::token_shape(SegmentKind kind, const Layout& l) const {
  SegmentShape s = b_.shape(kind, l, m_.hidden, m_.hidden);
  s.experts = m_.experts;
  s.top_k = m_.experts_per_token;
  s.capacity = kind == SegmentKind::kRouter ? 0 : capacity_;
  s.shared = gated_shared();
  return s;
}

/// After the exchange a rank has as many rows as before: those of all ep ranks for its own experts.
SegmentShape ExpertMlp::row_shape(SegmentKind kind, std::int64_t in, std::int64_t out) const {
  SegmentShape s = b_.shape(kind, full_, in, out);
  s.tokens = m_.experts * capacity_;
  if (kind != SegmentKind::kActivation) s.experts = m_.experts / s_.ep;
  return s;
}

BufferRef ExpertMlp::gathered(const char* what, BufferRef in, BufferRef out, std::vector<Op>& ops) {
  if (!l_.sequence_parallel) return in;
  ops.push_back(all_gather(b_, std::string("all_gather(") + what + ")", Stream::kTensor, tensor_,
                           in, out, 1));
  return out;
}

/// Partial sums over the tensor group to whole values in `out`: in place, or with this rank's
/// tokens alone.
void ExpertMlp::reduced(const char* what, BufferRef partial, BufferRef out, std::vector<Op>& ops) {
  if (s_.tp == 1) return;
  if (l_.sequence_parallel)
    ops.push_back(reduce_scatter(b_, std::string("reduce_scatter(") + what + ")", Stream::kTensor,
                                 tensor_, partial, out, 1));
  else
    ops.push_back(
        all_reduce(b_, std::string("all_reduce(") + what + ")", Stream::kTensor, tensor_, out));
}

BufferRef ExpertMlp::exchanged(const char* what, BufferRef in, BufferRef out,
                               std::vector<Op>& ops) {
  if (s_.ep == 1) return in;
  Op op;
  op.kind = OpKind::kCollective;
  op.name = std::string("all_to_all(") + what + ")";
  op.stream = Stream::kTensor;
  op.collective = Collective::kAllToAll;
  op.group = expert_;
  op.bytes = b_.program().buffers[in.buffer].bytes();
  op.reads = {in};
  op.writes = {out};
  ops.push_back(std::move(op));
  return out;
}

std::vector<ParameterView> ExpertMlp::router_views() const {
  const ParameterUnit& unit = b_.program().units[block_.state.unit];
  std::vector<ParameterView> views{view_of(unit, {"router.weight"})};
  if (gated_shared()) views.push_back(view_of(unit, {"shared_gate.weight"}));
  return views;
}

std::vector<ParameterView> ExpertMlp::in_views(const UnitUse& use, const char* gate,
                                               const char* in) const {
  const ParameterUnit& unit = b_.program().units[use.state.unit];
  return {m_.gated_mlp ? view_of(unit, {gate, in}) : view_of(unit, {in})};
}

std::vector<ParameterView> ExpertMlp::out_view(const UnitUse& use, const char* out) const {
  return {view_of(b_.program().units[use.state.unit], {out})};
}

/// The shared expert is a dense MLP of the block's unit; it runs while the rows travel.
BufferRef ExpertMlp::shared_forward(BufferRef c, std::vector<Op>& ops) {
  const std::int64_t in = m_.gated_mlp ? 2 * m_.shared_ffn / s_.tp : m_.shared_ffn / s_.tp,
                     f = m_.shared_ffn / s_.tp;
  const BufferRef u = whole("shared u", in, b_.dtype()), g = whole("shared g", f, b_.dtype()),
                  z = whole("shared z", m_.hidden, b_.dtype());
  ops.push_back(
      with_weights(compute(b_, "shared_in", b_.shape(SegmentKind::kMlpIn, full_, m_.hidden, in),
                           Phase::kF, {c}, {u}),
                   block_, in_views(block_, "mlp.gate.weight", "mlp.in.weight"), false));
  ops.push_back(compute(b_, "shared_activation", b_.shape(SegmentKind::kActivation, full_, in, f),
                        Phase::kF, {u}, {g}));
  ops.push_back(
      with_weights(compute(b_, "shared_out", b_.shape(SegmentKind::kMlpOut, full_, f, m_.hidden),
                           Phase::kF, {g}, {z}),
                   block_, out_view(block_, "mlp.out.weight"), false));
  return z;
}

void ExpertMlp::shared_backward(BufferRef dz, BufferRef c, BufferRef dc, std::vector<Op>& ops) {
  const std::int64_t in = m_.gated_mlp ? 2 * m_.shared_ffn / s_.tp : m_.shared_ffn / s_.tp,
                     f = m_.shared_ffn / s_.tp;
  const BufferRef u = whole("shared u", in, b_.dtype()), g = whole("shared g", f, b_.dtype());
  const BufferRef du = whole("shared du", in, b_.dtype()), dg = whole("shared dg", f, b_.dtype());
  const BufferRef part = whole("shared dc", m_.hidden, b_.dtype());
  ops.push_back(
      with_weights(compute(b_, "shared_out", b_.shape(SegmentKind::kMlpOut, full_, f, m_.hidden),
                           Phase::kBG, {dz, g}, {dg}),
                   block_, out_view(block_, "mlp.out.weight"), true));
  ops.push_back(compute(b_, "shared_activation", b_.shape(SegmentKind::kActivation, full_, in, f),
                        Phase::kB, {dg, u}, {du}));
  ops.push_back(
      with_weights(compute(b_, "shared_in", b_.shape(SegmentKind::kMlpIn, full_, m_.hidden, in),
                           Phase::kBG, {du, c}, {part}),
                   block_, in_views(block_, "mlp.gate.weight", "mlp.in.weight"), true));
  add("add(shared dc)", part, dc, ops);
}

void ExpertMlp::add(const char* name, BufferRef what, BufferRef to, std::vector<Op>& ops) {
  SegmentShape s = b_.shape(SegmentKind::kAccumulate, l_, 0, 0);
  s.elements = b_.program().buffers[to.buffer].elements();
  ops.push_back(compute(b_, name, s, Phase::kF, {what}, {}, {to}));
}

void ExpertMlp::forward(BufferRef in, BufferRef out, std::vector<Op>& ops) {
  ops.push_back(with_weights(compute(b_, "router", token_shape(SegmentKind::kRouter, l_), Phase::kF,
                                     {in}, {gates_, choice_, scores_}),
                             block_, router_views(), false));
  const BufferRef c = gathered("c", in, whole("c", m_.hidden, b_.dtype()), ops);
  gathered("gates", gates_, whole_gates_, ops);
  gathered("choice", choice_, whole_choice_, ops);
  const BufferRef sent = s_.ep > 1 ? padded("rows sent", m_.hidden) : rows_in_;
  const BufferRef made = s_.ep > 1 ? padded("rows made", m_.hidden) : rows_out_;
  ops.push_back(compute(b_, "dispatch", token_shape(SegmentKind::kDispatch, full_), Phase::kF,
                        {c, whole_choice_}, {sent, slots_}));
  exchanged("rows", sent, rows_in_, ops);
  std::vector<BufferRef> reads{rows_out_, whole_gates_, slots_};
  BufferRef shared;
  if (m_.shared_ffn > 0) shared = shared_forward(c, ops);
  if (gated_shared()) reads.push_back(shared);
  const std::int64_t wide = m_.mlp_in_features() / s_.tp, f = m_.ffn / s_.tp;
  ops.push_back(
      with_weights(compute(b_, "expert_in", row_shape(SegmentKind::kExpertIn, m_.hidden, wide),
                           Phase::kF, {rows_in_}, {u_}),
                   use_, in_views(use_, "gate.weight", "in.weight"), false));
  ops.push_back(compute(b_, "expert_activation", row_shape(SegmentKind::kActivation, wide, f),
                        Phase::kF, {u_}, {g_}));
  ops.push_back(
      with_weights(compute(b_, "expert_out", row_shape(SegmentKind::kExpertOut, f, m_.hidden),
                           Phase::kF, {g_}, {made}),
                   use_, out_view(use_, "out.weight"), false));
  exchanged("rows out", made, rows_out_, ops);
  const BufferRef part = l_.sequence_parallel ? whole("q", m_.hidden, b_.dtype()) : out;
  ops.push_back(compute(b_, "combine", token_shape(SegmentKind::kCombine, full_), Phase::kF,
                        std::move(reads), {part}));
  if (m_.shared_ffn > 0 && !gated_shared()) add("add(shared z)", shared, part, ops);
  reduced("q", part, out, ops);
}

void ExpertMlp::backward(BufferRef d, BufferRef in, BufferRef out, std::vector<Op>& ops) {
  const bool shared = m_.shared_ffn > 0, gated = gated_shared(), sp = l_.sequence_parallel;
  const std::int64_t columns = m_.experts_per_token + (gated ? 1 : 0);
  const BufferRef dz = gathered("dz", d, whole("dz", m_.hidden, b_.dtype()), ops);
  const BufferRef dgates =
      b_.local("dgates", l_, {b_.sequences(l_), b_.tokens(l_), columns}, model::DType::kFloat32);
  const BufferRef whole_dgates = sp ? whole("dgates", columns, model::DType::kFloat32) : dgates;
  const BufferRef home = padded("d rows out", m_.hidden),
                  away = s_.ep > 1 ? padded("d rows made", m_.hidden) : home;
  std::vector<BufferRef> reads{dz, rows_out_, whole_gates_, slots_}, writes{home, whole_dgates};
  if (gated)
    reads.push_back(whole("shared z", m_.hidden, b_.dtype())),
        writes.push_back(whole("shared dz", m_.hidden, b_.dtype()));
  ops.push_back(compute(b_, "combine", token_shape(SegmentKind::kCombine, full_), Phase::kB,
                        std::move(reads), std::move(writes)));
  reduced("dgates", whole_dgates, dgates, ops);
  exchanged("d rows out", home, away, ops);
  const std::int64_t wide = m_.mlp_in_features() / s_.tp, f = m_.ffn / s_.tp;
  const BufferRef dg = padded("expert dg", f), du = padded("expert du", wide);
  const BufferRef made = padded("d rows", m_.hidden),
                  back = s_.ep > 1 ? padded("d rows sent", m_.hidden) : made;
  ops.push_back(
      with_weights(compute(b_, "expert_out", row_shape(SegmentKind::kExpertOut, f, m_.hidden),
                           Phase::kBG, {away, g_}, {dg}),
                   use_, out_view(use_, "out.weight"), true));
  ops.push_back(compute(b_, "expert_activation", row_shape(SegmentKind::kActivation, wide, f),
                        Phase::kB, {dg, u_}, {du}));
  ops.push_back(
      with_weights(compute(b_, "expert_in", row_shape(SegmentKind::kExpertIn, m_.hidden, wide),
                           Phase::kBG, {du, rows_in_}, {made}),
                   use_, in_views(use_, "gate.weight", "in.weight"), true));
  exchanged("d rows", made, back, ops);
  const BufferRef part = sp ? whole("dc", m_.hidden, b_.dtype()) : out;
  ops.push_back(compute(b_, "dispatch", token_shape(SegmentKind::kDispatch, full_), Phase::kB,
                        {back, slots_}, {part}));
  if (shared)
    shared_backward(gated ? whole("shared dz", m_.hidden, b_.dtype()) : dz,
                    sp ? whole("c", m_.hidden, b_.dtype()) : in, part, ops);
  reduced("dc", part, out, ops);
  const BufferRef routed =
      b_.local("router dc", l_, {b_.sequences(l_), b_.tokens(l_), m_.hidden}, b_.dtype());
  ops.push_back(with_weights(compute(b_, "router", token_shape(SegmentKind::kRouter, l_),
                                     Phase::kBG, {dgates, in, gates_, choice_, scores_}, {routed}),
                             block_, router_views(), true));
  add("add(router dc)", routed, out, ops);
}

}  // namespace orrery::plan
