#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "costmodel/collectives/collective_tuning.h"
#include "costmodel/collectives/collectives.h"
#include "costmodel/collectives/transfer.h"
#include "costmodel/compute/compute.h"
#include "costmodel/compute/price_factors.h"
#include "model/profile.h"
#include "model/spec.h"
#include "plan/program/program.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

/// How a number was obtained, for the report. Fitted: from a surface through measurements of the
/// device (surface.h).
enum class Origin : std::uint8_t { kDatasheet, kMeasured, kFitted };

struct CostModelOptions {
  model::Precision precision = model::Precision::kBFloat16;
  std::int64_t sequence = 0;
  /// Prices of collectives that the profile has not measured; null: α-β of the links
  /// (collectives.h).
  std::shared_ptr<const CollectiveTuning> library = {};
};

/// That of the machine's devices; null where collectives run on the CPU.
base::Result<std::shared_ptr<const CollectiveTuning>> usual_library(
    const topologies::Topology& topology);

/// A machine of other speed, for "what if": every operation of a device, every link and every
/// measured rate of communication at ppm / 10^6 of its speed. Latencies stay. `bandwidth_of`
/// narrows the second to one carrier; measured rates hide the links below them.
struct SpeedScale {
  enum class Carrier : std::uint8_t { kAll, kLinksOfKind, kMeasuredInHosts, kMeasuredAcrossHosts };
  std::int64_t compute_ppm = 1'000'000;
  std::int64_t bandwidth_ppm = 1'000'000;
  Carrier bandwidth_of = Carrier::kAll;
  std::string link_kind = {};  // of kLinksOfKind
  bool operator==(const SpeedScale&) const = default;
};

/// Kinds of device among the ranks of a stage: bit i is the topology's ith device model.
using DeviceKinds = std::uint64_t;
inline constexpr DeviceKinds kAllKinds = ~DeviceKinds{0};
inline constexpr std::size_t kMostKinds = 64;

/// Prices of everything a Program contains.
///
/// Machines of several kinds of device. Every kind k has its own roofline, and its own surface
/// where one ships (profiles.h), so an operation takes t_k there. Ranks that wait for one another
/// in a collective run at the pace of the slowest of them:
///
///     t = max over the kinds k among these ranks of t_k
///
/// of one operation; a kind that is slow in products may be fast in streams. Replicas wait for one
/// another only where data does: which ranks are together, TemplateForm says (layer_form.h). Where
/// all kinds are equal this is t_k itself. What a step adds (framework, launches of collectives,
/// overlap, framework bytes) is the software's, one for all. Immutable after make(); const
/// functions are thread-safe.
class CostModel {
 public:
  /// `profile` may be null (datasheet only). Errors: profile of another device or precision is a
  /// diagnostic, not a guess ("A100" names every "A100-...", a CPU name its cores; an empty device
  /// is accepted: a Galvatron folder has none). kUnsupported: more than kMostKinds device models.
  /// @pre Profile::kinds is empty or has one for each device model.
  static base::Result<CostModel> make(model::ModelSpec model, topologies::Topology topology,
                                      std::optional<model::Profile> profile,
                                      CostModelOptions options);

  /// The same model and profile on a machine of other speed. @pre this one is not scaled; both ppm
  /// > 0.
  CostModel scaled(const SpeedScale& scale) const;

  /// The same with the errors of a draw in its prices. Shares all but prices with this one; its
  /// topology() is made when first asked for. @pre not scaled, no link changed by itself.
  CostModel drawn(const PriceFactors& errors) const;

  /// The same model and profile on the same machine with other links (Topology::with_links). @pre
  /// not scaled; as many devices.
  CostModel on(topologies::Topology changed) const;
  /// The same on the same machine whose ranks count hosts in this order of devices; itself where
  /// they do, or the order is empty. Errors: those of topologies::in_device_order. @pre as on().
  base::Result<CostModel> in_order(std::span<const std::string> device_order) const;

  /// Compute time of one segment phase, alone: measured points (log-log interpolation), else
  /// measured layer times shared out by roofline weight, else roofline
  /// max(flops / (peak·efficiency), bytes / bandwidth) + launch overhead.
  /// On the slowest of `kinds`; of no kind: the least of all kinds, a lower bound.
  std::int64_t segment_ps(const model::SegmentShape& shape, model::Phase phase,
                          DeviceKinds kinds = kAllKinds) const;

  /// Where that price is from.
  PriceSource segment_source(const model::SegmentShape& shape, model::Phase phase,
                             DeviceKinds kinds = kAllKinds) const;

  /// Kinds of device among ranks [first_rank, first_rank + rank_count); none for no ranks.
  DeviceKinds kinds_of(int first_rank, int rank_count) const;
  /// Behind the ranks from `rank` on that are of its kind. @pre rank < device_count().
  int kind_end(int rank) const;
  /// Whether the machine has several.
  bool mixed() const;

  /// The collective `op` as run by every group of the class at once. `first_rank`, `rank_count`:
  /// the class's ranks. Of a group that spans classes, the flows that this class's ranks send (the
  /// other classes' parts add to them). `in_pieces`: beside a product (plan::Op::pieces).
  Transfer collective(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                      int first_rank, int rank_count, bool in_pieces = false) const;
  /// Every rank of [first_rank, +rank_count) sends `bytes` to rank + peer_offset at once.
  Transfer exchange(int first_rank, int rank_count, int peer_offset, std::int64_t bytes) const;
  /// Copy of `bytes` between the memory of each of these ranks' devices and that of their hosts
  /// (collectives/host_copies.h). Errors: kUnsupported where the topology states no way.
  base::Result<std::int64_t> copy_ps(bool to_host, std::int64_t bytes, int first_rank,
                                     int rank_count) const;
  /// Whether every rank of a plan whose layers need them has such ways.
  base::Result<void> check_copies(const plan::Plan& plan) const;
  /// Of a collective, as the framework sends it: gradients in its own precision, tokens of experts
  /// once to each rank or host.
  std::int64_t wire_bytes(const plan::Program& program, const plan::Op& op) const;
  /// Of a logit, that the framework's loss holds (plan::static_memory).
  double loss_bytes() const { return framework().loss_bytes; }
  /// What the framework copies behind a gather of weights or before a reduction of their gradients,
  /// on the compute stream, as an operation that takes as long; nothing: none.
  /// @pre plan::moves_shards(op)
  std::optional<model::SegmentShape> copies(const plan::Op& op) const;
  /// Prices of communication by themselves: the same in two steps, for many sizes over the same
  /// links.
  const CollectivePrices& communication() const;

  /// Both of two overlapping activities of a rank (compute; communication) run `slowdown` times
  /// slower, as integers per million.
  std::int64_t overlap_slowdown_ppm() const;
  /// False: communication never progresses beside compute on this machine.
  bool overlaps() const;
  /// Whether the software runs collectives of sequence parallelism beside products.
  bool overlaps_tensor() const;
  /// Whether it runs exchanges of experts beside the computation of another micro-batch: then what
  /// reads rows does not wait for them, only for the exchange before to end
  /// (docs/models/mixtures.md).
  bool overlaps_experts() const;
  /// What the host needs to issue so many kernels (docs/models/framework.md); 0: it is never late.
  std::int64_t host_ps(int kernels) const;
  /// Kernels of a segment (compute/kernels.h).
  int kernels(const model::SegmentShape& shape, model::Phase phase) const;
  /// Bytes per rank outside the Program's buffers: the framework's, of the profile, and the tables
  /// of rotary attention, 4 · sequence · head_dim.
  std::int64_t context_bytes() const;
  /// What a rank holds whose buffers take `peak`: they with what the framework's allocator reserves
  /// beyond them, rounded up, and the context.
  std::int64_t reserved_bytes(std::int64_t peak) const;
  /// The largest peak of which no more than `memory` is reserved.
  std::int64_t usable_bytes(std::int64_t memory) const;
  /// Dense peak of the precision, mean over the first `ranks`; 0: over all.
  base::FlopsPerSecond peak(int ranks = 0) const;
  Origin compute_origin() const;
  Origin communication_origin() const;
  const model::ModelSpec& model() const;
  /// With the rates that a step's transfers find (model::StepCommunication).
  const topologies::Topology& topology() const;
  const std::optional<model::Profile>& profile() const;
  const CostModelOptions& options() const;
  std::string fingerprint() const;

 private:
  struct Inputs;
  struct State;
  explicit CostModel(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const Inputs> inputs_on(topologies::Topology topology) const;
  const model::Framework& framework() const;
  std::int64_t token_bytes(const plan::Program& program, const plan::Op& op) const;
  std::shared_ptr<const State> state_;
};

}  // namespace orrery::costmodel
