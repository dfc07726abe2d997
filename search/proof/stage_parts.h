#pragma once
/// \file
/// What every part of a pipeline stage adds to time and memory, by the rows of multiplier_bound.h:
/// layers under each strategy, embedding, head, transfers. Priced by the cost model, for the
/// checker.
#include <vector>

#include "base/numbers.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/memory_limit.h"
#include "search/proof/stated_space.h"

namespace orrery::search {

/// o and N in picoseconds, b in bytes.
struct PartCost {
  std::int64_t once_ps = 0, steady_ps = 0, bytes = 0;
  PartCost& operator+=(const PartCost& other) {
    once_ps += other.once_ps;
    steady_ps += other.steady_ps;
    bytes += other.bytes;
    return *this;
  }
};

class StageParts {
 public:
  /// @pre strategies [kind] are those of the family, at least one of each kind; 1F1B or GPipe.
  /// `costs` must outlive this object.
  StageParts(costmodel::LayerCosts& costs, const Family& family,
             const std::vector<std::vector<plan::LayerStrategy>>& strategies);

  [[nodiscard]] int stages() const { return stages_; }
  [[nodiscard]] int layers() const { return as_int(costs_.cost().model().layers); }
  [[nodiscard]] bool one_kind() const { return costs_.cost().model().kinds() == 1; }
  [[nodiscard]] std::int64_t micro_batches() const { return frame_.micro_batches; }
  /// A layer of a stage, by strategy of its kind.
  [[nodiscard]] const std::vector<PartCost>& layer(int stage, int kind) const {
    return layers_[as_index(stage)][as_index(kind)];
  }
  /// Of a stage.
  [[nodiscard]] std::int64_t limit_of(int stage, const costmodel::MemoryLimit& limit) const {
    return limit.of(costs_.cost(), first_rank(stage), devices_);
  }
  /// All of a stage but its layers.
  PartCost own(int stage, const plan::LayerStrategy& vocabulary);

 private:
  [[nodiscard]] int first_rank(int stage) const { return stage * devices_; }
  [[nodiscard]] std::int64_t held(int stage) const;
  [[nodiscard]] std::int64_t stream(const plan::LayerStrategy& layout, int kind) const;
  [[nodiscard]] std::int64_t backward_peak(const costmodel::LayerCost& cost, int stage) const;
  [[nodiscard]] PartCost part(const costmodel::LayerCost& cost, int stage) const;
  PartCost transfer(int from, int to);

  costmodel::LayerCosts& costs_;
  plan::Plan frame_;
  int stages_, devices_;
  plan::LayerContext context_;
  std::vector<std::vector<std::vector<PartCost>>> layers_;  // [stage][kind][strategy]
  std::vector<PartCost> joints_;                            // [stage] transfers
  std::int64_t least_stream_ = 0;                           // bytes between layers
  // [stage] least beside the rest while the backward begins
  std::vector<std::int64_t> transient_;
};

}  // namespace orrery::search
