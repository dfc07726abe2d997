#include "cli/measured/timeline_match.h"

#include "cli/refuse.h"
#include "cli/text/show.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace orrery::cli {

namespace {

using Key = std::tuple<std::int32_t, std::uint32_t, std::uint32_t, std::int32_t, std::int32_t>;
Key key_of(const plan::Span& s) {
  return {s.rank, s.template_id, s.template_index, s.layer, s.micro_batch};
}

std::set<std::int32_t> ranks_of(const plan::Timeline& t) {
  std::set<std::int32_t> ranks;
  for (const plan::Span& s : t.spans) ranks.insert(s.rank);
  return ranks;
}

}  // namespace

Result<TimelineMatch> match_timelines(const plan::Timeline& predicted,
                                      const plan::Timeline& measured) {
  if (predicted.program_fingerprint != measured.program_fingerprint) {
    return refuse(kInconsistent, "simulate and train the same plan file",
                  "the timelines are of different Programs: {} and {}",
                  predicted.program_fingerprint, measured.program_fingerprint);
  }
  TimelineMatch m;
  m.predicted_step_ps = predicted.step_time_ps;
  m.measured_step_ps = measured.step_time_ps;
  const std::set<std::int32_t> left = ranks_of(predicted), right = ranks_of(measured);
  std::map<Key, const plan::Span*> by_key;
  for (const plan::Span& s : measured.spans)
    if (left.contains(s.rank)) by_key.emplace(key_of(s), &s);
  std::map<std::string, MatchRow> rows;
  for (const plan::Span& s : predicted.spans) {
    if (!right.contains(s.rank)) continue;
    const auto found = by_key.find(key_of(s));
    if (found == by_key.end()) {
      ++m.only_predicted;
      continue;
    }
    const std::string name = s.phase.empty() ? s.name : s.name + " " + s.phase;
    MatchRow& row = rows[name];
    row.name = name;
    ++row.count;
    row.predicted_ps += s.duration_ps;
    row.measured_ps += found->second->duration_ps;
    ++m.matched;
    by_key.erase(found);
  }
  m.only_measured = static_cast<std::int64_t>(by_key.size());
  for (auto& [name, row] : rows) m.rows.push_back(std::move(row));
  std::ranges::stable_sort(
      m.rows, [](const MatchRow& a, const MatchRow& b) { return a.measured_ps > b.measured_ps; });
  return m;
}

Json to_json(const TimelineMatch& match) {
  return {{"schema", "orrery.comparison/1"},
          {"predicted_step_ps", match.predicted_step_ps},
          {"measured_step_ps", match.measured_step_ps},
          {"matched", match.matched},
          {"only_predicted", match.only_predicted},
          {"only_measured", match.only_measured},
          {"operations", json_list(match.rows, [](const MatchRow& r) -> Json {
             return {{"name", r.name},
                     {"count", r.count},
                     {"predicted_ps", r.predicted_ps},
                     {"measured_ps", r.measured_ps},
                     {"ratio", r.ratio()}};
           })}};
}

}  // namespace orrery::cli
