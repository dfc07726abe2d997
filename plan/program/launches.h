#pragma once
#include <cstdint>
#include <vector>

#include "plan/program/expand.h"

namespace orrery::plan {

/// What of an operation a device does in the launch of the one before it in issue order.
///
///   operation             what its launch does as well                 of the next
///   residual F            the norm of the sum, F                        kAll
///   norm BG               the bias gradient of the residual that made   kAll
///                         its input
///   activation B          the bias gradient of the product before it    kBias
///   attention B           the bias gradient of q, k and v               kBias
///   AdamW                 the AdamW of further units                    kAll
///
/// 1. The next operation reads what this one writes (AdamW: anything), on the same stream.
/// 2. Whatever it waits for on other streams was issued before the launch, so that the launch can
///    wait for it.
/// 3. AdamWs need no neighbours in issue order but on their stream; a launch has an eighth of a
///    step's units at most, so that parameters are gathered beside what is updated, and at most
///    kMostJoinedUpdates.
enum class Joined : std::uint8_t { kNo, kBias, kAll };

inline constexpr std::size_t kMostJoinedUpdates = 32;

struct Launches {
  std::vector<Joined> joined;       // [operation]
  std::vector<std::uint32_t> with;  // [operation] that launches what is joined of it; else its own
  std::int64_t count = 0;           // kernels of a step (model/launches.h); no collectives
};
/// `expansion`: of one rank class of the Program.
Launches launches(const Program& program, const Expansion& expansion);
/// Kernels that a rank of the class launches on a CUDA device in one step.
std::int64_t launch_count(const Program& program, const RankClass& rank_class);

}  // namespace orrery::plan
