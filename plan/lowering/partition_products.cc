/// \file
/// Products, gains and biases of partitioned layers, and what moves between devices.

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/partition_parts.h"
#include "plan/program/messages.h"

namespace orrery::plan {

using enum Dimension;

// ---- the devices ----

Layout64 DeviceGrid::layout3(const Partition& p, std::array<Dimension, 3> dimensions, Phase phase,
                             int step) {
  const Layout64 three = layout_of(p, dimensions, phase, step);
  Layout64 l;
  std::ranges::copy_n(three.dimensions.begin(), 3, l.dimensions.begin() + 1);
  return l;
}

Layout64 DeviceGrid::layout4(const Partition& p, std::array<Dimension, 4> dimensions) {
  return layout_of(p, dimensions, kF, 0);
}

PlacedTensor DeviceGrid::tensor(const std::string& name, const std::string& of,
                                const Layout64& layout, const Extents4& extents) const {
  PlacedTensor t{.buffer = {}, .layout = layout, .extents = extents};
  const Extents4 block = RedistributedTensor{.held = layout, .extents = extents}.held_extents();
  const bool scores = extents[0] > 1 || layout.dimensions[0].bits > 0;
  t.buffer = {b_.buffer({.name = name + " [" + of + "]",
                         .dtype = b_.dtype(),
                         .shape = Extents(block.begin() + (scores ? 0 : 1), block.end()),
                         .unit = {}})};
  return t;
}

BufferRef DeviceGrid::numbers(const std::string& name, const std::string& of, Extents shape) const {
  return {b_.buffer({.name = name + " [" + of + "]", .shape = std::move(shape), .unit = {}})};
}

GroupId DeviceGrid::group(std::uint32_t bits) const {
  const Group g = Group::of_bits("partition", bits);
  return b_.group(g);
}

SegmentShape DeviceGrid::shape(SegmentKind kind, const Partition& p, std::int64_t in,
                               std::int64_t out) const {
  SegmentShape s = b_.shape(kind, Layout{}, in, out);
  s.sequences = b_.context().micro_batch_sequences / p.slices(kBatch);
  s.tokens = b_.context().sequence / p.slices(kTokens);
  return s;
}

Op DeviceGrid::redistribution(const std::string& what,
                              const std::vector<RedistributedTensor>& tensors, BufferRefs from,
                              BufferRefs to) const {
  Op op = collective(b_, Collective::kAllToAll, what, Stream::kTensor, group((1U << bits_) - 1),
                     from.front(), to.front());
  op.name = "redistribute(" + what + ")";
  const Redistribution r{bits_, tensors};
  op.redistribution = b_.redistribution(r);
  op.bytes = most_received_bytes(r, b_.decl(from.front()).dtype);
  op.reads = std::move(from);
  op.writes = std::move(to);
  return op;
}

PlacedTensor DeviceGrid::redistributed(const std::string& what, const PlacedTensor& from,
                                       const Layout64& wanted, const std::string& of, Ops& ops,
                                       const Extents& sections) const {
  if (from.layout == wanted) return from;
  const PlacedTensor to = tensor(what, "for " + of, wanted, from.extents);
  std::vector<RedistributedTensor> tensors;
  std::int64_t begin = 0;
  const int held = from.layout.dimensions.back().bits, want = wanted.dimensions.back().bits;
  for (const std::int64_t width : sections.empty() ? Extents{from.extents.back()} : sections) {
    Extents4 extents = from.extents;
    extents.back() = width;
    tensors.push_back({.held = from.layout,
                       .wanted = wanted,
                       .extents = extents,
                       .held_row = from.extents.back() >> held,
                       .held_offset = begin >> held,
                       .wanted_row = from.extents.back() >> want,
                       .wanted_offset = begin >> want});
    begin += width;
  }
  ops.push_back(redistribution(what, tensors, {from.buffer}, {to.buffer}));
  return to;
}

namespace {

/// The dimension of [b, s, features] that `wanted` splits further than `held`, over just these id
/// bits, highest first; none where more than that differs.
std::optional<int> scattered_dimension(const Layout64& held, const Layout64& wanted,
                                       std::uint32_t bits, int devices) {
  std::optional<int> found;
  for (std::size_t x = 0; x < kTensorDimensions; ++x) {
    const SlicePlanes &h = held.dimensions[x], &w = wanted.dimensions[x];
    if (h == w) continue;
    if (found || x == 0 || w.bits != h.bits + std::popcount(bits)) return std::nullopt;
    SlicePlanes finer = h;
    for (int bit = kMostBits - 1; bit >= 0; --bit) {
      if ((bits >> bit & 1) == 0) continue;
      for (int d = 0; d < devices; ++d)
        finer.planes[as_index(finer.bits)] |= static_cast<std::uint64_t>(d >> bit & 1) << d;
      ++finer.bits;
    }
    if (finer != w) return std::nullopt;
    found = as_int(x) - 1;
  }
  return found;
}

}  // namespace

PlacedTensor DeviceGrid::completed(const std::string& what, const PlacedTensor& sum,
                                   std::uint32_t bits, const Layout64& wanted,
                                   const std::string& of, Ops& ops, const Extents& sections) const {
  const auto dim = bits != 0 && sections.size() <= 1
                       ? scattered_dimension(sum.layout, wanted, bits, 1 << bits_)
                       : std::nullopt;
  if (!dim) {
    reduced(what, sum.buffer, bits, ops);
    return redistributed(what, sum, wanted, of, ops, sections);
  }
  const PlacedTensor to = tensor(what, "for " + of, wanted, sum.extents);
  ops.push_back(collective(b_, Collective::kReduceScatter, what, Stream::kTensor, group(bits),
                           sum.buffer, to.buffer, *dim));
  return to;
}

void DeviceGrid::reduced(const std::string& what, BufferRef sum, std::uint32_t bits,
                         Ops& ops) const {
  if (bits != 0) ops.push_back(all_reduce(b_, what, Stream::kTensor, group(bits), sum));
}

Op DeviceGrid::shift(const std::string& what, std::uint32_t bits, std::vector<int> senders,
                     BufferRef from, BufferRef to) const {
  Op op = collective(b_, Collective::kPointToPoint, what, Stream::kTensor, group(bits), from, to);
  op.senders = std::move(senders);
  return op;
}

// ---- products ----

PartitionedProduct::PartitionedProduct(const DeviceGrid& grid, ProductSpec spec,
                                       const Sequence& sequence)
    : grid_(grid), b_(grid.builder()), spec_(std::move(spec)), p_(sequence) {
  for (Parameter& p : spec_.weights) {
    p.shard_dim = 0;
    p.in_dim = 1;
    p.local_shape = {p.shape[0] / p_.slices(kOut), p.shape[1] / p_.slices(kIn)};
    p.quantised = false;
    p.uses = p_.steps();
  }
  use_ = grid_.unit(spec_.name, spec_.weights, sequence,
                    p_.split_mask(kBatch) | p_.split_mask(kTokens));
}

BufferRef PartitionedProduct::travelling(Operand operand, Phase phase, int step) const {
  const std::string name =
      fmt::format("{} {} {}", to_string(operand), model::to_string(phase), step);
  if (operand == Operand::kInput || operand == Operand::kOutputGradient) {
    const bool input = operand == Operand::kInput;
    return grid_
        .tensor(name, tag(), layout(input ? kIn : kOut, phase, step),
                grid_.features(input ? spec_.in : spec_.out))
        .buffer;
  }
  const bool weight = operand == Operand::kWeight;
  return {
      b_.buffer({.name = name + " [" + tag() + "]",
                 .category = weight ? BufferCategory::kCommunication : BufferCategory::kGradient,
                 .dtype = weight ? b_.dtype() : kFloat32,
                 .shape = {b_.unit(use_).padded},
                 .unit = use_.state.unit})};
}

BufferRef PartitionedProduct::moved(const Move& move, Phase phase, int step, BufferRef from,
                                    Ops& ops) const {
  const BufferRef to = travelling(move.operand, phase, step);
  ops.push_back(grid_.shift(fmt::format("{} {} {} {}", spec_.name, to_string(move.operand),
                                        model::to_string(phase), step),
                            p_.primitive_mask(), senders_of(p_, move), from, to));
  return to;
}

Op PartitionedProduct::product(Phase phase, int step, BufferRefs reads, std::optional<BufferRef> to,
                               std::optional<BufferRef> weights) const {
  SegmentShape s =
      grid_.shape(spec_.kind, p_, spec_.in / p_.slices(kIn), spec_.out / p_.slices(kOut));
  s.steps = p_.steps();
  const std::string name = p_.steps() > 1 ? fmt::format("{} {}", spec_.name, step) : spec_.name;
  Op op = compute(b_, name, s, phase, std::move(reads), {});
  if (to) (step == 0 ? op.writes : op.updates).push_back(*to);
  op.temporal_step = step;
  op.unit = use_.state.unit;
  op.weights = weights;
  ParameterView all{.offset = 0, .shape = spec_.weights.front().local_shape, .parameters = {}};
  all.shape[0] = spec_.out / p_.slices(kOut);
  for (std::size_t i = 0; i < spec_.weights.size(); ++i) all.parameters.push_back(as_int(i));
  op.views = {all};
  return op;
}

PlacedTensor PartitionedProduct::forward(const PlacedTensor& input, const std::string& to,
                                         Ops& ops) {
  const PlacedTensor y = grid_.tensor(to, tag(), output(), grid_.features(spec_.out));
  BufferRef x = input.buffer, w = use_.weights_forward;
  for (int t = 0; t < p_.steps(); ++t) {
    BufferRef next_x = x, next_w = w;
    for (const Move& move : moves(p_, kF, t)) {
      BufferRef& next = move.operand == Operand::kInput ? next_x : next_w;
      next = moved(move, kF, t + 1, next, ops);
    }
    ops.push_back(product(kF, t, {x}, y.buffer, w));
    x = next_x;
    w = next_w;
  }
  stash_ = x;
  return y;
}

PlacedTensor PartitionedProduct::backward(const PlacedTensor& d_output, const std::string& to,
                                          Ops& ops) {
  const PlacedTensor dx = grid_.tensor(to, tag(), input_gradient(), grid_.features(spec_.in));
  BufferRef dy = d_output.buffer, w = use_.weights_backward;
  if (const auto fetch = move_between(p_, Operand::kWeight, kF, 0, kB, 0))
    w = moved(*fetch, kB, 0, w, ops);
  for (int t = 0; t < p_.steps(); ++t) {
    BufferRef next_dy = dy, next_w = w;
    for (const Move& move : moves(p_, kB, t)) {
      if (t + 1 == p_.steps()) continue;  // home, where it is still
      BufferRef& next = move.operand == Operand::kWeight ? next_w : next_dy;
      next = moved(move, kB, t + 1, next, ops);
    }
    ops.push_back(product(kB, t, {dy}, dx.buffer, w));
    dy = next_dy;
    w = next_w;
  }
  d_output_ = dy;
  return dx;
}

/// Zeroed; what adds to it is one run of steps between two moves of the sum.
BufferRef PartitionedProduct::gradient_part(int number, Ops& ops) const {
  const BufferRef part = travelling(Operand::kWeightGradient, kG, -number);
  ops.push_back(zeroed(b_, "zero(gradient part)", part));
  return part;
}

void PartitionedProduct::weight_gradient(Ops& ops) const {
  BufferRef x = stash_, dy = d_output_;
  const auto sum_moves = [&](int step) {
    const std::vector<Move> all = moves(p_, kG, step);
    return std::ranges::any_of(all,
                               [](const Move& m) { return m.operand == Operand::kWeightGradient; });
  };
  int left = 0;  // moves of the sum that are to come
  for (int t = 0; t < p_.steps(); ++t) left += sum_moves(t) ? 1 : 0;
  BufferRef sum = left > 0 ? gradient_part(left, ops) : use_.gradient;
  for (int t = 0; t < p_.steps(); ++t) {
    BufferRef next_x = x, next_dy = dy;
    std::optional<BufferRef> arrived;
    for (const Move& move : moves(p_, kG, t)) {
      if (move.operand == Operand::kWeightGradient)
        arrived = moved(move, kG, t, sum, ops);
      else if (move.operand == Operand::kInput)
        next_x = moved(move, kG, t + 1, x, ops);
      else
        next_dy = moved(move, kG, t + 1, dy, ops);
    }
    if (arrived) sum = --left > 0 ? gradient_part(left, ops) : use_.gradient;
    ops.push_back(product(kG, t, {dy, x}, {}, {}));
    ops.back().gradients = sum;
    if (arrived) ops.push_back(summed(b_, "add(gradient part)", *arrived, sum));
    x = next_x;
    dy = next_dy;
  }
}

// ---- gains and biases ----

namespace {

/// Of the same sequence without skews.
Partition unskewed(const Partition& p) {
  Sequence s = p.sequence();
  for (Element& e : s) e.skew = 0;
  return Partition(std::move(s));
}

}  // namespace

PartitionedVectors::PartitionedVectors(const DeviceGrid& grid, std::string name,
                                       Parameters parameters, const Partition& p)
    : grid_(grid), b_(grid.builder()), name_(std::move(name)), parameters_(std::move(parameters)) {
  if (parameters_.empty()) return;
  const Partition home = unskewed(p);
  for (Parameter& parameter : parameters_) {
    parameter.shard_dim = 0;
    parameter.local_shape = {parameter.shape[0] / p.slices(kOut)};
    parameter.quantised = false;
  }
  use_ = grid_.unit(name_, parameters_, home.sequence(),
                    p.split_mask(kBatch) | p.split_mask(kTokens) | p.row_mask());
  weights_ = use_.weights_forward;
  gradients_ = use_.gradient;
  // Along a row of a primitive every slice of features is once.
  const std::vector<int> wanted = p.slices_of(kOut, kF, 0), held = home.slices_of(kOut, kF, 0);
  if (wanted == held) return;
  bits_ = p.column_mask();
  Move move{Operand::kWeight, {}};
  std::vector<int> receiver(wanted.size());
  for (std::size_t d = 0; d < wanted.size(); ++d)
    for (std::size_t e = 0; e < held.size(); ++e)
      if (((d ^ e) & ~std::size_t{bits_}) == 0 && held[e] == wanted[d]) {
        move.sender.push_back(as_int(e));
        receiver[e] = as_int(d);
      }
  // Rows differ in their senders: by the place in the whole primitive.
  bits_ = p.primitive_mask();
  senders_ = senders_of(p, move);
  move.sender = receiver;
  back_ = senders_of(p, move);
}

void PartitionedVectors::begin(Phase phase, Ops& ops) {
  const BufferRef& own = phase == kF ? use_.weights_forward : use_.weights_backward;
  if (senders_.empty()) {
    weights_ = own;
    return;
  }
  const ParameterUnit& unit = b_.unit(use_);
  const auto copy = [&](const char* what, BufferCategory category, model::DType dtype) {
    return BufferRef{
        b_.buffer({.name = fmt::format("{} {} of {}", what, model::to_string(phase), unit.name),
                   .category = category,
                   .dtype = dtype,
                   .shape = {unit.padded},
                   .unit = use_.state.unit})};
  };
  weights_ = copy("copies", BufferCategory::kCommunication, b_.dtype());
  ops.push_back(grid_.shift(name_, bits_, senders_, own, weights_));
  if (phase == kF) return;
  gradients_ = copy("gradient part", BufferCategory::kGradient, kFloat32);
  ops.push_back(zeroed(b_, "zero(gradient part)", gradients_));
}

void PartitionedVectors::end_backward(Ops& ops) {
  if (senders_.empty()) return;
  const ParameterUnit& unit = b_.unit(use_);
  const BufferRef home{b_.buffer({.name = "gradient home of " + unit.name,
                                  .category = BufferCategory::kGradient,
                                  .shape = {unit.padded},
                                  .unit = use_.state.unit})};
  ops.push_back(grid_.shift("d " + name_, bits_, back_, gradients_, home));
  ops.push_back(summed(b_, "add(gradient part)", home, use_.gradient));
}

Op PartitionedVectors::used(Op op, const std::vector<std::string>& names) const {
  for (const std::string& name : names) op.views.push_back(b_.view(use_, {name.c_str()}));
  return with_state(std::move(op));
}

Op PartitionedVectors::used(Op op) const {
  const ParameterUnit& unit = b_.unit(use_);
  ParameterView all{.offset = 0, .shape = {unit.elements}, .parameters = {}};
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) all.parameters.push_back(as_int(i));
  op.views = {all};
  return with_state(std::move(op));
}

Op PartitionedVectors::with_state(Op op) const {
  op.unit = use_.state.unit;
  if (op.phase == kF || op.phase == kBG) op.weights = weights_;
  if (op.phase == kG || op.phase == kBG) op.gradients = gradients_;
  return op;
}

}  // namespace orrery::plan
