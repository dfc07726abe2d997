#pragma once
#include <initializer_list>
#include <optional>

#include "base/config.h"
#include "base/options.h"
#include "base/result.h"
#include "cli/refuse.h"
#include "costmodel/cost_model.h"
#include "model/spec.h"
#include "plan/program/plan.h"
#include "topologies/topology.h"

namespace orrery::cli {

using costmodel::CostModel;
using model::ModelSpec;
using plan::Plan;
using topologies::Topology;

// Rows that several commands share.
base::OptionSpec model_option(bool required);
base::OptionSpec cluster_option(bool required);
base::OptionSpec hosts_option();
/// --profile, --software and --set: where prices come from.
std::vector<base::OptionSpec> price_options();
base::OptionSpec set_option();
base::OptionSpec precision_option();
base::OptionSpec sequence_option();
/// --lora-rank and --lora-targets: low-rank adapters.
std::vector<base::OptionSpec> adapter_options();
base::OptionSpec json_option();
base::OptionSpec memory_option(
    const char* help =
        "limit of a device's allocator (default: the device's memory less what is kept)");
base::OptionSpec global_batch_option();
inline constexpr unsigned kMostThreads = 256;
/// `what` runs in parallel.
base::OptionSpec threads_option(const std::string& what);
/// As many as there are cores, unless --threads says otherwise.
int threads_of(const base::Options& options);
/// Groups of options as one list.
std::vector<base::OptionSpec> joined(std::initializer_list<std::vector<base::OptionSpec>> groups);
base::OptionSpec timing_option();
/// A whole number in a range.
base::OptionSpec integer_option(const char* name, const char* value_name, base::IntRange range,
                                const std::string& help, const char* default_value = "");
base::OptionSpec text_option(const char* name, const char* value_name, const std::string& help,
                             const char* default_value = "");
/// A file that the command writes: what could not be written is refused before the command runs.
base::OptionSpec output_option(const char* name, const char* value_name, const std::string& help);
base::OptionSpec flag_option(const char* name, const char* help);
base::OptionSpec choice_option(const char* name, const char* value_name,
                               std::vector<std::string> choices, const char* help,
                               const char* default_value = "");
/// In seconds.
base::OptionSpec duration_option(const char* name, base::DoubleRange range, const char* help,
                                 const char* default_value = "");
base::OptionSpec required(base::OptionSpec option);
/// --oversubscribe, and what it lifts: on CPUs at most four ranks a core. @pre the command has
/// --device. Error: kMissingFeature.
base::OptionSpec oversubscribe_option();
Result<void> check_cores(int ranks, const base::Options& options);
/// What this machine is.
base::OptionSpec cluster_of_machine();

/// @pre the option's choices are names of precisions.
model::Precision precision_of(const base::Options& options, const char* name = "precision");
/// Bytes of --memory, 0: not given.
std::int64_t memory_of(const base::Options& options);
/// Of --lora-rank and --lora-targets.
Result<model::Adapter> adapter_of(const base::Options& options);
/// Tokens of --sequence-length, 0: not given.
std::int64_t sequence_of(const base::Options& options);

/// Cluster by catalog name or path. "local" with more ranks than cores: as many devices as ranks,
/// sharing the cores evenly. `settings`: those of software have no effect here.
Result<Topology> find_cluster(const std::string& name, int hosts, int ranks_wanted = 0,
                              std::span<const base::Setting> settings = {});
/// Error: kInconsistent, when --hosts was given and the cluster has another number of hosts,
/// because its file fixes it.
Result<void> check_hosts(const base::Options& options, const Topology& cluster);
/// Of --set.
Result<std::vector<base::Setting>> settings_of(const base::Options& options);

/// Where prices come from: a profile, or what ships for the device under some software; nothing
/// named: `usual`, and without that what is of the device's time. Settings change numbers of the
/// machine or of the software.
struct PriceNames {
  std::string profile = {}, software = {}, usual = {};
  std::vector<base::Setting> settings = {};
  bool operator<=>(const PriceNames&) const = default;
};
/// Error: kUsage, when both are named: a profile states its own software.
Result<void> check_prices(const PriceNames& names);
Result<PriceNames> price_names(const base::Options& options);
Result<std::optional<model::Profile>> profile_of(const PriceNames& names, const Topology& topology,
                                                 const ModelSpec& model);

/// Everything that a plan's cost depends on. Ranks count devices in the plan's order.
struct Scene {
  ModelSpec model;
  CostModel cost;
};
Result<Scene> make_scene(const std::string& model, const std::string& cluster, int hosts,
                         const PriceNames& prices, model::Precision precision,
                         std::int64_t sequence, int ranks_wanted = 0,
                         std::span<const std::string> device_order = {},
                         const model::Adapter& adapter = {});

/// That of a plan: --model, --cluster and --hosts take the place of the plan's. `usual` as in
/// PriceNames.
Result<Scene> scene_of(const base::Options& options, const Plan& plan, std::string_view usual = {});

/// Error: kInconsistent, when the plan has more ranks than the cluster devices.
Result<void> check_ranks(const Plan& plan, const Topology& cluster);

}  // namespace orrery::cli
