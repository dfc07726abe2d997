#include "costmodel/uncertainty.h"

#include <vector>

#include <fmt/format.h>

namespace orrery::costmodel {
namespace {

std::int64_t ppm(double share) { return static_cast<std::int64_t>(share * 1e6 + 0.5); }

}  // namespace

Uncertainty uncertainty_of(const CostModel& cost) {
  const auto& profile = cost.profile();
  if (profile && profile->composition_residual > 0) {
    return {ppm(profile->composition_residual),
            fmt::format("what the fit of profile '{}' left unexplained", profile->name)};
  }
  double spread = 0;
  std::int64_t points = 0;
  for (const model::OperatorPoint& p : profile ? profile->operators : std::vector<model::OperatorPoint>{}) {
    if (p.samples < 2 || p.seconds_median <= 0) continue;
    spread += (p.seconds_p90 - p.seconds_p10) / (2 * p.seconds_median);
    ++points;
  }
  if (points > 0) {
    return {ppm(spread / static_cast<double>(points)),
            fmt::format("mean spread, 10th to 90th percentile, of the {} operators measured in profile '{}'", points, profile->name)};
  }
  const auto type = model::compute_dtype(cost.options().precision);
  for (const model::ComputeSurface& s : profile ? profile->surfaces : std::vector<model::ComputeSurface>{}) {
    if (s.dtype != type || s.residual <= 0) continue;
    return {ppm(s.residual), fmt::format("what 80 % of the products measured on the device stay within of the surface of profile '{}'", profile->name)};
  }
  // 0.72 .. 0.89 around 0.80, costmodel/compute.h.
  constexpr std::int64_t kDatasheetBand = 110'000;
  const std::string& device = cost.topology().device_models().front().name;
  const char* elsewhere = device.find("A100") == std::string::npos ? "; not measured on this device" : "";
  return {kDatasheetBand, fmt::format("{}matrix products reach 72 to 89 % of the datasheet's peak on A100, 80 % is assumed{}",
                                      profile ? "assumed, for the profile states no error of its own; that of datasheet prices: " : "", elsewhere)};
}

}  // namespace orrery::costmodel
