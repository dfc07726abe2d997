// Clos networks: switch, leaf_spine, rail_optimised, fat_tree; and trees. Formulas in fabric.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/numbers.h"
#include "topologies/fabric/fabric.h"
#include "topologies/fabric/fabric_tree.h"

namespace orrery::topologies {

namespace {

using enum FabricShape;

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

/// Capacity above `cards` cards of b bytes per second, in whole bytes per second and at least 1; of
/// hashed paths what the fullest uplink leaves of it.
int64_t capacity_above(const FabricSpec& spec, double cards) {
  double excess = 1;
  if (spec.paths == PathChoice::kHashed) {
    const double uplinks = std::max(1.0, std::round(cards / spec.oversubscription));
    excess = hashing_excess(uplinks, spec.queue_pairs * cards / uplinks);
  }
  return std::max<int64_t>(1, std::llround(std::floor(cards * real(spec.bytes_per_second) /
                                                      spec.oversubscription / excess)));
}

/// Which leaf each card is on, and how many leaves there are.
struct Leaves {
  std::vector<uint32_t> of_nic = {};
  uint32_t count = 0;
  uint32_t ports = 0;  ///< cards that a full leaf holds
  uint32_t rails = 1;  ///< leaves of neighbouring hosts
};

Leaves leaves_of_rails(const FabricSpec& spec, std::span<const NicRun> hosts) {
  Leaves leaves{.ports = spec.hosts_per_leaf};
  uint32_t& rails = leaves.rails;
  uint32_t host = 0;
  for (const NicRun& run : hosts) rails = std::max(rails, run.nics);
  for (const NicRun& run : hosts) {
    for (uint32_t i = 0; i < run.hosts; ++i, ++host) {
      for (uint32_t rail = 0; rail < run.nics; ++rail)
        leaves.of_nic.push_back(host / spec.hosts_per_leaf * rails + rail);
    }
  }
  leaves.count = ceil_div(host, spec.hosts_per_leaf) * rails;
  return leaves;
}

Leaves leaves_of(const FabricSpec& spec, std::span<const NicRun> hosts) {
  if (spec.shape == kRailOptimised) return leaves_of_rails(spec, hosts);
  const auto nics = as_u32(count_nics(hosts));
  Leaves leaves{.ports = nics};
  if (spec.shape == kLeafSpine) leaves.ports = spec.ports_per_leaf;
  if (spec.shape == kFatTree) leaves.ports = spec.radix / 2;
  leaves.count = std::max(1u, ceil_div(nics, std::max(1u, leaves.ports)));
  for (uint32_t n = 0; n < nics; ++n) leaves.of_nic.push_back(n / leaves.ports);
  return leaves;
}

/// Equal switches of an upper tier as one: see "fluid" in fabric.h.
class FluidClos final : public Fabric {
 public:
  FluidClos(const FabricSpec& spec, std::span<const NicRun> hosts) {
    if (spec.shape == kTree) {
      plant(spec, hosts);
      regular_ = false;
      return;
    }
    Leaves leaves = leaves_of(spec, hosts);
    switch_of_nic_ = std::move(leaves.of_nic);
    if (spec.shape == kSwitch) {
      switches_.push_back({spec.name, 0});
      up_.push_back(kNone);
      return;
    }
    const bool fat_tree = spec.shape == kFatTree;
    add_tier(fat_tree ? "edge" : "leaf", leaves.count, 0);
    const int64_t above_leaf = capacity_above(spec, leaves.ports);
    tiers_.push_back({leaves.ports, 2});
    if (!fat_tree) {
      if (spec.shape == kRailOptimised) tiers_ = {{leaves.ports * leaves.rails, 2 * leaves.rails}};
      add_tier("spine", 1, 1);
      for (uint32_t leaf = 0; leaf < leaves.count; ++leaf) hang(leaf, leaves.count, above_leaf);
      return;
    }
    const uint32_t half = spec.radix / 2, pods = ceil_div(leaves.count, half),
                   core = leaves.count + pods;
    add_tier("pod", pods, 1);
    add_tier("core", 1, 2);
    for (uint32_t edge = 0; edge < leaves.count; ++edge)
      hang(edge, leaves.count + edge / half, above_leaf);
    tiers_.push_back({half * half, 2});
    for (uint32_t pod = 0; pod < pods; ++pod)
      hang(leaves.count + pod, core, capacity_above(spec, real(half) * half));
  }

  void route(uint32_t from, uint32_t to, uint64_t, std::vector<uint32_t>& path) const override {
    uint32_t above_to = to;
    while (from != above_to) {
      const uint32_t tier = switches_[from].tier, tier_to = switches_[above_to].tier;
      if (tier <= tier_to) {
        path.push_back(up_[from]);
        from = parent(from);
      }
      if (tier_to <= tier) above_to = parent(above_to);
    }
    const size_t hops_up = path.size();
    for (; to != from; to = parent(to)) path.push_back(up_[to] + 1);
    std::ranges::reverse(std::span(path).subspan(hops_up));
  }

  std::optional<std::vector<CopyLevel>> levels(uint32_t nics) const override {
    std::vector<CopyLevel> levels;
    if (!regular_ || nics == 0) return std::nullopt;
    uint32_t first_link = 0, hosts_below = 1;
    for (const Tier& tier : tiers_) {
      const uint32_t blocks_of_host = nics % tier.cards == 0 ? nics / tier.cards : 1,
                     hosts = ceil_div(tier.cards, nics);
      if (tier.cards * blocks_of_host != hosts * nics || hosts % hosts_below != 0)
        return std::nullopt;
      levels.push_back({hosts, first_link, tier.links * blocks_of_host});
      first_link += tier.links * ceil_div(count_of(switch_of_nic_), tier.cards);
      hosts_below = hosts;
    }
    return levels;
  }

 private:
  uint32_t parent(uint32_t child) const { return links_[up_[child]].to; }
  /// Switches of one height, each over `cards` cards, or those of rails together.
  struct Tier {
    uint32_t cards, links;
  };

  void add_tier(std::string_view name, uint32_t count, uint32_t tier) {
    for (uint32_t i = 0; i < count; ++i) {
      switches_.push_back({count == 1 ? std::string(name) : fmt::format("{}[{}]", name, i), tier});
      up_.push_back(kNone);
    }
  }
  /// Tiers of a tree are heights, so that of two switches the lower one may always climb first.
  void plant(const FabricSpec& spec, std::span<const NicRun> hosts) {
    const std::vector<uint32_t> heights = heights_of_tree(spec.tree);
    std::vector<uint32_t> places;  // [host] its switch
    for (uint32_t s = 0; s < spec.tree.size(); ++s) {
      switches_.push_back({spec.tree[s].name, heights[s]});
      up_.push_back(kNone);
      places.insert(places.end(), spec.tree[s].hosts, s);
    }
    for (uint32_t s = 0; s < spec.tree.size(); ++s) {
      if (spec.tree[s].parent != kNoSwitch)
        hang(s, spec.tree[s].parent, spec.tree[s].uplink_bytes_per_second);
    }
    uint32_t host = 0;
    for (const NicRun& run : hosts) {
      for (uint32_t i = 0; i < run.hosts; ++i, ++host)
        switch_of_nic_.insert(switch_of_nic_.end(), run.nics, places[host]);
    }
  }
  void hang(uint32_t child, uint32_t parent, int64_t bytes_per_second) {
    up_[child] = count_of(links_);
    join(child, parent, bytes_per_second);
  }

  std::vector<Tier> tiers_;  // from the lowest; where a shift is a symmetry
  bool regular_ = true;
  std::vector<uint32_t> up_;  // [switch] link to its parent; the way back is the next id
};

/// Every spine a vertex. Cable of leaf l and spine s: l S + s.
class EcmpLeafSpine final : public Fabric {
 public:
  EcmpLeafSpine(const FabricSpec& spec, std::span<const NicRun> hosts)
      : spines_(spec.spines), seed_(spec.ecmp_seed) {
    Leaves leaves = leaves_of(spec, hosts);
    switch_of_nic_ = std::move(leaves.of_nic);
    leaves_ = leaves.count;
    for (uint32_t l = 0; l < leaves_; ++l) switches_.push_back({fmt::format("leaf[{}]", l), 0});
    for (uint32_t s = 0; s < spines_; ++s) switches_.push_back({fmt::format("spine[{}]", s), 1});
    const int64_t uplink = capacity_above(spec, real(leaves.ports) / spines_);
    for (uint32_t l = 0; l < leaves_; ++l) {
      for (uint32_t s = 0; s < spines_; ++s) join(l, leaves_ + s, uplink);
    }
  }

  void route(uint32_t from, uint32_t to, uint64_t key, std::vector<uint32_t>& path) const override {
    if (from == to) return;
    const bool up = from < leaves_, down = to < leaves_;
    ORRERY_CHECK(up || down, "no way from spine to spine");
    const auto hashed = as_u32(stable_hash(seed_, key) % spines_);
    const uint32_t spine = !up ? from - leaves_ : !down ? to - leaves_ : hashed;
    if (up) path.push_back(2 * (from * spines_ + spine));
    if (down) path.push_back(2 * (to * spines_ + spine) + 1);
  }

 private:
  uint32_t leaves_ = 0, spines_;
  uint64_t seed_;
};

/// Every switch of a k-ary fat tree a vertex. A = k / (2 o) aggregation switches in a pod, C = k /
/// 2 cores above each. Cable of edge switch e and aggregation switch i of its pod: e A + i; of
/// aggregation switch i of pod p and its core c: edges A + (p A + i) C + c.
class EcmpFatTree final : public Fabric {
 public:
  EcmpFatTree(const FabricSpec& spec, std::span<const NicRun> hosts)
      : half_(spec.radix / 2),
        aggregations_(as_u32(half_ / spec.oversubscription)),
        seed_(spec.ecmp_seed) {
    Leaves leaves = leaves_of(spec, hosts);
    switch_of_nic_ = std::move(leaves.of_nic);
    edges_ = leaves.count;
    const uint32_t pods = ceil_div(edges_, half_), middle = pods * aggregations_,
                   cores = aggregations_ * half_;
    for (uint32_t e = 0; e < edges_; ++e) switches_.push_back({fmt::format("edge[{}]", e), 0});
    for (uint32_t m = 0; m < middle; ++m)
      switches_.push_back({fmt::format("aggregation[{}]", m), 1});
    for (uint32_t c = 0; c < cores; ++c) switches_.push_back({fmt::format("core[{}]", c), 2});
    for (uint32_t e = 0; e < edges_; ++e) {
      for (uint32_t i = 0; i < aggregations_; ++i)
        join(e, edges_ + pod_of(e) * aggregations_ + i, spec.bytes_per_second);
    }
    for (uint32_t m = 0; m < middle; ++m) {
      for (uint32_t c = 0; c < half_; ++c)
        join(edges_ + m, edges_ + middle + m % aggregations_ * half_ + c, spec.bytes_per_second);
    }
  }

  void route(uint32_t from, uint32_t to, uint64_t key, std::vector<uint32_t>& path) const override {
    if (from == to) return;
    ORRERY_CHECK(from < edges_ && to < edges_, "ways lead from edge switch to edge switch");
    const uint64_t hash = stable_hash(seed_, key);
    const auto i = as_u32(hash % aggregations_), c = as_u32(hash / aggregations_ % half_);
    path.push_back(2 * (from * aggregations_ + i));
    if (pod_of(from) != pod_of(to)) {
      path.push_back(2 * core_cable(pod_of(from), i, c));
      path.push_back(2 * core_cable(pod_of(to), i, c) + 1);
    }
    path.push_back(2 * (to * aggregations_ + i) + 1);
  }

 private:
  uint32_t pod_of(uint32_t edge) const { return edge / half_; }
  uint32_t core_cable(uint32_t pod, uint32_t i, uint32_t c) const {
    return edges_ * aggregations_ + (pod * aggregations_ + i) * half_ + c;
  }

  uint32_t half_, aggregations_, edges_ = 0;
  uint64_t seed_;
};

}  // namespace

std::shared_ptr<const Fabric> make_clos(const FabricSpec& spec, std::span<const NicRun> hosts) {
  if (spec.paths != PathChoice::kEcmp || spec.shape == kSwitch || spec.shape == kTree)
    return std::make_shared<FluidClos>(spec, hosts);
  if (spec.shape == kFatTree) return std::make_shared<EcmpFatTree>(spec, hosts);
  return std::make_shared<EcmpLeafSpine>(spec, hosts);
}

}  // namespace orrery::topologies
