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
  return {.name = "hosts",
          .value_name = "N",
          .type = OptionType::kInt,
          .default_value = "1",
          .min = 1,
          .max = topologies::kMaxHosts,
          .help = "hosts of that kind, joined by the cluster's fabric"};
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
  return {.name = "sequence-length",
          .value_name = "S",
          .type = OptionType::kInt,
          .min = 1,
          .max = 1 << 24,
          .help = "tokens per sequence (default: the model's maximum)"};
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
  return {.name = "global-batch",
          .value_name = "B",
          .type = OptionType::kInt,
          .default_value = "64",
          .min = 1,
          .max = 1 << 24,
          .help = "sequences per step"};
}
OptionSpec threads_option(const std::string& help) {
  return {.name = "threads",
          .value_name = "N",
          .type = OptionType::kInt,
          .default_value = "1",
          .min = 1,
          .max = 256,
          .help = help};
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
