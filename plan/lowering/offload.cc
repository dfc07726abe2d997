/// What a layer keeps for its backward, in the host's memory meanwhile; optimizer states, there but
/// for their update.

#include <algorithm>

#include "base/check.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

/// What the forward leaves and the backward frees, one instance for each layer and micro-batch: in
/// the order of its first access. The block's input is among it; what a weight pass reads later is
/// not.
BufferRefs kept_activations(const Builder& b, const LayerPair& pair) {
  BufferRefs kept, again;
  for (const Op& op : pair.backward) again.insert(again.end(), op.writes.begin(), op.writes.end());
  const auto freed = [](const Ops& ops, const BufferRef& r) {
    return std::ranges::any_of(ops, [&](const Op& op) { return contains(op.frees, r); });
  };
  for (const Op& op : pair.forward) {
    for (const BufferRef& r : accesses(op)) {
      const BufferDecl& decl = b.decl(r);
      if (decl.persistent || decl.scope != Scope::kLayerMicroBatch || r.layer_offset != 0) continue;
      if (contains(kept, r) || contains(again, r)) continue;
      if (freed(pair.backward, r) && !freed(pair.forward, r)) kept.push_back(r);
    }
  }
  return kept;
}

Op copy(Builder& b, std::string name, Stream stream, const BufferRefs& from, const BufferRefs& to) {
  Op op;
  op.kind = OpKind::kCopy;
  op.stream = stream;
  op.name = std::move(name);
  op.reads = from;
  op.writes = to;
  for (const BufferRef& r : from) op.bytes += b.decl(r).bytes();
  return op;
}

}  // namespace

Op offload(Builder& b, LayerPair& pair) {
  const BufferRefs kept = kept_activations(b, pair);
  ORRERY_CHECK(!kept.empty(), "a layer keeps nothing");
  BufferRefs there;
  for (const BufferRef& r : kept) there.push_back(b.on_host(r));
  const auto first = std::ranges::find_if(
      pair.forward, [](const Op& op) { return op.stream == Stream::kCompute && !op.acquire; });
  const auto last = std::find_if(pair.backward.rbegin(), pair.backward.rend(),
                                 [](const Op& op) { return !op.release; });
  ORRERY_CHECK(first != pair.forward.end() && last != pair.backward.rend(), "a layer of no work");
  first->acquire = b.kept_pool();
  last->release = b.returned_pool();
  Op out = copy(b, "copy_out(activations)", Stream::kCopyOut, kept, there),
     in = copy(b, "copy_in(activations)", Stream::kCopyIn, there, kept);
  out.frees = kept;
  out.release = b.kept_pool();
  in.frees = there;
  in.acquire = b.returned_pool();
  pair.forward.push_back(std::move(out));
  return in;
}

void copy_states(Builder& b, Ops& update) {
  const auto on_host = [&](const BufferRef& r) { return b.decl(r).on_host(); };
  const auto updates_there = [&](const Op& op) { return std::ranges::any_of(op.updates, on_host); };
  BufferRefs there, here, gradients;
  for (Op& op : update) {
    if (!updates_there(op)) continue;
    gradients.push_back(op.reads.front());
    for (const BufferRef& r : op.updates)
      if (on_host(r)) there.push_back(r);
  }
  if (there.empty()) return;
  // The gradients of all units first, then the updates; behind them what gathers parameters.
  const auto reduces = [&](const Op& op) {
    return std::ranges::any_of(gradients, [&](const BufferRef& g) {
      return contains(op.updates, g) || contains(op.writes, g);
    });
  };
  std::stable_partition(update.begin(), update.end(), reduces);
  const auto first = std::ranges::find_if(update, updates_there);
  const auto end = std::stable_partition(first, update.end(), updates_there);
  for (auto op = first; op != end; ++op) {
    for (BufferRef& r : op->updates)
      if (on_host(r)) here.push_back(r = b.on_device(r));
  }
  Op in = copy(b, "copy_in(states)", Stream::kCopyIn, there, here),
     out = copy(b, "copy_out(states)", Stream::kCopyOut, here, {});
  in.reads.insert(in.reads.end(), gradients.begin(), gradients.end());
  out.updates = there;
  out.frees = here;
  in.acquire = out.release = b.states_pool();
  const auto at = first - update.begin();
  update.insert(end, std::move(out));
  update.insert(update.begin() + at, std::move(in));
}

BufferRef Builder::twin(const BufferRef& of, const char* where, BufferCategory category) {
  BufferDecl there = decl(of);
  there.name += where;
  there.category = category;
  there.persistent = false;
  return {buffer(std::move(there)), of.layer_offset};
}

}  // namespace orrery::plan
