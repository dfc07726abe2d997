/// \file
/// Layouts and strategies by name, and layouts as partitions of the stream.

#include <bit>
#include <initializer_list>

#include "base/numbers.h"
#include "plan/lowering/builder.h"

namespace orrery::plan {

namespace {

Sequence splits_of(std::initializer_list<std::pair<Dimension, int>> degrees) {
  Sequence s;
  for (const auto& [dimension, degree] : degrees)
    s.resize(s.size() + as_index(std::countr_zero(as_u32(degree))), Element{.split = dimension});
  return s;
}

}  // namespace

Layout::Layout(const LayerRun& run) : Layout(run.strategy) {
  if (run.partition.empty()) return;
  stream = run.partition.front();
  const Partition p(stream);
  dp = p.slices(Dimension::kBatch);
  cp = p.slices(Dimension::kTokens);
  parts = p.slices(Dimension::kOut);
}

bool same_layout(const LayerRun& a, const LayerRun& b) {
  if (a.partition.empty() && b.partition.empty()) return a.strategy.same_layout(b.strategy);
  return Layout(a) == Layout(b);
}

Sequence Layout::sequence() const {
  if (partitioned()) return stream;
  const Dimension tensor = sequence_parallel ? Dimension::kTokens : Dimension::kReplicas;
  if (strided) return splits_of({{tensor, tp}, {Dimension::kBatch, dp}, {Dimension::kTokens, cp}});
  return splits_of({{Dimension::kBatch, dp}, {Dimension::kTokens, cp}, {tensor, tp}});
}

std::string Layout::tag() const {
  if (partitioned()) return "partition " + to_string(stream);
  // many a second: fmt::format takes five times as long
  const std::string context = cp > 1 ? " cp" + std::to_string(cp) : "";
  return "tp" + std::to_string(tp) + (strided ? " strided" : "") + context + " dp" +
         std::to_string(dp) + (sequence_parallel ? " sp" : "");
}

std::string sharding_tag(const LayerStrategy& s) {
  std::string tag;
  if (s.zero > 0) tag += fmt::format(" z{}", s.zero);
  if (s.grad_reduce == GradReduce::kMicroBatch) tag += " mb";
  if (s.grad_reduce == GradReduce::kEnd) tag += " end";
  return tag;
}

std::string strategy_tag(const LayerStrategy& s) {
  std::string tag = Layout(s).tag();
  const auto add = [&](std::string_view word, auto... number) {
    tag += word;
    (tag.append(std::to_string(number)), ...);
  };
  if (s.cp > 1) add(" "), add(to_string(s.context));
  if (s.ep > 1) add(" ep", s.ep);
  if (s.folded) add(" folded");
  add(" z", s.zero);
  if (s.operators != ShardedOperators::kAll) add(" "), add(to_string(s.operators));
  if (s.slices > 1) add(" slices", s.slices);
  if (s.shard > 0) add(" shard", s.shard);
  if (s.grad_reduce == GradReduce::kMicroBatch) add(" mb");
  if (s.grad_reduce == GradReduce::kEnd) add(" end");
  if (s.tensor_pieces > 1) add(" pieces", s.tensor_pieces);
  if (s.states == States::kHost) add(" host states");
  if (s.recompute != Recompute::kNone) add(" "), add(to_string(s.recompute));
  return tag;
}

}  // namespace orrery::plan
