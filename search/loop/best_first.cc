#include "search/loop/best_first.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/numbers.h"
#include "search/loop/best_of_groups.h"
#include "search/loop/entry.h"
#include "search/loop/least_memory.h"
#include "search/status.h"

namespace orrery::search {
namespace {

/// Of pricing a family or problem, where a search may give up.
constexpr std::uint64_t kLook = 500;
constexpr std::uint64_t kPricedOfTick = 6;  // operations priced
/// Problems that are asked for any plan, where the effort has found none.
constexpr std::size_t kHurried = 200;

class BestFirst {
 public:
  BestFirst(StageModel& stages, const PlanRequest& request, LoopOptions options)
      : costs_(stages.costs()),
        request_(request),
        stages_(stages),
        options_(options),
        solvers_(stages, request.space),
        families_(costs_.cost(), request, solvers_) {
    effort_.limit = request.max_states;
    stages_.set_limit([this] { return gives_up(); });
  }
  ~BestFirst() { stages_.set_limit({}); }
  BestFirst(const BestFirst&) = delete;
  BestFirst& operator=(const BestFirst&) = delete;

  base::Result<LoopResult> run() {
    std::vector<PlanProblem> families = families_.on_all_devices(result_.pruned);
    const auto unproved = std::stable_partition(
        families.begin(), families.end(),
        [&](const PlanProblem& family) { return solvers_.of(family).proves(family); });
    const std::vector<PlanProblem> later(unproved, families.end());
    families.erase(unproved, families.end());
    TRY_VOID(visit_all(families));
    TRY_VOID(visit_all(later));
    if (request_.space.idle)
      TRY_VOID(visit_all(families_.with_idle_devices(incumbent(), result_.pruned)));
    TRY_VOID(settle_undecided());
    if (!groups_.empty()) TRY_VOID(seek_runners_up());
    TRY_VOID(finish());
    if (request_.multipliers) state_multipliers();
    return std::move(result_);
  }

 private:
  using Queue = std::set<std::pair<std::int64_t, std::size_t>>;  // (bound, entry)
  using Group = BestOfGroups::Group;

  Solver& solver_of(const Entry& entry) { return solvers_.of(entry.problem); }
  [[nodiscard]] std::int64_t incumbent() const {
    const std::int64_t known = request_.known.closed_form_ps;
    return groups_.empty() ? known : std::min(known, groups_.closed_form_ps(0));
  }
  /// Some plan is to be beaten.
  [[nodiscard]] bool has_incumbent() const { return !groups_.empty() || request_.known.some(); }
  void prune(std::string candidate, std::string reason) {
    result_.pruned.push_back({std::move(candidate), std::move(reason)});
  }
  /// `next`: bound of what is left.
  void report(std::int64_t next) {
    ++done_;
    if (!request_.on_progress) return;
    const std::int64_t best = has_incumbent() ? incumbent() : 0;
    request_.on_progress({done_, result_.problems, best, best == 0 ? next : std::min(next, best)});
  }

  // ---- the loop ----
  /// Families and their problems in the order of their bounds, each bound made sharp before its
  /// problem is solved.
  base::Result<void> visit_all(const std::vector<PlanProblem>& families) {
    Queue queue, waiting;
    for (const PlanProblem& family : families) {
      result_.problems += stages_.vocabulary_of(family.devices, family.micro_batches).leaves.size();
      add({.problem = family, .family = true, .bound_ps = stages_.layers_bound(family, true)},
          queue);
    }
    bool patient = true;
    while (!queue.empty() || !waiting.empty()) {
      patient = patient && !queue.empty() && !has_incumbent();
      if (!patient) queue.merge(waiting);
      const auto [bound, i] = *queue.begin();
      if (bound >= incumbent()) break;
      if (options_.gives_up) effort_.ticks += kLook;
      if (exhausted() && (options_.gives_up || !hurries())) {
        // What is left is open: the least bound says how good a plan that is known is.
        leave_open(entries_[i].problem, bound);
        break;
      }
      queue.erase(queue.begin());
      if (exhausted()) {
        TRY_VOID(hurry(i, queue));
        continue;
      }
      if (advance(i, incumbent(), queue)) continue;
      const bool waits = solver_of(entries_[i]).needs_incumbent(entries_[i].problem);
      if (waits && patient) {
        waiting.emplace(bound, i);
        continue;
      }
      if (!has_incumbent() && !waits) {
        // Any plan cuts more than the exact program takes without one.
        TRY(const bool found, solve(entries_[i], kForbidden, Depth::kQuick));
        if (found) {
          queue.emplace(bound, i);
          continue;
        }
      }
      TRY_VOID(visit(i));
      report(queue.empty() ? bound : std::min(bound, queue.begin()->first));
    }
    return {};
  }
  /// Out of effort without a plan: then any is looked for, bounds as they are, and a good one of
  /// the first that have some.
  [[nodiscard]] bool hurries() const {
    return hurried_.size() < kHurried && (!has_incumbent() || (!hurried_.empty() && !is_late()));
  }
  [[nodiscard]] bool is_late() const { return spent() >= options_.ticks + kSearchTicks / 2; }
  base::Result<void> hurry(std::size_t i, Queue& queue) {
    constexpr int kVocabularies = 2;  // of a group
    phase_ = Phase::kHurries;
    const PlanProblem problem = entries_[i].problem;
    const bool priced = stages_.price_layers(problem);
    if (entries_[i].family && priced) {
      expand(i, queue);
      return {};
    }
    entries_[i].settled = !entries_[i].family;
    leave_open(problem, entries_[i].bound_ps);
    if (!priced || ++hurried_of_[BestOfGroups::group_of(problem)] > kVocabularies) return {};
    hurried_.push_back(problem);
    TRY_VOID(solve(entries_[i], incumbent(), Depth::kQuick));
    return {};
  }
  void leave_open(const PlanProblem& problem, std::int64_t bound) {
    if (solvers_.of(problem).proves(problem))
      open_bound_ps_ = std::min(open_bound_ps_, bound);
    else
      unproved_ = true;
  }
  void add(Entry entry, Queue& queue) {
    queue.emplace(entry.bound_ps, entries_.size());
    entries_.push_back(std::move(entry));
  }
  /// True: the entry waits again, with a sharper bound or out of effort, or made way for its
  /// problems.
  bool advance(std::size_t i, std::int64_t cutoff, Queue& queue) {
    Entry& entry = entries_[i];
    if (sharpen(entry, cutoff)) {
      if (entry.bound_ps < kForbidden) queue.emplace(entry.bound_ps, i);
      return true;
    }
    if (entry.family) expand(i, queue);
    return entries_[i].family;
  }
  /// True: the bound grew.
  bool price(Entry& entry) {
    if (!entry.family || entry.priced) return false;
    entry.priced = true;
    const std::int64_t before = entry.bound_ps;
    entry.bound_ps = std::max(before, stages_.layers_bound(entry.problem));
    return entry.bound_ps > before;
  }
  /// True: the bound grew, or the effort ended.
  bool sharpen(Entry& entry, std::int64_t cutoff) {
    if (price(entry) || !stages_.price_layers(entry.problem)) return true;
    if (entry.sharp_below_ps >= cutoff) return false;
    Solver& solver = solver_of(entry);
    const Solver::Bound sharp = entry.family ? solver.family_bound(entry.problem, cutoff)
                                             : solver.bound(entry.problem, cutoff);
    entry.sharp_below_ps = sharp.below_ps;
    if (sharp.ps <= entry.bound_ps) return false;
    entry.bound_ps = sharp.ps;
    if (entry.bound_ps >= kForbidden) record_infeasible(entry);
    return true;
  }
  void record_infeasible(const Entry& entry) {
    if (!entry.family) return infeasible_.push_back(entry.problem);
    for_problems(entry.problem, [&](const PlanProblem& p) { infeasible_.push_back(p); });
  }
  template <class Use>
  void for_problems(PlanProblem family, const Use& use) {
    for (const plan::LayerStrategy& vocabulary :
         stages_.vocabulary_of(family.devices, family.micro_batches).leaves) {
      family.vocabulary = vocabulary;
      use(family);
    }
  }
  /// Its problems, behind all other entries.
  void expand(std::size_t i, Queue& queue) {
    entries_[i].settled = true;
    const Entry family = entries_[i];
    const bool waits = solver_of(family).needs_incumbent(family.problem);
    for_problems(family.problem, [&](const PlanProblem& p) {
      const std::int64_t quick = waits || gives_up() ? family.bound_ps : stages_.quick_bound(p);
      add({.problem = p, .bound_ps = std::max(quick, family.bound_ps), .quick_bound_ps = quick},
          queue);
    });
  }

  // ---- one problem ----
  /// Proof: a problem whose bound is below the best plan so far is solved exactly; the others are
  /// left.
  base::Result<void> visit(std::size_t i) {
    Entry& entry = entries_[i];
    const std::int64_t best = incumbent();
    entry.settled = true;
    if (exhausted()) {
      leave_open(entry.problem, entry.bound_ps);
      prune(entry.name(), "effort limit reached before it was solved");
      return {};
    }
    effort_.undecided = false;
    TRY(entry.answered, solve(entry, best, Depth::kExact));
    if (exhausted() || effort_.undecided) undecided_.push_back(i);
    open_ = open_ || effort_.undecided;
    if (entry.answered) return {};
    if (effort_.undecided)
      prune(entry.name(),
            fmt::format("effort limit reached: nothing below {} is left", seconds(entry.bound_ps)));
    else if (best >= kForbidden)
      infeasible_.push_back(entry.problem);
    else
      prune(entry.name(),
            fmt::format("no plan that fits is below the incumbent {}", seconds(best)));
    return {};
  }

  /// Problems that were left open had to beat a worse plan than is known now: their multipliers, or
  /// the same program with today's cutoff, may close them.
  base::Result<void> settle_undecided() {
    phase_ = Phase::kSearches;
    for (const std::size_t i : undecided_) {
      Entry& entry = entries_[i];
      // Where others are open below it, its bound does not matter any more.
      const bool matters = !exhausted() || entry.bound_ps < open_bound_ps_;
      if (entry.bound_ps < incumbent() && matters && proof_ticks_ < kProofTicks / 2) {
        if (const auto known = multipliers(entry.problem)) {
          entry.bound_ps = std::max(entry.bound_ps, known->bound_ps);
          if (entry.bound_ps < incumbent() && !exhausted()) {
            effort_.undecided = false;
            TRY_VOID(solve(entry, incumbent(), Depth::kExact));
            if (!effort_.undecided) continue;
          }
        }
      }
      leave_open(entry.problem, entry.bound_ps);
    }
    return {};
  }

  /// True when the solver's answer is a plan below the cutoff; then it is kept.
  base::Result<bool> solve(Entry& entry, std::int64_t cutoff, Depth depth) {
    const std::uint64_t left = effort_.limit == 0
                                   ? options_.problem_states
                                   : effort_.limit - std::min(effort_.limit, effort_.states);
    Effort effort{.limit = std::min(options_.problem_states, std::max<std::uint64_t>(left, 1))};
    Solver::Answer answer = solver_of(entry).solve(entry.problem, cutoff, depth, effort);
    spend(effort);
    if (depth == Depth::kExact)
      entry.bound_ps = std::max(entry.bound_ps, std::min(cutoff, answer.left_ps));
    if (!answer.plan) return false;
    TRY(Finalist finalist, price(*std::move(answer.plan)));
    ORRERY_CHECK(excess_bytes(stages_, finalist) <= 0, "the answer of a solver does not fit");
    ORRERY_CHECK(answer.form_ps <= finalist.closed_form_ps, "a solver's form is no lower bound");
    // The form's own optimum bounds the problem where plan_cost charges more (stage_model.h).
    if (depth == Depth::kExact && answer.form_ps < finalist.closed_form_ps)
      open_bound_ps_ = std::min(open_bound_ps_, answer.form_ps);
    if (finalist.closed_form_ps >= cutoff) return false;
    groups_.keep(entry.problem, std::move(finalist));
    return true;
  }
  void spend(const Effort& effort) {
    effort_.states += effort.states;
    effort_.ticks += effort.ticks;
    effort_.undecided = effort_.undecided || effort.undecided || effort.exhausted;
  }
  /// By states, or by ticks; among them count the prices of layers, and their routes, the time of
  /// prices on large clusters.
  bool exhausted() {
    return (effort_.limit != 0 && effort_.states >= effort_.limit) || spent() >= options_.ticks;
  }
  /// Whether prices are asked for no more.
  bool gives_up() {
    switch (phase_) {
      case Phase::kSearches: return exhausted();
      case Phase::kHurries: return is_late();
      case Phase::kProves: return proof_spent() >= kProofTicks;
    }
    return true;
  }
  [[nodiscard]] std::uint64_t proof_spent() const {
    return proof_ticks_ + priced_ticks() - proof_before_;
  }
  [[nodiscard]] std::uint64_t spent() const {
    return effort_.ticks + priced_ticks() - priced_before_;
  }
  [[nodiscard]] std::uint64_t priced_ticks() const {
    return costs_.routes() + costs_.priced() / kPricedOfTick;
  }
  base::Result<Finalist> price(plan::Plan plan) {
    plan.cluster = request_.cluster;
    return finalist_of(costs_, std::move(plan));
  }

  // ---- runners-up ----
  /// What a runner-up must beat: the last of the top groups. Nobody wants a plan of twice the time,
  /// and exact ones cost more.
  [[nodiscard]] std::int64_t runner_up_cutoff() const {
    const auto top = as_index(request_.top);
    const std::int64_t most = options_.runners_up == RunnersUp::kCheapest
                                  ? incumbent() + incumbent() / 4
                                  : 2 * incumbent();
    return groups_.size() < top ? most : std::min(most, groups_.closed_form_ps(top - 1));
  }

  /// No proof: groups in the order of their bounds, by their most promising vocabularies.
  base::Result<void> seek_runners_up() {
    const bool quick = options_.runners_up == RunnersUp::kQuick;
    if (!quick) options_.problem_states = std::min<std::uint64_t>(options_.problem_states, 20'000);
    Queue queue;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& e = entries_[i];
      const bool done = quick || e.family ? e.settled : e.answered;
      if (!done && e.bound_ps < kForbidden) queue.emplace(e.bound_ps, i);
    }
    std::map<Group, int> tried;
    int tries = 6 * request_.top;  // of quick answers
    while (!queue.empty()) {
      const std::size_t i = queue.begin()->second;
      queue.erase(queue.begin());
      TRY(const bool left_out,
          quick ? try_quickly(i, tried, tries, queue) : solve_group(i, tried, queue));
      if (left_out)
        prune(entries_[i].name(), fmt::format("bound {} ≥ incumbent {}",
                                              seconds(entries_[i].bound_ps), seconds(incumbent())));
    }
    return {};
  }
  /// Groups without a plan. True: the entry is left out.
  base::Result<bool> try_quickly(std::size_t i, std::map<Group, int>& tried, int& tries,
                                 Queue& queue) {
    constexpr int kVocabularies = 2;
    const Group group = BestOfGroups::group_of(entries_[i].problem);
    const std::int64_t cutoff = runner_up_cutoff();
    const bool open = groups_.find(group) == nullptr &&
                      (entries_[i].answered || tried[group] < kVocabularies) && tries > 0 &&
                      request_.top > 1 && !exhausted();
    if (!open || entries_[i].bound_ps >= cutoff) return true;
    if (!entries_[i].family && !entries_[i].answered) {
      ++tried[group];  // even its bound takes time
      entries_[i].answered = true;
    }
    if (advance(i, cutoff, queue)) return false;
    --tries;
    TRY(const bool found, solve(entries_[i], cutoff, Depth::kQuick));
    return !found;
  }
  /// The cheapest of the group, within some effort: problems solved below what the group has.
  base::Result<bool> solve_group(std::size_t i, std::map<Group, int>& tried, Queue& queue) {
    constexpr int kVocabularies = 3;
    const Group group = BestOfGroups::group_of(entries_[i].problem);
    std::int64_t cutoff = runner_up_cutoff();
    if (const Finalist* known = groups_.find(group))
      cutoff = std::min(cutoff, known->closed_form_ps);
    if (entries_[i].bound_ps >= cutoff || exhausted()) return true;
    if (advance(i, cutoff, queue)) return false;
    if (++tried[group] <= kVocabularies) TRY_VOID(solve(entries_[i], cutoff, Depth::kExact));
    return false;
  }

  // ---- the end ----
  base::Result<void> finish() {
    if (groups_.empty() && !options_.gives_up && !has_incumbent()) TRY_VOID(smallest());
    result_.states = effort_.states;
    result_.exhausted = exhausted() || (groups_.empty() && open_);
    result_.bound_ps = std::min(open_bound_ps_, incumbent());
    if (groups_.empty()) return {};
    if (options_.gives_up) infeasible_.clear();  // nobody asks why, and that takes long to say
    for (const PlanProblem& problem : infeasible_)
      prune(to_string(problem), solvers_.of(problem).shortage(problem));
    if (unproved_) prune("interleaved", "looked for as far as the effort went, nothing proved");
    result_.finalists = groups_.top(as_index(request_.top));
    return {};
  }
  /// The certificate's multipliers, of 1F1B and GPipe on all devices. By quick bounds, which round
  /// up in every micro-batch, the checker's once: what is left is no less than the next.
  void state_multipliers() {
    const std::int64_t best = incumbent();
    std::int64_t& least = result_.multiplier_bound_ps;
    least = best;
    phase_ = Phase::kProves;
    proof_before_ = priced_ticks();
    Queue queue, unused;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const PlanProblem p = entries_[i].problem;
      if (!stated(p)) continue;
      if (!entries_[i].family) {
        queue.emplace(entries_[i].quick_bound_ps - p.micro_batches, i);
        continue;
      }
      const auto may_beat = [&] { return entries_[i].bound_ps - p.micro_batches < best; };
      if (entries_[i].settled || !may_beat()) continue;
      if (proof_spent() >= kProofTicks / 2)
        least = std::min(least, entries_[i].bound_ps - p.micro_batches);
      else if (!price(entries_[i]) || may_beat())
        expand(i, unused);
    }
    std::map<std::size_t, ProblemMultipliers> found;
    for (const auto& [bound, i] : queue) {
      if (bound >= least) break;
      if (gives_up() || !stages_.price_layers(entries_[i].problem)) {
        least = std::min(least, bound);
        break;
      }
      const auto known = multipliers(entries_[i].problem);
      least = std::min(least, known ? known->bound_ps : bound);
      if (known) found.emplace(i, statement(entries_[i].problem, *known));
    }
    for (auto& [i, statement] : found) result_.multipliers.push_back(std::move(statement));
  }
  static bool stated(const PlanProblem& p) {
    return p.idle == 0 &&
           (p.schedule == plan::Schedule::k1F1B || p.schedule == plan::Schedule::kGPipe);
  }
  static ProblemMultipliers statement(const PlanProblem& p, const PipelineMultipliers& found) {
    return {p.stages,     1,          p.micro_batches, p.schedule,
            p.vocabulary, found.unit, found.weights,   found.prices};
  }
  std::optional<PipelineMultipliers> multipliers(const PlanProblem& p) {
    auto found = solvers_.of(p).multipliers(p);
    if (found) proof_ticks_ += found->ticks;
    return found;
  }

  /// Nothing was found: the plan of the least memory, which may fit where the effort ran out.
  base::Result<void> smallest() {
    std::vector<PlanProblem> problems = infeasible_;
    problems.insert(problems.end(), hurried_.begin(), hurried_.end());
    std::erase_if(problems, [&](const PlanProblem& p) { return !stages_.price_layers(p); });
    TRY(LeastMemory least, least_memory(solvers_, std::move(problems),
                                        request_.space.one_f_one_b || request_.space.gpipe,
                                        [&](plan::Plan plan) { return price(std::move(plan)); }));
    if (least.excess_bytes >= kForbidden) {
      result_.least_peak_bytes = kForbidden;
    } else if (least.excess_bytes <= 0) {
      groups_.keep(least.problem, std::move(least.finalist));
    } else {
      result_.least_peak_bytes = stages_.memory().least() + least.excess_bytes;
      result_.smallest = std::move(least.finalist);
    }
    return {};
  }

  costmodel::LayerCosts& costs_;
  const PlanRequest& request_;
  StageModel& stages_;
  LoopOptions options_;
  Solvers solvers_;
  Families families_;
  Effort effort_;
  // whose effort prices count against: the search's; that of any plan, out of it; the multipliers'
  enum class Phase : std::uint8_t { kSearches, kHurries, kProves } phase_ = Phase::kSearches;
  std::uint64_t proof_ticks_ = 0, proof_before_ = 0;
  std::vector<PlanProblem> hurried_;  // that were asked for any plan, out of effort
  std::map<Group, int> hurried_of_;
  std::uint64_t priced_before_ = priced_ticks();
  std::vector<Entry> entries_;
  std::uint64_t done_ = 0;
  BestOfGroups groups_;
  std::vector<PlanProblem> infeasible_;
  std::int64_t open_bound_ps_ = kForbidden;
  std::vector<std::size_t> undecided_;  // entries whose program stopped at its effort
  bool open_ = false;                   // some problem's program could not decide
  bool unproved_ = false;               // some plans of which nothing is to be proved are left
  LoopResult result_;
};

}  // namespace

base::Result<LoopResult> search_best_first(StageModel& stages, const PlanRequest& request,
                                           LoopOptions options) {
  return BestFirst(stages, request, options).run();
}

}  // namespace orrery::search
