#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/numbers.h"
#include "base/sim_time.h"
#include "base/text.h"
#include "sim/scenario/scenario.h"
#include "topologies/import/link_ends.h"

namespace orrery::sim {
namespace {

using base::ErrorCode;
using base::Reader;

constexpr std::int64_t kMillion = Jitter::kMillion;
constexpr std::array<base::Named<Jitter::Of>, 2> kJitterOf = {
    {{"operation", Jitter::Of::kOperation}, {"device", Jitter::Of::kDevice}}};

std::int64_t times(std::int64_t ppm, double factor) {
  return std::max<std::int64_t>(std::llround(real(ppm) * factor), 1);
}

class ScenarioReader {
 public:
  ScenarioReader(const base::Node& root, const topologies::Topology& cluster)
      : r_(root, "scenario", sink_), cluster_(cluster) {}

  base::Result<Scenario> run() {
    if (const std::string schema = r_.required_string("schema");
        !schema.empty() && schema != "orrery.scenario/1") {
      r_.error("schema", ErrorCode::kUnsupported, "schema '{}' is not orrery.scenario/1", schema);
    }
    s_.name = r_.optional_string("name").value_or("scenario");
    s_.jitter.seed = static_cast<std::uint64_t>(r_.optional_int("seed", {0, 1 << 30}).value_or(1));
    const bool any = r_.has("links") || r_.has("slow") || r_.has("jitter") ||
                     r_.has("background") || r_.has("failures") || r_.has("jobs");
    read_links();
    read_slow();
    read_jitter();
    read_background();
    read_jobs();
    read_failures();
    r_.finish();
    if (!any && sink_.ok()) {
      r_.error(
          "schema", ErrorCode::kInconsistent,
          "the scenario changes nothing: give links, slow, jitter, background, jobs or failures");
    }
    return sink_.result(std::move(s_));
  }

 private:
  /// A whole number below `count`; a fault that says how many there are otherwise.
  std::optional<std::uint32_t> read_index(Reader& entry, const char* key, const char* owner,
                                          std::uint32_t count) {
    const auto index = entry.optional_int(key);
    if (!index) return std::nullopt;
    if (*index >= 0 && *index < count) return as_u32(*index);
    const std::string_view what = std::string_view(key) == "host" ? "host" : "device";
    entry.error(key, ErrorCode::kNotFound, "no {} {}: {} '{}' has {}, numbered from 0", what,
                *index, owner, cluster_.name(), count);
    return std::nullopt;
  }

  void unknown(Reader& entry, const char* key, const std::string& text, const char* what,
               const std::string& hint) {
    entry.sink().add(base::make_error(ErrorCode::kNotFound, "cluster '{}' has no {} '{}'",
                                      cluster_.name(), what, text)
                         .at(entry.span(key))
                         .with_hint(hint));
  }

  /// The text must outlive the selector.
  std::optional<topologies::PartSelector> read_part(Reader& entry, const char* key,
                                                    std::string& text) {
    text = entry.optional_string(key).value_or("");
    if (text.empty()) return std::nullopt;
    const auto selector = topologies::parse_part_selector(text);
    const std::string group = text.substr(0, text.find('['));
    std::set<std::string> names;
    std::string last;
    for (const topologies::Vertex& v : cluster_.vertices()) {
      if (selector && selector->matches(v.name)) return selector;
      names.insert(v.name.substr(0, v.name.find('[')));
      if (v.name.starts_with(group + "[")) last = v.name;
    }
    const std::vector<std::string> known(names.begin(), names.end());
    unknown(entry, key, text, "part",
            last.empty() ? base::did_you_mean(group, known, "it has")
                         : fmt::format("the last of them is '{}'", last));
    return std::nullopt;
  }

  struct LinkEntry {
    std::vector<std::uint32_t> links;
    double rate = 1;  // of what was built; 0: failed
    std::int64_t since_ps = 0, until_ps = kForever;
  };
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  static constexpr double kLongestStep = 1e6;  // seconds
  static std::pair<std::uint32_t, std::int64_t> by_value(const topologies::LinkRate& r) {
    return {r.link.raw(), r.bytes_per_second};
  }

  void read_links() {
    const auto list = r_.optional_list("links");
    if (!list) return;
    s_.links_place = r_.span("links");
    std::vector<LinkEntry> entries;
    for (const base::Node& node : *list) read_link(node, entries);
    std::set<std::int64_t> changes = {0};
    for (const LinkEntry& e : entries) changes.insert({e.since_ps, e.until_ps});
    changes.erase(kForever);
    s_.links.clear();
    for (const std::int64_t at : changes) {
      Scenario::LinkEra era{at, rates_at(at, entries)};
      if (s_.links.empty() ||
          !std::ranges::equal(era.links, s_.links.back().links, {}, by_value, by_value))
        s_.links.push_back(std::move(era));
    }
  }

  std::vector<topologies::LinkRate> rates_at(std::int64_t at_ps,
                                             const std::vector<LinkEntry>& entries) const {
    std::vector<std::int64_t> ppm(cluster_.links().size(), kMillion);
    for (const LinkEntry& e : entries) {
      if (at_ps < e.since_ps || at_ps >= e.until_ps) continue;
      for (const std::uint32_t l : e.links)
        if (ppm[l] > 0) ppm[l] = e.rate == 0 ? 0 : times(ppm[l], e.rate);
    }
    std::vector<topologies::LinkRate> rates;
    for (std::uint32_t l = 0; l < ppm.size(); ++l) {
      if (ppm[l] == kMillion) continue;
      const auto rate =
          static_cast<__int128>(cluster_.links()[l].bytes_per_second) * ppm[l] / kMillion;
      rates.push_back(
          {topologies::LinkId(l),
           ppm[l] == 0 ? 0 : std::max<std::int64_t>(static_cast<std::int64_t>(rate), 1)});
    }
    return rates;
  }

  void read_link(const base::Node& node, std::vector<LinkEntry>& entries) {
    const std::size_t before = faults();
    Reader entry(node, "entry of links", sink_);
    const auto host = read_index(entry, "host", "cluster", cluster_.hosts());
    const std::string kind = entry.optional_string("kind").value_or("");
    std::string at_text, from_text, to_text;
    const auto at = read_part(entry, "at", at_text), from = read_part(entry, "from", from_text),
               to = read_part(entry, "to", to_text);
    const auto rate = entry.optional_double("rate", {1e-6, 1});
    const bool failed = entry.optional_bool("failed").value_or(false);
    const auto since = read_time(entry, "since"), until = read_time(entry, "until");
    const std::vector<std::string> kinds = kinds_of_links();
    if (!kind.empty() && std::ranges::find(kinds, kind) == kinds.end())
      unknown(entry, "kind", kind, "link of kind", base::did_you_mean(kind, kinds, "it has"));
    entry.finish();
    if (faults() > before) return;
    if (!host && kind.empty() && !at && !from && !to)
      return sink_.add(node.error(ErrorCode::kInconsistent,
                                  "which links: name them by host, kind, at, from or to"));
    if (failed == rate.has_value())
      return sink_.add(node.error(
          ErrorCode::kInconsistent,
          "an entry of links has either a rate (0 to 1, of what was built) or 'failed: true'"));
    LinkEntry e{.links = {},
                .rate = failed ? 0 : *rate,
                .since_ps = since.value_or(0),
                .until_ps = until.value_or(kForever)};
    if (e.since_ps >= e.until_ps)
      return sink_.add(node.error(ErrorCode::kInconsistent,
                                  "'until' is not after 'since': the entry changes nothing"));
    for (std::uint32_t l = 0; l < cluster_.links().size(); ++l) {
      const topologies::Link& link = cluster_.links()[l];
      const topologies::Vertex &a = cluster_.vertex(link.from), &b = cluster_.vertex(link.to);
      const bool selected = (!host || a.host == *host || b.host == *host) &&
                            (kind.empty() || link.kind == kind) &&
                            (!from || from->matches(a.name)) && (!to || to->matches(b.name)) &&
                            (!at || at->matches(a.name) || at->matches(b.name));
      if (selected) e.links.push_back(l);
    }
    if (e.links.empty())
      return sink_.add(node.error(
          ErrorCode::kNotFound, "no link of cluster '{}' is all of this at once", cluster_.name()));
    entries.push_back(std::move(e));
  }

  /// Within a step, picoseconds.
  std::optional<std::int64_t> read_time(Reader& entry, const char* key) {
    const auto time = read_seconds(entry, key, 0, kLongestStep);
    return time ? std::optional(base::ceil_ps(*time)) : std::nullopt;
  }
  /// Between bounds, in seconds.
  std::optional<base::Seconds> read_seconds(Reader& entry, const char* key, double min,
                                            double max) {
    const auto time = entry.optional_seconds(key);
    if (!time || (time->raw() >= min && time->raw() <= max)) return time;
    entry.error(key, ErrorCode::kOutOfRange, "'{}' lies between {} and {}", key, base::Seconds(min),
                base::Seconds(max));
    return std::nullopt;
  }

  void read_slow() {
    const auto list = r_.optional_list("slow");
    if (!list) return;
    s_.compute_ppm.assign(cluster_.device_count(), kMillion);
    for (const base::Node& node : *list) {
      const std::size_t before = faults();
      Reader entry(node, "entry of slow", sink_);
      const auto host = read_index(entry, "host", "cluster", cluster_.hosts());
      const auto device =
          host ? read_index(entry, "device", "a host of cluster", cluster_.devices_per_host())
               : read_index(entry, "device", "cluster", cluster_.device_count());
      const double slowdown = entry.required_double("slowdown", {1, 1000});
      entry.finish();
      if (faults() > before) continue;
      if (!host && !device) {
        sink_.add(node.error(ErrorCode::kInconsistent,
                             "which devices: name a host, a device, or a device of a host"));
        continue;
      }
      const std::uint32_t first =
          (host ? *host * cluster_.devices_per_host() : 0) + device.value_or(0);
      const std::uint32_t count = device ? 1 : cluster_.devices_per_host();
      for (std::uint32_t d = first; d < first + count; ++d)
        s_.compute_ppm[d] = std::min(times(s_.compute_ppm[d], slowdown), 1000 * kMillion);
    }
  }

  void read_jitter() {
    const auto node = r_.optional_object("jitter");
    if (!node) return;
    Reader entry(*node, "jitter", sink_);
    constexpr double kMaxSigma = real(Jitter::kMaxSigmaPpm) / real(kMillion);
    s_.jitter.sigma_ppm =
        std::llround(entry.required_double("sigma", {0, kMaxSigma}) * real(kMillion));
    s_.jitter.of = entry.optional_enum("of", kJitterOf).value_or(Jitter::Of::kOperation);
    entry.finish();
  }

  void read_background() {
    const auto list = r_.optional_list("background");
    if (!list) return;
    s_.background_place = r_.span("background");
    for (const base::Node& node : *list) {
      const std::size_t before = faults();
      Reader entry(node, "entry of background", sink_);
      for (const char* key : {"from", "to"})
        if (!entry.has(key)) entry.required_int(key);
      const auto from = read_index(entry, "from", "cluster", cluster_.device_count());
      const auto to = read_index(entry, "to", "cluster", cluster_.device_count());
      const auto rate = entry.optional_bandwidth("rate");
      const auto share = entry.optional_double("share", {1e-6, 1});
      entry.finish();
      if (faults() > before) continue;
      if (*from == *to) {
        sink_.add(node.error(ErrorCode::kInconsistent, "device {} sends to itself", *from));
      } else if (rate.has_value() == share.has_value()) {
        sink_.add(node.error(ErrorCode::kInconsistent,
                             "background has either a rate (10 GB/s) or a share (0 to 1) of the "
                             "narrowest link on its way"));
      } else {
        const double bytes =
            rate ? std::min(rate->raw(), 9e18) : *share * real(narrowest(*from, *to));
        s_.background.push_back({*from, *to, std::max<std::int64_t>(std::llround(bytes), 1)});
      }
    }
  }

  /// Hosts that no job before has.
  std::vector<std::uint32_t> read_hosts(Reader& entry, std::map<std::uint32_t, std::string>& taken,
                                        const std::string& job) {
    std::vector<std::uint32_t> hosts;
    for (const std::int64_t host :
         entry.required_ints("hosts", {0, static_cast<std::int64_t>(cluster_.hosts()) - 1})) {
      const auto [at, fresh] = taken.try_emplace(as_u32(host), job);
      if (!fresh)
        entry.error("hosts", ErrorCode::kInconsistent, "host {} of {} is one of {} already", host,
                    job, at->second);
      hosts.push_back(as_u32(host));
    }
    return hosts;
  }

  void read_jobs() {
    std::map<std::uint32_t, std::string> taken;
    if (r_.has("hosts")) s_.hosts = read_hosts(r_, taken, "the plan");
    s_.hosts_place = r_.span("hosts");
    s_.jobs_place = r_.span("jobs");
    const auto list = r_.optional_list("jobs");
    for (const base::Node& node : list.value_or(std::vector<base::Node>())) {
      Reader entry(node, "entry of jobs", sink_);
      Scenario::Job job;
      job.name = entry.optional_string("name").value_or(fmt::format("job {}", s_.jobs.size() + 1));
      job.plan = entry.optional_string("plan").value_or("");
      job.hosts = read_hosts(entry, taken, "'" + job.name + "'");
      job.start_ps = read_time(entry, "start").value_or(0);
      entry.finish();
      s_.jobs.push_back(std::move(job));
    }
    s_.steps = as_int(r_.optional_int("steps", {1, 1000}).value_or(1));
    for (const char* key : {"hosts", "steps"})
      if (r_.has(key) && s_.jobs.empty())
        r_.error(key, ErrorCode::kInconsistent,
                 "'{}' says something about 'jobs', which is missing", key);
  }

  void read_failures() {
    const auto node = r_.optional_object("failures");
    if (!node) return;
    Reader entry(*node, "failures", sink_);
    DeviceFailures f;
    if (!entry.has("mtbf")) entry.required_seconds("mtbf");
    f.mtbf = read_seconds(entry, "mtbf", 1, 1e12).value_or(f.mtbf);
    f.checkpoint = read_seconds(entry, "checkpoint", 1e-3, 1e6).value_or(f.checkpoint);
    f.restart = read_seconds(entry, "restart", 0, 1e6).value_or(f.restart);
    f.interval = read_seconds(entry, "interval", 1e-3, 1e9);
    f.repair = read_seconds(entry, "repair", 0, 1e9).value_or(f.repair);
    f.spares = as_int(entry.optional_int("spares", {0, kMostSpares}).value_or(0));
    if (f.spares > 0 && f.repair.raw() == 0)
      entry.error("spares", ErrorCode::kInconsistent,
                  "'spares' stand in for hosts under 'repair', which is missing");
    entry.finish();
    s_.failures = f;
  }

  std::int64_t narrowest(std::uint32_t from, std::uint32_t to) const {
    std::int64_t rate = std::numeric_limits<std::int64_t>::max();
    for (const topologies::LinkId link : cluster_.route(from, to))
      rate = std::min(rate, cluster_.link(link).bytes_per_second);
    return rate;
  }
  std::vector<std::string> kinds_of_links() const {
    std::set<std::string> kinds;
    for (const topologies::Link& link : cluster_.links()) kinds.insert(link.kind);
    return {kinds.begin(), kinds.end()};
  }
  std::size_t faults() const { return sink_.diagnostics().size(); }

  base::ErrorSink sink_;
  Reader r_;
  const topologies::Topology& cluster_;
  Scenario s_;
};

}  // namespace

base::Result<Scenario> read_scenario(const base::Node& root, const topologies::Topology& cluster) {
  return ScenarioReader(root, cluster).run();
}

base::Result<Scenario> load_scenario(const std::filesystem::path& path,
                                     const topologies::Topology& cluster) {
  TRY(const base::Node root, base::Node::parse_file(path));
  TRY(Scenario scenario, read_scenario(root, cluster));
  for (Scenario::Job& job : scenario.jobs)
    if (!job.plan.empty()) job.plan = (path.parent_path() / job.plan).string();
  return scenario;
}

}  // namespace orrery::sim
