/// \file
/// What mixes tokens beside plain attention: norms of queries and keys in front of it, latent
/// attention, scans.
#include "base/check.h"
#include "base/numbers.h"
#include "model/scan.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {
namespace {

ParameterView taps(const Builder& b, const UnitUse& use) {
  return b.view(use, {"attn.taps.x.weight", "attn.taps.b.weight", "attn.taps.c.weight"});
}

/// The tensors of model/scan.h.
Views views_of_scan(const Builder& b, const UnitUse& use) {
  switch (b.model().mixer) {
    case model::Mixer::kMamba2:
      return {taps(b, use),
              b.view(use, {"attn.taps.x.bias", "attn.taps.b.bias", "attn.taps.c.bias", "attn.decay",
                           "attn.skip", "attn.steps.bias", "attn.gain.weight"})};
    case model::Mixer::kDeltaNet:
      return {taps(b, use), b.view(use, {"attn.decay", "attn.steps.bias"}),
              b.view(use, {"attn.gain.weight"})};
    default: return {b.view(use, {"attn.gain.weight"})};
  }
}

AttentionPart scan_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                        const AttentionEnds& ends) {
  const ModelSpec& m = b.model();
  Layout l(strategy);
  l.sequence_parallel = false;
  ORRERY_CHECK(strategy.cp == 1 && m.scan.heads % strategy.tp == 0 &&
               m.scan.groups % strategy.tp == 0);
  SegmentShape s =
      b.shape(kScan, l, m.qkv_features() / strategy.tp, m.mixed_features() / strategy.tp);
  s.heads = m.scan.heads / strategy.tp;
  s.kv_heads = m.scan.groups / strategy.tp;
  s.head_dim = m.scan.head_dim;
  s.state = m.scan.state;
  s.kernel = m.scan.kernel;
  s.chunk = m.scan.chunk;
  s.delta = m.mixer == model::Mixer::kDeltaNet;
  if (m.mixer == model::Mixer::kLightning) {
    s.alibi = m.scan.heads;
    s.parts = strategy.tp;
    s.part_stride = l.tensor_stride();
  }
  const Views views = views_of_scan(b, use);
  for (const std::int64_t elements : model::scan_weights(s)) s.weights += elements;
  const BufferRef y = b.local("scan", l, {b.sequences(l), b.tokens(l), s.out}, b.dtype());
  AttentionPart part;
  part.forward.push_back(
      with_weights(compute(b, "scan", s, kF, {ends.qkv}, {ends.o, y}), use, views));
  part.backward.push_back(
      with_weights(compute(b, "scan", s, kBG, {ends.d_o, ends.qkv, y}, {ends.dqkv}), use, views));
  return part;
}

}  // namespace

ParameterView scan_weights(const Builder& b, const UnitUse& use) {
  if (b.model().scan_steps() == 0)
    return b.view(use, {"attn.z.weight", "attn.x.weight", "attn.b.weight", "attn.c.weight"});
  return b.view(use, {"attn.z.weight", "attn.x.weight", "attn.b.weight", "attn.c.weight",
                      "attn.steps.weight"});
}

AttentionPart mixer_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                         const AttentionEnds& ends) {
  const ModelSpec& m = b.model();
  if (m.scans()) return scan_part(b, strategy, use, ends);
  // Llama 4 norms what it rotates.
  const bool plain = m.qk_norm == model::QkNorm::kPlain;
  if (m.qk_norm == model::QkNorm::kNone || (plain && !m.rotates))
    return attention_part(b, strategy, use, ends);
  Layout l(strategy);
  l.sequence_parallel = false;
  SegmentShape s = b.shape(kHeadNorm, l, 0, 0);
  s.heads = m.heads / strategy.tp;
  s.kv_heads = m.kv_heads / strategy.tp;
  s.head_dim = m.head_dim;
  s.whole = m.qk_norm == model::QkNorm::kWhole;
  s.bias = !plain;
  ORRERY_CHECK(!s.whole || strategy.tp == 1, "a norm over all heads is not split");
  Views views;
  if (s.bias) views = {b.view(use, {"attn.q_norm.weight"}), b.view(use, {"attn.k_norm.weight"})};
  AttentionEnds inner = ends;
  const auto like = [&](const char* name, BufferRef r) {
    return b.local(name, l, b.decl(r).shape, b.decl(r).dtype);
  };
  inner.qkv = like("qkv normed", ends.qkv);
  inner.dqkv = like("dqkv normed", ends.dqkv);
  AttentionPart part = attention_part(b, strategy, use, inner);
  Op forward = compute(b, "qk_norm", s, kF, {ends.qkv}, {inner.qkv}),
     backward = compute(b, "qk_norm", s, s.bias ? kBG : kB, {inner.dqkv, ends.qkv}, {ends.dqkv});
  if (s.bias) {
    forward = with_weights(std::move(forward), use, views);
    backward = with_weights(std::move(backward), use, views);
  }
  part.forward.insert(part.forward.begin(), std::move(forward));
  part.backward.push_back(std::move(backward));
  return part;
}

AttentionPart gated_mixer_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                               const AttentionEnds& ends, BufferRef gate, BufferRef dgate) {
  Layout l(strategy);
  l.sequence_parallel = false;
  const std::int64_t features = b.decl(ends.o).shape.back();
  const auto like = [&](const char* name) {
    return b.local(name, l, b.decl(ends.o).shape, b.dtype());
  };
  const BufferRef mixed = like("o mixed"), d_mixed = like("do mixed");
  AttentionPart part = mixer_part(b, strategy, use, {ends.qkv, mixed, d_mixed, ends.dqkv});
  SegmentShape s = b.shape(kActivation, l, 2 * features, features);
  s.activation = model::Activation::kSigmoid;
  s.gated = true;
  part.forward.push_back(compute(b, "output_gate", s, kF, {gate, mixed}, {ends.o}));
  part.backward.insert(part.backward.begin(),
                       compute(b, "output_gate", s, kB, {ends.d_o, gate, mixed}, {dgate, d_mixed}));
  return part;
}

LatentMixer::LatentMixer(Builder& b, const LayerStrategy& strategy, const UnitUse& block,
                         const AttentionEnds& ends)
    : TensorPart(b, strategy),
      use_(block),
      ends_(ends),
      q_features_(m_.heads / s_.tp * m_.head_dim),
      kv_features_(m_.heads / s_.tp * (m_.head_dim - m_.rope_dim + m_.value_dim)) {
  ORRERY_CHECK(s_.cp == 1, "latent attention is not split over a context group");
  if (m_.q_rank > 0) {
    q_norm_.emplace(b, l_, block, "q_latent", "attn.q_latent", m_.q_rank);
    t_ = narrow("q latent", m_.q_rank);
    t_normed_ = narrow("q latent normed", m_.q_rank);
  }
  kv_norm_.emplace(b, l_, block, "kv_latent", "attn.kv_latent", m_.kv_rank);
  c_ = narrow("kv latent", m_.kv_rank);
  c_normed_ = narrow("kv latent normed", m_.kv_rank);
  r_ = narrow("rotated key", m_.rope_dim);
  q_ = wide("latent q", q_features_);
  kv_ = wide("latent kv", kv_features_);
  lse_ = b_.local("lse", l_, {b_.sequences(l_), m_.heads / s_.tp, b_.tokens(full_)}, kFloat32);
  if (!m_.indexed()) return;
  ORRERY_CHECK(s_.tp == 1, "an indexer learns from all heads");
  index_ = {narrow("index q", m_.index_queries()), narrow("index k", m_.indexer.dim),
            narrow("index w", m_.indexer.heads)};
  least_ = b_.local("least index score", l_, {b_.sequences(l_), b_.tokens(l_)}, kFloat32);
}

BufferRef LatentMixer::narrow(const char* name, std::int64_t columns) {
  return b_.tensor(name, l_, columns);
}

Op LatentMixer::product(const char* name, SegmentKind kind, const Layout& l, std::int64_t in,
                        std::int64_t out, Names weights, Phase phase, BufferRefs reads,
                        BufferRef to) {
  return with_weights(compute(b_, name, b_.shape(kind, l, in, out), phase, std::move(reads), {to}),
                      use_, {b_.view(use_, weights)});
}

Op LatentMixer::down(const char* name, std::int64_t out, Names weights, Phase phase,
                     BufferRefs reads, BufferRef to) {
  return product(name, kLatentProduct, l_, m_.hidden, out, weights, phase, std::move(reads), to);
}

Op LatentMixer::query(Phase phase, BufferRefs reads, BufferRef to) {
  return product("q_up", kQkv, full_, m_.q_rank > 0 ? m_.q_rank : m_.hidden, q_features_,
                 {"attn.q.weight"}, phase, std::move(reads), to);
}

Op LatentMixer::keys(Phase phase, BufferRefs reads, BufferRef to) {
  return product("kv_up", kQkv, full_, m_.kv_rank, kv_features_, {"attn.kv_up.weight"}, phase,
                 std::move(reads), to);
}

SegmentShape LatentMixer::core() const {
  SegmentShape s = b_.shape(kLatentAttention, full_, 0, 0);
  s.heads = s.kv_heads = m_.heads / s_.tp;
  s.head_dim = m_.head_dim;
  s.value_dim = m_.value_dim;
  s.rope_dim = m_.rope_dim;
  s.rotary = true;
  s.rope_theta = m_.rope_theta;
  s.rope = m_.rope;
  s.causal = m_.causal;
  s.score_scale = m_.score_scale;
  s.parts = s_.tp;
  if (!m_.indexed()) return s;
  s.index_heads = m_.indexer.heads;
  s.index_dim = m_.indexer.dim;
  s.top_k = m_.indexer.keys;
  s.in = m_.kv_rank;
  return s;
}

void LatentMixer::index_products(Phase phase, BufferRef in, const BufferRefs& of, Ops& ops) {
  struct IndexProduct {
    const char* name;
    const char* weight;
    BufferRef input;
    std::int64_t in, out;
  };
  const IndexProduct products[] = {
      {"index_q", "attn.index_q.weight", t_normed_, m_.q_rank, m_.index_queries()},
      {"index_k", "attn.index_k.weight", in, m_.hidden, m_.indexer.dim},
      {"index_w", "attn.index_w.weight", in, m_.hidden, m_.indexer.heads}};
  for (std::size_t i = 0; i < of.size(); ++i) {
    const IndexProduct& p = products[i];
    const SegmentShape shape = b_.shape(kLatentProduct, l_, p.in, p.out);
    const bool forward = phase == kF;
    ops.push_back(with_weights(compute(b_, p.name, shape, phase,
                                       forward ? BufferRefs{p.input} : BufferRefs{of[i], p.input},
                                       forward ? BufferRefs{of[i]} : BufferRefs{}),
                               use_, {b_.view(use_, {p.weight})}));
  }
}

Op LatentMixer::attention(Phase phase, BufferRefs reads, BufferRefs writes) {
  Op op = compute(b_, "attention", core(), phase, std::move(reads), std::move(writes));
  if (!m_.indexed()) return op;
  return with_weights(
      std::move(op), use_,
      {b_.view(use_, {"attn.index_norm.weight"}), b_.view(use_, {"attn.index_norm.bias"})});
}

void LatentMixer::forward(BufferRef in, Ops& ops) {
  BufferRef query_input = in;
  if (q_norm_) {
    ops.push_back(down("q_down", m_.q_rank, {"attn.q_down.weight"}, kF, {in}, t_));
    ops.push_back(q_norm_->forward(t_, t_normed_));
    query_input = t_normed_;
  }
  ops.push_back(down("kv_down", m_.kv_rank, {"attn.kv_down.weight"}, kF, {in}, c_));
  ops.push_back(kv_norm_->forward(c_, c_normed_));
  ops.push_back(down("rotated_key", m_.rope_dim, {"attn.rotated.weight"}, kF, {in}, r_));
  ops.push_back(query(kF, {gathered("query input", query_input, ops)}, q_));
  ops.push_back(keys(kF, {gathered("c normed", c_normed_, ops)}, kv_));
  const BufferRef r = gathered("r", r_, ops);
  index_products(kF, in, index_, ops);
  BufferRefs reads{q_, kv_, r}, writes{ends_.o, lse_};
  reads.insert(reads.end(), index_.begin(), index_.end());
  if (m_.indexed()) writes.push_back(least_);
  ops.push_back(attention(kF, std::move(reads), std::move(writes)));
}

void LatentMixer::backward(BufferRef in, BufferRef out, Ops& ops) {
  const BufferRef dq = wide("latent dq", q_features_), dkv = wide("latent dkv", kv_features_);
  const BufferRef dr = narrow("d rotated key", m_.rope_dim);
  BufferRefs reads{ends_.d_o, q_, kv_, whole("r", r_)}, writes{dq, dkv, whole("dr", dr)};
  reads.insert(reads.end(), index_.begin(), index_.end());
  reads.insert(reads.end(), {ends_.o, lse_});
  BufferRefs d_index;
  if (m_.indexed()) {
    reads.push_back(least_);
    d_index = {narrow("d index q", m_.index_queries()), narrow("d index k", m_.indexer.dim),
               narrow("d index w", m_.indexer.heads)};
    writes.insert(writes.end(), d_index.begin(), d_index.end());
  }
  ops.push_back(attention(m_.indexed() ? kBG : kB, std::move(reads), std::move(writes)));
  index_products(kG, in, d_index, ops);
  reduced("dr", dr, ops);
  const BufferRef dc_normed = narrow("d kv latent normed", m_.kv_rank),
                  dc = narrow("d kv latent", m_.kv_rank);
  ops.push_back(keys(kBG, {dkv, whole("c normed", c_normed_)}, whole("dc normed", dc_normed)));
  reduced("dc normed", dc_normed, ops);
  ops.push_back(kv_norm_->backward(dc_normed, c_, dc));
  const BufferRef of_rotated = shard("da of rotated key"), of_keys = shard("da of keys");
  ops.push_back(
      down("rotated_key", m_.rope_dim, {"attn.rotated.weight"}, kBG, {dr, in}, of_rotated));
  ops.push_back(down("kv_down", m_.kv_rank, {"attn.kv_down.weight"}, kBG, {dc, in}, of_keys));
  if (q_norm_) {
    const BufferRef dt_normed = narrow("d q latent normed", m_.q_rank),
                    dt = narrow("d q latent", m_.q_rank);
    ops.push_back(query(kBG, {dq, whole("query input", t_normed_)}, whole("dt normed", dt_normed)));
    reduced("dt normed", dt_normed, ops);
    ops.push_back(q_norm_->backward(dt_normed, t_, dt));
    ops.push_back(down("q_down", m_.q_rank, {"attn.q_down.weight"}, kBG, {dt, in}, out));
  } else {
    ops.push_back(query(kBG, {dq, whole("query input", in)}, whole("da", out)));
    reduced("da", out, ops);
  }
  ops.push_back(sum(b_, l_, "add(da of rotated key)", of_rotated, out));
  ops.push_back(sum(b_, l_, "add(da of keys)", of_keys, out));
}

}  // namespace orrery::plan
