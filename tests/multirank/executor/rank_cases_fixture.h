#pragma once
/// Cases that ranks run: this binary again over MPI, once a rank.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "plan/program/plan.h"

namespace orrery::executor::testing {

/// A case of a rank body.
struct RankCase {
  std::string name;
  int ranks = 1;
};
using NamedOptions = std::vector<std::pair<std::string, plan::UniformOptions>>;
RankCase rank_case(const NamedOptions::value_type& options);
std::vector<RankCase> rank_cases(const NamedOptions& options);
/// Of things with a name and ranks().
template <class Cases>
std::vector<RankCase> rank_cases(const Cases& cases) {
  std::vector<RankCase> all;
  for (const auto& c : cases) all.push_back({c.name, c.ranks()});
  return all;
}
/// Runs a case of a rank body ("Suite.Body"): what rank 0 kept of it. Where the whole suite of the
/// running test runs, all of `cases` with as many ranks go together, for processes take longer to
/// start than a case to run; where that fails, each runs alone, to show whose fault it is. Nothing
/// after a failure; it reports every one.
std::optional<base::Json> found_by_ranks(const char* body, const RankCase& of,
                                         const std::vector<RankCase>& cases);
/// In a rank body: its cases, one after another, by name; what is found of them is kept.
void find_for_cases(const std::function<base::Json(const std::string& name)>& find);

}  // namespace orrery::executor::testing
