#include "search/proof/stage_parts.h"

#include <algorithm>
#include <limits>

#include "base/numbers.h"

namespace orrery::search {

using costmodel::LayerCost;
using plan::LayerStrategy;
using plan::Schedule;

StageParts::StageParts(costmodel::LayerCosts& costs, const Family& family,
                       const std::vector<std::vector<LayerStrategy>>& strategies)
    : costs_(costs),
      frame_(family.frame),
      stages_(family.ranks),
      devices_(family.devices),
      least_stream_(std::numeric_limits<std::int64_t>::max()) {
  context_ = {.precision = frame_.precision,
              .sequence = frame_.sequence,
              .micro_batch_sequences = frame_.micro_batch_sequences(),
              .micro_batches = frame_.micro_batches,
              .global_batch = frame_.global_batch,
              .stages = stages_,
              .prefetch_depth = frame_.prefetch_depth};
  layers_.resize(as_index(stages_));
  transient_.assign(layers_.size(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t k = 0; k < strategies.size(); ++k) {
    context_.kind = as_int(k);
    for (const LayerStrategy& strategy : strategies[k]) {
      const std::int64_t bytes = stream(strategy, context_.kind);
      least_stream_ = std::min(least_stream_, bytes);
      for (int s = 0; s < stages_; ++s) {
        const auto i = as_index(s);
        const LayerCost& c = costs_.block(strategy, context_, first_rank(s), devices_);
        layers_[i].resize(strategies.size());
        layers_[i][k].push_back(part(c, s));
        // Its output's gradient, and but for the last stage what its output's send reads.
        transient_[i] =
            std::min(transient_[i], bytes * (s + 1 < stages_ ? 2 : 1) + backward_peak(c, s));
      }
    }
  }
  context_.kind = 0;
  for (int s = 0; s < stages_; ++s) {
    PartCost& joints = joints_.emplace_back();
    if (s > 0) joints += transfer(s - 1, s);
    if (s + 1 < stages_) joints += transfer(s + 1, s);
    // The gradient sent back waits when more micro-batches are to come.
    if (s > 0 && held(s) < frame_.micro_batches && one_kind()) joints.bytes += least_stream_;
  }
}

/// h: forwards of the stage before its first backward (plan/program/schedule.h).
std::int64_t StageParts::held(int s) const {
  const std::int64_t m = frame_.micro_batches;
  return frame_.schedule == Schedule::kGPipe ? m : std::min<std::int64_t>(stages_ - s, m);
}

std::int64_t StageParts::stream(const LayerStrategy& l, int kind) const {
  const model::ModelSpec block = costs_.cost().model().of_kind(kind);
  const std::int64_t tokens =
      frame_.sequence / block.token_share / l.cp / (l.sequence_parallel ? l.tp : 1);
  return frame_.micro_batch_sequences() / l.dp * tokens * block.hidden *
         model::element_bytes(model::compute_dtype(frame_.precision));
}

/// Of one of the h micro-batches that are held; gradients are reduced behind every one, or behind
/// the last.
std::int64_t StageParts::backward_peak(const LayerCost& c, int s) const {
  const bool reduces = c.reduces_per_micro_batch || held(s) == 1;
  return reduces ? std::max(c.backward.peak_bytes, c.backward.delta_bytes + c.sync.peak_bytes)
                 : c.backward.peak_bytes;
}

/// Blocks of several kinds hand on streams of several sizes: what telescopes is left out.
PartCost StageParts::part(const LayerCost& c, int s) const {
  const std::int64_t kept = one_kind() ? c.stash_bytes : std::max<std::int64_t>(c.stash_bytes, 0);
  return {.once_ps = c.forward_ps + c.backward_sync_ps + (s == 0 ? c.once_ps() : 0),
          .steady_ps = c.forward_ps + c.backward_ps,
          .bytes = c.persistent_bytes + held(s) * kept};
}

/// The least over the layouts. Without overlap it holds the stage like work of its own.
PartCost StageParts::transfer(int from, int to) {
  const std::int64_t ps = costs_.exchange_ps(first_rank(from), devices_,
                                             first_rank(to) - first_rank(from), least_stream_);
  return {.once_ps = ps, .steady_ps = costs_.cost().overlaps() ? 0 : ps};
}

PartCost StageParts::own(int s, const LayerStrategy& v) {
  PartCost t = joints_[as_index(s)];
  std::int64_t transient = transient_[as_index(s)];
  const std::int64_t stream_bytes = stream(v, 0);
  if (s == 0) {
    const LayerCost& c = costs_.embedding(v, context_, 0, devices_);
    t += part(c, s);
    // its output is the first layer's input
    t.bytes -= one_kind() ? held(s) * stream_bytes : part(c, s).bytes - c.persistent_bytes;
  }
  if (s + 1 == stages_) {
    const LayerCost& c = costs_.head(v, context_, first_rank(s), devices_);
    t += part(c, s);
    if (stages_ == 1)  // the loss, zeroed once
      t.once_ps += costs_.cost().segment_ps(
          {.kind = model::SegmentKind::kZeroGradient, .elements = 1}, model::Phase::kF,
          costs_.cost().kinds_of(first_rank(s), devices_));
    if (!one_kind()) {
      t.bytes -= part(c, s).bytes - c.persistent_bytes;
      return t;
    }
    t.bytes += held(s) * stream_bytes + model::element_bytes(model::DType::kFloat32);
    const std::int64_t kept = stream_bytes + c.forward.delta_bytes;  // by a head that ran forward
    transient = std::max(transient - kept, std::max(c.forward.peak_bytes - c.forward.delta_bytes,
                                                    backward_peak(c, s)));
  }
  if (one_kind()) t.bytes += transient;
  return t;
}

}  // namespace orrery::search
