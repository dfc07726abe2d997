#include "search/partition/partition_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

using enum plan::Dimension;
using namespace plan;  // names of LayerOperator

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
    const auto& operators = search.plans_.graph().operators;
    const auto op = std::ranges::find(operators, name, &Operator::name);
    if (op == operators.end())
      return refuse(base::ErrorCode::kBadValue, fmt::format("no operator is called '{}'", name),
                    "stream, qkv, scores, softmax, values, projection, mlp in, activation or mlp "
                    "out");
    if (!search.plans_.plan_of(as_int(op - operators.begin()), sequence))
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

PartitionSearch::PartitionSearch(const costmodel::CostModel& cost, const PartitionRequest& request)
    : request_(request), plans_(cost, request) {
  choose_tick();
}

/// A tick is so long that a conventional layer has kLayerTicks of them, or the cheapest plans of
/// all operators a quarter.
void PartitionSearch::choose_tick() {
  double least = 0, fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kStreamOut; ++i) {
    double op = std::numeric_limits<double>::infinity();
    for (int p = 0; p < plans_.count(i); ++p) op = std::min(op, worth(plans_.price(i, p)));
    least += op;
  }
  for (const ConventionalAnswer& c : conventional())
    fastest = std::min(
        fastest, (real(c.answer.time_ps) + request_.memory_weight * real(c.answer.memory_bytes)) /
                     request_.layers);
  if (!std::isfinite(fastest)) fastest = 4 * least;
  tick_ps_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(fastest / kLayerTicks)));
}

/// Picoseconds that time and memory are worth together.
double PartitionSearch::worth(const OperatorPrice& p) const {
  return real(p.total_ps()) + request_.memory_weight * real(p.memory_bytes());
}
Ticks PartitionSearch::node_ticks(const OperatorPrice& p) const {
  return static_cast<Ticks>(std::min(std::ceil(worth(p) / real(tick_ps_)), real(kNever)));
}

OperatorTable PartitionSearch::operator_table(int i, const PlanNumbers& plans) const {
  const auto fixed = request_.fixed.find(std::string(plans_.graph().operators[as_index(i)].name));
  OperatorTable table;
  std::map<int, int> known;  // classes of all plans, by first appearance
  for (const int p : plans) {
    const bool may = fixed == request_.fixed.end() || plans_.plan(i, p).sequence() == fixed->second;
    table.cost.push_back(may ? node_ticks(plans_.price(i, p)) : kNever);
    table.class_of.push_back(
        known.try_emplace(plans_.classes(i)[as_index(p)], as_int(known.size())).first->second);
  }
  table.classes = as_int(known.size());
  return table;
}

/// Scores have the values' plans: those of one number are one operation.
FusedTable PartitionSearch::fused_table(const Kept& kept, const LayerTables& tables) const {
  FusedTable fused;
  if (!request_.fused_attention) return fused;
  const PlanNumbers& scores = kept[kScoreProduct];
  for (std::size_t at = 0; at < kept[kValueProduct].size(); ++at) {
    const int v = kept[kValueProduct][at];
    const std::optional<OperatorPrice> price = plans_.fused(v);
    const auto same = std::ranges::lower_bound(scores, v);
    const auto number = as_index(same - scores.begin());
    const bool may = price && same != scores.end() && *same == v &&
                     !request_.fixed.contains("softmax") &&
                     tables.operators[kScoreProduct].cost[number] < kNever &&
                     tables.operators[kValueProduct].cost[at] < kNever;
    fused.cost.push_back(may ? node_ticks(*price) : kNever);
    fused.scores.push_back(may ? as_int(number) : 0);
  }
  return fused;
}

void PartitionSearch::fill_operators(const Kept& kept, LayerTables& tables) const {
  for (int i = 0; i < kLayerOperators; ++i)
    tables.operators[as_index(i)] = operator_table(i, kept[as_index(i)]);
  tables.fused = fused_table(kept, tables);
}

PlanNumbers PartitionSearch::all_of(int i) const {
  PlanNumbers all(as_index(plans_.count(i)));
  std::iota(all.begin(), all.end(), 0);
  return all;
}
PartitionSearch::Kept PartitionSearch::all_plans() const {
  Kept all;
  for (int i = 0; i < kLayerOperators; ++i) all[as_index(i)] = all_of(i);
  return all;
}

LayerTables PartitionSearch::tables_of(const Kept& kept) const {
  LayerTables t;
  fill_operators(kept, t);
  const auto edge = [&](LayerOperator from, LayerOperator to) {
    PlanEdge e = plans_.edge(from, kept[from], to, kept[to], tick_ps_);
    EdgeTable table{{e.rows.rows(), e.rows.columns(), 0}, std::move(e.column)};
    for (std::size_t r = 0; r < table.cost.rows; ++r)
      e.rows.cells(r, 0, {table.cost.row(r), table.cost.columns});
    return table;
  };
  t.stream_qkv = edge(kStreamIn, kQkvProduct);
  t.qkv_scores = edge(kQkvProduct, kScoreProduct);
  t.scores_softmax = edge(kScoreProduct, kSoftmaxOf);
  t.qkv_values = edge(kQkvProduct, kValueProduct);
  t.softmax_values = edge(kSoftmaxOf, kValueProduct);
  t.values_projection = edge(kValueProduct, kOutProjection);
  t.projection_stream = edge(kOutProjection, kStreamMiddle);
  t.residual = edge(kStreamIn, kStreamMiddle);
  t.stream_mlp_in = edge(kStreamMiddle, kMlpInProduct);
  t.mlp_in_activation = edge(kMlpInProduct, kActivationOf);
  t.activation_mlp_out = edge(kActivationOf, kMlpOutProduct);
  t.mlp_out_stream = edge(kMlpOutProduct, kStreamOut);
  return t;
}

LayerTables PartitionSearch::tables() const { return tables_of(all_plans()); }

ChainEdge PartitionSearch::chain_edge(int from, const PlanNumbers& behind) const {
  PlanEdge edge = plans_.edge(from, all_of(from), from + 1, behind, tick_ps_);
  ChainEdge chain{.column = std::move(edge.column),
                  .cells = {},
                  .saved_by_row = edge.rows.saved_by_row(),
                  .saved_by_column = edge.rows.saved_by_column()};
  chain.cells = [rows = std::move(edge.rows)](std::size_t row, std::size_t first,
                                              std::span<Ticks> cells) {
    rows.cells(row, first, cells);
  };
  return chain;
}

/// Over the few plans that layers of little cost can have, and over more until those prove that
/// they were enough.
std::optional<PartitionProgram> PartitionSearch::solve_in_ticks() const {
  LayerTables nodes;
  fill_operators(all_plans(), nodes);
  const ChainBounds bounds(nodes.operators, nodes.fused, [&](int from, const PlanNumbers& behind) {
    return chain_edge(from, behind);
  });
  constexpr std::int64_t kFirst = 512, kWider = 4;  // a part of the least above it, then so often
  constexpr std::int64_t kMostOfLayer = 3 * std::int64_t{kNever};  // two halves and a stream
  const std::int64_t least = bounds.least();
  std::int64_t above = 1 + least / kFirst;
  while (true) {
    const Kept kept = bounds.within(least + above);
    auto program = solve_partition(tables_of(kept), request_.layers);
    if (program && proves(program->runs, least + above)) {
      for (LayerPlans& layer : program->layers)
        for (std::size_t i = 0; i < layer.size(); ++i)
          if (layer[i] != kFusedPlan) layer[i] = kept[i][as_index(layer[i])];
      return program;
    }
    if (!program && least + above > kMostOfLayer) return std::nullopt;
    above *= kWider;
    if (program) above = std::min(above, proving_limit(program->runs) - least);
  }
}

/// With longer ticks where even the best takes kNever of them.
bool PartitionSearch::solve() {
  constexpr int kLonger = 16;
  for (int times = 0; times < 8; ++times) {
    if (auto program = solve_in_ticks()) {
      ticks_ = program->ticks;
      best_ = std::move(program->layers);
      return true;
    }
    tick_ps_ *= kLonger;
  }
  return false;
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
      choice.name = plans_.graph().operators[as_index(i)].name;
      if (fused && i == kSoftmaxOf) {
        layer.operators.push_back(std::move(choice));
        continue;
      }
      const int plan = layers[l][as_index(i)];
      choice.sequence = plans_.plan(i, plan).sequence();
      choice.price = plans_.price(i, plan);
      if (fused && i == kScoreProduct) choice.price = {};
      if (fused && i == kValueProduct) choice.price = *plans_.fused(plan);
      if (i == kStreamOut) {  // the next layer's, but for what it reads of this one
        choice.name = "to the next";
        choice.price = {};
      }
      for (int from = 0; from < i; ++from) {
        if (fused && from >= kScoreProduct && i <= kValueProduct) continue;
        const PricedPlans::MovePrice moves = plans_.moves(from, layers[l][as_index(from)], i, plan);
        choice.forward_move_ps += moves.forward_ps;
        choice.backward_move_ps += moves.backward_ps;
        choice.scatter_ps += moves.scatter_ps;
      }
      layer.operators.push_back(std::move(choice));
    }
  }
  for (const LayerChoice& layer : answer.layers) {
    answer.time_ps += layer.count * layer.time_ps();
    answer.memory_bytes += layer.count * layer.memory_bytes();
  }
  return answer;
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
    const std::optional<int> plan = plans_.plan_of(as_int(i), sequences[i]);
    if (!plan) return std::nullopt;
    plans[i] = *plan;
  }
  if (plans[kSoftmaxOf] == kFusedPlan &&
      (!plans_.fused(plans[kValueProduct]) || sequences[kScoreProduct] != sequences[kValueProduct]))
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
      const Sequence softmax = request_.fused_attention ? Sequence{} : heads;
      if (auto answer =
              given({stream, columns, heads, softmax, heads, rows, stream, columns, columns, rows}))
        all.push_back({1 << data_bits, tensor, split, std::move(*answer)});
    }
  }
  return all;
}

}  // namespace orrery::search
