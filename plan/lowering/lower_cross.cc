/// \file
/// What blocks of encoder-decoders and of models with patch merging have beside attention and MLP.
#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

NormPart::NormPart(Builder& b, const Layout& l, const UnitUse& use, const std::string& name,
                   const std::string& parameters, std::int64_t features, std::string mean,
                   std::string rstd)
    : b_(b), use_(use), name_(name), shape_(b.shape(kNorm, l, features, features)) {
  const auto statistic = [&](const std::string& own, const char* word) {
    statistics_.push_back(
        b.local(own.empty() ? name + word : own, l, {b.sequences(l) * b.tokens(l)}, kFloat32));
  };
  const ModelSpec& m = b.model();
  shape_.gain = m.norm_gain;
  if (shape_.gain) views_.push_back(b.view(use, {(parameters + ".weight").c_str()}));
  if (m.norm == model::NormKind::kLayerNorm) {
    shape_.norm_bias = m.norm_bias;
    if (m.norm_bias) views_.push_back(b.view(use, {(parameters + ".bias").c_str()}));
    statistic(mean, " mean");
  }
  statistic(rstd, " rstd");
}

Op NormPart::forward(BufferRef x, BufferRef out) const {
  BufferRefs writes{out};
  writes.insert(writes.end(), statistics_.begin(), statistics_.end());
  Op op = compute(b_, name_, shape_, kF, {x}, std::move(writes));
  return views_.empty() ? op : with_weights(std::move(op), use_, views_);
}

Op NormPart::backward(BufferRef dy, BufferRef x, BufferRef dx, BufferRef d_residual) const {
  SegmentShape s = shape_;
  BufferRefs reads{dy, x};
  reads.insert(reads.end(), statistics_.begin(), statistics_.end());
  s.residual = d_residual.buffer.valid();
  if (s.residual) reads.push_back(d_residual);
  Op op = compute(b_, name_, s, views_.empty() ? kB : kBG, std::move(reads), {dx});
  return views_.empty() ? op : with_weights(std::move(op), use_, views_);
}

CrossAttention::CrossAttention(Builder& b, const LayerStrategy& strategy, const UnitUse& block)
    : TensorPart(b, strategy),
      use_(block),
      norm_(b, l_, block, "cross.norm", "cross.norm", m_.hidden),
      n_(m_.heads / s_.tp * m_.head_dim),
      k_(m_.kv_heads / s_.tp * m_.head_dim) {
  ORRERY_CHECK(s_.cp == 1 && !m_.qkv_bias && !m_.projection_bias && !m_.post_norm,
               "cross-attention is that of T5");
  encoded_ = b_.companion(l_, true, b_.layout_number());
  d_encoded_ = b_.companion_gradient(l_, true, b_.layout_number());
  q_ = wide("cross q", n_);
  kv_ = wide("cross kv", 2 * k_);
  o_ = wide("cross o", n_);
  lse_ =
      b_.local("cross lse", l_, {b_.sequences(l_), m_.heads / s_.tp, b_.tokens(full_)}, kFloat32);
  a_ = shard("cross a");
}

/// One of the three products, by its weights.
Op CrossAttention::product(const char* name, SegmentKind kind, std::int64_t in, std::int64_t out,
                           Names weights, Phase phase, BufferRefs reads, BufferRef to) {
  return with_weights(
      compute(b_, name, b_.shape(kind, full_, in, out), phase, std::move(reads), {to}), use_,
      {b_.view(use_, weights)});
}
Op CrossAttention::query(Phase phase, BufferRefs reads, BufferRef to) {
  return product("cross_q", kQkv, m_.hidden, n_, {"cross.q.weight"}, phase, std::move(reads), to);
}
Op CrossAttention::keys(Phase phase, BufferRefs reads, BufferRef to) {
  return product("cross_kv", kQkv, m_.hidden, 2 * k_, {"cross.k.weight", "cross.v.weight"}, phase,
                 std::move(reads), to);
}
Op CrossAttention::projection(Phase phase, BufferRefs reads, BufferRef to) {
  return product("cross_projection", kProjection, n_, m_.hidden, {"cross.proj.weight"}, phase,
                 std::move(reads), to);
}
SegmentShape CrossAttention::core() const {
  SegmentShape s = b_.shape(kAttentionBlock, full_, 0, 0);
  s.heads = m_.heads / s_.tp;
  s.kv_heads = m_.kv_heads / s_.tp;
  s.head_dim = m_.head_dim;
  s.kv_tokens = s.tokens;
  s.causal = false;
  s.score_scale = m_.score_scale;
  return s;
}

void CrossAttention::forward(BufferRef y, BufferRef out, Ops& ops) {
  ops.push_back(norm_.forward(y, a_));
  ops.push_back(query(kF, {gathered("cross a", a_, ops)}, q_));
  ops.push_back(keys(kF, {gathered("encoded", encoded_, ops)}, kv_));
  ops.push_back(compute(b_, "cross_attention", core(), kF, {q_, kv_}, {o_, lse_}));
  const BufferRef p = shard("cross p");
  ops.push_back(projection(kF, {o_}, whole("cross p", p)));
  reduced("cross p", p, ops);
  ops.push_back(compute(b_, "residual_cross", b_.shape(kResidual, l_, m_.hidden, m_.hidden), kF,
                        {y, p}, {out}));
}

void CrossAttention::backward(BufferRef d, BufferRef y, BufferRef out, Ops& ops) {
  const BufferRef dp = gathered("d cross p", d, ops), d_o = wide("d cross o", n_);
  ops.push_back(projection(kBG, {dp, o_}, d_o));
  const BufferRef dq = wide("d cross q", n_), dkv = wide("d cross kv", 2 * k_);
  ops.push_back(compute(b_, "cross_attention", core(), kB, {d_o, q_, kv_, o_, lse_}, {dq, dkv}));
  const BufferRef de = shard("d encoded"), de_part = whole("d encoded", de);
  ops.push_back(keys(kBG, {dkv, whole("encoded", encoded_)}, de_part));
  reduced("d encoded", de, ops);
  ops.push_back(sum(b_, l_, "add(d encoded)", de, d_encoded_));
  const BufferRef da = shard("d cross a"), da_part = whole("d cross a", da);
  ops.push_back(query(kBG, {dq, whole("cross a", a_)}, da_part));
  reduced("d cross a", da, ops);
  ops.push_back(norm_.backward(da, y, out, d));
}

BlockStart::BlockStart(Builder& b, const LayerStrategy& strategy, const UnitUse& block)
    : b_(b), m_(b.model()), use_(block) {
  const Layout l(strategy);
  from_ = b.input(l);
  d_from_ = b.input_gradient(l);
  switch (m_.entry) {
    case model::BlockEntry::kNone:
      x_ = from_;
      dx_ = d_from_;
      return;
    case model::BlockEntry::kPatchMerging:
      norm_.emplace(b, l, block, "merge.norm", "merge.norm", 2 * m_.hidden);
      joined_ = b.tensor("joined", l, 2 * m_.hidden);
      d_joined_ = b.tensor("d joined", l, 2 * m_.hidden);
      x_ = b.tensor("merged", l, m_.hidden);
      dx_ = b.tensor("d merged", l, m_.hidden);
      product_ = b.shape(kPatchProduct, l, 2 * m_.hidden, m_.hidden);
      return;
    case model::BlockEntry::kEncoderEnd:
      norm_.emplace(b, l, block, "encoder_norm", "encoder_norm", m_.hidden);
      x_ = b.companion(l, false, b.layout_number());
      dx_ = b.companion_gradient(l, false, b.layout_number());
      joined_ = b.companion(l, true, b.layout_number());
      d_joined_ = b.companion_gradient(l, true, b.layout_number());
      return;
  }
}

Ops BlockStart::forward() const {
  if (!norm_) return {};
  Ops ops{norm_->forward(from_, joined_)};
  if (m_.entry == model::BlockEntry::kPatchMerging) ops.push_back(merge(kF, {joined_}, x_));
  return ops;
}

Ops BlockStart::backward() const {
  if (!norm_) return {};
  Ops ops;
  if (m_.entry == model::BlockEntry::kPatchMerging)
    ops.push_back(merge(kBG, {dx_, joined_}, d_joined_));
  ops.push_back(norm_->backward(d_joined_, from_, d_from_));
  return ops;
}

bool BlockStart::outlives(const BufferRef& r) const {
  if (r == d_from_) return true;
  if (m_.entry == model::BlockEntry::kEncoderEnd) return r == dx_;
  if (!m_.cross_attention) return false;
  const BufferDecl& decl = b_.decl(r);
  return decl.scope == Scope::kMicroBatch && decl.category == BufferCategory::kActivation;
}

bool BlockStart::makes_companion(const Op& op) const {
  return m_.entry == model::BlockEntry::kEncoderEnd && contains(op.writes, joined_);
}

Op BlockStart::merge(Phase phase, BufferRefs reads, BufferRef to) const {
  return with_weights(compute(b_, "merge", product_, phase, std::move(reads), {to}), use_,
                      {b_.view(use_, {"merge.weight"})});
}

LayerPair decoder_end_pair(Builder& b, const Layout& l) {
  LayerPair pair;
  const BufferRef d = b.companion_gradient(l, true, b.layout_number());
  SegmentShape s = b.shape(kZeroGradient, l, 0, 0);
  s.elements = b.decl(d).elements();
  pair.backward.push_back(compute(b, "zero(d encoder output)", s, kF, {}, {d}));
  return pair;
}

}  // namespace orrery::plan
