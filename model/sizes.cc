/// \file
/// Work of every segment: FLOPs, memory traffic, temporaries.
///
/// Symbols: b sequences, s tokens, T = b s, h = in, v = out (vocabulary rows of the shard), f = out
/// (activation), n, k query and key/value heads, d head size, E elements (of experts: E of them, k
/// per token, m gates, R rows); e bytes of an element of the compute type; gradients, statistics
/// and moments are fp32 (4 bytes), token ids int64 (8 bytes). [bf16] and [..] terms apply under the
/// condition named.
///
///   kind, phase          FLOPs                      bytes (each operand once)
///                                                   + transient bytes, if any
///   kLoadTokens/Targets  0                          8T ids, eT pixels
///   kEmbedding    F      0                          8T + 2eTh (rows gathered)
///                                                   + [shard] 9T
///                 G      Th                         8T + eTh + 8Th (rows of dw read and written)
///                                                   + [bf16] 4Th + [shard] 9T + eTh
///   kPositionAdd  F      Th                         2eTh + esh
///                 G      Th                         eTh + 8sh
///                                                   + 4sh
///   kNorm         F      8Th layer, 4Th RMS         2eTh + e w h + 4 w T   (w: 2 layer, 1 RMS)
///                                                   + [bf16] 8Th layer, 4Th RMS
///                 B      11Th, 8Th RMS              3eTh + e h + 4 w T + [residual] eTh
///                                                   + RMS 4Th, [bf16] 12Th
///                 G      3Th, 2Th RMS               2eTh + 4 w T + 8 w h
///                                                   + as B
///   linears       F      2T·in·out + [bias] T out   e(T·in + in·out + T·out + [bias] out)
///                                                   (a later slice: + eT·out, y is read too)
///                 B      2T·in·out                  e(T·out + in·out + T·in)
///                 G      2T·in·out + [bias] T out   e(T·out + T·in) + 8(in·out + [bias] out)
///                                                   + [bf16] e·in·out
///   kAttention    F      4 T s n d                  e T (2n+2k) d + 4Tn
///                                                   + [rotary] eT(n+k)d + [k<n] 2eTnd
///                 B      10 T s n d                 e T (4n+4k) d + 4Tn
///                                                   + 3eTnd + the same two
///   kAttentionSplit F, B 0                          2e T (n+2k) d
///   kAttentionBlock F    4 T r n d                  e (2T n + 2K k) d + 4Tn
///                                                   (r kv_tokens, K = b r)
///                                                   + [k<n] 2eKnd
///                 B      10 T r n d                 e (4T n + 4K k) d + 4Tn
///                                                   + e(T + 2K)nd + the same
///   kAttentionMerge F    3Tnd                       3eTnd + 12Tn
///                                                   + 12Tn
///   kResidual     F      Th (1 + [bias])            3eTh + [bias] eh
///                 G      [bias] Th                  [bias] eTh + 8h
///   kActivation   F      cTf + [gated] Tf           eT(f + u)   (u = f, 2f when gated)
///                 B      2cTf + [gated] 3Tf         eT(f + 2u)
///   kRouter       F      2TEh + (3+k)TE             e(Th + Eh) + 4TE + 4Tm + 8Tk
///                                                   + eTE   (E counts the shared gate)
///                 B      2TEh + 4TE                 e(Th + Eh) + 4TE + 8Tm + 8Tk
///                                                   + 4TE, [bf16] + eTE
///                 G      2TEh                       eTh + 8Eh + 4TE + 8Tm + 8Tk
///                                                   + as B, [bf16] + eEh
///   kDispatch     F      0                          e(Th + Rh) + 16Tk
///                                                   + 16Tk
///                 B      kTh                        e(Th + Rh) + 8Tk
///                                                   + [bf16] 4Th
///   kExpertIn/Out        as linears with T = R rows and a product [in, out] for each expert
///   kCombine      F      2mTh                       e(Rh + Th) + 4Tm + 8Tk + [shared] eTh
///                                                   + [bf16] 4Th
///                 B      3mTh                       e(2Rh + Th) + 8Tm + 8Tk + [shared] 2eTh
///                                                   + [bf16] 4Th
///   kPatchProduct        as linears
///   kPool         F, B   b r h (r kv_tokens)        F e(b r h + b h), B e(Th + b h)
///   kLossMax      F      Tv                         eTv + 4T
///   kLossSum      F      3Tv                        eTv + 20T
///                                                   + 4cv, c = rows of 2^18 logits, at most T
///   kLoss         F      3T                         8T + 8
///                 B      4Tv                        2eTv + 20T
///                                                   + [bf16] 4cv
///   kSlice        F      0                          2eE
///   kZeroGradient F      0                          eE
///   kAccumulate   F      E                          3eE
///   kAdamW        F      14E                        28E fp32, 30E bf16 (plus master)
///
/// BG is B and G together with shared operands (the incoming gradient, and what both read) counted
/// once and the larger of the two transients. Attention counts its products over the full s² (the
/// base of MFU), not the half that a causal mask leaves, and not its softmax and rotation; backward
/// recomputes the scores (5 products for 2). c: GELU 8, SiLU 4, ReLU 1. Transients are those of
/// plain ATen calls on preallocated operands; vectors of T, s, h or `out` numbers are left out.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "model/segment.h"

namespace orrery::model {
namespace {

constexpr double kIdBytes = 8, kFloatBytes = 4, kFloatReadWrite = 8;

/// The numbers that most rows of the table share. Doubles: exact to 2^53, no overflow beyond.
struct Sizes {
  explicit Sizes(const SegmentShape& s)
      : e(static_cast<double>(element_bytes(s.dtype))),
        t(static_cast<double>(s.token_count())),
        in(static_cast<double>(s.in)),
        out(static_cast<double>(s.out)),
        elements(static_cast<double>(s.elements)) {}
  double e, t, in, out, elements;
};

/// Temporary bytes of `elements` numbers, in integers: memory is summed exactly.
std::int64_t temporary(const SegmentShape& s, std::int64_t elements) {
  return element_bytes(s.dtype) * elements;
}
std::int64_t temporary_float(std::int64_t elements) { return 4 * elements; }

bool is_bf16(const SegmentShape& s) { return s.dtype == DType::kBFloat16; }
bool has_b(Phase p) { return p == Phase::kB || p == Phase::kBG; }
bool has_g(Phase p) { return p == Phase::kG || p == Phase::kBG; }

PhaseWork make(double flops, double bytes, std::int64_t transient_bytes) {
  return {
      .flops = base::Flops(flops), .bytes = base::Bytes(bytes), .transient_bytes = transient_bytes};
}

PhaseWork load(const SegmentShape& s, Phase phase) {
  if (phase != Phase::kF) return {};
  return make(0, Sizes(s).e * Sizes(s).t, 0);
}

// A shard of the vocabulary shifts the ids (8T), marks those it does not own (T), and zeroes their
// rows.
PhaseWork embedding(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.out > 0);
  const Sizes z(s);
  const std::int64_t tokens = s.token_count();
  const bool shard = s.out < s.vocab;
  const std::int64_t ids = shard ? 9 * tokens : 0;
  if (phase == Phase::kF) return make(0, kIdBytes * z.t + 2 * z.e * z.t * z.in, ids);
  if (!has_g(phase)) return {};
  const std::int64_t masked = shard ? temporary(s, tokens * s.in) : 0;
  const std::int64_t widened = is_bf16(s) ? temporary_float(tokens * s.in) : 0;
  return make(z.t * z.in, kIdBytes * z.t + z.e * z.t * z.in + kFloatReadWrite * z.t * z.in,
              ids + masked + widened);
}

// Rows 0 .. s-1 of the position table; the single row of BERT's type table is left out as a vector.
PhaseWork position_add(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0);
  const Sizes z(s);
  const double rows = static_cast<double>(s.tokens) * z.in;
  if (phase == Phase::kF) return make(z.t * z.in, 2 * z.e * z.t * z.in + z.e * rows, 0);
  if (!has_g(phase)) return {};
  return make(z.t * z.in, z.e * z.t * z.in + kFloatReadWrite * rows,
              temporary_float(s.tokens * s.in));
}

// Fused layer norm; RMS: the product dy * x. bf16: fp32 copies of what is read, and the result
// before it is rounded.
PhaseWork norm(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0);
  const Sizes z(s);
  const bool layer = s.norm == NormKind::kLayerNorm;
  const double vectors = layer ? 2 : 1;  // gain and bias, mean and rstd; or gain, rstd
  const double x = z.t * z.in;
  const double statistics = kFloatBytes * vectors * z.t;
  const std::int64_t one = temporary_float(s.token_count() * s.in);
  if (phase == Phase::kF) {
    const std::int64_t transient = !is_bf16(s) ? 0 : layer ? 2 * one : one;
    return make((layer ? 8 : 4) * x, 2 * z.e * x + z.e * vectors * z.in + statistics, transient);
  }
  double flops = 0;
  double bytes = 2 * z.e * x + statistics;  // dy, x
  if (has_b(phase)) {
    flops += (layer ? 11 : 8) * x;
    bytes += z.e * x + z.e * z.in + (s.residual ? z.e * x : 0);  // dx, gain, d_residual
  }
  if (has_g(phase)) {
    flops += (layer ? 3 : 2) * x;
    bytes += kFloatReadWrite * vectors * z.in;
  }
  return make(flops, bytes, is_bf16(s) ? 3 * one : layer ? 0 : one);
}

// addmm straight into the output; the weight gradient accumulates by addmm into its fp32 view, in
// bf16 by way of a product.
PhaseWork linear(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.out > 0);
  const Sizes z(s);
  const std::int64_t matrices =
      s.kind == SegmentKind::kExpertIn || s.kind == SegmentKind::kExpertOut ? s.experts : 1;
  ORRERY_CHECK(matrices > 0);
  const double product = 2 * z.t * z.in * z.out,
               weights = static_cast<double>(matrices) * z.in * z.out;
  const double bias = s.bias ? z.out : 0;
  const double x = z.e * z.t * z.in, y = z.e * z.t * z.out, w = z.e * weights;
  if (phase == Phase::kF)
    return make(product + z.t * bias, x + w + (s.slice > 0 ? 2 * y : y) + z.e * bias, 0);
  double flops = 0;
  double bytes = y;  // the incoming gradient
  if (has_b(phase)) {
    flops += product;
    bytes += w + x;
  }
  if (has_g(phase)) {
    flops += product + z.t * bias;
    bytes += x + kFloatReadWrite * (weights + bias);
  }
  return make(flops, bytes, has_g(phase) && is_bf16(s) ? temporary(s, matrices * s.in * s.out) : 0);
}

// Flash attention on views of qkv: copies of q and k once rotated, of k and v once repeated to n
// heads; backward returns dq, dk, dv of n heads each, which are then packed into dqkv.
PhaseWork attention(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  const double n = static_cast<double>(s.heads), k = static_cast<double>(s.kv_heads),
               d = static_cast<double>(s.head_dim);
  const double product = 2 * z.t * static_cast<double>(s.tokens) * n * d;
  const double lse = kFloatBytes * z.t * n;
  const std::int64_t columns = s.token_count() * s.head_dim;
  const std::int64_t rotated = s.rotary ? temporary(s, columns * (s.heads + s.kv_heads)) : 0;
  const std::int64_t repeated = s.kv_heads < s.heads ? temporary(s, 2 * columns * s.heads) : 0;
  if (phase == Phase::kF)
    return make(2 * product, z.e * z.t * (2 * n + 2 * k) * d + lse, rotated + repeated);
  const std::int64_t separate = temporary(s, 3 * columns * s.heads);
  return make(5 * product, z.e * z.t * (4 * n + 4 * k) * d + lse, separate + rotated + repeated);
}

// Turns q and k by the angles of their positions straight into place; backward turns the gradients
// back.
PhaseWork attention_split(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  return make(0, 2 * z.e * z.t * static_cast<double>((s.heads + 2 * s.kv_heads) * s.head_dim), 0);
}

// As attention, on queries and keys that are turned already; with kv_tokens = tokens the same
// products.
PhaseWork attention_block(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.kv_tokens > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  const double n = static_cast<double>(s.heads), k = static_cast<double>(s.kv_heads),
               d = static_cast<double>(s.head_dim);
  const std::int64_t keys = s.sequences * s.kv_tokens;
  const double product = 2 * z.t * static_cast<double>(s.kv_tokens) * n * d,
               lse = kFloatBytes * z.t * n;
  const double operands = z.e * (2 * z.t * n + 2 * static_cast<double>(keys) * k) * d;
  const std::int64_t repeated =
      s.kv_heads < s.heads ? temporary(s, 2 * keys * s.heads * s.head_dim) : 0;
  if (phase == Phase::kF) return make(2 * product, operands + lse, repeated);
  const std::int64_t separate = temporary(s, (s.token_count() + 2 * keys) * s.heads * s.head_dim);
  return make(5 * product, 2 * operands + lse, separate + repeated);
}

// The new log-sum-exp and the two weights, a number per query and head each.
PhaseWork attention_merge(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.heads > 0 && s.head_dim > 0);
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  const double rows = z.t * static_cast<double>(s.heads),
               o = rows * static_cast<double>(s.head_dim);
  return make(3 * o, 3 * z.e * o + 3 * kFloatBytes * rows,
              temporary_float(3 * s.token_count() * s.heads));
}

PhaseWork residual(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0);
  const Sizes z(s);
  const double x = z.t * z.in;
  if (phase == Phase::kF)
    return make(s.bias ? 2 * x : x, 3 * z.e * x + (s.bias ? z.e * z.in : 0), 0);
  if (!has_g(phase) || !s.bias) return {};
  return make(x, z.e * x + kFloatReadWrite * z.in, 0);
}

// Gated backward works in the two halves of du.
PhaseWork activation(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.out > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  const double g = z.t * z.out;
  const double u = s.gated ? 2 * g : g;
  const double cost = s.activation == Activation::kRelu   ? 1
                      : s.activation == Activation::kSilu ? 4
                                                          : 8;
  if (phase == Phase::kF) return make(cost * g + (s.gated ? g : 0), z.e * (u + g), 0);
  return make(2 * cost * g + (s.gated ? 3 * g : 0), z.e * (2 * u + g), 0);
}

// Softmax over all scores (3 FLOPs each), a search through them for each choice; backward through
// the softmax 4. Logits are of the compute type, their gradient fp32 and then rounded.
PhaseWork router(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.experts > 0 && s.top_k > 0);
  const Sizes z(s);
  const std::int64_t columns = s.experts + (s.shared ? 1 : 0);
  const double k = static_cast<double>(s.top_k), m = static_cast<double>(s.gates()),
               scores = z.t * static_cast<double>(s.experts);
  const double product = 2 * z.t * z.in * static_cast<double>(columns),
               w = z.in * static_cast<double>(columns);
  const std::int64_t logits = s.token_count() * columns;
  const double routes = kFloatBytes * (scores + z.t * m) + kIdBytes * z.t * k;
  if (phase == Phase::kF)
    return make(product + (3 + k) * scores, z.e * (z.t * z.in + w) + routes, temporary(s, logits));
  double flops = 0, bytes = routes + kFloatBytes * z.t * m;
  if (has_b(phase)) {
    flops += product + 4 * scores;
    bytes += z.e * (w + z.t * z.in);
  }
  if (has_g(phase)) {
    flops += product;
    bytes += z.e * z.t * z.in + kFloatReadWrite * w;
  }
  const std::int64_t rounded =
      is_bf16(s) ? temporary(s, logits + (has_g(phase) ? s.in * columns : 0)) : 0;
  return make(flops, bytes, temporary_float(logits) + rounded);
}

// Rows in order of expert: a sort of the choices; backward adds each token's rows, in fp32.
PhaseWork dispatch(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.top_k > 0 && s.expert_rows() > 0);
  const Sizes z(s);
  const double tensors = z.e * (z.t + static_cast<double>(s.expert_rows())) * z.in,
               ids = kIdBytes * z.t * static_cast<double>(s.top_k);
  if (phase == Phase::kF) return make(0, tensors + 2 * ids, 2 * 8 * s.token_count() * s.top_k);
  if (!has_b(phase)) return {};
  return make(static_cast<double>(s.top_k) * z.t * z.in, tensors + ids,
              is_bf16(s) ? temporary_float(s.token_count() * s.in) : 0);
}

// Weighted sums in fp32. Backward: a row's gradient is its token's times the gate, a gate's the dot
// product of row and token.
PhaseWork combine(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.top_k > 0 && s.expert_rows() > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  const double x = z.e * z.t * z.in, rows = z.e * static_cast<double>(s.expert_rows()) * z.in,
               m = static_cast<double>(s.gates());
  const double gates = kFloatBytes * z.t * m, slots = kIdBytes * z.t * static_cast<double>(s.top_k);
  const std::int64_t sum = is_bf16(s) ? temporary_float(s.token_count() * s.in) : 0;
  if (phase == Phase::kF)
    return make(2 * m * z.t * z.in, rows + x + gates + slots + (s.shared ? x : 0), sum);
  return make(3 * m * z.t * z.in, 2 * rows + x + 2 * gates + slots + (s.shared ? 2 * x : 0), sum);
}

// Backward spreads the gradient over the tokens that were read, and is zero at the others.
PhaseWork pool(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.in > 0 && s.kv_tokens > 0);
  if (phase == Phase::kG) return {};
  const Sizes z(s);
  const double read = static_cast<double>(s.sequences * s.kv_tokens) * z.in,
               mean = static_cast<double>(s.sequences) * z.in;
  return make(read, z.e * ((phase == Phase::kF ? read : z.t * z.in) + mean), 0);
}

PhaseWork loss_max(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.out > 0);
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  return make(z.t * z.out, z.e * z.t * z.out + kFloatBytes * z.t, 0);
}

// Exponentials are taken in fp32, a chunk of rows at a time.
std::int64_t loss_chunk(const SegmentShape& s) {
  constexpr std::int64_t kChunkElements = 1 << 18;
  return temporary_float(
      std::min(s.token_count(), std::max<std::int64_t>(1, kChunkElements / s.out)) * s.out);
}

// Reads m (4T) and targets (8T), writes stat (8T).
PhaseWork loss_sum(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.out > 0);
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  return make(3 * z.t * z.out, z.e * z.t * z.out + 20 * z.t, loss_chunk(s));
}

// B turns logits into their gradient in place; bf16 takes exp and difference of an fp32 copy.
PhaseWork loss(const SegmentShape& s, Phase phase) {
  ORRERY_CHECK(s.out > 0);
  const Sizes z(s);
  if (phase == Phase::kF) return make(3 * z.t, 8 * z.t + 8, 0);
  if (!has_b(phase)) return {};
  return make(4 * z.t * z.out, 2 * z.e * z.t * z.out + 20 * z.t, is_bf16(s) ? loss_chunk(s) : 0);
}

PhaseWork slice(const SegmentShape& s, Phase phase) {
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  return make(0, 2 * z.e * z.elements, 0);
}

PhaseWork zero_gradient(const SegmentShape& s, Phase phase) {
  if (phase != Phase::kF) return {};
  return make(0, Sizes(s).e * Sizes(s).elements, 0);
}

PhaseWork accumulate(const SegmentShape& s, Phase phase) {
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  return make(z.elements, 3 * z.e * z.elements, 0);
}

// Per element: gradient 4, moments 16, parameter 8; bf16: master 8 and parameter 2 (written).
PhaseWork adamw(const SegmentShape& s, Phase phase) {
  if (phase != Phase::kF) return {};
  const Sizes z(s);
  return make(14 * z.elements, (is_bf16(s) ? 30 : 28) * z.elements, 0);
}

}  // namespace

PhaseWork work(const SegmentShape& shape, Phase phase) {
  switch (shape.kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets: return load(shape, phase);
    case SegmentKind::kEmbedding: return embedding(shape, phase);
    case SegmentKind::kPositionAdd: return position_add(shape, phase);
    case SegmentKind::kNorm: return norm(shape, phase);
    case SegmentKind::kQkv:
    case SegmentKind::kProjection:
    case SegmentKind::kMlpIn:
    case SegmentKind::kMlpOut:
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut:
    case SegmentKind::kPatchProduct:
    case SegmentKind::kLogits: return linear(shape, phase);
    case SegmentKind::kRouter: return router(shape, phase);
    case SegmentKind::kDispatch: return dispatch(shape, phase);
    case SegmentKind::kCombine: return combine(shape, phase);
    case SegmentKind::kAttention: return attention(shape, phase);
    case SegmentKind::kAttentionSplit: return attention_split(shape, phase);
    case SegmentKind::kAttentionBlock: return attention_block(shape, phase);
    case SegmentKind::kAttentionMerge: return attention_merge(shape, phase);
    case SegmentKind::kResidual: return residual(shape, phase);
    case SegmentKind::kActivation: return activation(shape, phase);
    case SegmentKind::kPool: return pool(shape, phase);
    case SegmentKind::kLossMax: return loss_max(shape, phase);
    case SegmentKind::kLossSum: return loss_sum(shape, phase);
    case SegmentKind::kLoss: return loss(shape, phase);
    case SegmentKind::kSlice: return slice(shape, phase);
    case SegmentKind::kZeroGradient: return zero_gradient(shape, phase);
    case SegmentKind::kAccumulate: return accumulate(shape, phase);
    case SegmentKind::kAdamW: return adamw(shape, phase);
  }
  ORRERY_CHECK(false, "segment kind {}", static_cast<int>(shape.kind));
}

}  // namespace orrery::model
