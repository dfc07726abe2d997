#include "rank_cases_fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "executor/launch/launch.h"
#include "tests/support/json_file.h"
#include "tests/support/rank_body.h"
#include "tests/support/scratch_folder.h"

namespace orrery::executor::testing {

RankCase rank_case(const NamedOptions::value_type& options) {
  const plan::UniformOptions& o = options.second;
  return {options.first, o.tp * o.pp * o.dp * o.cp};
}

std::vector<RankCase> rank_cases(const NamedOptions& options) {
  std::vector<RankCase> all;
  for (const auto& named : options) all.push_back(rank_case(named));
  return all;
}

namespace {

constexpr char kCases[] = "ORRERY_TEST_CASES", kOut[] = "ORRERY_TEST_OUT";

/// What ranks found of cases, by name; nothing where they failed.
std::optional<base::Json> start_ranks(const char* body, const std::vector<std::string>& names,
                                      int ranks, std::string& fault) {
  const tests::ScratchFolder scratch;
  const std::filesystem::path out = scratch.path() / "found.json";
  ::setenv(kCases, fmt::format("{}", fmt::join(names, "\n")).c_str(), 1);
  ::setenv(kOut, out.c_str(), 1);
  const base::Result<int> code = launch_local(ranks, tests::rank_arguments(body));
  if (!code || *code != 0) {
    fault = code ? "exit code " + std::to_string(*code) : base::to_string(code.error());
    return std::nullopt;
  }
  base::Result<base::Json> json = tests::read_json(out);
  if (json) return *std::move(json);
  fault = base::to_string(json.error());
  return std::nullopt;
}

bool whole_suite_runs() {
  const ::testing::TestSuite* const suite =
      ::testing::UnitTest::GetInstance()->current_test_suite();
  return suite->test_to_run_count() == suite->total_test_count();
}

}  // namespace

std::optional<base::Json> found_by_ranks(const char* body, const RankCase& of,
                                         const std::vector<RankCase>& cases) {
  struct Group {
    base::Json found = base::Json::object();  // by name
    std::string fault;                        // of the cases together
  };
  static std::map<std::pair<std::string, int>, Group> groups;  // by body and ranks
  const auto [at, first] = groups.try_emplace({body, of.ranks});
  Group& group = at->second;
  if (first && whole_suite_runs()) {
    std::vector<std::string> names;
    for (const RankCase& c : cases)
      if (c.ranks == of.ranks) names.push_back(c.name);
    if (auto all = start_ranks(body, names, of.ranks, group.fault)) group.found = *std::move(all);
  }
  if (group.found.contains(of.name)) return group.found.at(of.name);
  std::string fault;
  if (auto alone = start_ranks(body, {of.name}, of.ranks, fault)) {
    if (!group.fault.empty())
      ADD_FAILURE() << "alone it runs; with the others of as many ranks: " << group.fault;
    return alone->at(of.name);
  }
  ADD_FAILURE() << fault;
  return std::nullopt;
}

void find_for_cases(const std::function<base::Json(const std::string& name)>& find) {
  const char* names = std::getenv(kCases);
  ASSERT_NE(names, nullptr) << "run by the tests of its file";
  base::Json found = base::Json::object();
  for (const std::string& name : base::split(names, '\n')) {
    SCOPED_TRACE(name);
    found[name] = find(name);
  }
  if (detect_launch()->rank != 0) return;
  ASSERT_TRUE(base::write_json(std::getenv(kOut), found));
}

}  // namespace orrery::executor::testing
