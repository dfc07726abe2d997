#include "search/table/instance.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/unit/search/instance_json.h"

namespace orrery::search {
namespace {

base::Result<Instance> read(const std::string& text) {
  const auto root = base::Node::parse_text(text, "instance.json");
  if (!root) return base::fail(root.error());
  return read_instance(*root);
}

std::string layers_of(std::int64_t time, std::int64_t count) {
  return fmt::format(R"({{"schema": "orrery.instance/1", "budget_bytes": 9,
    "layers": [{{"count": {}, "options": [{{"name": "a", "time_ps": {}, "memory_bytes": 1}}]}}]}})",
                     count, time);
}

TEST(InstanceReader, CountRepeatsALayer) {
  const auto instance = read(layers_of(7, 3));
  ASSERT_TRUE(instance.has_value()) << base::to_string(instance.error());
  EXPECT_EQ(instance->layers.size(), 3U);
  EXPECT_EQ(instance->layers[2][0].time_ps, 7);
}

TEST(InstanceReader, TablesOfEachBoundaryMayHaveTheirOwnShape) {
  const auto instance = read(R"({"schema": "orrery.instance/1", "budget_bytes": 9, "layers": [
    {"options": [{"name": "a", "time_ps": 1, "memory_bytes": 1},
                 {"name": "b", "time_ps": 1, "memory_bytes": 1}]},
    {"options": [{"name": "a", "time_ps": 1, "memory_bytes": 1}]}],
    "transition_ps": [[[4], [5]]]})");
  ASSERT_TRUE(instance.has_value()) << base::to_string(instance.error());
  EXPECT_EQ(instance->transition(0, 1, 0), 5);
  const auto again = read(base::to_text(to_json(*instance)));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(to_json(*again), to_json(*instance));
}

TEST(InstanceReader, TotalsThatLeaveTheExactRangeAreRefused) {
  EXPECT_TRUE(read(layers_of(kMaxInstanceTotal / 4 - 1, 4)).has_value());
  const auto refused = read(layers_of(kMaxInstanceTotal / 4, 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().front().code, base::ErrorCode::kOutOfRange);
  EXPECT_FALSE(read(layers_of(0, kMaxInstanceSize + 1)).has_value());
}

TEST(InstanceReader, RaggedTablesAreRefusedAtTheirPlace) {
  const auto refused = read(R"({"schema": "orrery.instance/1", "budget_bytes": 9,
    "layers": [{"count": 2, "options": [{"name": "a", "time_ps": 1, "memory_bytes": 1},
     {"name": "b", "time_ps": 1, "memory_bytes": 1}]}],
    "transition_ps": [[0, 1],
                      [0]]})");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().front().where.line, 5U);
}

}  // namespace
}  // namespace orrery::search
