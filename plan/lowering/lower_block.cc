#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

namespace {

Parameter parameter(std::string name, std::vector<std::int64_t> shape, int shard_dim, int tp,
                    Init init) {
  Parameter p;
  p.name = "blocks.{layer}." + std::move(name);
  p.shape = p.local_shape = std::move(shape);
  p.shard_dim = shard_dim;
  if (shard_dim >= 0) p.local_shape[static_cast<std::size_t>(shard_dim)] /= tp;
  p.init = init;
  p.decay = p.shape.size() > 1;
  return p;
}

}  // namespace

/// Replicated parameters first, so that their gradients are one range (sequence parallelism sums it
/// over the tensor group); then q, k, v and gate, up side by side, so that each fused product is
/// one matrix.
std::vector<Parameter> block_parameters(const model::ModelSpec& m, int tp) {
  std::vector<Parameter> ps;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, int shard_dim,
                       Init init) {
    ps.push_back(parameter(name, std::move(shape), shard_dim, tp, init));
  };
  const bool layer_norm = m.norm == model::NormKind::kLayerNorm;
  for (const char* n : {"norm1", "norm2"}) {
    add((std::string(n) + ".weight").c_str(), {m.hidden}, -1, Init::kOne);
    if (layer_norm) add((std::string(n) + ".bias").c_str(), {m.hidden}, -1, Init::kZero);
  }
  if (m.projection_bias) add("attn.proj.bias", {m.hidden}, -1, Init::kZero);
  if (m.mlp_bias) add("mlp.out.bias", {m.hidden}, -1, Init::kZero);
  if (m.cross_attention) add("cross.norm.weight", {m.hidden}, -1, Init::kOne);
  if (m.entry == model::BlockEntry::kEncoderEnd)
    add("encoder_norm.weight", {m.hidden}, -1, Init::kOne);
  if (m.entry == model::BlockEntry::kPatchMerging) {
    add("merge.norm.weight", {2 * m.hidden}, -1, Init::kOne);
    if (layer_norm) add("merge.norm.bias", {2 * m.hidden}, -1, Init::kZero);
    add("merge.weight", {m.hidden, 2 * m.hidden}, -1, Init::kNormal);
  }
  if (m.experts > 0) add("router.weight", {m.experts, m.hidden}, -1, Init::kNormal);
  if (m.shared_ffn > 0 && m.shared_gate)
    add("shared_gate.weight", {1, m.hidden}, -1, Init::kNormal);
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  add("attn.q.weight", {q, m.hidden}, 0, Init::kNormal);
  add("attn.k.weight", {kv, m.hidden}, 0, Init::kNormal);
  add("attn.v.weight", {kv, m.hidden}, 0, Init::kNormal);
  if (m.qkv_bias) {
    add("attn.q.bias", {q}, 0, Init::kZero);
    add("attn.k.bias", {kv}, 0, Init::kZero);
    add("attn.v.bias", {kv}, 0, Init::kZero);
  }
  add("attn.proj.weight", {m.hidden, q}, 1, Init::kNormalScaled);
  if (m.window > 0) {  // added to the scores; not trained (model/spec.h)
    add("attn.relative.weight", {m.heads, m.relative_positions()}, 0, Init::kNormal);
    ps.back().uses = 0;
  }
  if (m.cross_attention) {
    add("cross.q.weight", {q, m.hidden}, 0, Init::kNormal);
    add("cross.k.weight", {kv, m.hidden}, 0, Init::kNormal);
    add("cross.v.weight", {kv, m.hidden}, 0, Init::kNormal);
    add("cross.proj.weight", {m.hidden, q}, 1, Init::kNormalScaled);
  }
  // of a mixture only the shared expert is the block's own
  const std::int64_t ffn = m.experts > 0 ? m.shared_ffn : m.ffn;
  if (ffn == 0) return ps;
  if (m.gated_mlp) add("mlp.gate.weight", {ffn, m.hidden}, 0, Init::kNormal);
  add("mlp.in.weight", {ffn, m.hidden}, 0, Init::kNormal);
  if (m.gated_mlp && m.mlp_bias) add("mlp.gate.bias", {ffn}, 0, Init::kZero);
  if (m.mlp_bias) add("mlp.in.bias", {ffn}, 0, Init::kZero);
  add("mlp.out.weight", {m.hidden, ffn}, 1, Init::kNormalScaled);
  return ps;
}

namespace {

/// Emits one block. Names follow the table of model/segment.h.
///
///   pre-norm   a = norm1(x);  p = proj(attention(qkv(a)));  y = x + p;  c = norm2(y);
///              x' = y + out(act(in(c))),  with cross-attention between the two (CrossAttention),
///              x as BlockStart leaves it
///   post-norm  y0 = x + proj(attention(qkv(x)));  y = norm1(y0);  z0 = y + out(act(in(y)));
///              x' = norm2(z0)
///
/// f: identity forward, all-reduce backward; g: all-reduce forward, identity backward (Megatron-LM,
/// arXiv 1909.08053); with sequence parallelism f is an all-gather / reduce-scatter pair and g its
/// mirror (arXiv 2205.05198).
class Block {
 public:
  Block(Builder& b, const LayerStrategy& strategy)
      : b_(b),
        m_(b.model()),
        s_(strategy),
        l_(strategy),
        full_(strategy),
        units_(block_units(b, strategy)),
        start_(b, strategy, use(0)) {
    if (m_.cross_attention) cross_.emplace(b_, s_, use(0));
    if (m_.experts > 0) experts_.emplace(b_, s_, use(1), units_.all.back());
    full_.sequence_parallel = false;
    tensor_ = b_.tensor_group(l_);
    const std::int64_t bs = b_.sequences(l_), sl = b_.tokens(l_);
    x_ = start_.x();
    x_next_ = b_.stream(l_, 1);
    dx_ = start_.dx();
    dx_next_ = b_.stream_gradient(l_, 1);
    a_ = shard("a");
    c_ = shard("c");
    y_ = shard("y");
    for (int i : {0, 1}) {
      const std::string tag = i == 0 ? "1" : "2";
      if (m_.norm == model::NormKind::kLayerNorm)
        mean_[i] = b_.local("mean" + tag, l_, {bs * sl}, model::DType::kFloat32);
      rstd_[i] = b_.local("rstd" + tag, l_, {bs * sl}, model::DType::kFloat32);
    }
    qkv_ = wide("qkv", qkv_out());
    o_ = wide("o", heads_out());
    do_ = wide("do", heads_out());
    dqkv_ = wide("dqkv", qkv_out());
    attention_ = attention_part(b_, s_, {qkv_, o_, do_, dqkv_});
    if (!experts_) {
      u_ = wide("u", m_.mlp_in_features() / s_.tp);
      g_ = wide("g", m_.ffn / s_.tp);
    }
  }

  LayerPair build() {
    if (m_.post_norm)
      post_norm();
    else
      pre_norm();
    const auto is_gather = [&](const Op& op) {
      return op.kind == OpKind::kCollective && op.collective == Collective::kAllGather;
    };
    const auto replay = [&](const Op& op) {
      if (start_.makes_companion(op)) return false;
      // gathered inputs are never kept
      if (s_.recompute == Recompute::kFull || is_gather(op)) return true;
      return s_.recompute == Recompute::kSelective && is_attention_core(b_.program(), op);
    };
    insert_replays(f_, r_, replay, [&](const BufferRef& w) {
      const UnitUse& u = *std::ranges::find_if(
          units_.all, [&w](const UnitUse& x) { return x.weights_forward == w; });
      return u.sliced ? w : u.weights_backward;  // a slice is gathered for each of its uses
    });
    if (m_.post_norm) redirect_replayed_output();
    gather_slices(b_, units_.all, f_);
    gather_slices(b_, units_.all, r_);
    std::vector<Op> zero;
    for (const UnitUse& u : units_.all) {
      if (u.sliced) continue;
      for (Op& op : zero_part_ops(b_, u)) zero.push_back(std::move(op));
    }
    r_.insert(r_.begin(), zero.begin(), zero.end());
    place_frees(f_, r_, [&](const BufferRef& r) {
      const auto is_part = [&r](const UnitUse& u) { return u.parts && r == u.gradient; };
      return b_.program().buffers[r.buffer].persistent || r == x_next_ || start_.outlives(r) ||
             std::ranges::any_of(units_.all, is_part);
    });
    return {std::move(f_), std::move(r_), std::move(units_.all)};
  }

 private:
  BufferRef shard(const std::string& name) {
    return b_.local(name, l_, {b_.sequences(l_), b_.tokens(l_), m_.hidden}, b_.dtype());
  }
  BufferRef wide(const std::string& name, std::int64_t features) {
    return b_.local(name, l_, {b_.sequences(l_), b_.tokens(full_), features}, b_.dtype());
  }
  BufferRef whole(const std::string& name) { return wide(name + " whole", m_.hidden); }
  /// norm2, replayed for its statistics, makes the output of the block once more: the next layer is
  /// done with it, so it gets a place of its own and dies there.
  void redirect_replayed_output() {
    for (Op& op : r_) {
      const auto output = std::ranges::find(op.writes, x_next_);
      if (output != op.writes.end()) *output = shard("x again");
    }
  }
  /// Sublayer 0: attention, 1: MLP, each with its norm and the bias of its sum.
  const UnitUse& use(int sublayer) const {
    return units_.all[sublayer == 0 ? units_.attention : units_.mlp];
  }
  const ParameterUnit& unit(const UnitUse& u) { return b_.program().units[u.state.unit]; }
  SegmentShape shape(SegmentKind kind, const Layout& l, std::int64_t in, std::int64_t out) {
    return b_.shape(kind, l, in, out);
  }
  std::int64_t qkv_out() const { return m_.qkv_features() / s_.tp; }
  std::int64_t heads_out() const { return m_.heads / s_.tp * m_.head_dim; }

  SegmentShape linear(SegmentKind kind, std::int64_t in, std::int64_t out, bool bias) {
    SegmentShape s = shape(kind, full_, in, out);
    s.bias = bias;
    return s;
  }

  // ---- forward pieces ----
  void norm(int i, const char* name, BufferRef in, BufferRef out) {
    std::vector<BufferRef> writes{out};
    if (m_.norm == model::NormKind::kLayerNorm) writes.push_back(mean_[i]);
    writes.push_back(rstd_[i]);
    f_.push_back(with_weights(compute(b_, name, shape(SegmentKind::kNorm, l_, m_.hidden, m_.hidden),
                                      Phase::kF, {in}, writes),
                              use(i), norm_views(i, name), false));
  }
  std::vector<ParameterView> norm_views(int i, const std::string& name) {
    std::vector<ParameterView> v{view_of(unit(use(i)), {(name + ".weight").c_str()})};
    if (m_.norm == model::NormKind::kLayerNorm)
      v.push_back(view_of(unit(use(i)), {(name + ".bias").c_str()}));
    return v;
  }
  /// Input of a column-parallel product: gathered over the sequence when it is split.
  BufferRef gathered(const char* what, BufferRef in, std::vector<Op>& ops) {
    if (!l_.sequence_parallel) return in;
    const BufferRef out = whole(what);
    ops.push_back(all_gather(b_, std::string("all_gather(") + what + ")", Stream::kTensor, tensor_,
                             in, out, 1));
    return out;
  }
  /// Output of a row-parallel product: partial sums to whole rows.
  BufferRef reduced(const char* what, BufferRef partial, BufferRef out, std::vector<Op>& ops) {
    if (s_.tp == 1) return partial;
    if (!l_.sequence_parallel) {
      ops.push_back(all_reduce(b_, std::string("all_reduce(") + what + ")", Stream::kTensor,
                               tensor_, partial));
      return partial;
    }
    ops.push_back(reduce_scatter(b_, std::string("reduce_scatter(") + what + ")", Stream::kTensor,
                                 tensor_, partial, out, 1));
    return out;
  }
  /// Where a row- or column-parallel product writes: straight to `out` unless a reduce-scatter
  /// follows.
  BufferRef partial(const char* what, BufferRef out) {
    return l_.sequence_parallel ? whole(what) : out;
  }

  // ---- products ----
  struct ProductSpec {
    Product product;
    const char* name;
    SegmentKind kind;
    std::int64_t in, out;
    bool bias;
  };
  ProductSpec qkv() const {
    return {Product::kQkv, "qkv", SegmentKind::kQkv, m_.hidden, qkv_out(), m_.qkv_bias};
  }
  ProductSpec projection() const {
    return {Product::kProjection, "projection", SegmentKind::kProjection,
            heads_out(),          m_.hidden,    false};
  }
  ProductSpec mlp_in() const {
    return {Product::kMlpIn, "mlp_in", SegmentKind::kMlpIn, m_.hidden, m_.mlp_in_features() / s_.tp,
            m_.mlp_bias};
  }
  ProductSpec mlp_out() const {
    return {Product::kMlpOut, "mlp_out", SegmentKind::kMlpOut, m_.ffn / s_.tp, m_.hidden, false};
  }

  std::vector<ParameterView> views(Product p, const ParameterUnit& u, bool bias) {
    const auto with_bias = [&](std::initializer_list<const char*> weights,
                               std::initializer_list<const char*> biases) {
      std::vector<ParameterView> v{view_of(u, weights)};
      if (bias) v.push_back(view_of(u, biases));
      return v;
    };
    switch (p) {
      case Product::kQkv:
        return with_bias({"attn.q.weight", "attn.k.weight", "attn.v.weight"},
                         {"attn.q.bias", "attn.k.bias", "attn.v.bias"});
      case Product::kProjection: return {view_of(u, {"attn.proj.weight"})};
      case Product::kMlpIn:
        if (m_.gated_mlp)
          return with_bias({"mlp.gate.weight", "mlp.in.weight"}, {"mlp.gate.bias", "mlp.in.bias"});
        return with_bias({"mlp.in.weight"}, {"mlp.in.bias"});
      case Product::kMlpOut: return {view_of(u, {"mlp.out.weight"})};
    }
    ORRERY_CHECK(false, "product out of range");
  }
  /// One operation, or one for each slice: the first writes `out`, the others add to it.
  void product(const ProductSpec& p, Phase phase, const std::vector<BufferRef>& reads,
               BufferRef out, std::vector<Op>& ops) {
    const int slices = units_.slices[static_cast<std::size_t>(p.product)];
    for (int j = 0; j < slices; ++j) {
      SegmentShape s = linear(p.kind, p.in / slices, p.out, p.bias && j == 0);
      s.slices = slices;
      s.slice = j;
      const UnitUse& u = units_.of(p.product, j);
      const std::string name =
          slices == 1 ? p.name : fmt::format("{} {}/{}", p.name, j + 1, slices);
      Op op = j == 0 ? compute(b_, name, s, phase, reads, {out})
                     : compute(b_, name, s, phase, reads, {}, {out});
      ops.push_back(
          with_weights(std::move(op), u, views(p.product, unit(u), s.bias), phase != Phase::kF));
    }
  }

  void attention_forward(BufferRef in, BufferRef p) {
    const BufferRef a = gathered("a", in, f_);
    product(qkv(), Phase::kF, {a}, qkv_, f_);
    f_.insert(f_.end(), attention_.forward.begin(), attention_.forward.end());
    const BufferRef part = partial("p", p);
    product(projection(), Phase::kF, {o_}, part, f_);
    reduced("p", part, p, f_);
  }
  void mlp_forward(BufferRef in, BufferRef p) {
    if (experts_) return experts_->forward(in, p, f_);
    const BufferRef c = gathered("c", in, f_);
    product(mlp_in(), Phase::kF, {c}, u_, f_);
    f_.push_back(compute(b_, "activation",
                         shape(SegmentKind::kActivation, full_, mlp_in().out, mlp_out().in),
                         Phase::kF, {u_}, {g_}));
    const BufferRef part = partial("q", p);
    product(mlp_out(), Phase::kF, {g_}, part, f_);
    reduced("q", part, p, f_);
  }
  SegmentShape residual_shape(bool bias) {
    SegmentShape s = shape(SegmentKind::kResidual, l_, m_.hidden, m_.hidden);
    s.bias = bias;
    return s;
  }
  const char* residual_name(int i) const { return i == 0 ? "residual1" : "residual2"; }
  bool residual_bias(int i) const { return i == 0 ? m_.projection_bias : m_.mlp_bias; }
  std::vector<ParameterView> residual_views(int i) {
    return {view_of(unit(use(i)), {i == 0 ? "attn.proj.bias" : "mlp.out.bias"})};
  }
  void residual(int i, BufferRef x, BufferRef p, BufferRef out) {
    Op op =
        compute(b_, residual_name(i), residual_shape(residual_bias(i)), Phase::kF, {x, p}, {out});
    if (residual_bias(i)) op = with_weights(std::move(op), use(i), residual_views(i), false);
    f_.push_back(std::move(op));
  }

  // ---- backward pieces ----
  void residual_backward(int i, BufferRef d) {
    if (!residual_bias(i)) return;
    r_.push_back(
        with_gradient(compute(b_, residual_name(i), residual_shape(true), Phase::kBG, {d}, {}),
                      use(i), residual_views(i)));
  }
  void norm_backward(int i, const char* name, BufferRef dy, BufferRef x,
                     const BufferRef* d_residual, BufferRef dx) {
    std::vector<BufferRef> reads{dy, x};
    if (m_.norm == model::NormKind::kLayerNorm) reads.push_back(mean_[i]);
    reads.push_back(rstd_[i]);
    SegmentShape s = shape(SegmentKind::kNorm, l_, m_.hidden, m_.hidden);
    if (d_residual) {
      s.residual = true;
      reads.push_back(*d_residual);
    }
    r_.push_back(with_weights(compute(b_, name, s, Phase::kBG, reads, {dx}), use(i),
                              norm_views(i, name), true));
  }
  /// d: gradient of the block's MLP output; in: its input as kept. Writes the input's gradient to
  /// `out`.
  void mlp_backward(BufferRef d, BufferRef in, BufferRef out) {
    if (experts_) return experts_->backward(d, in, out, r_);
    const BufferRef dz = gathered("dz", d, r_);
    const BufferRef dg = wide("dg", mlp_out().in), du = wide("du", mlp_in().out);
    product(mlp_out(), Phase::kBG, {dz, g_}, dg, r_);
    r_.push_back(compute(b_, "activation",
                         shape(SegmentKind::kActivation, full_, mlp_in().out, mlp_out().in),
                         Phase::kB, {dg, u_}, {du}));
    const BufferRef c = l_.sequence_parallel ? whole("c") : in, part = partial("dc", out);
    product(mlp_in(), Phase::kBG, {du, c}, part, r_);
    reduced("dc", part, out, r_);
  }
  void attention_backward(BufferRef d, BufferRef in, BufferRef out) {
    const BufferRef dp = gathered("dp", d, r_);
    product(projection(), Phase::kBG, {dp, o_}, do_, r_);
    r_.insert(r_.end(), attention_.backward.begin(), attention_.backward.end());
    const BufferRef a = l_.sequence_parallel ? whole("a") : in, part = partial("da", out);
    product(qkv(), Phase::kBG, {dqkv_, a}, part, r_);
    reduced("da", part, out, r_);
  }
  Op add(const char* name, BufferRef what, BufferRef to) {
    SegmentShape s = shape(SegmentKind::kAccumulate, l_, 0, 0);
    s.elements = b_.program().buffers[to.buffer].elements();
    // a sum has one phase, wherever it stands
    return compute(b_, name, s, Phase::kF, {what}, {}, {to});
  }

  void pre_norm() {
    const BufferRef p = shard("p"), q = shard("q"), dc = shard("dc"), da = shard("da"),
                    dy = shard("dy");
    const BufferRef z = cross_ ? shard("z") : y_, dz = cross_ ? shard("dz") : dy;
    f_ = start_.forward();
    norm(0, "norm1", x_, a_);
    attention_forward(a_, p);
    residual(0, x_, p, y_);
    if (cross_) cross_->forward(y_, z, f_);
    norm(1, "norm2", z, c_);
    mlp_forward(c_, q);
    residual(1, z, q, x_next_);

    residual_backward(1, dx_next_);
    mlp_backward(dx_next_, c_, dc);
    norm_backward(1, "norm2", dc, z, &dx_next_, dz);
    if (cross_) cross_->backward(dz, y_, dy, r_);
    residual_backward(0, dy);
    attention_backward(dy, a_, da);
    norm_backward(0, "norm1", da, x_, &dy, dx_);
    for (Op& op : start_.backward()) r_.push_back(std::move(op));
  }

  void post_norm() {
    const BufferRef p = shard("p"), q = shard("q"), y0 = shard("y0"), z0 = shard("z0"),
                    dz0 = shard("dz0"), dy0 = shard("dy0");
    const BufferRef dy = shard("dy");
    attention_forward(x_, p);
    residual(0, x_, p, y0);
    norm(0, "norm1", y0, y_);
    mlp_forward(y_, q);
    residual(1, y_, q, z0);
    norm(1, "norm2", z0, x_next_);

    norm_backward(1, "norm2", dx_next_, z0, nullptr, dz0);
    residual_backward(1, dz0);
    mlp_backward(dz0, y_, dy);
    r_.push_back(add("add(dz0)", dz0, dy));
    norm_backward(0, "norm1", dy, y0, nullptr, dy0);
    residual_backward(0, dy0);
    attention_backward(dy0, x_, dx_);
    r_.push_back(add("add(dy0)", dy0, dx_));
  }

  Builder& b_;
  const model::ModelSpec& m_;
  LayerStrategy s_;
  Layout l_, full_;
  BlockUnits units_;
  BlockStart start_;
  std::optional<CrossAttention> cross_;
  GroupId tensor_;
  BufferRef x_, x_next_, dx_, dx_next_, a_, c_, y_, qkv_, o_, do_, dqkv_, u_, g_;
  AttentionPart attention_;
  BufferRef mean_[2], rstd_[2];
  std::optional<ExpertMlp> experts_;  // the MLP of a mixture
  std::vector<Op> f_, r_;
};

}  // namespace

std::int64_t replicated_elements(const ParameterUnit& unit) {
  std::int64_t n = 0;
  for (const Parameter& p : unit.parameters) {
    if (p.shard_dim >= 0) break;
    n = p.offset + std::accumulate(p.local_shape.begin(), p.local_shape.end(), std::int64_t{1},
                                   std::multiplies<>());
  }
  return n;
}

LayerPair block_pair(Builder& b, const LayerStrategy& strategy) {
  return Block(b, strategy).build();
}

}  // namespace orrery::plan
