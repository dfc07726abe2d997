#include "search/partition/priced_plans.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "base/numbers.h"

namespace orrery::search {
namespace {

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
struct ReadLayouts {
  Layout64 wanted, gradient;
  bool operator==(const ReadLayouts&) const = default;
};
struct ReadHash {
  std::size_t operator()(const std::vector<ReadLayouts>& all) const {
    std::size_t hash = 0;
    for (const auto& [wanted, gradient] : all)
      hash = std::rotl(hash, 13) ^ LayoutHash()(wanted) ^ 3 * LayoutHash()(gradient);
    return hash;
  }
};
ReadLayouts read_layouts(const Operator& op, const Partition& p,
                         const std::vector<Dimension>& dimensions) {
  const Layout64 first = layout_of(p, dimensions, Phase::kF, 0);
  if (op.kind != OperatorKind::kLinear) return {first, first};
  return {first, layout_of(p, dimensions, Phase::kB, p.steps() - 1)};
}

}  // namespace

PricedPlans::PricedPlans(const costmodel::CostModel& cost, const PartitionRequest& request)
    : request_(request),
      prices_(cost, layer_graph(cost.model(), request.sequences, request.tokens, request.skews),
              request.bits, request.step) {
  for (int i = 0; i < kLayerOperators; ++i) operators_.push_back(price_operator(i));
  if (!request.fused_attention) return;
  for (const Partition& p : of(kValueProduct).plans) {
    fused_.emplace_back();
    if (can_fuse(p)) fused_.back() = prices_.fused_attention(p);
  }
}

PricedPlans::OfOperator PricedPlans::price_operator(int i) {
  const Operator& op = graph().operators[as_index(i)];
  if (i != kStreamIn && op.kind == OperatorKind::kStream) return of(kStreamIn);  // all alike
  SequenceSpace space = op.space;
  space.primitives = space.primitives && request_.primitives;
  OfOperator all;
  std::unordered_map<Layout64, int, LayoutHash> known;
  for (Sequence& sequence : sequences(space, request_.bits)) {
    const Partition& p = all.plans.emplace_back(std::move(sequence));
    all.prices.push_back(prices_.price(op, p));
    all.classes.push_back(
        known.try_emplace(held_layout(p, output_of(graph(), i)), as_int(known.size()))
            .first->second);
  }
  return all;
}

std::optional<int> PricedPlans::plan_of(int op, const Sequence& sequence) const {
  const auto& plans = of(op).plans;
  const auto at = std::ranges::find(plans, sequence, &Partition::sequence);
  if (at == plans.end()) return std::nullopt;
  return as_int(at - plans.begin());
}

std::optional<OperatorPrice> PricedPlans::fused(int values) const {
  return fused_.empty() ? std::nullopt : fused_[as_index(values)];
}

/// Of linear operators with one reader: what it sums, the reader may take in parts.
bool PricedPlans::hands_on_sum(int op) const {
  return graph().operators[as_index(op)].kind == OperatorKind::kLinear && op != kQkvProduct;
}

/// Of its output in F where a reader may take parts of the sum, of its input's gradient in B.
std::int64_t PricedPlans::reduce_ps(int op, int plan, int phase) const {
  const Operator& o = graph().operators[as_index(op)];
  if (phase == 0 ? !hands_on_sum(op) : o.kind != OperatorKind::kLinear) return 0;
  const PhasePrice& part = price(op, plan).phases[as_index(phase)];
  return part.runs * part.reduce_ps;
}

PlanEdge PricedPlans::edge(int from, const PlanNumbers& from_plans, int to,
                           const PlanNumbers& to_plans, std::int64_t tick_ps) const {
  const Operator& reader = graph().operators[as_index(to)];
  const auto half = [&](std::int64_t reduce_ps) {
    return static_cast<Ticks>(std::min<std::int64_t>(reduce_ps / 2 / tick_ps, kNever));
  };
  std::vector<const Connection*> connections;
  std::vector<TensorMoves> tensors;
  for (const Connection& c : graph().connections) {
    if (c.from != from || c.to != to) continue;
    const PartitionPrices::MoveTerms terms = prices_.move_terms(c.elements);
    const auto ticks = [&](int runs) {
      const double each = runs / real(tick_ps);
      return MoveTicks{terms.in_host_latency * each, terms.in_host_unit * each,
                       terms.across_latency * each, terms.across_unit * each};
    };
    connections.push_back(&c);
    tensors.push_back({.forward = ticks(forward_runs()), .backward = ticks(1)});
  }
  std::vector<char> seen(1 + as_index(std::ranges::max(of(from).classes)));
  for (const int p : from_plans) {
    char& known = seen[as_index(of(from).classes[as_index(p)])];
    if (known != 0) continue;
    known = 1;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      tensors[t].held.push_back(held_layout(plan(from, p), connections[t]->held));
      tensors[t].scatter.push_back(half(reduce_ps(from, p, 0)));
    }
  }
  std::vector<int> columns;
  std::unordered_map<std::vector<ReadLayouts>, int, ReadHash> known;
  for (const int p : to_plans) {
    std::vector<ReadLayouts> wanted;
    for (const Connection* c : connections)
      wanted.push_back(read_layouts(reader, plan(to, p), c->wanted));
    const auto [at, fresh] = known.try_emplace(std::move(wanted), as_int(known.size()));
    columns.push_back(at->second);
    if (!fresh) continue;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      tensors[t].wanted.push_back(at->first[t].wanted);
      tensors[t].gradients.push_back(at->first[t].gradient);
      tensors[t].gradient_scatter.push_back(half(reduce_ps(to, p, 1)));
    }
  }
  return {{tensors, request_.bits, prices_.host_bits()}, std::move(columns)};
}

PricedPlans::MovePrice PricedPlans::moves(int from, int from_plan, int to, int to_plan) const {
  const int bits = request_.bits, host_bits = prices_.host_bits();
  const Operator& reader = graph().operators[as_index(to)];
  MovePrice price;
  for (const Connection& c : graph().connections) {
    if (c.from != from || c.to != to) continue;
    const Layout64 held = held_layout(plan(from, from_plan), c.held);
    const auto [wanted, gradient] = read_layouts(reader, plan(to, to_plan), c.wanted);
    const PartitionPrices::MoveTerms terms = prices_.move_terms(c.elements);
    const auto ps = [&](const Layout64& a, const Layout64& b, std::int64_t reduce_ps) {
      const Traffic t = traffic(a, b, bits, host_bits);
      if (t == Traffic{} && b.bits() == bits) price.scatter_ps += reduce_ps / 2;
      return static_cast<std::int64_t>(terms.ps(t.in_hosts, t.across_hosts));
    };
    price.forward_ps += forward_runs() * ps(held, wanted, reduce_ps(from, from_plan, 0));
    price.backward_ps += ps(gradient, held, reduce_ps(to, to_plan, 1));
  }
  return price;
}

}  // namespace orrery::search
