#include "costmodel/closed_form/layer_costs.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/layer_energy.h"
#include "costmodel/closed_form/layer_form.h"
#include "costmodel/closed_form/layer_parts.h"
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
  return static_cast<std::uint64_t>(high) << 32 | as_u32(low);
}
enum class Part : std::int64_t { kBlock, kEmbedding, kHead, kReshard };
using enum Part;

std::uint64_t number(auto value) { return static_cast<std::uint64_t>(value); }

/// Blocks and changes of layout differ from kind to kind; embedding and head do not.
std::uint64_t part_of_kind(Part part, const plan::LayerContext& context) {
  constexpr std::uint64_t kParts = 4;
  return number(part) + (part == kBlock || part == kReshard ? kParts * number(context.kind) : 0);
}

/// Of a strategy, all but which micro-batches reduce gradients; `more` is below 2^32.
Key key_of(const LayerStrategy& s, std::uint64_t more) {
  std::uint64_t bits = number(s.recompute);
  for (const std::uint64_t two : {number(s.zero), number(s.operators)}) bits = bits << 2 | two;
  for (const bool one :
       {s.context == plan::ContextKind::kUlysses, s.sequence_parallel, s.strided,
        s.grad_reduce == plan::GradReduce::kEnd, s.folded, s.states == plan::States::kHost})
    bits = bits << 1 | number(one);
  bits = bits << 16 | number(s.tensor_pieces);
  return {pair(s.tp, s.cp), pair(s.dp, s.ep), pair(s.shard, s.slices), pair(more, bits)};
}

/// Whether a unit of the layer reduces its gradients in parts: folded experts have replicas where
/// the rest may have none.
bool any_reduces_parts(const LayerStrategy& s, std::int64_t micro_batches) {
  return plan::reduces_parts(s, micro_batches) ||
         plan::reduces_parts(s.of_experts(), micro_batches);
}

/// What a change of layout depends on. Sequence parallelism over one rank is none, and so on.
LayerStrategy layout_of(const LayerStrategy& s) {
  return {.tp = s.tp,
          .dp = s.dp,
          .sequence_parallel = s.sequence_parallel && s.tp > 1,
          .cp = s.cp,
          .strided = s.strided && s.tp > 1 && s.replicas() > 1};
}

}  // namespace

/// What does not depend on prices.
struct LayerCosts::Forms {
  explicit Forms(const topologies::Topology& topology) : windows(topology) {}

  RankWindows windows;
  Table<BodyForm> bodies;
  Table<BodyMemory> body_memory;
  Table<BodyForm> changes;  // of layout
  Table<std::pair<BodyForm, WeightForm>> sliced_blocks;
  std::map<std::string, std::pair<BodyForm, WeightForm>> partitioned;  // layers, changes of layout
  Table<WeightForm> weights;
  Table<std::vector<plan::PassNode>> orders;
  PassOrders pass_orders;
  std::map<std::vector<std::int64_t>, std::uint64_t> weight_bytes;  // numbers
};

struct LayerCosts::State {
  State(const CostModel& cost_model, Objective objective)
      : cost(cost_model),
        forms(std::make_shared<Forms>(cost_model.topology())),
        prices(cost_model) {
    if (objective == Objective::kEnergy) energy.emplace(cost_model);
  }
  State(const CostModel& drawn, const State& like)
      : cost(drawn), forms(like.forms), prices(drawn, like.prices) {}

  const CostModel& cost;
  std::shared_ptr<Forms> forms;
  OperationPrices prices;
  std::optional<EnergyPrices> energy;  // where it is minimised
  Table<BodyTimes> body_times;
  Table<WeightTimes> weight_times;
  Table<LayerCost> costs, change_costs;
  std::map<std::pair<std::string, std::uint64_t>, LayerCost> partitioned_costs;  // (name, ranks)
  // of more units than a layer has
  const WeightBytes no_parts{{}, std::vector<std::int64_t>(8, 0)};
  // strategies that differ in the sharding of weights follow each other
  std::tuple<Key, std::int64_t, std::int64_t, Ranks> floor_of{};  // no sequences: of none
  LayerCosts::Floor last_floor;

  /// With its energy: of all micro-batches of the step.
  LayerCost join(const BodyForm& body, const BodyTimes& times, const BodyMemory& memory,
                 const WeightTimes& weights, std::int64_t micro_batches, Ranks ranks) {
    LayerCost c = costmodel::join(cost, body, times, memory, weights);
    if (!energy) return c;
    c.energy_ps = energy->energy_ps(times, weights, micro_batches, ranks);
    c.backward_sync_ps += c.energy_ps;
    return c;
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
  /// The window that stands for these ranks (rank_windows.h).
  Ranks canonical(Ranks ranks) const {
    return {forms->windows.canonical(ranks.first, ranks.count), ranks.count};
  }
  /// Stages, as far as they matter: the copies of a tied table are reduced between the first and
  /// the last.
  int tied_stages(Part part, const plan::LayerContext& context) const {
    return part != kBlock && cost.model().tied_embeddings ? context.stages : 0;
  }

  BodyTimes times_alone(const BodyForm& body, std::int64_t b, const WeightBytes& bytes,
                        Ranks ranks) {
    return {
        body.forms.each([&](const TemplateForm& f) { return f.times(b, bytes, ranks, prices); })};
  }
  BodyTimes times_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes, Ranks ranks) {
    BodyTimes t = times_alone(body, b, bytes, ranks);
    if (energy && ranks.count > 0) t.drawn_ps = energy->drawn_ps(body, b, bytes, ranks, prices);
    return t;
  }
  BodyMemory memory_of(const BodyForm& body, std::int64_t b, const WeightBytes& bytes) {
    return costmodel::memory_of(body, b, bytes, prices);
  }
  WeightTimes times_of(const WeightForm& w, Ranks ranks) {
    WeightTimes t{
        &w, w.forms.each([&](const TemplateForm& f) { return f.times(1, {}, ranks, prices); })};
    if (energy) t.drawn_ps = energy->drawn_ps(w, ranks, prices);
    return t;
  }
  /// Of the weights' sharding only the sizes of gradient parts matter: they are zeroed in the
  /// backward.
  const BodyTimes& timed(const BodyForm& form, std::int64_t b, const WeightBytes& bytes,
                         std::uint64_t parts_number, Ranks ranks) {
    const auto [times, fresh] =
        body_times[{form.number, number(b), parts_number, pair(ranks.first, ranks.count)}];
    if (fresh) times = times_of(form, b, bytes, ranks);
    return times;
  }
  const BodyMemory& measured(const BodyForm& form, std::int64_t b, const WeightForm& w) {
    const auto [memory, fresh] = forms->body_memory[{form.number, number(b), w.bytes_number}];
    if (fresh) memory = memory_of(form, b, w.bytes);
    return memory;
  }
  /// A layer whose weights are gathered and whose gradients go through parts, as far as it has
  /// replicas.
  struct Body {
    LayerStrategy strategy;
    plan::LayerContext context;  // one sequence on a rank
    Key key;
  };
  Body body_of(Part part, const LayerStrategy& strategy, const plan::LayerContext& context) const {
    LayerStrategy s = strategy;
    s.operators = plan::effective_operators(s);
    s.slices = 1;
    s.zero = 3;
    s.shard = 0;
    s.grad_reduce = plan::GradReduce::kMicroBatch;
    s.states = plan::States::kDevice;
    // Only groups across the replicas know how many there are. Experts may have one each.
    if (!s.strided && (s.ep == 1 || s.expert_ranks() > s.ep)) s.dp = 2 * s.ep;
    plan::LayerContext alone = single(context, s);
    alone.keeps_copies = model::format_of(context.precision) != model::Format::kNone &&
                         plan::effective_zero(strategy) < 3;
    Key key = key_of(s, part_of_kind(part, context) << 2 | number(alone.keeps_copies) << 1 |
                            number(context.split_backward));
    key[4] = number(tied_stages(part, context));
    return {s, alone, key};
  }
  /// Its forward and backward.
  const BodyForm& form_of(Part part, const Body& of) {
    const auto [form, fresh] = forms->bodies[of.key];
    if (!fresh) return form;
    constexpr decltype(&plan::lower_block) kLower[] = {plan::lower_block, plan::lower_embedding,
                                                       plan::lower_head};
    form = BodyForm(kLower[as_index(part)](cost.model(), of.strategy, of.context), true, prices);
    form.number = number(forms->bodies.size());
    return form;
  }
  const WeightForm& weight(Part part, const Key& key, const LayerStrategy& s,
                           const plan::LayerContext& context) {
    const auto [w, fresh] = forms->weights[key];
    if (!fresh) return w;
    const auto lower = part == kBlock       ? plan::lower_block_weights
                       : part == kEmbedding ? plan::lower_embedding_weights
                                            : plan::lower_head_weights;
    const LayerTemplates t = lower(cost.model(), s, single(context, s));
    w = WeightForm(t, prices);
    // experts, or operators, may have no share in the sharding
    for (const plan::ParameterUnit& unit : t.program.units) {
      const bool gathers = plan::effective_zero(unit.strategy) == 3,
                 in_parts = plan::reduces_parts(unit.strategy, context.micro_batches);
      w.bytes.gathered.push_back(
          gathers ? unit.padded * model::element_bytes(model::compute_dtype(context.precision))
                  : 0);
      w.bytes.part.push_back(in_parts ? unit.padded * model::element_bytes(model::DType::kFloat32)
                                      : 0);
    }
    std::vector<std::int64_t> all = w.bytes.gathered;
    all.insert(all.end(), w.bytes.part.begin(), w.bytes.part.end());
    w.bytes_number = number_of(all);
    w.parts_number = number_of(w.bytes.part);
    return w;
  }
  /// Of a block whose body gathers and reduces its slices itself.
  LayerCost sliced(const LayerStrategy& s, const plan::LayerContext& context, Ranks ranks) {
    const std::uint64_t parts = number(plan::reduces_parts(s, context.micro_batches)),
                        one = number(context.micro_batches == 1);
    Key key = key_of(s, part_of_kind(kBlock, context));
    key[4] = pair(context.prefetch_depth, parts << 2 | one << 1 | number(context.split_backward));
    const auto [block, fresh] = forms->sliced_blocks[key];
    if (fresh) {
      const LayerTemplates t = plan::lower_block(cost.model(), s, single(context, s));
      block = {BodyForm(t, false, prices), WeightForm(t, prices)};
    }
    const auto& [body, weights_form] = block;
    const std::int64_t b = context.micro_batch_sequences / s.dp;
    return join(body, times_of(body, b, {}, ranks), memory_of(body, b, {}),
                times_of(weights_form, ranks), context.micro_batches, ranks);
  }
  /// What id bits split, lowered as it is: `name` tells apart what is, beside the context.
  template <class Lower>  // LayerTemplates(LayerContext)
  const LayerCost& partitioned(std::string name, plan::LayerContext context, Ranks ranks,
                               Lower lower) {
    name += fmt::format(" {} {}", context.micro_batch_sequences, context.micro_batches == 1);
    const auto [layer, fresh] =
        partitioned_costs.try_emplace({name, pair(ranks.first, ranks.count)});
    if (!fresh) return layer->second;
    const auto [forms_of, unlowered] = forms->partitioned.try_emplace(name);
    auto& [body, weights] = forms_of->second;
    if (unlowered) {
      const LayerTemplates t = lower(context);
      body = BodyForm(t, false, prices);
      weights = WeightForm(t, prices);
    }
    return layer->second = join(body, times_of(body, 1, {}, ranks), memory_of(body, 1, {}),
                                times_of(weights, ranks), context.micro_batches, ranks);
  }
  const LayerCost& layer(Part part, const LayerStrategy& s, const plan::LayerContext& context,
                         Ranks ranks) {
    const int stages = tied_stages(part, context);
    if (stages <= 1) ranks = canonical(ranks);  // else where they really are
    const std::int64_t b = context.micro_batch_sequences / s.dp;
    const bool parts = any_reduces_parts(s, context.micro_batches),
               one = context.micro_batches == 1;
    const std::uint64_t kind = part_of_kind(part, context);
    Key key = key_of(
        s, kind << 3 | number(parts) << 2 | number(one) << 1 | number(context.split_backward));
    key[4] = number(s.slices > 1 ? context.prefetch_depth : stages);
    key[5] = pair(ranks.first, ranks.count);
    key[6] = number(b);
    const auto [layer, fresh] = costs[key];
    if (!fresh) return layer;
    if (plan::effective_slices(s) > 1) return layer = sliced(s, context, ranks);
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
    if (unpriced) times = times_of(weight(part, weight_key, weights_only, context), ranks);
    const WeightForm& w = *times.form;
    const BodyForm& form = form_of(part, body_of(part, s, context));
    const BodyTimes& passes = timed(form, b, w.bytes, w.parts_number, ranks);
    return layer = join(form, passes, measured(form, b, w), times, context.micro_batches, ranks);
  }
  const LayerCost& reshard(const LayerStrategy& from, const LayerStrategy& to,
                           const plan::LayerContext& context, Ranks ranks) {
    static const WeightForm kNoWeights;
    ranks = canonical(ranks);
    // one sequence of the smaller share
    const std::int64_t unit = std::lcm(from.dp, to.dp), b = context.micro_batch_sequences / unit;
    const Key before = key_of(from, part_of_kind(kReshard, context)),
              behind = key_of(to, number(context.before_head));
    Key key{before[0], before[1], before[3], behind[0], behind[1], behind[3]};
    const auto [form, fresh] = forms->changes[key];
    if (fresh) {
      plan::LayerContext one = context;
      one.micro_batch_sequences = unit;
      one.split_backward = false;
      form = BodyForm(plan::lower_reshard(cost.model(), from, to, one), false, prices);
    }
    key[6] = pair(ranks.first, ranks.count);
    key[7] = number(b);
    const auto [change, unpriced] = change_costs[key];
    if (unpriced)
      change = costmodel::join(cost, form, times_alone(form, b, {}, ranks), memory_of(form, b, {}),
                               {&kNoWeights, {}});
    return change;
  }
};

LayerCosts::LayerCosts(const CostModel& cost, Objective objective)
    : state_(std::make_unique<State>(cost, objective)) {}
LayerCosts::LayerCosts(const CostModel& drawn, const LayerCosts& like)
    : state_(std::make_unique<State>(drawn, *like.state_)) {}
LayerCosts::~LayerCosts() = default;
const LayerCost& LayerCosts::block(const LayerStrategy& s, const plan::LayerContext& context,
                                   int first_rank, int rank_count) {
  return state_->layer(kBlock, s, context, {first_rank, rank_count});
}

const LayerCost& LayerCosts::block(const plan::LayerRun& run, const plan::LayerContext& context,
                                   int first_rank, int rank_count) {
  if (run.partition.empty()) return block(run.strategy, context, first_rank, rank_count);
  std::string name = "block " + to_string(run.strategy);
  for (const plan::Sequence& sequence : run.partition) name += " " + to_string(sequence);
  return state_->partitioned(
      std::move(name), context, {first_rank, rank_count},
      [&](const auto& c) { return plan::lower_partitioned(cost().model(), run, c); });
}

LayerCosts::Floor LayerCosts::block_floor(const plan::LayerStrategy& s,
                                          const plan::LayerContext& context, int first_rank,
                                          int rank_count) {
  if (plan::effective_slices(s) > 1) return {};
  const State::Body body = state_->body_of(kBlock, s, context);
  const std::int64_t b = context.micro_batch_sequences / s.dp;
  const Ranks ranks = rank_count > 0 ? state_->canonical({first_rank, rank_count}) : Ranks{};
  const std::tuple of(body.key, b, context.micro_batches, ranks);
  if (state_->floor_of == of) return state_->last_floor;
  const BodyTimes& t = state_->timed(state_->form_of(kBlock, body), b, state_->no_parts, 0, ranks);
  state_->floor_of = of;
  state_->last_floor = {t.forward.serial_ps + t.backward.serial_ps, t.weight.serial_ps, 0};
  if (state_->energy && rank_count > 0)
    state_->last_floor.energy_ps = state_->energy->least_energy_ps(t, context.micro_batches, ranks);
  return state_->last_floor;
}

const LayerCost& LayerCosts::embedding(const LayerStrategy& v, const plan::LayerContext& context,
                                       int first_rank, int rank_count) {
  return state_->layer(kEmbedding, v, context, {first_rank, rank_count});
}

const LayerCost& LayerCosts::head(const LayerStrategy& v, const plan::LayerContext& context,
                                  int first_rank, int rank_count) {
  return state_->layer(kHead, v, context, {first_rank, rank_count});
}

const LayerCost& LayerCosts::reshard(const LayerStrategy& from, const LayerStrategy& to,
                                     const plan::LayerContext& context, int first_rank,
                                     int rank_count) {
  return state_->reshard(layout_of(from), layout_of(to), context, {first_rank, rank_count});
}

const LayerCost& LayerCosts::reshard(const plan::LayerRun& from, const plan::LayerRun& to,
                                     const plan::LayerContext& context, int first_rank,
                                     int rank_count) {
  if (from.partition.empty() && to.partition.empty())
    return reshard(from.strategy, to.strategy, context, first_rank, rank_count);
  return state_->partitioned(
      plan::Layout(from).tag() + " to " + plan::Layout(to).tag(), context, {first_rank, rank_count},
      [&](const auto& c) { return plan::lower_reshard(cost().model(), from, to, c); });
}

PassOrders& LayerCosts::pass_orders() { return state_->forms->pass_orders; }
const CostModel& LayerCosts::cost() const { return state_->cost; }
Objective LayerCosts::objective() const {
  return state_->energy ? Objective::kEnergy : Objective::kTime;
}
std::uint64_t LayerCosts::routes() const { return state_->prices.routes(); }
std::uint64_t LayerCosts::priced() const { return state_->prices.priced(); }
int LayerCosts::canonical_rank(int first_rank, int rank_count) {
  return state_->canonical({first_rank, rank_count}).first;
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
  return state_->prices.exchange_ps({first_rank, rank_count}, peer_offset, bytes);
}

}  // namespace orrery::costmodel
