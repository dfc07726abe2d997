#pragma once
/// Every plan of a small space, priced by costmodel::plan_cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/memory_limit.h"
#include "search/loop/planner.h"
#include "search/space/decision_tree.h"

namespace orrery::search {

struct Priced {
  std::int64_t cost_ps;
  std::int64_t peak_bytes;
  bool has_multipliers;  // 1F1B on all devices: what the certificate's multipliers speak of
  std::int64_t excess_bytes = 0;  // of the stage that lacks most memory, or has least left
};

/// Every plan of the space: pipeline degrees, devices of a stage, micro-batches, vocabulary,
/// partitions, and strategies of layers in any order; under interleaved 1F1B and ZB-H1 any layers
/// and strategy for every rank, of one layout, as search/solvers/rank_solver.h says.
class EveryPlan {
 public:
  /// `memory`: what the Program's buffers may take, for Priced::excess_bytes.
  EveryPlan(const costmodel::CostModel& cost, const Space& space, std::int64_t global_batch,
            costmodel::MemoryLimit memory = 0,
            costmodel::Objective objective = costmodel::Objective::kTime)
      : cost_(cost),
        costs_(cost, objective),
        space_(space),
        global_batch_(global_batch),
        memory_(std::move(memory)) {
    const int devices = static_cast<int>(cost.topology().device_count());
    for (int stages = 1; stages <= std::min<int>(devices, static_cast<int>(cost.model().layers));
         ++stages) {
      if (space.fix_pp.value_or(stages) != stages || (stages > 1 && !space.pipeline)) continue;
      for (int each = 1; stages * each <= devices; ++each) {
        if (stages * each < devices && !space.idle) continue;
        for (std::int64_t m = 1; m <= global_batch; ++m) {
          if (global_batch % m == 0) plans_of(stages, each, m);
        }
      }
    }
  }
  std::vector<Priced> all;

  /// How many there are under 1F1B with no device idle, without pricing any.
  static double count(const costmodel::CostModel& cost, const Space& space,
                      std::int64_t global_batch) {
    const int devices = static_cast<int>(cost.topology().device_count()),
              layers = static_cast<int>(cost.model().layers);
    double plans = 0;
    for (int stages = 1; stages <= std::min(devices, layers); ++stages) {
      if (devices % stages != 0 || (stages > 1 && !space.pipeline)) continue;
      double partitions = 1;  // layers - 1 over stages - 1
      for (int k = 1; k < stages; ++k) partitions = partitions * (layers - k) / k;
      for (std::int64_t m = 1; m <= global_batch; ++m) {
        if (global_batch % m != 0) continue;
        const TreeContext context = context_of(cost, global_batch, devices / stages, m);
        const auto leaves =
            static_cast<double>(layer_strategies(cost.model(), space, context).leaves.size());
        plans +=
            partitions * std::pow(leaves, layers) *
            static_cast<double>(vocabulary_strategies(cost.model(), space, context).leaves.size());
      }
    }
    return plans;
  }

  [[nodiscard]] std::int64_t best(std::int64_t limit, bool of_multipliers = false) const {
    std::int64_t least = -1;
    for (const Priced& p : all) {
      if (of_multipliers && !p.has_multipliers) continue;
      if (p.peak_bytes <= limit && (least < 0 || p.cost_ps < least)) least = p.cost_ps;
    }
    return least;
  }

 private:
  static TreeContext context_of(const costmodel::CostModel& cost, std::int64_t global_batch,
                                int devices, std::int64_t m) {
    return {devices, cost.options().sequence, global_batch / m, m,
            static_cast<int>(cost.topology().devices_per_host())};
  }
  void plans_of(int stages, int devices, std::int64_t m) {
    const TreeContext context = context_of(cost_, global_batch_, devices, m);
    leaves_ = layer_strategies(cost_.model(), space_, context).leaves;
    if (leaves_.empty()) return;
    plan_ = {};
    plan_.model = cost_.model().name;
    plan_.model_fingerprint = cost_.model().fingerprint();
    plan_.precision = cost_.options().precision;
    plan_.sequence = cost_.options().sequence;
    plan_.global_batch = global_batch_;
    plan_.micro_batches = m;
    plan_.hosts = static_cast<int>(cost_.topology().hosts());
    for (const plan::LayerStrategy& vocabulary :
         vocabulary_strategies(cost_.model(), space_, context).leaves) {
      plan_.vocabulary = vocabulary;
      plan_.schedule = plan::Schedule::k1F1B;
      plan_.virtual_stages = 1;
      if (space_.one_f_one_b) stage(stages, static_cast<int>(cost_.model().layers));
      plan_.schedule = plan::Schedule::kZeroBubbleH1;
      if (space_.zero_bubble && stages > 1 && m >= stages) ranks_of(stages, 1);
      plan_.schedule = plan::Schedule::kInterleaved;
      for (int v = 2; space_.interleaved && stages > 1 && m % stages == 0 &&
                      v * stages <= cost_.model().layers;
           ++v)
        ranks_of(stages, v);
    }
  }
  void ranks_of(int ranks, int v) {
    plan_.virtual_stages = v;
    plan_.stages.assign(static_cast<std::size_t>(ranks * v), {});
    rank(0, ranks, static_cast<int>(cost_.model().layers));
    plan_.stages.clear();
  }
  void rank(int r, int ranks, int layers) {
    const int v = plan_.virtual_stages;
    if (r == ranks) {
      if (layers == 0) price();
      return;
    }
    for (int n = v; n <= layers; ++n) {
      for (const plan::LayerStrategy& s : leaves_) {
        if (r > 0 && !s.same_layout(plan_.stages.front().runs.front().strategy)) continue;
        int left = n;
        for (int k = 0; k < v; ++k) {
          const int count = left / (v - k);  // rounded down: longer ones last
          plan_.stages[static_cast<std::size_t>(k * ranks + r)].runs = {{count, s}};
          left -= count;
        }
        rank(r + 1, ranks, layers - n);
      }
    }
  }
  void stage(int stages, int layers) {
    if (stages == 0) {
      if (layers == 0) price();
      return;
    }
    for (int count = 1; count <= layers - stages + 1; ++count) {
      plan_.stages.emplace_back();
      layer(stages, layers - count, count);
      plan_.stages.pop_back();
    }
  }
  void layer(int stages, int layers_after, int left) {
    if (left == 0) {
      stage(stages - 1, layers_after);
      return;
    }
    for (const plan::LayerStrategy& s : leaves_) {
      plan_.stages.back().runs.push_back({1, s});
      layer(stages, layers_after, left - 1);
      plan_.stages.back().runs.pop_back();
    }
  }
  void price() {
    const auto priced = costmodel::plan_cost(costs_, plan_);
    ASSERT_TRUE(priced.has_value()) << base::to_string(priced.error());
    const bool all_devices =
        plan_.world_size() == static_cast<int>(cost_.topology().device_count());
    all.push_back({priced->step_ps, std::ranges::max(priced->stage_peak_bytes),
                   plan_.schedule == plan::Schedule::k1F1B && all_devices, -memory_.most()});
    for (std::size_t i = 0; i < priced->stage_peak_bytes.size(); ++i) {
      const std::int64_t own =
          priced->stage_peak_bytes[i] - memory_.of_stage(cost_, plan_, static_cast<int>(i));
      all.back().excess_bytes = std::max(all.back().excess_bytes, own);
    }
  }

  const costmodel::CostModel& cost_;
  costmodel::LayerCosts costs_;
  const Space& space_;
  std::int64_t global_batch_;
  costmodel::MemoryLimit memory_;
  std::vector<plan::LayerStrategy> leaves_;
  plan::Plan plan_;
};

}  // namespace orrery::search
