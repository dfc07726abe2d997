#pragma once
/// \file
/// The cells of the ranks of one or several jobs, and the step that one class for each of them
/// runs; the theorem is in rank_cells.h.
#include <cstdint>
#include <span>
#include <vector>

#include "sim/cells/rank_messages.h"
#include "sim/network/background.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

/// A job as its cells are found and built.
struct CellJob {
  const plan::Program* program = nullptr;
  const PreparedStep* stages = nullptr;  // one class for each stage
  // [rank] where kinds of device differ: the same on its own; else empty
  std::vector<const PreparedStep*> stages_of;
  std::vector<RankMessages> messages;     // [era] the same messages, by their numbers
  std::vector<std::int64_t> compute_ppm;  // [rank]
};

/// The machine in one era.
struct CellEra {
  std::int64_t from_ps = 0;
  const topologies::Topology* topology = nullptr;
  std::vector<BackgroundFlow> background = {};
};

/// Cells of ranks and of messages, each numbered from 0 by its first element; those of the jobs one
/// after another.
struct Cells {
  std::vector<std::uint32_t> of_rank, of_message;
};

/// Every rank and every message by itself.
Cells each_alone(std::span<const CellJob> jobs);
/// The coarsest equitable partition of ranks, messages, links and background flows.
Cells equitable(std::span<const CellJob> jobs, std::span<const CellEra> eras);

struct BuiltCells {
  PreparedStep step;
  std::vector<std::uint32_t> first_class;  // [job]
  // [transfer of the network]; the number of jobs for background
  std::vector<std::uint32_t> transfer_job;
};
/// The step of the cells, with its transfers in `network`, frozen. `network` was made with the
/// first era's topology.
BuiltCells build_cells(std::span<const CellJob> jobs, std::span<const CellEra> eras,
                       const Cells& cells, FlowNetwork& network);

/// The class of a program that holds the rank.
std::size_t stage_of(const plan::Program& program, int rank);
/// Number of the first rank of job `job` where those of the jobs are counted one after another; of
/// one beyond the last: how many there are.
std::size_t first_rank(std::span<const CellJob> jobs, std::size_t job);

}  // namespace orrery::sim
