#include "search/programs/layer_order.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace orrery::search {

std::int64_t peak_of(const LayerProblem& problem, const std::vector<std::int32_t>& sequence) {
  const auto option = [&](std::size_t i) -> const LayerOption& {
    return problem.options[as_index(sequence[i])];
  };
  std::int64_t memory = 0, stash = 0, step = problem.front_step_bytes, behind = 0;
  std::int64_t need = problem.transient_floor_bytes, ahead = problem.back_neighbour_bytes;
  for (std::size_t i = sequence.size(); i-- > 0;) {
    const LayerOption& o = option(i);
    const std::int64_t before = i > 0 ? option(i - 1).neighbour_bytes : 0;
    need = std::max({need, o.transient_bytes + before - behind, o.forward_bytes + ahead - behind});
    behind += o.stash_bytes;
    ahead = o.neighbour_bytes;
    memory += o.memory_bytes;
    stash += o.stash_bytes;
    step = std::max(step, o.step_bytes);
  }
  const std::int64_t front =
      std::max(problem.front_transient_bytes, problem.front_forward_bytes + ahead);
  return memory + std::max({need, front - stash, step - problem.flight * stash});
}

LayerOrder::LayerOrder(const LayerProblem& problem, const std::vector<Column>& columns,
                       const LayoutPaths& paths)
    : problem_(problem), columns_(columns), paths_(paths), by_transient_(columns.size()) {
  std::iota(by_transient_.begin(), by_transient_.end(), std::size_t{0});
  std::ranges::stable_sort(by_transient_, [&](std::size_t x, std::size_t y) {
    return columns_[x].values.transient_bytes > columns_[y].values.transient_bytes;
  });
}

std::optional<RunOrder> LayerOrder::find(const std::vector<std::int32_t>& counts,
                                         std::uint64_t layouts, std::int64_t path_limit,
                                         std::int64_t spare) {
  counts_ = &counts;
  spare_ = spare;
  runs_.clear();
  left_.assign(as_index(problem_.layouts), 0);
  std::int64_t step = problem_.front_step_bytes, stash = 0;
  for (const std::size_t c : by_transient_) {
    if (counts[c] == 0) continue;
    const LayerOption& o = columns_[c].values;
    step = std::max(step, o.step_bytes);
    stash += o.stash_bytes * counts[c];
    runs_.push_back(c);
    ++left_[as_index(o.layout)];
  }
  least_need_ = std::max(problem_.transient_floor_bytes, step - problem_.flight * stash);
  least_path_ = paths_.cost(layouts);
  best_ = RunOrder{{}, path_limit, 0};
  // The run with the least transient comes last at best.
  refused_ = nodes_ = 0;
  gathers_ = cramped_ = false;
  if (least_need_ > spare || columns_[runs_.back()].values.transient_bytes > spare)
    return std::nullopt;
  gathers_ = problem_.check != nullptr && std::ranges::any_of(runs_, [&](std::size_t c) {
               return columns_[c].values.neighbour_bytes > 0;
             });
  if (gathers_ && every_order_needs_more(spare)) return std::nullopt;
  trail_ = {};
  every_order_ = problem_.check != nullptr && runs_.size() <= kFewRuns;
  placed_.assign(runs_.size(), false);
  descend(runs_.size(), problem_.front_transient_bytes);
  if (best_.columns.empty()) return std::nullopt;
  return best_;
}

bool LayerOrder::every_order_needs_more(std::int64_t spare) {
  const auto values = [&](std::size_t c) -> const LayerOption& { return columns_[c].values; };
  const auto count = [&](std::size_t c) { return std::int64_t{(*counts_)[c]}; };
  // Least gathers of two layers: no other than `first` gathers less than `second`.
  std::int64_t first = kForbidden, second = kForbidden, gatherers = 0;
  for (const std::size_t c : runs_) {
    const std::int64_t bytes = values(c).neighbour_bytes;
    if (bytes == 0) continue;
    gatherers += count(c);
    second = std::min(second, count(c) > 1 ? bytes : std::max(bytes, first));
    first = std::min(first, bytes);
    second = std::max(first, second);
  }
  waiting_.clear();
  for (const std::size_t c : runs_) {
    const bool alone = values(c).neighbour_bytes == first && count(c) == 1;
    waiting_.emplace_back(values(c).transient_bytes + (alone ? second : first), c);
  }
  std::ranges::sort(waiting_);  // those that need least first; order among equals is all one
  std::int64_t placed = 0, behind = 0;
  for (const auto& [need, c] : waiting_) {
    if (placed >= gatherers - 1) break;
    if (need - behind > spare) return true;
    placed += count(c);
    behind += values(c).stash_bytes * count(c);
  }
  behind = 0;
  for (std::size_t r = runs_.size(); r-- > 0;) {  // least transients first
    if (values(runs_[r]).transient_bytes - behind > spare) return true;
    behind += values(runs_[r]).stash_bytes * count(runs_[r]);
  }
  return false;
}

/// need' of the header, what the run's successor adds to the last forward left out.
std::int64_t LayerOrder::after(const RunOrder& trail, std::int64_t need, std::size_t column) const {
  const LayerOption& o = columns_[column].values;
  const std::int64_t count = (*counts_)[column], behind = o.stash_bytes * (count - 1);
  std::int64_t before = 0;
  if (trail.columns.empty()) {
    need = std::max(need, problem_.front_forward_bytes + o.neighbour_bytes);
  } else {
    const LayerOption& previous = columns_[trail.columns.back()].values;
    before = previous.neighbour_bytes;
    // The next gather runs ahead whatever stands between: the form leaves that to the check.
    for (std::size_t r = trail.columns.size(); problem_.check != nullptr && before == 0 && r-- > 0;)
      before = columns_[trail.columns[r]].values.neighbour_bytes;
    need = std::max(need, previous.forward_bytes + o.neighbour_bytes);
  }
  need = std::max(need - behind - o.stash_bytes, o.transient_bytes + before - behind);
  if (count == 1) return need;
  return std::max({need, o.transient_bytes + o.neighbour_bytes,
                   o.forward_bytes + o.neighbour_bytes - o.stash_bytes});
}

void LayerOrder::close(std::int64_t need) {
  const LayerOption& last = columns_[trail_.columns.back()].values;
  const std::int64_t total = trail_.path_ps + paths_.exit(last.layout);
  const std::int64_t peak =
      std::max({need, last.forward_bytes + problem_.back_neighbour_bytes, least_need_});
  if (total >= best_.path_ps) return;
  cramped_ = cramped_ || (gathers_ && peak > spare_);
  if (peak <= spare_ && accepted()) best_ = {trail_.columns, total, peak};
}

bool LayerOrder::accepted() {
  if (problem_.check == nullptr || problem_.check->fits(sequence(*counts_, trail_))) return true;
  ++refused_;
  return false;
}

void LayerOrder::descend(std::size_t left, std::int64_t need) {
  if (problem_.check != nullptr && (refused_ >= kRefusals || ++nodes_ > kNodes)) return;
  if (trail_.path_ps >= best_.path_ps || (best_.path_ps == least_path_ && !best_.columns.empty()))
    return;
  if (left == 0) {
    close(need);
    return;
  }
  const int here = trail_.columns.empty() ? -1 : columns_[trail_.columns.back()].values.layout;
  const bool stay = here >= 0 && left_[as_index(here)] > 0;
  std::uint64_t seen = 0;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int layout = columns_[runs_[r]].values.layout;
    // Of a layout only the first run not yet placed, unless the form leaves something to the check.
    if (placed_[r] || (stay && layout != here) || (!every_order_ && (seen >> layout & 1U) != 0))
      continue;
    seen |= std::uint64_t{1} << layout;
    std::int64_t step = 0;
    if (here < 0)
      step = paths_.entry(layout);
    else if (layout != here)
      step = paths_.transition(here, layout);
    if (step >= kForbidden) continue;
    const std::int64_t next = after(trail_, need, runs_[r]);
    placed_[r] = true;
    --left_[as_index(layout)];
    trail_.columns.push_back(runs_[r]);
    trail_.path_ps += step;
    descend(left - 1, next);
    trail_.path_ps -= step;
    trail_.columns.pop_back();
    ++left_[as_index(layout)];
    placed_[r] = false;
  }
}

std::vector<std::int32_t> LayerOrder::sequence(const std::vector<std::int32_t>& counts,
                                               const RunOrder& order) const {
  std::vector<std::int32_t> result;
  for (const std::size_t column : order.columns) {
    result.insert(result.end(), as_index(counts[column]), columns_[column].option);
  }
  return result;
}

}  // namespace orrery::search
