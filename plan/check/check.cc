#include "plan/check/check.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/check/check_internal.h"

namespace orrery::plan {

CheckedProgram unroll_all(const Program& program) {
  CheckedProgram step{.program = &program, .classes = {}};
  for (const RankClass& c : program.classes) step.classes.push_back(unroll(program, c));
  return step;
}

std::vector<Fault> check(const CheckedProgram& step) {
  using namespace checker;
  ORRERY_CHECK(step.program != nullptr && step.classes.size() == step.program->classes.size());
  std::vector<ClassStep> steps;
  for (std::size_t c = 0; c < step.classes.size(); ++c) {
    steps.push_back(number_instances(*step.program, step.program->classes[c], step.classes[c]));
  }
  FaultList faults;
  for (const ClassStep& s : steps) {
    check_operands(s, faults);
    check_lifetimes(s, faults);
    check_phase_order(s, faults);
    check_values(s, faults);
  }
  check_progress(steps, faults);
  check_gradients(steps, faults);
  return faults.take();
}

std::vector<Fault> check(const Program& program) { return check(unroll_all(program)); }

namespace checker {

namespace {

/// Packs an InstanceKey. Layers and micro-batches are below 2^20 in any valid plan; -1 packs as all
/// ones.
std::uint64_t pack(const InstanceKey& key) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 21) - 1;
  return std::uint64_t{key.buffer.raw()} << 42 |
         (static_cast<std::uint64_t>(key.layer) & kMask) << 21 |
         (static_cast<std::uint64_t>(key.micro_batch) & kMask);
}

/// Numbers instances in the order in which operations meet them. A table for each buffer that is
/// met, by layer and micro-batch; what lies outside the class's layers (a faulty operation's) is in
/// a map.
class Numbering {
 public:
  explicit Numbering(ClassStep& step)
      : step_(step),
        first_layer_(step.rank_class->first_layer - kBeyond),
        layers_(step.rank_class->end_layer + kBeyond + 1 - first_layer_),
        tables_(step.program->buffers.size()) {}

  InstanceIndex number(const InstanceKey& key) {
    InstanceIndex& index = place(key);
    if (index == kNone) {
      index = static_cast<InstanceIndex>(step_.instances.size());
      step_.instances.push_back(key);
      step_.persistent.push_back(false);
    }
    return index;
  }

  void add_op(const OpInstance& instance) {
    const auto [known, fresh] = known_.try_emplace(instance.op);
    if (fresh) known->second = operands_of(*instance.op);
    for (std::size_t i = known->second.begin; i < known->second.end; ++i) {
      const Operand& o = operands_[i];
      step_.accesses.push_back(
          {number(key_of(*step_.program, o.ref, instance.layer, instance.micro_batch)), o.kind});
    }
    step_.access_begin.push_back(as_u32(step_.accesses.size()));
  }

 private:
  static constexpr std::int64_t kBeyond = 1;  // a layer's neighbours
  static constexpr InstanceIndex kNone = ~InstanceIndex{0};
  struct Operand {
    BufferRef ref;
    AccessKind kind = AccessKind::kRead;
  };
  struct Range {
    std::size_t begin = 0, end = 0;  // in operands_
  };

  /// Reads, updates, writes, frees; what an operation names twice counts once, in its strongest
  /// meaning.
  Range operands_of(const Op& op) {
    const std::size_t begin = operands_.size();
    const auto same = [&](const BufferRef& a, const BufferRef& b) {
      return key_of(*step_.program, a, 0, 0) == key_of(*step_.program, b, 0, 0);
    };
    const auto add = [&](const BufferRef& ref, AccessKind kind) {
      for (std::size_t i = begin; i < operands_.size(); ++i)
        if (same(operands_[i].ref, ref)) return;
      operands_.push_back({ref, kind});
    };
    for (const BufferRef& ref : op.updates) add(ref, AccessKind::kUpdate);
    if (op.gradients) add(*op.gradients, AccessKind::kUpdate);
    for (const BufferRef& ref : op.writes) add(ref, AccessKind::kWrite);
    for (const Leg& leg : op.legs)
      add(leg.buffer, leg.send ? AccessKind::kRead : AccessKind::kWrite);
    for (const BufferRef& ref : op.reads) add(ref, AccessKind::kRead);
    if (op.weights) add(*op.weights, AccessKind::kRead);
    std::stable_sort(operands_.begin() + static_cast<std::ptrdiff_t>(begin), operands_.end(),
                     [](const Operand& a, const Operand& b) { return a.kind < b.kind; });
    for (const BufferRef& ref : op.frees) operands_.push_back({ref, AccessKind::kFree});
    return {begin, operands_.size()};
  }

  InstanceIndex& place(const InstanceKey& key) {
    const Scope scope = step_.program->buffers[key.buffer].scope;
    const bool by_layer = scope == Scope::kLayer || scope == Scope::kLayerMicroBatch,
               by_batch = scope == Scope::kMicroBatch || scope == Scope::kLayerMicroBatch;
    const std::int64_t batches = by_batch ? step_.program->micro_batches : 1,
                       layers = by_layer ? layers_ : 1,
                       layer = by_layer ? key.layer - first_layer_ : 0,
                       batch = by_batch ? key.micro_batch : 0;
    if (layer < 0 || layer >= layers || batch < 0 || batch >= batches)
      return outside_.try_emplace(pack(key), kNone).first->second;
    std::vector<InstanceIndex>& table = tables_[key.buffer.raw()];
    if (table.empty()) table.resize(as_index(layers * batches), kNone);
    return table[as_index(layer * batches + batch)];
  }

  ClassStep& step_;
  std::int64_t first_layer_, layers_;
  std::vector<std::vector<InstanceIndex>> tables_;  // [buffer] empty until it is met
  std::unordered_map<std::uint64_t, InstanceIndex> outside_;
  std::unordered_map<const Op*, Range> known_;
  std::vector<Operand> operands_;
};

}  // namespace

ClassStep number_instances(const Program& program, const RankClass& rank_class,
                           std::span<const OpInstance> ops) {
  ClassStep step;
  step.program = &program;
  step.rank_class = &rank_class;
  step.ops = ops;
  step.access_begin.reserve(ops.size() + 1);
  step.access_begin.push_back(0);
  Numbering numbering(step);
  for (const RankClass::Persistent& p : rank_class.persistent)
    step.persistent[numbering.number(key_of(program, {p.buffer}, p.layer, 0))] = true;
  for (const OpInstance& op : ops) numbering.add_op(op);
  return step;
}

InstanceIndex ClassStep::instance_of(std::size_t op, const BufferRef& ref) const {
  const InstanceKey key = key_of(*program, ref, ops[op].layer, ops[op].micro_batch);
  for (const Access& a : accesses_of(op)) {
    if (instances[a.instance] == key) return a.instance;
  }
  base::check_failed(__FILE__, __LINE__, "operand of the operation");
}

namespace {

std::string place(std::int32_t layer, std::int32_t micro_batch) {
  if (layer < 0 && micro_batch < 0) return "";
  if (layer < 0) return fmt::format(" (micro-batch {})", micro_batch);
  if (micro_batch < 0) return fmt::format(" (layer {})", layer);
  return fmt::format(" (layer {}, micro-batch {})", layer, micro_batch);
}

}  // namespace

std::string ClassStep::describe(std::size_t op) const {
  const OpInstance& instance = ops[op];
  const bool compute = instance.op->kind == OpKind::kCompute;
  return fmt::format("operation {} '{}'{}{}{}", op, instance.op->name, compute ? " " : "",
                     compute ? model::to_string(instance.op->phase) : "",
                     place(instance.layer, instance.micro_batch));
}

std::string ClassStep::describe_instance(InstanceIndex instance) const {
  const InstanceKey& key = instances[instance];
  return fmt::format("'{}'{}", program->buffers[key.buffer].name,
                     place(key.layer, key.micro_batch));
}

std::int64_t product_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::optional<ClassIndex> class_index(const Program& program, std::int64_t rank) {
  const auto found = std::ranges::find_if(program.classes, [&](const RankClass& k) {
    return rank >= k.first_rank && rank < std::int64_t{k.first_rank} + k.count;
  });
  if (found == program.classes.end()) return std::nullopt;
  return found - program.classes.begin();
}

std::vector<ClassIndex> classes_of_group(const Program& program, const Group& group, int rank) {
  std::set<ClassIndex> classes;
  for (int i = 0; i < group.size; ++i) {
    const auto c = class_index(program, group.member(group.base(rank), i));
    if (!c) return {};
    classes.insert(*c);
  }
  return {classes.begin(), classes.end()};
}

bool within_class(const RankClass& rank_class, const Group& group) {
  const int block = group.span();
  return group.size == 1 || (rank_class.first_rank % block == 0 && rank_class.count % block == 0);
}

}  // namespace checker
}  // namespace orrery::plan
