#include "cli/shell/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/config.h"
#include "base/data_dir.h"
#include "base/ids.h"
#include "base/numbers.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/executor_libraries.h"
#include "cli/local_profile.h"
#include "model/spec.h"
#include "topologies/import/local.h"
#include "topologies/topology.h"

namespace orrery::cli {

namespace fs = std::filesystem;

namespace {

using enum Health;

std::string size_of(double bytes) { return base::to_string(base::Bytes(bytes)); }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  std::ranges::sort(entries);
  return entries;
}

/// The path, or the nearest folder above it that is there.
fs::path nearest_existing(fs::path path) {
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

/// A folder that is written to; one that need not exist would be created.
Finding folder_finding(const std::string& subject, const fs::path& folder, Health otherwise,
                       const std::string& advice, bool must_exist = true) {
  std::error_code error;
  const fs::path there = nearest_existing(folder);
  if (!fs::is_directory(there, error))
    return {subject, otherwise, fmt::format("{}: {} is no folder", folder.string(), there.string()),
            advice};
  if (there != folder && must_exist)
    return {subject, otherwise, fmt::format("{} is not there", folder.string()), advice};
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    return {subject, otherwise,
            fmt::format("{}: {}: {}", folder.string(), there.string(), std::strerror(errno)),
            advice};
  const fs::space_info space = fs::space(there, error);
  constexpr std::uintmax_t kLittle = 64 << 20;
  if (!error && space.available < kLittle)
    return {subject, otherwise,
            fmt::format("{}: {} are free", folder.string(), size_of(real(space.available))),
            "free space there"};
  return {subject, kOk,
          fmt::format("{}{}, {} free", folder.string(), there == folder ? "" : " (will be created)",
                      size_of(real(space.available)))};
}

std::optional<fs::path> on_search_path(const std::string& program, const std::string& path) {
  for (const std::string& folder : base::split(path, ':')) {
    const fs::path candidate = fs::path(folder) / program;
    std::error_code error;
    if (::access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, error))
      return candidate;
  }
  return std::nullopt;
}

/// Reads every file of a kind; the first fault of each that has one.
template <class Read>
Finding catalog_finding(const std::string& what, const char* folder, const char* extension,
                        const Read& read) {
  const std::vector<std::string> files = base::list_data_files(folder, extension);
  if (files.empty())
    return {what, kProblem, fmt::format("no file in {}", folder),
            "install Orrery again, or name the folder that has them in ORRERY_DATA"};
  std::vector<std::string> faults;
  for (const std::string& file : files) {
    if (const base::Diagnostics found = read(file); !found.empty())
      faults.push_back(base::to_string(found.front()));
  }
  if (!faults.empty())
    return {what, kProblem, base::join(faults, "; "), "mend or remove what is named"};
  return {what, kOk, fmt::format("{}", files.size())};
}

template <class T>
base::Diagnostics faults_of(const base::Result<T>& result) {
  return result ? base::Diagnostics{} : result.error();
}

base::Diagnostics syntax_faults(const std::string& folder, const std::string& file) {
  const auto path = base::data_file(folder + "/" + file);
  return path ? faults_of(base::Node::parse_file(*path)) : path.error();
}

std::string without_extension(const std::string& file) { return fs::path(file).stem().string(); }

}  // namespace

std::string_view to_string(Health health) {
  return base::EnumNames<kProblem>("ok", "missing", "problem")[health];
}

DoctorPlaces places_of_this_process() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  DoctorPlaces places{.data_roots = base::data_roots(),
                      .data_variable = variable("ORRERY_DATA"),
                      .cache = cache_folder(),
                      .temporary = variable("TMPDIR").empty() ? "/tmp" : variable("TMPDIR"),
                      .working = {},
                      .executor = executor_program(),
                      .search_path = variable("PATH")};
  std::error_code error;
  places.working = fs::current_path(error);
  return places;
}

std::vector<Finding> examine(const DoctorPlaces& places) {
  std::vector<Finding> all = examine_machine();
  for (const auto& part : {examine_data(places), examine_folders(places), examine_executor(places),
                           examine_gpus(places)})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Finding> examine_machine() {
  const auto machine = topologies::probe_local_machine();
  if (!machine)
    return {{"processor", kProblem, base::to_string(machine.error().front()),
             "plan for clusters of the catalog; 'local' is unknown"}};
  return {{"processor", kOk,
           fmt::format("{} cores of {} ({})", machine->cores, machine->cpu_name,
                       machine->cores_source)},
          {"memory", kOk, size_of(real(machine->memory_bytes))}};
}

std::vector<Finding> examine_data(const DoctorPlaces& places) {
  std::vector<Finding> findings;
  std::error_code error;
  if (!places.data_variable.empty() && !fs::is_directory(places.data_variable, error))
    findings.push_back({"ORRERY_DATA", kProblem, places.data_variable + " is no folder",
                        "unset it, or name a folder that this user may read"});
  std::vector<std::string> there;
  for (const fs::path& root : places.data_roots)
    if (fs::is_directory(root / "model" / "catalog", error)) there.push_back(root.string());
  findings.push_back(there.empty()
                         ? Finding{"data", kProblem, "in no folder",
                                   "install Orrery again, or name the folder in ORRERY_DATA"}
                         : Finding{"data", kOk, base::join(there, ", then ")});
  findings.push_back(catalog_finding("models", "model/catalog", ".json", [](const auto& file) {
    return faults_of(model::find_model(without_extension(file)));
  }));
  findings.push_back(
      catalog_finding("clusters", "topologies/catalog", ".yaml", [](const auto& file) {
        return faults_of(topologies::catalog_topology(without_extension(file)));
      }));
  for (const auto& [what, folder] : {std::pair{"profiles", "costmodel/profiles"},
                                     std::pair{"devices measured", "costmodel/profiles/devices"},
                                     std::pair{"software", "costmodel/profiles/software"},
                                     std::pair{"tunings", "costmodel/tunings"}})
    findings.push_back(catalog_finding(what, folder, ".json", [where = folder](const auto& file) {
      return syntax_faults(where, file);
    }));
  return findings;
}

std::vector<Finding> examine_folders(const DoctorPlaces& places) {
  std::vector<Finding> findings{
      folder_finding("temporary folder", places.temporary, kProblem,
                     "name another in TMPDIR: ranks on this machine write there"),
      places.working.empty() ? Finding{"this folder", kMissing, "it is gone", "change to another"}
                             : folder_finding("this folder", places.working, kMissing,
                                              "name files elsewhere with --out and the like")};
  if (places.cache.empty()) {
    findings.push_back({"cache", kMissing, "neither HOME nor XDG_CACHE_HOME is set",
                        "set one: calibrations of this machine are kept there"});
    return findings;
  }
  findings.push_back(folder_finding("cache", places.cache, kMissing,
                                    "name another in XDG_CACHE_HOME: calibrations are kept there",
                                    false));
  const std::vector<fs::path> profiles = entries_of(places.cache / "profiles");
  std::vector<std::string> names;
  for (const fs::path& p : profiles)
    if (p.extension() == ".json") names.push_back(p.stem().string());
  findings.push_back(names.empty()
                         ? Finding{"calibrations", kMissing, "none",
                                   "'orrery validate' makes one of this machine; --cluster local "
                                   "then has measured prices"}
                         : Finding{"calibrations", kOk, base::join(names, ", ")});
  return findings;
}

std::vector<Finding> examine_executor(const DoctorPlaces& places) {
  std::vector<Finding> findings;
  const auto mpirun = on_search_path("mpirun", places.search_path);
  const Finding mpi = mpirun ? Finding{"MPI", kOk, mpirun->string()}
                             : Finding{"MPI", kMissing, "no mpirun on PATH",
                                       "install Open MPI: train, calibrate and validate start "
                                       "several ranks with it"};
  if (places.executor.empty())
    return {{"executor", kMissing, "this build has none",
             "train, calibrate and validate need it: build with -DORRERY_EXECUTOR=ON and LibTorch"},
            mpi};
  const auto libraries = libraries_of(places.executor);
  if (!libraries)
    return {
        {"executor", kProblem, base::to_string(libraries.error().front()), "install Orrery again"},
        mpi};
  findings.push_back({"executor", kOk, places.executor.string()});
  const std::string missing = missing_libraries(*libraries);
  const auto torch = std::ranges::find_if(
      *libraries, [](const LoadedLibrary& l) { return l.name.starts_with("libtorch_cpu"); });
  findings.push_back(
      !missing.empty()
          ? Finding{"LibTorch", kProblem, "cannot load " + missing, library_advice()}
          : Finding{"LibTorch", kOk,
                    torch == libraries->end() ? "part of the executor" : torch->path.string()});
  findings.push_back(mpi);
  const auto nccl = std::ranges::find_if(
      *libraries, [](const LoadedLibrary& l) { return l.name.starts_with("libnccl"); });
  findings.push_back(nccl != libraries->end() && !nccl->path.empty()
                         ? Finding{"NCCL", kOk, nccl->path.string()}
                         : Finding{"NCCL", kMissing, "the executor loads none",
                                   "several GPUs train with it: build with -DORRERY_NCCL=ON"});
  return findings;
}

std::vector<Finding> examine_gpus(const DoctorPlaces& places) {
  const std::vector<fs::path> gpus = entries_of(places.driver);
  if (gpus.empty())
    return {{"GPUs", kMissing, "no NVIDIA driver has one",
             "training runs on CPUs; planning and simulation need none"}};
  std::vector<std::string> names;
  for (const fs::path& gpu : gpus) {
    std::ifstream information(gpu / "information");
    for (std::string line; std::getline(information, line);)
      if (line.starts_with("Model:"))
        names.emplace_back(base::trim(std::string_view(line).substr(6)));
  }
  std::vector<Finding> findings{
      {"GPUs", kOk, fmt::format("{} ({})", gpus.size(), base::join(names, ", "))}};
  const fs::path control = places.devices / "nvidiactl";
  if (::access(control.c_str(), R_OK | W_OK) != 0)
    findings.push_back({"GPU access", kProblem,
                        fmt::format("{}: {}", control.string(), std::strerror(errno)),
                        "ask for the rights of the group that owns it, or start the container with "
                        "its GPUs"});
  return findings;
}

}  // namespace orrery::cli
