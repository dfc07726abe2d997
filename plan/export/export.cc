#include "plan/export/export.h"

#include <array>

#include "base/numbers.h"
#include "plan/export/differences.h"
#include "plan/export/exporter.h"

namespace orrery::plan {
namespace {

/// In order of the enumerators.
constexpr std::array kExporters{&kMegatronExporter,  &kMegatronBridgeExporter, &kTorchTitanExporter,
                                &kDeepSpeedExporter, &kAccelerateExporter,     &kGalvatronExporter};

/// The faults of the nearest plan, as what they mean here.
base::Result<ExportedPlan> nothing_like_it(const FrameworkTerms& terms, base::Diagnostics faults) {
  for (base::Diagnostic& fault : faults) {
    fault.code = base::ErrorCode::kInfeasible;
    fault.message =
        fmt::format("{} can run nothing like this plan: {}", terms.title, fault.message);
  }
  return base::fail(std::move(faults));
}

}  // namespace

std::span<const FrameworkTerms> frameworks() {
  static const std::vector<FrameworkTerms> terms = [] {
    std::vector<FrameworkTerms> rows;
    for (const Exporter* exporter : kExporters) rows.push_back(exporter->terms);
    return rows;
  }();
  return terms;
}

const FrameworkTerms& terms_of(Framework framework) {
  return frameworks()[as_index(as_int(framework))];
}

const LayerStrategy& first_layer(const Plan& plan) {
  return plan.stages.front().runs.front().strategy;
}

std::int64_t rank_sequences(const Plan& plan) {
  return plan.micro_batch_sequences() / first_layer(plan).dp;
}

Launch launch_of(const Plan& plan, const ExportRequest& request) {
  const int world = plan.world_size();
  if (world <= request.devices_per_host) return {world, 1};
  return {request.devices_per_host, ceil_div(world, request.devices_per_host)};
}

base::Result<ExportedPlan> export_plan(Framework framework, const Plan& plan,
                                       const ExportRequest& request) {
  if (base::Diagnostics faults = validate(plan, request.model); !faults.empty())
    return base::fail(std::move(faults));
  if (plan.adapter.rank > 0)
    return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                       "the files written here say nothing of low-rank adapters")
                          .with_hint("export a plan without --lora-rank, and set adapters in the "
                                     "framework"));
  if (is_partitioned(plan))
    return base::fail(base::make_error(base::ErrorCode::kUnsupported,
                                       "no framework runs layers partitioned in space and time")
                          .with_hint("'orrery train' runs them"));
  const Exporter& exporter = *kExporters[as_index(as_int(framework))];
  const Plan planned = canonical(plan);
  ExportedPlan out;
  out.plan = exporter.nearest(planned, request);
  base::Diagnostics faults = validate(out.plan, request.model);
  if (faults.empty()) faults = exporter.faults(out.plan, request);
  if (!faults.empty()) return nothing_like_it(exporter.terms, std::move(faults));
  out.differences = differences(planned, out.plan, exporter.rules());
  exporter.write(out, request);
  return out;
}

}  // namespace orrery::plan
