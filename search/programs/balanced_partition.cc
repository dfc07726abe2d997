#include "search/programs/balanced_partition.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

#include "base/check.h"

namespace orrery::search {
namespace {

__extension__ typedef __int128 Wide;

/// What stages hold under step 1; sums over layers by prefix.
class Division {
 public:
  Division(const std::vector<std::int64_t>& layers, const std::vector<std::int64_t>& rest)
      : layers_(layers), rest_(rest), stages_(rest.size()), counts_(rest.size(), 0) {
    for (const std::int64_t v : layers) total_ += v;
    for (const std::int64_t v : rest) total_ += v;
  }
  Partition run() {
    fill();
    relieve();
    for (std::size_t i = 0; i + 1 < counts_.size(); ++i) take(i, i + 1);
    for (std::size_t i = counts_.size(); i-- > 1;) take(i, i - 1);
    return counts_;
  }

 private:
  /// Step a. A - has < w / 2, times 2 P.
  void fill() {
    std::size_t next = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      Wide has = rest_[i];
      const bool last = i + 1 == counts_.size();
      while (next < layers_.size() &&
             (last || 2 * (total_ - stages_ * has) >= stages_ * layers_[next])) {
        has += layers_[next++];
        ++counts_[i];
      }
    }
  }
  /// Step b. has > 1.3 A, times 10 P.
  void relieve() {
    std::size_t end = 0;
    for (std::size_t i = 0; i + 1 < counts_.size(); ++i) {
      Wide has = rest_[i];
      for (int k = 0; k < counts_[i]; ++k) has += layers_[end++];
      while (counts_[i] > 0 && 10 * stages_ * has > 13 * total_) {
        has -= layers_[--end];
        --counts_[i];
        ++counts_[i + 1];
      }
    }
  }
  /// Step c.
  void take(std::size_t to, std::size_t from) {
    for (; counts_[to] <= 0; ++counts_[to]) --counts_[from];
  }

  const std::vector<std::int64_t>& layers_;
  const std::vector<std::int64_t>& rest_;
  Wide stages_ = 0, total_ = 0;
  Partition counts_;
};

std::optional<std::vector<StageLoad>> optimise(const Partition& partition,
                                               StageOptimizer& optimizer) {
  std::vector<StageLoad> stages;
  int first = 0;
  for (const int count : partition) {
    const auto load = optimizer.best(stages.size(), first, count);
    if (!load) return std::nullopt;
    stages.push_back(*load);
    first += count;
  }
  return stages;
}

std::int64_t slowest_ps(const std::vector<StageLoad>& stages) {
  return std::ranges::max(stages, {}, &StageLoad::steady_ps).steady_ps;
}

BalancedPartition judge(const Partition& partition, std::vector<StageLoad> stages,
                        std::int64_t micro_batches) {
  BalancedPartition b{.partition = partition, .stages = std::move(stages)};
  std::vector<std::int64_t> times, bytes;
  for (const StageLoad& s : b.stages) {
    times.push_back(s.steady_ps);
    bytes.push_back(s.peak_bytes);
    b.cost_ps += s.steady_ps + s.once_ps;
  }
  b.cost_ps += (micro_batches - 1) * slowest_ps(b.stages);
  b.time_balance = balance_degree(times);
  b.memory_balance = balance_degree(bytes);
  return b;
}

}  // namespace

double balance_degree(const std::vector<std::int64_t>& stage_values) {
  ORRERY_CHECK(!stage_values.empty());
  const std::int64_t sum =
      std::accumulate(stage_values.begin(), stage_values.end(), std::int64_t{0});
  if (sum == 0) return 1.0 - 1.0 / static_cast<double>(stage_values.size());
  return 1.0 - static_cast<double>(std::ranges::max(stage_values)) / static_cast<double>(sum);
}

Partition balanced_division(const std::vector<std::int64_t>& layer_values,
                            const std::vector<std::int64_t>& stage_values) {
  ORRERY_CHECK(!stage_values.empty() && layer_values.size() >= stage_values.size(),
               "{} layers, {} stages", layer_values.size(), stage_values.size());
  return Division(layer_values, stage_values).run();
}

std::optional<BalancedPartition> balance(const Partition& memory_balanced,
                                         const Partition& time_balanced, std::int64_t micro_batches,
                                         StageOptimizer& optimizer) {
  ORRERY_CHECK(memory_balanced.size() == time_balanced.size() && !memory_balanced.empty() &&
               micro_batches >= 1);
  auto start = optimise(memory_balanced, optimizer);
  if (!start) return std::nullopt;
  std::int64_t fullest = std::numeric_limits<std::int64_t>::max();
  if (const auto by_time = optimise(time_balanced, optimizer))
    fullest = std::ranges::max(*by_time, {}, &StageLoad::peak_bytes).peak_bytes;

  BalancedPartition best = judge(memory_balanced, *start, micro_batches);
  std::set<Partition> seen{memory_balanced};
  std::deque<BalancedPartition> queue{best};
  int visited = 1;
  for (; !queue.empty(); queue.pop_front()) {
    const BalancedPartition& now = queue.front();
    const std::int64_t limit_ps = slowest_ps(now.stages);
    const auto slow = static_cast<std::size_t>(
        std::ranges::max_element(now.stages, {}, &StageLoad::steady_ps) - now.stages.begin());
    for (const bool ahead : {false, true}) {
      if (now.partition[slow] == 1 || (ahead ? slow + 1 == now.partition.size() : slow == 0))
        continue;
      Partition next = now.partition;
      --next[slow];
      ++next[ahead ? slow + 1 : slow - 1];
      if (!seen.insert(next).second) continue;
      ++visited;
      auto stages = optimise(next, optimizer);
      if (!stages || slowest_ps(*stages) > limit_ps ||
          std::ranges::max(*stages, {}, &StageLoad::peak_bytes).peak_bytes > fullest)
        continue;
      queue.push_back(judge(next, std::move(*stages), micro_batches));
      if (queue.back().cost_ps < best.cost_ps) best = queue.back();
    }
  }
  best.visited = visited;
  return best;
}

}  // namespace orrery::search
