#include "costmodel/compute/layer_calibration.h"

#include <cmath>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower.h"

namespace orrery::costmodel {
namespace {

using enum CalibratedPart;

/// Roofline seconds of the segments of a layer, by part and direction.
struct Sums {
  double block_forward = 0, block_backward = 0, other_forward = 0, other_backward = 0;
};

/// Of `layer`, which is one sequence's, over a batch.
void add(const plan::LayerTemplates& layer, plan::TemplateId id, std::int64_t batch,
         const Roofline& roofline, Sums& sums) {
  for (const auto& op : layer.program.templates[id].ops) {
    if (op.kind != plan::OpKind::kCompute || op.recomputed) continue;
    const auto shape = layer.program.segments[op.segment].of_sequences(batch);
    const double seconds = roofline.seconds(shape, op.phase);
    const bool forward = op.phase == model::Phase::kF;
    switch (calibrated_part(shape.kind)) {
      case kBlock: (forward ? sums.block_forward : sums.block_backward) += seconds; break;
      case kOther: (forward ? sums.other_forward : sums.other_backward) += seconds; break;
      case kNeither: break;
    }
  }
}

/// What one device runs of one sequence.
struct Layers {
  plan::LayerTemplates block, embedding, head;

  Layers(const model::LayerTimes& times, const model::ModelSpec& measured) {
    const plan::LayerStrategy alone;
    const plan::LayerContext context{.precision = times.precision,
                                     .sequence = times.sequence,
                                     .micro_batch_sequences = 1,
                                     .global_batch = 1};
    block = plan::lower_block(measured, alone, context);
    embedding = plan::lower_embedding(measured, alone, context);
    head = plan::lower_head(measured, alone, context);
  }
};

base::Result<void> check(const model::LayerTimes& times) {
  base::ErrorSink sink;
  if (times.points.empty()) {
    sink.add(base::make_error(base::ErrorCode::kInconsistent, "layer times of '{}' have no points",
                              times.model));
  }
  std::int64_t before = 0;
  for (const auto& p : times.points) {
    if (p.batch <= before || !(p.layer_seconds_per_sample > 0) ||
        !(p.other_seconds_per_sample >= 0)) {
      sink.add(base::make_error(base::ErrorCode::kInconsistent,
                                "layer times of '{}' at batch {}: batches must ascend, times be "
                                "greater than zero (other: not negative)",
                                times.model, p.batch));
    }
    before = p.batch;
  }
  return sink.result();
}

}  // namespace

CalibratedPart calibrated_part(model::SegmentKind kind) {
  using enum model::SegmentKind;
  switch (kind) {
    case kLoadTokens:
    case kLoadTargets:
    case kEmbedding:
    case kPositionAdd:
    case kLogits:
    case kLossMax:
    case kLossSum:
    case kPool:
    case kLoss: return kOther;
    case kNorm:
    case kQkv:
    case kAttention:
    case kAttentionSplit:
    case kAttentionBlock:
    case kAttentionMerge:
    case kProjection:
    case kResidual:
    case kMlpIn:
    case kActivation:
    case kMlpOut:
    case kBias:
    case kNormSums:
    case kNormApply:
    case kScores:
    case kSoftmax:
    case kValues:
    case kRouter:
    case kDispatch:
    case kExpertIn:
    case kExpertOut:
    case kCombine:
    case kHeadNorm:
    case kLatentAttention:
    case kScan:
    case kLatentProduct:
    case kAdapterIn:
    case kAdapterOut:
    case kPatchProduct: return kBlock;
    case kSlice:
    case kZeroGradient:
    case kAccumulate:
    case kAdamW: return kNeither;
  }
  ORRERY_CHECK(false, "segment kind out of range");
}

base::Result<LayerCalibration> calibrate_layers(const model::LayerTimes& times,
                                                const model::ModelSpec& measured,
                                                const Roofline& roofline) {
  TRY_VOID(check(times));
  LayerCalibration calibration;
  const Layers layers(times, measured);
  for (const auto& p : times.points) {
    const auto batch = real(p.batch);
    Sums block, rest;
    const auto add_layer = [&](const plan::LayerTemplates& layer, Sums& sums) {
      add(layer, layer.forward, p.batch, roofline, sums);
      add(layer, layer.backward, p.batch, roofline, sums);
    };
    add_layer(layers.block, block);
    add_layer(layers.embedding, rest);
    add_layer(layers.head, rest);
    LayerCalibration::Point point{.log_batch = std::log(batch)};
    point.block_forward = batch * p.layer_seconds_per_sample / block.block_forward;
    point.block_backward = point.block_forward * 2 * block.block_forward / block.block_backward;
    // Head and embedding hold norms, which are priced as those of blocks; the rest of `other` is
    // theirs.
    const double other = batch * p.other_seconds_per_sample;
    const double forward = other - point.block_forward * rest.block_forward;
    const double backward = 2 * other - point.block_backward * rest.block_backward;
    point.other_forward = forward > 0 ? forward / rest.other_forward : point.block_forward;
    point.other_backward = backward > 0 ? backward / rest.other_backward : point.block_backward;
    calibration.points.push_back(point);
  }
  return calibration;
}

}  // namespace orrery::costmodel
