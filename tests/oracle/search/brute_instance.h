#pragma once
/// Brute force over all choices of an instance, depth first in lexicographic order; only what is
/// over the budget or dearer than both results so far is left out, since memory and time only grow.
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "search/table/instance.h"

namespace orrery::search {

class InstanceBruteForce {
 public:
  struct Best {
    std::int64_t time = 0, memory = 0;
    std::vector<std::int32_t> choices;
  };
  /// `runner_up`: also look for the best of all other choices.
  explicit InstanceBruteForce(const Instance& instance, bool runner_up = false)
      : instance_(instance), wants_two_(runner_up) {
    visit(0, 0, 0);
  }

  std::optional<Best> best;  // of equals the one of least memory, then the first
  std::optional<std::int64_t> runner_up_ps;

 private:
  [[nodiscard]] bool hopeless(std::int64_t time) const {
    return wants_two_ ? runner_up_ps && time >= *runner_up_ps && time > best->time
                      : best && time > best->time;
  }
  void visit(std::size_t layer, std::int64_t time, std::int64_t memory) {
    if (memory > instance_.budget_bytes || hopeless(time)) return;
    if (layer == instance_.layers.size()) {
      offer(time, memory);
      return;
    }
    for (std::size_t s = 0; s < instance_.layers[layer].size(); ++s) {
      const InstanceOption& o = instance_.layers[layer][s];
      const std::int64_t move =
          layer == 0 ? 0
                     : instance_.transition(layer - 1, static_cast<std::size_t>(trail_.back()), s);
      trail_.push_back(static_cast<std::int32_t>(s));
      visit(layer + 1, time + o.time_ps + move, memory + o.memory_bytes);
      trail_.pop_back();
    }
  }
  void offer(std::int64_t time, std::int64_t memory) {
    const bool better = !best || std::tie(time, memory) < std::tie(best->time, best->memory);
    const std::optional<std::int64_t> second =
        better ? (best ? std::optional(best->time) : std::nullopt) : std::optional(time);
    if (second && (!runner_up_ps || *second < *runner_up_ps)) runner_up_ps = second;
    if (better) best = Best{time, memory, trail_};
  }

  const Instance& instance_;
  bool wants_two_;
  std::vector<std::int32_t> trail_;
};

}  // namespace orrery::search
