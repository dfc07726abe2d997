// The pipeline program against brute force over counts, options and boundary layouts.
#include "search/programs/pipeline_program.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/oracle/search/random_layers.h"

namespace orrery::search {
namespace {

/// Small pipelines; stages differ in options, budget and constants and share layouts and
/// transitions.
PipelineProblem random_pipeline(base::Rng& rng) {
  PipelineProblem p;
  const int stages = 1 + static_cast<int>(draw(rng, 3));
  const LayerProblem shared = random_problem(rng, 1, 1);
  p.micro_batches = 1 + draw(rng, 6);
  for (int i = 0; i < stages; ++i) {
    PipelineStage stage;
    stage.layers = shared;
    stage.layers.options =
        random_options(rng, 1 + static_cast<int>(draw(rng, 3)), shared.layouts, shared.flight);
    if (i > 0) stage.layers.entry_ps.clear();
    if (i + 1 < stages) stage.layers.exit_ps.clear();
    const int count = 1 + static_cast<int>(draw(rng, 2));
    stage.fewest = count;
    stage.most = count + (rng.below(2) == 0 ? 1 : 0);
    p.layers +=
        count + static_cast<int>(rng.below(static_cast<std::uint64_t>(stage.most - count + 1)));
    stage.layers.budget_bytes = draw(rng, 60) + 50;
    stage.steady_ps = draw(rng, 60);
    stage.once_ps = draw(rng, 60);
    if (i + 1 < stages) {
      for (int l = 0; l < shared.layouts; ++l) {
        stage.send_ps.push_back(draw(rng, 30));
        stage.departure_bytes.push_back(draw(rng, 10));
        stage.return_ps.push_back(draw(rng, 20));
      }
    }
    for (int l = 0; i > 0 && l < shared.layouts; ++l) {
      stage.arrival_bytes.push_back(draw(rng, 10));
      stage.receive_ps.push_back(draw(rng, 20));
    }
    p.stages.push_back(std::move(stage));
  }
  return p;
}

/// Depth-first over stages, layer counts and sequences, by the definition in pipeline_program.h.
class BruteForce {
 public:
  explicit BruteForce(const PipelineProblem& p) : p_(p) { stage(0, -1, 0, 0, 0); }
  std::int64_t best = kForbidden;

 private:
  void stage(std::size_t i, int entry, int layers, std::int64_t slowest, std::int64_t sum) {
    if (i == p_.stages.size()) {
      if (layers == p_.layers) best = std::min(best, sum + (p_.micro_batches - 1) * slowest);
      return;
    }
    for (int count = p_.stages[i].fewest; count <= p_.stages[i].most; ++count) {
      sequence_.assign(static_cast<std::size_t>(count), 0);
      sequences(i, 0, entry, layers + count, slowest, sum);
    }
  }
  void sequences(std::size_t i, std::size_t at, int entry, int layers, std::int64_t slowest,
                 std::int64_t sum) {
    const PipelineStage& s = p_.stages[i];
    if (at < sequence_.size()) {
      for (std::size_t o = 0; o < s.layers.options.size(); ++o) {
        sequence_[at] = o;
        sequences(i, at + 1, entry, layers, slowest, sum);
      }
      return;
    }
    const std::vector<std::size_t> sequence = sequence_;
    evaluate(i, sequence, entry, layers, slowest, sum);
    sequence_ = sequence;
  }
  void evaluate(std::size_t i, const std::vector<std::size_t>& sequence, int entry, int layers,
                std::int64_t slowest, std::int64_t sum) {
    const PipelineStage& s = p_.stages[i];
    const auto k = static_cast<std::size_t>(s.layers.layouts);
    std::int64_t steady = s.steady_ps, once = s.once_ps;
    std::vector<LayerOption> layers_here;
    int before = entry;
    for (std::size_t j = 0; j < sequence.size(); ++j) {
      const LayerOption& o = s.layers.options[sequence[j]];
      const auto l = static_cast<std::size_t>(o.layout);
      layers_here.push_back(o);
      if (!follows(layers_here, sequence, j)) return;
      steady += o.steady_ps +
                (before < 0 ? s.layers.entry_ps[l]
                            : s.layers.transition_ps[static_cast<std::size_t>(before) * k + l]);
      once += o.once_ps;
      before = o.layout;
    }
    std::int64_t boundary = 0;
    if (!s.receive_ps.empty()) steady += s.receive_ps[static_cast<std::size_t>(entry)];
    if (!s.return_ps.empty()) steady += s.return_ps[static_cast<std::size_t>(before)];
    if (entry >= 0 && !s.arrival_bytes.empty())
      boundary += s.arrival_bytes[static_cast<std::size_t>(entry)];
    if (!s.departure_bytes.empty()) boundary += s.departure_bytes[static_cast<std::size_t>(before)];
    if (i + 1 == p_.stages.size()) steady += s.layers.exit_ps[static_cast<std::size_t>(before)];
    if (naive_peak(s.layers, layers_here) + boundary > s.layers.budget_bytes) return;
    const std::int64_t send = s.send_ps.empty() ? 0 : s.send_ps[static_cast<std::size_t>(before)];
    stage(i + 1, before, layers, std::max(slowest, steady), sum + steady + once + send);
  }

  const PipelineProblem& p_;
  std::vector<std::size_t> sequence_;
};

TEST(PipelineProgramOracle, MatchesBruteForce) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    base::Rng rng(seed + 9'000'000);
    const PipelineProblem p = random_pipeline(rng);
    const std::int64_t expected = BruteForce(p).best;
    Effort effort;
    const auto found = solve_pipeline(p, kForbidden, effort);
    ASSERT_EQ(found.has_value(), expected < kForbidden) << "seed " << seed;
    if (!found) continue;
    ++feasible;
    EXPECT_EQ(found->cost_ps, expected) << "seed " << seed;
    EXPECT_LE(pipeline_bound(p), expected) << "seed " << seed;
    EXPECT_FALSE(solve_pipeline(p, expected, effort).has_value())
        << "the cutoff is exclusive, seed " << seed;
    const auto again = solve_pipeline(p, expected + 1, effort);
    ASSERT_TRUE(again.has_value()) << "seed " << seed;
    EXPECT_EQ(again->cost_ps, expected) << "seed " << seed;
  }
  EXPECT_EQ(feasible, 1975);
}

}  // namespace
}  // namespace orrery::search
