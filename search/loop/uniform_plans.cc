#include "search/loop/uniform_plans.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/numbers.h"
#include "search/costs/pass_times.h"
#include "search/loop/families.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;
using plan::Schedule;

class Grid {
 public:
  Grid(StageModel& stages, const PlanRequest& request, const Contest& known)
      : stages_(stages),
        costs_(stages.costs()),
        cost_(costs_.cost()),
        space_(request.space),
        request_(request),
        known_(known) {
    const std::vector<model::BlockRun>& kinds = cost_.model().runs;
    const auto mixture =
        std::ranges::find_if(kinds, [](const auto& kind) { return kind.shape.experts > 0; });
    if (mixture != kinds.end()) richest_ = as_int(mixture - kinds.begin());
  }

  ~Grid() { stages_.set_limit({}); }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  UniformPlans run() {
    stages_.set_limit([this] { return gives_up(); });
    const auto world = as_int(cost_.topology().device_count());
    for (int p = 1; p <= std::min<std::int64_t>(world, layers()); ++p) {
      if (world % p != 0 || refuse_stages(cost_.model(), space_, p).refused()) continue;
      for (std::int64_t m = 1; m <= request_.global_batch; ++m) {
        if (request_.global_batch % m != 0 || space_.fix_micro_batches.value_or(m) != m) continue;
        if (gives_up()) return {std::move(found_), true};
        problem(p, world / p, m);
      }
    }
    return {std::move(found_), gives_up()};
  }

 private:
  static constexpr std::uint64_t kMostPriced = 12'000'000,  // routes and operations
      kMostPlans = 30'000;
  [[nodiscard]] std::uint64_t priced() const { return costs_.routes() + costs_.priced(); }
  [[nodiscard]] bool gives_up() const {
    return priced() - priced_before_ > kMostPriced || plans_ > kMostPlans;
  }
  [[nodiscard]] std::int64_t layers() const { return cost_.model().layers; }
  [[nodiscard]] bool one_kind() const { return cost_.model().kinds() == 1; }

  /// What a pipeline rank has.
  struct Load {
    int rank = 0;
    std::vector<std::int64_t> layers;  // [kind]
  };
  /// The schedule of each plan of p ranks and m micro-batches, with its virtual stages.
  struct Order {
    Schedule schedule = Schedule::k1F1B;
    int virtual_stages = 1;
    std::vector<int> layers = {};  // [stage]
    std::vector<Load> loads = {};  // from the last rank to the first; of ranks alike the last
    // layers whose stashes they hold when their first backward begins
    std::int64_t first_stashes = 0, last_stashes = 0;
    [[nodiscard]] bool head_is_first() const { return plan::is_v_shaped(schedule); }
  };
  [[nodiscard]] std::vector<Order> orders(int p, std::int64_t m) const {
    std::vector<Order> all;
    if (space_.one_f_one_b) all.push_back({Schedule::k1F1B, 1});
    if (p == 1)
      return all.empty() && space_.gpipe ? std::vector<Order>{{Schedule::kGPipe, 1}} : all;
    if (space_.gpipe) all.push_back({Schedule::kGPipe, 1});
    if (space_.zero_bubble) all.push_back({Schedule::kZeroBubbleH1, 1});
    for (int v = 2; space_.interleaved && m % p == 0 && p * v <= layers(); ++v) {
      if (space_.fix_virtual_stages.value_or(v) == v &&
          (!space_.even_stages || layers() % (p * v) == 0))
        all.push_back({Schedule::kInterleaved, v});
    }
    if (2 * p > layers() || cost_.model().encoder_decoder() ||
        space_.fix_virtual_stages.value_or(2) != 2 ||
        (space_.even_stages && layers() % (2 * p) != 0))
      return all;
    if (space_.zero_bubble_v) all.push_back({Schedule::kZeroBubbleV, 2});
    if (space_.dual_pipe_v) all.push_back({Schedule::kDualPipeV, 2});
    return all;
  }

  void complete(Order& order, int p, std::int64_t m) {
    order.layers = plan::stage_layers(layers(), p, order.virtual_stages, order.schedule);
    std::vector<std::vector<std::int64_t>> layers_of(
        as_index(p), std::vector<std::int64_t>(as_index(cost_.model().kinds()), 0));
    std::int64_t layer = 0;
    for (std::size_t s = 0; s < order.layers.size(); ++s) {
      for (const std::int64_t end = layer + order.layers[s]; layer < end; ++layer)
        ++layers_of[as_index(plan::rank_of(order.schedule, as_int(s), p))]
                   [as_index(cost_.model().kind_of(layer))];
    }
    for (int r = p - 1; r >= 0; --r) {
      std::vector<std::int64_t>& here = layers_of[as_index(r)];
      // the last has the head beside them
      const bool alike = r > 0 && order.loads.size() > 1 &&
                         std::ranges::find(order.loads.begin() + 1, order.loads.end(), here,
                                           &Load::layers) != order.loads.end();
      if (!alike) order.loads.push_back({r, std::move(here)});
    }
    order.first_stashes = stashes(order, 0, p, m);
    order.last_stashes = stashes(order, p - 1, p, m);
  }
  /// Layers forwarded in front of a rank's first backward.
  std::int64_t stashes(const Order& order, int rank, int p, std::int64_t m) {
    std::int64_t sum = 0;
    const auto add = [&](const plan::PassNode& pass, std::int64_t times) {
      if (pass.kind != plan::PassKind::kForward) return false;
      sum += times * order.layers[as_index(plan::stage_of(order.schedule, rank, pass.chunk, p))];
      return true;
    };
    const auto forwards = [](const plan::PassNode& pass) {
      return pass.kind == plan::PassKind::kForward;
    };
    for (const plan::PassNode& node :
         costs_.pass_order(order.schedule, rank, p, order.virtual_stages, m)) {
      const bool again = std::ranges::all_of(node.body, forwards);
      const std::int64_t turns = again ? (node.end - node.begin + node.step - 1) / node.step : 1;
      if (node.body.empty() && !add(node, 1)) return sum;
      for (const plan::PassNode& pass : node.body)
        if (!add(pass, turns)) return sum;
    }
    return sum;
  }

  void problem(int p, int devices, std::int64_t m) {
    PlanProblem family{p, devices, 0, m, Schedule::k1F1B, {}};
    if (!stages_.has_strategies(family)) return;
    std::vector<Order> orders_here = orders(p, m);
    std::erase_if(orders_here, [&](const Order& order) {
      family.schedule = order.schedule;
      return !may_win(stages_.layers_bound(family, true)) || !may_win(stages_.layers_bound(family));
    });
    if (orders_here.empty()) return;
    for (Order& order : orders_here) complete(order, p, m);
    places_ = cost_.mixed() ? stages_.places(family) : std::vector{0};
    context_ = stages_.context(m, p);
    for (const LayerStrategy& s : stages_.layers_of(devices, m, richest_).leaves) {
      // Where several micro-batches are reduced once a step, zero 1 is the same Program.
      if (s.zero == 2 && m > 1 && s.grad_reduce == plan::GradReduce::kStep && space_.zero1)
        continue;
      if (gives_up()) return;
      divides_ = false;
      std::array<std::optional<Layers>, 3> known;  // whole, split, of a V
      for (const Order& order : orders_here) {
        context_.split_backward = plan::splits_backward(order.schedule);
        context_.stages = order.head_is_first() ? 1 : p;
        std::optional<Layers>& layers = known[order.head_is_first()     ? 2
                                              : context_.split_backward ? 1
                                                                        : 0];
        if (!layers) layers = layers_of(s, p, devices, m);
        if (may_win(least_ps(*layers, order, p, m)))
          price(s, order, {p, devices, 0, m, order.schedule, vocabulary(s)});
      }
    }
  }

  /// All layers of one strategy, by passes through them; the cheapest of them.
  struct Layers {
    std::vector<std::int64_t> kind_ps;  // [kind] steady
    std::int64_t through_ps = kForbidden, update_ps = kForbidden;
    // of a zero-bubble schedule: of any kind the least F, B and F + B - W
    std::int64_t forward_ps = kForbidden, backward_ps = kForbidden, rest_ps = kForbidden;
    std::vector<std::int64_t> kind_bytes = {};  // [kind] persistent
    std::int64_t stash_bytes = kForbidden, backward_bytes = kForbidden;
    // between a forward, or a backward, and the pass behind it
    std::int64_t after_forward_ps = kForbidden, after_backward_ps = kForbidden;
    std::int64_t embedding_ps = 0, head_ps = 0, energy_ps = 0;
    std::int64_t embedding_bytes = 0, head_bytes = 0, loss_bytes = 0;
    std::int64_t first_limit_bytes = kForbidden, last_limit_bytes = kForbidden;
  };
  /// What weights take is priced only where the plan may win without it.
  Layers layers_of(const LayerStrategy& s, int p, int devices, std::int64_t m) {
    Layers sum;
    std::int64_t passes = 0;
    for (int kind = 0; kind < cost_.model().kinds(); ++kind) {
      context_.kind = kind;
      std::int64_t floor = kForbidden;
      for (const int rank : places_)
        floor = std::min(floor, costs_.block_floor(own(s, kind), context_, rank, devices).sum_ps());
      passes += stages_.layers_of_kind(kind) * floor;
      sum.kind_ps.push_back(floor);
    }
    context_.kind = 0;
    const std::int64_t most =
        one_kind() ? (layers() + p - 1) / p * (passes / layers()) : passes / p;
    if (!known_.may_win(m * most))
      return {.kind_ps = std::move(sum.kind_ps),
              .through_ps = 0,
              .update_ps = 0,
              .forward_ps = 0,
              .backward_ps = 0,
              .rest_ps = 0,
              .kind_bytes = std::vector<std::int64_t>(as_index(cost_.model().kinds()), 0),
              .stash_bytes = 0,
              .backward_bytes = 0,
              .after_forward_ps = 0,
              .after_backward_ps = 0};
    for (int kind = 0; kind < cost_.model().kinds(); ++kind) {
      context_.kind = kind;
      std::int64_t steady = kForbidden, persistent = kForbidden, energy = kForbidden;
      for (const int rank : places_) {
        const costmodel::LayerCost& c = costs_.block(own(s, kind), context_, rank, devices);
        steady = std::min(steady, steady_of(c));
        persistent = std::min(persistent, c.persistent_bytes);
        energy = std::min(energy, c.energy_ps);
        take(c, sum);
      }
      sum.kind_ps[as_index(kind)] = steady;
      sum.kind_bytes.push_back(persistent);
      sum.energy_ps += stages_.layers_of_kind(kind) * energy;
    }
    context_.kind = 0;
    const LayerStrategy v = vocabulary(s);
    const costmodel::LayerCost& embedding = costs_.embedding(v, context_, 0, devices);
    const costmodel::LayerCost& head =
        costs_.head(v, context_, (context_.stages - 1) * devices, devices);
    sum.embedding_ps = steady_of(embedding);
    sum.embedding_bytes = embedding.persistent_bytes;
    sum.head_ps = steady_of(head);
    sum.energy_ps += embedding.energy_ps + head.energy_ps;
    sum.head_bytes = head.persistent_bytes;
    sum.loss_bytes = head.forward.peak_bytes;
    const costmodel::MemoryLimit& memory = stages_.memory();
    sum.first_limit_bytes = memory.of(cost_, 0, devices);
    sum.last_limit_bytes = memory.of(cost_, (p - 1) * devices, devices);
    return sum;
  }
  /// A layer on some place.
  void take(const costmodel::LayerCost& c, Layers& sum) const {
    sum.through_ps = std::min(sum.through_ps, steady_of(c));
    sum.forward_ps = std::min(sum.forward_ps, c.forward_ps);
    sum.backward_ps = std::min(sum.backward_ps, c.backward_ps);
    sum.rest_ps = std::min(sum.rest_ps, c.forward_ps + c.backward_ps - c.weight_ps);
    sum.stash_bytes = std::min(sum.stash_bytes, c.stash_bytes);
    sum.backward_bytes = std::min(sum.backward_bytes, c.backward.peak_bytes);
    sum.update_ps = std::min(sum.update_ps, c.update_ps);
    const std::int64_t gather =
        cost_.overlaps() ? std::min(c.gather_forward_ps, c.gather_backward_ps) : 0;
    const std::int64_t late =
        std::max<std::int64_t>(0, gather - std::max(c.forward_ps, c.backward_ps));
    const bool reduces = gather > 0 && c.reduction_each_ps > 0 && !c.splits;
    sum.after_forward_ps = std::min(sum.after_forward_ps, late);
    sum.after_backward_ps =
        std::min(sum.after_backward_ps, reduces ? c.reduction_each_ps + gather : late);
  }

  /// What the first rank holds in its first backward, that of the head in its first loss too.
  [[nodiscard]] bool may_fit(const Layers& l, const Order& order) const {
    const std::int64_t in_head = l.head_bytes + std::max(l.backward_bytes, l.loss_bytes),
                       elsewhere = l.backward_bytes;
    const std::int64_t first = sum_of(order.loads.back(), l.kind_bytes) + l.embedding_bytes +
                               order.first_stashes * l.stash_bytes +
                               (order.head_is_first() ? in_head : elsewhere);
    const std::int64_t last = sum_of(order.loads.front(), l.kind_bytes) +
                              order.last_stashes * l.stash_bytes +
                              (order.head_is_first() ? elsewhere : in_head);
    return first <= l.first_limit_bytes && last <= l.last_limit_bytes;
  }
  /// Of a layer, there and back.
  static std::int64_t way_ps(const Layers& l, const Order& order, int p, std::int64_t m) {
    if (order.head_is_first()) return 0;
    if (!plan::splits_backward(order.schedule)) return l.through_ps;
    return m < p ? l.forward_ps : std::max({l.forward_ps, l.backward_ps, l.rest_ps});
  }
  /// The header's bound; kForbidden: it does not fit.
  [[nodiscard]] std::int64_t least_ps(const Layers& l, const Order& order, int p,
                                      std::int64_t m) const {
    if (!may_fit(l, order)) return kForbidden;
    const std::int64_t passes = m * order.virtual_stages,
                       chunk = layers() / (p * order.virtual_stages) * way_ps(l, order, p, m);
    const std::int64_t once = layers() / p * l.update_ps + passes * l.after_forward_ps +
                              (passes - 1) * l.after_backward_ps;
    const int head = order.head_is_first() ? 0 : p - 1;
    std::int64_t slowest = 0;
    for (const Load& load : order.loads) {
      const std::int64_t ends =
          (load.rank == 0 ? l.embedding_ps : 0) + (load.rank == head ? l.head_ps : 0);
      slowest = std::max(slowest, m * (sum_of(load, l.kind_ps) + ends) + load.rank * chunk);
    }
    return slowest + once + l.energy_ps;
  }
  static std::int64_t sum_of(const Load& load, const std::vector<std::int64_t>& of_kind) {
    std::int64_t sum = 0;
    for (std::size_t kind = 0; kind < of_kind.size(); ++kind)
      sum += load.layers[kind] * of_kind[kind];
    return sum;
  }
  /// Experts are split where there are some.
  [[nodiscard]] LayerStrategy own(LayerStrategy s, int kind) const {
    if (!one_kind() && cost_.model().runs[as_index(kind)].shape.experts == 0) s.drop_experts();
    return s;
  }
  [[nodiscard]] LayerStrategy vocabulary(const LayerStrategy& s) const {
    LayerStrategy v{.tp = s.tp, .dp = s.dp, .zero = s.zero, .cp = s.cp, .states = s.states};
    if (s.grad_reduce == plan::GradReduce::kEnd || space_.vocabulary_like_layers)
      v.grad_reduce = s.grad_reduce;
    return v;
  }

  /// Far behind the best of these, none wins: the simulator does not say so much less.
  [[nodiscard]] bool may_win(std::int64_t expected_ps) const {
    return known_.may_win(expected_ps) && expected_ps - expected_ps / 10 < best_ps_;
  }

  void price(const LayerStrategy& s, const Order& order, const PlanProblem& problem) {
    plan::Plan plan = stages_.frame(problem);
    plan.cluster = request_.cluster;
    plan.virtual_stages = order.virtual_stages;
    std::int64_t layer = 0;
    for (const int count : order.layers) {
      plan::Stage& stage = plan.stages.emplace_back();
      for (const std::int64_t end = layer + count; layer < end; ++layer) {
        const LayerStrategy here = own(s, cost_.model().kind_of(layer));
        if (stage.runs.empty() || stage.runs.back().strategy != here)
          stage.runs.push_back({0, here});
        ++stage.runs.back().count;
      }
    }
    // Blocks of several kinds do not all divide alike: asked once, and again of what is found.
    const auto valid = [&] { return one_kind() || plan::validate(plan, cost_.model()).empty(); };
    divides_ = divides_ || valid();
    if (!divides_) return;
    ++plans_;
    std::vector<std::int64_t> peaks;
    const auto fits = [&] {
      for (int r = 0; r < plan.pipeline_degree(); ++r) {
        peaks.push_back(costmodel::stage_peak_bytes(costs_, plan, r));
        if (peaks.back() > stages_.memory_bytes(problem, r)) return false;
      }
      return true;
    };
    // Until some plan fits, none does for its time.
    const bool none_fits = found_.empty();
    if (none_fits && !fits()) return;
    const costmodel::StepForms forms = costmodel::step_forms(costs_, plan);
    if (!may_win(forms.pass_by_pass_ps) || (!none_fits && !fits()) || !valid()) return;
    best_ps_ = std::min(best_ps_, forms.pass_by_pass_ps);
    found_.push_back({std::move(plan), forms.closed_form_ps, forms.pass_by_pass_ps,
                      std::move(peaks), forms.energy_ps});
  }

  StageModel& stages_;
  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const Space& space_;
  const PlanRequest& request_;
  const Contest& known_;
  // of the kinds of blocks; a strategy of all is one of its, but for the experts of others
  int richest_ = 0;
  std::uint64_t priced_before_ = priced(), plans_ = 0;
  plan::LayerContext context_;
  std::vector<int> places_;            // first ranks of stages that layers may be priced on
  bool divides_ = false;               // a plan of the strategy at hand is one
  std::int64_t best_ps_ = kForbidden;  // expected, of those found
  std::vector<Finalist> found_;
};

}  // namespace

UniformPlans uniform_plans(StageModel& stages, const PlanRequest& request, const Contest& known) {
  return Grid(stages, request, known).run();
}

}  // namespace orrery::search
