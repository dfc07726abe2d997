#include "search/rank_model.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/schedule.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;
using plan::LayerStrategy;
using plan::Schedule;

std::int64_t cycle_of(const LayerCost& c) { return c.forward_ps + c.backward_ps + c.weight_ps; }
std::int64_t sync_of(const LayerCost& c) { return c.backward_sync_ps - c.backward_ps; }
std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr int kMostVirtualStages = 16;  // a sixteenth of the bubble is left
constexpr int kAround = 8;              // layers of a rank more or fewer than the mean

/// Bytes that a micro-batch leaves behind between its forward and its backward, and between backward and weight gradients.
std::int64_t forward_bytes(const LayerCost& c) { return c.forward.delta_bytes; }
std::int64_t backward_bytes(const LayerCost& c) {
  return c.backward.delta_bytes + (c.reduces_per_micro_batch && !c.splits ? c.sync.delta_bytes : 0);
}

/// No worse in any time that the rank program sums or compares, nor in bytes.
bool beats(const LayerCost& a, const LayerCost& b) {
  const auto unfilled = [](const LayerCost& c) { return c.forward_ps + c.backward_sync_ps - c.weight_ps; };
  return a.forward_ps <= b.forward_ps && a.backward_ps <= b.backward_ps && a.backward_sync_ps <= b.backward_sync_ps && sync_of(a) <= sync_of(b) &&
         a.weight_ps <= b.weight_ps && a.weight_sync_ps <= b.weight_sync_ps && unfilled(a) <= unfilled(b) &&
         a.zero_gradient_ps <= b.zero_gradient_ps && a.update_ps - a.zero_gradient_ps <= b.update_ps - b.zero_gradient_ps &&
         dominates(memory_of(a), memory_of(b)) && a.weight.peak_bytes <= b.weight.peak_bytes && a.weight.delta_bytes >= b.weight.delta_bytes;
}

/// Sequence parallelism over one rank is none; what does not lie otherwise does not count (costmodel::plan_cost).
LayerStrategy layout_of(const LayerStrategy& s) {
  return {.tp = s.tp, .dp = s.dp, .sequence_parallel = s.sequence_parallel && s.tp > 1, .cp = s.cp, .strided = s.strided && s.tp > 1 && s.replicas() > 1};
}

}  // namespace

/// The least of one layout over ranks and options.
struct RankModel::Floor {
  std::int64_t cycle_ps = kForbidden, sync_ps = kForbidden, update_ps = kForbidden;
  std::int64_t unfilled_ps = kForbidden, filled_ps = kForbidden, tail_ps = kForbidden;  // ZB-H1
  std::int64_t receive_ps = 0;                    // Σ f + b of the way in and out
  std::int64_t activation_ps = 0, gradient_ps = 0;  // least of one transfer
};

/// Numbers of layers that are known to fit a rank with an option, and not to.
struct RankModel::Capacity {
  int fits = 0, fails = std::numeric_limits<int>::max();
};

/// What all vocabularies of a problem share.
struct RankModel::Frame {
  std::vector<const Table*> tables;                          // [rank]
  std::vector<Floor> floors;                                 // [layout]
  std::vector<std::vector<std::int64_t>> activation_ps, gradient_ps;  // [layout][rank that receives]
  std::map<CapacityKey, Capacity> capacity;                  // of ranks without embedding and head
};

/// Embedding and head, with the changes of layout at them (null: none).
struct RankModel::Ends {
  const LayerCost *embedding = nullptr, *head = nullptr, *in = nullptr, *out = nullptr;
  std::int64_t stream_bytes = 0;  // in the layers' layout
  std::int64_t zero_loss_ps = 0;
  [[nodiscard]] std::int64_t total_ps() const { return cycle_of(*embedding) + head->forward_ps + head->backward_ps; }
};

/// One layout on one number of virtual stages.
struct RankModel::Way {
  std::int64_t bound_ps = 0;
  int virtual_stages = 1;
  std::size_t layout = 0;
  Ends ends;
};

RankModel::RankModel(costmodel::LayerCosts& costs, const Space& space, StageModel& stages, std::int64_t memory_bytes)
    : costs_(costs), cost_(costs.cost()), space_(space), stages_(stages), memory_bytes_(memory_bytes) {}
RankModel::~RankModel() = default;

std::vector<int> RankModel::virtual_stages(const PlanProblem& problem) const {
  const int layers = static_cast<int>(cost_.model().layers), p = problem.stages;
  std::vector<int> result;
  if (p < 2) return result;
  if (problem.schedule == Schedule::kZeroBubbleH1) {
    if (problem.micro_batches >= p) result.push_back(1);
    return result;
  }
  if (problem.micro_batches % p != 0) return result;
  for (int v = std::min(layers / p, kMostVirtualStages); v >= 2; --v) {
    if (space_.fix_virtual_stages && *space_.fix_virtual_stages != v) continue;
    if (!space_.even_stages || layers % (p * v) == 0) result.push_back(v);
  }
  return result;
}

plan::LayerContext RankModel::context(const PlanProblem& problem) const {
  plan::LayerContext c = stages_.context(problem.micro_batches, problem.stages);
  c.split_backward = problem.schedule == Schedule::kZeroBubbleH1;
  return c;
}

const RankModel::Table& RankModel::table(const PlanProblem& problem, int rank) {
  const int first_rank = costs_.canonical_rank(rank * problem.devices, problem.devices);
  const plan::LayerContext c = context(problem);
  const auto [place, fresh] = tables_.try_emplace({problem.devices, problem.micro_batches, first_rank, c.split_backward});
  Table& table = place->second;
  if (!fresh) return table;
  const StrategyTree& tree = stages_.layers_of(problem.devices, problem.micro_batches);
  for (std::size_t leaf = 0; leaf < tree.leaves.size(); ++leaf) {
    const LayerStrategy& s = tree.leaves[leaf];
    auto layout = std::ranges::find_if(table, [&](const Layout& l) { return l.strategy.same_layout(s); });
    if (layout == table.end()) layout = table.insert(table.end(), Layout{s, {}});
    layout->options.push_back({static_cast<std::int32_t>(leaf), &costs_.block(s, c, first_rank, problem.devices)});
  }
  for (Layout& layout : table) {
    std::vector<Option> kept;
    for (std::size_t i = 0; i < layout.options.size(); ++i) {
      const LayerCost& one = *layout.options[i].cost;
      bool beaten = false;
      for (std::size_t j = 0; j < layout.options.size() && !beaten; ++j) {
        const LayerCost& other = *layout.options[j].cost;
        beaten = j != i && beats(other, one) && (j < i || !beats(one, other));
      }
      if (!beaten) kept.push_back(layout.options[i]);
    }
    layout.options = std::move(kept);
  }
  return table;
}

RankModel::Frame& RankModel::frame(const PlanProblem& problem) {
  const bool zero_bubble = problem.schedule == Schedule::kZeroBubbleH1;
  std::unique_ptr<Frame>& slot = frames_[{problem.devices, problem.micro_batches, problem.stages, zero_bubble}];
  if (slot) return *slot;
  slot = std::make_unique<Frame>();
  const int p = problem.stages, d = problem.devices;
  for (int r = 0; r < p; ++r) slot->tables.push_back(&table(problem, r));
  for (std::size_t l = 0; l < slot->tables.front()->size(); ++l) {
    Floor floor;
    for (const Table* t : slot->tables) {
      for (const Option& o : (*t)[l].options) {
        const LayerCost& c = *o.cost;
        floor.cycle_ps = std::min(floor.cycle_ps, cycle_of(c));
        floor.sync_ps = std::min(floor.sync_ps, sync_of(c));
        floor.update_ps = std::min(floor.update_ps, c.update_ps);
        floor.unfilled_ps = std::min(floor.unfilled_ps, c.forward_ps + c.backward_sync_ps - c.weight_ps);
        floor.filled_ps = std::min({floor.filled_ps, c.forward_ps, c.backward_ps, c.weight_ps});
        floor.tail_ps = std::min(floor.tail_ps, c.weight_sync_ps);
      }
    }
    const std::int64_t bytes = stages_.stream_bytes((*slot->tables.front())[l].strategy, problem.micro_batches);
    std::vector<std::int64_t> activation(static_cast<std::size_t>(p)), gradient(activation);
    for (int r = 0; r < p; ++r) {
      const int before = (r + p - 1) % p, behind = (r + 1) % p;
      const bool first = zero_bubble && r == 0, last = zero_bubble && r == p - 1;  // virtual stages go round
      activation[static_cast<std::size_t>(r)] = first ? 0 : costs_.exchange_ps(before * d, d, (r - before) * d, bytes);
      gradient[static_cast<std::size_t>(r)] = last ? 0 : costs_.exchange_ps(behind * d, d, (r - behind) * d, bytes);
      floor.receive_ps += (r == 0 ? 0 : activation[static_cast<std::size_t>(r)]) + gradient[static_cast<std::size_t>(r)];
    }
    if (!zero_bubble && !cost_.overlaps()) floor.receive_ps -= activation.back() + gradient.back();
    floor.activation_ps = std::ranges::min(activation);
    floor.gradient_ps = std::ranges::min(gradient);
    slot->floors.push_back(floor);
    slot->activation_ps.push_back(std::move(activation));
    slot->gradient_ps.push_back(std::move(gradient));
  }
  return *slot;
}

RankModel::Ends RankModel::ends(const PlanProblem& problem, const LayerStrategy& layout) {
  const plan::LayerContext c = context(problem);
  const int d = problem.devices, last = (problem.stages - 1) * d;
  Ends e;
  e.embedding = &costs_.embedding(problem.vocabulary, c, 0, d);
  e.head = &costs_.head(problem.vocabulary, c, last, d);
  if (!layout.same_layout(problem.vocabulary)) {
    e.in = &costs_.reshard(layout_of(problem.vocabulary), layout_of(layout), c, 0, d);
    e.out = &costs_.reshard(layout_of(layout), layout_of(problem.vocabulary), c, last, d);
  }
  e.stream_bytes = stages_.stream_bytes(layout, problem.micro_batches);
  e.zero_loss_ps = stages_.zero_loss_ps();
  return e;
}

std::int64_t RankModel::bound(const PlanProblem& problem, const Floor& f, const Ends& e, int v) const {
  const std::int64_t layers = cost_.model().layers, p = problem.stages, m = problem.micro_batches, most = up(layers, p);
  const std::int64_t steady = std::max(most * f.cycle_ps, up(layers * f.cycle_ps + e.total_ps(), p));
  const std::int64_t once = v * f.update_ps + e.embedding->update_ps + f.receive_ps;
  if (problem.schedule == Schedule::kZeroBubbleH1) {
    const std::int64_t ends = e.embedding->forward_ps + e.embedding->backward_sync_ps - e.embedding->weight_ps + e.head->forward_ps + e.head->backward_sync_ps;
    const std::int64_t held = cost_.overlaps() ? 0 : std::min(f.activation_ps, f.gradient_ps);
    return (m - 1) * (steady + held) + layers * f.unfilled_ps + ends + once + most * (f.tail_ps + f.filled_ps);
  }
  const std::int64_t held = cost_.overlaps() ? 0 : (v - 1) * (f.activation_ps + f.gradient_ps);
  const std::int64_t elsewhere = layers - steady / f.cycle_ps - 1 - (p - 1) * (v - 1);
  const std::int64_t filling = std::max(p - 1, elsewhere > 0 ? up(elsewhere, v) : 0) * f.cycle_ps + cycle_of(*e.embedding);
  return m * (steady + held) + filling + once + (most + p - 1) * f.sync_ps + sync_of(*e.embedding);
}

std::vector<RankModel::Way> RankModel::ways(const PlanProblem& problem) {
  std::vector<Way> result;
  const std::vector<int> degrees = virtual_stages(problem);
  if (degrees.empty()) return result;
  const Frame& f = frame(problem);
  for (std::size_t l = 0; l < f.floors.size(); ++l) {
    const Ends e = ends(problem, (*f.tables.front())[l].strategy);
    for (const int v : degrees) result.push_back({bound(problem, f.floors[l], e, v), v, l, e});
  }
  std::ranges::stable_sort(result, {}, &Way::bound_ps);
  return result;
}

std::int64_t RankModel::quick_bound(const PlanProblem& problem) {
  const std::vector<Way> all = ways(problem);
  return all.empty() ? kForbidden : all.front().bound_ps;
}

std::int64_t RankModel::layers_bound(const PlanProblem& problem) {
  const std::vector<int> degrees = virtual_stages(problem);
  std::int64_t least = kForbidden;
  if (degrees.empty()) return least;
  const std::int64_t cycles = degrees.front() > 1 ? problem.micro_batches : problem.micro_batches - 1;
  for (const Floor& f : frame(problem).floors) least = std::min(least, cycles * up(cost_.model().layers, problem.stages) * f.cycle_ps);
  return least;
}

RankChoice RankModel::choice(const PlanProblem& problem, const Frame& frame, const Way& way, int rank, const Option& option, int layers) const {
  const LayerCost& c = *option.cost;
  const Ends& e = way.ends;
  const int v = way.virtual_stages, p = problem.stages;
  const bool first = rank == 0, last = rank == p - 1;
  const std::int64_t n = layers, front = layers / v;
  std::int64_t forward = front * c.forward_ps, backward = front * c.backward_ps, synced = front * c.backward_sync_ps;
  std::int64_t weight = n * c.weight_ps, weight_synced = n * c.weight_sync_ps, zero = n * c.zero_gradient_ps, update = n * c.update_ps;
  std::int64_t cycle = (n - front) * (c.forward_ps + c.backward_ps), tail = (n - front) * sync_of(c);
  const auto change = [&](const LayerCost* r) {
    if (r == nullptr) return;
    forward += r->forward_ps, backward += r->backward_ps, synced += r->backward_ps;
  };
  const auto own = [&](const LayerCost& o) {
    zero += o.zero_gradient_ps, update += o.update_ps;
    forward += o.forward_ps, backward += o.backward_ps, synced += o.backward_sync_ps;
  };
  if (first) {
    own(*e.embedding), change(e.in);
    weight += e.embedding->weight_ps, weight_synced += e.embedding->weight_sync_ps;
  }
  if (last && v == 1) {
    own(*e.head), change(e.out);
  } else if (last) {
    zero += e.head->zero_gradient_ps, update += e.head->update_ps;
    cycle += e.head->forward_ps + e.head->backward_ps + (e.out == nullptr ? 0 : e.out->forward_ps + e.out->backward_ps);
    tail += sync_of(*e.head);
  }
  if (last) zero += e.zero_loss_ps, update += e.zero_loss_ps;
  const auto r = static_cast<std::size_t>(rank);
  const std::int64_t activation = frame.activation_ps[way.layout][r], gradient = frame.gradient_ps[way.layout][r];
  const std::int64_t wait = first ? 0 : activation;
  if (!cost_.overlaps()) cycle += (v - (first ? 1 : 0)) * activation + (v - (last ? 1 : 0)) * gradient;
  RankChoice result{.layers = layers, .option = option.leaf, .zero_ps = zero, .update_ps = update - zero, .forward_ps = wait + forward,
                    .backward_ps = synced + gradient, .cycle_ps = cycle + forward + backward + weight, .tail_ps = tail, .filled_ps = 0};
  if (problem.schedule == Schedule::kZeroBubbleH1) {
    result.tail_ps = weight_synced;
    result.filled_ps = std::min({forward, backward, weight});
  } else if (last) {
    result.forward_ps -= forward + backward + (cost_.overlaps() ? 0 : wait + gradient);
  }
  return result;
}

/// What the first backward behind the warm-up finds alive, and needs itself; with ZB-H1 the first one that weight gradients follow. Up to there
/// passes add what they leave behind, exactly.
std::int64_t RankModel::least_bytes(const PlanProblem& problem, const Way& way, int rank, const Held& held, const LayerCost& c, int layers) {
  const Ends& e = way.ends;
  const std::int64_t p = problem.stages, v = way.virtual_stages;
  const bool first = rank == 0, last = rank == p - 1;
  std::int64_t persistent = layers * c.persistent_bytes;
  std::int64_t front = 0, back = 0, front_spent = 0;  // beside the layers: of the rank's first stage, of its last
  if (first) {
    persistent += e.embedding->persistent_bytes;
    front = forward_bytes(*e.embedding) + (e.in == nullptr ? 0 : forward_bytes(*e.in)) - e.stream_bytes;
    front_spent = backward_bytes(*e.embedding) + (e.in == nullptr ? 0 : backward_bytes(*e.in)) + e.stream_bytes;
  }
  if (last) {
    persistent += e.head->persistent_bytes + model::element_bytes(model::DType::kFloat32);
    back = e.stream_bytes + (e.out == nullptr ? 0 : forward_bytes(*e.out)) + forward_bytes(*e.head) +
           (e.head->reduces_per_micro_batch ? e.head->sync.delta_bytes : 0);
    front_spent = (e.out == nullptr ? 0 : backward_bytes(*e.out)) - e.stream_bytes;
  }
  const std::int64_t running = (last ? 0 : e.stream_bytes) + c.backward.peak_bytes;
  if (problem.schedule == Schedule::kZeroBubbleH1) {
    const std::int64_t stash = layers * forward_bytes(c) + front + back, spent = layers * backward_bytes(c) + front_spent;
    return persistent + std::max((p - rank) * stash, p * stash + rank * spent) + running;
  }
  // Stage k of the rank has layers / v of its layers, the last layers % v of its stages one more.
  const std::int64_t stage_layers = layers / v * held.behind.front() + held.behind[static_cast<std::size_t>(v - layers % v)];
  const std::int64_t alive = stage_layers * forward_bytes(c) + held.first * front + held.last * back;
  return persistent + alive + (held.all ? 0 : running);
}

/// Micro-batches that each virtual stage of a rank has forwarded when its first backward begins (plan::pass_order).
RankModel::Held RankModel::held_by(const PlanProblem& problem, int v, int rank) {
  const std::int64_t p = problem.stages, m = problem.micro_batches, forwards = std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
  Held held{.behind = std::vector<std::int64_t>(static_cast<std::size_t>(v) + 1, 0), .first = 0, .last = 0, .all = forwards == m * v};
  for (std::int64_t k = v; k-- > 0;) {
    const std::int64_t own = forwards / (p * v) * p + std::clamp<std::int64_t>(forwards % (p * v) - k * p, 0, p);
    held.behind[static_cast<std::size_t>(k)] = held.behind[static_cast<std::size_t>(k) + 1] + own;
    if (k == 0) held.first = own;
    if (k == v - 1) held.last = own;
  }
  return held;
}

plan::Plan RankModel::blank(const PlanProblem& problem, int v, const LayerStrategy& strategy) const {
  plan::Plan plan = stages_.frame(problem);
  plan.virtual_stages = v;
  plan.stages.assign(static_cast<std::size_t>(problem.stages * v), plan::Stage{.runs = {{1, strategy}}});
  return plan;
}

/// Memory of a rank by the plan that it is part of; of the others only the layout counts.
class RankModel::Check {
 public:
  Check(RankModel& model, const PlanProblem& problem, int v, const LayerStrategy& layout)
      : model_(model), tree_(model.stages_.layers_of(problem.devices, problem.micro_batches)), plan_(model.blank(problem, v, layout)) {}
  /// Learns how many layers fit when these do not.
  bool fits(std::size_t rank, RankChoice choice, Capacity& known) {
    const int asked = choice.layers;
    known.fits = std::max(known.fits, plan_.virtual_stages - 1);  // fewer are no choice
    choice.layers = std::min(asked, known.fails - 1);
    while (known.fits < asked && known.fits + 1 < known.fails) {
      (peak(rank, choice) <= model_.memory_bytes_ ? known.fits : known.fails) = choice.layers;
      choice.layers = std::midpoint(known.fits, known.fails);
    }
    return asked <= known.fits;
  }
  std::int64_t peak(std::size_t rank, const RankChoice& choice) {
    place(rank, choice);
    return costmodel::stage_peak_bytes(model_.costs_, plan_, static_cast<int>(rank));
  }
  void place(std::size_t rank, const RankChoice& choice) {
    const int v = plan_.virtual_stages;
    const auto p = static_cast<std::size_t>(plan_.pipeline_degree());
    for (int k = 0; k < v; ++k) {
      const int count = choice.layers / v + (k >= v - choice.layers % v ? 1 : 0);
      plan_.stages[static_cast<std::size_t>(k) * p + rank].runs = {{count, tree_.leaves[static_cast<std::size_t>(choice.option)]}};
    }
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }

 private:
  RankModel& model_;
  const StrategyTree& tree_;
  plan::Plan plan_;
};

/// Choices whose cycles stay below the cutoff, that the other ranks can complete, and that are not known to be too large.
RankProblem RankModel::ranks(const PlanProblem& problem, const Way& way, std::int64_t cutoff_ps) {
  const Frame& f = frame(problem);
  const int layers = static_cast<int>(cost_.model().layers), p = problem.stages, v = way.virtual_stages;
  const int first = space_.even_stages ? layers / p : std::max(v, layers / p - kAround);
  const int end = space_.even_stages ? first : std::min(layers - (p - 1) * v, layers / p + kAround);
  RankProblem result{.ranks = {}, .layers = layers, .cycles = v > 1 ? problem.micro_batches : problem.micro_batches - 1};
  const auto options = [&](int r) -> const std::vector<Option>& { return (*f.tables[static_cast<std::size_t>(r)])[way.layout].options; };
  // A cycle grows by the same with every layer.
  const std::int64_t limit = (cutoff_ps - 1) / result.cycles;
  std::vector<int> largest;
  int most = 0;
  for (int r = 0; r < p; ++r) {
    largest.push_back(0);
    const Held held = held_by(problem, v, r);
    for (const Option& o : options(r)) {
      const std::int64_t spare = limit - choice(problem, f, way, r, o, first).cycle_ps;
      if (spare < 0) continue;
      int n = static_cast<int>(std::min<std::int64_t>(end, first + spare / cycle_of(*o.cost)));
      while (n > largest.back() && n >= first && least_bytes(problem, way, r, held, *o.cost, n) > memory_bytes_) --n;
      if (n >= first) largest.back() = std::max(largest.back(), n);
    }
    most += largest.back();
  }
  if (most < layers) return {.ranks = {{}}, .layers = layers};  // no answer below the cutoff
  for (int r = 0; r < p; ++r) {
    std::vector<RankChoice>& choices = result.ranks.emplace_back();
    const int least = std::max(first, layers - (most - largest[static_cast<std::size_t>(r)]));
    const Held held = held_by(problem, v, r);
    for (const Option& o : options(r)) {
      const auto known = f.capacity.find({v, way.layout, r, o.leaf});
      const int fails = known == f.capacity.end() ? layers + 1 : known->second.fails;
      for (int n = least; n <= end && n < fails; ++n) {
        if (least_bytes(problem, way, r, held, *o.cost, n) > memory_bytes_) break;
        const RankChoice c = choice(problem, f, way, r, o, n);
        if (c.cycle_ps > limit) break;
        choices.push_back(c);
      }
    }
    if (choices.empty()) break;  // no answer
  }
  return result;
}

std::optional<RankModel::Answer> RankModel::solve(const PlanProblem& problem, std::int64_t cutoff_ps, Effort& effort) {
  const std::vector<Way> all = ways(problem);
  if (all.empty()) return std::nullopt;
  // What stands below a low cutoff is found quickly, and it is the best there is. An incumbent is a low cutoff.
  for (const std::int64_t sixteenths : {20, 32}) {
    const std::int64_t near = all.front().bound_ps / 16 * sixteenths;
    if (near >= cutoff_ps / 2) break;
    if (std::optional<Answer> answer = cheapest(problem, all, near, effort)) return answer;
  }
  return cheapest(problem, all, cutoff_ps, effort);
}

std::optional<RankModel::Answer> RankModel::cheapest(const PlanProblem& problem, const std::vector<Way>& all, std::int64_t cutoff_ps,
                                                     Effort& effort) {
  std::optional<Answer> best;
  for (const Way& way : all) {
    if (way.bound_ps >= cutoff_ps || effort.exhausted) break;
    RankProblem ranked = ranks(problem, way, cutoff_ps);
    if (ranked.ranks.back().empty()) continue;
    std::optional<Check> checker;          // made for the first answer: most ways have none
    std::map<CapacityKey, Capacity> ends;  // of the first and the last rank
    for (;;) {
      const auto answer = solve_ranks(ranked, cutoff_ps, effort);
      if (!answer) break;
      if (!checker) checker.emplace(*this, problem, way.virtual_stages, (*frame(problem).tables.front())[way.layout].strategy);
      Check& check = *checker;
      bool fits = true;
      for (std::size_t r = 0; r < answer->choices.size(); ++r) {
        const RankChoice& c = answer->choices[r];
        const bool middle = r > 0 && r + 1 < answer->choices.size();
        Capacity& known = (middle ? frame(problem).capacity : ends)[{way.virtual_stages, way.layout, static_cast<int>(r), c.option}];
        if (check.fits(r, c, known)) continue;
        fits = false;
        std::erase_if(ranked.ranks[r], [&](const RankChoice& other) { return other.option == c.option && other.layers >= known.fails; });
      }
      if (!fits) continue;
      for (std::size_t r = 0; r < answer->choices.size(); ++r) check.place(r, answer->choices[r]);
      cutoff_ps = answer->cost_ps;
      best = Answer{answer->cost_ps, check.plan()};
      break;
    }
  }
  return best;
}

/// For each way least[k] = min over n of max(least[k - n] of the ranks before, least peak of the rank with n layers).
plan::Plan RankModel::lightest(const PlanProblem& problem) {
  const int layers = static_cast<int>(cost_.model().layers), p = problem.stages;
  const Frame& f = frame(problem);
  plan::Plan best;
  std::int64_t least = kForbidden;
  for (const Way& way : ways(problem)) {
    struct Cell {
      std::int64_t peak = kForbidden;
      std::vector<RankChoice> choices;
    };
    Check check(*this, problem, way.virtual_stages, (*f.tables.front())[way.layout].strategy);
    std::vector<Cell> cells(static_cast<std::size_t>(layers) + 1);
    cells[0].peak = 0;
    for (int r = 0; r < p; ++r) {
      const Held held = held_by(problem, way.virtual_stages, r);
      std::vector<Cell> after(cells.size());
      for (int n = std::max(way.virtual_stages, layers / p - kAround); n <= layers / p + kAround; ++n) {
        RankChoice lightest;
        std::int64_t peak = least;
        for (const Option& o : (*f.tables[static_cast<std::size_t>(r)])[way.layout].options) {
          if (least_bytes(problem, way, r, held, *o.cost, n) >= peak) continue;
          const RankChoice c{.layers = n, .option = o.leaf};
          const std::int64_t own = check.peak(static_cast<std::size_t>(r), c);
          if (own < peak) peak = own, lightest = c;
        }
        for (int k = 0; peak < least && k + n <= layers; ++k) {
          const Cell& from = cells[static_cast<std::size_t>(k)];
          Cell& to = after[static_cast<std::size_t>(k + n)];
          if (std::max(from.peak, peak) >= to.peak) continue;
          to = {std::max(from.peak, peak), from.choices};
          to.choices.push_back(lightest);
        }
      }
      cells = std::move(after);
    }
    if (cells.back().peak >= least) continue;
    least = cells.back().peak;
    for (int r = 0; r < p; ++r) check.place(static_cast<std::size_t>(r), cells.back().choices[static_cast<std::size_t>(r)]);
    best = check.plan();
  }
  return best;
}

}  // namespace orrery::search
