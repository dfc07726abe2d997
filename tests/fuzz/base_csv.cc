// Tables from arbitrary text: every record has a cell, every cell a place inside the text, and what
// was read well reads back the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const orrery::base::Csv csv = orrery::base::parse_csv(text, "fuzz");
  const auto lines = static_cast<std::uint32_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  for (const orrery::base::CsvRecord& r : csv.records) {
    ORRERY_CHECK(!r.cells.empty());
    std::string line;
    for (const orrery::base::CsvCell& c : r.cells) {
      ORRERY_CHECK(c.line >= r.line && c.line <= lines && c.column >= 1 && c.column <= size + 1);
      line += (line.empty() && &c == &r.cells.front() ? "" : ",") + orrery::base::csv_cell(c.text);
    }
    if (r.fault || line.empty()) continue;
    const orrery::base::Csv again = orrery::base::parse_csv("first\n" + line, "again");
    ORRERY_CHECK(again.records.size() == 2 && again.records[1].cells.size() == r.cells.size());
    for (std::size_t i = 0; i < r.cells.size(); ++i)
      ORRERY_CHECK(again.records[1].cells[i].text == r.cells[i].text);
  }
  return 0;
}
