#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/csv.h"

namespace orrery::base {
namespace {

RC_GTEST_PROP(Csv, ReadsBackWhatItWrites, ()) {
  const auto cell =
      rc::gen::container<std::string>(rc::gen::element('a', ',', '"', '\n', '\r', ' ', '7'));
  const auto records = *rc::gen::container<std::vector<std::vector<std::string>>>(
      rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(cell)));
  const std::string end = *rc::gen::element<std::string>("\n", "\r\n");
  std::string text;
  std::vector<std::vector<std::string>> expected;
  for (const auto& record : records) {
    for (std::size_t i = 0; i < record.size(); ++i)
      text += (i > 0 ? "," : "") + csv_cell(record[i]);
    text += end;
    // one empty cell is an empty line
    if (record.size() > 1 || !record[0].empty()) expected.push_back(record);
  }
  const Csv csv = parse_csv(text, "t");
  std::vector<std::vector<std::string>> read;
  for (const CsvRecord& r : csv.records) {
    RC_ASSERT(!r.fault);
    read.emplace_back();
    for (const CsvCell& c : r.cells) read.back().push_back(c.text);
  }
  RC_ASSERT(read == expected);
}

}  // namespace
}  // namespace orrery::base
