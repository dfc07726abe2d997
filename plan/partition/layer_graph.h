#pragma once
/// \file
/// A Transformer layer as operators that are partitioned one by one (PrimePar, ASPLOS 2024,
/// section 5), b sequences of s tokens:
///
///   stream -> qkv -> scores -> softmax -> values -> projection -> stream
///   stream -> mlp in -> activation -> mlp out -> stream of the next layer
///   and: qkv -> values, each stream -> the next one (the residual)
///
///   operator    dimensions        whole tensors
///   stream      B, M, K, R        residual sum and norm of [b, s, h]; over R all do the same
///   linear      B, M, N, K and P  I [b, s, in], W [in, out], O [b, s, out]
///   scores      B, M, H, L        Q K^T: [b, n, s, d] x [b, k, s, d] -> [b, n, s, s]
///   softmax     B, M, H           [b, n, s, s]
///   values      B, M, H, L        A V: [b, n, s, s] x [b, k, s, d] -> [b, s, n d]
///   activation  B, M, K           [b, s, f]
///
/// Streams and activations also follow a skewed primitive's layout, tokens r and features c - s r.
/// Scores are materialised, as in the paper. Splits stay whole: of features of qkv and of heads to
/// the key heads' power of two, of others to that of the extent.
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/segment.h"
#include "model/spec.h"
#include "plan/partition/partition.h"

namespace orrery::plan {

/// Whether layers are such: dense ones of one kind with plain attention. Where norms stand does not
/// matter to what is split.
bool has_layer_graph(const model::ModelSpec& model);

enum class OperatorKind : std::uint8_t {
  kStream,
  kLinear,
  kScores,
  kSoftmax,
  kValues,
  kActivation
};

/// Operators of one layer in order, the next layer's stream behind the last.
enum LayerOperator : std::uint8_t {
  kStreamIn,
  kQkvProduct,
  kScoreProduct,
  kSoftmaxOf,
  kValueProduct,
  kOutProjection,
  kStreamMiddle,
  kMlpInProduct,
  kActivationOf,
  kMlpOutProduct,
  kStreamOut
};
inline constexpr int kLayerOperators = 11;

struct Operator {
  std::string_view name;
  OperatorKind kind = OperatorKind::kStream;
  std::int64_t in = 0, out = 0;  // features of a linear, of an activation
  SequenceSpace space = {};
  model::SegmentKind segment = model::SegmentKind::kMlpIn;  // of a linear
};

/// Whether attention so split may be one fused operation: every device has whole sequences of its
/// heads.
inline bool can_fuse(const Partition& attention) {
  return attention.slice_bits(Dimension::kBatch) + attention.slice_bits(Dimension::kHeads) ==
         attention.bits();
}

/// A tensor that operator `to` reads of operator `from`.
struct Connection {
  int from = 0, to = 0;
  std::int64_t elements = 0;
  std::vector<Dimension> held = {}, wanted = {};  // by dimension of the tensor
};

struct LayerGraph {
  std::int64_t sequences = 0, tokens = 0;
  std::vector<Operator> operators;  // by LayerOperator
  std::vector<Connection> connections;
};
/// @pre the model has one kind of dense block. `skews`: of primitives (SequenceSpace).
LayerGraph layer_graph(const model::ModelSpec& model, std::int64_t sequences, std::int64_t tokens,
                       int skews);

}  // namespace orrery::plan
