#pragma once
/// Layers of one strategy each, as plain numbers: what a stage costs is a sum.
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "search/programs/balanced_partition.h"

namespace orrery::search {

class PlainLayers final : public StageOptimizer {
 public:
  /// Times and bytes of each layer; a stage holds its layers `in_flight[stage]` times.
  PlainLayers(std::vector<std::int64_t> ps, std::vector<std::int64_t> bytes,
              std::vector<std::int64_t> in_flight,
              std::int64_t limit_bytes = std::numeric_limits<std::int64_t>::max())
      : ps_(std::move(ps)),
        bytes_(std::move(bytes)),
        in_flight_(std::move(in_flight)),
        limit_bytes_(limit_bytes) {}

  std::optional<StageLoad> best(std::size_t stage, int first, int count) override {
    StageLoad load;
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(first + count);
         ++i) {
      load.steady_ps += ps_[i];
      load.peak_bytes += in_flight_[stage] * bytes_[i];
    }
    return load.peak_bytes <= limit_bytes_ ? std::optional(load) : std::nullopt;
  }

 private:
  std::vector<std::int64_t> ps_, bytes_, in_flight_;
  std::int64_t limit_bytes_;
};

}  // namespace orrery::search
