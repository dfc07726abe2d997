#include "search/costs/kinds_model.h"

#include <algorithm>

#include "search/costs/layer_memory.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;
using plan::LayerStrategy;

std::int64_t steady_of(const LayerCost& c) { return c.forward_ps + c.backward_ps; }
std::int64_t sync_of(const LayerCost& c) { return c.backward_sync_ps - c.backward_ps; }

void add(const LayerCost& c, KindsSums::Times& t) {
  t.forward_ps += c.forward_ps, t.backward_ps += c.backward_ps,
      t.backward_sync_ps += c.backward_sync_ps;
  t.zero_ps += c.zero_gradient_ps, t.update_ps += c.update_ps - c.zero_gradient_ps;
}

bool beats(const KindOption& a, const KindOption& b) {
  if (!a.strategy.same_layout(b.strategy)) return false;
  for (std::size_t place = 0; place < a.costs.size(); ++place) {
    for (std::size_t k = 0; k < a.costs[place].size(); ++k) {
      const LayerCost &x = *a.costs[place][k], &y = *b.costs[place][k];
      KindsSums::Times a_times, b_times;
      add(x, a_times), add(y, b_times);
      const bool faster =
          steady_of(x) <= steady_of(y) && a_times.forward_ps <= b_times.forward_ps &&
          a_times.backward_sync_ps <= b_times.backward_sync_ps &&
          a_times.zero_ps <= b_times.zero_ps && a_times.update_ps <= b_times.update_ps;
      if (!faster || !dominates(memory_of(x), memory_of(y))) return false;
    }
  }
  return true;
}

void keep_the_best(std::vector<KindOption>& all) {
  std::vector<KindOption> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool beaten = false;
    for (std::size_t j = 0; j < all.size() && !beaten; ++j)
      beaten = j != i && beats(all[j], all[i]) && (j < i || !beats(all[i], all[j]));
    if (!beaten) kept.push_back(all[i]);
  }
  all = std::move(kept);
}

}  // namespace

std::vector<KindGroup> kind_groups(const model::ModelSpec& model) {
  const auto shape = [&](int kind) {
    model::BlockShape s = model.runs[static_cast<std::size_t>(kind)].shape;
    s.entry = model::BlockEntry::kNone;
    return s;
  };
  std::vector<KindGroup> groups;
  std::int64_t layer = 0;
  for (int k = 0; k < model.kinds(); ++k) {
    if (k == 0 || shape(k) != shape(k - 1)) groups.push_back({k, k, layer, layer});
    layer += model.runs[static_cast<std::size_t>(k)].count;
    groups.back().end_kind = k + 1;
    groups.back().end_layer = layer;
  }
  return groups;
}

std::string to_string(const KindsProblem& p) {
  return fmt::format("pp={} m={} {}", p.stages, p.micro_batches, plan::to_string(p.schedule));
}

KindsModel::KindsModel(const costmodel::CostModel& cost, const Space& space,
                       std::int64_t global_batch)
    : cost_(cost),
      model_(cost.model()),
      space_(space),
      global_batch_(global_batch),
      costs_(cost),
      groups_(kind_groups(cost.model())) {
  for (std::int64_t l = 0; l < model_.layers; ++l) kind_.push_back(model_.kind_of(l));
  for (int k = 0; k < model_.kinds(); ++k) kinds_.push_back(model_.of_kind(k));
}

TreeContext KindsModel::tree_context() const {
  return {problem_.devices, cost_.options().sequence, global_batch_ / problem_.micro_batches,
          problem_.micro_batches, static_cast<int>(cost_.topology().devices_per_host())};
}

plan::LayerContext KindsModel::context(int stages) const {
  plan::LayerContext c;
  c.precision = cost_.options().precision;
  c.sequence = cost_.options().sequence;
  c.micro_batch_sequences = global_batch_ / problem_.micro_batches;
  c.micro_batches = problem_.micro_batches;
  c.global_batch = global_batch_;
  c.stages = stages;
  return c;
}

bool KindsModel::turn_to(const KindsProblem& problem) {
  problem_ = problem;
  places_.clear(), place_of_.clear(), options_.clear();
  for (int i = 0; i < problem.stages; ++i) {
    const int rank = costs_.canonical_rank(first_rank(i), problem.devices);
    const auto known = std::ranges::find(places_, rank);
    place_of_.push_back(static_cast<std::size_t>(known - places_.begin()));
    if (known == places_.end()) places_.push_back(rank);
  }
  vocabularies_ = vocabulary_strategies(model_, space_, tree_context()).leaves;
  for (const KindGroup& g : groups_) {
    std::vector<KindOption> all;
    const StrategyTree tree =
        layer_strategies(kinds_[static_cast<std::size_t>(g.first_kind)], space_, tree_context());
    for (const LayerStrategy& s : tree.leaves) all.push_back(option_of(g, s));
    keep_the_best(all);
    if (all.empty()) return false;
    options_.push_back(std::move(all));
  }
  return !vocabularies_.empty();
}

KindOption KindsModel::option_of(const KindGroup& g, const LayerStrategy& s) {
  KindOption o{.strategy = s, .costs = {}};
  plan::LayerContext c = context(1);
  o.costs.resize(places_.size());
  for (int k = g.first_kind; k < g.end_kind; ++k) {
    c.kind = k;
    std::int64_t steady = kForbidden, total = kForbidden;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      const LayerCost& cost = costs_.block(s, c, places_[place], problem_.devices);
      o.costs[place].push_back(&cost);
      steady = std::min(steady, steady_of(cost));
      total = std::min(total, steady_of(cost) + sync_of(cost));
    }
    const std::int64_t count = model_.runs[static_cast<std::size_t>(k)].count;
    o.least_steady_ps += count * steady;
    o.least_total_ps += count * total;
    o.widest_ps = std::max(o.widest_ps, steady);
    o.bytes += count * (o.costs.front().back()->persistent_bytes +
                        std::max<std::int64_t>(o.costs.front().back()->stash_bytes, 0));
  }
  return o;
}

const LayerCost& KindsModel::embedding(const LayerStrategy& v) {
  return costs_.embedding(v, context(problem_.stages), 0, problem_.devices);
}
const LayerCost& KindsModel::head(const LayerStrategy& v) {
  return costs_.head(v, context(problem_.stages), first_rank(problem_.stages - 1),
                     problem_.devices);
}

KindsModel::Ends KindsModel::ends(const LayerStrategy& v) {
  const LayerCost &e = embedding(v), &h = head(v);
  return {steady_of(e) + steady_of(h), sync_of(e) + sync_of(h) + e.update_ps,
          e.persistent_bytes + h.persistent_bytes};
}

std::int64_t KindsModel::bound(std::int64_t steady_ps, std::int64_t total_ps,
                               std::int64_t widest_ps, const Ends& e) const {
  const std::int64_t p = problem_.stages, share = (steady_ps + e.steady_ps + p - 1) / p;
  return total_ps + e.steady_ps + e.once_ps +
         (problem_.micro_batches - 1) * std::max(share, widest_ps);
}

std::int64_t KindsModel::zero_ps(model::DType dtype, std::int64_t elements) const {
  model::SegmentShape zero;
  zero.kind = model::SegmentKind::kZeroGradient;
  zero.dtype = dtype;
  zero.elements = elements;
  return cost_.segment_ps(zero, model::Phase::kF);
}

std::size_t KindsModel::group_of(std::int64_t layer) const {
  std::size_t g = 0;
  while (layer >= groups_[g].end_layer) ++g;
  return g;
}
const KindOption& KindsModel::option_at(const KindsChoice& c, std::int64_t layer) const {
  const std::size_t g = group_of(layer);
  return options_[g][c.options[g]];
}
const LayerStrategy& KindsModel::strategy_before(const KindsChoice& c, std::int64_t layer) const {
  return layer == 0 ? vocabularies_[c.vocabulary] : option_at(c, layer - 1).strategy;
}

/// In front of a layer, of the head behind the last; null when the layouts agree.
const LayerCost* KindsModel::change_of(const KindsChoice& c, std::int64_t layer, int rank) {
  const LayerStrategy& from = strategy_before(c, layer);
  const LayerStrategy& to =
      layer == model_.layers ? vocabularies_[c.vocabulary] : option_at(c, layer).strategy;
  if (from.same_layout(to)) return nullptr;
  plan::LayerContext ctx = context(1);
  ctx.kind = layer == 0 ? 0 : kind_[static_cast<std::size_t>(layer - 1)];
  ctx.before_head = layer == model_.layers;
  return &costs_.reshard(from, to, ctx, rank, problem_.devices);
}

/// Of the residual stream behind layer - 1. @pre layer > 0.
std::int64_t KindsModel::stream_elements(const KindsChoice& c, std::int64_t layer) const {
  const LayerStrategy& s = strategy_before(c, layer);
  const model::ModelSpec& before =
      kinds_[static_cast<std::size_t>(kind_[static_cast<std::size_t>(layer - 1)])];
  const std::int64_t tokens =
      cost_.options().sequence / before.token_share / s.cp / (s.sequence_parallel ? s.tp : 1);
  return global_batch_ / problem_.micro_batches / s.dp * tokens * before.hidden;
}
/// With the companion of an encoder-decoder, which is as large.
std::int64_t KindsModel::sent_bytes(const KindsChoice& c, std::int64_t layer) const {
  return stream_elements(c, layer) *
         model::element_bytes(model::compute_dtype(cost_.options().precision)) *
         (model_.encoder_decoder() ? 2 : 1);
}

KindsSums KindsModel::sums_of(const KindsChoice& c) {
  const auto n = static_cast<std::size_t>(model_.layers);
  KindsSums s;
  s.persistent_bytes.assign(n + 1, 0), s.stash_bytes.assign(n + 1, 0), s.rest_ps.assign(n + 1, 0);
  for (std::size_t place = 0; place < places_.size(); ++place) {
    std::vector<KindsSums::Times> sums{{}};
    for (std::size_t l = 0; l < n; ++l) {
      const std::size_t g = group_of(static_cast<std::int64_t>(l));
      const LayerCost& cost =
          *options_[g][c.options[g]]
               .costs[place][static_cast<std::size_t>(kind_[l] - groups_[g].first_kind)];
      KindsSums::Times t = sums.back();
      add(cost, t);
      if (const LayerCost* change = change_of(c, static_cast<std::int64_t>(l), places_[place]))
        add(*change, t);
      sums.push_back(t);
      s.persistent_bytes[l + 1] = s.persistent_bytes[l] + cost.persistent_bytes;
      s.stash_bytes[l + 1] = s.stash_bytes[l] + std::max<std::int64_t>(cost.stash_bytes, 0);
    }
    s.times.push_back(std::move(sums));
  }
  for (std::size_t l = n; l-- > 0;) {
    std::int64_t least = kForbidden;
    for (const auto& t : s.times)
      least = std::min(least, t[l + 1].forward_ps - t[l].forward_ps + t[l + 1].backward_sync_ps -
                                  t[l].backward_sync_ps);
    s.rest_ps[l] = s.rest_ps[l + 1] + least;
  }
  return s;
}

KindsStage KindsModel::stage(const KindsChoice& c, const KindsSums& sums, int stage,
                             std::int64_t from, std::int64_t to) {
  const std::size_t place = place_of_[static_cast<std::size_t>(stage)];
  const KindsSums::Times &a = sums.times[place][static_cast<std::size_t>(from)],
                         &b = sums.times[place][static_cast<std::size_t>(to)];
  const int d = problem_.devices, rank = first_rank(stage);
  const LayerStrategy& v = vocabularies_[c.vocabulary];
  KindsSums::Times t{b.forward_ps - a.forward_ps, b.backward_ps - a.backward_ps,
                     b.backward_sync_ps - a.backward_sync_ps, b.zero_ps - a.zero_ps,
                     b.update_ps - a.update_ps};
  std::int64_t receive = 0, back = 0;  // the activation, and the gradient
  if (stage == 0)
    add(embedding(v), t);
  else
    receive = costs_.exchange_ps(rank - d, d, d, sent_bytes(c, from));
  if (stage + 1 == problem_.stages) {
    add(head(v), t);
    if (const LayerCost* change = change_of(c, to, places_[place])) add(*change, t);
    t.zero_ps += zero_ps(model::DType::kFloat32, 1);  // the loss
    const std::int64_t end =
        model_.encoder_decoder()
            ? zero_ps(model::compute_dtype(cost_.options().precision), stream_elements(c, to))
            : 0;
    t.backward_ps += end, t.backward_sync_ps += end;
  } else {
    back = costs_.exchange_ps(rank + d, d, -d, sent_bytes(c, to));
  }
  const std::int64_t held = cost_.overlaps() ? 0 : receive + back;
  return {.steady_ps = t.forward_ps + t.backward_ps + held,
          .forward_ps = receive + t.forward_ps,
          .backward_ps = back + t.backward_sync_ps,
          .zero_ps = t.zero_ps,
          .update_ps = t.update_ps};
}

std::int64_t KindsModel::least_bytes(const KindsChoice& c, const KindsSums& sums, int stage,
                                     std::int64_t from, std::int64_t to) {
  const auto a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
  const std::int64_t flight =
      costmodel::in_flight(problem_.schedule, stage, problem_.stages, problem_.micro_batches);
  std::int64_t bytes = sums.persistent_bytes[b] - sums.persistent_bytes[a] +
                       flight * (sums.stash_bytes[b] - sums.stash_bytes[a]);
  const LayerStrategy& v = vocabularies_[c.vocabulary];
  if (stage == 0) bytes += embedding(v).persistent_bytes;
  if (stage + 1 == problem_.stages) bytes += head(v).persistent_bytes;
  return bytes;
}

plan::Stage KindsModel::stage_of(const KindsChoice& c, std::int64_t from, std::int64_t to) const {
  plan::Stage stage;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t a = std::max(from, groups_[g].first_layer),
                       b = std::min(to, groups_[g].end_layer);
    if (a < b) stage.runs.push_back({static_cast<int>(b - a), options_[g][c.options[g]].strategy});
  }
  return stage;
}

plan::Plan KindsModel::frame(const KindsChoice& c) const {
  plan::Plan plan;
  plan.model = model_.name;
  plan.model_fingerprint = model_.fingerprint();
  plan.hosts = static_cast<int>(cost_.topology().hosts());
  plan.precision = cost_.options().precision;
  plan.sequence = cost_.options().sequence;
  plan.global_batch = global_batch_;
  plan.micro_batches = problem_.micro_batches;
  plan.schedule = problem_.schedule;
  plan.vocabulary = vocabularies_[c.vocabulary];
  return plan;
}

plan::Plan KindsModel::plan_of(const KindsChoice& c, const std::vector<std::int64_t>& ends) const {
  plan::Plan plan = frame(c);
  std::int64_t from = 0;
  for (const std::int64_t to : ends) plan.stages.push_back(stage_of(c, from, to)), from = to;
  return plan::canonical(std::move(plan));
}

/// Of the stages before only the layers in front count (costmodel/closed_form/closed_form.h).
std::int64_t KindsModel::peak_bytes(const KindsChoice& c, int stage, std::int64_t from,
                                    std::int64_t to) {
  plan::Plan plan = frame(c);
  plan.stages.resize(static_cast<std::size_t>(problem_.stages));
  if (stage > 0) plan.stages[static_cast<std::size_t>(stage) - 1] = stage_of(c, 0, from);
  plan.stages[static_cast<std::size_t>(stage)] = stage_of(c, from, to);
  return costmodel::stage_peak_bytes(costs_, plan, stage);
}

KindsChoice KindsModel::lightest() {
  KindsChoice c;
  const auto bytes = [](const KindOption& o) {
    return o.costs.front().front()->persistent_bytes + o.costs.front().front()->stash_bytes;
  };
  for (const std::vector<KindOption>& group : options_) {
    c.options.push_back(
        static_cast<std::size_t>(std::ranges::min_element(group, {}, bytes) - group.begin()));
  }
  for (std::size_t v = 0; v < vocabularies_.size(); ++v) {
    if (embedding(vocabularies_[v]).persistent_bytes <
        embedding(vocabularies_[c.vocabulary]).persistent_bytes)
      c.vocabulary = v;
  }
  return c;
}

}  // namespace orrery::search
