#include "sim/network/collective_run.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/numbers.h"
#include "sim/kernel/event_queue.h"
#include "sim/network/flow_network.h"

namespace orrery::sim {
namespace {

using costmodel::Algorithm;
using kernel::Phase;

enum : std::uint32_t { kWireEvent, kArrival, kRelease };
constexpr std::int64_t kPpm = 1'000'000;

class Runner {
 public:
  Runner(const topologies::Topology& topology, const CollectiveSchedule& schedule,
         std::span<const BackgroundFlow> background)
      : s_(schedule),
        network_(topology, kPpm, queue_, kWireEvent),
        current_(s_.paths.size(), kNoStep),
        waiting_(s_.paths.size()),
        first_waiting_(s_.paths.size(), 0),
        missing_(s_.steps.size()) {
    std::uint32_t lane = 0;
    for (const auto& path : s_.paths) {
      network_.add({.latency_ps = 0,
                    .wire_bytes = path.wire_bytes,
                    .bytes_per_second = rate_alone(path.rate_limit, path.links, topology),
                    .rate_cap = path.rate_limit,
                    .links = path.links},
                   lane++);
    }
    for (const BackgroundFlow& flow : background) network_.add_background(flow);
    network_.freeze();
    index_followers();
  }

  CollectiveResult run() {
    for (std::uint32_t i = 0; i < missing_.size(); ++i)
      if (missing_[i] == 0) ready(0, i);
    finish_instant(0);
    std::int64_t now = 0;
    while (!queue_.empty()) {
      do {
        const kernel::Event event = queue_.pop();
        now = event.at.ps();
        take(now, event);
      } while (queue_.more_now());
      finish_instant(now);
    }
    ORRERY_CHECK(ended_ == s_.steps.size(), "{} of {} steps never ran", s_.steps.size() - ended_,
                 s_.steps.size());
    return {.time_ps = now, .events = events_, .messages = messages_};
  }

 private:
  void index_followers() {
    follower_begin_.assign(s_.steps.size() + 1, 0);
    for (const std::uint32_t d : s_.dependencies) ++follower_begin_[d + 1];
    for (std::size_t i = 1; i < follower_begin_.size(); ++i)
      follower_begin_[i] += follower_begin_[i - 1];
    followers_.resize(s_.dependencies.size());
    std::vector<std::uint32_t> at(follower_begin_.begin(), follower_begin_.end() - 1);
    for (std::uint32_t i = 0; i < s_.steps.size(); ++i) {
      missing_[i] = s_.dependency_begin[i + 1] - s_.dependency_begin[i];
      for (std::uint32_t d = s_.dependency_begin[i]; d < s_.dependency_begin[i + 1]; ++d)
        followers_[at[s_.dependencies[d]]++] = i;
    }
  }

  void ready(std::int64_t now, std::uint32_t step) {
    const auto& s = s_.steps[step];
    if (s.path == CollectiveSchedule::kNoPath || s_.paths[s.path].wire_bytes == 0)
      return arrive_later(now, step);
    if (current_[s.path] == kNoStep)
      start(now, step);
    else
      waiting_[s.path].push_back(step);
  }
  void start(std::int64_t now, std::uint32_t step) {
    const std::uint32_t path = s_.steps[step].path;
    current_[path] = step;
    const auto flow = network_.start(now, path);
    if (flow >= path_of_flow_.size()) path_of_flow_.resize(flow + 1);
    path_of_flow_[flow] = path;
    ++messages_;
  }
  void arrive_later(std::int64_t sent, std::uint32_t step, std::int64_t hold = 0) {
    const std::int64_t wait = hold + s_.steps[step].latency_ps;
    if (wait == 0) {
      done_.push_back(step);
    } else {
      queue_.push(base::SimTime::from_ps(sent + wait), Phase::kDeliver, kArrival, step);
    }
  }
  void take(std::int64_t now, const kernel::Event& event) {
    ++events_;
    if (event.kind == kArrival) {
      done_.push_back(event.target);
    } else if (event.kind == kRelease) {
      release(event.target);
    } else if (network_.on_event(event)) {
      const std::uint32_t path = path_of_flow_[event.target];
      const std::int64_t hold = s_.paths[path].hold_ps;
      arrive_later(now, current_[path], hold);
      if (hold == 0)
        release(path);
      else
        queue_.push(base::SimTime::from_ps(now + hold), Phase::kDeliver, kRelease, path);
    }
  }
  void release(std::uint32_t path) {
    current_[path] = kNoStep;
    freed_.push_back(path);
  }
  /// Steps that ended let others start, those of no duration at once.
  void finish_instant(std::int64_t now) {
    for (const std::uint32_t path : freed_) {
      auto& line = waiting_[path];
      if (first_waiting_[path] == line.size()) continue;
      start(now, line[first_waiting_[path]++]);
      if (first_waiting_[path] == line.size()) {
        line.clear();
        first_waiting_[path] = 0;
      }
    }
    freed_.clear();
    while (!done_.empty()) {
      const std::uint32_t step = done_.back();
      done_.pop_back();
      ++ended_;
      for (std::uint32_t f = follower_begin_[step]; f < follower_begin_[step + 1]; ++f)
        if (--missing_[followers_[f]] == 0) ready(now, followers_[f]);
    }
    network_.settle(now);
  }

  const CollectiveSchedule& s_;
  kernel::EventQueue queue_;
  FlowNetwork network_;
  std::vector<std::uint32_t> current_;  // [path] step on the wire
  // [path] steps in the order they became ready
  std::vector<std::vector<std::uint32_t>> waiting_;
  std::vector<std::size_t> first_waiting_;
  std::vector<std::uint32_t> missing_;  // [step] dependencies that have not ended
  std::vector<std::uint32_t> follower_begin_, followers_;
  std::vector<std::uint32_t> path_of_flow_, freed_, done_;
  std::size_t ended_ = 0;
  std::uint64_t events_ = 0, messages_ = 0;
};

/// The link that the schedule keeps busy longest, and for how long.
std::pair<std::optional<topologies::LinkId>, double> busiest(const topologies::Topology& topology,
                                                             const CollectiveSchedule& s) {
  std::vector<std::int64_t> uses(s.paths.size(), 0);
  for (const auto& step : s.steps)
    if (step.path != CollectiveSchedule::kNoPath) ++uses[step.path];
  std::vector<double> bytes(topology.links().size(), 0);
  for (std::size_t p = 0; p < s.paths.size(); ++p)
    for (const auto& load : s.paths[p].links)
      bytes[load.link.raw()] += real(uses[p]) * real(s.paths[p].wire_bytes) * real(load.flows);
  std::pair<std::optional<topologies::LinkId>, double> best{{}, 0};
  for (std::uint32_t l = 0; l < bytes.size(); ++l) {
    const double seconds = bytes[l] / real(topology.links()[l].bytes_per_second);
    if (seconds > best.second) best = {topologies::LinkId(l), seconds};
  }
  return best;
}

}  // namespace

CollectiveResult run_schedule(const topologies::Topology& topology,
                              const CollectiveSchedule& schedule,
                              std::span<const BackgroundFlow> background) {
  CollectiveResult result = Runner(topology, schedule, background).run();
  const auto [link, seconds] = busiest(topology, schedule);
  if (link) result.bottleneck = topologies::link_name(topology, *link);
  if (result.time_ps > 0) result.bottleneck_busy = seconds * 1e12 / real(result.time_ps);
  return result;
}

namespace {

/// T(r) and the busy time of the bottleneck are linear between and beyond two runs.
CollectiveResult extended(const CollectiveResult& a, const CollectiveResult& b, double at_a,
                          double at_b, double at) {
  const double slope = (at - at_b) / (at_b - at_a);
  const double time_a = real(a.time_ps), time_b = real(b.time_ps);
  const double time = time_b + slope * (time_b - time_a);
  const double busy_a = a.bottleneck_busy * time_a, busy_b = b.bottleneck_busy * time_b;
  CollectiveResult result = b;
  result.time_ps = static_cast<std::int64_t>(std::ceil(time));
  result.bottleneck_busy = (busy_b + slope * (busy_b - busy_a)) / time;
  result.events += a.events;
  result.messages += a.messages;
  result.folded = true;
  return result;
}

CollectiveResult full_pipeline(CollectiveResult round, const costmodel::CollectiveForms& forms,
                               const CollectiveRequest& request) {
  const double busy = round.bottleneck_busy * real(round.time_ps) * real(request.terms.repeats);
  round.time_ps = forms.paced_ps(request.op, request.terms, round.time_ps);
  round.bottleneck_busy = busy / real(round.time_ps);
  round.folded = true;
  return round;
}

}  // namespace

CollectiveResult run_collective(const topologies::Topology& topology,
                                const costmodel::CollectiveForms& forms,
                                const CollectiveRequest& request, std::int64_t max_steps,
                                std::span<const BackgroundFlow> background) {
  const std::int64_t all = request.terms.repeats;
  const auto run = [&](std::int64_t repeats) {
    return run_schedule(topology, make_schedule(topology, forms, request, repeats), background);
  };
  const std::int64_t affordable =
      std::max<std::int64_t>(3, max_steps / schedule_steps(topology, forms, request, 1));
  const bool ring = request.terms.algorithm == Algorithm::kRing,
             chain = ring && request.op == model::Collective::kBroadcast;
  const bool rounds = (ring && !chain) || request.terms.algorithm == Algorithm::kHierarchical;
  // elsewhere three rounds in step say nothing of the fourth
  const bool alike = background.empty() && !topology.changed();
  const double end = real(all);
  if (all <= 3 || (all <= affordable && !(rounds && alike))) return run(all);
  if (rounds && alike) {
    const CollectiveResult a = run(1), b = run(2), c = run(3);
    if (c.time_ps - b.time_ps == b.time_ps - a.time_ps) return extended(a, b, 1, 2, end);
    if (all <= affordable) return run(all);
  }
  if (rounds) {
    // Rounds out of step have several times the events of rounds in step.
    const std::int64_t many = std::max<std::int64_t>(4, affordable / 3), few = many / 2;
    return extended(run(few), run(many), real(few), real(many), end);
  }
  if (ring || request.terms.algorithm == Algorithm::kTree)
    return full_pipeline(run_schedule(topology, make_round(topology, forms, request), background),
                         forms, request);
  const std::int64_t few = std::max<std::int64_t>(1, affordable / 3);
  return extended(run(few), run(2 * few), 1.0 / real(few), 0.5 / real(few), 1.0 / end);
}

}  // namespace orrery::sim
