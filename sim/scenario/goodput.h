#pragma once
/// \file
/// Training that fails, restarts from its last checkpoint and goes on: how much of the time is
/// progress.
///
/// Failures of a job are a Poisson process with mean M = device MTBF / devices. The job works for
/// an interval t, writes a checkpoint (C, nothing else happens), and so on. A failure loses what
/// was done since the last checkpoint; a restart (R) follows, which may fail as well. One interval
/// then takes, in the mean,
///
///     E(t) = M e^(R/M) (e^((t + C)/M) - 1)          goodput(t) = t / E(t)
///
/// (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22,
/// 2006, equation 13). Optimum intervals, the first two approximate:
///
///     Young   sqrt(2 C M)                                                       (CACM 17(9), 1974)
///     Daly    sqrt(2 C M) (1 + 1/3 sqrt(C/2M) + 1/9 C/2M) - C,  C < 2M; else M  (equation 37)
///     exact   the t with e^((t + C)/M) (1 - t/M) = 1, where the derivative of goodput vanishes; by
///             bisection
///
/// Worked example, a test: M = 10,000 s, C = 50 s, R = 100 s: Young 1,000 s, Daly 967 s, exact 967
/// s; goodput there 0.8943.
///
/// E(t) has three parts, for a part of t + C is begun e^((t + C)/M) times, the last of them
/// without a failure, and every other one ends in one:
///
///     working         M (e^((t + C)/M) - e^(C/M))     progress, and what is done again
///     checkpointing   M (e^(C/M) - 1)
///     down            M (e^((t + C)/M) - 1) (e^(R/M) - 1)
///
/// **Repairs.** A failed device takes its host out for D; k spare hosts stand by. With more than k
/// hosts out the job waits for one of them. Nothing fails while it waits, so hosts that are out are
/// the busy servers of a loss system of k + 1, and it waits for the share of all time
///
///     B(k + 1) of a = D / M,   B(0) = 1,  B(c) = a B(c - 1) / (c + a B(c - 1))
///
/// (Erlang's loss formula, whatever the distribution of repairs with mean D: B. A. Sevast'yanov,
/// Theory of Probability and its Applications 2, 1957). An interval takes E(t) / (1 - B), and
///
///     waiting         E(t) B / (1 - B)
///
/// Worked example, a test: M = 10,000 s, D = 20,000 s: B = 2/3, 2/5, 4/19 with 0, 1, 2 spares.
///
/// simulate_run plays the same process event by event: the formula's twin, and its spread over
/// seeds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "base/units.h"

namespace orrery::sim {

inline constexpr int kMostSpares = 1 << 16;

struct FailureModel {
  base::Seconds job_mtbf;     // of all devices together; > 0
  base::Seconds checkpoint;   // > 0
  base::Seconds restart;      // detection, replacement, reading the checkpoint; >= 0
  base::Seconds repair = {};  // of a host that failed; 0: another one is always at hand
  int spares = 0;             // hosts
};
/// Share of all time in which the job waits for a host under repair.
double waiting_share(const FailureModel& m);

base::Seconds best_interval(const FailureModel& m);
/// @pre interval > 0.
double goodput(const FailureModel& m, base::Seconds interval);

/// The parts of what an interval takes, in seconds. @pre interval > 0.
struct IntervalParts {
  base::Seconds working, checkpointing, down, waiting;
  [[nodiscard]] base::Seconds all() const { return working + checkpointing + down + waiting; }
};
IntervalParts interval_parts(const FailureModel& m, base::Seconds interval);

/// Wall time of a run that makes `work` of progress; the last part of an interval is checkpointed
/// as well. A function of its arguments alone. Ends early, with the time so far and `finished`
/// false, after `most_failures`.
struct TrainingRun {
  base::Seconds wall;
  std::int64_t failures = 0;
  bool finished = true;
};
TrainingRun simulate_run(const FailureModel& m, base::Seconds interval, base::Seconds work,
                         std::uint64_t seed, std::int64_t most_failures = 20'000);

/// Goodput of `runs` runs with seeds derived from `seed`, ascending; 0 for one that did not finish.
std::vector<double> goodput_samples(const FailureModel& m, base::Seconds interval,
                                    base::Seconds work, std::uint64_t seed, int runs);
/// Nearest-rank percentile of ascending samples. @pre not empty, 0 < p <= 100.
template <class T>
T percentile(const std::vector<T>& ascending, double p) {
  ORRERY_CHECK(!ascending.empty() && p > 0 && p <= 100, "percentile {} of {} samples", p,
               ascending.size());
  const double rank = std::ceil(p / 100 * real(ascending.size()));
  return ascending[std::max(as_index(rank), std::size_t{1}) - 1];
}

}  // namespace orrery::sim
