#include "search/explain/explain.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <set>

#include "search/explain/uniform_sweep.h"
#include "search/space/space_text.h"

namespace orrery::search {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::int64_t kStep = 100'000;  // 10 %

class Explainer {
 public:
  Explainer(const costmodel::CostModel& cost, const ExplainRequest& request) : cost_(cost), request_(request) {}

  base::Result<Explanation> run() {
    TRY(e_.plan, account_of(cost_, request_.plan));
    limit_ = memory_limit();
    TRY(e_.limits, limits_of(cost_, e_.plan, limit_));
    TRY_VOID(search_others());
    TRY_VOID(sweep());
    TRY_VOID(hold_against());
    pool();
    TRY_VOID(vary());
    e_.bound = bound();
    judge();
    if (!e_.limits.fits()) {
      TRY(e_.relaxations, ways_to_fit(cost_, e_.plan, limit_));
    }
    return std::move(e_);
  }

 private:
  [[nodiscard]] std::int64_t memory_limit() const {
    if (request_.problem.memory_bytes > 0) return request_.problem.memory_bytes;
    std::int64_t least = cost_.topology().device_models().front().memory_bytes;
    for (const topologies::DeviceModel& device : cost_.topology().device_models()) least = std::min(least, device.memory_bytes);
    return least;
  }

  // ---- runners-up ----

  /// The plans of the search and those that decide otherwise.
  base::Result<void> search_others() {
    TRY(const PlanAnswer answer, find_plan(cost_, request_.problem));
    e_.search_status = answer.status;
    if (answer.status == Status::kInfeasible) e_.problem_relaxations = answer.relaxations;
    if (!answer.candidates.empty()) best_ = Account{answer.candidates.front().plan, answer.candidates.front().report};
    if (e_.limits.fits() && (!best_ || e_.plan.step_ps() <= best_->step_ps())) best_ = e_.plan;
    for (const Candidate& c : answer.candidates) pool_.push_back({c.plan, c.report});
    TRY(e_.decisions, decisions_of(cost_, e_.plan, request_.problem, pool_));
    return {};
  }

  /// A search orders by closed form and simulates a few, so another one's plan may be the faster answer to a question. All that were simulated count.
  void pool() {
    std::erase_if(pool_, [&](const Account& a) { return a.peak_bytes() > limit_; });
    std::ranges::stable_sort(pool_, {}, &Account::step_ps);
    const auto devices = static_cast<std::int64_t>(cost_.topology().device_count());
    const auto improve = [&](const Space& space, std::optional<Comparison>& best) {
      const auto found = std::ranges::find_if(pool_, [&](const Account& a) { return allows(space, a.plan, devices); });
      if (found == pool_.end() || (best && best->account.step_ps() <= found->step_ps())) return false;
      best = compared(e_.plan, *found);
      return true;
    };
    for (Decision& d : e_.decisions) improve(d.space, d.best);
    if (e_.versus && e_.versus->of_values && e_.versus->fits) improve(request_.versus_space->space, e_.versus->comparison);
    std::set<std::string> seen{plan::fingerprint(plan::canonical(e_.plan.plan))};
    for (const Account& a : pool_) {
      if (e_.others.size() == static_cast<std::size_t>(request_.others)) return;
      if (seen.insert(plan::fingerprint(plan::canonical(a.plan))).second) e_.others.push_back(compared(e_.plan, a));
    }
  }

  base::Result<void> sweep() {
    costmodel::LayerCosts costs(cost_);
    const UniformSweep sweep = sweep_uniform(costs, request_.problem, limit_ - cost_.context_bytes());
    e_.uniform_plans = sweep.evaluated;
    if (!sweep.best) return {};
    TRY(Account account, account_of(cost_, *sweep.best));
    pool_.push_back(account);
    e_.uniform = compared(e_.plan, std::move(account));
    return {};
  }

  // ---- versus ----

  base::Result<void> hold_against() {
    if (request_.versus_plan) {
      TRY(Account account, account_of(cost_, *request_.versus_plan));
      set_versus({.text = "the other plan"}, std::move(account));
    } else if (request_.versus_space) {
      TRY_VOID(search_versus());
    }
    return {};
  }
  void set_versus(Versus versus, Account account) {
    versus.shortfall_bytes = std::max<std::int64_t>(account.peak_bytes() - limit_, 0);
    versus.fits = versus.shortfall_bytes == 0;
    versus.stage = account.fullest_stage();
    versus.comparison = compared(e_.plan, std::move(account));
    e_.versus = std::move(versus);
  }
  /// The best plan with the fixed values. When none fits, the best one that would with the least memory that any needs.
  base::Result<void> search_versus() {
    Versus versus{.text = request_.versus_space->text, .of_values = true};
    PlanRequest fixed = request_.problem;
    fixed.space = request_.versus_space->space;
    TRY(const PlanAnswer answer, find_plan(cost_, fixed));
    for (const Candidate& c : answer.candidates) pool_.push_back({c.plan, c.report});
    if (!answer.candidates.empty()) {
      set_versus(std::move(versus), {answer.candidates.front().plan, answer.candidates.front().report});
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
        set_versus(std::move(versus), {roomier.candidates.front().plan, roomier.candidates.front().report});
        return {};
      }
    }
    e_.versus = std::move(versus);
    return {};
  }

  /// Why no plan divides: what the fixed degrees leave, then what the search cut for another reason than being fixed.
  [[nodiscard]] std::vector<Pruned> reasons(const PlanAnswer& answer, const Space& space) const {
    constexpr std::size_t kReasons = 5;
    std::vector<Pruned> found;
    const std::int64_t fixed = std::int64_t{space.fix_tp.value_or(1)} * space.fix_pp.value_or(1) * space.fix_dp.value_or(1);
    const auto devices = static_cast<std::int64_t>(cost_.topology().device_count());
    if (fixed > devices || (!space.idle && devices % fixed != 0)) {
      found.push_back({request_.versus_space->text, fmt::format("{} ranks do not divide {} devices", fixed, devices)});
    }
    for (Pruned& p : telling_reasons(answer.pruned, kReasons - found.size())) found.push_back(std::move(p));
    return found;
  }

  // ---- sensitivity ----

  base::Result<void> vary() {
    for (const std::int64_t change : {-kStep, kStep}) {
      TRY_VOID(vary_speed("compute", change, {.compute_ppm = kMillion + change}));
      TRY_VOID(vary_speed("bandwidth", change, {.bandwidth_ppm = kMillion + change}));
      TRY_VOID(vary_memory(change));
    }
    std::ranges::stable_sort(e_.what_ifs, {}, &WhatIf::what);
    for (std::size_t i = 0; i + 1 < e_.what_ifs.size(); i += 2) {
      const WhatIf &less = e_.what_ifs[i], &more = e_.what_ifs[i + 1];
      if (less.what == "memory" || !less.step_ps || !more.step_ps) continue;
      const double span = 2 * static_cast<double>(kStep) / static_cast<double>(kMillion);
      e_.elasticities.push_back({less.what, static_cast<double>(*more.step_ps - *less.step_ps) / (span * static_cast<double>(e_.plan.step_ps()))});
    }
    return {};
  }
  base::Result<void> vary_speed(const char* what, std::int64_t change, const costmodel::SpeedScale& scale) {
    const costmodel::CostModel scaled = cost_.scaled(scale);
    TRY(const Account account, account_of(scaled, e_.plan.plan));
    return search_there(scaled, limit_, {.what = what, .change_ppm = change, .step_ps = account.step_ps()}, account);
  }
  base::Result<void> vary_memory(std::int64_t change) {
    const auto limit = static_cast<std::int64_t>(static_cast<__int128>(limit_) * (kMillion + change) / kMillion);
    WhatIf row{.what = "memory", .change_ppm = change};
    if (e_.plan.peak_bytes() <= limit) row.step_ps = e_.plan.step_ps();
    return search_there(cost_, limit, std::move(row), e_.plan);
  }
  /// `here`: the explained plan there. It counts among the plans found: the search orders by closed form, this table by simulation.
  base::Result<void> search_there(const costmodel::CostModel& cost, std::int64_t limit, WhatIf row, const Account& here) {
    PlanRequest there = request_.problem;
    there.memory_bytes = limit;
    there.relax = false;
    TRY(const PlanAnswer answer, find_plan(cost, there));
    if (!answer.candidates.empty()) row.best = Account{answer.candidates.front().plan, answer.candidates.front().report};
    if (here.peak_bytes() <= limit && (!row.best || here.step_ps() < row.best->step_ps())) row.best = here;
    row.best_changes = best_.has_value() != row.best.has_value() || (best_ && best_->plan != row.best->plan);
    e_.what_ifs.push_back(std::move(row));
    return {};
  }

  // ---- verdict ----

  [[nodiscard]] TimeBound bound() const {
    const double bubble = static_cast<double>(e_.limits.bubble_ps) / static_cast<double>(e_.plan.step_ps());
    double compute = 0, communication = 0;
    for (const Elasticity& x : e_.elasticities) (x.what == "compute" ? compute : communication) = -x.value * (1 - bubble);
    if (bubble > compute && bubble > communication) return TimeBound::kBubble;
    return communication > compute ? TimeBound::kCommunication : TimeBound::kCompute;
  }

  /// The fastest plan known, explained or found, against the next.
  void judge() {
    e_.uncertainty = costmodel::uncertainty_of(cost_);
    std::vector<const Account*> known;
    if (e_.limits.fits()) known.push_back(&e_.plan);
    for (const Comparison* c : rivals(e_)) known.push_back(&c->account);
    std::ranges::stable_sort(known, {}, [](const Account* a) { return a->step_ps(); });
    if (known.size() < 2) return;
    e_.gap_ps = known[1]->step_ps() - known[0]->step_ps();
    e_.stability = Stability::kCertain;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 1; i < known.size(); ++i) {
      std::int64_t moved = 0;
      for (const std::int64_t ps : difference(*known[0], *known[i])) moved += std::abs(ps);
      const std::int64_t gap = known[i]->step_ps() - known[0]->step_ps(), error = share(moved);
      if (gap <= error) e_.stability = Stability::kOpen;
      else if (gap <= share(known[0]->step_ps()) && e_.stability == Stability::kCertain) e_.stability = Stability::kLikely;
      if (gap - error >= least) continue;
      least = gap - error;
      e_.least_sure = LeastSure{known[i]->plan, gap, error};
    }
  }
  [[nodiscard]] std::int64_t share(std::int64_t ps) const {
    return static_cast<std::int64_t>(static_cast<__int128>(ps) * e_.uncertainty.band_ppm / kMillion);
  }

  const costmodel::CostModel& cost_;
  const ExplainRequest& request_;
  std::int64_t limit_ = 0;
  std::optional<Account> best_;      // fastest that fits, found or explained
  std::vector<Account> pool_;        // every plan simulated on the unchanged machine
  Explanation e_;
};

}  // namespace

std::string_view to_string(Stability s) {
  switch (s) {
    case Stability::kCertain: return "certain";
    case Stability::kLikely: return "likely";
    case Stability::kOpen: return "open";
  }
  return "";
}

std::vector<const Comparison*> rivals(const Explanation& e) {
  std::set<std::string> seen{plan::fingerprint(plan::canonical(e.plan.plan))};
  std::vector<const Comparison*> list;
  const auto add = [&](const Comparison& c) {
    if (seen.insert(plan::fingerprint(plan::canonical(c.account.plan))).second) list.push_back(&c);
  };
  for (const Comparison& c : e.others) add(c);
  for (const Decision& d : e.decisions) {
    if (d.best) add(*d.best);
  }
  if (e.uniform) add(*e.uniform);
  if (e.versus && e.versus->comparison && e.versus->fits) add(*e.versus->comparison);
  std::ranges::stable_sort(list, {}, [](const Comparison* c) { return c->account.step_ps(); });
  return list;
}

base::Result<Explanation> explain(const costmodel::CostModel& cost, const ExplainRequest& request) {
  return Explainer(cost, request).run();
}

}  // namespace orrery::search
