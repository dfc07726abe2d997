#include "cli/inputs.h"

#include <algorithm>

#include "costmodel/profiles/profiles.h"
#include "topologies/import/local.h"

namespace orrery::cli {

using base::OptionSpec;
using base::OptionType;

OptionSpec model_option(bool required) {
  return {.name = "model",
          .value_name = "NAME|FILE",
          .help = "catalog model or a Hugging Face config.json",
          .required = required};
}
OptionSpec cluster_option(bool required) {
  return {.name = "cluster",
          .value_name = "NAME|FILE",
          .help = "catalog cluster or a topology file",
          .required = required};
}
OptionSpec hosts_option() {
  return integer_option("hosts", "N", {1, topologies::kMaxHosts},
                        "hosts of that kind, joined by the cluster's fabric", "1");
}
OptionSpec profile_option() {
  return {.name = "profile",
          .value_name = "NAME|PATH",
          .help =
              "measured profile: name, JSON file or Galvatron folder (default: what ships for the "
              "device, else datasheet prices)"};
}
OptionSpec precision_option() {
  return {.name = "precision",
          .value_name = "P",
          .default_value = "bf16",
          .choices = {"bf16", "fp32"},
          .help = "training precision"};
}
OptionSpec sequence_option() {
  return integer_option("sequence-length", "S", {1, 1 << 24},
                        "tokens per sequence (default: the model's maximum)");
}
OptionSpec json_option() {
  return {.name = "json", .type = OptionType::kFlag, .help = "print one JSON document"};
}
OptionSpec memory_option() {
  return {.name = "memory",
          .value_name = "BYTES",
          .type = OptionType::kBytes,
          .min = 1,
          .help = "limit per device (default: the device's memory)"};
}
OptionSpec global_batch_option() {
  return integer_option("global-batch", "B", {1, 1 << 24}, "sequences per step", "64");
}
OptionSpec threads_option(const std::string& help) {
  return integer_option("threads", "N", {1, 256}, help, "1");
}
std::vector<OptionSpec> joined(std::initializer_list<std::vector<OptionSpec>> groups) {
  std::vector<OptionSpec> all;
  for (const std::vector<OptionSpec>& group : groups)
    all.insert(all.end(), group.begin(), group.end());
  return all;
}
OptionSpec timing_option() {
  return {.name = "timing",
          .type = OptionType::kFlag,
          .help = "say how long the search took (differs from run to run)"};
}

OptionSpec integer_option(const char* name, const char* value_name, base::IntRange range,
                          const std::string& help, const char* default_value) {
  OptionSpec o{.name = name,
               .value_name = value_name,
               .type = OptionType::kInt,
               .default_value = default_value,
               .min = static_cast<double>(range.min),
               .help = help};
  if (range.max < base::IntRange{}.max) o.max = static_cast<double>(range.max);
  return o;
}

base::OptionSpec cluster_of_machine() {
  base::OptionSpec o = cluster_option(false);
  o.default_value = "local";
  o.help = "what this machine is: catalog cluster or a topology file";
  return o;
}

base::Result<model::Precision> precision_of(const base::Options& options) {
  return options.string("precision") == "fp32" ? model::Precision::kFloat32
                                               : model::Precision::kBFloat16;
}

std::int64_t memory_of(const base::Options& options) {
  return options.has("memory") ? static_cast<std::int64_t>(options.bytes("memory").raw()) : 0;
}

base::Result<topologies::Topology> find_cluster(const std::string& name, int hosts,
                                                int ranks_wanted) {
  const auto copies = static_cast<std::uint32_t>(hosts);
  if (name == "local" && ranks_wanted > 0) {
    TRY(topologies::LocalMachine machine, topologies::probe_local_machine());
    const auto wanted = static_cast<std::uint32_t>(ranks_wanted);
    if (wanted > machine.cores) {
      machine.hertz *= static_cast<double>(machine.cores) / static_cast<double>(wanted);
      machine.cores = wanted;
    }
    return topologies::local_topology(machine, copies);
  }
  if (name.find('/') != std::string::npos || name.ends_with(".yaml"))
    return topologies::load_topology(name, copies);
  return topologies::catalog_topology(name, copies);
}

base::Result<Scene> make_scene(const std::string& model_name, const std::string& cluster, int hosts,
                               const std::string& profile_name, model::Precision precision,
                               std::int64_t sequence, int ranks_wanted) {
  TRY(model::ModelSpec model, model::find_model(model_name));
  TRY(topologies::Topology topology, find_cluster(cluster, hosts, ranks_wanted));
  std::optional<model::Profile> profile;
  if (profile_name.empty()) {
    TRY(profile, costmodel::device_profile(topology, model));
  } else {
    TRY(profile, costmodel::find_profile(profile_name, model));
  }
  if (sequence == 0) sequence = model.max_positions;
  TRY(costmodel::CostModel cost,
      costmodel::CostModel::make(model, std::move(topology), std::move(profile),
                                 {.precision = precision, .sequence = sequence}));
  return Scene{std::move(model), std::move(cost)};
}

base::Result<void> check_objective(const model::ModelSpec& model) {
  const bool masked = model.family == model::Family::kBert;
  if (!masked && model.kinds() == 1 && model.patch_features == 0) return {};
  base::Diagnostic d = base::make_error(base::ErrorCode::kUnsupported,
                                        "the executor predicts next tokens; '{}' {}", model.name,
                                        masked                     ? "is trained on masked ones"
                                        : model.patch_features > 0 ? "looks at images"
                                                                   : "has blocks of several kinds");
  d.hint = "plan and simulate it; train gpt2, llama, mistral and qwen2 models";
  return base::fail(std::move(d));
}

}  // namespace orrery::cli
