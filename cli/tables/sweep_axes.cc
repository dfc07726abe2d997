#include "cli/tables/sweep_axes.h"

#include <algorithm>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/refuse.h"

namespace orrery::cli {
namespace {

/// "4..512" or "8..64:8"; else the text itself.
Result<std::vector<std::string>> expand(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return std::vector<std::string>{text};
  const std::size_t colon = text.find(':', dots);
  const auto number = [&](std::size_t from, std::size_t to) {
    return base::parse_integer(std::string_view(text).substr(from, to - from));
  };
  const auto first = number(0, dots), last = number(dots + 2, std::min(colon, text.size()));
  const auto step =
      colon == std::string::npos ? std::optional<long long>(0) : number(colon + 1, text.size());
  if (!first || !last || !step || *first < 1 || *last < *first ||
      (colon != std::string::npos && *step < 1))
    return refuse(kOutOfRange, "FIRST..LAST doubles, FIRST..LAST:STEP adds, as 1..512 or 8..64:8",
                  "'{}' is no range of whole numbers", text);
  std::vector<std::string> values;
  for (long long v = *first; v <= *last; v += *step > 0 ? *step : v) {
    values.push_back(std::to_string(v));
    if (values.size() > kMostPoints)
      return base::fail(kOutOfRange, "'{}' has more than {} values", text, kMostPoints);
  }
  return values;
}

Result<Axis> parse_axis(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    return refuse(kUsage, "NAME=VALUE,VALUE,... as hosts=1,2,4..512", "--vary '{}' names no values",
                  text);
  Axis axis{.names = base::split(text.substr(0, equals), ':'), .values = {}};
  const std::string list = text.substr(equals + 1);
  const char between = list.find(';') == std::string::npos ? ',' : ';';
  for (const std::string& piece : base::split(list, between)) {
    const std::string value(base::trim(piece));
    if (axis.names.size() == 1) {
      TRY(const std::vector<std::string> expanded, expand(value));
      for (const std::string& v : expanded) axis.values.push_back({v});
      continue;
    }
    axis.values.push_back(base::split(value, ':'));
    if (axis.values.back().size() != axis.names.size())
      return refuse(kUsage, "a value for each name, as hosts:global-batch=1:64,2:128",
                    "--vary '{}': '{}' has {} values for {} names", text, value,
                    axis.values.back().size(), axis.names.size());
  }
  for (const std::vector<std::string>& values : axis.values)
    if (std::ranges::count(values, "") > 0)
      return base::fail(kUsage, "--vary '{}' has an empty value", text);
  return axis;
}

}  // namespace

Result<std::vector<Axis>> parse_axes(std::span<const std::string> texts) {
  std::vector<Axis> axes;
  std::set<std::string> names;
  base::ErrorSink sink;
  for (const std::string& text : texts) {
    Result<Axis> axis = parse_axis(text);
    if (!axis) {
      sink.add(std::move(axis).error());
      continue;
    }
    for (const std::string& name : axis->names)
      if (!names.insert(name).second)
        sink.add(base::make_error(kInconsistent, "'{}' is on two axes", name));
    axes.push_back(*std::move(axis));
  }
  return sink.result(std::move(axes));
}

Result<std::vector<Assignment>> points_of(std::span<const Axis> axes) {
  std::vector<Assignment> points{{}};
  for (const Axis& axis : axes) {
    if (points.size() * axis.values.size() > kMostPoints)
      return base::fail(kOutOfRange, "the sweep has more than {} points", kMostPoints);
    std::vector<Assignment> longer;
    for (const Assignment& point : points)
      for (const std::vector<std::string>& values : axis.values) {
        Assignment next = point;
        for (std::size_t i = 0; i < values.size(); ++i) next.emplace_back(axis.names[i], values[i]);
        longer.push_back(std::move(next));
      }
    points = std::move(longer);
  }
  return points;
}

}  // namespace orrery::cli
