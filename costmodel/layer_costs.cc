#include "costmodel/layer_costs.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>

#include "base/check.h"
#include "costmodel/layer_form.h"
#include "costmodel/rank_windows.h"
#include "costmodel/stage_memory.h"
#include "plan/builder.h"

namespace orrery::costmodel {
namespace {

using plan::LayerStrategy;
using plan::LayerTemplates;
using Times = TemplateForm::Times;

/// Small integers that name an entry of a table.
using Key = std::array<std::int64_t, 20>;
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t digest = 0;
    for (const std::int64_t v : key) digest = (digest ^ static_cast<std::uint64_t>(v)) * 0x9e3779b97f4a7c15ULL + (digest >> 29);
    return digest;
  }
};
template <class Value>
using Table = std::unordered_map<Key, Value, KeyHash>;

enum class Part : std::int64_t { kBlock, kEmbedding, kHead, kReshard };

std::int64_t number(auto value) { return static_cast<std::int64_t>(value); }

/// Blocks and changes of layout differ from kind to kind; embedding and head do not.
std::int64_t part_of_kind(Part part, const plan::LayerContext& context) {
  constexpr std::int64_t kParts = 4;
  return number(part) + (part == Part::kBlock || part == Part::kReshard ? kParts * context.kind : 0);
}

/// What a change of layout depends on. Sequence parallelism over one rank is none, and so on.
LayerStrategy layout_of(const LayerStrategy& s) {
  return {.tp = s.tp, .dp = s.dp, .sequence_parallel = s.sequence_parallel && s.tp > 1, .cp = s.cp,
          .strided = s.strided && s.tp > 1 && s.replicas() > 1};
}

/// The templates of a layer that serve its weights.
struct WeightForm {
  TemplateForm gather_forward, gather_backward, zero_gradient, sync, sync_last, update;
  std::int64_t persistent_bytes = 0;
  bool reduces_per_micro_batch = false;

  WeightForm(const LayerTemplates& t, OperationPrices& prices)
      : gather_forward(t.program, t.gather_forward, false, prices),
        gather_backward(t.program, t.gather_backward, false, prices),
        zero_gradient(t.program, t.zero_gradient, false, prices),
        sync(t.program, t.sync, false, prices),
        update(t.program, t.update, false, prices),
        reduces_per_micro_batch(t.reduces_per_micro_batch) {
    if (t.sync_last.valid()) sync_last = TemplateForm(t.program, t.sync_last, false, prices);
    for (const auto& p : t.program.classes.front().persistent) persistent_bytes += t.program.buffers[p.buffer].bytes();
  }
};

/// The templates that compute.
struct BodyForm {
  TemplateForm forward, backward, weight;
  bool splits = false;
  std::int64_t number = 0;  // of a block's body: names it in a key
  BodyForm(const LayerTemplates& t, bool symbolic_weights, OperationPrices& prices)
      : forward(t.program, t.forward, symbolic_weights, prices),
        backward(t.program, t.backward, symbolic_weights, prices),
        splits(t.weight.valid() && !t.program.templates[t.weight].ops.empty()) {
    if (splits) weight = TemplateForm(t.program, t.weight, symbolic_weights, prices);
  }
};

/// What a body takes, whatever the weights' sharding.
struct BodyTimes {
  Times forward, backward, weight;
};

/// What a layer's weights cost under one way of sharding, priced.
struct WeightCost {
  WeightBytes bytes;
  Times gather_forward, gather_backward, zero_gradient, sync, sync_last, update;
  plan::TemplateMemory gather_forward_memory, gather_backward_memory, zero_gradient_memory, sync_memory, update_memory;
  std::int64_t persistent_bytes = 0;
  bool reduces_per_micro_batch = false;
};

}  // namespace

struct LayerCosts::State {
  explicit State(const CostModel& cost_model) : cost(cost_model), prices(cost_model), windows(cost_model.topology()) {}

  const CostModel& cost;
  OperationPrices prices;
  RankWindows windows;
  Table<BodyForm> bodies;
  Table<BodyTimes> body_times;
  const WeightBytes no_parts{{}, std::vector<std::int64_t>(8, 0)};  // of more units than a layer has
  Table<BodyForm> changes;  // of layout
  Table<std::pair<BodyForm, WeightForm>> sliced_blocks;
  Table<WeightCost> weights;
  Table<LayerCost> costs;

  [[nodiscard]] std::int64_t overlapped(Times t) const {
    return overlapped_ps(t.serial_ps, t.data_ps, cost.overlap_slowdown_ppm(), cost.overlaps());
  }
  /// Sequences on a rank set to one.
  static plan::LayerContext single(plan::LayerContext context, const LayerStrategy& s) {
    context.micro_batch_sequences = s.dp;
    return context;
  }
  /// The closed form of closed_form.h, LayerCost, from its parts.
  LayerCost join(const BodyForm& body, const BodyTimes& times, std::int64_t b, const WeightCost& w);
  [[nodiscard]] BodyTimes times_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes, int first_rank, int rank_count);
  const BodyTimes& timed(const BodyForm& body, std::int64_t b, const WeightBytes& bytes, int first_rank, int rank_count);
  const BodyForm& body(Part part, const LayerStrategy& strategy, const plan::LayerContext& context);
  const WeightCost& weight_cost(Part part, const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count);
  [[nodiscard]] WeightCost priced(const WeightForm& form, WeightBytes bytes, int first_rank, int rank_count);
  /// Of a block whose body gathers and reduces its slices itself.
  LayerCost sliced(const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count);
  const LayerCost& layer(Part part, const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count);
  const LayerCost& reshard(const LayerStrategy& from, const LayerStrategy& to, const plan::LayerContext& context, int first_rank, int rank_count);
  /// Stages, as far as they matter: the copies of a tied table are reduced between the first and the last.
  [[nodiscard]] int tied_stages(Part part, const plan::LayerContext& context) const {
    return part != Part::kBlock && cost.model().tied_embeddings ? context.stages : 0;
  }
};

LayerCosts::LayerCosts(const CostModel& cost) : state_(std::make_unique<State>(cost)) {}
LayerCosts::~LayerCosts() = default;

BodyTimes LayerCosts::State::times_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes, int first_rank, int rank_count) {
  const auto times = [&](const TemplateForm& f) { return f.times(b, bytes, first_rank, rank_count, prices); };
  return {times(body.forward), times(body.backward), body.splits ? times(body.weight) : Times{}};
}

/// Of the weights' sharding only the sizes of gradient parts matter: they are zeroed in the backward.
const BodyTimes& LayerCosts::State::timed(const BodyForm& form, std::int64_t b, const WeightBytes& bytes, int first_rank, int rank_count) {
  Key key{form.number, b, first_rank, rank_count};
  ORRERY_CHECK(bytes.part.size() + 4 <= key.size());
  std::ranges::copy(bytes.part, key.begin() + 4);
  const auto [times, fresh] = body_times.try_emplace(key);
  if (fresh) times->second = times_of(form, b, bytes, first_rank, rank_count);
  return times->second;
}

LayerCost LayerCosts::State::join(const BodyForm& body, const BodyTimes& times, std::int64_t b, const WeightCost& w) {
  const auto sum = [](Times x, const Times& y) { return x += y; };
  LayerCost c;
  c.forward_ps = overlapped(sum(times.forward, w.gather_forward));
  c.splits = body.splits;
  const Times backward = sum(times.backward, w.gather_backward);
  const auto synced = [&](const Times& pass, std::int64_t& plain_ps, std::int64_t& sync_ps) {
    sync_ps = overlapped(sum(sum(pass, w.sync), w.sync_last));
    plain_ps = overlapped(w.reduces_per_micro_batch ? sum(pass, w.sync) : pass);
  };
  if (body.splits) {
    c.backward_ps = c.backward_sync_ps = overlapped(backward);
    synced(times.weight, c.weight_ps, c.weight_sync_ps);
    c.weight = body.weight.memory(b, w.bytes, prices);
  } else {
    synced(backward, c.backward_ps, c.backward_sync_ps);
  }
  c.zero_gradient_ps = overlapped(w.zero_gradient);
  c.update_ps = c.zero_gradient_ps + overlapped(w.update);
  c.persistent_bytes = w.persistent_bytes;
  c.gather_forward = w.gather_forward_memory;
  c.gather_backward = w.gather_backward_memory;
  c.forward = after(c.gather_forward, body.forward.memory(b, w.bytes, prices));
  c.backward = after(c.gather_backward, body.backward.memory(b, w.bytes, prices));
  c.sync = w.sync_memory;
  c.zero_gradient = w.zero_gradient_memory;
  c.update = w.update_memory;
  c.stash_bytes = c.forward.delta_bytes;
  c.reduces_per_micro_batch = w.reduces_per_micro_batch;
  return c;
}

/// Forward and backward of a layer whose weights are gathered and whose gradients go through parts, as far as it has replicas.
const BodyForm& LayerCosts::State::body(Part part, const LayerStrategy& strategy, const plan::LayerContext& context) {
  LayerStrategy s = strategy;
  s.operators = plan::effective_operators(s);
  s.slices = 1;
  s.zero = 3;
  s.shard = 0;
  s.grad_reduce = plan::GradReduce::kMicroBatch;
  // Only groups across the replicas know how many there are, or that there is one.
  if (!s.strided && s.ep == 1) s.dp = 2;
  const Key key{part_of_kind(part, context), s.tp, s.cp, number(s.context), s.dp, s.ep, number(s.strided), number(s.sequence_parallel),
                number(s.recompute), number(s.operators), number(context.split_backward), tied_stages(part, context)};
  if (const auto found = bodies.find(key); found != bodies.end()) return found->second;
  const auto lower = part == Part::kBlock ? plan::lower_block : part == Part::kEmbedding ? plan::lower_embedding : plan::lower_head;
  BodyForm& body = bodies.emplace(key, BodyForm(lower(cost.model(), s, single(context, s)), true, prices)).first->second;
  body.number = number(bodies.size());
  return body;
}

const WeightCost& LayerCosts::State::weight_cost(Part part, const LayerStrategy& s, const plan::LayerContext& context, int first_rank,
                                                 int rank_count) {
  const bool parts = plan::reduces_parts(s, context.micro_batches);
  const Key key{part_of_kind(part, context), s.tp, s.cp, s.dp, s.ep, number(s.strided), number(s.sequence_parallel), s.zero, s.shard, number(parts),
                number(plan::effective_operators(s)), number(parts && s.shard > 0 && context.micro_batches == 1),  // when the replicas are summed
                first_rank, rank_count, tied_stages(part, context)};
  const auto [place, fresh] = weights.try_emplace(key);
  WeightCost& w = place->second;
  if (!fresh) return w;
  LayerStrategy lowered = s;
  lowered.recompute = plan::Recompute::kNone;
  const auto lower = part == Part::kBlock       ? plan::lower_block_weights
                     : part == Part::kEmbedding ? plan::lower_embedding_weights
                                                : plan::lower_head_weights;
  const LayerTemplates t = lower(cost.model(), lowered, single(context, s));
  const WeightForm form(t, prices);
  WeightBytes bytes;
  for (const plan::ParameterUnit& unit : t.program.units) {  // experts, or operators, may have no share in the sharding
    const bool gathers = plan::effective_zero(unit.strategy) == 3, in_parts = plan::reduces_parts(unit.strategy, context.micro_batches);
    bytes.gathered.push_back(gathers ? unit.padded * model::element_bytes(model::compute_dtype(context.precision)) : 0);
    bytes.part.push_back(in_parts ? unit.padded * model::element_bytes(model::DType::kFloat32) : 0);
  }
  return w = priced(form, std::move(bytes), first_rank, rank_count);
}

WeightCost LayerCosts::State::priced(const WeightForm& form, WeightBytes bytes, int first_rank, int rank_count) {
  WeightCost w;
  w.bytes = std::move(bytes);
  const auto times = [&](const TemplateForm& f) { return f.times(1, w.bytes, first_rank, rank_count, prices); };
  const auto memory = [&](const TemplateForm& f) { return f.memory(1, w.bytes, prices); };
  w.gather_forward = times(form.gather_forward), w.gather_forward_memory = memory(form.gather_forward);
  w.gather_backward = times(form.gather_backward), w.gather_backward_memory = memory(form.gather_backward);
  w.zero_gradient = times(form.zero_gradient), w.zero_gradient_memory = memory(form.zero_gradient);
  w.sync = times(form.sync), w.sync_memory = memory(form.sync);
  w.sync_last = times(form.sync_last);
  w.update = times(form.update), w.update_memory = memory(form.update);
  w.persistent_bytes = form.persistent_bytes;
  w.reduces_per_micro_batch = form.reduces_per_micro_batch;
  return w;
}

LayerCost LayerCosts::State::sliced(const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count) {
  const Key key{s.tp, s.cp, number(s.context), s.dp, s.ep, number(s.strided), number(s.sequence_parallel), number(s.recompute), s.zero, s.shard,
                number(s.operators), s.slices, number(plan::reduces_parts(s, context.micro_batches)), number(context.micro_batches == 1),
                context.prefetch_depth, number(context.split_backward), context.kind};
  auto block = sliced_blocks.find(key);
  if (block == sliced_blocks.end()) {
    const LayerTemplates t = plan::lower_block(cost.model(), s, single(context, s));
    block = sliced_blocks.emplace(key, std::pair(BodyForm(t, false, prices), WeightForm(t, prices))).first;
  }
  const auto& [body, weights_form] = block->second;
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  return join(body, times_of(body, b, {}, first_rank, rank_count), b, priced(weights_form, {}, first_rank, rank_count));
}

const LayerCost& LayerCosts::State::layer(Part part, const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count) {
  const int stages = tied_stages(part, context);
  if (stages <= 1) first_rank = windows.canonical(first_rank, rank_count);  // else where they really are
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  const Key key{part_of_kind(part, context), s.tp, s.cp, number(s.context), s.dp, s.ep, number(s.strided), number(s.sequence_parallel),
                number(s.recompute), s.zero, s.shard, number(s.operators), s.slices, number(plan::reduces_parts(s, context.micro_batches)),
                number(context.micro_batches == 1), b, first_rank, rank_count, number(context.split_backward),
                s.slices > 1 ? context.prefetch_depth : stages};
  const auto [place, fresh] = costs.try_emplace(key);
  if (!fresh) return place->second;
  if (plan::effective_slices(s) > 1) return place->second = sliced(s, context, first_rank, rank_count);
  const BodyForm& form = body(part, s, context);
  const WeightCost& w = weight_cost(part, s, context, first_rank, rank_count);
  return place->second = join(form, timed(form, b, w.bytes, first_rank, rank_count), b, w);
}

const LayerCost& LayerCosts::State::reshard(const LayerStrategy& from, const LayerStrategy& to, const plan::LayerContext& context, int first_rank,
                                            int rank_count) {
  first_rank = windows.canonical(first_rank, rank_count);
  const std::int64_t unit = std::lcm(from.dp, to.dp), b = context.micro_batch_sequences / unit;  // one sequence of the smaller share
  Key key{part_of_kind(Part::kReshard, context), from.tp, from.cp, from.dp, number(from.strided), number(from.sequence_parallel),
          to.tp, to.cp, to.dp, number(to.strided), number(to.sequence_parallel), number(context.before_head)};
  auto form = changes.find(key);
  if (form == changes.end()) {
    plan::LayerContext one = context;
    one.micro_batch_sequences = unit;
    one.split_backward = false;
    form = changes.emplace(key, BodyForm(plan::lower_reshard(cost.model(), from, to, one), false, prices)).first;
  }
  key[12] = first_rank, key[13] = rank_count, key[14] = b;
  const auto [place, fresh] = costs.try_emplace(key);
  if (fresh) place->second = join(form->second, times_of(form->second, b, {}, first_rank, rank_count), b, {});
  return place->second;
}

const LayerCost& LayerCosts::block(const LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count) {
  return state_->layer(Part::kBlock, s, context, first_rank, rank_count);
}

std::int64_t LayerCosts::block_floor_ps(const plan::LayerStrategy& s, const plan::LayerContext& context, int first_rank, int rank_count) {
  if (plan::effective_slices(s) > 1) return 0;
  const BodyForm& form = state_->body(Part::kBlock, s, context);
  const BodyTimes& t = state_->timed(form, context.micro_batch_sequences / s.dp, state_->no_parts, state_->windows.canonical(first_rank, rank_count), rank_count);
  return t.forward.serial_ps + t.backward.serial_ps + t.weight.serial_ps;
}

const LayerCost& LayerCosts::embedding(const LayerStrategy& v, const plan::LayerContext& context, int first_rank, int rank_count) {
  return state_->layer(Part::kEmbedding, v, context, first_rank, rank_count);
}

const LayerCost& LayerCosts::head(const LayerStrategy& v, const plan::LayerContext& context, int first_rank, int rank_count) {
  return state_->layer(Part::kHead, v, context, first_rank, rank_count);
}

const LayerCost& LayerCosts::reshard(const LayerStrategy& from, const LayerStrategy& to, const plan::LayerContext& context, int first_rank,
                                     int rank_count) {
  return state_->reshard(layout_of(from), layout_of(to), context, first_rank, rank_count);
}

const CostModel& LayerCosts::cost() const { return state_->cost; }

int LayerCosts::canonical_rank(int first_rank, int rank_count) { return state_->windows.canonical(first_rank, rank_count); }

std::int64_t LayerCosts::exchange_ps(int first_rank, int rank_count, int peer_offset, std::int64_t bytes) {
  return state_->prices.exchange_ps(first_rank, rank_count, peer_offset, bytes);
}

}  // namespace orrery::costmodel
