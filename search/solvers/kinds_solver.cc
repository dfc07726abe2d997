#include "search/solvers/kinds_solver.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/numbers.h"
#include "search/status.h"

namespace orrery::search {
namespace {

/// The choices of a problem in the order of their bounds, made when needed.
class Choices {
 public:
  /// `memory_bytes`: of all stages together.
  Choices(KindsModel& model, std::int64_t memory_bytes)
      : model_(model),
        memory_bytes_(memory_bytes),
        one_layout_(model.problem().schedule == plan::Schedule::kInterleaved),
        flight_(one_layout_ ? std::clamp<std::int64_t>((model.problem().stages + 1) / 2, 1,
                                                       model.problem().micro_batches)
                            : 1),
        ends_(model.ends()),
        rest_(model.options().size() + 1) {
    sums_.resize(model.options().size());
    for (std::size_t g = sums_.size(); g-- > 0;) {
      for (const KindOption& o : model.options()[g]) {
        sums_[g].push_back({{o.least_steady_ps, o.least_total_ps, o.least_update_ps, o.widest_ps,
                             o.least_energy_ps},
                            o.state_bytes + flight_ * o.stash_bytes});
      }
      const auto least = [&](auto field) {
        return std::invoke(field, std::ranges::min(sums_[g], {}, field));
      };
      rest_[g] = rest_[g + 1] + Sum{{least([](const Sum& s) { return s.times.steady_ps; }),
                                     least([](const Sum& s) { return s.times.total_ps; }),
                                     least([](const Sum& s) { return s.times.update_ps; }), 0,
                                     least([](const Sum& s) { return s.times.energy_ps; })},
                                    least(&Sum::bytes)};
    }
  }

  /// The next below the cutoff, or nothing. Cutoffs never rise.
  std::optional<KindsChoice> next(std::int64_t cutoff_ps, Effort& effort) {
    if (made_ == 0) push({}, {}, cutoff_ps);
    while (!heap_.empty() && left_ps() < cutoff_ps && effort.spend()) {
      const Partial p = heap_.top();
      heap_.pop();
      const std::size_t g = p.choice.options.size();
      if (g == sums_.size()) return p.choice;
      std::vector<std::size_t> options = p.choice.options;
      options.push_back(0);
      for (std::size_t& o = options.back(); o < sums_[g].size(); ++o) {
        if (g > 0 && one_layout_ && !model_.options()[g][o].strategy.same_layout(first(p).strategy))
          continue;
        push(options, p.sum + sums_[g][o], cutoff_ps);
      }
    }
    return std::nullopt;
  }
  /// Lower bound of what has not been given.
  [[nodiscard]] std::int64_t left_ps() const {
    return heap_.empty() ? kForbidden : heap_.top().choice.bound_ps;
  }
  /// Partial ones so far.
  [[nodiscard]] std::uint64_t made() const { return made_; }
  /// Of every stage at least, when all together hold the least there is.
  [[nodiscard]] std::int64_t least_bytes() const {
    return (rest_.front().bytes + ends_.bytes) / model_.problem().stages;
  }

 private:
  /// Of options of several groups.
  struct Sum {
    KindsModel::Floors times = {};
    std::int64_t bytes = 0;
    Sum operator+(const Sum& o) const {
      return {{times.steady_ps + o.times.steady_ps, times.total_ps + o.times.total_ps,
               times.update_ps + o.times.update_ps, std::max(times.widest_ps, o.times.widest_ps),
               times.energy_ps + o.times.energy_ps},
              bytes + o.bytes};
    }
  };
  /// A choice with the options of the first groups; its bound counts the least of the others.
  struct Partial {
    KindsChoice choice = {};
    Sum sum = {};
    std::uint64_t number = 0;                 // among equals the first made
    bool operator<(const Partial& o) const {  // of a heap whose top is the least
      return choice.bound_ps != o.choice.bound_ps ? choice.bound_ps > o.choice.bound_ps
                                                  : number > o.number;
    }
  };
  [[nodiscard]] const KindOption& first(const Partial& p) const {
    return model_.options().front()[p.choice.options.front()];
  }
  /// Unless its bound is not below the cutoff, or all stages together have not the memory: of most,
  /// so nothing is copied before that is known.
  void push(const std::vector<std::size_t>& options, const Sum& sum, std::int64_t cutoff_ps) {
    const std::uint64_t number = made_++;
    const Sum all = sum + rest_[options.size()];
    if (all.bytes + ends_.bytes > memory_bytes_) return;
    const std::int64_t bound_ps = model_.bound(all.times, ends_);
    if (bound_ps < cutoff_ps) heap_.push({{bound_ps, options}, sum, number});
  }

  KindsModel& model_;
  std::int64_t memory_bytes_;
  bool one_layout_;
  std::int64_t flight_;  // stashes that every stage holds at least
  KindsModel::Ends ends_;
  std::vector<std::vector<Sum>> sums_;  // [group][option]
  std::vector<Sum> rest_;               // [groups chosen] the least of the others
  std::priority_queue<Partial> heap_;
  std::uint64_t made_ = 0;
};

/// Picoseconds of a layer's passes for a byte of its states and stashes, times `unit`: what the
/// options of each group trade, a few of them.
std::vector<std::int64_t> prices_of(const KindsModel& model, std::int64_t flight,
                                    std::int64_t unit) {
  constexpr std::size_t kKept = 6;
  const std::int64_t m = model.problem().micro_batches, p = model.problem().stages;
  std::vector<std::int64_t> prices;
  for (const std::vector<KindOption>& group : model.options()) {
    std::vector<std::pair<std::int64_t, std::int64_t>> points;  // (bytes, time of a step's share)
    for (const KindOption& o : group) {
      const costmodel::LayerCost& c = *o.costs.front().back();
      points.emplace_back(
          c.persistent_bytes + flight * std::max<std::int64_t>(c.stash_bytes, 0),
          c.forward_ps + c.backward_sync_ps + (m - 1) * (c.forward_ps + c.backward_ps) / p);
    }
    std::ranges::sort(points);
    for (std::size_t i = 1; i < points.size(); ++i) {
      const std::int64_t bytes = points[i].first - points.front().first,
                         saved = points.front().second - points[i].second;
      if (bytes > 0 && saved > 0)
        prices.push_back(static_cast<std::int64_t>(static_cast<__int128>(saved) * unit / bytes));
    }
  }
  std::ranges::sort(prices);
  std::vector<std::int64_t> kept;
  for (std::size_t i = 0; i < kKept && !prices.empty(); ++i)
    kept.push_back(prices[i * (prices.size() - 1) / (kKept - 1)]);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  kept.push_back(kRay);
  return kept;
}

}  // namespace

KindsSolver::KindsSolver(costmodel::LayerCosts& costs, StageModel& stages, const Space& space)
    : costs_(costs), stages_(stages), space_(space), model_(costs, stages) {}

std::int64_t KindsSolver::memory_of_all() const {
  std::int64_t sum = 0;
  for (int r = 0; r < model_.problem().stages; ++r) sum += memory_bytes(r);
  return sum;
}

bool KindsSolver::covers(const PlanProblem& family) {
  return stages_.has_strategies(family) && !stages_.virtual_stages(family).empty();
}

Solver::Answer KindsSolver::solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
                                  Effort& effort) {
  constexpr std::uint64_t kStates = 30'000, kUnproved = 5'000, kTicksOfState = 2, kMadeOfTick = 8;
  constexpr int kTried = 16;  // choices of a quick answer
  const bool interleaved = problem.schedule == plan::Schedule::kInterleaved;
  const std::uint64_t before = model_.ticks();
  model_.turn_to(problem);
  Choices choices(model_, memory_of_all());
  const std::uint64_t most = interleaved ? kUnproved : kStates;
  Effort own{.limit = effort.limit == 0 ? most : std::min(effort.limit, most)};
  Answer best;
  for (int tried = 0; depth == Depth::kExact || (tried < kTried && !best.plan); ++tried) {
    const std::optional<KindsChoice> choice = choices.next(cutoff_ps, own);
    if (!choice) break;
    const std::optional<Cuts> cuts =
        interleaved ? best_spread(*choice, cutoff_ps, own) : best_cuts(*choice, cutoff_ps, own);
    if (!cuts) continue;
    cutoff_ps = cuts->form_ps;
    best = {.plan = model_.plan_of(*choice, cuts->ends), .form_ps = cutoff_ps};
  }
  best.left_ps = choices.left_ps();
  effort.states += own.states;
  effort.ticks += own.ticks + own.states * kTicksOfState + choices.made() / kMadeOfTick +
                  model_.ticks() - before;
  effort.exhausted = effort.exhausted || (own.exhausted && best.left_ps < cutoff_ps);
  return best;
}

/// Labels of the recurrence, and which of them end behind a layer.
struct KindsSolver::Labels {
  struct Label {
    std::int64_t slowest_ps = 0, forward_ps = 0, backward_ps = 0;  // τ, s, v
    std::int32_t parent = -1;
    std::int64_t layers = 0;  // so far
    [[nodiscard]] bool beats(const Label& other) const {
      return slowest_ps <= other.slowest_ps && forward_ps <= other.forward_ps &&
             backward_ps <= other.backward_ps;
    }
    [[nodiscard]] std::int64_t cost_ps(std::int64_t micro_batches) const {
      return forward_ps + backward_ps + (micro_batches - 1) * slowest_ps;
    }
  };
  using Cells = std::vector<std::vector<std::int32_t>>;  // labels by layers so far

  [[nodiscard]] const Label& at(std::int32_t id) const { return all[as_index(id)]; }

  std::vector<Label> all{{}};
  Cells cells, next;
  bool asks_all = false;         // for the peak of every range
  std::int64_t most_beside = 0;  // of this stage, peak - least bytes, of the ranges asked for
};

std::optional<KindsSolver::Cuts> KindsSolver::best_cuts(const KindsChoice& c,
                                                        std::int64_t cutoff_ps, Effort& effort) {
  std::optional<Cuts> cuts = cut(c, cutoff_ps, effort, false);
  std::int64_t from = 0;
  for (int i = 0; cuts && i < model_.problem().stages; ++i) {
    const std::int64_t to = cuts->ends[as_index(i)];
    if (model_.peak_bytes(c, i, from, to) > memory_bytes(i)) return cut(c, cutoff_ps, effort, true);
    from = to;
  }
  return cuts;
}

std::optional<KindsSolver::Cuts> KindsSolver::cut(const KindsChoice& c, std::int64_t cutoff_ps,
                                                  Effort& effort, bool asks_all) {
  const KindsSums sums = model_.sums_of(c);
  Labels labels;
  labels.asks_all = asks_all;
  labels.cells.resize(as_index(layers()) + 1);
  labels.cells.front() = {0};
  for (int i = 0; i < model_.problem().stages; ++i) {
    labels.next.assign(labels.cells.size(), {});
    labels.most_beside = 0;
    for (std::int64_t from = 0; from <= layers(); ++from)
      extend(c, sums, i, from, cutoff_ps, labels, effort);
    std::swap(labels.cells, labels.next);
  }
  std::int32_t best = -1;
  Cuts cuts{.form_ps = cutoff_ps, .ends = {}};
  for (const std::int32_t id : labels.cells.back()) {
    const std::int64_t ps = labels.at(id).cost_ps(model_.problem().micro_batches);
    if (ps >= cuts.form_ps) continue;
    cuts.form_ps = ps;
    best = id;
  }
  if (best < 0) return std::nullopt;
  for (std::int32_t id = best; id > 0; id = labels.at(id).parent)
    cuts.ends.push_back(labels.at(id).layers);
  std::ranges::reverse(cuts.ends);
  return cuts;
}

/// A range whose least bytes leave room for what the ranges asked for so far had beside theirs is
/// not asked for: the answer's are, in the end.
bool KindsSolver::fits(const KindsChoice& c, int stage, std::int64_t from, std::int64_t to,
                       std::int64_t least, Labels& labels) {
  const std::int64_t room = memory_bytes(stage) - least;
  if (!labels.asks_all && labels.most_beside > 0 && labels.most_beside <= room) return true;
  const std::int64_t beside = model_.peak_bytes(c, stage, from, to) - least;
  labels.most_beside = std::max(labels.most_beside, beside);
  return beside <= room;
}

void KindsSolver::extend(const KindsChoice& c, const KindsSums& sums, int stage, std::int64_t from,
                         std::int64_t cutoff_ps, Labels& labels, Effort& effort) {
  constexpr std::uint64_t kComparedOfTick = 256;
  const std::vector<std::int32_t>& before = labels.cells[as_index(from)];
  if (before.empty()) return;
  const std::int64_t p = model_.problem().stages, left = p - 1 - stage;
  std::int64_t first = left == 0 ? layers() : from + 1, last = layers() - left;
  if (space_.even_stages) first = last = from + layers() / p;
  std::uint64_t compared = 0;
  for (std::int64_t to = first; to <= last; ++to) {
    ++effort.states;
    // more layers take more
    const std::int64_t least = model_.least_bytes(sums, stage, from, to);
    if (least > memory_bytes(stage)) break;
    const KindsStage own = model_.stage(c, sums, stage, from, to);
    std::vector<std::int32_t>& cell = labels.next[as_index(to)];
    bool asked = false;
    for (const std::int32_t id : before) {
      const Labels::Label& parent = labels.at(id);
      const Labels::Label label{std::max(parent.slowest_ps, own.steady_ps),
                                std::max(parent.forward_ps, own.zero_ps) + own.forward_ps,
                                std::max(parent.backward_ps, own.update_ps) + own.backward_ps, id,
                                to};
      const std::int64_t bound =
          label.cost_ps(model_.problem().micro_batches) + sums.rest_ps[as_index(to)];
      const auto beats = [&](std::int32_t known) { return labels.at(known).beats(label); };
      compared += 1 + cell.size();
      if (bound >= cutoff_ps || std::ranges::any_of(cell, beats)) continue;
      if (!asked && !fits(c, stage, from, to, least, labels)) break;
      asked = true;
      cell.push_back(static_cast<std::int32_t>(labels.all.size()));
      labels.all.push_back(label);
    }
  }
  effort.ticks += compared / kComparedOfTick;
}

std::vector<std::int64_t> KindsSolver::even_ends(int stages, int virtual_stages) const {
  std::vector<std::int64_t> ends;
  for (const int count : plan::stage_layers(layers(), stages, virtual_stages))
    ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  return ends;
}

/// Whether states, and the stashes of what a rank has forwarded before its first backward
/// (plan::pass_order), fit every rank: a lower bound of its peak.
bool KindsSolver::may_fit(const KindsSums& sums, const std::vector<std::int64_t>& ends) const {
  const std::int64_t p = model_.problem().stages, v = std::ssize(ends) / p,
                     m = model_.problem().micro_batches;
  for (std::int64_t r = 0; r < p; ++r) {
    const std::int64_t forwards = std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1);
    std::int64_t bytes = 0;
    for (std::int64_t k = 0; k < v; ++k) {
      const auto s = as_index(k * p + r);
      const auto from = as_index(s == 0 ? 0 : ends[s - 1]), to = as_index(ends[s]);
      const std::int64_t held =
          forwards / (p * v) * p + std::clamp<std::int64_t>(forwards % (p * v) - k * p, 0, p);
      bytes += sums.persistent_bytes[to] - sums.persistent_bytes[from] +
               held * (sums.stash_bytes[to] - sums.stash_bytes[from]);
    }
    if (bytes > memory_bytes(as_int(r))) return false;
  }
  return true;
}

std::optional<KindsSolver::Cuts> KindsSolver::best_spread(const KindsChoice& c,
                                                          std::int64_t cutoff_ps, Effort& effort) {
  constexpr std::uint64_t kStates = 100;  // as long as to make so many partial choices
  const KindsSums sums = model_.sums_of(c);
  std::optional<Cuts> best;
  for (const int v : stages_.virtual_stages(model_.problem())) {
    ++effort.states;
    std::vector<std::int64_t> ends = even_ends(model_.problem().stages, v);
    if (!may_fit(sums, ends)) continue;
    effort.states += kStates;
    const plan::Plan plan = model_.plan_of(c, ends);
    const std::int64_t form_ps = costmodel::step_ps(costs_, plan);
    bool fits = form_ps < cutoff_ps;
    for (int r = 0; fits && r < model_.problem().stages; ++r)
      fits = costmodel::stage_peak_bytes(costs_, plan, r) <= memory_bytes(r);
    if (!fits) continue;
    cutoff_ps = form_ps;
    best = Cuts{form_ps, std::move(ends)};
  }
  return best;
}

/// Of every group the option that keeps least, on stages of equal length.
plan::Plan KindsSolver::minimum_memory(const PlanProblem& problem) {
  model_.turn_to(problem);
  KindsChoice c;
  const auto bytes = [](const KindOption& o) {
    return o.costs.front().front()->persistent_bytes + o.costs.front().front()->stash_bytes;
  };
  for (const std::vector<KindOption>& group : model_.options())
    c.options.push_back(as_index(std::ranges::min_element(group, {}, bytes) - group.begin()));
  return model_.plan_of(c, even_ends(problem.stages, stages_.virtual_stages(problem).front()));
}

std::int64_t KindsSolver::needed_bytes(const PlanProblem& problem) {
  model_.turn_to(problem);
  return Choices(model_, memory_of_all()).least_bytes();
}

std::optional<PipelineMultipliers> KindsSolver::multipliers(const PlanProblem& problem) {
  constexpr std::int64_t kDigits = std::int64_t{1} << 20;
  constexpr std::uint64_t kLooksOfTick = 100;
  if (problem.schedule == plan::Schedule::kInterleaved) return std::nullopt;
  const int p = problem.stages;
  model_.turn_to(problem);
  PipelineMultipliers found{.unit = p * kDigits,
                            .weights = std::vector<std::int64_t>(as_index(p), kDigits),
                            .prices = {}};
  for (int s = 0; s < p; ++s)
    found.prices.push_back(prices_of(model_, problem.in_flight(s), found.unit));
  const auto key = std::tuple(p, problem.devices, problem.micro_batches, problem.schedule);
  auto known = bounds_.find(key);
  const std::uint64_t before = known == bounds_.end() ? 0 : known->second.looks();
  if (known == bounds_.end())
    known =
        bounds_
            .emplace(key, FamilyBound(costs_, space_, {p, problem.devices, stages_.frame(problem)},
                                      stages_.memory()))
            .first;
  ProblemMultipliers stated;
  stated.unit = found.unit;
  stated.weights = found.weights;
  stated.prices = found.prices;
  const auto bound = known->second.of(problem.vocabulary, stated);
  if (!bound) return std::nullopt;
  found.bound_ps = *bound;
  found.ticks = (known->second.looks() - before) / kLooksOfTick;
  return found;
}

std::string KindsSolver::shortage(const PlanProblem& /*problem*/) {
  return fmt::format("no choice of layers fits {}", gib(stages_.memory().most()));
}

}  // namespace orrery::search
