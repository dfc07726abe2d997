#pragma once
#include <array>
#include <optional>

#include "plan/lowering/builder.h"
#include "plan/program/liveness.h"

namespace orrery::plan {

/// Operations of one layer, forward and backward, with frees placed, and the parameter units it
/// uses.
struct LayerPair {
  Ops forward, backward;
  UnitUses units;
  Ops weight = {};       // see split_backward
  bool offload = false;  // see offload()
};

/// Takes the weight gradients of the plain products (qkv, projection, MLP) out of `backward`: each
/// BG becomes a B, which stays, and a G in `weight`. What a G reads (the product's input and the
/// gradient of its output) lives until the last G that reads it. Norms, biases and tables keep
/// their BG: they give nothing to fill a bubble with.
void split_backward(Builder& b, LayerPair& pair);

/// Puts what the backward reads of the forward into the host's memory meanwhile: behind `forward` a
/// copy out of all of it, which frees it on the device, and the copy back, which the caller puts in
/// front of `backward`. The copy of a layer runs beside the forward of the next one, of which the
/// one after that waits for it; the copy back beside the backward of those `prefetch_depth` layers
/// that run before. What has no instance of its own for each layer and micro-batch stays, and what
/// gradients of weights read in a pass of their own.
Op offload(Builder& b, LayerPair& pair);
/// Where states of a layer are in the host's memory: a copy from there in front of its updates,
/// when the gradients of all its units are complete, and back behind them, beside the copy of the
/// next layer. Two layers are on the device, so that of the one after waits for the copy back.
void copy_states(Builder& b, Ops& update);

/// Segments y = x W' of one matrix (or one an expert), whose gradients of weights and of inputs are
/// operations apart.
bool is_product(SegmentKind kind);
/// Takes the gradients of frozen weights out of a backward: what makes nothing else goes; what
/// makes gradients of inputs too makes them alone (BG becomes B, and a product reads no input);
/// what was gathered for those that went is not.
void freeze(Builder& b, Ops& ops);

LayerPair block_pair(Builder& b, const LayerStrategy& strategy);

/// The products of a block that slices split.
enum class Product : std::uint8_t { kQkv, kProjection, kMlpIn, kMlpOut };
inline constexpr std::size_t kProducts = 4;

/// Where the parameters of a block are, by how zero 3 shards them (OSDP, arXiv 2209.13258, per
/// operator and in slices):
///
///   all operators, one slice    one unit, gathered and reduced as a whole
///   attention or MLP alone      two units, "attention" and "mlp" with their norms; the other one
///                               is replicated (zero 0)
///   g slices                    a unit for each slice of a sharded product, S/g of its S bytes;
///                               the rest (norms, biases of sums) as above
///
/// that of adapters, if any (then all others are frozen), and that of the experts, last.
struct BlockUnits {
  UnitUses all;
  std::size_t attention = 0, mlp = 0, adapters = 0;  // in `all`
  std::array<std::size_t, kProducts> first_slice{};
  std::array<int, kProducts> slices{1, 1, 1, 1};
  const UnitUse& of(Product p, int slice) const;
};
BlockUnits block_units(Builder& b, const LayerStrategy& strategy);

/// Weights of a slice are gathered before the operation that reads them and die behind it: beside
/// the slice in use at most prefetch_depth more are gathered, and only inside the pass. `ops`:
/// forward or backward with its replays, before frees are placed.
void gather_slices(Builder& b, const UnitUses& units, Ops& ops);
/// Gradient parts of slices (UnitUse::parts) are zeroed before and reduced behind the one operation
/// of `ops` that contributes to them.
void reduce_slices(Builder& b, const UnitUses& units, Ops& ops);

Parameters block_parameters(const ModelSpec& model, int tp);
Parameters adapter_parameters(const ModelSpec& model, int tp);

/// What stands between the QKV product and the output projection of a block, forward (qkv -> o) and
/// backward (do -> dqkv), without frees.
struct AttentionPart {
  Ops forward, backward;
};
struct AttentionEnds {
  BufferRef qkv, o, d_o, dqkv;  // [b, s/cp, features/tp]
};
/// `use`: the unit of the block's attention, for sinks.
AttentionPart attention_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                             const AttentionEnds& ends);
/// The same with norms of queries and keys in front of it; of a recurrent block its scan.
AttentionPart mixer_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                         const AttentionEnds& ends);
/// The same, its output times sigmoid(gate), which the block's own product makes.
AttentionPart gated_mixer_part(Builder& b, const LayerStrategy& strategy, const UnitUse& use,
                               const AttentionEnds& ends, BufferRef gate, BufferRef dgate);
/// Parameters of the product into a scan, side by side.
ParameterView scan_weights(const Builder& b, const UnitUse& use);
/// Operations that selective recomputation runs again, and of which nothing else is kept: the
/// attention core, in a ring with the travel of keys.
bool is_attention_core(const Program& program, const Op& op);

UnitUse expert_use(Builder& b, const LayerStrategy& strategy);

/// What the parts of a block share: buffers on the tokens of the layout or of the whole tensor
/// group, and what leads from one to the other.
///
/// f: identity forward, all-reduce backward; g: all-reduce forward, identity backward (Megatron-LM,
/// arXiv 1909.08053); with sequence parallelism f is an all-gather / reduce-scatter pair and g its
/// mirror (arXiv 2205.05198).
///
/// In pieces (LayerStrategy::tensor_pieces), piece j is the jth of every rank's tokens: gathers of
/// one run beside the product over the one before, scatters beside the product over the next.
struct Piece {
  int of = 1, index = 0;
  std::string of_name(std::string name) const;  // "qkv 2/4"
  Op of_op(Op op) const;
};
class TensorPart {
 protected:
  TensorPart(Builder& b, const LayerStrategy& s)
      : b_(b), m_(b.model()), s_(s), l_(s), full_(l_.whole()) {}

  BufferRef shard(const std::string& name) { return b_.tensor(name, l_, m_.hidden); }
  BufferRef wide(const std::string& name, std::int64_t columns, model::DType dtype);
  BufferRef wide(const std::string& name, std::int64_t columns) {
    return wide(name, columns, b_.dtype());
  }
  /// "a whole", where the layout splits the tokens of `x`, else `x`: where gathered() brings it,
  /// and where the partial sums stand that reduced() takes.
  BufferRef whole(const std::string& what, BufferRef x, Piece piece = {});
  /// Input of a column-parallel product: gathered over the sequence when it is split.
  BufferRef gathered(const std::string& what, BufferRef x, Ops& ops, Piece piece = {});
  /// Output of a row-parallel product: partial sums in whole(what, x) become `x`.
  void reduced(const std::string& what, BufferRef x, Ops& ops, Piece piece = {});

  Builder& b_;
  const ModelSpec& m_;
  LayerStrategy s_;
  Layout l_, full_;
};

/// Low-rank adapters (model/adapter.h) beside the products of a block, on a tensor rank:
///
///   column-parallel W   A whole, B split as W's output. t = x A on the layout's tokens, gathered
///                       as x is; dt is a partial sum, completed as dx is
///   row-parallel W      A split as W's input, B whole. t = x A is a partial sum, completed as y
///   is;
///                       dt on the layout's tokens, gathered as dy is
///
/// What travels has r features. What is whole (A of the first, B of the second) is as a norm's
/// gain: with sequence parallelism its gradient is a partial sum over the tensor group.
class Adapters : TensorPart {
 public:
  /// `use`: the unit of adapter_parameters().
  Adapters(Builder& b, const LayerStrategy& strategy, const UnitUse& use);
  /// Behind products of what was gathered, forward of column-parallel W and backward of
  /// row-parallel: `in` (x or dy) is on the layout's tokens, `out` (y or dx) is updated. x: of the
  /// backward.
  void gathered_side(Product p, Phase phase, BufferRef in, BufferRef x, BufferRef out, Ops& ops);
  /// Behind sums of products, the other two: `out` is on the layout's tokens.
  void reduced_side(Product p, Phase phase, BufferRef from, BufferRef x, BufferRef out, Ops& ops);

 private:
  bool has(Product p) const;
  std::string named(Product p, const char* what) const;
  BufferRef narrow(Product p, const char* what);
  /// t = x A;  dx += dt A'. The second: y += t B;  dt = dy B'.
  void first(Product p, Phase phase, const Layout& l, BufferRefs reads, BufferRef to, Ops& ops);
  void second(Product p, Phase phase, const Layout& l, BufferRefs reads, BufferRef to, Ops& ops);
  ParameterView columns(Product p) const;

  UnitUse use_;
};

/// The MLP of a block in a mixture of experts (GShard, arXiv 2006.16668; Switch, arXiv 2101.03961;
/// Mixtral, arXiv 2401.04088):
///
///   gates, choice = router(c);  rows = dispatch(c, choice);  out = expert MLPs(rows);
///   q = combine(out, gates)
///
/// The router is replicated and runs on the tokens of the layout, as a norm does. Experts are split
/// over ep neighbours of the data group (group `expert`: size ep, stride tp), every expert over tp.
/// An all-to-all over the expert group takes the rows [R, h] to their experts and another one back;
/// both are there in backward too. rows = R = sequences * experts * capacity, before the exchange
/// and after it, so bytes are static.
/// A tensor rank has partial sums from an expert's last product on; combine is linear, so they are
/// completed on [T, h] after it, as of a dense MLP, instead of on the larger [R, h]. The gates'
/// gradients are dot products with partial rows: summed as well. Experts are a unit of their own. A
/// rank's contribution is of the tokens of all ep ranks, so gradients are reduced, and states
/// sharded, over the remaining replicas / ep ranks: group `expert data`, stride tp * ep.
///
/// Folded (LayerStrategy::folded): a tensor rank routes and sends its own tokens, T / tp, and an
/// expert stands whole on one of ep neighbours of all ranks (group `expert`: stride 1; `expert
/// data`: stride ep): nothing of rows or gates is gathered or partial. Only a shared expert is
/// still split over tp: it reads gathered tokens, and its sums are scattered before they are added.
///
/// Where gates weight what experts read (Llama 4): rows = dispatch(c, choice, gates), q =
/// combine(out), and the gates' gradients, dot products with c, come of dispatch.
///
/// In a latent (ModelSpec::expert_hidden, l): x = W_to c on the layout's tokens in front of
/// dispatch, q = W_from of what combine makes, both whole on every tensor rank. Rows have l
/// features; router and shared expert read c, and the shared one's sums are completed on their own.
class ExpertMlp : TensorPart {
 public:
  /// `block`: the unit that holds router and shared expert.
  ExpertMlp(Builder& b, const LayerStrategy& strategy, const UnitUse& block,
            const UnitUse& experts);
  /// From the MLP's input to its output, whole and in the block's layout.
  void forward(BufferRef in, BufferRef out, Ops& ops);
  /// d: gradient of the output; in: the input as kept; out: its gradient.
  void backward(BufferRef d, BufferRef in, BufferRef out, Ops& ops);

 private:
  /// Products with an activation between them: the experts', and the shared one.
  struct Mlp {
    std::string name;
    UnitUse use;
    SegmentShape in, activation, out;
    Views in_views, out_view;
  };
  /// h: what it reads and writes; f: its features on a rank.
  Mlp mlp(const char* name, const UnitUse& use, std::int64_t h, std::int64_t f) const;
  Mlp expert() const;
  Mlp shared() const;
  void run(const Mlp& p, BufferRef c, BufferRef u, BufferRef g, BufferRef z, Ops& ops);
  void run_backward(const Mlp& p, BufferRef dz, BufferRef g, BufferRef dg, BufferRef u,
                    BufferRef du, BufferRef c, BufferRef dc, Ops& ops);
  BufferRef padded(const std::string& name, std::int64_t columns);
  /// Names what has the size of the tokens sent: less where experts are folded over the same ranks.
  [[nodiscard]] std::string of_sent(const std::string& name) const;
  SegmentShape token_shape(SegmentKind kind, const Layout& l) const;
  void exchanged(const char* what, BufferRef in, BufferRef out, Ops& ops);
  Views router_views() const;
  /// Its output is weighted by a gate of its own and added in combine; else it is added behind it.
  bool gated_shared() const { return m_.shared_ffn > 0 && m_.shared_gate; }
  Op product(const Mlp& p, bool in, Phase phase, BufferRefs reads, BufferRef to);
  bool gates_inputs() const { return m_.routing.of_inputs; }
  /// whole(), unless every tensor rank sends its own tokens.
  BufferRef all(const std::string& what, BufferRef x) { return s_.folded ? x : whole(what, x); }
  /// Experts read and write a latent narrower than the block.
  bool narrow() const { return m_.expert_hidden > 0; }
  /// The shared expert's partial sums are completed apart from those of the experts.
  bool completes_shared() const { return s_.folded || narrow(); }
  Op latent_product(bool in, Phase phase, BufferRefs reads, BufferRef to);
  /// What dispatch reads, of the block's input; what combine's backward does, of its gradient.
  BufferRef sent_tokens(BufferRef in, BufferRef gathered_in, Ops& ops);
  BufferRef sent_gradient(BufferRef d, BufferRef gathered_d, Ops& ops);
  /// The shared expert's share of this rank's tokens, where it is completed apart.
  BufferRef own_shared(const char* name) { return shard(name); }
  /// Its partial sums.
  BufferRef shared_sum(const char* name) {
    const std::string own = fmt::format("shared {}", name);
    return narrow() ? whole(own, own_shared(own.c_str())) : shared_buffer(name, m_.hidden);
  }
  BufferRef shared_buffer(const char* name, std::int64_t columns);
  BufferRef shared_operand(std::int64_t columns);  // its activation
  BufferRef shared_forward(BufferRef c, Ops& ops);
  void shared_backward(BufferRef dz, BufferRef c, BufferRef dc, Ops& ops);

  UnitUse block_, use_;
  GroupId expert_;
  Layout sent_;             // whose tokens a rank sends to experts
  int etp_ = 1;             // ranks that share an expert
  std::int64_t width_ = 0;  // of what experts read and write
  std::int64_t capacity_ = 0, rows_ = 0;
  BufferRef gates_, choice_, scores_, whole_gates_, whole_choice_, slots_, rows_in_, u_, g_,
      rows_out_, latent_, latent_out_;
};

/// A norm with its statistics, by the name of its parameters in the unit ("cross.norm").
class NormPart {
 public:
  /// `name`: of its operations and, unless they have their own, before those of its statistics.
  NormPart(Builder& b, const Layout& l, const UnitUse& use, const std::string& name,
           const std::string& parameters, std::int64_t features, std::string mean = {},
           std::string rstd = {});
  /// Writes its result in the format.
  void quantises(model::Format format) { shape_.format = format; }
  Op forward(BufferRef x, BufferRef out) const;
  /// d_residual (or none): added to dx.
  Op backward(BufferRef dy, BufferRef x, BufferRef dx, BufferRef d_residual = {}) const;

 private:
  Builder& b_;
  UnitUse use_;
  std::string name_;
  SegmentShape shape_;
  Views views_;
  BufferRefs statistics_;
};

/// Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): from the block's normed input to
/// the input of its output projection,
///
///   t = n(W_dq a), c = n(W_dkv a), r = W_kr a;  q = W_uq t, kv = W_ukv c;  o = attention(q, kv, r)
///
/// W_dq, W_dkv, W_kr and the norms stand whole on every tensor rank and run on the tokens of the
/// layout, as norms do; what they make is gathered in place of the wider input. W_uq and W_ukv are
/// split by heads. Without a rank for queries q = W_q a, and a is gathered.
///
/// With an indexer (model::Indexer) attention reads W_iq t, W_ik a and W_iw a as well; their inputs
/// get no gradient.
class LatentMixer : TensorPart {
 public:
  /// `ends`: o and its gradient.
  LatentMixer(Builder& b, const LayerStrategy& strategy, const UnitUse& block,
              const AttentionEnds& ends);
  void forward(BufferRef in, Ops& ops);
  /// d_o to `out`, the gradient of the input `in`.
  void backward(BufferRef in, BufferRef out, Ops& ops);

 private:
  Op product(const char* name, SegmentKind kind, const Layout& l, std::int64_t in, std::int64_t out,
             Names weights, Phase phase, BufferRefs reads, BufferRef to);
  Op down(const char* name, std::int64_t out, Names weights, Phase phase, BufferRefs reads,
          BufferRef to);
  Op query(Phase phase, BufferRefs reads, BufferRef to);
  Op keys(Phase phase, BufferRefs reads, BufferRef to);
  SegmentShape core() const;
  BufferRef narrow(const char* name, std::int64_t columns);
  /// What the indexer reads, or gradients of it: queries, keys, weights.
  void index_products(Phase phase, BufferRef in, const BufferRefs& of, Ops& ops);
  Op attention(Phase phase, BufferRefs reads, BufferRefs writes);

  UnitUse use_;
  AttentionEnds ends_;
  std::optional<NormPart> q_norm_, kv_norm_;
  std::int64_t q_features_, kv_features_;  // of a rank's heads
  BufferRef t_, t_normed_, c_, c_normed_, r_, q_, kv_, lse_;
  BufferRefs index_;  // queries, keys, weights; none without an indexer
  BufferRef least_;
};

/// The second attention of a decoder block (Vaswani et al., arXiv 1706.03762, section 3.2.3), over
/// the encoder's output e:
///
///   y' = y + proj(attention(q(norm(y)), kv(e)))
///
/// Products are split over tp as those of the first attention. e is the companion of the residual
/// stream, whole between blocks as the stream is; its gradient is the sum over all decoder blocks,
/// each adds its share in place.
class CrossAttention : TensorPart {
 public:
  CrossAttention(Builder& b, const LayerStrategy& strategy, const UnitUse& block);
  void forward(BufferRef y, BufferRef out, Ops& ops);
  /// d: gradient of y'; out: that of y.
  void backward(BufferRef d, BufferRef y, BufferRef out, Ops& ops);

 private:
  Op product(const char* name, SegmentKind kind, std::int64_t in, std::int64_t out, Names weights,
             Phase phase, BufferRefs reads, BufferRef to);
  Op query(Phase phase, BufferRefs reads, BufferRef to);
  Op keys(Phase phase, BufferRefs reads, BufferRef to);
  Op projection(Phase phase, BufferRefs reads, BufferRef to);
  SegmentShape core() const;

  UnitUse use_;
  NormPart norm_;
  std::int64_t n_ = 0, k_ = 0;  // features of a rank's query heads, of its key heads
  BufferRef encoded_, d_encoded_, a_, q_, kv_, o_, lse_;
};

/// What a block does before its first norm (model::BlockEntry), and which buffers its residual
/// stream starts from.
///
///   patch merging   x = merge(norm(four tokens joined)), on the tokens of the layout, with weights
///                   that every tensor rank holds whole (as those of norms: with sequence
///                   parallelism their gradients are partial over the tensor group)
///   encoder end     companion "encoder output" = norm(stream); x = companion "decoder input"
///
/// Companions live from whoever makes them to whoever makes them in another layout, or sends them
/// on. The encoder's output is read by every block's backward: it dies in the backward of its
/// maker.
class BlockStart {
 public:
  BlockStart(Builder& b, const LayerStrategy& strategy, const UnitUse& block);
  BufferRef x() const { return x_; }
  BufferRef dx() const { return dx_; }
  Ops forward() const;
  Ops backward() const;
  /// Not to be freed by this block.
  bool outlives(const BufferRef& r) const;
  /// Whose result is there in the backward anyway: never replayed.
  bool makes_companion(const Op& op) const;

 private:
  Op merge(Phase phase, BufferRefs reads, BufferRef to) const;

  Builder& b_;
  const ModelSpec& m_;
  UnitUse use_;
  BufferRef from_, d_from_, x_, dx_, joined_, d_joined_;
  SegmentShape product_;
  std::optional<NormPart> norm_;
};

/// The gradient of the encoder's output, zero behind the last decoder block.
LayerPair decoder_end_pair(Builder& b, const Layout& l);

/// The loss of a step, which the head adds to.
BufferRef loss_buffer(Builder& b);

/// Token (and position) embedding; output in the vocabulary layout. Called with layer 0.
LayerPair embedding_pair(Builder& b, const LayerStrategy& vocabulary);
UnitUses embedding_units(Builder& b, const LayerStrategy& vocabulary);
/// Final norm, logits, vocabulary-parallel loss and their backward, all in `forward`. Called with
/// layer = number of blocks.
LayerPair head_pair(Builder& b, const LayerStrategy& vocabulary);
UnitUses head_units(Builder& b, const LayerStrategy& vocabulary);
/// The head reads the embedding's own table (tied, and both in one stage).
bool shares_table(const Builder& b);

/// Change of layout of the residual stream at the boundary behind a block of the current kind, and
/// of its companion, which becomes the next one (Builder::enter_layout), unless a head follows.
/// Same layout: no operations.
LayerPair reshard_pair(Builder& b, const Layout& from, const Layout& to, bool before_head);

/// Adds the templates of one layer to the Program under construction. The result's own Program has
/// nothing but the class that lists the persistent state.
LayerTemplates add_templates(Builder& b, const std::string& name, LayerPair pair);

/// Operations of `from` behind those of `to`.
void append(Ops& to, Ops from);
/// Zeroing of the gradient parts of units, before a backward.
void zero_parts(Builder& b, const UnitUses& units, Ops& ops);
/// What the backward reads in place of a forward's weights; of other buffers, themselves.
BufferRef backward_weights(const UnitUses& units, const BufferRef& forward);
/// Places the frees of a pair; persistent buffers, gradient parts and what `keep` claims stay.
void place_frees(Builder& b, LayerPair& pair, const std::function<bool(const BufferRef&)>& keep);

/// Of leading parameters that every tensor rank holds whole and whose gradients are partial sums:
/// all under sequence parallelism, else those of heads (Parameter::partial).
std::int64_t partial_elements(const ParameterUnit& unit);

}  // namespace orrery::plan
