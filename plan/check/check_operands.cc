/// Operands against the table of model/segment.h, in number and in elements; ranges of views; sizes
/// of collectives.

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/check/check_internal.h"

namespace orrery::plan::checker {

namespace {

using model::SegmentKind;
using model::SegmentShape;
using Elements = std::vector<std::int64_t>;

/// Elements of each operand, in order.
struct Operands {
  Elements reads = {}, writes = {}, updates = {}, views = {};
};

/// Products y [T, out] = a [T, in] W' + bias; in slices of the contraction, all but the first add
/// to what is there.
Operands product(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), in = t * s.in * s.slices;
  Operands o;
  o.views = {s.out * s.in};
  if (s.bias) o.views.push_back(s.out);
  Elements& made = s.slice == 0 ? o.writes : o.updates;
  if (phase == Phase::kF) {
    o.reads = {in};
    made = {t * s.out};
  } else {
    o.reads = {t * s.out};
    if (phase != Phase::kB) o.reads.push_back(in);
    if (phase != Phase::kG) made = {in};
  }
  return o;
}

Operands norm(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in;
  const bool layer_norm = s.norm == model::NormKind::kLayerNorm;
  Operands o;
  Elements statistics(layer_norm ? 2 : 1, t);
  o.views.assign(layer_norm ? 2 : 1, s.in);
  Elements& list = phase == Phase::kF ? o.writes : o.reads;
  list = phase == Phase::kF ? Elements{x} : Elements{x, x};
  list.insert(list.end(), statistics.begin(), statistics.end());
  if (phase == Phase::kF) {
    o.reads = {x};
  } else {
    if (s.residual) o.reads.push_back(x);
    if (phase != Phase::kG) o.writes = {x};
  }
  return o;
}

Operands attention(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), qkv = t * (s.heads + 2 * s.kv_heads) * s.head_dim,
                     out = t * s.heads * s.head_dim;
  if (phase == Phase::kF) return {.reads = {qkv}, .writes = {out, t * s.heads}};
  return {.reads = {out, qkv, out, t * s.heads}, .writes = {qkv}};
}

/// Ring attention: queries and outputs x, a block's keys and values y, log-sum-exps l.
Operands attention_part(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.heads * s.head_dim, l = s.token_count() * s.heads;
  const std::int64_t tokens = s.kind == SegmentKind::kAttentionSplit ? s.tokens : s.kv_tokens,
                     y = 2 * s.sequences * tokens * s.kv_heads * s.head_dim;
  if (s.kind == SegmentKind::kAttentionMerge) return {.reads = {x, l}, .updates = {x, l}};
  if (s.kind == SegmentKind::kAttentionSplit) {
    if (phase == Phase::kF) return {.reads = {x + y}, .writes = {x, y}};
    return {.reads = {x, y}, .writes = {x + y}};
  }
  if (phase == Phase::kF) return {.reads = {x, y}, .writes = {x, l}};
  return {.reads = {x, x, y, x, l}, .writes = {x, y}};
}

Operands router(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in, gates = t * s.gates(), choice = t * s.top_k,
                     scores = t * s.experts;
  Operands o;
  o.views = {s.experts * s.in};
  if (s.shared) o.views.push_back(s.in);
  if (phase == Phase::kF) {
    o.reads = {x};
    o.writes = {gates, choice, scores};
  } else {
    o.reads = {gates, x, gates, choice, scores};
    if (phase != Phase::kG) o.writes = {x};
  }
  return o;
}

Operands combine(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.in, rows = s.expert_rows() * s.in,
                     gates = s.token_count() * s.gates();
  Operands o{.reads = {rows, gates, s.token_count() * s.top_k}, .writes = {x}};
  if (phase != Phase::kF) {
    o.reads.insert(o.reads.begin(), x);
    o.writes = {rows, gates};
    if (s.shared) o.writes.push_back(x);
  }
  if (s.shared) o.reads.push_back(x);
  return o;
}

Operands embedding(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in, table = s.out * s.in;
  if (phase == Phase::kF) return {.reads = {t}, .writes = {x}, .views = {table}};
  return {.reads = {x, t}, .views = {table}};
}

Operands residual(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.out;
  Operands o;
  if (s.bias) o.views = {s.out};
  o.reads.assign(phase == Phase::kF ? 2 : 1, x);
  if (phase == Phase::kF) o.writes = {x};
  return o;
}

Operands activation(const SegmentShape& s, Phase phase) {
  const std::int64_t u = s.token_count() * s.in, g = s.token_count() * s.out;
  if (phase == Phase::kF) return {.reads = {u}, .writes = {g}};
  return {.reads = {g, u}, .writes = {u}};
}

Operands dispatch(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.in, rows = s.expert_rows() * s.in,
                     slots = s.token_count() * s.top_k;
  if (phase == Phase::kF) return {.reads = {x, slots}, .writes = {rows, slots}};
  return {.reads = {rows, slots}, .writes = {x}};
}

Operands experts(const SegmentShape& s, Phase phase) {
  Operands o = product(s, phase);
  o.views = {s.experts * s.out * s.in};
  return o;
}

Operands mean_of_tokens(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.in, y = s.sequences * s.out;
  if (phase == Phase::kF) return {.reads = {x}, .writes = {y}};
  return {.reads = {y}, .writes = {x}};
}

Operands loss(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count();
  if (phase == Phase::kF) return {.reads = {2 * t}, .updates = {1}};
  return {.reads = {t, 2 * t, t}, .updates = {t * s.out}};
}

/// What the table says. Nothing for kPositionAdd, kZeroGradient and kAdamW, whose operands depend
/// on model, precision and lifetime.
std::optional<Operands> expected(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count();
  switch (s.kind) {
    case SegmentKind::kLoadTokens:
    case SegmentKind::kLoadTargets: return Operands{.writes = {t}};
    case SegmentKind::kEmbedding: return embedding(s, phase);
    case SegmentKind::kPositionAdd:
    case SegmentKind::kZeroGradient:
    case SegmentKind::kAdamW: return std::nullopt;
    case SegmentKind::kNorm: return norm(s, phase);
    case SegmentKind::kQkv:
    case SegmentKind::kProjection:
    case SegmentKind::kMlpIn:
    case SegmentKind::kMlpOut:
    case SegmentKind::kPatchProduct:
    case SegmentKind::kLogits: return product(s, phase);
    case SegmentKind::kAttention: return attention(s, phase);
    case SegmentKind::kAttentionSplit:
    case SegmentKind::kAttentionBlock:
    case SegmentKind::kAttentionMerge: return attention_part(s, phase);
    case SegmentKind::kResidual: return residual(s, phase);
    case SegmentKind::kActivation: return activation(s, phase);
    case SegmentKind::kRouter: return router(s, phase);
    case SegmentKind::kDispatch: return dispatch(s, phase);
    case SegmentKind::kExpertIn:
    case SegmentKind::kExpertOut: return experts(s, phase);
    case SegmentKind::kCombine: return combine(s, phase);
    case SegmentKind::kPool: return mean_of_tokens(s, phase);
    case SegmentKind::kLossMax: return Operands{.reads = {t * s.out}, .writes = {t}};
    case SegmentKind::kLossSum: return Operands{.reads = {t * s.out, t, t}, .writes = {2 * t}};
    case SegmentKind::kLoss: return loss(s, phase);
    case SegmentKind::kSlice:
      return Operands{.reads = {s.elements * s.parts}, .writes = {s.elements}};
    case SegmentKind::kAccumulate: return Operands{.reads = {s.elements}, .updates = {s.elements}};
  }
  return std::nullopt;
}

class OperandChecker {
 public:
  OperandChecker(const ClassStep& step, FaultList& faults)
      : step_(step), program_(*step.program), faults_(faults) {}

  /// Templates repeat: each operation is looked at once, where it first occurs.
  void run() {
    std::set<const Op*> seen;
    for (at_ = 0; at_ < step_.ops.size(); ++at_) {
      const Op& op = *step_.ops[at_].op;
      if (!seen.insert(&op).second) continue;
      if (op.kind == OpKind::kCompute) check_compute(op);
      if (op.kind == OpKind::kCollective) check_collective(op);
    }
  }

 private:
  void fault(FaultKind kind, const std::string& what) {
    faults_.add(kind, step_.rank_class->stage, at_, "{} {}", step_.describe(at_), what);
  }
  [[nodiscard]] Elements elements(const std::vector<BufferRef>& refs) const {
    Elements list;
    for (const BufferRef& r : refs) list.push_back(program_.buffers[r.buffer].elements());
    return list;
  }

  void compare(std::string_view what, const Elements& found, const Elements& wanted) {
    if (found == wanted) return;
    fault(FaultKind::kOperandMismatch,
          fmt::format("{} operands of [{}] elements and the table says [{}]", what,
                      fmt::join(found, ", "), fmt::join(wanted, ", ")));
  }

  void check_compute(const Op& op) {
    if (!program_.segments.contains(op.segment)) {
      fault(FaultKind::kOperandMismatch, "has no segment");
      return;
    }
    const SegmentShape& shape = program_.segments[op.segment];
    if (const auto wanted = expected(shape, op.phase)) {
      compare("reads", elements(op.reads), wanted->reads);
      compare("writes", elements(op.writes), wanted->writes);
      compare("updates", elements(op.updates), wanted->updates);
      Elements views;
      for (const ParameterView& v : op.views) views.push_back(view_elements(v));
      compare("has weight", views, wanted->views);
    }
    if (shape.kind == SegmentKind::kZeroGradient) {
      Elements touched = elements(op.writes);
      for (const std::int64_t n : elements(op.updates)) touched.push_back(n);
      compare("zeroes", touched, {shape.elements});
    }
    if (shape.kind == SegmentKind::kAdamW) check_adamw(op, shape);
    check_views(op);
  }

  static std::int64_t view_elements(const ParameterView& v) {
    std::int64_t n = 1;
    for (const std::int64_t extent : v.shape) n *= extent;
    return n;
  }

  /// Gradient and parameter: whole, or this rank's shard. Moments and master: the shard.
  void check_adamw(const Op& op, const SegmentShape& shape) {
    if (!op.unit || op.reads.size() != 1 || op.updates.size() < 3 || op.updates.size() > 4) {
      fault(FaultKind::kOperandMismatch,
            "reads one gradient and updates a parameter, two moments and at most a master");
      return;
    }
    const std::int64_t padded = program_.units[*op.unit].padded;
    const Elements updates = elements(op.updates);
    for (const std::int64_t n : {elements(op.reads)[0], updates[0]}) {
      if (n != shape.elements && n != padded) compare("flat", {n}, {shape.elements});
    }
    for (std::size_t i = 1; i < updates.size(); ++i)
      compare("state", {updates[i]}, {shape.elements});
  }

  void check_views(const Op& op) {
    if (op.views.empty() && !op.weights && !op.gradients) return;
    if (!op.unit) {
      fault(FaultKind::kOperandMismatch, "has weights without a unit");
      return;
    }
    const ParameterUnit& unit = program_.units[*op.unit];
    for (const auto* flat : {&op.weights, &op.gradients}) {
      if (*flat) compare("flat", {program_.buffers[(*flat)->buffer].elements()}, {unit.padded});
    }
    for (const ParameterView& v : op.views) {
      const bool known = std::ranges::all_of(v.parameters, [&](int p) {
        return p >= 0 && static_cast<std::size_t>(p) < unit.parameters.size();
      });
      if (v.offset < 0 || v.offset + view_elements(v) > unit.elements || !known) {
        fault(FaultKind::kOperandMismatch,
              fmt::format("views weights outside unit '{}'", unit.name));
      }
    }
  }

  void size(std::int64_t found, std::int64_t wanted) {
    if (found == wanted) return;
    fault(FaultKind::kSizeMismatch,
          fmt::format("works on {} bytes and its buffer says {}", found, wanted));
  }

  void check_collective(const Op& op) {
    const bool in_place = op.updates.size() == 1 && op.reads.empty() && op.writes.empty();
    const bool two_sided = op.reads.size() == 1 && op.writes.size() == 1 && op.updates.empty();
    if (!in_place && !(two_sided && op.collective != Collective::kAllReduce)) {
      fault(FaultKind::kOperandMismatch, "updates one buffer, or reads one and writes one");
      return;
    }
    const Group& group = program_.groups[op.group];
    if (in_place) {
      const BufferDecl& decl = program_.buffers[op.updates[0].buffer];
      std::int64_t bytes = op.slice_elements > 0
                               ? op.slice_elements * model::element_bytes(decl.dtype)
                               : decl.bytes();
      if (op.slice_group) bytes /= program_.groups[*op.slice_group].size;
      size(op.bytes, bytes);
      if (op.slice_offset < 0 || op.slice_offset + op.slice_elements > decl.elements()) {
        fault(FaultKind::kSizeMismatch, "works on a range outside its buffer");
      }
      return;
    }
    const std::int64_t read = program_.buffers[op.reads[0].buffer].bytes(),
                       written = program_.buffers[op.writes[0].buffer].bytes();
    const bool grows = op.collective == Collective::kAllGather,
               shrinks = op.collective == Collective::kReduceScatter;
    size(op.bytes, grows ? read * group.size : read);
    size(op.bytes, shrinks ? written * group.size : written);
  }

  const ClassStep& step_;
  const Program& program_;
  FaultList& faults_;
  std::size_t at_ = 0;
};

}  // namespace

void check_operands(const ClassStep& step, FaultList& faults) {
  OperandChecker(step, faults).run();
}

}  // namespace orrery::plan::checker
