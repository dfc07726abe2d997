#include "plan/program/plan.h"

#include "base/fingerprint.h"
#include "base/json.h"

namespace orrery::plan {

std::string_view to_string(Schedule s) {
  switch (s) {
    case Schedule::kGPipe: return "gpipe";
    case Schedule::k1F1B: return "1f1b";
    case Schedule::kInterleaved: return "interleaved";
    case Schedule::kZeroBubbleH1: return "zb-h1";
  }
  return "";
}

std::string_view to_string(Recompute r) {
  switch (r) {
    case Recompute::kNone: return "none";
    case Recompute::kSelective: return "selective";
    case Recompute::kFull: return "full";
  }
  return "";
}

std::string_view to_string(ContextKind c) {
  switch (c) {
    case ContextKind::kRing: return "ring";
    case ContextKind::kUlysses: return "ulysses";
  }
  return "";
}

std::string_view to_string(ShardedOperators o) {
  switch (o) {
    case ShardedOperators::kAll: return "all";
    case ShardedOperators::kAttention: return "attention";
    case ShardedOperators::kMlp: return "mlp";
  }
  return "";
}

std::string_view to_string(GradReduce g) {
  switch (g) {
    case GradReduce::kStep: return "step";
    case GradReduce::kMicroBatch: return "micro_batch";
  }
  return "";
}

std::string to_string(const LayerStrategy& s) {
  std::string text = fmt::format("tp{}", s.tp);
  if (s.strided) text += " strided";
  if (s.cp > 1) text += fmt::format(" cp{} {}", s.cp, to_string(s.context));
  text += fmt::format(" dp{}", s.dp);
  if (s.ep > 1) text += fmt::format(" ep{}", s.ep);
  if (s.zero > 0) text += fmt::format(" zero{}", s.zero);
  if (s.shard > 0) text += fmt::format(" shard{}", s.shard);
  if (s.operators != ShardedOperators::kAll)
    text += fmt::format(" only={}", to_string(s.operators));
  if (s.slices > 1) text += fmt::format(" slices{}", s.slices);
  if (s.sequence_parallel) text += " sp";
  if (s.recompute != Recompute::kNone) text += fmt::format(" recompute={}", to_string(s.recompute));
  if (s.grad_reduce == GradReduce::kMicroBatch) text += " grad_reduce=micro_batch";
  return text;
}

int Stage::layers() const {
  int n = 0;
  for (const LayerRun& run : runs) n += run.count;
  return n;
}

Plan canonical(Plan plan) {
  for (Stage& stage : plan.stages) {
    std::vector<LayerRun> joined;
    for (const LayerRun& run : stage.runs) {
      if (run.count == 0) continue;
      if (!joined.empty() && joined.back().strategy == run.strategy) {
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
