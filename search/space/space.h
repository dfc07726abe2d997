#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "plan/program/plan.h"

namespace orrery::search {

/// In how many pieces a search lets collectives of the tensor group run beside products, unless it
/// is fixed: as Transformer Engine splits a product before a scatter (docs/models/schedule.md).
inline constexpr int kTensorPieces = 4;

/// Which strategies the decision tree may use.
struct Space {
  bool data = true, zero1 = true, zero2 = true, zero3 = true, tensor = true,
       sequence_parallel = true, pipeline = true;
  bool recompute_full = true, recompute_selective = true;
  bool recompute_operator = false;  // between the two in time and memory: searches take longer
  // nothing runs again, what is kept is on the host: the topology must state ways there
  bool recompute_offload = false;
  // where optimizer states are but for the update: a host asks for the same ways
  bool states_on_device = true, states_on_host = false;
  // context parallelism: next to no difference from data parallelism where that is possible, so
  // proofs take long; see usual_space()
  bool ring = false, ulysses = false;
  bool hybrid = true;  // states sharded inside a host, replicated across
  // tensor groups across, data groups on neighbours: the same on a switch, so proofs take long
  bool strided = false;
  // collectives of sequence parallelism beside products; see usual_space()
  bool tensor_overlap = false;
  bool gpipe = true, one_f_one_b = true;
  bool interleaved = true, zero_bubble = true;  // ZB-H1; both within the space of rank_solver.h
  // stages placed as a V: of uniform plans alone
  bool zero_bubble_v = false, dual_pipe_v = false;
  // stages times devices of a stage may be below the cluster's devices
  bool idle = true;
  bool expert = true;    // experts of a mixture over ranks of the data group
  bool folding = true;   // with `expert`: over ranks of the tensor group as well
  bool unfolded = true;  // experts that are not
  // OSDP: zero 3 of attention or MLP alone, and of products in slices: many more strategies
  bool operators = false, slices = false;
  bool recompute_none = true;  // layers that keep all activations
  bool tensor_alone = true;    // tensor without sequence parallelism
  // gradients: as plan::GradReduce says; per micro-batch those of zero 2 and 3
  bool reduce_per_step = true, reduce_per_micro_batch = true, reduce_at_end = false;
  // layers whose operators are partitioned one by one in space and time: seconds on 64 devices
  bool spatial_temporal = false;
  std::optional<int> fix_tp = {}, fix_cp = {}, fix_pp = {}, fix_dp = {}, fix_slices = {};
  std::optional<int> fix_ep = {};                            // of layers with experts
  std::optional<int> fix_tensor_pieces = {};                 // of layers with sequence parallelism
  std::optional<int> fix_virtual_stages = {};                // of interleaved plans
  std::optional<plan::ShardedOperators> fix_operators = {};  // as fix_slices, of layers with zero 3
  std::optional<std::int64_t> fix_micro_batches = {};
  // sequences of a micro-batch on one data-parallel rank
  std::optional<std::int64_t> fix_micro_batch = {};
  bool vocabulary_like_layers = false;  // fix_tp holds for embedding and head too
  // every stage has as many layers: only degrees that divide them
  bool even_stages = false;
  bool single_stage = true;  // plans without a pipeline
  bool operator==(const Space&) const = default;
};

/// What a search looks at when nothing is said: rings for sequences of 32,768 tokens or more, whose
/// activations no other degree splits as well; overlap of tensor collectives where the software has
/// it (CostModel::overlaps_tensor).
inline constexpr std::int64_t kLongSequence = 32'768;
inline Space usual_space(std::int64_t sequence, bool overlaps_tensor) {
  return {.ring = sequence >= kLongSequence, .tensor_overlap = overlaps_tensor};
}

/// What of a space allows each plan::Recompute, by its number.
inline constexpr std::array kRecomputeFlags = {&Space::recompute_none, &Space::recompute_selective,
                                               &Space::recompute_operator, &Space::recompute_full,
                                               &Space::recompute_offload};

/// And each plan::States.
inline constexpr std::array kStatesFlags = {&Space::states_on_device, &Space::states_on_host};

/// Virtual stages of a pipeline rank whose layers are partitioned, at most.
inline constexpr int kMostChunks = 8;
/// Whether layers may be partitioned in space and time: they have no degrees of their own that
/// could be fixed, and keep all activations or run again as a whole.
inline bool allows_partitions(const Space& s) {
  return s.spatial_temporal && (s.recompute_none || s.recompute_full) && !s.fix_tp && !s.fix_cp &&
         !s.fix_dp && !s.fix_ep && !s.fix_slices && !s.fix_tensor_pieces && !s.fix_operators &&
         !s.fix_micro_batch;
}

/// Why something is left out: what the user fixed or switched off, else what the model, the machine
/// or a bound says.
enum class Reason : std::uint8_t { kNone, kFixed, kOff, kDoesNotDivide, kUnsupported, kBeaten };
struct Refusal {
  Reason reason = Reason::kNone;
  std::string text;  // "tp 3 does not divide 8 heads"
  [[nodiscard]] bool refused() const { return reason != Reason::kNone; }
};

/// Why a candidate is not in the answer.
struct Pruned {
  std::string candidate;  // "pp=4 m=16 1f1b"
  // "stage 0 needs 41.2 GiB, limit 36 GiB", "bound 4.40 s ≥ incumbent 4.19 s"
  std::string text;
  Reason reason = Reason::kBeaten;
};

}  // namespace orrery::search
