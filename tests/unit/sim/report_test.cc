#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "sim/simulate.h"

namespace orrery::sim {
namespace {

SimReport example() {
  SimReport r;
  r.step_time_ps = 2'500'000'000'000;
  r.samples_per_s = 25.6;
  r.tokens_per_s = 52428.8;
  r.mfu = 0.41;
  r.bubble_fraction = 0.2;
  r.exposed_communication_fraction = 0.1;
  StageReport s;
  s.busy_compute_ps = 1'750'000'000'000;
  s.exposed_tensor_ps = 250'000'000'000;
  s.idle_ps = 500'000'000'000;
  s.peak_memory_bytes = std::int64_t{3} << 30;
  s.memory_at_peak[0] = std::int64_t{1} << 30;
  r.stages = {s, s};
  r.stages[1].peak_memory_bytes = std::int64_t{2} << 30;
  r.fingerprint = "0123";
  return r;
}

TEST(Report, JsonHasWhatPredictedShows) {
  const base::Json j = to_json(example());
  EXPECT_EQ(j.at("schema"), "orrery.report/1");
  EXPECT_DOUBLE_EQ(j.at("step_time_s").get<double>(), 2.5);
  EXPECT_EQ(j.at("step_time_ps"), 2'500'000'000'000);
  EXPECT_DOUBLE_EQ(j.at("samples_per_s").get<double>(), 25.6);
  EXPECT_EQ(j.at("peak_memory_bytes"), (base::Json{std::int64_t{3} << 30, std::int64_t{2} << 30}));
  EXPECT_DOUBLE_EQ(j.at("mfu").get<double>(), 0.41);
  EXPECT_DOUBLE_EQ(j.at("bubble_fraction").get<double>(), 0.2);
  EXPECT_DOUBLE_EQ(j.at("exposed_communication_fraction").get<double>(), 0.1);
  ASSERT_EQ(j.at("stages").size(), 2U);
  EXPECT_DOUBLE_EQ(j.at("stages")[0].at("exposed_tensor_s").get<double>(), 0.25);
  EXPECT_EQ(j.at("stages")[1].at("stage"), 1);
  EXPECT_EQ(j.at("stages")[0].at("memory_at_peak_bytes").size(),
            static_cast<std::size_t>(plan::kBufferCategories));
}

TEST(Report, TextHasOneRowPerStage) {
  const std::string text = to_text(example());
  EXPECT_THAT(text, ::testing::HasSubstr("step time    2.5 s"));
  EXPECT_THAT(text, ::testing::HasSubstr("MFU          41.0 %"));
  EXPECT_THAT(text, ::testing::HasSubstr("70.0 %"));
  EXPECT_THAT(text, ::testing::HasSubstr("3 GiB"));
  EXPECT_THAT(text, ::testing::HasSubstr("fingerprint  0123"));
}

}  // namespace
}  // namespace orrery::sim
