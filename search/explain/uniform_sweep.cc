#include "search/explain/uniform_sweep.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/numbers.h"
#include "search/costs/layer_memory.h"
#include "search/space/decision_tree.h"

namespace orrery::search {
namespace {

using plan::LayerStrategy;

/// A layer, embedding or head as the loops want it.
struct Part {
  std::int64_t forward_ps = 0, backward_ps = 0, sync_ps = 0, start_ps = 0, update_ps = 0;
  LayerMemory memory;
  explicit Part(const costmodel::LayerCost& c)
      : forward_ps(c.forward_ps),
        backward_ps(c.backward_ps),
        sync_ps(c.backward_sync_ps),
        start_ps(c.start_ps()),
        update_ps(c.update_ps - c.zero_gradient_ps),
        memory(memory_of(c)) {}
};

/// What a strategy costs on the stages of one (pp, m).
struct Option {
  LayerStrategy strategy;
  std::size_t layout = 0;
  std::vector<Part> parts;  // [kind of stage]
};

/// Layers that lie alike between blocks.
struct Layout {
  LayerStrategy strategy;
  std::int64_t stream_bytes = 0;
  std::vector<std::int64_t> activation_ps, gradient_ps;  // [stage] what it waits for
};

struct Ends {
  LayerStrategy strategy;
  Part embedding, head;
  std::int64_t stream_bytes = 0;
  struct Change {
    std::int64_t forward_ps = 0, backward_ps = 0;
  };
  std::vector<Change> in = {}, out = {};  // [layout] changes of layout
};

class Sweep {
 public:
  Sweep(costmodel::LayerCosts& costs, const PlanRequest& request, std::int64_t budget)
      : costs_(costs), cost_(costs.cost()), request_(request), budget_(budget) {
    model::SegmentShape zero;
    zero.kind = model::SegmentKind::kZeroGradient;
    zero.elements = 1;
    loss_ps_ = cost_.segment_ps(zero, model::Phase::kF);
    result_.best_ps = std::numeric_limits<std::int64_t>::max();
  }

  UniformSweep run() {
    const int world = as_int(cost_.topology().device_count());
    const std::int64_t layers = cost_.model().layers;
    for (stages_ = 1; stages_ <= std::min<std::int64_t>(world, layers); ++stages_) {
      if (world % stages_ != 0 || layers % stages_ != 0) continue;
      if (request_.space.fix_pp.value_or(stages_) != stages_ ||
          !(stages_ > 1 ? request_.space.pipeline : request_.space.single_stage))
        continue;
      devices_ = world / stages_;
      count_ = layers / stages_;
      for (m_ = 1; m_ <= request_.global_batch; ++m_) {
        if (request_.global_batch % m_ == 0 && request_.space.fix_micro_batches.value_or(m_) == m_)
          problems();
      }
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] plan::LayerContext context() const {
    return {.precision = cost_.options().precision,
            .sequence = cost_.options().sequence,
            .micro_batch_sequences = request_.global_batch / m_,
            .micro_batches = m_,
            .global_batch = request_.global_batch,
            .stages = stages_};
  }
  [[nodiscard]] std::int64_t stream_bytes(const LayerStrategy& s) const {
    const std::int64_t tokens = cost_.options().sequence / s.cp / (s.sequence_parallel ? s.tp : 1);
    return request_.global_batch / m_ / s.dp * tokens * cost_.model().hidden *
           model::element_bytes(model::compute_dtype(cost_.options().precision));
  }

  /// Stages are of few kinds: those on windows of ranks that are alike
  /// (costmodel/closed_form/rank_windows.h).
  void find_kinds() {
    kind_of_.clear();
    std::vector<int> windows;
    for (int i = 0; i < stages_; ++i) {
      const int window = costs_.canonical_rank(i * devices_, devices_);
      const auto known = std::ranges::find(windows, window);
      kind_of_.push_back(as_index(known - windows.begin()));
      if (known == windows.end()) windows.push_back(window);
    }
    kinds_ = std::move(windows);
  }

  void problems() {
    const TreeContext tree{devices_, cost_.options().sequence, request_.global_batch / m_, m_,
                           as_int(cost_.topology().devices_per_host())};
    const StrategyTree strategies = layer_strategies(cost_.model(), request_.space, tree);
    if (strategies.leaves.empty()) return;
    find_kinds();
    layouts_.clear();
    options_.clear();
    for (const LayerStrategy& s : strategies.leaves) add_option(s);
    for (const LayerStrategy& v :
         vocabulary_strategies(cost_.model(), request_.space, tree).leaves) {
      const Ends ends = ends_of(v);
      for (const Option& option : options_) evaluate(ends, option);
    }
  }

  void add_option(const LayerStrategy& s) {
    Option option{s, 0, {}};
    for (const int window : kinds_)
      option.parts.emplace_back(costs_.block(s, context(), window, devices_));
    const auto known =
        std::ranges::find_if(layouts_, [&](const Layout& l) { return l.strategy.same_layout(s); });
    option.layout = as_index(known - layouts_.begin());
    if (known == layouts_.end()) {
      Layout layout{s, stream_bytes(s), {}, {}};
      for (int i = 0; i < stages_; ++i) {
        const auto from = [&](int sender) {
          return sender < 0 || sender >= stages_
                     ? 0
                     : costs_.exchange_ps(sender * devices_, devices_, (i - sender) * devices_,
                                          layout.stream_bytes);
        };
        layout.activation_ps.push_back(from(i - 1));
        layout.gradient_ps.push_back(from(i + 1));
      }
      layouts_.push_back(std::move(layout));
    }
    options_.push_back(std::move(option));
  }

  Ends ends_of(const LayerStrategy& v) {
    const int last = (stages_ - 1) * devices_;
    Ends ends{v, Part(costs_.embedding(v, context(), 0, devices_)),
              Part(costs_.head(v, context(), last, devices_)), stream_bytes(v)};
    const auto change = [&](const LayerStrategy& from, const LayerStrategy& to,
                            int rank) -> Ends::Change {
      if (from.same_layout(to)) return {};
      const costmodel::LayerCost& c = costs_.reshard(from, to, context(), rank, devices_);
      return {c.forward_ps, c.backward_ps};
    };
    for (const Layout& l : layouts_) {
      ends.in.push_back(change(v, l.strategy, 0));
      ends.out.push_back(change(l.strategy, v, last));
    }
    return ends;
  }
  /// One stage of a plan.
  struct Times {
    std::int64_t forward_ps, backward_ps, sync_ps, start_ps, update_ps;
  };
  [[nodiscard]] Times times(const Ends& e, const Option& o, int stage) const {
    const Part& p = o.parts[kind_of_[as_index(stage)]];
    Times t{count_ * p.forward_ps, count_ * p.backward_ps, count_ * p.sync_ps, count_ * p.start_ps,
            count_ * p.update_ps};
    const auto add = [&](const Part& end, const Ends::Change& change) {
      t.forward_ps += end.forward_ps + change.forward_ps;
      t.backward_ps += end.backward_ps + change.backward_ps;
      t.sync_ps += end.sync_ps + change.backward_ps;
      t.start_ps += end.start_ps;
      t.update_ps += end.update_ps;
    };
    if (stage == 0) add(e.embedding, e.in[o.layout]);
    if (stage + 1 == stages_) {
      add(e.head, e.out[o.layout]);
      t.start_ps += loss_ps_;
    }
    return t;
  }

  void evaluate(const Ends& e, const Option& o) {
    const Layout& layout = layouts_[o.layout];
    ++result_.evaluated;
    std::int64_t start = 0, before = 0, slowest = 0;
    for (int i = 0; i < stages_; ++i) {
      const Times t = times(e, o, i);
      const auto at = as_index(i);
      const std::int64_t wait = layout.activation_ps[at], back = layout.gradient_ps[at];
      start = std::max(t.start_ps, i == 0 ? 0 : start + before) + wait;
      before = t.forward_ps;
      slowest =
          std::max(slowest, t.forward_ps + t.backward_ps + (cost_.overlaps() ? 0 : wait + back));
    }
    std::int64_t end = start + before + (m_ - 1) * slowest, step = 0;
    for (int i = stages_; i-- > 0;) {
      const Times t = times(e, o, i);
      end += layout.gradient_ps[as_index(i)] + t.sync_ps;
      step = std::max(step, end + t.update_ps);
    }
    for (int i = 0; i < stages_; ++i) {
      if (peak(e, o, i) > budget_) return;
    }
    ++result_.fitting;
    if (step < result_.best_ps) confirm(e, o, step);
  }

  /// The form of layer_memory.h for equal layers; the last one has the least behind it.
  [[nodiscard]] std::int64_t peak(const Ends& e, const Option& o, int stage) const {
    const LayerMemory& m = o.parts[kind_of_[as_index(stage)]].memory;
    const std::int64_t flight = std::min<std::int64_t>(stages_ - stage, m_),
                       stash = count_ * m.stash_bytes;
    const bool first = stage == 0, last = stage + 1 == stages_;
    std::int64_t held = count_ * m.persistent_bytes + flight * stash;
    std::int64_t need =
        m.backward_bytes + layouts_[o.layout].stream_bytes + (count_ > 1 ? m.gathered_bytes : 0);
    std::int64_t step = m.step_bytes;
    if (count_ > 1) need = std::max(need, m.forward_bytes + m.gathered_bytes - m.stash_bytes);
    need = std::max(need, m.forward_bytes + (last ? e.head.memory.gathered_bytes : 0));
    if (first) {
      const LayerMemory& v = e.embedding.memory;
      held +=
          v.persistent_bytes + flight * std::max<std::int64_t>(0, v.stash_bytes - e.stream_bytes);
      need = std::max({need, e.stream_bytes + v.backward_bytes - stash,
                       e.stream_bytes + v.forward_bytes + m.gathered_bytes - stash});
      step = std::max(step, v.step_bytes);
    }
    if (last) {
      const LayerMemory& v = e.head.memory;
      held += v.persistent_bytes + model::element_bytes(model::DType::kFloat32);
      need = std::max(need,
                      e.stream_bytes + v.stash_bytes + std::max(v.forward_bytes, v.backward_bytes));
      step = std::max(step, v.step_bytes);
    }
    if (!first && flight < m_) held += layouts_[o.layout].stream_bytes;
    if (!last) held += layouts_[o.layout].stream_bytes;
    return held + std::max(need, step - flight * stash);
  }

  void confirm(const Ends& e, const Option& o, std::int64_t step) {
    plan::Plan plan;
    plan.model = cost_.model().name;
    plan.model_fingerprint = cost_.model().fingerprint();
    plan.adapter = cost_.model().adapter;
    plan.cluster = request_.cluster;
    plan.hosts = as_int(cost_.topology().hosts());
    plan.precision = cost_.options().precision;
    plan.sequence = cost_.options().sequence;
    plan.global_batch = request_.global_batch;
    plan.micro_batches = m_;
    plan.vocabulary = e.strategy;
    plan.stages.assign(as_index(stages_), {{{as_int(count_), o.strategy}}});
    for (int i = 0; i < stages_; ++i) {
      if (costmodel::stage_peak_bytes(costs_, plan, i) > budget_) return;
    }
    result_.best = std::move(plan);
    result_.best_ps = step;
  }

  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const PlanRequest& request_;
  std::int64_t budget_;
  std::int64_t loss_ps_ = 0;
  // of one (pp, m)
  int stages_ = 1, devices_ = 1;
  std::int64_t count_ = 1, m_ = 1;
  std::vector<std::size_t> kind_of_;  // [stage]
  std::vector<int> kinds_;            // canonical first ranks
  std::vector<Layout> layouts_;
  std::vector<Option> options_;
  UniformSweep result_;
};

}  // namespace

UniformSweep sweep_uniform(costmodel::LayerCosts& costs, const PlanRequest& request,
                           std::int64_t budget_bytes) {
  if (costs.cost().model().kinds() > 1) return {};  // no strategy suits all kinds of blocks alike
  return Sweep(costs, request, budget_bytes).run();
}

}  // namespace orrery::search
