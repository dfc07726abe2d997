#include "search/certificate_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/closed_form.h"
#include "plan/check.h"
#include "plan/lower.h"
#include "plan/memory.h"

namespace orrery::search {
namespace {

using Exact = __int128;

/// Sums and products that know when they leave 128 bits.
struct Checked {
  bool overflow = false;
  Exact times(Exact a, Exact b) {
    Exact c = 0;
    overflow = __builtin_mul_overflow(a, b, &c) || overflow;
    return c;
  }
  Exact plus(Exact a, Exact b) {
    Exact c = 0;
    overflow = __builtin_add_overflow(a, b, &c) || overflow;
    return c;
  }
};

/// L(λ) rounded up; nothing when the numbers leave 128 bits.
std::optional<std::int64_t> lagrangian_bound(const Instance& instance, Exact numerator, Exact denominator) {
  Checked exact;
  std::vector<Exact> least, before;
  for (std::size_t i = 0; i < instance.layers.size(); ++i) {
    before.swap(least);
    least.clear();
    for (std::size_t s = 0; s < instance.layers[i].size(); ++s) {
      const InstanceOption& o = instance.layers[i][s];
      Exact reach = 0;
      for (std::size_t from = 0; from < before.size(); ++from) {
        const Exact way = exact.plus(before[from], exact.times(denominator, instance.transition(i - 1, from, s)));
        reach = from == 0 ? way : std::min(reach, way);
      }
      const Exact own = exact.plus(exact.times(denominator, o.time_ps), exact.times(numerator, o.memory_bytes));
      least.push_back(exact.plus(reach, own));
    }
  }
  const Exact value = exact.plus(*std::ranges::min_element(least), -exact.times(numerator, instance.budget_bytes));
  if (exact.overflow) return std::nullopt;
  return static_cast<std::int64_t>(value > 0 ? (value - 1) / denominator + 1 : value / denominator);
}

void check_choices(const Instance& instance, const Solution& claim, CheckReport& report) {
  std::int64_t memory = 0;
  for (std::size_t i = 0; i < claim.choices.size(); ++i) {
    const std::int32_t s = claim.choices[i];
    if (s < 0 || static_cast<std::size_t>(s) >= instance.layers[i].size()) {
      report.faults.push_back(
          fmt::format("choice {} of layer {} is none of its {} options", s, i, instance.layers[i].size()));
      return;
    }
    const InstanceOption& o = instance.layers[i][static_cast<std::size_t>(s)];
    report.cost_ps += o.time_ps;
    memory += o.memory_bytes;
    if (i > 0) {
      const auto from = static_cast<std::size_t>(claim.choices[i - 1]);
      report.cost_ps += instance.transition(i - 1, from, static_cast<std::size_t>(s));
    }
  }
  report.memory_bytes = {memory};
  if (memory != claim.memory_bytes) {
    report.faults.push_back(fmt::format("the choices take {} bytes, not {}", memory, claim.memory_bytes));
  }
  if (report.cost_ps != claim.time_ps) {
    report.faults.push_back(fmt::format("the choices take {} ps, not {}", report.cost_ps, claim.time_ps));
  }
  if (memory > instance.budget_bytes) {
    report.faults.push_back(fmt::format("{} bytes exceed the budget of {}", memory, instance.budget_bytes));
  }
}

void check_bound(const Instance& instance, const Solution& claim, CheckReport& report) {
  const auto [numerator, denominator] = claim.multiplier;
  if (numerator < 0 || denominator < 1) {
    report.faults.push_back(fmt::format("{} / {} is no price of memory", numerator, denominator));
    return;
  }
  report.bound_ps = lagrangian_bound(instance, numerator, denominator);
  if (!report.bound_ps) {
    report.faults.push_back(fmt::format("multiplier {} / {} leaves 128 bits", numerator, denominator));
    return;
  }
  if (claim.bound_ps > std::max<std::int64_t>(*report.bound_ps, 0)) {
    report.faults.push_back(fmt::format("multiplier {} / {} proves {} ps, not {}", numerator, denominator,
                                        *report.bound_ps, claim.bound_ps));
  }
  const bool proved = claim.proved_ps == claim.time_ps;
  if (claim.bound_ps > claim.proved_ps || claim.proved_ps > claim.time_ps ||
      (claim.status == Status::kOptimal) != proved) {
    report.faults.push_back(fmt::format("status {} with bound {}, proved {}, time {} ps", to_string(claim.status),
                                        claim.bound_ps, claim.proved_ps, claim.time_ps));
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
    report.faults.push_back(fmt::format("the least memory is {} bytes, not {}", least, claim.least_memory_bytes));
  }
  if ((claim.status == Status::kInfeasible) != (least > instance.budget_bytes)) {
    report.faults.push_back(fmt::format("status {}, but the least memory is {} bytes and the budget {}",
                                        to_string(claim.status), least, instance.budget_bytes));
    return report;
  }
  if (claim.status == Status::kInfeasible) return report;
  if (claim.choices.size() != instance.layers.size()) {
    report.faults.push_back(fmt::format("{} choices for {} layers", claim.choices.size(), instance.layers.size()));
    return report;
  }
  check_choices(instance, claim, report);
  check_bound(instance, claim, report);
  return report;
}

base::Result<CheckReport> check_plan(const costmodel::CostModel& cost, const plan::Plan& plan, const PlanClaim& claim) {
  TRY(const plan::Program program, plan::lower(plan, cost.model()));
  TRY(const costmodel::PlanCost priced, costmodel::plan_cost(cost, plan));
  CheckReport report;
  report.cost_ps = priced.step_ps;
  report.limit_bytes =
      claim.memory_limit_bytes > 0 ? claim.memory_limit_bytes : cost.topology().device_model(0).memory_bytes;
  for (const plan::Fault& fault : plan::check(program)) report.faults.push_back(fault.message);
  for (std::size_t i = 0; i < program.classes.size(); ++i) {
    const std::int64_t peak = plan::static_memory(program, program.classes[i]).peak_bytes;
    report.memory_bytes.push_back(peak + cost.context_bytes());
    if (peak != priced.stage_peak_bytes[i]) {
      report.faults.push_back(fmt::format("stage {}: the Program holds {} bytes, the closed form says {}", i, peak,
                                          priced.stage_peak_bytes[i]));
    }
    if (report.memory_bytes.back() > report.limit_bytes) {
      report.faults.push_back(fmt::format("stage {} needs {} bytes per device, {} more than the limit", i,
                                          report.memory_bytes.back(), report.memory_bytes.back() - report.limit_bytes));
    }
  }
  if (claim.cost_ps > 0 && claim.cost_ps != report.cost_ps) {
    report.faults.push_back(fmt::format("the closed form gives {} ps, not {}", report.cost_ps, claim.cost_ps));
  }
  if (!claim.stage_peak_bytes.empty() && claim.stage_peak_bytes != report.memory_bytes) {
    report.faults.push_back("the stated memory of the stages is not theirs");
  }
  if (claim.bound_ps > report.cost_ps) {
    report.faults.push_back(
        fmt::format("a lower bound of {} ps above the cost of {} ps", claim.bound_ps, report.cost_ps));
  }
  return report;
}

}  // namespace orrery::search
