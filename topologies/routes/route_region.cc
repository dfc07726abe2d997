#include "topologies/routes/route_region.h"

#include <algorithm>
#include <limits>

#include "base/numbers.h"

namespace orrery::topologies {

RouteRegion::RouteRegion(std::span<const Vertex> vertices, std::span<const Link> links,
                         uint32_t first_vertex)
    : ordinals_(vertices.size(), 0),
      solver_(LinkGraph(vertices, links, first_vertex)),
      way_(2 * vertices.size()) {
  for (uint32_t v = 0; v < vertices.size(); ++v) {
    if (vertices[v].kind == VertexKind::kNic) nics_.push_back(v);
    if (vertices[v].kind != VertexKind::kDevice) continue;
    ordinals_[v] = count_of(devices_);
    devices_.push_back(v);
  }
}

const std::vector<PathCost>& RouteRegion::costs_from(uint32_t source) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = costs_.find(source); it != costs_.end()) return *it->second;
  }
  // Solved outside the lock: two threads may do it twice, and get the same.
  auto costs = std::make_unique<const std::vector<PathCost>>(solver_.costs_from(source));
  const std::lock_guard lock(mutex_);
  return *costs_.try_emplace(source, std::move(costs)).first->second;
}

const std::optional<Way>& RouteRegion::way(uint32_t vertex, bool out) const {
  std::atomic<const std::optional<Way>*>& kept = way_[2 * vertex + (out ? 1 : 0)];
  if (const auto* way = kept.load(std::memory_order_acquire)) return *way;
  auto found = std::make_unique<const std::optional<Way>>(find_way(vertex, out));
  const std::lock_guard lock(mutex_);
  if (const auto* way = kept.load(std::memory_order_relaxed)) return *way;
  kept.store(found.get(), std::memory_order_release);
  return *ways_.emplace_back(std::move(found));
}

std::optional<Way> RouteRegion::find_way(uint32_t vertex, bool out) const {
  struct Candidate {
    Way way;
    PathCost cost;
    int64_t bottleneck = std::numeric_limits<int64_t>::max();
  };
  std::vector<Candidate> best;  // all that tie
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    const uint32_t from = out ? vertex : nics_[i], to = out ? nics_[i] : vertex;
    const PathCost cost = costs_from(from)[to];
    if (cost == kUnreachable || (!best.empty() && cost > best.front().cost)) continue;
    Candidate candidate{.way = {i, route(from, to)}, .cost = cost};
    for (const uint32_t link : candidate.way.links) {
      candidate.bottleneck = std::min(candidate.bottleneck, solver_.links()[link].bytes_per_second);
    }
    const auto key = [](const Candidate& c) { return std::pair(c.cost, -c.bottleneck); };
    if (!best.empty() && key(candidate) > key(best.front())) continue;
    if (!best.empty() && key(candidate) < key(best.front())) best.clear();
    best.push_back(std::move(candidate));
  }
  if (best.empty()) return std::nullopt;
  return std::move(best[ordinals_[vertex] % best.size()].way);
}

}  // namespace orrery::topologies
