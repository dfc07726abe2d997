#include "search/costs/stage_model.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/costs/pass_times.h"
#include "search/costs/unbeaten.h"
#include "topologies/device_order.h"

namespace orrery::search {
namespace {

std::int64_t once_of(const costmodel::LayerCost& c, bool first_stage) {
  return sync_of(c) + (first_stage ? c.once_ps() : 0);
}

}  // namespace

std::string family_name(const PlanProblem& p) {
  return fmt::format("pp={} m={}{} {}", p.stages, p.micro_batches,
                     p.idle > 0 ? fmt::format(" idle={}", p.idle) : "",
                     plan::to_string(p.schedule));
}
std::string to_string(const PlanProblem& p) {
  return fmt::format("{} vocabulary {}", family_name(p), plan::to_string(p.vocabulary));
}

/// What the pipeline program asks back: exact memory, changes of layout.
class StageModel::View final : public StageCheck, public LayoutChanges {
 public:
  View(StageModel& model, const PlanProblem& problem)
      : model_(model), problem_(problem), devices_(problem.devices), plan_(model.frame(problem)) {
    plan_.stages.resize(as_index(problem.stages));
  }

  bool fits(std::size_t stage, int entry, const std::vector<std::int32_t>& options) override {
    if (entry >= 0) plan_.stages[stage - 1].runs = {{1, table(stage).layouts[as_index(entry)]}};
    plan_.stages[stage] = runs_of(stage, options);
    return costmodel::stage_peak_bytes(model_.costs_, plan_, as_int(stage)) <=
           model_.memory_bytes(problem_, as_int(stage));
  }
  std::int64_t change_ps(std::size_t stage, int from, int to) override {
    return model_.change_ps(table(stage), problem_.micro_batches, first_rank(stage), devices_, from,
                            to);
  }
  plan::Stage runs_of(std::size_t index, const std::vector<std::int32_t>& options) {
    const Table& t = table(index);
    const StrategyTree& tree = model_.layers_of(devices_, problem_.micro_batches);
    plan::Stage stage;
    for (std::size_t k = 0; k < options.size(); ++k) {
      if (k > 0 && options[k] == options[k - 1]) {
        ++stage.runs.back().count;
        continue;
      }
      stage.runs.push_back({1, tree.leaves[as_index(t.blocks[as_index(options[k])].leaf)]});
    }
    return stage;
  }

 private:
  int first_rank(std::size_t stage) const { return as_int(stage) * devices_; }
  Table& table(std::size_t stage) {
    return model_.table(devices_, problem_.micro_batches, first_rank(stage));
  }

  StageModel& model_;
  PlanProblem problem_;
  int devices_;
  plan::Plan plan_;
};

StageModel::StageModel(costmodel::LayerCosts& costs, const Space& space, std::int64_t global_batch,
                       costmodel::MemoryLimit memory)
    : costs_(costs),
      cost_(costs.cost()),
      space_(space),
      global_batch_(global_batch),
      memory_(std::move(memory)),
      model_fingerprint_(cost_.model().fingerprint()) {
  if (cost_.mixed()) {
    device_order_ = topologies::device_order(cost_.topology());
    if (!topologies::is_in_device_order(cost_.topology(), device_order_)) device_order_.clear();
  }
  const model::ModelSpec& model = cost_.model();
  for (int k = 0; k < model.kinds(); ++k)
    kinds_.push_back(
        {model.of_kind(k), model.kinds() == 1 ? model.layers : model.runs[as_index(k)].count});
}
StageModel::~StageModel() = default;

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

TreeContext StageModel::tree_context(int devices, std::int64_t micro_batches) const {
  return {devices, cost_.options().sequence, global_batch_ / micro_batches, micro_batches,
          as_int(cost_.topology().devices_per_host())};
}

StrategyTree StageModel::grown(int devices, std::int64_t micro_batches, int kind) const {
  return layer_strategies(kinds_[as_index(kind)].block, space_,
                          tree_context(devices, micro_batches));
}

const StrategyTree& StageModel::layers_of(int devices, std::int64_t micro_batches, int kind) {
  const auto [place, fresh] = trees_.try_emplace({devices, micro_batches, kind});
  if (fresh) {
    if (auto seen = glanced_.extract({devices, micro_batches, kind}))
      place->second = std::move(seen.mapped());
    else
      place->second = grown(devices, micro_batches, kind);
  }
  return place->second;
}

const StrategyTree& StageModel::glance_at(int devices, std::int64_t micro_batches, int kind) {
  const std::tuple key(devices, micro_batches, kind);
  if (const auto kept = trees_.find(key); kept != trees_.end()) return kept->second;
  std::erase_if(glanced_, [&](const auto& tree) {
    return std::pair(std::get<0>(tree.first), std::get<1>(tree.first)) !=
           std::pair(devices, micro_batches);
  });
  const auto [place, fresh] = glanced_.try_emplace(key);
  if (fresh) place->second = grown(devices, micro_batches, kind);
  return place->second;
}

const StrategyTree& StageModel::vocabulary_of(int devices, std::int64_t micro_batches) {
  constexpr int kNoKind = -1;
  const auto [place, fresh] = trees_.try_emplace({devices, micro_batches, kNoKind});
  if (fresh)
    place->second =
        vocabulary_strategies(cost_.model(), space_, tree_context(devices, micro_batches));
  return place->second;
}

bool StageModel::has_strategies(const PlanProblem& problem) {
  const auto [known, fresh] = some_.try_emplace({problem.devices, problem.micro_batches}, true);
  for (int k = 0; fresh && k < cost_.model().kinds(); ++k) {
    known->second =
        known->second && !glance_at(problem.devices, problem.micro_batches, k).leaves.empty();
  }
  return known->second;
}

std::vector<int> StageModel::virtual_stages(const PlanProblem& problem) const {
  const std::int64_t layers = cost_.model().layers, p = problem.stages, m = problem.micro_batches;
  using enum plan::Schedule;
  if (problem.schedule == kGPipe || problem.schedule == k1F1B) return {1};
  if (problem.schedule == kZeroBubbleH1)
    return p > 1 && m >= p && kinds_.size() == 1 ? std::vector{1} : std::vector<int>{};
  std::vector<int> all;
  if (problem.schedule != kInterleaved || p == 1 || m % p != 0 || cost_.model().encoder_decoder())
    return all;
  for (auto v = as_int(std::min<std::int64_t>(layers / p, kMostVirtualStages)); v >= 2; --v) {
    if (space_.fix_virtual_stages.value_or(v) == v &&
        (!space_.even_stages || layers % (p * v) == 0))
      all.push_back(v);
  }
  return all;
}

std::int64_t StageModel::stream_elements(const plan::LayerStrategy& layout,
                                         std::int64_t micro_batches, int kind) const {
  const model::ModelSpec& block = kinds_[as_index(kind)].block;
  const std::int64_t tokens = cost_.options().sequence / block.token_share / layout.cp /
                              (layout.sequence_parallel ? layout.tp : 1);
  return global_batch_ / micro_batches / layout.dp * tokens * block.hidden;
}

std::int64_t StageModel::stream_bytes(const plan::LayerStrategy& layout, std::int64_t micro_batches,
                                      int kind) const {
  return stream_elements(layout, micro_batches, kind) *
         model::element_bytes(model::compute_dtype(cost_.options().precision));
}

StageModel::Table& StageModel::table(int devices, std::int64_t micro_batches, int first_rank) {
  first_rank = costs_.canonical_rank(first_rank, devices);
  std::unique_ptr<Table>& slot = tables_[{devices, micro_batches, first_rank}];
  if (slot) return *slot;
  slot = std::make_unique<Table>();
  Table& t = *slot;
  const plan::LayerContext c = context(micro_batches, 1);
  const StrategyTree& tree = layers_of(devices, micro_batches);
  std::vector<Block> all;
  for (std::size_t leaf = 0; leaf < tree.leaves.size(); ++leaf) {
    const plan::LayerStrategy& s = tree.leaves[leaf];
    Block block{static_cast<std::int32_t>(leaf), &costs_.block(s, c, first_rank, devices), {}, 0};
    block.memory = memory_of(*block.cost);
    const auto known = std::ranges::find_if(
        t.layouts, [&](const plan::LayerStrategy& l) { return l.same_layout(s); });
    block.layout = as_int(known - t.layouts.begin());
    if (known == t.layouts.end()) {
      t.layouts.push_back(s);
      t.stream_bytes.push_back(stream_bytes(s, micro_batches));
    }
    all.push_back(block);
  }
  t.blocks = unbeaten(all, [](const Block& a, const Block& b) {
    return a.layout == b.layout && steady_of(*a.cost) <= steady_of(*b.cost) &&
           sync_of(*a.cost) <= sync_of(*b.cost) && a.cost->once_ps() <= b.cost->once_ps() &&
           dominates(a.memory, b.memory);
  });
  t.change_ps.assign(t.layouts.size() * t.layouts.size(), -1);
  return t;
}

std::int64_t StageModel::change_ps(Table& t, std::int64_t micro_batches, int first_rank,
                                   int devices, int from, int to) {
  const auto a = as_index(from), b = as_index(to);
  std::int64_t& known = t.change_ps[a * t.layouts.size() + b];
  if (known < 0) {
    const costmodel::LayerCost& c =
        costs_.reshard(t.layouts[a], t.layouts[b], context(micro_batches, 1), first_rank, devices);
    known = c.forward_ps + c.backward_ps;
  }
  return known;
}

StageModel::Vocabulary StageModel::vocabulary(const PlanProblem& problem, bool head) {
  const int devices = problem.devices, first_rank = head ? (problem.stages - 1) * devices : 0;
  const plan::LayerContext c = context(problem.micro_batches, problem.stages);
  Vocabulary v;
  v.cost = head ? &costs_.head(problem.vocabulary, c, first_rank, devices)
                : &costs_.embedding(problem.vocabulary, c, first_rank, devices);
  v.memory = memory_of(*v.cost);
  v.stream_bytes = stream_bytes(problem.vocabulary, problem.micro_batches);
  return v;
}

std::int64_t StageModel::zero_ps(const PlanProblem& problem, model::DType dtype,
                                 std::int64_t elements) const {
  model::SegmentShape zero;
  zero.kind = model::SegmentKind::kZeroGradient;
  zero.dtype = dtype;
  zero.elements = elements;
  const int last = (problem.stages - 1) * problem.devices;
  return cost_.segment_ps(zero, model::Phase::kF, cost_.kinds_of(last, problem.devices));
}

const std::vector<int>& StageModel::places(const PlanProblem& problem) {
  const auto [place, fresh] = places_.try_emplace({problem.stages, problem.devices});
  std::vector<int>& ranks = place->second;
  if (!fresh) return ranks;
  for (int i = 0; i < problem.stages; ++i)
    ranks.push_back(costs_.canonical_rank(i * problem.devices, problem.devices));
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void StageModel::fill_stage(const PlanProblem& problem, int index, const Table& t,
                            PipelineStage& stage) {
  const std::int64_t flight = problem.in_flight(index);
  LayerProblem& p = stage.layers;
  p.layouts = as_int(t.layouts.size());
  p.budget_bytes = memory_bytes(problem, index);
  p.flight = flight;
  p.options.reserve(t.blocks.size());
  for (const Block& b : t.blocks) {
    const std::int64_t gradient = t.stream_bytes[as_index(b.layout)];
    p.options.push_back({.steady_ps = steady_of(*b.cost),
                         .once_ps = once_of(*b.cost, index == 0),
                         .memory_bytes = b.memory.persistent_bytes + flight * b.memory.stash_bytes,
                         .stash_bytes = b.memory.stash_bytes,
                         .transient_bytes = b.memory.backward_bytes + gradient,
                         .forward_bytes = b.memory.forward_bytes,
                         .neighbour_bytes = b.memory.gathered_bytes,
                         .step_bytes = b.memory.step_bytes,
                         .layout = b.layout});
  }
  const int devices = problem.devices, first_rank = index * devices;
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
  if (index == 0) return;
  for (const std::int64_t bytes : t.stream_bytes) {
    // The gradient sent back waits beside as many micro-batches as ever only when more are to come.
    stage.arrival_bytes.push_back(flight < problem.micro_batches ? bytes : 0);
    if (!cost_.overlaps())
      stage.receive_ps.push_back(costs_.exchange_ps(first_rank - devices, devices, devices, bytes));
  }
}

/// Embedding in front of the first stage, head behind the last.
void StageModel::add_ends(const PlanProblem& problem, int index, const Table& t,
                          PipelineStage& stage) {
  const std::int64_t flight = problem.in_flight(index);
  const int devices = problem.devices;
  LayerProblem& p = stage.layers;
  for (const bool head : {false, true}) {
    if (index != (head ? problem.stages - 1 : 0)) continue;
    const Vocabulary v = vocabulary(problem, head);
    for (const plan::LayerStrategy& l : t.layouts) {
      std::int64_t ps = 0;
      if (!l.same_layout(problem.vocabulary)) {
        const auto& from = head ? l : problem.vocabulary;
        const auto& to = head ? problem.vocabulary : l;
        const costmodel::LayerCost& c =
            costs_.reshard(from, to, context(problem.micro_batches, 1), index * devices, devices);
        ps = c.forward_ps + c.backward_ps;
      }
      (head ? p.exit_ps : p.entry_ps).push_back(ps);
    }
    stage.steady_ps += steady_of(*v.cost);
    stage.once_ps += once_of(*v.cost, index == 0);
    p.front_step_bytes = std::max(p.front_step_bytes, v.memory.step_bytes);
    if (head) {
      p.transient_floor_bytes = v.stream_bytes + v.memory.stash_bytes +
                                std::max(v.memory.forward_bytes, v.memory.backward_bytes);
      p.back_neighbour_bytes = v.memory.gathered_bytes;
      // and the loss
      p.budget_bytes -= v.memory.persistent_bytes + model::element_bytes(model::DType::kFloat32);
      if (index == 0) stage.once_ps += zero_loss_ps(problem);
    } else {
      // Its output is the first layer's input, which is counted there.
      p.front_transient_bytes = v.stream_bytes + v.memory.backward_bytes;
      p.front_forward_bytes = v.stream_bytes + v.memory.forward_bytes;
      p.budget_bytes -= v.memory.persistent_bytes +
                        flight * std::max<std::int64_t>(0, v.memory.stash_bytes - v.stream_bytes);
    }
  }
}

const PipelineProblem& StageModel::pipeline(const PlanProblem& problem) {
  const int devices = problem.devices, layers = as_int(cost_.model().layers);
  view_ = std::make_unique<View>(*this, problem);
  problem_ = {.stages = {},
              .layers = layers,
              .micro_batches = problem.micro_batches,
              .check = view_.get(),
              .changes = view_.get()};
  problem_.stages.reserve(as_index(problem.stages));
  for (int i = 0; i < problem.stages; ++i) {
    PipelineStage stage;
    stage.most = layers - problem.stages + 1;
    if (problem.stages == 1) stage.fewest = layers;
    // divides: families.cc
    if (space_.even_stages) stage.fewest = stage.most = layers / problem.stages;
    const Table& t = table(devices, problem.micro_batches, i * devices);
    fill_stage(problem, i, t, stage);
    add_ends(problem, i, t, stage);
    problem_.stages.push_back(std::move(stage));
  }
  return problem_;
}

plan::Plan StageModel::frame(const PlanProblem& problem) const {
  plan::Plan plan;
  plan.model = cost_.model().name;
  plan.model_fingerprint = model_fingerprint_;
  plan.adapter = cost_.model().adapter;
  plan.hosts = as_int(cost_.topology().hosts());
  plan.precision = cost_.options().precision;
  plan.sequence = cost_.options().sequence;
  plan.global_batch = global_batch_;
  plan.micro_batches = problem.micro_batches;
  plan.schedule = problem.schedule;
  plan.device_order = device_order_;
  plan.vocabulary = problem.vocabulary;
  return plan;
}

plan::Plan StageModel::plan_of(const PlanProblem& problem, const PipelineAnswer& answer) {
  plan::Plan plan = frame(problem);
  View view(*this, problem);
  for (std::size_t i = 0; i < answer.stages.size(); ++i)
    plan.stages.push_back(view.runs_of(i, answer.stages[i].sequence));
  return plan;
}

}  // namespace orrery::search
