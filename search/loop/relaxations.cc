#include "search/loop/relaxations.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/numbers.h"
#include "search/loop/least_memory.h"
#include "search/status.h"
#include "topologies/topology.h"

namespace orrery::search {
namespace {

/// Enough for a good plan; nothing here is proved optimal.
constexpr std::uint64_t kEffort = 200'000;
constexpr LoopOptions kQuickly{.ticks = kSearchTicks / 6, .gives_up = true};

std::int64_t reserved_bytes(const costmodel::CostModel& cost, const Finalist& finalist) {
  return cost.reserved_bytes(std::ranges::max(finalist.stage_peak_bytes));
}

/// A good plan of a changed request, simulated; nothing when it does not fit either.
base::Result<std::optional<Relaxation>> attempt(costmodel::LayerCosts& costs, PlanRequest request,
                                                const costmodel::MemoryLimit& budget,
                                                std::string change) {
  request.top = 1;
  request.on_progress = nullptr;
  request.multipliers = false;
  request.max_states = kEffort;
  StageModel stages(costs, request.space, request.global_batch, budget);
  TRY(const LoopResult loops, search_best_first(stages, request, kQuickly));
  if (loops.finalists.empty()) return std::nullopt;
  const Finalist& best = loops.finalists.front();
  TRY(const std::int64_t step_ps, about_step_ps(costs.cost(), best));
  return Relaxation{std::move(change), reserved_bytes(costs.cost(), best), step_ps};
}

/// Whether some plan fits, with no time: that of the least memory, of the smallest micro-batches of
/// each number of stages; where it does not, a search may still find another.
base::Result<std::optional<Relaxation>> least_that_fits(costmodel::LayerCosts& costs,
                                                        const PlanRequest& request,
                                                        const costmodel::MemoryLimit& budget,
                                                        std::string change) {
  StageModel stages(costs, request.space, request.global_batch, budget);
  Solvers solvers(stages, request.space);
  std::vector<Pruned> unused;
  std::map<int, PlanProblem> smallest;  // by stages
  for (const PlanProblem& p : Families(costs.cost(), request, solvers).on_all_devices(unused)) {
    PlanProblem& known = smallest.try_emplace(p.stages, p).first->second;
    if (p.micro_batches > known.micro_batches) known = p;
  }
  std::vector<PlanProblem> problems;
  for (auto& [count, p] : smallest) {
    for (const auto& vocabulary : stages.vocabulary_of(p.devices, p.micro_batches).leaves) {
      p.vocabulary = vocabulary;
      problems.push_back(p);
    }
  }
  TRY(LeastMemory least, least_memory(solvers, std::move(problems), false, [&](plan::Plan plan) {
        return finalist_of(costs, std::move(plan));
      }));
  if (least.excess_bytes <= 0)
    return Relaxation{std::move(change), reserved_bytes(costs.cost(), least.finalist), 0};
  TRY(std::optional<Relaxation> found, attempt(costs, request, budget, std::move(change)));
  if (found) found->step_time_ps = 0;
  return found;
}

/// The least memory that some plan needs, with the time of the best plan there.
base::Result<Relaxation> more_memory(costmodel::LayerCosts& costs, const PlanRequest& request,
                                     const costmodel::MemoryLimit& budget,
                                     const LoopResult& loops) {
  const costmodel::CostModel& cost = costs.cost();
  const std::int64_t needed = cost.reserved_bytes(loops.least_peak_bytes);
  const std::string change =
      fmt::format("memory {} → {}", gib(cost.reserved_bytes(budget.least())), gib(needed));
  TRY(std::optional<Relaxation> best,
      attempt(costs, request, budget.plus(loops.least_peak_bytes - budget.least()), change));
  if (best) {
    best->memory_bytes = needed;
    return *best;
  }
  const auto step_ps = about_step_ps(cost, loops.smallest);  // may be too long to simulate
  return Relaxation{change, needed, step_ps ? *step_ps : 0};
}

/// Twice the hosts, priced from the datasheet: a profile of this cluster says nothing of the larger
/// one, so only that something fits counts then.
base::Result<std::optional<Relaxation>> more_devices(const costmodel::CostModel& cost,
                                                     const PlanRequest& request,
                                                     const costmodel::MemoryLimit& budget) {
  const auto hosts = 2 * cost.topology().hosts();
  auto topology = topologies::catalog_topology(request.cluster, hosts);
  if (!topology) return std::nullopt;  // not a catalog cluster, or without a fabric
  const std::string change = fmt::format("{} devices", topology->device_count());
  auto larger =
      costmodel::CostModel::make(cost.model(), *std::move(topology), std::nullopt, cost.options());
  if (!larger) return std::nullopt;
  PlanRequest wider = request;
  wider.hosts = as_int(hosts);
  costmodel::LayerCosts costs(*larger);
  const bool comparable = !cost.profile();
  TRY(std::optional<Relaxation> found, comparable ? attempt(costs, wider, budget, change)
                                                  : least_that_fits(costs, wider, budget, change));
  if (found) found->memory_bytes += cost.context_bytes() - larger->context_bytes();
  return found;
}

}  // namespace

base::Result<std::vector<Relaxation>> relax_request(costmodel::LayerCosts& costs,
                                                    const PlanRequest& request,
                                                    const costmodel::MemoryLimit& budget,
                                                    const LoopResult& loops) {
  std::vector<Relaxation> result;
  const auto try_space = [&](const char* change, auto&& widen) -> base::Result<void> {
    PlanRequest wider = request;
    widen(wider.space);
    TRY(std::optional<Relaxation> found, attempt(costs, wider, budget, change));
    if (found) result.push_back(*std::move(found));
    return {};
  };
  const Space& space = request.space;
  if (!space.recompute_full)
    TRY_VOID(try_space("recompute=full", [](Space& s) { s.recompute_full = true; }));
  if (!space.zero3) TRY_VOID(try_space("zero 3", [](Space& s) { s.zero3 = true; }));
  if (!space.tensor || space.fix_tp) {
    TRY_VOID(try_space("any tensor-parallel degree", [](Space& s) {
      s.tensor = s.sequence_parallel = true;
      s.fix_tp.reset();
    }));
  }
  if (!space.pipeline || space.fix_pp) {
    TRY_VOID(try_space("any pipeline degree", [](Space& s) {
      s.pipeline = true;
      s.fix_pp.reset();
    }));
  }
  if (space.fix_micro_batches)
    TRY_VOID(
        try_space("any number of micro-batches", [](Space& s) { s.fix_micro_batches.reset(); }));
  // no target has them
  const bool may_copy =
      !space.vocabulary_like_layers &&
      costs.cost().copy_ps(true, 0, 0, as_int(costs.cost().topology().device_count())).has_value();
  if (may_copy && !(space.recompute_offload && space.states_on_host)) {
    TRY_VOID(try_space("activations and optimizer states on the host (offload)",
                       [](Space& s) { s.recompute_offload = s.states_on_host = true; }));
  }
  if (loops.least_peak_bytes < kForbidden) {
    TRY(Relaxation memory, more_memory(costs, request, budget, loops));
    result.push_back(std::move(memory));
  }
  TRY(std::optional<Relaxation> devices, more_devices(costs.cost(), request, budget));
  if (devices) result.push_back(*std::move(devices));
  return result;
}

}  // namespace orrery::search
