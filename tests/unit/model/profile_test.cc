#include "model/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace orrery::model {
namespace {

using base::ErrorCode;
using testing::HasSubstr;

base::Result<Profile> read(const std::string& text) {
  const auto node = base::Node::parse_text(text, "p.json");
  EXPECT_TRUE(node) << (node ? "" : base::to_string(node.error()));
  return read_profile(*node);
}
/// A profile with more members; they start in line 2.
base::Result<Profile> read_with(const std::string& members) {
  return read(R"({"schema": "orrery.profile/1", "name": "p", "provenance": {"source": "s"},)" +
              ("\n" + members) + "}");
}
base::Diagnostics refused(const std::string& members) {
  auto profile = read_with(members);
  EXPECT_FALSE(profile);
  return profile ? base::Diagnostics{base::Diagnostic{}} : profile.error();
}
void expect_fault(const std::string& members, ErrorCode code, const std::string& message,
                  std::uint32_t line) {
  const auto faults = refused(members);
  ASSERT_EQ(faults.size(), 1u) << base::to_string(faults);
  EXPECT_EQ(faults[0].code, code) << base::to_string(faults);
  EXPECT_THAT(faults[0].message, HasSubstr(message));
  EXPECT_EQ(faults[0].where.file, "p.json");
  EXPECT_EQ(faults[0].where.line, line);
  EXPECT_GT(faults[0].where.column, 0u);
}

const std::string kShape =
    R"("shape": {"kind": "qkv", "dtype": "fp32", "sequences": 1, "tokens": 8, "in": 4, "out": 12})";

TEST(Profile, ReadsEveryPart) {
  const auto profile = read_with(
      R"("device": "cpu",
    "operators": [{)" +
      kShape +
      R"(, "phase": "BG", "seconds_median": 2e-4, "seconds_p10": 1e-4, "seconds_p90": 3e-4,
 "samples": 7}],
    "composition_factor": 1.1, "composition_residual": 0.02,
    "layers": [{"model": "llama-2-7b", "sequence": 2048, "hidden": 4096, "precision": "bf16",
     "points": [
      {"batch": 1, "layer_seconds_per_sample": 5e-3, "other_seconds_per_sample": 2e-2},
      {"batch": 2, "layer_seconds_per_sample": 4e-3, "other_seconds_per_sample": 0}]}],
    "collectives": [{"op": "all_reduce", "size": 8, "bus_bandwidth_bytes_per_second": 1.6e11,
     "latency_seconds": 2e-6},
      {"op": "point_to_point", "size": 2, "stride": 4, "hosts": 2,
       "points": [{"bytes": 8, "seconds": 1e-6}]}],
    "overlap_slowdown": 1.25, "overlaps": false, "launch_seconds": 5e-6, "context_bytes": 1000)");
  ASSERT_TRUE(profile) << base::to_string(profile.error());
  ASSERT_EQ(profile->operators.size(), 1u);
  EXPECT_EQ(profile->operators[0].phase, Phase::kBG);
  EXPECT_EQ(profile->operators[0].shape.out, 12);
  EXPECT_EQ(profile->operators[0].samples, 7);
  EXPECT_EQ(profile->layers.at(0).points.at(1).layer_seconds_per_sample, 4e-3);
  EXPECT_EQ(profile->collectives.at(0).bus_bandwidth, 1.6e11);
  EXPECT_EQ(profile->collectives.at(1).op, Collective::kPointToPoint);
  EXPECT_EQ(profile->collectives.at(1).points.at(0).bytes, 8);
  EXPECT_FALSE(profile->overlaps);
  EXPECT_EQ(profile->context_bytes, 1000);
}

TEST(Profile, ASpreadNamesItsSources) {
  const auto profile = read_with(R"("spread": {"products": 0.04, "step": 0.1})");
  ASSERT_TRUE(profile) << base::to_string(profile.error());
  EXPECT_EQ(profile->spread, (Spread{.products = 0.04, .step = 0.1}));
  expect_fault(R"("spread": {"product": 0.04})", ErrorCode::kUnknownKey, "product", 2);
  expect_fault(R"("spread": {"fabric": -0.1})", ErrorCode::kOutOfRange, "fabric", 2);
}

TEST(Profile, AbsentPartsKeepTheirDefaults) {
  const auto profile =
      read(R"({"schema": "orrery.profile/1", "name": "p", "provenance": {"source": "s"}})");
  ASSERT_TRUE(profile);
  EXPECT_EQ(*profile, (Profile{.name = "p", .provenance = {.source = "s"}}));
}

TEST(Profile, MayBeLikeAnotherAndStateWhatDiffers) {
  const Profile other{.name = "other",
                      .provenance = {.source = "t"},
                      .framework = Framework{.name = "f", .kernel_seconds = 3e-6},
                      .step_communication = {.factor = 1.2},
                      .spread = Spread{.step = 0.1},
                      .overlap_slowdown = 1.1};
  const std::string text = R"({"schema": "orrery.profile/1", "name": "p",
    "provenance": {"source": "s"}, "like": "other", "framework": {"loss_passes": 5},
    "overlap_slowdown": 1})";
  const auto node = base::Node::parse_text(text, "p.json");
  ASSERT_TRUE(node);
  std::string asked;
  const auto profile = read_profile(*node, [&](const std::string& name) -> base::Result<Profile> {
    asked = name;
    return other;
  });
  ASSERT_TRUE(profile) << base::to_string(profile.error());
  Profile expected = other;
  expected.name = "p";
  expected.provenance.source = "s";
  expected.framework->loss_passes = 5;
  expected.overlap_slowdown = 1;
  EXPECT_EQ(*profile, expected);
  EXPECT_EQ(asked, "other");

  expect_fault(R"("like": "other")", ErrorCode::kUnknownKey, "'like'", 2);  // none to ask
  const auto none = read_profile(*node, [](const std::string&) -> base::Result<Profile> {
    return base::fail(base::make_error(ErrorCode::kNotFound, "none"));
  });
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error()[0].where.line, 2u);
}

TEST(Profile, PercentilesDefaultToTheMedian) {
  const auto profile =
      read_with(R"("operators": [{)" + kShape + R"(, "phase": "F", "seconds_median": 2e-4}])");
  ASSERT_TRUE(profile) << base::to_string(profile.error());
  EXPECT_EQ(profile->operators[0].seconds_p10, 2e-4);
  EXPECT_EQ(profile->operators[0].seconds_p90, 2e-4);
}

TEST(Profile, FaultsNameTheirPlace) {
  const std::string op = "\"operators\": [{" + kShape;
  expect_fault(op + ",\n \"phase\": \"F\",\n \"seconds_median\": -1}]", ErrorCode::kOutOfRange,
               "'seconds_median' of operators[0]", 4);
  expect_fault(op + ",\n \"phase\": \"X\", \"seconds_median\": 1}]", ErrorCode::kBadValue, "'X'",
               3);
  expect_fault(op + ",\n \"phase\": \"F\", \"seconds_median\": 1,\n \"seconds_p10\": 2}]",
               ErrorCode::kInconsistent, "out of order", 3);
  expect_fault(op + ",\n \"phase\": \"F\", \"seconds_median\": 1,\n \"second\": 2}]",
               ErrorCode::kUnknownKey, "'second'", 4);
  expect_fault("\"overlap_slowdown\": 0.5", ErrorCode::kOutOfRange, "'overlap_slowdown'", 2);
  expect_fault("\"context_bytes\": -5", ErrorCode::kOutOfRange, "'context_bytes'", 2);
  expect_fault("\"launch_secnds\": 1e-6", ErrorCode::kUnknownKey, "'launch_secnds'", 2);
}

TEST(Profile, LayerPointsAscend) {
  const std::string point =
      R"({"layer_seconds_per_sample": 1, "other_seconds_per_sample": 1, "batch": )";
  const std::string layer =
      R"("layers": [{"model": "m", "sequence": 1, "hidden": 1, "precision": "fp32", "points": [)";
  expect_fault(layer + point + "2},\n" + point + "2}]}]", ErrorCode::kInconsistent,
               "'batch' 2 follows 2", 3);
  expect_fault(layer + "]}]", ErrorCode::kMissingKey, "has no points", 2);
}

TEST(Profile, CollectivesHavePointsOrBandwidth) {
  const std::string c = R"("collectives": [{"op": "broadcast", "size": 4)";
  const std::string points = R"(, "points": [{"bytes": 16, "seconds": 1}])";
  expect_fault(c + "}]", ErrorCode::kMissingKey, "needs points", 2);
  expect_fault(c + points + R"(, "bus_bandwidth_bytes_per_second": 5}])", ErrorCode::kInconsistent,
               "both", 2);
  expect_fault(c + points + R"(, "latency_seconds": 1e-6}])", ErrorCode::kInconsistent, "latency",
               2);
  expect_fault(c + points + R"(, "hosts": 8}])", ErrorCode::kInconsistent, "hosts", 2);
  expect_fault(c + R"(, "points": [{"bytes": 16, "seconds": 1},)" + "\n" +
                   R"({"bytes": 8, "seconds": 1}]}])",
               ErrorCode::kInconsistent, "'bytes' 8 follows 16", 3);
  expect_fault(c + R"(, "bus_bandwidth": 5, "bus_bandwidth_bytes_per_second": 5}])",
               ErrorCode::kUnknownKey, "'bus_bandwidth'", 2);
}

TEST(Profile, RepeatedEntriesAreAFault) {
  const std::string op = "{" + kShape + R"(, "phase": "F", "seconds_median": 2e-4})";
  expect_fault("\"operators\": [" + op + ",\n" + op + "]", ErrorCode::kInconsistent,
               "operators[1] repeats", 3);
  const std::string c = R"({"op": "broadcast", "size": 4, "bus_bandwidth_bytes_per_second": 5})";
  expect_fault("\"collectives\": [" + c + ",\n" + c + "]", ErrorCode::kInconsistent,
               "collectives[1] repeats", 3);
}

TEST(Profile, AllFaultsAreReported) {
  const auto faults =
      refused(R"("overlaps": 1, "launch_seconds": -1, "composition_factor": 0, "extra": 1,
    "layers": [{}], "collectives": [3])");
  const std::string text = base::to_string(faults);
  for (const char* part : {"'overlaps'", "'launch_seconds'", "'composition_factor'", "'extra'",
                           "layers[0] has no 'model'", "layers[0] has no 'points'",
                           "collectives[0] must be an object"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(faults.size(), 10u) << text;
}

TEST(Profile, ProvenanceIsCompulsory) {
  const auto faults = read(R"({"schema": "orrery.profile/1", "name": "p"})");
  ASSERT_FALSE(faults);
  EXPECT_EQ(faults.error().front().code, ErrorCode::kMissingKey);
  const auto empty =
      read(R"({"schema": "orrery.profile/1", "name": "p", "provenance": {"source": ""}})");
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().front().code, ErrorCode::kBadValue);
}

TEST(Profile, AnotherSchemaIsRefusedAlone) {
  const auto profile = read(R"({"schema": "orrery.profile/9", "what": 1})");
  ASSERT_FALSE(profile);
  ASSERT_EQ(profile.error().size(), 1u);
  EXPECT_EQ(profile.error()[0].code, ErrorCode::kUnsupported);
}

TEST(Profile, LoadsWhatWasWritten) {
  const Profile written{
      .name = "disk", .provenance = {.source = "test"}, .launch_seconds = 1.0 / 3.0};
  const std::string path = testing::TempDir() + "orrery_model_profile_test.json";
  ASSERT_TRUE(base::write_json(path, to_json(written)));
  const auto loaded = load_profile(path);
  ASSERT_TRUE(loaded) << base::to_string(loaded.error());
  EXPECT_EQ(*loaded, written);
  EXPECT_FALSE(load_profile(path + ".absent"));
}

base::Result<SegmentShape> read_shape(const std::string& text) {
  const auto node = base::Node::parse_text(text, "s.json");
  EXPECT_TRUE(node);
  return read_segment_shape(*node);
}

TEST(SegmentShape, JsonOmitsDefaults) {
  const SegmentShape s{.kind = SegmentKind::kNorm,
                       .sequences = 1,
                       .tokens = 2,
                       .in = 4,
                       .out = 4,
                       .norm = NormKind::kRmsNorm};
  EXPECT_EQ(base::to_line(to_json(s)),
            R"({"dtype":"fp32","in":4,"kind":"norm","norm":"rms_norm","out":4,"sequences":1,)"
            R"("tokens":2})");
}

TEST(SegmentShape, NeedsTheSizesOfItsKind) {
  const auto s = read_shape(
      R"({"kind": "attention", "dtype": "bf16", "sequences": 1, "tokens": 4, "heads": 2})");
  ASSERT_FALSE(s);
  ASSERT_EQ(s.error().size(), 2u);
  EXPECT_THAT(s.error()[0].message, HasSubstr("'kv_heads'"));
  EXPECT_THAT(s.error()[1].message, HasSubstr("'head_dim'"));
}

TEST(SegmentShape, HugeAndIntegerShapesAreRefused) {
  const auto huge = read_shape(
      R"({"kind": "qkv", "dtype": "fp32", "sequences": 1048576, "tokens": 1048576, "in": 1048576,
 "out": 4})");
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error()[0].code, ErrorCode::kOutOfRange);
  const auto ids = read_shape(R"({"kind": "adamw", "dtype": "int64", "elements": 4})");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error()[0].code, ErrorCode::kBadValue);
  const auto kind = read_shape(R"({"kind": "attenton", "dtype": "fp32"})");
  ASSERT_FALSE(kind);
  EXPECT_EQ(kind.error()[0].hint, "did you mean 'attention'?");
}

}  // namespace
}  // namespace orrery::model
