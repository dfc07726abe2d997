#include "topologies/host_templates.h"

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::topologies {

Templates::Templates(std::span<const Vertex> vertices, std::span<const uint32_t> models,
                     std::span<const Link> links, size_t kinds)
    : kinds_(kinds) {
  std::vector<uint32_t> local;
  for (size_t v = 0; v < vertices.size(); ++v) {
    ORRERY_CHECK(vertices[v].host < kinds, "{} is on no kind of host", vertices[v].name);
    Kind& kind = kinds_[vertices[v].host];
    local.push_back(count_of(kind.vertices));
    if (vertices[v].kind == VertexKind::kNic) kind.nics.push_back(local.back());
    kind.vertices.push_back(vertices[v]);
    kind.models.push_back(models[v]);
  }
  for (const Link& link : links) {
    const uint32_t host = vertices[link.from.raw()].host;
    ORRERY_CHECK(host == vertices[link.to.raw()].host, "a link joins two kinds of hosts");
    kinds_[host].links.push_back({VertexId(local[link.from.raw()]), VertexId(local[link.to.raw()]),
                                  link.bytes_per_second, link.latency, link.kind});
  }
}

base::Result<ClusterShape> Templates::lay_out(std::span<const uint32_t> counts) const {
  ORRERY_CHECK(counts.size() == kinds_.size());
  ClusterShape shape;
  uint64_t hosts = 0, vertices = 0, links = 0, nics = 0;
  for (const uint32_t count : counts) hosts += count;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    const size_t cables = hosts > 1 ? 2 * kind.nics.size() : 0;
    HostRun run{.hosts = counts[k],
                .first_host = shape.hosts,
                .first_vertex = as_u32(vertices),
                .vertices = count_of(kind.vertices),
                .first_link = as_u32(links),
                .links = as_u32(kind.links.size() + cables),
                .own_links = count_of(kind.links),
                .first_nic = as_u32(nics),
                .nics = kind.nics};
    shape.hosts += run.hosts;
    vertices += uint64_t{run.hosts} * run.vertices;
    links += uint64_t{run.hosts} * run.links;
    nics += uint64_t{run.hosts} * run.nics.size();
    shape.runs.push_back(std::move(run));
    // Half of what ids can count, so that the fabric has room too.
    constexpr uint64_t kMaxIds = std::numeric_limits<uint32_t>::max() / 2;
    if (vertices > kMaxIds || links > kMaxIds) {
      return base::fail(base::ErrorCode::kOutOfRange, "{} hosts have more parts than ids can count",
                        hosts);
    }
  }
  shape.fabric_vertex = as_u32(vertices);
  shape.fabric_link = as_u32(links);
  return shape;
}

void Templates::add_host(const Kind& kind, const HostRun& run, uint32_t host,
                         const ClusterShape& shape, const std::optional<FabricSpec>& spec,
                         base::IdVector<VertexId, Vertex>& vertices,
                         base::IdVector<LinkId, Link>& links) const {
  const auto first = count_of(vertices);
  for (const Vertex& v : kind.vertices) vertices.push_back({v.kind, v.name, host});
  for (const Link& l : kind.links) {
    links.push_back({VertexId(first + l.from.raw()), VertexId(first + l.to.raw()),
                     l.bytes_per_second, l.latency, l.kind});
  }
  if (!shape.fabric) return;
  for (uint32_t j = 0; j < run.nics.size(); ++j) {
    const VertexId nic(first + run.nics[j]),
        leaf(shape.fabric_vertex + shape.fabric->switch_of_nic()[run.nic(host, j)]);
    links.push_back({nic, leaf, spec->bytes_per_second, spec->latency, spec->kind});
    links.push_back({leaf, nic, spec->bytes_per_second, spec->latency, spec->kind});
  }
}

void Templates::replicate(const ClusterShape& shape, const std::optional<FabricSpec>& spec,
                          base::IdVector<VertexId, Vertex>& vertices, std::vector<uint32_t>& models,
                          base::IdVector<LinkId, Link>& links) const {
  const size_t switches = shape.fabric ? shape.fabric->switches().size() : 0;
  vertices.reserve(shape.fabric_vertex + switches);
  links.reserve(shape.fabric_link + (shape.fabric ? shape.fabric->links().size() : 0));
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const HostRun& run = shape.runs[k];
    for (uint32_t h = 0; h < run.hosts; ++h) {
      add_host(kinds_[k], run, run.first_host + h, shape, spec, vertices, links);
      models.insert(models.end(), kinds_[k].models.begin(), kinds_[k].models.end());
    }
  }
  if (!shape.fabric) return;
  for (const FabricSwitch& s : shape.fabric->switches()) {
    vertices.push_back({VertexKind::kSwitch, s.name, kNoHost});
    models.push_back(kNoModel);
  }
  for (const FabricLink& l : shape.fabric->links()) {
    links.push_back({VertexId(shape.fabric_vertex + l.from), VertexId(shape.fabric_vertex + l.to),
                     l.bytes_per_second, spec->switch_latency, spec->kind});
  }
}

}  // namespace orrery::topologies
