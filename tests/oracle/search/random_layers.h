#pragma once
/// Random layer programs with metric transitions, some of them infeasible.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "search/programs/layer_program.h"

namespace orrery::search {

inline std::int64_t draw(base::Rng& rng, std::int64_t below) {
  return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(below)));
}

/// Faster options hold more; small numbers, so that ties and exact fits happen.
inline std::vector<LayerOption> random_options(base::Rng& rng, int count, int layouts,
                                               std::int64_t flight) {
  std::vector<LayerOption> options;
  for (int i = 0; i < count; ++i) {
    const std::int64_t memory = 1 + draw(rng, 40);
    options.push_back({.steady_ps = 100 - memory + draw(rng, 60),
                       .once_ps = draw(rng, 30),
                       .memory_bytes = memory,
                       .stash_bytes = draw(rng, memory / flight + 1),
                       .transient_bytes = draw(rng, 25),
                       .forward_bytes = draw(rng, 25),
                       .neighbour_bytes = rng.below(3) == 0 ? draw(rng, 8) : 0,
                       .step_bytes = draw(rng, 40),
                       .layout = static_cast<int>(draw(rng, layouts))});
  }
  return options;
}

inline LayerProblem random_problem(base::Rng& rng, int layers, int options) {
  LayerProblem p;
  p.layers = layers;
  p.layouts = 1 + static_cast<int>(draw(rng, 4));
  p.flight = 1 + draw(rng, 2);
  p.options = random_options(rng, options, p.layouts, p.flight);
  p.front_step_bytes = draw(rng, 40);
  // Nodes: layouts and the world outside; shortest paths make the draw a metric.
  const auto n = static_cast<std::size_t>(p.layouts) + 1;
  std::vector<std::int64_t> d(n * n, 0);
  for (std::size_t i = 0; i < n * n; ++i) d[i] = i % (n + 1) == 0 ? 0 : draw(rng, 40);
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j)
        d[i * n + j] = std::min(d[i * n + j], d[i * n + k] + d[k * n + j]);
    }
  }
  for (std::size_t i = 0; i + 1 < n; ++i) {
    for (std::size_t j = 0; j + 1 < n; ++j) p.transition_ps.push_back(d[i * n + j]);
    p.entry_ps.push_back(d[(n - 1) * n + i]);
    p.exit_ps.push_back(d[i * n + n - 1]);
  }
  p.transient_floor_bytes = draw(rng, 15);
  p.front_transient_bytes = draw(rng, 50);
  p.front_forward_bytes = draw(rng, 50);
  p.back_neighbour_bytes = draw(rng, 10);
  p.budget_bytes = draw(rng, 25 * layers) + 30 + 8 * layers;
  return p;
}

/// Layer i stands in canonical order behind those before it: layouts together, larger transients
/// first, then lower options.
template <class Option>
bool follows(const std::vector<LayerOption>& layers, const std::vector<Option>& sequence,
             std::size_t i) {
  if (i == 0) return true;
  const LayerOption& before = layers[i - 1];
  if (before.layout == layers[i].layout) {
    if (before.transient_bytes != layers[i].transient_bytes)
      return before.transient_bytes > layers[i].transient_bytes;
    return sequence[i - 1] <= sequence[i];
  }
  for (std::size_t j = 0; j < i; ++j) {
    if (layers[j].layout == layers[i].layout) return false;
  }
  return true;
}

/// The left side of the constraint of layer_program.h, word by word.
inline std::int64_t naive_peak(const LayerProblem& p, const std::vector<LayerOption>& layers) {
  std::int64_t forward = 0, stashes = 0, step = p.front_step_bytes;
  for (const LayerOption& o : layers) {
    forward += o.memory_bytes;
    stashes += o.stash_bytes;
    step = std::max(step, o.step_bytes);
  }
  std::int64_t peak = std::max({p.transient_floor_bytes, p.front_transient_bytes - stashes,
                                p.front_forward_bytes + layers.front().neighbour_bytes - stashes,
                                step - p.flight * stashes});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::int64_t behind = 0;
    for (std::size_t j = i + 1; j < layers.size(); ++j) behind += layers[j].stash_bytes;
    const std::int64_t before = i > 0 ? layers[i - 1].neighbour_bytes : 0;
    const std::int64_t ahead =
        i + 1 < layers.size() ? layers[i + 1].neighbour_bytes : p.back_neighbour_bytes;
    peak = std::max({peak, layers[i].transient_bytes + before - behind,
                     layers[i].forward_bytes + ahead - behind});
  }
  return forward + peak;
}

}  // namespace orrery::search
