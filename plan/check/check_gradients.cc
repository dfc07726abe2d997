/// Algebra of gradient contributions.
///
/// The value of a gradient buffer is a multiset of contributions (stage, parameter, layer,
/// micro-batch), each with three marks: summed over the shard group, summed over the replica group,
/// summed over the tensor group. Operations act on it:
///
///   zero, or a first write      -> {}
///   segment with `gradients`    -> + one contribution per parameter of its views
///   accumulate a into b         -> b + a
///   collective, shard group     -> every contribution in its range gets the shard mark (twice: a
///                                  fault); a scatter moves the value
///   collective, replica group   -> the replica mark likewise; over the data group: both
///   collective, tensor group    -> the tensor mark likewise
///   all-reduce between stages   -> every member's value becomes the sum of all members' values
///                                  (tied embeddings)
///   AdamW                       -> the value must be: `uses` contributions per parameter and
///                                  micro-batch from every stage that holds the parameter; shard
///                                  and replica marks; tensor mark iff the gradient of a
///                                  parameter that every tensor rank has whole is a partial sum:
///                                  over tokens (sequence parallelism), or over heads
///                                  (Parameter::partial)
///
/// Frozen units have neither gradients nor updates.
///
/// Persistent gradients start *stale*: what the previous step left there.

#include <algorithm>
#include <map>
#include <tuple>

#include "base/numbers.h"
#include "plan/check/check_internal.h"

namespace orrery::plan::checker {

namespace {

/// Where contributions to one parameter come from: a stage that holds it, under the unit it belongs
/// to there.
struct Source {
  ClassIndex cls = 0;
  UnitId unit;
  std::size_t parameter = 0;
  auto operator<=>(const Source&) const = default;
};

struct Contribution {
  Source source;
  std::int32_t layer = -1;  // -1: the unit is not per layer
  std::int32_t micro_batch = 0;
  unsigned marks = 0;
};

constexpr unsigned kShardMark = 1, kReplicaMark = 2, kTensorMark = 4;

struct Gradient {
  bool stale = false;
  std::vector<Contribution> value;
};

bool same_ranks(const Group& a, const Group& b) { return a.same_ranks(b); }

class Algebra {
 public:
  Algebra(std::span<const ClassStep> steps, FaultList& faults)
      : steps_(steps),
        program_(*steps.front().program),
        faults_(faults),
        lanes_(steps.size()),
        layered_(program_.units.size(), false) {
    for (std::size_t c = 0; c < steps.size(); ++c) prepare(c);
  }

  void run() {
    for (bool moved = true; moved;) {
      for (std::size_t c = 0; c < lanes_.size(); ++c) run_lane(c);
      moved = merge_paused();
    }
    for (std::size_t c = 0; c < lanes_.size(); ++c) check_updates(c);
  }

 private:
  /// One class's walk. It pauses at a gradient collective that spans classes until all of them are
  /// there.
  struct Lane {
    std::size_t next = 0;
    std::vector<int> gradient_of;  // by InstanceIndex, -1: no gradient
    std::vector<Gradient> gradients;
    std::map<std::pair<UnitId, std::int32_t>, int> updates;  // AdamW operations per unit and layer
  };

  const Parameter& parameter(const Source& s) const {
    return program_.units[s.unit].parameters[s.parameter];
  }
  template <class... Args>
  void fault(FaultKind kind, ClassIndex c, std::size_t op, fmt::format_string<Args...> format,
             Args&&... args) {
    faults_.add(kind, steps_[c].rank_class->stage, op, format, std::forward<Args>(args)...);
  }

  void prepare(ClassIndex c) {
    const ClassStep& s = steps_[c];
    Lane& l = lanes_[c];
    l.gradient_of.assign(s.instances.size(), -1);
    for (std::size_t i = 0; i < s.instances.size(); ++i) {
      const BufferDecl& decl = program_.buffers[s.instances[i].buffer];
      if (decl.category == BufferCategory::kGradient) {
        l.gradient_of[i] = as_int(l.gradients.size());
        l.gradients.push_back({.stale = s.persistent[i], .value = {}});
      }
      if (!s.persistent[i] || decl.category != BufferCategory::kParameter || !decl.unit) continue;
      if (program_.units[*decl.unit].frozen) continue;
      layered_[decl.unit->raw()] = s.instances[i].layer >= 0;
      if (!l.updates.emplace(std::pair(*decl.unit, s.instances[i].layer), 0).second) continue;
      const std::vector<Parameter>& parameters = program_.units[*decl.unit].parameters;
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (s.instances[i].layer < 0) sources_[parameters[p].name].push_back({c, *decl.unit, p});
      }
    }
  }

  Gradient* gradient(ClassIndex c, std::size_t op, const BufferRef& ref) {
    Lane& l = lanes_[c];
    const int g = l.gradient_of[steps_[c].instance_of(op, ref)];
    return g < 0 ? nullptr : &l.gradients[as_index(g)];
  }

  void run_lane(ClassIndex c) {
    Lane& l = lanes_[c];
    for (; l.next < steps_[c].ops.size(); ++l.next) {
      if (spans_classes(c, l.next)) return;
      apply(c, l.next);
    }
  }

  bool is_gradient(const BufferRef& ref) const {
    return program_.buffers[ref.buffer].category == BufferCategory::kGradient;
  }

  bool spans_classes(ClassIndex c, std::size_t i) const {
    const Op& op = *steps_[c].ops[i].op;
    return op.kind == OpKind::kCollective && op.updates.size() == 1 && is_gradient(op.updates[0]) &&
           !within_class(*steps_[c].rank_class, program_.groups[op.group]);
  }

  void apply(ClassIndex c, std::size_t i) {
    const Op& op = *steps_[c].ops[i].op;
    for (const BufferRef& ref : op.writes) {
      if (Gradient* g = is_gradient(ref) ? gradient(c, i, ref) : nullptr) *g = Gradient{};
    }
    if (op.kind == OpKind::kCollective) apply_collective(c, i, op);
    if (op.kind == OpKind::kCompute) apply_compute(c, i, op);
  }

  void apply_compute(ClassIndex c, std::size_t i, const Op& op) {
    if (op.gradients && op.unit) contribute(c, i, op);
    if (!op.segment.valid()) return;
    const SegmentKind kind = program_.segments[op.segment].kind;
    if (kind == kZeroGradient) {
      for (const BufferRef& ref : op.updates) {
        if (Gradient* g = gradient(c, i, ref)) *g = Gradient{};
      }
    } else if (kind == kAccumulate && op.reads.size() == 1 && op.updates.size() == 1) {
      Gradient* from = gradient(c, i, op.reads[0]);
      Gradient* to = gradient(c, i, op.updates[0]);
      if (from && to) to->value.insert(to->value.end(), from->value.begin(), from->value.end());
    } else if (kind == kAdamW && op.unit && !op.reads.empty()) {
      if (const Gradient* g = gradient(c, i, op.reads[0])) verify(c, i, *op.unit, *g);
    }
  }

  void contribute(ClassIndex c, std::size_t i, const Op& op) {
    if (program_.units[*op.unit].frozen)
      fault(kContributionRepeated, c, i, "{} contributes to frozen weights", steps_[c].describe(i));
    Gradient* g = gradient(c, i, *op.gradients);
    if (!g) return;
    const OpInstance& o = steps_[c].ops[i];
    // one contribution, of the last of its pieces
    if (op.pieces > 1 && !completes(c, i, op, o)) return;
    for (const ParameterView& view : op.views) {
      for (const int p : view.parameters) {
        g->value.push_back({.source = {c, *op.unit, as_index(p)},
                            .layer = layer_of(*op.unit, o),
                            .micro_batch = o.micro_batch});
      }
    }
  }

  /// All pieces of the tokens have contributed, each once.
  bool completes(ClassIndex c, std::size_t i, const Op& op, const OpInstance& o) {
    const int first = op.views.empty() ? 0 : op.views[0].parameters.front();
    std::vector<bool>& seen =
        pieces_[{c, Source{c, *op.unit, as_index(first)}, o.layer, o.micro_batch}];
    seen.resize(as_index(op.pieces));
    if (seen[as_index(op.piece)])
      fault(kContributionRepeated, c, i, "{} contributes a piece that is there already",
            steps_[c].describe(i));
    seen[as_index(op.piece)] = true;
    return std::ranges::count(seen, true) == op.pieces;
  }

  std::int32_t layer_of(UnitId unit, const OpInstance& o) const {
    return layered_[unit.raw()] ? o.layer : -1;
  }

  /// A collective that acts on a part of the buffer leaves the rest as it is.
  bool in_range(const Op& op, const Contribution& k) const {
    if (op.slice_elements == 0) return true;
    const Parameter& p = parameter(k.source);
    return p.offset >= op.slice_offset &&
           p.offset + product_of(p.local_shape) <= op.slice_offset + op.slice_elements;
  }

  void apply_collective(ClassIndex c, std::size_t i, const Op& op) {
    Gradient* target = nullptr;
    if (op.updates.size() == 1 && is_gradient(op.updates[0]))
      target = gradient(c, i, op.updates[0]);
    if (op.reads.size() == 1 && op.writes.size() == 1 && is_gradient(op.reads[0]) &&
        is_gradient(op.writes[0])) {
      target = gradient(c, i, op.writes[0]);
      if (target) *target = *gradient(c, i, op.reads[0]);
    }
    const bool reduces =
        op.collective == Collective::kAllReduce || op.collective == Collective::kReduceScatter;
    const Group& group = program_.groups[op.group];
    if (!target || !reduces || group.size == 1) return;
    for (Contribution& k : target->value) {
      if (!in_range(op, k)) continue;
      // none: no sum that the owner needs, AdamW will miss it
      const unsigned marks = marks_of(group, program_.units[k.source.unit]);
      if ((k.marks & marks) != 0) {
        fault(kReducedTwice, c, i, "{} reduces {} again, over group '{}'", steps_[c].describe(i),
              describe(k), group.name);
      }
      if (op.slice_group && (k.marks & kShardMark) == 0) {
        fault(kNeverReduced, c, i,
              "{} sums the owned slice of {}, which the shard group has not summed yet",
              steps_[c].describe(i), describe(k));
      }
      k.marks |= marks;
    }
  }

  unsigned marks_of(const Group& group, const ParameterUnit& unit) const {
    if (same_ranks(group, program_.groups[unit.data_group])) return kShardMark | kReplicaMark;
    if (same_ranks(group, program_.groups[unit.shard_group])) return kShardMark;
    if (same_ranks(group, program_.groups[unit.replica_group])) return kReplicaMark;
    return same_ranks(group, program_.groups[unit.tensor_group]) ? kTensorMark : 0;
  }

  /// Lets go every set of lanes that wait for one another. True if there was one.
  bool merge_paused() {
    for (std::size_t c = 0; c < lanes_.size(); ++c) {
      const ClassStep& s = steps_[c];
      if (lanes_[c].next >= s.ops.size()) continue;
      const Group& group = program_.groups[s.ops[lanes_[c].next].op->group];
      const std::vector<ClassIndex> members =
          classes_of_group(program_, group, s.rank_class->first_rank);
      const bool all_there = !members.empty() && std::ranges::all_of(members, [&](ClassIndex m) {
        const std::size_t next = lanes_[m].next;
        return next < steps_[m].ops.size() &&
               same_ranks(program_.groups[steps_[m].ops[next].op->group], group);
      });
      if (!all_there) continue;
      merge(members);
      return true;
    }
    return false;
  }

  void merge(const std::vector<ClassIndex>& members) {
    std::vector<Contribution> sum;
    for (const ClassIndex m : members) {
      const Op& op = *steps_[m].ops[lanes_[m].next].op;
      for (const Contribution& k : gradient(m, lanes_[m].next, op.updates[0])->value) {
        if (in_range(op, k)) sum.push_back(k);
      }
    }
    for (const ClassIndex m : members) {
      const Op& op = *steps_[m].ops[lanes_[m].next].op;
      std::vector<Contribution>& value = gradient(m, lanes_[m].next, op.updates[0])->value;
      std::erase_if(value, [&](const Contribution& k) { return in_range(op, k); });
      value.insert(value.end(), sum.begin(), sum.end());
      ++lanes_[m].next;
    }
  }

  // ---- AdamW ----
  std::vector<Source> sources_of(const Source& own) const {
    if (layered_[own.unit.raw()]) return {own};
    const auto it = sources_.find(parameter(own).name);
    return it == sources_.end() ? std::vector{own} : it->second;
  }

  void verify(ClassIndex c, std::size_t i, UnitId unit, const Gradient& g) {
    const OpInstance& o = steps_[c].ops[i];
    const std::int32_t layer = layer_of(unit, o);
    ++lanes_[c].updates[{unit, layer}];
    if (g.stale)
      fault(kContributionRepeated, c, i,
            "{} reads a gradient that was not zeroed since the last step", steps_[c].describe(i));
    const auto micro_batches = as_index(program_.micro_batches);
    std::vector<Source> sources;
    std::map<Source, std::size_t> slots;
    for (std::size_t p = 0; p < program_.units[unit].parameters.size(); ++p) {
      for (const Source& s : sources_of({c, unit, p})) {
        if (slots.emplace(s, sources.size()).second) sources.push_back(s);
      }
    }
    std::vector<int> counts(sources.size() * micro_batches, 0);
    for (const Contribution& k : g.value) {
      const auto slot = slots.find(k.source);
      if (slot == slots.end() || k.layer != layer || k.micro_batch < 0 ||
          k.micro_batch >= program_.micro_batches) {
        fault(kContributionRepeated, c, i, "{} reads {}, which belongs elsewhere",
              steps_[c].describe(i), describe(k));
        continue;
      }
      ++counts[slot->second * micro_batches + as_index(k.micro_batch)];
    }
    for (std::size_t s = 0; s < sources.size(); ++s) {
      for (std::size_t m = 0; m < micro_batches; ++m)
        compare(c, i, {sources[s], layer, static_cast<std::int32_t>(m)},
                counts[s * micro_batches + m]);
    }
    verify_marks(c, i, unit, g);
  }

  void compare(ClassIndex c, std::size_t i, const Contribution& wanted, int count) {
    const int uses = parameter(wanted.source).uses;
    if (count == uses) return;
    fault(count < uses ? kContributionMissing : kContributionRepeated, c, i,
          "{} reads {} {} times instead of {}", steps_[c].describe(i), describe(wanted), count,
          uses);
  }

  void verify_marks(ClassIndex c, std::size_t i, UnitId unit, const Gradient& g) {
    const ParameterUnit& own = program_.units[unit];
    const unsigned data = (program_.groups[own.shard_group].size > 1 ? kShardMark : 0) |
                          (program_.groups[own.replica_group].size > 1 ? kReplicaMark : 0);
    for (const Contribution& k : g.value) {
      const LayerStrategy& s = program_.units[k.source.unit].strategy;
      const Parameter& of = parameter(k.source);
      const bool partial = s.tp > 1 && of.shard_dim < 0 && (s.sequence_parallel || of.partial);
      const bool summed = (k.marks & kTensorMark) != 0, reduced = (k.marks & data) == data;
      if (reduced && partial == summed) continue;
      const char* what = "which was never summed over the data group";
      if (reduced)
        what = partial ? "which was never summed over the tensor group"
                       : "which is no partial sum and was summed over the tensor group";
      fault(reduced && summed ? kReducedTwice : kNeverReduced, c, i, "{} reads {}, {}",
            steps_[c].describe(i), describe(k), what);
      return;
    }
  }

  void check_updates(ClassIndex c) {
    // A lane that never got to its end is stuck at a collective that check_progress reports.
    if (lanes_[c].next < steps_[c].ops.size()) return;
    for (const auto& [key, count] : lanes_[c].updates) {
      if (count == 1) continue;
      const std::string where =
          key.second < 0 ? std::string() : fmt::format(" of layer {}", key.second);
      const std::size_t end = std::max<std::size_t>(steps_[c].ops.size(), 1) - 1;
      fault(count == 0 ? kContributionMissing : kContributionRepeated, c, end,
            "unit '{}'{} is updated {} times in a step", program_.units[key.first].name, where,
            count);
    }
  }

  std::string describe(const Contribution& k) const {
    std::string name = parameter(k.source).name;
    if (const std::size_t at = name.find("{layer}"); at != std::string::npos)
      name.replace(at, 7, std::to_string(k.layer));
    return fmt::format("the contribution of micro-batch {} on stage {} to '{}'", k.micro_batch,
                       steps_[k.source.cls].rank_class->stage, name);
  }

  std::span<const ClassStep> steps_;
  const Program& program_;
  FaultList& faults_;
  std::vector<Lane> lanes_;
  std::vector<bool> layered_;  // by unit
  using Contributor = std::tuple<ClassIndex, Source, std::int32_t, std::int32_t>;
  std::map<Contributor, std::vector<bool>> pieces_;  // that have contributed
  // by name, of parameters outside the layers
  std::map<std::string, std::vector<Source>> sources_;
};

}  // namespace

void check_gradients(std::span<const ClassStep> steps, FaultList& faults) {
  if (!steps.empty()) Algebra(steps, faults).run();
}

}  // namespace orrery::plan::checker
