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
  std::string name;  // file name without extension
  std::string device;
  std::string source;
};
/// Profiles that ship with the program (costmodel/profiles/), by name. Files that cannot be read
/// are left out.
std::vector<CatalogProfile> list_profiles();

/// A profile by catalog name, by path of a JSON file (schema `orrery.profile/1`), or by path of a
/// Galvatron profile folder, whose layers are then those of `model` (galvatron_import.h). What
/// contains '/' or ends in ".json" is a path. Errors: kNotFound with "did you mean" or the list of
/// names; those of the reader.
base::Result<model::Profile> find_profile(std::string_view name, const model::ModelSpec& model);

/// The profile that is used when none is named. Of the one device model of a cluster: its surface
/// and its collectives (costmodel/profiles/devices/), these where the devices' links have the rate
/// that they were measured on; and what a training step adds on any device
/// (costmodel/profiles/software/training-step.json). Attention written out, and dropout, are of the
/// software before flash attention (arXiv 2205.14135): neither models that train without dropout
/// nor devices that came after it, which state a `framework` of their own, have them. None: the
/// device is not among them, or there are several device models. Errors: those of the reader.
base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology,
                                                           const model::ModelSpec& model);

}  // namespace orrery::costmodel
