// Made-up images: the same however a batch is split, of every class, each with a look of its own.
#include "executor/state/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace orrery::executor {
namespace {

constexpr std::int64_t kTokens = 5, kPatch = 6, kImages = 40;

ImageBatch batch(std::int64_t first, std::int64_t images) {
  return {.seed = 3,
          .first = first,
          .images = images,
          .classes = 4,
          .patch_features = kPatch,
          .blank_tokens = 1};
}
std::vector<float> pixels(const ImageBatch& b) {
  std::vector<float> out(static_cast<std::size_t>(b.images * kTokens * kPatch));
  make_pixels(b, out);
  return out;
}
std::vector<std::int64_t> classes(const ImageBatch& b) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(b.images));
  make_classes(b, out);
  return out;
}
/// Patch features of an image, over its patches.
std::vector<float> mean_patch(const std::vector<float>& all, std::int64_t image) {
  std::vector<float> mean(kPatch);
  for (std::int64_t t = 1; t < kTokens; ++t)
    for (std::int64_t f = 0; f < kPatch; ++f)
      mean[static_cast<std::size_t>(f)] +=
          all[static_cast<std::size_t>((image * kTokens + t) * kPatch + f)] / (kTokens - 1);
  return mean;
}

TEST(Images, ABatchIsTheSameHoweverItIsSplit) {
  const auto whole = pixels(batch(8, 4)), part = pixels(batch(10, 2));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 2 * kTokens * kPatch));
  const auto labels = classes(batch(8, 4));
  EXPECT_THAT(classes(batch(10, 2)), testing::ElementsAre(labels[2], labels[3]));
  ImageBatch other = batch(8, 4);
  other.seed = 4;
  EXPECT_NE(pixels(other), whole);
}

TEST(Images, OnlyTokensWithoutAPatchAreBlank) {
  const auto all = pixels(batch(0, 2));
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i] == 0, i / kPatch % kTokens == 0) << i;
    EXPECT_LT(std::abs(all[i]), 2);
  }
}

TEST(Images, EveryClassIsDrawnAndHasATextureOfItsOwn) {
  const auto labels = classes(batch(0, kImages));
  EXPECT_THAT(std::set(labels.begin(), labels.end()), testing::ElementsAre(0, 1, 2, 3));
  const auto all = pixels(batch(0, kImages));
  // Noise alone has a deviation of 0.58 a pixel, 0.29 over four patches.
  double alike = 0, others = 0;
  int alike_count = 0, others_count = 0;
  for (std::int64_t a = 0; a < kImages; ++a) {
    for (std::int64_t b = 0; b < a; ++b) {
      const auto x = mean_patch(all, a), y = mean_patch(all, b);
      double square = 0;
      for (std::size_t f = 0; f < x.size(); ++f) square += (x[f] - y[f]) * (x[f] - y[f]) / kPatch;
      const bool same = labels[static_cast<std::size_t>(a)] == labels[static_cast<std::size_t>(b)];
      (same ? alike : others) += square;
      ++(same ? alike_count : others_count);
    }
  }
  EXPECT_NEAR(alike / alike_count, 2 * 0.29 * 0.29, 0.02);
  EXPECT_GT(others / others_count, 2 * alike / alike_count);
}

}  // namespace
}  // namespace orrery::executor
