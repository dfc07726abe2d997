#pragma once
/// \file
/// Interleaved 1F1B and ZB-H1, blocks of one kind: from costs of layers to the integers of the rank
/// program (programs/rank_program.h).
///
/// The space, exact within: at least two pipeline ranks; the layers of a rank share one strategy,
/// those of different ranks one layout (degrees, sequence parallelism), so that sharding and
/// recomputation may change from rank to rank; a rank has up to 8 layers more or fewer than
/// ⌊L / p⌋, any number on machines with several kinds of device. With v <= 16 virtual stages
/// its n layers are spread evenly, the longer stages last: n / v or one more each. So 126 layers
/// run on 16 ranks with any v <= 7. ZB-H1 with at least as many micro-batches as ranks;
/// interleaved with multiples of them (plan/program/schedule.h).
///
/// Options of a layout that another beats in every time and every byte are left out. The rank
/// program runs on choices that fit by a lower bound of their bytes, without those that another one
/// of as many layers beats in every time; what its answer needs is asked of
/// costmodel::stage_peak_bytes, and where that does not fit, so many layers are struck out with
/// that option and it runs again: a layer more adds to what is alive everywhere, so the peak never
/// falls.
///
/// Bound of a way (layout, v), with least F, B, W over ranks and options, N = F + B + W,
/// K = ⌈L / p⌉, E the times of embedding and head:
///
///     C >= max(K N, ⌈(L N + E) / p⌉)
///     interleaved  m C + N max(p - 1, ⌈(L - C/N - 1 - (p-1)(v-1)) / v⌉) + transfers
///                  + (K + p - 1) sync + v update
///     ZB-H1        (m - 1) C + L (F + B - W) + transfers + K (W' + min(F, B, W));  p of these C
///                  may be taken as all cycles together: L min (N + F + B - W) + E, since
///                  reductions in W make F + B - W alone low where N is long
///
/// since all first stages but the last rank's are filled with what is not on that rank, rank 0 has
/// at least v layers, and some rank has K. The same with memory: with the N of options that fit
/// with the fewest layers, and the C of rank_room.h. Either without E whatever the vocabulary: then
/// it is found once for all. Ways are taken by the first, which costs next to nothing, and cut by
/// the second before any choice is listed.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "costmodel/closed_form/layer_costs.h"
#include "search/costs/rank_room.h"
#include "search/costs/rank_table.h"
#include "search/programs/rank_program.h"
#include "search/solvers/solver.h"

namespace orrery::search {

class RankSolver final : public Solver {
 public:
  /// @pre all outlive this object.
  RankSolver(costmodel::LayerCosts& costs, const Space& space, StageModel& stages);

  bool covers(const PlanProblem& family) override {
    return stages_.has_strategies(family) && !stages_.virtual_stages(family).empty();
  }
  [[nodiscard]] bool needs_incumbent(const PlanProblem& /*problem*/) const override { return true; }
  Bound family_bound(const PlanProblem& family, std::int64_t cutoff_ps) override;
  Bound bound(const PlanProblem& problem, std::int64_t cutoff_ps) override;
  /// Quick: of the layout and virtual stages with the least bound that have any.
  Answer solve(const PlanProblem& problem, std::int64_t cutoff_ps, Depth depth,
               Effort& effort) override;
  /// The plan of the least peak, ranks about equal in layers. @pre covers the problem.
  plan::Plan minimum_memory(const PlanProblem& problem) override;
  std::string shortage(const PlanProblem& problem) override;

 private:
  /// One layout on one number of virtual stages.
  struct Way {
    std::int64_t bound_ps = 0;
    int virtual_stages = 1;
    std::size_t layout = 0;
    RankRoom* room = nullptr;  // null: the bound does not know of memory
  };
  /// What all vocabularies of a problem choose between, by bound.
  struct Family {
    const RankFrame& frame;
    std::vector<Way> ways;
    std::deque<RankRoom> rooms;
  };
  /// A problem with its vocabulary.
  struct Case {
    const PlanProblem& problem;
    Family& family;
    std::vector<std::optional<RankEnds>> ends;  // [layout] as far as asked for
    // of (way, first or last rank, option); looked up only
    std::map<std::tuple<const RankRoom*, int, std::int32_t>, RankCapacity> capacity;
  };
  class Check;

  Family& family(const PlanProblem& problem);
  void make_room(const PlanProblem& problem, Family& family, std::size_t at,
                 std::int64_t cutoff_ps);
  Case with_vocabulary(const PlanProblem& problem);
  const RankEnds& ends(Case& c, std::size_t layout);
  [[nodiscard]] RankPlace place(const PlanProblem& problem, const RankFrame& frame, const Way& way,
                                const RankEnds& ends, int rank) const;
  [[nodiscard]] RankSpan span(const PlanProblem& problem, int v) const;
  RankFit fit(Case& c, const Way& way, int rank);
  static RankCapacity& capacity(Case& c, const Way& way, int rank, std::int32_t option);
  [[nodiscard]] std::int64_t bound_of(const PlanProblem& problem, const RankFrame& frame,
                                      const Way& way, const RankEnds& ends, const RankFloor& floor,
                                      std::int64_t cycle_ps) const;
  std::int64_t bound_of(Case& c, const Way& way);
  RankProblem ranks(Case& c, const Way& way, std::int64_t cutoff_ps);
  Answer cheapest(Case& c, const std::vector<Way>& ways, std::int64_t cutoff_ps, Depth depth,
                  Effort& effort);
  [[nodiscard]] RankChoice choice(const RankPlace& place, const RankOption& option,
                                  int layers) const;
  [[nodiscard]] plan::Plan blank(const PlanProblem& problem, int v,
                                 const plan::LayerStrategy& strategy) const;

  costmodel::LayerCosts& costs_;
  const costmodel::CostModel& cost_;
  const Space& space_;
  StageModel& stages_;
  RankTables tables_;
  // devices, micro-batches, ranks
  std::map<std::tuple<int, std::int64_t, int, plan::Schedule>, Family> families_;
};

}  // namespace orrery::search
