#include "search/stage_model.h"

#include <algorithm>

#include "base/check.h"

namespace orrery::search {
namespace {

std::int64_t steady_of(const costmodel::LayerCost& c) { return c.forward_ps + c.backward_ps; }
std::int64_t once_of(const costmodel::LayerCost& c, bool first_stage) {
  return c.backward_sync_ps - c.backward_ps + (first_stage ? c.update_ps : 0);
}

}  // namespace

std::string to_string(const PlanProblem& p) {
  return fmt::format("pp={} m={} {} vocabulary {}", p.stages, p.micro_batches, plan::to_string(p.schedule),
                     plan::to_string(p.vocabulary));
}

StageModel::StageModel(costmodel::LayerCosts& costs, const Space& space, std::int64_t global_batch,
                       std::int64_t memory_bytes)
    : costs_(costs), cost_(costs.cost()), space_(space), global_batch_(global_batch), memory_bytes_(memory_bytes) {}

plan::LayerContext StageModel::context(std::int64_t micro_batches, int stages) const {
  plan::LayerContext c;
  c.precision = cost_.options().precision;
  c.sequence = cost_.options().sequence;
  c.micro_batch_sequences = global_batch_ / micro_batches;
  c.micro_batches = micro_batches;
  c.global_batch = global_batch_;
  c.stages = stages;
  return c;
}

const StrategyTree& StageModel::layers_of(int devices, std::int64_t micro_batches) {
  const auto [place, fresh] = layer_trees_.try_emplace({devices, micro_batches});
  if (fresh) {
    place->second = layer_strategies(cost_.model(), space_,
                                     {devices, cost_.options().sequence, global_batch_ / micro_batches, micro_batches});
  }
  return place->second;
}

const StrategyTree& StageModel::vocabulary_of(int devices, std::int64_t micro_batches) {
  const auto [place, fresh] = vocabulary_trees_.try_emplace({devices, micro_batches});
  if (fresh) {
    place->second = vocabulary_strategies(
        cost_.model(), space_, {devices, cost_.options().sequence, global_batch_ / micro_batches, micro_batches});
  }
  return place->second;
}

/// Stages at the same place of equal hosts see the same links.
int StageModel::canonical_rank(int first_rank, int devices) const {
  if (!cost_.topology().host_copies()) return first_rank;
  const int per_host = static_cast<int>(cost_.topology().devices_per_host());
  if (devices % per_host == 0) return 0;
  return per_host % devices == 0 ? first_rank % per_host : first_rank;
}

std::int64_t StageModel::stream_bytes(const plan::LayerStrategy& layout, std::int64_t micro_batches) const {
  const std::int64_t tokens = cost_.options().sequence / (layout.sequence_parallel ? layout.tp : 1);
  return global_batch_ / micro_batches / layout.dp * tokens * cost_.model().hidden *
         model::element_bytes(model::compute_dtype(cost_.options().precision));
}

const StageModel::Table& StageModel::table(int devices, std::int64_t micro_batches, int first_rank) {
  first_rank = canonical_rank(first_rank, devices);
  std::unique_ptr<Table>& slot = tables_[{devices, micro_batches, first_rank}];
  if (slot) return *slot;
  slot = std::make_unique<Table>();
  Table& t = *slot;
  const plan::LayerContext c = context(micro_batches, 1);
  for (const plan::LayerStrategy& s : layers_of(devices, micro_batches).leaves) {
    Block block{s, costs_.block(s, c, first_rank, devices), {}, 0};
    block.memory = memory_of(block.cost);
    const auto known = std::ranges::find_if(t.layouts, [&](const plan::LayerStrategy& l) { return l.same_layout(s); });
    block.layout = static_cast<int>(known - t.layouts.begin());
    if (known == t.layouts.end()) {
      t.layouts.push_back(s);
      t.stream_bytes.push_back(stream_bytes(s, micro_batches));
    }
    t.blocks.push_back(std::move(block));
  }
  ORRERY_CHECK(t.layouts.size() <= kMaxLayouts, "{} layouts", t.layouts.size());
  for (const plan::LayerStrategy& from : t.layouts) {
    for (const plan::LayerStrategy& to : t.layouts) {
      if (from.same_layout(to)) {
        t.transition_ps.push_back(0);
        continue;
      }
      const costmodel::LayerCost& change = costs_.reshard(from, to, c, first_rank, devices);
      t.transition_ps.push_back(change.forward_ps + change.backward_ps);
    }
  }
  return t;
}

const StageModel::Vocabulary& StageModel::vocabulary(const PlanProblem& problem, int devices, int first_rank,
                                                     bool head) {
  const plan::LayerStrategy& v = problem.vocabulary;
  // A tied table is reduced between the first and the last stage: where they really are.
  const int stages = cost_.model().tied_embeddings ? problem.stages : 1;
  if (stages == 1) first_rank = canonical_rank(first_rank, devices);
  std::unique_ptr<Vocabulary>& slot =
      vocabularies_[{Key{devices, problem.micro_batches, first_rank}, v.tp, v.zero, stages, head}];
  if (slot) return *slot;
  const Table& blocks = table(devices, problem.micro_batches, first_rank);
  slot = std::make_unique<Vocabulary>();
  const plan::LayerContext c = context(problem.micro_batches, stages);
  slot->cost = head ? costs_.head(v, c, first_rank, devices) : costs_.embedding(v, c, first_rank, devices);
  slot->memory = memory_of(slot->cost);
  slot->stream_bytes = stream_bytes(v, problem.micro_batches);
  for (const plan::LayerStrategy& l : blocks.layouts) {
    if (l.same_layout(v)) {
      slot->change_ps.push_back(0);
      continue;
    }
    const costmodel::LayerCost& change = head ? costs_.reshard(l, v, c, first_rank, devices) : costs_.reshard(v, l, c, first_rank, devices);
    slot->change_ps.push_back(change.forward_ps + change.backward_ps);
    slot->reshard_bytes = std::max({slot->reshard_bytes, change.forward.peak_bytes, change.backward.peak_bytes});
  }
  return *slot;
}

/// The loss is one number, zeroed once a step.
std::int64_t StageModel::zero_loss_ps() const {
  model::SegmentShape zero;
  zero.kind = model::SegmentKind::kZeroGradient;
  zero.elements = 1;
  return cost_.segment_ps(zero, model::Phase::kF);
}

void StageModel::fill_stage(const PlanProblem& problem, int index, const Table& t, PipelineStage& stage) {
  const std::int64_t flight = costmodel::in_flight(problem.schedule, index, problem.stages, problem.micro_batches);
  LayerProblem& p = stage.layers;
  p.layouts = static_cast<int>(t.layouts.size());
  p.transition_ps = t.transition_ps;
  p.budget_bytes = memory_bytes_;
  p.flight = flight;
  for (const Block& b : t.blocks) {
    const std::int64_t gradient = t.stream_bytes[static_cast<std::size_t>(b.layout)];
    p.options.push_back({.steady_ps = steady_of(b.cost),
                         .once_ps = once_of(b.cost, index == 0),
                         .memory_bytes = b.memory.persistent_bytes + flight * b.memory.stash_bytes,
                         .stash_bytes = b.memory.stash_bytes,
                         .transient_bytes = b.memory.backward_bytes + gradient,
                         .forward_bytes = b.memory.forward_bytes,
                         .neighbour_bytes = b.memory.gathered_bytes,
                         .step_bytes = b.memory.step_bytes,
                         .layout = b.layout});
  }
  const int first_rank = index * static_cast<int>(cost_.topology().device_count()) / problem.stages;
  const int devices = static_cast<int>(cost_.topology().device_count()) / problem.stages;
  if (index + 1 < problem.stages) {
    for (const std::int64_t bytes : t.stream_bytes) {
      const std::int64_t back = costs_.exchange_ps(first_rank + devices, devices, -devices, bytes);
      if (cost_.overlaps()) {
        stage.send_ps.push_back(costs_.exchange_ps(first_rank, devices, devices, bytes) + back);
      } else {
        stage.send_ps.push_back(0);
        stage.return_ps.push_back(back);
      }
    }
    stage.departure_bytes = t.stream_bytes;
  }
  if (index > 0) {
    // The gradient sent back waits beside as many micro-batches as ever only when more are to come; else stashes have
    // gone.
    const std::int64_t gone =
        flight < problem.micro_batches
            ? 0
            : stage.counts.front() * std::ranges::min(p.options, {}, &LayerOption::stash_bytes).stash_bytes;
    for (const std::int64_t bytes : t.stream_bytes) {
      stage.arrival_bytes.push_back(std::max<std::int64_t>(0, bytes - gone));
      if (cost_.overlaps()) continue;
      stage.receive_ps.push_back(costs_.exchange_ps(first_rank - devices, devices, devices, bytes));
    }
  }
}

/// Embedding in front of the first stage, head behind the last.
void StageModel::add_ends(const PlanProblem& problem, int index, PipelineStage& stage) {
  const int devices = static_cast<int>(cost_.topology().device_count()) / problem.stages;
  const std::int64_t flight = costmodel::in_flight(problem.schedule, index, problem.stages, problem.micro_batches);
  LayerProblem& p = stage.layers;
  for (const bool head : {false, true}) {
    if (index != (head ? problem.stages - 1 : 0)) continue;
    const Vocabulary& v = vocabulary(problem, devices, index * devices, head);
    (head ? p.exit_ps : p.entry_ps) = v.change_ps;
    stage.steady_ps += steady_of(v.cost);
    stage.once_ps += once_of(v.cost, index == 0);
    p.front_step_bytes = std::max(p.front_step_bytes, v.memory.step_bytes);
    if (head) {
      p.transient_floor_bytes =
          v.stream_bytes + v.memory.stash_bytes + std::max(v.memory.forward_bytes, v.memory.backward_bytes);
      p.back_neighbour_bytes = v.memory.gathered_bytes;
      // The last layer's output changes its layout behind its forward.
      for (LayerOption& o : p.options) {
        if (v.change_ps[static_cast<std::size_t>(o.layout)] == 0) continue;
        o.forward_bytes = std::max(o.forward_bytes, v.stream_bytes + v.reshard_bytes);
      }
      p.budget_bytes -= v.memory.persistent_bytes + model::element_bytes(model::DType::kFloat32);  // and the loss
      if (index == 0) stage.once_ps += zero_loss_ps();
    } else {
      // Its output is the first layer's input, which is counted there.
      p.front_transient_bytes = v.stream_bytes + v.memory.backward_bytes;
      p.front_forward_bytes = v.stream_bytes + v.memory.forward_bytes;
      p.budget_bytes -= v.memory.persistent_bytes +
                        flight * std::max<std::int64_t>(0, v.memory.stash_bytes - v.stream_bytes) +
                        v.memory.gathered_backward_bytes;
    }
  }
}

PipelineProblem StageModel::pipeline(const PlanProblem& problem) {
  const int devices = static_cast<int>(cost_.topology().device_count()) / problem.stages;
  const int layers = static_cast<int>(cost_.model().layers);
  PipelineProblem result;
  result.layers = layers;
  result.micro_batches = problem.micro_batches;
  for (int i = 0; i < problem.stages; ++i) {
    PipelineStage stage;
    stage.counts = {layers / problem.stages};
    if (layers % problem.stages != 0) stage.counts.push_back(layers / problem.stages + 1);
    fill_stage(problem, i, table(devices, problem.micro_batches, i * devices), stage);
    add_ends(problem, i, stage);
    result.stages.push_back(std::move(stage));
  }
  return result;
}

plan::Plan StageModel::plan_of(const PlanProblem& problem, const PipelineAnswer& answer) const {
  const int devices = static_cast<int>(cost_.topology().device_count()) / problem.stages;
  const StrategyTree& tree = layer_trees_.at({devices, problem.micro_batches});
  plan::Plan plan;
  plan.model = cost_.model().name;
  plan.model_fingerprint = cost_.model().fingerprint();
  plan.hosts = static_cast<int>(cost_.topology().hosts());
  plan.precision = cost_.options().precision;
  plan.sequence = cost_.options().sequence;
  plan.global_batch = global_batch_;
  plan.micro_batches = problem.micro_batches;
  plan.schedule = problem.schedule;
  plan.vocabulary = problem.vocabulary;
  for (const LayerAnswer& layers : answer.stages) {
    plan::Stage stage;
    for (const std::int32_t option : layers.sequence) {
      const plan::LayerStrategy& s = tree.leaves[static_cast<std::size_t>(option)];
      if (stage.runs.empty() || stage.runs.back().strategy != s) stage.runs.push_back({0, s});
      ++stage.runs.back().count;
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace orrery::search
