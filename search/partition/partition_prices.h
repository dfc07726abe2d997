#pragma once
/// \file
/// What each partition of each operator costs, and each change of layout between operators
/// (PrimePar, ASPLOS 2024, section 4), by the prices of costmodel/cost_model.h:
///
///   intra(p)    = sum over phases and steps of overlapped(compute, moves) + all-reduce;
///                 F twice where layers run again
///   inter(p, q) = a + (bytes per device that come from the host) / r_host
///               + a' + (bytes per device from other hosts) / r_fabric,  forward and backward
///   memory(p)   = states of its parameters + what F keeps for B and G, none of a layer that
///                 runs again
///
/// Of a step of m micro-batches, gradients are reduced and parameters updated once: 1 / m of that
/// is a micro-batch's. ZeRO shards states over the n devices of a block: optimizer states and
/// updates to 1 / n, under zero 3 the parameters, which are gathered for F and again for the
/// backward, beside what computes. Gradients count in full: they are, but where every micro-batch
/// reduces them.
///
/// An all-reduce runs in all groups at once that the id bits of its contracted dimensions span, on
/// the devices' own links; moves run on theirs. r_host, r_fabric: what every device gets when all
/// exchange with the one that differs in one id bit, in the host the slowest of them. Where a sum
/// over bits G is read by a layout that splits it over just these bits, a reduce-scatter will do:
/// half of the all-reduce.
///
/// Invariant: prices depend on the sequence and on local extents alone, so each is asked once.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/cost_model.h"
#include "plan/partition/layer_graph.h"
#include "plan/partition/layout.h"

namespace orrery::search {

/// Whether a layer of these sequences can be partitioned over 2^bits devices at all. Errors:
/// kUnsupported for models whose layers differ, have experts or windows, and for formats below
/// bf16; kInconsistent for devices that the cluster has not, hosts that id bits do not split, and
/// extents that do not halve so often; kOutOfRange for scores beyond counting.
base::Result<void> check_partitionable(const costmodel::CostModel& cost, int bits,
                                       std::int64_t sequences, std::int64_t tokens);

/// What a layer is priced in. No micro-batches: one layer alone, without updates.
struct PartitionStep {
  std::int64_t micro_batches = 0;
  int zero = 0;
  bool recomputes = false;  // the whole layer
};

struct PhasePrice {
  int steps = 1;
  int runs = 1;                 // of the phase; all that follows is of one
  std::int64_t compute_ps = 0;  // of all steps
  std::int64_t moves_ps = 0;    // of all steps, alone
  std::int64_t exposed_ps = 0;  // what they add to computing
  std::int64_t reduce_ps = 0;
  std::int64_t total_ps() const { return runs * (compute_ps + exposed_ps + reduce_ps); }
};
struct OperatorPrice {
  std::array<PhasePrice, 3> phases;  // F, B, G
  std::int64_t update_ps = 0;        // zeroing and AdamW, a micro-batch's share
  std::int64_t state_bytes = 0;      // of parameters
  std::int64_t stash_bytes = 0;      // what F keeps
  std::int64_t memory_bytes() const { return state_bytes + stash_bytes; }
  std::int64_t compute_ps() const {
    return phases[0].compute_ps + phases[1].compute_ps + phases[2].compute_ps;
  }
  std::int64_t total_ps() const {
    return phases[0].total_ps() + phases[1].total_ps() + phases[2].total_ps() + update_ps;
  }
};

class PartitionPrices {
 public:
  /// On the first 2^bits devices of the cost model's topology, which must outlive this object.
  /// @pre hosts hold a power of two of devices, or all of them.
  PartitionPrices(const costmodel::CostModel& cost, plan::LayerGraph graph, int bits,
                  const PartitionStep& step = {});
  const plan::LayerGraph& graph() const { return graph_; }
  int host_bits() const { return host_bits_; }

  OperatorPrice price(const plan::Operator& op, const plan::Partition& partition);
  /// Attention in one operation, in place of scores, softmax and values. @pre plan::can_fuse().
  OperatorPrice fused_attention(const plan::Partition& partition);
  /// Of traffic of a tensor: that many picoseconds where there is any, and so many for each unit.
  struct MoveTerms {
    double in_host_latency = 0, in_host_unit = 0, across_latency = 0, across_unit = 0;
    double ps(std::int64_t in_hosts, std::int64_t across_hosts) const {
      return (in_hosts > 0 ? in_host_latency : 0.0) + in_host_unit * real(in_hosts) +
             (across_hosts > 0 ? across_latency : 0.0) + across_unit * real(across_hosts);
    }
  };
  MoveTerms move_terms(std::int64_t elements) const;

 private:
  struct Shift {  // moves beside one step
    plan::Operand operand;
    costmodel::PathSummary paths;
  };
  using Shifts = std::array<std::vector<std::vector<Shift>>, 3>;  // [phase][step]
  const Shifts& shifts_of(const plan::Partition& partition);
  std::int64_t gradient_bytes(std::int64_t elements) const;
  std::int64_t segment_ps(const model::SegmentShape& shape, plan::Phase phase);
  std::int64_t all_reduce_ps(std::uint32_t mask, std::int64_t bytes);
  std::int64_t priced_all_reduce_ps(std::uint32_t mask, std::int64_t bytes);
  void price_weights(std::int64_t elements, std::uint32_t summed, OperatorPrice& price);
  std::int64_t update_ps(std::int64_t elements, std::int64_t owned) const;
  void price_linear(const plan::Operator& op, const plan::Partition& p, OperatorPrice& price);
  void price_product(const plan::Operator& op, const plan::Partition& p, OperatorPrice& price);
  void price_stream(const plan::Operator& op, const plan::Partition& p, OperatorPrice& price);
  void price_pointwise(const plan::Operator& op, const plan::Partition& p, OperatorPrice& price);
  OperatorPrice recomputed(OperatorPrice price) const;
  std::int64_t local_sequences(const plan::Partition& p) const;
  std::int64_t local_tokens(const plan::Partition& p) const;
  model::SegmentShape shape_of(model::SegmentKind kind, const plan::Partition& p) const;

  const costmodel::CostModel& cost_;
  plan::LayerGraph graph_;
  int bits_, host_bits_;
  PartitionStep step_;
  std::int64_t element_bytes_, optimizer_bytes_;
  double gradient_element_;  // bytes
  struct Rate {              // picoseconds
    double latency = 0, per_byte = 0;
  };
  Rate in_host_, across_;
  std::map<std::string, Shifts> shifts_;
  std::map<std::uint32_t, std::map<int, costmodel::PathSummary>> groups_;   // [mask][pattern]
  std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> reduces_;  // [mask, bytes]
  std::map<std::array<std::int64_t, 8>, std::int64_t> segments_;
};

}  // namespace orrery::search
