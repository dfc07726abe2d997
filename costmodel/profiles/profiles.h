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
  std::string software;
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

/// Software that ships (costmodel/profiles/software/): what a training step under it adds to a
/// device's own prices.
std::vector<CatalogProfile> list_software();

/// The profile that is used when none is named: the surface of the slowest device of the cluster
/// (costmodel/profiles/devices/), and what a training step adds under `software`, a catalog name or
/// a path.
///
/// 1. A device that nobody measured takes the surface of the device measured whose datasheet is
///    nearest, up to kLikeness times slower or faster: a surface holds fractions of the datasheet.
///    Its products and attention then err as much as by datasheet at least.
/// 2. No software: `megatron-core` on devices since flash attention (arXiv 2205.14135), which state
///    a `framework` of their own, `megatron-2021` before.
/// 3. Attention written out, and dropout, are not of models that train without dropout.
/// 4. Several kinds of device: every kind has a surface by rule 1 (Profile::kinds), none where no
///    device is like it; the software is one, by rule 2 of the slowest.
///
/// None: no device is like the slowest. Errors: those of the reader; kNotFound with "did you mean".
inline constexpr double kLikeness = 4;
base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology,
                                                           const model::ModelSpec& model,
                                                           std::string_view software = {});

}  // namespace orrery::costmodel
