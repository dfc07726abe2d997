#include "search/loop/merged_answers.h"

#include <algorithm>

#include "base/numbers.h"

namespace orrery::search {
namespace {

/// Folds the plans of one part into those of all.
void merge_plans(PlanAnswer part, PlanAnswer& all) {
  all.states += part.states;
  all.problems += part.problems;
  for (Pruned& p : part.pruned) all.pruned.push_back(std::move(p));
  if (part.status == Status::kInfeasible) return;
  const bool first = all.status == Status::kInfeasible;
  const std::int64_t bound = first ? part.certificate.bound_ps
                                   : std::min(all.certificate.bound_ps, part.certificate.bound_ps);
  const bool open = part.status == Status::kBudget || (!first && all.status == Status::kBudget);
  if (!part.candidates.empty() &&
      (all.candidates.empty() || part.certificate.cost_ps < all.certificate.cost_ps)) {
    all.certificate = part.certificate;
  }
  all.certificate.bound_ps = bound;
  all.status = open ? Status::kBudget : Status::kOptimal;
  for (RunnerUp& r : part.runners_up) all.runners_up.push_back(std::move(r));
  for (Candidate& c : part.candidates) {
    // Strategies that differ only where a plan has no choice (one micro-batch reduces once either
    // way) give one plan.
    if (std::ranges::find(all.candidates, c.plan, &Candidate::plan) == all.candidates.end())
      all.candidates.push_back(std::move(c));
  }
}

/// A few, and the one that the certificate speaks of.
void keep_runners_up(PlanAnswer& answer) {
  constexpr std::size_t kKept = 7;
  std::vector<RunnerUp>& r = answer.runners_up;
  if (r.size() <= kKept) return;
  const auto cheapest = std::ranges::find(r, answer.certificate.cost_ps, &RunnerUp::closed_form_ps);
  if (cheapest != r.end() && cheapest - r.begin() >= static_cast<std::ptrdiff_t>(kKept))
    r[kKept - 1] = *cheapest;
  r.resize(kKept);
}

}  // namespace

void merge_answer(PlanAnswer part, PlanAnswer& all) {
  std::vector<SpaceProof> proofs = std::move(all.certificate.proofs);
  const std::int64_t multiplier_bound =
      proofs.empty()
          ? part.certificate.multiplier_bound_ps
          : std::min(all.certificate.multiplier_bound_ps, part.certificate.multiplier_bound_ps);
  std::optional<std::int64_t> partitions = all.certificate.partition_bound_ps;
  if (const auto& its = part.certificate.partition_bound_ps)
    partitions = std::min(partitions.value_or(*its), *its);
  proofs.insert(proofs.end(), part.certificate.proofs.begin(), part.certificate.proofs.end());
  merge_plans(std::move(part), all);
  all.certificate.proofs = std::move(proofs);
  all.certificate.multiplier_bound_ps = multiplier_bound;
  all.certificate.partition_bound_ps = partitions;
}

KnownPlan known_of(const PlanAnswer& answer, KnownPlan known) {
  constexpr std::int64_t kMargin = 33;  // 3 %
  for (const Candidate& c : answer.candidates) {
    known.closed_form_ps =
        std::min(known.closed_form_ps, c.closed_form_ps + c.closed_form_ps / kMargin);
    known.step_ps = std::min(known.step_ps, c.simulated_ps());
  }
  return known;
}

void order_answer(PlanAnswer& answer, int top) {
  std::vector<Candidate>& c = answer.candidates;
  std::ranges::stable_sort(c, {}, &Candidate::closed_form_ps);
  for (std::size_t i = 0; i < c.size(); ++i) {
    for (std::size_t j = i + 1; j < c.size(); ++j) {
      const bool dearer = c[i].closed_form_ps < c[j].closed_form_ps;
      if (dearer && c[i].simulated_ps() > c[j].simulated_ps()) ++answer.order_changes;
    }
  }
  const Candidate cheapest = c.empty() ? Candidate{} : c.front();
  std::ranges::stable_sort(c, {}, &Candidate::simulated_ps);
  if (c.size() > as_index(top)) {
    c.resize(as_index(top));
    if (std::ranges::find(c, cheapest.plan, &Candidate::plan) == c.end()) c.push_back(cheapest);
  }
  std::ranges::stable_sort(answer.runners_up, {}, &RunnerUp::expected_ps);
  keep_runners_up(answer);
  Certificate& k = answer.certificate;
  if (!c.empty()) k.gap = real(k.cost_ps - k.bound_ps) / real(k.cost_ps);
  k.multiplier_bound_ps =
      c.empty() ? k.multiplier_bound_ps : std::min(k.multiplier_bound_ps, k.cost_ps);
  if (!c.empty()) k.multiplier_gap = real(k.cost_ps - k.multiplier_bound_ps) / real(k.cost_ps);
  if (!c.empty() && answer.status == Status::kOptimal && k.bound_ps < k.cost_ps)
    answer.status = Status::kBudget;
}

}  // namespace orrery::search
