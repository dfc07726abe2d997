#pragma once
/// Random problems whose options are real: times and bytes of strategies of the whole space of
/// eight devices, as the cost model prices them; transitions are real changes of layout.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "costmodel/closed_form/layer_costs.h"
#include "search/costs/layer_memory.h"
#include "search/costs/stage_model.h"
#include "search/space/decision_tree.h"
#include "search/table/instance.h"
#include "tests/oracle/search/random_layers.h"
#include "tests/unit/search/random_machine.h"

namespace orrery::search {

inline constexpr std::int64_t kRealBatch = 16;

/// Every dimension on.
inline Space whole_space() {
  Space s;
  s.ring = s.ulysses = s.strided = true;
  s.gpipe = false;
  return s;
}

/// One random machine of eight devices, each kind of block priced on it.
class RealMachine {
 public:
  explicit RealMachine(base::Rng& rng) : space_(whole_space()) {
    Machine machine = random_machine(rng, 1);
    machine.hosts = 1 + static_cast<int>(rng.below(2));
    machine.devices_per_host = 8 / machine.hosts;
    for (int kind = 0; kind < kBlockKinds; ++kind) {
      costs_.push_back(
          std::make_unique<costmodel::CostModel>(cost_of(machine, block_kind(kind, 8))));
      prices_.push_back(std::make_unique<costmodel::LayerCosts>(*costs_.back()));
      models_.push_back(std::make_unique<StageModel>(*prices_.back(), space_, kRealBatch, kRoom));
    }
  }

  StageModel& stage_model(int kind) { return *models_[static_cast<std::size_t>(kind)]; }

  /// A strategy of one layer over all eight devices, by step.
  struct Option {
    plan::LayerStrategy strategy;
    std::int64_t step_ps = 0, memory_bytes = 0;
  };
  const std::vector<Option>& options(int kind, std::int64_t micro_batches) {
    std::vector<Option>& known = options_[{kind, micro_batches}];
    if (!known.empty()) return known;
    for (const plan::LayerStrategy& s : stage_model(kind).layers_of(8, micro_batches).leaves) {
      const costmodel::LayerCost& c =
          prices_[static_cast<std::size_t>(kind)]->block(s, context(micro_batches), 0, 8);
      const LayerMemory memory = memory_of(c);
      known.push_back({s,
                       micro_batches * (c.forward_ps + c.backward_ps) + c.backward_sync_ps -
                           c.backward_ps + c.once_ps(),
                       memory.persistent_bytes + memory.stash_bytes});
    }
    return known;
  }
  /// Of all micro-batches of a step.
  std::int64_t change_ps(const plan::LayerStrategy& from, const plan::LayerStrategy& to,
                         std::int64_t micro_batches) {
    if (from.same_layout(to)) return 0;
    const costmodel::LayerCost& c = prices_[0]->reshard(from, to, context(micro_batches), 0, 8);
    return micro_batches * (c.forward_ps + c.backward_ps);
  }

 private:
  static constexpr std::int64_t kRoom = std::int64_t{1} << 40;
  [[nodiscard]] plan::LayerContext context(std::int64_t micro_batches) const {
    plan::LayerContext c;
    c.precision = costs_[0]->options().precision;
    c.sequence = costs_[0]->options().sequence;
    c.micro_batch_sequences = kRealBatch / micro_batches;
    c.micro_batches = micro_batches;
    c.global_batch = kRealBatch;
    return c;
  }

  Space space_;
  std::vector<std::unique_ptr<costmodel::CostModel>> costs_;  // [kind of block]
  std::vector<std::unique_ptr<costmodel::LayerCosts>> prices_;
  std::vector<std::unique_ptr<StageModel>> models_;
  std::map<std::pair<int, std::int64_t>, std::vector<Option>> options_;
};

/// `count` different ones, or all.
template <class T>
std::vector<T> sample(base::Rng& rng, std::vector<T> from, std::size_t count) {
  for (std::size_t i = 0; i < std::min(count, from.size()); ++i)
    std::swap(from[i], from[i + rng.below(from.size() - i)]);
  from.resize(std::min(count, from.size()));
  return from;
}

/// Up to six layers of up to eight options each. Layers differ in kind and options, or stand in two
/// runs, or are all equal.
inline Instance real_instance(base::Rng& rng, RealMachine& machine) {
  const std::int64_t micro_batches = std::int64_t{1} << rng.below(3);
  const std::size_t layers = 1 + rng.below(6), most_options = 1 + rng.below(8);
  const std::uint64_t likeness = rng.below(4);  // 0 equal, 1 two runs, else all differ
  Instance instance;
  std::vector<std::vector<RealMachine::Option>> chosen;
  for (std::size_t i = 0; i < layers; ++i) {
    const bool again = i > 0 && (likeness == 0 || (likeness == 1 && i != layers / 2));
    if (again) {
      chosen.push_back(chosen.back());
    } else {
      const auto kind = static_cast<int>(rng.below(kBlockKinds));
      chosen.push_back(sample(rng, machine.options(kind, micro_batches), most_options));
    }
    instance.layers.emplace_back();
    for (const RealMachine::Option& o : chosen.back()) {
      instance.layers.back().push_back({plan::to_string(o.strategy), o.step_ps, o.memory_bytes});
    }
  }
  const std::size_t tables = likeness == 0 && layers > 1 ? 1 : layers - 1;
  for (std::size_t i = 0; i < tables; ++i) {
    instance.transition_ps.emplace_back();
    for (const auto& from : chosen[i]) {
      for (const auto& to : chosen[i + 1])
        instance.transition_ps.back().push_back(
            machine.change_ps(from.strategy, to.strategy, micro_batches));
    }
  }
  // What some choice takes, or a little less.
  std::int64_t least = 0;
  for (const auto& layer : instance.layers) {
    instance.budget_bytes += layer[rng.below(layer.size())].memory_bytes;
    least += std::ranges::min(layer, {}, &InstanceOption::memory_bytes).memory_bytes;
  }
  if (rng.below(4) == 0) instance.budget_bytes -= 1;
  if (rng.below(4) == 0) instance.budget_bytes = (instance.budget_bytes + least) / 2;
  return instance;
}

struct PipelineShape {
  std::size_t layers = 6, layouts = 4, options = 8;  // at most; options of a stage
};

/// A problem of StageModel cut down to a few layers, layouts and options, with changes of layout
/// written out and its form of memory as the last word. Stages keep what they pay and hold for
/// embedding, head and transfers.
inline PipelineProblem real_pipeline(base::Rng& rng, RealMachine& machine,
                                     const PipelineShape& shape) {
  StageModel& model = machine.stage_model(static_cast<int>(rng.below(kBlockKinds)));
  PlanProblem request;
  request.stages = 1 << rng.below(3);
  request.micro_batches = std::int64_t{1} << rng.below(4);
  const int devices = 8 / request.stages;
  request.devices = devices;
  while (model.vocabulary_of(devices, request.micro_batches).leaves.empty())
    request.micro_batches /= 2;
  request.vocabulary =
      sample(rng, model.vocabulary_of(devices, request.micro_batches).leaves, 1).front();
  const PipelineProblem& whole = model.pipeline(request);

  PipelineProblem p;
  p.micro_batches = whole.micro_batches;
  p.layers =
      static_cast<int>(between(rng, request.stages, static_cast<std::int64_t>(shape.layers)));
  std::vector<int> layouts;  // kept
  for (int l = 0; l < whole.stages.front().layers.layouts; ++l) layouts.push_back(l);
  layouts = sample(rng, layouts, 1 + rng.below(shape.layouts));
  const auto keep = [&](std::vector<std::int64_t>& values) {
    if (values.empty()) return;
    std::vector<std::int64_t> kept;
    for (const int l : layouts) kept.push_back(values[static_cast<std::size_t>(l)]);
    values = std::move(kept);
  };
  for (std::size_t i = 0; i < whole.stages.size(); ++i) {
    PipelineStage stage = whole.stages[i];
    LayerProblem& layers = stage.layers;
    std::vector<LayerOption> options;
    for (LayerOption o : layers.options) {
      const auto at = std::ranges::find(layouts, o.layout);
      if (at == layouts.end()) continue;
      o.layout = static_cast<int>(at - layouts.begin());
      options.push_back(o);
    }
    layers.options = sample(rng, options, 1 + rng.below(shape.options));
    layers.layouts = static_cast<int>(layouts.size());
    for (const int from : layouts) {
      for (const int to : layouts)
        layers.transition_ps.push_back(from == to ? 0 : whole.change_ps(i, from, to));
    }
    for (auto* values : {&layers.entry_ps, &layers.exit_ps, &stage.send_ps, &stage.receive_ps,
                         &stage.return_ps, &stage.arrival_bytes, &stage.departure_bytes}) {
      keep(*values);
    }
    stage.most = p.layers - request.stages + 1;
    stage.fewest = request.stages == 1 ? p.layers : 1;
    p.stages.push_back(std::move(stage));
  }
  return p;
}

/// Budgets of which about every second fits some choice of a partition only, to the byte; the
/// others have room for more.
inline void set_budgets(base::Rng& rng, PipelineProblem& p) {
  for (PipelineStage& stage : p.stages) {
    const int most = stage.most;
    const auto count = static_cast<std::size_t>(rng.below(2) == 0 ? most : 1 + draw(rng, most));
    std::vector<LayerOption> some;
    for (std::size_t k = 0; k < count; ++k)
      some.push_back(stage.layers.options[rng.below(stage.layers.options.size())]);
    stage.layers.budget_bytes = naive_peak(stage.layers, some);
    if (!stage.arrival_bytes.empty())
      stage.layers.budget_bytes += std::ranges::max(stage.arrival_bytes);
    if (!stage.departure_bytes.empty())
      stage.layers.budget_bytes +=
          stage.departure_bytes[static_cast<std::size_t>(some.back().layout)];
    if (rng.below(8) == 0) --stage.layers.budget_bytes;
  }
}

}  // namespace orrery::search
