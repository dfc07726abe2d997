#pragma once
/// \file
/// The plans that an explanation knows: everything that was simulated on one machine, each plan
/// once. All answers of a page come from them, so none of them can be beaten by a plan that
/// stands elsewhere on the page.
///
/// A search orders plans by closed form, and the simulator may order them otherwise. So a search's
/// plans are simulated, cheapest first, until
///
///     closed form of the next · least (simulated / closed form) seen so far  >=  best simulated
///       of this search
///
/// or all that the search kept are: then no plan that the simulator treats as kindly as the
/// luckiest one known can still win. Quick runners-up are cheap and many-sided: all of them are
/// simulated. Nothing is proved here, so a search leaves a problem sooner than the planner does,
/// and is run once.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "costmodel/cost_model.h"
#include "search/explain/simulated_plan.h"
#include "search/loop/best_first.h"

namespace orrery::search {

class KnownPlans {
 public:
  /// `limit_bytes`: what a device may hold.
  KnownPlans(costmodel::CostModel cost, std::int64_t limit_bytes, int threads)
      : cost_(std::move(cost)), limit_bytes_(limit_bytes), threads_(threads) {}

  /// Simulates the plan unless it is known. Errors: those of simulate_plan.
  base::Result<void> add(const plan::Plan& plan);
  void add(SimulatedPlan simulated);
  void add(const std::vector<Candidate>& candidates);

  struct Searched {
    bool found = false;
    std::int64_t shortfall_bytes = 0;  // nothing fits: what the smallest lacks; 0: nothing divides
  };
  /// Searches the request within the limit; requests of one object differ in their space
  /// alone. Errors: those of the simulator.
  base::Result<Searched> search(PlanRequest request, RunnersUp runners_up = RunnersUp::kCheapest);

  /// Those that fit, fastest first; of equals the first added.
  [[nodiscard]] const std::vector<SimulatedPlan>& plans() const { return plans_; }
  /// The fastest plan of a space, or null.
  [[nodiscard]] const SimulatedPlan* best(const Space& space) const;
  /// Plans simulated, those that do not fit among them.
  [[nodiscard]] std::size_t simulated() const { return known_.size(); }

 private:
  base::Result<Searched> search_anew(PlanRequest request, RunnersUp runners_up);

  costmodel::CostModel cost_;
  std::int64_t limit_bytes_;
  int threads_;
  double kindest_ = 1;           // least simulated / closed form
  std::set<std::string> known_;  // fingerprints
  std::vector<SimulatedPlan> plans_;
  struct Search {
    Space space;
    RunnersUp runners_up = RunnersUp::kQuick;
    Searched result;
  };
  std::vector<Search> searches_;
};

}  // namespace orrery::search
