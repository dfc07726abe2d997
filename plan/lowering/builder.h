#pragma once
#include <map>

#include "base/numbers.h"
#include "plan/lowering/lower.h"
#include "plan/program/program.h"

namespace orrery::plan {

using model::ModelSpec;
using model::SegmentKind;
using model::SegmentShape;
using enum model::SegmentKind;  // by the names of the table in model/segment.h
using enum model::DType;
using enum Phase;
using enum Init;

using Ops = std::vector<Op>;  ///< in issue order
using BufferRefs = std::vector<BufferRef>;
using Views = std::vector<ParameterView>;
using Parameters = std::vector<Parameter>;
using Extents = std::vector<std::int64_t>;
using Names = std::initializer_list<const char*>;

/// The name of the units that are trained where all others are frozen.
inline constexpr std::string_view kAdapters = "adapters";

/// How activations lie between blocks on the ranks of a stage: sequences split over dp, their
/// tokens over cp, those again over tp when sequence_parallel. Rank r has
///   tensor index  (r / tensor_stride) % tp,
///   token share   (r / token_stride) % cp,
///   batch share   (r / batch_stride) % dp.
struct Layout {
  int tp = 1, dp = 1, cp = 1;
  bool sequence_parallel = false;
  // replicas innermost; over one tensor rank or one replica there is no difference
  bool strided = false;
  // of partitioned layers: that of their stream, with dp, cp and parts its slices of sequences,
  // tokens and features; ranks do not lie in strides
  Sequence stream = {};
  int parts = 1;
  Layout() = default;
  explicit Layout(const LayerRun& run);
  [[nodiscard]] bool partitioned() const { return !stream.empty(); }
  /// The same as a partition of the stream over 2^bits ranks. @pre the degrees are powers of two.
  [[nodiscard]] Sequence sequence() const;
  explicit Layout(const LayerStrategy& s)
      : tp(s.tp),
        dp(s.dp),
        cp(s.cp),
        sequence_parallel(s.sequence_parallel && s.tp > 1),
        strided(s.strided && s.tp > 1 && s.replicas() > 1) {}
  std::string tag() const;
  /// The same with the tokens of the tensor group together.
  Layout whole() const {
    Layout l = *this;
    l.sequence_parallel = false;
    return l;
  }
  int tensor_stride() const { return strided ? cp * dp : 1; }
  // also that of the data group, cp innermost
  int token_stride() const { return strided ? 1 : tp; }
  int batch_stride() const { return token_stride() * cp; }
  bool operator==(const Layout&) const = default;
};

/// Layers between which the residual stream need not move.
bool same_layout(const LayerRun& a, const LayerRun& b);

/// ZeRO stage that has an effect: over one rank nothing is sharded.
inline int effective_zero(const LayerStrategy& s) { return s.shard_ranks() > 1 ? s.zero : 0; }

/// What zero 3 shards, where it has an effect, and in how many slices.
inline ShardedOperators effective_operators(const LayerStrategy& s) {
  return effective_zero(s) == 3 ? s.operators : ShardedOperators::kAll;
}
inline int effective_slices(const LayerStrategy& s) {
  return effective_zero(s) == 3 ? s.slices : 1;
}

/// Gradients of a micro-batch are reduced at once, through a part that dies, instead of being
/// accumulated in full.
inline bool reduces_parts(const LayerStrategy& s, std::int64_t micro_batches) {
  return effective_zero(s) >= 2 && (s.grad_reduce == GradReduce::kMicroBatch ||
                                    (s.grad_reduce == GradReduce::kStep && micro_batches == 1));
}

/// Flat state of one parameter unit on one rank.
struct UnitState {
  UnitId unit;
  Scope scope = Scope::kLayer;
  BufferId parameter;
  BufferId gradient, moment1, moment2;  // of what is trained; else invalid
  BufferId master;                      // of bf16; else invalid
  BufferId copies;  // quantised, by rows and by columns, of weights that are not gathered; or none
  BufferRefs persistent() const;  // without copies
};

/// A unit as one pair of templates sees it: where weights are read (forward, backward) and where
/// contributions go.
struct UnitUse {
  UnitState state;
  BufferRef weights_forward, weights_backward, gradient;
  bool gathered = false, parts = false;
  // gathered and reduced beside the one product that uses it (block_units.cc), not for the whole
  // layer
  bool sliced = false;
  // false: another layer of this stage declares, zeroes, synchronises and updates the state
  bool owned = true;
  // first and last stage each hold a copy; their gradients are summed before the update
  bool tied = false;
};

using UnitUses = std::vector<UnitUse>;

/// Interns buffers, groups, segments and units of one Program under construction.
class Builder {
 public:
  Builder(Program& program, const ModelSpec& model, const LayerContext& context);

  Program& program() { return program_; }
  /// The model as blocks of the current kind see it.
  const ModelSpec& model() const { return views_.empty() ? model_ : views_[as_index(kind_)]; }
  /// Turns to blocks of another kind. Local buffers and units of all but the first kind have its
  /// name before theirs.
  void enter(int kind) { kind_ = kind; }
  /// Turns to the nth layout of the companion on a stage: every change of layout makes a new one
  /// (see companion()).
  void enter_layout(int n) { layout_number_ = n; }
  int layout_number() const { return layout_number_; }
  const LayerContext& context() const { return context_; }
  model::DType dtype() const { return model::compute_dtype(context_.precision); }
  model::Format format() const { return model::format_of(context_.precision); }
  /// Of what products read.
  model::DType operand_dtype() const {
    return format() == model::Format::kNone ? dtype() : model::terms_of(format()).element;
  }

  BufferId buffer(BufferDecl decl);  // by name
  BufferRef local(const std::string& name, const Layout& layout, Extents shape, model::DType dtype);
  /// [b, s, columns] of the compute type on the layout's tokens.
  BufferRef tensor(const std::string& name, const Layout& layout, std::int64_t columns) {
    return local(name, layout, {sequences(layout), tokens(layout), columns}, dtype());
  }
  BufferRef operand(const std::string& name, const Layout& layout, std::int64_t columns) {
    return local(name, layout, {sequences(layout), tokens(layout), columns}, operand_dtype());
  }
  const BufferDecl& decl(const BufferRef& ref) const { return program_.buffers[ref.buffer]; }
  const ParameterUnit& unit(const UnitUse& use) const { return program_.units[use.state.unit]; }
  /// View of parameters of the unit that stand side by side as one tensor, by the ends of their
  /// names: rows add up, trailing dimensions are equal.
  ParameterView view(const UnitUse& use, Names names) const;
  GroupId group(const std::string& name, int size, int stride);
  GroupId group(const Group& group);
  RedistributionId redistribution(const Redistribution& r);
  GroupId tensor_group(const Layout& l) { return group("tensor", l.tp, l.tensor_stride()); }
  GroupId context_group(const Layout& l) { return group("context", l.cp, l.token_stride()); }
  SegmentId segment(const SegmentShape& shape);
  PoolId gather_pool() { return pool("gathered weights"); }  // of layers
  PoolId slice_pool() { return pool("gathered slices"); }
  // of layers: what their forwards keep is on the device, or comes back
  PoolId kept_pool() { return pool("kept activations", 2); }
  PoolId returned_pool() { return pool("returned activations"); }
  // of layers: their optimizer states are on the device
  PoolId states_pool() { return pool("updated states", 2); }
  /// Holds the same in the host's memory; of optimizer states there, on the device.
  BufferRef on_host(const BufferRef& buffer) {
    return twin(buffer, " on the host", BufferCategory::kHost);
  }
  BufferRef on_device(const BufferRef& states) {
    return twin(states, " on the device", BufferCategory::kOptimizer);
  }

  /// Sequences of a micro-batch on one rank, tokens of a sequence on one rank (between blocks).
  std::int64_t sequences(const Layout& l) const { return context_.micro_batch_sequences / l.dp; }
  std::int64_t tokens(const Layout& l) const {
    return context_.sequence / model().token_share / l.cp / (l.sequence_parallel ? l.tp : 1);
  }
  /// Of the zig-zag order in which the current kind keeps its tokens (model/segment.h).
  int token_chunks() const { return model().causal ? context_.token_chunks : 1; }
  /// Which tokens of a sequence a rank has.
  void share_tokens(SegmentShape& s, const Layout& l) const {
    s.token_parts = l.cp;
    s.token_stride = l.token_stride();
    s.token_chunks = token_chunks();
  }
  /// Residual stream between blocks of the current kind, into layer `layer_offset` from here, and
  /// its gradient: [b, s, hidden].
  BufferRef stream(const Layout& l, int layer_offset);
  BufferRef stream_gradient(const Layout& l, int layer_offset);
  /// The same as a block of the current kind reads it: that of the kind before where the block has
  /// an entry.
  BufferRef input(const Layout& l);
  BufferRef input_gradient(const Layout& l);

  bool has_companion() const { return model_.encoder_decoder(); }
  /// What travels along the residual stream of an encoder-decoder, one instance per micro-batch and
  /// layout of a stage: the decoder's embedded input while the encoder runs, the encoder's output
  /// while the decoder does (`decoder`). Same shape as the stream.
  BufferRef companion(const Layout& l, bool decoder, int layout_number);
  BufferRef companion_gradient(const Layout& l, bool decoder, int layout_number);

  /// Starts a shape with the fields that every segment of a layout shares.
  SegmentShape shape(SegmentKind kind, const Layout& l, std::int64_t in, std::int64_t out) const;

  /// Declares a unit and its persistent state, once per (name, strategy without recomputation).
  /// `elements` and offsets of `parameters` are filled in here. strategy.ep > 1: a unit of experts,
  /// dp the size of its data group.
  UnitState unit(const std::string& name, Parameters parameters, const LayerStrategy& strategy,
                 Scope scope);
  /// Of an operator partitioned by a sequence, per layer: gradients are sums over the devices that
  /// differ in `summed` id bits, and states are sharded over them as `run` says of its layer.
  UnitState unit(const std::string& name, Parameters parameters, const Sequence& partition,
                 std::uint32_t summed, const LayerStrategy& run);
  UnitUse use(const UnitState& state, const std::string& user);

  TemplateId add(std::string name, Ops ops);

  /// Of a product that reads `input` and the weights of `use`: what it multiplies in.
  void quantise(SegmentShape& product, const BufferRef& input, const UnitUse& use) const;

 private:
  /// Declares the persistent state of a unit whose strategy, parameters and groups are known.
  UnitState add_unit(ParameterUnit unit, Scope scope);
  /// Of prefetch_depth + 1, unless stated.
  PoolId pool(const std::string& name) { return pool(name, context_.prefetch_depth + 1); }
  PoolId pool(const std::string& name, int capacity);
  BufferRef twin(const BufferRef& of, const char* where, BufferCategory category);
  /// Of kinds behind the first: "decoder ".
  std::string prefix() const;
  /// "NAME [TAG]", as buffers are called.
  std::string named(std::string name, const Layout& l);
  BufferRef stream_buffer(const char* name, const Layout& l, std::int64_t hidden,
                          std::int64_t token_share, int layer_offset);
  BufferRef companion_buffer(const char* name, const Layout& l, int layout_number);

  Program& program_;
  const ModelSpec& model_;
  LayerContext context_;
  std::vector<ModelSpec> views_;  // by kind; none when there is one
  int kind_ = 0, layout_number_ = 0;
  Layout tagged_;  // of tag_
  std::string tag_ = tagged_.tag();
  std::map<std::string, BufferId> buffers_;
  std::map<std::string, UnitState> units_;
};

// Operations.
Op compute(Builder& b, std::string name, const SegmentShape& shape, Phase phase, BufferRefs reads,
           BufferRefs writes, BufferRefs updates = {});
/// Adds the weights of `use` to an operation, those of its phase; backward phases also get the
/// gradient, of weights that are trained. Only gradient: the phase reads no weight.
Op with_weights(Op op, const UnitUse& use, Views views);
Op with_gradient(Op op, const UnitUse& use, Views views);
/// `to` += `what`. A sum has one phase, wherever it stands.
Op sum(Builder& b, const Layout& l, std::string name, BufferRef what, BufferRef to);
/// Flat: a fresh gradient part of zeros; `to` += `what`.
Op zeroed(Builder& b, std::string name, BufferRef part);
Op summed(Builder& b, std::string name, BufferRef what, BufferRef to);
/// A collective of `what`, in place.
Op collective(Builder& b, Collective kind, const std::string& what, Stream stream, GroupId group,
              BufferRef buffer);
Op all_reduce(Builder& b, const std::string& what, Stream stream, GroupId group, BufferRef buffer);
/// One that reads `from` and writes `to`. Point to point is a shift: `from` goes to the next rank
/// of the group, `to` comes from the one before.
Op collective(Builder& b, Collective kind, const std::string& what, Stream stream, GroupId group,
              BufferRef from, BufferRef to, int dim = 0);

// Templates that every unit has.
/// ZeRO-3: gather of one unit's weights.
Op gather_op(Builder& b, const UnitUse& use, BufferRef gathered);
/// Gathers of those weights that `users` read; not of slices.
Ops gather_ops(Builder& b, const UnitUses& units, const Ops& users);
Ops zero_part_ops(Builder& b, const UnitUse& use);
Ops zero_gradient_ops(Builder& b, const UnitState& state);
/// Reduction over data parallelism. `replicated_elements`: leading parameters whose gradients are
/// partial over the tensor group (sequence parallelism); they are summed first.
///
/// Hybrid sharding of g elements over n of n r ranks (HSDP of PyTorch FSDP; MiCS, arXiv 2205.00119,
/// section 3.3): reduce-scatter of g over the shard group, then an all-reduce of the owned g / n
/// over the replica group. Gradients that are scattered after every of several micro-batches cross
/// the replicas once per step, before the update.
Ops sync_ops(Builder& b, const UnitUse& use, std::int64_t replicated_elements);
Ops update_ops(Builder& b, const UnitUse& use);
/// ZeRO-1/2: the whole parameter from the slices that its ranks have updated.
Ops gather_updated_ops(Builder& b, const UnitUse& use);

/// On one tensor rank.
std::int64_t elements_of(const Parameter& p);

/// What tells templates apart: "tp2 dp4 z3 full".
std::string strategy_tag(const LayerStrategy& s);
/// Of a partitioned layer: " z3 mb full", nothing of what is plain.
std::string sharding_tag(const LayerStrategy& s);

}  // namespace orrery::plan
