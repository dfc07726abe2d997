#include "search/explain/explain.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/ids.h"
#include "base/numbers.h"
#include "costmodel/memory_limit.h"
#include "search/explain/known_plans.h"
#include "search/explain/uniform_sweep.h"
#include "search/space/space_text.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::int64_t kStep = 100'000;  // 10 %

class Explainer {
 public:
  Explainer(const costmodel::CostModel& cost, ExplainRequest request)
      : cost_(cost), request_(std::move(request)) {}

  base::Result<Explanation> run() {
    limit_ = memory_limit();
    request_.problem.memory_bytes = limit_;
    request_.problem.orders = false;  // of devices: that of the plan
    known_.emplace(cost_, limit_, request_.problem.threads);
    TRY(e_.plan, simulate_plan(cost_, request_.plan));
    known_->add(e_.plan);
    TRY(e_.limits, limits_of(cost_, e_.plan, limit_));
    TRY_VOID(search_others());
    TRY_VOID(sweep());
    TRY_VOID(hold_against());
    TRY_VOID(vary());
    TRY_VOID(improve());
    TRY_VOID(settle());
    TRY_VOID(judge());
    if (!e_.limits.fits()) {
      TRY(e_.relaxations, ways_to_fit(cost_, e_.plan, limit_));
    }
    e_.simulated = known_->simulated();
    return std::move(e_);
  }

 private:
  [[nodiscard]] std::int64_t memory_limit() const {
    return costmodel::MemoryLimit(cost_, request_.problem.memory_bytes).least();
  }

  // ---- runners-up ----

  /// The plans of the search and those that decide otherwise.
  base::Result<void> search_others() {
    TRY(const PlanAnswer answer, find_plan(cost_, request_.problem));
    e_.search_status = answer.status;
    if (answer.status == Status::kInfeasible) e_.problem_relaxations = answer.relaxations;
    known_->add(answer.candidates);
    TRY_VOID(known_->search(request_.problem));
    TRY(e_.decisions, decisions_of(cost_, e_.plan.plan, request_.problem, *known_));
    return {};
  }

  base::Result<void> sweep() {
    costmodel::LayerCosts costs(cost_);
    const UniformSweep sweep = sweep_uniform(costs, request_.problem, cost_.usable_bytes(limit_));
    e_.uniform_plans = sweep.evaluated;
    if (!sweep.best) return {};
    TRY(SimulatedPlan simulated, simulate_plan(cost_, *sweep.best));
    known_->add(simulated);
    e_.uniform = compared(e_.plan, std::move(simulated));
    return {};
  }

  // ---- versus ----

  base::Result<void> hold_against() {
    if (!request_.versus_plan)
      return request_.versus_space ? search_versus() : base::Result<void>();
    TRY(SimulatedPlan simulated, simulate_plan(cost_, *request_.versus_plan));
    known_->add(simulated);
    set_versus({.text = "the other plan"}, std::move(simulated));
    return {};
  }
  void set_versus(Versus versus, SimulatedPlan simulated) {
    versus.shortfall_bytes = std::max<std::int64_t>(simulated.peak_bytes() - limit_, 0);
    versus.fits = versus.shortfall_bytes == 0;
    versus.stage = simulated.fullest_stage();
    versus.comparison = compared(e_.plan, std::move(simulated));
    e_.versus = std::move(versus);
  }
  /// The best plan with the fixed values. When none fits, the best one that would with the least
  /// memory that any needs.
  base::Result<void> search_versus() {
    Versus versus{.text = request_.versus_space->text, .of_values = true};
    PlanRequest fixed = request_.problem;
    fixed.space = request_.versus_space->space;
    TRY(const PlanAnswer answer, find_plan(cost_, fixed));
    known_->add(answer.candidates);
    TRY_VOID(known_->search(fixed));
    if (!answer.candidates.empty()) {
      set_versus(std::move(versus), simulate_plan(answer.candidates.front()));
      return {};
    }
    versus.relaxations = answer.relaxations;
    versus.fits = false;
    versus.shortfall_bytes = answer.shortfall_bytes;
    versus.reasons = reasons(answer, fixed.space);
    fixed.relax = false;
    if (answer.shortfall_bytes > 0) {
      fixed.memory_bytes = limit_ + answer.shortfall_bytes;
      TRY(const PlanAnswer roomier, find_plan(cost_, fixed));
      if (!roomier.candidates.empty()) {
        set_versus(std::move(versus), simulate_plan(roomier.candidates.front()));
        return {};
      }
    }
    e_.versus = std::move(versus);
    return {};
  }

  /// Why no plan divides: what the fixed degrees leave, then what the search cut for another reason
  /// than being fixed.
  [[nodiscard]] std::vector<Pruned> reasons(const PlanAnswer& answer, const Space& space) const {
    constexpr std::size_t kReasons = 5;
    std::vector<Pruned> found;
    const std::int64_t fixed = std::int64_t{space.fix_tp.value_or(1)} * space.fix_pp.value_or(1) *
                               space.fix_dp.value_or(1);
    const auto devices = static_cast<std::int64_t>(cost_.topology().device_count());
    if (fixed > devices || (!space.idle && devices % fixed != 0)) {
      found.push_back({request_.versus_space->text,
                       fmt::format("{} ranks do not divide {} devices", fixed, devices)});
    }
    for (Pruned& p : telling_reasons(answer.pruned, kReasons - found.size()))
      found.push_back(std::move(p));
    return found;
  }

  // ---- sensitivity ----

  /// A machine with a little more or less of something, and the plans that were simulated on it.
  struct Variant {
    costmodel::CostModel cost;
    WhatIf row;
    KnownPlans plans;
  };
  base::Result<void> vary() {
    constexpr std::array kChanges = {-kStep, kStep};
    for (const std::int64_t change : kChanges)
      TRY_VOID(
          vary_by("bandwidth", change, cost_.scaled({.bandwidth_ppm = kMillion + change}), limit_));
    for (const std::int64_t change : kChanges)
      TRY_VOID(
          vary_by("compute", change, cost_.scaled({.compute_ppm = kMillion + change}), limit_));
    for (const std::int64_t change : kChanges) {
      const __int128 limit = static_cast<__int128>(limit_) * (kMillion + change) / kMillion;
      TRY_VOID(vary_by("memory", change, cost_, static_cast<std::int64_t>(limit)));
    }
    return {};
  }
  /// Searches there. What is found there competes here too.
  base::Result<void> vary_by(const char* what, std::int64_t change,
                             const costmodel::CostModel& there, std::int64_t limit) {
    Variant variant{there,
                    {.what = what, .change_ppm = change},
                    KnownPlans(there, limit, request_.problem.threads)};
    TRY(SimulatedPlan simulated, simulate_plan(there, e_.plan.plan));
    if (limit == limit_ || simulated.peak_bytes() <= limit)
      variant.row.step_ps = simulated.step_ps();
    variant.plans.add(std::move(simulated));
    PlanRequest problem = request_.problem;
    problem.memory_bytes = limit;
    problem.relax = problem.multipliers = false;
    TRY(const PlanAnswer answer, find_plan(there, problem));
    variant.plans.add(answer.candidates);
    if (!answer.candidates.empty()) TRY_VOID(known_->add(answer.candidates.front().plan));
    variants_.push_back(std::move(variant));
    return {};
  }

  /// Everything has been searched: the known plans give the answers.
  base::Result<void> settle() {
    for (Decision& d : e_.decisions) {
      if (const SimulatedPlan* best = known_->best(d.space)) d.best = compared(e_.plan, *best);
    }
    if (e_.versus && e_.versus->of_values && e_.versus->fits && e_.versus->comparison) {
      if (const SimulatedPlan* best = known_->best(request_.versus_space->space))
        e_.versus->comparison = compared(e_.plan, *best);
    }
    for (const SimulatedPlan& a : known_->plans()) {
      if (e_.others.size() < as_index(request_.others) && !same(a.plan, e_.plan.plan))
        e_.others.push_back(compared(e_.plan, a));
    }
    settle_marks();
    for (Variant& v : variants_) TRY_VOID(settle(v));
    for (std::size_t i = 0; i + 1 < e_.what_ifs.size(); i += 2) {
      const WhatIf &less = e_.what_ifs[i], &more = e_.what_ifs[i + 1];
      if (less.what == "memory") continue;
      e_.elasticities.push_back(
          {less.what, elasticity(*less.step_ps, *more.step_ps, e_.plan.step_ps())});
    }
    e_.bound = bound_of(e_.plan, -e_.elasticities[1].value, -e_.elasticities[0].value);
    TRY(e_.release, release_of(cost_, e_.plan, e_.bound));
    return {};
  }
  /// The plans that are fastest here compete there.
  base::Result<void> settle(Variant& v) {
    constexpr std::size_t kLeaders = 3;
    const std::vector<SimulatedPlan>& here = known_->plans();
    for (std::size_t i = 0; i < std::min(kLeaders, here.size()); ++i)
      TRY_VOID(v.plans.add(here[i].plan));
    if (!v.plans.plans().empty()) v.row.best = v.plans.plans().front();
    v.row.best_changes =
        here.empty() != !v.row.best || (v.row.best && !same(here.front().plan, v.row.best->plan));
    e_.what_ifs.push_back(std::move(v.row));
    return {};
  }
  /// What fits here fits in more memory too.
  void settle_marks() {
    if (known_->plans().empty()) return;
    const SimulatedPlan& here = known_->plans().front();
    auto& [stores_all, enough] = e_.memory_marks;
    if (stores_all && here.step_ps() < stores_all->best.step_ps()) stores_all.reset();
    if (enough && here.step_ps() < enough->best.step_ps()) enough->best = here;
  }
  static bool same(const plan::Plan& a, const plan::Plan& b) {
    return plan::canonical(a) == plan::canonical(b);
  }

  // ---- improvements ----

  /// From the explained plan on; where that does not fit, from the best that does, anew where the
  /// search on other machines found a better one.
  base::Result<void> improve() {
    if (known_->plans().empty()) return {};
    TRY(e_.memory_marks, memory_marks(cost_, request_.problem));
    for (const auto* mark : {&e_.memory_marks.no_recomputation, &e_.memory_marks.enough}) {
      if (*mark) TRY_VOID(known_->add((*mark)->best.plan));
    }
    const bool kept = e_.limits.fits();
    bool settled = false;
    while (!settled) {
      const SimulatedPlan now = kept ? e_.plan : known_->plans().front();
      TRY(e_.improvements, improvements_of(cost_, now, kept, request_.problem, *known_));
      settled = kept || now.plan == known_->plans().front().plan;
    }
    return {};
  }

  // ---- verdict ----

  /// The fastest plan known, explained or found, against the next ones.
  base::Result<void> judge() {
    constexpr std::size_t kDrawn = 4;
    e_.uncertainty = costmodel::uncertainty_of(cost_, e_.plan.plan);
    std::vector<const SimulatedPlan*> known;
    if (e_.limits.fits()) known.push_back(&e_.plan);
    for (const Comparison* c : rivals(e_)) known.push_back(&c->simulated);
    std::ranges::stable_sort(known, {}, &SimulatedPlan::step_ps);
    if (known.size() > 1) e_.gap_ps = known[1]->step_ps() - known[0]->step_ps();
    known.resize(std::min(known.size(), kDrawn));
    std::vector<const plan::Plan*> plans{&e_.plan.plan};
    for (const SimulatedPlan* a : known) plans.push_back(&a->plan);
    TRY(const auto draws,
        costmodel::drawn_steps(cost_, plans, costmodel::draw_errors(e_.uncertainty.spread)));
    e_.band = e_.uncertainty.widened(costmodel::band_of(draws.front()));
    const auto step = [&](std::size_t i) {
      return costmodel::DrawnStep{known[i]->step_ps(), draws[i + 1]};
    };
    for (std::size_t i = 1; i < known.size(); ++i) {
      const double share = costmodel::share_faster(step(i), step(0));
      if (e_.least_sure && share <= e_.least_sure->share_faster) continue;
      e_.least_sure = LeastSure{known[i]->plan, known[i]->step_ps() - known[0]->step_ps(), share};
    }
    if (!e_.least_sure) return {};
    if (costmodel::within_error(e_.least_sure->share_faster))
      e_.stability = Stability::kOpen;
    else
      e_.stability = e_.least_sure->share_faster == 0 ? Stability::kCertain : Stability::kLikely;
    return {};
  }

  const costmodel::CostModel& cost_;
  ExplainRequest request_;
  std::int64_t limit_ = 0;
  std::optional<KnownPlans> known_;  // every plan simulated on the unchanged machine
  std::vector<Variant> variants_;
  Explanation e_;
};

}  // namespace

std::string_view to_string(Stability s) {
  return base::EnumNames<Stability::kOpen>("certain", "likely", "open")[s];
}

std::vector<const Comparison*> rivals(const Explanation& e) {
  std::set<std::string> seen{plan::fingerprint(plan::canonical(e.plan.plan))};
  std::vector<const Comparison*> list;
  const auto add = [&](const Comparison& c) {
    if (seen.insert(plan::fingerprint(plan::canonical(c.simulated.plan))).second)
      list.push_back(&c);
  };
  for (const Comparison& c : e.others) add(c);
  for (const Decision& d : e.decisions) {
    if (d.best) add(*d.best);
  }
  if (e.uniform) add(*e.uniform);
  if (e.versus && e.versus->comparison && e.versus->fits) add(*e.versus->comparison);
  std::ranges::stable_sort(list, {}, [](const Comparison* c) { return c->simulated.step_ps(); });
  return list;
}

base::Result<Explanation> explain(const costmodel::CostModel& cost, const ExplainRequest& request) {
  return Explainer(cost, request).run();
}

}  // namespace orrery::search
