#pragma once
/// Numbers of a profile's software that take other values (`--set software.FIELD=VALUE`).
///
///     FIELD   composition_factor, device_deviation, overlap_slowdown; factor, issue_seconds,
///             fabric_share (step_communication); kernel_seconds, loss_passes, norm_passes,
///             activation_passes, rotary_passes, gradient_bytes, gather_copies, reduce_copies,
///             loss_bytes, reserved_share (framework): docs/models/framework.md
///     VALUE   a number, in the field's unit, or a factor: 2x

#include <span>

#include "base/options.h"
#include "base/result.h"
#include "model/profile.h"

namespace orrery::costmodel {

inline constexpr std::string_view kSoftwarePart = "software";

/// Those of other parts are passed over. All faults at once: kNotFound (no such field), kBadValue,
/// kOutOfRange (below zero), kUsage (what a profile has measured hides the setting: times of
/// operations a device's speed, those of collectives the links').
base::Result<void> apply_settings(model::Profile& profile, std::span<const base::Setting> settings);

}  // namespace orrery::costmodel
