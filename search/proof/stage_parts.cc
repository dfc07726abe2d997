#include "search/proof/stage_parts.h"

#include <algorithm>
#include <limits>

namespace orrery::search {

using costmodel::LayerCost;
using plan::LayerStrategy;
using plan::Schedule;

StageParts::StageParts(costmodel::LayerCosts& costs, const Family& family,
                       const std::vector<LayerStrategy>& strategies)
    : costs_(costs),
      frame_(family.frame),
      ranks_(family.ranks),
      devices_(family.devices),
      stages_(ranks_ * frame_.virtual_stages) {
  context_ = {.precision = frame_.precision,
              .sequence = frame_.sequence,
              .micro_batch_sequences = frame_.micro_batch_sequences(),
              .micro_batches = frame_.micro_batches,
              .global_batch = frame_.global_batch,
              .stages = ranks_,
              .prefetch_depth = frame_.prefetch_depth,
              .split_backward = frame_.schedule == Schedule::kZeroBubbleH1};
  for (const LayerStrategy& l : strategies) streams_.push_back(stream(l));
  for (int s = 0; s < stages_; ++s) {
    layers_.emplace_back();
    transient_.push_back(std::numeric_limits<std::int64_t>::max());
    for (std::size_t i = 0; i < strategies.size(); ++i) {
      const LayerCost& c = costs_.block(strategies[i], context_, first_rank(s), devices_);
      layers_.back().push_back(part(c, s));
      // Its output's gradient, and but for the last stage what its output's send reads.
      transient_.back() = std::min(transient_.back(),
                                   streams_[i] * (s + 1 < stages_ ? 2 : 1) + backward_peak(c, s));
    }
    joints_.emplace_back();
    if (s > 0) joints_.back() += transfer(s - 1, s);
    if (s + 1 < stages_) joints_.back() += transfer(s + 1, s);
    // The gradient sent back waits when more micro-batches are to come.
    if (s > 0 && held(s) < frame_.micro_batches && !virtual_stages())
      joints_.back().bytes += std::ranges::min(streams_);
  }
}

/// h: forwards of the stage before its rank's first backward (plan/program/schedule.h).
std::int64_t StageParts::held(int s) const {
  const std::int64_t m = frame_.micro_batches, p = ranks_, v = frame_.virtual_stages;
  if (v == 1) return frame_.schedule == Schedule::kGPipe ? m : std::min<std::int64_t>(p - s, m);
  const std::int64_t forwards = std::min(m * v, 2 * (p - s % p - 1) + (v - 1) * p + 1);
  std::int64_t held = 0;
  for (std::int64_t k = 0; k < forwards; ++k) held += k % (p * v) / p == s / p ? 1 : 0;
  return held;
}

std::int64_t StageParts::stream(const LayerStrategy& l) const {
  const std::int64_t tokens = frame_.sequence / l.cp / (l.sequence_parallel ? l.tp : 1);
  return frame_.micro_batch_sequences() / l.dp * tokens * costs_.cost().model().hidden *
         model::element_bytes(model::compute_dtype(frame_.precision));
}

/// Of one of the h micro-batches that are held; gradients are reduced behind every one, or behind
/// the last.
std::int64_t StageParts::backward_peak(const LayerCost& c, int s) const {
  const bool reduces = c.reduces_per_micro_batch || held(s) == 1;
  return reduces ? std::max(c.backward.peak_bytes, c.backward.delta_bytes + c.sync.peak_bytes)
                 : c.backward.peak_bytes;
}

PartCost StageParts::part(const LayerCost& c, int s) const {
  PartCost t{.steady_ps = c.forward_ps + c.backward_ps + c.weight_ps,
             .bytes = c.persistent_bytes + held(s) * c.forward.delta_bytes};
  if (s < ranks_)
    t.once_ps = c.forward_ps + c.backward_sync_ps;
  else
    t.late_ps = c.backward_sync_ps - c.backward_ps;
  if (frame_.schedule == Schedule::kInterleaved && s + 1 == ranks_) t.once_ps -= t.steady_ps;
  if (frame_.schedule == Schedule::kZeroBubbleH1)
    t.once_ps += s == 0 ? c.weight_sync_ps : -c.weight_ps;
  if (s % ranks_ == 0) t.once_ps += c.update_ps;
  return t;
}

/// The least over the layouts. Without overlap it holds the stage like work of its own.
PartCost StageParts::transfer(int from, int to) {
  LayerCost c;
  c.forward_ps = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t bytes : streams_)
    c.forward_ps = std::min(
        c.forward_ps,
        costs_.exchange_ps(first_rank(from), devices_, first_rank(to) - first_rank(from), bytes));
  return costs_.cost().overlaps() ? PartCost{.once_ps = to < ranks_ ? c.forward_ps : 0}
                                  : part(c, to);
}

PartCost StageParts::own(int s, const LayerStrategy& v) {
  PartCost t = joints_[static_cast<std::size_t>(s)];
  std::int64_t transient = transient_[static_cast<std::size_t>(s)];
  if (s == 0) {
    t += part(costs_.embedding(v, context_, 0, devices_), s);
    t.bytes -= held(s) * stream(v);  // its output is the first layer's input
  }
  if (s + 1 == stages_) {
    const LayerCost& c = costs_.head(v, context_, first_rank(s), devices_);
    const std::int64_t kept = stream(v) + c.forward.delta_bytes;  // by a head that has run forward
    t += part(c, s);
    // and the loss, zeroed once
    t.bytes += held(s) * stream(v) + model::element_bytes(model::DType::kFloat32);
    if (ranks_ == 1)
      t.once_ps += costs_.cost().segment_ps(
          {.kind = model::SegmentKind::kZeroGradient, .elements = 1}, model::Phase::kF);
    transient = std::max(transient - kept, std::max(c.forward.peak_bytes - c.forward.delta_bytes,
                                                    backward_peak(c, s)));
  }
  if (!virtual_stages()) t.bytes += transient;
  return t;
}

}  // namespace orrery::search
