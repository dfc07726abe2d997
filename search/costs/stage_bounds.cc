#include <algorithm>

#include "base/numbers.h"
#include "search/costs/pass_times.h"
#include "search/costs/stage_model.h"

namespace orrery::search {

void StageModel::Least::take(const Least& other) {
  steady_ps = std::min(steady_ps, other.steady_ps);
  total_ps = std::min(total_ps, other.total_ps);
  passes_ps = std::min(passes_ps, other.passes_ps);
  energy_ps = std::min(energy_ps, other.energy_ps);
}

StageModel::LayerKey StageModel::layer_key(const PlanProblem& problem, int kind, int first_rank) {
  return {problem.devices, problem.micro_batches, kind, first_rank,
          plan::splits_backward(problem.schedule)};
}
plan::LayerContext StageModel::layer_context(const PlanProblem& problem, int kind) const {
  plan::LayerContext c = context(problem.micro_batches, 1);
  c.kind = kind;
  c.split_backward = plan::splits_backward(problem.schedule);
  return c;
}

const std::vector<StageModel::Computing>& StageModel::by_computation(const PlanProblem& problem,
                                                                     int kind) {
  const auto [place, fresh] = computing_.try_emplace(layer_key(problem, kind, 0));
  std::vector<Computing>& order = place->second;
  if (!fresh) return order;
  const plan::LayerContext c = layer_context(problem, kind);
  const std::vector<plan::LayerStrategy>& leaves =
      layers_of(problem.devices, problem.micro_batches, kind).leaves;
  order.reserve(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i)
    order.emplace_back(costs_.block_floor(leaves[i], c, 0, 0).sum_ps(), i);
  std::ranges::sort(order);
  return order;
}

StageModel::Least StageModel::least_computing(const PlanProblem& problem, int kind) {
  Least least;
  const plan::LayerContext c = layer_context(problem, kind);
  for (const plan::LayerStrategy& s :
       glance_at(problem.devices, problem.micro_batches, kind).leaves) {
    const auto alone = costs_.block_floor(s, c, 0, 0);
    least.take({alone.sum_ps(), alone.sum_ps(), alone.passes_ps, 0});
  }
  return least;
}

/// Of most strategies no group need be priced.
StageModel::Least StageModel::cheapest_layer(const PlanProblem& problem, int kind, int first_rank) {
  const auto [place, fresh] = least_.try_emplace(layer_key(problem, kind, first_rank));
  Least& least = place->second;
  if (!fresh) return least;
  if (first_rank == kNowhere) return least = least_computing(problem, kind);
  const plan::LayerContext c = layer_context(problem, kind);
  const std::vector<plan::LayerStrategy>& leaves =
      layers_of(problem.devices, problem.micro_batches, kind).leaves;
  const bool by_time = costs_.objective() == costmodel::Objective::kTime;  // else all may be least
  for (const auto& [alone_ps, leaf] : by_computation(problem, kind)) {
    if (by_time && alone_ps >= least.total_ps && !c.split_backward) break;
    if (gives_up()) {
      least.take(least_computing(problem, kind));
      break;
    }
    const auto floor = costs_.block_floor(leaves[leaf], c, first_rank, problem.devices);
    least.passes_ps = std::min(least.passes_ps, floor.passes_ps);
    if (floor.sum_ps() >= least.steady_ps && floor.energy_ps >= least.energy_ps &&
        floor.sum_ps() + floor.energy_ps >= least.total_ps)
      continue;
    const costmodel::LayerCost& cost = costs_.block(leaves[leaf], c, first_rank, problem.devices);
    least.take({steady_of(cost), steady_of(cost) + sync_of(cost), kForbidden, cost.energy_ps});
  }
  return least;
}

bool StageModel::price_layers(const PlanProblem& problem) {
  const auto [known, fresh] =
      priced_.try_emplace({problem.stages, problem.devices, problem.micro_batches,
                           plan::splits_backward(problem.schedule)});
  bool& priced = known->second;
  for (int k = 0; k < cost_.model().kinds() && !priced; ++k) {
    const plan::LayerContext c = layer_context(problem, k);
    for (const plan::LayerStrategy& s :
         layers_of(problem.devices, problem.micro_batches, k).leaves) {
      for (const int first_rank : places(problem)) {
        if (gives_up()) return false;
        costs_.block(s, c, first_rank, problem.devices);
      }
    }
  }
  return priced = true;
}

StageModel::Floors StageModel::floors(const PlanProblem& problem, bool computes) {
  const std::vector<int> firsts = computes ? std::vector{kNowhere} : places(problem);
  Floors sum;
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;  // (N, how many)
  for (int k = 0; k < cost_.model().kinds(); ++k) {
    Least least;
    for (const int first_rank : firsts) least.take(cheapest_layer(problem, k, first_rank));
    const std::int64_t count = layers_of_kind(k);
    sum.total_ps += count * least.total_ps;
    sum.steady_ps += count * least.steady_ps;
    sum.passes_ps += count * least.passes_ps;
    sum.energy_ps += count * least.energy_ps;
    layers.emplace_back(least.steady_ps, count);
  }
  std::ranges::sort(layers);
  std::int64_t left = ceil_div(cost_.model().layers, problem.stages);
  for (const auto& [steady_ps, count] : layers) {
    sum.most_ps += std::min(left, count) * steady_ps;
    left -= std::min(left, count);
  }
  sum.most_ps = std::max(sum.most_ps, ceil_div(sum.steady_ps, problem.stages));
  return sum;
}

std::int64_t StageModel::layers_bound(const PlanProblem& problem, bool computes) {
  const std::int64_t p = problem.stages, m = problem.micro_batches;
  const Floors f = floors(problem, computes);
  if (problem.schedule == plan::Schedule::kInterleaved || plan::is_v_shaped(problem.schedule))
    return m * f.most_ps + f.energy_ps;
  if (problem.schedule != plan::Schedule::kZeroBubbleH1) return f.total_ps + (m - 1) * f.most_ps;
  const std::int64_t apart = (m - 1) * f.most_ps + f.energy_ps;
  return m <= p ? apart : std::max(apart, apart - p * f.most_ps + 2 * f.passes_ps);
}

std::int64_t StageModel::quick_bound(const PlanProblem& problem) {
  const std::int64_t p = problem.stages, m = problem.micro_batches;
  const Floors f = floors(problem);
  const costmodel::LayerCost &embedding = *vocabulary(problem, false).cost,
                             &head = *vocabulary(problem, true).cost;
  const std::int64_t ends = steady_of(embedding) + steady_of(head);
  const std::int64_t slowest = std::max(ceil_div(f.steady_ps + ends, p), f.most_ps);
  if (problem.schedule == plan::Schedule::kInterleaved)
    return m * slowest + f.energy_ps + embedding.energy_ps + head.energy_ps;
  return f.total_ps + ends + sync_of(embedding) + sync_of(head) + embedding.once_ps() +
         (m - 1) * slowest;
}

}  // namespace orrery::search
