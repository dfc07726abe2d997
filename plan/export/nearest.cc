#include "plan/export/nearest.h"

#include <algorithm>

#include "base/numbers.h"
#include "plan/import/import.h"

namespace orrery::plan {

std::vector<LayerStrategy> layers_of(const Plan& plan) {
  std::vector<LayerStrategy> layers;
  for (const Stage& stage : plan.stages) {
    for (const LayerRun& run : stage.runs)
      layers.insert(layers.end(), as_index(run.count), run.strategy);
  }
  return layers;
}

std::vector<int> stage_sizes(const Plan& plan) {
  std::vector<int> sizes;
  for (const Stage& stage : plan.stages) sizes.push_back(stage.layers());
  return sizes;
}

void set_layers(Plan& plan, const std::vector<LayerStrategy>& layers,
                const std::vector<int>& sizes) {
  plan.stages.clear();
  std::size_t layer = 0;
  for (const int size : sizes) {
    Stage stage;
    for (int i = 0; i < size; ++i) stage.runs.push_back({1, layers[layer++]});
    plan.stages.push_back(std::move(stage));
  }
  plan = canonical(std::move(plan));
}

LayerStrategy usual_strategy(const Plan& plan) {
  struct Candidate {
    LayerStrategy strategy;  // ep 1, not folded
    int layers = 0, ep = 1;
    bool folded = false;
  };
  std::vector<Candidate> candidates;
  for (LayerStrategy s : layers_of(plan)) {
    const int ep = s.ep;
    const bool folded = s.folded;
    s.folded = false;
    s.recompute = Recompute::kNone;
    s.states = States::kDevice;
    s.ep = 1;
    auto found = std::ranges::find(candidates, s, &Candidate::strategy);
    if (found == candidates.end()) found = candidates.insert(found, {s});
    ++found->layers;
    found->ep = std::max(found->ep, ep);
    found->folded = found->folded || folded;
  }
  const auto usual = std::ranges::max_element(candidates, {}, &Candidate::layers);
  LayerStrategy strategy = usual->strategy;
  strategy.ep = usual->ep;
  strategy.folded = usual->folded;
  return strategy;
}

void make_uniform(Plan& plan, const LayerStrategy& strategy, const model::ModelSpec& model) {
  std::vector<LayerStrategy> layers = layers_of(plan);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Recompute own = layers[i].recompute;
    layers[i] = strategy;
    layers[i].recompute = own == Recompute::kOffload ? Recompute::kFull : own;
    if (model.of_kind(model.kind_of(static_cast<std::int64_t>(i))).experts == 0)
      layers[i].drop_experts();
  }
  plan.vocabulary = vocabulary_like(strategy);
  set_layers(plan, layers, stage_sizes(plan));
}

void set_recompute(Plan& plan, const std::vector<Recompute>& recompute) {
  std::vector<LayerStrategy> layers = layers_of(plan);
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].recompute = recompute[i];
  set_layers(plan, layers, stage_sizes(plan));
}

Recompute most_recompute(const Plan& plan) {
  Recompute most = Recompute::kNone;
  for (const Stage& stage : plan.stages)
    for (const LayerRun& run : stage.runs) most = std::max(most, run.strategy.recompute);
  return most;
}

void join_virtual_stages(Plan& plan) {
  std::vector<int> joined(as_index(plan.pipeline_degree()), 0);
  const std::vector<int> sizes = stage_sizes(plan);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    joined[i / as_index(plan.virtual_stages)] += sizes[i];
  plan.virtual_stages = 1;
  set_layers(plan, layers_of(plan), joined);
}

bool even_stages(const Plan& plan) {
  const int size = plan.stages.front().layers();
  return std::ranges::all_of(plan.stages, [&](const Stage& s) { return s.layers() == size; });
}

}  // namespace orrery::plan
