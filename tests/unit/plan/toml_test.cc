#include "plan/import/toml.h"

#include <gtest/gtest.h>

namespace orrery::plan {
namespace {

std::string show(const TomlValue& v) {
  if (v.kind != TomlValue::Kind::kArray)
    return v.kind == TomlValue::Kind::kString ? fmt::format("'{}'", v.text) : v.text;
  std::string text;
  for (const TomlValue& item : v.items) text += (text.empty() ? "" : ",") + show(item);
  return "[" + text + "]";
}

TEST(Toml, SectionsKeysAndValues) {
  const auto entries = read_toml(
      "# comment\na = 1_000 # behind\r\n\n[ p . q ]\n\tb = \"x \\\"y\\\" \\t#\"\n c= 'C:\\'\n"
      "d = [1, [true, 'e'],\n # in between\n  -2.5e3,\n]\nf-1 = +7",
      "t.toml");
  ASSERT_TRUE(entries.has_value()) << base::to_string(entries.error());
  std::vector<std::string> found;
  for (const TomlEntry& e : *entries)
    found.push_back(fmt::format("{}|{}={} {}:{}", e.section, e.key, show(e.value), e.where.line,
                                e.where.column));
  EXPECT_EQ(found,
            (std::vector<std::string>{"|a=1000 2:1", "p.q|b='x \"y\" \t#' 5:2", "p.q|c='C:\\' 6:2",
                                      "p.q|d=[1,[true,'e'],-2.5e3] 7:1", "p.q|f-1=7 11:1"}));
}

TEST(Toml, WhatIsRefusedNamesItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"#\n[#", "t.toml:2:2: error[E0001]: a key, or a [section]"},
      {"[a", "t.toml:1:3: error[E0001]: a section ends with ']'"},
      {"[[a]]", "t.toml:1:1: error[E0011]: arrays of tables are not read"},
      {"a", "t.toml:1:2: error[E0001]: '=' and a value follow a key"},
      {"a =", "t.toml:1:4: error[E0001]: a value is missing"},
      {"a = 1 2", "t.toml:1:7: error[E0001]: the line ends here, or has a comment"},
      {"a = 0x1f",
       "t.toml:1:5: error[E0001]: '0x1f' is none of \"text\", a decimal number, true, false and [ "
       "]"},
      {"a = 1__0",
       "t.toml:1:5: error[E0001]: '1__0' is none of \"text\", a decimal number, true, false and [ "
       "]"},
      {"a = 2026-01-01",
       "t.toml:1:5: error[E0001]: '2026-01-01' is none of \"text\", a decimal number, true, false "
       "and [ ]"},
      {"a = {b = 1}", "t.toml:1:5: error[E0011]: inline tables are not read: use a section"},
      {"a = \"x", "t.toml:1:7: error[E0001]: a string ends on its line"},
      {"a = \"\"\"x\"\"\"", "t.toml:1:5: error[E0011]: strings of several lines are not read"},
      {"a = \"\\u0041\"", "t.toml:1:7: error[E0011]: of escapes \\\", \\\\, \\n and \\t are read"},
      {"a = [1", "t.toml:1:7: error[E0001]: ',' or ']' follows an item"},
      {"a = [[[[[[[[[[[[[[[[[", "t.toml:1:21: error[E0011]: arrays 16 deep"},
      {"\"a\" = 1", "t.toml:1:1: error[E0011]: quoted keys are not read"},
      {"a.b = 1", "t.toml:1:2: error[E0011]: dotted keys are not read: use a section"},
      {"a = 1\na = 2", "t.toml:2:1: error[E0012]: key 'a' stands twice"},
      {"[a]\n[b]\n[a]", "t.toml:3:1: error[E0012]: section 'a' stands twice"},
  };
  for (const auto& [text, expected] : cases) {
    const auto entries = read_toml(text, "t.toml");
    ASSERT_FALSE(entries.has_value()) << text;
    EXPECT_EQ(base::to_string(entries.error()), expected) << text;
  }
}

}  // namespace
}  // namespace orrery::plan
