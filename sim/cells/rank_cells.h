#pragma once
/// \file
/// A step on a machine whose ranks are not all alike: stragglers, mixed hosts, a degraded link.
///
/// sim::simulate() lets one rank stand for its pipeline stage, which is exact where the machine is
/// symmetric. Here ranks are grouped into *cells*, and the interpreter runs one class for each:
///  * unfolded, every rank is a cell;
///  * folded, the cells are the coarsest equitable partition (kernel/refinement.h) of the graph of
///    ranks, messages and links. A rank is coloured by its stage, its kind of device and its speed;
///    its computations take what its own kind takes. A message is one collective of one process
///    group, or one exchange of one pair of ranks; it is coloured by what is sent, its latency and
///    its rate alone, and joined to its ranks and, by its flows, to its
///    links. A link is coloured by its capacity.
///
/// Both give the same picoseconds. Proof by induction over the instants, and within one over the
/// rounds of filling (kernel/max_min.h): what runs is a union of cells, since an operation starts
/// at the last end over its stream, its dependencies and its peers, whose cells agree within a
/// cell. The flows of each message cell on each link of a cell are equal, so what is left of a
/// link, R_l, and the weight that rises on it, A_l, are equal in a cell, round by round; so are
/// rates, hence ends. No automorphism is needed. What breaks the symmetry splits the cells that it
/// reaches through messages and links, and no others.
///
/// A message's price is that of its own ranks: largest latency over its routes, flows of its own
/// routes, measured rate of its hosts. Where all ranks of a stage are alike this is what
/// sim::simulate() computes, except that less than the time of one byte may differ where the group,
/// or its rings, do not divide the tensor.
///
/// Eras. Links that change in the middle of a step (flow_network.h) have a capacity in every era,
/// and messages a price and links in every era. All of them colour and join the elements, each era
/// by edges of its own: the partition is equitable in every era, and the induction goes on through
/// the changes.
///
/// Jobs. Several Programs run side by side on devices of their own, over the same links. Each
/// repeats its step, the next one from the end of the last operation of the one before, until all
/// have done as many as asked. Elements of two jobs are coloured apart. Reports and accounts are of
/// the first step of the first job.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "base/result.h"
#include "costmodel/cost_model.h"
#include "plan/program/program.h"
#include "sim/network/background.h"
#include "sim/report/report.h"
#include "sim/step/interpreter.h"

namespace orrery::sim {

struct RankOptions {
  bool fold = true;
  /// [rank] how long its computations take, in millionths of their price: 1'250'000 for a
  /// straggler. Empty: all as priced.
  std::vector<std::int64_t> compute_ppm = {};
  /// Each flow is distinct from every other. It shares links only with what loads them: where a
  /// measured rate stands for a link, nothing does.
  std::vector<BackgroundFlow> background = {};
};

/// A training job: rank r runs on device r of the topology of its prices, which number the devices
/// of one machine as each job sees them.
struct RankJob {
  const plan::Program* program = nullptr;
  std::vector<costmodel::CostModel> costs = {};  // [era]
  std::vector<std::int64_t> compute_ppm = {};    // [rank] as in RankOptions
  // [rank] whose jitter it has; empty: rank r is device r
  std::vector<std::uint32_t> devices = {};
  // of its first step; 0 of the first job where its report is wanted
  std::int64_t start_ps = 0;
};

/// What jobs run on, and how long.
struct RankScene {
  std::vector<std::int64_t> from_ps = {0};  // [era] ascending, the first 0
  // [era] the same flows, on the routes of the era
  std::vector<std::vector<BackgroundFlow>> background = {{}};
  int steps = 1;  // that every job does at least
  bool fold = true;
  // an event for every operation and leg of a transfer: the same outcome, later
  bool step_by_step = false;
};

struct RankOutcome {
  std::int64_t step_ps = 0;
  std::vector<std::uint32_t> cell_of_rank;  // of the jobs one after another
  Outcome cells;                            // one class for each cell, by its first rank
  // what they carried until the first job's step ended, background included
  std::vector<Picture::Link> links;
  std::vector<std::vector<Picture::Link>> job_links;  // [job] for that job
  // when asked: a stage is shown by its rank that computes longest, shares are means over ranks
  SimReport report;
  // times of every operation of every rank in the first step of its job
  std::string fingerprint;
  /// Of a rank of the first job.
  [[nodiscard]] const ClassOutcome& of(int rank) const {
    return cells.classes[cell_of_rank[as_index(rank)]];
  }
};

/// A step made ready once, to be run as often as wanted, by several threads at once. Programs must
/// outlive it.
class RankStep {
 public:
  /// Errors: those of simulate(); kOutOfRange for speeds that are not positive or not one for each
  /// rank; kUnsupported for cells of more than kMaxOperations in all.
  static base::Result<RankStep> make(std::vector<RankJob> jobs, const RankScene& scene = {});

  /// Error: kUnsupported when repeated steps come to more than kMaxOperations operations.
  /// @pre without folding, or jitter.sigma_ppm == 0: jitter tells all ranks apart.
  [[nodiscard]] base::Result<RankOutcome> run(
      const Jitter& jitter = {}, const std::optional<SimOptions>& report = std::nullopt) const;

  static constexpr std::int64_t kMaxOperations = 30'000'000;

 private:
  struct Ready;
  explicit RankStep(std::shared_ptr<const Ready> ready) : ready_(std::move(ready)) {}
  std::shared_ptr<const Ready> ready_;
};

/// One job alone on a machine that does not change.
base::Result<RankOutcome> simulate_ranks(const plan::Program& program,
                                         const costmodel::CostModel& cost,
                                         const RankOptions& options = {});

}  // namespace orrery::sim
