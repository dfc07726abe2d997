#pragma once
/// Random cost tables of several shapes: loose and tight budgets, ties, collinear options, free,
/// metric and arbitrary transitions.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "search/table/instance.h"

namespace orrery::search {

struct InstanceShape {
  std::int64_t layers = 6, options = 8;  // at most
  bool equal_layers = false;
  bool runs = false;       // of equal layers, two or three
  std::int64_t scale = 1;  // of times and bytes
  bool collinear = true;   // now and then all options on one line
};

inline std::int64_t below(base::Rng& rng, std::int64_t n) {
  return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(n)));
}

/// Faster options hold more, roughly; sometimes exactly on one line.
inline std::vector<InstanceOption> random_layer(base::Rng& rng, std::int64_t options,
                                                std::int64_t scale, bool collinear) {
  std::vector<InstanceOption> layer;
  for (std::int64_t k = 0; k < options; ++k) {
    const std::int64_t memory = below(rng, 40 * scale);
    const std::int64_t time = 40 * scale - memory + (collinear ? 0 : below(rng, 25 * scale));
    layer.push_back({"o" + std::to_string(k), time, memory});
  }
  return layer;
}

/// Kinds: 0 free, 1 between layouts and symmetric (a metric), 2 one arbitrary table, 3 a table for
/// every boundary.
inline void random_transitions(base::Rng& rng, std::int64_t kind, std::int64_t scale,
                               Instance& instance) {
  if (kind == 0) return;
  const auto table = [&](std::size_t rows, std::size_t columns) {
    std::vector<std::int64_t> t;
    for (std::size_t i = 0; i < rows * columns; ++i)
      t.push_back(rng.below(4) == 0 ? 0 : below(rng, 30 * scale));
    return t;
  };
  const std::size_t options = instance.layers.front().size();
  if (kind == 3) {
    for (std::size_t i = 0; i + 1 < instance.layers.size(); ++i) {
      instance.transition_ps.push_back(
          table(instance.layers[i].size(), instance.layers[i + 1].size()));
    }
    return;
  }
  for (const auto& layer : instance.layers) {
    if (layer.size() != options) return;
  }
  if (kind == 2) {
    instance.transition_ps.push_back(table(options, options));
    return;
  }
  std::vector<std::int64_t> layout, height;
  for (std::size_t s = 0; s < options; ++s) layout.push_back(below(rng, 3));
  for (int l = 0; l < 3; ++l) height.push_back(1 + below(rng, 30 * scale));
  std::vector<std::int64_t> star;
  for (std::size_t a = 0; a < options; ++a) {
    for (std::size_t b = 0; b < options; ++b) {
      const auto from = static_cast<std::size_t>(layout[a]),
                 to = static_cast<std::size_t>(layout[b]);
      star.push_back(from == to ? 0 : height[from] + height[to]);
    }
  }
  instance.transition_ps.push_back(std::move(star));
}

inline Instance random_instance(base::Rng& rng, const InstanceShape& shape) {
  Instance instance;
  const std::int64_t layers = 1 + below(rng, shape.layers), options = 1 + below(rng, shape.options);
  const bool collinear = rng.below(5) == 0 && shape.collinear, ragged = rng.below(3) == 0;
  for (std::int64_t i = 0; i < layers; ++i) {
    if ((shape.equal_layers && i > 0) ||
        (shape.runs && i > 0 && i != layers / 2 && (i + 1 != layers || layers % 2 == 0))) {
      instance.layers.push_back(instance.layers.back());
    } else {
      instance.layers.push_back(
          random_layer(rng, ragged ? 1 + below(rng, options) : options, shape.scale, collinear));
    }
  }
  random_transitions(rng, below(rng, 4), shape.scale, instance);
  std::int64_t least = 0, most = 0;
  for (const auto& layer : instance.layers) {
    least += std::ranges::min(layer, {}, &InstanceOption::memory_bytes).memory_bytes;
    most += std::ranges::max(layer, {}, &InstanceOption::memory_bytes).memory_bytes;
  }
  instance.budget_bytes = rng.below(20) == 0 ? std::max<std::int64_t>(least - 1, 0)
                                             : least + below(rng, most - least + 2);
  return instance;
}

}  // namespace orrery::search
