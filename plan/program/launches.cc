#include "plan/program/launches.h"

#include <algorithm>

#include "base/numbers.h"
#include "model/launches.h"
#include "plan/program/stream_refs.h"

namespace orrery::plan {
namespace {

using model::SegmentKind;
using model::SegmentShape;

/// A launch of AdamW has at most this part of a step's.
constexpr std::size_t kPartsOfStep = 8;

bool has_weight_gradient(const Op& op) { return op.phase == Phase::kG || op.phase == Phase::kBG; }

bool is_whole_product(const SegmentShape& s, const Op& op) {
  const bool product = s.kind == SegmentKind::kQkv || s.kind == SegmentKind::kMlpIn ||
                       s.kind == SegmentKind::kMlpOut;
  return product && s.slices == 1 && s.steps == 1 && s.scale == 1 && op.pieces == 1;
}

class Joins {
 public:
  Joins(const Program& program, const Expansion& expansion)
      : program_(program), expansion_(expansion) {
    const std::size_t n = expansion.ops.size();
    found_.joined.assign(n, Joined::kNo);
    found_.with.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) found_.with[i] = i;
  }

  Launches run() {
    for (std::uint32_t i = 0; i + 1 < expansion_.ops.size(); ++i) {
      if (found_.joined[i] != Joined::kNo) continue;
      const Joined what = with_next(i);
      if (what != Joined::kNo) join(i + 1, i, what);
    }
    join_updates();
    for (std::uint32_t i = 0; i < expansion_.ops.size(); ++i) {
      const Op& op = *expansion_.ops[i].op;
      if (op.kind != OpKind::kCompute || found_.joined[i] == Joined::kAll) continue;
      found_.count += model::launches(shape(i), op.phase);
      if (found_.joined[i] == Joined::kBias) --found_.count;
    }
    return std::move(found_);
  }

 private:
  const SegmentShape& shape(std::uint32_t i) const {
    return program_.segments[expansion_.ops[i].op->segment];
  }
  void join(std::uint32_t op, std::uint32_t with, Joined what) {
    found_.joined[op] = what;
    found_.with[op] = with;
  }
  /// Whether all that `op` waits for was issued before `launch`.
  bool may_start_with(std::uint32_t op, std::uint32_t launch) const {
    return std::ranges::all_of(expansion_.dependencies_of(op),
                               [&](std::uint32_t before) { return before < launch; });
  }
  /// Whether the operation's first read is what operation i writes.
  bool reads_result(std::uint32_t op, std::uint32_t i) const {
    const OpInstance &a = expansion_.ops[i], &b = expansion_.ops[op];
    if (a.op->writes.empty() || b.op->reads.empty()) return false;
    return key_of(program_, a.op->writes[0], a.layer, a.micro_batch) ==
           key_of(program_, b.op->reads[0], b.layer, b.micro_batch);
  }

  Joined with_next(std::uint32_t i) const {
    const Op &a = *expansion_.ops[i].op, &b = *expansion_.ops[i + 1].op;
    if (a.kind != OpKind::kCompute || b.kind != OpKind::kCompute || a.stream != b.stream ||
        b.acquire || b.release || !may_start_with(i + 1, i) || !reads_result(i + 1, i))
      return Joined::kNo;
    const SegmentShape &of_a = shape(i), &of_b = shape(i + 1);
    if (of_a.format != model::Format::kNone || of_b.format != model::Format::kNone)
      return Joined::kNo;
    if (of_a.kind == SegmentKind::kResidual && of_b.kind == SegmentKind::kNorm)
      return a.phase == Phase::kF && b.phase == Phase::kF && of_b.gain && of_b.in == of_a.in
                 ? Joined::kAll
                 : Joined::kNo;
    if (of_a.kind == SegmentKind::kNorm && of_b.kind == SegmentKind::kResidual)
      return a.phase == Phase::kBG && of_a.gain && of_b.bias && of_b.in == of_a.in &&
                     has_weight_gradient(b)
                 ? Joined::kAll
                 : Joined::kNo;
    return model::sums_columns(of_a, a.phase) && a.writes.size() == 1 && of_b.bias &&
                   is_whole_product(of_b, b) && has_weight_gradient(b)
               ? Joined::kBias
               : Joined::kNo;
  }

  void join_updates() {
    std::size_t updates = 0;
    for (std::uint32_t i = 0; i < expansion_.ops.size(); ++i) updates += is_update(i) ? 1 : 0;
    const std::size_t most =
        std::min((updates + kPartsOfStep - 1) / kPartsOfStep, kMostJoinedUpdates);
    std::uint32_t head = 0;
    std::size_t units = 0;  // of the launch under way
    for (std::uint32_t i = 0; i < expansion_.ops.size(); ++i) {
      if (expansion_.ops[i].op->stream != Stream::kCompute) continue;
      if (!is_update(i)) {
        units = 0;
      } else if (units > 0 && units < most && may_start_with(i, head)) {
        join(i, head, Joined::kAll);
        ++units;
      } else {
        head = i;
        units = 1;
      }
    }
  }
  bool is_update(std::uint32_t i) const {
    return expansion_.ops[i].op->kind == OpKind::kCompute && shape(i).kind == SegmentKind::kAdamW &&
           shape(i).format == model::Format::kNone;
  }

  const Program& program_;
  const Expansion& expansion_;
  Launches found_;
};

}  // namespace

Launches launches(const Program& program, const Expansion& expansion) {
  return Joins(program, expansion).run();
}

std::int64_t launch_count(const Program& program, const RankClass& rank_class) {
  return launches(program, expand(program, rank_class, StreamRefs(program))).count;
}

}  // namespace orrery::plan
