#include "executor/runtime/quantised_operands.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/check.h"
#include "executor/state/tensor.h"

namespace orrery::executor {

using model::Phase;
using model::SegmentKind;

namespace {

bool is_product(const model::SegmentShape& s) {
  return s.kind != SegmentKind::kNorm && s.kind != SegmentKind::kActivation &&
         s.kind != SegmentKind::kAdamW;
}

/// Place among the reads of the operand that comes quantised; -1: none does.
int quantised_read(const model::SegmentShape& s, Phase phase) {
  if (!is_product(s) || s.quantises_input || phase == Phase::kB) return -1;
  return phase == Phase::kF ? 0 : 1;
}

bool is_delayed(const plan::Program& program) {
  return model::format_of(program.precision) == model::Format::kFp8Delayed;
}

bool reads(const plan::Op& op, plan::BufferId buffer) {
  return std::ranges::any_of(op.reads,
                             [&](const plan::BufferRef& r) { return r.buffer == buffer; });
}

}  // namespace

std::string quantised_fault(const model::SegmentShape& s) {
  if (s.format == model::Format::kNone || s.kind == SegmentKind::kAdamW) return {};
  const std::int64_t block = coding_of(s.format, ProductOperand::kWeight).block;
  const auto fault = [&](const char* what, std::int64_t size) {
    return fmt::format("{} trains with whole blocks of {}: segment '{}' has {} {} on a rank",
                       model::to_string(s.format), block, model::to_string(s.kind), size, what);
  };
  if (block == 0) return {};
  const bool of_input = s.kind != SegmentKind::kActivation;
  if (of_input && s.in % block != 0) return fault("input features", s.in);
  if (s.out % block != 0) return fault("output features", s.out);
  return {};
}

QuantisedOperands::QuantisedOperands(const plan::Program& program,
                                     const plan::InstanceMap& instances, Communicator& communicator)
    : program_(program),
      instances_(instances),
      communicator_(communicator),
      scales_(instances.size(), 1.0F) {
  quantisation_.largest = [this](ProductOperand operand, float own) {
    return largest(operand, own);
  };
  for (const plan::Template& t : program.templates)
    for (auto op = t.ops.begin(); op != t.ops.end(); ++op) {
      if (op->kind != plan::OpKind::kCompute || op->unit || op->writes.empty()) continue;
      const auto reader = std::find_if(op, t.ops.end(), [&](const plan::Op& later) {
        return later.unit && reads(later, op->writes[0].buffer);
      });
      if (reader != t.ops.end()) readers_.emplace(&*op, *reader->unit);
    }
}

plan::GroupId QuantisedOperands::tensor_group(const plan::Op& op) const {
  return program_.units[op.unit ? *op.unit : readers_.at(&op)].tensor_group;
}

base::Result<void> QuantisedOperands::open_channels() {
  if (!coding_of(model::format_of(program_.precision), ProductOperand::kInput).of_tensor) return {};
  std::set<plan::GroupId> groups;
  for (const plan::Template& t : program_.templates)
    for (const plan::Op& op : t.ops)
      if (op.kind == plan::OpKind::kCompute &&
          program_.segments[op.segment].format != model::Format::kNone)
        groups.insert(tensor_group(op));
  for (const plan::GroupId id : groups) {
    if (program_.groups[id].size == 1) continue;
    TRY(channels_[id], channel_of(communicator_, program_.groups[id], plan::Stream::kTensor));
  }
  if (!is_delayed(program_) || program_.devices_per_stage == 1) return {};
  const plan::Group stage{.name = "stage", .size = program_.devices_per_stage};
  TRY(stage_, channel_of(communicator_, stage, plan::Stream::kData));
  return {};
}

void QuantisedOperands::keep_copies(plan::UnitId unit, std::int64_t layer,
                                    const at::Tensor& bytes) {
  copies_[{unit, layer}].bytes = bytes;
}

float QuantisedOperands::largest(ProductOperand operand, float own) {
  if (is_delayed(program_)) {
    Largest& of = history_[{layer_, op_->name, operand}];
    of.now = std::max(of.now, own);
    if (!of.before.empty()) return std::ranges::max(of.before);
  }
  if (channel_ == nullptr || !outcome_) return own;
  at::Tensor all = at::from_blob(&own, {1}, at::TensorOptions().dtype(at::kFloat));
  outcome_ = communicator_.all_reduce(*channel_, all, plan::Reduce::kMax);
  return own;
}

at::Tensor QuantisedOperands::copy_bytes(const plan::ParameterUnit& unit,
                                         const plan::ParameterView& view, const at::Tensor& bytes,
                                         bool by_columns) const {
  std::int64_t before = 0;  // quantised elements in front of the view
  for (const plan::Parameter& p : unit.parameters)
    if (p.quantised && p.offset < view.offset) before += elements_of(p.local_shape);
  const std::int64_t out = view.shape[0], in = view.shape[1], half = bytes.numel() / 2;
  const model::Format format = model::format_of(program_.precision);
  const model::DType type = model::terms_of(format).element;
  const std::int64_t length = model::bytes_of(type, out * in);
  const Coding coding = coding_of(format, ProductOperand::kWeight);
  ORRERY_CHECK(length == (by_columns ? in * coding.row_bytes(out) : out * coding.row_bytes(in)),
               "a copy of [{}, {}] takes other bytes than the Program's", out, in);
  return bytes.narrow(0, (by_columns ? half : 0) + model::bytes_of(type, before), length);
}

WeightCopies* QuantisedOperands::copies_of(const plan::Op& op, std::int64_t layer) {
  UnitCopies& kept = copies_.at({*op.unit, layer});
  const plan::ParameterView& view = op.views.front();
  const auto [at, is_new] = kept.of_view.try_emplace(view.offset);
  if (is_new) {
    const plan::ParameterUnit& unit = program_.units[*op.unit];
    at->second.rows = copy_bytes(unit, view, kept.bytes, false);
    at->second.columns = copy_bytes(unit, view, kept.bytes, true);
  }
  return &at->second;
}

Quantisation& QuantisedOperands::enter(const plan::Op& op, std::int64_t layer,
                                       std::int64_t micro_batch) {
  const model::SegmentShape& s = program_.segments[op.segment];
  quantisation_.copies = nullptr;
  op_ = &op;
  layer_ = layer;
  channel_ = nullptr;
  if (s.format == model::Format::kNone || s.kind == SegmentKind::kAdamW) return quantisation_;
  if (const auto at = channels_.find(tensor_group(op)); at != channels_.end())
    channel_ = &at->second;
  if (const int read = quantised_read(s, op.phase); read >= 0)
    quantisation_.read_scale = scales_[instances_.at(op.reads[as_index(read)], layer, micro_batch)];
  if (is_product(s) && !s.quantises_weights && op.phase != Phase::kG)
    quantisation_.copies = copies_of(op, layer);
  return quantisation_;
}

base::Result<void> QuantisedOperands::leave(const plan::Op& op, std::int64_t layer,
                                            std::int64_t micro_batch) {
  const model::SegmentShape& s = program_.segments[op.segment];
  if (s.kind == SegmentKind::kAdamW) {
    if (const auto at = copies_.find({*op.unit, layer}); at != copies_.end())
      for (auto& [offset, copies] : at->second.of_view) copies.made = false;
    return {};
  }
  if (s.format != model::Format::kNone && !is_product(s) && op.phase == Phase::kF)
    scales_[instances_.at(op.writes[0], layer, micro_batch)] = quantisation_.written_scale;
  return outcome_;
}

void QuantisedOperands::moved(const plan::Op& op, std::int64_t layer, std::int64_t micro_batch) {
  if (op.reads.empty() || !is_quantised(program_.buffers[op.reads[0].buffer].dtype)) return;
  for (const std::vector<plan::BufferRef>* made : {&op.writes, &op.updates})
    for (const plan::BufferRef& to : *made)
      scales_[instances_.at(to, layer, micro_batch)] =
          scales_[instances_.at(op.reads[0], layer, micro_batch)];
}

base::Result<void> QuantisedOperands::end_step() {
  if (history_.empty()) return {};
  at::Tensor all = at::empty({std::ssize(history_)}, at::kFloat);
  float* number = all.mutable_data_ptr<float>();
  for (auto& [key, of] : history_) *number++ = std::exchange(of.now, 0.0F);
  if (program_.devices_per_stage > 1)
    TRY_VOID(communicator_.all_reduce(stage_, all, plan::Reduce::kMax));
  number = all.mutable_data_ptr<float>();
  for (auto& [key, of] : history_) {
    of.before.push_back(*number++);
    if (of.before.size() > kHistory) of.before.pop_front();
  }
  return {};
}

}  // namespace orrery::executor
