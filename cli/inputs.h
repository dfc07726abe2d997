#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/options.h"
#include "base/result.h"
#include "costmodel/cost_model.h"
#include "model/spec.h"
#include "plan/program/plan.h"
#include "topologies/topology.h"

namespace orrery::cli {

// Rows that several commands share.
base::OptionSpec model_option(bool required);
base::OptionSpec cluster_option(bool required);
base::OptionSpec hosts_option();
base::OptionSpec profile_option();
base::OptionSpec precision_option();
base::OptionSpec sequence_option();
base::OptionSpec json_option();
base::OptionSpec memory_option();
base::OptionSpec global_batch_option();
/// `help`: what runs in parallel.
base::OptionSpec threads_option(const std::string& help);
/// Groups of options as one list.
std::vector<base::OptionSpec> joined(std::initializer_list<std::vector<base::OptionSpec>> groups);
base::OptionSpec timing_option();
/// A whole number in a range.
base::OptionSpec integer_option(const char* name, const char* value_name, base::IntRange range,
                                const std::string& help, const char* default_value = "");
/// What this machine is.
base::OptionSpec cluster_of_machine();

base::Result<model::Precision> precision_of(const base::Options& options);
/// Bytes of --memory, 0: not given.
std::int64_t memory_of(const base::Options& options);

/// Cluster by catalog name or path. "local" with more ranks than cores: as many devices as ranks,
/// sharing the cores evenly.
base::Result<topologies::Topology> find_cluster(const std::string& name, int hosts,
                                                int ranks_wanted = 0);

/// Everything that a plan's cost depends on.
struct Scene {
  model::ModelSpec model;
  costmodel::CostModel cost;
};
base::Result<Scene> make_scene(const std::string& model, const std::string& cluster, int hosts,
                               const std::string& profile, model::Precision precision,
                               std::int64_t sequence, int ranks_wanted = 0);

/// Whether the executor can train this model: it predicts next tokens. Error: kUnsupported.
base::Result<void> check_objective(const model::ModelSpec& model);

}  // namespace orrery::cli
