#include "search/solvers/rank_solver.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "plan/program/schedule.h"
#include "search/status.h"

namespace orrery::search {
namespace {

using costmodel::LayerCost;
using plan::LayerStrategy;
using plan::Schedule;

constexpr int kAround = 8;  // layers of a rank more or fewer than the mean

/// No worse in anything that the rank program sums or compares.
bool beats(const RankChoice& a, const RankChoice& b) {
  return a.cycle_ps <= b.cycle_ps && a.forward_ps <= b.forward_ps &&
         a.backward_ps <= b.backward_ps && a.tail_ps <= b.tail_ps && a.filled_ps >= b.filled_ps &&
         a.zero_ps <= b.zero_ps && a.update_ps <= b.update_ps;
}

/// Adds a choice to those from `first` on, of as many layers, unless one beats it; drops those that
/// it beats.
void offer(std::vector<RankChoice>& choices, std::size_t first, const RankChoice& one) {
  const auto begin = choices.begin() + static_cast<std::ptrdiff_t>(first);
  if (std::any_of(begin, choices.end(), [&](const RankChoice& kept) { return beats(kept, one); }))
    return;
  choices.erase(std::remove_if(begin, choices.end(),
                               [&](const RankChoice& kept) { return beats(one, kept); }),
                choices.end());
  choices.push_back(one);
}

}  // namespace

RankSolver::RankSolver(costmodel::LayerCosts& costs, const Space& space, StageModel& stages)
    : costs_(costs), cost_(costs.cost()), space_(space), stages_(stages), tables_(costs, stages) {}

RankSolver::Case RankSolver::with_vocabulary(const PlanProblem& problem) {
  Family& f = family(problem);
  return {problem, f, std::vector<std::optional<RankEnds>>(f.frame.floors.size()), {}};
}

const RankEnds& RankSolver::ends(Case& c, std::size_t layout) {
  std::optional<RankEnds>& known = c.ends[layout];
  if (known) return *known;
  const PlanProblem& problem = c.problem;
  const int d = problem.devices, last = (problem.stages - 1) * d;
  // neither end has weight passes of its own
  const plan::LayerContext context = stages_.context(problem.micro_batches, problem.stages);
  const LayerStrategy& s = c.family.frame.layout(0, layout).strategy;
  known = RankEnds{.embedding = &costs_.embedding(problem.vocabulary, context, 0, d),
                   .head = &costs_.head(problem.vocabulary, context, last, d),
                   .stream_bytes = c.family.frame.transfers[layout].bytes,
                   .zero_loss_ps = stages_.zero_loss_ps(problem)};
  if (s.same_layout(problem.vocabulary)) return *known;
  known->in = &costs_.reshard(problem.vocabulary, s, context, 0, d);
  known->out = &costs_.reshard(s, problem.vocabulary, context, last, d);
  return *known;
}

RankPlace RankSolver::place(const PlanProblem& problem, const RankFrame& frame, const Way& way,
                            const RankEnds& ends, int rank) const {
  return {problem, frame.transfers[way.layout], ends, way.virtual_stages, rank, cost_.overlaps()};
}

RankSpan RankSolver::span(const PlanProblem& problem, int v) const {
  const int layers = as_int(cost_.model().layers), p = problem.stages;
  if (space_.even_stages) return {layers / p, layers / p};
  const int around = cost_.mixed() ? layers : kAround;
  return {std::max(v, layers / p - around), std::min(layers - (p - 1) * v, layers / p + around)};
}

/// The header's bound, with a cycle of at least `cycle_ps`.
std::int64_t RankSolver::bound_of(const PlanProblem& problem, const RankFrame& frame,
                                  const Way& way, const RankEnds& ends, const RankFloor& f,
                                  std::int64_t cycle_ps) const {
  static const LayerCost kNothing;
  const LayerCost& embedding = ends.embedding == nullptr ? kNothing : *ends.embedding;
  const LayerCost& head = ends.head == nullptr ? kNothing : *ends.head;
  const RankTransfers& t = frame.transfers[way.layout];
  const std::int64_t layers = cost_.model().layers, p = problem.stages, m = problem.micro_batches,
                     v = way.virtual_stages, most = ceil_div(layers, p);
  const bool zero_bubble = problem.schedule == Schedule::kZeroBubbleH1;
  // What transfers hold of every rank's cycle.
  std::int64_t held = 0;
  if (!cost_.overlaps())
    held = zero_bubble ? std::min(t.least_activation_ps, t.least_gradient_ps)
                       : (v - 1) * (t.least_activation_ps + t.least_gradient_ps);
  const std::int64_t outer_cycle = steady_of(embedding) + head.forward_ps + head.backward_ps;
  const std::int64_t steady = std::max(
      {most * f.cycle_ps, ceil_div(layers * f.cycle_ps + outer_cycle, p), cycle_ps - held});
  const std::int64_t once = v * f.update_ps + embedding.update_ps + t.once_ps;
  if (zero_bubble) {
    const std::int64_t outer = embedding.forward_ps + embedding.backward_sync_ps -
                               embedding.weight_ps + head.forward_ps + head.backward_sync_ps;
    const std::int64_t apart = (m - 1) * steady + layers * f.unfilled_ps;
    const std::int64_t together =
        m <= p ? apart : (m - 1 - p) * steady + layers * f.cycle_and_unfilled_ps + outer_cycle;
    return std::max(apart, together) + (m - 1) * held + outer + once +
           most * (f.tail_ps + f.filled_ps);
  }
  const std::int64_t elsewhere = layers - steady / f.cycle_ps - 1 - (p - 1) * (v - 1);
  const std::int64_t filling =
      std::max(p - 1, elsewhere > 0 ? ceil_div(elsewhere, v) : 0) * f.cycle_ps +
      steady_of(embedding);
  return m * (steady + held) + filling + once + (most + p - 1) * f.sync_ps + sync_of(embedding) +
         layers * f.energy_ps + head.energy_ps;
}

RankSolver::Family& RankSolver::family(const PlanProblem& problem) {
  const auto key =
      std::tuple(problem.devices, problem.micro_batches, problem.stages, problem.schedule);
  if (const auto known = families_.find(key); known != families_.end()) return known->second;
  Family& f = families_.try_emplace(key, Family{tables_.frame(problem), {}, {}}).first->second;
  for (std::size_t l = 0; l < f.frame.floors.size(); ++l) {
    for (const int v : stages_.virtual_stages(problem)) {
      Way way{.virtual_stages = v, .layout = l};
      way.bound_ps = bound_of(problem, f.frame, way, RankEnds{}, f.frame.floors[l], 0);
      f.ways.push_back(way);
    }
  }
  std::ranges::stable_sort(f.ways, {}, &Way::bound_ps);
  return f;
}

/// Puts at `at` the way of the least bound of those from there on, with memory if it is below the
/// cutoff.
void RankSolver::make_room(const PlanProblem& problem, Family& f, std::size_t at,
                           std::int64_t cutoff_ps) {
  while (at < f.ways.size() && f.ways[at].room == nullptr && f.ways[at].bound_ps < cutoff_ps) {
    Way& way = f.ways[at];
    const RankEnds none{.stream_bytes = f.frame.transfers[way.layout].bytes};
    const RankSpan layers = span(problem, way.virtual_stages);
    std::vector<RankFit> ranks;
    for (int r = 0; r < problem.stages; ++r) {
      ranks.push_back(fit_of(place(problem, f.frame, way, none, r),
                             f.frame.layout(as_index(r), way.layout), layers,
                             stages_.memory_bytes(problem, r)));
    }
    way.room = &f.rooms.emplace_back(layers, std::move(ranks));
    const std::int64_t cycle = way.room->least_cycle_ps(as_int(cost_.model().layers));
    RankFloor floor = f.frame.floors[way.layout];
    floor.cycle_ps = way.room->least_layer_ps();
    way.bound_ps =
        cycle >= kForbidden ? kForbidden : bound_of(problem, f.frame, way, none, floor, cycle);
    const auto here = f.ways.begin() + static_cast<std::ptrdiff_t>(at);
    std::rotate(here, here + 1,
                std::ranges::upper_bound(here + 1, f.ways.end(), way.bound_ps, {}, &Way::bound_ps));
  }
}

Solver::Bound RankSolver::family_bound(const PlanProblem& problem, std::int64_t cutoff_ps) {
  Family& f = family(problem);
  make_room(problem, f, 0, cutoff_ps);
  return {f.ways.empty() ? kForbidden : f.ways.front().bound_ps, cutoff_ps};
}

RankFit RankSolver::fit(Case& c, const Way& way, int rank) {
  const RankFrame& frame = c.family.frame;
  return fit_of(place(c.problem, frame, way, ends(c, way.layout), rank),
                frame.layout(as_index(rank), way.layout), way.room->span(),
                stages_.memory_bytes(c.problem, rank));
}

/// Between the ends the vocabulary does not matter.
RankCapacity& RankSolver::capacity(Case& c, const Way& way, int rank, std::int32_t option) {
  const bool end = rank == 0 || rank + 1 == c.problem.stages;
  return end ? c.capacity[{way.room, rank, option}] : way.room->capacity(rank, option);
}

/// @pre the way has its room.
std::int64_t RankSolver::bound_of(Case& c, const Way& way) {
  const RankFit first = fit(c, way, 0), last = fit(c, way, c.problem.stages - 1);
  const std::int64_t cycle = way.room->least_cycle_ps(first, last, as_int(cost_.model().layers));
  if (cycle >= kForbidden) return kForbidden;
  RankFloor floor = c.family.frame.floors[way.layout];
  floor.cycle_ps = way.room->least_layer_ps();
  return bound_of(c.problem, c.family.frame, way, ends(c, way.layout), floor, cycle);
}

Solver::Bound RankSolver::bound(const PlanProblem& problem, std::int64_t cutoff_ps) {
  Case c = with_vocabulary(problem);
  Bound least{kForbidden, cutoff_ps};
  for (std::size_t i = 0; i < c.family.ways.size(); ++i) {
    make_room(problem, c.family, i, cutoff_ps);
    const Way& way = c.family.ways[i];
    if (way.bound_ps >= least.ps) break;
    least.ps = std::min(least.ps, way.bound_ps < cutoff_ps ? bound_of(c, way) : way.bound_ps);
    if (way.bound_ps >= cutoff_ps) break;
  }
  return least;
}

RankChoice RankSolver::choice(const RankPlace& place, const RankOption& option, int layers) const {
  const LayerCost& c = *option.cost;
  const RankEnds& e = place.ends;
  const int v = place.virtual_stages;
  const bool first = place.first(), last = place.last();
  PassTimes pass, all;  // through the rank's first stage, through the rank
  pass.add(c, layers / v);
  all.add(c, layers);
  std::int64_t tail = (layers - layers / v) * sync_time_of(c),
               energy = (layers - layers / v) * c.energy_ps;  // beside that of the first stage
  if (first) {
    all.add(*e.embedding);
    pass.add(*e.embedding);
    if (e.in != nullptr) pass.add(*e.in);
  }
  if (last) {
    all.add(*e.head);
    all.start_ps += e.zero_loss_ps;
  }
  if (last && v == 1) {
    pass.add(*e.head);
    if (e.out != nullptr) pass.add(*e.out);
  } else if (last) {
    tail += sync_time_of(*e.head);
    energy += e.head->energy_ps;
  }
  const auto r = as_index(place.rank);
  const std::int64_t wait = first ? 0 : place.transfers.activation_ps[r],
                     gradient = place.transfers.gradient_ps[r];
  RankChoice result{.layers = layers,
                    .option = option.leaf,
                    .zero_ps = all.start_ps,
                    .update_ps = all.update_ps,
                    .forward_ps = wait + pass.forward_ps,
                    .backward_ps = pass.backward_sync_ps + energy + gradient,
                    .cycle_ps = place.cycle_ps() + layers * steady_of(c),
                    .tail_ps = tail,
                    .filled_ps = 0};
  if (place.problem.schedule == Schedule::kZeroBubbleH1) {
    result.tail_ps = all.weight_sync_ps;
    result.filled_ps = std::min({pass.forward_ps, pass.backward_ps, all.weight_ps});
  } else if (last) {
    result.forward_ps -=
        pass.forward_ps + pass.backward_ps + (place.overlaps ? 0 : wait + gradient);
  }
  return result;
}

plan::Plan RankSolver::blank(const PlanProblem& problem, int v,
                             const LayerStrategy& strategy) const {
  plan::Plan plan = stages_.frame(problem);
  plan.virtual_stages = v;
  plan.stages.assign(as_index(problem.stages * v), plan::Stage{.runs = {{1, strategy}}});
  return plan;
}

/// Memory of a rank by the plan that it is part of; of the others only the layout counts.
class RankSolver::Check {
 public:
  Check(RankSolver& model, const PlanProblem& problem, int v, const LayerStrategy& layout)
      : model_(model),
        problem_(problem),
        tree_(model.stages_.layers_of(problem.devices, problem.micro_batches)),
        plan_(model.blank(problem, v, layout)) {}
  /// Learns how many layers fit when these do not.
  bool fits(std::size_t rank, RankChoice choice, RankCapacity& known) {
    const int asked = choice.layers;
    const std::int64_t limit = model_.stages_.memory_bytes(problem_, as_int(rank));
    known.fits = std::max(known.fits, plan_.virtual_stages - 1);  // fewer are no choice
    choice.layers = std::min(asked, known.fails - 1);
    while (known.fits < asked && known.fits + 1 < known.fails) {
      (peak(rank, choice) <= limit ? known.fits : known.fails) = choice.layers;
      choice.layers = std::midpoint(known.fits, known.fails);
    }
    return asked <= known.fits;
  }
  std::int64_t peak(std::size_t rank, const RankChoice& choice) {
    place(rank, choice);
    return costmodel::stage_peak_bytes(model_.costs_, plan_, as_int(rank));
  }
  void place(std::size_t rank, const RankChoice& choice) {
    const int v = plan_.virtual_stages;
    const auto p = as_index(plan_.pipeline_degree());
    for (int k = 0; k < v; ++k) {
      const int count = choice.layers / v + (k >= v - choice.layers % v ? 1 : 0);
      plan_.stages[as_index(k) * p + rank].runs = {{count, tree_.leaves[as_index(choice.option)]}};
    }
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }

 private:
  RankSolver& model_;
  const PlanProblem& problem_;
  const StrategyTree& tree_;
  plan::Plan plan_;
};

/// Choices whose cycles stay below the cutoff, that the other ranks can complete, and that are not
/// known to be too large.
RankProblem RankSolver::ranks(Case& c, const Way& way, std::int64_t cutoff_ps) {
  const PlanProblem& problem = c.problem;
  const int layers = as_int(cost_.model().layers), p = problem.stages;
  const RankSpan& span = way.room->span();
  RankProblem result{
      .ranks = {},
      .layers = layers,
      .cycles = way.virtual_stages > 1 ? problem.micro_batches : problem.micro_batches - 1};
  const std::int64_t limit = (cutoff_ps - 1) / result.cycles;
  std::vector<int> largest;
  const auto add_largest = [&](const RankFit& fit) {
    largest.push_back(span.first - 1 +
                      as_int(std::ranges::upper_bound(fit.cycle_ps, limit) - fit.cycle_ps.begin()));
  };
  for (int r = 0; r < p; ++r) add_largest(r == 0 || r == p - 1 ? fit(c, way, r) : way.room->fit(r));
  const int most = std::accumulate(largest.begin(), largest.end(), 0);
  if (most < layers) return {.ranks = {{}}, .layers = layers};  // no answer below the cutoff
  for (int r = 0; r < p; ++r) {
    std::vector<RankChoice>& choices = result.ranks.emplace_back();
    const int greatest = largest[as_index(r)],
              least = std::max(span.first, layers - (most - greatest));
    const RankPlace at = place(problem, c.family.frame, way, ends(c, way.layout), r);
    const RankBytes bytes(at);
    const std::int64_t limit_bytes = stages_.memory_bytes(problem, r);
    const RankLayout& layout = c.family.frame.layout(as_index(r), way.layout);
    std::vector<int> fails;  // [option]
    for (const RankOption& o : layout.options) fails.push_back(capacity(c, way, r, o.leaf).fails);
    for (int n = least; n <= greatest; ++n) {
      const std::size_t before = choices.size();
      for (const std::uint32_t i : layout.by_cycle) {
        const RankOption& o = layout.options[i];
        if (n >= fails[i] || bytes.at(*o.cost, n) > limit_bytes) continue;
        const RankChoice one = choice(at, o, n);
        if (one.cycle_ps > limit) break;
        offer(choices, before, one);
      }
    }
    if (choices.empty()) break;  // no answer
  }
  return result;
}

Solver::Answer RankSolver::solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
                                 Effort& effort) {
  Case c = with_vocabulary(problem);
  std::vector<Way> ways;
  for (std::size_t i = 0; i < c.family.ways.size(); ++i) {
    make_room(problem, c.family, i, cutoff_ps);
    Way way = c.family.ways[i];
    if (way.bound_ps >= cutoff_ps) break;
    way.bound_ps = bound_of(c, way);
    if (way.bound_ps < cutoff_ps) ways.push_back(way);
  }
  if (ways.empty()) return {};
  std::ranges::stable_sort(ways, {}, &Way::bound_ps);
  // What stands below a low cutoff is found quickly, and it is the best there is. An incumbent is a
  // low cutoff.
  for (const std::int64_t sixteenths : {20, 32}) {
    const std::int64_t near = ways.front().bound_ps / 16 * sixteenths;
    if (near >= cutoff_ps / 2) break;
    if (Answer answer = cheapest(c, ways, near, depth, effort); answer.plan) return answer;
  }
  return cheapest(c, ways, cutoff_ps, depth, effort);
}

Solver::Answer RankSolver::cheapest(Case& c, const std::vector<Way>& ways, std::int64_t cutoff_ps,
                                    Depth depth, Effort& effort) {
  Answer best;
  for (const Way& way : ways) {
    if (way.bound_ps >= cutoff_ps || effort.exhausted || (best.plan && depth == Depth::kQuick))
      break;
    std::optional<Check> check;  // made for the first answer: most ways have none
    for (bool fits = false; !fits;) {
      const RankProblem ranked = ranks(c, way, cutoff_ps);
      if (ranked.ranks.back().empty()) break;
      const auto answer = solve_ranks(ranked, cutoff_ps, effort);
      if (!answer) break;
      if (!check)
        check.emplace(*this, c.problem, way.virtual_stages,
                      c.family.frame.layout(0, way.layout).strategy);
      fits = true;
      for (std::size_t r = 0; r < answer->choices.size(); ++r) {
        const RankChoice& one = answer->choices[r];
        fits = check->fits(r, one, capacity(c, way, as_int(r), one.option)) && fits;
      }
      if (!fits) continue;
      for (std::size_t r = 0; r < answer->choices.size(); ++r) check->place(r, answer->choices[r]);
      cutoff_ps = answer->cost_ps;
      best = {.plan = check->plan(), .form_ps = answer->cost_ps};
    }
  }
  return best;
}

std::string RankSolver::shortage(const PlanProblem& /*problem*/) {
  return fmt::format("no choice of ranks fits {}", gib(stages_.memory().most()));
}

/// For each way least[k] = min over n of max(least[k - n] of the ranks before, least peak of the
/// rank with n layers), of a rank with more memory than the least less what it has more.
plan::Plan RankSolver::minimum_memory(const PlanProblem& problem) {
  const int layers = as_int(cost_.model().layers), p = problem.stages;
  plan::Plan best;
  std::int64_t least = kForbidden;
  Case c = with_vocabulary(problem);
  const RankFrame& frame = c.family.frame;
  for (const Way& way : c.family.ways) {
    struct Cell {
      std::int64_t peak = kForbidden;
      std::vector<RankChoice> choices;
    };
    Check check(*this, problem, way.virtual_stages, frame.layout(0, way.layout).strategy);
    std::vector<Cell> cells(as_index(layers) + 1);
    cells[0].peak = 0;
    for (int r = 0; r < p; ++r) {
      const RankBytes bytes(place(problem, frame, way, ends(c, way.layout), r));
      const std::int64_t more = stages_.memory_bytes(problem, r) - stages_.memory().least();
      std::vector<Cell> after(cells.size());
      const RankSpan numbers = span(problem, way.virtual_stages);
      for (int n = numbers.first; n <= numbers.end; ++n) {
        RankChoice smallest;
        std::int64_t peak = least;
        for (const RankOption& o : frame.layout(as_index(r), way.layout).options) {
          if (bytes.at(*o.cost, n) - more >= peak) continue;
          const RankChoice one{.layers = n, .option = o.leaf};
          const std::int64_t own = check.peak(as_index(r), one) - more;
          if (own < peak) {
            peak = own;
            smallest = one;
          }
        }
        for (int k = 0; peak < least && k + n <= layers; ++k) {
          const Cell& from = cells[as_index(k)];
          Cell& to = after[as_index(k + n)];
          if (std::max(from.peak, peak) >= to.peak) continue;
          to = {std::max(from.peak, peak), from.choices};
          to.choices.push_back(smallest);
        }
      }
      cells = std::move(after);
    }
    if (cells.back().peak >= least) continue;
    least = cells.back().peak;
    for (int r = 0; r < p; ++r) check.place(as_index(r), cells.back().choices[as_index(r)]);
    best = check.plan();
  }
  return best;
}

}  // namespace orrery::search
