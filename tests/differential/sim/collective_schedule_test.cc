/// Folded collectives against all their messages.
#include <gtest/gtest.h>

#include "tests/unit/costmodel/machines.h"
#include "tests/unit/costmodel/tunings.h"
#include "tests/unit/sim/collective_scene.h"

namespace orrery::sim {
namespace {

using costmodel::Algorithm;
using model::Collective;

TEST(CollectiveFolding, FoldedRingEqualsEveryStepExplicit) {
  const testing::CollectiveScene f(costmodel::machines::cluster(8),
                                   costmodel::tunings::round_numbers(), 8);
  const auto r = f.request(Collective::kAllReduce, 123'456'789, Algorithm::kRing);
  const auto folded = run_collective(f.usable, f.forms, r);
  EXPECT_TRUE(folded.folded);
  EXPECT_EQ(folded.time_ps,
            run_schedule(f.usable, make_schedule(f.usable, f.forms, r, r.terms.repeats)).time_ps);
}

TEST(CollectiveFolding, FoldedPipelinesAreNearTheWholeOnes) {
  const testing::CollectiveScene f(costmodel::machines::cluster(4, 6),
                                   costmodel::tunings::round_numbers(), 24);
  for (const auto& [op, a] : {std::pair{Collective::kAllReduce, Algorithm::kTree},
                              std::pair{Collective::kBroadcast, Algorithm::kRing}}) {
    const auto r = f.request(op, 500'000'000, a);
    const auto whole = run_schedule(f.usable, make_schedule(f.usable, f.forms, r, r.terms.repeats));
    const auto folded = run_collective(f.usable, f.forms, r, 5000);
    EXPECT_TRUE(folded.folded);
    EXPECT_NEAR(static_cast<double>(folded.time_ps) / static_cast<double>(whole.time_ps), 1.0, 0.1)
        << to_string(a);
  }
}

TEST(CollectiveFolding, FoldedRingAcrossHostsIsNearTheWholeOne) {
  const auto machine = topologies::catalog_topology("dgx-a100", 4);
  ASSERT_TRUE(machine.has_value());
  const testing::CollectiveScene f(*machine, *costmodel::find_tuning("ampere", ""), 32);
  const auto r = f.request(Collective::kAllReduce, 1'000'000'000, Algorithm::kRing);
  const auto whole = run_schedule(f.usable, make_schedule(f.usable, f.forms, r, r.terms.repeats));
  const auto folded = run_collective(f.usable, f.forms, r, 8000);
  EXPECT_TRUE(folded.folded);
  EXPECT_NEAR(static_cast<double>(folded.time_ps) / static_cast<double>(whole.time_ps), 1.0, 0.02);
}

}  // namespace
}  // namespace orrery::sim
