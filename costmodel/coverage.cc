#include "costmodel/coverage.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/numbers.h"
#include "plan/program/expand.h"

namespace orrery::costmodel {
namespace {

bool measured(const model::Profile& profile, plan::Collective op, const plan::Group& group) {
  return std::ranges::any_of(profile.collectives, [&](const model::CollectiveTimes& t) {
    return t.op == op && t.size == group.size;
  });
}

/// Picoseconds of every (shape, phase) that Programs compute, and collectives without times.
class Tally {
 public:
  explicit Tally(const CostModel& cost) : cost_(cost) {}

  void add(const plan::Program& program) {
    for (const plan::RankClass& rank_class : program.classes) {
      plan::for_each_op(program, rank_class, [&](const plan::OpInstance& instance) {
        if (instance.op->kind == plan::OpKind::kCompute)
          compute(program.segments[instance.op->segment], instance.op->phase, rank_class);
        if (instance.op->kind == plan::OpKind::kCollective)
          collective(instance.op->collective, program.groups[instance.op->group]);
      });
    }
  }

  Coverage coverage() const {
    Coverage result;
    std::int64_t total = 0;
    for (const PricedPhase& e : entries_) total += e.ps;
    for (const PricedPhase& e : entries_) {
      const PriceSource source = cost_.segment_source(e.shape, e.phase, e.kinds);
      const double share = total > 0 ? real(e.ps) / real(total) : 0;
      result.compute[as_index(source)] += share;
      if (source == PriceSource::kBeyond) result.beyond.push_back({e.shape, e.phase, share});
    }
    std::ranges::stable_sort(result.beyond, std::greater<>{}, &Coverage::Beyond::share);
    for (const auto& [key, count] : missing_)
      result.unmeasured.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
    return result;
  }

 private:
  struct PricedPhase {
    model::SegmentShape shape;
    model::Phase phase;
    DeviceKinds kinds;
    std::int64_t ps;
  };
  void compute(const model::SegmentShape& shape, model::Phase phase, const plan::RankClass& k) {
    const DeviceKinds kinds = cost_.kinds_of(k.first_rank, k.count);
    const std::int64_t ps = std::int64_t{k.count} * cost_.segment_ps(shape, phase, kinds);
    const auto known = std::ranges::find_if(entries_, [&](const PricedPhase& e) {
      return e.phase == phase && e.kinds == kinds && e.shape == shape;
    });
    if (known != entries_.end()) {
      known->ps += ps;
    } else {
      entries_.push_back({shape, phase, kinds, ps});
    }
  }
  void collective(plan::Collective op, const plan::Group& group) {
    if (group.size > 1 && cost_.profile() && !measured(*cost_.profile(), op, group))
      ++missing_[{op, group.size, group.stride}];
  }

  const CostModel& cost_;
  std::vector<PricedPhase> entries_;
  std::map<std::tuple<plan::Collective, int, int>, std::int64_t> missing_;
};

}  // namespace

Coverage coverage_of(const CostModel& cost, std::span<const plan::Program> programs) {
  Tally tally(cost);
  for (const plan::Program& program : programs) tally.add(program);
  return tally.coverage();
}

}  // namespace orrery::costmodel
