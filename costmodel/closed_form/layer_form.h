#pragma once
/// \file
/// A lowered layer as numbers per sequence: what layer_costs.h prices.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "costmodel/closed_form/price_table.h"
#include "costmodel/cost_model.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::costmodel {

class EnergyPrices;

/// The ranks of a stage: [first, first + count).
struct Ranks {
  int first = 0, count = 0;
  bool operator==(const Ranks&) const = default;
};

/// Prices of segments and groups, each found once.
class OperationPrices {
 public:
  explicit OperationPrices(const CostModel& cost)
      : cost_(cost), known_(std::make_shared<Known>()) {}
  /// Of a draw of the model that `like` prices by: shapes have the same numbers, groups the same
  /// paths.
  OperationPrices(const CostModel& drawn, const OperationPrices& like)
      : cost_(drawn), known_(like.known_) {}
  using ShapeIndex = std::uint32_t;
  /// Dense number of a shape; equal shapes have equal numbers.
  ShapeIndex shape(const model::SegmentShape& shape);
  const model::SegmentShape& shape_of(ShapeIndex index) const { return known_->shapes[index]; }
  /// Of the shape for b sequences (flat segments stay as they are).
  struct Segment {
    std::int64_t ps = 0, transient_bytes = 0;
  };
  const Segment& segment(ShapeIndex index, plan::Phase phase, std::int64_t b,
                         DeviceKinds kinds = kAllKinds);
  const CostModel& cost() const { return cost_; }
  /// 0 on no ranks. `in_pieces`: beside a product.
  std::int64_t collective_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                             bool in_pieces, Ranks ranks);
  std::int64_t exchange_ps(Ranks ranks, int peer_offset, std::int64_t bytes);
  /// @pre the ranks have ways to their hosts (CostModel::check_copies).
  std::int64_t copy_ps(bool to_host, std::int64_t bytes, Ranks ranks) const;
  /// Looked up so far.
  std::uint64_t routes() const { return known_->routes; }
  /// Operations so far: kLowered for each that was lowered, one each time that it was priced.
  std::uint64_t priced() const { return priced_; }
  void count(std::uint64_t operations) { priced_ += operations; }
  static constexpr std::uint64_t kLowered = 8;

 private:
  /// What does not depend on prices.
  struct Known {
    std::vector<model::SegmentShape> shapes;
    std::unordered_multimap<std::uint64_t, ShapeIndex> by_digest;
    PriceTable<3, PathSummary> paths;  // (what, ranks, id bits of a group)
    std::uint64_t routes = 0;
  };
  const PathSummary& paths_of(Pattern pattern, const plan::Group& group, Ranks ranks);

  const CostModel& cost_;
  std::shared_ptr<Known> known_;
  using Segments = PriceTable<1, Segment>;  // of (shape, phase, b)
  Segments& segments_on(DeviceKinds kinds);
  std::map<DeviceKinds, Segments> segments_;
  PriceTable<4, std::int64_t> collectives_;  // of (what, ranks, id bits of a group, bytes)
  PriceTable<3, std::int64_t> exchanges_;    // of (offset of the peer, ranks, bytes)
  DeviceKinds last_kinds_ = 0;               // asked for last
  Segments* last_ = nullptr;
  std::uint64_t priced_ = 0;
};

/// What depends on the way a layer's weights are sharded: bytes of each unit's gathered weights and
/// of its gradient part; 0: none.
struct WeightBytes {
  std::vector<std::int64_t> gathered, part;
};

/// One template. Unit buffers of a body are left symbolic (see WeightBytes); others are fixed
/// bytes.
///
/// Several kinds of device in a stage: ranks wait for one another in the collectives between the
/// template's products (of tensor, context and expert groups); replicas meet only in those of
/// weights and gradients. Let the blocks that the first kind of groups tile be cut where kinds
/// change, R_i the parts. All take what the slowest part takes:
///
///     t(stage) = max over i of t(R_i),   t(R_i) of all steps but those of data, on R_i's devices
///                                        and links
class TemplateForm {
 public:
  TemplateForm() = default;
  /// Of the operations that `of` names.
  enum class Of : std::uint8_t { kAll, kCopies, kAllButCopies };
  /// Without steps where the id is none.
  TemplateForm(const plan::Program& program, plan::TemplateId id, bool symbolic_weights,
               OperationPrices& prices, Of of = Of::kAll);

  struct Times {
    // compute and tensor communication, with what of them runs side by side; data communication
    std::int64_t serial_ps = 0, data_ps = 0;
    std::int64_t copy_ps = 0;  // to the host's memory, or back
    Times& operator+=(const Times& o);
  };
  Times times(std::int64_t b, const WeightBytes& weights, Ranks ranks,
              OperationPrices& prices) const;
  /// The slowest R_i above; all ranks where one holds them.
  Ranks slowest(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                OperationPrices& prices) const;
  /// What of serial_ps the device waits for the host.
  std::int64_t host_wait_ps(std::int64_t b, const WeightBytes& weights, Ranks ranks,
                            OperationPrices& prices) const;
  plan::TemplateMemory memory(std::int64_t b, const WeightBytes& weights,
                              OperationPrices& prices) const;
  /// Σ (u - u_wait) t in ps, of what computes and of tensor communication (layer_energy.h).
  double drawn_ps(std::int64_t b, const WeightBytes& weights, Ranks ranks, OperationPrices& prices,
                  const EnergyPrices& energy) const;
  /// plan::copied_bytes()
  std::int64_t copied_bytes(std::int64_t b) const { return copied_bytes_ * b; }

 private:
  static constexpr std::uint16_t kNone = 0xffff;
  struct Step {
    plan::OpKind kind = plan::OpKind::kCompute;
    bool data_stream = false;
    bool moves = false, moves_out = false;  // kCopy; to the host
    std::uint8_t stream = 0;
    // steps of other streams that it waits for, the last of each
    std::vector<std::uint16_t> after;
    std::uint16_t next = kNone;  // of its stream
    // of a ring: a block travels beside the attention over the one before (layer_cost.cc)
    bool shift = false, attention_block = false, in_pieces = false;
    OperationPrices::ShapeIndex shape = 0;
    plan::Phase phase = plan::Phase::kF;
    plan::Collective collective = plan::Collective::kAllReduce;
    plan::Group group;
    std::vector<int> sends, receives;  // peer offsets
    // `bytes` of a collective or of every leg are per sequence
    bool scales = false;
    std::int64_t bytes = 0;
    bool rows_exchange = false;                         // of experts
    std::optional<OperationPrices::ShapeIndex> copies;  // of shards, on the compute stream
    std::int64_t writes = 0, frees = 0;                 // per sequence
    std::int64_t fixed_writes = 0, fixed_frees = 0;
    int zeroes_part_of = -1;            // unit whose gradient part it zeroes
    std::vector<int> frees_weights_of;  // units
    std::uint16_t like = 0;             // first step that takes as long, whatever the prices
    [[nodiscard]] bool takes_as_long(const Step& o) const {
      if (kind != o.kind) return false;
      if (kind == plan::OpKind::kCompute)
        return shape == o.shape && phase == o.phase && zeroes_part_of == o.zeroes_part_of;
      return kind == plan::OpKind::kCollective && collective == o.collective &&
             group.same_ranks(o.group) && bytes == o.bytes && scales == o.scales &&
             in_pieces == o.in_pieces;
    }
  };
  static Step step_of(const plan::Op& op);
  /// Those that `of` names, in `some` where these are not all.
  static const std::vector<plan::Op>& operations(const std::vector<plan::Op>& all, Of of,
                                                 std::vector<plan::Op>& some);
  std::int64_t step_ps(const Step& s, std::int64_t b, const WeightBytes& weights, Ranks ranks,
                       DeviceKinds kinds, OperationPrices& prices) const;
  void find_dependencies(const std::vector<plan::Op>& ops);
  void find_experts(const std::vector<plan::Op>& ops);
  void find_alike();
  /// Steps of `alone` ps each, every stream in its order: while computation and communication both
  /// run they take `slowdown` times as long. All but data communication.
  std::int64_t side_by_side_ps(std::vector<std::int64_t>& alone, std::int64_t slowdown_ppm) const;
  /// As times(), by a host that is never late and at the pace of `part`.
  Times device_times(std::int64_t b, const WeightBytes& weights, Ranks ranks, Ranks part,
                     OperationPrices& prices) const;
  /// serial_ps of one call among many alike whose exchanges of rows run beside what computes.
  std::int64_t steady_ps(std::int64_t b, const WeightBytes& weights, Ranks part,
                         OperationPrices& prices) const;
  /// R_i above.
  std::vector<Ranks> parts(Ranks ranks, const CostModel& cost) const;
  void find_together(const std::vector<plan::Op>& ops);

  std::vector<Step> steps_;
  std::vector<std::uint8_t> streams_;                     // but for data
  std::array<std::uint16_t, plan::kStreams> first_ = {};  // of each stream
  bool side_by_side_ = false;  // some step of one stream does not wait for the one before it
  bool exchanges_rows_ = false;
  int together_ = 1;               // ranks of a block above; 0: all
  int kernels_ = 0;                // that the host issues
  std::int64_t copied_bytes_ = 0;  // per sequence
};

}  // namespace orrery::costmodel
