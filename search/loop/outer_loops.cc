#include "search/loop/outer_loops.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/sim_time.h"
#include "base/units.h"
#include "search/costs/rank_model.h"
#include "search/loop/kinds_loops.h"
#include "search/programs/minimum_memory.h"
#include "search/programs/pipeline_multipliers.h"

namespace orrery::search {
namespace {

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}
std::string seconds(std::int64_t ps) {
  return fmt::format("{:.4f} s", static_cast<double>(ps) / 1e12);
}

/// A problem, or a family: all vocabularies of one.
struct Entry {
  PlanProblem problem;
  bool family = false;
  std::int64_t bound_ps = 0;
  std::int64_t sharp_below_ps = 0;  // below this the bound knows of memory
  bool settled = false;             // solved, or cut with its reason
  bool tried = false;               // as a runner-up
  std::int64_t quick_bound_ps = 0;
};

class Loops {
 public:
  Loops(costmodel::LayerCosts& costs, const PlanRequest& request, std::int64_t budget,
        LoopOptions options)
      : cost_(costs.cost()),
        request_(request),
        budget_(budget),
        options_(options),
        costs_(costs),
        model_(costs_, request.space, request.global_batch, budget),
        ranks_(costs_, request.space, model_, budget) {
    effort_.limit = request.max_states;
    for (std::int64_t m = 1; m <= request.global_batch; ++m) {
      if (request.global_batch % m == 0 && request.space.fix_micro_batches.value_or(m) == m)
        micro_batches_.push_back(m);
    }
  }

  base::Result<LoopResult> run() {
    enumerate();
    TRY_VOID(visit_from(0));
    if (request_.space.idle) {
      const std::size_t first = entries_.size();
      enumerate_idle();
      TRY_VOID(visit_from(first));
    }
    TRY_VOID(settle_undecided());
    if (!groups_.empty())
      TRY_VOID(options_.runners_up == RunnersUp::kCheapest ? solve_groups() : seek_runners_up());
    TRY_VOID(finish());
    if (request_.multipliers) state_multipliers();
    return std::move(result_);
  }

 private:
  using Queue = std::set<std::pair<std::int64_t, std::size_t>>;  // (bound, entry)

  /// Entries in the order of their bounds, each bound made sharp before its problem is solved.
  base::Result<void> visit_from(std::size_t first) {
    Queue queue, waiting;
    bool patient = true;
    for (std::size_t i = first; i < entries_.size(); ++i) queue.emplace(entries_[i].bound_ps, i);
    while (!queue.empty() || !waiting.empty()) {
      // Without an incumbent the rank program has no cutoff: it waits for one.
      patient = patient && !queue.empty() && groups_.empty();
      if (!patient) queue.merge(waiting);
      const auto [bound, i] = *queue.begin();
      if (bound >= incumbent()) break;
      if (effort_.exhausted && !groups_.empty()) {
        // What is left is open: a plan is known, and the least bound says how good it is.
        open_bound_ps_ = std::min(open_bound_ps_, bound);
        break;
      }
      queue.erase(queue.begin());
      Entry& entry = entries_[i];
      if (sharpen(entry, incumbent())) {
        if (entry.bound_ps < kForbidden) queue.emplace(entry.bound_ps, i);
      } else if (entry.family) {
        expand(i, queue);
      } else if (ranked(entry.problem.schedule) && patient) {
        waiting.emplace(bound, i);
      } else {
        if (groups_.empty() && !ranked(entry.problem.schedule)) {
          // Any plan cuts more than the exact program takes without one.
          TRY(const bool found, solve(entry.problem, kForbidden, quick_pipeline));
          if (found) {
            queue.emplace(bound, i);
            continue;
          }
        }
        TRY_VOID(visit(entry));
        report(queue.empty() ? bound : std::min(bound, queue.begin()->first));
      }
    }
    return {};
  }
  /// True: the bound grew.
  bool sharpen(Entry& entry, std::int64_t cutoff) {
    if (entry.sharp_below_ps >= cutoff) return false;
    const std::int64_t before = entry.bound_ps;
    entry.bound_ps = std::max(before, bound_with_memory(entry, cutoff));
    entry.sharp_below_ps = ranked(entry.problem.schedule) ? cutoff : kForbidden;
    if (entry.bound_ps >= kForbidden) give_up(entry);
    return entry.bound_ps > before;
  }
  void give_up(const Entry& entry) {
    if (!entry.family) return infeasible_.push_back(entry.problem);
    PlanProblem problem = entry.problem;
    for (const plan::LayerStrategy& vocabulary :
         model_.vocabulary_of(problem.devices, problem.micro_batches).leaves) {
      problem.vocabulary = vocabulary;
      infeasible_.push_back(problem);
    }
  }
  std::int64_t bound_with_memory(const Entry& entry, std::int64_t cutoff) {
    if (!ranked(entry.problem.schedule))
      return entry.family ? 0 : pipeline_bound(model_.pipeline(entry.problem));
    return entry.family ? ranks_.room_bound(entry.problem, cutoff)
                        : ranks_.bound(entry.problem, cutoff);
  }

  // ---- enumeration ----
  [[nodiscard]] int cluster_devices() const {
    return static_cast<int>(cost_.topology().device_count());
  }
  [[nodiscard]] std::int64_t incumbent() const {
    return groups_.empty() ? kForbidden : groups_.front().best.closed_form_ps;
  }

  /// Every device has a stage.
  void enumerate() {
    for (int stages = 1; stages <= cluster_devices(); ++stages) {
      if (cluster_devices() % stages != 0) continue;
      const std::string name = fmt::format("pp={}", stages);
      if (const Refusal why = refuse_stages(cost_.model(), request_.space, stages); why.refused())
        result_.pruned.push_back({name, why.text, why.reason});
      else
        enumerate_micro_batches(stages);
    }
  }
  void enumerate_micro_batches(int stages) {
    const int devices = cluster_devices() / stages;
    for (const std::int64_t m : micro_batches_) {
      const std::string name = fmt::format("pp={} m={}", stages, m);
      for (const Pruned& p : model_.layers_of(devices, m).pruned)
        result_.pruned.push_back({name + " " + p.candidate, p.text, p.reason});
      if (model_.layers_of(devices, m).leaves.empty()) {
        prune(name, "no strategy for a layer");
        continue;
      }
      if (request_.space.gpipe && request_.space.one_f_one_b) {
        prune(fmt::format("{} {}", name, plan::to_string(plan::Schedule::kGPipe)),
              "never a shorter closed form than 1f1b, and never fewer micro-batches in flight");
      }
      for (const Pruned& p : model_.vocabulary_of(devices, m).pruned)
        result_.pruned.push_back({name + " " + p.candidate, p.text, p.reason});
      for (const plan::Schedule schedule : schedules())
        add_family({stages, devices, 0, m, schedule, {}});
    }
  }
  /// GPipe only where 1F1B is not allowed.
  [[nodiscard]] std::vector<plan::Schedule> schedules() const {
    const Space& space = request_.space;
    std::vector<plan::Schedule> all;
    if (space.one_f_one_b)
      all.push_back(plan::Schedule::k1F1B);
    else if (space.gpipe)
      all.push_back(plan::Schedule::kGPipe);
    if (space.interleaved) all.push_back(plan::Schedule::kInterleaved);
    if (space.zero_bubble) all.push_back(plan::Schedule::kZeroBubbleH1);
    return all;
  }
  static bool ranked(plan::Schedule schedule) {
    return schedule == plan::Schedule::kInterleaved || schedule == plan::Schedule::kZeroBubbleH1;
  }

  /// The problem with every vocabulary, as one until its bound is reached.
  void add_family(PlanProblem problem) {
    if (ranked(problem.schedule) && ranks_.virtual_stages(problem).empty()) return;
    const std::size_t vocabularies =
        model_.vocabulary_of(problem.devices, problem.micro_batches).leaves.size();
    if (vocabularies == 0) return;
    result_.problems += vocabularies;
    entries_.push_back({.problem = problem, .family = true, .bound_ps = layers_bound(problem)});
  }
  std::int64_t layers_bound(const PlanProblem& problem) {
    return ranked(problem.schedule) ? ranks_.layers_bound(problem) : model_.layers_bound(problem);
  }
  /// Its problems, behind all other entries.
  void expand(std::size_t family, Queue& queue) {
    entries_[family].settled = true;
    PlanProblem problem = entries_[family].problem;
    const std::int64_t known = entries_[family].bound_ps;
    for (const plan::LayerStrategy& vocabulary :
         model_.vocabulary_of(problem.devices, problem.micro_batches).leaves) {
      problem.vocabulary = vocabulary;
      const std::int64_t bound = ranked(problem.schedule) ? known : model_.quick_bound(problem);
      queue.emplace(std::max(bound, known), entries_.size());
      entries_.push_back(
          {.problem = problem, .bound_ps = std::max(bound, known), .quick_bound_ps = bound});
    }
  }

  // ---- idle devices ----
  /// Fewer devices than there are: mostly cut by what the layers alone cost at least, pipeline
  /// degree by pipeline degree.
  void enumerate_idle() {
    const std::vector<plan::Schedule> all = schedules();
    const std::int64_t most = request_.space.pipeline
                                  ? std::min<std::int64_t>(cluster_devices(), cost_.model().layers)
                                  : 1;
    for (int stages = 1; stages <= most; ++stages) {
      if (refuse_stages(cost_.model(), request_.space, stages).refused()) continue;
      std::int64_t least = kForbidden;
      for (int devices = 1; stages * devices < cluster_devices(); ++devices) {
        if (request_.global_batch % odd_part(devices) != 0) continue;
        for (const std::int64_t m : micro_batches_) {
          if (request_.global_batch / m % odd_part(devices) != 0 ||
              model_.layers_of(devices, m).leaves.empty())
            continue;
          for (const plan::Schedule schedule : all) {
            const PlanProblem problem{stages, devices,  cluster_devices() - stages * devices,
                                      m,      schedule, {}};
            if (const std::int64_t bound = layers_bound(problem); bound < incumbent())
              add_family(problem);
            else
              least = std::min(least, bound);
          }
        }
      }
      if (least < kForbidden)
        prune(fmt::format("pp={} with idle devices", stages),
              fmt::format("bound {} ≥ incumbent {}", seconds(least), seconds(incumbent())));
    }
  }
  /// Tensor and context parallel degrees are powers of two: what is left of a stage's devices
  /// divides the micro-batch.
  static int odd_part(int devices) {
    return devices >> std::countr_zero(static_cast<unsigned>(devices));
  }

  // ---- one problem ----
  /// Proof: a problem whose bound is below the best plan so far is solved exactly; the others are
  /// left.
  base::Result<void> visit(Entry& entry) {
    const std::int64_t best = incumbent();
    if (effort_.exhausted) {
      open_bound_ps_ = std::min(open_bound_ps_, entry.bound_ps);
      prune(to_string(entry.problem), "effort limit reached before it was solved");
      entry.settled = true;
      return {};
    }
    entry.settled = true;
    effort_.undecided = false;
    TRY(const bool found, ranked(entry.problem.schedule)
                              ? solve_ranked(entry.problem, best, RankModel::Search::kExact)
                              : solve(entry.problem, best, solve_pipeline));
    if (effort_.exhausted || effort_.undecided)
      undecided_.push_back(static_cast<std::size_t>(&entry - entries_.data()));
    open_ = open_ || effort_.undecided;
    entry.tried = found;
    if (found) return {};
    if (best >= kForbidden)
      infeasible_.push_back(entry.problem);
    else
      prune(to_string(entry.problem),
            fmt::format("no plan that fits is below the incumbent {}", seconds(best)));
    return {};
  }

  /// Problems that were left open had to beat a worse plan than is known now: their multipliers, or
  /// the same program with today's cutoff, may close them.
  base::Result<void> settle_undecided() {
    for (const std::size_t i : undecided_) {
      const PlanProblem problem = entries_[i].problem;
      std::int64_t bound = entries_[i].bound_ps;
      if (!ranked(problem.schedule) && bound < incumbent())
        bound = std::max(bound, pipeline_multipliers(model_.pipeline(problem)).bound_ps);
      if (!ranked(problem.schedule) && bound < incumbent() && !effort_.exhausted) {
        effort_.undecided = false;
        TRY_VOID(solve(problem, incumbent(), solve_pipeline));
        if (!effort_.undecided) continue;
      }
      open_bound_ps_ = std::min(open_bound_ps_, bound);
    }
    return {};
  }

  /// Runners-up for the simulator to judge, no proof: groups without a plan in the order of their
  /// bounds, by their most promising vocabularies.
  base::Result<void> seek_runners_up() {
    constexpr int kVocabularies = 2, kTriesForOne = 3;
    std::map<std::tuple<int, int, std::int64_t, plan::Schedule>, int> tried;
    const auto wanted = static_cast<std::size_t>(request_.top);
    int tries = kTriesForOne * kVocabularies * request_.top;
    Queue queue;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].settled && entries_[i].bound_ps < kForbidden)
        queue.emplace(entries_[i].bound_ps, i);
    }
    while (!queue.empty()) {
      const std::size_t i = queue.begin()->second;
      queue.erase(queue.begin());
      Entry& entry = entries_[i];
      const std::int64_t cutoff = runner_up_cutoff();
      int& tried_here = tried[{entry.problem.stages, entry.problem.devices,
                               entry.problem.micro_batches, entry.problem.schedule}];
      const bool open =
          group_of(entry.problem) == nullptr && (entry.tried || tried_here < kVocabularies);
      if (entry.bound_ps < cutoff && tries > 0 && open && !effort_.exhausted && wanted > 1) {
        // even its bound takes time
        if (!ranked(entry.problem.schedule) && !entry.family && !std::exchange(entry.tried, true))
          ++tried_here;
        if (sharpen(entry, cutoff)) {
          if (entry.bound_ps < kForbidden) queue.emplace(entry.bound_ps, i);
          continue;
        }
        if (entry.family) {
          expand(i, queue);
          continue;
        }
        if (!std::exchange(entry.tried, true)) ++tried_here;
        --tries;
        TRY(const bool found, ranked(entry.problem.schedule)
                                  ? solve_ranked(entry.problem, cutoff, RankModel::Search::kQuick)
                                  : solve(entry.problem, cutoff, quick_pipeline));
        if (found) continue;
      }
      prune(name_of(entry),
            fmt::format("bound {} ≥ incumbent {}", seconds(entry.bound_ps), seconds(incumbent())));
    }
    return {};
  }
  /// Runners-up that are the cheapest of their groups, within some effort: problems in the order of
  /// their bounds, solved below what their group has.
  base::Result<void> solve_groups() {
    constexpr int kVocabularies = 3;  // of a group, the most promising
    options_.problem_states = std::min<std::uint64_t>(options_.problem_states, 20'000);
    std::map<std::tuple<int, int, std::int64_t, plan::Schedule>, int> tried;
    Queue queue;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const bool answered = entries_[i].tried || (entries_[i].family && entries_[i].settled);
      if (!answered && entries_[i].bound_ps < kForbidden) queue.emplace(entries_[i].bound_ps, i);
    }
    while (!queue.empty() && !effort_.exhausted) {
      const std::size_t i = queue.begin()->second;
      queue.erase(queue.begin());
      Entry& entry = entries_[i];
      const Group* group = group_of(entry.problem);
      const std::int64_t cutoff = group == nullptr
                                      ? runner_up_cutoff()
                                      : std::min(runner_up_cutoff(), group->best.closed_form_ps);
      if (entry.bound_ps >= cutoff) continue;
      if (sharpen(entry, cutoff)) {
        if (entry.bound_ps < kForbidden) queue.emplace(entry.bound_ps, i);
      } else if (entry.family) {
        expand(i, queue);
      } else if (++tried[{entry.problem.stages, entry.problem.devices, entry.problem.micro_batches,
                          entry.problem.schedule}] > kVocabularies) {
        continue;
      } else if (ranked(entry.problem.schedule)) {
        TRY_VOID(solve_ranked(entry.problem, cutoff, RankModel::Search::kExact));
      } else {
        TRY_VOID(solve(entry.problem, cutoff, solve_pipeline));
      }
    }
    return {};
  }
  static std::string name_of(const Entry& entry) {
    return entry.family ? family_name(entry.problem) : to_string(entry.problem);
  }

  using Program = std::optional<PipelineAnswer> (*)(const PipelineProblem&, std::int64_t, Effort&);

  [[nodiscard]] Effort effort_of_one() const {
    const std::uint64_t left = effort_.limit == 0
                                   ? options_.problem_states
                                   : effort_.limit - std::min(effort_.limit, effort_.states);
    return {.limit = std::min(options_.problem_states, std::max<std::uint64_t>(left, 1))};
  }
  void account(const Effort& effort) {
    effort_.states += effort.states;
    effort_.ticks += effort.ticks;
    effort_.exhausted = effort_.exhausted || effort_.ticks >= options_.ticks ||
                        (effort_.limit != 0 && effort_.states >= effort_.limit);
    effort_.undecided = effort_.undecided || effort.undecided || effort.exhausted;
  }

  /// True when the program's answer is a plan below the cutoff; then it is kept.
  base::Result<bool> solve(const PlanProblem& problem, std::int64_t cutoff, Program program) {
    Effort effort = effort_of_one();
    const auto answer = program(model_.pipeline(problem), cutoff, effort);
    account(effort);
    if (!answer) return false;
    TRY(Finalist finalist, price(model_.plan_of(problem, *answer)));
    ORRERY_CHECK(std::ranges::max(finalist.stage_peak_bytes) <= budget_,
                 "an answer of the pipeline program does not fit");
    // The form's own optimum bounds the problem where plan_cost charges more (stage_model.h).
    if (program == solve_pipeline && answer->cost_ps < finalist.closed_form_ps)
      open_bound_ps_ = std::min(open_bound_ps_, answer->cost_ps);
    if (finalist.closed_form_ps >= cutoff) return false;
    keep(problem, std::move(finalist));
    return true;
  }

  base::Result<bool> solve_ranked(const PlanProblem& problem, std::int64_t cutoff,
                                  RankModel::Search search) {
    Effort effort = effort_of_one();
    const auto answer = ranks_.solve(problem, cutoff, search, effort);
    account(effort);
    if (!answer) return false;
    TRY(Finalist finalist, price(answer->plan));
    ORRERY_CHECK(std::ranges::max(finalist.stage_peak_bytes) <= budget_,
                 "an answer of the rank program does not fit");
    ORRERY_CHECK(finalist.closed_form_ps == answer->cost_ps,
                 "the rank program says {} ps, plan_cost {}", answer->cost_ps,
                 finalist.closed_form_ps);
    keep(problem, std::move(finalist));
    return true;
  }

  base::Result<Finalist> price(plan::Plan plan) {
    Finalist finalist;
    finalist.plan = std::move(plan);
    finalist.plan.cluster = request_.cluster;
    TRY(const costmodel::PlanCost priced, costmodel::plan_cost(costs_, finalist.plan));
    finalist.closed_form_ps = priced.step_ps;
    finalist.expected_ps = priced.pass_by_pass_ps;
    finalist.stage_peak_bytes = priced.stage_peak_bytes;
    return finalist;
  }

  // ---- the best of every group ----
  struct Group {
    int stages = 1, devices = 1;
    std::int64_t micro_batches = 1;
    plan::Schedule schedule = plan::Schedule::k1F1B;
    Finalist best;
  };
  Group* group_of(const PlanProblem& p) {
    const auto found = std::ranges::find_if(groups_, [&](const Group& g) {
      return g.stages == p.stages && g.devices == p.devices && g.micro_batches == p.micro_batches &&
             g.schedule == p.schedule;
    });
    return found == groups_.end() ? nullptr : &*found;
  }
  /// What a runner-up must beat: the last of the top groups. Nobody wants a plan of twice the time,
  /// and exact ones cost more.
  [[nodiscard]] std::int64_t runner_up_cutoff() const {
    const auto top = static_cast<std::size_t>(request_.top);
    const std::int64_t most = options_.runners_up == RunnersUp::kCheapest
                                  ? incumbent() + incumbent() / 4
                                  : 2 * incumbent();
    return groups_.size() < top ? most : std::min(most, groups_[top - 1].best.closed_form_ps);
  }
  void keep(const PlanProblem& problem, Finalist finalist) {
    if (Group* group = group_of(problem))
      group->best = std::move(finalist);
    else
      groups_.push_back({problem.stages, problem.devices, problem.micro_batches, problem.schedule,
                         std::move(finalist)});
    std::ranges::stable_sort(groups_, [](const Group& a, const Group& b) {
      return a.best.closed_form_ps < b.best.closed_form_ps;
    });
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
      if (result_.finalists.size() < static_cast<std::size_t>(request_.top))
        result_.finalists.push_back(group.best);
    }
    result_.bound_ps = std::min(open_bound_ps_, result_.finalists.front().closed_form_ps);
    return {};
  }
  /// The certificate's multipliers, of 1F1B and GPipe on all devices. A quick bound rounds up in
  /// every micro-batch, the checker's once.
  void state_multipliers() {
    const std::int64_t best = groups_.empty() ? kForbidden : groups_.front().best.closed_form_ps;
    result_.multiplier_bound_ps = best;
    Queue unused;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const PlanProblem p = entries_[i].problem;
      if (ranked(p.schedule) || p.idle > 0) continue;
      const Entry entry = entries_[i];
      if (entry.family && !entry.settled && entry.bound_ps - p.micro_batches < best)
        expand(i, unused);
      if (entry.family) continue;
      std::int64_t bound = entry.quick_bound_ps - p.micro_batches;
      if (bound < best) {
        PipelineMultipliers found = pipeline_multipliers(model_.pipeline(p));
        bound = found.bound_ps;
        result_.multipliers.push_back({p.stages, 1, p.micro_batches, p.schedule, p.vocabulary,
                                       found.unit, std::move(found.weights),
                                       std::move(found.prices)});
      }
      result_.multiplier_bound_ps = std::min(result_.multiplier_bound_ps, bound);
    }
  }
  std::string shortage(const PlanProblem& problem) {
    if (ranked(problem.schedule)) return fmt::format("no choice of ranks fits {}", gib(budget_));
    const PipelineProblem& pipeline = model_.pipeline(problem);
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const std::int64_t needed = needed_by(pipeline.stages[i]);
      if (needed > budget_)
        return fmt::format("stage {} needs {}, limit {}", i, gib(needed), gib(budget_));
    }
    return fmt::format("no choice of layers fits {}", gib(budget_));
  }
  /// Lower bound of a stage's peak by the memory form.
  std::int64_t needed_by(const PipelineStage& stage) const {
    LayerProblem p = stage.layers;
    p.layers = stage.fewest;
    return std::min(kForbidden, budget_ - p.budget_bytes + least_memory(p));
  }

  /// Nothing fits: the least peak, by plans of little memory (minimum_memory.h), exact by
  /// plan_cost. An interleaved or ZB-H1 plan holds no fewer micro-batches than 1F1B's: asked only
  /// where that is not allowed.
  base::Result<void> smallest() {
    struct Ranked {
      std::int64_t needed;
      PlanProblem problem;
    };
    std::vector<Ranked> by_need;
    const bool plain = request_.space.one_f_one_b || request_.space.gpipe;
    for (const PlanProblem& problem : infeasible_) {
      std::int64_t needed = 0;
      if (ranked(problem.schedule)) {
        if (plain) continue;
      } else {
        for (const PipelineStage& stage : model_.pipeline(problem).stages)
          needed = std::max(needed, needed_by(stage));
      }
      by_need.push_back({needed, problem});
    }
    std::ranges::stable_sort(by_need,
                             [](const Ranked& a, const Ranked& b) { return a.needed < b.needed; });
    constexpr std::size_t kTried = 24;
    result_.least_peak_bytes = kForbidden;
    for (std::size_t i = 0; i < std::min(kTried, by_need.size()); ++i) {
      const PlanProblem& problem = by_need[i].problem;
      TRY(Finalist finalist,
          price(ranked(problem.schedule)
                    ? ranks_.lightest(problem)
                    : model_.plan_of(problem, minimum_memory(model_.pipeline(problem)))));
      const std::int64_t peak = std::ranges::max(finalist.stage_peak_bytes);
      if (peak >= result_.least_peak_bytes) continue;
      result_.least_peak_bytes = peak;
      result_.smallest = std::move(finalist);
    }
    return {};
  }

  void prune(std::string candidate, std::string reason) {
    result_.pruned.push_back({std::move(candidate), std::move(reason)});
  }
  /// `next`: bound of what is left.
  void report(std::int64_t next) {
    ++done_;
    if (!request_.on_progress) return;
    const std::int64_t best = groups_.empty() ? 0 : incumbent();
    request_.on_progress({done_, result_.problems, best, best == 0 ? next : std::min(next, best)});
  }

  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  std::int64_t budget_;
  LoopOptions options_;
  costmodel::LayerCosts& costs_;
  StageModel model_;
  RankModel ranks_;
  Effort effort_;
  std::vector<std::int64_t> micro_batches_;
  std::vector<Entry> entries_;
  std::size_t done_ = 0;
  std::vector<Group> groups_;  // cheapest first
  std::vector<PlanProblem> infeasible_;
  std::int64_t open_bound_ps_ = kForbidden;
  std::vector<std::size_t> undecided_;  // entries whose program stopped at its effort
  bool open_ = false;  // some problem's program could not decide (Effort::undecided)
  LoopResult result_;
};

}  // namespace

Refusal refuse_stages(const model::ModelSpec& model, const Space& space, int stages) {
  if (space.fix_pp && *space.fix_pp != stages)
    return {Reason::kFixed, fmt::format("pp is fixed to {}", *space.fix_pp)};
  if (stages > 1 && !space.pipeline) return {Reason::kOff, "pipelines are off"};
  if (space.even_stages && model.layers % stages != 0) {
    return {Reason::kDoesNotDivide,
            fmt::format("{} layers do not make {} equal stages", model.layers, stages)};
  }
  if (stages > model.layers)
    return {Reason::kDoesNotDivide, fmt::format("more stages than {} layers", model.layers)};
  return {};
}

base::Result<LoopResult> run_loops(costmodel::LayerCosts& costs, const PlanRequest& request,
                                   std::int64_t budget_bytes, LoopOptions options) {
  if (costs.cost().model().kinds() > 1) return run_kinds_loops(costs.cost(), request, budget_bytes);
  return Loops(costs, request, budget_bytes, options).run();
}

}  // namespace orrery::search
