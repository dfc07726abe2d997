#pragma once
/// Brute force over whole pipelines, by the definitions of layer_program.h and pipeline_program.h:
/// all partitions, all layouts at boundaries, all canonical sequences of every stage. Only what is
/// over a budget or already dearer than the best is left out.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "search/programs/pipeline_program.h"
#include "tests/oracle/search/random_layers.h"

namespace orrery::search {

/// One canonical sequence of options, without entry, exit and what a stage adds.
struct SequenceCost {
  int first = 0, last = 0;  // layouts
  std::int64_t steady_ps = 0, once_ps = 0, peak_bytes = 0;
};

/// All canonical sequences of `count` layers whose peak is at most `budget`.
class EverySequence {
 public:
  EverySequence(const LayerProblem& problem, int count, std::int64_t budget)
      : p_(problem), count_(static_cast<std::size_t>(count)), budget_(budget) {
    visit(0, 0, 0);
  }
  std::vector<SequenceCost> all;

 private:
  void visit(std::int64_t steady, std::int64_t once, std::int64_t memory) {
    if (memory > budget_) return;  // the peak is never less
    if (layers_.size() == count_) {
      const std::int64_t peak = naive_peak(p_, layers_);
      if (peak <= budget_)
        all.push_back({layers_.front().layout, layers_.back().layout, steady, once, peak});
      return;
    }
    for (std::size_t o = 0; o < p_.options.size(); ++o) {
      const LayerOption& option = p_.options[o];
      layers_.push_back(option);
      sequence_.push_back(o);
      const std::size_t at = layers_.size() - 1;
      if (follows(layers_, sequence_, at)) {
        const std::int64_t change = at == 0 || p_.transition_ps.empty()
                                        ? 0
                                        : p_.transition_ps[static_cast<std::size_t>(
                                              layers_[at - 1].layout * p_.layouts + option.layout)];
        visit(steady + option.steady_ps + change, once + option.once_ps,
              memory + option.memory_bytes);
      }
      layers_.pop_back();
      sequence_.pop_back();
    }
  }
  const LayerProblem& p_;
  std::size_t count_;
  std::int64_t budget_;
  std::vector<LayerOption> layers_;
  std::vector<std::size_t> sequence_;
};

/// The best of every partition.
class EveryPipeline {
 public:
  explicit EveryPipeline(const PipelineProblem& p) : p_(p) { partitions(p.layers); }
  /// By layers of each stage; only partitions that some choice fits.
  std::map<std::vector<int>, std::int64_t> best_ps;

  /// kForbidden: nothing fits.
  [[nodiscard]] std::int64_t best() const {
    std::int64_t least = kForbidden;
    for (const auto& [partition, ps] : best_ps) least = std::min(least, ps);
    return least;
  }

 private:
  struct Point {
    int last = 0;
    std::int64_t steady_ps = 0, total_ps = 0;
  };
  static std::int64_t at(const std::vector<std::int64_t>& values, int layout) {
    return values.empty() || layout < 0 ? 0 : values[static_cast<std::size_t>(layout)];
  }

  /// Of one stage that receives in layout `entry`: every end, without points that another of the
  /// same end beats.
  const std::vector<Point>& points(std::size_t i, int entry, int count) {
    const auto [place, fresh] = points_.try_emplace({i, entry, count});
    if (!fresh) return place->second;
    const PipelineStage& s = p_.stages[i];
    const LayerProblem& p = s.layers;
    std::vector<Point> all;
    for (const SequenceCost& c : sequences(i, count)) {
      if (c.peak_bytes + at(s.arrival_bytes, entry) + at(s.departure_bytes, c.last) >
          p.budget_bytes)
        continue;
      std::int64_t steady =
          s.steady_ps + c.steady_ps + at(s.receive_ps, entry) + at(s.return_ps, c.last);
      if (entry < 0) steady += at(p.entry_ps, c.first);
      if (entry >= 0 && !p.transition_ps.empty())
        steady += p.transition_ps[static_cast<std::size_t>(entry * p.layouts + c.first)];
      if (i + 1 == p_.stages.size()) steady += at(p.exit_ps, c.last);
      all.push_back({c.last, steady, steady + s.once_ps + c.once_ps + at(s.send_ps, c.last)});
    }
    std::ranges::sort(all, {},
                      [](const Point& a) { return std::tuple(a.last, a.steady_ps, a.total_ps); });
    for (const Point& point : all) {
      if (!place->second.empty() && place->second.back().last == point.last &&
          place->second.back().total_ps <= point.total_ps)
        continue;
      place->second.push_back(point);
    }
    return place->second;
  }
  const std::vector<SequenceCost>& sequences(std::size_t i, int count) {
    const auto [place, fresh] = sequences_.try_emplace({i, count});
    if (fresh)
      place->second = std::move(
          EverySequence(p_.stages[i].layers, count, p_.stages[i].layers.budget_bytes).all);
    return place->second;
  }

  void partitions(int left) {
    const std::size_t i = partition_.size();
    if (i == p_.stages.size()) {
      if (left != 0) return;
      best_ = kForbidden;
      walk(0, -1, 0, 0);
      if (best_ < kForbidden) best_ps[partition_] = best_;
      return;
    }
    for (int count = p_.stages[i].fewest; count <= std::min(left, p_.stages[i].most); ++count) {
      partition_.push_back(count);
      partitions(left - count);
      partition_.pop_back();
    }
  }
  void walk(std::size_t i, int entry, std::int64_t slowest, std::int64_t sum) {
    const std::int64_t cost = sum + (p_.micro_batches - 1) * slowest;
    if (cost >= best_) return;
    if (i == p_.stages.size()) {
      best_ = cost;
      return;
    }
    for (const Point& point : points(i, entry, partition_[i]))
      walk(i + 1, point.last, std::max(slowest, point.steady_ps), sum + point.total_ps);
  }

  const PipelineProblem& p_;
  // stage, entry, count
  std::map<std::tuple<std::size_t, int, int>, std::vector<Point>> points_;
  std::map<std::pair<std::size_t, int>, std::vector<SequenceCost>> sequences_;  // stage, count
  std::vector<int> partition_;
  std::int64_t best_ = kForbidden;  // of it
};

}  // namespace orrery::search
