#pragma once
/// \file
/// A machine that is not as it was built: schema `orrery.scenario/1`, documented in
/// docs/models/scenario.md.
///
///     schema: orrery.scenario/1
///     name: one bad host
///     links:                                    # what the keys select, both directions;
///                                               # together they narrow
///       - {host: 1, kind: ib, rate: 0.25}       # a quarter of what it was built with
///       - {host: 0, at: "nic[2]", failed: true} # traffic goes around
///       - {host: 2, kind: ib, rate: 0.5, since: 300 ms, until: 1 s}
///                                               # of the step; without them all of it
///     slow:
///       - {host: 1, device: 3, slowdown: 1.3}   # computes 1.3 times as long
///     jitter: {sigma: 0.02}
///     background:
///       - {from: 0, to: 8, rate: 10 GB/s}
///     hosts: [0, 2]                             # where the plan runs, in this order
///     jobs:                                     # that run beside it, step after step
///       - {plan: other.json, hosts: [1, 3], start: 20 ms}
///     steps: 4                                  # of every job, before the simulation ends
///     failures: {mtbf: 50000 h, checkpoint: 60 s, restart: 300 s}
///     seed: 7
///
/// Names are resolved against a cluster while reading, so that what it does not have is reported
/// with its place in the file. Effects on one link or device multiply; a failure beats all.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "base/units.h"
#include "sim/network/background.h"
#include "sim/scenario/goodput.h"
#include "sim/step/jitter.h"
#include "topologies/topology.h"

namespace orrery::sim {

/// Of one device, and what stopping costs; see goodput.h.
struct DeviceFailures {
  base::Seconds mtbf;
  base::Seconds checkpoint = base::Seconds(60);
  base::Seconds restart = base::Seconds(300);
  std::optional<base::Seconds> interval = {};  // between checkpoints; nothing: the best
  base::Seconds repair = {};
  int spares = 0;  // hosts
  /// Of a job on so many devices.
  [[nodiscard]] FailureModel of_job(double devices) const {
    return {base::Seconds(mtbf.raw() / devices), checkpoint, restart, repair, spares};
  }
};

struct Scenario {
  struct Background {
    std::uint32_t from = 0, to = 0;     // devices
    std::int64_t bytes_per_second = 0;  // at most
  };
  struct Job {
    std::string name;
    std::string plan;                  // file; empty: the plan beside which it runs
    std::vector<std::uint32_t> hosts;  // it runs on, in order
    std::int64_t start_ps = 0;         // of its first step
  };
  /// From `from_ps` on, until the next begins: links that differ from what was built, ascending,
  /// each once.
  struct LinkEra {
    std::int64_t from_ps = 0;
    std::vector<topologies::LinkRate> links;
  };
  std::string name;
  // in order of time, each other than the one before; the first from 0
  std::vector<LinkEra> links = std::vector<LinkEra>(1);
  // [device of the cluster] how long computing takes, in millionths of its price; empty: all as
  // priced
  std::vector<std::int64_t> compute_ppm;
  Jitter jitter;
  std::vector<Background> background;
  std::vector<std::uint32_t> hosts;  // of the plan, in order; empty: as they are numbered
  std::vector<Job> jobs;
  int steps = 1;  // that every job does at least
  std::optional<DeviceFailures> failures;
  // for faults that only a plan's ranks show
  base::SourceSpan links_place, background_place, hosts_place, jobs_place;
};

/// Every fault of the file at once. Errors: those of base/config.h; kNotFound (a host, device, part
/// or kind that the cluster lacks, keys that select no link), kInconsistent (keys that exclude each
/// other, a scenario that changes nothing).
base::Result<Scenario> read_scenario(const base::Node& root, const topologies::Topology& cluster);
base::Result<Scenario> load_scenario(const std::filesystem::path& path,
                                     const topologies::Topology& cluster);

/// The devices of ranks 0 .. world-1 of a job on these hosts; empty: as they are numbered. @pre the
/// hosts have as many.
std::vector<std::uint32_t> devices_of(const std::vector<std::uint32_t>& hosts, int world,
                                      const topologies::Topology& cluster);

/// [era] the cluster with its links, fit for a job on `devices`. Error: kInconsistent for two of
/// them that failed links leave without a route.
base::Result<std::vector<topologies::Topology>> apply_links(
    const Scenario& scenario, const topologies::Topology& cluster,
    const std::vector<std::uint32_t>& devices);
/// Background traffic on its routes through `changed`. Error: kInconsistent for ends without a
/// route.
base::Result<std::vector<BackgroundFlow>> background_flows(const Scenario& scenario,
                                                           const topologies::Topology& changed);

}  // namespace orrery::sim
