#include "plan/program/plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/fingerprint.h"
#include "base/ids.h"
#include "base/json.h"
#include "plan/partition/layer_graph.h"

namespace orrery::plan {

std::string_view to_string(Schedule s) {
  return base::EnumNames<kLastSchedule>("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v",
                                        "dualpipe-v")[s];
}

int stage_of(Schedule s, int rank, int chunk, int ranks) {
  return is_v_shaped(s) && chunk == 1 ? 2 * ranks - 1 - rank : chunk * ranks + rank;
}

int rank_of(Schedule s, int stage, int ranks) {
  return is_v_shaped(s) && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks;
}

std::string_view to_string(Recompute r) {
  return base::EnumNames<kLastRecompute>("none", "selective", "operator", "full", "offload")[r];
}

std::string_view to_string(ContextKind c) {
  return base::EnumNames<ContextKind::kUlysses>("ring", "ulysses")[c];
}

std::string_view to_string(ShardedOperators o) {
  return base::EnumNames<ShardedOperators::kMlp>("all", "attention", "mlp")[o];
}

std::string_view to_string(GradReduce g) {
  return base::EnumNames<GradReduce::kEnd>("step", "micro_batch", "end")[g];
}

std::string_view to_string(States s) { return base::EnumNames<States::kHost>("device", "host")[s]; }

std::string beyond_degrees(const LayerStrategy& s) {
  std::string text;
  if (s.zero > 0) text += fmt::format(" zero{}", s.zero);
  if (s.shard > 0) text += fmt::format(" shard{}", s.shard);
  if (s.operators != ShardedOperators::kAll)
    text += fmt::format(" only={}", to_string(s.operators));
  if (s.slices > 1) text += fmt::format(" slices{}", s.slices);
  if (s.sequence_parallel) text += " sp";
  if (s.tensor_pieces > 1) text += fmt::format(" tensor_pieces={}", s.tensor_pieces);
  if (s.recompute != Recompute::kNone) text += fmt::format(" recompute={}", to_string(s.recompute));
  if (s.grad_reduce != GradReduce::kStep)
    text.append(" grad_reduce=").append(to_string(s.grad_reduce));
  if (s.states != States::kDevice) text.append(" states=").append(to_string(s.states));
  return text;
}

std::string to_string(const LayerStrategy& s) {
  std::string text = fmt::format("tp{}", s.tp);
  if (s.strided) text += " strided";
  if (s.cp > 1) text += fmt::format(" cp{} {}", s.cp, to_string(s.context));
  text += fmt::format(" dp{}", s.dp);
  if (s.ep > 1) text += fmt::format(" ep{}", s.ep);
  if (s.folded) text += " folded";
  return text + beyond_degrees(s);
}

int Stage::layers() const {
  int n = 0;
  for (const LayerRun& run : runs) n += run.count;
  return n;
}

std::span<const std::string_view> partitioned_operators() {
  static constexpr std::array<std::string_view, kStreamOut> kNames{
      "stream",     "qkv",           "scores", "softmax",    "values",
      "projection", "middle_stream", "mlp_in", "activation", "mlp_out"};
  return kNames;
}

bool is_partitioned(const Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const Stage& stage) {
    return std::ranges::any_of(stage.runs,
                               [](const LayerRun& run) { return !run.partition.empty(); });
  });
}

bool copies_to_host(const Plan& plan) {
  const auto copies = [](const LayerStrategy& s) {
    return s.recompute == Recompute::kOffload || s.states == States::kHost;
  };
  bool any = copies(plan.vocabulary);
  for (const Stage& stage : plan.stages)
    for (const LayerRun& run : stage.runs) any = any || copies(run.strategy);
  return any;
}

int token_chunks(const Plan& plan, const model::ModelSpec& model) {
  int rings = 1;
  for (const Stage& stage : plan.stages)
    for (const LayerRun& run : stage.runs)
      if (run.count > 0 && run.strategy.context == ContextKind::kRing)
        rings = std::lcm(rings, run.strategy.cp);
  return model.causal && rings > 1 ? 2 * rings : 1;
}

Plan canonical(Plan plan) {
  for (Stage& stage : plan.stages) {
    std::vector<LayerRun> joined;
    for (const LayerRun& run : stage.runs) {
      if (run.count == 0) continue;
      if (!joined.empty() && joined.back().alike(run)) {
        joined.back().count += run.count;
      } else {
        joined.push_back(run);
      }
    }
    stage.runs = std::move(joined);
  }
  return plan;
}

std::string fingerprint(const Plan& plan) {
  return base::fingerprint(base::to_text(to_json(plan)));
}

}  // namespace orrery::plan
