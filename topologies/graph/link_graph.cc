#include "topologies/graph/link_graph.h"

#include <utility>

#include "base/sim_time.h"

namespace orrery::topologies {

namespace {

std::vector<bool> forwarding(std::span<const Vertex> vertices) {
  std::vector<bool> forwards;
  for (const Vertex& v : vertices) forwards.push_back(v.kind != VertexKind::kDevice);
  return forwards;
}

std::vector<RouteLink> flat(std::span<const Link> links, uint32_t first_vertex) {
  std::vector<RouteLink> flat;
  flat.reserve(links.size());
  for (const Link& l : links) {
    flat.push_back({l.from.raw() - first_vertex, l.to.raw() - first_vertex, l.bytes_per_second,
                    base::ceil_ps(l.latency)});
  }
  return flat;
}

}  // namespace

LinkGraph::LinkGraph(std::vector<bool> vertices, std::vector<RouteLink> joined)
    : forwards(std::move(vertices)),
      links(std::move(joined)),
      out(group_by(count_of(links), size(), [&](uint32_t i) { return links[i].from; })),
      in(group_by(count_of(links), size(), [&](uint32_t i) { return links[i].to; })) {}

LinkGraph::LinkGraph(std::span<const Vertex> vertices, std::span<const Link> joined,
                     uint32_t first_vertex)
    : LinkGraph(forwarding(vertices), flat(joined, first_vertex)) {}

}  // namespace orrery::topologies
