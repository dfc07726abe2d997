/// Operands against the table of model/segment.h, in number and in elements; ranges of views; sizes
/// of collectives.

#include <algorithm>
#include <optional>
#include <set>

#include "base/numbers.h"
#include "model/scan.h"
#include "plan/check/check_internal.h"
#include "plan/program/messages.h"

namespace orrery::plan::checker {

namespace {

using Elements = std::vector<std::int64_t>;

/// Elements of each operand, in order.
struct Operands {
  Elements reads = {}, writes = {}, updates = {}, views = {};
};

/// Products y [T, out] = a [T, in] W' + bias; in slices of the contraction or temporal steps, all
/// but the first add to what is there.
Operands product(const SegmentShape& s, Phase phase, std::int64_t matrix, bool first = true) {
  const std::int64_t in = s.token_count() * s.in * s.slices, out = s.token_count() * s.out;
  Operands o{.views = {matrix}};
  if (s.bias) o.views.push_back(s.out);
  Elements& made = first && s.slice == 0 ? o.writes : o.updates;
  if (phase == kF) {
    o.reads = {in};
    made = {out};
  } else {
    o.reads = {out};
    if (phase != kB) o.reads.push_back(in);
    if (phase != kG) made = {in};
  }
  return o;
}

Operands embedding(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in;
  if (phase == kF) return {.reads = {t}, .writes = {x}, .views = {s.out * s.in}};
  if (phase == kB) return {.reads = {x}};  // of a frozen table
  return {.reads = {x, t}, .views = {s.out * s.in}};
}

/// t = x A', y += t B'.
Operands adapter(const SegmentShape& s, Phase phase) {
  const std::int64_t in = s.token_count() * s.in, out = s.token_count() * s.out;
  Operands o{.reads = {in}, .views = {s.out * s.in}};
  if (phase != kF) o.reads = {out, in};
  const bool updates = (s.kind == kAdapterOut) == (phase == kF);
  (updates ? o.updates : o.writes) = {phase == kF ? out : in};
  return o;
}

Operands norm(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in;
  const std::size_t parts = s.norm == model::NormKind::kLayerNorm ? 2 : 1;
  const std::size_t vectors = (s.gain ? 1 : 0) + (parts == 2 && s.norm_bias ? 1 : 0);
  Operands o{.reads = {x}, .writes = {x}, .views = Elements(vectors, s.in)};
  Elements& statistics = phase == kF ? o.writes : o.reads;
  if (phase != kF) statistics.push_back(x);
  statistics.insert(statistics.end(), parts, t);
  if (phase != kF && s.residual) o.reads.push_back(x);
  if (phase == kG) o.writes.clear();
  return o;
}

Operands router(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in, gates = t * s.gates(), choice = t * s.top_k,
                     scores = t * s.experts;
  Operands o{.views = {s.experts * s.in}};
  if (s.bias) o.views.push_back(s.experts);
  if (s.shared) o.views.push_back(s.in);
  if (phase == kF) {
    o.reads = {x};
    o.writes = {gates, choice, scores};
  } else {
    o.reads = {gates, x, gates, choice, scores};
    if (phase != kG) o.writes = {x};
  }
  return o;
}

Operands combine(const SegmentShape& s, Phase phase) {
  const std::int64_t x = s.token_count() * s.in, rows = s.expert_rows() * s.in,
                     gates = s.token_count() * s.gates();
  const std::int64_t slots = s.token_count() * s.top_k;
  if (s.routing.of_inputs && phase == kF) return {.reads = {rows, slots}, .writes = {x}};
  if (s.routing.of_inputs) return {.reads = {x, slots}, .writes = {rows}};
  Operands o{.reads = {rows, gates, slots}, .writes = {x}};
  if (phase != kF) {
    o.reads.insert(o.reads.begin(), x);
    o.writes = {rows, gates};
    if (s.shared) o.writes.push_back(x);
  }
  if (s.shared) o.reads.push_back(x);
  return o;
}

/// From tokens to the rows of experts and back.
Operands routed(const SegmentShape& s, Phase phase) {
  if (s.kind == kRouter) return router(s, phase);
  if (s.kind == kCombine) return combine(s, phase);
  const std::int64_t x = s.token_count() * s.in, rows = s.expert_rows() * s.in,
                     slots = s.token_count() * s.top_k, gates = s.token_count() * s.gates();
  Operands o = phase == kF ? Operands{.reads = {x, slots}, .writes = {rows, slots}}
                           : Operands{.reads = {rows, slots}, .writes = {x}};
  if (!s.routing.of_inputs) return o;
  o.reads.push_back(gates);
  if (phase == kF) return o;
  o.reads.push_back(x);
  o.writes.push_back(gates);
  return o;
}

/// Of attention, whole and in blocks of a ring: queries and outputs q, keys and values kv of as
/// many tokens, of a block y, log-sum-exps l.
Operands attention(const SegmentShape& s, Phase phase) {
  const std::int64_t q = s.token_count() * s.heads * s.head_dim, l = s.token_count() * s.heads,
                     key = 2 * s.sequences * s.kv_heads * s.head_dim, kv = key * s.tokens,
                     y = key * s.kv_tokens;
  const auto either = [&](Operands forward, Operands backward) {
    return phase == kF ? forward : backward;
  };
  if (s.kind == kAttentionMerge) return {.reads = {q, l}, .updates = {q, l}};
  if (s.kind == kAttentionSplit)
    return either({.reads = {q + kv}, .writes = {q, kv}}, {.reads = {q, kv}, .writes = {q + kv}});
  if (s.kind == kAttentionBlock)
    return either({.reads = {q, y}, .writes = {q, l}},
                  {.reads = {q, q, y, q, l}, .writes = {q, y}});
  Elements views;
  if (s.sinks) views.push_back(s.heads);
  if (s.weights > 0) views.push_back(s.weights);
  return either({.reads = {q + kv}, .writes = {q, l}, .views = views},
                {.reads = {q, q + kv, q, l}, .writes = {q + kv}, .views = views});
}

/// Of norms of queries and keys, latent attention and scans.
Operands mixer(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), n = s.heads;
  const auto either = [&](Operands forward, Operands backward) {
    return phase == kF ? forward : backward;
  };
  if (s.kind == kHeadNorm) {
    const std::int64_t qkv = t * (n + 2 * s.kv_heads) * s.head_dim;
    Elements gains(s.bias ? 2 : 0, s.head_dim);
    if (s.bias && s.whole) gains = {n * s.head_dim, s.kv_heads * s.head_dim};
    return either({.reads = {qkv}, .writes = {qkv}, .views = gains},
                  {.reads = {qkv, qkv}, .writes = {qkv}, .views = gains});
  }
  if (s.kind == kLatentAttention) {
    const std::int64_t q = t * n * s.head_dim, kv = t * n * (s.head_dim - s.rope_dim + s.value_dim),
                       kr = t * s.rope_dim, o = t * n * s.value_dim, l = t * n;
    if (s.index_heads == 0)
      return either({.reads = {q, kv, kr}, .writes = {o, l}},
                    {.reads = {o, q, kv, kr, o, l}, .writes = {q, kv, kr}});
    const std::int64_t iq = t * s.index_heads * s.index_dim, ik = t * s.index_dim,
                       iw = t * s.index_heads;
    const Elements views(2, s.index_dim);
    return either({.reads = {q, kv, kr, iq, ik, iw}, .writes = {o, l, t}, .views = views},
                  {.reads = {o, q, kv, kr, iq, ik, iw, o, l, t},
                   .writes = {q, kv, kr, iq, ik, iw},
                   .views = views});
  }
  const std::int64_t u = t * s.in, y = t * s.out;
  const Elements views = model::scan_weights(s);
  return either({.reads = {u}, .writes = {y, y}, .views = views},
                {.reads = {y, u, y}, .writes = {u}, .views = views});
}

/// Of the sums of a split norm, and of the norm from them.
Operands split_norm(const SegmentShape& s, Phase phase) {
  const std::int64_t t = s.token_count(), x = t * s.in;
  const std::size_t parts = s.norm == model::NormKind::kLayerNorm ? 2 : 1;
  const std::int64_t sums = as_int(parts) * t;
  if (s.kind == kNormSums) {
    if (phase == kF) return {.reads = {x}, .writes = {sums}};
    Operands o{.reads = {x, x}, .writes = {sums}, .views = {s.in}};
    o.reads.insert(o.reads.end(), parts, t);
    return o;
  }
  Operands o{.reads = {x}, .writes = {x}, .views = Elements(parts, s.in)};
  if (phase != kF) o.reads.push_back(x);
  Elements& statistics = phase == kF ? o.writes : o.reads;
  statistics.insert(statistics.end(), parts, t);
  o.reads.push_back(sums);
  if (phase != kF && s.residual) o.reads.push_back(x);
  return o;
}

/// Of scores, their softmax and the values that they weigh: queries or outputs q, keys or values k.
Operands materialised(const SegmentShape& s, Phase phase) {
  const std::int64_t q = s.token_count() * s.heads * s.head_dim,
                     k = s.sequences * s.kv_tokens * s.kv_heads * s.head_dim,
                     scores = s.token_count() * s.heads * s.kv_tokens;
  if (s.kind == kSoftmax)
    return {.reads = Elements(phase == kF ? 1 : 2, scores), .writes = {scores}};
  const std::int64_t made = s.kind == kScores ? scores : q, left = s.kind == kScores ? q : scores;
  if (phase == kF) return {.reads = {left, k}, .writes = {made}};
  return phase == kB ? Operands{.reads = {made, k}, .writes = {left}}
                     : Operands{.reads = {made, left}, .writes = {k}};
}

/// Of segments that only partitioned operators have.
Operands partitioned(const SegmentShape& s, Phase phase) {
  if (s.kind == kNormSums || s.kind == kNormApply) return split_norm(s, phase);
  if (s.kind != kBias) return materialised(s, phase);
  const std::int64_t y = s.token_count() * s.out;
  if (phase == kF) return {.updates = {y}, .views = {s.out}};
  return {.reads = {y}, .views = {s.out}};
}

Operands expert_product(const SegmentShape& s, Phase phase) {
  Operands o = product(s, phase, s.experts * s.out * s.in);
  if (s.bias) o.views.back() *= s.experts;
  if (s.bias && s.kind == kExpertOut) o.views.back() /= s.parts;  // of a rank's features
  return o;
}

Operands elementwise(const SegmentShape& s, const Op& op) {
  const bool forward = op.phase == kF;
  const std::int64_t x = s.token_count() * s.in, y = s.token_count() * s.out;
  if (s.kind == kResidual) {
    const Elements bias = s.bias ? Elements{s.out} : Elements{};
    if (forward) return {.reads = {y, y}, .writes = {y}, .views = bias};
    return {.reads = {y}, .views = bias};
  }
  if (s.gated && op.reads.size() == (forward ? 2 : 3)) {  // of each of gate and up
    if (forward) return {.reads = {y, y}, .writes = {y}};
    return {.reads = {y, y, y}, .writes = {y, y}};
  }
  if (forward) return {.reads = {x}, .writes = {y}};
  return {.reads = {y, x}, .writes = {x}};
}

/// What the table says. Nothing for kPositionAdd, kZeroGradient and kAdamW, whose operands depend
/// on model, precision and lifetime.
std::optional<Operands> expected(const SegmentShape& s, const Op& op) {
  const Phase phase = op.phase;
  const std::int64_t t = s.token_count(), x = t * s.in, y = t * s.out;
  const auto either = [&](Operands forward, Operands backward) {
    return phase == kF ? forward : backward;
  };
  switch (s.kind) {
    case kLoadTokens:
    case kLoadTargets: return Operands{.writes = {t}};
    case kAdapterIn:
    case kAdapterOut: return adapter(s, phase);
    case kEmbedding: return embedding(s, phase);
    case kPositionAdd:
    case kZeroGradient:
    case kAdamW: return std::nullopt;
    case kNorm: return norm(s, phase);
    case kQkv:
    case kProjection:
    case kMlpIn:
    case kMlpOut:
    case kPatchProduct:
    case kLatentProduct:
    case kLogits: return product(s, phase, s.out * s.in, op.temporal_step == 0);
    case kExpertIn:
    case kExpertOut: return expert_product(s, phase);
    case kAttention:
    case kAttentionSplit:
    case kAttentionBlock:
    case kAttentionMerge: return attention(s, phase);
    case kHeadNorm:
    case kLatentAttention:
    case kScan: return mixer(s, phase);
    case kResidual:
    case kActivation: return elementwise(s, op);
    case kRouter:
    case kDispatch:
    case kCombine: return routed(s, phase);
    case kPool: {
      const std::int64_t mean = s.sequences * s.out;
      return either({.reads = {x}, .writes = {mean}}, {.reads = {mean}, .writes = {x}});
    }
    case kBias:
    case kNormSums:
    case kNormApply:
    case kScores:
    case kSoftmax:
    case kValues: return partitioned(s, phase);
    case kLossMax: return Operands{.reads = {y}, .writes = {t}};
    case kLossSum: return Operands{.reads = {y, t, t}, .writes = {2 * t}};
    case kLoss:
      return either({.reads = {2 * t}, .updates = {1}}, {.reads = {t, 2 * t, t}, .updates = {y}});
    case kSlice: return Operands{.reads = {s.elements * s.parts}, .writes = {s.elements}};
    case kAccumulate: return Operands{.reads = {s.elements}, .updates = {s.elements}};
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
      if (op.kind == OpKind::kCopy) check_copy(op);
    }
  }

 private:
  void fault(const std::string& what, FaultKind kind = kOperandMismatch) {
    faults_.add(kind, step_.rank_class->stage, at_, "{} {}", step_.describe(at_), what);
  }
  const BufferDecl& decl(const BufferRef& r) const { return program_.buffers[r.buffer]; }
  Elements elements(const std::vector<BufferRef>& refs) const {
    Elements list;
    for (const BufferRef& r : refs) list.push_back(decl(r).elements());
    return list;
  }
  /// Of a piece: its share of a buffer that holds all of them.
  Elements elements(const Op& op, const std::vector<BufferRef>& refs, std::int64_t tokens) const {
    Elements list = elements(refs);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& shape = decl(refs[i]).shape;
      if (op.pieces > 1 && shape.size() == 3 && shape[1] == tokens * op.pieces)
        list[i] /= op.pieces;
    }
    return list;
  }

  void compare(std::string_view what, const Elements& found, const Elements& wanted) {
    if (found == wanted) return;
    fault(fmt::format("{} operands of [{}] elements and the table says [{}]", what,
                      fmt::join(found, ", "), fmt::join(wanted, ", ")));
  }

  void check_compute(const Op& op) {
    if (!program_.segments.contains(op.segment)) return fault("has no segment");
    const SegmentShape& shape = program_.segments[op.segment];
    if (op.temporal_step < 0 || op.temporal_step >= shape.steps)
      fault(fmt::format("is step {} of {}", op.temporal_step, shape.steps));
    if (const auto wanted = expected(shape, op)) {
      // pieces behind the first update what it wrote
      const bool later = op.pieces > 1 && op.piece > 0 && op.writes.empty();
      const Elements none;
      compare("reads", elements(op, op.reads, shape.tokens), wanted->reads);
      compare("writes", elements(op, later ? op.updates : op.writes, shape.tokens), wanted->writes);
      compare("updates", later ? none : elements(op.updates), wanted->updates);
      Elements views;
      for (const ParameterView& v : op.views) views.push_back(product_of(v.shape));
      compare("has weight", views, wanted->views);
    }
    if (shape.kind == kZeroGradient) {
      Elements touched = elements(op.writes);
      for (const std::int64_t n : elements(op.updates)) touched.push_back(n);
      compare("zeroes", touched, {shape.elements});
    }
    if (shape.kind == kAdamW) check_adamw(op, shape);
    check_views(op);
  }

  /// Gradient and parameter: whole, or this rank's shard. Moments and master: the shard.
  void check_adamw(const Op& op, const SegmentShape& shape) {
    if (!op.unit || op.reads.size() != 1 || op.updates.size() < 3 || op.updates.size() > 4)
      return fault("reads one gradient and updates a parameter, two moments and at most a master");
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
    if (!op.unit) return fault("has weights without a unit");
    const ParameterUnit& unit = program_.units[*op.unit];
    for (const auto* flat : {&op.weights, &op.gradients}) {
      if (*flat) compare("flat", {decl(**flat).elements()}, {unit.padded});
    }
    for (const ParameterView& v : op.views) {
      const bool known = std::ranges::all_of(
          v.parameters, [&](int p) { return p >= 0 && as_index(p) < unit.parameters.size(); });
      if (v.offset < 0 || v.offset + product_of(v.shape) > unit.elements || !known)
        fault(fmt::format("views weights outside unit '{}'", unit.name));
    }
  }

  void size(std::int64_t found, std::int64_t wanted) {
    if (found != wanted)
      fault(fmt::format("works on {} bytes and its buffer says {}", found, wanted), kSizeMismatch);
  }

  /// Every row of what is written consists of sections that come from somewhere.
  void check_redistribution(const Op& op) {
    if (!program_.redistributions.contains(*op.redistribution))
      return fault("has no redistribution");
    const Redistribution& r = program_.redistributions[*op.redistribution];
    const int devices = step_.rank_class->count;
    if (op.collective != Collective::kAllToAll || 1 << r.bits != devices ||
        program_.groups[op.group].size != devices)
      return fault("is no all-to-all of all devices of the stage");
    Elements covered(op.writes.size(), 0), rows(op.writes.size(), 0);
    for (const RedistributedTensor& t : r.tensors) {
      const auto from = as_index(t.from), to = as_index(t.to);
      if (from >= op.reads.size() || to >= op.writes.size())
        return fault("redistributes what it neither reads nor writes");
      const Extents4 held = t.held_extents(), wanted = t.wanted_extents();
      compare("reads", {decl(op.reads[from]).elements()},
              {t.held_elements() / held.back() * t.held_row});
      compare("writes", {decl(op.writes[to]).elements()},
              {t.wanted_elements() / wanted.back() * t.wanted_row});
      if (t.held_offset + held.back() > t.held_row ||
          t.wanted_offset + wanted.back() > t.wanted_row)
        fault("redistributes features outside its buffers");
      covered[to] += wanted.back();
      rows[to] = t.wanted_row;
    }
    compare("fills rows in", covered, rows);
    size(op.bytes, most_received_bytes(r, decl(op.reads.front()).dtype));
  }

  void check_senders(const Op& op) {
    std::vector<int> sorted = op.senders;
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < sorted.size(); ++i)
      if (sorted[i] != as_int(i)) return fault("is no permutation of its group", kWrongPeer);
    if (as_int(sorted.size()) != program_.groups[op.group].size)
      fault("states senders of another group", kWrongPeer);
  }

  /// One side of each pair is the host's, always the same one.
  void check_copy(const Op& op) {
    const std::vector<BufferRef>& made = copied_to(op);
    if (made.empty() || op.reads.size() < made.size() ||
        op.writes.size() + op.updates.size() > made.size())
      return fault("copies other than what it reads to what it writes");
    const bool out = op.stream == Stream::kCopyOut;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
      const BufferDecl &from = decl(op.reads[i]), &to = decl(made[i]);
      compare("copies", {from.elements()}, {to.elements()});
      if (from.dtype != to.dtype || from.on_host() == out || to.on_host() != out)
        fault(fmt::format("copies '{}' to '{}'", from.name, to.name));
      bytes += from.bytes();
    }
    size(op.bytes, bytes);
    for (std::size_t i = made.size(); i < op.reads.size(); ++i)
      if (decl(op.reads[i]).category != BufferCategory::kGradient)
        fault(fmt::format("waits for '{}', which is no gradient", decl(op.reads[i]).name));
  }

  void check_collective(const Op& op) {
    if (op.redistribution) return check_redistribution(op);
    if (!op.senders.empty()) check_senders(op);
    const bool in_place = op.updates.size() == 1 && op.reads.empty() && op.writes.empty();
    const bool two_sided = op.reads.size() == 1 && op.writes.size() + op.updates.size() == 1 &&
                           (op.updates.empty() || (op.pieces > 1 && op.piece > 0));
    if (!in_place && !(two_sided && op.collective != Collective::kAllReduce))
      return fault("updates one buffer, or reads one and writes one");
    const Group& group = program_.groups[op.group];
    if (in_place) {
      const BufferDecl& flat = decl(op.updates[0]);
      std::int64_t bytes = op.slice_elements > 0
                               ? op.slice_elements * model::element_bytes(flat.dtype)
                               : flat.bytes();
      if (op.slice_group) bytes /= program_.groups[*op.slice_group].size;
      size(op.bytes, bytes);
      if (op.slice_offset < 0 || op.slice_offset + op.slice_elements > flat.elements())
        fault("works on a range outside its buffer", kSizeMismatch);
      return;
    }
    const bool gathers = op.collective == Collective::kAllGather,
               scatters = op.collective == Collective::kReduceScatter;
    const BufferRef& to = op.writes.empty() ? op.updates[0] : op.writes[0];
    const std::int64_t read = decl(op.reads[0]).bytes(), written = decl(to).bytes();
    size(op.bytes * (gathers ? op.pieces : 1), gathers ? read * group.size : read);
    size(op.bytes * (scatters ? op.pieces : 1), scatters ? written * group.size : written);
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
