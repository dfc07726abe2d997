#pragma once
/// \file
/// What a plan is to Megatron-Core: settings that Megatron-LM takes as arguments and
/// Megatron-Bridge as fields of its ConfigContainer, by the same names. Both run the same plans.
#include <string>
#include <string_view>
#include <vector>

#include "plan/export/exporter.h"

namespace orrery::plan {

struct MegatronSetting {
  std::string_view section;  // of Megatron-Bridge: "model", "ddp", "train", ...
  std::string name;          // "tensor_model_parallel_size"; arguments have dashes
  std::string value;         // empty: a switch that is on
  bool text = false;         // the value is no number
};

/// Of a plan that nearest_megatron() gives: all but the precision and the launcher, in the order of
/// layers, optimizer, batch.
std::vector<MegatronSetting> megatron_settings(const Plan& plan);

/// Steps 1, 2 and 4 of Exporter.
Plan nearest_megatron(const Plan& plan, const ExportRequest& request);
base::Diagnostics megatron_faults(const Plan& plan, const ExportRequest& request);
std::vector<Rule> megatron_rules();

}  // namespace orrery::plan
