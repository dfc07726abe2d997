#include "search/costs/kinds_model.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/costs/layer_memory.h"
#include "search/costs/unbeaten.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;
using plan::LayerStrategy;

// By what they take: a layer priced, a stage's memory asked; pairs compared and layers added up.
constexpr std::uint64_t kTicksOfPrice = 1, kTicksOfPeak = 8, kPairsOfTick = 64, kLayersOfTick = 16;

/// Of the strategies of one layout those that no other beats, in every place.
std::vector<KindOption> unbeaten_of_layouts(std::vector<KindOption> all) {
  std::vector<LayerStrategy> layouts;
  std::vector<Point> points;
  for (const KindOption& o : all) {
    const auto like = [&](const LayerStrategy& s) { return s.same_layout(o.strategy); };
    const auto known = std::ranges::find_if(layouts, like);
    Point& t = points.emplace_back(Point{as_int(known - layouts.begin()), {}});
    if (known == layouts.end()) layouts.push_back(o.strategy);
    for (const std::vector<const LayerCost*>& there : o.costs) {
      for (const LayerCost* c : there) {
        const LayerMemory m = memory_of(*c);
        t.costs.insert(
            t.costs.end(),
            {steady_of(*c), c->forward_ps, c->last_backward_ps(), c->energy_ps, c->start_ps(),
             c->update_ps - c->zero_gradient_ps, m.persistent_bytes, m.stash_bytes, m.forward_bytes,
             m.backward_bytes, m.gathered_bytes, m.step_bytes});
      }
    }
  }
  std::vector<KindOption> kept;
  for (const std::size_t i : unbeaten(points)) kept.push_back(std::move(all[i]));
  return kept;
}

}  // namespace

std::vector<KindGroup> kind_groups(const model::ModelSpec& model) {
  // What neither the weights' sizes nor the strategies that suit them depend on.
  const auto shape = [&](int kind) {
    model::BlockShape s = model.runs[as_index(kind)].shape;
    const model::BlockShape plain;
    s.entry = plain.entry;
    s.reach = plain.reach;
    s.chunked = plain.chunked;
    s.rotates = plain.rotates;
    s.rope_theta = plain.rope_theta;
    s.rope = plain.rope;
    return s;
  };
  std::vector<KindGroup> groups;
  for (int k = 0; k < model.kinds(); ++k) {
    if (k == 0 || shape(k) != shape(k - 1)) groups.push_back({k, k});
    groups.back().end_kind = k + 1;
  }
  return groups;
}

KindsModel::KindsModel(costmodel::LayerCosts& costs, StageModel& stages)
    : costs_(costs),
      cost_(costs.cost()),
      model_(cost_.model()),
      stages_(stages),
      groups_(kind_groups(model_)) {
  for (std::int64_t l = 0; l < model_.layers; ++l) kind_.push_back(model_.kind_of(l));
}

plan::LayerContext KindsModel::context() const {
  return stages_.context(problem_.micro_batches, problem_.stages);
}

void KindsModel::turn_to(const PlanProblem& problem) {
  problem_ = problem;
  const auto [at, fresh] =
      families_.try_emplace({problem.stages, problem.devices, problem.micro_batches});
  family_ = &at->second;
  if (!fresh) return;
  Family& f = at->second;
  f.places = stages_.places(problem);
  for (int i = 0; i < problem.stages; ++i) {
    const int rank = costs_.canonical_rank(first_rank(i), problem.devices);
    f.place_of.push_back(as_index(std::ranges::find(f.places, rank) - f.places.begin()));
  }
  for (const KindGroup& g : groups_) {
    const std::size_t all =
        stages_.layers_of(problem.devices, problem.micro_batches, g.first_kind).leaves.size();
    ticks_ += all * f.places.size() * as_index(g.end_kind - g.first_kind) * kTicksOfPrice +
              all * all / kPairsOfTick;
  }
  const auto [options, unlike] =
      options_.try_emplace({problem.devices, problem.micro_batches, f.places});
  f.options = &options->second;
  for (const KindGroup& g : groups_) {
    if (unlike) options->second.push_back(options_of(g, f.places));
  }
}

std::vector<KindOption> KindsModel::options_of(const KindGroup& g, const std::vector<int>& places) {
  std::vector<KindOption> all;
  for (const LayerStrategy& s :
       stages_.layers_of(problem_.devices, problem_.micro_batches, g.first_kind).leaves)
    all.push_back(option_of(g, s, places));
  return unbeaten_of_layouts(std::move(all));
}

KindOption KindsModel::option_of(const KindGroup& g, const LayerStrategy& s,
                                 const std::vector<int>& places) {
  KindOption o{.strategy = s, .costs = {}};
  plan::LayerContext c = stages_.context(problem_.micro_batches, 1);
  o.costs.resize(places.size());
  for (int k = g.first_kind; k < g.end_kind; ++k) {
    c.kind = k;
    std::int64_t steady = kForbidden, total = kForbidden, update = kForbidden, energy = kForbidden;
    for (std::size_t place = 0; place < places.size(); ++place) {
      const LayerCost& cost = costs_.block(s, c, places[place], problem_.devices);
      o.costs[place].push_back(&cost);
      steady = std::min(steady, steady_of(cost));
      total = std::min(total, steady_of(cost) + sync_time_of(cost));
      energy = std::min(energy, cost.energy_ps);
      update = std::min(update, cost.update_ps - cost.zero_gradient_ps);
    }
    const std::int64_t count = model_.runs[as_index(k)].count;
    o.least_steady_ps += count * steady;
    o.least_total_ps += count * total;
    o.least_update_ps += count * update;
    o.least_energy_ps += count * energy;
    o.widest_ps = std::max(o.widest_ps, steady);
    const LayerCost& any = *o.costs.front().back();
    o.state_bytes += count * any.persistent_bytes;
    o.stash_bytes += count * std::max<std::int64_t>(any.stash_bytes, 0);
  }
  return o;
}

const LayerCost& KindsModel::embedding() {
  return costs_.embedding(problem_.vocabulary, context(), 0, problem_.devices);
}
const LayerCost& KindsModel::head() {
  return costs_.head(problem_.vocabulary, context(), first_rank(problem_.stages - 1),
                     problem_.devices);
}

KindsModel::Ends KindsModel::ends() {
  const LayerCost &e = embedding(), &h = head();
  return {steady_of(e) + steady_of(h), sync_time_of(e) + sync_time_of(h) + e.once_ps(),
          e.energy_ps + h.energy_ps, e.persistent_bytes + h.persistent_bytes};
}

std::int64_t KindsModel::bound(const Floors& f, const Ends& e) const {
  const std::int64_t p = problem_.stages, m = problem_.micro_batches;
  const std::int64_t cycle = std::max((f.steady_ps + e.steady_ps + p - 1) / p, f.widest_ps),
                     energy = f.energy_ps + e.energy_ps;
  if (problem_.schedule == plan::Schedule::kInterleaved)
    return (m - 1) * cycle +
           std::max(cycle, (f.total_ps + f.update_ps + e.steady_ps + e.once_ps) / p) + energy;
  return f.total_ps + e.steady_ps + e.once_ps + (m - 1) * cycle + energy;
}

std::size_t KindsModel::group_of(std::int64_t layer) const {
  std::size_t g = 0;
  while (kind_[as_index(layer)] >= groups_[g].end_kind) ++g;
  return g;
}
const LayerStrategy& KindsModel::strategy_before(const KindsChoice& c, std::int64_t layer) const {
  if (layer == 0) return problem_.vocabulary;
  const std::size_t g = group_of(layer - 1);
  return options()[g][c.options[g]].strategy;
}

/// In front of a layer, of the head behind the last; null when the layouts agree.
const LayerCost* KindsModel::change_of(const KindsChoice& c, std::int64_t layer, int rank) {
  const LayerStrategy& from = strategy_before(c, layer);
  const LayerStrategy& to =
      layer == model_.layers ? problem_.vocabulary : strategy_before(c, layer + 1);
  if (from.same_layout(to)) return nullptr;
  plan::LayerContext ctx = stages_.context(problem_.micro_batches, 1);
  ctx.kind = layer == 0 ? 0 : kind_[as_index(layer - 1)];
  ctx.before_head = layer == model_.layers;
  return &costs_.reshard(from, to, ctx, rank, problem_.devices);
}

/// Of the residual stream behind layer - 1. @pre layer > 0.
std::int64_t KindsModel::stream_elements(const KindsChoice& c, std::int64_t layer) const {
  return stages_.stream_elements(strategy_before(c, layer), problem_.micro_batches,
                                 kind_[as_index(layer - 1)]);
}
/// With the companion of an encoder-decoder, which is as large.
std::int64_t KindsModel::sent_bytes(const KindsChoice& c, std::int64_t layer) const {
  return stream_elements(c, layer) *
         model::element_bytes(model::compute_dtype(cost_.options().precision)) *
         (model_.encoder_decoder() ? 2 : 1);
}

KindsSums KindsModel::sums_of(const KindsChoice& c) {
  const auto n = as_index(model_.layers);
  ticks_ += n * family_->places.size() / kLayersOfTick;
  KindsSums s;
  for (auto* sums : {&s.persistent_bytes, &s.stash_bytes, &s.rest_ps}) sums->assign(n + 1, 0);
  for (std::size_t place = 0; place < family_->places.size(); ++place) {
    std::vector<PassTimes> sums{{}};
    for (std::size_t l = 0; l < n; ++l) {
      const std::size_t g = group_of(static_cast<std::int64_t>(l));
      const LayerCost& cost =
          *options()[g][c.options[g]].costs[place][as_index(kind_[l] - groups_[g].first_kind)];
      PassTimes t = sums.back();
      t.add(cost);
      if (const LayerCost* change =
              change_of(c, static_cast<std::int64_t>(l), family_->places[place]))
        t.add(*change);
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
  const std::size_t place = family_->place_of[as_index(stage)];
  const PassTimes &a = sums.times[place][as_index(from)], &b = sums.times[place][as_index(to)];
  const int d = problem_.devices, rank = first_rank(stage);
  PassTimes t{.forward_ps = b.forward_ps - a.forward_ps,
              .backward_ps = b.backward_ps - a.backward_ps,
              .backward_sync_ps = b.backward_sync_ps - a.backward_sync_ps,
              .start_ps = b.start_ps - a.start_ps,
              .update_ps = b.update_ps - a.update_ps};
  std::int64_t receive = 0, back = 0;  // the activation, and the gradient
  if (stage == 0)
    t.add(embedding());
  else
    receive = costs_.exchange_ps(rank - d, d, d, sent_bytes(c, from));
  if (stage + 1 == problem_.stages) {
    t.add(head());
    if (const LayerCost* change = change_of(c, to, family_->places[place])) t.add(*change);
    t.start_ps += stages_.zero_loss_ps(problem_);
    const std::int64_t end =
        model_.encoder_decoder()
            ? stages_.zero_ps(problem_, model::compute_dtype(cost_.options().precision),
                              stream_elements(c, to))
            : 0;
    t.backward_ps += end;
    t.backward_sync_ps += end;
  } else {
    back = costs_.exchange_ps(rank + d, d, -d, sent_bytes(c, to));
  }
  const std::int64_t held = cost_.overlaps() ? 0 : receive + back;
  return {.steady_ps = t.forward_ps + t.backward_ps + held,
          .forward_ps = receive + t.forward_ps,
          .backward_ps = back + t.backward_sync_ps,
          .zero_ps = t.start_ps,
          .update_ps = t.update_ps};
}

std::int64_t KindsModel::least_bytes(const KindsSums& sums, int stage, std::int64_t from,
                                     std::int64_t to) {
  const auto a = as_index(from), b = as_index(to);
  const std::int64_t flight = problem_.in_flight(stage);
  std::int64_t bytes = sums.persistent_bytes[b] - sums.persistent_bytes[a] +
                       flight * (sums.stash_bytes[b] - sums.stash_bytes[a]);
  if (stage == 0) bytes += embedding().persistent_bytes;
  if (stage + 1 == problem_.stages) bytes += head().persistent_bytes;
  return bytes;
}

plan::Stage KindsModel::stage_of(const KindsChoice& c, std::int64_t from, std::int64_t to) const {
  plan::Stage stage;
  for (std::int64_t layer = from; layer < to; ++layer) {
    const std::size_t g = group_of(layer);
    if (layer == from || g != group_of(layer - 1))
      stage.runs.push_back({0, options()[g][c.options[g]].strategy});
    ++stage.runs.back().count;
  }
  return stage;
}

plan::Plan KindsModel::plan_of(const KindsChoice& c, const std::vector<std::int64_t>& ends) const {
  plan::Plan plan = stages_.frame(problem_);
  std::int64_t from = 0;
  for (const std::int64_t to : ends) {
    plan.stages.push_back(stage_of(c, from, to));
    from = to;
  }
  plan.virtual_stages = as_int(ends.size()) / problem_.stages;
  return plan::canonical(std::move(plan));
}

/// Of the stages before only the layers in front count (costmodel/closed_form/closed_form.h).
std::int64_t KindsModel::peak_bytes(const KindsChoice& c, int stage, std::int64_t from,
                                    std::int64_t to) {
  ticks_ += kTicksOfPeak;
  plan::Plan plan = stages_.frame(problem_);
  plan.stages.resize(as_index(problem_.stages));
  if (stage > 0) plan.stages[as_index(stage) - 1] = stage_of(c, 0, from);
  plan.stages[as_index(stage)] = stage_of(c, from, to);
  return costmodel::stage_peak_bytes(costs_, plan, stage);
}

}  // namespace orrery::search
