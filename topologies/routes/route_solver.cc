#include "topologies/routes/route_solver.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <boost/property_map/property_map.hpp>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

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

RouteSolver::RouteSolver(LinkGraph links)
    : flat_(std::move(links)), graph_(std::make_unique<SearchGraph>(flat_.links, flat_.size())) {}

RouteSolver::RouteSolver(RouteSolver&&) noexcept = default;
RouteSolver& RouteSolver::operator=(RouteSolver&&) noexcept = default;
RouteSolver::~RouteSolver() = default;

/// Vertices that `start` can reach (kForward) or that can reach it (kBackward).
std::vector<bool> RouteSolver::reach(uint32_t start, Direction direction) const {
  std::vector<bool> reached(flat_.size(), false);
  std::vector<uint32_t> queue{start};
  reached[start] = true;
  for (size_t head = 0; head < queue.size(); ++head) {
    const uint32_t v = queue[head];
    if (v != start && !flat_.forwards[v]) continue;
    for (const uint32_t id : flat_.beyond(direction).of(v)) {
      const uint32_t next = flat_.end(id, direction);
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
  for (const uint32_t id : flat_.out.of(first)) {
    const uint32_t hub = flat_.links[id].to;
    if (!flat_.forwards[hub]) continue;
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
  ORRERY_CHECK(source < flat_.size());
  const SearchGraph::Graph& graph = graph_->graph;
  const boost::filtered_graph visible(graph,
                                      SearchGraph::Forwarding{&graph, &flat_.forwards, source});
  std::vector<PathCost> costs(flat_.size(), kUnreachable);
  const auto index = get(boost::vertex_index, graph);
  boost::dijkstra_shortest_paths(visible, source, boost::dummy_property_map(),
                                 boost::make_iterator_property_map(costs.begin(), index),
                                 get(boost::edge_bundle, graph), index, std::less<PathCost>(), add,
                                 kUnreachable, PathCost{0, 0}, boost::default_dijkstra_visitor());
  return costs;
}

namespace {

/// Of the paths that tie with the route.
class Ties {
 public:
  Ties(const LinkGraph& graph, uint32_t source, uint32_t target, std::span<const PathCost> costs)
      : g_(graph), source_(source), costs_(costs), leads_to_target_(graph.size(), false) {
    find_ancestors(target);
    find_bottleneck(target);
    leads_to_target_[target] = true;
    for (const uint32_t v : ancestors_) {  // nearest to the target first
      if (!leads_to_target_[v]) continue;
      for (const uint32_t id : g_.in.of(v)) {
        if (is_wide_and_tight(g_.links[id])) leads_to_target_[g_.links[id].from] = true;
      }
    }
  }

  bool leads_on(uint32_t id) const {
    return leads_to_target_[g_.links[id].to] && is_wide_and_tight(g_.links[id]);
  }

 private:
  bool is_tight(const RouteLink& link) const {
    if (link.from != source_ && !g_.forwards[link.from]) return false;
    return costs_[link.from] != kUnreachable &&
           add(costs_[link.from], {1, link.latency_ps}) == costs_[link.to];
  }
  bool is_wide_and_tight(const RouteLink& link) const {
    return link.bytes_per_second >= bottleneck_ && is_tight(link);
  }

  void find_ancestors(uint32_t target) {
    std::vector<bool> seen(g_.size(), false);
    ancestors_.push_back(target);
    seen[target] = true;
    for (size_t head = 0; head < ancestors_.size(); ++head) {
      for (const uint32_t id : g_.in.of(ancestors_[head])) {
        const RouteLink& link = g_.links[id];
        if (seen[link.from] || !is_tight(link)) continue;
        seen[link.from] = true;
        ancestors_.push_back(link.from);
      }
    }
  }

  void find_bottleneck(uint32_t target) {
    std::vector<int64_t> widest(g_.size(), 0);
    widest[source_] = std::numeric_limits<int64_t>::max();
    // Reversed, hops do not decrease, and a tight link gains a hop: w(u) is final when v asks for
    // it.
    for (auto v = ancestors_.rbegin(); v != ancestors_.rend(); ++v) {
      for (const uint32_t id : g_.in.of(*v)) {
        const RouteLink& link = g_.links[id];
        if (!is_tight(link)) continue;
        widest[*v] = std::max(widest[*v], std::min(widest[link.from], link.bytes_per_second));
      }
    }
    bottleneck_ = widest[target];
  }

  const LinkGraph& g_;
  uint32_t source_;
  std::span<const PathCost> costs_;
  // vertices from which the target can be reached by tight links, the target first; hops do not
  // increase
  std::vector<uint32_t> ancestors_;
  std::vector<bool> leads_to_target_;
  int64_t bottleneck_ = 0;
};

}  // namespace

std::vector<uint32_t> RouteSolver::route(uint32_t source, uint32_t target,
                                         std::span<const PathCost> costs) const {
  ORRERY_CHECK(costs.size() == flat_.size() && target < flat_.size());
  if (source == target || costs[target] == kUnreachable) return {};
  const Ties ties(flat_, source, target, costs);
  std::vector<uint32_t> path;
  for (uint32_t at = source; at != target; at = flat_.links[path.back()].to) {
    const auto onward = flat_.out.of(at);
    const auto next = std::ranges::find_if(onward, [&](uint32_t id) { return ties.leads_on(id); });
    ORRERY_CHECK(next != onward.end());
    path.push_back(*next);
  }
  return path;
}

}  // namespace orrery::topologies
