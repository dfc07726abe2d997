#include "search/proof/certificate_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/numbers.h"
#include "base/units.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/energy/power.h"
#include "costmodel/memory_limit.h"
#include "plan/check/check.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"
#include "search/proof/exact.h"
#include "search/proof/multiplier_bound.h"
#include "search/proof/partition_bound.h"

namespace orrery::search {
namespace {

/// L(λ) rounded up; nothing when the numbers leave 128 bits.
std::optional<std::int64_t> lagrangian_bound(const Instance& instance, Exact numerator,
                                             Exact denominator) {
  Checked exact;
  std::vector<Exact> least, before;
  for (std::size_t i = 0; i < instance.layers.size(); ++i) {
    before.swap(least);
    least.clear();
    for (std::size_t s = 0; s < instance.layers[i].size(); ++s) {
      const InstanceOption& o = instance.layers[i][s];
      Exact reach = 0;
      for (std::size_t from = 0; from < before.size(); ++from) {
        const Exact way =
            exact.plus(before[from], exact.times(denominator, instance.transition(i - 1, from, s)));
        reach = from == 0 ? way : std::min(reach, way);
      }
      const Exact own =
          exact.plus(exact.times(denominator, o.time_ps), exact.times(numerator, o.memory_bytes));
      least.push_back(exact.plus(reach, own));
    }
  }
  const Exact value =
      exact.plus(*std::ranges::min_element(least), -exact.times(numerator, instance.budget_bytes));
  if (exact.overflow) return std::nullopt;
  return static_cast<std::int64_t>(round_up(value, denominator));
}

void check_choices(const Instance& instance, const Solution& claim, CheckReport& report) {
  std::int64_t memory = 0;
  for (std::size_t i = 0; i < claim.choices.size(); ++i) {
    const std::int32_t s = claim.choices[i];
    if (s < 0 || as_index(s) >= instance.layers[i].size()) {
      report.fault(&CheckReport::cost_holds,
                   fmt::format("choice {} of layer {} is none of its {} options", s, i,
                               instance.layers[i].size()));
      return;
    }
    const InstanceOption& o = instance.layers[i][as_index(s)];
    report.cost_ps += o.time_ps;
    memory += o.memory_bytes;
    if (i > 0) {
      const auto from = as_index(claim.choices[i - 1]);
      report.cost_ps += instance.transition(i - 1, from, as_index(s));
    }
  }
  report.memory_bytes = {memory};
  if (memory != claim.memory_bytes) {
    report.fault(&CheckReport::memory_holds,
                 fmt::format("the choices take {} bytes, not {}", memory, claim.memory_bytes));
  }
  if (report.cost_ps != claim.time_ps) {
    report.fault(&CheckReport::cost_holds,
                 fmt::format("the choices take {} ps, not {}", report.cost_ps, claim.time_ps));
  }
  if (memory > instance.budget_bytes) {
    report.fault(&CheckReport::memory_holds,
                 fmt::format("{} bytes exceed the budget of {}", memory, instance.budget_bytes));
  }
}

void check_bound(const Instance& instance, const Solution& claim, CheckReport& report) {
  const auto [numerator, denominator] = claim.multiplier;
  if (numerator < 0 || denominator < 1) {
    report.fault(&CheckReport::bound_holds,
                 fmt::format("{} / {} is no price of memory", numerator, denominator));
    return;
  }
  report.bound_ps = lagrangian_bound(instance, numerator, denominator);
  if (!report.bound_ps) {
    report.fault(&CheckReport::bound_holds,
                 fmt::format("multiplier {} / {} leaves 128 bits", numerator, denominator));
    return;
  }
  if (claim.bound_ps > std::max<std::int64_t>(*report.bound_ps, 0)) {
    report.fault(&CheckReport::bound_holds,
                 fmt::format("multiplier {} / {} proves {} ps, not {}", numerator, denominator,
                             *report.bound_ps, claim.bound_ps));
  }
  const bool proved = claim.proved_ps == claim.time_ps;
  if (claim.bound_ps > claim.proved_ps || claim.proved_ps > claim.time_ps ||
      (claim.status == Status::kOptimal) != proved) {
    report.fault(
        &CheckReport::bound_holds,
        fmt::format("status {} with bound {}, proved {}, time {} ps", to_string(claim.status),
                    claim.bound_ps, claim.proved_ps, claim.time_ps));
  }
}

bool has_states_in_one_place(const plan::Plan& plan) {
  return std::ranges::all_of(plan.stages, [&](const plan::Stage& stage) {
    return std::ranges::all_of(stage.runs, [&](const plan::LayerRun& run) {
      return run.strategy.states == plan.vocabulary.states;
    });
  });
}

/// What the stated multipliers prove of the stated spaces; `limit`: bytes of the Program's buffers.
base::Result<void> check_multipliers(const costmodel::CostModel& cost, const plan::Plan& plan,
                                     const PlanClaim& claim, const costmodel::MemoryLimit& limit,
                                     CheckReport& report) {
  SpaceBound all{.bound_ps = kBeyondAnyCost};
  std::optional<std::int64_t> partitions_ps;
  for (const SpaceProof& proof : claim.proofs) {
    TRY(const costmodel::CostModel there, cost.in_order(proof.device_order));
    costmodel::LayerCosts costs(there, claim.objective);
    const SpaceBound one = space_bound(costs, proof, plan, limit);
    if (const auto ps = partition_bound_ps(there, proof.space, plan.global_batch))
      partitions_ps = std::min(partitions_ps.value_or(*ps), *ps);
    const bool own = proof.device_order.empty() || proof.device_order == plan.device_order;
    all = {std::min(all.bound_ps, one.bound_ps), all.malformed || one.malformed,
           all.holds_plan || (one.holds_plan && own)};
  }
  report.bound_ps = all.bound_ps;
  const auto fault = [&](std::string text) {
    report.fault(&CheckReport::bound_holds, std::move(text));
  };
  if (claim.partition_bound_ps.value_or(0) > partitions_ps.value_or(kBeyondAnyCost))
    fault(fmt::format("partitioned layers compute {} ps at least, not {}",
                      partitions_ps.value_or(0), *claim.partition_bound_ps));
  if (all.malformed) fault("some numbers are no multipliers, or leave 128 bits");
  // Multipliers are stated of 1F1B and GPipe on all devices, with all states in one place
  // (planner.h): nothing is proved of other plans.
  const bool covered =
      (plan.schedule == plan::Schedule::k1F1B || plan.schedule == plan::Schedule::kGPipe) &&
      plan.world_size() == as_int(cost.topology().device_count()) && has_states_in_one_place(plan);
  if (covered && !all.holds_plan) fault("the plan is none of the stated space");
  if (claim.multiplier_bound_ps > all.bound_ps)
    fault(fmt::format("the multipliers prove {} ps, not {}", all.bound_ps,
                      claim.multiplier_bound_ps));
  if (covered && all.bound_ps > report.cost_ps)
    fault(fmt::format("the multipliers prove {} ps, and the plan takes {} ps", all.bound_ps,
                      report.cost_ps));
  return {};
}

/// Of every stage by two ways.
void check_memory(const plan::Program& program, const costmodel::CostModel& cost,
                  const plan::Plan& plan, const costmodel::PlanCost& priced,
                  const costmodel::MemoryLimit& limit, CheckReport& report) {
  const auto fault = [&](std::string text) {
    report.fault(&CheckReport::memory_holds, std::move(text));
  };
  report.limit_bytes = limit.least();
  for (std::size_t i = 0; i < program.classes.size(); ++i) {
    const std::int64_t peak =
        plan::static_memory(program, program.classes[i], cost.loss_bytes()).peak_bytes;
    const std::int64_t closed = priced.stage_peak_bytes[i],
                       own = limit.of_stage(cost, plan, as_int(i));
    report.memory_bytes.push_back(cost.reserved_bytes(peak));
    if (!limit.same()) report.stage_limit_bytes.push_back(own);
    const std::int64_t excess = report.memory_bytes.back() - own;
    if (peak != closed)
      fault(fmt::format("stage {}: the Program holds {} bytes, the closed form says {}", i, peak,
                        closed));
    if (excess > 0) {
      ++report.too_large;
      fault(fmt::format("stage {} needs {} a device, {} more than the limit", i,
                        base::Bytes(real(report.memory_bytes.back())), base::Bytes(real(excess))));
    }
  }
}

}  // namespace

CheckReport check_solution(const Instance& instance, const Solution& claim) {
  CheckReport report;
  report.limit_bytes = instance.budget_bytes;
  std::int64_t least = 0;
  for (const auto& layer : instance.layers) {
    least += std::ranges::min(layer, {}, &InstanceOption::memory_bytes).memory_bytes;
  }
  if (least != claim.least_memory_bytes) {
    report.fault(&CheckReport::memory_holds, fmt::format("the least memory is {} bytes, not {}",
                                                         least, claim.least_memory_bytes));
  }
  if ((claim.status == Status::kInfeasible) != (least > instance.budget_bytes)) {
    report.fault(&CheckReport::memory_holds,
                 fmt::format("status {}, but the least memory is {} bytes and the budget {}",
                             to_string(claim.status), least, instance.budget_bytes));
    return report;
  }
  if (claim.status == Status::kInfeasible) return report;
  if (claim.choices.size() != instance.layers.size()) {
    report.fault(
        &CheckReport::cost_holds,
        fmt::format("{} choices for {} layers", claim.choices.size(), instance.layers.size()));
    return report;
  }
  check_choices(instance, claim, report);
  check_bound(instance, claim, report);
  return report;
}

base::Result<CheckReport> check_plan(const costmodel::CostModel& any_order, const plan::Plan& plan,
                                     const PlanClaim& claim) {
  TRY(const costmodel::CostModel cost, any_order.in_order(plan.device_order));
  const costmodel::MemoryLimit limit(cost, claim.memory_limit_bytes);
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  if (claim.objective == costmodel::Objective::kEnergy)
    TRY_VOID(costmodel::MachinePower::of(cost.topology()));
  costmodel::LayerCosts costs(cost, claim.objective);
  TRY(const costmodel::PlanCost priced, costmodel::plan_cost(costs, plan));
  CheckReport report;
  report.cost_ps = priced.step_ps;
  for (const plan::Fault& fault : plan::check(program))
    report.fault(&CheckReport::cost_holds, fault.message);
  check_memory(program, cost, plan, priced, limit, report);
  if (claim.cost_ps > 0 && claim.cost_ps != report.cost_ps) {
    report.fault(&CheckReport::cost_holds,
                 fmt::format("the closed form gives {} ps, not {}", report.cost_ps, claim.cost_ps));
  }
  if (!claim.stage_peak_bytes.empty() && claim.stage_peak_bytes != report.memory_bytes)
    report.fault(&CheckReport::memory_holds, "the stated memory of the stages is not theirs");
  if (claim.bound_ps > report.cost_ps) {
    report.fault(&CheckReport::bound_holds,
                 fmt::format("a lower bound of {} ps above the cost of {} ps", claim.bound_ps,
                             report.cost_ps));
  }
  if (!claim.proofs.empty())
    TRY_VOID(check_multipliers(cost, plan, claim, limit.usable(cost), report));
  const auto gap_to = [&](std::int64_t bound) {
    return real(claim.cost_ps - bound) / real(claim.cost_ps);
  };
  const bool gaps = claim.gap.value_or(gap_to(claim.bound_ps)) == gap_to(claim.bound_ps) &&
                    claim.multiplier_gap.value_or(gap_to(claim.multiplier_bound_ps)) ==
                        gap_to(claim.multiplier_bound_ps);
  if (claim.cost_ps > 0 && !gaps)
    report.fault(&CheckReport::gap_holds, "a stated gap is not (cost - bound) / cost");
  return report;
}

}  // namespace orrery::search
