#include "topologies/routes/route_solver.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <boost/property_map/property_map.hpp>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "topologies/graph/csr.h"

namespace orrery::topologies {

struct RouteSolver::SearchGraph {
  using Graph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, PathCost>;
  using Edge = boost::graph_traits<Graph>::edge_descriptor;

  /// Hides the out-links of devices other than the source: devices do not forward.
  struct Forwarding {
    const Graph* graph = nullptr;
    const std::vector<bool>* forwards = nullptr;
    uint32_t origin = 0;
    bool operator()(const Edge& edge) const {
      const auto from = boost::source(edge, *graph);
      return from == origin || (*forwards)[from];
    }
  };

  explicit SearchGraph(std::span<const RouteLink> links, uint32_t vertices) {
    std::vector<std::pair<uint32_t, uint32_t>> edges;
    std::vector<PathCost> costs;
    edges.reserve(links.size());
    costs.reserve(links.size());
    for (const RouteLink& link : links) {
      edges.emplace_back(link.from, link.to);
      costs.push_back({1, link.latency_ps});
    }
    graph = Graph(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(), costs.begin(),
                  vertices);
  }

  Graph graph;
};

namespace {

PathCost add(const PathCost& a, const PathCost& b) {
  if (a == kUnreachable || b == kUnreachable) return kUnreachable;
  return {a.hops + b.hops, a.latency_ps + b.latency_ps};
}

}  // namespace

RouteSolver::RouteSolver(std::vector<bool> forwards, std::vector<RouteLink> links)
    : forwards_(std::move(forwards)), links_(std::move(links)) {
  const auto vertices = static_cast<uint32_t>(forwards_.size());
  const auto count = static_cast<uint32_t>(links_.size());
  group_by(
      count, vertices, [&](uint32_t i) { return links_[i].to; }, in_offsets_, in_links_);
  group_by(
      count, vertices, [&](uint32_t i) { return links_[i].from; }, out_offsets_, out_links_);
  graph_ = std::make_unique<SearchGraph>(links_, vertices);
}

RouteSolver::RouteSolver(RouteSolver&&) noexcept = default;
RouteSolver& RouteSolver::operator=(RouteSolver&&) noexcept = default;
RouteSolver::~RouteSolver() = default;

/// Vertices that `start` can reach (kForward) or that can reach it (kBackward).
std::vector<bool> RouteSolver::reach(uint32_t start, Direction direction) const {
  const bool forward = direction == Direction::kForward;
  const std::vector<uint32_t>& offsets = forward ? out_offsets_ : in_offsets_;
  const std::vector<uint32_t>& ids = forward ? out_links_ : in_links_;
  std::vector<bool> reached(vertex_count(), false);
  std::vector<uint32_t> queue{start};
  reached[start] = true;
  for (size_t head = 0; head < queue.size(); ++head) {
    const uint32_t v = queue[head];
    if (v != start && !forwards_[v]) continue;
    for (uint32_t i = offsets[v]; i < offsets[v + 1]; ++i) {
      const uint32_t next = forward ? links_[ids[i]].to : links_[ids[i]].from;
      if (reached[next]) continue;
      reached[next] = true;
      queue.push_back(next);
    }
  }
  return reached;
}

std::optional<std::pair<uint32_t, uint32_t>> RouteSolver::unreachable_pair(
    std::span<const uint32_t> terminals) const {
  if (terminals.empty()) return std::nullopt;
  const auto all_in = [&](const std::vector<bool>& reached) {
    return std::ranges::all_of(terminals, [&](uint32_t t) { return reached[t]; });
  };
  // A switch that all terminals reach and that reaches them all settles every pair at once.
  const uint32_t first = terminals.front();
  for (uint32_t i = out_offsets_[first]; i < out_offsets_[first + 1]; ++i) {
    const uint32_t hub = links_[out_links_[i]].to;
    if (!forwards_[hub]) continue;
    if (all_in(reach(hub, Direction::kForward)) && all_in(reach(hub, Direction::kBackward)))
      return std::nullopt;
  }
  for (const uint32_t from : terminals) {
    const std::vector<bool> reached = reach(from, Direction::kForward);
    for (const uint32_t to : terminals) {
      if (!reached[to]) return std::pair{from, to};
    }
  }
  return std::nullopt;
}

std::vector<PathCost> RouteSolver::costs_from(uint32_t source) const {
  ORRERY_CHECK(source < vertex_count());
  const SearchGraph::Graph& graph = graph_->graph;
  const boost::filtered_graph visible(graph, SearchGraph::Forwarding{&graph, &forwards_, source});
  std::vector<PathCost> costs(vertex_count(), kUnreachable);
  const auto index = get(boost::vertex_index, graph);
  boost::dijkstra_shortest_paths(visible, source, boost::dummy_property_map(),
                                 boost::make_iterator_property_map(costs.begin(), index),
                                 get(boost::edge_bundle, graph), index, std::less<PathCost>(), add,
                                 kUnreachable, PathCost{0, 0}, boost::default_dijkstra_visitor());
  return costs;
}

bool RouteSolver::is_tight(uint32_t source, const RouteLink& link,
                           std::span<const PathCost> costs) const {
  if (link.from != source && !forwards_[link.from]) return false;
  return costs[link.from] != kUnreachable &&
         add(costs[link.from], {1, link.latency_ps}) == costs[link.to];
}

/// Vertices from which the target can be reached by tight links, the target first; hops do not
/// increase.
std::vector<uint32_t> RouteSolver::tight_ancestors(uint32_t source, uint32_t target,
                                                   std::span<const PathCost> costs) const {
  std::vector<bool> seen(vertex_count(), false);
  std::vector<uint32_t> queue{target};
  seen[target] = true;
  for (size_t head = 0; head < queue.size(); ++head) {
    const uint32_t v = queue[head];
    for (uint32_t i = in_offsets_[v]; i < in_offsets_[v + 1]; ++i) {
      const RouteLink& link = links_[in_links_[i]];
      if (seen[link.from] || !is_tight(source, link, costs)) continue;
      seen[link.from] = true;
      queue.push_back(link.from);
    }
  }
  return queue;
}

int64_t RouteSolver::widest_bottleneck(uint32_t source, uint32_t target,
                                       std::span<const uint32_t> ancestors,
                                       std::span<const PathCost> costs) const {
  std::vector<int64_t> widest(vertex_count(), 0);
  widest[source] = std::numeric_limits<int64_t>::max();
  // Reversed, hops do not decrease, and a tight link gains a hop: w(u) is final when v asks for it.
  for (auto it = ancestors.rbegin(); it != ancestors.rend(); ++it) {
    const uint32_t v = *it;
    for (uint32_t i = in_offsets_[v]; i < in_offsets_[v + 1]; ++i) {
      const RouteLink& link = links_[in_links_[i]];
      if (!is_tight(source, link, costs)) continue;
      widest[v] = std::max(widest[v], std::min(widest[link.from], link.bytes_per_second));
    }
  }
  return widest[target];
}

RouteSolver::Ties RouteSolver::ties(uint32_t source, uint32_t target,
                                    std::span<const PathCost> costs) const {
  Ties t{tight_ancestors(source, target, costs), std::vector<bool>(vertex_count(), false), 0};
  t.bottleneck = widest_bottleneck(source, target, t.ancestors, costs);
  t.leads_to_target[target] = true;
  for (const uint32_t v : t.ancestors) {  // nearest to the target first
    if (!t.leads_to_target[v]) continue;
    for (uint32_t i = in_offsets_[v]; i < in_offsets_[v + 1]; ++i) {
      const RouteLink& link = links_[in_links_[i]];
      if (link.bytes_per_second >= t.bottleneck && is_tight(source, link, costs))
        t.leads_to_target[link.from] = true;
    }
  }
  return t;
}

std::vector<uint32_t> RouteSolver::route(uint32_t source, uint32_t target,
                                         std::span<const PathCost> costs) const {
  ORRERY_CHECK(costs.size() == vertex_count() && target < vertex_count());
  if (source == target || costs[target] == kUnreachable) return {};
  const Ties t = ties(source, target, costs);
  std::vector<uint32_t> path;
  for (uint32_t at = source; at != target;) {
    const auto begin = out_links_.begin() + out_offsets_[at];
    const auto end = out_links_.begin() + out_offsets_[at + 1];
    const auto next = std::find_if(
        begin, end, [&](uint32_t id) { return leads_on(links_[id], source, t, costs); });
    ORRERY_CHECK(next != end);
    path.push_back(*next);
    at = links_[*next].to;
  }
  return path;
}

bool RouteSolver::leads_on(const RouteLink& link, uint32_t source, const Ties& t,
                           std::span<const PathCost> costs) const {
  return link.bytes_per_second >= t.bottleneck && t.leads_to_target[link.to] &&
         is_tight(source, link, costs);
}

namespace {

/// a + b; nothing when a denominator passes 2^62.
std::optional<Share> sum(const Share& a, const Share& b) {
  const __int128 numerator = static_cast<__int128>(a.numerator) * b.denominator +
                             static_cast<__int128>(b.numerator) * a.denominator;
  const __int128 denominator = static_cast<__int128>(a.denominator) * b.denominator;
  __int128 x = numerator, y = denominator;
  while (y != 0) x = std::exchange(y, x % y);
  if (denominator / x > (__int128{1} << 62)) return std::nullopt;
  return Share{static_cast<int64_t>(numerator / x), static_cast<int64_t>(denominator / x)};
}

std::optional<Share> part(const Share& whole, int64_t parts) {
  const int64_t common = std::gcd(whole.numerator, parts);
  const __int128 denominator = static_cast<__int128>(whole.denominator) * (parts / common);
  if (denominator > (__int128{1} << 62)) return std::nullopt;
  return Share{whole.numerator / common, static_cast<int64_t>(denominator)};
}

}  // namespace

std::vector<std::pair<uint32_t, Share>> RouteSolver::spread(uint32_t source, uint32_t target,
                                                            std::span<const PathCost> costs) const {
  if (source == target || costs[target] == kUnreachable) return {};
  const Ties t = ties(source, target, costs);
  std::vector<std::optional<Share>> at(vertex_count());
  at[source] = Share{};
  std::vector<uint32_t> order(t.ancestors.rbegin(), t.ancestors.rend());
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) {
    return std::pair(costs[a].hops, a) < std::pair(costs[b].hops, b);
  });
  std::vector<std::pair<uint32_t, Share>> shares;
  bool exact = true;
  for (const uint32_t v : order) {
    if (!at[v] || v == target) continue;
    std::vector<uint32_t> onward;
    for (uint32_t i = out_offsets_[v]; i < out_offsets_[v + 1]; ++i) {
      if (leads_on(links_[out_links_[i]], source, t, costs)) onward.push_back(out_links_[i]);
    }
    for (const uint32_t id : onward) {
      const auto share = part(*at[v], static_cast<int64_t>(onward.size()));
      std::optional<Share>& next = at[links_[id].to];
      std::optional<Share> total = share;
      if (share && next) total = sum(*next, *share);
      exact = exact && total.has_value();
      if (!exact) break;
      next = total;
      shares.emplace_back(id, *share);
    }
  }
  if (exact) return shares;
  shares.clear();
  for (const uint32_t id : route(source, target, costs)) shares.emplace_back(id, Share{});
  return shares;
}

}  // namespace orrery::topologies
