#include "topologies/graph/max_flow.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>

namespace orrery::topologies {

int64_t max_flow(uint32_t vertices, const std::vector<Arc>& arcs, uint32_t source,
                 uint32_t target) {
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Graph = boost::adjacency_list<
      boost::vecS, boost::vecS, boost::directedS, boost::no_property,
      boost::property<
          boost::edge_capacity_t, int64_t,
          boost::property<boost::edge_residual_capacity_t, int64_t,
                          boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;
  Graph graph(vertices);
  const auto capacity = get(boost::edge_capacity, graph);
  const auto reverse = get(boost::edge_reverse, graph);
  for (const Arc& arc : arcs) {
    const auto there = add_edge(arc.from, arc.to, graph).first,
               back = add_edge(arc.to, arc.from, graph).first;
    capacity[there] = arc.capacity;
    capacity[back] = 0;
    reverse[there] = back;
    reverse[back] = there;
  }
  return boost::push_relabel_max_flow(graph, source, target);
}

}  // namespace orrery::topologies
