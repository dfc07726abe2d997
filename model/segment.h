#pragma once
#include <cstdint>
#include <string_view>

#include "base/units.h"
#include "model/dtype.h"
#include "model/spec.h"

namespace orrery::model {

/// A segment is a purely local piece of tensor code between two points where communication may
/// stand. The table gives, per phase, the operands in the order in which a Program lists them.
/// T = sequences * tokens (local); w(...) = views of the flat weights, dw(...) = the same views of
/// the gradient.
///
///   kind          F: reads -> writes
///                 B or BG: reads -> writes
///   kLoadTokens   -> ids [b,s]; of images: pixels [b, s * patch features] of the compute type
///   kLoadTargets  -> targets [b,s]
///   kEmbedding    ids, w(table[v,h]) -> x [b,s,h]            table: rows of this vocabulary shard
///                 d, ids -> (dw only)
///   kPositionAdd  x, w((position[P,h]) (, type[2,h] or class token[1,h])) -> y
///                 d -> (dw only)
///   kNorm         x, w(gain (, bias)) -> y, (mean,) rstd [T]
///                 dy, x, (mean,) rstd (, d_residual) -> dx (+ d_residual)
///   kQkv          a, w(W (, bias)) -> qkv [b,s,(n+2k)d]
///                 d, a -> da
///   kAttention    qkv -> o [b,s,nd], lse [b,n,s] fp32        rotary inside when the model has it
///                 do, qkv, o, lse -> dqkv
///   kAttentionSplit  qkv -> q [b,s,nd], kv [b,s,2kd]         ring attention; rotary applied here
///                 dq, dkv -> dqkv
///   kAttentionBlock  q, kv -> o, lse [b,n,s] fp32            one block of kv_tokens keys;
///                 do, q, kv, o, lse -> dq, dkv               cross-attention: of the encoder's
///                                                            output; o, lse of B: merged
///   kAttentionMerge  o_t, lse_t ; updates o, lse             two sets of keys:
///                 L = log(e^lse + e^lse_t), o = e^(lse-L) o + e^(lse_t-L) o_t
///   kProjection   o, w(W) -> p [b,s,h] (partial over tp)
///                 d, o -> do
///   kResidual     x, p (, w(bias)) -> y
///                 d -> (dw only; emitted only when there is a bias)
///   kMlpIn        a, w(W (, bias)) -> u [b,s,f or 2f]
///                 d, a -> da
///   kActivation   u -> g [b,s,f]
///                 d, u -> du
///   kMlpOut       g, w(W) -> p [b,s,h] (partial over tp)
///                 d, g -> dg
///   kLogits       a, w(table) -> logits [b,s,v] fp or bf16
///                 dlogits, a -> da
///   kRouter       a, w(W [E,h] (, shared gate [1,h]))
///                   -> gates [T,m] fp32, choice [T,k], scores [T,E] fp32
///                 dgates, a, gates, choice, scores -> da
///   kDispatch     a, choice -> rows [R,h], slots [T,k]
///                 drows, slots -> da (partial when drows is)
///   kDispatch, routing.of_inputs:  rows times their gates
///                 a, choice, gates -> rows, slots
///                 drows, slots, gates, a -> da, dgates (partial when drows is)
///   kExpertIn     rows, w(W of each expert) -> u [R,f or 2f]
///                 d, rows -> drows
///   kExpertOut    g, w(W of each expert) -> rows [R,h] (partial over tp)
///                 d, g -> dg
///   kCombine      rows, gates, slots (, z) -> p [T,h] (partial when rows is)
///                 d, rows, gates, slots (, z) -> drows, dgates (partial when rows is) (, dz)
///   kCombine, routing.of_inputs:  of rows that had their gates before
///                 rows, slots -> p;  d, slots -> drows
///   kPatchProduct a, w(W (, bias)) -> y [b,s,out]            W whole on every tensor rank
///                 d, a -> da, or (dw only)
///   kPool         x [b,s,h] -> y [b,h]                       mean of the first kv_tokens tokens
///                 d -> dx
///   kBias         w(bias) ; updates u                        F: u += bias
///                 d -> (dw only)
///   kNormSums     x -> sums [w,T] fp32                       of the rank's features: x^2, before
///                 dy, x, (mean,) rstd, w(gain)               it x of a layer norm; B: dy w y',
///                 before
///                   -> sums                                  it dy w of a layer norm (y' = y/gain)
///   kNormApply    x, sums, w(gain (, bias))                  a norm, from sums over all features
///                   -> y, (mean,) rstd [T]
///                 dy, x, (mean,) rstd, sums (, d_residual) -> dx (+ d_residual)
///   kScores       q [b,s,nd], k [b,K,kd] -> scores [b,n,s,K] q k^T / sqrt(d), rotary inside
///                 B: dscores, k -> dq;  G: dscores, q -> dk
///   kSoftmax      scores -> a [b,n,s,K]                      rows of all keys, causal mask inside
///                 da, a -> dscores
///   kValues       a, v [b,K,kd] -> o [b,s,nd]
///                 B: do, v -> da;  G: do, a -> dv
///   kHeadNorm     qkv (, w(q gain, k gain)) -> qkv           queries and keys normed, values kept;
///                 dqkv, qkv -> dqkv                          its statistics are computed anew
///   kAttention, with sinks:  w(sinks [n]) as well; backward kBG
///   kAttention, in windows of side r:  w(biases [n, (2r-1)^2]) as well, added to scores by the
///                                difference of two places in the window; backward kBG.
///                                `windows` says where they lie
///   kLatentAttention  q [b,s,nd], kv [b,s,n(d-r+v)], rotated part of keys [b,s,r]
///                   -> o [b,s,nv], lse [b,n,s] fp32          kv: of each head d - r numbers of its
///                 do, q, kv, kr, o, lse -> dq, dkv, dkr      key, then its value's v
///   kLatentAttention, indexed (model::Indexer): after kr
///                   index queries [b,s,H e], keys [b,s,e] and weights [b,s,H], w(gain [e],
///                   bias [e]) as well -> after lse, the least score chosen [b,s] fp32
///                 they, and behind lse that score -> after dkr, their gradients; backward kBG
///   kScan         u [b,s,in], w(...)                         the mixer of a recurrent block, with
///                   -> o [b,s,out], y [b,s,out]              its convolution and its gated norm;
///                 do, u, y -> du                             y: before the norm. w: model/scan.h
///   kLatentProduct  a, w(W) -> y [b,s,out]                   as kQkv, W whole on every tensor rank
///   kAdapterIn    x, w(A [r, in]) -> t [b,s,r]               beside a product that is frozen
///                 dt, x ; updates dx (dx += dt A)
///   kAdapterOut   t, w(B [out, r]) ; updates y               y += scale t B'
///                 d, t -> dt                                 dt = scale d B
///   kLossMax      logits -> m [T] fp32                       columns past the vocabulary are -inf
///   kLossSum      logits, m, targets -> stat [2,T] fp32      row 0 sum exp(x-m), row 1 target
///                                                            logit - m, 0 if not in this shard
///   kLoss         stat ; updates loss [1] (sum over T of log(row 0) - row 1, times
///                   1/global tokens)
///                 m, stat, targets ; updates logits -> d logits in place
///   kSlice        x -> part of x along `dim` (local copy)    B of a slice is an all-gather, stated
///                                                            by the Program
///   kZeroGradient updates gradient (flat), or writes a fresh zero one
///   kAccumulate   reads part; updates sum += part (flat gradients; activations of post-norm
///                 models)
///   kAdamW        reads gradient; updates parameter, first moment, second moment (, master): on
///                 the rank's slice of those that hold all `padded` elements, see
///                 plan/program/program.h ParameterUnit
///
/// A segment with weights runs its backward as kBG; one without, or with frozen weights, as kB. A
/// product runs them apart as well: B reads d only, G reads d and a and writes nothing. The
/// embedding of a frozen table has a B that reads d alone: where gradients end.
///
/// A product between norms and activations may run in `slices` slices of its contraction (OSDP,
/// arXiv 2209.13258), y = sum_j a_j W_j': its operands are the whole a and da, its W the columns of
/// one slice. F of slice 0 writes y, that of another adds to it (updates y instead); B of slice 0
/// writes da and fills in its own features, another fills in its own (updates da). Slice 0 has the
/// bias.
///
/// Partitioned operators (plan/partition/partition.h). A product runs in `steps` temporal steps: F
/// of the first writes y, of another adds to it (updates y instead); B likewise da. The operators
/// of attention work on the tokens and keys of their slices: the place of a rank's first is its
/// slice, the id bits `token_bits` and `key_bits` of its number in the stage, times their count.
///
/// Experts: E of them, k = top_k per token; m = k gates, one more when a shared expert's output z
/// [T,h] is added. choice and slots are int64: which expert, and which row of the padded buffer
/// (-1: over capacity, dropped). The buffer has `capacity` rows per expert and sequence: R = b E
/// capacity, ordered by expert, so that an all-to-all along the rows brings each expert its own.
enum class SegmentKind : std::uint8_t {
  kLoadTokens,
  kLoadTargets,
  kEmbedding,
  kPositionAdd,
  kNorm,
  kQkv,
  kAttention,
  kAttentionSplit,
  kAttentionBlock,
  kAttentionMerge,
  kProjection,
  kResidual,
  kMlpIn,
  kActivation,
  kMlpOut,
  kLogits,
  kLossMax,
  kLossSum,
  kLoss,
  kSlice,
  kZeroGradient,
  kAccumulate,
  kAdamW,
  kRouter,
  kDispatch,
  kExpertIn,
  kExpertOut,
  kCombine,
  kPatchProduct,
  kPool,
  kBias,
  kNormSums,
  kNormApply,
  kScores,
  kSoftmax,
  kValues,
  kHeadNorm,
  kLatentAttention,
  kScan,
  kLatentProduct,
  kAdapterIn,
  kAdapterOut,
};
inline constexpr SegmentKind kLastSegmentKind = SegmentKind::kAdapterOut;
std::string_view to_string(SegmentKind kind);

/// F forward, B gradient of the input, G gradient of the weights, BG both at once.
enum class Phase : std::uint8_t { kF, kB, kG, kBG };
std::string_view to_string(Phase phase);

/// Where the windows of attention lie in an image (Swin, arXiv 2103.14030, section 3.2). Its tokens
/// stand so that those which become one stand together: as `merges` mergings are still to come, in
/// squares of side 2^merges by rows, inside them in Z-order (model/windows.h). Every other block
/// from the second of the stage on shifts its windows by half a side: over the end of the image
/// they go on at its beginning, where what was apart stays apart.
struct ImageWindows {
  std::int64_t tokens = 0;  // of an image in this stage; 0: windows are the sequences of the shape
  int merges = 0;
  std::int64_t first_block = 0;  // of the stage
  bool operator==(const ImageWindows&) const = default;
};

/// Local (per rank) dimensions of a segment: everything its cost and its executor need.
///
/// Which fields a kind uses, beside dtype, sequences and tokens:
///
///   kEmbedding                   in h, out vocabulary rows of this shard, vocab
///   kPositionAdd                 in h, out positions of the table, token_parts, token_stride,
///                                token_chunks, kv_tokens (first tokens that take the class token's
///                                row, no other; 0: all take the first row of types)
///   kNorm                        in = out h, norm, epsilon, residual, gain, norm_bias
///   kResidual                    in = out h (, bias)
///   kQkv .. kMlpOut, kLogits     in, out (, bias)
///   kQkv, kProjection, kMlpIn, kMlpOut   slices, slice: in is that of one slice, a has slices * in
///   features
///   kAttention                   heads, kv_heads, head_dim, rotary, rope_theta, causal,
///                                token_chunks
///   kAttentionSplit              heads, kv_heads, head_dim, rotary, rope_theta, token_parts,
///                                token_stride, token_chunks
///   kAttentionBlock              heads, kv_heads, head_dim, causal, kv_tokens, ring_step,
///                                token_parts, token_stride, token_chunks
///   kAttentionMerge              heads, head_dim, ring_step
///   kLoadTokens, kLoadTargets    parts, part_stride (of the sequences), token_parts, token_stride,
///                                token_chunks, causal (false: masked tokens)
///                                of an encoder-decoder: kv_tokens, those that its encoder reads of
///                                a text before its decoder's; causal (false: these are they)
///                                of images: in numbers of a patch, vocab classes, kv_tokens first
///                                tokens without a patch; tokens: all numbers, or the one target
///   kActivation                  in f (2f when gated), out f, activation, gated
///   kRouter                      in h, experts, top_k, routing (, shared)
///   kDispatch, kCombine          in h, experts, top_k, capacity, routing (, shared)
///   kExpertIn, kExpertOut        in, out, experts of this rank, capacity (of one source); tokens:
///                                rows of one sequence, R / b, a multiple of experts * capacity
///   kPatchProduct                in, out (, bias)
///   kAdapterIn, kAdapterOut      in, out; one of them is the rank (, scale)
///   kPool                        in = out h, kv_tokens
///   kBias                        in = out features
///   kNormSums, kNormApply        in features of this rank, out those of the whole norm, norm,
///                                epsilon, residual
///   kScores, kSoftmax, kValues   heads, kv_heads, head_dim, kv_tokens, rotary, rope_theta, causal,
///                                token_bits, key_bits
///                                kAttention as well: rope, reach, chunked, score_cap, score_scale,
///                                sinks, alibi (heads of all ranks, tensor_parts, part_stride),
///                                weights (elements of a table of biases in a window), windows
///   kHeadNorm                    heads, kv_heads, head_dim, epsilon, bias (has gains), whole
///   kLatentAttention             heads, head_dim, value_dim, rope_dim, parts (tensor ranks); as
///                                kAttention. Indexed: index_heads H, index_dim e, top_k keys of a
///                                query, in numbers of the latent of keys and values
///   kScan                        in, out, heads, head_dim, kv_heads (groups), state, chunk,
///                                kernel, delta, epsilon, weights (elements of its own);
///                                lightning: alibi, parts, part_stride, as kAttention has them
///   kLossMax, kLossSum, kLoss    out columns of this shard, vocab, causal (as the loads have it)
///   kEmbedding, kLoss*           parts, part_stride: which shard of the vocabulary
///   kSlice                       elements (of the result), dim, parts, part_stride
///   flat segments                elements
///
/// Context parallelism: a rank holds places [p * tokens, (p + 1) * tokens) of its sequences, p =
/// (stage-local rank / token_stride) % token_parts. Place and position are one, but where a ring
/// meets a causal mask: there the whole model keeps its tokens in zig-zag order, so that every rank
/// has as many early as late ones (Llama 3, arXiv 2407.21783, section 3.3.2; Megatron-LM, too).
/// The sequence is cut into C = token_chunks equal chunks, which lie as 0, C-1, 1, C-2, ...: any
/// number of ranks that divides C / 2 holds pairs of chunks i, C-1-i.
///
/// The keys of a block in ring step t are those of the rank t places before in the ring. Without a
/// mask every query sees them all. With one, step 0 is the mask's triangle, and every other step
/// half of the square: all queries see the early half of keys from before (p >= t), the late half
/// of the queries sees all keys from after.
struct SegmentShape {
  SegmentKind kind = SegmentKind::kResidual;
  DType dtype = DType::kFloat32;  // compute type
  std::int64_t sequences = 0;     // b: sequences of one micro-batch on this rank
  // s: tokens per sequence on this rank (seq / tp under sequence parallelism)
  std::int64_t tokens = 0;
  // contracted features (linears), normalised features, table columns
  std::int64_t in = 0;
  // output features (linears), local vocabulary rows (embedding, logits, loss)
  std::int64_t out = 0;
  std::int64_t heads = 0;     // local query heads (attention)
  std::int64_t kv_heads = 0;  // local key/value heads
  std::int64_t head_dim = 0;
  std::int64_t kv_tokens = 0;  // keys per sequence in an attention block
  // flat segments (AdamW, zero, accumulate), slices: output elements
  std::int64_t elements = 0;
  NormKind norm = NormKind::kLayerNorm;
  Activation activation = Activation::kGeluTanh;
  bool gated = false;
  bool bias = false;  // linears and residual carry a bias; layer norm always has one
  bool rotary = false;
  bool causal = true;
  bool residual = false;               // kNorm B: adds d_residual
  bool gain = true, norm_bias = true;  // norms: with gains; layer norms: with biases
  double epsilon = 1e-5;
  double rope_theta = 10000.0;
  std::int64_t vocab = 0;  // global vocabulary (embedding, loss: to mask padded rows)
  int dim = 0;             // kSlice: dimension that is cut
  int parts = 1;           // kSlice: number of parts
  int part_stride = 1;     // kSlice: part index = (stage-local rank / part_stride) % parts
  // kAttentionBlock, kAttentionMerge: how far the block has travelled
  int ring_step = 0;
  int token_parts = 1;        // ranks that share the tokens of a sequence
  int token_stride = 1;       // distance between them
  int token_chunks = 1;       // of the zig-zag order of a whole sequence; 1: as they stand
  std::int64_t experts = 0;   // of the model, or of this rank (kExpertIn, kExpertOut)
  std::int64_t top_k = 0;     // experts of a token; keys that an indexer chooses
  std::int64_t capacity = 0;  // rows of an expert per sequence on this rank
  bool shared = false;        // a shared expert's gate and output
  Routing routing = {};       // in no profile: of measured mixtures gates are of outputs
  ImageWindows windows = {};  // of no price, so profiles do not state it
  // products of quantised operands; norms and activations that make such operands
  Format format = Format::kNone;
  // products: the input comes in the compute type, the weights are quantised for each use; else
  // there is a quantised copy of them
  bool quantises_input = false, quantises_weights = false;
  // products: this one is one of so many pieces of the tokens, which run on streams of their own
  int pieces = 1;
  int slices = 1;  // products: slices of the contraction
  int slice = 0;   // which of them
  int steps = 1;   // products: temporal steps of a partitioned one
  // attention: keys that a query sees (0: all), those of its own chunk, or the last ones
  std::int64_t reach = 0;
  bool chunked = false;
  bool sinks = false;
  std::int64_t alibi = 0;  // heads of the whole model, where scores fall with distance; else 0
  double score_cap = 0, score_scale = 0;  // 0: none; 1 / sqrt(head_dim)
  Rope rope = {};
  std::int64_t value_dim = 0, rope_dim = 0;                    // latent attention
  std::int64_t index_heads = 0, index_dim = 0;                 // its indexer
  std::int64_t state = 0, kernel = 0, chunk = 0, weights = 0;  // scans
  bool delta = false;                                          // of the delta rule
  bool whole = false;  // kHeadNorm: over all heads at once, a gain of each of their numbers
  double scale = 1;    // embedding, residual (of p), logits: of what is added or made
  double cap = 0;      // logits
  // id bits of devices that split the tokens and the keys of a partitioned operator
  std::uint32_t token_bits = 0, key_bits = 0;

  std::int64_t token_count() const { return sequences * tokens; }
  /// Keys whose scores a query of a whole sequence takes: of a window its own, else all.
  std::int64_t keys_seen() const { return reach > 0 && reach < tokens ? reach : tokens; }
  /// No fused kernel of the executor does it: scores are made in blocks of kQueryRows queries.
  static constexpr std::int64_t kQueryRows = 128;
  bool explicit_core() const {
    return keys_seen() < tokens || score_cap != 0 || sinks || alibi > 0;
  }
  // R of kDispatch and kCombine
  std::int64_t expert_rows() const { return sequences * experts * capacity; }
  /// The same of b times the sequences; what serves weights has none.
  SegmentShape of_sequences(std::int64_t b) const {
    SegmentShape s = *this;
    s.sequences *= b;
    if (sequences > 0) s.elements *= b;
    return s;
  }
  std::int64_t gates() const { return top_k + (shared ? 1 : 0); }  // m
  /// Tokens of a chunk of the zig-zag order.
  std::int64_t chunk_tokens() const { return tokens * token_parts / token_chunks; }
  bool operator==(const SegmentShape&) const = default;
};

/// Position in the sequence of what lies at `place`, in zig-zag order of `chunks` chunks.
constexpr std::int64_t position_of(std::int64_t place, std::int64_t chunks,
                                   std::int64_t chunk_tokens) {
  if (chunks == 1) return place;
  const std::int64_t chunk = place / chunk_tokens, pair = chunk / 2;
  return (chunk % 2 == 0 ? pair : chunks - 1 - pair) * chunk_tokens + place % chunk_tokens;
}

/// Work of one phase of a segment: the one place for FLOPs and bytes (lowering, closed forms,
/// simulator and executor's memory test all read it).
struct PhaseWork {
  base::Flops flops;  // 2mnk for products; a few per element otherwise
  base::Bytes bytes;  // memory traffic, reads + writes, each operand once
  // peak of temporaries alive only inside the phase (not reads, not writes)
  std::int64_t transient_bytes = 0;
};
/// Phases that a kind does not have (G of an attention core, B of a token loader) cost nothing. The
/// formulas stand as a table in sizes.cc. @pre the fields that the kind uses are positive.
PhaseWork work(const SegmentShape& shape, Phase phase);
/// Of these, the bytes of a product's that make quantised copies of its operands: kernels of their
/// own.
base::Bytes quantising_bytes(const SegmentShape& shape, Phase phase);

}  // namespace orrery::model
