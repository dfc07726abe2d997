#include "executor/runtime/interpreter.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/numbers.h"
#include "executor/state/state.h"
#include "model/scan.h"
#include "plan/program/messages.h"
#include "plan/program/stream_refs.h"

namespace orrery::executor {

using base::ErrorCode;
using model::SegmentKind;
using plan::BufferCategory;

bool is_masked(const plan::Program& program) {
  return std::ranges::any_of(program.segments, [](const model::SegmentShape& s) {
    return s.kind == SegmentKind::kLoss && !s.causal;
  });
}

bool reads_images(const plan::Program& program) {
  return std::ranges::any_of(program.segments, [](const model::SegmentShape& s) {
    return s.kind == SegmentKind::kLoadTargets && s.in > 0;
  });
}

std::int64_t tokens_of_text(const plan::Program& program) {
  std::int64_t before = 0;
  for (const model::SegmentShape& s : program.segments)
    if (s.kind == SegmentKind::kLoadTargets) before = s.kv_tokens;
  return before + program.sequence;
}

namespace {
std::int64_t targets_of(const plan::Program& program) {
  if (reads_images(program)) return 1;  // its class
  return targets_of_sequence(program.sequence, is_masked(program));
}
}  // namespace

namespace {
bool splits_norm(const model::SegmentShape& s) {
  return s.kind == SegmentKind::kScan && model::is_lightning(s) && s.parts > 1;
}
}  // namespace

base::Result<void> check_segments(const plan::Program& program) {
  std::set<std::pair<plan::SegmentId, plan::Phase>> missing;
  for (const plan::Template& t : program.templates) {
    for (const plan::Op& op : t.ops) {
      if (op.kind == plan::OpKind::kCompute && !has_segment(program.segments[op.segment], op.phase))
        missing.emplace(op.segment, op.phase);
    }
  }
  base::ErrorSink sink;
  for (const model::SegmentShape& shape : program.segments)
    if (const std::string fault = quantised_fault(shape); !fault.empty())
      sink.add(base::make_error(ErrorCode::kUnsupported, "{}", fault)
                   .with_hint("fewer tensor ranks, a wider model, or fp8-current"));
  if (const auto split = std::ranges::find_if(program.segments, splits_norm);
      split != program.segments.end())
    sink.add(base::make_error(ErrorCode::kUnsupported,
                              "tp {} splits the norm of lightning attention, which is over all "
                              "heads",
                              split->parts)
                 .with_hint("train with tp 1; 'orrery simulate' runs this plan"));
  for (const auto& [segment, phase] : missing) {
    if (splits_norm(program.segments[segment])) continue;
    sink.add(base::make_error(ErrorCode::kUnsupported,
                              "the executor has no phase {} of segment '{}' at this shape",
                              model::to_string(phase),
                              model::to_string(program.segments[segment].kind))
                 .with_hint("'orrery simulate' runs this plan"));
  }
  return sink.result();
}

base::Result<std::unique_ptr<Interpreter>> Interpreter::create(const plan::Program& program,
                                                               Communicator& communicator,
                                                               const TokenData* data, Site& site,
                                                               const RunOptions& options) {
  std::unique_ptr<Interpreter> made(new Interpreter(program, communicator, data, site, options));
  TRY_VOID(made->compile());
  TRY_VOID(made->open_channels());
  TRY_VOID(made->open_pairs());
  made->make_state();
  if (made->streams_ != nullptr) TRY_VOID(made->streams_->finish());
  return made;
}

Interpreter::Interpreter(const plan::Program& program, Communicator& communicator,
                         const TokenData* data, Site& site, const RunOptions& options)
    : program_(program),
      communicator_(communicator),
      site_(site),
      class_(program.class_of(communicator.rank())),
      local_rank_(communicator.rank() - class_.first_rank),
      streams_(communicator.streams()),
      joins_(site.device.is_cuda() || options.joins),
      // what is quantised has copies and operands of its own (quantised_operands.h)
      has_arena_(options.arena && model::format_of(program.precision) == model::Format::kNone),
      instances_(program, class_),
      tensors_(instances_.size()),
      pending_(plan::kStreams),
      device_memory_(site.allocator, site.device),
      marks_(site.device) {
  context_.local_rank = local_rank_;
  context_.layers = program.spec.layers;
  context_.loss_scale = 1.0 / (real(program.global_batch) * real(targets_of(program)));
  context_.data = data;
  context_.seed = options.seed;
  context_.global_batch = program.global_batch;
  context_.optimizer = options.optimizer;
  rotary_ = RotaryTables({program.spec.short_factors, program.spec.long_factors});
  context_.rotary = &rotary_;
  if (model::format_of(program.precision) != model::Format::kNone)
    quantised_.emplace(program, instances_, communicator);
  site.board.stage(class_.stage);
}

base::Result<void> Interpreter::compile() {
  TRY_VOID(check_segments(program_));
  plan::for_each_op(program_, class_, [&](const plan::OpInstance& o) {
    Step step{.op = o.op,
              .number = steps_.size(),
              .layer = o.layer,
              .micro_batch = o.micro_batch,
              .template_id = o.source.raw(),
              .index = o.index};
    if (o.op->kind == plan::OpKind::kCompute) place(step);
    steps_.push_back(step);
  });
  if (joins_ || has_arena_) {
    const plan::Expansion expansion = plan::expand(program_, class_, plan::StreamRefs(program_));
    if (joins_) launches_ = plan::launches(program_, expansion);
    for (std::uint32_t i = 0; i < launches_.with.size(); ++i)
      if (launches_.with[i] != i) joined_with_[launches_.with[i]].push_back(i);
    awaited_.assign(steps_.size(), false);
    if (has_arena_) make_arena(expansion);
  }
  if (streams_ != nullptr) {
    order_.emplace(program_, class_);
    late_frees_.emplace(program_, class_, *order_);
    awaited_.resize(steps_.size(), false);
    for (std::size_t i = 0; i < steps_.size(); ++i) awaited_[i] = awaited_[i] || order_->awaited(i);
  }
  return {};
}

void Interpreter::make_arena(const plan::Expansion& expansion) {
  const auto holds = [&](const plan::Op& op) {
    return op.kind != plan::OpKind::kCompute ||
           fills_outputs(program_.segments[op.segment], op.phase, site_.device);
  };
  arena_ =
      plan::arena(program_, class_, expansion, joins_ ? &launches_ : nullptr,
                  streams_ != nullptr ? plan::Order::kByStream : plan::Order::kOneByOne, holds);
  const CategoryScope scope(site_.allocator, BufferCategory::kActivation);
  block_ = at::empty({arena_.bytes}, at::TensorOptions().dtype(at::kByte).device(site_.device));
  places_.resize(arena_.offsets.size());
  auto* const bytes = block_.mutable_data_ptr<std::uint8_t>();
  for (const Step& step : steps_) {
    for (const std::uint32_t before : arena_.waits[step.number]) awaited_[before] = true;
    const auto offsets = arena_.offsets_of(step.number);
    for (std::size_t w = 0; w < offsets.size(); ++w) {
      if (offsets[w] == plan::Arena::kElsewhere) continue;
      const plan::BufferDecl& decl = program_.buffers[step.op->writes[w].buffer];
      places_[arena_.write_begin[step.number] + w] =
          at::from_blob(bytes + offsets[w], stored_shape(decl.shape, decl.dtype),
                        at::TensorOptions().dtype(scalar_type(decl.dtype)).device(site_.device));
    }
  }
}

bool Interpreter::in_arena(const at::Tensor& t) const {
  if (!t.defined() || !block_.defined() || !t.has_storage()) return false;
  const auto* const begin = block_.const_data_ptr<std::uint8_t>();
  const auto* const at = static_cast<const std::uint8_t*>(t.const_data_ptr());
  return at >= begin && at < begin + block_.numel();
}

at::Tensor Interpreter::place_of(const Step& step, std::size_t write) const {
  return places_.empty() ? at::Tensor() : places_[arena_.write_begin[step.number] + write];
}

at::Tensor Interpreter::fresh(const Step& step, std::size_t write) const {
  at::Tensor place = place_of(step, write);
  if (place.defined()) return place;
  const plan::BufferDecl& decl = program_.buffers[step.op->writes[write].buffer];
  return empty(decl.shape, decl.dtype, site_.device);
}

// Which sequences a load reads, and which vocabulary rows a segment holds, is this rank's part of
// what the shape splits.
void Interpreter::place(Step& step) const {
  const model::SegmentShape& s = program_.segments[step.op->segment];
  if (step.op->unit) step.shard_begin = shard_begin(*step.op->unit, s.elements);
  if (s.sequences == 0) return;
  const std::int64_t micro_batch_sequences = program_.global_batch / program_.micro_batches;
  const std::int64_t part = (local_rank_ / s.part_stride) % s.parts;
  step.vocabulary_shard = part;
  step.first_sequence = step.micro_batch * micro_batch_sequences + part * s.sequences;
}

std::int64_t Interpreter::shard_begin(plan::UnitId id, std::int64_t elements) const {
  const plan::ParameterUnit& unit = program_.units[id];
  if (elements == unit.padded) return 0;
  return program_.groups[unit.shard_group].index(communicator_.rank()) * elements;
}

// In order of (group, stream) over the whole Program, so that ranks that share channels create them
// in one order.
base::Result<void> Interpreter::open_channels() {
  std::set<std::pair<plan::GroupId, plan::Stream>> used;
  for (const Step& step : steps_) {
    if (step.op->kind == plan::OpKind::kCollective && !plan::states_messages(*step.op))
      used.emplace(step.op->group, step.op->stream);
  }
  for (const Step& step : steps_)
    if (step.op->redistribution)
      redistributors_.try_emplace(*step.op->redistribution,
                                  program_.redistributions[*step.op->redistribution],
                                  class_.first_rank, communicator_.rank());
  channels_.assign(program_.groups.size(), std::vector<Channel>(plan::kStreams));
  for (const auto& [group, stream] : used) {
    TRY(channels_[group.raw()][as_index(stream)],
        channel_of(communicator_, program_.groups[group], stream));
  }
  if (quantised_) TRY_VOID(quantised_->open_channels());
  return {};
}

namespace {

/// A direction between two ranks on a lane, the same to both; in this order they open it.
using Pair = std::tuple<int, int, int>;  // lane, from, to

}  // namespace

base::Result<void> Interpreter::open_pairs() {
  const int own = communicator_.rank();
  std::set<Pair> pairs;
  const auto add = [&](int lane, int peer, bool sends) {
    if (peer != own) pairs.emplace(lane, sends ? own : peer, sends ? peer : own);
  };
  for (const Step& step : steps_) {
    const plan::Op& op = *step.op;
    const int lane = as_int(plan::sending_end(op.stream));
    for (const plan::Leg& leg : op.legs) add(lane, own + leg.peer_offset, leg.send);
    if (op.redistribution)
      redistributors_.at(*op.redistribution).each_peer([&](int peer, bool sends) {
        add(lane, peer, sends);
      });
    if (op.senders.empty()) continue;
    const plan::Group& group = program_.groups[op.group];
    const int base = group.base(own), index = group.index(own);
    for (int to = 0; to < group.size; ++to)
      if (op.senders[as_index(to)] == index) add(lane, group.member(base, to), true);
    add(lane, group.member(base, op.senders[as_index(index)]), false);
  }
  for (const auto& [lane, from, to] : pairs)
    TRY_VOID(communicator_.open_pair(from == own ? to : from, lane, from == own));
  return {};
}

void Interpreter::make_state() {
  // Masters start as the parameters do; they are the fourth operand that an update changes, on the
  // host what is copied there of it.
  std::set<plan::InstanceIndex> masters;
  for (const Step& step : steps_) {
    for (std::size_t i = 0; plan::copies_out(*step.op) && i < step.op->updates.size(); ++i)
      if (masters.contains(instances_.at(step.op->reads[i], step.layer, step.micro_batch)))
        masters.insert(instances_.at(step.op->updates[i], step.layer, step.micro_batch));
    if (step.op->kind != plan::OpKind::kCompute ||
        program_.segments[step.op->segment].kind != SegmentKind::kAdamW)
      continue;
    if (step.op->updates.size() > 3)
      masters.insert(instances_.at(step.op->updates[3], step.layer, step.micro_batch));
  }
  for (const plan::RankClass::Persistent& p : class_.persistent) {
    const plan::BufferDecl& decl = program_.buffers[p.buffer];
    const plan::InstanceIndex at = instances_.at({p.buffer, 0}, p.layer, 0);
    tensors_[at] = make_persistent(
        decl, p.layer, decl.category == BufferCategory::kParameter || masters.contains(at));
    if (is_quantised(decl.dtype)) quantised_->keep_copies(*decl.unit, p.layer, tensors_[at]);
  }
}

at::Tensor Interpreter::make_persistent(const plan::BufferDecl& decl, std::int64_t layer,
                                        bool parameters) {
  const CategoryScope scope(site_.allocator, decl.category);
  at::Tensor made = decl.on_host() ? empty_on_host(decl.shape, decl.dtype, site_.device)
                                   : empty(decl.shape, decl.dtype, site_.device);
  if (!parameters || is_quantised(decl.dtype)) return made.zero_();
  ORRERY_CHECK(decl.unit.has_value(), "parameter buffer '{}' has no unit", decl.name);
  const plan::ParameterUnit& unit = program_.units[*decl.unit];
  const std::int64_t n = made.numel();
  const std::int64_t begin = shard_begin(*decl.unit, n);
  const auto values = std::make_unique_for_overwrite<float[]>(as_index(n));
  const FlatRange range{
      .begin = begin,
      .end = begin + n,
      .tensor_index = program_.groups[unit.tensor_group].index(communicator_.rank()),
      .expert_index = local_rank_ / unit.strategy.tp % unit.strategy.ep,
      .device = local_rank_,
      .layer = layer};
  initial_parameters(unit, range, context_.seed, program_.spec.layers, {values.get(), as_index(n)});
  made.copy_(at::from_blob(values.get(), {n}, at::TensorOptions().dtype(at::kFloat)));
  return made;
}

double Interpreter::loss_part() const { return reports_loss_ ? real(loss_.item<float>()) : 0.0; }

}  // namespace orrery::executor
