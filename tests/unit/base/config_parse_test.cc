#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/config.h"

namespace orrery::base {
namespace {

std::string fault(std::string_view text, std::string_view name = "f.yaml") {
  const auto node = Node::parse_text(text, name);
  return node ? "no fault" : to_string(node.error());
}

struct Case {
  std::string text;
  std::string fault;
};

TEST(ConfigParse, EveryKindOfBrokenYamlHasItsPlace) {
  const std::vector<Case> cases = {
      {"", "f.yaml:1:1: error[E0001]: the file is empty"},
      {"# only a comment\n", "f.yaml:1:1: error[E0001]: the file is empty"},
      {"a: 1\nb: 2\na: 3\n",
       "f.yaml:3:1: error[E0012]: key 'a' is stated twice\n  note: first stated at f.yaml:1:1"},
      {"a:\n  x: {y: 1, y: 2}\n",
       "f.yaml:2:13: error[E0012]: key 'y' is stated twice\n  note: first stated at f.yaml:2:7"},
      {"a: 1\n---\nb: 2\n",
       "f.yaml:2:1: error[E0001]: a second document starts here; one file, one document"},
      {"{a: 1} x",
       "f.yaml:1:8: error[E0001]: not valid YAML: did not find expected <document start>"},
      {"a: [1, 2", "f.yaml:1:4: error[E0001]: the list that starts here is not closed"},
      {"a:\n  - {b: 1,", "f.yaml:2:5: error[E0001]: the object that starts here is not closed"},
      {"a: \"abc",
       "f.yaml:1:8: error[E0001]: not valid YAML: found unexpected end of stream while scanning a "
       "quoted scalar"},
      {"a:\n\tb: 1\n", "f.yaml:2:1: error[E0001]: tab in the indentation; use spaces"},
      {"a:\n  b: 1\n  \tc: 2\n", "f.yaml:3:3: error[E0001]: tab in the indentation; use spaces"},
      {"a: 1\n b: 2\n",
       "f.yaml:2:3: error[E0001]: not valid YAML: mapping values are not allowed in this context"},
      {"a: b: c\n",
       "f.yaml:1:5: error[E0001]: not valid YAML: mapping values are not allowed in this context"},
      {"}",
       "f.yaml:1:1: error[E0001]: not valid YAML: did not find expected node content while parsing "
       "a block node"},
      {"a: @x",
       "f.yaml:1:4: error[E0001]: not valid YAML: found character that cannot start any token "
       "while scanning for the next token"},
      {"a: !!int 3", "f.yaml:1:4: error[E0011]: the tag 'tag:yaml.org,2002:int' is not supported"},
      {"? [1]\n: 2\n", "f.yaml:1:3: error[E0013]: a key must be text"},
      {"a: &x 1\nb: *x\n",
       "f.yaml:1:4: error[E0011]: anchors are not supported; write the value out\n"
       "f.yaml:2:4: error[E0011]: aliases are not supported; write the value out"},
      {std::string("a: \0b", 5),
       "f.yaml: error[E0001]: not text: control characters are not allowed at offset 3"},
      {"a: \xff", "f.yaml: error[E0001]: not text: invalid leading UTF-8 octet at offset 3"},
  };
  for (const Case& c : cases) EXPECT_EQ(fault(c.text), c.fault) << c.text;
}

TEST(ConfigParse, JsonFilesFollowTheRulesOfJson) {
  const std::vector<Case> cases = {
      {"{\"a\": 1,}",
       "f.json:1:9: error[E0001]: not valid JSON: syntax error while parsing object key - "
       "unexpected '}'; expected "
       "string literal"},
      {"{\"a\":1",
       "f.json:1:7: error[E0001]: not valid JSON: syntax error while parsing object - unexpected "
       "end of "
       "input; expected '}'"},
      {"{\"a\":1,\n\"a\":2}",
       "f.json:2:1: error[E0012]: key 'a' is stated twice\n  note: first stated at f.json:1:2"},
      {"{a: 1}",
       "f.json:1:2: error[E0001]: not valid JSON: syntax error while parsing object key - invalid "
       "literal; "
       "last read: '{a'; expected string literal"},
  };
  for (const Case& c : cases) EXPECT_EQ(fault(c.text, "f.json"), c.fault) << c.text;
}

TEST(ConfigParse, DeepNestingIsRefused) {
  EXPECT_NE(fault(std::string(100'000, '[')), "no fault");
  EXPECT_NE(fault(std::string(201, '[') + std::string(201, ']')), "no fault");
  EXPECT_EQ(fault(std::string(100, '[') + std::string(100, ']')), "no fault");
}

TEST(ConfigParse, AMissingFileIsNotFound) {
  const auto node = Node::parse_file("no/such/file.yaml");
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().at(0).code, ErrorCode::kNotFound);
}

TEST(ConfigParse, JsonIsReadWithPlaces) {
  const auto node =
      Node::parse_text("{\"a\": 1e-05,\n\t\"b\": {\"c\": [true, null, \"x\\u00e9\"]}}", "f.json");
  ASSERT_TRUE(node) << to_string(node.error());
  EXPECT_EQ(node->find("a")->as_double(), 1e-05);
  const auto list = node->find("b")->find("c")->items();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].as_bool(), true);
  EXPECT_TRUE(list[1].is_null());
  EXPECT_EQ(list[2].as_string(), "x\xc3\xa9");
  EXPECT_EQ(list[0].span(), (SourceSpan{"f.json", 2, 14}));
}

TEST(ConfigParse, ByteOrderMarkAndWindowsLineEndsAreAccepted) {
  const auto node = Node::parse_text(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: x\r\n",
      "f.yaml");
  ASSERT_TRUE(node) << to_string(node.error());
  EXPECT_EQ(node->find("a")->as_int64(), 1);
  EXPECT_EQ(node->find("b")->as_string(), "x");
}

Node scalar(const std::string& text) {
  return Node::parse_text("v: " + text, "f").value().find("v").value();
}

template <class T>
std::string fault_of(const Result<T>& value) {
  return value ? "no fault" : to_string(value.error());
}

TEST(Node, IntegersAreStrict) {
  EXPECT_EQ(scalar("-12").as_int64(), -12);
  EXPECT_EQ(scalar("+12").as_int64(), 12);
  EXPECT_EQ(scalar("9223372036854775807").as_int64(), 9223372036854775807LL);
  EXPECT_EQ(fault_of(scalar("1.0").as_int64()),
            "f:1:4: error[E0013]: expected an integer, found the number '1.0'");
  EXPECT_EQ(fault_of(scalar("1e3").as_int64()),
            "f:1:4: error[E0013]: expected an integer, found the number '1e3'");
  EXPECT_EQ(fault_of(scalar("\"8\"").as_int64()),
            "f:1:4: error[E0013]: expected an integer, found the quoted text \"8\"");
  EXPECT_EQ(fault_of(scalar("eight").as_int64()),
            "f:1:4: error[E0013]: expected an integer, found the text 'eight'");
  EXPECT_EQ(fault_of(scalar("[8]").as_int64()),
            "f:1:4: error[E0013]: expected an integer, found a list");
  EXPECT_EQ(fault_of(scalar("010").as_int64()),
            "f:1:4: error[E0013]: the number '010' has a leading zero");
  EXPECT_EQ(fault_of(scalar("9223372036854775808").as_int64()),
            "f:1:4: error[E0005]: the number '9223372036854775808' does not fit in 64 bits");
  EXPECT_EQ(fault_of(scalar("0").as_int64({1, 8})), "f:1:4: error[E0005]: 0 is less than 1");
  EXPECT_EQ(fault_of(scalar("9").as_int64({1, 8})), "f:1:4: error[E0005]: 9 is more than 8");
}

TEST(Node, DoublesAreFinite) {
  EXPECT_EQ(scalar("1.5").as_double(), 1.5);
  EXPECT_EQ(scalar("3").as_double(), 3.0);
  EXPECT_EQ(fault_of(scalar(".inf").as_double()),
            "f:1:4: error[E0013]: expected a finite number, found the text '.inf'");
  EXPECT_EQ(fault_of(scalar("1e999").as_double()),
            "f:1:4: error[E0013]: expected a finite number, found the text '1e999'");
  EXPECT_EQ(fault_of(scalar("\"1.5\"").as_double()),
            "f:1:4: error[E0013]: expected a number, found the quoted text \"1.5\"");
  EXPECT_EQ(fault_of(scalar("2").as_double({0, 1})), "f:1:4: error[E0005]: 2 is more than 1");
}

TEST(Node, TextIsNoNumberUnlessQuoted) {
  EXPECT_EQ(scalar("bf16").as_string(), "bf16");
  EXPECT_EQ(scalar("\"8\"").as_string(), "8");
  EXPECT_EQ(scalar("''").as_string(), "");
  EXPECT_EQ(fault_of(scalar("8").as_string()),
            "f:1:4: error[E0013]: expected text, found the number '8'; put it in quotes");
  EXPECT_EQ(fault_of(scalar("true").as_string()),
            "f:1:4: error[E0013]: expected text, found the text 'true'; put it in quotes");
}

TEST(Node, BooleansAreTrueAndFalseOnly) {
  EXPECT_EQ(scalar("true").as_bool(), true);
  EXPECT_EQ(scalar("false").as_bool(), false);
  for (const char* text : {"yes", "True", "1", "\"true\"", "~"})
    EXPECT_FALSE(scalar(text).as_bool()) << text;
}

TEST(Node, QuantitiesNeedAUnit) {
  EXPECT_EQ(scalar("3.5us").as_seconds(), 3.5_us);
  EXPECT_EQ(scalar("\"36 GiB\"").as_bytes(), 36_GiB);
  EXPECT_EQ(scalar("200Gb/s").as_bandwidth(), 200_Gbps);
  EXPECT_EQ(scalar("312 TFLOP/s").as_flops_rate(), 312_TFLOPS);
  EXPECT_EQ(
      fault_of(scalar("3.5").as_seconds()),
      "f:1:4: error[E0004]: '3.5' has no unit: expected a time; units: ps ns us ms s min h d");
  EXPECT_EQ(fault_of(scalar("0B/s").as_bandwidth()),
            "f:1:4: error[E0005]: the text '0B/s' is not more than zero");
  EXPECT_EQ(fault_of(scalar("[1]").as_bytes()),
            "f:1:4: error[E0013]: expected a size, found a list");
}

TEST(Node, AbsentAnswersNothing) {
  const Node absent;
  EXPECT_EQ(absent.kind(), Node::Kind::kAbsent);
  EXPECT_EQ(absent.size(), 0U);
  EXPECT_TRUE(absent.items().empty());
  EXPECT_TRUE(absent.members().empty());
  EXPECT_FALSE(absent.find("a"));
  EXPECT_FALSE(absent.as_int64());
}

TEST(Node, OutlivesItsRoot) {
  const Node leaf =
      Node::parse_text("a: {b: [1, 2]}", "f").value().find("a")->find("b")->items().at(1);
  EXPECT_EQ(leaf.as_int64(), 2);
}

}  // namespace
}  // namespace orrery::base
