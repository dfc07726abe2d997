#include "cli/tables/sweep_axes.h"

#include <gmock/gmock.h>

namespace orrery::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> values(const std::string& text) {
  const std::vector<std::string> texts{text};
  const auto axes = parse_axes(texts);
  EXPECT_TRUE(axes) << text;
  std::vector<std::string> first;
  for (const auto& value : axes->front().values) first.push_back(value.front());
  return first;
}

std::string fault(const std::vector<std::string>& texts) {
  const auto axes = parse_axes(texts);
  return axes ? "no fault" : base::to_string(axes.error());
}

TEST(Axes, ListTheirValues) {
  EXPECT_THAT(values("cluster=dgx-a100, dgx-h100"), ElementsAre("dgx-a100", "dgx-h100"));
  EXPECT_THAT(values("ib.bandwidth=1x,2x"), ElementsAre("1x", "2x"));
}

TEST(Axes, DoubleOrAddWithinARange) {
  EXPECT_THAT(values("hosts=1,3..20"), ElementsAre("1", "3", "6", "12"));
  EXPECT_THAT(values("hosts=8..32:8"), ElementsAre("8", "16", "24", "32"));
  EXPECT_THAT(values("hosts=5..5"), ElementsAre("5"));
}

TEST(Axes, PartValuesThatHoldCommasBySemicolons) {
  EXPECT_THAT(values("fix=tp=4,pp=2;tp=8"), ElementsAre("tp=4,pp=2", "tp=8"));
}

TEST(Axes, VarySeveralNamesTogether) {
  const std::vector<std::string> texts{"hosts:global-batch=1:64,2:128"};
  const auto axes = parse_axes(texts);
  ASSERT_TRUE(axes);
  EXPECT_THAT(axes->front().names, ElementsAre("hosts", "global-batch"));
  EXPECT_THAT(axes->front().values, ElementsAre(ElementsAre("1", "64"), ElementsAre("2", "128")));
}

TEST(Axes, GiveTheirCrossProductLastFastest) {
  const std::vector<std::string> texts{"hosts=1,2", "ib.bandwidth=1x,2x"};
  const auto points = points_of(*parse_axes(texts));
  ASSERT_TRUE(points);
  ASSERT_EQ(points->size(), 4U);
  EXPECT_THAT((*points)[1], ElementsAre(std::pair("hosts", "1"), std::pair("ib.bandwidth", "2x")));
  EXPECT_THAT((*points)[2], ElementsAre(std::pair("hosts", "2"), std::pair("ib.bandwidth", "1x")));
}

TEST(Axes, ThatAreWrongSayWhy) {
  EXPECT_THAT(fault({"hosts"}), HasSubstr("names no values"));
  EXPECT_THAT(fault({"hosts=1,,2"}), HasSubstr("empty value"));
  EXPECT_THAT(fault({"hosts=8..2"}), HasSubstr("no range of whole numbers"));
  EXPECT_THAT(fault({"hosts=8..64:0"}), HasSubstr("no range of whole numbers"));
  EXPECT_THAT(fault({"hosts=1..9000000:1"}), HasSubstr("more than 100000 values"));
  EXPECT_THAT(fault({"hosts:global-batch=1:64,2"}), HasSubstr("'2' has 1 values for 2 names"));
  EXPECT_THAT(fault({"hosts=1", "model:hosts=gpt2:2"}), HasSubstr("'hosts' is on two axes"));
  const std::vector<std::string> texts{"hosts=1..1000:1", "global-batch=1..1000:1"};
  EXPECT_FALSE(points_of(*parse_axes(texts)));
}

}  // namespace
}  // namespace orrery::cli
