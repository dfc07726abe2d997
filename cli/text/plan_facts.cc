#include "cli/text/plan_facts.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/numbers.h"

namespace orrery::cli {
namespace {

using plan::LayerStrategy;

struct Span {
  int least = std::numeric_limits<int>::max(), most = 0;
  void add(int value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  [[nodiscard]] std::string text() const {
    return least == most ? std::to_string(most) : fmt::format("{} to {}", least, most);
  }
};

template <class Use>
void for_layers(const plan::Plan& plan, const Use& use) {
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) use(run.strategy, run.count);
  }
}

Span span_of(const plan::Plan& plan, int LayerStrategy::*degree) {
  Span span;
  for_layers(plan, [&](const LayerStrategy& s, int) { span.add(s.*degree); });
  return span;
}

std::string recompute_text(const plan::Plan& plan) {
  int all = 0, some = 0;
  for_layers(plan, [&](const LayerStrategy& s, int count) {
    all += count;
    if (s.recompute != plan::Recompute::kNone) some += count;
  });
  return some == 0 ? "nothing is recomputed" : fmt::format("{} of {} layers recompute", some, all);
}

}  // namespace

std::string plan_facts(const plan::Plan& plan) {
  std::string degrees = "Tensor parallel " + span_of(plan, &LayerStrategy::tp).text();
  const auto add = [&](const char* name, int LayerStrategy::*degree) {
    const Span span = span_of(plan, degree);
    if (span.most > 1) degrees += fmt::format(", {} {}", name, span.text());
  };
  add("context parallel", &LayerStrategy::cp);
  add("expert parallel", &LayerStrategy::ep);
  degrees += ", data parallel " + span_of(plan, &LayerStrategy::dp).text();
  const int ranks = plan.pipeline_degree();
  const std::string turns =
      plan.virtual_stages > 1 ? fmt::format(" of {} virtual stages each", plan.virtual_stages) : "";
  const std::string pipeline =
      ranks == 1 ? "no pipeline" : fmt::format("{} pipeline ranks{}", ranks, turns);
  return fmt::format("{}; {}, {} micro-batch{}; ZeRO {}; {}.", degrees, pipeline,
                     plan.micro_batches, plan.micro_batches == 1 ? "" : "es",
                     span_of(plan, &LayerStrategy::zero).text(), recompute_text(plan));
}

}  // namespace orrery::cli
