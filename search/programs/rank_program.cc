#include "search/programs/rank_program.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::search {
namespace {

struct Label {
  std::int64_t start_ps = 0;  // a
  std::int64_t end_ps = 0;    // T
  std::int64_t cycle_ps = 0, tail_ps = 0, filled_ps = 0, most_filled_ps = 0;
  std::int32_t parent = -1;
  std::int32_t rank = -1, choice = -1;
};

/// Least of what ranks i.. add with k layers placed; kForbidden: nothing does.
struct Rest {
  std::int64_t sum_ps = kForbidden;
  std::int64_t cycle_ps = kForbidden, tail_ps = kForbidden, filled_ps = kForbidden;
};

class RankSearch {
 public:
  RankSearch(const RankProblem& problem, std::int64_t cutoff, Effort& effort)
      : problem_(problem), cutoff_(cutoff), effort_(effort) {
    for (const auto& choices : problem.ranks) {
      for (const RankChoice& c : choices) {
        latest_zero_ps_ = std::max(latest_zero_ps_, c.zero_ps);
        latest_update_ps_ = std::max(latest_update_ps_, c.update_ps);
      }
    }
    windows();
    rests();
  }

  std::optional<RankAnswer> run() {
    if (bound(Label{}, 0, 0) >= cutoff_) return std::nullopt;
    std::optional<RankAnswer> first = dive();
    if (first) cutoff_ = first->cost_ps;
    std::vector<std::vector<Label>> cells{{Label{}}};
    for (std::size_t i = 0; i < problem_.ranks.size(); ++i) cells = advance(i, cells);
    const Label* best = nullptr;
    for (const Label& label : cells.front()) {
      if (cost(label) >= cutoff_) continue;
      cutoff_ = cost(label);
      best = &label;
    }
    if (best == nullptr) return first;
    RankAnswer answer{cutoff_, {}};
    for (const Label* l = best; l != nullptr;
         l = l->parent < 0 ? nullptr : &pool_[as_index(l->parent)]) {
      answer.choices.push_back(problem_.ranks[as_index(l->rank)][as_index(l->choice)]);
    }
    std::ranges::reverse(answer.choices);
    return answer;
  }

 private:
  /// Layers that may stand before each rank. The work is in the widths, not in the depth of the
  /// model.
  void windows() {
    const std::size_t n = problem_.ranks.size();
    first_.assign(n + 1, 0);
    last_.assign(n + 1, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const auto [least, most] = std::ranges::minmax(problem_.ranks[i], {}, &RankChoice::layers);
      first_[i + 1] = first_[i] + least.layers;
      last_[i + 1] = last_[i] + most.layers;
    }
    int fewest = 0, most_left = 0;  // of the ranks from i on
    for (std::size_t i = n + 1; i-- > 0;) {
      if (i < n) {
        const auto [least, most] = std::ranges::minmax(problem_.ranks[i], {}, &RankChoice::layers);
        fewest += least.layers;
        most_left += most.layers;
      }
      first_[i] = std::max(first_[i], problem_.layers - most_left);
      last_[i] = std::min(last_[i], problem_.layers - fewest);
    }
  }
  [[nodiscard]] bool open(std::size_t rank, int layers) const {
    return layers >= first_[rank] && layers <= last_[rank];
  }
  [[nodiscard]] std::size_t place(std::size_t rank, int layers) const {
    return as_index(layers - first_[rank]);
  }
  [[nodiscard]] std::size_t width(std::size_t rank) const {
    return as_index(std::max(0, last_[rank] - first_[rank] + 1));
  }

  void rests() {
    const std::size_t n = problem_.ranks.size();
    rest_.resize(n + 1);
    for (std::size_t i = 0; i <= n; ++i) rest_[i].resize(width(i));
    if (!rest_[n].empty()) rest_[n].back() = {0, 0, 0, 0};
    for (std::size_t i = n; i-- > 0;) {
      for (const RankChoice& c : problem_.ranks[i]) {
        // The first rank starts and ends the step.
        const std::int64_t sum =
            c.forward_ps + c.backward_ps - c.filled_ps + (i == 0 ? c.zero_ps + c.update_ps : 0);
        for (int k = std::max(first_[i], first_[i + 1] - c.layers);
             k <= std::min(last_[i], last_[i + 1] - c.layers); ++k) {
          const Rest& after = rest_[i + 1][place(i + 1, k + c.layers)];
          if (after.sum_ps >= kForbidden) continue;
          Rest& here = rest_[i][place(i, k)];
          here.sum_ps = std::min(here.sum_ps, sum + after.sum_ps);
          here.cycle_ps = std::min(here.cycle_ps, std::max(c.cycle_ps, after.cycle_ps));
          here.tail_ps = std::min(here.tail_ps, std::max(c.tail_ps, after.tail_ps));
          here.filled_ps = std::min(here.filled_ps, std::max(c.filled_ps, after.filled_ps));
        }
      }
    }
  }

  [[nodiscard]] std::int64_t cost(const Label& l) const {
    return l.start_ps + l.end_ps - l.filled_ps + problem_.cycles * l.cycle_ps + l.tail_ps +
           l.most_filled_ps;
  }
  /// Of the answers behind a label of ranks before `next` with `layers` placed.
  [[nodiscard]] std::int64_t bound(Label l, std::size_t next, int layers) const {
    if (!open(next, layers)) return kForbidden;
    const Rest& rest = rest_[next][place(next, layers)];
    if (rest.sum_ps >= kForbidden) return kForbidden;
    l.cycle_ps = std::max(l.cycle_ps, rest.cycle_ps);
    l.tail_ps = std::max(l.tail_ps, rest.tail_ps);
    l.most_filled_ps = std::max(l.most_filled_ps, rest.filled_ps);
    return cost(l) + rest.sum_ps;
  }

  /// Rank by rank the choice of the least bound: often the best answer, and then nothing is left to
  /// search.
  std::optional<RankAnswer> dive() {
    RankAnswer answer;
    Label label;
    int layers = 0;
    for (std::size_t i = 0; i < problem_.ranks.size(); ++i) {
      const RankChoice* chosen = nullptr;
      std::int64_t least = cutoff_;
      for (const RankChoice& c : problem_.ranks[i]) {
        const std::int64_t value = bound(extended(label, i, c), i + 1, layers + c.layers);
        if (value >= least) continue;
        least = value;
        chosen = &c;
      }
      if (chosen == nullptr) return std::nullopt;
      label = extended(label, i, *chosen);
      layers += chosen->layers;
      answer.choices.push_back(*chosen);
    }
    answer.cost_ps = cost(label);
    return answer;
  }

  std::vector<std::vector<Label>> advance(std::size_t i,
                                          const std::vector<std::vector<Label>>& before) {
    constexpr std::size_t kLooksOfTick = 64;
    std::vector<std::vector<Label>> after(width(i + 1));
    for (std::size_t k = 0; k < before.size(); ++k) {
      for (const Label& from : before[k]) {
        std::int32_t parent = -1;
        effort_.ticks += problem_.ranks[i].size() / kLooksOfTick;
        for (std::size_t c = 0; c < problem_.ranks[i].size(); ++c) {
          const RankChoice& choice = problem_.ranks[i][c];
          const int layers = first_[i] + as_int(k) + choice.layers;
          Label next = extended(from, i, choice);
          if (bound(next, i + 1, layers) >= cutoff_) continue;
          if (!effort_.spend()) return after;
          if (parent < 0 && from.rank >= 0) {
            parent = static_cast<std::int32_t>(pool_.size());
            pool_.push_back(from);
          }
          next.parent = parent;
          next.choice = static_cast<std::int32_t>(c);
          std::vector<Label>& cell = after[place(i + 1, layers)];
          effort_.ticks += cell.size() / kLooksOfTick;
          merge(cell, next);
        }
      }
    }
    return after;
  }
  static Label extended(const Label& from, std::size_t rank, const RankChoice& c) {
    Label next;
    next.rank = static_cast<std::int32_t>(rank);
    next.start_ps = std::max(from.start_ps, c.zero_ps) + c.forward_ps;
    next.end_ps = std::max(from.end_ps, c.update_ps) + c.backward_ps;
    next.cycle_ps = std::max(from.cycle_ps, c.cycle_ps);
    next.tail_ps = std::max(from.tail_ps, c.tail_ps);
    next.filled_ps = from.filled_ps + c.filled_ps;
    next.most_filled_ps = std::max(from.most_filled_ps, c.filled_ps);
    return next;
  }

  /// No completion of `a` costs more than the same one of `b`.
  [[nodiscard]] bool beats(const Label& a, const Label& b) const {
    if (a.cycle_ps > b.cycle_ps || a.tail_ps > b.tail_ps || a.most_filled_ps > b.most_filled_ps)
      return false;
    // A lead counts in full only where no later maximum can swallow it.
    const auto lead = [](std::int64_t x, std::int64_t y, std::int64_t swallowed_below) {
      return x < y ? std::min(std::int64_t{0}, std::max(x, swallowed_below) - y) : x - y;
    };
    return lead(a.start_ps, b.start_ps, latest_zero_ps_) +
               lead(a.end_ps, b.end_ps, latest_update_ps_) <=
           a.filled_ps - b.filled_ps;
  }
  void merge(std::vector<Label>& cell, const Label& label) const {
    if (std::ranges::any_of(cell, [&](const Label& kept) { return beats(kept, label); })) return;
    std::erase_if(cell, [&](const Label& kept) { return beats(label, kept); });
    cell.push_back(label);
  }

  const RankProblem& problem_;
  std::int64_t cutoff_;
  Effort& effort_;
  std::vector<int> first_, last_;  // [rank] layers before it
  std::int64_t latest_zero_ps_ = 0, latest_update_ps_ = 0;
  std::vector<std::vector<Rest>> rest_;  // [rank][layers before, from first_ on]
  std::vector<Label> pool_;              // labels that others came from
};

}  // namespace

std::optional<RankAnswer> solve_ranks(const RankProblem& problem, std::int64_t cutoff_ps,
                                      Effort& effort) {
  ORRERY_CHECK(!problem.ranks.empty() && problem.layers >= 1);
  if (std::ranges::any_of(problem.ranks, [](const auto& choices) { return choices.empty(); }))
    return std::nullopt;
  return RankSearch(problem, cutoff_ps, effort).run();
}

}  // namespace orrery::search
