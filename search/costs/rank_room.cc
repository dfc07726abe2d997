#include "search/costs/rank_room.h"

#include <algorithm>

#include "base/numbers.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;

/// Bytes that a micro-batch leaves behind between its forward and its backward, and between
/// backward and weight gradients.
std::int64_t forward_bytes(const LayerCost& c) { return c.stash_bytes; }
std::int64_t backward_bytes(const LayerCost& c) {
  return c.backward.delta_bytes + (c.reduces_per_micro_batch && !c.splits ? c.sync.delta_bytes : 0);
}

}  // namespace

std::int64_t RankPlace::cycle_ps() const {
  std::int64_t cycle = 0;
  const auto pass = [&](const LayerCost* c) {
    cycle += c == nullptr ? 0 : c->forward_ps + c->backward_ps;
  };
  if (first() && ends.embedding != nullptr) {
    cycle += steady_of(*ends.embedding);
    pass(ends.in);
  }
  if (last()) {
    pass(ends.head);
    pass(ends.out);
  }
  const auto r = as_index(rank);
  const int v = virtual_stages;
  if (!overlaps)
    cycle += (v - (first() ? 1 : 0)) * transfers.activation_ps[r] +
             (v - (last() ? 1 : 0)) * transfers.gradient_ps[r];
  return cycle;
}

RankHeld::RankHeld(const RankPlace& place) {
  const std::int64_t p = place.problem.stages, m = place.problem.micro_batches,
                     v = place.virtual_stages;
  const std::int64_t forwards = std::min(m * v, 2 * (p - place.rank - 1) + (v - 1) * p + 1);
  all = forwards == m * v;
  const std::int64_t rounds = forwards / (p * v) * p, rest = forwards % (p * v);
  for (std::int64_t k = v; k-- > 0;) {
    const std::int64_t own = rounds + std::clamp<std::int64_t>(rest - k * p, 0, p);
    behind[as_index(k)] = behind[as_index(k) + 1] + own;
    if (k == 0) first = own;
    if (k == v - 1) last = own;
  }
}

RankBytes::RankBytes(const RankPlace& place)
    : held_(place),
      virtual_stages_(place.virtual_stages),
      ranks_(place.problem.stages),
      rank_(place.rank),
      split_(place.problem.schedule == plan::Schedule::kZeroBubbleH1) {
  const RankEnds& e = place.ends;
  // of the rank's first stage, of its last
  std::int64_t persistent = 0, front = 0, back = 0, front_spent = 0;
  if (place.first() && e.embedding != nullptr) {
    persistent += e.embedding->persistent_bytes;
    front =
        forward_bytes(*e.embedding) + (e.in == nullptr ? 0 : forward_bytes(*e.in)) - e.stream_bytes;
    front_spent = backward_bytes(*e.embedding) + (e.in == nullptr ? 0 : backward_bytes(*e.in)) +
                  e.stream_bytes;
  }
  if (place.last() && e.head != nullptr) {
    persistent += e.head->persistent_bytes + model::element_bytes(model::DType::kFloat32);
    back = e.stream_bytes + (e.out == nullptr ? 0 : forward_bytes(*e.out)) +
           forward_bytes(*e.head) +
           (e.head->reduces_per_micro_batch ? e.head->sync.delta_bytes : 0);
    front_spent = (e.out == nullptr ? 0 : backward_bytes(*e.out)) - e.stream_bytes;
  }
  const std::int64_t gradient = place.last() ? 0 : e.stream_bytes;
  fixed_ =
      persistent + (split_ ? (ranks_ - rank_) * (front + back) + gradient
                           : held_.first * front + held_.last * back + (held_.all ? 0 : gradient));
  fixed_late_ = persistent + ranks_ * (front + back) + rank_ * front_spent + gradient;
}

std::int64_t RankBytes::at(const LayerCost& c, int layers) const {
  const std::int64_t n = layers, state = n * c.persistent_bytes, stash = forward_bytes(c),
                     running = c.backward.peak_bytes;
  if (split_) {
    return state + running +
           std::max(fixed_ + (ranks_ - rank_) * n * stash,
                    fixed_late_ + n * (ranks_ * stash + rank_ * backward_bytes(c)));
  }
  // Stage k of the rank has n / v of its layers, the last n % v of its stages one more.
  const std::int64_t alive = layers / virtual_stages_ * held_.behind[0] +
                             held_.behind[as_index(virtual_stages_ - layers % virtual_stages_)];
  return state + fixed_ + alive * stash + (held_.all ? 0 : running);
}

int RankBytes::most(const LayerCost& c, int first, int end, std::int64_t limit_bytes) const {
  int fits = first - 1, fails = end + 1;
  while (fits + 1 < fails) {
    const int middle = fits + (fails - fits) / 2;
    (at(c, middle) <= limit_bytes ? fits : fails) = middle;
  }
  return fits;
}

RankFit fit_of(const RankPlace& place, const RankLayout& layout, const RankSpan& span,
               std::int64_t limit_bytes) {
  RankFit fit{.cycle_ps =
                  std::vector<std::int64_t>(as_index(span.end - span.first + 1), kForbidden)};
  const std::int64_t alone = place.cycle_ps();
  const RankBytes bytes(place);
  int covered = span.first - 1;  // a longer cycle matters only where more layers fit
  for (const std::uint32_t o : layout.by_cycle) {
    if (covered == span.end) break;
    const LayerCost& c = *layout.options[o].cost;
    if (bytes.at(c, covered + 1) > limit_bytes) continue;
    const int most = bytes.most(c, covered + 1, span.end, limit_bytes);
    if (fit.least_layer_ps >= kForbidden) fit.least_layer_ps = steady_of(c);
    for (++covered; covered <= most; ++covered)
      fit.cycle_ps[as_index(covered - span.first)] = alone + covered * steady_of(c);
    covered = most;
  }
  return fit;
}

RankRoom::RankRoom(const RankSpan& span, std::vector<RankFit> ranks)
    : span_(span), ranks_(std::move(ranks)) {
  for (const RankFit& fit : ranks_) least_layer_ps_ = std::min(least_layer_ps_, fit.least_layer_ps);
  for (std::size_t r = 1, next = 1; r + 1 < ranks_.size(); r = next) {
    while (next + 1 < ranks_.size() && ranks_[next] == ranks_[r]) ++next;  // most ranks are alike
    const std::vector<std::int64_t>& cycles = ranks_[r].cycle_ps;
    least_ps_ = std::max(least_ps_, cycles.front());
    for (std::size_t n = 1; n < cycles.size(); ++n)
      steps_.emplace_back(cycles[n], as_int(next - r));
  }
  std::ranges::sort(steps_);
}

std::int64_t RankRoom::least_cycle_ps(const RankFit& first, const RankFit& last, int layers) const {
  std::int64_t cycle = std::max({least_ps_, first.cycle_ps.front(), last.cycle_ps.front()});
  int placed = as_int(ranks_.size()) * span_.first;
  std::size_t step = 0, a = 1, b = 1;
  const auto next = [](const RankFit& fit, std::size_t n) {
    return n < fit.cycle_ps.size() ? fit.cycle_ps[n] : kForbidden;
  };
  while (placed < layers) {
    const std::int64_t between = step < steps_.size() ? steps_[step].first : kForbidden,
                       begin = next(first, a), end = next(last, b);
    const std::int64_t least = std::min({between, begin, end});
    if (least >= kForbidden) return kForbidden;
    cycle = std::max(cycle, least);
    if (least == between) {
      placed += steps_[step++].second;
    } else {
      ++placed;
      ++(least == begin ? a : b);
    }
  }
  return cycle;
}

}  // namespace orrery::search
