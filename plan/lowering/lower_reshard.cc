#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/partition_parts.h"

namespace orrery::plan {

BufferRef TensorPart::wide(const std::string& name, std::int64_t columns, model::DType dtype) {
  return b_.local(name, l_, {b_.sequences(l_), b_.tokens(full_), columns}, dtype);
}
std::string Piece::of_name(std::string name) const {
  return of == 1 ? name : fmt::format("{} {}/{}", name, index + 1, of);
}
Op Piece::of_op(Op op) const {
  op.pieces = of;
  op.piece = index;
  return op;
}
BufferRef TensorPart::whole(const std::string& what, BufferRef x, Piece piece) {
  if (!l_.sequence_parallel) return x;
  const BufferDecl& part = b_.decl(x);
  return b_.local(piece.of_name(what + " whole"), l_,
                  {b_.sequences(l_), b_.tokens(full_) / piece.of, part.shape.back()}, part.dtype);
}
BufferRef TensorPart::gathered(const std::string& what, BufferRef x, Ops& ops, Piece piece) {
  const BufferRef all = whole(what, x, piece);
  if (l_.sequence_parallel)
    ops.push_back(piece.of_op(collective(b_, Collective::kAllGather, piece.of_name(what),
                                         Stream::kTensor, b_.tensor_group(l_), x, all, 1)));
  return all;
}
void TensorPart::reduced(const std::string& what, BufferRef x, Ops& ops, Piece piece) {
  if (l_.sequence_parallel) {
    ops.push_back(
        piece.of_op(collective(b_, Collective::kReduceScatter, piece.of_name(what), Stream::kTensor,
                               b_.tensor_group(l_), whole(what, x, piece), x, 1)));
    if (piece.index > 0) std::swap(ops.back().writes, ops.back().updates);
  } else if (s_.tp > 1) {
    ops.push_back(all_reduce(b_, what, Stream::kTensor, b_.tensor_group(l_), x));
  }
}

namespace {

/// Carries one tensor [b, s, hidden] from layout to layout. What a rank holds is stated by its
/// share of the batch and its share of the tokens; tensor ranks hold copies, until sequence
/// parallelism splits theirs again:
///
///   1. gather the tokens over the tensor group          when they were split there
///   2. gather the tokens over the context group         when ranks change their share
///   3. the batch share: one gather or one slice where the shares of one layout are unions of
///      neighbouring shares of the other; else all sequences are gathered and the own ones cut out
///   4. cut out the token share, 5. cut it again over the tensor group
class Move {
 public:
  Move(Builder& b, std::string name, const Layout& from, const Layout& to)
      : b_(b), name_(std::move(name)), from_(from), to_(to) {
    const bool trades_tokens =
        from.cp != to.cp || (from.cp > 1 && from.token_stride() != to.token_stride());
    if (from.sequence_parallel) gather("tokens", b.tensor_group(from), 1);
    if (trades_tokens && from.cp > 1) gather("context", b.context_group(from), 1);
    move_batch();
    if (trades_tokens && to.cp > 1) slice("context share", 1, to.cp, to.token_stride());
    if (to.sequence_parallel) slice("tokens share", 1, to.tp, to.tensor_stride());
  }

  Ops ops(BufferRef in, BufferRef out) {
    Ops ops;
    Extents extents = b_.decl(in).shape;
    for (const Step& step : steps_) {
      std::int64_t& extent = extents[as_index(step.dim)];
      extent = step.gathers ? extent * b_.program().groups[step.group].size : extent / step.parts;
      const BufferRef result =
          &step == &steps_.back()
              ? out
              : b_.local(name_ + " " + step.name + " for " + to_.tag(), from_, extents, b_.dtype());
      ORRERY_CHECK(b_.decl(result).shape == extents, "'{}' ends in another shape", name_);
      ops.push_back(step.gathers ? collective(b_, Collective::kAllGather, name_ + " " + step.name,
                                              Stream::kTensor, step.group, in, result, step.dim)
                                 : cut(step, in, result));
      in = result;
    }
    return ops;
  }

 private:
  struct Step {
    const char* name = "";
    int dim = 0;
    bool gathers = false;
    GroupId group{};            // gather
    int parts = 1, stride = 1;  // slice
  };
  void gather(const char* name, GroupId group, int dim) {
    steps_.push_back({.name = name, .dim = dim, .gathers = true, .group = group});
  }
  void slice(const char* name, int dim, int parts, int stride) {
    steps_.push_back({.name = name, .dim = dim, .parts = parts, .stride = stride});
  }

  void move_batch() {
    const int apart = from_.batch_stride(), wanted = to_.batch_stride();
    if (from_.dp == to_.dp && (from_.dp == 1 || apart == wanted)) return;
    const bool ordered = !from_.strided && !to_.strided;  // the batch share is r / stride
    if (ordered && wanted % apart == 0)
      return gather("batch", b_.group("reshard", wanted / apart, apart), 0);
    if (ordered && apart % wanted == 0) return slice("batch", 0, apart / wanted, wanted);
    if (from_.dp > 1) gather("batch", b_.group("reshard", from_.dp, apart), 0);
    if (to_.dp > 1) slice("batch share", 0, to_.dp, wanted);
  }
  Op cut(const Step& step, BufferRef from, BufferRef to) {
    SegmentShape shape = b_.shape(kSlice, to_, 0, 0);
    shape.elements = b_.decl(to).elements();
    shape.dim = step.dim;
    shape.parts = step.parts;
    shape.part_stride = step.stride;
    return compute(b_, "slice(" + name_ + ")", shape, kF, {from}, {to});
  }

  Builder& b_;
  std::string name_;
  Layout from_, to_;
  std::vector<Step> steps_;
};

Ops move(Builder& b, const std::string& name, const Layout& from, const Layout& to, BufferRef in,
         BufferRef out) {
  if (from == to) return {};
  if (from.partitioned() || to.partitioned())
    return {redistributed_stream(b, name.c_str(), from, to, in, out)};
  return Move(b, name, from, to).ops(in, out);
}

}  // namespace

/// The gradient of a gather is a slice and the reverse: the gradient is whole on every tensor rank,
/// so nothing is summed. The decoder reads the encoder's output in each of its layouts until the
/// backward: what was made here dies in the backward here.
LayerPair reshard_pair(Builder& b, const Layout& from, const Layout& to, bool before_head) {
  LayerPair pair;
  const BufferRef x = b.stream(from, 0), x_to = b.stream(to, 0), d = b.stream_gradient(to, 0),
                  d_from = b.stream_gradient(from, 0);
  BufferRefs kept{x_to, d_from};
  pair.forward = move(b, "x", from, to, x, x_to);
  pair.backward = move(b, "dx", to, from, d, d_from);
  const bool decoder = b.model().cross_attention;
  const int n = b.layout_number();
  const BufferRef c = b.has_companion() ? b.companion(from, decoder, n) : BufferRef{};
  const BufferRef c_to = b.has_companion() ? b.companion(to, decoder, n + 1) : BufferRef{};
  const bool moves = b.has_companion() && !before_head;
  if (moves) {
    const BufferRef dc = b.companion_gradient(to, decoder, n + 1),
                    dc_from = b.companion_gradient(from, decoder, n);
    append(pair.forward, move(b, "companion", from, to, c, c_to));
    append(pair.backward, move(b, "d companion", to, from, dc, dc_from));
    kept.insert(kept.end(), {c_to, dc_from});
    if (decoder) kept.push_back(c);
  }
  place_frees(pair.forward, pair.backward, [&](const BufferRef& r) { return contains(kept, r); });
  if (moves && decoder && !pair.backward.empty()) pair.backward.back().frees.push_back(c_to);
  return pair;
}

}  // namespace orrery::plan
