#include "search/loop/planner.h"

#include <algorithm>

#include "search/loop/candidates.h"
#include "search/loop/outer_loops.h"
#include "search/loop/relaxations.h"
#include "search/loop/uniform_plans.h"
#include "search/programs/layer_program.h"

namespace orrery::search {

namespace {

using base::ErrorCode;

/// All faults of a request, so that they are reported together.
base::Result<std::int64_t> budget_of(const costmodel::CostModel& cost, const PlanRequest& r) {
  base::ErrorSink sink;
  const auto fault = [&](ErrorCode code, std::string message) {
    sink.add(base::Diagnostic{.code = code, .message = std::move(message)});
  };
  const auto devices = static_cast<int>(cost.topology().device_count());
  if (r.global_batch < 1)
    fault(ErrorCode::kOutOfRange, fmt::format("a global batch of {} sequences", r.global_batch));
  if (r.top < 1) fault(ErrorCode::kOutOfRange, fmt::format("{} candidates", r.top));
  if (r.threads < 1) fault(ErrorCode::kOutOfRange, fmt::format("{} threads", r.threads));
  if (!r.space.gpipe && !r.space.one_f_one_b && !r.space.interleaved && !r.space.zero_bubble)
    fault(ErrorCode::kInconsistent, "no pipeline schedule is allowed");
  const auto check_degree = [&](std::string_view name, const std::optional<int>& degree) {
    if (!degree) return;
    if (*degree < 1 || *degree > devices)
      fault(ErrorCode::kInconsistent, fmt::format("{} {} on {} devices", name, *degree, devices));
    else if (!r.space.idle && devices % *degree != 0)
      fault(ErrorCode::kInconsistent,
            fmt::format("{} {} does not divide {} devices", name, *degree, devices));
  };
  check_degree("pp", r.space.fix_pp);
  check_degree("tp", r.space.fix_tp);
  if (r.space.fix_micro_batches &&
      (*r.space.fix_micro_batches < 1 || r.global_batch % *r.space.fix_micro_batches != 0)) {
    fault(ErrorCode::kInconsistent,
          fmt::format("{} micro-batches do not divide a global batch of {}",
                      *r.space.fix_micro_batches, r.global_batch));
  }
  std::int64_t memory = r.memory_bytes;
  for (const topologies::DeviceModel& device : cost.topology().device_models()) {
    if (r.memory_bytes == 0)
      memory = memory == 0 ? device.memory_bytes : std::min(memory, device.memory_bytes);
  }
  if (memory <= 0) fault(ErrorCode::kOutOfRange, fmt::format("{} bytes of device memory", memory));
  return sink.result(memory - cost.context_bytes());
}

/// Plans of one shape differ in their strategies alone.
bool same_shape(const plan::Plan& a, const plan::Plan& b) {
  return a.pipeline_degree() == b.pipeline_degree() && a.world_size() == b.world_size() &&
         a.micro_batches == b.micro_batches && a.schedule == b.schedule;
}

/// The fastest of each shape, at most `top`, and `kept` (the certificate speaks of it).
void keep_shapes(const plan::Plan& kept, std::size_t top, std::vector<Candidate>& candidates) {
  std::vector<Candidate> shown;
  for (Candidate& c : candidates) {
    const auto like = [&](const Candidate& s) { return same_shape(s.plan, c.plan); };
    const bool wanted = shown.size() < top && std::ranges::none_of(shown, like);
    if (wanted || c.plan == kept) shown.push_back(std::move(c));
  }
  candidates = std::move(shown);
}

/// The best by closed form, the best as expected, uniform plans that may beat them, and runners-up.
base::Result<Evaluated> evaluate_best(costmodel::LayerCosts& costs, const PlanRequest& request,
                                      std::int64_t budget, std::vector<Finalist> finalists) {
  const costmodel::CostModel& cost = costs.cost();
  const plan::Plan cheapest = finalists.front().plan;
  const auto promising = std::ranges::min_element(finalists, {}, &Finalist::expected_ps);
  std::vector<Finalist> first{finalists.front()};
  if (promising != finalists.begin()) first.push_back(*promising);
  TRY(Evaluated evaluated, evaluate(cost, first, request.threads));
  std::erase_if(finalists, [&](const Finalist& f) {
    return std::ranges::any_of(first, [&](const Finalist& x) { return x.plan == f.plan; });
  });
  for (Finalist& f : uniform_plans(costs, request, budget, evaluated))
    finalists.push_back(std::move(f));
  const auto top = static_cast<std::size_t>(request.top);
  TRY_VOID(evaluate_more(cost, std::move(finalists), request.threads, top, evaluated));
  keep_shapes(cheapest, top, evaluated.candidates);
  TRY_VOID(check_program(cost, evaluated.candidates.front().plan));
  return evaluated;
}

}  // namespace

base::Result<PlanAnswer> find_plan(const costmodel::CostModel& cost, const PlanRequest& request) {
  TRY(const std::int64_t budget, budget_of(cost, request));
  costmodel::LayerCosts costs(cost);
  TRY(LoopResult loops, run_loops(costs, request, budget));
  PlanAnswer answer;
  answer.pruned = std::move(loops.pruned);
  answer.states = loops.states;
  answer.problems = loops.problems;
  answer.certificate.memory_limit_bytes = budget + cost.context_bytes();
  answer.certificate.cost_model_fingerprint = cost.fingerprint();
  answer.certificate.multiplier_bound_ps = loops.multiplier_bound_ps;
  if (request.multipliers && cost.model().kinds() == 1) {  // kinds_loops.h states none
    answer.certificate.proofs = {{request.space, std::move(loops.multipliers)}};
    Space& proved = answer.certificate.proofs.front().space;
    proved.interleaved = proved.zero_bubble = proved.idle = false;
  }
  if (loops.finalists.empty()) {
    answer.status = loops.exhausted ? Status::kBudget : Status::kInfeasible;
    const bool nothing_divides = loops.least_peak_bytes >= kForbidden;
    answer.shortfall_bytes = nothing_divides ? 0 : loops.least_peak_bytes - budget;
    if (request.relax && !loops.exhausted && !nothing_divides) {
      TRY(answer.relaxations, relax_request(cost, request, budget, loops));
    }
    return answer;
  }
  const Finalist best = loops.finalists.front();
  answer.certificate.cost_ps = best.closed_form_ps;
  answer.certificate.bound_ps = loops.bound_ps;
  answer.certificate.gap = static_cast<double>(best.closed_form_ps - loops.bound_ps) /
                           static_cast<double>(best.closed_form_ps);
  answer.certificate.multiplier_gap =
      static_cast<double>(best.closed_form_ps - loops.multiplier_bound_ps) /
      static_cast<double>(best.closed_form_ps);
  for (const std::int64_t peak : best.stage_peak_bytes) {
    answer.certificate.stage_peak_bytes.push_back(peak + cost.context_bytes());
  }
  answer.status = loops.bound_ps < best.closed_form_ps ? Status::kBudget : Status::kOptimal;
  TRY(Evaluated evaluated, evaluate_best(costs, request, budget, std::move(loops.finalists)));
  answer.candidates = std::move(evaluated.candidates);
  answer.order_changes = evaluated.order_changes;
  return answer;
}

}  // namespace orrery::search
