#pragma once
/// \file
/// What a machine has of what Orrery uses, and what to do about the rest.
///
///     ok       it is there and works
///     missing  it is not there; Orrery works without, and the advice says what does not
///     problem  it is there and does not work, or nothing works without it
///
/// Nothing is changed: a folder that would be created is looked at through its nearest parent.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::cli {

enum class Health : std::uint8_t { kOk, kMissing, kProblem };
std::string_view to_string(Health health);

struct Finding {
  std::string subject;  // "temporary folder"
  Health health = Health::kOk;
  std::string found;
  std::string advice = {};  // empty when all is well
};

/// Where to look.
struct DoctorPlaces {
  std::vector<std::filesystem::path> data_roots;
  std::string data_variable;    // ORRERY_DATA; empty: not set
  std::filesystem::path cache;  // empty: neither HOME nor XDG_CACHE_HOME is set
  std::filesystem::path temporary;
  std::filesystem::path working;
  std::filesystem::path executor;  // empty: there is none
  std::string search_path;         // PATH
  std::filesystem::path driver = "/proc/driver/nvidia/gpus";
  std::filesystem::path devices = "/dev";
};
/// Of this process.
DoctorPlaces places_of_this_process();

/// In the order of printing.
std::vector<Finding> examine(const DoctorPlaces& places);

// Parts of it.
std::vector<Finding> examine_machine();
std::vector<Finding> examine_data(const DoctorPlaces& places);
std::vector<Finding> examine_folders(const DoctorPlaces& places);
std::vector<Finding> examine_executor(const DoctorPlaces& places);
std::vector<Finding> examine_gpus(const DoctorPlaces& places);

}  // namespace orrery::cli
