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
///                                                   (quantised operands: below)
///                                                   (kAdapterOut F, kAdapterIn B: y, dx read too)
///   kAttention    F      4 T s n d                  e T (2n+2k) d + 4Tn
///                                                   + [rotary] eT(n+k)d + [k<n] 2eTnd
///                 B      10 T s n d                 e T (4n+4k) d + 4Tn
///                                                   + 3eTnd + the same two
///                                                   (biases of windows: windows.h)
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
///     of inputs   F      kTh                        4Tk more
///                 B      4kTh                       8Tk + eTh more
///   kExpertIn/Out        as linears with T = R rows and a product [in, out] for each expert
///   kCombine      F      2mTh                       e(Rh + Th) + 4Tm + 8Tk + [shared] eTh
///                                                   + [bf16] 4Th
///                 B      3mTh                       e(2Rh + Th) + 8Tm + 8Tk + [shared] 2eTh
///                                                   + [bf16] 4Th
///     of inputs   F | B  kTh | 0                    e(Rh + Th) + 8Tk; F + [bf16] 4Th
///   kPatchProduct        as linears
///   kPool         F, B   b r h (r kv_tokens)        F e(b r h + b h), B e(Th + b h)
///   kBias .. kValues     partitioned_sizes.h
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
/// Quantised operands. q bytes of a quantised element with its scales; reading a tensor's maximum
/// first: m = e, else 0. A copy by rows serves F and B, one by columns G, where the sum runs over
/// tokens. Products read q for e of both operands and write results in e. Beside that
///
///   kNorm, kActivation F     fused: 2q for e of the result; else + (m + e + 2q)
///   linears F                input that comes in e (m + e + q) T·in; weights (m + e + q) in·out
///   linears B, G             incoming gradient (m + e + q) T·out each, (m + e + 2q) of BG; G:
///                            the input as F; B: the weights as F
///   kAdamW                   (m + e + 2q) E: copies of the weights, once a step
///
/// and a copy is alive with what it is a copy of.
///
/// BG is B and G together with shared operands (the incoming gradient, and what both read) counted
/// once and the larger of the two transients. Attention counts its products over the full s² (the
/// base of MFU), not the half that a causal mask leaves, and not its softmax and rotation; backward
/// recomputes the scores (5 products for 2). c: GELU 8, SiLU 4, ReLU 1. Transients are those of
/// plain ATen calls on preallocated operands; vectors of T, s, h or `out` numbers are left out.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/numbers.h"
#include "model/mixer_sizes.h"
#include "model/partitioned_sizes.h"
#include "model/rounded_product.h"
#include "model/segment.h"
#include "model/windows.h"

namespace orrery::model {
namespace {

using enum Phase;

constexpr double kIdBytes = 8, kFloatBytes = 4, kFloatReadWrite = 8;

PhaseWork make(double flops, double bytes, std::int64_t transient_bytes) {
  return {
      .flops = base::Flops(flops), .bytes = base::Bytes(bytes), .transient_bytes = transient_bytes};
}

std::int64_t temporary_float(std::int64_t elements) { return 4 * elements; }

/// The rows of the table, for one shape and phase. Doubles: exact to 2^53, no overflow beyond.
struct Rows {
  const SegmentShape& s;
  const Phase phase;
  const bool bf16 = s.dtype == DType::kBFloat16;
  const bool has_b = phase == kB || phase == kBG, has_g = phase == kG || phase == kBG;
  const std::int64_t tokens = s.token_count();
  const double e = real(element_bytes(s.dtype)), t = real(tokens), in = real(s.in),
               out = real(s.out), elements = real(s.elements);
  // of a quantised element; read for the maximum
  const double q = real(element_bytes_32(terms_of(s.format).element)) / 32,
               scanned = terms_of(s.format).scans ? e : 0;
  const double n = real(s.heads), k = real(s.kv_heads), d = real(s.head_dim);

  /// Temporary bytes of `elements` numbers, in integers: memory is summed exactly.
  std::int64_t temporary(std::int64_t numbers) const { return element_bytes(s.dtype) * numbers; }

  /// Bytes of `copies` quantised copies of elements that are there in the compute type.
  double quantising(double numbers, int copies) const {
    return s.format == Format::kNone ? 0 : numbers * (scanned + e + copies * q);
  }
  /// What a norm or an activation writes of a result.
  double result_bytes(double numbers) const {
    if (s.format == Format::kNone) return e * numbers;
    if (terms_of(s.format).fused) return 2 * q * numbers;
    return e * numbers + quantising(numbers, 2);
  }
  std::int64_t quantised(std::int64_t numbers) const {
    return s.format == Format::kNone ? 0 : bytes_of(terms_of(s.format).element, numbers);
  }

  PhaseWork load() const {
    if (phase != kF) return {};
    return make(0, e * t, 0);
  }

  // A shard of the vocabulary shifts the ids (8T), marks those it does not own (T), and zeroes
  // their rows.
  PhaseWork embedding() const {
    ORRERY_CHECK(s.in > 0 && s.out > 0);
    const bool shard = s.parts > 1;
    const std::int64_t ids = shard ? 9 * tokens : 0;
    if (phase == kF) return make(0, kIdBytes * t + 2 * e * t * in, ids);
    if (!has_g) return {};
    const std::int64_t masked = shard ? temporary(tokens * s.in) : 0;
    const std::int64_t widened = bf16 ? temporary_float(tokens * s.in) : 0;
    return make(t * in, kIdBytes * t + e * t * in + kFloatReadWrite * t * in,
                ids + masked + widened);
  }

  // Rows 0 .. s-1 of the position table; the single row of BERT's type table is left out as a
  // vector.
  PhaseWork position_add() const {
    ORRERY_CHECK(s.in > 0);
    const double rows = real(s.tokens) * in;
    if (phase == kF) return make(t * in, 2 * e * t * in + e * rows, 0);
    if (!has_g) return {};
    return make(t * in, e * t * in + kFloatReadWrite * rows, temporary_float(s.tokens * s.in));
  }

  // Fused layer norm; RMS: the product dy * x. bf16: fp32 copies of what is read, and the result
  // before it is rounded.
  PhaseWork norm() const {
    ORRERY_CHECK(s.in > 0);
    const bool layer = s.norm == NormKind::kLayerNorm;
    const double vectors = layer ? 2 : 1;  // gain and bias, mean and rstd; or gain, rstd
    const double x = t * in;
    const double statistics = kFloatBytes * vectors * t;
    const std::int64_t one = temporary_float(tokens * s.in);
    if (phase == kF) {
      const std::int64_t transient = !bf16 ? 0 : layer ? 2 * one : one;
      return make((layer ? 8 : 4) * x, e * x + result_bytes(x) + e * vectors * in + statistics,
                  transient + quantised(tokens * s.in));
    }
    double flops = 0;
    double bytes = 2 * e * x + statistics;  // dy, x
    if (has_b) {
      flops += (layer ? 11 : 8) * x;
      bytes += e * x + e * in + (s.residual ? e * x : 0);  // dx, gain, d_residual
    }
    if (has_g) {
      flops += (layer ? 3 : 2) * x;
      bytes += kFloatReadWrite * vectors * in;
    }
    return make(flops, bytes, bf16 ? 3 * one : layer ? 0 : one);
  }

  std::int64_t matrices() const {
    const bool grouped = s.kind == SegmentKind::kExpertIn || s.kind == SegmentKind::kExpertOut;
    ORRERY_CHECK(!grouped || s.experts > 0);
    return grouped ? s.experts : 1;
  }
  double weights() const { return real(matrices()) * in * out; }

  // addmm straight into the output; the weight gradient accumulates by addmm into its fp32 view, in
  // bf16 by way of a product, of a dense layer some rows at a time.
  PhaseWork linear() const {
    ORRERY_CHECK(s.in > 0 && s.out > 0);
    const double product = 2 * t * in * out;
    const double bias = s.bias ? out : 0, operand = s.format == Format::kNone ? e : q;
    const double x = operand * t * in, y = e * t * out, w = operand * weights(),
                 copies = quantising_bytes();
    const std::int64_t of_input = s.quantises_input ? quantised(tokens * s.in) : 0,
                       of_weights = s.quantises_weights ? quantised(matrices() * s.in * s.out) : 0;
    const bool adds = s.slice > 0 || s.kind == SegmentKind::kAdapterOut;
    if (phase == kF)
      return make(product + t * bias, x + w + (adds ? 2 * y : y) + e * bias + copies,
                  of_input + of_weights);
    double flops = 0;
    double bytes = operand * t * out + copies;  // the incoming gradient
    std::int64_t temporaries = 0;
    if (has_b) {
      flops += product;
      bytes += w + (s.kind == SegmentKind::kAdapterIn ? 2 : 1) * e * t * in;
      temporaries += quantised(tokens * s.out) + of_weights;
    }
    if (has_g) {
      flops += product + t * bias;
      bytes += x + kFloatReadWrite * (weights() + bias);
      const std::int64_t rounded =
          matrices() > 1 ? matrices() * s.in * s.out : rows_of_rounded_product(s.out, s.in) * s.in;
      temporaries += quantised(tokens * s.out) + of_input + (bf16 ? temporary(rounded) : 0);
    }
    return make(flops, bytes, temporaries);
  }
  double quantising_bytes() const {
    const double input = s.quantises_input ? quantising(t * in, 1) : 0;
    const double of_weights = s.quantises_weights ? quantising(weights(), 1) : 0;
    if (phase == kF) return input + of_weights;
    return quantising(t * out, as_int(has_b) + as_int(has_g)) + (has_g ? input : 0) +
           (has_b ? of_weights : 0);
  }

  // Flash attention on views of qkv: copies of q and k once rotated, of k and v once repeated to n
  // heads; backward returns dq, dk, dv of n heads each, which are then packed into dqkv.
  PhaseWork attention() const {
    ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
    if (phase == kG) return {};
    const double product = 2 * t * real(s.keys_seen()) * n * d;
    const double lse = kFloatBytes * t * n;
    const std::int64_t columns = tokens * s.head_dim;
    const std::int64_t rows = std::min(s.tokens, SegmentShape::kQueryRows);
    const std::int64_t scores = s.explicit_core()
                                    ? temporary_float(s.sequences * s.heads * rows *
                                                      std::min(s.tokens, s.keys_seen() + rows))
                                    : 0;
    const std::int64_t windows = s.weights > 0 ? window_temporaries(s, phase) : 0;
    const std::int64_t rotated = s.rotary ? temporary(columns * (s.heads + s.kv_heads)) : 0;
    const std::int64_t repeated = s.kv_heads < s.heads ? temporary(2 * columns * s.heads) : 0;
    if (phase == kF)
      return make(2 * product, e * t * (2 * n + 2 * k) * d + lse,
                  rotated + repeated + 4 * scores + windows);
    const std::int64_t separate = temporary(3 * columns * s.heads);
    return make(5 * product, e * t * (4 * n + 4 * k) * d + lse,
                std::max(separate + rotated + repeated + 6 * scores, windows));
  }

  // Turns q and k by the angles of their positions straight into place; backward turns the
  // gradients back.
  PhaseWork attention_split() const {
    ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
    if (phase == kG) return {};
    return make(0, 2 * e * t * real((s.heads + 2 * s.kv_heads) * s.head_dim), 0);
  }

  // As attention, on queries and keys that are turned already; with kv_tokens = tokens the same
  // products.
  PhaseWork attention_block() const {
    ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.kv_tokens > 0);
    if (phase == kG) return {};
    const std::int64_t keys = s.sequences * s.kv_tokens;
    const double product = 2 * t * real(s.kv_tokens) * n * d, lse = kFloatBytes * t * n;
    const double operands = e * (2 * t * n + 2 * real(keys) * k) * d;
    const std::int64_t repeated =
        s.kv_heads < s.heads ? temporary(2 * keys * s.heads * s.head_dim) : 0;
    if (phase == kF) return make(2 * product, operands + lse, repeated);
    const std::int64_t separate = temporary((tokens + 2 * keys) * s.heads * s.head_dim);
    return make(5 * product, 2 * operands + lse, separate + repeated);
  }

  // The new log-sum-exp and the two weights, a number per query and head each.
  PhaseWork attention_merge() const {
    ORRERY_CHECK(s.heads > 0 && s.head_dim > 0);
    if (phase != kF) return {};
    const double rows = t * n, o = rows * d;
    return make(3 * o, 3 * e * o + 3 * kFloatBytes * rows, temporary_float(3 * tokens * s.heads));
  }

  PhaseWork residual() const {
    ORRERY_CHECK(s.in > 0);
    const double x = t * in;
    if (phase == kF) return make(s.bias ? 2 * x : x, 3 * e * x + (s.bias ? e * in : 0), 0);
    if (!has_g || !s.bias) return {};
    return make(x, e * x + kFloatReadWrite * in, 0);
  }

  // Gated backward works in the two halves of du.
  PhaseWork activation() const {
    ORRERY_CHECK(s.out > 0);
    if (phase == kG) return {};
    const double g = t * out;
    const double u = s.gated ? 2 * g : g;
    const bool rectifies =
        s.activation == Activation::kRelu || s.activation == Activation::kSquaredRelu;
    const double cost = rectifies ? 1 : s.activation == Activation::kSilu ? 4 : 8;
    if (phase == kF)
      return make(cost * g + (s.gated ? g : 0), e * u + result_bytes(g), quantised(tokens * s.out));
    return make(2 * cost * g + (s.gated ? 3 * g : 0), e * (2 * u + g), 0);
  }

  // Softmax over all scores (3 FLOPs each), a search through them for each choice; backward through
  // the softmax 4. Logits are of the compute type, their gradient fp32 and then rounded.
  PhaseWork router() const {
    ORRERY_CHECK(s.in > 0 && s.experts > 0 && s.top_k > 0);
    const std::int64_t columns = s.experts + (s.shared ? 1 : 0);
    const double m = real(s.gates()), scores = t * real(s.experts);
    const double product = 2 * t * in * real(columns), w = in * real(columns);
    const std::int64_t logits = tokens * columns;
    const double routes = kFloatBytes * (scores + t * m) + kIdBytes * t * real(s.top_k);
    if (phase == kF)
      return make(product + (3 + real(s.top_k)) * scores, e * (t * in + w) + routes,
                  temporary(logits));
    double flops = 0, bytes = routes + kFloatBytes * t * m;
    if (has_b) {
      flops += product + 4 * scores;
      bytes += e * (w + t * in);
    }
    if (has_g) {
      flops += product;
      bytes += e * t * in + kFloatReadWrite * w;
    }
    const std::int64_t rounded = bf16 ? temporary(logits + (has_g ? s.in * columns : 0)) : 0;
    return make(flops, bytes, temporary_float(logits) + rounded);
  }

  // Rows in order of expert: a sort of the choices; backward adds each token's rows, in fp32.
  PhaseWork dispatch() const {
    ORRERY_CHECK(s.in > 0 && s.top_k > 0 && s.expert_rows() > 0);
    const double tensors = e * (t + real(s.expert_rows())) * in, ids = kIdBytes * t * real(s.top_k);
    const double g = s.routing.of_inputs ? 1 : 0, added = real(s.top_k) * t * in,
                 gates = g * kFloatBytes * t * real(s.gates());
    if (phase == kF) return make(g * added, tensors + 2 * ids + gates, 2 * 8 * tokens * s.top_k);
    if (!has_b) return {};
    return make((1 + 3 * g) * added, tensors + ids + 2 * gates + g * e * t * in,
                bf16 ? temporary_float(tokens * s.in) : 0);
  }

  // Weighted sums in fp32. Backward: a row's gradient is its token's times the gate, a gate's the
  // dot product of row and token.
  PhaseWork combine() const {
    ORRERY_CHECK(s.in > 0 && s.top_k > 0 && s.expert_rows() > 0);
    if (phase == kG) return {};
    const double x = e * t * in, rows = e * real(s.expert_rows()) * in, m = real(s.gates());
    const double gates = kFloatBytes * t * m, slots = kIdBytes * t * real(s.top_k);
    const std::int64_t sum = bf16 ? temporary_float(tokens * s.in) : 0;
    if (s.routing.of_inputs)
      return make(phase == kF ? m * t * in : 0, rows + x + slots, phase == kF ? sum : 0);
    if (phase == kF)
      return make(2 * m * t * in, rows + x + gates + slots + (s.shared ? x : 0), sum);
    return make(3 * m * t * in, 2 * rows + x + 2 * gates + slots + (s.shared ? 2 * x : 0), sum);
  }

  // Backward spreads the gradient over the tokens that were read, and is zero at the others.
  PhaseWork pool() const {
    ORRERY_CHECK(s.in > 0 && s.kv_tokens > 0);
    if (phase == kG) return {};
    const double read = real(s.sequences * s.kv_tokens) * in, mean = real(s.sequences) * in;
    return make(read, e * ((phase == kF ? read : t * in) + mean), 0);
  }

  PhaseWork loss_max() const {
    ORRERY_CHECK(s.out > 0);
    if (phase != kF) return {};
    return make(t * out, e * t * out + kFloatBytes * t, 0);
  }

  // Exponentials are taken in fp32, a chunk of rows at a time.
  std::int64_t loss_chunk() const {
    constexpr std::int64_t kChunkElements = 1 << 18;
    return temporary_float(std::min(tokens, std::max<std::int64_t>(1, kChunkElements / s.out)) *
                           s.out);
  }

  // Reads m (4T) and targets (8T), writes stat (8T).
  PhaseWork loss_sum() const {
    ORRERY_CHECK(s.out > 0);
    if (phase != kF) return {};
    return make(3 * t * out, e * t * out + 20 * t, loss_chunk());
  }

  // B turns logits into their gradient in place; bf16 takes exp and difference of an fp32 copy.
  PhaseWork loss() const {
    ORRERY_CHECK(s.out > 0);
    if (phase == kF) return make(3 * t, 8 * t + 8, 0);
    if (!has_b) return {};
    return make(4 * t * out, 2 * e * t * out + 20 * t, bf16 ? loss_chunk() : 0);
  }

  PhaseWork slice() const {
    if (phase != kF) return {};
    return make(0, 2 * e * elements, 0);
  }

  PhaseWork zero_gradient() const {
    if (phase != kF) return {};
    return make(0, e * elements, 0);
  }

  PhaseWork accumulate() const {
    if (phase != kF) return {};
    return make(elements, 3 * e * elements, 0);
  }

  // Per element: gradient 4, moments 16, parameter 8; bf16: master 8 and parameter 2 (written).
  PhaseWork adamw() const {
    if (phase != kF) return {};
    return make(14 * elements, (bf16 ? 30 : 28) * elements + quantising(elements, 2), 0);
  }
};

}  // namespace

PhaseWork work(const SegmentShape& shape, Phase phase) {
  using enum SegmentKind;
  const Rows rows{shape, phase};
  switch (shape.kind) {
    case kLoadTokens:
    case kLoadTargets: return rows.load();
    case kEmbedding: return rows.embedding();
    case kPositionAdd: return rows.position_add();
    case kNorm: return rows.norm();
    case kQkv:
    case kProjection:
    case kMlpIn:
    case kMlpOut:
    case kExpertIn:
    case kExpertOut:
    case kPatchProduct:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kLogits: return rows.linear();
    case kRouter: return rows.router();
    case kDispatch: return rows.dispatch();
    case kCombine: return rows.combine();
    case kAttention: return rows.attention();
    case kAttentionSplit: return rows.attention_split();
    case kAttentionBlock: return rows.attention_block();
    case kAttentionMerge: return rows.attention_merge();
    case kResidual: return rows.residual();
    case kActivation: return rows.activation();
    case kPool: return rows.pool();
    case kBias:
    case kNormSums:
    case kNormApply:
    case kScores:
    case kSoftmax:
    case kValues: return partitioned_work(shape, phase);
    case kHeadNorm:
    case kLatentAttention:
    case kScan: return mixer_work(shape, phase);
    case kLossMax: return rows.loss_max();
    case kLossSum: return rows.loss_sum();
    case kLoss: return rows.loss();
    case kSlice: return rows.slice();
    case kZeroGradient: return rows.zero_gradient();
    case kAccumulate: return rows.accumulate();
    case kAdamW: return rows.adamw();
  }
  ORRERY_CHECK(false, "segment kind {}", as_int(shape.kind));
}

base::Bytes quantising_bytes(const SegmentShape& shape, Phase phase) {
  return base::Bytes(shape.format == Format::kNone ? 0 : Rows{shape, phase}.quantising_bytes());
}

}  // namespace orrery::model
