#include "search/loop/kinds_loops.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <vector>

#include "search/costs/kinds_model.h"
#include "search/programs/layer_program.h"

namespace orrery::search {
namespace {

std::string seconds(std::int64_t ps) {
  return fmt::format("{:.4f} s", static_cast<double>(ps) / 1e12);
}

class KindsLoops {
 public:
  KindsLoops(const costmodel::CostModel& cost, const PlanRequest& request, std::int64_t budget)
      : cost_(cost),
        request_(request),
        budget_(budget),
        model_(cost, request.space, request.global_batch),
        groups_(kind_groups(cost.model()).size()) {}

  base::Result<LoopResult> run() {
    for (int stages = 1; stages <= devices(); ++stages) {
      if (devices() % stages != 0) continue;
      if (const Refusal why = refuse_stages(cost_.model(), request_.space, stages); why.refused())
        result_.pruned.push_back({fmt::format("pp={}", stages), why.text, why.reason});
      else
        add_problems(stages);
    }
    say_what_is_left_out();
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.bound_ps < b.bound_ps; });
    for (Entry& entry : entries_) TRY_VOID(visit(entry));
    if (!finalists_.empty()) TRY_VOID(seek_runners_up());
    return finish();
  }

 private:
  struct Entry {
    KindsProblem problem;
    std::int64_t bound_ps = 0;
    bool answered = false;
  };
  [[nodiscard]] int devices() const { return static_cast<int>(cost_.topology().device_count()); }
  [[nodiscard]] std::int64_t layers() const { return cost_.model().layers; }
  [[nodiscard]] std::int64_t incumbent() const {
    return finalists_.empty() ? kForbidden : finalists_.front().closed_form_ps;
  }
  [[nodiscard]] bool exhausted() const {
    return request_.max_states != 0 && result_.states >= request_.max_states;
  }
  void prune(std::string candidate, std::string reason) {
    result_.pruned.push_back({std::move(candidate), std::move(reason)});
  }

  // ---- enumeration ----
  void say_what_is_left_out() {
    constexpr const char* kReason = "not searched for models with blocks of several kinds";
    if (request_.space.interleaved) prune("interleaved", kReason);
    if (request_.space.zero_bubble) prune("zb-h1", kReason);
    if (request_.space.idle) prune("idle devices", kReason);
  }
  void add_problems(int stages) {
    const Space& space = request_.space;
    if (!space.one_f_one_b && !space.gpipe) return;
    for (std::int64_t m = 1; m <= request_.global_batch; ++m) {
      if (request_.global_batch % m != 0 || space.fix_micro_batches.value_or(m) != m) continue;
      const KindsProblem p{stages, devices() / stages, m,
                           space.one_f_one_b ? plan::Schedule::k1F1B : plan::Schedule::kGPipe};
      ++result_.problems;
      if (model_.turn_to(p))
        entries_.push_back({p, least_bound()});
      else
        prune(to_string(p), "no strategy for some kind of block");
    }
  }
  std::int64_t least_bound() {
    std::int64_t steady = 0, total = 0, least = kForbidden;
    for (const std::vector<KindOption>& group : model_.options()) {
      steady += std::ranges::min(group, {}, &KindOption::least_steady_ps).least_steady_ps;
      total += std::ranges::min(group, {}, &KindOption::least_total_ps).least_total_ps;
    }
    for (const plan::LayerStrategy& v : model_.vocabularies())
      least = std::min(least, model_.bound(steady, total, 0, model_.ends(v)));
    return least;
  }

  // ---- choices of one problem ----
  /// Proof: every choice whose bound is below the best plan is solved exactly, up to the effort of
  /// one problem.
  base::Result<void> visit(Entry& entry) {
    cutoff_ps_ = incumbent();
    if (entry.bound_ps >= cutoff_ps_) return {};
    const std::int64_t before = cutoff_ps_;
    begin(entry.problem);
    for (std::optional<KindsChoice> choice = next(); choice; choice = next()) {
      TRY(const bool better, solve(*choice));
      entry.answered = entry.answered || better;
    }
    const bool open = !heap_.empty() && heap_.top().choice.bound_ps < cutoff_ps_;  // stopped
    if (open) open_bound_ps_ = std::min(open_bound_ps_, heap_.top().choice.bound_ps);
    if (entry.answered) return {};
    open_ = open_ || open;
    if (open)
      prune(to_string(entry.problem), "effort limit reached before it was solved");
    else if (before < kForbidden)
      prune(to_string(entry.problem),
            fmt::format("no plan that fits is below the incumbent {}", seconds(before)));
    else
      unfitting_.push_back(entry.problem);
    return {};
  }
  /// Runners-up for the simulator to judge, no proof: the first plan of each of the next problems.
  base::Result<void> seek_runners_up() {
    constexpr int kTried = 16;  // choices of one problem
    for (Entry& entry : entries_) {
      if (entry.answered || entry.bound_ps >= 2 * incumbent()) continue;
      cutoff_ps_ = 2 * incumbent();  // nobody wants a plan of twice the time
      const bool full = finalists_.size() >= static_cast<std::size_t>(request_.top);
      if (full) cutoff_ps_ = std::min(cutoff_ps_, finalists_.back().closed_form_ps);
      if (request_.top > 1 && entry.bound_ps < cutoff_ps_ && !exhausted()) {
        begin(entry.problem);
        for (int tried = 0; tried < kTried && !entry.answered; ++tried) {
          const std::optional<KindsChoice> choice = next();
          if (!choice) break;
          TRY(entry.answered, solve(*choice));
        }
      }
      if (!entry.answered)
        prune(to_string(entry.problem), fmt::format("bound {} ≥ incumbent {}",
                                                    seconds(entry.bound_ps), seconds(incumbent())));
    }
    return {};
  }

  /// A choice with the options of the first groups; bound and bytes count the least of the others.
  struct Partial {
    KindsChoice choice;
    std::int64_t steady_ps = 0, total_ps = 0, widest_ps = 0, bytes = 0;
    std::uint64_t number = 0;                 // among equals the first made
    bool operator<(const Partial& o) const {  // of a heap whose top is the least
      return choice.bound_ps != o.choice.bound_ps ? choice.bound_ps > o.choice.bound_ps
                                                  : number > o.number;
    }
  };
  void begin(const KindsProblem& problem) {
    constexpr std::uint64_t kProblemStates = 30'000;
    model_.turn_to(problem);
    state_limit_ = result_.states + kProblemStates;
    heap_ = {};
    rest_.assign(groups_ + 1, {});
    for (std::size_t g = groups_; g-- > 0;) {
      const auto& group = model_.options()[g];
      rest_[g] = {rest_[g + 1].steady_ps +
                      std::ranges::min(group, {}, &KindOption::least_steady_ps).least_steady_ps,
                  rest_[g + 1].total_ps +
                      std::ranges::min(group, {}, &KindOption::least_total_ps).least_total_ps,
                  rest_[g + 1].bytes + std::ranges::min(group, {}, &KindOption::bytes).bytes};
    }
    ends_.clear();
    for (std::size_t v = 0; v < model_.vocabularies().size(); ++v) {
      ends_.push_back(model_.ends(model_.vocabularies()[v]));
      push({.choice = {0, v, {}}});
    }
  }
  /// Unless its bound is not below the cutoff, or all stages together have not the memory.
  void push(Partial p) {
    const Rest& rest = rest_[p.choice.options.size()];
    const KindsModel::Ends& ends = ends_[p.choice.vocabulary];
    p.choice.bound_ps =
        model_.bound(p.steady_ps + rest.steady_ps, p.total_ps + rest.total_ps, p.widest_ps, ends);
    if (p.choice.bound_ps >= cutoff_ps_ ||
        p.bytes + rest.bytes + ends.bytes > model_.problem().stages * budget_)
      return;
    p.number = made_++;
    heap_.push(std::move(p));
  }
  /// The next choice in the order of bounds, while they are below the cutoff and the problem has
  /// effort left.
  std::optional<KindsChoice> next() {
    while (!heap_.empty() && heap_.top().choice.bound_ps < cutoff_ps_ &&
           result_.states < state_limit_ && !exhausted()) {
      ++result_.states;
      const Partial p = heap_.top();
      heap_.pop();
      const std::size_t g = p.choice.options.size();
      if (g == groups_) return p.choice;
      for (std::size_t o = 0; o < model_.options()[g].size(); ++o) {
        const KindOption& option = model_.options()[g][o];
        Partial child = p;
        child.choice.options.push_back(o);
        child.steady_ps += option.least_steady_ps, child.total_ps += option.least_total_ps,
            child.bytes += option.bytes;
        child.widest_ps = std::max(child.widest_ps, option.widest_ps);
        push(std::move(child));
      }
    }
    return std::nullopt;
  }

  // ---- cuts of one choice ----
  /// A label of the recurrence.
  struct Label {
    std::int64_t slowest_ps = 0, forward_ps = 0, backward_ps = 0;  // τ, s, v
    std::int32_t parent = -1;
    std::int64_t layers = 0;  // so far
  };
  [[nodiscard]] std::int64_t cost_of(const Label& l) const {
    return l.forward_ps + l.backward_ps + (model_.problem().micro_batches - 1) * l.slowest_ps;
  }
  using Cells = std::vector<std::vector<std::int32_t>>;  // labels by layers so far

  base::Result<bool> solve(const KindsChoice& c) {
    const KindsSums sums = model_.sums_of(c);
    std::vector<Label> pool{{}};
    Cells cells(static_cast<std::size_t>(layers()) + 1);
    cells[0] = {0};
    for (int i = 0; i < model_.problem().stages; ++i) {
      Cells next(cells.size());
      for (std::size_t from = 0; from < cells.size(); ++from) {
        if (!cells[from].empty())
          extend(c, sums, i, static_cast<std::int64_t>(from), cells[from], pool, next);
      }
      cells = std::move(next);
    }
    std::int32_t best = -1;
    std::int64_t best_ps = cutoff_ps_;
    for (const std::int32_t id : cells.back()) {
      const std::int64_t ps = cost_of(pool[static_cast<std::size_t>(id)]);
      if (ps < best_ps) best_ps = ps, best = id;
    }
    if (best < 0) return false;
    std::vector<std::int64_t> ends;
    for (std::int32_t id = best; id > 0; id = pool[static_cast<std::size_t>(id)].parent)
      ends.insert(ends.begin(), pool[static_cast<std::size_t>(id)].layers);
    TRY(Finalist finalist, price(model_.plan_of(c, ends)));
    // GPipe's cycle is max F + max B, which is more: its optimum by the form is what is proved.
    if (best_ps < finalist.closed_form_ps) open_bound_ps_ = std::min(open_bound_ps_, best_ps);
    if (finalist.closed_form_ps >= cutoff_ps_) return false;
    keep(std::move(finalist));
    return true;
  }

  void extend(const KindsChoice& c, const KindsSums& sums, int stage, std::int64_t from,
              const std::vector<std::int32_t>& labels, std::vector<Label>& pool, Cells& next) {
    const std::int64_t left = model_.problem().stages - 1 - stage;
    std::int64_t first = from + 1, last = layers() - left;
    if (left == 0) first = last;
    if (request_.space.even_stages) first = last = from + layers() / model_.problem().stages;
    for (std::int64_t to = first; to <= last; ++to) {
      ++result_.states;
      if (model_.least_bytes(c, sums, stage, from, to) > budget_) return;  // more layers take more
      const KindsStage own = model_.stage(c, sums, stage, from, to);
      std::vector<std::int32_t>& cell = next[static_cast<std::size_t>(to)];
      bool asked = false;
      for (const std::int32_t id : labels) {
        const Label before = pool[static_cast<std::size_t>(id)];
        const Label label{std::max(before.slowest_ps, own.steady_ps),
                          std::max(before.forward_ps, own.zero_ps) + own.forward_ps,
                          std::max(before.backward_ps, own.update_ps) + own.backward_ps, id, to};
        const std::int64_t bound = cost_of(label) + sums.rest_ps[static_cast<std::size_t>(to)];
        const auto beats = [&](std::int32_t other) {
          const Label& known = pool[static_cast<std::size_t>(other)];
          return known.slowest_ps <= label.slowest_ps && known.forward_ps <= label.forward_ps &&
                 known.backward_ps <= label.backward_ps;
        };
        if (bound >= cutoff_ps_ || std::ranges::any_of(cell, beats)) continue;
        if (!asked && model_.peak_bytes(c, stage, from, to) > budget_) break;
        asked = true;
        cell.push_back(static_cast<std::int32_t>(pool.size()));
        pool.push_back(label);
      }
    }
  }

  base::Result<Finalist> price(plan::Plan plan) {
    Finalist finalist;
    finalist.plan = std::move(plan);
    finalist.plan.cluster = request_.cluster;
    TRY(const costmodel::PlanCost priced, model_.price(finalist.plan));
    finalist.closed_form_ps = priced.step_ps;
    finalist.expected_ps = priced.pass_by_pass_ps;
    finalist.stage_peak_bytes = priced.stage_peak_bytes;
    return finalist;
  }
  /// The best of every problem, cheapest first, at most `top`.
  void keep(Finalist finalist) {
    std::erase_if(finalists_, [&](const Finalist& f) {
      return f.plan.stages.size() == finalist.plan.stages.size() &&
             f.plan.micro_batches == finalist.plan.micro_batches;
    });
    finalists_.push_back(std::move(finalist));
    std::ranges::stable_sort(finalists_, {}, &Finalist::closed_form_ps);
    if (finalists_.size() > static_cast<std::size_t>(request_.top)) finalists_.pop_back();
    cutoff_ps_ = std::min(cutoff_ps_, incumbent());
  }

  // ---- the end ----
  base::Result<LoopResult> finish() {
    result_.exhausted = exhausted() || (finalists_.empty() && open_);
    result_.finalists = finalists_;
    if (!finalists_.empty()) {
      for (const KindsProblem& p : unfitting_) prune(to_string(p), "no choice fits");
      result_.bound_ps = std::min(open_bound_ps_, incumbent());
      return std::move(result_);
    }
    result_.least_peak_bytes = kForbidden;
    for (const KindsProblem& p : unfitting_) TRY_VOID(lighter(p));
    return std::move(result_);
  }
  /// Little memory on equal stages: how much is missing at most.
  base::Result<void> lighter(const KindsProblem& p) {
    model_.turn_to(p);
    std::vector<std::int64_t> ends;
    for (int i = 1; i <= p.stages; ++i) ends.push_back(layers() * i / p.stages);
    TRY(Finalist finalist, price(model_.plan_of(model_.lightest(), ends)));
    const std::int64_t peak = std::ranges::max(finalist.stage_peak_bytes);
    if (peak >= result_.least_peak_bytes) return {};
    result_.least_peak_bytes = peak;
    result_.smallest = std::move(finalist);
    return {};
  }

  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  std::int64_t budget_;
  KindsModel model_;
  std::size_t groups_;
  std::int64_t cutoff_ps_ = kForbidden;
  struct Rest {
    std::int64_t steady_ps = 0, total_ps = 0, bytes = 0;
  };
  std::vector<Rest> rest_;              // [groups chosen]
  std::vector<KindsModel::Ends> ends_;  // [vocabulary]
  std::priority_queue<Partial> heap_;
  std::uint64_t made_ = 0, state_limit_ = 0;
  bool open_ = false;  // some problem was left without a plan and without proof
  std::vector<Entry> entries_;
  std::vector<Finalist> finalists_;
  std::vector<KindsProblem> unfitting_;
  std::int64_t open_bound_ps_ = kForbidden;
  LoopResult result_;
};

}  // namespace

base::Result<LoopResult> run_kinds_loops(const costmodel::CostModel& cost,
                                         const PlanRequest& request, std::int64_t budget_bytes) {
  return KindsLoops(cost, request, budget_bytes).run();
}

}  // namespace orrery::search
