/// \file
/// What blocks of encoder-decoders and of models with patch merging have beside attention and MLP.
#include <algorithm>

#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

NormPart::NormPart(Builder& b, const Layout& l, const UnitUse& use, const std::string& name,
                   std::int64_t features)
    : b_(b), use_(use), name_(name), shape_(b.shape(SegmentKind::kNorm, l, features, features)) {
  const ParameterUnit& unit = b.program().units[use.state.unit];
  views_.push_back(view_of(unit, {(name + ".weight").c_str()}));
  const std::int64_t t = b.sequences(l) * b.tokens(l);
  if (b.model().norm == model::NormKind::kLayerNorm) {
    views_.push_back(view_of(unit, {(name + ".bias").c_str()}));
    statistics_.push_back(b.local(name + " mean", l, {t}, model::DType::kFloat32));
  }
  statistics_.push_back(b.local(name + " rstd", l, {t}, model::DType::kFloat32));
}

Op NormPart::forward(BufferRef x, BufferRef out) const {
  std::vector<BufferRef> writes{out};
  writes.insert(writes.end(), statistics_.begin(), statistics_.end());
  return with_weights(compute(b_, name_, shape_, Phase::kF, {x}, std::move(writes)), use_, views_,
                      false);
}

Op NormPart::backward(BufferRef dy, BufferRef x, BufferRef dx, const BufferRef* d_residual) const {
  SegmentShape s = shape_;
  std::vector<BufferRef> reads{dy, x};
  reads.insert(reads.end(), statistics_.begin(), statistics_.end());
  s.residual = d_residual != nullptr;
  if (d_residual != nullptr) reads.push_back(*d_residual);
  return with_weights(compute(b_, name_, s, Phase::kBG, std::move(reads), {dx}), use_, views_,
                      true);
}

CrossAttention::CrossAttention(Builder& b, const LayerStrategy& strategy, const UnitUse& block)
    : b_(b),
      m_(b.model()),
      s_(strategy),
      l_(strategy),
      full_(strategy),
      use_(block),
      norm_(b, l_, block, "cross.norm", m_.hidden) {
  ORRERY_CHECK(s_.cp == 1 && !m_.qkv_bias && !m_.projection_bias && !m_.post_norm,
               "cross-attention is that of T5");
  full_.sequence_parallel = false;
  tensor_ = b_.tensor_group(l_);
  n_ = m_.heads / s_.tp;
  k_ = m_.kv_heads / s_.tp;
  encoded_ = b_.companion(l_, true, b_.layout_number());
  d_encoded_ = b_.companion_gradient(l_, true, b_.layout_number());
  q_ = wide("cross q", n_ * m_.head_dim);
  kv_ = wide("cross kv", 2 * k_ * m_.head_dim);
  o_ = wide("cross o", n_ * m_.head_dim);
  lse_ =
      b_.local("cross lse", l_, {b_.sequences(l_), n_, b_.tokens(full_)}, model::DType::kFloat32);
  a_ = shard("cross a");
}

BufferRef CrossAttention::shard(const std::string& name) {
  return b_.local(name, l_, {b_.sequences(l_), b_.tokens(l_), m_.hidden}, b_.dtype());
}
BufferRef CrossAttention::wide(const std::string& name, std::int64_t features) {
  return b_.local(name, l_, {b_.sequences(l_), b_.tokens(full_), features}, b_.dtype());
}
BufferRef CrossAttention::gathered(const char* what, BufferRef in, std::vector<Op>& ops) {
  if (!l_.sequence_parallel) return in;
  const BufferRef out = wide(std::string(what) + " whole", m_.hidden);
  ops.push_back(all_gather(b_, std::string("all_gather(") + what + ")", Stream::kTensor, tensor_,
                           in, out, 1));
  return out;
}
BufferRef CrossAttention::partial(const char* what, BufferRef out) {
  return l_.sequence_parallel ? wide(std::string(what) + " whole", m_.hidden) : out;
}
void CrossAttention::reduced(const char* what, BufferRef partial, BufferRef out,
                             std::vector<Op>& ops) {
  if (s_.tp == 1) return;
  if (l_.sequence_parallel)
    ops.push_back(reduce_scatter(b_, std::string("reduce_scatter(") + what + ")", Stream::kTensor,
                                 tensor_, partial, out, 1));
  else
    ops.push_back(
        all_reduce(b_, std::string("all_reduce(") + what + ")", Stream::kTensor, tensor_, out));
}

/// One of the three products, by its weights.
Op CrossAttention::product(const char* name, SegmentKind kind, std::int64_t in, std::int64_t out,
                           std::initializer_list<const char*> weights, Phase phase,
                           std::vector<BufferRef> reads, BufferRef to) {
  const std::vector<ParameterView> views{view_of(b_.program().units[use_.state.unit], weights)};
  return with_weights(
      compute(b_, name, b_.shape(kind, full_, in, out), phase, std::move(reads), {to}), use_, views,
      phase != Phase::kF);
}
Op CrossAttention::query(Phase phase, std::vector<BufferRef> reads, BufferRef to) {
  return product("cross_q", SegmentKind::kQkv, m_.hidden, n_ * m_.head_dim, {"cross.q.weight"},
                 phase, std::move(reads), to);
}
Op CrossAttention::keys(Phase phase, std::vector<BufferRef> reads, BufferRef to) {
  return product("cross_kv", SegmentKind::kQkv, m_.hidden, 2 * k_ * m_.head_dim,
                 {"cross.k.weight", "cross.v.weight"}, phase, std::move(reads), to);
}
Op CrossAttention::projection(Phase phase, std::vector<BufferRef> reads, BufferRef to) {
  return product("cross_projection", SegmentKind::kProjection, n_ * m_.head_dim, m_.hidden,
                 {"cross.proj.weight"}, phase, std::move(reads), to);
}
SegmentShape CrossAttention::core() const {
  SegmentShape s = b_.shape(SegmentKind::kAttentionBlock, full_, 0, 0);
  s.heads = n_;
  s.kv_heads = k_;
  s.head_dim = m_.head_dim;
  s.kv_tokens = s.tokens;
  s.causal = false;
  return s;
}
Op CrossAttention::add(const char* name, BufferRef what, BufferRef to) {
  SegmentShape s = b_.shape(SegmentKind::kAccumulate, l_, 0, 0);
  s.elements = b_.program().buffers[to.buffer].elements();
  return compute(b_, name, s, Phase::kF, {what}, {}, {to});
}

void CrossAttention::forward(BufferRef y, BufferRef out, std::vector<Op>& ops) {
  ops.push_back(norm_.forward(y, a_));
  const BufferRef a = gathered("cross a", a_, ops);
  ops.push_back(query(Phase::kF, {a}, q_));
  const BufferRef encoded = gathered("encoded", encoded_, ops);
  ops.push_back(keys(Phase::kF, {encoded}, kv_));
  ops.push_back(compute(b_, "cross_attention", core(), Phase::kF, {q_, kv_}, {o_, lse_}));
  const BufferRef p = shard("cross p"), part = partial("cross p", p);
  ops.push_back(projection(Phase::kF, {o_}, part));
  reduced("cross p", part, p, ops);
  ops.push_back(compute(b_, "residual_cross",
                        b_.shape(SegmentKind::kResidual, l_, m_.hidden, m_.hidden), Phase::kF,
                        {y, p}, {out}));
}

void CrossAttention::backward(BufferRef d, BufferRef y, BufferRef out, std::vector<Op>& ops) {
  const bool sp = l_.sequence_parallel;
  const BufferRef dp = gathered("d cross p", d, ops), d_o = wide("d cross o", n_ * m_.head_dim);
  ops.push_back(projection(Phase::kBG, {dp, o_}, d_o));
  const BufferRef dq = wide("d cross q", n_ * m_.head_dim),
                  dkv = wide("d cross kv", 2 * k_ * m_.head_dim);
  ops.push_back(
      compute(b_, "cross_attention", core(), Phase::kB, {d_o, q_, kv_, o_, lse_}, {dq, dkv}));
  const BufferRef de = shard("d encoded"), de_part = partial("d encoded", de);
  ops.push_back(keys(Phase::kBG, {dkv, sp ? wide("encoded whole", m_.hidden) : encoded_}, de_part));
  reduced("d encoded", de_part, de, ops);
  ops.push_back(add("add(d encoded)", de, d_encoded_));
  const BufferRef da = shard("d cross a"), da_part = partial("d cross a", da);
  ops.push_back(query(Phase::kBG, {dq, sp ? wide("cross a whole", m_.hidden) : a_}, da_part));
  reduced("d cross a", da_part, da, ops);
  ops.push_back(norm_.backward(da, y, out, &d));
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
    case model::BlockEntry::kPatchMerging: {
      const auto local = [&](const char* name, std::int64_t features) {
        return b.local(name, l, {b.sequences(l), b.tokens(l), features}, b.dtype());
      };
      norm_.emplace(b, l, block, "merge.norm", 2 * m_.hidden);
      joined_ = local("joined", 2 * m_.hidden);
      d_joined_ = local("d joined", 2 * m_.hidden);
      x_ = local("merged", m_.hidden);
      dx_ = local("d merged", m_.hidden);
      product_ = b.shape(SegmentKind::kPatchProduct, l, 2 * m_.hidden, m_.hidden);
      return;
    }
    case model::BlockEntry::kEncoderEnd:
      norm_.emplace(b, l, block, "encoder_norm", m_.hidden);
      x_ = b.companion(l, false, b.layout_number());
      dx_ = b.companion_gradient(l, false, b.layout_number());
      joined_ = b.companion(l, true, b.layout_number());
      d_joined_ = b.companion_gradient(l, true, b.layout_number());
      return;
  }
}

std::vector<Op> BlockStart::forward() const {
  if (!norm_) return {};
  std::vector<Op> ops{norm_->forward(from_, joined_)};
  if (m_.entry == model::BlockEntry::kPatchMerging)
    ops.push_back(with_weights(compute(b_, "merge", product_, Phase::kF, {joined_}, {x_}), use_,
                               merge_views(), false));
  return ops;
}

std::vector<Op> BlockStart::backward() const {
  if (!norm_) return {};
  std::vector<Op> ops;
  if (m_.entry == model::BlockEntry::kPatchMerging)
    ops.push_back(
        with_weights(compute(b_, "merge", product_, Phase::kBG, {dx_, joined_}, {d_joined_}), use_,
                     merge_views(), true));
  ops.push_back(norm_->backward(d_joined_, from_, d_from_, nullptr));
  return ops;
}

bool BlockStart::outlives(const BufferRef& r) const {
  if (r == d_from_) return true;
  if (m_.entry == model::BlockEntry::kEncoderEnd) return r == dx_;
  if (!m_.cross_attention) return false;
  const BufferDecl& decl = b_.program().buffers[r.buffer];
  return decl.scope == Scope::kMicroBatch && decl.category == BufferCategory::kActivation;
}

bool BlockStart::makes_companion(const Op& op) const {
  return m_.entry == model::BlockEntry::kEncoderEnd &&
         std::ranges::find(op.writes, joined_) != op.writes.end();
}

std::vector<ParameterView> BlockStart::merge_views() const {
  return {view_of(b_.program().units[use_.state.unit], {"merge.weight"})};
}

LayerPair decoder_end_pair(Builder& b, const Layout& l) {
  LayerPair pair;
  const BufferRef d = b.companion_gradient(l, true, b.layout_number());
  SegmentShape s = b.shape(SegmentKind::kZeroGradient, l, 0, 0);
  s.elements = b.program().buffers[d.buffer].elements();
  pair.backward.push_back(compute(b, "zero(d encoder output)", s, Phase::kF, {}, {d}));
  return pair;
}

}  // namespace orrery::plan
