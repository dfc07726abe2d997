#pragma once
/// \file
/// Plans found so far: the best of every group.
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "search/costs/stage_model.h"
#include "search/loop/candidates.h"

namespace orrery::search {

class BestOfGroups {
 public:
  /// (pp, devices, m, schedule)
  using Group = std::tuple<int, int, std::int64_t, plan::Schedule>;
  static Group group_of(const PlanProblem& p) {
    return {p.stages, p.devices, p.micro_batches, p.schedule};
  }

  [[nodiscard]] bool empty() const { return best_.empty(); }
  [[nodiscard]] std::size_t size() const { return best_.size(); }
  /// The closed form of the n-th cheapest. @pre n < size()
  [[nodiscard]] std::int64_t closed_form_ps(std::size_t n) const {
    return best_[n].second.closed_form_ps;
  }
  /// Null: the group has no plan.
  [[nodiscard]] const Finalist* find(const Group& group) const {
    const auto found = std::ranges::find(best_, group, &Best::first);
    return found == best_.end() ? nullptr : &found->second;
  }
  /// In place of what its group had.
  void keep(const PlanProblem& problem, Finalist finalist) {
    const Group group = group_of(problem);
    const auto found = std::ranges::find(best_, group, &Best::first);
    if (found != best_.end())
      found->second = std::move(finalist);
    else
      best_.emplace_back(group, std::move(finalist));
    std::ranges::stable_sort(best_, {}, [](const Best& b) { return b.second.closed_form_ps; });
  }
  /// The cheapest so many.
  [[nodiscard]] std::vector<Finalist> top(std::size_t most) const {
    std::vector<Finalist> some;
    for (std::size_t i = 0; i < std::min(most, best_.size()); ++i) some.push_back(best_[i].second);
    return some;
  }

 private:
  using Best = std::pair<Group, Finalist>;
  std::vector<Best> best_;  // cheapest first
};

}  // namespace orrery::search
