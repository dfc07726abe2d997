#pragma once
/// \file
/// A step on a machine whose ranks are not all alike: stragglers, mixed hosts, a degraded link.
///
/// sim::simulate() lets one rank stand for its pipeline stage, which is exact where the machine is symmetric. Here ranks are grouped into *cells*, and the
/// interpreter runs one class for each:
///  * unfolded, every rank is a cell;
///  * folded, the cells are the coarsest equitable partition (kernel/refinement.h) of the graph of ranks, messages and links. A rank is
///    coloured by its stage and its speed. A message is one collective of one process group, or one exchange of one pair of ranks; it is coloured by what
///    is sent, its latency and its rate alone, and joined to its ranks and, by its flows, to its links. A link is coloured by its capacity.
///
/// Both give the same picoseconds, by the induction of sim/fold.h: an operation starts at the last end over its stream, its dependencies and its peers, whose
/// cells agree within a cell; and shares of links agree, because the flows of each message cell on each link of a cell are equal. What breaks the symmetry splits
/// the cells that it reaches through messages and links, and no others.
///
/// A message's price is that of its own ranks: largest latency over its routes, flows of its own routes, measured rate of its hosts. Where all ranks of a stage are
/// alike this is what sim::simulate() computes, except that less than the time of one byte may differ: where the group does not divide the tensor, and in an
/// all-to-all whose pairs per link are no multiple of n-1.
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program.h"
#include "sim/interpreter.h"

namespace orrery::sim {

struct RankOptions {
  bool fold = true;
  /// [rank] how long its computations take, in millionths of their price: 1'250'000 for a straggler. Empty: all as priced.
  std::vector<std::int64_t> compute_ppm = {};
};

struct RankOutcome {
  std::int64_t step_ps = 0;
  std::vector<std::uint32_t> cell_of_rank;
  Outcome cells;              // one class for each cell, by its first rank
  std::string fingerprint;    // times of every operation of every rank
  [[nodiscard]] const ClassOutcome& of(std::size_t rank) const { return cells.classes[cell_of_rank[rank]]; }
};

/// Errors: those of simulate(); kOutOfRange for speeds that are not positive or not one for each rank.
base::Result<RankOutcome> simulate_ranks(const plan::Program& program, const costmodel::CostModel& cost, const RankOptions& options = {});

}  // namespace orrery::sim
