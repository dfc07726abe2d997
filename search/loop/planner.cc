#include "search/loop/planner.h"

#include <algorithm>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "costmodel/energy/power.h"
#include "costmodel/memory_limit.h"
#include "search/loop/best_first.h"
#include "search/loop/families.h"
#include "search/loop/merged_answers.h"
#include "search/loop/moved_states.h"
#include "search/loop/partitioned_plans.h"
#include "search/loop/relaxations.h"
#include "search/loop/uniform_plans.h"
#include "search/programs/layer_program.h"
#include "topologies/device_order.h"

namespace orrery::search {

namespace {

using base::ErrorCode;

constexpr int kRunnersUp = 7;

/// All faults of a request, so that they are reported together.
base::Result<costmodel::MemoryLimit> memory_of(const costmodel::CostModel& cost,
                                               const PlanRequest& r) {
  base::ErrorSink sink;
  const auto fault = [&](ErrorCode code, std::string message) {
    sink.add(base::Diagnostic{.code = code, .message = std::move(message)});
  };
  const auto devices = as_int(cost.topology().device_count());
  if (r.global_batch < 1)
    fault(ErrorCode::kOutOfRange, fmt::format("a global batch of {} sequences", r.global_batch));
  if (r.top < 1) fault(ErrorCode::kOutOfRange, fmt::format("{} candidates", r.top));
  if (r.threads < 1) fault(ErrorCode::kOutOfRange, fmt::format("{} threads", r.threads));
  if (!r.space.gpipe && !r.space.one_f_one_b && !r.space.interleaved && !r.space.zero_bubble &&
      !r.space.zero_bubble_v && !r.space.dual_pipe_v)
    fault(ErrorCode::kInconsistent, "no pipeline schedule is allowed");
  if (r.space.recompute_offload || r.space.states_on_host) {
    for (const bool to_host : {true, false})
      if (const auto copies = cost.copy_ps(to_host, 0, 0, devices); !copies && sink.ok())
        sink.add(copies.error());
  }
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
  if (const double s = seconds_at_peak(cost, r.global_batch); s > kLongestAtPeak)
    sink.add(base::make_error(ErrorCode::kOutOfRange,
                              "a step takes {:.0f} days and more on these devices", s / 86'400)
                 .with_hint("fewer tokens (--sequence-length, --global-batch) or more devices"));
  if (r.objective == costmodel::Objective::kEnergy) {
    if (const auto power = costmodel::MachinePower::of(cost.topology()); !power)
      sink.add(power.error());
  }
  costmodel::MemoryLimit memory(cost, r.memory_bytes);
  if (memory.least() <= 0)
    fault(ErrorCode::kOutOfRange, fmt::format("{} bytes of device memory", memory.least()));
  return sink.result(std::move(memory));
}

/// Plans of one shape differ in their strategies alone.
bool same_shape(const plan::Plan& a, const plan::Plan& b) {
  return a.pipeline_degree() == b.pipeline_degree() && a.world_size() == b.world_size() &&
         a.micro_batches == b.micro_batches && a.schedule == b.schedule;
}

/// The fastest plan, the one that the certificate speaks of, and the most promising of each other
/// shape.
std::vector<Finalist> best_of_shapes(const Finalist& fastest, std::vector<Finalist> finalists) {
  std::vector<Finalist> kept{fastest};
  if (finalists.front().plan != fastest.plan) kept.push_back(finalists.front());
  std::ranges::stable_sort(finalists, {}, &Finalist::expected_ps);
  for (Finalist& f : finalists) {
    const auto like = [&](const Finalist& s) { return same_shape(s.plan, f.plan); };
    if (std::ranges::none_of(kept, like)) kept.push_back(std::move(f));
  }
  return kept;
}

/// The best by closed form, the best as expected and whatever may beat them, uniform plans too;
/// with runners-up. Nothing, where only better ones than a known plan count. @pre some finalist.
base::Result<void> evaluate_best(StageModel& stages, const PlanRequest& request,
                                 const std::vector<Finalist>& finalists, PlanAnswer& answer) {
  const costmodel::CostModel& cost = stages.costs().cost();
  const bool energy = request.objective == costmodel::Objective::kEnergy;
  Contest contest(cost, request.known, request.objective);
  const Finalist& first = *std::ranges::min_element(finalists, {}, &Finalist::expected_ps);
  if (!request.known.only_better || contest.may_win(first)) TRY_VOID(contest.begin(first));
  std::vector<Finalist> all = uniform_plans(stages, request, contest).found;
  all.insert(all.begin(), finalists.begin(), finalists.end());
  if (allows_partitions(request.space)) {
    PartitionedPlans partitioned = partitioned_plans(stages, request, contest);
    std::ranges::move(partitioned.found, std::back_inserter(all));
    std::ranges::move(partitioned.pruned, std::back_inserter(answer.pruned));
    answer.certificate.partition_bound_ps = partitioned.bound_ps;
  }
  TRY_VOID(contest.enter_all(all));
  if (!contest.has_fastest()) return {};
  Finalist best = contest.fastest();
  std::optional<sim::SimReport> report = contest.report();
  if (energy) {
    TRY(LeastDrawing least, least_drawing(cost, contest, all, request.threads));
    best = std::move(least.finalist);
    report = std::move(least.report);
  }
  for (Finalist& f : all) f.expected_ps = contest.best_known_ps(f);
  std::vector<Finalist> shapes = best_of_shapes(best, std::move(all));
  const auto top = std::min(as_index(request.top), shapes.size());
  const auto rest = shapes.begin() + static_cast<std::ptrdiff_t>(top);
  for (auto f = rest; f != shapes.end() && answer.runners_up.size() < as_index(kRunnersUp); ++f)
    answer.runners_up.push_back(
        {std::move(f->plan), f->closed_form_ps, f->expected_ps, f->energy_ps});
  std::ranges::stable_sort(answer.runners_up, {}, &RunnerUp::expected_ps);
  shapes.erase(rest, shapes.end());
  TRY(Evaluated evaluated, evaluate(cost, shapes, request.threads, report, energy));
  answer.candidates = std::move(evaluated.candidates);
  answer.order_changes = evaluated.order_changes;
  return {};
}

/// Where the effort ended without a plan, and of zero bubbles of which the programs know nothing (a
/// V) or nothing of several kinds of block: uniform plans, by expected time. Nothing is proved of
/// the latter.
void take_uniform_plans(StageModel& stages, const PlanRequest& request, LoopResult& loops) {
  const Space& s = request.space;
  const bool searched = s.gpipe || s.one_f_one_b || s.interleaved;
  if (!loops.finalists.empty() || (searched && (!loops.exhausted || request.known.some()))) return;
  const Contest contest(stages.costs().cost(), request.known);
  UniformPlans uniform = uniform_plans(stages, request, contest);
  loops.finalists = std::move(uniform.found);
  std::ranges::stable_sort(loops.finalists, {}, &Finalist::expected_ps);
  if (loops.finalists.size() > as_index(request.top)) loops.finalists.resize(as_index(request.top));
  if (!loops.finalists.empty()) {
    if (searched) std::ranges::stable_sort(loops.finalists, {}, &Finalist::closed_form_ps);
    // Not all of these are plans that a bound speaks of: none is proved best.
    const std::int64_t most = searched ? loops.finalists.front().closed_form_ps - 1 : 0;
    loops.bound_ps = std::min(loops.bound_ps, most);
    loops.multiplier_bound_ps = std::min(loops.multiplier_bound_ps, most);
    return;
  }
  loops.exhausted = loops.exhausted || uniform.exhausted;
  if (loops.exhausted) return;
  const bool pairs = stages.costs().cost().model().encoder_decoder();
  for (const auto& [allowed, schedule] : {std::pair(s.zero_bubble_v, plan::Schedule::kZeroBubbleV),
                                          {s.dual_pipe_v, plan::Schedule::kDualPipeV}}) {
    if (allowed)
      loops.pruned.insert(loops.pruned.begin(),
                          {std::string(plan::to_string(schedule)),
                           pairs ? "not of an encoder and a decoder"
                                 : "no plan with one strategy for all layers, and two stages on "
                                   "each of several ranks, divides them and fits",
                           Reason::kUnsupported});
  }
}

/// In the order of devices that ranks count.
base::Result<PlanAnswer> find_in_order(const costmodel::CostModel& cost,
                                       const PlanRequest& request) {
  TRY(const costmodel::MemoryLimit limit, memory_of(cost, request));
  const costmodel::MemoryLimit budget = limit.usable(cost);
  costmodel::LayerCosts costs(cost, request.objective);
  // Runners-up are found even where only the answer is simulated in full.
  PlanRequest searched = request;
  searched.top = std::max(request.top, kRunnersUp + 1);
  StageModel stages(costs, searched.space, searched.global_batch, budget);
  TRY(LoopResult loops, search_best_first(stages, searched));
  take_uniform_plans(stages, searched, loops);
  PlanAnswer answer;
  answer.pruned = std::move(loops.pruned);
  answer.states = loops.states;
  answer.problems = loops.problems;
  answer.certificate.memory_limit_bytes = limit.same() ? limit.least() : 0;
  answer.certificate.cost_model_fingerprint = cost.fingerprint();
  answer.certificate.objective = request.objective;
  answer.certificate.multiplier_bound_ps = loops.multiplier_bound_ps;
  if (request.multipliers && (loops.finalists.empty() || loops.bound_ps > 0)) {
    answer.certificate.proofs = {
        {request.space, std::move(loops.multipliers), stages.frame({}).device_order}};
    Space& proved = answer.certificate.proofs.front().space;
    proved.interleaved = proved.zero_bubble = proved.idle = false;
    proved.zero_bubble_v = proved.dual_pipe_v = false;
  }
  if (loops.finalists.empty() && request.known.some()) {
    answer.status = loops.exhausted ? Status::kBudget : Status::kOptimal;
    answer.certificate.bound_ps = loops.bound_ps;
    return answer;
  }
  if (loops.finalists.empty()) {
    answer.status = loops.exhausted ? Status::kBudget : Status::kInfeasible;
    const bool nothing_divides = loops.least_peak_bytes >= kForbidden;
    answer.shortfall_bytes =
        nothing_divides ? 0 : cost.reserved_bytes(loops.least_peak_bytes) - limit.least();
    if (request.relax && !loops.exhausted && !nothing_divides) {
      TRY(answer.relaxations, relax_request(costs, request, budget, loops));
    }
    return answer;
  }
  const Finalist& best = loops.finalists.front();
  answer.certificate.cost_ps = best.closed_form_ps;
  answer.certificate.bound_ps = loops.bound_ps;
  answer.certificate.gap = real(best.closed_form_ps - loops.bound_ps) / real(best.closed_form_ps);
  answer.certificate.multiplier_gap =
      real(best.closed_form_ps - loops.multiplier_bound_ps) / real(best.closed_form_ps);
  for (const std::int64_t peak : best.stage_peak_bytes) {
    answer.certificate.stage_peak_bytes.push_back(cost.reserved_bytes(peak));
  }
  answer.status = loops.bound_ps < best.closed_form_ps ? Status::kBudget : Status::kOptimal;
  if (request.simulates)
    TRY_VOID(evaluate_best(stages, request, loops.finalists, answer));
  else
    answer.runners_up.push_back({best.plan, best.closed_form_ps, best.expected_ps, best.energy_ps});
  return answer;
}

/// Plans for more memory than there is, by parts of what all states take of a device, with states
/// of some layers moved to the host.
base::Result<std::vector<Finalist>> moved_plans(costmodel::LayerCosts& costs,
                                                const PlanRequest& request,
                                                const costmodel::MemoryLimit& limit) {
  const costmodel::CostModel& cost = costs.cost();
  const bool half = cost.options().precision != model::Precision::kFloat32;
  const std::int64_t states_bytes = cost.model().trained_parameters() * (half ? 12 : 8) /
                                    static_cast<std::int64_t>(cost.topology().device_count());
  std::vector<Finalist> found;
  for (const int part : {16, 8, 4, 2, 1}) {
    PlanRequest larger = request;
    larger.memory_bytes = limit.least() + states_bytes / part;
    larger.space.states_on_host = larger.relax = larger.multipliers = larger.simulates = false;
    TRY(PlanAnswer there, find_in_order(cost, larger));
    if (there.runners_up.empty()) continue;
    std::optional<plan::Plan> plan =
        with_states_moved(costs, std::move(there.runners_up.front().plan), limit.usable(cost));
    if (!plan) continue;
    if (!plan::copies_to_host(*plan)) break;  // memory is not short
    TRY(Finalist finalist, finalist_of(costs, *std::move(plan)));
    found.push_back(std::move(finalist));
  }
  std::ranges::stable_sort(found, {}, &Finalist::closed_form_ps);
  return found;
}

/// Adds plans of layers that differ in where their states are, if some is better. Nothing is proved
/// of them.
base::Result<void> add_mixed_states(const costmodel::CostModel& cost, const PlanRequest& request,
                                    PlanAnswer& answer) {
  TRY(const costmodel::MemoryLimit limit, memory_of(cost, request));
  costmodel::LayerCosts costs(cost, request.objective);
  TRY(const std::vector<Finalist> found, moved_plans(costs, request, limit));
  if (found.empty()) return {};
  PlanRequest better = request;
  better.known = known_of(answer, request.known);
  better.known.only_better = true;
  better.space.states_on_host = better.space.spatial_temporal = false;
  StageModel stages(costs, better.space, better.global_batch, limit.usable(cost));
  PlanAnswer part;
  TRY_VOID(evaluate_best(stages, better, found, part));
  if (part.candidates.empty()) return {};
  part.status = Status::kBudget;
  Certificate& c = part.certificate;
  c = answer.certificate;
  c.proofs.clear();
  TRY(const Finalist cheapest,
      finalist_of(costs,
                  std::ranges::min_element(part.candidates, {}, &Candidate::closed_form_ps)->plan));
  c.cost_ps = cheapest.closed_form_ps;
  c.bound_ps = std::min(c.bound_ps, c.cost_ps - 1);
  c.multiplier_bound_ps = std::min(c.multiplier_bound_ps, c.cost_ps - 1);
  c.stage_peak_bytes.clear();
  for (const std::int64_t peak : cheapest.stage_peak_bytes)
    c.stage_peak_bytes.push_back(cost.reserved_bytes(peak));
  merge_answer(std::move(part), answer);
  return {};
}

/// Optimizer states of all layers on the device, and on the host: two spaces, each with its proof.
/// Then plans of both.
base::Result<PlanAnswer> find_by_states(const costmodel::CostModel& cost,
                                        const PlanRequest& request) {
  if (!request.space.states_on_device || !request.space.states_on_host || !request.simulates)
    return find_in_order(cost, request);
  PlanRequest one = request;
  one.relax = false;
  one.space.states_on_host = false;
  PlanAnswer answer;
  TRY(PlanAnswer device, find_in_order(cost, one));
  merge_answer(std::move(device), answer);
  one.space = request.space;
  one.space.states_on_device = false;
  one.known = known_of(answer, request.known);
  one.relax = request.relax && answer.status == Status::kInfeasible;
  TRY(PlanAnswer host, find_in_order(cost, one));
  if (answer.status == Status::kInfeasible && host.status == Status::kInfeasible) return host;
  for (Pruned& p : host.pruned) p.candidate = "states=host: " + p.candidate;
  merge_answer(std::move(host), answer);
  TRY_VOID(add_mixed_states(cost, request, answer));
  order_answer(answer, request.top);
  return answer;
}

/// Every order, and where hosts of a kind are not together the cluster's own.
base::Result<std::vector<costmodel::CostModel>> in_all_orders(const costmodel::CostModel& cost) {
  std::vector<costmodel::CostModel> all;
  const auto own = topologies::device_order(cost.topology());
  if (!topologies::is_in_device_order(cost.topology(), own)) all.push_back(cost);
  for (const topologies::DeviceOrder& order : topologies::device_orders(cost.topology())) {
    TRY(costmodel::CostModel ordered, cost.in_order(order));
    all.push_back(std::move(ordered));
  }
  return all;
}

}  // namespace

base::Result<PlanAnswer> find_plan(const costmodel::CostModel& cost, const PlanRequest& request) {
  if (!cost.mixed() || !request.orders) return find_by_states(cost, request);
  PlanAnswer answer;
  std::optional<PlanAnswer> nearest;  // where nothing fits: the order that lacks least
  TRY(const std::vector<costmodel::CostModel> orders, in_all_orders(cost));
  for (const costmodel::CostModel& there : orders) {
    TRY(PlanAnswer part, find_by_states(there, request));
    const std::string name = base::join(topologies::device_order(there.topology()), ", ");
    for (Pruned& p : part.pruned) p.candidate = fmt::format("{}: {}", name, p.candidate);
    if (part.status == Status::kInfeasible &&
        (!nearest || part.shortfall_bytes < nearest->shortfall_bytes))
      nearest = part;
    merge_answer(std::move(part), answer);
  }
  if (answer.status == Status::kInfeasible && nearest) {
    answer.shortfall_bytes = nearest->shortfall_bytes;
    answer.relaxations = std::move(nearest->relaxations);
    answer.certificate = std::move(nearest->certificate);
  }
  order_answer(answer, request.top);
  return answer;
}

}  // namespace orrery::search
