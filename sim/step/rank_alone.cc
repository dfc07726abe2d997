#include "sim/step/rank_alone.h"

#include <algorithm>
#include <array>

#include "sim/step/interpreter.h"
#include "sim/step/prepared_step.h"

namespace orrery::sim {

RankAlone rank_alone(const PreparedClass& rank_class, const ClassOutcome& outcome, bool overlaps) {
  RankAlone alone;
  std::vector<std::int64_t> end_ps(rank_class.op_count());
  std::array<std::int64_t, plan::kStreams> free_ps{};  // of each stream
  std::int64_t issued_ps = 0;                          // without overlap: the last that holds
  for (std::uint32_t op = 0; op < rank_class.op_count(); ++op) {
    const PricedOp& priced = rank_class.price(op);
    const bool computes = priced.kind == plan::OpKind::kCompute;
    const std::int64_t t = computes ? priced.compute_ps : outcome.end_ps[op] - outcome.start_ps[op];
    std::int64_t start_ps = free_ps[priced.stream];
    for (const std::uint32_t before : rank_class.expansion.dependencies_of(op))
      start_ps = std::max(start_ps, end_ps[before]);
    if (!overlaps) start_ps = std::max(start_ps, issued_ps);
    end_ps[op] = start_ps + t;
    free_ps[priced.stream] = end_ps[op];
    issued_ps = priced.send_only ? start_ps : end_ps[op];
    alone.step_ps = std::max(alone.step_ps, end_ps[op]);
    (computes ? alone.compute_ps : alone.communication_ps) += t;
    alone.op_ps.push_back(t);
    alone.computes.push_back(computes);
  }
  return alone;
}

void set_compute(PreparedStep& step, const ComputeTimes& times) {
  for (std::uint32_t c = 0; c < step.classes.size(); ++c) {
    PreparedClass& k = step.classes[c];
    for (std::uint32_t op = 0; op < k.op_count(); ++op) {
      const plan::OpInstance& instance = k.expansion.ops[op];
      if (instance.op->kind != plan::OpKind::kCompute) continue;
      const auto found = times.find({c, instance.source.raw(), instance.index});
      if (found == times.end()) continue;
      k.ops[k.priced[op]].compute_ps = found->second;
      k.ops[k.priced[op]].host_wait_ps = 0;  // no one measured it apart
    }
  }
}

}  // namespace orrery::sim
