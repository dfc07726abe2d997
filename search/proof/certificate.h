#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/closed_form/closed_form.h"
#include "search/proof/multipliers.h"
#include "search/space/space.h"

namespace orrery::search {

/// Multipliers that bound every plan of a space from below. Problems that are not listed are beyond
/// the cost of the answer even without a price of memory, with equal weights (certificate_check.h).
struct SpaceProof {
  Space space;
  std::vector<ProblemMultipliers> problems;
  std::vector<std::string> device_order = {};  // in which ranks count devices; empty: the cluster's
};

/// Proof that no plan of the space is cheaper by the closed form. It states two lower bounds.
/// `bound_ps` is what the search proves: with its exact programs it is the cost itself, but whoever
/// believes it believes the search. `multiplier_bound_ps` is what the stated multipliers prove: the
/// checker recomputes it with nothing of the search (certificate_check.h). The second is the weaker
/// one: a linear relaxation, where a layer may be split between two strategies and a slowest stage
/// is a weighted mean of all, and it covers 1F1B and GPipe on all devices (`proofs` name that
/// space); that no interleaved or ZB-H1 plan, and none that leaves devices idle, is cheaper is the
/// search's word. Plans partitioned in space and time are in neither bound: `partition_bound_ps` is
/// theirs. Both speak of the closed form; simulation decides between the plans found
/// (loop/candidates.h). Memory is exact (bytes of the lowered Program's static peak), partitions
/// into stages are free, layers of a stage stand in any order; interleaved 1F1B and ZB-H1 are
/// searched within the space of rank_solver.h (one strategy for the layers of a rank, one layout
/// for those of a plan), exactly there. What is called optimal equals the enumeration of every plan
/// of tiny problems at 561 memory limits (tests/oracle/search/whole_plan_test.cc).
struct Certificate {
  costmodel::Objective objective = costmodel::Objective::kTime;  // what costs are of
  std::int64_t cost_ps = 0;   // closed-form cost of the best plan
  std::int64_t bound_ps = 0;  // lower bound over the whole space
  double gap = 0;             // (cost - bound) / cost; 0 when optimal
  // lower bound over the spaces of `proofs`; kBeyondAnyCost: nothing fits, not even fractionally
  std::int64_t multiplier_bound_ps = 0;
  double multiplier_gap = 0;  // (cost - multiplier bound) / cost
  // No plan with layers partitioned in space and time takes less: what they compute
  // (partition_bound.h); none: the space has no such plans.
  std::optional<std::int64_t> partition_bound_ps;
  // one; of a target (targets.h): one for each of its subspaces; of a mixed cluster: one for each
  // order of its devices
  std::vector<SpaceProof> proofs;
  std::vector<std::int64_t> stage_peak_bytes;
  std::int64_t memory_limit_bytes = 0;  // 0: every device's own, and they differ
  std::string cost_model_fingerprint;
};

}  // namespace orrery::search
