#include "search/programs/convex_cost.h"

#include <algorithm>

#include "base/numbers.h"
#include "search/programs/layer_relaxation.h"

namespace orrery::search {

ConvexCost::ConvexCost(std::span<const Line> lines, int fewest, int most)
    : fewest_(fewest), most_(most) {
  if (!possible()) return;
  struct Active {
    Line line;
    __int128 from = 0;
  };
  std::vector<Active> envelope;
  for (const Line& l : lines) {
    __int128 from = fewest;
    while (!envelope.empty()) {
      const Active& top = envelope.back();
      const __int128 rise = l.slope - top.line.slope, behind = top.line.constant - l.constant;
      if (rise > 0)
        from = std::max<__int128>(fewest, ceil_divide(behind, rise));
      else
        from = behind > 0 ? static_cast<__int128>(most) + 1 : fewest;
      if (from > top.from) break;
      envelope.pop_back();
    }
    if (from <= most) envelope.push_back({l, from});
  }
  const auto value = [](const Line& l, int n) { return l.constant + l.slope * n; };
  for (std::size_t i = 0; i < envelope.size(); ++i) {
    const Line& line = envelope[i].line;
    const int from = as_int(envelope[i].from);
    if (i > 0) {
      const Line& before = envelope[i - 1].line;
      const __int128 reached = value(before, from - 1);
      if (pieces_.back().from == from - 1)
        pieces_.back().slope = value(line, from) - reached;
      else
        pieces_.push_back({from - 1, reached, value(line, from) - reached});
    }
    pieces_.push_back({from, value(line, from), line.slope});
  }
}

ConvexCost::ConvexCost(const ConvexCost& f, const ConvexCost& g) {
  if (!f.possible() || !g.possible()) return;
  fewest_ = f.fewest_ + g.fewest_;
  most_ = f.most_ + g.most_;
  const std::vector<Run> a = f.runs(), b = g.runs();
  Piece next{fewest_, f.at(f.fewest_) + g.at(g.fewest_), 0};
  pieces_.reserve(a.size() + b.size() + 1);
  for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const Run& run = j == b.size() || (i < a.size() && a[i].slope <= b[j].slope) ? a[i++] : b[j++];
    next.slope = run.slope;
    if (pieces_.empty() || pieces_.back().slope != run.slope) pieces_.push_back(next);
    next.from += run.layers;
    next.value += run.slope * run.layers;
  }
  if (pieces_.empty()) pieces_.push_back(next);
}

void ConvexCost::restrict_to(int fewest, int most) {
  fewest_ = std::max(fewest_, fewest);
  most_ = std::min(most_, most);
}

const ConvexCost::Piece& ConvexCost::piece(int layers) const {
  return *(std::ranges::upper_bound(pieces_, layers, {}, &Piece::from) - 1);
}

__int128 ConvexCost::at(int layers) const {
  if (layers < fewest_ || layers > most_) return kNever;
  const Piece& p = piece(layers);
  return p.value + p.slope * (layers - p.from);
}

int ConvexCost::most_within(__int128 limit) const {
  if (!possible() || at(fewest_) > limit) return fewest_ - 1;
  const auto beyond = std::ranges::partition_point(
      pieces_, [&](const Piece& p) { return p.from <= fewest_ || p.value <= limit; });
  const Piece& p = *(beyond - 1);
  if (p.slope <= 0) return most_;
  return as_int(std::min<__int128>(most_, p.from + (limit - p.value) / p.slope));
}

std::vector<ConvexCost::Run> ConvexCost::runs() const {
  std::vector<Run> all;
  if (fewest_ >= most_) return all;
  const Piece* const last = &pieces_.back();
  for (const Piece* p = &piece(fewest_); p <= last && p->from < most_; ++p) {
    const int end = p == last ? most_ : std::min(most_, p[1].from);
    all.push_back({p->slope, end - std::max(p->from, fewest_)});
  }
  return all;
}

LeastSum::LeastSum(std::span<const ConvexCost> stages, bool first) : stages_(stages) {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    base_ += stages[i].at(stages[i].fewest());
    fewest_ += stages[i].fewest();
    most_ += stages[i].most();
    for (const ConvexCost::Run& run : stages[i].runs()) next_.push_back({run, i});
  }
  std::ranges::sort(next_, [first](const Next& a, const Next& b) {
    if (a.run.slope != b.run.slope) return a.run.slope < b.run.slope;
    return first ? a.stage < b.stage : a.stage > b.stage;
  });
}

/// Of so many layers beyond the fewest, none of them in stage `without`.
__int128 LeastSum::extra(int layers, std::size_t without) const {
  __int128 sum = 0;
  for (const Next& n : next_) {
    if (layers == 0) break;
    if (n.stage == without) continue;
    const int taken = std::min(layers, n.run.layers);
    sum += n.run.slope * taken;
    layers -= taken;
  }
  return sum;
}

__int128 LeastSum::value(int layers) const {
  if (layers < fewest_ || layers > most_) return kNever;
  return base_ + extra(layers - fewest_, stages_.size());
}

__int128 LeastSum::value_through(int layers, std::size_t stage, int own) const {
  const ConvexCost& f = stages_[stage];
  const int others = layers - own, fewest = fewest_ - f.fewest();
  if (f.at(own) >= kNever || others < fewest || others > most_ - f.most()) return kNever;
  return base_ - f.at(f.fewest()) + f.at(own) + extra(others - fewest, stage);
}

std::vector<int> LeastSum::partition(int layers) const {
  std::vector<int> counts;
  for (const ConvexCost& f : stages_) counts.push_back(f.fewest());
  int left = layers - fewest_;
  for (const Next& n : next_) {
    const int taken = std::min(left, n.run.layers);
    counts[n.stage] += taken;
    left -= taken;
  }
  return counts;
}

__int128 least_maximum(std::span<const ConvexCost> stages, int layers) {
  int fewest = 0, most = 0;
  __int128 low = 0, high = 0;
  for (const ConvexCost& f : stages) {
    if (!f.possible()) return kNever;
    fewest += f.fewest();
    most += f.most();
    low = std::max(low, f.at(f.fewest()));
    high = std::max(high, f.at(f.most()));
  }
  if (layers < fewest || layers > most) return kNever;
  // A level that gives nearly as many layers: few steps are left to the loops below.
  std::vector<int> counts(stages.size());
  const auto fill = [&](__int128 level) {
    int sum = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) sum += counts[i] = stages[i].most_within(level);
    return sum;
  };
  int sum = fill(low);
  const int near = as_int(stages.size());
  while (low < high && (sum < layers - near || sum > layers + near)) {
    const __int128 middle = low + (high - low) / 2;
    sum = fill(middle);
    if (sum < layers)
      low = middle + 1;
    else
      high = middle;
  }
  for (; sum != layers; sum += sum < layers ? 1 : -1) {
    // The cheapest next layer, or the dearest last one.
    std::size_t best = stages.size();
    __int128 value = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (sum < layers ? counts[i] == stages[i].most() : counts[i] == stages[i].fewest()) continue;
      const __int128 own = stages[i].at(counts[i] + (sum < layers ? 1 : 0));
      if (best < stages.size() && (sum < layers ? own >= value : own <= value)) continue;
      best = i;
      value = own;
    }
    counts[best] += sum < layers ? 1 : -1;
  }
  __int128 largest = 0;
  for (std::size_t i = 0; i < stages.size(); ++i)
    largest = std::max(largest, stages[i].at(counts[i]));
  return largest;
}

}  // namespace orrery::search
