#include "costmodel/uncertainty/uncertainty.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/numbers.h"
#include "base/rng.h"
#include "base/text.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"

namespace orrery::costmodel {
namespace {

using model::Spread;

// Assumed where a profile says nothing (docs/models/uncertainty.md has the sources).
constexpr double kMeasuredTransfers = 0.05;
constexpr double kOtherDevice = 0.08, kStandIn = 0.33, kTwiceTheRanks = 0.02, kExperts = 0.15,
                 kScans = 0.15, kTensorOverHosts = 0.1, kContext = 0.08, kFormats = 0.08,
                 kOtherType = 0.15;

/// Of the measured operators: mean half-distance from 10th to 90th percentile, of a sample and of
/// the median.
struct Samples {
  double one = 0, median = 0;
  int points = 0;
};
Samples samples_of(const std::vector<model::OperatorPoint>& operators) {
  Samples s;
  for (const model::OperatorPoint& p : operators) {
    if (p.samples < 2 || p.seconds_median <= 0) continue;
    const double half = (p.seconds_p90 - p.seconds_p10) / (2 * p.seconds_median);
    s.one += half;
    s.median += median_error(half, as_index(p.samples));
    ++s.points;
  }
  if (s.points > 0) {
    s.one /= s.points;
    s.median /= s.points;
  }
  return s;
}

void add_transfers(const CostModel& cost, Spread& spread) {
  const auto of = [&](bool across) {
    for (const model::CollectiveTimes& c :
         cost.profile() ? cost.profile()->collectives : std::vector<model::CollectiveTimes>{})
      if ((c.hosts > 1) == across) return kMeasuredTransfers;
    return model::kDatasheetSpread.fabric;
  };
  spread.in_hosts = of(false);
  spread.fabric = of(true);
}

Uncertainty of_datasheet(const CostModel& cost) {
  const std::string& device = cost.topology().device_models().front().name;
  const char* elsewhere =
      device.find("A100") == std::string::npos ? "; not measured on this device" : "";
  return {
      model::kDatasheetSpread,
      fmt::format(
          "{}matrix products reach 72 to 89 % of the datasheet's peak on A100, 80 % is assumed{}",
          cost.profile()
              ? "assumed, for the profile states no error of its own; that of datasheet prices: "
              : "",
          elsewhere)};
}

Uncertainty of_surface(const model::Profile& profile, const model::ComputeSurface& surface) {
  return {{.operators = surface.residual, .streams = model::kDatasheetSpread.streams},
          fmt::format("what 80 % of the products measured on the device stay within of the surface "
                      "of profile '{}'",
                      profile.name)};
}

bool any_block(const model::ModelSpec& model, bool (*has)(const model::BlockShape&)) {
  return model.runs.empty() ? has(model)
                            : std::ranges::any_of(model.runs, has, &model::BlockRun::shape);
}

bool recurrent(const model::BlockShape& block) {
  using enum model::Mixer;
  return block.mixer == kMamba2 || block.mixer == kDeltaNet || block.mixer == kLightning;
}

/// Whether a device takes the surface of another (profiles.h, rule 1).
bool stands_in(const model::Profile& profile) {
  const auto of_another = [](const model::Profile& p) {
    return p.device.empty() && p.kinds.empty() && !p.surfaces.empty();
  };
  return of_another(profile) || std::ranges::any_of(profile.kinds, of_another);
}

/// What the published steps behind a spread lacked and this one has.
void add_beyond(const CostModel& cost, const model::Profile& profile, const plan::Plan& plan,
                Uncertainty& u) {
  double squares = 0;
  std::vector<std::string> lacked;
  const auto add = [&](double width, std::string what) {
    squares += width * width;
    if (!what.empty()) lacked.push_back(std::move(what));
  };
  const auto ranks = real(plan.world_size());
  if (profile.held_ranks == 0)
    add(kOtherDevice, "");  // the source says so already
  else if (ranks > real(profile.held_ranks))
    add(kTwiceTheRanks * std::log2(ranks / real(profile.held_ranks)),
        fmt::format("more than {} devices", profile.held_ranks));
  if (stands_in(profile)) add(kStandIn, "devices of its kind");
  if (any_block(cost.model(), [](const model::BlockShape& b) { return b.experts > 0; }))
    add(kExperts, "mixtures of experts");
  if (any_block(cost.model(), recurrent)) add(kScans, "scans");
  if (model::format_of(cost.options().precision) != model::Format::kNone)
    add(kFormats, "products below bf16");
  const model::DType type = model::compute_dtype(cost.options().precision);
  if (!profile.surfaces.empty() &&
      !std::ranges::count(profile.surfaces, type, &model::ComputeSurface::dtype))
    add(kOtherType, "products in fp32");
  const auto any = [&](auto has) {
    return std::ranges::any_of(plan.stages, [&](const plan::Stage& stage) {
      return std::ranges::any_of(stage.runs,
                                 [&](const plan::LayerRun& run) { return has(run.strategy); });
    });
  };
  const auto host = as_int(cost.topology().devices_per_host());
  if (any([&](const plan::LayerStrategy& s) { return s.tp > host; }))
    add(kTensorOverHosts, "tensor groups over hosts");
  if (any([](const plan::LayerStrategy& s) { return s.cp > 1; }))
    add(kContext, "context parallelism");
  u.beyond = std::sqrt(squares);
  if (!lacked.empty()) u.source += fmt::format("; none of {}", fmt::join(lacked, ", "));
}

}  // namespace

Band Uncertainty::widened(const Band& band) const {
  return {std::exp(-std::hypot(std::log(band.low), beyond)),
          std::exp(std::hypot(std::log(band.high), beyond))};
}

Uncertainty uncertainty_of(const CostModel& cost, const plan::Plan& plan) {
  const auto& profile = cost.profile();
  if (profile && profile->spread) {
    Uncertainty u{*profile->spread,
                  fmt::format("as far off as predictions of published steps{}; {}",
                              profile->framework ? " of " + profile->framework->name : "",
                              profile->held_ranks > 0
                                  ? fmt::format("steps on up to {} of these devices were checked",
                                                base::grouped(real(profile->held_ranks)))
                                  : "no step on this device was checked")};
    add_beyond(cost, *profile, plan, u);
    return u;
  }
  Uncertainty u;
  const Samples samples =
      samples_of(profile ? profile->operators : std::vector<model::OperatorPoint>{});
  const auto surface =
      profile ? std::ranges::find(profile->surfaces, model::compute_dtype(cost.options().precision),
                                  &model::ComputeSurface::dtype)
              : std::vector<model::ComputeSurface>::const_iterator{};
  if (samples.points > 0) {
    u = {{.operators = samples.median, .step = samples.one},
         fmt::format(
             "mean spread, 10th to 90th percentile, of the {} operators measured in profile '{}'",
             samples.points, profile->name)};
  } else if (profile && surface != profile->surfaces.end() && surface->residual > 0) {
    u = of_surface(*profile, *surface);
  } else {
    u = of_datasheet(cost);
  }
  add_transfers(cost, u.spread);
  if (profile && profile->composition_residual > 0) {
    u.spread.step = profile->composition_residual;
    u.source = fmt::format("what the fit of profile '{}' left unexplained", profile->name);
  }
  return u;
}

std::vector<PriceFactors> draw_errors(const Spread& spread, int count, std::uint64_t seed) {
  ORRERY_CHECK(count > 0 && count % 2 == 0, "{} draws", count);
  const auto half = as_index(count) / 2;
  const double unit = base::normal_quantile((1 + kCoverage) / 2);
  std::vector<Spread> logs(2 * half);
  std::vector<std::size_t> order(half);
  for (std::size_t s = 0; s < model::kSpreadFields.size(); ++s) {
    const auto field = model::kSpreadFields[s].second;
    base::Rng rng(base::derive(seed, s));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t k = half; k > 1; --k) std::swap(order[k - 1], order[rng.below(k)]);
    for (std::size_t k = 0; k < half; ++k) {
      const double size =
          base::normal_quantile((real(half + order[k]) + 0.5) / count) / unit * (spread.*field);
      // Walsh signs: those of two sources agree half the time
      const double q = std::popcount(k & (s + 1)) % 2 == 0 ? size : -size;
      logs[2 * half - 1 - k].*field = -q;
      logs[k].*field = q;
    }
  }
  std::vector<PriceFactors> draws;
  for (std::size_t k = 0; k < logs.size(); ++k) {
    const Spread& e = logs[k];
    const auto factor = [&](double log) { return std::exp(log + e.step); };
    // Mirror images have the same seed for the shapes of operators.
    draws.push_back(
        {factor(e.products), factor(e.attention), factor(e.streams), factor(e.launches),
         factor(e.in_hosts), factor(e.fabric),
         (k < half ? spread.operators : -spread.operators) / unit,
         base::derive(seed, model::kSpreadFields.size() + std::min(k, logs.size() - 1 - k))});
  }
  return draws;
}

base::Result<std::vector<std::vector<double>>> drawn_steps(const CostModel& cost,
                                                           std::span<const plan::Plan* const> plans,
                                                           std::span<const PriceFactors> draws) {
  std::vector<std::vector<double>> times(plans.size());
  std::vector<double> centre;
  LayerCosts costs(cost);
  for (const plan::Plan* plan : plans) {
    TRY(const PlanCost priced, plan_cost(costs, *plan));
    centre.push_back(real(priced.step_ps));
  }
  for (const PriceFactors& errors : draws) {
    const CostModel drawn = cost.drawn(errors);
    LayerCosts drawn_costs(drawn, costs);
    for (std::size_t p = 0; p < plans.size(); ++p)
      times[p].push_back(real(step_ps(drawn_costs, *plans[p])) / centre[p]);
  }
  return times;
}

Band band_of(std::span<const double> draws) {
  ORRERY_CHECK(!draws.empty());
  std::vector<double> sorted(draws.begin(), draws.end());
  std::ranges::sort(sorted);
  /// Draws as midpoints of equal shares: the k-th of n is the (k + 1/2) / n quantile.
  const auto quantile = [&](double p) {
    const double at = std::clamp(p * real(sorted.size()) - 0.5, 0.0, real(sorted.size() - 1));
    const auto low = as_index(at), high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - real(low)) * (sorted[high] - sorted[low]);
  };
  return {std::min(1.0, quantile((1 - kCoverage) / 2)),
          std::max(1.0, quantile((1 + kCoverage) / 2))};
}

base::Result<Band> band_of(const CostModel& cost, const plan::Plan& plan, const Spread& spread) {
  const plan::Plan* const plans[] = {&plan};
  TRY(const auto times, drawn_steps(cost, plans, draw_errors(spread)));
  return band_of(times.front());
}

double share_faster(const DrawnStep& one, const DrawnStep& other) {
  ORRERY_CHECK(one.draws.size() == other.draws.size() && !one.draws.empty());
  double wins = 0;
  for (std::size_t k = 0; k < one.draws.size(); ++k) {
    const double a = real(one.step_ps) * one.draws[k], b = real(other.step_ps) * other.draws[k];
    wins += a < b ? 1 : a == b ? 0.5 : 0;
  }
  return wins / real(one.draws.size());
}

}  // namespace orrery::costmodel
