#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/closed_form.h"
#include "costmodel/cost_model.h"
#include "plan/plan.h"
#include "search/proof/multipliers.h"
#include "sim/simulate.h"

namespace orrery::search {

/// kBudget: the best plan found with a certified gap: the effort limit was reached, the memory of some problem was hard to decide, or (GPipe alone; a late stage whose
/// update outlasts the first stage) the search's form of the cost is a lower bound of the closed form there.
enum class Status : std::uint8_t { kOptimal, kInfeasible, kBudget };
std::string_view to_string(Status s);

/// Which strategies the decision tree may use.
struct Space {
  bool data = true, zero1 = true, zero2 = true, zero3 = true, tensor = true, sequence_parallel = true, pipeline = true;
  bool recompute_full = true, recompute_selective = true;
  bool ring = false, ulysses = false;  // context parallelism: next to no difference from data parallelism where that is possible, so proofs take long
  bool hybrid = true;                // states sharded inside a host, replicated across
  bool strided = false;              // tensor groups across, data groups on neighbours: the same on a switch, so proofs take long
  bool gpipe = true, one_f_one_b = true;
  bool interleaved = true, zero_bubble = true;  // ZB-H1; both within the space of rank_model.h
  bool idle = true;                             // stages times devices of a stage may be below the cluster's devices
  bool expert = true;  // experts of a mixture over ranks of the data group
  bool operators = false, slices = false;  // OSDP: zero 3 of attention or MLP alone, and of products in slices: many more strategies
  bool recompute_none = true;  // layers that keep all activations
  bool tensor_alone = true;    // tensor without sequence parallelism
  bool reduce_per_step = true, reduce_per_micro_batch = true;  // gradients of zero 2 and 3
  std::optional<int> fix_tp, fix_cp, fix_pp, fix_dp, fix_slices;
  std::optional<int> fix_virtual_stages;                // of interleaved plans
  std::optional<plan::ShardedOperators> fix_operators;  // as fix_slices, of layers with zero 3
  std::optional<std::int64_t> fix_micro_batches;
  std::optional<std::int64_t> fix_micro_batch;  // sequences of a micro-batch on one data-parallel rank
  bool vocabulary_like_layers = false;          // fix_tp holds for embedding and head too
  bool even_stages = false;                     // every stage has as many layers: only degrees that divide them
  bool operator==(const Space&) const = default;
};

struct Progress {
  std::uint64_t done = 0, total = 0;  // (pp, micro-batches, schedule, vocabulary) problems
  std::int64_t incumbent_ps = 0, bound_ps = 0;
};

struct PlanRequest {
  std::string cluster;  // as the user said it: goes into the plan
  int hosts = 1;
  std::int64_t memory_bytes = 0;  // per device; 0: the device's own
  std::int64_t global_batch = 0;
  int top = 8;  // candidates that the simulator evaluates
  int threads = 1;
  std::uint64_t max_states =
      0;  // effort limit in dynamic-program states; 0: none. Reached: status kBudget with its gap
  Space space;
  bool relax = true;  // infeasible: look for relaxations
  bool multipliers = true;  // the certificate states its multipliers
  std::function<void(const Progress&)> on_progress;  // may be empty
};

/// Why a candidate is not in the answer.
struct Pruned {
  std::string candidate;  // "pp=4 m=16 1f1b"
  std::string reason;     // "stage 0 needs 41.2 GiB, limit 36 GiB", "bound 4.40 s ≥ incumbent 4.19 s"
};

/// Multipliers that bound every plan of a space from below. Problems that are not listed are beyond the cost of the answer even without
/// a price of memory, with equal weights (certificate_check.h).
struct SpaceProof {
  Space space;
  std::vector<ProblemMultipliers> problems;
};

/// Proof that no plan of the space is cheaper by the closed form. It states two lower bounds. `bound_ps` is what the search proves: with
/// its exact programs it is the cost itself, but whoever believes it believes the search. `multiplier_bound_ps` is what the stated multipliers
/// prove: the checker recomputes it with nothing of the search (certificate_check.h). The second is the weaker one: a linear relaxation,
/// where a layer may be split between two strategies and a slowest stage is a weighted mean of all, and it covers 1F1B and GPipe on all devices
/// (`proofs` name that space); that no interleaved or ZB-H1 plan, and none that leaves devices idle, is cheaper is the search's word. Memory is exact (bytes of
/// the lowered Program's static peak), partitions into stages are free, layers of a stage stand in any order; interleaved 1F1B and ZB-H1 are searched
/// within the space of rank_model.h (one strategy for the layers of a rank, one layout for those of a plan), exactly there. What is called optimal
/// equals the enumeration of every plan of tiny problems at 561 memory limits (tests/oracle/search/whole_plan_test.cc).
struct Certificate {
  std::int64_t cost_ps = 0;   // closed-form cost of the best plan
  std::int64_t bound_ps = 0;  // lower bound over the whole space
  double gap = 0;             // (cost - bound) / cost; 0 when optimal
  std::int64_t multiplier_bound_ps = 0;  // lower bound over the spaces of `proofs`; kBeyondAnyCost: nothing fits, not even fractionally
  double multiplier_gap = 0;             // (cost - multiplier bound) / cost
  std::vector<SpaceProof> proofs;        // one; of a target (targets.h): one for each of its subspaces
  std::vector<std::int64_t> stage_peak_bytes;
  std::int64_t memory_limit_bytes = 0;
  std::string cost_model_fingerprint;
};

struct Candidate {
  plan::Plan plan;
  std::int64_t closed_form_ps = 0;
  sim::SimReport report;
};

/// A way out of infeasibility, smallest change first.
struct Relaxation {
  std::string change;             // "memory 36 GiB → 41.3 GiB", "recompute=full", "16 devices"
  std::int64_t memory_bytes = 0;  // needed per device
  std::int64_t step_time_ps = 0;  // predicted with it; 0 unknown
};

struct PlanAnswer {
  Status status = Status::kInfeasible;
  std::vector<Candidate> candidates;  // simulated, fastest first; [0] is the answer
  Certificate certificate;
  std::vector<Pruned> pruned;
  std::uint64_t states = 0;    // dynamic-program states
  std::uint64_t problems = 0;  // (pp, m, schedule, vocabulary) problems solved or pruned
  int order_changes = 0;       // pairs of the top k that simulation put the other way round
  // infeasible:
  std::int64_t shortfall_bytes = 0;  // least peak over the space minus the limit; 0: no strategy divides model and batch
  std::vector<Relaxation> relaxations;
};

/// Exact search. Errors are wrong inputs only; "nothing fits" is an answer.
base::Result<PlanAnswer> find_plan(const costmodel::CostModel& cost, const PlanRequest& request);

}  // namespace orrery::search
