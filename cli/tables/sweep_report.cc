#include "cli/tables/sweep_report.h"

#include <algorithm>
#include <map>

#include "base/csv.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/text/show.h"

namespace orrery::cli {
namespace {

using Row = std::vector<std::string>;

constexpr double kTokens = 1e12;
constexpr std::string_view kHosts = "hosts";

bool ok(const PointResult& r) { return r.status == PointStatus::kOk; }

std::vector<std::string> axis_names(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const Axis& axis : sweep.axes)
    names.insert(names.end(), axis.names.begin(), axis.names.end());
  return names;
}

/// What does not vary with the hosts; nothing where no axis has them.
std::optional<Row> series_of(const Sweep& sweep, const Assignment& point) {
  Row series;
  bool scales = false;
  std::size_t at = 0;
  for (const Axis& axis : sweep.axes) {
    const bool with_hosts = std::ranges::count(axis.names, kHosts) > 0;
    scales = scales || with_hosts;
    for (std::size_t i = 0; i < axis.names.size(); ++i, ++at)
      if (!with_hosts) series.push_back(point[at].second);
  }
  return scales ? std::optional(series) : std::nullopt;
}

double rate_of_device(const PointResult& r) { return r.tokens_per_s() / real(r.devices); }

void add_efficiency(const Sweep& sweep, std::vector<PointMerit>& merits) {
  std::map<Row, std::pair<std::int64_t, double>> smallest;  // devices, rate of one
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const PointResult& r = sweep.results[i];
    const auto series = series_of(sweep, sweep.points[i]);
    if (!series || !ok(r)) continue;
    const auto [at, fresh] = smallest.try_emplace(*series, r.devices, rate_of_device(r));
    if (!fresh && r.devices < at->second.first) at->second = {r.devices, rate_of_device(r)};
  }
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const auto series = series_of(sweep, sweep.points[i]);
    if (series && ok(sweep.results[i]))
      merits[i].efficiency = rate_of_device(sweep.results[i]) / smallest.at(*series).second;
  }
}

/// In order of speed; each that takes less device time than all that are as fast is on the front.
void add_front(const Sweep& sweep, std::vector<PointMerit>& merits) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sweep.results.size(); ++i)
    if (ok(sweep.results[i])) order.push_back(i);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const double x = sweep.results[a].tokens_per_s(), y = sweep.results[b].tokens_per_s();
    return x != y ? x > y : *merits[a].device_hours < *merits[b].device_hours;
  });
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t i : order) {
    merits[i].front = *merits[i].device_hours < least;
    least = std::min(least, *merits[i].device_hours);
  }
}

/// At most `most` characters, the last one "…" when some were cut.
std::string shortened(const std::string& text, std::size_t most) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (begins && ++characters > most) {
      std::size_t cut = i;  // of the character before: it gives its place
      do --cut;
      while ((static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U);
      return text.substr(0, cut) + "…";
    }
  }
  return text;
}

using RunColumn = std::pair<std::string_view, std::optional<double> PointResult::*>;

/// What the run of a point takes, where some point says it.
std::vector<RunColumn> run_columns(const Sweep& sweep) {
  std::vector<RunColumn> columns{{"days", &PointResult::days},
                                 {"$", &PointResult::dollars},
                                 {"MWh", &PointResult::mwh},
                                 {"kg CO2", &PointResult::kg_co2},
                                 {"J/token", &PointResult::joules_per_token}};
  std::erase_if(columns, [&](const RunColumn& column) {
    return std::ranges::none_of(
        sweep.results, [&](const PointResult& r) { return (r.*column.second).has_value(); });
  });
  return columns;
}

Row cells_of(const Sweep& sweep, std::size_t i, const PointMerit& merit) {
  constexpr std::size_t kPlan = 56;
  Row row;
  for (const auto& [name, value] : sweep.points[i]) row.push_back(value);
  const PointResult& r = sweep.results[i];
  if (!ok(r)) {
    row.insert(row.end(), {r.status == PointStatus::kError ? "error" : "none", "", "", "", ""});
    if (merit.efficiency || series_of(sweep, sweep.points[i])) row.emplace_back("");
    row.resize(row.size() + 2 + run_columns(sweep).size());
    row.push_back(r.message);
    return row;
  }
  row.insert(
      row.end(),
      {show_time(r.step_ps), base::grouped(r.tokens_per_s()), base::grouped(rate_of_device(r)),
       fmt::format("{:.0f}", r.flops_per_s_device / 1e12), fmt::format("{:.1f} %", 100 * r.mfu)});
  if (merit.efficiency) row.push_back(fmt::format("{:.0f} %", 100 * *merit.efficiency));
  row.insert(row.end(), {show_bytes(r.peak_bytes), base::grouped(*merit.device_hours)});
  for (const auto& [name, field] : run_columns(sweep))
    row.push_back(r.*field ? base::grouped(*(r.*field)) : "");
  row.push_back((merit.front ? "* " : "  ") + shortened(r.plan, kPlan));
  if (r.met && !*r.met) row.back() += "  (misses its limit)";
  return row;
}

std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c + 1 < row.size(); ++c)
      line += fmt::format("{:>{}}  ", row[c], widths[c]);
    text += line + row.back() + "\n";
  }
  return text;
}

std::string name_of(const Assignment& point) {
  std::vector<std::string> words;
  for (const auto& [name, value] : point) words.push_back(name + " " + value);
  return base::join(words, ", ");
}

/// Of points that meet the run's deadline and budget: the fewest devices, and the least money or
/// device time.
std::string meeting(const Sweep& sweep, const std::vector<PointMerit>& merits) {
  if (std::ranges::none_of(sweep.results, [](const PointResult& r) { return r.met.has_value(); }))
    return "";
  std::optional<std::size_t> smallest, cheapest;
  for (std::size_t i = 0; i < merits.size(); ++i) {
    const PointResult& r = sweep.results[i];
    if (!ok(r) || !r.met.value_or(false)) continue;
    if (!smallest || r.devices < sweep.results[*smallest].devices) smallest = i;
    if (!cheapest || *merits[i].device_hours < *merits[*cheapest].device_hours) cheapest = i;
  }
  if (!smallest) return "no point meets the limits of the run\n";
  const auto line = [&](std::string_view what, std::size_t i) {
    const PointResult& r = sweep.results[i];
    return fmt::format("{:<18}{}: {} devices, {} days{}\n", what, name_of(sweep.points[i]),
                       base::grouped(real(r.devices)), base::grouped(*r.days),
                       r.dollars ? fmt::format(", {} $", base::grouped(*r.dollars)) : "");
  };
  return line("smallest in time", *smallest) + line("cheapest in time", *cheapest);
}

/// The point whose tokens take least, where points say it.
std::string least_energy(const Sweep& sweep) {
  const PointResult* least = nullptr;
  for (const PointResult& r : sweep.results)
    if (ok(r) && r.joules_per_token &&
        (least == nullptr || *r.joules_per_token < *least->joules_per_token))
      least = &r;
  if (least == nullptr) return "";
  return fmt::format("least energy      {}: {} J a token\n",
                     name_of(sweep.points[as_index(least - sweep.results.data())]),
                     base::grouped(*least->joules_per_token));
}

std::string standing_out(const Sweep& sweep, const std::vector<PointMerit>& merits) {
  std::optional<std::size_t> fastest, thriftiest;
  std::size_t infeasible = 0, errors = 0;
  for (std::size_t i = 0; i < merits.size(); ++i) {
    infeasible += sweep.results[i].status == PointStatus::kInfeasible ? 1 : 0;
    errors += sweep.results[i].status == PointStatus::kError ? 1 : 0;
    if (!ok(sweep.results[i])) continue;
    if (!fastest || sweep.results[i].tokens_per_s() > sweep.results[*fastest].tokens_per_s())
      fastest = i;
    if (!thriftiest || *merits[i].device_hours < *merits[*thriftiest].device_hours) thriftiest = i;
  }
  std::string text = fmt::format("\n{} points", merits.size());
  if (infeasible > 0) text += fmt::format(", {} without a plan that fits", infeasible);
  if (errors > 0) text += fmt::format(", {} with faults", errors);
  text += "; * no other point is both faster and cheaper in device time\n";
  if (!fastest) return text;
  text += fmt::format("fastest           {}: {} tokens/s\n", name_of(sweep.points[*fastest]),
                      base::grouped(sweep.results[*fastest].tokens_per_s()));
  text += fmt::format("least device time {}: {} device-hours for 10^12 tokens\n",
                      name_of(sweep.points[*thriftiest]),
                      base::grouped(*merits[*thriftiest].device_hours));
  return text + least_energy(sweep) + meeting(sweep, merits);
}

}  // namespace

std::vector<PointMerit> merits_of(const Sweep& sweep) {
  std::vector<PointMerit> merits(sweep.results.size());
  for (std::size_t i = 0; i < merits.size(); ++i)
    if (ok(sweep.results[i]))
      merits[i].device_hours = kTokens / rate_of_device(sweep.results[i]) / 3600;
  add_efficiency(sweep, merits);
  add_front(sweep, merits);
  return merits;
}

std::string to_text(const Sweep& sweep) {
  const std::vector<PointMerit> merits = merits_of(sweep);
  Row head = axis_names(sweep);
  head.insert(head.end(), {"step", "tokens/s", "a device", "TFLOP/s", "MFU"});
  if (series_of(sweep, sweep.points.front())) head.emplace_back("efficiency");
  head.insert(head.end(), {"memory", "device-h/T"});
  for (const auto& [name, field] : run_columns(sweep)) head.emplace_back(name);
  head.emplace_back("  plan");
  std::vector<Row> rows{std::move(head)};
  for (std::size_t i = 0; i < merits.size(); ++i) rows.push_back(cells_of(sweep, i, merits[i]));
  return aligned(rows) + standing_out(sweep, merits);
}

namespace {

/// The columns of CSV after the axes, in their order.
const Row& csv_columns() {
  static const Row kColumns = base::split(
      "status,step_time_s,low_s,high_s,tokens_per_s,devices,mfu,model_flops_per_s_device,"
      "efficiency,device_hours_per_1e12_tokens,front,peak_bytes,limit_bytes,gap,days,dollars,mwh,"
      "kg_co2,joules_per_token,met,plan,message",
      ',');
  return kColumns;
}

Row csv_cells(const PointResult& r, const PointMerit& m) {
  const double seconds = real(r.step_ps) / 1e12;
  const auto of = [&](double x) { return r.step_ps > 0 ? fmt::format("{}", x) : std::string(); };
  const auto number = [](const std::optional<double>& x) {
    return x ? fmt::format("{}", *x) : std::string();
  };
  Row row{std::string(to_string(r.status))};
  for (const double x : {seconds, seconds * r.band_low, seconds * r.band_high, r.tokens_per_s(),
                         real(r.devices), r.mfu, r.flops_per_s_device})
    row.push_back(of(x));
  row.insert(row.end(), {number(m.efficiency), number(m.device_hours), m.front ? "1" : "0"});
  for (const double x : {real(r.peak_bytes), real(r.limit_bytes), r.gap}) row.push_back(of(x));
  for (const auto& x : {r.days, r.dollars, r.mwh, r.kg_co2, r.joules_per_token})
    row.push_back(number(x));
  row.emplace_back(r.met ? std::to_string(static_cast<int>(*r.met)) : "");
  row.insert(row.end(), {r.plan, r.message});
  return row;
}

std::string csv_line(const Row& row) {
  Row cells;
  for (const std::string& cell : row) cells.push_back(base::csv_cell(cell));
  return base::join(cells, ",") + "\n";
}

}  // namespace

std::string to_csv(const Sweep& sweep) {
  const std::vector<PointMerit> merits = merits_of(sweep);
  Row head = axis_names(sweep);
  head.insert(head.end(), csv_columns().begin(), csv_columns().end());
  std::string text = csv_line(head);
  for (std::size_t i = 0; i < merits.size(); ++i) {
    Row row;
    for (const auto& [name, value] : sweep.points[i]) row.push_back(value);
    const Row cells = csv_cells(sweep.results[i], merits[i]);
    row.insert(row.end(), cells.begin(), cells.end());
    text += csv_line(row);
  }
  return text;
}

base::Json to_json(const Sweep& sweep) {
  const std::vector<PointMerit> merits = merits_of(sweep);
  base::Json points = base::Json::array();
  for (std::size_t i = 0; i < merits.size(); ++i) {
    base::Json point = to_json(sweep.results[i]);
    point["at"] = base::Json::object();
    for (const auto& [name, value] : sweep.points[i]) point["at"][name] = value;
    point["tokens_per_s"] = sweep.results[i].tokens_per_s();
    point["front"] = merits[i].front;
    if (merits[i].efficiency) point["efficiency"] = *merits[i].efficiency;
    if (merits[i].device_hours) point["device_hours_per_1e12_tokens"] = *merits[i].device_hours;
    points.push_back(std::move(point));
  }
  const auto axis_json = [](const Axis& axis) {
    return base::Json{{"names", axis.names}, {"values", axis.values}};
  };
  return {{"schema", "orrery.sweep/1"},
          {"axes", json_list(sweep.axes, axis_json)},
          {"points", std::move(points)}};
}

}  // namespace orrery::cli
