#include "sim/scenario/goodput.h"

#include <deque>

#include "base/rng.h"

namespace orrery::sim {

using base::Seconds;

namespace {

void check(const FailureModel& m) {
  ORRERY_CHECK(m.job_mtbf.raw() > 0 && m.checkpoint.raw() > 0 && m.restart.raw() >= 0,
               "failures every {} s, checkpoints of {} s, restarts of {} s", m.job_mtbf.raw(),
               m.checkpoint.raw(), m.restart.raw());
  ORRERY_CHECK(m.repair.raw() >= 0 && m.spares >= 0, "repairs of {} s, {} spare hosts",
               m.repair.raw(), m.spares);
}

/// Half the sum of two squared standard normals is exponential with mean 1: no logarithm of the C
/// library.
double exponential(base::Rng& rng) {
  const double a = rng.normal(), b = rng.normal();
  return (a * a + b * b) / 2;
}

/// Hosts that are out, each for as long as a repair takes.
class Repairs {
 public:
  explicit Repairs(const FailureModel& m) : m_(m) {}
  /// A host fails; how long the job waits until it has enough hosts again.
  double wait_after_failure(double now) {
    while (!back_.empty() && back_.front() <= now) back_.pop_front();
    back_.push_back(now + m_.repair.raw());
    if (back_.size() <= as_index(m_.spares)) return 0;
    const double first = back_.front();
    back_.pop_front();
    return first - now;
  }

 private:
  const FailureModel& m_;
  std::deque<double> back_;  // when, ascending
};

}  // namespace

double waiting_share(const FailureModel& m) {
  check(m);
  const double a = m.repair.raw() / m.job_mtbf.raw();
  double share = 1;
  for (int c = 1; c <= m.spares + 1; ++c) share = a * share / (c + a * share);
  return share;
}

Seconds best_interval(const FailureModel& m) {
  check(m);
  // In units of M: e^(x + c) (1 - x) falls from e^c > 1 at 0 to 0 at 1.
  const double c = m.checkpoint.raw() / m.job_mtbf.raw();
  double low = 0, high = 1;
  for (int i = 0; i < 100; ++i) {
    const double x = (low + high) / 2;
    // Its logarithm, which stays exact where c is tiny or large.
    if (x + c + std::log1p(-x) > 0)
      low = x;
    else
      high = x;
  }
  return Seconds(high * m.job_mtbf.raw());
}

double goodput(const FailureModel& m, Seconds interval) {
  check(m);
  ORRERY_CHECK(interval.raw() > 0, "an interval of {} s", interval.raw());
  const double mean = m.job_mtbf.raw();
  return (1 - waiting_share(m)) * interval.raw() /
         (mean * std::exp(m.restart.raw() / mean) *
          std::expm1((interval.raw() + m.checkpoint.raw()) / mean));
}

IntervalParts interval_parts(const FailureModel& m, Seconds interval) {
  check(m);
  ORRERY_CHECK(interval.raw() > 0, "an interval of {} s", interval.raw());
  const double mean = m.job_mtbf.raw(), t = interval.raw() / mean, c = m.checkpoint.raw() / mean;
  IntervalParts parts{Seconds(mean * std::exp(c) * std::expm1(t)), Seconds(mean * std::expm1(c)),
                      Seconds(mean * std::expm1(t + c) * std::expm1(m.restart.raw() / mean)),
                      Seconds()};
  const double share = waiting_share(m);
  parts.waiting = share / (1 - share) * parts.all();
  return parts;
}

TrainingRun simulate_run(const FailureModel& m, Seconds interval, Seconds work, std::uint64_t seed,
                         std::int64_t most_failures) {
  check(m);
  ORRERY_CHECK(interval.raw() > 0, "an interval of {} s", interval.raw());
  base::Rng rng(seed);
  TrainingRun run;
  Repairs repairs(m);
  double wall = 0, done = 0, next_failure = m.job_mtbf.raw() * exponential(rng);
  bool restarting = false;
  while (done < work.raw()) {
    const double part = std::min(interval.raw(), work.raw() - done);
    const double end = wall + (restarting ? m.restart.raw() : part + m.checkpoint.raw());
    if (end <= next_failure) {
      if (!restarting) done += part;
      wall = end;
      restarting = false;
      continue;
    }
    // Nothing fails while the job waits for a host.
    const double wait = repairs.wait_after_failure(next_failure);
    wall = next_failure + wait;
    next_failure = wall + m.job_mtbf.raw() * exponential(rng);
    restarting = true;
    if (++run.failures < most_failures) continue;
    run.finished = false;
    break;
  }
  run.wall = Seconds(wall);
  return run;
}

std::vector<double> goodput_samples(const FailureModel& m, Seconds interval, Seconds work,
                                    std::uint64_t seed, int runs) {
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) {
    const TrainingRun run =
        simulate_run(m, interval, work, base::derive(seed, static_cast<std::uint64_t>(i)));
    samples.push_back(run.finished ? work.raw() / run.wall.raw() : 0);
  }
  std::ranges::sort(samples);
  return samples;
}

}  // namespace orrery::sim
