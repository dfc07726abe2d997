#pragma once
/// Shortest paths by (hops, latency, -bottleneck, link ids), the order defined in topology.h, on
/// one flat graph.
///
/// A plain Dijkstra cannot carry all four criteria: the bottleneck is not strictly isotone (two
/// prefixes that differ in it may be joined by a narrower link and become equal), so a predecessor
/// chosen early could be the wrong one for the link ids. The solver therefore works in two steps,
/// for a source s and a target t:
///
///   1. d(v) = min over paths s -> v of (hops, sum of latency), lexicographic: Dijkstra, order
///      strictly isotone.
///   2. On the links (u, v) that are tight, d(v) = d(u) + (1, latency), which form a DAG layered by
///      hops, the widest bottleneck
///        w(v) = max over tight (u, v) of min(w(u), bandwidth),   w(s) = infinity;
///      then walk from s, always along the smallest link id with bandwidth >= w(t) that still leads
///      to t.
///
/// Cost: step 1 O(E log V) per source, step 2 O(V + links of the DAG before t) per pair.
///
/// `spread` splits a flow over all paths that tie in hops, latency and bottleneck, as switches that
/// hash packets evenly do: at every vertex of the DAG of such paths, in equal parts over the links
/// that lead on,
///
///     share(s) = 1,   share(v) = sum of its in-links,
///     share(u -> v) = share(u) / (number of usable links out of u)
///
/// Worked example (also a test): s->a->t and s->b->t, all latencies equal, bandwidths (10, 4) and
/// (9, 5): hops and latency tie, bottlenecks are 4 and 5, so the route is s->b->t although s->a has
/// the smaller id.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "topologies/fabric/fabric.h"

namespace orrery::topologies {

struct RouteLink {
  uint32_t from = 0;
  uint32_t to = 0;
  int64_t bytes_per_second = 0;
  int64_t latency_ps = 0;
};

/// Cost of a best path from one source; unreachable vertices hold kUnreachable.
struct PathCost {
  uint32_t hops = std::numeric_limits<uint32_t>::max();
  int64_t latency_ps = std::numeric_limits<int64_t>::max();
  friend auto operator<=>(const PathCost&, const PathCost&) = default;
};
inline constexpr PathCost kUnreachable{};

/// Immutable after construction; both queries may run in many threads at once.
class RouteSolver {
 public:
  /// `forwards[v]` is false for a vertex that may only begin or end a path (a device).
  RouteSolver(std::vector<bool> forwards, std::vector<RouteLink> links);
  RouteSolver(RouteSolver&&) noexcept;
  RouteSolver& operator=(RouteSolver&&) noexcept;
  ~RouteSolver();

  uint32_t vertex_count() const { return static_cast<uint32_t>(forwards_.size()); }
  std::span<const RouteLink> links() const { return links_; }

  /// A pair of terminals without a path, if there is one. O(links) when some switch connects them
  /// all, else one search per terminal.
  std::optional<std::pair<uint32_t, uint32_t>> unreachable_pair(
      std::span<const uint32_t> terminals) const;

  /// Step 1: [vertex] cost of the best path from `source`.
  std::vector<PathCost> costs_from(uint32_t source) const;

  /// Step 2: link indices of the route, given costs_from(source); empty when target is the source
  /// or unreachable.
  std::vector<uint32_t> route(uint32_t source, uint32_t target,
                              std::span<const PathCost> costs) const;

  /// The links of all paths that tie with the route, each with its exact share of the flow, by hops
  /// from the source and then by id. Where a share's denominator would pass 2^62, the route alone
  /// with shares of one.
  std::vector<std::pair<uint32_t, Share>> spread(uint32_t source, uint32_t target,
                                                 std::span<const PathCost> costs) const;

 private:
  struct SearchGraph;  // Boost's graph, kept out of the header

  /// Of the paths that tie with the route: their links lead from vertices marked here, are tight
  /// and this wide.
  struct Ties {
    std::vector<uint32_t> ancestors;  // the target first, hops do not increase
    std::vector<bool> leads_to_target;
    int64_t bottleneck = 0;
  };
  Ties ties(uint32_t source, uint32_t target, std::span<const PathCost> costs) const;
  bool leads_on(const RouteLink& link, uint32_t source, const Ties& t,
                std::span<const PathCost> costs) const;

  enum class Direction { kForward, kBackward };
  std::vector<bool> reach(uint32_t start, Direction direction) const;
  bool is_tight(uint32_t source, const RouteLink& link, std::span<const PathCost> costs) const;
  std::vector<uint32_t> tight_ancestors(uint32_t source, uint32_t target,
                                        std::span<const PathCost> costs) const;
  int64_t widest_bottleneck(uint32_t source, uint32_t target, std::span<const uint32_t> ancestors,
                            std::span<const PathCost> costs) const;

  std::vector<bool> forwards_;
  std::vector<RouteLink> links_;
  std::vector<uint32_t> in_offsets_, in_links_;    // CSR by link.to
  std::vector<uint32_t> out_offsets_, out_links_;  // CSR by link.from, ascending ids
  std::unique_ptr<SearchGraph> graph_;
};

}  // namespace orrery::topologies
