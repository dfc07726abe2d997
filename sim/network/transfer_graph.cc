#include "sim/network/transfer_graph.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/sim_time.h"

namespace orrery::sim {
namespace {

std::vector<std::int64_t> capacities_of(const topologies::Topology& topology) {
  std::vector<std::int64_t> capacities;
  capacities.reserve(topology.links().size());
  for (const topologies::Link& link : topology.links()) capacities.push_back(link.bytes_per_second);
  return capacities;
}

}  // namespace

TransferGraph::TransferGraph(std::vector<std::int64_t> capacities)
    : capacities_(std::move(capacities)) {
  for (const std::int64_t c : capacities_) ORRERY_CHECK(c > 0, "capacity {}", c);
}

TransferGraph::TransferGraph(const topologies::Topology& topology)
    : TransferGraph(capacities_of(topology)) {}

TransferId TransferGraph::add(const TransferSpec& spec,
                              std::span<const costmodel::LinkLoad> loads) {
  ORRERY_CHECK(spec.bytes >= 0 && spec.latency_ps >= 0 && spec.rate_cap >= 0 && spec.repeats >= 1);
  Transfer t{spec, 0, static_cast<std::uint32_t>(loads_.size()), 0};
  if (spec.bytes > 0) {
    ORRERY_CHECK(spec.rate_cap > 0 || !loads.empty(), "{} bytes with neither a link nor a rate",
                 spec.bytes);
    t.rate = spec.rate_cap > 0 ? spec.rate_cap : capacities_[loads.front().link.raw()];
    for (const costmodel::LinkLoad& load : loads) {
      ORRERY_CHECK(load.link.raw() < capacities_.size() && load.flows >= 1, "{} flows", load.flows);
      t.rate = std::min(t.rate, capacities_[load.link.raw()] / load.flows);
      loads_.push_back(load);
    }
    // less than one byte per second is one: a transfer ends
    t.rate = std::max<std::int64_t>(t.rate, 1);
    t.loads = static_cast<std::uint32_t>(loads.size());
  }
  transfers_.push_back(t);
  return TransferId(static_cast<std::uint32_t>(transfers_.size() - 1));
}

TransferId TransferGraph::add_message(const topologies::Topology& topology, std::uint32_t from_rank,
                                      std::uint32_t to_rank, TransferSpec spec) {
  ORRERY_CHECK(topology.links().size() == capacities_.size(), "{} links, not {}",
               topology.links().size(), capacities_.size());
  std::vector<costmodel::LinkLoad> loads;
  for (const topologies::LinkId link : topology.route(from_rank, to_rank)) {
    spec.latency_ps += base::ceil_ps(topology.link(link).latency);
    loads.push_back({link, 1});
  }
  if (loads.empty()) spec.bytes = 0;  // to itself
  return add(spec, loads);
}

void TransferGraph::depend(TransferId after, TransferId before, std::int64_t distance) {
  ORRERY_CHECK(after.raw() < transfers_.size() && before.raw() < transfers_.size());
  dependencies_.push_back({after, before, distance});
}

TransferId TransferGraph::append(const TransferGraph& other, std::uint32_t job) {
  ORRERY_CHECK(other.capacities_ == capacities_, "another fabric");
  const auto shift = static_cast<std::uint32_t>(transfers_.size());
  const auto load_shift = static_cast<std::uint32_t>(loads_.size());
  for (Transfer t : other.transfers_) {
    t.spec.job = job;
    t.first_load += load_shift;
    transfers_.push_back(t);
  }
  loads_.insert(loads_.end(), other.loads_.begin(), other.loads_.end());
  for (const Dependency& d : other.dependencies_) {
    dependencies_.push_back(
        {TransferId(d.after.raw() + shift), TransferId(d.before.raw() + shift), d.distance});
  }
  return TransferId(shift);
}

std::span<const costmodel::LinkLoad> TransferGraph::loads(TransferId transfer) const {
  const Transfer& t = transfers_[transfer.raw()];
  return std::span<const costmodel::LinkLoad>(loads_).subspan(t.first_load, t.loads);
}

std::uint64_t TransferGraph::instances() const {
  std::uint64_t sum = 0;
  for (const Transfer& t : transfers_) sum += t.spec.repeats;
  return sum;
}

}  // namespace orrery::sim
