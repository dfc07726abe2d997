#pragma once
/// \file
/// The Program: what every rank does, stated once, run by two interpreters (simulator and
/// executor).
///
/// A Program is a small loop nest per *rank class* (one class per pipeline stage) over *templates*:
/// lists of operations for "some layer, some micro-batch". Its size does not grow with depth, batch
/// or degree of data parallelism; `expand.h` unrolls it lazily. All ranks of a class run the same
/// operations with their own peers, which groups state symbolically.
///
/// Rules of execution, the same for the checker, the simulator and the executor:
///  * every operation belongs to one stream; a stream runs its operations in issue order, one at a
///    time;
///  * an operation starts when it is at the head of its stream and every operation it depends on
///    has ended. Dependencies follow from buffers (a reader waits for the last writer) and pools
///    (below); expansion states them explicitly;
///  * a collective starts when every rank of its group has reached it; an exchange leg (send or
///    receive) starts when its peer has reached the matching leg (rendezvous); all legs of one
///    exchange are posted at once;
///  * a buffer instance lives from the operation that first writes it to the one that frees it;
///    what a send or a copy to the host frees, until the next operation of that stream is issued.
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "model/profile.h"
#include "model/segment.h"
#include "plan/partition/redistribution.h"
#include "plan/program/plan.h"

namespace orrery::plan {

using BufferId = base::Id<struct BufferTag>;
using GroupId = base::Id<struct GroupTag>;
using SegmentId = base::Id<struct SegmentTag>;
using TemplateId = base::Id<struct TemplateTag>;
using UnitId = base::Id<struct UnitTag>;
using PoolId = base::Id<struct PoolTag>;
using RedistributionId = base::Id<struct RedistributionTag>;
using model::Collective;
using model::Phase;

/// Each pipeline direction has a send and a receive stream of its own: with rendezvous sends, one
/// shared FIFO would deadlock under 1F1B. So would one of both arms of a V.
enum class Stream : std::uint8_t {
  kCompute,
  kTensor,
  kData,
  kForwardSend,
  kForwardReceive,
  kBackwardSend,
  kBackwardReceive,
  kHost,
  kSecondForwardSend,
  kSecondForwardReceive,
  kSecondBackwardSend,
  kSecondBackwardReceive,
  kCopyOut,  // to the host's memory
  kCopyIn,   // back from there
};
inline constexpr int kStreams = 14;
std::string_view to_string(Stream s);

/// The stream whose sends meet the receives of `s`; of one that does not receive the stream itself.
constexpr Stream sending_end(Stream s) {
  switch (s) {
    case Stream::kForwardReceive: return Stream::kForwardSend;
    case Stream::kBackwardReceive: return Stream::kBackwardSend;
    case Stream::kSecondForwardReceive: return Stream::kSecondForwardSend;
    case Stream::kSecondBackwardReceive: return Stream::kSecondBackwardSend;
    case Stream::kCompute:
    case Stream::kTensor:
    case Stream::kData:
    case Stream::kForwardSend:
    case Stream::kBackwardSend:
    case Stream::kHost:
    case Stream::kSecondForwardSend:
    case Stream::kSecondBackwardSend:
    case Stream::kCopyOut:
    case Stream::kCopyIn: break;
  }
  return s;
}

enum class BufferCategory : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizer,
  kActivation,
  kCommunication,
  kData,
  kHost  // in the host's memory
};
inline constexpr int kBufferCategories = 6;  // on the device
std::string_view to_string(BufferCategory c);

/// Which indices tell instances of a buffer apart.
enum class Scope : std::uint8_t { kStep, kLayer, kMicroBatch, kLayerMicroBatch };

struct BufferDecl {
  std::string name;
  BufferCategory category = BufferCategory::kActivation;
  model::DType dtype = model::DType::kFloat32;
  std::vector<std::int64_t> shape;  // on one rank
  Scope scope = Scope::kLayerMicroBatch;
  bool persistent = false;     // lives across steps: parameter, gradient, optimizer shards
  std::optional<UnitId> unit;  // flat state of this parameter unit
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const { return model::bytes_of(dtype, elements()); }
  [[nodiscard]] bool on_host() const { return category == BufferCategory::kHost; }
  [[nodiscard]] std::int64_t device_bytes() const { return on_host() ? 0 : bytes(); }
  [[nodiscard]] std::int64_t host_bytes() const { return on_host() ? bytes() : 0; }
};

/// One instance is named by (buffer, layer of the call + layer_offset, micro-batch of the call).
/// Indices outside the buffer's scope are ignored.
struct BufferRef {
  BufferId buffer;
  int layer_offset = 0;
  bool operator==(const BufferRef&) const = default;
};

/// Initial value of a parameter element, a function of its global index (never of the plan).
enum class Init : std::uint8_t {
  kZero,
  kOne,
  kNormal /* std 0.02 */,
  kNormalScaled /* 0.02 / sqrt(2 layers) */,
  kTaps /* uniform in +- 1 / sqrt(columns): taps of a convolution, a row a channel */,
  kLogDecay /* ln of uniform in [1, 16]: decay of a scan's head (arXiv 2405.21060) */,
  kLogStep /* softplus^-1 of e^uniform in [ln 0.001, ln 0.1]: bias of its steps */
};

/// One logical parameter inside a unit's flat storage.
struct Parameter {
  // "{layer}" stands for the layer index: "blocks.{layer}.attn.q.weight"
  std::string name;
  std::vector<std::int64_t> shape;        // global logical shape, unpadded
  std::vector<std::int64_t> local_shape;  // on one tensor rank, padded
  // dimension split over tp; -1: replicated on every tensor rank
  int shard_dim = -1;
  int expert_dim = -1;  // dimension split over ep: experts; -1: none
  // of a partitioned operator: shard_dim is cut into the slices of its output features, this one
  // into those of its input features; -1: none
  int in_dim = -1;
  // columns of a matrix, cut on each tensor rank into equal slices: local_shape holds this one
  // alone
  int slices = 1, slice = 0;
  std::int64_t offset = 0;  // elements from the start of the flat local storage
  Init init = Init::kNormal;
  // replicated, and each tensor rank's gradient is of its own heads alone: a partial
  // sum
  bool partial = false;
  bool decay = true;       // AdamW weight decay applies (matrices only)
  bool quantised = false;  // of a product that multiplies below the compute type, where one does
  // gradient contributions per micro-batch (2: tied embedding and head in one stage; of a
  // partitioned product one a temporal step)
  int uses = 1;
};

/// Parameters that are gathered, reduced and updated together: one block, the embedding, the head.
/// Stored flat; `padded` elements divide by the size n of the shard group; rank with index i in it
/// owns shard [i, i+1) * padded / n. A flat buffer has either `padded` elements (the owner works on
/// its slice) or padded / n (it is the slice). Hybrid sharding: the shard group is part of the data
/// group, and the ranks that own equal shards are the replica group; otherwise it is the data
/// group, and a rank is its own replica.
struct ParameterUnit {
  std::string name;  // "block", "embedding", "head"
  std::vector<Parameter> parameters;
  std::int64_t elements = 0;  // local to one tensor rank
  std::int64_t padded = 0;
  LayerStrategy strategy;
  // size cp * dp, stride tp: ranks that hold the same weights; experts: every ep-th of them
  // (strategy.dp of their unit is that size, strategy.cp 1)
  GroupId data_group;
  GroupId shard_group;    // size strategy.shard_ranks(), stride of the data group
  GroupId replica_group;  // size of the data group / size of the shard group, across
  GroupId tensor_group;   // size tp, stride 1
  // never trained: neither gradients nor optimizer states, nothing is reduced
  bool frozen = false;
  // of a partitioned operator: a rank owns the slices that its place in the stage, as a device,
  // has when the forward starts; the data group splits what gradients are sums over
  Sequence partition = {};
  [[nodiscard]] bool partitioned() const { return !partition.empty(); }
};

/// Ranks {base + i * stride, i < size}, base = rank - ((rank / stride) % size) * stride; ranks are
/// numbered over the world. Sizes and strides are symbolic for the whole class: "my data-parallel
/// group". Where no stride tells them apart, ranks that differ in `bits` of their number alone, in
/// ascending order: stages then are of a power of two of ranks.
struct Group {
  // "tensor", "data", "shard", "replica", "reshard", "tied", "expert", "expert data", "partition"
  std::string name;
  int size = 1;
  int stride = 1;          // with bits: the lowest of them
  std::uint32_t bits = 0;  // 0: by size and stride
  /// By id bits, as size and stride where these say the same.
  static Group of_bits(std::string name, std::uint32_t bits);
  [[nodiscard]] int base(int rank) const {
    if (bits != 0) return as_int(as_u32(rank) & ~bits);
    return rank - ((rank / stride) % size) * stride;
  }
  [[nodiscard]] int index(int rank) const {
    if (bits != 0) return as_int(extract_bits(as_u32(rank), bits));
    return (rank / stride) % size;
  }
  /// The i-th of the group that begins at `first`.
  [[nodiscard]] int member(int first, int i) const {
    return first + (bits != 0 ? as_int(deposit_bits(as_u32(i), bits)) : i * stride);
  }
  /// Ranks of a block that groups tile.
  [[nodiscard]] int span() const { return bits != 0 ? 1 << std::bit_width(bits) : size * stride; }
  [[nodiscard]] bool same_ranks(const Group& o) const {
    return size == o.size && stride == o.stride && bits == o.bits;
  }
  bool operator==(const Group&) const = default;
};

/// View of a unit's flat storage as one tensor: consecutive parameters with equal trailing
/// dimensions (q, k, v).
struct ParameterView {
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape;
  std::vector<int> parameters;  // indices into ParameterUnit::parameters it covers
};

/// kCopy: between the device and the host's memory.
enum class OpKind : std::uint8_t { kCompute, kCollective, kExchange, kCopy };
enum class Reduce : std::uint8_t { kSum, kMax };

/// One side of a point-to-point transfer. Peer = my world rank + peer_offset; the n-th send on
/// (stream pair, sender, receiver) matches the n-th receive.
struct Leg {
  bool send = false;
  int peer_offset = 0;
  BufferRef buffer;
};

struct Op {
  OpKind kind = OpKind::kCompute;
  Stream stream = Stream::kCompute;
  std::string name;  // "qkv", "all_gather(a)": for traces and messages

  // kCompute: operands in the order of the table in model/segment.h. all_to_all of experts' rows:
  // the dispatch that made them.
  SegmentId segment;
  Phase phase = Phase::kF;
  int temporal_step = 0;  // of a partitioned product: all but the first update what is there
  // of a product and of the collective of the tensor group beside it: only piece `piece` of
  // `pieces` of the tokens that each tensor rank has between products takes part. A buffer of one
  // piece is read and written in full; of one that holds all pieces the operation takes its own,
  // and the first one writes it, the others update it.
  int pieces = 1, piece = 0;
  bool recomputed = false;  // a forward replayed for its backward
  std::optional<UnitId> unit;
  std::vector<ParameterView> views;  // the w(...) of the table, into `weights` (and `gradients`)
  // flat [padded or gathered] parameters of the unit: read; absent when the phase needs none
  // (backward of embedding, positions and bias)
  std::optional<BufferRef> weights;
  // flat gradient of the unit: updated (contributions are added)
  std::optional<BufferRef> gradients;

  // kCollective: all_reduce updates one buffer in place; all_gather and reduce_scatter read one and
  // write one, concatenated or split along `dim` (in rank order of the group), or update one flat
  // buffer in place (every rank owns slice index(rank)). bytes = the whole tensor, as in
  // nccl-tests. slice_elements > 0: only that range of the (flat) buffer takes part. slice_group:
  // only the slice that this rank owns in that group, index(rank) of its `size` equal ones.
  // point_to_point is a ring shift: every rank reads a block, sends it to the next rank of the
  // group (the last one to the first) and writes what comes from the rank before; with `senders`
  // the one of index i writes what the one of index senders[i] sends. all_to_all along
  // `dim` 0 trades blocks; along 1 or 2 it trades tokens for features (Ulysses): the ranks split
  // `dim` among them and join the other one of the two; features are several sections side by side
  // (q, k, v), each split alike. With a `redistribution` all_to_all is a change of layout of all
  // devices of the stage, from the reads' to the writes', and bytes are the most that a rank
  // receives of others.
  Collective collective = Collective::kAllReduce;
  GroupId group;
  Reduce reduce = Reduce::kSum;
  int dim = 0;
  std::int64_t bytes = 0;
  std::int64_t slice_offset = 0, slice_elements = 0;
  std::optional<GroupId> slice_group;
  // all_to_all: features of each, over all ranks; none: one section
  std::vector<std::int64_t> sections;
  std::vector<int> senders;  // a permutation
  std::optional<RedistributionId> redistribution;

  // kExchange
  std::vector<Leg> legs;

  // kCopy: writes[i], or where nothing is written updates[i], becomes what reads[i] is; bytes are
  // those of all. Further reads are waited for.
  std::vector<BufferRef> reads;
  // allocates the instance; a write of a live instance is a fault
  std::vector<BufferRef> writes;
  std::vector<BufferRef> updates;  // in place: must be live
  // dead once this operation and every earlier reader have ended
  std::vector<BufferRef> frees;

  // A pool bounds how many acquisitions are outstanding: acquisition k waits for release k -
  // capacity.
  std::optional<PoolId> acquire;
  std::optional<PoolId> release;
};

/// Rows of experts, on their way to them or back.
inline bool exchanges_rows(const Op& op) {
  return op.kind == OpKind::kCollective && op.collective == Collective::kAllToAll &&
         op.segment.valid();
}

/// Gathers weights of ZeRO-3 for a pass, or reduces what it contributes to their gradients.
inline bool moves_shards(const Op& op) {
  return op.kind == OpKind::kCollective && op.stream == Stream::kData && !op.writes.empty();
}

/// Copies what it frees on the device to the host.
inline bool copies_out(const Op& op) {
  return op.kind == OpKind::kCopy && op.stream == Stream::kCopyOut;
}
/// What a copy makes equal to what it reads, one by one.
inline const std::vector<BufferRef>& copied_to(const Op& op) {
  return op.writes.empty() ? op.updates : op.writes;
}
/// What it frees is alive until the next operation of its stream is issued.
inline bool frees_late(const Op& op) { return op.kind == OpKind::kExchange || copies_out(op); }

struct Template {
  std::string name;  // "block[tp2 dp4].forward"
  std::vector<Op> ops;
};

/// Loop nest. A call's layer is `layer` (+ the enclosing layer loop's variable), its micro-batch
/// likewise.
enum class Axis : std::uint8_t { kLayer, kMicroBatch };
struct Node {
  bool is_loop = false;
  // call
  TemplateId call;
  std::int64_t layer = 0;
  std::int64_t micro_batch = 0;
  bool layer_from_loop = false;
  bool micro_batch_from_loop = false;
  // loop: variable runs begin, begin + step, ... exclusive of end
  Axis axis = Axis::kLayer;
  std::int64_t begin = 0, end = 0, step = 1;
  std::vector<Node> body;
};

struct LayerRange {
  std::int64_t first = 0, end = 0;  // exclusive
};

/// Ranks [first_rank, first_rank + count) of pipeline rank `stage`: same operations, own peers.
struct RankClass {
  int stage = 0;
  int first_rank = 0;
  int count = 0;
  std::int64_t first_layer = 0, end_layer = 0;
  // with virtual stages: what it owns of [first_layer, end_layer), ascending, never touching; else
  // empty
  std::vector<LayerRange> chunks = {};
  struct Persistent {
    BufferId buffer;
    std::int64_t layer = 0;  // instance index when the scope has layers
  };
  std::vector<Persistent> persistent;
  std::vector<Node> body;  // one training step
};

struct Pool {
  std::string name;
  int capacity = 1;
};

struct Program {
  std::string model;
  std::string plan_fingerprint;
  model::ModelSpec spec;
  model::Precision precision = model::Precision::kFloat32;
  std::int64_t sequence = 0, global_batch = 0, micro_batches = 1;
  int world_size = 1;
  int devices_per_stage = 1;

  base::IdVector<BufferId, BufferDecl> buffers;
  base::IdVector<GroupId, Group> groups;
  base::IdVector<SegmentId, model::SegmentShape> segments;
  base::IdVector<UnitId, ParameterUnit> units;
  base::IdVector<PoolId, Pool> pools;
  base::IdVector<RedistributionId, Redistribution> redistributions;
  base::IdVector<TemplateId, Template> templates;
  std::vector<RankClass> classes;  // by stage

  /// Class of a world rank.
  [[nodiscard]] const RankClass& class_of(int rank) const;
  /// Hex digest over all of the above: ranks compare it before step 0.
  [[nodiscard]] std::string fingerprint() const;
};

}  // namespace orrery::plan
