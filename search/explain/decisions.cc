#include "search/explain/decisions.h"

#include <algorithm>
#include <array>

#include "base/numbers.h"
#include "search/space/decision_tree.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;
using plan::Schedule;

// What of a space allows each, by their numbers.
constexpr std::array kSchedules = {&Space::gpipe,       &Space::one_f_one_b,   &Space::interleaved,
                                   &Space::zero_bubble, &Space::zero_bubble_v, &Space::dual_pipe_v};
constexpr std::array kZeros = {&Space::data, &Space::zero1, &Space::zero2, &Space::zero3};
template <class Flags, class E>
bool flag(const Space& space, const Flags& flags, E number) {
  return space.*flags[as_index(number)];
}

class Alternatives {
 public:
  Alternatives(const plan::Plan& plan, const Space& space, std::int64_t devices)
      : plan_(plan), space_(space), devices_(devices) {}

  std::vector<Alternative> list() {
    if (plan::is_partitioned(plan_)) {  // the space is one of whole layers: the rest is undone too
      add("layers partitioned operator by operator", "whole layers by one strategy", [](Space&) {});
      return std::move(list_);
    }
    tensor();
    stages();
    micro_batches();
    states();
    activations();
    if (any([](const LayerStrategy& s) { return s.tp > 1 && s.sequence_parallel; }) &&
        space_.tensor_alone) {
      add("sequence parallelism", "off", [](Space& s) { s.sequence_parallel = false; });
    }
    tensor_collectives();
    if (any([](const LayerStrategy& s) {
          return s.zero >= 2 && s.grad_reduce == plan::GradReduce::kMicroBatch;
        }) &&
        space_.reduce_per_step) {
      add("gradients reduced " + over_layers(plan_, reduction_of), "once a step everywhere",
          [](Space& s) { s.reduce_per_micro_batch = false; });
    }
    if (plan_.pipeline_degree() > 1) schedules();
    return std::move(list_);
  }

 private:
  template <class Test>
  [[nodiscard]] bool any(const Test& test) const {
    return std::ranges::any_of(runs_of(plan_), test, &plan::LayerRun::strategy);
  }
  void add(std::string made, std::string otherwise, const std::function<void(Space&)>& change) {
    Alternative a{std::move(made), std::move(otherwise), space_};
    change(a.space);
    list_.push_back(std::move(a));
  }

  void tensor() {
    if (space_.fix_tp || !space_.tensor) return;
    int most = 1;
    for (const plan::LayerRun& run : runs_of(plan_)) most = std::max(most, run.strategy.tp);
    const std::string made = "tp " + over_layers(plan_, tp_of);
    for (const int tp : {most / 2, 2 * most}) {
      if (tp >= 1 && tp <= devices_)
        add(made, fmt::format("tp {}", tp), [&](Space& s) { s.fix_tp = tp; });
    }
  }
  /// Largest degree of a layer with sequence parallelism.
  [[nodiscard]] int most_split() const {
    int most = 1;
    for (const plan::LayerRun& run : runs_of(plan_))
      if (run.strategy.sequence_parallel) most = std::max(most, run.strategy.tp);
    return space_.fix_tp.value_or(most) == most ? most : 1;
  }
  void tensor_collectives() {
    if (space_.fix_tensor_pieces) return;
    if (any([](const LayerStrategy& s) { return s.tensor_pieces > 1; })) {
      add("tensor collectives in pieces", "whole", [](Space& s) { s.tensor_overlap = false; });
    } else if (const int tp = most_split(); tp > 1) {
      add("tensor collectives whole", "in pieces", [tp](Space& s) {
        s.fix_tensor_pieces = kTensorPieces;
        s.fix_tp = tp;
        s.tensor_overlap = true;
        s.tensor_alone = false;
      });
    }
  }
  void stages() {
    if (space_.fix_pp || !space_.pipeline) return;
    const int pp = plan_.pipeline_degree();
    for (const int other : {pp / 2, 2 * pp}) {
      if (other < 1 || other > devices_) continue;
      add(fmt::format("{} pipeline rank{}", pp, pp == 1 ? "" : "s"), std::to_string(other),
          [&](Space& s) { s.fix_pp = other; });
    }
  }
  void micro_batches() {
    if (space_.fix_micro_batches) return;
    const std::int64_t m = plan_.micro_batches;
    const std::string made = fmt::format("{} micro-batch{}", m, m == 1 ? "" : "es");
    if (m % 2 == 0)
      add(made, std::to_string(m / 2), [&](Space& s) { s.fix_micro_batches = m / 2; });
    if (plan_.global_batch % (2 * m) == 0)
      add(made, std::to_string(2 * m), [&](Space& s) { s.fix_micro_batches = 2 * m; });
  }
  void states() {
    const bool others = space_.data || space_.zero1 || space_.zero2;
    const std::string made = "zero " + over_layers(plan_, zero_of);
    if (any([](const LayerStrategy& s) { return s.zero == 3; })) {
      if (others)
        add(made, "zero 2 at most, embedding and head too", [](Space& s) { s.zero3 = false; });
    } else if (space_.zero3 && others && any([](const LayerStrategy& s) { return s.dp > 1; })) {
      add(made, "zero 3 alone", [](Space& s) { s.data = s.zero1 = s.zero2 = false; });
    }
    const std::string where = "optimizer states " + over_layers(plan_, states_of);
    if (any([](const LayerStrategy& s) { return s.states == plan::States::kHost; })) {
      if (space_.states_on_device)
        add(where, "on the device everywhere", [](Space& s) { s.states_on_host = false; });
    } else if (space_.states_on_host) {
      add(where, "on the host everywhere", [](Space& s) { s.states_on_device = false; });
    }
  }
  void activations() {
    const bool recomputes =
        any([](const LayerStrategy& s) { return s.recompute != plan::Recompute::kNone; });
    if (recomputes && space_.recompute_none) {
      add("recomputation " + over_layers(plan_, recompute_of), "none", [](Space& s) {
        s.recompute_full = s.recompute_operator = s.recompute_selective = false;
        s.recompute_offload = false;
      });
    } else if (!recomputes && (space_.recompute_full || space_.recompute_operator ||
                               space_.recompute_selective || space_.recompute_offload)) {
      add("no recomputation", "some in every layer", [](Space& s) { s.recompute_none = false; });
    }
  }
  void schedules() {
    for (const Schedule other : {Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZeroBubbleH1,
                                 Schedule::kZeroBubbleV, Schedule::kDualPipeV}) {
      if (!flag(space_, kSchedules, other) || plan_.schedule == other) continue;
      add(std::string(plan::to_string(plan_.schedule)),
          fmt::format("{} on {} ranks", plan::to_string(other), plan_.pipeline_degree()),
          [&](Space& s) {
            for (const auto schedule : kSchedules) s.*schedule = false;
            s.*kSchedules[as_index(other)] = true;
            s.fix_pp = plan_.pipeline_degree();
          });
    }
  }

  const plan::Plan& plan_;
  const Space& space_;
  std::int64_t devices_;
  std::vector<Alternative> list_;
};

bool allows_states(const Space& s, const LayerStrategy& l) {
  if (l.tp > 1 && !s.tensor) return false;
  if (l.shard > 0 && !s.hybrid) return false;
  if (!flag(s, kStatesFlags, l.states)) return false;
  if (l.dp * l.cp == 1) return true;
  return flag(s, kZeros, l.zero);
}

bool allows_layer(const Space& s, const LayerStrategy& l, std::int64_t micro_batches) {
  if (!allows_states(s, l)) return false;
  if (s.fix_tp.value_or(l.tp) != l.tp || s.fix_cp.value_or(l.cp) != l.cp ||
      s.fix_dp.value_or(l.dp) != l.dp || s.fix_slices.value_or(l.slices) != l.slices)
    return false;
  if (l.tp > 1 && !(l.sequence_parallel ? s.sequence_parallel : s.tensor_alone)) return false;
  if (l.sequence_parallel && l.tensor_pieces > 1 && !s.tensor_overlap) return false;
  if (s.fix_tensor_pieces.value_or(l.tensor_pieces) != l.tensor_pieces && l.sequence_parallel)
    return false;
  if (l.cp > 1 && !(l.context == plan::ContextKind::kRing ? s.ring : s.ulysses)) return false;
  if ((l.ep > 1 && !s.expert) || (l.strided && !s.strided)) return false;
  if (l.folded && !(s.expert && s.folding)) return false;
  if (l.grad_reduce == plan::GradReduce::kEnd) {
    if (!s.reduce_at_end) return false;
  } else if (l.zero >= 2 && micro_batches > 1 &&
             !(l.grad_reduce == plan::GradReduce::kStep ? s.reduce_per_step
                                                        : s.reduce_per_micro_batch)) {
    return false;
  }
  return flag(s, kRecomputeFlags, l.recompute);
}

bool allows_pipeline(const Space& s, const plan::Plan& p) {
  const int pp = p.pipeline_degree();
  if (s.fix_pp.value_or(pp) != pp || !(pp > 1 ? s.pipeline : s.single_stage)) return false;
  if (s.fix_micro_batches.value_or(p.micro_batches) != p.micro_batches) return false;
  if (s.fix_virtual_stages.value_or(p.virtual_stages) != p.virtual_stages) return false;
  return pp == 1 || flag(s, kSchedules, p.schedule);
}

/// Of the blocks that have some.
bool allows_experts(const Space& s, const plan::Plan& p, const model::ModelSpec& model) {
  std::int64_t layer = 0;
  for (const plan::LayerRun& run : runs_of(p)) {
    for (int i = 0; i < run.count; ++i, ++layer) {
      const bool has = model.of_kind(model.kind_of(layer)).experts > 0;
      if (has && s.fix_ep.value_or(run.strategy.ep) != run.strategy.ep) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<Alternative> alternatives(const plan::Plan& plan, const Space& space,
                                      std::int64_t devices) {
  return Alternatives(plan, space, devices).list();
}

bool allows(const Space& space, const plan::Plan& p, const model::ModelSpec& model,
            std::int64_t devices) {
  if (space.fix_ep && !allows_experts(space, p, model)) return false;
  if (!allows_pipeline(space, p) || !allows_states(space, p.vocabulary) ||
      (!space.idle && p.world_size() < devices))
    return false;
  return std::ranges::all_of(runs_of(p), [&](const plan::LayerRun& run) {
    if (!run.partition.empty()) {
      plan::LayerStrategy sharding = run.strategy;
      sharding.dp = 1;
      return allows_partitions(space) &&
             std::ranges::count(partition_shardings(space, p.micro_batches), sharding) > 0;
    }
    const std::int64_t sequences = p.micro_batch_sequences() / run.strategy.dp;
    return space.fix_micro_batch.value_or(sequences) == sequences &&
           allows_layer(space, run.strategy, p.micro_batches);
  });
}

base::Result<std::vector<Decision>> decisions_of(const costmodel::CostModel& cost,
                                                 const plan::Plan& plan, const PlanRequest& problem,
                                                 KnownPlans& known) {
  std::vector<Decision> decisions;
  const auto devices = static_cast<std::int64_t>(cost.topology().device_count());
  for (Alternative& a : alternatives(plan, problem.space, devices)) {
    PlanRequest otherwise = problem;
    otherwise.space = a.space;
    TRY(const KnownPlans::Searched searched, known.search(otherwise));
    TRY_VOID(known.search(otherwise, RunnersUp::kQuick));
    const bool other_stages =
        a.space.fix_pp && !problem.space.fix_pp && *a.space.fix_pp != plan.pipeline_degree();
    for (const Alternative& second :
         other_stages ? alternatives(plan, a.space, devices) : std::vector<Alternative>{}) {
      otherwise.space = second.space;
      TRY_VOID(known.search(otherwise, RunnersUp::kQuick));
    }
    decisions.push_back({.made = std::move(a.made),
                         .otherwise = std::move(a.otherwise),
                         .space = a.space,
                         .shortfall_bytes = searched.shortfall_bytes});
  }
  return decisions;
}

}  // namespace orrery::search
