#include "sim/kernel/refinement.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery::sim::kernel {
namespace {

TEST(Refinement, WorkedExampleOfTheHeader) {
  Refinement path({0, 0, 0, 0});
  for (std::uint32_t x = 0; x < 3; ++x) {
    path.add_edge(x, x + 1, 0, 1);
    path.add_edge(x + 1, x, 0, 1);
  }
  EXPECT_EQ(path.run(), (std::vector<std::uint32_t>{0, 1, 1, 0}));
}

TEST(Refinement, ADirectedRingIsOneCellAndOneColourMakesEachItsOwn) {
  for (const bool marked : {false, true}) {
    std::vector<std::uint32_t> colours(6, 0);
    if (marked) colours[2] = 1;
    Refinement ring(colours);
    for (std::uint32_t x = 0; x < 6; ++x) ring.add_edge(x, (x + 1) % 6, 0, 1);
    const auto cells = ring.run();
    EXPECT_EQ(cells, marked ? (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5})
                            : std::vector<std::uint32_t>(6, 0));
  }
}

TEST(Refinement, TypesAndWeightsTellElementsApart) {
  Refinement r({0, 1, 1, 1, 1});
  r.add_edge(0, 1, 0, 2);
  r.add_edge(0, 2, 1, 2);
  r.add_edge(0, 3, 0, 1);
  r.add_edge(0, 3, 0, 1);  // adds up to 2, like element 1
  EXPECT_EQ(r.run(), (std::vector<std::uint32_t>{0, 1, 2, 1, 3}));
}

}  // namespace
}  // namespace orrery::sim::kernel
