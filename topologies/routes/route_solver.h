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

#include "topologies/graph/link_graph.h"

namespace orrery::topologies {

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
  explicit RouteSolver(LinkGraph links);
  RouteSolver(RouteSolver&&) noexcept;
  RouteSolver& operator=(RouteSolver&&) noexcept;
  ~RouteSolver();

  std::span<const RouteLink> links() const { return flat_.links; }

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

 private:
  struct SearchGraph;  // Boost's graph, kept out of the header

  std::vector<bool> reach(uint32_t start, Direction direction) const;

  LinkGraph flat_;
  std::unique_ptr<SearchGraph> graph_;
};

}  // namespace orrery::topologies
