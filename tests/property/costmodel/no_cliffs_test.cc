#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

#include "base/data_dir.h"
#include "base/file.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"
#include "costmodel/profiles/profiles.h"
#include "model/spec.h"
#include "plan/program/plan.h"

namespace orrery::costmodel {
namespace {

/// A step with tensor parallelism over up to eight devices of a host, by what ships for the device.
std::int64_t step_of(const topologies::Topology& topology) {
  const model::ModelSpec model = model::find_model("llama-2-7b").value();
  int tp = 1;
  while (2 * tp <= std::min(8, as_int(topology.devices_per_host()))) tp *= 2;
  const plan::Plan plan =
      plan::uniform_plan(
          model, topology.name(), 1,
          {.tp = tp, .zero = 0, .micro_batch = 4, .global_batch = 16, .sequence = 2048})
          .value();
  const CostModel cost = CostModel::make(model, topology, device_profile(topology, model).value(),
                                         {.precision = plan.precision,
                                          .sequence = plan.sequence,
                                          .library = usual_library(topology).value()})
                             .value();
  return plan_cost(cost, plan).value().step_ps;
}

// Measured collectives were dropped where a link's rate was not exactly the one measured on.
TEST(NoCliffs, LinksThatDifferByAThousandthChangeAStepByLessThanAHundredth) {
  int machines = 0;
  for (const topologies::CatalogEntry& entry : topologies::list_catalog()) {
    const auto topology = topologies::catalog_topology(entry.name);
    if (!topology) continue;
    ++machines;
    const auto step = real(step_of(*topology));
    for (const std::int64_t ppm : {999'000, 1'001'000}) {
      EXPECT_NEAR(real(step_of(topology->with_link_rates(ppm))) / step, 1, 0.01)
          << entry.name << " at " << ppm;
    }
    // Measured on links of 1, priced on links of 1.5: faster, by no more than that.
    const auto faster = real(step_of(topology->with_link_rates(1'500'000)));
    EXPECT_LE(faster, 1.001 * step) << entry.name;
    EXPECT_GE(faster, step / 1.5) << entry.name;
  }
  EXPECT_GT(machines, 15);
}

/// The catalog's cluster with one number of its devices times `factor`; none: it does not state it.
std::optional<topologies::Topology> with_number(const std::string& cluster, const std::string& key,
                                                double factor) {
  const auto path = base::data_file("topologies/catalog/" + cluster + ".yaml");
  if (!path) return std::nullopt;  // made, not read
  const std::string text = base::read_file(path->string()).value();
  std::smatch found;
  if (!std::regex_search(text, found, std::regex("\n    " + key + ": ([0-9.]+) ")))
    return std::nullopt;
  const std::string number = fmt::format("{}", factor * std::stod(found[1]));
  const auto at = std::filesystem::temp_directory_path() / (cluster + "-no-cliffs.yaml");
  std::ofstream(at) << text.substr(0, as_index(found.position(1))) << number
                    << text.substr(as_index(found.position(1) + found.length(1)));
  auto topology = topologies::load_topology(at.string());
  std::filesystem::remove(at);
  EXPECT_TRUE(topology.has_value()) << cluster << " " << key;
  return *std::move(topology);
}

// Of peak, memory, power: a device is its own measurements' or the nearest's either way.
TEST(NoCliffs, DevicesThatDifferByAThousandthChangeAStepByLessThanAHundredth) {
  int changed = 0;
  for (const topologies::CatalogEntry& entry : topologies::list_catalog()) {
    for (const char* key : {"peak_bf16", "memory_bandwidth", "power", "launch_overhead"}) {
      const auto same = with_number(entry.name, key, 1);
      if (!same) continue;
      for (const double factor : {0.999, 1.001}) {
        ++changed;
        EXPECT_NEAR(real(step_of(*with_number(entry.name, key, factor))) / real(step_of(*same)), 1,
                    0.01)
            << entry.name << " " << key << " " << factor;
      }
    }
  }
  EXPECT_GT(changed, 80);
}

}  // namespace
}  // namespace orrery::costmodel
