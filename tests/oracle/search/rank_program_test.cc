// The rank program against every assignment of choices, its cost written out from the formula of
// rank_program.h.
#include "search/programs/rank_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"

namespace orrery::search {
namespace {

std::int64_t cost_of(const std::vector<RankChoice>& choices, std::int64_t cycles) {
  std::int64_t start = 0, end = 0, cycle = 0, tail = 0, filled = 0, most = 0;
  for (const RankChoice& c : choices) {
    start = std::max(start, c.zero_ps) + c.forward_ps;
    end = std::max(end, c.update_ps) + c.backward_ps;
    cycle = std::max(cycle, c.cycle_ps);
    tail = std::max(tail, c.tail_ps);
    filled += c.filled_ps;
    most = std::max(most, c.filled_ps);
  }
  return start + end + cycles * cycle + tail - filled + most;
}

std::int64_t brute_force(const RankProblem& problem) {
  std::int64_t best = kForbidden;
  std::vector<RankChoice> taken;
  const std::function<void(int)> place = [&](int layers) {
    const std::size_t i = taken.size();
    if (i == problem.ranks.size()) {
      if (layers == problem.layers) best = std::min(best, cost_of(taken, problem.cycles));
      return;
    }
    for (const RankChoice& c : problem.ranks[i]) {
      taken.push_back(c);
      place(layers + c.layers);
      taken.pop_back();
    }
  };
  place(0);
  return best;
}

TEST(RankProgramOracle, EqualsEveryAssignment) {
  base::Rng rng(7);
  const auto draw = [&](std::int64_t most) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most) + 1));
  };
  int feasible = 0;
  for (int instance = 0; instance < 6000; ++instance) {
    RankProblem problem;
    const auto ranks = 1 + draw(3);
    // Narrow ranges bring ties, large zeroing and update bring their maxima into play.
    const std::int64_t range = draw(1) == 0 ? 4 : 40, once = draw(1) == 0 ? 3 : 80;
    problem.layers = static_cast<int>(ranks + draw(5));
    problem.cycles = draw(6);
    for (int r = 0; r < ranks; ++r) {
      problem.ranks.emplace_back();
      for (std::int32_t o = 0; o < 1 + draw(6); ++o) {
        RankChoice c{.layers = static_cast<int>(1 + draw(3)),
                     .option = o,
                     .zero_ps = draw(once),
                     .update_ps = draw(once),
                     .forward_ps = draw(range),
                     .backward_ps = draw(range),
                     .cycle_ps = draw(range),
                     .tail_ps = draw(range),
                     .filled_ps = draw(range)};
        if (r + 1 == ranks) c.forward_ps -= draw(range);
        problem.ranks.back().push_back(c);
      }
    }
    Effort effort;
    const auto answer = solve_ranks(problem, kForbidden, effort);
    const std::int64_t expected = brute_force(problem);
    ASSERT_EQ(answer.has_value(), expected < kForbidden) << instance;
    if (!answer) continue;
    ++feasible;
    ASSERT_EQ(answer->cost_ps, expected) << instance;
    ASSERT_EQ(cost_of(answer->choices, problem.cycles), expected) << instance;
  }
  EXPECT_EQ(feasible, 3188);
}

}  // namespace
}  // namespace orrery::search
