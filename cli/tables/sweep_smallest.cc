#include "cli/tables/sweep_smallest.h"

#include <algorithm>
#include <map>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/refuse.h"

namespace orrery::cli {
namespace {

/// Hosts of each point, ascending.
Result<std::vector<long long>> hosts_of(const Sweep& sweep) {
  std::vector<long long> hosts;
  for (const Assignment& point : sweep.points) {
    const auto at = std::ranges::find(point, "hosts", &Assignment::value_type::first);
    const auto number =
        at == point.end() ? std::nullopt : base::parse_integer(std::string_view(at->second));
    if (sweep.axes.size() != 1 || !number || (!hosts.empty() && *number <= hosts.back()))
      return refuse(kUsage, "--vary hosts=1..512:1 tries every number of hosts",
                    "--smallest goes with one axis, of hosts that ascend");
    hosts.push_back(*number);
  }
  return hosts;
}

/// The least hosts whose peak could meet the deadline; 1 where nothing is known.
double least_hosts(const PointResult& known, double hosts, const SmallestLimits& limits) {
  if (known.status != PointStatus::kOk || limits.deadline.raw() <= 0 || known.mfu <= 0) return 1;
  // At MFU 1 a device of the plan makes 1 / MFU times the tokens it makes now.
  const double peak_rate_of_host =
      known.tokens_per_s() / known.mfu / real(known.ranks) * (real(known.devices) / hosts);
  return limits.tokens / limits.deadline.raw() / peak_rate_of_host;
}

bool meets(const PointResult& r) { return r.status == PointStatus::kOk && r.met.value_or(false); }

}  // namespace

Result<void> find_smallest(
    Sweep& sweep, const SmallestLimits& limits, std::size_t at_a_time,
    const std::function<std::vector<PointResult>(const std::vector<Assignment>&)>& run) {
  TRY(const std::vector<long long> hosts, hosts_of(sweep));
  const PointResult largest = run({sweep.points.back()}).front();
  const double least = least_hosts(largest, real(hosts.back()), limits);
  std::vector<Assignment> tried;
  std::vector<PointResult> results;
  std::size_t next = 0;
  while (next + 1 < sweep.points.size() && real(hosts[next]) < least) ++next;
  while (next + 1 < sweep.points.size() && (results.empty() || !meets(results.back()))) {
    const std::size_t end = std::min(next + at_a_time, sweep.points.size() - 1);
    const std::vector<Assignment> batch(sweep.points.begin() + static_cast<std::ptrdiff_t>(next),
                                        sweep.points.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<PointResult> found = run(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      tried.push_back(batch[i]);
      results.push_back(found[i]);
      if (meets(found[i])) break;
    }
    next = end;
  }
  if (results.empty() || !meets(results.back())) {
    tried.push_back(sweep.points.back());
    results.push_back(largest);
  }
  sweep.points = std::move(tried);
  sweep.results = std::move(results);
  return {};
}

}  // namespace orrery::cli
