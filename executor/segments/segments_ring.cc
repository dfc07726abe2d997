/// Ring attention (Liu et al., arXiv 2310.01889): the attention core in parts, own queries against
/// one block of keys after the other.
///
/// A block's keys and values are [b, t, 2kd]: k key heads, turned by their positions, then k value
/// heads. Merging the outputs o1, o2 of two sets of keys with log-sum-exps l1, l2:
///
///   l = log(e^l1 + e^l2),  o = e^(l1 - l) o1 + e^(l2 - l) o2
///
/// Backward of a block takes the merged o and l: its probabilities e^(s - l) are then those of the
/// whole softmax, and the parts of dq add up.
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>

#include <limits>

#include "executor/segments/attention_core.h"

namespace orrery::executor::kernels {
namespace {

/// The angles of this rank's positions.
RotaryTables::Table own_angles(const SegmentShape& s, const at::Device& device,
                               SegmentContext& context) {
  const RotaryTables::Table& all = context.rotary->get(s, device);
  const std::int64_t first = context.token_part(s) * s.tokens;
  return {all.cos.narrow(0, first, s.tokens), all.sin.narrow(0, first, s.tokens)};
}

SegmentShape unmasked(SegmentShape s) {
  s.causal = false;
  return s;
}

/// What a mask leaves of a block from another rank: half of the square (model/segment.h).
enum class Seen { kAll, kEarlyKeys, kByLateQueries };
Seen seen(const SegmentShape& s, const SegmentContext& context) {
  if (!s.causal) return Seen::kAll;
  return s.ring_step <= context.token_part(s) ? Seen::kEarlyKeys : Seen::kByLateQueries;
}

/// Chunks of one half as tokens in a row, along `dim`.
at::Tensor half(const SegmentShape& s, const at::Tensor& x, std::int64_t dim, int late) {
  return half_of(s, x, dim, late).flatten(dim, dim + 1);
}

/// put(to, from) for every chunk of one half of `to` along `dim` and its tokens in `part`.
template <class Put>
void each_chunk(const SegmentShape& s, const at::Tensor& to, const at::Tensor& part,
                std::int64_t dim, int late, Put put) {
  const std::int64_t chunk = s.chunk_tokens();
  for (std::int64_t at = 0; at < part.size(dim); at += chunk)
    put(to.narrow(dim, 2 * at + late * chunk, chunk), part.narrow(dim, at, chunk));
}
const auto copy_chunk = [](at::Tensor to, const at::Tensor& from) { to.copy_(from); };

void block_forward(const SegmentShape& s, AttentionInputs in, Seen what, Operands& operands) {
  if (what == Seen::kEarlyKeys) {
    in.k = half(s, in.k, 2, 0);
    in.v = half(s, in.v, 2, 0);
  }
  if (what != Seen::kByLateQueries) return write_outputs(core_forward(unmasked(s), in), operands);
  in.q = half(s, in.q, 2, 1);
  const auto [o, lse] = core_forward(unmasked(s), in);
  const at::Tensor all = operands.writes[0].make().zero_(),
                   sums = operands.writes[1].make().fill_(-std::numeric_limits<double>::infinity());
  each_chunk(s, heads_of(s, all, 0, s.heads), o.transpose(1, 2), 1, 1, copy_chunk);
  each_chunk(s, sums, lse, 2, 1, copy_chunk);
}

/// What of queries and keys the gradients are of.
struct BlockGradients {
  AttentionGradients of;
  bool late_queries = false, early_keys = false;  // of these alone
};
BlockGradients block_backward(const SegmentShape& s, AttentionInputs in, at::Tensor d,
                              AttentionOutputs out, Seen what) {
  const bool late = what == Seen::kByLateQueries, early = what == Seen::kEarlyKeys;
  if (early) {
    in.k = half(s, in.k, 2, 0);
    in.v = half(s, in.v, 2, 0);
  }
  if (late) {
    in.q = half(s, in.q, 2, 1);
    d = half(s, d, 2, 1);
    out = {half(s, out.o, 2, 1), half(s, out.lse, 2, 1).contiguous()};
  }
  return {core_backward(unmasked(s), in, d, out), late, early};
}

AttentionInputs inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& kv) {
  const at::Tensor k = heads_of(s, kv, 0, s.kv_heads), v = heads_of(s, kv, s.kv_heads, s.kv_heads);
  return core_inputs(s, heads_of(s, q, 0, s.heads), k, v);
}

/// [b, n, t] numbers of queries against [b, t, n, d].
at::Tensor per_query(const at::Tensor& x, const at::Tensor& o) {
  return x.transpose(1, 2).unsqueeze(-1).to(o.scalar_type());
}

}  // namespace

void attention_split(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const bool forward = phase == Phase::kF;
  at::Tensor packed = forward ? o.reads[0] : o.writes[0].make();
  at::Tensor q = forward ? o.writes[0].make() : o.reads[0],
             kv = forward ? o.writes[1].make() : o.reads[1];
  const auto carry = [&](std::int64_t first, const at::Tensor& part, std::int64_t part_first,
                         std::int64_t count, bool turned) {
    const at::Tensor side = heads_of(s, packed, first, count),
                     own = heads_of(s, part, part_first, count);
    const at::Tensor &from = forward ? side : own, &to = forward ? own : side;
    if (turned)
      rotate(s, to, from, own_angles(s, packed.device(), context), forward ? 1 : -1);
    else
      to.copy_(from);
  };
  carry(0, q, 0, s.heads, s.rotary);
  carry(s.heads, kv, 0, s.kv_heads, s.rotary);
  carry(s.heads + s.kv_heads, kv, s.kv_heads, s.kv_heads, false);
}

void attention_block(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const bool own = s.ring_step == 0;
  const Seen what = seen(s, context);
  if (phase == Phase::kF) {
    const AttentionInputs in = inputs(s, o.reads[0], o.reads[1]);
    if (own) return write_outputs(masked_forward(s, in), o);
    return block_forward(s, in, what, o);
  }
  at::Tensor& dq = o.writes[0].make();
  at::Tensor& dkv = o.writes[1].make();
  const AttentionInputs in = inputs(s, o.reads[1], o.reads[2]);
  const AttentionOutputs out{by_head(s, o.reads[3]), o.reads[4]};
  const at::Tensor d = by_head(s, o.reads[0]);
  const auto [of, late_queries, early_keys] =
      own ? BlockGradients{masked_backward(s, in, d, out)} : block_backward(s, in, d, out, what);
  const auto write = [&](const at::Tensor& to, const at::Tensor& from, bool part, int late,
                         auto put) {
    if (part)
      each_chunk(s, to, from.transpose(1, 2), 1, late, put);
    else
      put(to, from.transpose(1, 2));
  };
  const auto add_up = [&](const at::Tensor& to, const at::Tensor& from) {
    sum_groups(s, to, from);
  };
  if (late_queries) dq.zero_();
  if (early_keys) dkv.zero_();
  write(heads_of(s, dq, 0, s.heads), of.q, late_queries, 1, copy_chunk);
  write(heads_of(s, dkv, 0, s.kv_heads), of.k, early_keys, 0, add_up);
  write(heads_of(s, dkv, s.kv_heads, s.kv_heads), of.v, early_keys, 0, add_up);
}

void attention_merge(const SegmentShape& s, Phase, Operands& o, SegmentContext&) {
  at::Tensor &sum = o.updates[0], &lse = o.updates[1];
  const at::Tensor both = at::logaddexp(lse, o.reads[1]);
  heads_of(s, sum, 0, s.heads)
      .mul_(per_query(lse.sub_(both).exp_(), sum))
      .addcmul_(heads_of(s, o.reads[0], 0, s.heads), per_query(at::exp(o.reads[1].sub(both)), sum));
  lse.copy_(both);
}

}  // namespace orrery::executor::kernels
