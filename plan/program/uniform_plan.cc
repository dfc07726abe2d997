/// \file
/// Plans whose layers and stages are alike (plan.h, UniformOptions).

#include <algorithm>

#include "base/numbers.h"
#include "plan/program/divisors.h"
#include "plan/program/plan.h"

namespace orrery::plan {
namespace {

using base::Diagnostics;
using base::ErrorCode;
using enum ErrorCode;

/// What uniform_plan needs before it can divide anything.
Diagnostics uniform_faults(const model::ModelSpec& model, const UniformOptions& o) {
  Diagnostics faults;
  const auto fault = [&faults]<class... Args>(ErrorCode code, std::string hint,
                                              fmt::format_string<Args...> format, Args&&... args) {
    faults.push_back(
        base::make_error(code, format, std::forward<Args>(args)...).with_hint(std::move(hint)));
  };
  const std::pair<std::string_view, std::int64_t> positive[] = {
      {"tp", o.tp},
      {"pp", o.pp},
      {"virtual_stages", o.virtual_stages},
      {"dp", o.dp},
      {"cp", o.cp},
      {"micro_batch", o.micro_batch},
      {"global_batch", o.global_batch}};
  for (const auto& [name, value] : positive) {
    if (value < 1)
      fault(kOutOfRange, fmt::format("{} is at least 1", name), "{} is {}", name, value);
  }
  constexpr std::int64_t kLarge = std::int64_t{1} << 32;
  if (o.global_batch > kLarge) {
    fault(kOutOfRange, fmt::format("at most {}", kLarge), "global_batch is {}", o.global_batch);
  }
  if (!faults.empty()) return faults;
  const std::int64_t stages = std::int64_t{o.pp} * o.chunks();
  const std::string_view what = o.chunks() == 1 ? "pp" : "pp * virtual_stages";
  if (stages > model.layers) {
    fault(kInconsistent, fmt::format("{} is at most {}, one layer per stage", what, model.layers),
          "{} stages for {} layers", stages, model.layers);
  } else if (model.layers % stages != 0 && !o.uneven_stages) {
    fault(kInconsistent,
          fmt::format("nearest {}: {}", what, nearest_divisors(model.layers, stages)),
          "{} layers do not divide into {} equal stages", model.layers, stages);
  }
  const bool fits = o.micro_batch <= o.global_batch / o.dp;
  if (!fits || o.global_batch % (o.dp * o.micro_batch) != 0) {
    fault(
        kInconsistent,
        fmt::format("dp * micro_batch must divide {}; nearest: {}", o.global_batch,
                    nearest_divisors(o.global_batch, fits ? o.dp * o.micro_batch : o.global_batch)),
        "global batch of {} sequences does not divide into micro-batches of {} "
        "sequences on {} data-parallel ranks",
        o.global_batch, o.micro_batch, o.dp);
  }
  std::int64_t ranks = 1;
  for (const int degree : {o.tp, o.cp, o.dp, o.pp})
    ranks = std::min<std::int64_t>(ranks, kMaxWorldSize + 1) *
            std::min<std::int64_t>(degree, kMaxWorldSize + 1);
  if (ranks > kMaxWorldSize) {
    fault(kOutOfRange, fmt::format("a plan has at most {} ranks", kMaxWorldSize),
          "tp {} * cp {} * dp {} * pp {} ranks", o.tp, o.cp, o.dp, o.pp);
  }
  return faults;
}

/// Of a V. Rank 0, which has embedding and head, gets one more last; the arm that holds fewer
/// stashes, the second, is the longer.
std::vector<int> v_stage_layers(std::int64_t layers, int pp) {
  const std::int64_t base = layers / pp, more = layers % pp;
  std::vector<int> counts(2 * as_index(pp));
  for (int rank = 0; rank < pp; ++rank) {
    const std::int64_t own = base + (pp - 1 - rank < more ? 1 : 0);
    counts[as_index(rank)] = as_int(own / 2);
    counts[as_index(2 * pp - 1 - rank)] = as_int(own - own / 2);
  }
  return counts;
}

}  // namespace

std::vector<int> stage_layers(std::int64_t layers, int pp, int virtual_stages, Schedule schedule) {
  if (is_v_shaped(schedule)) return v_stage_layers(layers, pp);
  const std::int64_t base = layers / pp, more = layers % pp;
  std::vector<int> counts(as_index(pp) * as_index(virtual_stages));
  for (int rank = 0; rank < pp; ++rank) {
    const bool last = pp > 1 && rank == pp - 1;
    // in which a rank gets one more
    const std::int64_t turn = last ? pp - 1 : pp > 1 ? pp - 2 - rank : 0;
    const std::int64_t own = base + (turn < more ? 1 : 0), longer = own % virtual_stages;
    for (int k = 0; k < virtual_stages; ++k) {
      const bool is_longer = last ? k < longer : k >= virtual_stages - longer;
      counts[as_index(k * pp + rank)] = as_int(own / virtual_stages + (is_longer ? 1 : 0));
    }
  }
  return counts;
}

base::Result<Plan> uniform_plan(const model::ModelSpec& model, const std::string& cluster,
                                int hosts, const UniformOptions& options) {
  if (base::Diagnostics faults = uniform_faults(model, options); !faults.empty())
    return base::fail(std::move(faults));
  Plan plan;
  plan.model = model.name;
  plan.model_fingerprint = model.fingerprint();
  plan.adapter = model.adapter;
  plan.cluster = cluster;
  plan.hosts = hosts;
  plan.precision = options.precision;
  plan.sequence = options.sequence == 0 ? model.max_positions : options.sequence;
  plan.global_batch = options.global_batch;
  plan.micro_batches = options.global_batch / (options.dp * options.micro_batch);
  plan.schedule = options.schedule;
  plan.vocabulary = {.tp = options.tp,
                     .dp = options.dp,
                     .zero = options.zero,
                     .cp = options.cp,
                     .states = options.states};
  if (plan.vocabulary.replicas() > 1) plan.vocabulary.grad_reduce = options.grad_reduce;
  LayerStrategy layer = plan.vocabulary;
  layer.ep = options.ep;
  layer.folded = options.folded;
  layer.sequence_parallel = options.sequence_parallel;
  layer.tensor_pieces = options.tensor_pieces;
  layer.recompute = options.recompute;
  plan.virtual_stages = options.chunks();
  std::int64_t first = 0;
  for (const int layers :
       stage_layers(model.layers, options.pp, plan.virtual_stages, plan.schedule)) {
    Stage stage;
    for (std::int64_t k = first; k < first + layers; ++k) {
      LayerStrategy own = layer;
      const bool dense =
          !model.runs.empty() && model.runs[as_index(model.kind_of(k))].shape.experts == 0;
      if (dense && model.has_experts()) own.drop_experts();  // split where there are some
      stage.runs.push_back({.count = 1, .strategy = own});
    }
    plan.stages.push_back(std::move(stage));
    first += layers;
  }
  plan = canonical(std::move(plan));
  if (base::Diagnostics faults = validate(plan, model); !faults.empty())
    return base::fail(std::move(faults));
  return plan;
}

}  // namespace orrery::plan
