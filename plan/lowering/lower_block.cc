#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

/// Emits one block. Names follow the table of model/segment.h.
///
///   pre-norm   a = norm1(x);  p = proj(attention(qkv(a)));  y = x + p;  c = norm2(y);
///              x' = y + out(act(in(c))),  with cross-attention between the two (CrossAttention),
///              x as BlockStart leaves it
///              (without norms before: a = x, c = y; with norms after: of p and of out(..))
///   parallel   c = norm2(x), or a;  x' = x + p + out(act(in(c)))
///   post-norm  y0 = x + proj(attention(qkv(x)));  y = norm1(y0);  z0 = y + out(act(in(y)));
///              x' = norm2(z0)
class Block : TensorPart {
 public:
  Block(Builder& b, const LayerStrategy& strategy)
      : TensorPart(b, strategy), units_(block_units(b, strategy)), start_(b, strategy, use(0)) {
    if (m_.cross_attention) cross_.emplace(b_, s_, use(0));
    if (m_.experts > 0) experts_.emplace(b_, s_, use(1), units_.all.back());
    if (m_.frozen()) adapters_.emplace(b_, s_, units_.all[units_.adapters]);
    x_ = start_.x();
    x_next_ = b_.stream(l_, 1);
    dx_ = start_.dx();
    dx_next_ = b_.stream_gradient(l_, 1);
    // A router reads the input of a mixture, products to a latent the block's, the residual what a
    // norm behind it makes.
    const bool latent = m_.mixer == model::Mixer::kLatent;
    a_ = m_.post_norm || latent ? shard("a") : b_.operand("a", l_, m_.hidden);
    c_ = m_.post_norm || experts_ ? shard("c") : b_.operand("c", l_, m_.hidden);
    y_ = shard("y");
    const bool before = m_.norm_before || m_.post_norm;
    if (before && m_.has_mixer())
      norm1_.emplace(b_, l_, use(0), "norm1", "norm1", m_.hidden, "mean1", "rstd1");
    if (before && m_.has_mlp() && m_.branches != model::Branches::kParallel)
      norm2_.emplace(b_, l_, use(1), "norm2", "norm2", m_.hidden, "mean2", "rstd2");
    if (m_.norm_after && m_.has_mixer())
      after1_.emplace(b_, l_, use(1), "norm after attention", "attn.after", m_.hidden);
    if (m_.norm_after && m_.has_mlp())
      after2_.emplace(b_, l_, use(1), "norm after mlp", "mlp.after", m_.hidden);
    if (norm1_ && makes_operand(a_)) norm1_->quantises(b_.format());
    if (norm2_ && makes_operand(c_)) norm2_->quantises(b_.format());
    if (m_.has_mixer()) {
      if (!latent) qkv_ = wide("qkv", qkv().out);
      o_ = wide("o", projection().in);
      do_ = wide("do", projection().in);
      if (!latent) dqkv_ = wide("dqkv", qkv().out);
      if (latent)
        latent_.emplace(b_, s_, use(0), AttentionEnds{{}, o_, do_, {}});
      else
        add_mixer();
    }
    if (experts_ || !m_.has_mlp()) return;
    for (const ProductSpec& p : mlp_in()) u_.push_back(wide(std::string(p.to), p.out));
    g_ = wide("g", mlp_out().in, b_.operand_dtype());
  }

  LayerPair build() {
    if (m_.post_norm)
      post_norm();
    else if (m_.branches != model::Branches::kSerial)
      parallel();
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
        case Recompute::kNone:
        case Recompute::kOffload: return false;
        case Recompute::kSelective: return is_attention_core(b_.program(), op);
        case Recompute::kOperator: return !keeps_by_operator(op);
        case Recompute::kFull: return true;
      }
      return false;
    };
    freeze(b_, r_);
    insert_replays(f_, r_, replay,
                   [&](const BufferRef& w) { return backward_weights(units_.all, w); });
    if (m_.post_norm) redirect_replayed_output();
    gather_slices(b_, units_.all, f_);
    gather_slices(b_, units_.all, r_);
    zero_parts(b_, units_.all, r_);
    LayerPair pair{std::move(f_), std::move(r_), std::move(units_.all)};
    pair.offload = s_.recompute == Recompute::kOffload;
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
  void add_mixer() {
    if (!has_gate()) {
      attention_ = mixer_part(b_, s_, use(0), {qkv_, o_, do_, dqkv_});
      return;
    }
    gate_ = wide("mixer gate", projection().in);
    dgate_ = wide("d mixer gate", projection().in);
    attention_ = gated_mixer_part(b_, s_, use(0), {qkv_, o_, do_, dqkv_}, gate_, dgate_);
  }
  bool makes_operand(BufferRef r) const { return b_.decl(r).dtype != b_.dtype(); }
  static constexpr std::string_view kGate = "gate", kUp = "up", kOutputGate = "output gate";
  struct ProductSpec {
    Product product;
    const char* name;
    SegmentKind kind;
    std::int64_t in, out;
    bool bias;
    std::string_view to = "";  // what holds the result, where there may be several
  };
  ProductSpec qkv() const {
    return {Product::kQkv,
            "qkv",
            kQkv,
            m_.hidden,
            m_.qkv_features() / s_.tp,
            m_.qkv_bias && !m_.scans()};
  }
  bool has_gate() const { return m_.output_gate && !m_.scans(); }
  /// Into the mixer: of the gate a product of its own.
  std::vector<ProductSpec> mixer_in() const {
    std::vector<ProductSpec> all{qkv()};
    if (has_gate())
      all.push_back(
          {Product::kQkv, "output_gate_in", kQkv, m_.hidden, projection().in, false, kOutputGate});
    return all;
  }
  ProductSpec projection() const {
    return {Product::kProjection,        "projection", kProjection,
            m_.mixed_features() / s_.tp, m_.hidden,    false};
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
    if (p.to == kOutputGate) return {b_.view(u, {"attn.output_gate.weight"})};
    if (p.to == kUp) return with_bias({"mlp.in.weight"}, {"mlp.in.bias"});
    switch (p.product) {
      case Product::kQkv:
        if (m_.scans()) return {scan_weights(b_, u)};
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
      if (p.product == Product::kProjection || p.product == Product::kMlpOut)
        s.scale = m_.residual_scale;
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
    if (!adapters_) return;
    const BufferRef x = kept.empty() ? BufferRef{} : kept.front();
    adapters_->gathered_side(all.front().product, phase, in, x, out.front(), ops);
  }
  /// Partial sums, added up over products that read one of `reads` each, which become `out`.
  /// `input`: gathered in forward, one of the operands. A piece is scattered behind the product
  /// over the next, whose own gather it must not hold up.
  void reduced_products(const std::vector<ProductSpec>& products, Phase phase,
                        const BufferRefs& reads, const char* input, BufferRef in, const char* what,
                        BufferRef out, Ops& ops) {
    const std::vector<Piece> all = pieces();
    if (phase == kBG && all.size() > 1)
      bulk(products, reads, input, in, what, out, ops);
    else
      in_pieces(all, products, phase, reads, input, in, what, out, ops);
    if (adapters_)
      adapters_->reduced_side(products.front().product, phase, reads.front(), in, out, ops);
  }
  void in_pieces(const std::vector<Piece>& all, const std::vector<ProductSpec>& products,
                 Phase phase, const BufferRefs& reads, const char* input, BufferRef in,
                 const char* what, BufferRef out, Ops& ops) {
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
    if (latent_) {
      latent_->forward(in, f_);
    } else {
      BufferRefs made{qkv_};
      if (has_gate()) made.push_back(gate_);
      gathered_products(mixer_in(), kF, "a", in, {}, made, f_);
      append(f_, attention_.forward);
    }
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
    if (latent_) return latent_->backward(in, out, r_);
    append(r_, attention_.backward);
    BufferRefs reads{dqkv_};
    if (has_gate()) reads.push_back(dgate_);
    reduced_products(mixer_in(), kBG, reads, "a", in, "da", out, r_);
  }

  /// Behind a branch: its norm, if it has one there. The branch's output is `p`.
  BufferRef after_forward(const std::optional<NormPart>& norm, const char* name, BufferRef p) {
    if (!norm) return p;
    f_.push_back(norm->forward(p, shard(name)));
    return shard(name);
  }
  BufferRef after_backward(const std::optional<NormPart>& norm, const char* name, BufferRef d,
                           BufferRef p) {
    if (!norm) return d;
    r_.push_back(norm->backward(d, p, shard(name)));
    return shard(name);
  }
  /// Backward of a branch's input x, whose gradient is that of its norm and the residual's `d`.
  void before_backward(const std::optional<NormPart>& norm, const char* name, BufferRef inner,
                       BufferRef x, BufferRef dx, BufferRef d) {
    if (norm)
      r_.push_back(norm->backward(inner, x, dx, d));
    else
      r_.push_back(sum(b_, l_, name, d, dx));  // `inner` is dx itself
  }

  void pre_norm() {
    const BufferRef p = shard("p"), q = shard("q");
    BufferRef dc = norm2_ ? shard("dc") : BufferRef{}, da = norm1_ ? shard("da") : BufferRef{};
    const BufferRef dy = shard("dy");
    BufferRef z = m_.has_mixer() ? y_ : x_, dz = m_.has_mixer() ? dy : dx_;
    if (cross_) {
      z = shard("z");
      dz = shard("dz");
    }
    const BufferRef y = m_.has_mlp() ? y_ : x_next_, a = norm1_ ? a_ : x_, c = norm2_ ? c_ : z;
    f_ = start_.forward();
    if (m_.has_mixer()) {
      if (norm1_) f_.push_back(norm1_->forward(x_, a));
      attention_forward(a, p);
      residual_forward(0, x_, after_forward(after1_, "p normed", p), y);
    }
    if (cross_) cross_->forward(y_, z, f_);
    if (m_.has_mlp()) {
      if (norm2_) f_.push_back(norm2_->forward(z, c));
      mlp_forward(c, q);
      residual_forward(1, z, after_forward(after2_, "q normed", q), x_next_);
      residual_backward(1, dx_next_);
      if (!norm2_) dc = dz;
      mlp_backward(after_backward(after2_, "dq", dx_next_, q), c, dc);
      before_backward(norm2_, "add(dz)", dc, z, dz, dx_next_);
    }
    if (cross_) cross_->backward(dz, y_, dy, r_);
    if (m_.has_mixer()) {
      const BufferRef d = m_.has_mlp() ? dy : dx_next_;
      if (!norm1_) da = dx_;
      residual_backward(0, d);
      attention_backward(after_backward(after1_, "dp", d, p), a, da);
      before_backward(norm1_, "add(dx)", da, x_, dx_, d);
    }
    append(r_, start_.backward());
  }

  void parallel() {
    const BufferRef p = shard("p"), q = shard("q"), dc = shard("dc"), da = shard("da"),
                    dy = shard("dy"), c = norm2_ ? c_ : a_;
    f_.push_back(norm1_->forward(x_, a_));
    if (norm2_) f_.push_back(norm2_->forward(x_, c_));
    attention_forward(a_, p);
    mlp_forward(c, q);
    residual_forward(0, x_, p, y_);
    residual_forward(1, y_, q, x_next_);

    residual_backward(1, dx_next_);
    residual_backward(0, dx_next_);
    mlp_backward(dx_next_, c, dc);
    attention_backward(dx_next_, a_, da);
    if (norm2_) {
      r_.push_back(norm2_->backward(dc, x_, dy, dx_next_));
      r_.push_back(norm1_->backward(da, x_, dx_, dy));
    } else {
      r_.push_back(sum(b_, l_, "add(dc)", dc, da));
      r_.push_back(norm1_->backward(da, x_, dx_, dx_next_));
    }
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
  std::optional<NormPart> norm1_, norm2_, after1_, after2_;
  BufferRef x_, x_next_, dx_, dx_next_, a_, c_, y_, qkv_, o_, do_, dqkv_, g_;
  BufferRef gate_, dgate_;  // of a gate on the mixer's output
  std::optional<LatentMixer> latent_;
  BufferRefs u_;  // of each product into the MLP
  AttentionPart attention_;
  std::optional<ExpertMlp> experts_;  // the MLP of a mixture
  std::optional<Adapters> adapters_;
  Ops f_, r_;
};

}  // namespace

LayerPair block_pair(Builder& b, const LayerStrategy& strategy) {
  return Block(b, strategy).build();
}

}  // namespace orrery::plan
