#include "costmodel/collectives/collective_tuning.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <optional>

#include "base/config.h"
#include "base/data_dir.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::costmodel {
namespace {

using enum base::ErrorCode;

constexpr base::Catalog kTunings{"costmodel/tunings", ".json"};
constexpr std::string_view kMeasured = "-measured";

using base::BytesPerSecond;
using base::Seconds;

/// Three values of a list.
template <class T, class Convert>
std::array<T, 3> three(base::Reader& r, std::string_view key, Convert convert) {
  std::array<T, 3> values{};
  const auto items = r.required_list(key);
  if (!r.has(key)) return values;
  if (items.size() != 3) {
    r.error(key, kOutOfRange, "{} values where 3 are meant", items.size());
    return values;
  }
  for (std::size_t i = 0; i < 3; ++i) values[i] = r.sink().take<T>(convert(items[i]));
  return values;
}
/// Latencies and rates that leave times of any tensor within the simulator's range.
base::Result<Seconds> latency_of(const base::Node& node) {
  TRY(const Seconds value, node.as_seconds());
  if (value < Seconds{} || value > Seconds(1))
    return base::fail(node.error(kOutOfRange, "a latency between 0 and 1 s is meant"));
  return value;
}
base::Result<BytesPerSecond> rate_of(const base::Node& node) {
  TRY(const BytesPerSecond value, node.as_bandwidth());
  if (value < BytesPerSecond(1e8))
    return base::fail(node.error(kOutOfRange, "a rate of at least 100 MB/s is meant"));
  return value;
}
template <class T>
T required(base::Reader& r, std::string_view key, base::Result<T> (*convert)(const base::Node&)) {
  const auto node = r.required_node(key);
  return node.kind() == base::Node::Kind::kAbsent ? T{} : r.sink().take(convert(node));
}

PerProtocol<Seconds> latencies(base::Reader& r, std::string_view key) {
  return three<Seconds>(r, key, latency_of);
}
PerProtocol<double> shares(base::Reader& r, std::string_view key) {
  return three<double>(r, key, [](const base::Node& n) { return n.as_double({1e-3, 1.0}); });
}
PerScale<BytesPerSecond> limits(base::Reader& r, std::string_view key) {
  return r.has(key) ? three<BytesPerSecond>(r, key, rate_of) : PerScale<BytesPerSecond>{};
}

HopLatencies read_latency(base::Reader& r) {
  return {latencies(r, "base"), latencies(r, "device_hop"), latencies(r, "pcie_hop"),
          latencies(r, "network_hop")};
}

CollectiveTuning::Ring read_ring(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "ring", sink);
  CollectiveTuning::Ring ring{
      .latency = read_latency(r), .rate = shares(r, "rate"), .ll_limit = limits(r, "ll_limit")};
  if (r.has("ll128_channel_limit"))
    ring.ll128_channel_limit = required(r, "ll128_channel_limit", rate_of);
  ring.plateau = r.optional_double("plateau", {1.0, 10.0}).value_or(1.0);
  r.finish();
  return ring;
}

CollectiveTuning::Tree read_tree(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "tree", sink);
  CollectiveTuning::Tree tree{.latency = read_latency(r),
                              .rate = shares(r, "rate"),
                              .channel_limit = limits(r, "channel_limit"),
                              .ll128_channel_limit = limits(r, "ll128_channel_limit")};
  if (r.has("correction")) {
    tree.correction = three<std::vector<double>>(
        r, "correction", [](const base::Node& n) -> base::Result<std::vector<double>> {
          std::vector<double> row;
          for (const base::Node& item : n.items()) {
            TRY(const double share, item.as_double({1e-3, 1.0}));
            row.push_back(share);
          }
          return row;
        });
  }
  r.finish();
  return tree;
}

CollectiveTuning::Nvls read_nvls(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "nvls", sink);
  CollectiveTuning::Nvls nvls{
      .efficiency = r.required_double("efficiency", {1e-3, 1.0}),
      .latency = required(r, "latency", latency_of),
      .network_hop = required(r, "network_hop", latency_of),
      .channels = r.required_int("channels", {1, 1024}),
      .tree_channels = r.required_int("tree_channels", {1, 1024}),
      .chunk_bytes = r.required_int("chunk_bytes", {1, 1 << 30}),
      .min_ranks = r.required_int("min_ranks", {2, 1 << 20}),
      .max_heads = r.required_int("max_heads", {1, 1 << 20}),
      .beyond_two_hosts = r.required_double("beyond_two_hosts", {1e-3, 1.0}),
      .tree_channel_limit = limits(r, "tree_channel_limit")};
  r.finish();
  return nvls;
}

CollectiveTuning::Direct read_direct(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "direct", sink);
  CollectiveTuning::Direct direct{.base = latencies(r, "base"),
                                  .rate = shares(r, "rate"),
                                  .local_copy = required(r, "local_copy", rate_of)};
  r.finish();
  return direct;
}

std::vector<std::string> published_names() {
  std::vector<std::string> all = kTunings.names();
  std::erase_if(all, [](const std::string& name) { return name.ends_with(kMeasured); });
  return all;
}

base::Result<CollectiveTuning> load(const std::filesystem::path& path) {
  TRY(const std::string text, base::read_file(path));
  TRY(CollectiveTuning tuning, parse_tuning(text, path.string()));
  base::Fingerprint digest;
  tuning.fingerprint = digest.add(text).hex();
  if (tuning.chosen_by.empty()) return tuning;
  TRY(const auto published, kTunings.file(tuning.chosen_by));
  TRY(const std::string constants, base::read_file(published));
  TRY(CollectiveTuning chooser, parse_tuning(constants, published.string()));
  tuning.fingerprint = digest.add(constants).hex();
  tuning.chooser = std::make_shared<const CollectiveTuning>(std::move(chooser));
  return tuning;
}

base::Result<CollectiveTuning> load_shipped(std::string_view name) {
  TRY(const auto path, kTunings.file(name));
  return load(path);
}

bool serves(const CollectiveTuning& tuning, std::string_view device) {
  return std::ranges::any_of(tuning.devices,
                             [&](const std::string& prefix) { return device.starts_with(prefix); });
}

base::Result<CollectiveTuning> published(std::string_view device) {
  for (const std::string& name : published_names()) {
    TRY(CollectiveTuning tuning, load_shipped(name));
    if (serves(tuning, device)) return tuning;
  }
  return load_shipped("generic");
}

/// Records are named after the device on which they were calibrated.
base::Result<CollectiveTuning> calibrated_or_published(std::string_view device) {
  const std::string own =
      base::to_lower(device.substr(0, device.find('-'))) + std::string(kMeasured);
  std::vector<std::string> names = kTunings.names();
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kMeasured); });
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return name == own; });
  for (const std::string& name : names) {
    TRY(CollectiveTuning tuning, load_shipped(name));
    if (serves(tuning, device)) return tuning;
  }
  return published(device);
}

}  // namespace

std::string_view to_string(Protocol protocol) {
  return base::EnumNames<Protocol::kSimple>("LL", "LL128", "Simple")[protocol];
}

double CollectiveTuning::Tree::correction_at(Protocol protocol, std::int64_t bytes) const {
  const auto size = as_index(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(1, bytes >> 6))) - 1);
  const auto& row = correction[as_index(protocol)];
  return size < row.size() ? row[size] : 1.0;
}

Seconds CollectiveTuning::network_extra(std::string_view link_kind) const {
  for (const auto& [kind, latency] : network_latency)
    if (kind == link_kind) return latency;
  return Seconds{};
}

base::Result<CollectiveTuning> parse_tuning(std::string_view text, std::string_view name) {
  TRY(const base::Node root, base::Node::parse_text(text, name));
  base::ErrorSink sink;
  base::Reader r(root, "tuning", sink);
  if (const std::string schema = r.required_string("schema");
      !schema.empty() && schema != "orrery.collective_tuning/1")
    r.error("schema", kUnsupported, "schema '{}', expected 'orrery.collective_tuning/1'", schema);
  CollectiveTuning t;
  t.name = r.required_string("name");
  t.description = r.required_string("description");
  t.source = r.required_string("source");
  t.devices = r.required_strings("devices");
  t.chosen_by = r.optional_string("chosen_by").value_or("");
  if (const auto known = published_names();
      !t.chosen_by.empty() && std::ranges::find(known, t.chosen_by) == known.end())
    r.error("chosen_by", kNotFound, "no published tuning '{}'", t.chosen_by);
  const base::Node efficiency = r.required_object("link_efficiency");
  for (const auto& member : efficiency.members())
    t.link_efficiency.emplace_back(member.key,
                                   sink.take<double>(member.value.as_double({1e-3, 1.0})));
  if (const auto extra = r.optional_object("network_latency"))
    for (const auto& member : extra->members())
      t.network_latency.emplace_back(member.key, sink.take<Seconds>(latency_of(member.value)));
  t.network_overhead = required(r, "network_overhead", latency_of);
  t.channels = r.required_int("channels", {1, 1024});
  t.local_copy = required(r, "local_copy", rate_of);
  t.ring = read_ring(r.required_object("ring"), sink);
  t.tree = read_tree(r.required_object("tree"), sink);
  if (const auto nvls = r.optional_object("nvls")) t.nvls = read_nvls(*nvls, sink);
  t.direct = read_direct(r.required_object("direct"), sink);
  r.finish();
  return sink.result(std::move(t));
}

std::vector<std::string> list_tunings() { return kTunings.names(); }

base::Result<CollectiveTuning> find_tuning(std::string_view name, std::string_view device) {
  if (name == "published") return published(device);
  if (name == "auto") return calibrated_or_published(device);
  if (kTunings.is_path(name)) return load(std::filesystem::path(name));
  const auto known = kTunings.names();
  if (std::ranges::find(known, name) != known.end()) return load_shipped(name);
  return base::fail(base::make_error(kNotFound, "no tuning '{}'", name)
                        .with_hint(base::did_you_mean(name, known, "tunings")));
}

base::Result<CollectiveTuning> find_tuning(std::string_view name,
                                           const std::set<std::string>& devices) {
  std::optional<CollectiveTuning> oldest;
  for (const std::string& device : devices) {
    TRY(CollectiveTuning tuning, find_tuning(name, device));
    if (!oldest || tuning.ring.ll_limit[0] < oldest->ring.ll_limit[0]) oldest = std::move(tuning);
  }
  return oldest.value();
}

}  // namespace orrery::costmodel
