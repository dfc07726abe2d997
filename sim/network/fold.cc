#include "sim/network/fold.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "sim/kernel/refinement.h"

namespace orrery::sim {
namespace {

constexpr std::uint32_t kNoCell = std::numeric_limits<std::uint32_t>::max();

/// What a constraint can do, over time.
struct Capacity {
  std::int64_t capacity = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // (ps, capacity)
  auto operator<=>(const Capacity&) const = default;
};

template <typename Key>
std::uint32_t number_of(std::map<Key, std::uint32_t>& numbers, const Key& key) {
  return numbers.try_emplace(key, static_cast<std::uint32_t>(numbers.size())).first->second;
}

class Folding {
 public:
  explicit Folding(const FlowSystem& system)
      : system_(system),
        lanes_(static_cast<std::uint32_t>(system.lanes.size())),
        constraints_(static_cast<std::uint32_t>(system.capacities.size())) {}

  Fold fold() {
    refine();
    fold_lanes();
    fold_constraints();
    return {std::move(folded_), std::move(cell_of_lane_)};
  }

 private:
  void refine() {
    kernel::Refinement refinement(colours());
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      for (const FlowSystem::Load& load : system_.loads[lane]) {
        refinement.add_edge(lane, lanes_ + load.constraint, 0, load.flows);
        refinement.add_edge(lanes_ + load.constraint, lane, 0, 1);
      }
    }
    std::map<std::int64_t, std::uint32_t> distances;
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      for (const FlowSystem::Wait& wait : system_.waits[lane]) {
        refinement.add_edge(wait.before, lane, 1 + number_of(distances, wait.distance), 1);
      }
    }
    const std::vector<std::uint32_t> cells = refinement.run();
    // Lanes come first, so their cells have the first numbers.
    cell_of_lane_.assign(cells.begin(), cells.begin() + lanes_);
    for (const std::uint32_t cell : cell_of_lane_) lane_cells_ = std::max(lane_cells_, cell + 1);
    for (std::uint32_t c = 0; c < constraints_; ++c)
      cell_of_constraint_.push_back(cells[lanes_ + c] - lane_cells_);
  }

  std::vector<std::uint32_t> colours() const {
    std::vector<std::uint32_t> colours;
    std::map<FlowSystem::Lane, std::uint32_t> kinds;
    for (const FlowSystem::Lane& lane : system_.lanes) colours.push_back(number_of(kinds, lane));
    const auto lane_kinds = static_cast<std::uint32_t>(kinds.size());
    std::vector<Capacity> capacities(constraints_);
    for (std::uint32_t c = 0; c < constraints_; ++c) capacities[c].capacity = system_.capacities[c];
    for (const FlowSystem::Change& change : system_.changes)
      capacities[change.constraint].changes.emplace_back(change.at_ps, change.capacity);
    std::map<Capacity, std::uint32_t> capacity_kinds;
    for (const Capacity& c : capacities)
      colours.push_back(lane_kinds + number_of(capacity_kinds, c));
    return colours;
  }

  void fold_lanes() {
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      if (cell_of_lane_[lane] != folded_.lanes.size()) continue;  // not the first of its cell
      folded_.lanes.push_back(system_.lanes[lane]);
      std::vector<FlowSystem::Wait> waits;
      for (FlowSystem::Wait wait : system_.waits[lane]) {
        wait.before = cell_of_lane_[wait.before];
        waits.push_back(wait);
      }
      std::sort(waits.begin(), waits.end());
      waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
      folded_.waits.entries.insert(folded_.waits.entries.end(), waits.begin(), waits.end());
      folded_.waits.close();
    }
  }

  /// The first constraint of each cell stands for it: its flows are added up by lane cell.
  void fold_constraints() {
    std::vector<std::uint32_t> new_number(constraints_, kNoCell);
    for (std::uint32_t c = 0; c < constraints_; ++c) {
      if (cell_of_constraint_[c] != folded_.capacities.size()) continue;
      new_number[c] = cell_of_constraint_[c];
      folded_.capacities.push_back(system_.capacities[c]);
    }
    // [lane cell]: by constraint cell
    std::vector<std::map<std::uint32_t, std::int64_t>> flows(folded_.lanes.size());
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      for (const FlowSystem::Load& load : system_.loads[lane]) {
        if (new_number[load.constraint] != kNoCell)
          flows[cell_of_lane_[lane]][new_number[load.constraint]] += load.flows;
      }
    }
    for (const auto& of_cell : flows) {
      for (const auto& [constraint, sum] : of_cell)
        folded_.loads.entries.push_back({constraint, sum});
      folded_.loads.close();
    }
    for (FlowSystem::Change change : system_.changes) {
      if (new_number[change.constraint] == kNoCell) continue;
      change.constraint = new_number[change.constraint];
      folded_.changes.push_back(change);
    }
  }

  const FlowSystem& system_;
  std::uint32_t lanes_, constraints_;
  std::vector<std::uint32_t> cell_of_lane_, cell_of_constraint_;
  std::uint32_t lane_cells_ = 0;
  FlowSystem folded_;
};

}  // namespace

Fold fold(const FlowSystem& system) { return Folding(system).fold(); }

}  // namespace orrery::sim
