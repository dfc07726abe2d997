#pragma once
/// \file
/// Where the calibrations of this machine lie, and whether one is of this machine.
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/profile.h"

namespace orrery::cli {

/// $XDG_CACHE_HOME/orrery, else $HOME/.cache/orrery; empty when neither is set.
std::filesystem::path cache_folder();

/// What a calibration is of; "local" stands for the CPU in the file's name.
struct Calibration {
  std::string device = "cpu";
  int ranks = 1;
  model::Precision precision = model::Precision::kFloat32;
};

/// CACHE/profiles/local-2-ranks-fp32.json. Error: kMissingFeature without a cache folder.
base::Result<std::filesystem::path> calibration_file(const Calibration& of);

/// Whether the profile was measured on a processor of this name with as many hardware threads, by
/// so many ranks at once: what 'orrery calibrate' notes of the machine. A home folder may be shared
/// by many machines.
bool is_of_this_machine(const model::Profile& profile, int ranks);

/// The file to use in place of datasheet prices of "local", and what is said of it on stderr;
/// nothing where none lies there, it cannot be read or it is another machine's.
std::optional<std::string> usable_calibration(const Calibration& of);

}  // namespace orrery::cli
