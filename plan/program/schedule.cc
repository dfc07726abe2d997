#include "plan/program/schedule.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::plan {

namespace {

Node call_node(const PassCall& c, std::int64_t micro_batch, bool from_loop) {
  return {.call = c.call,
          .layer = c.layer,
          .micro_batch = micro_batch,
          .micro_batch_from_loop = from_loop,
          .body = {}};
}

Node loop(Axis axis, std::int64_t begin, std::int64_t end, std::int64_t step,
          std::vector<Node> body) {
  return {.is_loop = true,
          .call = {},
          .axis = axis,
          .begin = begin,
          .end = end,
          .step = step,
          .body = std::move(body)};
}

/// How often the `period` calls from `at` repeat with every layer moved by `step` each time (at
/// least 1).
std::size_t repeats(const std::vector<PassCall>& calls, std::size_t at, std::size_t period,
                    std::int64_t step) {
  std::size_t n = 1;
  for (std::size_t from = at + period; from + period <= calls.size(); from += period, ++n)
    for (std::size_t k = 0; k < period; ++k) {
      const PassCall &a = calls[from + k], &b = calls[from + k - period];
      if (a.call != b.call || a.layer != b.layer + step) return n;
    }
  return n;
}

constexpr std::size_t kLongestPeriod = 4;  // gather, compute, synchronise, and one more

}  // namespace

std::vector<Node> compress(const std::vector<PassCall>& calls, std::int64_t micro_batch,
                           bool micro_batch_from_loop) {
  std::vector<Node> nodes;
  for (std::size_t at = 0; at < calls.size();) {
    std::size_t best = 1, best_period = 1;
    std::int64_t best_step = 1;
    for (std::size_t period = 1; period <= kLongestPeriod && at + 2 * period <= calls.size();
         ++period)
      for (std::int64_t step : {1, -1})
        if (const std::size_t n = repeats(calls, at, period, step);
            n > 1 && n * period > best * best_period)
          best = n, best_period = period, best_step = step;
    if (best == 1) {
      nodes.push_back(call_node(calls[at++], micro_batch, micro_batch_from_loop));
      continue;
    }
    std::vector<Node> body;
    for (std::size_t k = 0; k < best_period; ++k) {
      body.push_back(call_node(calls[at + k], micro_batch, micro_batch_from_loop));
      body.back().layer_from_loop = true;
      body.back().layer -= calls[at].layer;
    }
    const std::int64_t first = calls[at].layer;
    nodes.push_back(loop(Axis::kLayer, first, first + best_step * static_cast<std::int64_t>(best),
                         best_step, std::move(body)));
    at += best * best_period;
  }
  return nodes;
}

std::vector<PassCall> with_prefetch(const std::vector<PassCall>& calls,
                                    const std::vector<PassCall>& gathers, int depth) {
  std::vector<PassCall> out;
  std::vector<std::size_t> owners;  // calls that need a gather, in order
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (gathers[i].call.valid()) owners.push_back(i);
  std::size_t issued = 0, used = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::size_t ahead =
        std::min(owners.size(), used + as_index(depth) + (gathers[i].call.valid() ? 1 : 0));
    for (; issued < ahead; ++issued) out.push_back(gathers[owners[issued]]);
    out.push_back(calls[i]);
    if (gathers[i].call.valid()) ++used;
  }
  return out;
}

namespace {

PassNode pass(PassKind kind, int chunk, std::int64_t micro_batch, bool last = false) {
  return {.kind = kind, .chunk = chunk, .micro_batch = micro_batch, .last = last, .body = {}};
}

/// A loop, unless it would be empty.
void add_loop(std::vector<PassNode>& to, std::int64_t begin, std::int64_t end, std::int64_t step,
              std::vector<PassNode> body) {
  if (end > begin)
    to.push_back({.begin = begin, .end = end, .step = step, .body = std::move(body)});
}

/// Builds an order from turns: each runs the same passes, of the next micro-batch of their kind and
/// chunk, as far as there are micro-batches. Turns that are alike make a loop; those with a pass
/// that ends the step's gradients stand alone.
class Turns {
 public:
  struct Slot {
    PassKind kind;
    int chunk = 0;
  };
  Turns(std::int64_t micro_batches) : m_(micro_batches) {}

  void add(std::int64_t count, const std::vector<Slot>& slots) {
    std::vector<std::int64_t> bounds{0, count};
    const auto bound = [&](std::int64_t at) {
      if (at > 0 && at < count) bounds.push_back(at);
    };
    for (const Slot& slot : slots) {
      bound(m_ - next(slot));
      if (slot.kind != PassKind::kForward) bound(m_ - 1 - next(slot));
    }
    std::ranges::sort(bounds);
    for (std::size_t k = 0; k + 1 < bounds.size(); ++k) alike(bounds[k], bounds[k + 1], slots);
    for (const Slot& slot : slots) next(slot) += count;
  }
  std::vector<PassNode> take() { return std::move(order_); }

 private:
  std::int64_t& next(const Slot& slot) {
    return next_[static_cast<std::size_t>(slot.kind)][as_index(slot.chunk)];
  }
  void alike(std::int64_t begin, std::int64_t end, const std::vector<Slot>& slots) {
    if (begin == end) return;
    const bool alone = end == begin + 1;
    std::vector<PassNode> body;
    for (const Slot& slot : slots) {
      // in a loop, micro-batches count from its variable
      const std::int64_t first = next(slot) + begin;
      if (first >= m_) continue;
      body.push_back(pass(slot.kind, slot.chunk, alone ? first : next(slot),
                          alone && slot.kind != PassKind::kForward && first == m_ - 1));
    }
    if (alone)
      order_.insert(order_.end(), body.begin(), body.end());
    else if (!body.empty())
      add_loop(order_, begin, end, 1, std::move(body));
  }

  std::int64_t m_;
  std::array<std::array<std::int64_t, 2>, 3> next_{};  // [kind][chunk]
  std::vector<PassNode> order_;
};

constexpr Turns::Slot kF0{PassKind::kForward}, kB0{PassKind::kBackward}, kW0{PassKind::kWeight},
    kF1{PassKind::kForward, 1}, kB1{PassKind::kBackward, 1}, kW1{PassKind::kWeight, 1};

std::vector<PassNode> one_forward_one_backward(std::int64_t warm, std::int64_t m) {
  Turns turns(m);
  turns.add(warm, {kF0});
  turns.add(m, {kF0, kB0});
  return turns.take();
}

std::vector<PassNode> zero_bubble(std::int64_t warm, std::int64_t lag, std::int64_t m) {
  Turns turns(m);
  turns.add(warm, {kF0});
  turns.add(lag, {kF0, kB0});
  turns.add(m, {kF0, kB0, kW0});
  return turns.take();
}

std::vector<PassNode> zero_bubble_v(std::int64_t rank, std::int64_t p, std::int64_t m) {
  Turns turns(m);
  turns.add(2 * (p - rank) - 1, {kF0});
  turns.add(rank, {kF1, kF0});
  turns.add(p - rank, {kF1, kB1, kW1});
  turns.add(std::max(m, 2 * p - 1) - p, {kF0, kB0, kW0, kF1, kB1, kW1});
  turns.add(rank, {kB0, kB1});
  turns.add(p - rank, {kB0, kW0});
  turns.add(m, {kW1});
  turns.add(m, {kW0});
  return turns.take();
}

std::vector<PassNode> dual_pipe_v(std::int64_t rank, std::int64_t p, std::int64_t m) {
  const std::int64_t behind = p - 1 - rank, half = (rank + 1) / 2;
  Turns turns(m);
  turns.add(2 * behind, {kF0});
  turns.add(rank + 1, {kF0, kF1});
  turns.add(behind, {kB1, kW1, kF1});
  turns.add(std::max(m, 2 * p) - 2 * p + rank + 1, {kF0, kB1, kW1, kF1, kB0, kW0});
  turns.add(behind, {kB1, kW1, kF1, kB0, kW0});
  turns.add(half, {kB1, kW1, kB0, kW0});
  // from here on weights wait, first come, first served
  std::vector<Turns::Slot> waiting;
  if (rank % 2 == 0) {
    turns.add(1, {kB1, kW1, kB0});
    waiting.push_back(kW0);
  }
  turns.add(half, {kB1, kB0});
  for (std::int64_t i = 0; i < half; ++i) waiting.insert(waiting.end(), {kW1, kW0});
  for (std::int64_t i = 0; i < behind; ++i) {
    turns.add(1, {waiting[as_index(i)], kB0});
    waiting.push_back(kW0);
  }
  for (std::int64_t i = behind; i < p; ++i) turns.add(1, {waiting[as_index(i)]});
  return turns.take();
}

/// Passes k of the interleaved schedule, numbered as in schedule.h.
struct Interleaved {
  std::int64_t p, v, m;

  std::int64_t period() const { return p * v; }
  PassNode forward(std::int64_t k) const {
    return pass(PassKind::kForward, as_int(k % period() / p), k / period() * p + k % p);
  }
  PassNode backward(std::int64_t k) const {
    const std::int64_t micro_batch = k / period() * p + k % p;
    return pass(PassKind::kBackward, as_int(v - 1 - k % period() / p), micro_batch,
                micro_batch == m - 1);
  }
  /// Passes [begin, end) of one kind: neighbours on one chunk make a loop.
  template <class Make>  // PassNode(k)
  void run(std::vector<PassNode>& order, std::int64_t begin, std::int64_t end, Make make) const {
    for (std::int64_t k = begin; k < end;) {
      const std::int64_t stop = std::min(end, k - k % p + p),
                         plain = make(stop - 1).last ? stop - 1 : stop;
      PassNode first = make(k);
      const std::int64_t micro_batch = first.micro_batch;
      first.micro_batch = 0;
      if (plain > k) add_loop(order, micro_batch, micro_batch + plain - k, 1, {first});
      if (stop > plain) order.push_back(make(plain));
      k = stop;
    }
  }
  std::vector<PassNode> order(int rank) const {
    const std::int64_t total = m * v, warm = std::min(total, 2 * (p - rank - 1) + (v - 1) * p);
    std::vector<PassNode> all;
    run(all, 0, warm, [&](std::int64_t k) { return forward(k); });
    // The pairs repeat after a group of p micro-batches. What synchronises lies behind the whole
    // groups.
    const std::int64_t groups = total > warm ? (total - warm - 1) / period() : 0;
    std::vector<PassNode> body;
    for (std::int64_t i = 0; i < period() && groups > 0; ++i)
      body.insert(body.end(), {forward(warm + i), backward(i)});
    add_loop(all, 0, groups * p, p, std::move(body));
    for (std::int64_t i = groups * period(); i < total - warm; ++i)
      all.insert(all.end(), {forward(warm + i), backward(i)});
    run(all, total - warm, total, [&](std::int64_t k) { return backward(k); });
    return all;
  }
};

const std::vector<PassCall>& calls_of(const StagePasses& passes, const PassNode& n) {
  switch (n.kind) {
    case PassKind::kForward: return passes.forward;
    case PassKind::kBackward: return n.last ? passes.backward_last : passes.backward;
    case PassKind::kWeight: return n.last ? passes.weight_last : passes.weight;
  }
  ORRERY_CHECK(false, "pass kind out of range");
}

}  // namespace

std::vector<PassNode> pass_order(Schedule schedule, int rank, int ranks, int chunks,
                                 std::int64_t m) {
  ORRERY_CHECK(rank >= 0 && rank < ranks && m >= 1 &&
               (chunks == 1 || schedule == Schedule::kInterleaved ||
                (chunks == 2 && is_v_shaped(schedule))));
  const std::int64_t warm = std::min<std::int64_t>(ranks - rank - 1, m);
  switch (schedule) {
    case Schedule::kGPipe: return one_forward_one_backward(m, m);
    case Schedule::k1F1B: return one_forward_one_backward(warm, m);
    case Schedule::kInterleaved:
      ORRERY_CHECK(m % ranks == 0, "{} micro-batches on {} ranks", m, ranks);
      return Interleaved{ranks, chunks, m}.order(rank);
    case Schedule::kZeroBubbleH1:
      return zero_bubble(warm,
                         std::max<std::int64_t>(0, rank - std::max<std::int64_t>(0, ranks - m)), m);
    case Schedule::kZeroBubbleV: return zero_bubble_v(rank, ranks, m);
    case Schedule::kDualPipeV: return dual_pipe_v(rank, ranks, m);
  }
  ORRERY_CHECK(false, "schedule out of range");
}

std::vector<Node> schedule_nodes(const std::vector<PassNode>& order,
                                 const std::vector<StagePasses>& chunks) {
  std::vector<Node> nodes;
  const auto add = [&](std::vector<Node>& to, const PassNode& n, bool in_loop) {
    for (Node& call : compress(calls_of(chunks[as_index(n.chunk)], n), n.micro_batch, in_loop))
      to.push_back(std::move(call));
  };
  for (const PassNode& n : order) {
    if (n.body.empty()) {
      add(nodes, n, false);
      continue;
    }
    std::vector<Node> body;
    for (const PassNode& inner : n.body) add(body, inner, true);
    nodes.push_back(loop(Axis::kMicroBatch, n.begin, n.end, n.step, std::move(body)));
  }
  return nodes;
}

}  // namespace orrery::plan
