#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/collectives/transfer.h"

namespace orrery::sim {

/// Traffic of others, from the first instant to the last: it takes its fair share, at most
/// `bytes_per_second`.
struct BackgroundFlow {
  std::int64_t bytes_per_second = 0;
  std::vector<costmodel::LinkLoad> loads = {};
};

}  // namespace orrery::sim
