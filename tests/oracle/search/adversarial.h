#pragma once
/// Cost tables made to be hard: many options are worth the same for their memory, so that bounds
/// exclude next to nothing.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "search/programs/pipeline_program.h"
#include "search/table/instance.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {

enum class Trouble {
  kCollinear,  // times on a line of memory, up to 0.01 %
  // exactly on a line: every choice that fills the budget costs the same, which one fills it is a
  // subset sum
  kOneLine,
  kNearTies,  // times within a millionth of one another, any memory
  kEqual,     // one option, many times over
};
inline constexpr Trouble kTroubles[] = {Trouble::kCollinear, Trouble::kOneLine, Trouble::kNearTies,
                                        Trouble::kEqual};
inline const char* to_string(Trouble t) {
  switch (t) {
    case Trouble::kCollinear: return "collinear";
    case Trouble::kOneLine: return "one line";
    case Trouble::kNearTies: return "near ties";
    case Trouble::kEqual: return "equal";
  }
  return "";
}

struct TroubledOption {
  std::int64_t time_ps = 0, memory_bytes = 0;
};
/// 0.1 to 2 GB, 10 to 29 ms.
inline TroubledOption troubled_option(base::Rng& rng, Trouble trouble) {
  const std::int64_t memory = 100'000'000 + draw(rng, 1'900'000'000),
                     line = 30'000'000'000 - 10 * memory;
  switch (trouble) {
    case Trouble::kCollinear: return {line + line / 1'000'000 * (draw(rng, 201) - 100), memory};
    case Trouble::kOneLine: return {line, memory};
    case Trouble::kNearTies: return {20'000'000'000 + draw(rng, 20'000), memory};
    case Trouble::kEqual: return {20'000'000'000, 1'000'000'000};
  }
  return {};
}

/// `layers` that differ, or all equal, of ten options; half the memory that they could use; three
/// layouts.
inline Instance troubled_chain(base::Rng& rng, Trouble trouble, std::int64_t layers, bool equal) {
  Instance instance;
  std::int64_t least = 0, most = 0;
  for (std::int64_t i = 0; i < layers; ++i) {
    if (i == 0 || !equal)
      instance.layers.emplace_back();
    else
      instance.layers.push_back(instance.layers.back());
    for (int k = 0; k < 10 && instance.layers.back().size() < 10; ++k) {
      const TroubledOption o = troubled_option(rng, trouble);
      instance.layers.back().push_back({std::to_string(k), o.time_ps, o.memory_bytes});
    }
    const auto [low, high] =
        std::ranges::minmax(instance.layers.back(), {}, &InstanceOption::memory_bytes);
    least += low.memory_bytes;
    most += high.memory_bytes;
  }
  instance.budget_bytes = (least + most) / 2;
  instance.transition_ps.emplace_back();
  for (int a = 0; a < 10; ++a) {
    for (int b = 0; b < 10; ++b)
      instance.transition_ps.back().push_back(a % 3 == b % 3 ? 0 : 5'000'000'000);
  }
  return instance;
}

/// 1F1B with m = 4 P; every stage has the same 24 options in three layouts, about half the memory
/// that they could use.
inline PipelineProblem troubled_pipeline(base::Rng& rng, Trouble trouble, int stages, int layers) {
  PipelineProblem p;
  p.layers = layers;
  p.micro_batches = 4 * stages;
  LayerProblem shared;
  shared.layouts = 3;
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) shared.transition_ps.push_back(from == to ? 0 : 1'000'000'000);
  }
  for (int k = 0; k < 24; ++k) {
    const TroubledOption o = troubled_option(rng, trouble);
    shared.options.push_back({.steady_ps = o.time_ps,
                              .once_ps = o.time_ps / 10,
                              .memory_bytes = o.memory_bytes,
                              .stash_bytes = o.memory_bytes / 100,
                              .transient_bytes = 50'000'000,
                              .layout = k % 3});
  }
  for (int i = 0; i < stages; ++i) {
    PipelineStage stage;
    stage.layers = shared;
    stage.layers.flight = stages - i;
    for (LayerOption& o : stage.layers.options)
      o.memory_bytes += stage.layers.flight * o.stash_bytes;
    stage.layers.budget_bytes = std::int64_t{1'100'000'000} * layers / stages;
    if (i == 0) stage.layers.entry_ps = {0, 0, 0};
    if (i + 1 == stages) stage.layers.exit_ps = {0, 0, 0};
    stage.most = layers - stages + 1;
    if (stages == 1) stage.fewest = layers;
    p.stages.push_back(std::move(stage));
  }
  return p;
}

}  // namespace orrery::search
