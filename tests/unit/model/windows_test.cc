// Where the windows of an image lie, by hand.
#include "model/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/numbers.h"

namespace orrery::model {
namespace {

using testing::ElementsAre;

/// 4 x 4 tokens in windows of 2 x 2.
SegmentShape image(int merges) {
  SegmentShape s;
  s.tokens = 4;
  s.windows = {.tokens = 16, .merges = merges, .first_block = 3};
  return s;
}

std::vector<std::int64_t> tokens(const SegmentShape& s, std::int64_t shift, std::size_t window) {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < 4; ++i) all.push_back(window_places(s, shift)[4 * window + i].token);
  return all;
}
std::vector<std::int64_t> parts(const SegmentShape& s, std::int64_t shift, std::size_t window) {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < 4; ++i) all.push_back(window_places(s, shift)[4 * window + i].part);
  return all;
}

// Without mergings to come, by rows; before one, four of a square by columns, squares by rows.
TEST(Windows, TokensOfASquareStandTogetherBeforeTheyMerge) {
  EXPECT_THAT(tokens(image(0), 0, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(tokens(image(0), 0, 3), ElementsAre(10, 11, 14, 15));
  EXPECT_THAT(tokens(image(1), 0, 0), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(tokens(image(1), 0, 3), ElementsAre(12, 14, 13, 15));
}

// What merges into token t are 4 t to 4 t + 3, at twice its place.
TEST(Windows, FourTokensInARowMergeIntoTheOneInTheirPlace) {
  const ImageWindows fine{.tokens = 64, .merges = 2}, coarse{.tokens = 16, .merges = 1};
  for (std::int64_t row = 0; row < 8; ++row)
    for (std::int64_t column = 0; column < 8; ++column)
      EXPECT_EQ(token_at(fine, row, column),
                4 * token_at(coarse, row / 2, column / 2) + 2 * (column % 2) + row % 2);
}

// Every other block of the stage that begins with block 3. Shifted by one row and column, the last
// window has the image's last token and three from its other ends: no two see each other.
TEST(Windows, ShiftByHalfASideInEveryOtherBlock) {
  const SegmentShape s = image(0);
  EXPECT_EQ(window_shift(s, 3), 0);
  EXPECT_EQ(window_shift(s, 4), 1);
  EXPECT_EQ(window_shift(s, 5), 0);
  EXPECT_THAT(tokens(s, 1, 0), ElementsAre(5, 6, 9, 10));
  EXPECT_THAT(parts(s, 1, 0), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(tokens(s, 1, 1), ElementsAre(7, 4, 11, 8));
  EXPECT_THAT(parts(s, 1, 1), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(tokens(s, 1, 3), ElementsAre(15, 12, 3, 0));
  EXPECT_THAT(parts(s, 1, 3), ElementsAre(4, 5, 7, 8));
}

// Swin's own: 14 x 14 tokens in windows of 7 x 7 shift by 3, so the last window has four rows and
// columns of its own and three of the other end.
TEST(Windows, OfAnOddSideShiftByLessThanHalf) {
  SegmentShape s;
  s.tokens = 49;
  s.windows = {.tokens = 196};
  ASSERT_EQ(window_shift(s, 1), 3);
  const std::vector<WindowPlace> places = window_places(s, 3);
  for (std::int64_t i = 0; i < 49; ++i) {
    const std::int64_t row = i / 7, column = i % 7;
    const WindowPlace& place = places[as_index(3 * 49 + i)];
    EXPECT_EQ(place.token, (row + 10) % 14 * 14 + (column + 10) % 14);
    EXPECT_EQ(place.part, 3 * (row < 4 ? 1 : 2) + (column < 4 ? 1 : 2));
  }
}

TEST(Windows, OneWindowAnImageStaysWhereItIs) {
  SegmentShape s = image(0);
  s.tokens = 16;
  EXPECT_EQ(window_shift(s, 4), 0);
}

}  // namespace
}  // namespace orrery::model
