#pragma once
/// \file
/// A lowered layer as numbers per sequence: what layer_costs.h prices.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/closed_form/operation_prices.h"
#include "costmodel/cost_model.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::costmodel {

class EnergyPrices;

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
///                                        and links, which groups of other parts share
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
    std::int64_t copy_out_ps = 0, copy_in_ps = 0;  // to the host's memory, and back
    std::int64_t front_ps = 0;  // of serial_ps, what stands in front of the first copy
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
      if (kind != o.kind || data_stream != o.data_stream) return false;
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
  std::int64_t step_ps(const Step& s, std::int64_t b, const WeightBytes& weights, Ranks part,
                       Ranks ranks, DeviceKinds kinds, OperationPrices& prices) const;
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
  std::int64_t steady_ps(std::int64_t b, const WeightBytes& weights, Ranks part, Ranks ranks,
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
