#include "search/partition/partition_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

using enum plan::Dimension;
using namespace plan;  // names of LayerOperator

/// What an operator hands on: layout of the first connection out of it.
const std::vector<Dimension>& output_of(const LayerGraph& graph, int op) {
  // the stream behind the last product is the next layer's first
  const int from = op == kStreamOut ? kStreamIn : op;
  return std::ranges::find(graph.connections, from, &Connection::from)->held;
}

Layout64 held_layout(const Partition& p, const std::vector<Dimension>& dimensions) {
  return layout_of(p, dimensions, Phase::kF, p.steps() - 1);
}

/// What it reads at the start of F, and where its gradient lies at the end of B: of operators in
/// one step the same.
std::pair<Layout64, Layout64> wanted_layouts(const Operator& op, const Partition& p,
                                             const std::vector<Dimension>& dimensions) {
  const Layout64 first = layout_of(p, dimensions, Phase::kF, 0);
  if (op.kind != OperatorKind::kLinear) return {first, first};
  return {first, layout_of(p, dimensions, Phase::kB, p.steps() - 1)};
}

constexpr double kLayerTicks = 1 << 23;  // of the fastest conventional layer

}  // namespace

std::int64_t LayerChoice::time_ps() const {
  std::int64_t sum = 0;
  for (const OperatorChoice& op : operators)
    sum += op.price.total_ps() + op.forward_move_ps + op.backward_move_ps - op.scatter_ps;
  return sum;
}

std::int64_t LayerChoice::memory_bytes() const {
  std::int64_t sum = 0;
  for (const OperatorChoice& op : operators) sum += op.price.memory_bytes();
  return sum;
}

base::Result<PartitionSearch> PartitionSearch::make(const costmodel::CostModel& cost,
                                                    const PartitionRequest& request) {
  TRY_VOID(check_partitionable(cost, request.bits, request.sequences, request.tokens));
  PartitionSearch search(cost, request);
  const auto refuse = [](base::ErrorCode code, const std::string& text, std::string hint) {
    return base::fail(base::make_error(code, "{}", text).with_hint(std::move(hint)));
  };
  for (const auto& [name, sequence] : request.fixed) {
    const auto& operators = search.prices_.graph().operators;
    const auto op = std::ranges::find(operators, name, &Operator::name);
    if (op == operators.end())
      return refuse(base::ErrorCode::kBadValue, fmt::format("no operator is called '{}'", name),
                    "stream, qkv, scores, softmax, values, projection, mlp in, activation or mlp "
                    "out");
    if (!search.plan_of(as_int(op - operators.begin()), sequence))
      return refuse(base::ErrorCode::kBadValue,
                    fmt::format("{} does not split by {} on {} devices", name, to_string(sequence),
                                1 << request.bits),
                    "every id bit once, dimensions of the operator, extents that halve, and skews "
                    "and primitives that are allowed");
  }
  if (!search.solve())
    return refuse(base::ErrorCode::kOutOfRange, "no partition takes a time that can be counted",
                  "leave --fix out, or take fewer layers and a smaller batch");
  return search;
}

base::Result<std::int64_t> PartitionSearch::least_compute_ps(const costmodel::CostModel& cost,
                                                             const PartitionRequest& request) {
  TRY_VOID(check_partitionable(cost, request.bits, request.sequences, request.tokens));
  PartitionPrices prices(
      cost, layer_graph(cost.model(), request.sequences, request.tokens, request.skews),
      request.bits);
  std::int64_t sum = 0, attention = 0, fused = std::numeric_limits<std::int64_t>::max();
  const auto& operators = prices.graph().operators;
  for (int i = 0; i < kStreamOut; ++i) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (Sequence& s : sequences(operators[as_index(i)].space, request.bits)) {
      const Partition p(std::move(s));
      least = std::min(least, prices.price(operators[as_index(i)], p).compute_ps());
      if (request.fused_attention && i == kValueProduct && can_fuse(p))
        fused = std::min(fused, prices.fused_attention(p).compute_ps());
    }
    (i == kScoreProduct || i == kSoftmaxOf || i == kValueProduct ? attention : sum) += least;
  }
  return sum + std::min(attention, fused);
}

/// With longer ticks where even the best takes kNever of them.
bool PartitionSearch::solve() {
  constexpr int kLonger = 16;
  for (int times = 0; times < 8; ++times) {
    price_tables();
    if (auto program = solve_partition(tables_, request_.layers)) {
      best_ = std::move(program->layers);
      return true;
    }
    tick_ps_ *= kLonger;
  }
  return false;
}

PartitionSearch::PartitionSearch(const costmodel::CostModel& cost, const PartitionRequest& request)
    : request_(request),
      prices_(cost, layer_graph(cost.model(), request.sequences, request.tokens, request.skews),
              request.bits, request.step) {
  price_operators();
  if (request.fused_attention) price_fused();
  choose_tick();
}

void PartitionSearch::price_operators() {
  const LayerGraph& graph = prices_.graph();
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    if (i != kStreamIn && op.kind == OperatorKind::kStream) {  // all alike
      plans_.push_back(plans_[kStreamIn]);
      priced_.push_back(priced_[kStreamIn]);
      classes_.push_back(classes_[kStreamIn]);
      continue;
    }
    SequenceSpace space = op.space;
    space.primitives = space.primitives && request_.primitives;
    auto& plans = plans_.emplace_back();
    auto& priced = priced_.emplace_back();
    auto& classes = classes_.emplace_back();
    std::map<Layout64, int> known;
    const std::vector<Dimension>& output = output_of(graph, as_int(i));
    for (Sequence& sequence : sequences(space, request_.bits)) {
      const Partition& p = plans.emplace_back(std::move(sequence));
      priced.push_back(prices_.price(op, p));
      classes.push_back(
          known.try_emplace(held_layout(p, output), as_int(known.size())).first->second);
    }
  }
}

void PartitionSearch::price_fused() {
  for (const Partition& p : plans_[kValueProduct]) {
    fused_.emplace_back();
    if (can_fuse(p)) fused_.back() = prices_.fused_attention(p);
  }
}

/// A tick is so long that a conventional layer has kLayerTicks of them, or the cheapest plans of
/// all operators a quarter.
void PartitionSearch::choose_tick() {
  double least = 0, fastest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < kStreamOut; ++i) {
    double op = std::numeric_limits<double>::infinity();
    for (const OperatorPrice& p : priced_[i])
      op = std::min(op, real(p.total_ps()) + request_.memory_weight * real(p.memory_bytes()));
    least += op;
  }
  for (const ConventionalAnswer& c : conventional())
    fastest = std::min(
        fastest, (real(c.answer.time_ps) + request_.memory_weight * real(c.answer.memory_bytes)) /
                     request_.layers);
  if (!std::isfinite(fastest)) fastest = 4 * least;
  tick_ps_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(fastest / kLayerTicks)));
}

EdgeTable PartitionSearch::edge(int from, int to, TickMatrix& scratch) const {
  const auto& held_plans = plans_[as_index(from)];
  const std::vector<int>& classes = classes_[as_index(from)];
  std::vector<const Connection*> tensors;
  for (const Connection& c : prices_.graph().connections)
    if (c.from == from && c.to == to) tensors.push_back(&c);
  // Layouts of what is read, and of its gradient, each pair once.
  EdgeTable table;
  using Wanted = std::vector<std::pair<Layout64, Layout64>>;
  std::map<Wanted, int> known;
  std::vector<const Wanted*> columns;
  const Operator& reader = prices_.graph().operators[as_index(to)];
  for (const Partition& p : plans_[as_index(to)]) {
    Wanted wanted;
    for (const Connection* c : tensors) wanted.push_back(wanted_layouts(reader, p, c->wanted));
    const auto [at, fresh] = known.try_emplace(std::move(wanted), as_int(known.size()));
    table.column.push_back(at->second);
    if (fresh) columns.push_back(&at->first);
  }
  const auto rows = as_index(1 + *std::ranges::max_element(classes));
  table.cost = TickMatrix(rows, columns.size(), 0);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Moves moves{.elements = tensors[t]->elements};
    moves.held.resize(rows);
    moves.scatter.resize(rows);
    const auto half = [&](int op, std::size_t plan, int phase) {
      const PhasePrice& part = priced_[as_index(op)][plan].phases[as_index(phase)];
      const std::int64_t ps = part.runs * part.reduce_ps / 2 / tick_ps_;
      return static_cast<Ticks>(std::min<std::int64_t>(ps, kNever));
    };
    for (std::size_t p = held_plans.size(); p-- > 0;) {
      moves.held[as_index(classes[p])] = held_layout(held_plans[p], tensors[t]->held);
      if (hands_on_sum(from)) moves.scatter[as_index(classes[p])] = half(from, p, 0);
    }
    for (const Wanted* w : columns) {
      moves.wanted.push_back((*w)[t].first);
      moves.gradients.push_back((*w)[t].second);
    }
    moves.gradient_scatter.resize(columns.size());
    if (reader.kind == OperatorKind::kLinear)
      for (std::size_t p = 0; p < table.column.size(); ++p)
        moves.gradient_scatter[as_index(table.column[p])] = half(to, p, 1);
    add_moves(moves, scratch, table.cost);
  }
  return table;
}

/// Of linear operators with one reader: what it sums, the reader may take in parts.
bool PartitionSearch::hands_on_sum(int op) const {
  return prices_.graph().operators[as_index(op)].kind == OperatorKind::kLinear && op != kQkvProduct;
}

/// Both ways, of one tensor.
void PartitionSearch::add_moves(const Moves& moves, TickMatrix& back, TickMatrix& cost) const {
  const PartitionPrices::MoveTerms terms = prices_.move_terms(moves.elements);
  const double per_tick = 1 / real(tick_ps_);
  const int bits = request_.bits, host_bits = prices_.host_bits();
  const auto add = [&](int runs, const std::vector<Layout64>& from, const std::vector<Layout64>& to,
                       const std::vector<Ticks>& scatter, TickMatrix& cells) {
    const double each = runs * per_tick;
    const MoveTicks ticks{terms.in_host_latency * each, terms.in_host_unit * each,
                          terms.across_latency * each, terms.across_unit * each};
    const TrafficTable table(from, to, bits, host_bits);
    std::vector<std::int32_t> in_hosts(to.size()), across(to.size());
    std::vector<std::size_t> in_parts;  // every device another block
    for (std::size_t t = 0; t < to.size(); ++t)
      if (to[t].bits() == bits) in_parts.push_back(t);
    for (std::size_t f = 0; f < from.size(); ++f) {
      table.from(f, in_hosts, across);
      add_ticks(ticks, in_hosts, across, {cells.row(f), cells.columns});
      if (scatter[f] == 0) continue;
      for (const std::size_t t : in_parts)
        if (in_hosts[t] + across[t] == 0) cells.row(f)[t] -= scatter[f];
    }
  };
  add(forward_runs(), moves.held, moves.wanted, moves.scatter, cost);
  back.rows = cost.columns;
  back.columns = cost.rows;
  back.cells.assign(cost.cells.size(), 0);
  add(1, moves.gradients, moves.held, moves.gradient_scatter, back);
  add_transposed(back, cost);
}

Ticks PartitionSearch::node_ticks(const OperatorPrice& p) const {
  const double ps = real(p.total_ps()) + request_.memory_weight * real(p.memory_bytes());
  return static_cast<Ticks>(std::min(std::ceil(ps / real(tick_ps_)), real(kNever)));
}

void PartitionSearch::price_tables() {
  tables_ = {};
  for (std::size_t i = 0; i < tables_.operators.size(); ++i) {
    OperatorTable& op = tables_.operators[i];
    op.class_of = classes_[i];
    op.classes = 1 + *std::ranges::max_element(op.class_of);
    for (const OperatorPrice& p : priced_[i]) op.cost.push_back(node_ticks(p));
    const auto fixed = request_.fixed.find(std::string(prices_.graph().operators[i].name));
    if (fixed == request_.fixed.end()) continue;
    for (std::size_t p = 0; p < op.cost.size(); ++p)
      if (plans_[i][p].sequence() != fixed->second) op.cost[p] = kNever;
  }
  LayerTables& t = tables_;
  for (std::size_t v = 0; v < fused_.size(); ++v) {
    const auto scores = plan_of(kScoreProduct, plans_[kValueProduct][v].sequence());
    const bool may = fused_[v] && scores && !request_.fixed.contains("softmax") &&
                     t.operators[kScoreProduct].cost[as_index(*scores)] < kNever &&
                     t.operators[kValueProduct].cost[v] < kNever;
    t.fused.cost.push_back(may ? node_ticks(*fused_[v]) : kNever);
    t.fused.scores.push_back(scores.value_or(0));
  }
  TickMatrix scratch;  // pages that edges fill in turn
  t.stream_qkv = edge(kStreamIn, kQkvProduct, scratch);
  t.qkv_scores = edge(kQkvProduct, kScoreProduct, scratch);
  t.scores_softmax = edge(kScoreProduct, kSoftmaxOf, scratch);
  t.qkv_values = edge(kQkvProduct, kValueProduct, scratch);
  t.softmax_values = edge(kSoftmaxOf, kValueProduct, scratch);
  t.values_projection = edge(kValueProduct, kOutProjection, scratch);
  t.projection_stream = edge(kOutProjection, kStreamMiddle, scratch);
  t.residual = edge(kStreamIn, kStreamMiddle, scratch);
  t.stream_mlp_in = edge(kStreamMiddle, kMlpInProduct, scratch);
  t.mlp_in_activation = edge(kMlpInProduct, kActivationOf, scratch);
  t.activation_mlp_out = edge(kActivationOf, kMlpOutProduct, scratch);
  t.mlp_out_stream = edge(kMlpOutProduct, kStreamOut, scratch);
}

void PartitionSearch::add_moves(int from, std::size_t from_plan, int to, std::size_t to_plan,
                                OperatorChoice& choice) const {
  const int bits = request_.bits, host_bits = prices_.host_bits();
  const Operator& reader = prices_.graph().operators[as_index(to)];
  for (const Connection& c : prices_.graph().connections) {
    if (c.from != from || c.to != to) continue;
    const Layout64 held = held_layout(plans_[as_index(from)][from_plan], c.held);
    const auto [wanted, gradient] = wanted_layouts(reader, plans_[as_index(to)][to_plan], c.wanted);
    const PartitionPrices::MoveTerms terms = prices_.move_terms(c.elements);
    const auto ps = [&](const Layout64& a, const Layout64& b, std::int64_t reduce_ps) {
      const Traffic t = traffic(a, b, bits, host_bits);
      if (t == Traffic{} && b.bits() == bits) choice.scatter_ps += reduce_ps / 2;
      return static_cast<std::int64_t>(terms.ps(t.in_hosts, t.across_hosts));
    };
    const auto reduce_ps = [&](int op, std::size_t plan, std::size_t phase) {
      const PhasePrice& part = priced_[as_index(op)][plan].phases[phase];
      return part.runs * part.reduce_ps;
    };
    choice.forward_move_ps +=
        forward_runs() * ps(held, wanted, hands_on_sum(from) ? reduce_ps(from, from_plan, 0) : 0);
    choice.backward_move_ps +=
        ps(gradient, held, reader.kind == OperatorKind::kLinear ? reduce_ps(to, to_plan, 1) : 0);
  }
}

PartitionAnswer PartitionSearch::answer(const std::vector<LayerPlans>& layers) const {
  PartitionAnswer answer;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (l > 0 && layers[l] == layers[l - 1]) {
      ++answer.layers.back().count;
      continue;
    }
    LayerChoice& layer = answer.layers.emplace_back();
    const bool fused = layers[l][kSoftmaxOf] == kFusedPlan;
    for (int i = 0; i < kLayerOperators; ++i) {
      OperatorChoice choice;
      choice.name = prices_.graph().operators[as_index(i)].name;
      if (fused && i == kSoftmaxOf) {
        layer.operators.push_back(std::move(choice));
        continue;
      }
      const auto plan = as_index(layers[l][as_index(i)]);
      choice.sequence = plans_[as_index(i)][plan].sequence();
      choice.price = priced_[as_index(i)][plan];
      if (fused && i == kScoreProduct) choice.price = {};
      if (fused && i == kValueProduct) choice.price = *fused_[plan];
      if (i == kStreamOut) {  // the next layer's, but for what it reads of this one
        choice.name = "to the next";
        choice.price = {};
      }
      for (int from = 0; from < i; ++from)
        if (!fused || from < kScoreProduct || i > kValueProduct || from == kQkvProduct)
          add_moves(from, as_index(layers[l][as_index(from)]), i, plan, choice);
      layer.operators.push_back(std::move(choice));
    }
  }
  for (const LayerChoice& layer : answer.layers) {
    answer.time_ps += layer.count * layer.time_ps();
    answer.memory_bytes += layer.count * layer.memory_bytes();
  }
  return answer;
}

std::optional<int> PartitionSearch::plan_of(int op, const Sequence& sequence) const {
  const auto& plans = plans_[as_index(op)];
  const auto at = std::ranges::find(plans, sequence, &Partition::sequence);
  if (at == plans.end()) return std::nullopt;
  return as_int(at - plans.begin());
}

std::optional<PartitionAnswer> PartitionSearch::given(
    const std::vector<Sequence>& sequences) const {
  ORRERY_CHECK(sequences.size() == kStreamOut);
  LayerPlans plans{};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (i == kSoftmaxOf && sequences[i].empty() && request_.bits > 0) {
      plans[i] = kFusedPlan;
      continue;
    }
    const std::optional<int> plan = plan_of(as_int(i), sequences[i]);
    if (!plan) return std::nullopt;
    plans[i] = *plan;
  }
  if (plans[kSoftmaxOf] == kFusedPlan &&
      (fused_.empty() || !fused_[as_index(plans[kValueProduct])] ||
       sequences[kScoreProduct] != sequences[kValueProduct]))
    return std::nullopt;
  plans[kStreamOut] = plans[kStreamIn];
  return answer(std::vector<LayerPlans>(as_index(request_.layers), plans));
}

std::vector<ConventionalAnswer> PartitionSearch::conventional() const {
  std::vector<ConventionalAnswer> all;
  for (int data_bits = 0; data_bits <= request_.bits; ++data_bits) {
    const auto with = [&](Dimension other) {
      Sequence s(as_index(data_bits), Element{.split = kBatch});
      s.resize(as_index(request_.bits), Element{.split = other});
      return s;
    };
    const Sequence columns = with(kOut), rows = with(kIn), heads = with(kHeads);
    const int tensor = 1 << (request_.bits - data_bits);
    for (const bool split : {false, true}) {
      if (split && tensor == 1) continue;
      const Sequence stream = with(split ? kTokens : kReplicas);
      const Sequence softmax = fused_.empty() ? heads : Sequence{};
      if (auto answer =
              given({stream, columns, heads, softmax, heads, rows, stream, columns, columns, rows}))
        all.push_back({1 << data_bits, tensor, split, std::move(*answer)});
    }
  }
  return all;
}

}  // namespace orrery::search
