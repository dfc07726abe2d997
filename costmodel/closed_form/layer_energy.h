#pragma once
/// \file
/// What a layer draws, as time, for a search that minimises the energy of a step.
///
/// With P0 what the cluster draws while all its kernels wait, a device's range of power between
/// idle and limit, and u of every operation as in costmodel/energy/power.h,
///
///     E / P0 = T + Σ_layers e,    e = Σ_operations (u - u_wait) t · (Σ_ranks range) / P0
///
/// of all micro-batches of a step of T. A step is first by E where it is first by that sum, which
/// is a time, so the programs that minimise time minimise energy too.
///
/// Simplified, against the integral over a simulated timeline (sim/report/energy.h): what the data
/// stream and transfers between stages draw counts as waiting, and so do changes of layout; of what
/// runs side by side each draws by itself. tests/differential/sim/energy_test.cc has the
/// difference.
#include <vector>

#include "costmodel/closed_form/layer_form.h"
#include "costmodel/closed_form/layer_parts.h"
#include "costmodel/cost_model.h"
#include "costmodel/energy/power.h"

namespace orrery::costmodel {

class EnergyPrices {
 public:
  /// @pre MachinePower::of() the topology. `cost` must outlive this object.
  explicit EnergyPrices(const CostModel& cost);

  /// (u - u_wait) t of an operation of the first of `ranks`, in ps.
  [[nodiscard]] double compute_ps(const model::SegmentShape& shape, model::Phase phase,
                                  std::int64_t ps, Ranks ranks) const;
  [[nodiscard]] double communication_ps(bool leaves_host, std::int64_t ps) const;

  /// Of the passes of a micro-batch of b sequences a rank, and of what serves the weights: sums of
  /// TemplateForm::drawn_ps.
  [[nodiscard]] double drawn_ps(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                                Ranks ranks, OperationPrices& prices) const;
  [[nodiscard]] OfWeights<double> drawn_ps(const WeightForm& weights, Ranks ranks,
                                           OperationPrices& prices) const;
  /// e of a layer whose ranks draw alike; least_energy_ps() is no more than that, its passes alone.
  [[nodiscard]] std::int64_t energy_ps(const BodyTimes& body, const WeightTimes& weights,
                                       std::int64_t micro_batches, Ranks ranks) const;
  [[nodiscard]] std::int64_t least_energy_ps(const BodyTimes& body, std::int64_t micro_batches,
                                             Ranks ranks) const;

 private:
  /// Σ range / P0.
  [[nodiscard]] double weight_of(Ranks ranks) const;

  const CostModel& cost_;
  std::vector<Roofline> rooflines_;  // [device model]
  std::vector<double> ranges_;       // [device model] watts
  double waiting_watts_ = 0;         // P0
};

}  // namespace orrery::costmodel
