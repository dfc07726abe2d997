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

extern const Exporter kMegatronExporter, kTorchTitanExporter;

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
  base::Diagnostics take() { return std::move(faults_); }

 private:
  base::Diagnostics faults_;
};

/// The strategy of the first layer: of plans with one strategy.
const LayerStrategy& first_layer(const Plan& plan);
/// Sequences of a micro-batch on one data-parallel rank of the first layer.
std::int64_t rank_sequences(const Plan& plan);

}  // namespace orrery::plan
