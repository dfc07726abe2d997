#include "costmodel/closed_form/step_times.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/program/schedule.h"

namespace orrery::costmodel {
namespace {

using enum plan::Schedule;
using enum plan::PassKind;

std::int64_t forward_with_receive(const StepTimes& step, const StageTimes& t) {
  return t.forward_ps + (step.overlaps ? 0 : t.receive_forward_ps);
}
std::int64_t backward_with_receive(const StepTimes& step, const StageTimes& t) {
  return t.backward_ps + (step.overlaps ? 0 : t.receive_backward_ps);
}

/// The cycle of closed_form.h.
std::int64_t cycle_ps(const StepTimes& step) {
  std::int64_t forward = 0, backward = 0, all = 0;
  std::vector<std::int64_t> rank(as_index(step.ranks), 0);
  for (std::size_t i = 0; i < step.stages.size(); ++i) {
    const StageTimes& t = step.stages[i];
    forward = std::max(forward, forward_with_receive(step, t));
    backward = std::max(backward, backward_with_receive(step, t));
    std::int64_t& sum = rank[as_index(plan::rank_of(step.schedule, as_int(i), step.ranks))];
    sum += forward_with_receive(step, t) + backward_with_receive(step, t) + t.weight_ps;
    all = std::max(all, sum);
  }
  return step.schedule == kGPipe ? forward + backward : all;
}

/// R of closed_form.h.
std::int64_t rest_ps(const StepTimes& step) {
  const auto p = as_index(step.ranks);
  const std::vector<StageTimes>& stages = step.stages;
  switch (step.schedule) {
    case kGPipe:
    case k1F1B: return 0;
    case kInterleaved: {
      std::vector<std::int64_t> sync(p, 0);
      for (std::size_t i = p; i < stages.size(); ++i)
        sync[i % p] += stages[i].backward_sync_ps - stages[i].backward_ps;
      return cycle_ps(step) - forward_with_receive(step, stages[p - 1]) -
             backward_with_receive(step, stages[p - 1]) +
             *std::max_element(sync.begin(), sync.end());
    }
    case kZeroBubbleH1: {
      std::int64_t tail = 0;
      std::vector<std::int64_t> filled;
      for (const StageTimes& t : stages) {
        tail = std::max(tail, t.weight_sync_ps);
        filled.push_back(std::min({t.forward_ps, t.backward_ps, t.weight_ps}));
      }
      std::sort(filled.begin(), filled.end());
      const std::int64_t waits =
          std::min<std::int64_t>(step.micro_batches, static_cast<std::int64_t>(p)) - 1;
      return tail - std::accumulate(filled.begin(), filled.begin() + waits, std::int64_t{0});
    }
    case kZeroBubbleV:
    case kDualPipeV: break;
  }
  ORRERY_CHECK(false, "schedule out of range");
}

/// The lower bound of closed_form.h for stages placed as a V. What is gathered and reduced beside
/// passes may cost nothing there.
std::int64_t v_bound_ps(const StepTimes& step) {
  const std::vector<StageTimes>& stages = step.stages;
  std::int64_t start = 0, last = 0;
  for (std::size_t r = 0; r < as_index(step.ranks); ++r) {
    start = std::max(stages[r].zero_ps, r == 0 ? 0 : start + stages[r - 1].forward_ps);
    if (step.overlaps) start += stages[r].receive_forward_ps;
    std::int64_t end = start + stages[r].update_ps;
    for (const std::size_t s : {r, stages.size() - 1 - r}) {
      const StageTimes& t = stages[s];
      end += step.micro_batches *
             (forward_with_receive(step, t) + backward_with_receive(step, t) + t.weight_ps);
      if (!step.overlaps)
        end += t.backward_sync_ps - t.backward_ps + t.weight_sync_ps - t.weight_ps;
    }
    last = std::max(last, end);
    if (!step.overlaps) start += stages[r].receive_forward_ps;
  }
  return last;
}

/// The recurrence of step_times.h, rank by rank as far as the others allow.
class PassByPass {
 public:
  PassByPass(const StepTimes& step, std::int64_t micro_batches, const PassOrders::Order& order)
      : step_(step), m_(micro_batches) {
    const auto passes = step.stages.size() * as_index(m_);
    forward_end_.assign(passes, kNever);
    backward_end_.assign(passes, kNever);
    copied_end_.assign(passes, 0);
    for (std::size_t r = 0; r < order.size(); ++r) {
      const std::int64_t zero = step.stages[r].zero_ps;
      ranks_.push_back({.passes = &order[r], .zeroed = zero, .busy = zero});
      for (int v = 0; v < step.virtual_stages; ++v)
        ranks_[r].data_free +=
            step.stages[as_index(plan::stage_of(step.schedule, as_int(r), v, step.ranks))]
                .gathered_ps;
    }
  }

  std::int64_t run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) moved = advance(r) || moved;
      for (std::size_t r = ranks_.size(); r-- > 0;) moved = advance(r) || moved;
    }
    std::int64_t end = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ORRERY_CHECK(ranks_[r].next == ranks_[r].passes->size(), "rank {} cannot progress", r);
      end = std::max(end, std::max(ranks_[r].busy, ranks_[r].reduced) +
                              step_.stages[r].updates.ps(step_.overlaps));
    }
    return end;
  }

 private:
  static constexpr std::int64_t kNever = -1;
  using Pass = PassOrders::Pass;
  struct Rank {
    const std::vector<Pass>* passes = nullptr;
    std::size_t next = 0;
    std::int64_t zeroed = 0;                       // Z
    std::int64_t busy = 0;                         // e of the last pass
    std::int64_t reduced = 0;                      // d
    std::int64_t data_free = 0;                    // when the gather of the next pass may begin
    std::int64_t gathered = 0;                     // Γ
    std::int64_t forward_in = 0, backward_in = 0;  // a of the last transfer
    std::int64_t copied_out = 0, copied_in = 0;    // end of the last copy
    // of the last backward with copies: its end, and when its last layer began
    std::int64_t back_end = 0, back_last = 0;
  };

  bool advance(std::size_t r) {
    Rank& rank = ranks_[r];
    const std::size_t before = rank.next;
    while (rank.next < rank.passes->size() && pass(rank, (*rank.passes)[rank.next])) ++rank.next;
    return rank.next > before;
  }

  /// False: what it waits for is not known yet.
  bool pass(Rank& rank, const Pass& pass) {
    const auto stage = as_index(pass.stage), column = as_index(m_),
               cell = stage * column + as_index(pass.micro_batch);
    const StageTimes& t = step_.stages[stage];
    switch (pass.kind) {
      case kForward:
        if (stage > 0 &&
            !receive(rank, forward_end_[cell - column], t.receive_forward_ps, rank.forward_in))
          return false;
        gather(rank, t.forward_ends);
        forward(rank, t, copied_end_[cell]);
        if (pass.micro_batch == 0) {
          const std::int64_t begin =
              t.slowed_forward ? std::max(rank.zeroed, rank.gathered) : rank.gathered;
          rank.busy = std::max(rank.busy, begin + t.first_forward_ps);
          rank.gathered += t.gathered_ps;
        }
        forward_end_[cell] = rank.busy;
        leave(rank, t.forward_ends);
        return true;
      case kBackward:
        if (stage + 1 < step_.stages.size() &&
            !receive(rank, backward_end_[cell + column], t.receive_backward_ps, rank.backward_in))
          return false;
        gather(rank, t.backward_ends);
        backward(rank, t, pass.last, copied_end_[cell]);
        leave(rank, t.backward_ends);
        backward_end_[cell] = rank.busy;
        return true;
      case kWeight: compute(rank, t.weight_ps, pass.last ? &t.last_weight : nullptr); return true;
    }
    ORRERY_CHECK(false, "kind of pass out of range");
  }

  /// False: it is not sent yet.
  bool receive(Rank& rank, std::int64_t sent, std::int64_t transfer_ps, std::int64_t& in) const {
    if (sent == kNever) return false;
    in = std::max(sent, step_.overlaps ? in : rank.busy) + transfer_ps;
    rank.busy = std::max(rank.busy, in);
    return true;
  }

  void gather(Rank& rank, const StageTimes::Ends& ends) const {
    if (ends.gather_ps > 0 && step_.overlaps)
      rank.busy = std::max(rank.busy, rank.data_free + ends.gather_ps);
  }
  static void leave(Rank& rank, const StageTimes::Ends& ends) {
    rank.data_free = ends.reduction_ps > 0 ? rank.busy + ends.reduction_ps
                                           : std::max(rank.data_free, rank.busy - ends.layer_ps);
  }

  /// `copied`: when what it keeps is on the host.
  void forward(Rank& rank, const StageTimes& t, std::int64_t& copied) const {
    const CopiedLayers& c = t.copied_out;
    if (c.layers == 0 || !step_.overlaps) {
      rank.busy += t.forward_ps;
      return;
    }
    const std::int64_t pass_ps = t.forward_ps - c.held_ps, behind_ps = pass_ps - c.until_ps,
                       first = std::max(rank.busy + c.before_ps + c.first_ps, rank.copied_out),
                       waits = c.layers > 1 ? first + c.copies_ps - 2 * c.last_copy_ps
                                            : rank.copied_out - c.last_copy_ps;
    rank.busy = std::max(rank.busy + pass_ps, waits + c.last_ps + behind_ps);
    rank.copied_out = std::max(first + c.copies_ps, rank.busy - behind_ps + c.last_copy_ps);
    copied = rank.copied_out;
  }
  void backward(Rank& rank, const StageTimes& t, bool last, std::int64_t copied) const {
    const CopiedLayers& c = t.copied_in;
    const std::vector<ReducedRun>* reduced = last ? &t.last_backward : nullptr;
    if (c.layers == 0 || !step_.overlaps) return compute(rank, t.backward_ps, reduced);
    const std::int64_t copy_ps = c.copies_ps / c.layers, pass_ps = t.backward_ps - c.held_ps,
                       behind_ps = pass_ps - c.until_ps,
                       first = std::max({rank.copied_in, rank.back_last, copied}) + copy_ps,
                       second = std::max(first, rank.back_end) + copy_ps,
                       begin = std::max(rank.busy + c.before_ps, first);
    rank.busy = begin - c.before_ps;
    compute(rank, pass_ps, reduced);
    if (last) {  // its runs hold what they wait for copies
      rank.busy -= c.held_ps;
      rank.reduced -= std::min(rank.reduced, c.held_ps);
    }
    std::int64_t end = c.layers > 1 ? second : first;
    if (c.layers > 2) end = std::max(end, begin + c.first_ps) + (c.layers - 2) * copy_ps;
    rank.copied_in = end;
    rank.busy = std::max(rank.busy, end + c.last_ps + behind_ps);
    if (last && !reduced->empty() && reduced->back().reduction_ps > 0)
      rank.reduced = std::max(rank.reduced, rank.busy + reduced->back().reduction_ps);
    rank.back_end = rank.busy;
    rank.back_last = rank.busy - behind_ps - c.last_ps;
  }

  static void compute(Rank& rank, std::int64_t pass_ps, const std::vector<ReducedRun>* reduced) {
    if (reduced == nullptr) {
      rank.busy += pass_ps;
      return;
    }
    for (const ReducedRun& run : *reduced) {
      const std::int64_t begin = rank.busy, beside = run.layers - (rank.reduced > begin ? 0 : 1),
                         slowed = beside * run.slowed_ps;
      rank.busy += run.layers * run.pass_ps + slowed;
      if (run.reduction_ps == 0) continue;
      rank.reduced =
          std::max(rank.busy + run.reduction_ps, std::max(rank.reduced, begin + run.pass_ps) +
                                                     run.layers * run.reduction_ps + slowed);
    }
  }

  const StepTimes& step_;
  std::int64_t m_;
  std::vector<Rank> ranks_;
  std::vector<std::int64_t> forward_end_, backward_end_;  // [stage * m + micro-batch]
  std::vector<std::int64_t> copied_end_;                  // the same, of what a forward keeps
};

}  // namespace

void CopiedLayers::add(std::int64_t so_far_ps, std::int64_t count, std::int64_t layer_ps,
                       std::int64_t copy_ps, std::int64_t held_each_ps) {
  const std::int64_t begin_ps = so_far_ps - held_ps;
  if (layers == 0) {
    before_ps = begin_ps;
    first_ps = layer_ps;
  }
  layers += count;
  copies_ps += count * copy_ps;
  held_ps += count * held_each_ps;
  last_copy_ps = copy_ps;
  last_ps = layer_ps;
  until_ps = begin_ps + count * layer_ps;
}

void UpdateTimes::add(std::int64_t layers, const LayerCost::StateCopies& c) {
  all_ps_ += layers * (c.in_ps + c.update_ps + c.out_ps + c.front_ps + c.reduction_ps);
  if (c.bytes == 0) {
    updated_ps_ += layers * c.update_ps;
    return;
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    reduced_ps_ += c.reduction_ps;
    in_ps_ = std::max({in_ps_, before_ps_, reduced_ps_});
    if (c.front_ps > 0) {
      updated_ps_ += c.front_ps;
      in_ps_ = std::max(in_ps_, updated_ps_);
    }
    in_ps_ += c.in_ps;
    updated_ps_ = std::max(updated_ps_, in_ps_) + c.update_ps;
    before_ps_ = out_ps_;
    out_ps_ = std::max(out_ps_, updated_ps_) + c.out_ps;
  }
}

void StageTimes::add_first_forward(std::int64_t layers, std::int64_t pass_ps,
                                   std::int64_t gather_ps, std::int64_t slowed_ps) {
  const std::int64_t first = gathered_ps + gather_ps;
  gathered_ps += layers * gather_ps;
  slowed_forward = slowed_forward || slowed_ps > 0;
  first_forward_ps = slowed_ps > 0 ? first_forward_ps + layers * (pass_ps + slowed_ps)
                                   : std::max({first_forward_ps + layers * pass_ps,
                                               first + layers * pass_ps, gathered_ps + pass_ps});
}

std::int64_t closed_form_ps(const StepTimes& step) {
  if (plan::is_v_shaped(step.schedule)) return v_bound_ps(step);
  const std::vector<StageTimes>& stages = step.stages;
  const auto p = as_index(step.ranks);
  std::int64_t start = 0;
  for (std::size_t i = 0; i < p; ++i)
    start = std::max(stages[i].zero_ps + stages[i].late_ps,
                     i == 0 ? 0 : start + stages[i - 1].forward_ps) +
            stages[i].receive_forward_ps;
  std::int64_t end = start + stages[p - 1].forward_ps + (step.micro_batches - 1) * cycle_ps(step) +
                     rest_ps(step),
               last = 0;
  for (std::size_t i = p; i-- > 0;) {
    end += stages[i].receive_backward_ps + stages[i].backward_sync_ps;
    last = std::max(last, end + stages[i].update_ps);
  }
  return last;
}

const PassOrders::Order& PassOrders::of(plan::Schedule schedule, int ranks, int virtual_stages,
                                        std::int64_t micro_batches) {
  const auto [place, fresh] =
      known_.try_emplace({schedule, ranks, virtual_stages, micro_batches}, Order{});
  Order& order = place->second;
  for (int r = 0; fresh && r < ranks; ++r) {
    std::vector<Pass>& passes = order.emplace_back();
    const auto add = [&](const plan::PassNode& pass, std::int64_t offset) {
      passes.push_back({pass.kind, pass.last, plan::stage_of(schedule, r, pass.chunk, ranks),
                        static_cast<std::int32_t>(offset + pass.micro_batch)});
    };
    for (const plan::PassNode& node :
         plan::pass_order(schedule, r, ranks, virtual_stages, micro_batches)) {
      if (node.body.empty()) add(node, 0);
      for (std::int64_t k = node.begin; k < node.end; k += node.step) {
        for (const plan::PassNode& pass : node.body) add(pass, k);
      }
    }
  }
  return order;
}

std::int64_t pass_by_pass_ps(const StepTimes& step, PassOrders& orders) {
  constexpr std::int64_t kSettled = 6;
  const std::int64_t group = step.ranks, settled = kSettled * group;
  const auto run = [&](std::int64_t m) {
    return PassByPass(step, m, orders.of(step.schedule, step.ranks, step.virtual_stages, m)).run();
  };
  const std::int64_t rest = step.micro_batches - settled;
  if (rest < 2 * group) return run(step.micro_batches);
  // The same remainder of a group in all runs: interleaved schedules know whole groups alone.
  const std::int64_t first = settled + rest % group, one = run(first), two = run(first + group);
  return one + rest / group * (two - one);
}

}  // namespace orrery::costmodel
