#include "search/table/instance_labels.h"

#include <algorithm>
#include <limits>

#include "base/numbers.h"
#include "search/table/instance_repair.h"

namespace orrery::search {
namespace {

struct Label {
  std::int64_t time = 0, memory = 0;  // of the layers from here on, transitions among them counted
  std::int32_t option = 0;
  std::int32_t behind = -1;  // label of the next layer, in the pool
};

class InstanceLabels {
 public:
  InstanceLabels(const Instance& instance, const InstanceClasses& classes, const InstanceDual& dual,
                 InstanceAnswer& best, Effort& effort)
      : instance_(instance),
        classes_(classes),
        budget_(std::min(instance.budget_bytes, kMaxInstanceTotal)),
        best_(best),
        effort_(effort) {
    least_memory_ = price_paths(instance, classes, {0, 1});
    prices_.push_back(dual.potentials);
    const MemoryPrice& p = dual.best;
    if (p.price == 0) return;
    // Around λ: where a label has used more or less than its share, another price bounds the rest
    // better.
    for (const int k : {0, 2, 5}) {
      const std::int64_t parts = std::int64_t{1} << k;
      for (const std::int64_t price : {parts - 1, parts + 1}) {
        prices_.push_back(price_paths(instance, classes, {p.scale * parts, p.price * price}));
      }
    }
  }

  /// All answers of time <= limit. True: the best of them is in `best`; false: there is none, or
  /// effort is exhausted.
  bool run(std::int64_t limit) {
    limit_ = limit;
    pool_.assign(1, Label{});
    std::vector<std::vector<std::int32_t>> behind{{0}}, here;
    for (std::size_t i = instance_.layers.size(); i-- > 0;) {
      here.assign(classes_.count(i), {});
      for (std::size_t c = 0; c < here.size(); ++c) {
        extend(i, c, behind);
        keep(i, c, here[c]);
        if (effort_.exhausted) return false;
      }
      behind.swap(here);
    }
    if (behind.front().empty()) return false;
    // Frontiers ascend in time; the first keeps every tie-break.
    const Label& first = pool_[as_index(behind.front().front())];
    best_.totals = {first.time, first.memory};
    best_.choices = trace(behind.front().front(), {});
    return true;
  }

 private:
  /// Fills candidates_ with the labels of (layer, class) that can still lead to an answer within
  /// the limit.
  void extend(std::size_t layer, std::size_t of_class,
              const std::vector<std::vector<std::int32_t>>& behind) {
    candidates_.clear();
    set_thresholds(layer, of_class);
    const std::int64_t room = budget_ - least_memory_.ways[layer][of_class].totals.memory_bytes;
    const bool last = layer + 1 == instance_.layers.size();
    for (std::size_t s = 0; s < instance_.layers[layer].size(); ++s) {
      if (classes_.of(layer, s) != of_class) continue;
      const InstanceOption& o = instance_.layers[layer][s];
      for (std::size_t c = 0; c < behind.size(); ++c) {
        const std::int64_t time = o.time_ps + (last ? 0 : classes_.transition(layer, s, c));
        for (const std::int32_t id : behind[c]) {
          const Label& next = pool_[as_index(id)];
          const Label label{next.time + time, next.memory + o.memory_bytes,
                            static_cast<std::int32_t>(s), id};
          if (label.memory > room || !open(label)) continue;
          if (!effort_.spend()) return;
          candidates_.push_back(label);
        }
      }
    }
  }

  /// d U + e budget - P of every price.
  void set_thresholds(std::size_t layer, std::size_t of_class) {
    const std::int64_t limit = std::min(limit_, best_.totals.time_ps);
    thresholds_.clear();
    for (const Potentials& p : prices_)
      thresholds_.push_back(p.price.of(limit, budget_) - p.ways[layer][of_class].value);
  }
  bool open(const Label& label) const {
    for (std::size_t k = 0; k < prices_.size(); ++k) {
      if (prices_[k].price.of(label.time, label.memory) > thresholds_[k]) return false;
    }
    return true;
  }

  /// Candidates that no other beats in time and memory go to the pool, time ascending; of equal
  /// ones the one with the smallest options.
  void keep(std::size_t layer, std::size_t of_class, OptionPath& frontier) {
    const auto next_option = [&](const Label& l) { return pool_[as_index(l.behind)].option; };
    std::ranges::sort(candidates_, [&](const Label& x, const Label& y) {
      if (x.time != y.time) return x.time < y.time;
      if (x.memory != y.memory) return x.memory < y.memory;
      if (x.option != y.option) return x.option < y.option;
      return next_option(x) < next_option(y);
    });
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Label& label : candidates_) {
      if (label.memory >= least) continue;
      least = label.memory;
      frontier.push_back(static_cast<std::int32_t>(pool_.size()));
      pool_.push_back(label);
      for (const Potentials& p : prices_) complete(label, p, layer, of_class);
      complete(label, least_memory_, layer, of_class);
    }
  }

  void complete(const Label& label, const Potentials& p, std::size_t layer, std::size_t of_class) {
    const PathTotals& before = p.ways[layer][of_class].totals;
    const PathTotals whole{before.time_ps + label.time, before.memory_bytes + label.memory};
    if (whole.memory_bytes > budget_ || whole.time_ps >= best_.totals.time_ps) return;
    best_.totals = whole;
    best_.choices =
        trace(static_cast<std::int32_t>(pool_.size()) - 1, path_to(classes_, p, layer, of_class));
  }

  OptionPath trace(std::int32_t id, OptionPath before) const {
    for (; id > 0; id = pool_[as_index(id)].behind) {
      before.push_back(pool_[as_index(id)].option);
    }
    return before;
  }

  const Instance& instance_;
  const InstanceClasses& classes_;
  std::int64_t budget_;
  InstanceAnswer& best_;
  Effort& effort_;
  Potentials least_memory_;
  std::vector<Potentials> prices_;  // λ first
  std::int64_t limit_ = 0;
  std::vector<Wide> thresholds_;  // [price], of one (layer, class)
  std::vector<Label> candidates_;
  std::vector<Label> pool_;  // [0]: the end
};

}  // namespace

std::int64_t search_labels(const Instance& instance, const InstanceClasses& classes,
                           const InstanceDual& dual, InstanceAnswer& best, Effort& effort) {
  repair(instance, dual.beyond_path, best);
  InstanceLabels labels(instance, classes, dual, best, effort);
  std::int64_t proved = dual.bound_ps;
  std::int64_t width = std::max<std::int64_t>((best.totals.time_ps - proved) / 64, 1);
  for (;; width *= 2) {
    // `best` may fall while labels are completed, but not below the optimum.
    const std::int64_t limit = std::min(dual.bound_ps + width, best.totals.time_ps);
    if (labels.run(limit)) return best.totals.time_ps;
    if (effort.exhausted) return std::min(proved, best.totals.time_ps);
    proved = limit + 1;
  }
}

}  // namespace orrery::search
