#include "plan/program/liveness.h"

#include <algorithm>

namespace orrery::plan {

bool contains(const std::vector<BufferRef>& refs, const BufferRef& r) {
  return std::ranges::find(refs, r) != refs.end();
}

namespace {

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
      if (f.weights) need(*f.weights);  // copies that travel
      for (const BufferRef& w : f.writes)
        if (!contains(made_, w)) made_.push_back(w);
      Op copy = f;
      copy.recomputed = true;
      if (copy.weights) copy.weights = weights_(*copy.weights);
      for (BufferRef& in : copy.reads) in = weights_(in);
      out_.push_back(std::move(copy));
    }
  }

  const std::vector<Op>& forward_;
  const std::function<bool(const Op&)>& replay_;
  const std::function<BufferRef(const BufferRef&)>& weights_;
  std::vector<BufferRef> made_;
  std::vector<Op> out_;
};

/// Every buffer that the operation touches, in the order of accesses(op).
void for_each_access(const Op& op, const auto& visit) {
  std::ranges::for_each(op.reads, visit);
  if (op.weights) visit(*op.weights);
  std::ranges::for_each(op.updates, visit);
  if (op.gradients) visit(*op.gradients);
  std::ranges::for_each(op.writes, visit);
}

}  // namespace

std::vector<BufferRef> accesses(const Op& op) {
  std::vector<BufferRef> all;
  for_each_access(op, [&](const BufferRef& r) { all.push_back(r); });
  return all;
}

void insert_replays(const std::vector<Op>& forward, std::vector<Op>& backward,
                    const std::function<bool(const Op&)>& replay,
                    const std::function<BufferRef(const BufferRef&)>& weights) {
  Replayer(forward, replay, weights)(backward);
}

void place_frees(std::vector<Op>& forward, std::vector<Op>& backward,
                 const std::function<bool(const BufferRef&)>& keep) {
  struct Life {
    BufferRef buffer;
    bool kept = false;
    Op* last_forward = nullptr;
    Op* last_backward = nullptr;
    bool made_again = false;  // the first of the backward that touches it writes it
  };
  std::vector<Life> lives;  // in the order of their first access
  const auto life_of = [&](const BufferRef& r) -> Life& {
    const auto known = std::ranges::find(lives, r, &Life::buffer);
    return known != lives.end() ? *known : lives.emplace_back(Life{.buffer = r, .kept = keep(r)});
  };
  for (Op& op : forward)
    for_each_access(op, [&](const BufferRef& r) { life_of(r).last_forward = &op; });
  for (Op& op : backward) {
    for_each_access(op, [&](const BufferRef& r) {
      Life& life = life_of(r);
      if (life.last_backward == nullptr) life.made_again = contains(op.writes, r);
      life.last_backward = &op;
    });
  }
  for (const Life& life : lives) {
    if (life.kept) continue;
    if (life.last_backward != nullptr) life.last_backward->frees.push_back(life.buffer);
    if ((life.last_backward == nullptr || life.made_again) && life.last_forward != nullptr)
      life.last_forward->frees.push_back(life.buffer);
  }
}

}  // namespace orrery::plan
