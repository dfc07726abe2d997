// Layers whose weights are gathered ahead of others, under the last word of a memory check, against
// every sequence: what the program calls decided is so.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <optional>

#include "base/numbers.h"
#include "base/rng.h"
#include "search/programs/layer_program.h"

namespace orrery::search {
namespace {

using Sequence = std::vector<std::int32_t>;

/// Beside what runs, weights of the nearest layer that gathers are there: of those before it in a
/// backward, of those behind it in a forward.
class GathersAhead final : public MemoryCheck {
 public:
  explicit GathersAhead(const LayerProblem& problem) : problem_(problem) {}
  bool fits(const Sequence& sequence) override { return peak(sequence) <= problem_.budget_bytes; }

 private:
  [[nodiscard]] std::int64_t peak(const Sequence& sequence) const {
    std::vector<std::int64_t> gathered{0};  // [i] by the nearest before layer i
    std::int64_t memory = 0;
    for (const std::int32_t s : sequence) {
      const LayerOption& o = problem_.options[as_index(s)];
      gathered.push_back(o.neighbour_bytes > 0 ? o.neighbour_bytes : gathered.back());
      memory += o.memory_bytes;
    }
    std::int64_t need = 0, behind = 0, later = 0;
    for (std::size_t i = sequence.size(); i-- > 0;) {
      const LayerOption& o = problem_.options[as_index(sequence[i])];
      need = std::max(
          {need, o.transient_bytes + gathered[i] - behind, o.forward_bytes + later - behind});
      behind += o.stash_bytes;
      if (o.neighbour_bytes > 0) later = o.neighbour_bytes;
    }
    return memory + need;
  }
  const LayerProblem& problem_;
};

/// Two to four options, one at least that gathers: less memory, more time and transients.
LayerProblem random_problem(base::Rng& rng) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  LayerProblem p;
  p.layers = static_cast<int>(between(2, 6));
  const std::int64_t options = between(2, 4);
  for (std::int64_t k = 0; k < options; ++k) {
    const std::int64_t gather = k == 0 || between(0, 2) == 0 ? between(1, 8) : 0,
                       stash = between(0, 6);
    p.options.push_back({.steady_ps = between(1, 20),
                         .once_ps = between(0, 20),
                         .memory_bytes = stash + between(1, 12),
                         .stash_bytes = stash,
                         .transient_bytes = gather + between(0, 12),
                         .forward_bytes = gather,
                         .neighbour_bytes = gather});
  }
  p.budget_bytes = p.layers * between(2, 18) + between(0, 20);
  return p;
}

std::optional<std::int64_t> cheapest(const LayerProblem& p, MemoryCheck& check) {
  std::optional<std::int64_t> best;
  Sequence sequence(as_index(p.layers), 0);
  for (;;) {
    std::int64_t cost = 0;
    for (const std::int32_t s : sequence)
      cost += p.options[as_index(s)].steady_ps + p.options[as_index(s)].once_ps;
    if ((!best || cost < *best) && check.fits(sequence)) best = cost;
    const auto next = std::ranges::find_if(
        sequence, [&](std::int32_t s) { return as_index(s) + 1 < p.options.size(); });
    if (next == sequence.end()) return best;
    std::fill(sequence.begin(), next, 0);
    ++*next;
  }
}

TEST(LayerCheckOracle, DecidedAnswersAreThoseOfEverySequence) {
  int feasible = 0, infeasible = 0, undecided = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    base::Rng rng(base::hash(9, seed));
    LayerProblem p = random_problem(rng);
    GathersAhead check(p);
    p.check = &check;
    const auto expected = cheapest(p, check);
    Effort effort;
    const Bounded found = solve_layers(p, {1, 1}, kNoAnswer, effort);
    if (found.answer) {
      ASSERT_TRUE(check.fits(found.answer->sequence)) << "seed " << seed;
      ASSERT_GE(found.answer->steady_ps + found.answer->once_ps, *expected) << "seed " << seed;
    }
    if (effort.undecided) {
      ++undecided;
      continue;
    }
    ASSERT_EQ(found.answer.has_value(), expected.has_value()) << "seed " << seed;
    ++(expected ? feasible : infeasible);
    if (expected) {
      EXPECT_EQ(found.answer->steady_ps + found.answer->once_ps, *expected) << "seed " << seed;
    }
  }
  std::cout << feasible << " optima, " << infeasible << " infeasible, " << undecided
            << " undecided\n";
  EXPECT_EQ(feasible, 13'821);
  EXPECT_EQ(infeasible, 5469);
}

}  // namespace
}  // namespace orrery::search
