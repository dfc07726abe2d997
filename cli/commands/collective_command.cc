#include <algorithm>
#include <array>
#include <set>

#include "base/config.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/collectives/collective_forms.h"
#include "costmodel/profiles/settings.h"
#include "sim/network/collective_run.h"
#include "sim/scenario/scenario.h"

namespace orrery::cli {

using base::OptionType;
using costmodel::Algorithm;
using model::Collective;

namespace {

constexpr std::array kOps{Collective::kAllReduce,     Collective::kAllGather,
                          Collective::kReduceScatter, Collective::kAllToAll,
                          Collective::kBroadcast,     Collective::kPointToPoint};
std::string op_name(Collective op) {
  return op == Collective::kPointToPoint ? "p2p" : std::string(model::to_string(op));
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Collective op : kOps) names.push_back(op_name(op));
  return names;
}
std::vector<std::string> algorithm_names() {
  std::vector<std::string> names{"auto"};
  for (const Algorithm a : costmodel::kAlgorithms) names.emplace_back(to_string(a));
  return names;
}

tl::unexpected<base::Diagnostics> bad_ranks(const std::string& text, const std::string& hint) {
  return refuse(kBadValue, hint, "--ranks '{}' names no group of devices", text);
}

bool read_number(std::string_view text, int& value) {
  const auto number = base::parse_integer(text);
  value = as_int(number.value_or(0));
  return number && value == *number && value >= 0;
}

/// "16" or "0,8,16-23".
Result<std::vector<int>> ranks_of(const Options& o, int devices) {
  std::vector<int> ranks;
  const std::string text = o.string_or("ranks", std::to_string(devices));
  int count = 0;
  if (text.find_first_of(",-") == std::string::npos && read_number(text, count)) {
    for (int i = 0; i < count && i <= devices; ++i) ranks.push_back(i);
  } else {
    for (const std::string& part : base::split(text, ',')) {
      const std::size_t dash = part.find('-');
      int first = 0, last = 0;
      if (!read_number(part.substr(0, dash), first))
        return bad_ranks(text, "write a number, or ranks and ranges such as 0,8,16-23");
      last = first;
      if (dash != part.npos && (!read_number(part.substr(dash + 1), last) || last < first))
        return bad_ranks(text, "a range goes from the smaller to the larger rank");
      for (int r = first; r <= last && r <= devices; ++r) ranks.push_back(r);
    }
  }
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size())
    return bad_ranks(text, "every rank once");
  if (ranks.size() < 2) return bad_ranks(text, "a collective needs two ranks at least");
  if (*std::ranges::max_element(ranks) >= devices)
    return bad_ranks(text, fmt::format("the cluster has {} devices; --hosts adds more", devices));
  return ranks;
}

/// The collective as the healthy machine runs it, and as it goes with the scenario's links and
/// traffic.
struct Runs {
  sim::CollectiveResult result;
  std::string scenario;
  std::int64_t without_ps = 0;
  /// What the scenario adds, as a share.
  double cost() const { return real(result.time_ps) / real(without_ps) - 1; }
};

Result<Runs> run_with(const Options& o, const Topology& usable,
                      const costmodel::CollectiveTuning& tuning, const std::vector<int>& ranks,
                      Collective op, const costmodel::CollectivePrice& choice) {
  const auto bytes = static_cast<std::int64_t>(o.bytes("bytes").raw());
  const auto run = [&](const Topology& machine, std::span<const sim::BackgroundFlow> background) {
    const costmodel::CollectiveForms forms(machine, tuning, costmodel::layout_of(machine, ranks));
    return sim::run_collective(
        machine, forms, {op, bytes, forms.terms(op, bytes, choice.algorithm, choice.protocol)},
        1'000'000, background);
  };
  const sim::CollectiveResult healthy = run(usable, {});
  if (!o.has("scenario")) return Runs{healthy, "", healthy.time_ps};
  TRY(const sim::Scenario scenario, sim::load_scenario(o.string("scenario"), usable));
  if (!scenario.compute_ppm.empty() || scenario.jitter.sigma_ppm > 0 || scenario.failures)
    return refuse(
        kUnsupported, "give it links and background only; 'orrery simulate' takes the rest",
        "scenario '{}' has slow devices, jitter or failures, and a collective computes nothing",
        scenario.name);
  if (scenario.links.size() > 1) {
    base::Diagnostic d = base::make_error(
        kUnsupported, "links of scenario '{}' change at {}, in the middle of a step", scenario.name,
        show_time(scenario.links[1].from_ps));
    d.where = scenario.links_place;
    d.hint = "leave 'since' and 'until' out; 'orrery simulate' takes them";
    return base::fail(std::move(d));
  }
  TRY(const std::vector<Topology> changed,
      sim::apply_links(scenario, usable, std::vector<std::uint32_t>(ranks.begin(), ranks.end())));
  TRY(const std::vector<sim::BackgroundFlow> background,
      sim::background_flows(scenario, changed.front()));
  return Runs{run(changed.front(), background), scenario.name, healthy.time_ps};
}

void print_table(const Runs& runs, const costmodel::CollectivePrice& choice,
                 const costmodel::CollectiveTuning& tuning, double bytes, double bus) {
  const sim::CollectiveResult& r = runs.result;
  const double seconds = real(r.time_ps) / 1e12;
  fmt::print(
      "time            {}\nalgbw           {:.2f} GB/s\nbusbw           {:.2f} GB/s\nalgorithm     "
      "  {}, protocol {}\n",
      show_time(r.time_ps), bytes / seconds / 1e9, bus * bytes / seconds / 1e9,
      to_string(choice.algorithm), to_string(choice.protocol));
  fmt::print(
      "closed form     {}\nbottleneck      {}, busy {:.0f} %\nevents          {} for {} "
      "messages{}\nprices          {}: {}\n",
      show_time(choice.time_ps), r.bottleneck, 100 * r.bottleneck_busy, r.events, r.messages,
      r.folded ? ", the rest is alike" : "", tuning.name, tuning.description);
  if (runs.scenario.empty()) return;
  fmt::print("scenario        {}: {} with it, {} without, {:+.1f} %\n", runs.scenario,
             show_time(r.time_ps), show_time(runs.without_ps), 100 * runs.cost());
}

Result<Topology> cluster_of(const Options& o) {
  TRY(const auto settings, settings_of(o));
  for (const base::Setting& s : settings)
    if (s.part == costmodel::kSoftwarePart)
      return refuse(kUsage, "it is part of a training step",
                    "'{}': no software runs a collective alone", s.text());
  TRY(Topology cluster, find_cluster(o.string("cluster"), o.count("hosts"), 0, settings));
  TRY_VOID(check_hosts(o, cluster));
  return cluster;
}

Result<int> run(const Options& o, const Invocation&) {
  TRY(const Topology cluster, cluster_of(o));
  TRY(const std::vector<int> ranks, ranks_of(o, as_int(cluster.device_count())));
  std::set<std::string> devices;
  for (const int rank : ranks) devices.insert(cluster.device_model(as_u32(rank)).name);
  TRY(const costmodel::CollectiveTuning tuning,
      costmodel::find_tuning(o.string("profile"), devices));
  const Collective op =
      *std::ranges::find_if(kOps, [&](Collective c) { return op_name(c) == o.string("op"); });
  const auto wanted = std::ranges::find_if(
      costmodel::kAlgorithms, [&](Algorithm a) { return to_string(a) == o.string("algorithm"); });
  const auto bytes = static_cast<std::int64_t>(o.bytes("bytes").raw());

  const Topology usable = costmodel::usable_rates(cluster, tuning);
  const costmodel::CollectiveForms forms(usable, tuning, costmodel::layout_of(usable, ranks));
  const auto choice = forms.choose(
      op, bytes, wanted == costmodel::kAlgorithms.end() ? std::nullopt : std::optional(*wanted));
  if (!choice)
    return refuse(kUnsupported,
                  "--algorithm auto chooses what can; nvls needs a switch that reduces and enough "
                  "devices on each host",
                  "--algorithm {} cannot run {} on these {} ranks", o.string("algorithm"),
                  o.string("op"), ranks.size());
  TRY(const Runs runs, run_with(o, usable, tuning, ranks, op, *choice));
  const sim::CollectiveResult& result = runs.result;
  const double bus = costmodel::bus_factor(op, as_int(ranks.size()));
  if (!o.flag("json")) {
    print_table(runs, *choice, tuning, real(bytes), bus);
    return 0;
  }
  const double seconds = real(result.time_ps) / 1e12;
  Json document({{"schema", "orrery.collective/1"},
                 {"cluster", cluster.name()},
                 {"op", o.string("op")},
                 {"bytes", bytes},
                 {"ranks", ranks.size()},
                 {"hosts", forms.group().host_count()},
                 {"algorithm", to_string(choice->algorithm)},
                 {"protocol", to_string(choice->protocol)},
                 {"time_s", seconds},
                 {"algbw_bytes_per_s", real(bytes) / seconds},
                 {"busbw_bytes_per_s", bus * real(bytes) / seconds},
                 {"closed_form_s", real(choice->time_ps) / 1e12},
                 {"events", result.events},
                 {"messages", result.messages},
                 {"folded", result.folded},
                 {"bottleneck", result.bottleneck},
                 {"bottleneck_busy", result.bottleneck_busy},
                 {"profile", {{"name", tuning.name}, {"source", tuning.source}}}});
  if (!runs.scenario.empty())
    document["scenario"] = {{"name", runs.scenario},
                            {"time_without_s", real(runs.without_ps) / 1e12},
                            {"cost", runs.cost()}};
  print_json(document);
  return 0;
}

}  // namespace

Command collective_command() {
  return {
      {.name = "collective",
       .summary = "time of one collective, message by message on the cluster's links",
       .examples = {{"orrery collective --cluster dgx-h100 --hosts 2 --op all_reduce --bytes 1GiB",
                     "as NCCL would run it on 16 GPUs"},
                    {"orrery collective --cluster dgx-a100 --op all_gather --bytes 64MiB --ranks "
                     "0-3 --profile a100-measured",
                     "four GPUs, calibrated"}},
       .options =
           {cluster_option(true),
            hosts_option(),
            set_option(),
            choice_option("op", "OP", op_names(), "operation", "all_reduce"),
            {.name = "bytes",
             .value_name = "BYTES",
             .type = OptionType::kBytes,
             .min = 1,
             .max = 1e13,
             .help = "of the whole tensor, as nccl-tests counts",
             .required = true},
            text_option("ranks", "N|LIST",
                        "the first N devices, or a list: 0,8,16-23 (default: all)"),
            choice_option("algorithm", "A", algorithm_names(), "auto: what NCCL would choose",
                          "auto"),
            text_option(
                "profile", "NAME|FILE",
                "latencies and rates (orrery.collective_tuning/1): NCCL's published ones for "
                "the device, or measured; auto: measured where it was",
                "auto"),
            text_option(
                "scenario", "FILE",
                "slow or failed links and traffic of others (orrery.scenario/1): what they cost"),
            json_option()}},
      run};
}

}  // namespace orrery::cli
