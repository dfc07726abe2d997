#include <algorithm>

#include "plan/lower_parts.h"

namespace orrery::plan {

using model::SegmentKind;
using model::SegmentShape;

namespace {

/// Carries `in` (layout `from`) to `out` (layout `to`): undo the sequence split, change the batch split, split the sequence again.
/// Degrees divide one another, so the batch step is one all-gather (fewer, larger shares) or one local slice.
std::vector<Op> move(Builder& b, const std::string& name, const Layout& from, const Layout& to, BufferRef in, BufferRef out) {
  std::vector<Op> ops;
  if (from == to) return ops;
  const std::int64_t s = b.context().sequence, h = b.model().hidden;
  const bool gather_tokens = from.sequence_parallel, gather_batch = to.tp > from.tp, slice_batch = to.tp < from.tp;
  const bool slice_tokens = to.sequence_parallel;
  int left = int{gather_tokens} + int{gather_batch || slice_batch} + int{slice_tokens};
  const auto target = [&](const char* step, const Layout& at) {
    return --left == 0 ? out : b.local(name + " " + step + " for " + to.tag(), from, {b.sequences(at), s, h}, b.dtype());
  };
  const auto slice = [&](BufferRef source, BufferRef result, int dim, int parts, int stride) {
    SegmentShape shape = b.shape(SegmentKind::kSlice, to, 0, 0);
    shape.elements = b.program().buffers[result.buffer].elements();
    shape.dim = dim;
    shape.parts = parts;
    shape.part_stride = stride;
    ops.push_back(compute(b, "slice(" + name + ")", shape, Phase::kF, {source}, {result}));
  };
  BufferRef now = in;
  Layout at = from;
  at.sequence_parallel = false;
  if (gather_tokens) {
    const BufferRef next = target("tokens", at);
    ops.push_back(all_gather(b, "all_gather(" + name + " tokens)", Stream::kTensor, b.group("tensor", from.tp, 1), now, next, 1));
    now = next;
  }
  Layout batch = to;
  batch.sequence_parallel = false;
  if (gather_batch) {
    const BufferRef next = target("batch", batch);
    ops.push_back(all_gather(b, "all_gather(" + name + " batch)", Stream::kTensor, b.group("reshard", to.tp / from.tp, from.tp), now, next, 0));
    now = next;
  } else if (slice_batch) {
    const BufferRef next = target("batch", batch);
    slice(now, next, 0, from.tp / to.tp, to.tp);
    now = next;
  }
  if (slice_tokens) slice(now, out, 1, to.tp, 1);
  return ops;
}

}  // namespace

/// The gradient of a gather is a slice and the reverse: the gradient is whole on every tensor rank, so nothing is summed.
LayerPair reshard_pair(Builder& b, const Layout& from, const Layout& to) {
  LayerPair pair;
  const BufferRef x = b.stream(from, 0), x_to = b.stream(to, 0), d = b.stream_gradient(to, 0), d_from = b.stream_gradient(from, 0);
  pair.forward = move(b, "x", from, to, x, x_to);
  pair.backward = move(b, "dx", to, from, d, d_from);
  place_frees(pair.forward, pair.backward, [&](const BufferRef& r) { return r == x_to || r == d_from; });
  return pair;
}

}  // namespace orrery::plan
