#include "base/csv.h"

#include <gtest/gtest.h>

namespace orrery::base {
namespace {

std::vector<std::vector<std::string>> texts(const Csv& csv) {
  std::vector<std::vector<std::string>> all;
  for (const CsvRecord& r : csv.records) {
    all.emplace_back();
    for (const CsvCell& c : r.cells) all.back().push_back(c.text);
  }
  return all;
}
using Texts = std::vector<std::vector<std::string>>;

TEST(Csv, QuotesHoldCommasLineBreaksAndQuotes) {
  const Csv csv = parse_csv("a,\"b,c\",\"say \"\"hi\"\"\"\n\"two\nlines\",,x\n", "t.csv");
  EXPECT_EQ(texts(csv), (Texts{{"a", "b,c", "say \"hi\""}, {"two\nlines", "", "x"}}));
  for (const CsvRecord& r : csv.records) EXPECT_FALSE(r.fault);
}

TEST(Csv, EveryCellKnowsItsPlace) {
  const Csv csv = parse_csv("a,b\n\"two\nlines\",x,y\n\nz", "t.csv");
  ASSERT_EQ(csv.records.size(), 3U);
  EXPECT_EQ(csv.records[0].cells[1].column, 3U);
  EXPECT_EQ(csv.records[1].line, 2U);
  EXPECT_EQ(csv.records[1].cells[1].line, 3U);  // on the second line of its record
  EXPECT_EQ(csv.records[1].cells[1].column, 8U);
  EXPECT_EQ(csv.records[2].line, 5U);  // the empty line is no record
}

TEST(Csv, LineEndsMarkAndMissingLastLineEndChangeNothing) {
  const Texts expected{{"a", "b"}, {"1", "2"}};
  EXPECT_EQ(texts(parse_csv("a,b\n1,2\n", "t")), expected);
  EXPECT_EQ(texts(parse_csv("a,b\r\n1,2\r\n", "t")), expected);
  EXPECT_EQ(texts(parse_csv("\xEF\xBB\xBF"
                            "a,b\r\n\r\n1,2",
                            "t")),
            expected);
  EXPECT_EQ(parse_csv("a\r\n1\n", "t").line_end, "\r\n");
  EXPECT_EQ(parse_csv("a\n1\r\n", "t").line_end, "\n");
  // editors do not show the mark
  EXPECT_EQ(parse_csv("\xEF\xBB\xBF"
                      "a",
                      "t")
                .records[0]
                .cells[0]
                .column,
            1U);
  EXPECT_TRUE(parse_csv("", "t").records.empty());
}

TEST(Csv, AMalformedRecordSaysWhereAndTheOthersAreRead) {
  const Csv csv = parse_csv("a,b\nx,y\"z\n\"q\"r,2\n3,\"never\n4,5\n", "t.csv");
  ASSERT_EQ(csv.records.size(), 4U);
  EXPECT_FALSE(csv.records[0].fault);
  ASSERT_TRUE(csv.records[1].fault);
  EXPECT_EQ(csv.records[1].fault->where, (SourceSpan{"t.csv", 2, 4}));
  ASSERT_TRUE(csv.records[2].fault);
  EXPECT_EQ(csv.records[2].fault->where, (SourceSpan{"t.csv", 3, 4}));
  ASSERT_TRUE(csv.records[3].fault);
  EXPECT_EQ(csv.records[3].fault->where, (SourceSpan{"t.csv", 4, 3}));
  EXPECT_NE(csv.records[3].fault->message.find("never ends"), std::string::npos);
}

TEST(Csv, ACellIsQuotedOnlyWhereItMustBe) {
  EXPECT_EQ(csv_cell("plain text"), "plain text");
  EXPECT_EQ(csv_cell(""), "");
  EXPECT_EQ(csv_cell("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_cell("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(csv_cell("a\r\nb"), "\"a\r\nb\"");
  EXPECT_EQ(csv_cell(" a"), "\" a\"");
}

}  // namespace
}  // namespace orrery::base
