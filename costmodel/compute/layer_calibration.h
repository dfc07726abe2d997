#pragma once
#include "costmodel/compute/compute.h"

namespace orrery::costmodel {

/// The factors of compute.h (b) for `times`, a measurement of `measured` on a device with this
/// roofline. Errors: no points, batches not ascending, times ≤ 0.
base::Result<LayerCalibration> calibrate_layers(const model::LayerTimes& times,
                                                const model::ModelSpec& measured,
                                                const Roofline& roofline);

/// Segments of a block as opposed to those of embedding, head and loss; kSlice and flat segments
/// are neither.
enum class CalibratedPart : std::uint8_t { kBlock, kOther, kNeither };
CalibratedPart calibrated_part(model::SegmentKind kind);

}  // namespace orrery::costmodel
