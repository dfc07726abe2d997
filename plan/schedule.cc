#include "plan/schedule.h"

#include <algorithm>

namespace orrery::plan {

namespace {

Node call_node(const PassCall& c, std::int64_t micro_batch, bool from_loop) {
  Node n;
  n.call = c.call;
  n.layer = c.layer;
  n.micro_batch = micro_batch;
  n.micro_batch_from_loop = from_loop;
  return n;
}

Node loop(Axis axis, std::int64_t begin, std::int64_t end, std::int64_t step, std::vector<Node> body) {
  Node n;
  n.is_loop = true;
  n.axis = axis;
  n.begin = begin;
  n.end = end;
  n.step = step;
  n.body = std::move(body);
  return n;
}

/// How often the `period` calls from `at` repeat with every layer moved by `step` each time (at least 1).
std::size_t repeats(const std::vector<PassCall>& calls, std::size_t at, std::size_t period, std::int64_t step) {
  std::size_t n = 1;
  for (std::size_t from = at + period; from + period <= calls.size(); from += period, ++n)
    for (std::size_t k = 0; k < period; ++k) {
      const PassCall &a = calls[from + k], &b = calls[from + k - period];
      if (a.call != b.call || a.layer != b.layer + step) return n;
    }
  return n;
}

constexpr std::size_t kLongestPeriod = 4;   // gather, compute, synchronise, and one more

}  // namespace

std::vector<Node> compress(const std::vector<PassCall>& calls, std::int64_t micro_batch, bool micro_batch_from_loop) {
  std::vector<Node> nodes;
  for (std::size_t at = 0; at < calls.size();) {
    std::size_t best = 1, best_period = 1;
    std::int64_t best_step = 1;
    for (std::size_t period = 1; period <= kLongestPeriod && at + 2 * period <= calls.size(); ++period)
      for (std::int64_t step : {1, -1})
        if (const std::size_t n = repeats(calls, at, period, step); n > 1 && n * period > best * best_period)
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
    nodes.push_back(loop(Axis::kLayer, first, first + best_step * static_cast<std::int64_t>(best), best_step, std::move(body)));
    at += best * best_period;
  }
  return nodes;
}

std::vector<PassCall> with_prefetch(const std::vector<PassCall>& calls, const std::vector<PassCall>& gathers, int depth) {
  std::vector<PassCall> out;
  std::vector<std::size_t> owners;   // calls that need a gather, in order
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (gathers[i].call.valid()) owners.push_back(i);
  std::size_t issued = 0, used = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::size_t ahead = std::min(owners.size(), used + static_cast<std::size_t>(depth) + (gathers[i].call.valid() ? 1 : 0));
    for (; issued < ahead; ++issued) out.push_back(gathers[owners[issued]]);
    out.push_back(calls[i]);
    if (gathers[i].call.valid()) ++used;
  }
  return out;
}

std::vector<Node> schedule_nodes(Schedule schedule, int stage, int stages, std::int64_t m, const StagePasses& passes) {
  std::vector<Node> nodes;
  const auto append = [](std::vector<Node>& to, std::vector<Node> from) { to.insert(to.end(), from.begin(), from.end()); };
  const auto many = [&](std::vector<Node>& to, const std::vector<PassCall>& pass, std::int64_t begin, std::int64_t end) {
    if (end > begin) to.push_back(loop(Axis::kMicroBatch, begin, end, 1, compress(pass, 0, true)));
  };
  const std::int64_t warm = schedule == Schedule::kGPipe ? m : std::min<std::int64_t>(stages - stage - 1, m);
  many(nodes, passes.forward, 0, warm);
  const std::int64_t pairs = m - warm;                         // steady pairs (warm + i, i)
  const std::int64_t plain = warm == 0 ? pairs - 1 : pairs;    // the very last backward is peeled: it synchronises
  if (plain > 0) {
    std::vector<Node> body = compress(passes.forward, warm, true);
    append(body, compress(passes.backward, 0, true));
    nodes.push_back(loop(Axis::kMicroBatch, 0, plain, 1, std::move(body)));
  }
  if (pairs > plain) append(nodes, compress(passes.forward, m - 1, false));
  if (warm > 0) many(nodes, passes.backward, pairs, m - 1);
  append(nodes, compress(passes.backward_last, m - 1, false));
  return nodes;
}

}  // namespace orrery::plan
