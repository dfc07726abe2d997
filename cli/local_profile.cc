#include "cli/local_profile.h"

#include <cstdlib>
#include <thread>

#include "base/config.h"
#include "base/numbers.h"
#include "cli/refuse.h"
#include "model/names.h"
#include "topologies/import/local.h"

namespace orrery::cli {

namespace fs = std::filesystem;

fs::path cache_folder() {
  for (const auto& [variable, below] :
       {std::pair{"XDG_CACHE_HOME", ""}, std::pair{"HOME", ".cache"}}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return fs::path(value) / below / "orrery";
  }
  return {};
}

Result<fs::path> calibration_file(const Calibration& of) {
  const fs::path cache = cache_folder();
  if (cache.empty())
    return refuse(kMissingFeature, "set XDG_CACHE_HOME, or name a profile with --profile",
                  "neither HOME nor XDG_CACHE_HOME says where calibrations lie");
  return cache / "profiles" /
         fmt::format("{}-{}-ranks-{}.json", of.device == "cpu" ? "local" : of.device, of.ranks,
                     model::to_string(of.precision));
}

bool is_of_this_machine(const model::Profile& profile, int ranks) {
  const auto machine = topologies::probe_local_machine();
  if (!machine) return false;
  const std::string here =
      fmt::format("{}, {} cores, {} ranks measuring at once", machine->cpu_name,
                  std::max(1U, std::thread::hardware_concurrency()), ranks);
  return profile.provenance.machine.ends_with(here);
}

std::optional<std::string> usable_calibration(const Calibration& of) {
  const auto path = calibration_file(of);
  std::error_code error;
  if (!path || !fs::exists(*path, error)) return std::nullopt;
  const auto profile = model::load_profile(*path);
  if (!profile) {
    say("note: the calibration {} is left out: {}\n", path->string(),
        base::to_string(profile.error().front()));
    return std::nullopt;
  }
  if (!is_of_this_machine(*profile, of.ranks)) {
    say("note: the calibration {} is left out: it is of another machine ({})\n", path->string(),
        profile->provenance.machine);
    return std::nullopt;
  }
  say("note: prices are of the calibration of this machine of {}, {}\n", profile->provenance.date,
      path->string());
  return path->string();
}

}  // namespace orrery::cli
