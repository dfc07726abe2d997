#include "costmodel/closed_form/layer_costs.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <numeric>

#include "base/check.h"
#include "costmodel/closed_form/layer_form.h"
#include "costmodel/closed_form/price_table.h"
#include "costmodel/closed_form/rank_windows.h"
#include "costmodel/closed_form/stage_memory.h"
#include "plan/lowering/builder.h"

namespace orrery::costmodel {
namespace {

using plan::LayerStrategy;
using plan::LayerTemplates;
using Times = TemplateForm::Times;

/// Small integers that name an entry of a table, two in a word.
template <class Value>
using Table = PriceTable<8, Value>;
using Key = Table<int>::Key;
std::uint64_t pair(std::integral auto high, std::integral auto low) {
  return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint32_t>(low);
}
enum class Part : std::int64_t { kBlock, kEmbedding, kHead, kReshard };

std::uint64_t number(auto value) { return static_cast<std::uint64_t>(value); }

/// Blocks and changes of layout differ from kind to kind; embedding and head do not.
std::uint64_t part_of_kind(Part part, const plan::LayerContext& context) {
  constexpr std::uint64_t kParts = 4;
  return number(part) +
         (part == Part::kBlock || part == Part::kReshard ? kParts * number(context.kind) : 0);
}

/// Of a strategy, all but when it reduces gradients; `more` is below 2^32.
Key key_of(const LayerStrategy& s, std::uint64_t more) {
  std::uint64_t bits = 0;
  for (const std::uint64_t two :
       {number(s.zero), number(s.recompute), number(s.operators), number(s.context),
        number(s.sequence_parallel), number(s.strided)}) {
    bits = bits << 2 | two;
  }
  return {pair(s.tp, s.cp), pair(s.dp, s.ep), pair(s.shard, s.slices), pair(more, bits)};
}

/// What a change of layout depends on. Sequence parallelism over one rank is none, and so on.
LayerStrategy layout_of(const LayerStrategy& s) {
  return {.tp = s.tp,
          .dp = s.dp,
          .sequence_parallel = s.sequence_parallel && s.tp > 1,
          .cp = s.cp,
          .strided = s.strided && s.tp > 1 && s.replicas() > 1};
}

/// The templates of a layer that serve its weights, under one way of sharding.
struct WeightForm {
  TemplateForm gather_forward, gather_backward, zero_gradient, sync, sync_last, update;
  WeightBytes bytes;
  // of `bytes`, of its parts alone: names in a key
  std::uint64_t bytes_number = 0, parts_number = 0;
  plan::TemplateMemory gather_forward_memory, gather_backward_memory, zero_gradient_memory,
      sync_memory, update_memory;
  std::int64_t persistent_bytes = 0;
  bool reduces_per_micro_batch = false;

  WeightForm() = default;
  WeightForm(const LayerTemplates& t, OperationPrices& prices)
      : gather_forward(t.program, t.gather_forward, false, prices),
        gather_backward(t.program, t.gather_backward, false, prices),
        zero_gradient(t.program, t.zero_gradient, false, prices),
        sync(t.program, t.sync, false, prices),
        update(t.program, t.update, false, prices),
        reduces_per_micro_batch(t.reduces_per_micro_batch) {
    if (t.sync_last.valid()) sync_last = TemplateForm(t.program, t.sync_last, false, prices);
    for (const auto& p : t.program.classes.front().persistent)
      persistent_bytes += t.program.buffers[p.buffer].bytes();
    const auto memory = [&](const TemplateForm& form) { return form.memory(1, {}, prices); };
    gather_forward_memory = memory(gather_forward),
    gather_backward_memory = memory(gather_backward);
    zero_gradient_memory = memory(zero_gradient), sync_memory = memory(sync),
    update_memory = memory(update);
  }
};

/// The templates that compute.
struct BodyForm {
  TemplateForm forward, backward, weight;
  bool splits = false;
  std::uint64_t number = 0;  // of those whose weights are symbolic: names it in a key
  BodyForm() = default;
  BodyForm(const LayerTemplates& t, bool symbolic_weights, OperationPrices& prices)
      : forward(t.program, t.forward, symbolic_weights, prices),
        backward(t.program, t.backward, symbolic_weights, prices),
        splits(t.weight.valid() && !t.program.templates[t.weight].ops.empty()) {
    if (splits) weight = TemplateForm(t.program, t.weight, symbolic_weights, prices);
  }
};

/// What a body takes, on some ranks.
struct BodyTimes {
  Times forward, backward, weight;
};
struct BodyMemory {
  plan::TemplateMemory forward, backward, weight;
};

/// What weights take, on some ranks.
struct WeightTimes {
  const WeightForm* form = nullptr;
  Times gather_forward, gather_backward, zero_gradient, sync, sync_last, update;
};

}  // namespace

/// What does not depend on prices.
struct LayerCosts::Forms {
  explicit Forms(const topologies::Topology& topology) : windows(topology) {}

  RankWindows windows;
  Table<BodyForm> bodies;
  Table<BodyMemory> body_memory;
  Table<BodyForm> changes;  // of layout
  Table<std::pair<BodyForm, WeightForm>> sliced_blocks;
  Table<WeightForm> weights;
  Table<std::vector<plan::PassNode>> orders;
  PassOrders pass_orders;
  std::map<std::vector<std::int64_t>, std::uint64_t> weight_bytes;  // numbers
};

struct LayerCosts::State {
  explicit State(const CostModel& cost_model)
      : cost(cost_model),
        forms(std::make_shared<Forms>(cost_model.topology())),
        prices(cost_model) {}
  State(const CostModel& drawn, const State& like)
      : cost(drawn), forms(like.forms), prices(drawn, like.prices) {}

  const CostModel& cost;
  std::shared_ptr<Forms> forms;
  OperationPrices prices;
  Table<BodyTimes> body_times;
  Table<WeightTimes> weight_times;
  Table<LayerCost> costs, change_costs;
  // of more units than a layer has
  const WeightBytes no_parts{{}, std::vector<std::int64_t>(8, 0)};

  [[nodiscard]] std::int64_t overlapped(Times t) const {
    return overlapped_ps(t.serial_ps, t.data_ps, cost.overlap_slowdown_ppm(), cost.overlaps());
  }
  /// Sequences on a rank set to one.
  static plan::LayerContext single(plan::LayerContext context, const LayerStrategy& s) {
    context.micro_batch_sequences = s.dp;
    return context;
  }
  /// Equal bytes have equal numbers; 0: none.
  std::uint64_t number_of(const std::vector<std::int64_t>& bytes) {
    if (std::ranges::all_of(bytes, [](std::int64_t b) { return b == 0; })) return 0;
    return forms->weight_bytes.try_emplace(bytes, forms->weight_bytes.size() + 1).first->second;
  }
  /// The closed form of closed_form.h, LayerCost, from its parts.
  LayerCost join(const BodyForm& body, const BodyTimes& times, const BodyMemory& memory,
                 const WeightTimes& weights);
  [[nodiscard]] BodyTimes times_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                                   int first_rank, int rank_count);
  [[nodiscard]] BodyMemory memory_of(const BodyForm& body, std::int64_t b,
                                     const WeightBytes& bytes);
  [[nodiscard]] WeightTimes times_of(const WeightForm& form, int first_rank, int rank_count);
  /// Of the weights' sharding only the sizes of gradient parts matter: they are zeroed in the
  /// backward.
  const BodyTimes& timed(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                         std::uint64_t parts_number, int first_rank, int rank_count);
  const BodyMemory& measured(const BodyForm& body, std::int64_t b, const WeightForm& w);
  const BodyForm& body(Part part, const LayerStrategy& strategy, const plan::LayerContext& context);
  const WeightForm& weight(Part part, const Key& key, const LayerStrategy& s,
                           const plan::LayerContext& context);
  /// Of a block whose body gathers and reduces its slices itself.
  LayerCost sliced(const LayerStrategy& s, const plan::LayerContext& context, int first_rank,
                   int rank_count);
  const LayerCost& layer(Part part, const LayerStrategy& s, const plan::LayerContext& context,
                         int first_rank, int rank_count);
  const LayerCost& reshard(const LayerStrategy& from, const LayerStrategy& to,
                           const plan::LayerContext& context, int first_rank, int rank_count);
  /// Stages, as far as they matter: the copies of a tied table are reduced between the first and
  /// the last.
  [[nodiscard]] int tied_stages(Part part, const plan::LayerContext& context) const {
    return part != Part::kBlock && cost.model().tied_embeddings ? context.stages : 0;
  }
};

LayerCosts::LayerCosts(const CostModel& cost) : state_(std::make_unique<State>(cost)) {}
LayerCosts::LayerCosts(const CostModel& drawn, const LayerCosts& like)
    : state_(std::make_unique<State>(drawn, *like.state_)) {}
LayerCosts::~LayerCosts() = default;

BodyTimes LayerCosts::State::times_of(const BodyForm& body, std::int64_t b,
                                      const WeightBytes& bytes, int first_rank, int rank_count) {
  const auto times = [&](const TemplateForm& f) {
    return f.times(b, bytes, first_rank, rank_count, prices);
  };
  return {times(body.forward), times(body.backward), body.splits ? times(body.weight) : Times{}};
}

BodyMemory LayerCosts::State::memory_of(const BodyForm& body, std::int64_t b,
                                        const WeightBytes& bytes) {
  const auto memory = [&](const TemplateForm& f) { return f.memory(b, bytes, prices); };
  return {memory(body.forward), memory(body.backward),
          body.splits ? memory(body.weight) : plan::TemplateMemory{}};
}

WeightTimes LayerCosts::State::times_of(const WeightForm& w, int first_rank, int rank_count) {
  const auto times = [&](const TemplateForm& f) {
    return f.times(1, {}, first_rank, rank_count, prices);
  };
  return {&w,
          times(w.gather_forward),
          times(w.gather_backward),
          times(w.zero_gradient),
          times(w.sync),
          times(w.sync_last),
          times(w.update)};
}

const BodyTimes& LayerCosts::State::timed(const BodyForm& form, std::int64_t b,
                                          const WeightBytes& bytes, std::uint64_t parts_number,
                                          int first_rank, int rank_count) {
  const auto [times, fresh] =
      body_times[{form.number, number(b), parts_number, pair(first_rank, rank_count)}];
  if (fresh) times = times_of(form, b, bytes, first_rank, rank_count);
  return times;
}

const BodyMemory& LayerCosts::State::measured(const BodyForm& form, std::int64_t b,
                                              const WeightForm& w) {
  const auto [memory, fresh] = forms->body_memory[{form.number, number(b), w.bytes_number}];
  if (fresh) memory = memory_of(form, b, w.bytes);
  return memory;
}

LayerCost LayerCosts::State::join(const BodyForm& body, const BodyTimes& times,
                                  const BodyMemory& memory, const WeightTimes& t) {
  const WeightForm& w = *t.form;
  const auto sum = [](Times x, const Times& y) { return x += y; };
  LayerCost c;
  c.forward_ps = overlapped(sum(times.forward, t.gather_forward));
  c.splits = body.splits;
  const Times backward = sum(times.backward, t.gather_backward);
  const auto synced = [&](const Times& pass, std::int64_t& plain_ps, std::int64_t& sync_ps) {
    sync_ps = overlapped(sum(sum(pass, t.sync), t.sync_last));
    plain_ps = overlapped(w.reduces_per_micro_batch ? sum(pass, t.sync) : pass);
  };
  if (body.splits) {
    c.backward_ps = c.backward_sync_ps = overlapped(backward);
    synced(times.weight, c.weight_ps, c.weight_sync_ps);
    c.weight = memory.weight;
  } else {
    synced(backward, c.backward_ps, c.backward_sync_ps);
  }
  c.reduction_ps = t.sync_last.data_ps + (w.reduces_per_micro_batch ? 0 : t.sync.data_ps);
  c.gather_forward_ps = t.gather_forward.data_ps;
  c.gather_backward_ps = t.gather_backward.data_ps;
  c.reduction_each_ps = w.reduces_per_micro_batch ? t.sync.data_ps : 0;
  c.zero_gradient_ps = overlapped(t.zero_gradient);
  c.update_ps = c.zero_gradient_ps + overlapped(t.update);
  c.persistent_bytes = w.persistent_bytes;
  c.gather_forward = w.gather_forward_memory;
  c.gather_backward = w.gather_backward_memory;
  c.forward = after(c.gather_forward, memory.forward);
  c.backward = after(c.gather_backward, memory.backward);
  c.sync = w.sync_memory;
  c.zero_gradient = w.zero_gradient_memory;
  c.update = w.update_memory;
  c.stash_bytes = c.forward.delta_bytes;
  c.reduces_per_micro_batch = w.reduces_per_micro_batch;
  return c;
}

/// Forward and backward of a layer whose weights are gathered and whose gradients go through parts,
/// as far as it has replicas.
const BodyForm& LayerCosts::State::body(Part part, const LayerStrategy& strategy,
                                        const plan::LayerContext& context) {
  LayerStrategy s = strategy;
  s.operators = plan::effective_operators(s);
  s.slices = 1;
  s.zero = 3;
  s.shard = 0;
  s.grad_reduce = plan::GradReduce::kMicroBatch;
  // Only groups across the replicas know how many there are, or that there is one.
  if (!s.strided && s.ep == 1) s.dp = 2;
  Key key = key_of(s, part_of_kind(part, context) << 1 | number(context.split_backward));
  key[4] = number(tied_stages(part, context));
  const auto [form, fresh] = forms->bodies[key];
  if (!fresh) return form;
  const auto lower = part == Part::kBlock       ? plan::lower_block
                     : part == Part::kEmbedding ? plan::lower_embedding
                                                : plan::lower_head;
  form = BodyForm(lower(cost.model(), s, single(context, s)), true, prices);
  form.number = number(forms->bodies.size());
  return form;
}

const WeightForm& LayerCosts::State::weight(Part part, const Key& key, const LayerStrategy& s,
                                            const plan::LayerContext& context) {
  const auto [w, fresh] = forms->weights[key];
  if (!fresh) return w;
  const auto lower = part == Part::kBlock       ? plan::lower_block_weights
                     : part == Part::kEmbedding ? plan::lower_embedding_weights
                                                : plan::lower_head_weights;
  const LayerTemplates t = lower(cost.model(), s, single(context, s));
  w = WeightForm(t, prices);
  // experts, or operators, may have no share in the sharding
  for (const plan::ParameterUnit& unit : t.program.units) {
    const bool gathers = plan::effective_zero(unit.strategy) == 3,
               in_parts = plan::reduces_parts(unit.strategy, context.micro_batches);
    w.bytes.gathered.push_back(
        gathers ? unit.padded * model::element_bytes(model::compute_dtype(context.precision)) : 0);
    w.bytes.part.push_back(in_parts ? unit.padded * model::element_bytes(model::DType::kFloat32)
                                    : 0);
  }
  std::vector<std::int64_t> all = w.bytes.gathered;
  all.insert(all.end(), w.bytes.part.begin(), w.bytes.part.end());
  w.bytes_number = number_of(all);
  w.parts_number = number_of(w.bytes.part);
  return w;
}

LayerCost LayerCosts::State::sliced(const LayerStrategy& s, const plan::LayerContext& context,
                                    int first_rank, int rank_count) {
  const std::uint64_t parts = number(plan::reduces_parts(s, context.micro_batches)),
                      one = number(context.micro_batches == 1);
  Key key = key_of(s, part_of_kind(Part::kBlock, context));
  key[4] = pair(context.prefetch_depth, parts << 2 | one << 1 | number(context.split_backward));
  const auto [block, fresh] = forms->sliced_blocks[key];
  if (fresh) {
    const LayerTemplates t = plan::lower_block(cost.model(), s, single(context, s));
    block = {BodyForm(t, false, prices), WeightForm(t, prices)};
  }
  const auto& [body, weights_form] = block;
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  return join(body, times_of(body, b, {}, first_rank, rank_count), memory_of(body, b, {}),
              times_of(weights_form, first_rank, rank_count));
}

const LayerCost& LayerCosts::State::layer(Part part, const LayerStrategy& s,
                                          const plan::LayerContext& context, int first_rank,
                                          int rank_count) {
  const int stages = tied_stages(part, context);
  // else where they really are
  if (stages <= 1) first_rank = forms->windows.canonical(first_rank, rank_count);
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  const bool parts = plan::reduces_parts(s, context.micro_batches),
             one = context.micro_batches == 1;
  const std::uint64_t kind = part_of_kind(part, context);
  Key key =
      key_of(s, kind << 3 | number(parts) << 2 | number(one) << 1 | number(context.split_backward));
  key[4] = number(s.slices > 1 ? context.prefetch_depth : stages);
  key[5] = pair(first_rank, rank_count);
  key[6] = number(b);
  const auto [layer, fresh] = costs[key];
  if (!fresh) return layer;
  if (plan::effective_slices(s) > 1) return layer = sliced(s, context, first_rank, rank_count);
  LayerStrategy weights_only = s;
  weights_only.recompute = plan::Recompute::kNone;
  weights_only.context = plan::ContextKind::kRing;
  weights_only.operators = plan::effective_operators(s);
  weights_only.slices = 1;
  // when the replicas are summed
  Key weight_key =
      key_of(weights_only, kind << 2 | number(parts) << 1 | number(parts && s.shard > 0 && one));
  weight_key[4] = number(stages);
  Key placed = weight_key;
  placed[5] = key[5];
  const auto [times, unpriced] = weight_times[placed];
  if (unpriced)
    times = times_of(weight(part, weight_key, weights_only, context), first_rank, rank_count);
  const WeightForm& w = *times.form;
  const BodyForm& form = body(part, s, context);
  return layer = join(form, timed(form, b, w.bytes, w.parts_number, first_rank, rank_count),
                      measured(form, b, w), times);
}

const LayerCost& LayerCosts::State::reshard(const LayerStrategy& from, const LayerStrategy& to,
                                            const plan::LayerContext& context, int first_rank,
                                            int rank_count) {
  static const WeightForm kNoWeights;
  WeightTimes nothing;
  nothing.form = &kNoWeights;
  first_rank = forms->windows.canonical(first_rank, rank_count);
  // one sequence of the smaller share
  const std::int64_t unit = std::lcm(from.dp, to.dp), b = context.micro_batch_sequences / unit;
  const Key before = key_of(from, part_of_kind(Part::kReshard, context)),
            behind = key_of(to, number(context.before_head));
  Key key{before[0], before[1], before[3], behind[0], behind[1], behind[3]};
  const auto [form, fresh] = forms->changes[key];
  if (fresh) {
    plan::LayerContext one = context;
    one.micro_batch_sequences = unit;
    one.split_backward = false;
    form = BodyForm(plan::lower_reshard(cost.model(), from, to, one), false, prices);
  }
  key[6] = pair(first_rank, rank_count), key[7] = number(b);
  const auto [change, unpriced] = change_costs[key];
  if (unpriced)
    change =
        join(form, times_of(form, b, {}, first_rank, rank_count), memory_of(form, b, {}), nothing);
  return change;
}

const LayerCost& LayerCosts::block(const LayerStrategy& s, const plan::LayerContext& context,
                                   int first_rank, int rank_count) {
  return state_->layer(Part::kBlock, s, context, first_rank, rank_count);
}

LayerCosts::Floor LayerCosts::block_floor(const plan::LayerStrategy& s,
                                          const plan::LayerContext& context, int first_rank,
                                          int rank_count) {
  if (plan::effective_slices(s) > 1) return {};
  const BodyForm& form = state_->body(Part::kBlock, s, context);
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  const BodyTimes& t =
      state_->timed(form, b, state_->no_parts, 0,
                    state_->forms->windows.canonical(first_rank, rank_count), rank_count);
  return {t.forward.serial_ps + t.backward.serial_ps, t.weight.serial_ps};
}

const LayerCost& LayerCosts::embedding(const LayerStrategy& v, const plan::LayerContext& context,
                                       int first_rank, int rank_count) {
  return state_->layer(Part::kEmbedding, v, context, first_rank, rank_count);
}

const LayerCost& LayerCosts::head(const LayerStrategy& v, const plan::LayerContext& context,
                                  int first_rank, int rank_count) {
  return state_->layer(Part::kHead, v, context, first_rank, rank_count);
}

const LayerCost& LayerCosts::reshard(const LayerStrategy& from, const LayerStrategy& to,
                                     const plan::LayerContext& context, int first_rank,
                                     int rank_count) {
  return state_->reshard(layout_of(from), layout_of(to), context, first_rank, rank_count);
}

PassOrders& LayerCosts::pass_orders() { return state_->forms->pass_orders; }

const CostModel& LayerCosts::cost() const { return state_->cost; }

int LayerCosts::canonical_rank(int first_rank, int rank_count) {
  return state_->forms->windows.canonical(first_rank, rank_count);
}

const std::vector<plan::PassNode>& LayerCosts::pass_order(plan::Schedule schedule, int rank,
                                                          int ranks, int virtual_stages,
                                                          std::int64_t micro_batches) {
  const auto [order, fresh] = state_->forms->orders[{
      pair(rank, ranks), pair(number(schedule), virtual_stages), number(micro_batches)}];
  if (fresh) order = plan::pass_order(schedule, rank, ranks, virtual_stages, micro_batches);
  return order;
}

std::int64_t LayerCosts::exchange_ps(int first_rank, int rank_count, int peer_offset,
                                     std::int64_t bytes) {
  return state_->prices.exchange_ps(first_rank, rank_count, peer_offset, bytes);
}

}  // namespace orrery::costmodel
