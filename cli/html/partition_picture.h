#pragma once
/// \file
/// A partition as a picture: which device holds which block of which tensor at which step.
#include <string>
#include <vector>

#include "plan/partition/partition.h"
#include "plan/program/plan.h"

namespace orrery::cli {

struct DrawnOperator {
  std::string name;
  plan::Sequence sequence;
};
/// SVG of linear operators: a row for each step of each phase, with the blocks of both operands and
/// of the result; a cell names the devices that hold the block.
std::string draw_partitions(const std::vector<DrawnOperator>& operators);
/// The products of a layer.
std::string draw_partitions(const plan::LayerPartition& partition);

}  // namespace orrery::cli
