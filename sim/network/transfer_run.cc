#include "sim/network/transfer_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/fingerprint.h"
#include "base/sim_time.h"
#include "sim/kernel/remaining_work.h"
#include "sim/network/flow_system.h"
#include "sim/network/fold.h"

namespace orrery::sim {
namespace {

base::Result<void> check(const TransferGraph& graph, const TransferRunOptions& options) {
  base::ErrorSink sink;
  const std::size_t links = graph.capacities().size();
  for (const LinkChange& c : options.changes) {
    if (c.link.raw() >= links)
      sink.error({}, base::ErrorCode::kOutOfRange, "a change of link {} of {}", c.link.raw(),
                 links);
    if (c.at_ps < 0 || c.bytes_per_second < 0) {
      sink.error({}, base::ErrorCode::kOutOfRange, "a change to {} bytes/s at {} ps",
                 c.bytes_per_second, c.at_ps);
    }
  }
  for (const BackgroundFlow& flow : options.background) {
    if (flow.bytes_per_second < 1)
      sink.error({}, base::ErrorCode::kOutOfRange, "a background flow of {} bytes/s",
                 flow.bytes_per_second);
    for (const auto& load : flow.loads) {
      if (load.link.raw() >= links)
        sink.error({}, base::ErrorCode::kOutOfRange, "a background flow over link {} of {}",
                   load.link.raw(), links);
      if (load.flows < 1)
        sink.error({}, base::ErrorCode::kOutOfRange, "a background flow counts {} times on link {}",
                   load.flows, load.link.raw());
    }
  }
  return sink.result();
}

/// What the link could have carried until `end_ps`, in byte·ps/s.
kernel::Int128 room(std::int64_t capacity,
                    std::vector<std::pair<std::int64_t, std::int64_t>> changes,
                    std::int64_t end_ps) {
  std::stable_sort(changes.begin(), changes.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  kernel::Int128 sum = 0;
  std::int64_t since = 0;
  for (const auto& [at, next] : changes) {
    const std::int64_t until = std::min(at, end_ps);
    sum += static_cast<kernel::Int128>(capacity) * (until - since);
    since = until;
    capacity = next;
  }
  return sum + static_cast<kernel::Int128>(capacity) * (end_ps - since);
}

std::vector<LinkUse> use_of_links(const TransferGraph& graph, const TransferRunOptions& options,
                                  const std::vector<std::int64_t>& background,
                                  std::int64_t end_ps) {
  std::vector<LinkUse> uses(graph.capacities().size());
  for (std::uint32_t i = 0; i < graph.transfers().size(); ++i) {
    const TransferSpec& spec = graph.transfers()[i].spec;
    for (const auto& load : graph.loads(TransferId(i)))
      uses[load.link.raw()].bytes += load.flows * spec.bytes * spec.repeats;
  }
  for (std::size_t i = 0; i < background.size(); ++i) {
    for (const auto& load : options.background[i].loads)
      uses[load.link.raw()].bytes += load.flows * background[i];
  }
  std::map<std::uint32_t, std::vector<std::pair<std::int64_t, std::int64_t>>> changes;
  for (const LinkChange& c : options.changes)
    changes[c.link.raw()].emplace_back(c.at_ps, c.bytes_per_second);
  for (std::uint32_t l = 0; l < uses.size(); ++l) {
    const auto changed = changes.find(l);
    const auto all =
        room(graph.capacities()[l],
             changed == changes.end() ? decltype(changed->second)() : changed->second, end_ps);
    const auto carried = static_cast<kernel::Int128>(uses[l].bytes) * base::kPicosecondsPerSecond;
    uses[l].utilisation = all > 0 ? static_cast<double>(carried) / static_cast<double>(all) : 0;
  }
  return uses;
}

}  // namespace

base::Result<TransferOutcome> run_transfers(const TransferGraph& graph,
                                            const TransferRunOptions& options) {
  if (auto valid = check(graph, options); !valid) return base::fail(std::move(valid.error()));
  const FlowSystem system = make_system(graph, options);
  Fold folded;
  if (options.fold) folded = fold(system);
  const FlowSystem& simulated = options.fold ? folded.system : system;
  const auto ran = run_system(simulated);
  if (!ran) return base::fail(ran.error());
  const auto lane = [&](std::size_t i) -> const LaneOutcome& {
    return ran->lanes[options.fold ? folded.cell_of_lane[i] : i];
  };

  TransferOutcome outcome;
  outcome.end_ps = ran->end_ps;
  outcome.events = ran->events;
  outcome.simulated_transfers = simulated.lanes.size();
  outcome.constraints = simulated.capacities.size();
  const std::size_t transfers = graph.transfers().size();
  outcome.ends_ps.reserve(transfers);
  base::Fingerprint fingerprint;
  for (std::size_t i = 0; i < transfers; ++i) {
    const std::int64_t end_ps = lane(i).end_ps;
    const std::uint32_t job = graph.transfers()[i].spec.job;
    if (job >= outcome.job_ends_ps.size()) outcome.job_ends_ps.resize(job + 1, 0);
    outcome.job_ends_ps[job] = std::max(outcome.job_ends_ps[job], end_ps);
    outcome.ends_ps.push_back(end_ps);
    fingerprint.add(end_ps);
  }
  std::vector<std::int64_t> background;
  for (std::size_t i = transfers; i < system.lanes.size(); ++i) background.push_back(lane(i).bytes);
  outcome.links = use_of_links(graph, options, background, outcome.end_ps);
  outcome.fingerprint = fingerprint.hex();
  return outcome;
}

}  // namespace orrery::sim
