#pragma once
/// \file
/// How far a predicted step time may be from the truth. Sources of error, s, each with a spread w_s
/// of the profile (model::Spread), are drawn together:
///
///   ln f_s = q_s w_s / q(0.9),     q(p) the quantile of the standard normal,
///   PriceFactors f = all f_s, each times f_step
///
/// K draws are a Latin hypercube with mirror images (McKay, Beckman and Conover 1979; Hammersley
/// and Morton 1956): draws k and K - 1 - k have opposite q_s, and
/// |q_s| takes each of q((K/2 + j + 1/2) / K), j < K/2, once, in an order that a seed decides;
///  signs are Walsh's, so that two sources agree half the time. So every
/// source alone has the percentiles of its normal whatever K, and errors that move a step evenly
/// leave its median alone.
///
/// The same plan is priced with each draw by its closed form (closed_form.h), r_k = form with
/// errors / form without; the step takes r_k times the predicted time. Band: 10th and 90th
/// percentile of the r_k. Two plans in the same draws err together: how often one is the faster is
/// counted draw by draw. Simulating each draw instead gives the same
/// (tests/differential/sim/draws_test.cc) and takes as long as K simulations.
/// docs/models/uncertainty.md: where spreads come from; experiments/validation: how often bands
/// held.
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "costmodel/compute/price_factors.h"
#include "costmodel/cost_model.h"
#include "model/profile.h"
#include "plan/program/plan.h"

namespace orrery::costmodel {

inline constexpr int kDraws = 32;
inline constexpr double kCoverage = 0.8;

/// The predicted step lies between low and high times its time with a chance of kCoverage;
/// low ≤ 1 ≤ high.
struct Band {
  double low = 1, high = 1;
};

struct Uncertainty {
  model::Spread spread;
  std::string source;  // where the spread is from
  double beyond = 0;   // half a width in logarithms, of what no published step was held against
  /// With what is beyond: widths add in squares.
  Band widened(const Band& band) const;
};
/// Of the profile: its `spread`; else its composition residual, the percentiles of its operators,
/// the residual of its surface, and where it has none of them what is assumed of datasheet prices.
///
/// A spread that errors on published steps gave says nothing of what those steps lacked: another
/// device (0.08), one that takes the surface of another (0.33), more devices (0.02 each time twice
/// as many), mixtures of experts (0.15), scans (0.15), tensor groups over hosts (0.1), context
/// parallelism (0.08), products below bf16 (0.08). Assumed, and added in squares.
Uncertainty uncertainty_of(const CostModel& cost, const plan::Plan& plan);

/// @pre count even and > 0. The same spread scaled by c: every ln of a factor times c.
std::vector<PriceFactors> draw_errors(const model::Spread& spread, int count = kDraws,
                                      std::uint64_t seed = 1);

/// Step times of plans under each draw over those without errors: [plan][draw]. Layers are lowered
/// and links counted once for all draws. @pre of plan_cost() for many plans. Errors: those of
/// plan_cost().
base::Result<std::vector<std::vector<double>>> drawn_steps(const CostModel& cost,
                                                           std::span<const plan::Plan* const> plans,
                                                           std::span<const PriceFactors> draws);

/// @pre at least one draw.
Band band_of(std::span<const double> draws);
/// Of a plan with the spread of its prices. Errors: those of plan_cost().
base::Result<Band> band_of(const CostModel& cost, const plan::Plan& plan,
                           const model::Spread& spread);

/// A plan's predicted step in ps, and its draws.
struct DrawnStep {
  std::int64_t step_ps = 0;
  std::span<const double> draws;
};
/// Share of the draws in which `one` is faster than `other`, equals counted half. @pre as many
/// draws of each, at least one.
double share_faster(const DrawnStep& one, const DrawnStep& other);

/// Standard error of the median of n samples that spread by sigma around it, of a normal
/// distribution: sqrt(pi / 2n) sigma.
inline double median_error(double sigma, std::size_t n) {
  return std::sqrt(std::numbers::pi / 2 / real(n)) * sigma;
}

/// Whether the 80 % band of how far the predicted slower of two is behind reaches zero.
inline bool within_error(double share_faster) { return share_faster >= (1 - kCoverage) / 2; }

}  // namespace orrery::costmodel
