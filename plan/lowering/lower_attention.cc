/// \file
/// The attention core of a block under every split of its tokens.
///
/// A rank has n = heads / tp query heads and k = kv_heads / tp key and value heads over t = s / cp
/// tokens of each of its b sequences. Bytes per rank and direction on the wire, e bytes an element,
/// d the head size:
///
///   cp = 1    attention over the whole sequence; nothing travels
///   Ulysses   qkv [b, t, (n+2k)d] -> [b, s, (n+2k)d/cp], whole attention over n/cp heads,
///             o [b, s, nd/cp] -> [b, t, nd]; two all-to-alls (arXiv 2309.14509):
///             (cp-1)/cp b t (2n+2k) d e forward, the same backward
///   ring      own queries against every rank's keys and values, which travel in cp - 1 shifts
///             beside the compute (arXiv 2310.01889):
///             (cp-1) b t 2kd e forward; backward twice that, and b t 2kd e to bring dk, dv home
///
/// Ring, step i: the block of the rank i places before is at hand while the next one travels. Under
/// a causal mask tokens lie in zig-zag order, so that every step is as long on every rank. Partial
/// outputs are merged by their log-sum-exp. Backward sends keys and values around again; the
/// gradients of a block follow it from rank to rank, each adds its share, and one more shift brings
/// the sum to the owner.

#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

/// Blocks of a stage are those of as many tokens.
model::ImageWindows windows_of(const ModelSpec& m, std::int64_t tokens) {
  model::ImageWindows windows{.tokens = tokens};
  bool before = true;
  for (const model::BlockRun& run : m.runs) {
    before = before && run.shape.token_share != m.token_share;
    if (before) windows.first_block += run.count;
    if (run.shape.entry == model::BlockEntry::kPatchMerging &&
        run.shape.token_share > m.token_share)
      ++windows.merges;
  }
  return windows;
}

class Attention {
 public:
  Attention(Builder& b, const LayerStrategy& s, const UnitUse& use, const AttentionEnds& ends)
      : b_(b), m_(b.model()), use_(use), l_(s), tp_(s.tp), ends_(ends) {
    l_.sequence_parallel = false;
    if (l_.cp > 1) context_ = b.context_group(l_);
    n_ = m_.heads / s.tp;
    k_ = m_.kv_heads / s.tp;
    t_ = b_.tokens(l_);
    bs_ = b_.sequences(l_);
  }

  AttentionPart whole() {
    const BufferRef lse = b_.local("lse", l_, {bs_, n_, t_}, kFloat32);
    core(n_, k_, t_, {ends_.qkv, ends_.o, ends_.d_o, ends_.dqkv}, lse);
    return std::move(part_);
  }

  AttentionPart ulysses() {
    const std::int64_t n = n_ / l_.cp, k = k_ / l_.cp, s = t_ * l_.cp, d = m_.head_dim;
    const BufferRef qkv = tensor("qkv by heads", s, (n + 2 * k) * d),
                    o = tensor("o by heads", s, n * d);
    const BufferRef d_o = tensor("do by heads", s, n * d),
                    dqkv = tensor("dqkv by heads", s, (n + 2 * k) * d);
    const BufferRef lse = b_.local("lse by heads", l_, {bs_, n, s}, kFloat32);
    const Extents sections{n_ * d, k_ * d, k_ * d};
    part_.forward = {trade("qkv", ends_.qkv, qkv, 2, sections)};
    part_.backward = {trade("do", ends_.d_o, d_o, 2, {})};
    core(n, k, s, {qkv, o, d_o, dqkv}, lse);
    part_.forward.push_back(trade("o", o, ends_.o, 1, {}));
    part_.backward.push_back(trade("dqkv", dqkv, ends_.dqkv, 1, sections));
    return std::move(part_);
  }

  AttentionPart ring() {
    q_ = queries("queries");
    lse_ = b_.local("lse", l_, {bs_, n_, t_}, kFloat32);
    ring_forward();
    ring_backward();
    return std::move(part_);
  }

 private:
  BufferRef tensor(const std::string& name, std::int64_t tokens, std::int64_t features) {
    return b_.local(name, l_, {bs_, tokens, features}, b_.dtype());
  }
  SegmentShape core_shape(std::int64_t n, std::int64_t k, std::int64_t tokens) {
    SegmentShape s = b_.shape(kAttention, l_, (n + 2 * k) * m_.head_dim, n * m_.head_dim);
    s.sequences *= tokens / m_.attention_span(tokens);  // windows are sequences of their own
    s.tokens = m_.attention_span(tokens);
    s.heads = n;
    s.kv_heads = k;
    s.head_dim = m_.head_dim;
    s.rotary = m_.position == model::PositionKind::kRotary;
    s.rope_theta = m_.rope_theta;
    s.causal = m_.causal;
    s.token_chunks = b_.token_chunks();
    s.rotary = s.rotary && m_.rotates;
    s.rope = m_.rope;
    s.reach = m_.reach < tokens ? m_.reach : 0;
    s.chunked = s.reach > 0 && m_.chunked;
    s.score_cap = m_.score_cap;
    s.score_scale = m_.score_scale;
    s.sinks = m_.sinks;
    if (m_.window > 0) s.weights = n * m_.relative_positions();
    if (m_.window > 0) s.windows = windows_of(m_, tokens);
    if (m_.position == model::PositionKind::kAlibi) {
      s.alibi = m_.heads;
      s.parts = tp_;
      s.part_stride = l_.tensor_stride();
    }
    return s;
  }
  /// The core over whole sequences of `tokens`, between `ends`.
  void core(std::int64_t n, std::int64_t k, std::int64_t tokens, const AttentionEnds& ends,
            BufferRef lse) {
    const SegmentShape shape = core_shape(n, k, tokens);
    Views views;
    if (m_.sinks) views.push_back(b_.view(use_, {"attn.sinks"}));
    if (m_.window > 0) views.push_back(b_.view(use_, {"attn.relative.weight"}));
    Op forward = compute(b_, "attention", shape, kF, {ends.qkv}, {ends.o, lse}),
       backward = compute(b_, "attention", shape, views.empty() ? kB : kBG,
                          {ends.d_o, ends.qkv, ends.o, lse}, {ends.dqkv});
    if (!views.empty()) {
      forward = with_weights(std::move(forward), use_, views);
      backward = with_weights(std::move(backward), use_, views);
    }
    part_.forward.push_back(std::move(forward));
    part_.backward.push_back(std::move(backward));
  }
  /// Tokens for features: `dim` (1 or 2) of `from` is split over the group.
  Op trade(const char* what, BufferRef from, BufferRef to, int dim, Extents sections) {
    Op op = collective(b_, Collective::kAllToAll, what, Stream::kTensor, context_, from, to, dim);
    op.sections = std::move(sections);
    return op;
  }

  // ---- ring ----
  SegmentShape ring_shape(SegmentKind kind, int step) {
    SegmentShape s = core_shape(n_, k_, t_);
    s.kind = kind;
    s.in = s.out = 0;
    b_.share_tokens(s, l_);
    s.ring_step = step;
    if (kind != kAttentionSplit) s.rotary = false;  // turned before they travel
    if (kind == kAttentionBlock) s.kv_tokens = t_;
    return s;
  }
  BufferRef queries(const std::string& name) { return tensor(name, t_, n_ * m_.head_dim); }
  /// Keys and values, or their gradients, `step` places from home.
  BufferRef block(const char* what, int step) {
    return tensor(fmt::format("{} {}", what, step), t_, 2 * k_ * m_.head_dim);
  }
  /// Backward has a travel of its own ("kv back"), which starts from the block that forward kept.
  BufferRef back(int step) { return block(step == 0 ? "kv" : "kv back", step); }
  Op shift(const char* what, int step, BufferRef from, BufferRef to) {
    return collective(b_, Collective::kPointToPoint, fmt::format("{} {}", what, step),
                      Stream::kTensor, context_, from, to);
  }

  void ring_forward() {
    Ops& f = part_.forward;
    f.push_back(compute(b_, "attention split", ring_shape(kAttentionSplit, 0), kF, {ends_.qkv},
                        {q_, block("kv", 0)}));
    for (int i = 0; i < l_.cp; ++i) {
      if (i + 1 < l_.cp) f.push_back(shift("kv", i + 1, block("kv", i), block("kv", i + 1)));
      const BufferRef o = i == 0 ? ends_.o : queries(fmt::format("o {}", i));
      const BufferRef lse =
          i == 0 ? lse_ : b_.local(fmt::format("lse {}", i), l_, {bs_, n_, t_}, kFloat32);
      f.push_back(compute(b_, fmt::format("attention {}", i), ring_shape(kAttentionBlock, i), kF,
                          {q_, block("kv", i)}, {o, lse}));
      if (i == 0) continue;
      f.push_back(compute(b_, fmt::format("merge {}", i), ring_shape(kAttentionMerge, i), kF,
                          {o, lse}, {}, {ends_.o, lse_}));
    }
  }

  void ring_backward() {
    Ops& r = part_.backward;
    const BufferRef dq = queries("dqueries");
    for (int i = 0; i < l_.cp; ++i) {
      if (i + 1 < l_.cp) r.push_back(shift("kv", i + 1, back(i), back(i + 1)));
      if (i > 0) r.push_back(shift("dkv", i, block("dkv", i - 1), block("dkv", i)));
      const BufferRef dq_part = i == 0 ? dq : queries(fmt::format("dqueries {}", i));
      const BufferRef dkv_part = block(i == 0 ? "dkv" : "dkv part", i);
      r.push_back(compute(b_, fmt::format("attention {}", i), ring_shape(kAttentionBlock, i), kB,
                          {ends_.d_o, q_, back(i), ends_.o, lse_}, {dq_part, dkv_part}));
      if (i == 0) continue;
      r.push_back(sum(b_, l_, fmt::format("add(dq {})", i), dq_part, dq));
      r.push_back(sum(b_, l_, fmt::format("add(dkv {})", i), dkv_part, block("dkv", i)));
    }
    r.push_back(shift("dkv", l_.cp, block("dkv", l_.cp - 1), block("dkv", l_.cp)));
    r.push_back(compute(b_, "attention split", ring_shape(kAttentionSplit, 0), kB,
                        {dq, block("dkv", l_.cp)}, {ends_.dqkv}));
  }

  Builder& b_;
  const ModelSpec& m_;
  UnitUse use_;
  Layout l_;
  int tp_;
  AttentionEnds ends_;
  GroupId context_;
  std::int64_t n_ = 0, k_ = 0, t_ = 0, bs_ = 0;  // local query and key heads, tokens, sequences
  BufferRef q_, lse_;
  AttentionPart part_;
};

}  // namespace

AttentionPart attention_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                             const AttentionEnds& ends) {
  Attention attention(b, strategy, use, ends);
  if (strategy.cp == 1) return attention.whole();
  return strategy.context == ContextKind::kRing ? attention.ring() : attention.ulysses();
}

bool is_attention_core(const Program& program, const Op& op) {
  if (op.kind == OpKind::kCollective) return op.collective == Collective::kPointToPoint;
  if (op.kind != OpKind::kCompute) return false;
  const SegmentKind kind = program.segments[op.segment].kind;
  return kind == kAttention || kind == kAttentionBlock || kind == kAttentionMerge ||
         kind == kLatentAttention || kind == kScan;
}

}  // namespace orrery::plan
