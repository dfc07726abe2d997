#include "model/surface.h"
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/profile.h"

namespace orrery::model {
namespace {

/// A profile with one surface and a framework.
Profile sample() {
  Profile p;
  p.name = "device";
  p.provenance.source = "test";
  ComputeSurface s;
  s.product.units = 108;
  s.product.correction = {.m = {1, 2}, .n = {4}, .k = {8, 16}, .ln = {0.1, -0.2, 0, 0.3}};
  s.peak = 312e12;
  s.memory_bandwidth = 2e12;
  s.power = {.idle_watts = 90, .limit_watts = 400, .joules_per_flop = 1e-12, .exponent = 2.25};
  s.residual = 0.06;
  s.formats = {{.formats = {Format::kFp8Block, Format::kMxFp8},
                .peak = 624e12,
                .product = s.product,
                .residual = 0.04}};
  p.surfaces = {s};
  p.framework = Framework{.name = "eager",
                          .attention = AttentionKernel::kExplicit,
                          .dropout = true,
                          .kernel_seconds = 4e-5,
                          .loss_passes = 23,
                          .norm_passes = 9,
                          .activation_passes = 1.5,
                          .rotary_passes = 5,
                          .expert_bias_bytes = 28,
                          .expert_bias_gradient_bytes = 40,
                          .clamp_bytes = 16,
                          .clamp_gradient_bytes = 30,
                          .gradient_bytes = 2,
                          .gather_copies = 2,
                          .reduce_copies = 1.5,
                          .loss_bytes = 8};
  p.collectives = {
      {.op = Collective::kAllReduce, .size = 2, .points = {{.bytes = 1024, .seconds = 1e-5}}}};
  p.step_communication = {.factor = 1.25, .issue_seconds = 1e-5, .fabric_share = 0.5};
  return p;
}

base::Result<Profile> parsed(const std::string& text) {
  const auto node = base::Node::parse_text(text, "profile.json");
  if (!node) return tl::unexpected(node.error());
  return read_profile(*node);
}

std::string text_of(const Profile& p) { return base::to_text(to_json(p)); }

/// The sample's text with one piece exchanged.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = text_of(sample());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ComputeSurface, SurvivesTheTripThroughJson) {
  const auto back = parsed(text_of(sample()));
  ASSERT_TRUE(back.has_value()) << base::to_string(back.error());
  EXPECT_EQ(*back, sample());
}

TEST(StepCommunication, OutOfRangeOrIncompleteIsRefusedAtItsPlace) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"factor\": 1.25", "\"factor\": 0.8"},
           {"\"issue_seconds\": 1e-05", "\"issue_seconds\": -1e-05"},
           {"\"fabric_share\": 0.5", "\"fabric_share\": 1.5"},
           {"\"fabric_share\": 0.5", "\"fabric_rate\": 0.5"}}) {
    const auto bad = parsed(changed(from, to));
    ASSERT_FALSE(bad.has_value()) << to;
    EXPECT_THAT(base::to_string(bad.error()), testing::HasSubstr("profile.json:")) << to;
  }
}

TEST(ComputeSurface, ProfilesWithoutOneAreWrittenAsBefore) {
  Profile p = sample();
  p.surfaces.clear();
  p.framework.reset();
  p.step_communication = {};
  EXPECT_EQ(text_of(p).find("step_communication"), std::string::npos);
  EXPECT_EQ(text_of(p).find("surfaces"), std::string::npos);
  EXPECT_EQ(text_of(p).find("framework"), std::string::npos);
}

TEST(ComputeSurface, AnUnknownKernelIsAFaultAtItsPlace) {
  const auto bad = parsed(changed("\"explicit\"", "\"explicitly\""));
  ASSERT_FALSE(bad.has_value());
  EXPECT_THAT(base::to_string(bad.error()), testing::HasSubstr("explicit"));
  EXPECT_THAT(base::to_string(bad.error()), testing::HasSubstr("profile.json:"));
}

TEST(ComputeSurface, NegativeTimesAndMissingMembersAreRefused) {
  EXPECT_FALSE(
      parsed(changed("\"kernel_seconds\": 4e-05", "\"kernel_seconds\": -1.0")).has_value());
  EXPECT_FALSE(parsed(changed("\"half_tile\"", "\"half_tiles\"")).has_value());
}

TEST(ComputeSurface, ACorrectionNeedsANumberForEveryKnot) {
  Profile p = sample();
  p.surfaces[0].product.correction.ln.pop_back();
  EXPECT_FALSE(parsed(text_of(p)).has_value());
  p = sample();
  p.surfaces[0].product.correction.m = {2, 1};
  EXPECT_FALSE(parsed(text_of(p)).has_value());
}

TEST(ComputeSurface, AFormatHasAKnownName) {
  for (const char* wrong : {"fp9", "bf16"}) {
    const auto bad = parsed(changed("\"mxfp8\"", fmt::format("\"{}\"", wrong)));
    ASSERT_FALSE(bad.has_value());
    EXPECT_THAT(base::to_string(bad.error()),
                testing::HasSubstr(fmt::format("no number format '{}'", wrong)));
  }
}

TEST(ComputeSurface, TwoSurfacesOfOneTypeAreRefused) {
  Profile p = sample();
  p.surfaces.push_back(p.surfaces[0]);
  EXPECT_FALSE(parsed(text_of(p)).has_value());
}

}  // namespace
}  // namespace orrery::model
