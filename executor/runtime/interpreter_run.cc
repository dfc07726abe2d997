#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/numbers.h"
#include "executor/runtime/guarded.h"
#include "executor/runtime/interpreter.h"
#include "executor/transport/all_to_all.h"
#include "model/segment.h"

namespace orrery::executor {

using base::ErrorCode;
using model::Collective;
using model::SegmentKind;
using plan::BufferCategory;
using plan::OpKind;
using plan::Stream;

at::Tensor& Interpreter::tensor(const plan::BufferRef& ref, const Step& step) {
  return tensors_[instances_.at(ref, step.layer, step.micro_batch)];
}

base::Result<void> Interpreter::step(std::int64_t index, bool record) {
  const c10::InferenceMode no_autograd;
  current_step_ = index;
  recording_ = record;
  context_.step = index;
  context_.update = index + 1;
  spans_.clear();
  memory_.clear();
  live_bytes_.clear();
  marks_.clear();
  if (record) marks_.mark();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& s = steps_[i];
    site_.board.operation(static_cast<std::int32_t>(index), s.layer, s.micro_batch, s.op->name);
    communicator_.at({.rank = communicator_.rank(),
                      .stage = class_.stage,
                      .step = index,
                      .layer = s.layer,
                      .micro_batch = s.micro_batch,
                      .operation = s.op->name,
                      .number = i});
    if (auto done = guarded([&] { return run(i, record); }); !done) {
      // what another rank failed of is the cause, not what came of it here
      TRY_VOID(communicator_.healthy());
      return base::fail(located(std::move(done).error(), s));
    }
    if (record) record_span(s);
  }
  if (streams_ != nullptr) {
    TRY_VOID(streams_->finish());
    late_frees_->clear();
  }
  for (int s = 0; s < plan::kStreams; ++s) TRY_VOID(drain(static_cast<Stream>(s)));
  copied_.clear();
  if (quantised_) TRY_VOID(quantised_->end_step());
  TRY_VOID(communicator_.healthy());
  communicator_.at({.rank = communicator_.rank(), .stage = class_.stage});
  if (record) finish_record();
  return {};
}

base::Result<void> Interpreter::run(std::size_t number, bool record) {
  TRY_VOID(begin(number));
  if (record) marks_.mark();
  TRY_VOID(perform(number));
  TRY_VOID(end(number));
  if (record) marks_.mark();
  return {};
}

namespace {

/// Whether LibTorch works on tensors in an operation, beside the transport or instead of it.
bool computes(const plan::Op& op) {
  if (op.kind != OpKind::kCollective)
    return op.kind == OpKind::kCompute || op.kind == OpKind::kCopy;
  return op.dim != 0 || op.pieces > 1 || op.collective == Collective::kAllToAll ||
         op.redistribution.has_value() || !op.senders.empty();
}

}  // namespace

base::Result<void> Interpreter::begin(std::size_t number) {
  const plan::Op& op = *steps_[number].op;
  if (streams_ == nullptr) {
    TRY_VOID(drain(op.stream));
    return poll();
  }
  TRY_VOID(communicator_.healthy());
  TRY_VOID(late_frees_->admit(number, *streams_));
  const auto before = order_->before(number);
  std::vector<std::uint32_t> after(before.begin(), before.end());
  for (const std::uint32_t with : joined_with(number))
    after.insert(after.end(), order_->before(with).begin(), order_->before(with).end());
  if (has_arena_)
    after.insert(after.end(), arena_.waits[number].begin(), arena_.waits[number].end());
  return streams_->enter(op.stream, after, computes(op));
}

std::span<const std::uint32_t> Interpreter::joined_with(std::size_t number) const {
  const auto known = joined_with_.find(number);
  if (recording_ || known == joined_with_.end()) return {};
  return known->second;
}

base::Result<void> Interpreter::perform(std::size_t number) {
  const Step& step = steps_[number];
  switch (step.op->kind) {
    case OpKind::kCompute: return compute(number);
    case OpKind::kCollective: return collective(step);
    case OpKind::kExchange: return exchange(step);
    case OpKind::kCopy: copy(step); return {};
  }
  return {};
}

base::Result<void> Interpreter::end(std::size_t number) {
  const Step& step = steps_[number];
  if (streams_ != nullptr) {
    if (awaited_[number]) TRY_VOID(streams_->mark(step.op->stream, as_u32(number)));
    order_->each_free(number, [&](const StreamOrder::Free& free) {
      const at::Tensor& freed = tensor(free.buffer, step);
      if (!in_arena(freed)) late_frees_->hold(number, free, freed);
    });
  }
  for (std::size_t w = 0; w < step.op->writes.size(); ++w)
    if (const at::Tensor place = place_of(step, w); place.defined())
      alive_in_block_ += static_cast<std::int64_t>(place.nbytes());
  for (const plan::BufferRef& ref : step.op->frees) {
    at::Tensor& freed = tensor(ref, step);
    if (in_arena(freed)) alive_in_block_ -= static_cast<std::int64_t>(freed.nbytes());
    freed.reset();
  }
  return {};
}

at::Tensor Interpreter::piece_of(const at::Tensor& all, const plan::Op& op, std::int64_t ranks) {
  const std::int64_t tokens = all.size(1) / ranks / op.pieces;
  return all.view({all.size(0), ranks, op.pieces, tokens, all.size(2)}).select(2, op.piece);
}

std::int64_t Interpreter::ranks_in(const plan::BufferRef& ref, const plan::Op& op) const {
  const auto& shape = program_.buffers[ref.buffer].shape;
  const bool all = op.pieces > 1 && shape.size() == 3 &&
                   shape[1] == program_.segments[op.segment].tokens * op.pieces;
  return all ? program_.groups[program_.units[*op.unit].tensor_group].size : 0;
}

Operands Interpreter::operands_of(const Step& step, bool with_reads) {
  const plan::Op& op = *step.op;
  Operands o;
  const auto live = [&](const plan::BufferRef& ref) {
    const at::Tensor& t = tensor(ref, step);
    ORRERY_CHECK(t.defined(), "'{}' uses '{}', which is not alive", op.name,
                 program_.buffers[ref.buffer].name);
    return t;
  };
  o.reads.reserve(op.reads.size());
  for (const plan::BufferRef& ref : op.reads) {
    if (!with_reads) break;
    const std::int64_t ranks = ranks_in(ref, op);
    o.reads.push_back(ranks == 0 ? live(ref)
                                 : piece_of(live(ref), op, ranks).flatten(1, 2).contiguous());
  }
  const bool later = op.piece > 0 && op.writes.empty();
  if (!later)
    for (const plan::BufferRef& ref : op.updates) o.updates.push_back(live(ref));
  for (const plan::BufferRef& ref : later ? op.updates : op.writes) {
    const plan::BufferDecl& decl = program_.buffers[ref.buffer];
    o.writes.push_back({.shape = decl.shape, .dtype = decl.dtype, .device = site_.device});
    if (ranks_in(ref, op) > 0)
      o.writes.back().shape[1] /= op.pieces;
    else if (!later)
      o.writes.back().place = place_of(step, o.writes.size() - 1);
  }
  for (const plan::ParameterView& view : op.views) {
    const auto part = [&](const plan::BufferRef& flat) {
      return live(flat).narrow(0, view.offset, elements_of(view.shape)).view(view.shape);
    };
    if (op.weights) o.weights.push_back(part(*op.weights));
    if (op.gradients) o.gradients.push_back(part(*op.gradients));
  }
  return o;
}

base::Result<void> Interpreter::compute(std::size_t number) {
  const Step& step = steps_[number];
  const bool updates = program_.segments[step.op->segment].kind == SegmentKind::kAdamW;
  if (joined(number) == plan::Joined::kAll) {
    if (!updates) place_outputs(step, done_behind_);
    done_behind_.writes.clear();
    return {};
  }
  const auto with = joined_with(number);
  if (with.empty()) return compute_with(number, nullptr);
  if (updates) {
    update_units_of(number);
    return {};
  }
  const Step& next = steps_[with.front()];
  Joining behind{joined(with.front()), &program_.segments[next.op->segment], next.op->phase,
                 operands_of(next, false)};
  TRY_VOID(compute_with(number, &behind));
  done_behind_.writes = std::move(behind.operands.writes);
  return {};
}

void Interpreter::update_units_of(std::size_t number) {
  std::vector<UnitUpdate> updates;
  const auto add = [&](const Step& step) {
    updates.push_back({&program_.segments[step.op->segment], &program_.units[*step.op->unit],
                       step.shard_begin, operands_of(step)});
  };
  add(steps_[number]);
  for (const std::uint32_t with : joined_with(number)) add(steps_[with]);
  update_units(updates, context_);
}

base::Result<void> Interpreter::compute_with(std::size_t number, Joining* behind) {
  const Step& step = steps_[number];
  const plan::Op& op = *step.op;
  const model::SegmentShape& shape = program_.segments[op.segment];
  context_.layer = step.layer;
  context_.vocabulary_shard = step.vocabulary_shard;
  context_.first_sequence = step.first_sequence;
  context_.shard_begin = step.shard_begin;
  context_.unit = op.unit ? &program_.units[*op.unit] : nullptr;
  context_.behind = behind;
  context_.bias_is_done = joined(number) == plan::Joined::kBias;
  if (quantised_) context_.quantisation = &quantised_->enter(op, step.layer, step.micro_batch);
  Operands operands = operands_of(step);
  const BufferCategory category = op.writes.empty()
                                      ? BufferCategory::kActivation
                                      : program_.buffers[op.writes.front().buffer].category;
  const CategoryScope scope(site_.allocator, category);
  TRY_VOID(run_segment(shape, op.phase, operands, context_));
  if (quantised_) TRY_VOID(quantised_->leave(op, step.layer, step.micro_batch));
  place_outputs(step, operands);
  if (shape.kind == SegmentKind::kLoss && op.phase == model::Phase::kF) {
    loss_ = operands.updates[0];
    reports_loss_ = step.vocabulary_shard == 0;  // tensor ranks hold copies
  }
  return {};
}

void Interpreter::place_outputs(const Step& step, Operands& operands) {
  const plan::Op& op = *step.op;
  for (std::size_t i = 0; i < operands.writes.size(); ++i) {
    Output& out = operands.writes[i];
    const plan::BufferRef& ref = op.writes.empty() ? op.updates[i] : op.writes[i];
    at::Tensor& slot = tensor(ref, step);
    if (const std::int64_t ranks = ranks_in(ref, op); ranks > 0) {
      if (op.piece == 0) slot = fresh(step, i);
      at::Tensor to = piece_of(slot, op, ranks);
      to.copy_(out.tensor.view(to.sizes()));
      continue;
    }
    ORRERY_CHECK(out.tensor.defined() &&
                     out.tensor.sizes() == at::IntArrayRef(stored_shape(out.shape, out.dtype)),
                 "output {} of '{}' has another shape", i, op.name);
    ORRERY_CHECK(!out.place.defined() || out.tensor.is_same(out.place),
                 "output {} of '{}' is not in its place", i, op.name);
    ORRERY_CHECK(out.tensor.scalar_type() == scalar_type(out.dtype),
                 "output {} of '{}' has another dtype", i, op.name);
    ORRERY_CHECK(!slot.defined(), "'{}' writes '{}', which is alive", op.name,
                 program_.buffers[ref.buffer].name);
    slot = std::move(out.tensor);
  }
}

base::Result<void> Interpreter::collective_piece(const Step& step, const Channel& channel) {
  const plan::Op& op = *step.op;
  const bool gathers = op.collective == Collective::kAllGather;
  ORRERY_CHECK(gathers || op.collective == Collective::kReduceScatter, "'{}' has no pieces",
               op.name);
  const at::Tensor from = tensor(op.reads[0], step);
  const plan::BufferRef& ref = op.writes.empty() ? op.updates[0] : op.writes[0];
  const plan::BufferDecl& decl = program_.buffers[ref.buffer];
  const CategoryScope scope(site_.allocator, decl.category);
  at::Tensor& to = tensor(ref, step);
  if (!op.writes.empty()) to = fresh(step, 0);
  if (gathers) {
    const at::Tensor own = piece_of(from, op, 1).flatten(1, 2).contiguous();
    return communicator_.all_gather(channel, own, to, op.dim);
  }
  at::Tensor own = at::empty({to.size(0), to.size(1) / op.pieces, to.size(2)}, to.options());
  TRY_VOID(communicator_.reduce_scatter(channel, from, own, op.dim));
  at::Tensor part = piece_of(to, op, 1);
  part.copy_(own.view(part.sizes()));
  return {};
}

base::Result<void> Interpreter::redistribution(const Step& step) {
  const plan::Op& op = *step.op;
  std::vector<at::Tensor> from, to;
  for (const plan::BufferRef& ref : op.reads) from.push_back(tensor(ref, step));
  const CategoryScope scope(site_.allocator, program_.buffers[op.writes.front().buffer].category);
  for (std::size_t i = 0; i < op.writes.size(); ++i) to.push_back(fresh(step, i));
  TRY_VOID(redistributors_.at(*op.redistribution).run(communicator_, as_int(op.stream), from, to));
  for (std::size_t i = 0; i < to.size(); ++i) tensor(op.writes[i], step) = std::move(to[i]);
  return {};
}

base::Result<void> Interpreter::collective(const Step& step) {
  const plan::Op& op = *step.op;
  if (op.redistribution) return redistribution(step);
  if (quantised_) quantised_->moved(op, step.layer, step.micro_batch);
  const Channel& channel = channels_[op.group.raw()][as_index(op.stream)];
  if (op.pieces > 1) return collective_piece(step, channel);
  const auto part_of_flat = [&](at::Tensor t) {
    if (op.slice_group) {
      const plan::Group& owners = program_.groups[*op.slice_group];
      const std::int64_t length = t.numel() / owners.size;
      return t.view({-1}).narrow(0, owners.index(communicator_.rank()) * length, length);
    }
    return op.slice_elements > 0 ? t.view({-1}).narrow(0, op.slice_offset, op.slice_elements) : t;
  };
  if (!op.updates.empty()) {
    at::Tensor whole = part_of_flat(tensor(op.updates[0], step));
    if (op.collective == Collective::kAllReduce)
      return communicator_.all_reduce(channel, whole, op.reduce);
    if (op.collective == Collective::kBroadcast) return communicator_.broadcast(channel, whole, 0);
    const std::int64_t length = whole.size(0) / channel.size;
    at::Tensor own = whole.narrow(0, channel.index * length, length);
    if (op.collective == Collective::kAllGather)
      return communicator_.all_gather(channel, own, whole, 0);
    ORRERY_CHECK(op.collective == Collective::kReduceScatter, "'{}' cannot work in place", op.name);
    return communicator_.reduce_scatter(channel, whole, own, 0);
  }
  const plan::BufferDecl& decl = program_.buffers[op.writes[0].buffer];
  const CategoryScope scope(site_.allocator, decl.category);
  const at::Tensor in = part_of_flat(tensor(op.reads[0], step));
  at::Tensor out = fresh(step, 0);
  switch (op.collective) {
    case Collective::kAllGather:
      TRY_VOID(communicator_.all_gather(channel, in, out, op.dim));
      break;
    case Collective::kReduceScatter:
      TRY_VOID(communicator_.reduce_scatter(channel, in, out, op.dim));
      break;
    case Collective::kAllToAll: TRY_VOID(all_to_all(communicator_, channel, op, in, out)); break;
    case Collective::kPointToPoint:
      TRY_VOID(op.senders.empty()
                   ? communicator_.shift(channel, in, out)
                   : shift_by_senders(communicator_, program_.groups[op.group], op, in, out));
      break;
    case Collective::kAllReduce:
    case Collective::kBroadcast: ORRERY_CHECK(false, "'{}' does not write a new buffer", op.name);
  }
  tensor(op.writes[0], step) = std::move(out);
  return {};
}

base::Result<void> Interpreter::exchange(const Step& step) {
  const plan::Op& op = *step.op;
  std::vector<TransferLeg> legs;
  bool receives = false;
  for (const plan::Leg& leg : op.legs) {
    at::Tensor& t = tensor(leg.buffer, step);
    if (!leg.send) {
      const plan::BufferDecl& decl = program_.buffers[leg.buffer.buffer];
      const CategoryScope scope(site_.allocator, decl.category);
      ORRERY_CHECK(!t.defined(), "'{}' receives into '{}', which is alive", op.name, decl.name);
      const auto write = std::ranges::find(op.writes, leg.buffer);
      ORRERY_CHECK(write != op.writes.end(), "'{}' does not write what it receives", op.name);
      t = fresh(step, as_index(write - op.writes.begin()));
      receives = true;
    }
    legs.push_back({.send = leg.send,
                    .peer = communicator_.rank() + leg.peer_offset,
                    .lane = as_int(plan::sending_end(op.stream)),
                    .tensor = t});
  }
  TRY(std::unique_ptr<Transfer> transfer, communicator_.post(std::move(legs)));
  if (receives) return transfer->wait();
  pending_[as_index(op.stream)] = std::move(transfer);
  return {};
}

/// What it frees on the device is held until the next copy to the host begins, as the Program says
/// (plan::frees_late).
void Interpreter::copy(const Step& step) {
  const plan::Op& op = *step.op;
  const bool out = plan::copies_out(op);
  if (out) copied_.clear();
  const std::vector<plan::BufferRef>& made = plan::copied_to(op);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const at::Tensor from = tensor(op.reads[i], step);
    const plan::BufferDecl& decl = program_.buffers[made[i].buffer];
    const CategoryScope scope(site_.allocator, decl.category);
    at::Tensor& to = tensor(made[i], step);
    ORRERY_CHECK(from.defined() && to.defined() == op.writes.empty(),
                 "'{}' copies '{}' to what is alive", op.name,
                 program_.buffers[op.reads[i].buffer].name);
    if (!to.defined())
      to = out ? empty_on_host(decl.shape, decl.dtype, site_.device) : fresh(step, i);
    to.copy_(from, /*non_blocking=*/true);
    if (out) copied_.push_back(from);
  }
}

base::Result<void> Interpreter::drain(Stream stream) {
  std::unique_ptr<Transfer>& transfer = pending_[as_index(stream)];
  if (!transfer) return {};
  TRY_VOID(transfer->wait());
  transfer.reset();
  return {};
}

base::Result<void> Interpreter::poll() {
  for (const std::unique_ptr<Transfer>& transfer : pending_) {
    if (transfer) TRY_VOID(transfer->test());
  }
  return {};
}

base::Diagnostics Interpreter::located(base::Diagnostics diagnostics, const Step& step) const {
  const std::string phase = step.op->kind == OpKind::kCompute
                                ? fmt::format(" ({})", model::to_string(step.op->phase))
                                : "";
  diagnostics.front().notes.push_back(
      fmt::format("on rank {} (stage {}), step {}, layer {}, micro-batch {}, operation '{}'{}",
                  communicator_.rank(), class_.stage, current_step_, step.layer, step.micro_batch,
                  step.op->name, phase));
  return diagnostics;
}

void Interpreter::record_span(const Step& step) {
  const plan::Op& op = *step.op;
  plan::Span span;
  span.rank = communicator_.rank();
  span.stream = op.stream;
  span.name = op.name;
  switch (op.kind) {
    case OpKind::kCompute:
      span.category = model::to_string(program_.segments[op.segment].kind);
      span.phase = model::to_string(op.phase);
      break;
    case OpKind::kCollective: span.category = model::to_string(op.collective); break;
    case OpKind::kExchange: span.category = "exchange"; break;
    case OpKind::kCopy: span.category = "copy"; break;
  }
  span.layer = step.layer;
  span.micro_batch = step.micro_batch;
  span.template_id = step.template_id;
  span.template_index = step.index;
  span.bytes = op.bytes;
  spans_.push_back(std::move(span));
  const auto block = block_.defined() ? static_cast<std::int64_t>(block_.nbytes()) : 0;
  live_bytes_.push_back(device_memory_.count().live - block + alive_in_block_);
}

void Interpreter::finish_record() {
  // the step's beginning, then beginning and end of every operation
  const std::vector<std::int64_t> at = marks_.picoseconds();
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const std::int64_t begin = at[2 * i + 1], end = at[2 * i + 2];
    spans_[i].start_ps = begin;
    spans_[i].duration_ps = end - begin;
    if (i > 0 && live_bytes_[i] == live_bytes_[i - 1]) continue;
    memory_.push_back({.rank = communicator_.rank(), .at_ps = end, .bytes = live_bytes_[i]});
  }
}

}  // namespace orrery::executor
