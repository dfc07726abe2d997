#include "topologies/fabric/fabric.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::topologies {

using enum FabricShape;
using enum base::ErrorCode;
using base::Result;

std::string_view to_string(FabricShape shape) {
  return base::EnumNames<kTorus>("switch", "leaf_spine", "rail_optimised", "fat_tree", "tree",
                                 "dragonfly", "torus")[shape];
}

std::string_view to_string(PathChoice paths) {
  return base::EnumNames<PathChoice::kHashed>("fluid", "ecmp", "hashed")[paths];
}

double hashing_excess(double uplinks, double flows_a_link) {
  const double mean = flows_a_link, reach = 12 * std::sqrt(mean) + 12;
  constexpr double kNothing = 1e-12;
  double k = std::floor(std::max(0.0, mean - reach)), fullest = k, below = 0, more = 1;
  for (; k < mean || (more > kNothing && k < mean + reach); ++k) {
    below += std::exp(k * std::log(mean) - mean - std::lgamma(k + 1));
    more = 1 - std::pow(std::min(below, 1.0), uplinks);
    fullest += more;
  }
  return std::max(1.0, fullest / mean);
}

uint64_t stable_hash(uint64_t a, uint64_t b) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  return mix(mix(a) ^ b);
}

uint64_t count_nics(std::span<const NicRun> hosts) {
  uint64_t nics = 0;
  for (const NicRun& run : hosts) nics += uint64_t{run.hosts} * run.nics;
  return nics;
}

std::optional<std::vector<CopyLevel>> Fabric::levels(uint32_t) const { return std::nullopt; }

void Fabric::join(uint32_t a, uint32_t b, int64_t bytes_per_second) {
  links_.push_back({a, b, bytes_per_second});
  links_.push_back({b, a, bytes_per_second});
}

namespace {

Result<void> check_fat_tree(const FabricSpec& spec, uint64_t nics) {
  const uint64_t k = spec.radix;
  if (k < 2 || k % 2 != 0)
    return base::fail(kInconsistent, "radix {} of a fat tree is not even", k);
  if (nics > k * k * k / 4) {
    return base::fail(kInconsistent,
                      "{} network cards are more than the {} of a fat tree of radix {}", nics,
                      k * k * k / 4, k);
  }
  const double uplinks = real(k) / 2 / spec.oversubscription;
  if (spec.paths == PathChoice::kEcmp &&
      (uplinks < 1 || uplinks != real(static_cast<int64_t>(uplinks)))) {
    return base::fail(kInconsistent,
                      "{} cards of an edge switch, oversubscribed {}:1, leave {} uplinks", k / 2,
                      spec.oversubscription, uplinks);
  }
  return {};
}

Result<void> check_dragonfly(const FabricSpec& spec, uint64_t nics) {
  const uint64_t per_group = uint64_t{spec.routers_per_group} * spec.ports_per_router;
  const uint64_t groups = (nics + per_group - 1) / per_group;
  const uint64_t global = uint64_t{spec.routers_per_group} * spec.global_links_per_router;
  if (groups <= global + 1) return {};
  return base::fail(kInconsistent,
                    "{} network cards make {} groups, and {} global links of a group reach {}",
                    nics, groups, global, global + 1);
}

Result<void> check_tree(const FabricSpec& spec, std::span<const NicRun> hosts) {
  uint64_t places = 0, count = 0;
  for (const TreeSwitch& s : spec.tree) places += s.hosts;
  for (const NicRun& run : hosts) count += run.hosts;
  if (places == count) return {};
  return base::fail(base::make_error(kInconsistent, "fabric '{}' is a tree of {} hosts, not {}",
                                     spec.name, places, count)
                        .with_hint(fmt::format("--hosts {}", places)));
}

Result<void> check_torus(const FabricSpec& spec, std::span<const NicRun> hosts) {
  uint64_t routers = 1, count = 0;
  std::string dimensions;
  for (const uint32_t size : spec.dimensions) {
    routers *= size;
    dimensions += (dimensions.empty() ? "" : " x ") + std::to_string(size);
  }
  for (const NicRun& run : hosts) count += run.hosts;
  if (routers == count) return {};
  return base::fail(base::make_error(kInconsistent, "a torus of {} has {} hosts, not {}",
                                     dimensions, routers, count)
                        .with_hint(fmt::format("--hosts {}", routers)));
}

/// Cables between switches, before any is made: what a file asks for may be too large to hold.
double count_cables(const FabricSpec& spec, std::span<const NicRun> hosts) {
  const auto nics = real(count_nics(hosts));
  const double half = spec.radix / 2.0, a = spec.routers_per_group;
  double count = 0, leaves = 0;
  for (const NicRun& run : hosts) count += run.hosts;
  switch (spec.shape) {
    case kSwitch: return 0;
    case kLeafSpine: leaves = nics / spec.ports_per_leaf + 1; break;
    case kRailOptimised: leaves = nics / spec.hosts_per_leaf + nics / count + 1; break;
    case kFatTree: return spec.paths == PathChoice::kEcmp ? 2 * (nics + half * half * half) : nics;
    case kDragonfly:
      return (nics / (a * spec.ports_per_router) + 1) * a * (a / 2 + spec.global_links_per_router);
    case kTree: return real(spec.tree.size());
    case kTorus: return count * 3;
  }
  return spec.paths == PathChoice::kEcmp ? leaves * spec.spines : leaves;
}

}  // namespace

Result<std::shared_ptr<const Fabric>> make_fabric(const FabricSpec& spec,
                                                  std::span<const NicRun> hosts) {
  const uint64_t nics = count_nics(hosts);
  ORRERY_CHECK(spec.bytes_per_second > 0 && spec.oversubscription > 0);
  if (nics > std::numeric_limits<uint32_t>::max() / 8)
    return base::fail(kOutOfRange, "{} network cards", nics);
  constexpr double kMaxCables = 1 << 24;
  if (const double cables = count_cables(spec, hosts); cables > kMaxCables) {
    return base::fail(
        kOutOfRange,
        "fabric '{}' would have about {:.3g} cables between switches, more than {:.3g}", spec.name,
        cables, kMaxCables);
  }
  switch (spec.shape) {
    case kSwitch:
    case kLeafSpine:
    case kRailOptimised: return make_clos(spec, hosts);
    case kTree: TRY_VOID(check_tree(spec, hosts)); return make_clos(spec, hosts);
    case kFatTree: TRY_VOID(check_fat_tree(spec, nics)); return make_clos(spec, hosts);
    case kDragonfly: TRY_VOID(check_dragonfly(spec, nics)); return make_dragonfly(spec, hosts);
    case kTorus: TRY_VOID(check_torus(spec, hosts)); return make_torus(spec, hosts);
  }
  ORRERY_CHECK(false, "fabric shape {}", as_int(spec.shape));
}

}  // namespace orrery::topologies
