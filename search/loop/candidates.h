#pragma once
/// \file
/// The last word on plans: lowered, simulated, ordered by simulated time.
///
/// A plan has three times. `closed_form_ps` is what the search's programs add up and prove bounds
/// of. `expected_ps` is the step pass by pass (costmodel/closed_form/step_times.h): it knows who
/// waits for whom, but not which links are less busy than prices assume. The simulated time
/// decides. So of plans in the order of their expected times those need to be simulated with
///
///     expected · (1 - error)  <  fastest simulated so far,
///
/// where the error is kExpectedErrorPpm, where computing and communication slow each other
/// kSlowedErrorPpm, of hosts whose devices share links (PCIe) kSharedLinksErrorPpm, or half as much
/// again as the largest by which an expected time has exceeded the simulated one, whichever is
/// more. That is measured of plans near an answer, not proved: others have exceeded it by up to 1.3
/// % within 4 % of one. Plans of one frame (stages, micro-batches, schedule, tensor degree) are off
/// alike: once one of them was simulated, the error of the others is at most its own and
/// kFrameErrorPpm. Measured of 192 plans within 4 % of 14 answers (H100, H200, B200, B300, GB200,
/// MI300X): 0.48 %. tests/bench/sim_step_forms_bench.cc prints how far both forms are from the
/// simulated time.
///
/// A step of many micro-batches is first looked at as one of few, where ranks are not alike as two
/// (sim::extrapolated_step_ps): what they say, less kLookErrorPpm or kLookUnlikeErrorPpm, must be
/// below the fastest too, and the most promising comes first. Measured of 48 plans near answers:
/// 0.03 %; of ranks that are not alike, 12 pipelines of 3 to 16 ranks with 48 micro-batches a rank
/// (tests/differential/sim/extrapolated_step_test.cc): 0.09 %, seven of them less than 0.001 %.
///
/// Where energy is minimised all three are the step's time and its energy_ps
/// (costmodel/closed_form/layer_energy.h): simulated is the time alone. Of those close to the least
/// the integral over the simulated timeline decides.
///
/// Two shorter steps say what a long one takes (sim::extrapolated_report), if only to compare it.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "costmodel/closed_form/layer_costs.h"
#include "costmodel/cost_model.h"
#include "search/loop/planner.h"

namespace orrery::search {

inline constexpr std::int64_t kContestTicks = 8'000'000;  // on 147,456 devices 9 s
inline constexpr std::int64_t kExpectedErrorPpm = 1'000, kSlowedErrorPpm = 10'000,
                              kSharedLinksErrorPpm = 30'000, kFrameErrorPpm = 5'000,
                              kLookErrorPpm = 500, kLookUnlikeErrorPpm = 1'000,
                              kEnergyErrorPpm = 5'000;

/// A plan that fits.
struct Finalist {
  plan::Plan plan;
  std::int64_t closed_form_ps = 0;
  std::int64_t expected_ps = 0;
  std::vector<std::int64_t> stage_peak_bytes;
  std::int64_t energy_ps = 0;  // in both costs; 0 where time is minimised
};

/// By the closed forms. Errors: those of plan_cost().
base::Result<Finalist> finalist_of(costmodel::LayerCosts& costs, plan::Plan plan);

struct ShorterSteps;

/// What is known of the plans of one search, by simulating the time of some.
class Contest {
 public:
  /// Plans slower than the known one need not win. Of energy none is simulated in full where
  /// shorter steps say what it draws.
  Contest(const costmodel::CostModel& cost, const KnownPlan& known,
          costmodel::Objective objective = costmodel::Objective::kTime);

  /// Looks at the most promising of a search before others are known; where that takes long,
  /// nothing is simulated, and until enter_all() others must beat what it is expected to take and
  /// kFrameErrorPpm more.
  base::Result<void> begin(const Finalist& first);
  /// Those that may be faster than all before, in the order of their expected times; the first of
  /// them in full. Ends when simulating has taken kContestTicks, by what is counted, not timed:
  /// operations, and ranks that a group or an exchange may have to be followed over; but for plans
  /// that are sure to be faster, within the error of their expected times: as long again for them.
  base::Result<void> enter_all(std::vector<Finalist> finalists);

  /// Whether a plan of this expected time may be faster than all that were simulated.
  [[nodiscard]] bool may_win(std::int64_t expected_ps) const;
  [[nodiscard]] bool may_win(const Finalist& finalist) const;
  /// What the simulator said of the plan, by few micro-batches where they say it, else its expected
  /// time; no less than where the simulator cut it off.
  [[nodiscard]] std::int64_t best_known_ps(const Finalist& finalist) const;
  /// Whether some plan was simulated that counts: else none might have won.
  [[nodiscard]] bool has_fastest() const { return fastest_ps_ < kNever; }
  /// @pre has_fastest()
  [[nodiscard]] const Finalist& fastest() const { return fastest_; }
  /// Of the fastest plan, where it was simulated in full.
  [[nodiscard]] const std::optional<sim::SimReport>& report() const { return report_; }
  /// Of energy, of a plan that shorter steps were simulated of; else null.
  [[nodiscard]] const sim::SimReport* known_report(const plan::Plan& plan) const;

 private:
  /// What plans of one frame have shown: their expected times exceed the simulated ones by at most
  /// this.
  struct Frame {
    int stages = 1, tp = 1;
    std::int64_t micro_batches = 1;
    plan::Schedule schedule = plan::Schedule::k1F1B;
    bool operator==(const Frame&) const = default;
  };
  struct Excess {
    Frame frame;
    std::int64_t ppm = 0;
    bool bound = false;  // of one that was cut off
  };
  struct Seen {
    plan::Plan plan;
    std::optional<std::int64_t> step_ps = {};  // of all of it or of shorter steps
    std::int64_t least_ps = 0;                 // where it was cut off
  };
  struct Look {
    Finalist finalist;
    std::int64_t step_ps = 0, error_ppm = kLookErrorPpm;
  };
  static Frame frame_of(const plan::Plan& plan);
  base::Result<void> simulate(const Finalist& finalist, bool in_full);
  /// Simulates few micro-batches of the plan, or all where they do not say how long it takes.
  base::Result<void> look(const Finalist& finalist, const ShorterSteps& shorter, bool in_full);
  base::Result<void> look_ahead(const Finalist& finalist, const ShorterSteps& shorter);
  /// True: it is the fastest.
  bool keep(const Finalist& finalist, std::int64_t step_ps);
  /// @pre the simulated time is `least_ps`, or at least that.
  void learn(const Finalist& finalist, std::int64_t least_ps, bool bound);
  /// Whether simulating has taken too long for a plan of about `ps`.
  [[nodiscard]] bool ends_before(std::int64_t ps, std::int64_t error_ppm) const;
  /// Whether a plan that does not win is of no use.
  [[nodiscard]] bool needs_no_other() const { return has_fastest() || only_better_; }
  /// What a plan must beat.
  [[nodiscard]] std::int64_t best_ps() const {
    return std::min({fastest_ps_, looked_ps_, known_ps_});
  }

  const costmodel::CostModel& cost_;
  bool energy_;
  std::vector<Seen> seen_;
  std::vector<Excess> excess_;
  std::vector<Look> looks_;  // not simulated yet

  Finalist fastest_;
  std::optional<sim::SimReport> report_;
  std::vector<std::pair<plan::Plan, sim::SimReport>> reports_;
  static constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  // looked: the least of looks_, at most
  std::int64_t known_ps_, fastest_ps_ = kNever, looked_ps_ = kNever, bar_ps_ = kNever;
  bool only_better_;
  std::int64_t error_ppm_;
  std::int64_t ticks_ = 0;
};

/// The simulated time of a step; of one of very many operations what few micro-batches say, or the
/// expected time. Errors: those of simulate().
base::Result<std::int64_t> about_step_ps(const costmodel::CostModel& cost,
                                         const Finalist& finalist);

struct LeastDrawing {
  Finalist finalist;
  sim::SimReport report;
};
/// Where energy is minimised: of the fastest and up to five others within kEnergyErrorPpm of its
/// cost (the form was off by 0.45 % at most, tests/differential/sim/energy_test.cc) the one that
/// draws least over its simulated timeline, with its report; long timelines are compared by what
/// two shorter ones say of them. `threads` as of evaluate(). Errors: those of simulate().
base::Result<LeastDrawing> least_drawing(const costmodel::CostModel& cost, const Contest& contest,
                                         const std::vector<Finalist>& finalists, int threads);

struct Evaluated {
  // fastest first; ties by closed form, then by the order given
  std::vector<Candidate> candidates;
  int order_changes = 0;  // pairs that simulation put the other way round
};
/// Simulates every plan with its report, on `threads` threads; the result does not depend on their
/// number. `first`: the report of the first, if it is known. With `energy` what a candidate draws
/// is that of its timeline. Errors: those of simulate().
base::Result<Evaluated> evaluate(const costmodel::CostModel& cost,
                                 const std::vector<Finalist>& finalists, int threads,
                                 const std::optional<sim::SimReport>& first = std::nullopt,
                                 bool energy = false);

}  // namespace orrery::search
