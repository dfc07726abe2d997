#include "plan/program/launches.h"

#include "model/launches.h"
#include "plan/program/expand.h"

namespace orrery::plan {

std::int64_t launches(const Program& program, const RankClass& rank_class) {
  std::int64_t count = 0;
  for_each_op(program, rank_class, [&](const OpInstance& o) {
    if (o.op->kind == OpKind::kCompute)
      count += model::launches(program.segments[o.op->segment], o.op->phase);
  });
  return count;
}

}  // namespace orrery::plan
