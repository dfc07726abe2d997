#include "search/costs/rank_table.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/costs/unbeaten.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;

std::int64_t unfilled_of(const LayerCost& c) {
  return c.forward_ps + c.backward_sync_ps - c.weight_ps;
}

/// No worse in any time that the rank program sums or compares, nor in bytes.
bool beats(const RankOption& one, const RankOption& other) {
  const LayerCost &a = *one.cost, &b = *other.cost;
  return a.forward_ps <= b.forward_ps && a.backward_ps <= b.backward_ps &&
         a.backward_sync_ps <= b.backward_sync_ps && sync_time_of(a) <= sync_time_of(b) &&
         a.energy_ps <= b.energy_ps && a.weight_ps <= b.weight_ps &&
         a.weight_sync_ps <= b.weight_sync_ps && unfilled_of(a) <= unfilled_of(b) &&
         a.start_ps() <= b.start_ps() &&
         a.update_ps - a.zero_gradient_ps <= b.update_ps - b.zero_gradient_ps &&
         a.weight.peak_bytes <= b.weight.peak_bytes &&
         a.weight.delta_bytes >= b.weight.delta_bytes && dominates(memory_of(a), memory_of(b));
}

}  // namespace

void RankFloor::take(const LayerCost& c) {
  take(RankFloor{.cycle_ps = steady_of(c),
                 .sync_ps = sync_time_of(c),
                 .update_ps = c.update_ps,
                 .energy_ps = c.energy_ps,
                 .unfilled_ps = unfilled_of(c),
                 .cycle_and_unfilled_ps = steady_of(c) + unfilled_of(c),
                 .filled_ps = std::min({c.forward_ps, c.backward_ps, c.weight_ps}),
                 .tail_ps = c.weight_sync_ps});
}

void RankFloor::take(const RankFloor& other) {
  cycle_ps = std::min(cycle_ps, other.cycle_ps);
  sync_ps = std::min(sync_ps, other.sync_ps);
  update_ps = std::min(update_ps, other.update_ps);
  energy_ps = std::min(energy_ps, other.energy_ps);
  unfilled_ps = std::min(unfilled_ps, other.unfilled_ps);
  cycle_and_unfilled_ps = std::min(cycle_and_unfilled_ps, other.cycle_and_unfilled_ps);
  filled_ps = std::min(filled_ps, other.filled_ps);
  tail_ps = std::min(tail_ps, other.tail_ps);
}

const RankTable& RankTables::table(const PlanProblem& problem, int first_rank) {
  first_rank = costs_.canonical_rank(first_rank, problem.devices);
  const bool split = problem.schedule == plan::Schedule::kZeroBubbleH1;
  const auto [place, fresh] =
      tables_.try_emplace({problem.devices, problem.micro_batches, first_rank, split});
  RankTable& table = place->second;
  if (!fresh) return table;
  plan::LayerContext c = stages_.context(problem.micro_batches, problem.stages);
  c.split_backward = split;
  const StrategyTree& tree = stages_.layers_of(problem.devices, problem.micro_batches);
  for (std::size_t leaf = 0; leaf < tree.leaves.size(); ++leaf) {
    const plan::LayerStrategy& s = tree.leaves[leaf];
    auto layout = std::ranges::find_if(
        table.layouts, [&](const RankLayout& l) { return l.strategy.same_layout(s); });
    if (layout == table.layouts.end())
      layout = table.layouts.insert(
          table.layouts.end(),
          RankLayout{.strategy = s, .options = {}, .by_cycle = {}, .floor = {}});
    layout->options.push_back(
        {static_cast<std::int32_t>(leaf), &costs_.block(s, c, first_rank, problem.devices)});
  }
  for (RankLayout& layout : table.layouts) {
    layout.options = unbeaten(layout.options, beats);
    for (const RankOption& o : layout.options) {
      layout.floor.take(*o.cost);
      layout.by_cycle.push_back(as_u32(layout.by_cycle.size()));
    }
    std::ranges::stable_sort(layout.by_cycle, {},
                             [&](std::uint32_t o) { return steady_of(*layout.options[o].cost); });
  }
  return table;
}

RankTransfers RankTables::transfers(const PlanProblem& problem, std::int64_t bytes) {
  const bool zero_bubble = problem.schedule == plan::Schedule::kZeroBubbleH1;
  const int p = problem.stages, d = problem.devices;
  RankTransfers t{.activation_ps = {}, .gradient_ps = {}, .bytes = bytes};
  for (int r = 0; r < p; ++r) {
    const int before = (r + p - 1) % p, behind = (r + 1) % p;
    // virtual stages go round
    const bool first = zero_bubble && r == 0, last = zero_bubble && r == p - 1;
    t.activation_ps.push_back(first ? 0
                                    : costs_.exchange_ps(before * d, d, (r - before) * d, bytes));
    t.gradient_ps.push_back(last ? 0 : costs_.exchange_ps(behind * d, d, (r - behind) * d, bytes));
    t.once_ps += (r == 0 ? 0 : t.activation_ps.back()) + t.gradient_ps.back();
  }
  if (!zero_bubble && !costs_.cost().overlaps())
    t.once_ps -= t.activation_ps.back() + t.gradient_ps.back();
  t.least_activation_ps = std::ranges::min(t.activation_ps);
  t.least_gradient_ps = std::ranges::min(t.gradient_ps);
  return t;
}

const RankFrame& RankTables::frame(const PlanProblem& problem) {
  const bool zero_bubble = problem.schedule == plan::Schedule::kZeroBubbleH1;
  std::unique_ptr<RankFrame>& slot =
      frames_[{problem.devices, problem.micro_batches, problem.stages, zero_bubble}];
  if (slot) return *slot;
  slot = std::make_unique<RankFrame>();
  RankFrame& f = *slot;
  for (int r = 0; r < problem.stages; ++r) f.tables.push_back(&table(problem, r * problem.devices));
  std::vector<const RankTable*> unlike = f.tables;
  std::ranges::sort(unlike);
  unlike.erase(std::unique(unlike.begin(), unlike.end()), unlike.end());
  for (std::size_t l = 0; l < f.tables.front()->layouts.size(); ++l) {
    RankFloor& floor = f.floors.emplace_back();
    for (const RankTable* t : unlike) floor.take(t->layouts[l].floor);
    const std::int64_t bytes = stages_.stream_bytes(f.layout(0, l).strategy, problem.micro_batches);
    const auto known = std::ranges::find(f.transfers, bytes, &RankTransfers::bytes);
    if (known == f.transfers.end())
      f.transfers.push_back(transfers(problem, bytes));
    else
      f.transfers.push_back(RankTransfers(*known));
  }
  return f;
}

}  // namespace orrery::search
