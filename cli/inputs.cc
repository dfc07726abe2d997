#include "cli/inputs.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/local_profile.h"
#include "costmodel/profiles/profiles.h"
#include "costmodel/profiles/settings.h"
#include "model/names.h"
#include "topologies/import/local.h"

namespace orrery::cli {

using base::OptionSpec;
using base::OptionType;

OptionSpec text_option(const char* name, const char* value_name, const std::string& help,
                       const char* default_value) {
  return {.name = name, .value_name = value_name, .default_value = default_value, .help = help};
}
OptionSpec output_option(const char* name, const char* value_name, const std::string& help) {
  OptionSpec o = text_option(name, value_name, help);
  o.output = true;
  return o;
}
OptionSpec flag_option(const char* name, const char* help) {
  return {.name = name, .type = OptionType::kFlag, .help = help};
}
OptionSpec choice_option(const char* name, const char* value_name, std::vector<std::string> choices,
                         const char* help, const char* default_value) {
  OptionSpec o = text_option(name, value_name, help, default_value);
  o.choices = std::move(choices);
  return o;
}
OptionSpec duration_option(const char* name, base::DoubleRange range, const char* help,
                           const char* default_value) {
  OptionSpec o = text_option(name, "TIME", help, default_value);
  o.type = OptionType::kDuration;
  o.min = range.min;
  o.max = range.max;
  return o;
}
OptionSpec required(OptionSpec option) {
  option.required = true;
  return option;
}

OptionSpec model_option(bool required) {
  OptionSpec o = text_option("model", "NAME|FILE", "catalog model or a Hugging Face config.json");
  o.required = required;
  return o;
}
OptionSpec cluster_option(bool required) {
  OptionSpec o = text_option("cluster", "NAME|FILE", "catalog cluster or a topology file");
  o.required = required;
  return o;
}
OptionSpec hosts_option() {
  return integer_option(
      "hosts", "N", {1, topologies::kMaxHosts},
      "hosts of that kind, joined by the cluster's fabric (default where the file "
      "fixes their number: that)",
      "1");
}
std::vector<OptionSpec> price_options() {
  return {text_option("profile", "NAME|PATH",
                      "measured profile: name, JSON file or Galvatron folder (default: what ships "
                      "for the device or one like it, else datasheet prices)"),
          text_option("software", "NAME|FILE",
                      "what runs the step, on top of what ships for the device: a name of 'orrery "
                      "list software', or a file (default: by the device's age)"),
          set_option()};
}
OptionSpec set_option() {
  return text_option(
      "set", "PART.FIELD=VALUE,...",
      "numbers of the machine or its software that are otherwise, as ib.bandwidth=2x, "
      "device.memory=96GiB, software.overlap_slowdown=1 (docs/commands.md)");
}
OptionSpec precision_option() {
  std::vector<std::string> names;
  for (const auto& p : model::names_up_to(model::kLastPrecision)) names.emplace_back(p.name);
  return choice_option("precision", "P", std::move(names),
                       "training precision ('orrery list precisions')", "bf16");
}
OptionSpec sequence_option() {
  return integer_option("sequence-length", "S", {1, 1 << 24},
                        "tokens per sequence (default: the model's maximum)");
}
std::vector<OptionSpec> adapter_options() {
  return {integer_option("lora-rank", "R", {1, model::kLargestAdapter},
                         "fine-tune low-rank adapters of rank R, all other weights frozen "
                         "(docs/models/adapters.md)"),
          text_option("lora-targets", "P,...",
                      "products with adapters: qkv, projection, mlp-in, mlp-out; attention, mlp, "
                      "all-linear",
                      "all-linear")};
}
OptionSpec json_option() { return flag_option("json", "print one JSON document"); }
OptionSpec memory_option(const char* help) {
  return {
      .name = "memory", .value_name = "BYTES", .type = OptionType::kBytes, .min = 1, .help = help};
}
OptionSpec global_batch_option() {
  return integer_option("global-batch", "B", {1, 1 << 24}, "sequences per step", "64");
}
OptionSpec threads_option(const std::string& what) {
  return integer_option("threads", "N", {1, kMostThreads},
                        what + " in parallel (default: all cores)");
}
int threads_of(const base::Options& options) {
  return options.has("threads")
             ? options.count("threads")
             : as_int(std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads));
}
std::vector<OptionSpec> joined(std::initializer_list<std::vector<OptionSpec>> groups) {
  std::vector<OptionSpec> all;
  for (const std::vector<OptionSpec>& group : groups)
    all.insert(all.end(), group.begin(), group.end());
  return all;
}
OptionSpec timing_option() {
  return flag_option("timing", "say how long the search took (differs from run to run)");
}

OptionSpec integer_option(const char* name, const char* value_name, base::IntRange range,
                          const std::string& help, const char* default_value) {
  OptionSpec o = text_option(name, value_name, help, default_value);
  o.type = OptionType::kInt;
  o.min = real(range.min);
  if (range.max < base::IntRange{}.max) o.max = real(range.max);
  return o;
}

base::OptionSpec cluster_of_machine() {
  base::OptionSpec o = cluster_option(false);
  o.default_value = "local";
  o.help = "what this machine is: catalog cluster or a topology file";
  return o;
}

model::Precision precision_of(const base::Options& options, const char* name) {
  const auto known = model::names_up_to(model::kLastPrecision);
  return std::ranges::find(known, options.string(name), &base::Named<model::Precision>::name)
      ->value;
}

std::int64_t memory_of(const base::Options& options) {
  return options.has("memory") ? static_cast<std::int64_t>(options.bytes("memory").raw()) : 0;
}

Result<model::Adapter> adapter_of(const base::Options& options) {
  if (options.has("lora-rank"))
    return model::adapter_of(options.integer("lora-rank"), options.string("lora-targets"));
  if (!options.given("lora-targets")) return model::Adapter{};
  return refuse(kUsage, "--lora-rank R makes adapters", "--lora-targets without --lora-rank");
}

std::int64_t sequence_of(const base::Options& options) {
  return options.has("sequence-length") ? options.integer("sequence-length") : 0;
}

Result<std::vector<base::Setting>> settings_of(const base::Options& options) {
  if (!options.has("set")) return std::vector<base::Setting>{};
  return base::parse_settings(options.string("set"));
}

Result<Topology> find_cluster(const std::string& name, int hosts, int ranks_wanted,
                              std::span<const base::Setting> settings) {
  const auto copies = as_u32(hosts);
  std::vector<base::Setting> of_machine;
  std::ranges::copy_if(settings, std::back_inserter(of_machine),
                       [](const base::Setting& s) { return s.part != costmodel::kSoftwarePart; });
  if (name == "local" && ranks_wanted > 0 && of_machine.empty()) {
    TRY(topologies::LocalMachine machine, topologies::probe_local_machine());
    const auto wanted = as_u32(ranks_wanted);
    if (wanted > machine.cores) {
      machine.hertz *= real(machine.cores) / real(wanted);
      machine.cores = wanted;
    }
    return topologies::local_topology(machine, copies);
  }
  if (name.find('/') != std::string::npos || name.ends_with(".yaml"))
    return topologies::load_topology(name, copies, of_machine);
  return topologies::catalog_topology(name, copies, of_machine);
}

Result<void> check_hosts(const base::Options& options, const Topology& cluster) {
  if (!options.given("hosts") || options.count("hosts") == as_int(cluster.hosts())) return {};
  return refuse(kInconsistent, "leave --hosts out: the file fixes their number",
                "topology '{}' has {} hosts, not {}", cluster.name(), cluster.hosts(),
                options.count("hosts"));
}

Result<void> check_prices(const PriceNames& names) {
  if (names.profile.empty() || names.software.empty()) return {};
  return refuse(kUsage, "leave one of them out; a profile has its software in 'framework'",
                "--profile and software '{}' do not go together", names.software);
}

Result<PriceNames> price_names(const base::Options& options) {
  PriceNames names{.profile = options.string_or("profile", ""),
                   .software = options.string_or("software", "")};
  TRY(names.settings, settings_of(options));
  TRY_VOID(check_prices(names));
  return names;
}

Result<std::optional<model::Profile>> profile_of(const PriceNames& names, const Topology& topology,
                                                 const ModelSpec& model) {
  std::optional<model::Profile> profile;
  if (!names.profile.empty()) {
    TRY(profile, costmodel::find_profile(names.profile, model));
  } else {
    TRY(profile, costmodel::device_profile(topology, model,
                                           names.software.empty() ? names.usual : names.software));
  }
  if (profile) TRY_VOID(costmodel::apply_settings(*profile, names.settings));
  const bool software =
      !names.software.empty() ||
      std::ranges::count(names.settings, costmodel::kSoftwarePart, &base::Setting::part) > 0;
  if (!profile && software)
    return refuse(kUnsupported, "leave it out: prices are those of the datasheet",
                  "software '{}' goes on top of a measured device, and none is like that of "
                  "cluster '{}'",
                  names.software, topology.name());
  return profile;
}

namespace {

/// However many points of a sweep have the same to say.
void say_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(text).second) say("{}", text);
}

}  // namespace

Result<Scene> make_scene(const std::string& model_name, const std::string& cluster, int hosts,
                         const PriceNames& prices, model::Precision precision,
                         std::int64_t sequence, int ranks_wanted,
                         std::span<const std::string> device_order, const model::Adapter& adapter) {
  TRY(ModelSpec base, model::find_model(model_name));
  TRY(ModelSpec model, model::with_adapter(std::move(base), adapter));
  TRY(Topology topology, find_cluster(cluster, hosts, ranks_wanted, prices.settings));
  PriceNames names = prices;
  if (cluster == "local" && names == PriceNames{.usual = names.usual}) {
    const int ranks = as_int(topology.device_count());
    names.profile = usable_calibration({.ranks = ranks, .precision = precision}).value_or("");
  }
  TRY(std::optional<model::Profile> profile, profile_of(names, topology, model));
  if (sequence == 0) {
    constexpr std::int64_t kLong = 32'768;  // more than most tokens are trained at
    sequence = model.max_positions;
    if (sequence > kLong)
      say_once(
          fmt::format("{} tokens a sequence, all positions of {}; --sequence-length sets fewer\n",
                      base::grouped(real(sequence)), model.name));
  }
  TRY(auto library, costmodel::usual_library(topology));
  TRY(CostModel cost,
      CostModel::make(model, std::move(topology), std::move(profile),
                      {.precision = precision, .sequence = sequence, .library = library}));
  TRY(CostModel ordered, cost.in_order(device_order));
  return Scene{std::move(model), std::move(ordered)};
}

Result<Scene> scene_of(const base::Options& options, const Plan& plan, std::string_view usual) {
  TRY(PriceNames prices, price_names(options));
  prices.usual = usual;
  TRY(Scene scene,
      make_scene(options.string_or("model", plan.model), options.string_or("cluster", plan.cluster),
                 options.given("hosts") ? options.count("hosts") : plan.hosts, prices,
                 plan.precision, plan.sequence, plan.world_size(), plan.device_order,
                 plan.adapter));
  TRY_VOID(check_hosts(options, scene.cost.topology()));
  return scene;
}

Result<void> check_ranks(const Plan& plan, const Topology& cluster) {
  const int ranks = plan.world_size(), devices = as_int(cluster.device_count()),
            host = as_int(cluster.devices_per_host());
  if (ranks <= devices) return {};
  return refuse(kInconsistent, fmt::format("--hosts {} would do", (ranks + host - 1) / host),
                "the plan has {} ranks, cluster '{}' has {} devices", ranks, cluster.name(),
                devices);
}

base::OptionSpec oversubscribe_option() {
  return flag_option("oversubscribe",
                     "start more than four ranks a core: they share the cores, and steps are long");
}

Result<void> check_cores(int ranks, const base::Options& options) {
  constexpr std::uint32_t kRanksPerCore = 4;  // small plans are tried on small machines
  if (options.string("device") == "cuda" || options.flag("oversubscribe")) return {};
  TRY(const topologies::LocalMachine machine, topologies::probe_local_machine());
  const std::uint32_t most = kRanksPerCore * machine.cores;
  if (as_u32(ranks) <= most) return {};
  return refuse(kMissingFeature,
                fmt::format("{} cores carry at most {} ranks; --oversubscribe starts them all "
                            "the same",
                            machine.cores, most),
                "{} ranks on {} cores", ranks, machine.cores);
}

}  // namespace orrery::cli
