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
  const std::int64_t width = m.expert_width();
  if (m.gated_mlp) add("gate.weight", {m.experts, m.ffn, width}, 1, kNormal);
  add("in.weight", {m.experts, m.ffn, width}, 1, kNormal);
  add("out.weight", {m.experts, width, m.ffn}, 2, kNormalScaled);
  // An output's bias is added by the rank that holds it, to its part of the sum.
  if (m.expert_bias) {
    if (m.gated_mlp) add("gate.bias", {m.experts, m.ffn}, 1, kZero, false);
    add("in.bias", {m.experts, m.ffn}, 1, kZero, false);
    add("out.bias", {m.experts, width}, 1, kZero, false);
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
      etp_(strategy.expert_tensor_degree()),
      width_(m_.expert_width()) {
  ORRERY_CHECK(m_.experts > 0 && !m_.mlp_bias && m_.experts % s_.ep == 0,
               "{} experts over {} ranks", m_.experts, s_.ep);
  ORRERY_CHECK(
      m_.experts % m_.routing.groups == 0 &&
          m_.experts / m_.routing.groups * m_.routing.groups_per_token >= m_.experts_per_token,
      "groups of experts that hold no choices");
  ORRERY_CHECK(!narrow() || !gated_shared(), "a gated shared expert beside experts in a latent");
  ORRERY_CHECK(!gates_inputs() || (!narrow() && !gated_shared()), "gates of what experts read");
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
  rows_in_ = padded("rows", width_);
  u_ = padded("expert u", m_.mlp_in_features() / etp_);
  g_ = b_.local(of_sent("expert g"), l_, {rows_, m_.ffn / etp_}, b_.operand_dtype());
  rows_out_ = padded("rows out", width_);
  if (!narrow()) return;
  latent_ = b_.tensor("latent", l_, width_);
  latent_out_ = b_.tensor("latent out", l_, width_);
}

BufferRef ExpertMlp::padded(const std::string& name, std::int64_t columns) {
  return b_.local(of_sent(name), l_, {rows_, columns}, b_.dtype());
}

std::string ExpertMlp::of_sent(const std::string& name) const {
  return s_.folded ? "folded " + name : name;
}

SegmentShape ExpertMlp::token_shape(SegmentKind kind, const Layout& l) const {
  const std::int64_t features = kind == kRouter ? m_.hidden : width_;
  SegmentShape s = b_.shape(kind, l, features, features);
  s.experts = m_.experts;
  s.top_k = m_.experts_per_token;
  s.capacity = kind == kRouter ? 0 : capacity_;
  s.shared = gated_shared();
  s.bias = kind == kRouter && m_.expert_bias;
  if (kind == kRouter || gates_inputs()) s.routing = m_.routing;
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

ExpertMlp::Mlp ExpertMlp::mlp(const char* name, const UnitUse& use, std::int64_t h,
                              std::int64_t f) const {
  const std::int64_t wide = m_.gated_mlp ? 2 * f : f;
  SegmentShape activation = b_.shape(kActivation, full_, wide, f);
  activation.format = b_.format();
  return {
      name,
      use,
      b_.shape(kMlpIn, full_, h, wide),
      activation,
      b_.shape(kMlpOut, full_, f, h),
      {m_.gated_mlp ? b_.view(use, {".gate.weight", ".in.weight"}) : b_.view(use, {".in.weight"})},
      {b_.view(use, {".out.weight"})}};
}

/// After the exchange a rank has as many rows as before: those of all ep ranks for its own experts.
ExpertMlp::Mlp ExpertMlp::expert() const {
  Mlp p = mlp("expert", use_, width_, m_.ffn / etp_);
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
ExpertMlp::Mlp ExpertMlp::shared() const {
  return mlp("shared", block_, m_.hidden, m_.shared_ffn / s_.tp);
}

Op ExpertMlp::latent_product(bool in, Phase phase, BufferRefs reads, BufferRef to) {
  const SegmentShape s = in ? b_.shape(kLatentProduct, l_, m_.hidden, width_)
                            : b_.shape(kLatentProduct, l_, width_, m_.hidden);
  Op op = compute(b_, in ? "to_latent" : "from_latent", s, phase, std::move(reads), {to});
  return with_weights(std::move(op), block_,
                      {b_.view(block_, {in ? "mlp.to_latent.weight" : "mlp.from_latent.weight"})});
}

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
                  z = shared_sum("z");
  run(p, c, u, g, z, ops);
  if (!completes_shared()) return z;
  reduced("shared z", own_shared("shared z"), ops);
  return own_shared("shared z");
}

void ExpertMlp::shared_backward(BufferRef dz, BufferRef c, BufferRef dc, Ops& ops) {
  const Mlp p = shared();
  const BufferRef u = shared_buffer("u", p.in.out), g = shared_operand(p.out.in);
  const BufferRef du = shared_buffer("du", p.in.out), dg = shared_buffer("dg", p.out.in);
  const BufferRef part = shared_sum("dc");
  run_backward(p, dz, g, dg, u, du, c, part, ops);
  if (completes_shared()) reduced("shared dc", own_shared("shared dc"), ops);
  ops.push_back(
      sum(b_, l_, "add(shared dc)", completes_shared() ? own_shared("shared dc") : part, dc));
}

BufferRef ExpertMlp::sent_tokens(BufferRef in, BufferRef gathered_in, Ops& ops) {
  if (!narrow()) return s_.folded ? in : gathered_in;
  ops.push_back(latent_product(true, kF, {in}, latent_));
  return s_.folded ? latent_ : gathered("latent", latent_, ops);
}

BufferRef ExpertMlp::sent_gradient(BufferRef d, BufferRef gathered_d, Ops& ops) {
  if (!narrow()) return s_.folded ? d : gathered_d;
  const BufferRef d_out = b_.tensor("d latent out", l_, width_);
  ops.push_back(latent_product(false, kBG, {d, latent_out_}, d_out));
  return s_.folded ? d_out : gathered("d latent out", d_out, ops);
}

void ExpertMlp::forward(BufferRef in, BufferRef out, Ops& ops) {
  ops.push_back(with_weights(
      compute(b_, "router", token_shape(kRouter, l_), kF, {in}, {gates_, choice_, scores_}), block_,
      router_views()));
  wide("c whole", m_.hidden);  // also where tokens are not split: Programs keep their fingerprints
  const bool shares = m_.shared_ffn > 0;
  const BufferRef c = !completes_shared() || shares ? gathered("c", in, ops) : in;
  const BufferRef x = sent_tokens(in, c, ops);
  if (!s_.folded) {
    gathered("gates", gates_, ops);
    gathered("choice", choice_, ops);
  }
  const BufferRef sent = s_.ep > 1 ? padded("rows sent", width_) : rows_in_;
  const BufferRef made = s_.ep > 1 ? padded("rows made", width_) : rows_out_;
  BufferRefs chosen{x, whole_choice_}, reads{rows_out_};
  (gates_inputs() ? chosen : reads).push_back(whole_gates_);
  reads.push_back(slots_);
  ops.push_back(compute(b_, "dispatch", token_shape(kDispatch, sent_), kF, std::move(chosen),
                        {sent, slots_}));
  exchanged("rows", sent, rows_in_, ops);
  BufferRef shared;
  if (shares) shared = shared_forward(c, ops);
  if (gated_shared()) reads.push_back(shared);
  run(expert(), rows_in_, u_, g_, made, ops);
  exchanged("rows out", made, rows_out_, ops);
  const char* const what = narrow() ? "latent out" : "q";
  const BufferRef combined = narrow() ? latent_out_ : out, part = all(what, combined);
  ops.push_back(compute(b_, "combine", token_shape(kCombine, sent_), kF, std::move(reads), {part}));
  const bool adds = shares && !gated_shared();
  if (adds && !narrow()) ops.push_back(sum(b_, l_, "add(shared z)", shared, part));
  if (!s_.folded) reduced(what, combined, ops);
  if (!narrow()) return;
  ops.push_back(latent_product(false, kF, {latent_out_}, out));
  if (adds) ops.push_back(sum(b_, l_, "add(shared z)", shared, out));
}

void ExpertMlp::backward(BufferRef d, BufferRef in, BufferRef out, Ops& ops) {
  const bool gated = gated_shared(), shares = m_.shared_ffn > 0;
  wide("dz whole", m_.hidden);
  const BufferRef dz = !completes_shared() || (shares && !gated) ? gathered("dz", d, ops) : d;
  const BufferRef dx = sent_gradient(d, dz, ops);
  const BufferRef dgates = b_.local("dgates", l_, b_.decl(gates_).shape, kFloat32);
  const BufferRef whole_dgates = all("dgates", dgates);
  const BufferRef home = padded("d rows out", width_),
                  away = s_.ep > 1 ? padded("d rows made", width_) : home;
  BufferRefs reads{dx, slots_}, writes{home};
  if (!gates_inputs()) {
    reads = {dx, rows_out_, whole_gates_, slots_};
    writes.push_back(whole_dgates);
  }
  if (gated) {
    reads.push_back(s_.folded ? own_shared("shared z") : shared_buffer("z", m_.hidden));
    writes.push_back(s_.folded ? own_shared("shared dz") : shared_buffer("dz", m_.hidden));
  }
  ops.push_back(compute(b_, "combine", token_shape(kCombine, sent_), kB, std::move(reads), writes));
  if (!s_.folded && !gates_inputs()) reduced("dgates", dgates, ops);
  exchanged("d rows out", home, away, ops);
  const Mlp experts = expert();
  const BufferRef dg = padded("expert dg", experts.out.in),
                  du = padded("expert du", experts.in.out);
  const BufferRef made = padded("d rows", width_),
                  back = s_.ep > 1 ? padded("d rows sent", width_) : made;
  run_backward(experts, away, g_, dg, u_, du, rows_in_, made, ops);
  exchanged("d rows", made, back, ops);
  const BufferRef d_latent = narrow() ? b_.tensor("d latent", l_, width_) : out;
  const char* const what = narrow() ? "d latent" : "dc";
  const BufferRef part = all(what, d_latent);
  BufferRefs returned{back, slots_}, made_of{part};
  if (gates_inputs()) {
    returned.insert(returned.end(), {whole_gates_, all("c", in)});
    made_of.push_back(whole_dgates);
  }
  ops.push_back(compute(b_, "dispatch", token_shape(kDispatch, sent_), kB, std::move(returned),
                        std::move(made_of)));
  if (!s_.folded && gates_inputs()) reduced("dgates", dgates, ops);
  if (narrow()) {
    if (!s_.folded) reduced(what, d_latent, ops);
    ops.push_back(latent_product(true, kBG, {d_latent, in}, out));
  }
  if (shares) {
    BufferRef shared_d = gated ? writes.back() : dz;
    if (gated && s_.folded) shared_d = gathered("shared dz", shared_d, ops);
    shared_backward(shared_d, whole("c", in), narrow() ? out : part, ops);
  }
  if (!completes_shared()) reduced("dc", out, ops);
  const BufferRef routed = shard("router dc");
  ops.push_back(with_weights(compute(b_, "router", token_shape(kRouter, l_), kBG,
                                     {dgates, in, gates_, choice_, scores_}, {routed}),
                             block_, router_views()));
  ops.push_back(sum(b_, l_, "add(router dc)", routed, out));
}

}  // namespace orrery::plan
