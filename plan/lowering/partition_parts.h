#pragma once
/// \file
/// A layer whose operators are partitioned one by one in space and time (Wang et al., PrimePar,
/// ASPLOS 2024; plan/partition/partition.h), as operations on the ranks of a stage, the devices.
///
/// A product runs in S temporal steps. Beside step t of a phase the blocks that step t + 1 works on
/// arrive in buffers of their own from the devices that have them (point_to_point with senders):
///
///   F  t < S-1   I, W          B  t < S-1   W, dO          G  t < S-1   I, dO
///                                                              t = S-1   dW of the steps before
///
/// Parameters stay where F starts. F takes copies of W from there; what B starts with is fetched
/// from there too, where the paper moves W home behind B: as many messages, and none of it is kept
/// between the passes. I of F's last step is what G starts with, dO of B's last step too. Sums over
/// id bits that split a contracted dimension outside primitives are all-reduces over these bits.
///
/// Between operators, and at the ends of the layers, a redistribution brings the blocks that the
/// next operator reads from where the last one left them (plan/partition/redistribution.h); where
/// both lie alike there is none. The gradient goes back the same way.
///
/// Gains and biases are cut into the slices of their operator's features, without skew, and there
/// are copies of them wherever devices share a slice. A skewed primitive has other features on its
/// devices: copies go there along the rows, and their gradients back.
///
/// Devices that differ in the id bits of a sum of gradients hold the same block: ZeRO shards its
/// states over them, as over a data group elsewhere. A layer that runs again does so as a whole.
///
/// Attention's scores are kept whole, as in the paper, but where attention is one operation.
#include "plan/lowering/lower_parts.h"
#include "plan/partition/layer_graph.h"

namespace orrery::plan {

/// A tensor in blocks on the devices: [1, b, s, features] or scores [b, n, s, keys].
struct PlacedTensor {
  BufferRef buffer;
  Layout64 layout;
  Extents4 extents{1, 1, 1, 1};  // of the whole tensor
};

/// What the parts of a partitioned layer share.
class DeviceGrid {
 public:
  explicit DeviceGrid(Builder& b, int bits, const LayerStrategy& run = {})
      : b_(b), bits_(bits), run_(run) {}
  Builder& builder() const { return b_; }
  int bits() const { return bits_; }
  /// Parameters whose gradients are sums over `summed` id bits.
  UnitUse unit(const std::string& name, const Parameters& parameters, const Sequence& partition,
               std::uint32_t summed) const {
    return b_.use(b_.unit(name, parameters, partition, summed, run_), "block");
  }

  /// A block of a tensor of the compute type, by name and the operator that wants it so.
  PlacedTensor tensor(const std::string& name, const std::string& of, const Layout64& layout,
                      const Extents4& extents) const;
  /// Of [b, s, features]: dimensions of a tensor of rank 3.
  static Layout64 layout3(const Partition& p, std::array<Dimension, 3> dimensions, Phase phase,
                          int step);
  static Layout64 layout4(const Partition& p, std::array<Dimension, 4> dimensions);
  Extents4 features(std::int64_t columns) const {
    return {1, b_.context().micro_batch_sequences, b_.context().sequence, columns};
  }
  GroupId group(std::uint32_t bits) const;
  BufferRef numbers(const std::string& name, const std::string& of, Extents shape) const;  // fp32
  SegmentShape shape(SegmentKind kind, const Partition& p, std::int64_t in, std::int64_t out) const;

  /// The tensor where `wanted` has it. `sections`: parts of its features that are cut each by
  /// itself; none: one.
  PlacedTensor redistributed(const std::string& what, const PlacedTensor& from,
                             const Layout64& wanted, const std::string& of, Ops& ops,
                             const Extents& sections = {}) const;
  /// The same into a given buffer, even where it lies there already.
  Op redistribution(const std::string& what, const std::vector<RedistributedTensor>& tensors,
                    BufferRefs from, BufferRefs to) const;
  /// A sum over id bits, where `wanted` has it: a reduce-scatter where it splits the sum over just
  /// these bits, else an all-reduce and a change of layout.
  PlacedTensor completed(const std::string& what, const PlacedTensor& sum, std::uint32_t bits,
                         const Layout64& wanted, const std::string& of, Ops& ops,
                         const Extents& sections = {}) const;
  /// All-reduce over id bits; nothing over none.
  void reduced(const std::string& what, BufferRef sum, std::uint32_t bits, Ops& ops) const;
  /// Blocks that travel: `to` is what arrives.
  Op shift(const std::string& what, std::uint32_t bits, std::vector<int> senders, BufferRef from,
           BufferRef to) const;

 private:
  Builder& b_;
  int bits_;
  LayerStrategy run_;  // of the layer
};

/// A matrix product of a layer.
struct ProductSpec {
  std::string name;
  SegmentKind kind = SegmentKind::kMlpIn;
  std::int64_t in = 0, out = 0;  // whole
  Parameters weights = {};       // of one block, rows side by side
};

class PartitionedProduct {
 public:
  PartitionedProduct(const DeviceGrid& grid, ProductSpec spec, const Sequence& sequence);
  /// Where it reads its input and leaves its output and its input's gradient; the output's gradient
  /// is wanted where the output is.
  Layout64 input() const { return layout(Dimension::kIn, kF, 0); }
  Layout64 output() const { return layout(Dimension::kOut, kF, p_.steps() - 1); }
  Layout64 input_gradient() const { return layout(Dimension::kIn, kB, p_.steps() - 1); }
  const Partition& partition() const { return p_; }
  std::string tag() const { return spec_.name + " " + to_string(p_.sequence()); }

  /// @pre the tensor lies as the product wants it. The results are sums over id bits.
  PlacedTensor forward(const PlacedTensor& input, const std::string& to, Ops& ops);
  PlacedTensor backward(const PlacedTensor& d_output, const std::string& to, Ops& ops);
  std::uint32_t output_sum() const { return p_.split_mask(Dimension::kIn); }
  std::uint32_t gradient_sum() const { return p_.split_mask(Dimension::kOut); }
  /// Behind backward().
  void weight_gradient(Ops& ops) const;
  UnitUse use() const { return use_; }

 private:
  Layout64 layout(Dimension features, Phase phase, int step) const {
    return DeviceGrid::layout3(p_, {Dimension::kBatch, Dimension::kTokens, features}, phase, step);
  }
  BufferRef travelling(Operand operand, Phase phase, int step) const;
  BufferRef moved(const Move& move, Phase phase, int step, BufferRef from, Ops& ops) const;
  Op product(Phase phase, int step, BufferRefs reads, std::optional<BufferRef> to,
             std::optional<BufferRef> weights) const;
  BufferRef gradient_part(int number, Ops& ops) const;

  const DeviceGrid& grid_;
  Builder& b_;
  ProductSpec spec_;
  Partition p_;
  UnitUse use_;
  BufferRef stash_;     // I of the last step of F
  BufferRef d_output_;  // dO of the last step of B
};

/// Gains and biases of the features of a partitioned operator.
class PartitionedVectors {
 public:
  PartitionedVectors(const DeviceGrid& grid, std::string name, Parameters parameters,
                     const Partition& p);
  bool empty() const { return parameters_.empty(); }
  UnitUse use() const { return use_; }
  /// Brings copies to the operator, and in the backward a place for their gradients; takes these
  /// back. To be called before and after the operations that use them.
  void begin(Phase phase, Ops& ops);
  void end_backward(Ops& ops);
  /// The weights and, of a backward phase, the gradients of an operation.
  Op used(Op op, const std::vector<std::string>& names) const;
  /// Of all parameters, side by side as one.
  Op used(Op op) const;
  BufferRef weights() const { return weights_; }

 private:
  Op with_state(Op op) const;

  const DeviceGrid& grid_;
  Builder& b_;
  std::string name_;
  Parameters parameters_;
  std::vector<int> senders_;  // of the copies, by index in the group; none: they are where they are
  std::vector<int> back_;
  std::uint32_t bits_ = 0;
  UnitUse use_;
  BufferRef weights_, gradients_;
};

/// A norm whose features may be split.
class PartitionedNorm {
 public:
  PartitionedNorm(const DeviceGrid& grid, std::string name, const Partition& p,
                  const PartitionedVectors& vectors);
  PlacedTensor forward(const PlacedTensor& x, const std::string& to, Ops& ops);
  /// d_residual is added to the gradient that is written to `dx`.
  void backward(const PlacedTensor& dy, const PlacedTensor& d_residual, BufferRef dx, Ops& ops);

 private:
  std::vector<std::string> gains(bool bias) const;
  bool layer() const { return b_.model().norm == model::NormKind::kLayerNorm; }
  SegmentShape shape(SegmentKind kind) const;

  const DeviceGrid& grid_;
  Builder& b_;
  std::string name_;
  Partition p_;
  const PartitionedVectors& vectors_;
  std::uint32_t split_ = 0;  // id bits that split the features
  PlacedTensor x_;
  BufferRefs statistics_;
};

/// Scores, softmax and values.
class PartitionedAttention {
 public:
  PartitionedAttention(const DeviceGrid& grid, const LayerPartition& partition);
  PlacedTensor forward(const PlacedTensor& qkv, Ops& ops);
  /// Where it leaves its output and wants its gradient.
  Layout64 output() const;
  std::string output_tag() const;
  /// Gradient of qkv, where it is wanted by the product that made it.
  PlacedTensor backward(const PlacedTensor& d_o, const Layout64& wanted, const std::string& of,
                        Ops& ops);

 private:
  SegmentShape shape(SegmentKind kind, const Partition& p) const;
  Extents4 scores_extents() const;
  std::vector<RedistributedTensor> parts(const PlacedTensor& qkv) const;
  // the same in one operation, of packed queries, keys and values
  bool fused() const { return softmax_.bits() < values_.bits(); }
  SegmentShape fused_shape() const;
  /// From where the product left them to where attention wants them, or back.
  std::vector<RedistributedTensor> sections(const PlacedTensor& from, const PlacedTensor& to) const;
  PlacedTensor moved(const char* name, const PlacedTensor& from, const Layout64& wanted,
                     const std::string& of, Ops& ops) const;
  PlacedTensor fused_forward(const PlacedTensor& qkv, Ops& ops);
  PlacedTensor fused_backward(const PlacedTensor& d_o, const Layout64& wanted,
                              const std::string& of, Ops& ops);

  const DeviceGrid& grid_;
  Builder& b_;
  Partition scores_, softmax_, values_;
  PlacedTensor qkv_, o_;  // of fused attention
  BufferRef lse_;
  PlacedTensor q_, k_, v_, a_, a_read_;  // k, v: as scores and values read them
};

/// A layer under a partition. @pre partition_faults() of its plan has none.
LayerPair partition_pair(Builder& b, const LayerRun& run);
/// "block[partition ...]": tells templates apart.
std::string partition_tag(const LayerRun& run);
/// The residual stream from one layout to another, one of them a partitioned layer's.
Op redistributed_stream(Builder& b, const char* name, const Layout& from, const Layout& to,
                        BufferRef in, BufferRef out);

}  // namespace orrery::plan
