#pragma once
/// \file
/// A partition in words and as a picture: which device holds which block of which tensor at which
/// step.
#include <string>
#include <vector>

#include "plan/partition/partition.h"

namespace orrery::cli {

/// "id bit 1 splits K (output features) in 2; bits 2 to 3 are P2x2: M, N and K in 2 each, 2 steps".
std::string words_of(const plan::Sequence& sequence);

struct DrawnOperator {
  std::string name;
  plan::Sequence sequence;
};
/// SVG of linear operators: a row for each step of each phase, with the blocks of both operands and
/// of the result; a cell names the devices that hold the block.
std::string draw_partitions(const std::vector<DrawnOperator>& operators);

}  // namespace orrery::cli
