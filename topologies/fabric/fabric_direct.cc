// Networks without a separate core: dragonfly and torus. Formulas in fabric.h.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"
#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

namespace {

/// Group i's global channel q, 0 <= q < a h, belongs to router q / h. With g groups it is copy q /
/// (g - 1) of the cable to group i + d, d = 1 + q mod (g - 1); its other end is the channel of that
/// group to -d, the same copy.
class Dragonfly final : public Fabric {
 public:
  Dragonfly(const FabricSpec& spec, std::span<const NicRun> hosts)
      : routers_(spec.routers_per_group), channels_(spec.global_links_per_router) {
    const auto nics = as_u32(count_nics(hosts));
    const uint32_t per_group = routers_ * spec.ports_per_router;
    groups_ = std::max(1u, (nics + per_group - 1) / per_group);
    copies_ = groups_ > 1 ? routers_ * channels_ / (groups_ - 1) : 0;
    for (uint32_t n = 0; n < nics; ++n) switch_of_nic_.push_back(n / spec.ports_per_router);
    for (uint32_t group = 0; group < groups_; ++group) {
      for (uint32_t r = 0; r < routers_; ++r)
        switches_.push_back({fmt::format("router[{}.{}]", group, r), 0});
    }
    for (uint32_t group = 0; group < groups_; ++group) {
      for (uint32_t r = 0; r < routers_; ++r) {
        for (uint32_t s = r + 1; s < routers_; ++s)
          join(group * routers_ + r, group * routers_ + s, spec.local_bytes_per_second);
      }
    }
    for (uint32_t copy = 0; copy < copies_; ++copy) {
      for (uint32_t i = 0; i < groups_; ++i) {
        for (uint32_t j = i + 1; j < groups_; ++j)
          join(gateway(i, j, copy), gateway(j, i, copy), spec.global_bytes_per_second);
      }
    }
  }

  void route(uint32_t from, uint32_t to, uint64_t, std::vector<uint32_t>& path) const override {
    const uint32_t i = from / routers_, j = to / routers_;
    if (i == j) return local(from, to, path);
    uint32_t best = 0, fewest = std::numeric_limits<uint32_t>::max();
    for (uint32_t copy = 0; copy < copies_; ++copy) {
      const uint32_t hops = (gateway(i, j, copy) != from) + (gateway(j, i, copy) != to);
      if (hops >= fewest) continue;
      fewest = hops;
      best = copy;
    }
    local(from, gateway(i, j, best), path);
    path.push_back(global(i, j, best));
    local(gateway(j, i, best), to, path);
  }

 private:
  /// Router of group i that holds the cable to group j.
  uint32_t gateway(uint32_t i, uint32_t j, uint32_t copy) const {
    const uint32_t distance = (j + groups_ - i) % groups_;
    return i * routers_ + (copy * (groups_ - 1) + distance - 1) / channels_;
  }
  void local(uint32_t from, uint32_t to, std::vector<uint32_t>& path) const {
    if (from == to) return;
    const uint32_t low = std::min(from, to) % routers_, high = std::max(from, to) % routers_;
    const uint32_t pair = low * routers_ - low * (low + 1) / 2 + high - low - 1;
    path.push_back(2 * (from / routers_ * (routers_ * (routers_ - 1) / 2) + pair) +
                   (from > to ? 1 : 0));
  }
  uint32_t global(uint32_t i, uint32_t j, uint32_t copy) const {
    const uint32_t low = std::min(i, j), high = std::max(i, j);
    const uint32_t pair = low * groups_ - low * (low + 1) / 2 + high - low - 1;
    const uint32_t locals = groups_ * (routers_ * (routers_ - 1) / 2);
    return 2 * (locals + copy * (groups_ * (groups_ - 1) / 2) + pair) + (i > j ? 1 : 0);
  }

  uint32_t routers_, channels_, groups_ = 0, copies_ = 0;
};

/// Router n is host n; the last dimension varies fastest. A dimension of two has one cable between
/// its two routers.
class Torus final : public Fabric {
 public:
  Torus(const FabricSpec& spec, std::span<const NicRun> hosts)
      : sizes_(spec.dimensions), strides_(sizes_.size(), 1) {
    for (size_t d = sizes_.size(); d-- > 1;) strides_[d - 1] = strides_[d] * sizes_[d];
    const uint32_t routers = strides_.front() * sizes_.front();
    cables_.resize(size_t{routers} * sizes_.size(), 0);
    uint32_t host = 0;
    for (const NicRun& run : hosts) {
      for (uint32_t i = 0; i < run.hosts; ++i, ++host)
        switch_of_nic_.insert(switch_of_nic_.end(), run.nics, host);
    }
    for (uint32_t n = 0; n < routers; ++n) {
      std::string name;
      for (size_t d = 0; d < sizes_.size(); ++d)
        name += fmt::format("{}{}", d == 0 ? "" : ".", coordinate(n, d));
      switches_.push_back({fmt::format("router[{}]", name), 0});
    }
    for (uint32_t n = 0; n < routers; ++n) {
      for (size_t d = 0; d < sizes_.size(); ++d) {
        if (sizes_[d] == 1 || (sizes_[d] == 2 && coordinate(n, d) == 1)) continue;
        cables_[n * sizes_.size() + d] = count_of(links_);
        join(n, neighbour(n, d), spec.local_bytes_per_second);
      }
    }
  }

  void route(uint32_t from, uint32_t to, uint64_t, std::vector<uint32_t>& path) const override {
    for (size_t d = 0; d < sizes_.size(); ++d) {
      const uint32_t forward = (coordinate(to, d) + sizes_[d] - coordinate(from, d)) % sizes_[d];
      from = walk(from, d, forward, path);
    }
  }

 private:
  uint32_t coordinate(uint32_t n, size_t d) const { return n / strides_[d] % sizes_[d]; }
  uint32_t neighbour(uint32_t n, size_t d) const {
    return coordinate(n, d) + 1 == sizes_[d] ? n - (sizes_[d] - 1) * strides_[d] : n + strides_[d];
  }
  uint32_t before(uint32_t n, size_t d) const {
    return coordinate(n, d) == 0 ? n + (sizes_[d] - 1) * strides_[d] : n - strides_[d];
  }

  /// Goes `forward` steps up in dimension d, or the rest of the ring down where that is shorter;
  /// returns where it ends.
  uint32_t walk(uint32_t at, size_t d, uint32_t forward, std::vector<uint32_t>& path) const {
    const bool up = 2 * forward <= sizes_[d];
    const uint32_t steps = up ? forward : sizes_[d] - forward;
    for (uint32_t i = 0; i < steps; ++i) {
      const uint32_t next = up ? neighbour(at, d) : before(at, d);
      // The cable lies at the lower end; of a ring of two, at coordinate 0.
      const bool cable_here = sizes_[d] == 2 ? coordinate(at, d) == 0 : up;
      path.push_back(cables_[(cable_here ? at : next) * sizes_.size() + d] + (cable_here ? 0 : 1));
      at = next;
    }
    return at;
  }

  std::vector<uint32_t> sizes_, strides_;
  std::vector<uint32_t> cables_;  // [router, dimension] link towards the next router up
};

}  // namespace

std::shared_ptr<const Fabric> make_dragonfly(const FabricSpec& spec,
                                             std::span<const NicRun> hosts) {
  return std::make_shared<Dragonfly>(spec, hosts);
}

std::shared_ptr<const Fabric> make_torus(const FabricSpec& spec, std::span<const NicRun> hosts) {
  return std::make_shared<Torus>(spec, hosts);
}

}  // namespace orrery::topologies
