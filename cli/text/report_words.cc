#include "cli/text/report_words.h"

#include <algorithm>

#include "base/ids.h"
#include "base/numbers.h"

namespace orrery::cli {
namespace {

using plan::LayerStrategy;
using sim::TimePart;

int largest(const plan::Plan& plan, int LayerStrategy::*degree) {
  int most = 1;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) most = std::max(most, run.strategy.*degree);
  }
  return most;
}

std::string over(int degree, int before) {
  return degree == before ? fmt::format("over {}", degree)
                          : fmt::format("over {} instead of {}", degree, before);
}

}  // namespace

std::string_view part_words(TimePart part) {
  return base::EnumNames<TimePart::kBubble>(
      "forward computation", "backward computation", "recomputation",
      "optimizer and gradient zeroing", "exposed tensor communication",
      "exposed context communication", "exposed expert communication", "exposed data communication",
      "exposed pipeline communication", "waiting")[part];
}

std::string part_clause(TimePart part, const plan::Plan& plan, const plan::Plan& before,
                        const std::string& time, bool more) {
  const char* word = more ? "more" : "less";
  const auto exposes = [&](const std::string& who, const char* what) {
    return fmt::format("{} exposes {} {} of {}", who, time, word, what);
  };
  const auto parallelism = [&](const char* kind, int LayerStrategy::*degree) {
    return fmt::format("{} parallelism {}", kind,
                       over(largest(plan, degree), largest(before, degree)));
  };
  const int stages = plan.pipeline_degree(), stages_before = before.pipeline_degree();
  const std::string pipeline =
      stages == stages_before
          ? fmt::format("a pipeline of {}", stages)
          : fmt::format("a pipeline of {} instead of {}", stages, stages_before);
  using enum TimePart;
  switch (part) {
    case kForward:
    case kBackward:
    case kRecompute:
    case kOptimizer: return fmt::format("{} takes {} {}", part_words(part), time, word);
    case kTensor: {
      if (std::max(largest(plan, &LayerStrategy::tp), largest(before, &LayerStrategy::tp)) > 1)
        return exposes(parallelism("tensor", &LayerStrategy::tp), "communication");
      return exposes(fmt::format("tensor parallelism of embedding and head {}",
                                 over(plan.vocabulary.tp, before.vocabulary.tp)),
                     "communication");
    }
    case kContext: return exposes(parallelism("context", &LayerStrategy::cp), "communication");
    case kExpert: return exposes(parallelism("expert", &LayerStrategy::ep), "communication");
    case kData: {
      if (plan::copies_to_host(plan) || plan::copies_to_host(before))
        return exposes("it", "communication of weights and gradients and of copies to the host");
      return exposes(parallelism("data", &LayerStrategy::dp),
                     "communication of weights and gradients");
    }
    case kPipeline: return exposes(pipeline, "transfers between stages");
    case kBubble: return fmt::format("{} waits {} {}", pipeline, time, word);
  }
  return "";
}

std::size_t columns(const std::string& text) {
  return as_index(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string report_words() {
  return "Words\n"
         "  a plan in one line: ppN pipeline ranks, vN chunks of layers that each of them takes in "
         "turn, mN micro-batches (shares of the batch that pass one after\n"
         "  another), the schedule of a pipeline, \"N × how\" for N layers, and how embedding and "
         "head (vocabulary) are spread; tpN, dpN, cpN, epN: tensor, data, context,\n"
         "  expert parallelism over N devices; zero1, 2, 3: optimizer states, also gradients, also "
         "weights are sharded; shardN: over N of\n"
         "  the devices only; sp: sequence parallelism; tensor_pieces=N: its collectives run in N "
         "pieces beside products; grad_reduce=micro_batch: gradients reduced in\n"
         "  every micro-batch, end: behind the last backward, else once a step beside it; "
         "recompute=selective: of attention, operator: of all but attention and every other "
         "product,\n"
         "  full: of whole layers; states=host: optimizer states are there but for their update; "
         "1f1b,\n"
         "  interleaved (chunks may differ by one layer), zb-h1 (weight gradients fill the "
         "waiting), zb-v, dualpipe-v (and stages go forth and back): schedules of a pipeline\n"
         "  priced: by the cost formula alone, which is cheap; simulated: run on a virtual clock, "
         "which orders plans; other: what the parts not shown add up to\n"
         "  exposed: communication that no computation hides; waiting: a stage has nothing to do; "
         "recomputation: a forward pass repeated to store less\n";
}

}  // namespace orrery::cli
