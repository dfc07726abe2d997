#include "sim/report/step_energy.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::sim {

using costmodel::Draw;
using topologies::Topology;

namespace {

bool leaves_host(const plan::Op& op, int rank, const plan::Program& program,
                 const Topology& topology) {
  if (op.kind == plan::OpKind::kCopy) return false;
  if (op.kind == plan::OpKind::kCollective)
    return costmodel::leaves_host(topology, rank, program.groups[op.group]);
  return std::ranges::any_of(op.legs, [&](const plan::Leg& leg) {
    return costmodel::leaves_host(topology, rank, rank + leg.peer_offset);
  });
}

/// [op of the class]. What a template's operation draws is found once.
std::vector<Draw> draws_of(const plan::Program& program, const costmodel::CostModel& cost,
                           const PreparedClass& k, int rank) {
  const auto device = costmodel::Roofline::of(cost.topology().device_model(as_u32(rank)));
  std::vector<Draw> of_template(k.ops.size());
  for (std::size_t i = 0; i < k.ops.size(); ++i) {
    if (k.ops[i].op == nullptr) continue;
    const plan::Op& op = *k.ops[i].op;
    if (op.kind == plan::OpKind::kCompute) {
      const model::SegmentShape& shape = program.segments[op.segment];
      of_template[i] = costmodel::compute_draw(
          device, shape, op.phase, real(cost.segment_ps(shape, op.phase, k.ops[i].kinds)) / 1e12);
    } else {
      of_template[i] =
          costmodel::communication_draw(leaves_host(op, rank, program, cost.topology()));
    }
  }
  std::vector<Draw> draws;
  for (const std::uint32_t op : k.priced) draws.push_back(of_template[op]);
  return draws;
}

/// The hosts with a rank, in order.
std::vector<PoweredHost> hosts_of(const FinishedStep& finished, const Topology& topology,
                                  const costmodel::MachinePower& machine) {
  const auto ranks = count_of(finished.class_of_rank);
  const std::uint32_t each = topology.devices_per_host();
  std::vector<PoweredHost> hosts(as_index(ceil_div(ranks, each)));
  for (std::uint32_t h = 0; h < hosts.size(); ++h) {
    hosts[h].watts = machine.host(topology.host_of(h * each)).raw();
    for (std::uint32_t d = h * each; d < (h + 1) * each; ++d) {
      if (d < ranks)
        hosts[h].ranks.push_back(
            {finished.class_of_rank[d], as_u32(costmodel::model_of(topology, d))});
      else
        hosts[h].idle_models.push_back(as_u32(costmodel::model_of(topology, d)));
    }
  }
  return hosts;
}

}  // namespace

StepEnergy energy_of(const plan::Program& program, const costmodel::CostModel& cost,
                     const FinishedStep& finished) {
  const Topology& topology = cost.topology();
  const auto machine = costmodel::MachinePower::of(topology);
  ORRERY_CHECK(machine.has_value(), "energy of cluster '{}'", topology.name());
  std::vector<std::vector<PowerPiece>> pieces(finished.outcome.classes.size());
  for (std::uint32_t rank = 0; rank < finished.class_of_rank.size(); ++rank) {
    const std::uint32_t c = finished.class_of_rank[rank];
    if (!pieces[c].empty()) continue;
    const PreparedClass& prepared = finished.step.classes[c];
    pieces[c] =
        power_pieces(prepared, finished.outcome.classes[c],
                     draws_of(program, cost, prepared, as_int(rank)), finished.outcome.step_ps);
  }
  return step_energy(pieces, hosts_of(finished, topology, *machine), *machine,
                     finished.outcome.step_ps, real(program.global_batch * program.sequence));
}

}  // namespace orrery::sim
