#include "topologies/import/link_ends.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "base/check.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::topologies {

using enum base::ErrorCode;

std::optional<PartSelector> parse_part_selector(std::string_view text) {
  const size_t open = text.find('[');
  if (open == std::string_view::npos) return PartSelector{text, std::nullopt};
  if (open == 0 || text.back() != ']') return std::nullopt;
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  const size_t dash = inside.find('-');
  const auto first = base::parse_integer(inside.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : base::parse_integer(inside.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first) return std::nullopt;
  return PartSelector{text.substr(0, open), std::pair{*first, *last}};
}

bool PartSelector::matches(std::string_view vertex_name) const {
  const auto other = parse_part_selector(vertex_name);
  // "router[0.1]": only its group
  if (!other) return !range && vertex_name.substr(0, vertex_name.find('[')) == name;
  if (other->name != name) return false;
  return !range || (other->range && range->first <= other->range->first &&
                    other->range->first <= range->second);
}

std::vector<uint32_t> read_end(base::Reader& reader, std::string_view key,
                               const std::vector<PartGroup>& parts) {
  const std::string text = reader.required_string(key);
  if (text.empty()) return {};
  const auto selector = parse_part_selector(text);
  if (!selector) {
    reader.fault(key, kBadValue, "write 'gpu' (all), 'gpu[3]' or 'gpu[0-3]'",
                 "'{}' selects no part", text);
    return {};
  }
  const auto part = std::ranges::find(parts, selector->name, &PartGroup::name);
  if (part == parts.end()) {
    std::vector<std::string> names;
    for (const PartGroup& known : parts) names.push_back(known.name);
    reader.fault(key, kNotFound, base::did_you_mean(selector->name, names, "parts"),
                 "host has no part '{}'", selector->name);
    return {};
  }
  const auto [first, last] =
      selector->range.value_or(std::pair<long long, long long>{0, part->count - 1});
  if (last >= part->count) {
    reader.error(key, kOutOfRange, "'{}' is beyond the {} of part '{}' (indices 0 .. {})", text,
                 part->count, part->name, part->count - 1);
    return {};
  }
  std::vector<uint32_t> ends;
  for (long long i = first; i <= last; ++i) ends.push_back(part->first + as_u32(i));
  return ends;
}

Ends pair_grouped(const std::vector<uint32_t>& from, const std::vector<uint32_t>& to) {
  const size_t longer = std::max(from.size(), to.size());
  ORRERY_CHECK(longer % from.size() == 0 && longer % to.size() == 0);
  Ends ends;
  for (size_t i = 0; i < longer; ++i) {
    const uint32_t a = from[i * from.size() / longer], b = to[i * to.size() / longer];
    if (a != b) ends.emplace_back(a, b);
  }
  return ends;
}

Ends pair_all(const std::vector<uint32_t>& from, const std::vector<uint32_t>& to) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  Ends ends;
  for (const uint32_t a : from) {
    for (const uint32_t b : to) {
      if (a != b && seen.insert(std::minmax(a, b)).second) ends.emplace_back(a, b);
    }
  }
  return ends;
}

}  // namespace orrery::topologies
