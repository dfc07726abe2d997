#include "search/outer_loops.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "base/sim_time.h"
#include "base/units.h"
#include "search/layer_order.h"
#include "search/pipeline_multipliers.h"

namespace orrery::search {
namespace {

std::string gib(std::int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }
std::string seconds(std::int64_t ps) { return fmt::format("{:.4f} s", static_cast<double>(ps) / 1e12); }

struct Entry {
  PlanProblem problem;
  std::int64_t bound_ps = 0;
  bool settled = false;  // solved, or cut with its reason
  std::int64_t quick_bound_ps = 0;
};

class Loops {
 public:
  Loops(const costmodel::CostModel& cost, const PlanRequest& request, std::int64_t budget)
      : cost_(cost), request_(request), budget_(budget), costs_(cost), model_(costs_, request.space, request.global_batch, budget) {
    effort_.limit = request.max_states;
  }

  base::Result<LoopResult> run() {
    enumerate();
    std::ranges::stable_sort(entries_, [](const Entry& a, const Entry& b) { return a.bound_ps < b.bound_ps; });
    for (done_ = 0; done_ < entries_.size(); ++done_) {
      TRY_VOID(visit(entries_[done_]));
      report();
    }
    if (!groups_.empty()) TRY_VOID(seek_runners_up());
    TRY_VOID(finish());
    if (request_.multipliers) state_multipliers();
    return std::move(result_);
  }

 private:
  // ---- enumeration ----
  void enumerate() {
    const int devices = static_cast<int>(cost_.topology().device_count());
    for (int stages = 1; stages <= devices; ++stages) {
      if (devices % stages != 0) continue;
      const std::string name = fmt::format("pp={}", stages);
      if (request_.space.fix_pp && *request_.space.fix_pp != stages)
        prune(name, fmt::format("pp is fixed to {}", *request_.space.fix_pp));
      else if (stages > 1 && !request_.space.pipeline)
        prune(name, "pipelines are off");
      else if (request_.space.even_stages && cost_.model().layers % stages != 0)
        prune(name, fmt::format("{} layers do not make {} equal stages", cost_.model().layers, stages));
      else if (stages > cost_.model().layers)
        prune(name, fmt::format("more stages than {} layers", cost_.model().layers));
      else
        enumerate_micro_batches(stages);
    }
  }
  void enumerate_micro_batches(int stages) {
    for (std::int64_t m = 1; m <= request_.global_batch; ++m) {
      if (request_.global_batch % m != 0) continue;
      if (request_.space.fix_micro_batches && *request_.space.fix_micro_batches != m) continue;
      const int devices = static_cast<int>(cost_.topology().device_count()) / stages;
      const std::string name = fmt::format("pp={} m={}", stages, m);
      for (const Pruned& p : model_.layers_of(devices, m).pruned) prune(name + " " + p.candidate, p.reason);
      if (model_.layers_of(devices, m).leaves.empty()) {
        prune(name, "no strategy for a layer");
        continue;
      }
      enumerate_schedules(stages, m);
    }
  }
  void enumerate_schedules(int stages, std::int64_t m) {
    const bool both = request_.space.gpipe && request_.space.one_f_one_b;
    const auto schedule = request_.space.one_f_one_b ? plan::Schedule::k1F1B : plan::Schedule::kGPipe;
    if (both) {
      prune(fmt::format("pp={} m={} {}", stages, m, plan::to_string(plan::Schedule::kGPipe)),
            "never a shorter closed form than 1f1b, and never fewer micro-batches in flight");
    }
    const int devices = static_cast<int>(cost_.topology().device_count()) / stages;
    const StrategyTree& tree = model_.vocabulary_of(devices, m);
    for (const Pruned& p : tree.pruned) prune(fmt::format("pp={} m={} {}", stages, m, p.candidate), p.reason);
    for (const plan::LayerStrategy& vocabulary : tree.leaves) {
      Entry entry{{stages, m, schedule, vocabulary}, 0};
      ++result_.problems;
      entry.bound_ps = entry.quick_bound_ps = model_.quick_bound(entry.problem);
      entries_.push_back(entry);
    }
  }

  // ---- one problem ----
  /// Proof: a problem whose bound is below the best plan so far is solved exactly; the others are left.
  base::Result<void> visit(Entry& entry) {
    const std::int64_t best = groups_.empty() ? kForbidden : groups_.front().best.closed_form_ps;
    if (entry.bound_ps >= best) return {};
    entry.bound_ps = std::max(entry.bound_ps, pipeline_bound(model_.pipeline(entry.problem)));
    if (entry.bound_ps >= kForbidden) {
      infeasible_.push_back(entry.problem);
      return {};
    }
    if (entry.bound_ps >= best) return {};
    if (effort_.exhausted) {
      open_bound_ps_ = std::min(open_bound_ps_, entry.bound_ps);
      prune(to_string(entry.problem), "effort limit reached before it was solved");
      entry.settled = true;
      return {};
    }
    entry.settled = true;
    effort_.undecided = false;
    TRY(const bool found, solve(entry.problem, best, solve_pipeline));
    if (effort_.exhausted || effort_.undecided) open_bound_ps_ = std::min(open_bound_ps_, entry.bound_ps);
    open_ = open_ || effort_.undecided;
    if (found) return {};
    if (best >= kForbidden)
      infeasible_.push_back(entry.problem);
    else
      prune(to_string(entry.problem), fmt::format("no plan that fits is below the incumbent {}", seconds(best)));
    return {};
  }

  /// Runners-up for the simulator to judge, no proof: groups in the order of their bounds, by their most promising vocabularies.
  base::Result<void> seek_runners_up() {
    constexpr int kVocabularies = 2, kTriesForOne = 3;
    std::map<std::tuple<int, std::int64_t, plan::Schedule>, int> tried;
    const auto wanted = static_cast<std::size_t>(request_.top);
    int tries = kTriesForOne * kVocabularies * request_.top;
    for (Entry& entry : entries_) {
      if (entry.settled || entry.bound_ps >= kForbidden) continue;
      const std::int64_t cutoff = cutoff_for(entry.problem);
      const auto group = std::tuple(entry.problem.stages, entry.problem.micro_batches, entry.problem.schedule);
      const bool worth = entry.bound_ps < cutoff && tries > 0 && tried[group] < kVocabularies && !effort_.exhausted && wanted > 1;
      if (worth) {
        --tries, ++tried[group];
        TRY(const bool found, solve(entry.problem, cutoff, quick_pipeline));
        if (found) continue;
      }
      const std::int64_t incumbent = groups_.empty() ? kForbidden : groups_.front().best.closed_form_ps;
      prune(to_string(entry.problem), fmt::format("bound {} ≥ incumbent {}", seconds(entry.bound_ps), seconds(incumbent)));
    }
    return {};
  }

  using Program = std::optional<PipelineAnswer> (*)(const PipelineProblem&, std::int64_t, Effort&);

  /// True when the program's answer is a plan below the cutoff; then it is kept.
  base::Result<bool> solve(const PlanProblem& problem, std::int64_t cutoff, Program program) {
    // A problem whose memory is hard to decide must not use up the whole effort: it is left open (kBudget).
    constexpr std::uint64_t kProblemStates = 300'000;
    const std::uint64_t left = effort_.limit == 0 ? kProblemStates : effort_.limit - std::min(effort_.limit, effort_.states);
    Effort effort{.limit = std::min(kProblemStates, std::max<std::uint64_t>(left, 1))};
    const auto answer = program(model_.pipeline(problem), cutoff, effort);
    effort_.states += effort.states;
    effort_.exhausted = effort_.exhausted || (effort_.limit != 0 && effort_.states >= effort_.limit);
    effort_.undecided = effort_.undecided || effort.undecided || effort.exhausted;
    if (!answer) return false;
    TRY(Finalist finalist, price(problem, *answer));
    ORRERY_CHECK(std::ranges::max(finalist.stage_peak_bytes) <= budget_, "an answer of the pipeline program does not fit");
    // The form's own optimum bounds the problem where plan_cost charges more (stage_model.h).
    if (program == solve_pipeline && answer->cost_ps < finalist.closed_form_ps) open_bound_ps_ = std::min(open_bound_ps_, answer->cost_ps);
    if (finalist.closed_form_ps >= cutoff) return false;
    keep(problem, std::move(finalist));
    return true;
  }

  base::Result<Finalist> price(const PlanProblem& problem, const PipelineAnswer& answer) {
    Finalist finalist{model_.plan_of(problem, answer), 0, {}};
    finalist.plan.cluster = request_.cluster;
    TRY(const costmodel::PlanCost priced, costmodel::plan_cost(costs_, finalist.plan));
    finalist.closed_form_ps = priced.step_ps;
    finalist.stage_peak_bytes = priced.stage_peak_bytes;
    return finalist;
  }

  // ---- the best of every group ----
  struct Group {
    int stages = 1;
    std::int64_t micro_batches = 1;
    plan::Schedule schedule = plan::Schedule::k1F1B;
    Finalist best;
  };
  Group* group_of(const PlanProblem& p) {
    const auto found = std::ranges::find_if(groups_, [&](const Group& g) {
      return g.stages == p.stages && g.micro_batches == p.micro_batches && g.schedule == p.schedule;
    });
    return found == groups_.end() ? nullptr : &*found;
  }
  /// What a plan of this problem must beat: its group's best, and the last of the top groups.
  std::int64_t cutoff_for(const PlanProblem& problem) {
    std::int64_t cutoff = kForbidden;
    if (const Group* group = group_of(problem)) cutoff = group->best.closed_form_ps;
    if (groups_.size() >= static_cast<std::size_t>(request_.top)) {
      cutoff = std::min(cutoff, groups_[static_cast<std::size_t>(request_.top) - 1].best.closed_form_ps);
    }
    return cutoff;
  }
  void keep(const PlanProblem& problem, Finalist finalist) {
    if (Group* group = group_of(problem))
      group->best = std::move(finalist);
    else
      groups_.push_back({problem.stages, problem.micro_batches, problem.schedule, std::move(finalist)});
    std::ranges::stable_sort(
        groups_, [](const Group& a, const Group& b) { return a.best.closed_form_ps < b.best.closed_form_ps; });
  }

  // ---- the end ----
  base::Result<void> finish() {
    result_.states = effort_.states;
    result_.exhausted = effort_.exhausted || (groups_.empty() && open_);
    for (const PlanProblem& problem : infeasible_) {
      if (!groups_.empty()) prune(to_string(problem), shortage(problem));
    }
    if (groups_.empty()) return smallest();
    for (const Group& group : groups_) {
      if (result_.finalists.size() < static_cast<std::size_t>(request_.top)) result_.finalists.push_back(group.best);
    }
    result_.bound_ps = std::min(open_bound_ps_, result_.finalists.front().closed_form_ps);
    return {};
  }
  /// The certificate's multipliers. A quick bound rounds up in every micro-batch, the checker's once.
  void state_multipliers() {
    const std::int64_t best = groups_.empty() ? kForbidden : groups_.front().best.closed_form_ps;
    result_.multiplier_bound_ps = best;
    for (const Entry& entry : entries_) {
      const PlanProblem& p = entry.problem;
      std::int64_t bound = entry.quick_bound_ps - p.micro_batches;
      if (bound < best) {
        PipelineMultipliers found = pipeline_multipliers(model_.pipeline(p));
        bound = found.bound_ps;
        result_.multipliers.push_back({p.stages, 1, p.micro_batches, p.schedule, p.vocabulary, found.unit, std::move(found.weights), std::move(found.prices)});
      }
      result_.multiplier_bound_ps = std::min(result_.multiplier_bound_ps, bound);
    }
  }
  std::string shortage(const PlanProblem& problem) {
    const PipelineProblem& pipeline = model_.pipeline(problem);
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const std::int64_t needed = needed_by(pipeline.stages[i]);
      if (needed > budget_) return fmt::format("stage {} needs {}, limit {}", i, gib(needed), gib(budget_));
    }
    return fmt::format("no choice of layers fits {}", gib(budget_));
  }
  /// Lower bound of a stage's peak by the memory form.
  std::int64_t needed_by(const PipelineStage& stage) const {
    LayerProblem p = stage.layers;
    p.layers = stage.counts.front();
    return std::min(kForbidden, budget_ - p.budget_bytes + least_memory(p));
  }

  /// Nothing fits: the least peak, by plans whose stages use one option each, exact by plan_cost.
  base::Result<void> smallest() {
    struct Ranked {
      std::int64_t needed;
      PlanProblem problem;
    };
    std::vector<Ranked> ranked;
    for (const PlanProblem& problem : infeasible_) {
      std::int64_t needed = 0;
      for (const PipelineStage& stage : model_.pipeline(problem).stages) needed = std::max(needed, needed_by(stage));
      ranked.push_back({needed, problem});
    }
    std::ranges::stable_sort(ranked, [](const Ranked& a, const Ranked& b) { return a.needed < b.needed; });
    constexpr std::size_t kTried = 24;
    result_.least_peak_bytes = kForbidden;
    for (std::size_t i = 0; i < std::min(kTried, ranked.size()); ++i) {
      const PipelineAnswer light = lightest(model_.pipeline(ranked[i].problem));
      TRY(const Finalist finalist, price(ranked[i].problem, light));
      const std::int64_t peak = std::ranges::max(finalist.stage_peak_bytes);
      if (peak >= result_.least_peak_bytes) continue;
      result_.least_peak_bytes = peak;
      result_.smallest = finalist;
    }
    return {};
  }
  static PipelineAnswer lightest(const PipelineProblem& pipeline) {
    PipelineAnswer answer;
    const int stages = static_cast<int>(pipeline.stages.size()), extra = pipeline.layers % stages;
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const LayerProblem& p = pipeline.stages[i].layers;
      // The last stages hold the fewest micro-batches: they take what is left over.
      const int count = pipeline.layers / stages + (stages - static_cast<int>(i) <= extra ? 1 : 0);
      std::int64_t least = kForbidden;
      std::int32_t chosen = 0;
      for (std::size_t o = 0; o < p.options.size(); ++o) {
        const std::vector<std::int32_t> sequence(static_cast<std::size_t>(count), static_cast<std::int32_t>(o));
        const std::int64_t peak = peak_of(p, sequence);
        if (peak >= least) continue;
        least = peak;
        chosen = static_cast<std::int32_t>(o);
      }
      answer.stages.push_back({std::vector<std::int32_t>(static_cast<std::size_t>(count), chosen), 0, 0, least});
    }
    return answer;
  }

  void prune(std::string candidate, std::string reason) {
    result_.pruned.push_back({std::move(candidate), std::move(reason)});
  }
  void report() {
    if (!request_.on_progress) return;
    const std::int64_t next = done_ + 1 < entries_.size() ? entries_[done_ + 1].bound_ps : 0;
    const std::int64_t incumbent = groups_.empty() ? 0 : groups_.front().best.closed_form_ps;
    request_.on_progress({done_ + 1, entries_.size(), incumbent, incumbent == 0 ? next : std::min(next, incumbent)});
  }

  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  std::int64_t budget_;
  costmodel::LayerCosts costs_;
  StageModel model_;
  Effort effort_;
  std::vector<Entry> entries_;
  std::size_t done_ = 0;
  std::vector<Group> groups_;  // cheapest first
  std::vector<PlanProblem> infeasible_;
  std::int64_t open_bound_ps_ = kForbidden;
  bool open_ = false;  // some problem's program could not decide (Effort::undecided)
  LoopResult result_;
};

}  // namespace

base::Result<LoopResult> run_loops(const costmodel::CostModel& cost, const PlanRequest& request,
                                   std::int64_t budget_bytes) {
  return Loops(cost, request, budget_bytes).run();
}

}  // namespace orrery::search
