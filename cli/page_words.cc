#include "cli/page_words.h"

#include <algorithm>

#include <fmt/format.h>

namespace orrery::cli {
namespace {

using sim::TimePart;

int largest(const plan::Plan& plan, int plan::LayerStrategy::*degree) {
  int most = 1;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) most = std::max(most, run.strategy.*degree);
  }
  return most;
}

}  // namespace

const char* part_words(TimePart part) {
  switch (part) {
    case TimePart::kForward: return "forward computation";
    case TimePart::kBackward: return "backward computation";
    case TimePart::kRecompute: return "recomputation";
    case TimePart::kOptimizer: return "optimizer and gradient zeroing";
    case TimePart::kTensor: return "exposed tensor communication";
    case TimePart::kContext: return "exposed context communication";
    case TimePart::kExpert: return "exposed expert communication";
    case TimePart::kData: return "exposed data communication";
    case TimePart::kPipeline: return "exposed pipeline communication";
    case TimePart::kBubble: return "waiting";
  }
  return "";
}

std::string part_clause(TimePart part, const plan::Plan& plan, const std::string& time, bool more) {
  const char* word = more ? "more" : "less";
  const auto exposes = [&](const std::string& who, const char* what) { return fmt::format("{} exposes {} {} of {}", who, time, word, what); };
  switch (part) {
    case TimePart::kForward:
    case TimePart::kBackward:
    case TimePart::kRecompute:
    case TimePart::kOptimizer: return fmt::format("{} takes {} {}", part_words(part), time, word);
    case TimePart::kTensor: {
      const int tp = largest(plan, &plan::LayerStrategy::tp);
      if (tp > 1) return exposes(fmt::format("tensor parallelism over {}", tp), "communication");
      return exposes(plan.vocabulary.tp > 1 ? fmt::format("tensor parallelism of embedding and head over {}", plan.vocabulary.tp) : "having no tensor parallelism", "communication");
    }
    case TimePart::kContext: return exposes(fmt::format("context parallelism over {}", largest(plan, &plan::LayerStrategy::cp)), "communication");
    case TimePart::kExpert: return exposes(fmt::format("expert parallelism over {}", largest(plan, &plan::LayerStrategy::ep)), "communication");
    case TimePart::kData: return exposes(fmt::format("data parallelism over {}", largest(plan, &plan::LayerStrategy::dp)), "communication of weights and gradients");
    case TimePart::kPipeline: return exposes(fmt::format("a pipeline of {}", plan.pipeline_degree()), "transfers between stages");
    case TimePart::kBubble: return fmt::format("a pipeline of {} waits {} {}", plan.pipeline_degree(), time, word);
  }
  return "";
}

std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string page_words() {
  return "Words\n"
         "  a plan in one line: ppN pipeline stages, vN chunks of layers a stage's devices take in turn, mN micro-batches (shares of the batch that pass one after\n"
         "  another), the schedule of a pipeline, \"N × how\" for N layers, and how embedding and head (vocabulary) are spread; tpN, dpN, cpN, epN: tensor, data, context,\n"
         "  expert parallelism over N devices; zero1, 2, 3: optimizer states, also gradients, also weights are sharded; sp: sequence parallelism\n"
         "  exposed: communication that no computation hides; waiting: a stage has nothing to do; recomputation: a forward pass repeated to store less\n";
}

}  // namespace orrery::cli
