#pragma once
/// \file
/// The families of a request: (pipeline degree, devices of a stage, micro-batches, schedule),
/// vocabulary left open. GPipe stands only where 1F1B is not allowed: its closed form is never
/// shorter, and it never holds fewer micro-batches.
#include <cstdint>
#include <vector>

#include "search/loop/planner.h"
#include "search/solvers/solvers.h"

namespace orrery::search {

/// Why a pipeline degree cannot be used.
Refusal refuse_stages(const model::ModelSpec& model, const Space& space, int stages);

/// Seconds of a step at the peak of all devices: forward and twice as much backward. Prices count
/// picoseconds, 2^63 of which are 107 days: what takes longer than kLongestAtPeak is left out, for
/// devices reach a tenth of their peak and less.
double seconds_at_peak(const costmodel::CostModel& cost, std::int64_t global_batch);
inline constexpr double kLongestAtPeak = 5e5;

class Families {
 public:
  /// @pre all outlive this object; the request is valid (planner.cc).
  Families(const costmodel::CostModel& cost, const PlanRequest& request, Solvers& solvers);

  /// Those whose stages take all devices; what cannot be goes to `pruned`.
  std::vector<PlanProblem> on_all_devices(std::vector<Pruned>& pruned);
  /// Those that leave devices idle, all p stages of d devices with p d below the cluster's number,
  /// so that more devices are never slower; mostly cut by what the layers compute at least,
  /// pipeline degree by pipeline degree.
  std::vector<PlanProblem> with_idle_devices(std::int64_t incumbent_ps,
                                             std::vector<Pruned>& pruned);

 private:
  [[nodiscard]] int cluster_devices() const;
  [[nodiscard]] bool has_vocabularies(const PlanProblem& family);
  /// A micro-batch passes all stages, and each stage runs all micro-batches.
  [[nodiscard]] bool too_long(int stages, int devices, std::int64_t micro_batches) const;
  /// No step on so many devices is shorter: a product runs in four bits, weights that are frozen
  /// have no gradients, attention is masked.
  [[nodiscard]] std::int64_t at_peak_ps(int devices) const;
  void add_stages(int stages, std::vector<PlanProblem>& all, std::vector<Pruned>& pruned);

  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  Solvers& solvers_;
  std::vector<std::int64_t> micro_batches_;
  std::vector<plan::Schedule> schedules_;
  double seconds_of_one_;  // a step at the peak of one device
};

}  // namespace orrery::search
