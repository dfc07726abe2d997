#include "search/partition/segmented_program.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

using namespace plan;  // names of LayerOperator

std::size_t classes_of(const OperatorTable& op) { return as_index(op.classes); }
std::size_t plans_of(const OperatorTable& op) { return op.cost.size(); }

/// An operator behind another: edge and its own cost.
struct Step {
  const OperatorTable& before;
  const EdgeTable& edge;
  const OperatorTable& op;

  Ticks cost(int from_class, std::size_t plan) const {
    return std::min(edge.at(from_class, plan) + op.cost[plan], kNever);
  }
  /// [class before][plan]
  TickMatrix by_plan() const {
    TickMatrix m(classes_of(before), plans_of(op), kNever);
    for (std::size_t c = 0; c < m.rows; ++c)
      for (std::size_t p = 0; p < m.columns; ++p) m.row(c)[p] = cost(as_int(c), p);
    return m;
  }
  /// [class before][class]: plans of one class as their best
  TickMatrix by_class() const {
    TickMatrix m(classes_of(before), classes_of(op), kNever);
    for (std::size_t c = 0; c < m.rows; ++c)
      for (std::size_t p = 0; p < plans_of(op); ++p) {
        Ticks& cell = m.row(c)[op.class_of[p]];
        cell = std::min(cell, cost(as_int(c), p));
      }
    return m;
  }
};

/// Columns of one class as their best.
TickMatrix by_class(const TickMatrix& m, const OperatorTable& op) {
  TickMatrix least(m.rows, classes_of(op), kNever);
  for (std::size_t r = 0; r < m.rows; ++r)
    for (std::size_t p = 0; p < m.columns; ++p) {
      Ticks& cell = least.row(r)[op.class_of[p]];
      cell = std::min(cell, m.row(r)[p]);
    }
  return least;
}

/// What a plan costs behind a class: a row of a matrix, or of a step that stands in none.
auto row_of(const TickMatrix& m, int row) {
  return [cells = m.row(as_index(row))](std::size_t plan) { return cells[plan]; };
}
auto step_row(const Step& step, int from_class) {
  return [step, from_class](std::size_t plan) { return step.cost(from_class, plan); };
}

/// The two halves of a layer as matrices between layouts of the stream.
class Halves {
 public:
  explicit Halves(const LayerTables& t) : t_(t) {
    values_ = step(t.softmax_values, kSoftmaxOf, kValueProduct).by_plan();
    softmax_ = step(t.scores_softmax, kScoreProduct, kSoftmaxOf).by_plan();
    stream_ = step(t.projection_stream, kOutProjection, kStreamMiddle).by_plan();
    activation_ = step(t.mlp_in_activation, kMlpInProduct, kActivationOf).by_plan();
    stream_out_ = step(t.mlp_out_stream, kMlpOutProduct, kStreamOut).by_plan();

    to_softmax_ = min_plus(scores().by_class(), softmax_);
    core_ = min_plus(by_class(to_softmax_, op(kSoftmaxOf)), values_);
    for (std::size_t q = 0; q < core_.rows; ++q)
      for (std::size_t v = 0; v < core_.columns; ++v)
        core_.row(q)[v] = std::min(
            std::min(core_.row(q)[v], fused(as_int(q), v)) + t.qkv_values.at(as_int(q), v), kNever);
    tail_ = min_plus(projection().by_class(), stream_);
    core_tail_ = min_plus(by_class(core_, op(kValueProduct)), tail_);
    attention_ = min_plus(qkv().by_class(), core_tail_);
    add_residual(attention_);

    head_ = min_plus(mlp_in().by_class(), activation_);
    mlp_tail_ = min_plus(mlp_out().by_class(), stream_out_);
    mlp_ = min_plus(by_class(head_, op(kActivationOf)), mlp_tail_);
    add_residual(mlp_);
  }

  const TickMatrix& attention() const { return attention_; }
  const TickMatrix& mlp() const { return mlp_; }

  /// Fills in what lies between the streams of `plans`.
  void between(LayerPlans& plans) const {
    const auto stream = class_of(kStreamIn, as_index(plans[kStreamIn])),
               middle_class = class_of(kStreamMiddle, as_index(plans[kStreamMiddle]));
    const auto middle = as_index(plans[kStreamMiddle]), out = as_index(plans[kStreamOut]);
    const std::size_t q = pick(kQkvProduct, step_row(qkv(), stream), core_tail_, middle);
    const int q_class = class_of(kQkvProduct, q);
    const std::size_t v = pick(kValueProduct, row_of(core_, q_class), tail_, middle);
    const std::size_t s = pick(kSoftmaxOf, row_of(to_softmax_, q_class), values_, v);
    const std::size_t a = pick(kActivationOf, row_of(head_, middle_class), mlp_tail_, out);
    const bool in_one = fused(q_class, v) < kNever && fused(q_class, v) <= apart(q_class, s, v);
    const std::size_t k = in_one ? as_index(t_.fused.scores[v])
                                 : pick(kScoreProduct, step_row(scores(), q_class), softmax_, s);
    const std::size_t o =
        pick(kOutProjection, step_row(projection(), class_of(kValueProduct, v)), stream_, middle);
    const std::size_t in = pick(kMlpInProduct, step_row(mlp_in(), middle_class), activation_, a);
    const std::size_t end =
        pick(kMlpOutProduct, step_row(mlp_out(), class_of(kActivationOf, a)), stream_out_, out);
    plans[kQkvProduct] = as_int(q);
    plans[kScoreProduct] = as_int(k);
    plans[kSoftmaxOf] = in_one ? kFusedPlan : as_int(s);
    plans[kValueProduct] = as_int(v);
    plans[kOutProjection] = as_int(o);
    plans[kMlpInProduct] = as_int(in);
    plans[kActivationOf] = as_int(a);
    plans[kMlpOutProduct] = as_int(end);
  }

 private:
  const OperatorTable& op(LayerOperator i) const { return t_.operators[i]; }
  Step step(const EdgeTable& edge, LayerOperator before, LayerOperator behind) const {
    return {op(before), edge, op(behind)};
  }
  Step qkv() const { return step(t_.stream_qkv, kStreamIn, kQkvProduct); }
  Step scores() const { return step(t_.qkv_scores, kQkvProduct, kScoreProduct); }
  Step projection() const { return step(t_.values_projection, kValueProduct, kOutProjection); }
  Step mlp_in() const { return step(t_.stream_mlp_in, kStreamMiddle, kMlpInProduct); }
  Step mlp_out() const { return step(t_.activation_mlp_out, kActivationOf, kMlpOutProduct); }

  /// Of attention from a layout of qkv to the values' plan, but for what the values read of qkv.
  Ticks fused(int q_class, std::size_t v) const {
    if (t_.fused.cost.empty() || t_.fused.cost[v] >= kNever) return kNever;
    return std::min(t_.qkv_scores.at(q_class, as_index(t_.fused.scores[v])) + t_.fused.cost[v],
                    kNever);
  }
  Ticks apart(int q_class, std::size_t s, std::size_t v) const {
    return to_softmax_.row(as_index(q_class))[s] +
           values_.row(as_index(class_of(kSoftmaxOf, s)))[v];
  }
  int class_of(LayerOperator i, std::size_t plan) const { return op(i).class_of[plan]; }
  /// Plan by which head(plan) + tail(its class, column) is least.
  template <class Head>
  std::size_t pick(LayerOperator i, const Head& head, const TickMatrix& tail,
                   std::size_t column) const {
    std::size_t best = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t p = 0; p < plans_of(op(i)); ++p) {
      const std::int64_t cost = std::int64_t{head(p)} + tail.row(as_index(class_of(i, p)))[column];
      if (cost >= least) continue;
      least = cost;
      best = p;
    }
    return best;
  }
  void add_residual(TickMatrix& half) const {
    for (std::size_t s = 0; s < half.rows; ++s)
      for (std::size_t e = 0; e < half.columns; ++e)
        half.row(s)[e] = std::min(half.row(s)[e] + t_.residual.at(as_int(s), e), kNever);
  }

  const LayerTables& t_;
  TickMatrix softmax_, values_, stream_, activation_, stream_out_;
  TickMatrix to_softmax_, core_, tail_, core_tail_, attention_, head_, mlp_tail_, mlp_;
};

constexpr std::int64_t kUnreached = std::numeric_limits<std::int64_t>::max();

/// Least costs to every layout of a stream, and from which one before.
struct Front {
  std::vector<std::int64_t> cost;
  std::vector<int> before;
};
Front follow(const std::vector<std::int64_t>& cost, const OperatorTable& stream,
             const TickMatrix& half) {
  Front front{std::vector<std::int64_t>(half.columns, kUnreached),
              std::vector<int>(half.columns, -1)};
  for (std::size_t s = 0; s < cost.size(); ++s) {
    if (cost[s] == kUnreached) continue;
    const Ticks* row = half.row(as_index(stream.class_of[s]));
    for (std::size_t e = 0; e < half.columns; ++e) {
      if (row[e] >= kNever || cost[s] + row[e] >= front.cost[e]) continue;
      front.cost[e] = cost[s] + row[e];
      front.before[e] = as_int(s);
    }
  }
  return front;
}

/// To which layers cost least, without it: it is another layer's.
std::size_t last_stream(const std::vector<std::int64_t>& cost, const OperatorTable& stream) {
  std::size_t best = 0;
  std::int64_t least = kUnreached;
  for (std::size_t s = 0; s < cost.size(); ++s) {
    if (cost[s] == kUnreached || cost[s] - stream.cost[s] >= least) continue;
    least = cost[s] - stream.cost[s];
    best = s;
  }
  return best;
}

}  // namespace

std::optional<PartitionProgram> solve_partition(const LayerTables& tables, int layers) {
  const OperatorTable& stream = tables.operators[kStreamIn];
  const Halves halves(tables);
  std::vector<std::int64_t> cost;
  for (const Ticks own : stream.cost) cost.push_back(own < kNever ? own : kUnreached);
  std::vector<Front> fronts;
  PartitionProgram program{.ticks = 0, .runs = {0}, .layers = {}};
  std::size_t end = 0;
  for (int l = 0; l < layers; ++l) {
    fronts.push_back(follow(cost, stream, halves.attention()));
    fronts.push_back(follow(fronts.back().cost, stream, halves.mlp()));
    cost = fronts.back().cost;
    end = last_stream(cost, stream);
    if (cost[end] == kUnreached) return std::nullopt;
    program.runs.push_back(cost[end] - stream.cost[end]);
  }
  program.ticks = program.runs.back();
  program.layers.resize(as_index(layers));
  int at = as_int(end);
  std::map<std::array<int, 3>, LayerPlans> known;
  for (int l = layers - 1; l >= 0; --l) {
    LayerPlans& plans = program.layers[as_index(l)];
    plans[kStreamOut] = at;
    plans[kStreamMiddle] = at = fronts[as_index(2 * l + 1)].before[as_index(at)];
    plans[kStreamIn] = at = fronts[as_index(2 * l)].before[as_index(at)];
    const auto [same, fresh] =
        known.try_emplace({plans[kStreamIn], plans[kStreamMiddle], plans[kStreamOut]}, plans);
    if (fresh) halves.between(same->second);
    plans = same->second;
  }
  ORRERY_CHECK(ticks_of(tables, program.layers) == program.ticks, "plans cost another time");
  return program;
}

std::int64_t ticks_of(const LayerTables& t, std::span<const LayerPlans> layers) {
  if (layers.empty()) return 0;
  const auto& op = t.operators;
  const auto node = [&](LayerOperator i, const LayerPlans& p) {
    return std::int64_t{op[i].cost[as_index(p[i])]};
  };
  std::int64_t total = node(kStreamIn, layers.front());
  for (const LayerPlans& p : layers) {
    const auto edge = [&](LayerOperator from, const EdgeTable& table, LayerOperator to) {
      return std::int64_t{table.at(op[from].class_of[as_index(p[from])], as_index(p[to]))};
    };
    for (const LayerOperator i : {kQkvProduct, kOutProjection, kStreamMiddle, kMlpInProduct,
                                  kActivationOf, kMlpOutProduct, kStreamOut})
      total += node(i, p);
    if (p[kSoftmaxOf] == kFusedPlan)
      total += t.fused.cost[as_index(p[kValueProduct])];
    else
      total += node(kScoreProduct, p) + node(kSoftmaxOf, p) + node(kValueProduct, p) +
               edge(kScoreProduct, t.scores_softmax, kSoftmaxOf) +
               edge(kSoftmaxOf, t.softmax_values, kValueProduct);
    total += edge(kStreamIn, t.stream_qkv, kQkvProduct) +
             edge(kQkvProduct, t.qkv_scores, kScoreProduct) +
             edge(kQkvProduct, t.qkv_values, kValueProduct) +
             edge(kValueProduct, t.values_projection, kOutProjection) +
             edge(kOutProjection, t.projection_stream, kStreamMiddle) +
             edge(kStreamIn, t.residual, kStreamMiddle) +
             edge(kStreamMiddle, t.stream_mlp_in, kMlpInProduct) +
             edge(kMlpInProduct, t.mlp_in_activation, kActivationOf) +
             edge(kActivationOf, t.activation_mlp_out, kMlpOutProduct) +
             edge(kMlpOutProduct, t.mlp_out_stream, kStreamOut) +
             edge(kStreamMiddle, t.residual, kStreamOut);
  }
  return total - node(kStreamOut, layers.back());
}

}  // namespace orrery::search
