// The page of a simulation: well formed, self-contained, and its numbers are the report's.
#include "cli/html/html_report.h"
#include "base/json.h"
#include "cli/html/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "plan/lowering/lower.h"

namespace orrery::cli {
namespace {

struct Simulated {
  plan::Plan plan;
  costmodel::CostModel cost;
  sim::SimReport report;
};

Simulated simulated() {
  const auto model = model::find_model("gpt2").value();
  plan::UniformOptions o{.tp = 2,
                         .pp = 2,
                         .dp = 2,
                         .zero = 1,
                         .recompute = plan::Recompute::kFull,
                         .global_batch = 8,
                         .sequence = 128};
  Simulated s{.plan = plan::uniform_plan(model, "dgx-a100", 1, o).value(),
              .cost = costmodel::CostModel::make(
                          model, topologies::catalog_topology("dgx-a100").value(), std::nullopt,
                          {.precision = o.precision, .sequence = o.sequence})
                          .value(),
              .report = {}};
  s.plan.model = "gpt2 </script> & \"quoted\"";
  plan::Plan named = s.plan;
  s.report = sim::simulate(plan::lower(named, model).value(), s.cost, {.picture = true}).value();
  return s;
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  EXPECT_NE(from, std::string::npos) << begin;
  return text.substr(from + begin.size(),
                     text.find(end, from + begin.size()) - from - begin.size());
}

/// Every element that is opened is closed, in order; empty: so it is. Scripts and styles are text.
std::string tag_fault(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) return "'<' without '>'";
    if (page[at + 1] == '!') continue;
    const bool closes = page[at + 1] == '/';
    const std::size_t name_at = at + (closes ? 2 : 1);
    const std::string name = page.substr(name_at, page.find_first_of(" />", name_at) - name_at);
    if (!closes && page[end - 1] == '/') continue;
    if (!closes) {
      open.push_back(name);
      if (name == "script" || name == "style") at = page.find("</" + name, end) - 1;
      continue;
    }
    if (open.empty() || open.back() != name) return "closes " + name;
    open.pop_back();
  }
  return open.empty() ? "" : "never closes " + open.back();
}

TEST(HtmlReport, IsWellFormedAndNeedsNoNetwork) {
  const Simulated s = simulated();
  const std::string page = page_of("report", html_data(s.plan, s.cost, s.report, 80, {})).value();
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_EQ(tag_fault(page), "");
  EXPECT_NE(tag_fault("<p><b></p>"), "");
  for (const char* outside :
       {"http:", "https:", "//www", "src=", "@import", "url(", "<link", "fetch(", "XMLHttpRequest",
        "import(", "@STYLE@", "@DATA@", "@SCRIPT@"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(page.find("gpt2 </script>"), std::string::npos);  // a name cannot end the script
}

TEST(HtmlReport, CarriesTheNumbersOfTheReport) {
  const Simulated s = simulated();
  const std::string page =
      page_of("report", html_data(s.plan, s.cost, s.report, 1 << 30, {})).value();
  const base::Json data =
      base::parse_json(between(page, "id=\"data\">", "</script>"), "page").value();
  EXPECT_EQ(data["model"], "gpt2 </script> & \"quoted\"");
  EXPECT_EQ(data["step_ns"], static_cast<double>(s.report.step_time_ps) / 1e3);
  EXPECT_EQ(data["mfu"], s.report.mfu);
  EXPECT_EQ(data["fingerprint"], s.report.fingerprint);
  EXPECT_EQ(data["limit"], 1 << 30);
  ASSERT_EQ(data["stages"].size(), s.report.stages.size());
  for (std::size_t i = 0; i < s.report.stages.size(); ++i) {
    const base::Json& stage = data["stages"][i];
    EXPECT_EQ(stage["peak"], s.report.stages[i].peak_memory_bytes);
    double sum = 0;
    for (const base::Json& part : stage["parts"]) sum += part.get<double>();
    EXPECT_NEAR(sum, data["step_ns"].get<double>(), 1e-3);
    std::int64_t at_peak = 0, highest = 0;
    for (const base::Json& bytes : stage["at_peak"]) at_peak += bytes.get<std::int64_t>();
    EXPECT_EQ(at_peak + s.cost.context_bytes(), s.report.stages[i].peak_memory_bytes);
    for (const base::Json& point : stage["memory"]) {
      ASSERT_EQ(point.size(), 1U + plan::kBufferCategories);
      highest = std::max(highest, std::accumulate(point.begin() + 1, point.end(), std::int64_t{0},
                                                  [](std::int64_t n, const base::Json& b) {
                                                    return n + b.get<std::int64_t>();
                                                  }));
    }
    EXPECT_EQ(highest + s.cost.context_bytes(), s.report.stages[i].timeline_peak_bytes);
    EXPECT_EQ(stage["lanes"][0]["stream"], "compute");
    EXPECT_FALSE(stage["lanes"][0]["blocks"].empty());
  }
}

TEST(HtmlReport, LinksThatCarryTheSameAreOneRow) {
  const Simulated s = simulated();
  const base::Json links = html_data(s.plan, s.cost, s.report, 80, {})["links"];
  ASSERT_FALSE(links["rows"].empty());
  double highest = 0;
  std::int64_t rows = 0;
  for (const base::Json& row : links["rows"]) {
    rows += row["alike"].get<std::int64_t>();
    for (const base::Json& share : row["cells"]) highest = std::max(highest, share.get<double>());
  }
  EXPECT_EQ(rows, static_cast<std::int64_t>(s.report.picture.links.size()));
  EXPECT_LT(links["rows"].size(), s.report.picture.links.size());
  EXPECT_EQ(links["highest"], highest);
  EXPECT_GT(highest, 0);
  EXPECT_LE(highest, 1.0);  // no link carries more than it can
}

}  // namespace
}  // namespace orrery::cli
