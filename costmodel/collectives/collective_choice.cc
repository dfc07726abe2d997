#include "costmodel/collectives/collective_choice.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::costmodel {
namespace {

using enum Protocol;
using enum Algorithm;
using enum model::Collective;
using base::Seconds;
using Op = model::Collective;

int log2_of(int n) { return as_int(std::bit_width(static_cast<unsigned>(n))) - 1; }

/// The rate itself where nothing limits it.
double limited(double rate, base::BytesPerSecond limit, double channels = 1) {
  return limit.raw() > 0 ? std::min(rate, limit.raw() * channels) : rate;
}

struct Expected {
  Seconds latency{};
  double bandwidth = 0;  // bytes/s of the tensor
};

class Tuner {
 public:
  Tuner(const CollectiveTuning& tuning, const GroupOnMachine& group, Op op, std::int64_t bytes)
      : t_(tuning),
        g_(group),
        op_(op),
        bytes_(bytes),
        scale_(scale_of(group.hosts)),
        channels_(real(tuning.channels)),
        steps_(ring_steps(op, group.ranks)),
        per_bus_(real(group.ranks) / real(steps_)) {}

  Expected ring(Protocol p) const {
    const auto& ring = t_.ring;
    double bus = g_.rings.raw() * ring.rate[as_index(p)];
    if (p == kLL) bus = limited(bus, ring.ll_limit[scale_]);
    if (p == kLL128) bus = limited(bus, ring.ll128_channel_limit, channels_);
    if (op_ == kBroadcast)
      return {ring.latency.base[as_index(p)] +
                  (g_.hosts > 1 ? network_hop(ring.latency, p) : device_hop(ring.latency, p)),
              bus};
    const std::int64_t inter = g_.hosts > 1 ? ring_steps(op_, g_.hosts) : 0;
    Seconds device = device_hop(ring.latency, p);
    if (g_.hosts > 1) device = std::max(device, t_.posting(p));
    Seconds latency = ring.latency.base[as_index(p)] + real(steps_ - inter) * device +
                      real(inter) * network_hop(ring.latency, p);
    const bool plateau = op_ == kAllReduce && p == kSimple && g_.hosts > 1;
    if (plateau && real(bytes_) / (channels_ * g_.ranks) >= kPlateauBytes)
      latency = latency * ring.plateau;
    return {latency, bus * per_bus_};
  }

  Expected tree(Protocol p) const {
    const auto& tree = t_.tree;
    // Two hosts: what a card carries for a tree is half of what it carries for a ring.
    const double cards = g_.rings.raw() * (g_.hosts == 2 ? 2 : 1),
                 links = g_.switch_link.raw() > 0 ? std::min(cards, g_.switch_link.raw()) : cards;
    double bus =
        limited(links * tree.rate[as_index(kSimple)], tree.channel_limit[scale_], channels_);
    if (p == kLL) bus = limited(bus * tree.rate[as_index(p)], t_.ring.ll_limit[scale_]);
    if (p == kLL128)
      bus = limited(bus * (g_.hosts == 1 ? 7.0 / 9.0 : 15.0 / 16.0),
                    tree.ll128_channel_limit[scale_], channels_);
    const int inside = g_.ranks / g_.hosts - 1;
    const Seconds way = real(inside) * device_hop(tree.latency, p) +
                        real(log2_of(g_.hosts)) * network_hop(tree.latency, p);
    return {tree.latency.base[as_index(p)] + 2.0 * way, bus * tree.correction_at(p, bytes_) / 2};
  }

  Expected nvls(bool tree) const {
    const auto& nvls = t_.nvls;
    const double heads = g_.nvls_heads;
    double bus = 2 * (heads - 1) / heads * nvls.efficiency * g_.switch_link.raw();
    if (!tree) return {nvls.latency, bus * per_bus_};
    bus = std::min(bus, g_.rings.raw() * (g_.hosts == 2 ? 2 : 1));
    bus = limited(bus, nvls.tree_channel_limit[scale_], heads);
    return {nvls.latency + 2.0 * log2_of(g_.hosts) * (nvls.network_hop + 2.0 * g_.network_extra),
            bus * per_bus_};
  }

 private:
  static constexpr double kPlateauBytes = 64;  // of a channel and rank

  Seconds device_hop(const HopLatencies& latency, Protocol p) const {
    return latency.device_hop(p, g_.pcie);
  }
  Seconds network_hop(const HopLatencies& latency, Protocol p) const {
    return latency.network_hop(p, g_.network_extra);
  }

  const CollectiveTuning& t_;
  const GroupOnMachine& g_;
  Op op_;
  std::int64_t bytes_;
  std::size_t scale_;
  double channels_;
  std::int64_t steps_;
  double per_bus_;
};

Expected expected(const Tuner& tuner, Algorithm algorithm, Protocol protocol) {
  switch (algorithm) {
    case kRing: return tuner.ring(protocol);
    case kTree: return tuner.tree(protocol);
    case kNvls: return tuner.nvls(false);
    case kNvlsTree: return tuner.nvls(true);
    case kHalvingDoubling:
    case kHierarchical:
    case kDirect: break;
  }
  ORRERY_CHECK(false, "NCCL expects nothing of {}", to_string(algorithm));
}

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  return base::EnumNames<kDirect>("ring", "tree", "nvls", "nvls_tree", "halving_doubling",
                                  "hierarchical", "direct")[algorithm];
}

std::int64_t ring_steps(Op op, std::int64_t ranks) {
  switch (op) {
    case kAllReduce: return 2 * (ranks - 1);
    case kAllGather:
    case kReduceScatter:
    case kBroadcast: return ranks - 1;
    case kAllToAll:
    case kPointToPoint: return 1;
  }
  ORRERY_CHECK(false, "collective out of range");
}

std::size_t scale_of(int hosts) { return as_index(std::min(hosts, 3) - 1); }

double expected_seconds(const CollectiveTuning& published, const GroupOnMachine& group, Op op,
                        std::int64_t bytes, Algorithm algorithm, Protocol protocol) {
  const Expected e = expected(Tuner(published, group, op, bytes), algorithm, protocol);
  ORRERY_CHECK(e.bandwidth > 0, "no bandwidth of {}", to_string(algorithm));
  return e.latency.raw() + real(bytes) / e.bandwidth;
}

}  // namespace orrery::costmodel
