#pragma once
/// What joins hosts: the generators of switch graphs, and the way of a message through each.
///
/// Symbols: P network cards under one leaf switch (edge switch, router), b bytes per second of a
/// card's cable, o the oversubscription (capacity below a leaf : capacity above it), N cards in
/// all.
///
///   switch           one non-blocking core
///   leaf_spine       ceil(N / P) leaves, card n on leaf n / P; uplinks of a leaf carry P b / o
///                    together
///   rail_optimised   as leaf_spine, but card r of each of `hosts_per_leaf` neighbouring hosts is
///                    on the leaf of rail r
///   fat_tree         radix k: edge switches with k / 2 cards and k / (2 o) uplinks, pods of k / 2
///                    edge switches, N <= k^3 / 4 (Al-Fares et al., SIGCOMM 2008, section 3.1)
///   tree             switches named one by one, each with its hosts or its switches and one uplink
///   dragonfly        groups of a routers, joined all to all, p cards and h global links each;
///                    every two groups are joined by floor(a h / (g - 1)) global links,
///                    g <= a h + 1 (Kim et al., ISCA 2008, section 3.1)
///   torus            one router per host, joined to its neighbours in every dimension, which wrap
///                    around (Dally and Towles, Principles and Practices of Interconnection
///                    Networks, chapter 5)
///
/// Paths. In a Clos network (the first four) all switches of an upper tier are equal, and a flow
/// may cross any of them:
///
///   fluid   every flow is split evenly over its equal paths, as adaptive routing and spraying of
///           packets do. Then all uplinks of a leaf carry the same load at any time, so they are
///           ONE link of their summed capacity and the tier above is one switch per pod (fat_tree)
///           or one in all: the graph is a tree and every route is unique. This is exact for
///           max-min fairness, as long as all uplinks of a leaf are equal, and a hundred times
///           smaller.
///   hashed  static ECMP by queue pair: a card's traffic is `queue_pairs` equal flows, each hashed
///           onto one of its paths. A collective waits for its slowest flow, so of U equal uplinks
///           the fullest counts. It carries x times the mean, and all of them x less than their
///           capacity: the graph of fluid with uplinks of 1 / x. With F flows over them, Poisson
///           of mean l = F / U on each,
///
///               x = E[fullest] / l,   E[fullest] = sum over k >= 0 of 1 - P(Poisson(l) <= k)^U
///
///           F = queue_pairs P, U = P / o. x = 1 for one path; it falls with the flows a link, and
///           traffic that one uplink could carry is never slowed (x <= U).
///   ecmp    every switch and uplink is a vertex and a link; a stable hash of the two ends and a
///           seed picks one path.
///
/// dragonfly: minimal, local - global - local; of several global links the one with the fewest
/// hops, then the first. torus: dimension order, the shorter way round, the positive one when both
/// are equal.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace orrery::topologies {

enum class FabricShape { kSwitch, kLeafSpine, kRailOptimised, kFatTree, kTree, kDragonfly, kTorus };
std::string_view to_string(FabricShape shape);  ///< as in a topology file: "leaf_spine"
enum class PathChoice { kFluid, kEcmp, kHashed };
std::string_view to_string(PathChoice paths);  ///< as in a topology file: "fluid"

inline constexpr uint32_t kNoSwitch = 0xffffffff;

/// A switch of a tree.
struct TreeSwitch {
  std::string name;
  uint32_t parent = kNoSwitch;          ///< index; exactly one switch has none
  uint32_t hosts = 0;                   ///< that hang on it, in the order of switches
  int64_t uplink_bytes_per_second = 0;  ///< of all its uplinks together, one direction
};

/// Fields that a shape does not name are ignored.
struct FabricSpec {
  FabricShape shape = FabricShape::kSwitch;
  std::string name;
  std::string kind;                   ///< of its links, for reports: "ib"
  int64_t bytes_per_second = 0;       ///< b, one direction
  base::Seconds latency;              ///< of a card's cable
  base::Seconds switch_latency = {};  ///< of a link between two switches, the switch included
  PathChoice paths = PathChoice::kFluid;
  uint64_t ecmp_seed = 0;
  double queue_pairs = 2;                 ///< of a card, hashed
  double oversubscription = 1;            ///< o; leaf_spine, rail_optimised, fat_tree
  uint32_t ports_per_leaf = 0;            ///< P of leaf_spine
  uint32_t hosts_per_leaf = 0;            ///< rail_optimised
  uint32_t spines = 1;                    ///< leaf_spine, rail_optimised with ecmp
  uint32_t radix = 0;                     ///< k
  uint32_t routers_per_group = 0;         ///< a
  uint32_t ports_per_router = 0;          ///< p
  uint32_t global_links_per_router = 0;   ///< h
  int64_t local_bytes_per_second = 0;     ///< dragonfly, within a group; torus, every link
  int64_t global_bytes_per_second = 0;    ///< dragonfly, between groups
  std::vector<uint32_t> dimensions = {};  ///< torus
  std::vector<TreeSwitch> tree = {};      ///< tree
  /// what switches and their optics draw for each device of a host; zero: not stated
  base::Watts device_power = {};
};

/// `hosts` hosts with `nics` network cards each.
struct NicRun {
  uint32_t hosts = 0;
  uint32_t nics = 0;
};

/// Directed; 2 i and 2 i + 1 are the two directions of one cable.
struct FabricLink {
  uint32_t from = 0;  ///< switch
  uint32_t to = 0;
  int64_t bytes_per_second = 0;
};

struct FabricSwitch {
  std::string name;
  uint32_t tier = 0;  ///< 0 holds the cards; the tiers of a Clos network count upwards
};

/// Blocks of `hosts` neighbouring hosts that are copies of each other but for their places in the
/// levels above: link l of block b is first_link + b * links + l.
struct CopyLevel {
  uint32_t hosts = 0;
  uint32_t first_link = 0;
  uint32_t links = 0;  ///< of a block
};

/// Immutable. An implementation per shape; to add one, see make_fabric.
class Fabric {
 public:
  virtual ~Fabric() = default;
  std::span<const FabricSwitch> switches() const { return switches_; }
  std::span<const FabricLink> links() const { return links_; }
  /// [card, hosts in order] the switch that its cable goes to.
  std::span<const uint32_t> switch_of_nic() const { return switch_of_nic_; }

  /// Appends the links of the one path from switch to switch. `key` names the two ends of the flow
  /// for a hash.
  virtual void route(uint32_t from, uint32_t to, uint64_t key,
                     std::vector<uint32_t>& path) const = 0;

  /// Levels of copies above hosts of `nics` cards each, from the lowest, in the fabric's own links;
  /// nothing where a shift of hosts by a block is no symmetry.
  virtual std::optional<std::vector<CopyLevel>> levels(uint32_t nics) const;

 protected:
  void join(uint32_t a, uint32_t b, int64_t bytes_per_second);

  std::vector<FabricSwitch> switches_;
  std::vector<FabricLink> links_;
  std::vector<uint32_t> switch_of_nic_;
};

/// Errors: kInconsistent when the cards or hosts do not fit the shape, kOutOfRange when ids would
/// overflow.
[[nodiscard]] base::Result<std::shared_ptr<const Fabric>> make_fabric(
    const FabricSpec& spec, std::span<const NicRun> hosts);

/// x of hashed paths, see above. @pre uplinks >= 1, flows_a_link > 0.
double hashing_excess(double uplinks, double flows_a_link);

/// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014) over both: the same on every machine,
/// for ECMP.
uint64_t stable_hash(uint64_t a, uint64_t b);

// One per file; called by make_fabric after the numbers were checked.
std::shared_ptr<const Fabric> make_clos(const FabricSpec& spec, std::span<const NicRun> hosts);
std::shared_ptr<const Fabric> make_dragonfly(const FabricSpec& spec, std::span<const NicRun> hosts);
std::shared_ptr<const Fabric> make_torus(const FabricSpec& spec, std::span<const NicRun> hosts);

/// Cards of all hosts.
uint64_t count_nics(std::span<const NicRun> hosts);

}  // namespace orrery::topologies
