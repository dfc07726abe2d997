#include "search/loop/partitioned_plans.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/numbers.h"
#include "search/loop/families.h"
#include "search/partition/partition_search.h"
#include "search/space/decision_tree.h"

namespace orrery::search {
namespace {

using plan::Schedule;

/// Effort of one search by id bits: about the milliseconds of docs/results/primepar.md.
constexpr std::array<std::int64_t, plan::kMostBits + 1> kSearchTicksOf{1, 1, 1, 2, 8, 60, 800};
/// Of what a layer's time by its memory says, in turn: what a byte is worth where plans do not fit.
constexpr std::array kMemoryWeights{0.0, 0.25, 1.0, 4.0};

class Partitions {
 public:
  Partitions(StageModel& stages, const PlanRequest& request, const Contest& known)
      : stages_(stages),
        costs_(stages.costs()),
        cost_(costs_.cost()),
        request_(request),
        known_(known) {}

  PartitionedPlans run() {
    std::vector<Family> families = all_families();
    std::ranges::stable_sort(families, {}, &Family::bound_ps);
    for (const Family& f : families) {
      out_.bound_ps = std::min(out_.bound_ps.value_or(f.bound_ps), f.bound_ps);
      if (!known_.may_win(f.bound_ps))
        prune(f, fmt::format("computes {:.3g} s at least", real(f.bound_ps) / 1e12));
      else
        search(f);
    }
    return std::move(out_);
  }

 private:
  struct Family {
    PlanProblem problem;
    std::int64_t bound_ps = 0;
    [[nodiscard]] int bits() const { return std::countr_zero(as_u32(problem.devices)); }
  };
  [[nodiscard]] std::int64_t layers() const { return cost_.model().layers; }
  [[nodiscard]] std::int64_t most_layers(const PlanProblem& p) const {
    return (layers() + p.stages - 1) / p.stages;
  }
  /// Layers that a micro-batch passes on other ranks, at least.
  [[nodiscard]] std::int64_t way(const PlanProblem& p) const {
    const bool chunks = p.micro_batches % p.stages == 0;
    const std::int64_t stage =
        std::max<std::int64_t>(1, layers() / (p.stages * (chunks ? kMostChunks : 1)));
    return std::max(0, p.stages - 2) * stage;
  }
  [[nodiscard]] PartitionRequest request_of(const PlanProblem& p) const {
    return {.bits = std::countr_zero(as_u32(p.devices)),
            .sequences = request_.global_batch / p.micro_batches,
            .tokens = cost_.options().sequence,
            .layers = as_int(most_layers(p)),
            .skews = 1,
            .fused_attention = true,
            .step = {.micro_batches = p.micro_batches}};
  }
  void prune(const Family& f, std::string why, Reason reason = Reason::kBeaten) {
    out_.pruned.push_back({family_name(f.problem) + " spatial-temporal", std::move(why), reason});
  }

  std::vector<Family> all_families() {
    std::vector<Family> all;
    const auto world = as_int(cost_.topology().device_count());
    for (int p = 1; p <= std::min<std::int64_t>(world, layers()); ++p) {
      const int devices = world / p;
      if (world % p != 0 || devices < 2 || !std::has_single_bit(as_u32(devices)) ||
          devices > 1 << plan::kMostBits ||
          refuse_stages(cost_.model(), request_.space, p).refused())
        continue;
      for (std::int64_t m = 1; m <= request_.global_batch; ++m) {
        if (request_.global_batch % m != 0 || request_.space.fix_micro_batches.value_or(m) != m)
          continue;
        Family f{.problem = {p, devices, 0, m, Schedule::k1F1B, {}}};
        auto least = PartitionSearch::least_compute_ps(cost_, request_of(f.problem));
        if (!least) {
          prune(f, std::move(least).error().front().message, Reason::kUnsupported);
          continue;
        }
        f.bound_ps = (m * most_layers(f.problem) + way(f.problem)) * *least;
        all.push_back(f);
      }
    }
    return all;
  }

  /// Layers that keep all activations, and such that run again where these do not fit as they are.
  void search(const Family& f) {
    const std::vector<plan::LayerStrategy> all =
        partition_shardings(request_.space, f.problem.micro_batches);
    bool fits = false;
    for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
      std::vector<plan::LayerStrategy> shardings;
      std::ranges::copy_if(all, std::back_inserter(shardings),
                           [&](const auto& s) { return s.recompute == recompute; });
      if (shardings.empty()) continue;
      const Tried tried = search(f, shardings);
      if (tried == Tried::kEnds || tried == Tried::kFitsAtOnce) return;
      fits = fits || tried == Tried::kFits;
    }
    if (!fits) prune(f, "no partition that was tried fits");
  }

  enum class Tried : std::uint8_t { kFitsAtOnce, kFits, kNothingFits, kEnds };
  /// With shardings that differ in zero and in when gradients are reduced.
  Tried search(const Family& f, const std::vector<plan::LayerStrategy>& shardings) {
    double weight = 0;  // of a layer's time by its memory
    for (const double share : kMemoryWeights) {
      const std::int64_t ticks = kSearchTicksOf[as_index(f.bits())];
      if (ticks_ + ticks > kPartitionTicks) {
        prune(f, "the limit of effort came first", Reason::kUnsupported);
        return Tried::kEnds;
      }
      ticks_ += ticks;
      PartitionRequest request = request_of(f.problem);
      request.memory_weight = share * weight;
      request.step.recomputes = shardings.front().recompute == plan::Recompute::kFull;
      request.step.zero = priced_zero(shardings);
      const auto search = PartitionSearch::make(cost_, request);
      if (!search) {
        prune(f, search.error().front().message, Reason::kUnsupported);
        return Tried::kEnds;
      }
      const PartitionAnswer answer = search->best();
      weight = real(answer.time_ps) / real(answer.memory_bytes);
      if (add_plans(f, answer, shardings)) return share == 0 ? Tried::kFitsAtOnce : Tried::kFits;
    }
    return Tried::kNothingFits;
  }
  /// Zero 1 and 2 cost no time over none; zero 3 does.
  static int priced_zero(const std::vector<plan::LayerStrategy>& shardings) {
    int zero = shardings.front().zero;
    for (const plan::LayerStrategy& s : shardings)
      if (s.zero < 3) zero = std::max(zero, s.zero);
    return zero;
  }

  /// Runs of `count` layers, those of which there are most left out first.
  static std::vector<plan::LayerRun> runs_of(const PartitionAnswer& answer, int count,
                                             const plan::LayerStrategy& strategy) {
    std::vector<plan::LayerRun> runs;
    int sum = 0;
    for (const LayerChoice& layer : answer.layers) {
      plan::LayerRun run{.count = layer.count, .strategy = strategy};
      for (std::size_t i = 0; i < plan::partitioned_operators().size(); ++i)
        run.partition.push_back(layer.operators[i].sequence);
      sum += run.count;
      runs.push_back(std::move(run));
    }
    for (; sum > count; --sum) --std::ranges::max_element(runs, {}, &plan::LayerRun::count)->count;
    std::erase_if(runs, [](const plan::LayerRun& run) { return run.count == 0; });
    return runs;
  }

  [[nodiscard]] std::vector<std::pair<Schedule, int>> orders(const PlanProblem& p) const {
    std::vector<std::pair<Schedule, int>> all;
    const Space& space = request_.space;
    if (space.one_f_one_b) all.emplace_back(Schedule::k1F1B, 1);
    if (space.gpipe && (p.stages > 1 || all.empty())) all.emplace_back(Schedule::kGPipe, 1);
    const bool interleaves = space.interleaved && p.stages > 1 && p.micro_batches % p.stages == 0;
    for (int v = 2; interleaves && v <= kMostChunks && p.stages * v <= layers(); ++v)
      if (space.fix_virtual_stages.value_or(v) == v &&
          (!space.even_stages || layers() % (p.stages * v) == 0))
        all.emplace_back(Schedule::kInterleaved, v);
    return all;
  }

  plan::Plan plan_of(const PlanProblem& problem, int chunks, const PartitionAnswer& answer,
                     plan::LayerStrategy sharding) {
    sharding.dp = problem.devices;
    plan::Plan plan = stages_.frame(problem);
    plan.cluster = request_.cluster;
    plan.virtual_stages = chunks;
    for (const int count : plan::stage_layers(layers(), problem.stages, chunks))
      plan.stages.push_back({runs_of(answer, count, sharding)});
    return plan;
  }

  /// True: some plan fits.
  bool add_plans(const Family& f, const PartitionAnswer& answer,
                 const std::vector<plan::LayerStrategy>& shardings) {
    fastest_ps_ = kForbidden;
    const std::size_t before = out_.found.size();
    for (const auto& [schedule, chunks] : orders(f.problem)) {
      PlanProblem problem = f.problem;
      problem.schedule = schedule;
      std::optional<Finalist> best;
      const auto leaves = stages_.vocabulary_of(problem.devices, problem.micro_batches).leaves;
      for (const plan::LayerStrategy& sharding : shardings) {
        for (const plan::LayerStrategy& vocabulary : leaves) {
          problem.vocabulary = vocabulary;
          plan::Plan plan = plan_of(problem, chunks, answer, sharding);
          if (plan::validate(plan, cost_.model()).empty()) price(problem, std::move(plan), best);
        }
      }
      if (best) out_.found.push_back(std::move(*best));
    }
    if (fastest_ps_ == kForbidden) return false;
    if (out_.found.size() == before)
      prune(f, fmt::format("{:.3g} s expected", real(fastest_ps_) / 1e12));
    return true;
  }

  /// Keeps it if it fits and is the fastest that may win.
  void price(const PlanProblem& problem, plan::Plan plan, std::optional<Finalist>& best) {
    const costmodel::StepForms forms = costmodel::step_forms(costs_, plan);
    if (best && best->expected_ps <= forms.pass_by_pass_ps) return;
    std::vector<std::int64_t> peaks;
    for (int r = 0; r < plan.pipeline_degree(); ++r) {
      peaks.push_back(costmodel::stage_peak_bytes(costs_, plan, r));
      if (peaks.back() > stages_.memory_bytes(problem, r)) return;
    }
    fastest_ps_ = std::min(fastest_ps_, forms.pass_by_pass_ps);
    if (known_.may_win(forms.pass_by_pass_ps))
      best = {std::move(plan), forms.closed_form_ps, forms.pass_by_pass_ps, std::move(peaks),
              forms.energy_ps};
  }

  StageModel& stages_;
  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  const Contest& known_;
  PartitionedPlans out_;
  std::int64_t ticks_ = 0;
  std::int64_t fastest_ps_ = kForbidden;  // of the partition last tried
};

}  // namespace

PartitionedPlans partitioned_plans(StageModel& stages, const PlanRequest& request,
                                   const Contest& known) {
  return Partitions(stages, request, known).run();
}

}  // namespace orrery::search
