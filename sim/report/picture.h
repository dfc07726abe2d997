#pragma once
/// \file
/// What a page needs to draw a simulated step: passes by stage and stream, memory by category over
/// time, what every link carried.
///
/// Passes. Operations of one stream, micro-batch and direction that follow one another with gaps of
/// at most 1/2000 of the step are one block. A block knows how long its operations ran and how long
/// they recomputed, so that what it covers is not taken for what it worked. Recomputation belongs
/// to its backward pass.
///
/// Memory. An instance is alive from the start of the operation that writes it to the last end of
/// those that use or free it (lifetimes.h), transients while their operation runs. The step is cut
/// into kMemoryBins equal parts; each shows the instant of its highest total, so that the peak is
/// on the page.
///
/// Links. A transfer whose flows have sent b bytes each, n of them over a link, has carried n b
/// bytes over it (costmodel/collectives/transfer.h).
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/program/program.h"
#include "sim/step/time_part.h"
#include "topologies/topology.h"

namespace orrery::sim {

struct PreparedStep;
struct Outcome;
class FlowNetwork;

inline constexpr int kMemoryBins = 512;

struct Picture {
  struct Block {
    plan::Stream stream = plan::Stream::kCompute;
    TimePart part = TimePart::kForward;  // recomputation counts as backward
    std::int32_t micro_batch = 0, first_layer = 0, last_layer = 0;
    std::int32_t operations = 0;
    std::int64_t start_ps = 0, end_ps = 0;
    std::int64_t busy_ps = 0, recompute_ps = 0;
  };
  struct Memory {
    std::int64_t at_ps = 0;
    std::array<std::int64_t, plan::kBufferCategories> bytes{};  // framework bytes not among them
  };
  struct Stage {
    std::vector<Block> blocks;   // by (stream, start)
    std::vector<Memory> memory;  // at most kMemoryBins, in order of time
  };
  struct Link {
    topologies::LinkId link;
    std::int64_t bytes = 0;
    double share = 0;  // of what it could have carried in the step
  };
  std::vector<Stage> stages;
  std::vector<Link> links;  // that carried anything, ascending
};

/// What every link carried in the step for `wanted` transfers (background is among them; none
/// named: all); those that carried anything, ascending.
std::vector<Picture::Link> link_bytes(
    const Outcome& outcome, const FlowNetwork& network,
    const std::function<bool(std::uint32_t transfer)>& wanted = {});

/// One stage for each class in `classes`, by its place in the step.
Picture picture_of(const plan::Program& program, const PreparedStep& step, const Outcome& outcome,
                   const FlowNetwork& network, const std::vector<std::uint32_t>& classes);

}  // namespace orrery::sim
