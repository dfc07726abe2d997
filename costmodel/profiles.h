#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/profile.h"
#include "model/spec.h"
#include "topologies/topology.h"

namespace orrery::costmodel {

struct CatalogProfile {
  std::string name;    // file name without extension
  std::string device;
  std::string source;
};
/// Profiles that ship with the program (costmodel/profiles/), by name. Files that cannot be read are left out.
std::vector<CatalogProfile> list_profiles();

/// A profile by catalog name, by path of a JSON file (schema `orrery.profile/1`), or by path of a Galvatron profile folder,
/// whose layers are then those of `model` (galvatron_import.h). What contains '/' or ends in ".json" is a path.
/// Errors: kNotFound with "did you mean" or the list of names; those of the reader.
base::Result<model::Profile> find_profile(std::string_view name, const model::ModelSpec& model);

/// The surface that ships for the one device model of a cluster (costmodel/profiles/devices/), used when no profile is named; none: the device is
/// not among them, or there are several device models. Errors: those of the reader.
base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology);

}  // namespace orrery::costmodel
