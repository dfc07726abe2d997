#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

UnitUse expert_use(Builder& b, const LayerStrategy& s) {
  const ModelSpec& m = b.model();
  // Gates of all experts, then inputs, so that the fused product has one weight tensor.
  Parameters ps;
  const auto add = [&](const char* name, Extents shape, std::size_t shard_dim, Init init,
                       bool matrix = true) {
    Parameter& p = ps.emplace_back();
    p.name = std::string("blocks.{layer}.experts.") + name;
    p.shape = p.local_shape = std::move(shape);
    p.shard_dim = as_int(shard_dim);
    p.expert_dim = 0;
    p.local_shape[0] /= s.ep;
    p.local_shape[shard_dim] /= s.expert_tensor_degree();
    p.init = init;
    p.quantised = p.decay = matrix;
  };
  if (m.gated_mlp) add("gate.weight", {m.experts, m.ffn, m.hidden}, 1, kNormal);
  add("in.weight", {m.experts, m.ffn, m.hidden}, 1, kNormal);
  add("out.weight", {m.experts, m.hidden, m.ffn}, 2, kNormalScaled);
  // An output's bias is added by the rank that holds it, to its part of the sum.
  if (m.expert_bias) {
    if (m.gated_mlp) add("gate.bias", {m.experts, m.ffn}, 1, kZero, false);
    add("in.bias", {m.experts, m.ffn}, 1, kZero, false);
    add("out.bias", {m.experts, m.hidden}, 1, kZero, false);
  }
  ORRERY_CHECK(s.expert_ranks() % s.ep == 0);
  return b.use(b.unit("experts", std::move(ps), s.of_experts(), Scope::kLayer), "block");
}

ExpertMlp::ExpertMlp(Builder& b, const LayerStrategy& strategy, const UnitUse& block,
                     const UnitUse& experts)
    : TensorPart(b, strategy),
      block_(block),
      use_(experts),
      sent_(strategy.folded ? l_ : full_),
      etp_(strategy.expert_tensor_degree()) {
  ORRERY_CHECK(m_.experts > 0 && !m_.mlp_bias && m_.experts % s_.ep == 0,
               "{} experts over {} ranks", m_.experts, s_.ep);
  ORRERY_CHECK(
      m_.experts % m_.routing.groups == 0 &&
          m_.experts / m_.routing.groups * m_.routing.groups_per_token >= m_.experts_per_token,
      "groups of experts that hold no choices");
  expert_ = b_.group("expert", s_.ep, s_.folded ? 1 : l_.token_stride());
  const std::int64_t bs = b_.sequences(l_), gates = m_.experts_per_token + (gated_shared() ? 1 : 0);
  capacity_ = m_.expert_capacity(b_.tokens(sent_));
  rows_ = bs * m_.experts * capacity_;
  const auto tokens = [&](const char* name, std::int64_t columns, model::DType type) {
    return b_.local(name, l_, {bs, b_.tokens(l_), columns}, type);
  };
  gates_ = tokens("gates", gates, kFloat32);
  choice_ = tokens("choice", m_.experts_per_token, kInt64);
  scores_ = tokens("scores", m_.experts, kFloat32);
  whole_gates_ = all("gates", gates_);
  whole_choice_ = all("choice", choice_);
  slots_ =
      b_.local(of_sent("slots whole"), l_, {bs, b_.tokens(sent_), m_.experts_per_token}, kInt64);
  rows_in_ = padded("rows", m_.hidden);
  u_ = padded("expert u", m_.mlp_in_features() / etp_);
  g_ = b_.local(of_sent("expert g"), l_, {rows_, m_.ffn / etp_}, b_.operand_dtype());
  rows_out_ = padded("rows out", m_.hidden);
}

BufferRef ExpertMlp::padded(const std::string& name, std::int64_t columns) {
  return b_.local(of_sent(name), l_, {rows_, columns}, b_.dtype());
}

std::string ExpertMlp::of_sent(const std::string& name) const {
  return s_.folded ? "folded " + name : name;
}

SegmentShape ExpertMlp::token_shape(SegmentKind kind, const Layout& l) const {
  SegmentShape s = b_.shape(kind, l, m_.hidden, m_.hidden);
  s.experts = m_.experts;
  s.top_k = m_.experts_per_token;
  s.capacity = kind == kRouter ? 0 : capacity_;
  s.shared = gated_shared();
  s.bias = kind == kRouter && m_.expert_bias;
  if (kind == kRouter) s.routing = m_.routing;
  return s;
}

void ExpertMlp::exchanged(const char* what, BufferRef in, BufferRef out, Ops& ops) {
  if (s_.ep == 1) return;
  ops.push_back(collective(b_, Collective::kAllToAll, what, Stream::kTensor, expert_, in, out));
  ops.back().segment = b_.segment(token_shape(kDispatch, sent_));
}

Views ExpertMlp::router_views() const {
  Views views{b_.view(block_, {"router.weight"})};
  if (m_.expert_bias) views.push_back(b_.view(block_, {"router.bias"}));
  if (gated_shared()) views.push_back(b_.view(block_, {"shared_gate.weight"}));
  return views;
}

ExpertMlp::Mlp ExpertMlp::mlp(const char* name, const UnitUse& use, std::int64_t f) const {
  const std::int64_t wide = m_.gated_mlp ? 2 * f : f;
  SegmentShape activation = b_.shape(kActivation, full_, wide, f);
  activation.format = b_.format();
  return {
      name,
      use,
      b_.shape(kMlpIn, full_, m_.hidden, wide),
      activation,
      b_.shape(kMlpOut, full_, f, m_.hidden),
      {m_.gated_mlp ? b_.view(use, {".gate.weight", ".in.weight"}) : b_.view(use, {".in.weight"})},
      {b_.view(use, {".out.weight"})}};
}

/// After the exchange a rank has as many rows as before: those of all ep ranks for its own experts.
ExpertMlp::Mlp ExpertMlp::expert() const {
  Mlp p = mlp("expert", use_, m_.ffn / etp_);
  p.in.kind = kExpertIn;
  p.out.kind = kExpertOut;
  p.in.tokens = p.activation.tokens = p.out.tokens = m_.experts * capacity_;
  p.in.experts = p.out.experts = m_.experts / s_.ep;
  p.in.capacity = p.out.capacity = capacity_;
  if (m_.expert_bias) {
    p.in.bias = p.out.bias = true;
    p.out.parts = etp_;
    p.in_views.push_back(m_.gated_mlp ? b_.view(use_, {".gate.bias", ".in.bias"})
                                      : b_.view(use_, {".in.bias"}));
    p.out_view.push_back(b_.view(use_, {".out.bias"}));
  }
  return p;
}

/// A dense MLP of the block's unit; it runs while the rows travel.
ExpertMlp::Mlp ExpertMlp::shared() const { return mlp("shared", block_, m_.shared_ffn / s_.tp); }

Op ExpertMlp::product(const Mlp& p, bool in, Phase phase, BufferRefs reads, BufferRef to) {
  SegmentShape s = in ? p.in : p.out;
  b_.quantise(s, reads.back(), p.use);
  Op op = compute(b_, p.name + (in ? "_in" : "_out"), s, phase, std::move(reads), {to});
  return with_weights(std::move(op), p.use, in ? p.in_views : p.out_view);
}

void ExpertMlp::run(const Mlp& p, BufferRef c, BufferRef u, BufferRef g, BufferRef z, Ops& ops) {
  ops.push_back(product(p, true, kF, {c}, u));
  ops.push_back(compute(b_, p.name + "_activation", p.activation, kF, {u}, {g}));
  ops.push_back(product(p, false, kF, {g}, z));
}

void ExpertMlp::run_backward(const Mlp& p, BufferRef dz, BufferRef g, BufferRef dg, BufferRef u,
                             BufferRef du, BufferRef c, BufferRef dc, Ops& ops) {
  ops.push_back(product(p, false, kBG, {dz, g}, dg));
  ops.push_back(compute(b_, p.name + "_activation", p.activation, kB, {dg, u}, {du}));
  ops.push_back(product(p, true, kBG, {du, c}, dc));
}

BufferRef ExpertMlp::shared_buffer(const char* name, std::int64_t columns) {
  return wide(fmt::format("shared {} whole", name), columns);
}

BufferRef ExpertMlp::shared_operand(std::int64_t columns) {
  return wide("shared g whole", columns, b_.operand_dtype());
}

BufferRef ExpertMlp::shared_forward(BufferRef c, Ops& ops) {
  const Mlp p = shared();
  const BufferRef u = shared_buffer("u", p.in.out), g = shared_operand(p.out.in),
                  z = shared_buffer("z", m_.hidden);
  run(p, c, u, g, z, ops);
  if (!s_.folded) return z;
  reduced("shared z", own_shared("shared z"), ops);
  return own_shared("shared z");
}

void ExpertMlp::shared_backward(BufferRef dz, BufferRef c, BufferRef dc, Ops& ops) {
  const Mlp p = shared();
  const BufferRef u = shared_buffer("u", p.in.out), g = shared_operand(p.out.in);
  const BufferRef du = shared_buffer("du", p.in.out), dg = shared_buffer("dg", p.out.in);
  const BufferRef part = shared_buffer("dc", m_.hidden);
  run_backward(p, dz, g, dg, u, du, c, part, ops);
  if (s_.folded) reduced("shared dc", own_shared("shared dc"), ops);
  ops.push_back(sum(b_, l_, "add(shared dc)", s_.folded ? own_shared("shared dc") : part, dc));
}

void ExpertMlp::forward(BufferRef in, BufferRef out, Ops& ops) {
  ops.push_back(with_weights(
      compute(b_, "router", token_shape(kRouter, l_), kF, {in}, {gates_, choice_, scores_}), block_,
      router_views()));
  wide("c whole", m_.hidden);  // also where tokens are not split: Programs keep their fingerprints
  const bool shares = m_.shared_ffn > 0;
  const BufferRef c = !s_.folded || shares ? gathered("c", in, ops) : in;
  if (!s_.folded) {
    gathered("gates", gates_, ops);
    gathered("choice", choice_, ops);
  }
  const BufferRef sent = s_.ep > 1 ? padded("rows sent", m_.hidden) : rows_in_;
  const BufferRef made = s_.ep > 1 ? padded("rows made", m_.hidden) : rows_out_;
  ops.push_back(compute(b_, "dispatch", token_shape(kDispatch, sent_), kF,
                        {s_.folded ? in : c, whole_choice_}, {sent, slots_}));
  exchanged("rows", sent, rows_in_, ops);
  BufferRefs reads{rows_out_, whole_gates_, slots_};
  BufferRef shared;
  if (shares) shared = shared_forward(c, ops);
  if (gated_shared()) reads.push_back(shared);
  run(expert(), rows_in_, u_, g_, made, ops);
  exchanged("rows out", made, rows_out_, ops);
  const BufferRef part = all("q", out);
  ops.push_back(compute(b_, "combine", token_shape(kCombine, sent_), kF, std::move(reads), {part}));
  if (shares && !gated_shared()) ops.push_back(sum(b_, l_, "add(shared z)", shared, part));
  if (!s_.folded) reduced("q", out, ops);
}

void ExpertMlp::backward(BufferRef d, BufferRef in, BufferRef out, Ops& ops) {
  const bool gated = gated_shared(), shares = m_.shared_ffn > 0;
  wide("dz whole", m_.hidden);
  const BufferRef dz = !s_.folded || (shares && !gated) ? gathered("dz", d, ops) : d;
  const BufferRef dgates = b_.local("dgates", l_, b_.decl(gates_).shape, kFloat32);
  const BufferRef whole_dgates = all("dgates", dgates);
  const BufferRef home = padded("d rows out", m_.hidden),
                  away = s_.ep > 1 ? padded("d rows made", m_.hidden) : home;
  BufferRefs reads{s_.folded ? d : dz, rows_out_, whole_gates_, slots_}, writes{home, whole_dgates};
  if (gated) {
    reads.push_back(s_.folded ? own_shared("shared z") : shared_buffer("z", m_.hidden));
    writes.push_back(s_.folded ? own_shared("shared dz") : shared_buffer("dz", m_.hidden));
  }
  ops.push_back(compute(b_, "combine", token_shape(kCombine, sent_), kB, std::move(reads), writes));
  if (!s_.folded) reduced("dgates", dgates, ops);
  exchanged("d rows out", home, away, ops);
  const Mlp experts = expert();
  const BufferRef dg = padded("expert dg", experts.out.in),
                  du = padded("expert du", experts.in.out);
  const BufferRef made = padded("d rows", m_.hidden),
                  back = s_.ep > 1 ? padded("d rows sent", m_.hidden) : made;
  run_backward(experts, away, g_, dg, u_, du, rows_in_, made, ops);
  exchanged("d rows", made, back, ops);
  const BufferRef part = all("dc", out);
  ops.push_back(compute(b_, "dispatch", token_shape(kDispatch, sent_), kB, {back, slots_}, {part}));
  if (shares) {
    BufferRef shared_d = gated ? writes.back() : dz;
    if (gated && s_.folded) shared_d = gathered("shared dz", shared_d, ops);
    shared_backward(shared_d, whole("c", in), part, ops);
  }
  if (!s_.folded) reduced("dc", out, ops);
  const BufferRef routed = shard("router dc");
  ops.push_back(with_weights(compute(b_, "router", token_shape(kRouter, l_), kBG,
                                     {dgates, in, gates_, choice_, scores_}, {routed}),
                             block_, router_views()));
  ops.push_back(sum(b_, l_, "add(router dc)", routed, out));
}

}  // namespace orrery::plan
