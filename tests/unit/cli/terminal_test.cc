#include "cli/text/terminal.h"

#include <gtest/gtest.h>

namespace orrery::cli {
namespace {

TEST(CutTo, LeavesWhatFits) {
  EXPECT_EQ(cut_to("tp2 dp4", 7), "tp2 dp4");
  EXPECT_EQ(cut_to("", 3), "");
}

TEST(CutTo, EndsWithAnEllipsisInTheLastColumn) {
  EXPECT_EQ(cut_to("tp2 dp4", 6), "tp2 d…");
  EXPECT_EQ(cut_to("tp2 dp4", 1), "…");
}

TEST(CutTo, CountsCharactersNotBytes) {
  EXPECT_EQ(cut_to("8 × tp2", 7), "8 × tp2");
  EXPECT_EQ(cut_to("8 × tp2", 5), "8 × …");
  EXPECT_EQ(cut_to("8 × tp2", 3), "8 …");
}

}  // namespace
}  // namespace orrery::cli
