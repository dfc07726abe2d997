#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

BufferRef TensorPart::wide(const std::string& name, std::int64_t columns, model::DType dtype) {
  return b_.local(name, l_, {b_.sequences(l_), b_.tokens(full_), columns}, dtype);
}
std::string Piece::of_name(std::string name) const {
  return of == 1 ? name : fmt::format("{} {}/{}", name, index + 1, of);
}
Op Piece::of_op(Op op) const {
  op.pieces = of;
  op.piece = index;
  return op;
}
BufferRef TensorPart::whole(const std::string& what, BufferRef x, Piece piece) {
  if (!l_.sequence_parallel) return x;
  const BufferDecl& part = b_.decl(x);
  return b_.local(piece.of_name(what + " whole"), l_,
                  {b_.sequences(l_), b_.tokens(full_) / piece.of, part.shape.back()}, part.dtype);
}
BufferRef TensorPart::gathered(const std::string& what, BufferRef x, Ops& ops, Piece piece) {
  const BufferRef all = whole(what, x, piece);
  if (l_.sequence_parallel)
    ops.push_back(piece.of_op(collective(b_, Collective::kAllGather, piece.of_name(what),
                                         Stream::kTensor, b_.tensor_group(l_), x, all, 1)));
  return all;
}
void TensorPart::reduced(const std::string& what, BufferRef x, Ops& ops, Piece piece) {
  if (l_.sequence_parallel) {
    ops.push_back(
        piece.of_op(collective(b_, Collective::kReduceScatter, piece.of_name(what), Stream::kTensor,
                               b_.tensor_group(l_), whole(what, x, piece), x, 1)));
    if (piece.index > 0) std::swap(ops.back().writes, ops.back().updates);
  } else if (s_.tp > 1) {
    ops.push_back(all_reduce(b_, what, Stream::kTensor, b_.tensor_group(l_), x));
  }
}

/// Replicated parameters first, so that their gradients are one range (sequence parallelism sums it
/// over the tensor group); then q, k, v and gate, up side by side, so that each fused product is
/// one matrix.
Parameters block_parameters(const ModelSpec& m, int tp) {
  Parameters ps;
  const auto add = [&](const std::string& name, Extents shape, int shard_dim, Init init) {
    Parameter& p = ps.emplace_back();
    p.name = "blocks.{layer}." + name;
    p.shape = p.local_shape = std::move(shape);
    p.shard_dim = shard_dim;
    if (shard_dim >= 0) p.local_shape[as_index(shard_dim)] /= tp;
    p.init = init;
    p.decay = p.shape.size() > 1;
    p.quantised = p.decay && shard_dim >= 0;
  };
  const auto norm = [&](const std::string& name, std::int64_t features) {
    add(name + ".weight", {features}, -1, kOne);
    if (m.norm == model::NormKind::kLayerNorm) add(name + ".bias", {features}, -1, kZero);
  };
  norm("norm1", m.hidden);
  norm("norm2", m.hidden);
  if (m.projection_bias) add("attn.proj.bias", {m.hidden}, -1, kZero);
  if (m.mlp_bias) add("mlp.out.bias", {m.hidden}, -1, kZero);
  if (m.cross_attention) add("cross.norm.weight", {m.hidden}, -1, kOne);
  if (m.entry == model::BlockEntry::kEncoderEnd) add("encoder_norm.weight", {m.hidden}, -1, kOne);
  if (m.entry == model::BlockEntry::kPatchMerging) {
    norm("merge.norm", 2 * m.hidden);
    add("merge.weight", {m.hidden, 2 * m.hidden}, -1, kNormal);
  }
  if (m.experts > 0) add("router.weight", {m.experts, m.hidden}, -1, kNormal);
  if (m.shared_ffn > 0 && m.shared_gate) add("shared_gate.weight", {1, m.hidden}, -1, kNormal);
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const auto qkv_weights = [&](const std::string& name) {
    add(name + ".q.weight", {q, m.hidden}, 0, kNormal);
    for (const char* part : {".k.weight", ".v.weight"})
      add(name + part, {kv, m.hidden}, 0, kNormal);
  };
  qkv_weights("attn");
  if (m.qkv_bias) {
    add("attn.q.bias", {q}, 0, kZero);
    add("attn.k.bias", {kv}, 0, kZero);
    add("attn.v.bias", {kv}, 0, kZero);
  }
  add("attn.proj.weight", {m.hidden, q}, 1, kNormalScaled);
  if (m.window > 0) {  // added to the scores; not trained (model/spec.h)
    add("attn.relative.weight", {m.heads, m.relative_positions()}, 0, kNormal);
    ps.back().uses = 0;
    ps.back().quantised = false;
  }
  if (m.cross_attention) {
    qkv_weights("cross");
    add("cross.proj.weight", {m.hidden, q}, 1, kNormalScaled);
  }
  // of a mixture only the shared expert is the block's own
  const std::int64_t ffn = m.experts > 0 ? m.shared_ffn : m.ffn;
  if (ffn == 0) return ps;
  if (m.gated_mlp) add("mlp.gate.weight", {ffn, m.hidden}, 0, kNormal);
  add("mlp.in.weight", {ffn, m.hidden}, 0, kNormal);
  if (m.gated_mlp && m.mlp_bias) add("mlp.gate.bias", {ffn}, 0, kZero);
  if (m.mlp_bias) add("mlp.in.bias", {ffn}, 0, kZero);
  add("mlp.out.weight", {m.hidden, ffn}, 1, kNormalScaled);
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
class Block : TensorPart {
 public:
  Block(Builder& b, const LayerStrategy& strategy)
      : TensorPart(b, strategy), units_(block_units(b, strategy)), start_(b, strategy, use(0)) {
    if (m_.cross_attention) cross_.emplace(b_, s_, use(0));
    if (m_.experts > 0) experts_.emplace(b_, s_, use(1), units_.all.back());
    x_ = start_.x();
    x_next_ = b_.stream(l_, 1);
    dx_ = start_.dx();
    dx_next_ = b_.stream_gradient(l_, 1);
    // A router reads the input of a mixture, the residual what a norm behind it makes.
    a_ = m_.post_norm ? shard("a") : b_.operand("a", l_, m_.hidden);
    c_ = m_.post_norm || experts_ ? shard("c") : b_.operand("c", l_, m_.hidden);
    y_ = shard("y");
    norm1_.emplace(b_, l_, use(0), "norm1", "norm1", m_.hidden, "mean1", "rstd1");
    norm2_.emplace(b_, l_, use(1), "norm2", "norm2", m_.hidden, "mean2", "rstd2");
    if (makes_operand(a_)) norm1_->quantises(b_.format());
    if (makes_operand(c_)) norm2_->quantises(b_.format());
    qkv_ = wide("qkv", qkv().out);
    o_ = wide("o", projection().in);
    do_ = wide("do", projection().in);
    dqkv_ = wide("dqkv", qkv().out);
    attention_ = attention_part(b_, s_, {qkv_, o_, do_, dqkv_});
    if (experts_) return;
    for (const ProductSpec& p : mlp_in()) u_.push_back(wide(std::string(p.to), p.out));
    g_ = wide("g", mlp_out().in, b_.operand_dtype());
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
      if (is_gather(op)) return true;
      switch (s_.recompute) {
        case Recompute::kNone: return false;
        case Recompute::kSelective: return is_attention_core(b_.program(), op);
        case Recompute::kOperator: return !keeps_by_operator(op);
        case Recompute::kFull: return true;
      }
      return false;
    };
    insert_replays(f_, r_, replay, [&](const BufferRef& w) {
      const UnitUse& u = *std::ranges::find_if(
          units_.all, [&w](const UnitUse& x) { return x.weights_forward == w; });
      return u.sliced ? w : u.weights_backward;  // a slice is gathered for each of its uses
    });
    if (m_.post_norm) redirect_replayed_output();
    gather_slices(b_, units_.all, f_);
    gather_slices(b_, units_.all, r_);
    zero_parts(b_, units_.all, r_);
    LayerPair pair{std::move(f_), std::move(r_), std::move(units_.all)};
    place_frees(b_, pair, [&](const BufferRef& r) { return r == x_next_ || start_.outlives(r); });
    return pair;
  }

 private:
  /// What travelled, the attention core, and every other product: q, k and v as one, which is the
  /// first, and of the MLP's (third to fifth, or third and fourth) the first. The last one of the
  /// block is read by no backward.
  bool keeps_by_operator(const Op& op) const {
    if (op.kind != OpKind::kCompute || is_attention_core(b_.program(), op)) return true;
    const auto makes = [&](BufferRef r) {
      return std::ranges::count(op.writes, r) + std::ranges::count(op.updates, r) > 0;
    };
    return makes(qkv_) || (!u_.empty() && makes(u_.front()));
  }
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
  bool makes_operand(BufferRef r) const { return b_.decl(r).dtype != b_.dtype(); }
  // ---- products ----
  static constexpr std::string_view kGate = "gate", kUp = "up";
  struct ProductSpec {
    Product product;
    const char* name;
    SegmentKind kind;
    std::int64_t in, out;
    bool bias;
    std::string_view to = "";  // what holds the result, where there may be several
  };
  ProductSpec qkv() const {
    return {Product::kQkv, "qkv", kQkv, m_.hidden, m_.qkv_features() / s_.tp, m_.qkv_bias};
  }
  ProductSpec projection() const {
    return {Product::kProjection,           "projection", kProjection,
            m_.heads / s_.tp * m_.head_dim, m_.hidden,    false};
  }
  /// Gate and up as one, or, where one of them runs again, each alone.
  std::vector<ProductSpec> mlp_in() const {
    if (s_.recompute != Recompute::kOperator || !m_.gated_mlp) {
      return {{Product::kMlpIn, "mlp_in", kMlpIn, m_.hidden, m_.mlp_in_features() / s_.tp,
               m_.mlp_bias, "u"}};
    }
    const std::int64_t f = m_.ffn / s_.tp;
    return {{Product::kMlpIn, "mlp_gate", kMlpIn, m_.hidden, f, m_.mlp_bias, kGate},
            {Product::kMlpIn, "mlp_up", kMlpIn, m_.hidden, f, m_.mlp_bias, kUp}};
  }
  ProductSpec mlp_out() const {
    return {Product::kMlpOut, "mlp_out", kMlpOut, m_.ffn / s_.tp, m_.hidden, false};
  }

  Views views(const ProductSpec& p, const UnitUse& u, bool bias) const {
    const auto with_bias = [&](Names weights, Names biases) {
      Views v{b_.view(u, weights)};
      if (bias) v.push_back(b_.view(u, biases));
      return v;
    };
    if (p.to == kGate) return with_bias({"mlp.gate.weight"}, {"mlp.gate.bias"});
    if (p.to == kUp) return with_bias({"mlp.in.weight"}, {"mlp.in.bias"});
    switch (p.product) {
      case Product::kQkv:
        return with_bias({"attn.q.weight", "attn.k.weight", "attn.v.weight"},
                         {"attn.q.bias", "attn.k.bias", "attn.v.bias"});
      case Product::kProjection: return {b_.view(u, {"attn.proj.weight"})};
      case Product::kMlpIn:
        if (m_.gated_mlp)
          return with_bias({"mlp.gate.weight", "mlp.in.weight"}, {"mlp.gate.bias", "mlp.in.bias"});
        return with_bias({"mlp.in.weight"}, {"mlp.in.bias"});
      case Product::kMlpOut: return {b_.view(u, {"mlp.out.weight"})};
    }
    ORRERY_CHECK(false, "product out of range");
  }
  /// One operation, or one for each slice: the first writes `out`, the others add to it. Of a
  /// piece: where `out` holds all of them, the first one writes it.
  void product(const ProductSpec& p, Phase phase, const BufferRefs& reads, BufferRef out, Ops& ops,
               Piece piece = {}) {
    const int slices = units_.slices[as_index(p.product)];
    for (int j = 0; j < slices; ++j) {
      SegmentShape s = b_.shape(p.kind, full_, p.in / slices, p.out);
      s.tokens /= piece.of;
      s.pieces = piece.of;
      s.bias = p.bias && j == 0;
      s.slices = slices;
      s.slice = j;
      const UnitUse& u = units_.of(p.product, j);
      b_.quantise(s, reads.back(), u);
      const Piece named = slices == 1 ? piece : Piece{slices, j};
      Op op = piece.of_op(compute(b_, named.of_name(p.name), s, phase, reads, {}));
      if (phase == kG) {
        ops.push_back(with_gradient(std::move(op), u, views(p, u, s.bias)));
        continue;
      }
      const bool adds = j > 0 || (piece.index > 0 && b_.decl(out).shape[1] > s.tokens);
      (adds ? op.updates : op.writes) = {out};
      ops.push_back(with_weights(std::move(op), u, views(p, u, s.bias)));
      if (phase == kB) ops.back().gradients.reset();
    }
  }

  std::vector<Piece> pieces() const {
    std::vector<Piece> all(as_index(l_.sequence_parallel ? s_.tensor_pieces : 1));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {as_int(all.size()), as_int(i)};
    return all;
  }
  /// Over what is gathered of `in`, beside `kept` in backward; each into its own of `out`.
  void gathered_products(const std::vector<ProductSpec>& all, Phase phase, const char* what,
                         BufferRef in, const BufferRefs& kept, const BufferRefs& out, Ops& ops) {
    for (const Piece piece : pieces()) {
      BufferRefs reads{gathered(what, in, ops, piece)};
      reads.insert(reads.end(), kept.begin(), kept.end());
      for (std::size_t i = 0; i < all.size(); ++i)
        product(all[i], phase, reads, out[i], ops, piece);
    }
  }
  /// Partial sums, added up over products that read one of `reads` each, which become `out`.
  /// `input`: gathered in forward, one of the operands. A piece is scattered behind the product
  /// over the next, whose own gather it must not hold up.
  void reduced_products(const std::vector<ProductSpec>& products, Phase phase,
                        const BufferRefs& reads, const char* input, BufferRef in, const char* what,
                        BufferRef out, Ops& ops) {
    const std::vector<Piece> all = pieces();
    if (phase == kBG && all.size() > 1) return bulk(products, reads, input, in, what, out, ops);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const BufferRef to = whole(what, out, all[i]);
      for (std::size_t k = 0; k < products.size(); ++k) {
        BufferRefs operands{reads[k]};
        if (input != nullptr) operands.push_back(whole(input, in, all[i]));
        added(products, k, phase, operands, what, to, ops, all[i]);
      }
      if (i > 0) reduced(what, out, ops, all[i - 1]);
    }
    reduced(what, out, ops, all.back());
  }
  /// Product k of those whose sum is `to`.
  void added(const std::vector<ProductSpec>& products, std::size_t k, Phase phase,
             const BufferRefs& operands, const char* what, BufferRef to, Ops& ops,
             Piece piece = {}) {
    if (k == 0) return product(products[k], phase, operands, to, ops, piece);
    const BufferDecl like = b_.decl(to);
    const std::string name = piece.of_name(fmt::format("{} of {}", what, products[k].to));
    const BufferRef more = b_.local(name, full_, like.shape, like.dtype);
    product(products[k], phase, operands, more, ops, piece);
    ops.push_back(sum(b_, full_, "add(" + name + ")", more, to));
  }
  /// Backward of products on what was gathered, as Transformer Engine runs it beside its
  /// collectives: the input comes again beside the products for its gradient, which is scattered
  /// beside those for the weights; all are whole.
  void bulk(const std::vector<ProductSpec>& products, const BufferRefs& reads, const char* input,
            BufferRef in, const char* what, BufferRef out, Ops& ops) {
    const BufferRef x = gathered(input, in, ops), to = whole(what, out);
    for (std::size_t k = 0; k < products.size(); ++k)
      added(products, k, kB, {reads[k]}, what, to, ops);
    reduced(what, out, ops);
    for (std::size_t k = 0; k < products.size(); ++k)
      product(products[k], kG, {reads[k], x}, {}, ops);
  }

  void attention_forward(BufferRef in, BufferRef p) {
    gathered_products({qkv()}, kF, "a", in, {}, {qkv_}, f_);
    append(f_, attention_.forward);
    reduced_products({projection()}, kF, {o_}, nullptr, {}, "p", p, f_);
  }
  Op activation(Phase phase, BufferRefs reads, BufferRefs to) {
    SegmentShape s = b_.shape(kActivation, full_, m_.mlp_in_features() / s_.tp, mlp_out().in);
    s.format = b_.format();
    return compute(b_, "activation", s, phase, std::move(reads), std::move(to));
  }
  void mlp_forward(BufferRef in, BufferRef p) {
    if (experts_) return experts_->forward(in, p, f_);
    gathered_products(mlp_in(), kF, "c", in, {}, u_, f_);
    f_.push_back(activation(kF, u_, {g_}));
    reduced_products({mlp_out()}, kF, {g_}, nullptr, {}, "q", p, f_);
  }

  /// The sum behind a sublayer, with its bias.
  Op residual(int i, Phase phase, BufferRefs reads, BufferRefs writes) {
    SegmentShape s = b_.shape(kResidual, l_, m_.hidden, m_.hidden);
    s.bias = residual_bias(i);
    return compute(b_, i == 0 ? "residual1" : "residual2", s, phase, std::move(reads),
                   std::move(writes));
  }
  bool residual_bias(int i) const { return i == 0 ? m_.projection_bias : m_.mlp_bias; }
  Views residual_views(int i) const {
    return {b_.view(use(i), {i == 0 ? "attn.proj.bias" : "mlp.out.bias"})};
  }
  void residual_forward(int i, BufferRef x, BufferRef p, BufferRef out) {
    f_.push_back(residual(i, kF, {x, p}, {out}));
    if (residual_bias(i)) f_.back() = with_weights(std::move(f_.back()), use(i), residual_views(i));
  }

  // ---- backward pieces ----
  void residual_backward(int i, BufferRef d) {
    if (residual_bias(i))
      r_.push_back(with_gradient(residual(i, kBG, {d}, {}), use(i), residual_views(i)));
  }
  /// d: gradient of the block's MLP output; in: its input as kept. Writes the input's gradient to
  /// `out`.
  void mlp_backward(BufferRef d, BufferRef in, BufferRef out) {
    if (experts_) return experts_->backward(d, in, out, r_);
    const BufferRef dg = wide("dg", mlp_out().in);
    BufferRefs reads{dg}, du;
    for (const ProductSpec& p : mlp_in()) du.push_back(wide("d" + std::string(p.to), p.out));
    reads.insert(reads.end(), u_.begin(), u_.end());
    gathered_products({mlp_out()}, kBG, "dz", d, {g_}, {dg}, r_);
    r_.push_back(activation(kB, std::move(reads), du));
    reduced_products(mlp_in(), kBG, du, "c", in, "dc", out, r_);
  }
  void attention_backward(BufferRef d, BufferRef in, BufferRef out) {
    gathered_products({projection()}, kBG, "dp", d, {o_}, {do_}, r_);
    append(r_, attention_.backward);
    reduced_products({qkv()}, kBG, {dqkv_}, "a", in, "da", out, r_);
  }

  void pre_norm() {
    const BufferRef p = shard("p"), q = shard("q"), dc = shard("dc"), da = shard("da"),
                    dy = shard("dy");
    const BufferRef z = cross_ ? shard("z") : y_, dz = cross_ ? shard("dz") : dy;
    f_ = start_.forward();
    f_.push_back(norm1_->forward(x_, a_));
    attention_forward(a_, p);
    residual_forward(0, x_, p, y_);
    if (cross_) cross_->forward(y_, z, f_);
    f_.push_back(norm2_->forward(z, c_));
    mlp_forward(c_, q);
    residual_forward(1, z, q, x_next_);

    residual_backward(1, dx_next_);
    mlp_backward(dx_next_, c_, dc);
    r_.push_back(norm2_->backward(dc, z, dz, dx_next_));
    if (cross_) cross_->backward(dz, y_, dy, r_);
    residual_backward(0, dy);
    attention_backward(dy, a_, da);
    r_.push_back(norm1_->backward(da, x_, dx_, dy));
    append(r_, start_.backward());
  }

  void post_norm() {
    const BufferRef p = shard("p"), q = shard("q"), y0 = shard("y0"), z0 = shard("z0"),
                    dz0 = shard("dz0"), dy0 = shard("dy0");
    const BufferRef dy = shard("dy");
    attention_forward(x_, p);
    residual_forward(0, x_, p, y0);
    f_.push_back(norm1_->forward(y0, y_));
    mlp_forward(y_, q);
    residual_forward(1, y_, q, z0);
    f_.push_back(norm2_->forward(z0, x_next_));

    r_.push_back(norm2_->backward(dx_next_, z0, dz0));
    residual_backward(1, dz0);
    mlp_backward(dz0, y_, dy);
    r_.push_back(sum(b_, l_, "add(dz0)", dz0, dy));
    r_.push_back(norm1_->backward(dy, y0, dy0));
    residual_backward(0, dy0);
    attention_backward(dy0, x_, dx_);
    r_.push_back(sum(b_, l_, "add(dy0)", dy0, dx_));
  }

  BlockUnits units_;
  BlockStart start_;
  std::optional<CrossAttention> cross_;
  std::optional<NormPart> norm1_, norm2_;
  BufferRef x_, x_next_, dx_, dx_next_, a_, c_, y_, qkv_, o_, do_, dqkv_, g_;
  BufferRefs u_;  // of each product into the MLP
  AttentionPart attention_;
  std::optional<ExpertMlp> experts_;  // the MLP of a mixture
  Ops f_, r_;
};

}  // namespace

std::int64_t replicated_elements(const ParameterUnit& unit) {
  std::int64_t n = 0;
  for (const Parameter& p : unit.parameters) {
    if (p.shard_dim >= 0) break;
    n = p.offset + elements_of(p);
  }
  return n;
}

LayerPair block_pair(Builder& b, const LayerStrategy& strategy) {
  return Block(b, strategy).build();
}

}  // namespace orrery::plan
