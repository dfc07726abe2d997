#pragma once
/// \file
/// What each framework brings to export_plan() (export.h has the four steps). One row a framework,
/// in the file of its name.
#include <vector>

#include "plan/export/differences.h"
#include "plan/export/export.h"

namespace orrery::plan {

struct Exporter {
  FrameworkTerms terms;
  /// Step 1. @pre the plan is valid.
  Plan (*nearest)(const Plan& plan, const ExportRequest& request);
  /// Step 2, beyond validate(). @pre the plan is valid.
  base::Diagnostics (*faults)(const Plan& plan, const ExportRequest& request);
  /// Step 3: text, beside, settings and notes of out.plan.
  void (*write)(ExportedPlan& out, const ExportRequest& request);
  /// Step 4.
  std::vector<Rule> (*rules)();
};

extern const Exporter kMegatronExporter, kMegatronBridgeExporter, kTorchTitanExporter,
    kDeepSpeedExporter, kAccelerateExporter, kGalvatronExporter;

/// Ranks on each host, and hosts, of a launcher that starts as many everywhere: all devices of a
/// host are used before the next one's.
struct Launch {
  int ranks = 1, hosts = 1;
};
Launch launch_of(const Plan& plan, const ExportRequest& request);

/// Faults of one plan.
class FaultList {
 public:
  template <class... Args>
  void require(bool holds, std::string hint, fmt::format_string<Args...> format, Args&&... args) {
    if (holds) return;
    faults_.push_back(
        base::make_error(base::ErrorCode::kInfeasible, format, std::forward<Args>(args)...)
            .with_hint(std::move(hint)));
  }
  /// launch_of() has all ranks.
  void require_whole_hosts(const Plan& plan, const ExportRequest& request) {
    const Launch launch = launch_of(plan, request);
    require(launch.ranks * launch.hosts == plan.world_size(), "as many ranks as whole hosts have",
            "{} ranks on hosts of {} devices", plan.world_size(), request.devices_per_host);
  }
  base::Diagnostics take() { return std::move(faults_); }

 private:
  base::Diagnostics faults_;
};

/// The strategy of the first layer: of plans with one strategy.
const LayerStrategy& first_layer(const Plan& plan);
/// Sequences of a micro-batch on one data-parallel rank of the first layer.
std::int64_t rank_sequences(const Plan& plan);

}  // namespace orrery::plan
