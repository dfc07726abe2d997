#include "plan/program/liveness.h"

#include <algorithm>

namespace orrery::plan {

bool contains(const std::vector<BufferRef>& refs, const BufferRef& r) {
  return std::ranges::find(refs, r) != refs.end();
}

namespace {

/// Of accesses(op), without a copy of them.
bool touches(const Op& op, const BufferRef& r) {
  return contains(op.reads, r) || contains(op.updates, r) || contains(op.writes, r) ||
         op.weights == r || op.gradients == r;
}

bool makes(const Op& op, const BufferRef& r) {
  return contains(op.writes, r) || contains(op.updates, r);
}

/// One run of insert_replays.
class Replayer {
 public:
  Replayer(const std::vector<Op>& forward, const std::function<bool(const Op&)>& replay,
           const std::function<BufferRef(const BufferRef&)>& weights)
      : forward_(forward), replay_(replay), weights_(weights) {}

  void operator()(std::vector<Op>& backward) {
    for (Op& op : backward) {
      for (const BufferRef& r : op.reads) need(r);
      for (const BufferRef& r : op.updates) need(r);
      for (const BufferRef& r : op.writes) made_.push_back(r);
      out_.push_back(std::move(op));
    }
    backward = std::move(out_);
  }

 private:
  void need(const BufferRef& r) {
    if (contains(made_, r)) return;
    const bool replayable =
        std::ranges::any_of(forward_, [&](const Op& f) { return makes(f, r) && replay_(f); });
    if (!replayable) return;
    made_.push_back(r);
    for (const Op& f : forward_) {
      if (!makes(f, r)) continue;
      for (const BufferRef& in : f.reads) need(in);
      for (const BufferRef& w : f.writes)
        if (!contains(made_, w)) made_.push_back(w);
      Op copy = f;
      copy.recomputed = true;
      if (copy.weights) copy.weights = weights_(*copy.weights);
      out_.push_back(std::move(copy));
    }
  }

  const std::vector<Op>& forward_;
  const std::function<bool(const Op&)>& replay_;
  const std::function<BufferRef(const BufferRef&)>& weights_;
  std::vector<BufferRef> made_;
  std::vector<Op> out_;
};

void free_at_last_access(std::vector<Op>& ops, const BufferRef& r) {
  for (auto op = ops.rbegin(); op != ops.rend(); ++op)
    if (touches(*op, r)) {
      op->frees.push_back(r);
      return;
    }
}

}  // namespace

std::vector<BufferRef> accesses(const Op& op) {
  std::vector<BufferRef> all = op.reads;
  if (op.weights) all.push_back(*op.weights);
  all.insert(all.end(), op.updates.begin(), op.updates.end());
  if (op.gradients) all.push_back(*op.gradients);
  all.insert(all.end(), op.writes.begin(), op.writes.end());
  return all;
}

void insert_replays(const std::vector<Op>& forward, std::vector<Op>& backward,
                    const std::function<bool(const Op&)>& replay,
                    const std::function<BufferRef(const BufferRef&)>& weights) {
  Replayer(forward, replay, weights)(backward);
}

void place_frees(std::vector<Op>& forward, std::vector<Op>& backward,
                 const std::function<bool(const BufferRef&)>& keep) {
  std::vector<BufferRef> seen;
  const auto collect = [&](const std::vector<Op>& ops) {
    for (const Op& op : ops)
      for (const BufferRef& r : accesses(op))
        if (!keep(r) && !contains(seen, r)) seen.push_back(r);
  };
  collect(forward);
  collect(backward);
  for (const BufferRef& r : seen) {
    const auto touched = [&](const Op& op) { return touches(op, r); };
    const auto first = std::ranges::find_if(backward, touched);
    const bool in_backward = first != backward.end();
    const bool made_again = in_backward && contains(first->writes, r);
    if (in_backward) free_at_last_access(backward, r);
    if ((!in_backward || made_again) && std::ranges::any_of(forward, touched))
      free_at_last_access(forward, r);
  }
}

}  // namespace orrery::plan
