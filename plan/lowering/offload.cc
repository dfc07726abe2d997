/// What a layer keeps for its backward, in the host's memory meanwhile.

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
  op.reads = op.frees = from;
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
  out.release = b.kept_pool();
  in.acquire = b.returned_pool();
  pair.forward.push_back(std::move(out));
  return in;
}

BufferRef Builder::on_host(const BufferRef& kept) {
  BufferDecl there = decl(kept);
  there.name += " on the host";
  there.category = BufferCategory::kHost;
  return {buffer(std::move(there)), kept.layer_offset};
}

}  // namespace orrery::plan
