#pragma once
/// Weighted max-min fair shares.
///
/// Variables v (transfers) have a rate x_v >= 0 and possibly a cap u_v. Constraints l (links) have
/// a capacity C_l; variable v consumes a_{v,l} x_v of l, where the integer a_{v,l} >= 1 is the
/// number of its equal flows that cross l:
///
///     for every l:  sum_v a_{v,l} x_v <= C_l            for every v:  x_v <= u_v
///
/// The max-min fair rates are the lexicographically largest sorted vector x: no rate can grow
/// without lowering one that is not larger. They are found by progressive filling (Bertsekas,
/// Gallager, Data Networks, 2nd ed., section 6.5.2): all rates rise together; with A_l the weight
/// of the still rising variables of l and R_l what the stopped ones have left of it,
///
///     level = min( min_l R_l / A_l , min_v u_v )
///
/// is the next height at which something stops: the variables whose cap is the level, and all that
/// cross a link whose R_l / A_l is the level. Repeat for the rest.
///
/// Rounding, one rule: R_l / A_l is rounded down, so rates are whole (bytes per second), sums are
/// exact and no capacity is exceeded. With whole rates a link is saturated when less than one unit
/// for each of the A_l that stop there is left:
///
///     0 <= C_l - sum_v a_{v,l} x_v < A_l <= sum_v a_{v,l}
///
/// Levels never fall: stopping weight a at level r leaves
/// floor((R - a r) / (A - a)) >= floor(R / A) where floor(R / A) >= r. All is integer, so the
/// answer does not depend on the order of variables or constraints.
///
/// Worked example (a test): C_1 = 10 with x_1, x_2; C_2 = 8 with x_2, x_3 and a_{3,2} = 3. Levels:
/// 10/2 = 5 and 8/4 = 2, so x_2 = x_3 = 2 and then x_1 = 10 - 2 = 8.
///
/// Incremental. solve() repeats only what a change can reach:
///  * Below level m filling goes as it went before, where m is the least of: the old rates of
///    variables that left; and, for each constraint l that gained some, the level where it is full
///    if all others keep their rates, the last x_k of
///        x_0 = 0,   x_{k+1} = floor( (C_l - sum of a r over r < x_k) / (weight of the others) ),
///    which never falls. (A variable that left at rate r had no saturated link below r, and without
///    it links only gain.)
///  * So variables with a rate below m are constants, and only those that are connected to a change
///    by variables at or above m rise again, from m.
/// A round looks at the constraints that still rise, and at the variables of those that stop. A
/// variable that shares no constraint with another has min(u_v, min_l floor(C_l / a_{v,l})) without
/// a round.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"

namespace orrery::sim::kernel {

using VariableId = base::Id<struct MaxMinVariableTag>;
using ConstraintId = base::Id<struct MaxMinConstraintTag>;

/// Variable consumes `weight` times its rate of the constraint.
struct Consumption {
  ConstraintId constraint;
  std::int64_t weight = 1;
};

class MaxMin {
 public:
  static constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

  /// @pre capacity >= 0.
  ConstraintId add_constraint(std::int64_t capacity);
  /// A variable, not active at first. @pre cap >= 0, weights >= 1, constraints exist, each once;
  /// without any, cap < kNoCap.
  VariableId add_variable(std::int64_t cap, std::span<const Consumption> consumptions);

  /// Takes part from the next solve() on; has rate 0 until then. @pre not active.
  void activate(VariableId variable);
  /// Rate 0 from now on. @pre active.
  void deactivate(VariableId variable);
  [[nodiscard]] bool active(VariableId variable) const { return variables_[variable.raw()].active; }
  /// Whether no active variable consumes of what this one would. @pre not active itself.
  [[nodiscard]] bool idle_around(VariableId variable) const;
  /// Its rate while nothing else is active.
  [[nodiscard]] std::int64_t rate_alone(VariableId variable) const;

  /// Shares out anew in every component touched since the last call. Returns the active variables
  /// whose rate changed, each once, in an order that says nothing; the span is valid until the next
  /// call.
  std::span<const VariableId> solve();
  [[nodiscard]] std::int64_t rate(VariableId variable) const {
    return variables_[variable.raw()].rate;
  }
  /// Variables that calls of solve() looked at, in all: the effort.
  [[nodiscard]] std::uint64_t ticks() const { return ticks_; }

 private:
  struct Element {  // of a variable
    std::uint32_t constraint = 0;
    std::uint32_t position = 0;  // in the constraint's list while active
    std::int64_t weight = 0;
  };
  struct Use {  // of a constraint
    std::uint32_t variable = 0;
    std::uint32_t element = 0;
    std::int64_t weight = 0;
  };
  struct Variable {
    std::uint32_t first = 0, count = 0;  // elements_
    std::int64_t cap = kNoCap;
    std::int64_t rate = 0;
    std::uint64_t seen = 0;  // round in which its component was collected
    bool active = false;
    bool fresh = false;  // activated since the last solve()
    bool rising = false;
  };
  struct Constraint {
    std::int64_t capacity = 0;
    std::int64_t total = 0;   // weight of the active variables
    std::int64_t left = 0;    // R_l
    std::int64_t weight = 0;  // A_l
    std::int64_t level = 0;   // R_l / A_l
    std::uint64_t seen = 0;
    bool dirty = false;
    bool gained = false;   // a variable, since the last solve()
    bool touched = false;  // since its level was computed
    std::vector<Use> active;
  };

  void touch(std::uint32_t constraint);
  [[nodiscard]] std::int64_t full_at(const Constraint& constraint) const;
  void settle_alone(std::uint32_t constraint);
  void find_restart();
  void collect(std::uint32_t constraint);
  void fill();
  void stop(std::uint32_t variable, std::int64_t level);
  void stop_capped(std::int64_t level);
  void refresh_levels();

  std::vector<Element> elements_;
  std::vector<Variable> variables_;
  std::vector<Constraint> constraints_;
  std::vector<std::uint32_t> dirty_;   // constraints
  std::vector<std::uint32_t> lonely_;  // activated variables without a constraint
  std::vector<VariableId> changed_;
  // Scratch of one component.
  std::vector<std::uint32_t> component_;  // constraints, later those that still rise
  std::vector<std::uint32_t> rising_;     // variables
  std::int64_t restart_ = kNoCap;         // m
  std::size_t left_to_stop_ = 0;
  std::int64_t least_cap_ = kNoCap;  // of rising_; may be of one that stopped meanwhile
  std::uint64_t round_ = 0;
  std::uint64_t ticks_ = 0;
};

}  // namespace orrery::sim::kernel
