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
    for (const plan::LayerRun& run : stage.runs)
      if (run.partition.empty()) use(run.strategy, run.count);
  }
}
int partitioned_layers(const plan::Plan& plan) {
  int layers = 0;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::LayerRun& run : stage.runs) layers += run.partition.empty() ? 0 : run.count;
  }
  return layers;
}

Span span_of(const plan::Plan& plan, int LayerStrategy::*degree) {
  Span span;
  for_layers(plan, [&](const LayerStrategy& s, int) { span.add(s.*degree); });
  return span;
}

std::string recompute_text(const plan::Plan& plan) {
  int all = 0, some = 0, offload = 0, states = 0;
  for_layers(plan, [&](const LayerStrategy& s, int count) {
    all += count;
    if (s.states == plan::States::kHost) states += count;
    if (s.recompute == plan::Recompute::kOffload)
      offload += count;
    else if (s.recompute != plan::Recompute::kNone)
      some += count;
  });
  std::string text = some == 0 ? std::string("nothing is recomputed")
                               : fmt::format("{} of {} layers recompute", some, all);
  const auto on_host = [&](int layers, std::string_view what) {
    if (layers > 0) text += fmt::format("; {} keep their {} on the host", layers, what);
  };
  on_host(offload, "activations");
  on_host(states, "optimizer states");
  return text;
}

}  // namespace

std::string plan_facts(const plan::Plan& plan) {
  const int ranks = plan.pipeline_degree();
  const std::string turns =
      plan.virtual_stages > 1 ? fmt::format(" of {} virtual stages each", plan.virtual_stages) : "";
  const std::string pipeline =
      fmt::format("{}, {} micro-batch{}",
                  ranks == 1 ? "no pipeline" : fmt::format("{} pipeline ranks{}", ranks, turns),
                  plan.micro_batches, plan.micro_batches == 1 ? "" : "es");
  const int partitioned = partitioned_layers(plan);
  std::string degrees;
  if (partitioned > 0) {
    degrees = fmt::format("{} layers partitioned operator by operator over {} devices", partitioned,
                          plan.devices_per_stage());
    if (span_of(plan, &LayerStrategy::dp).most == 0)
      return fmt::format("{}; {}.", degrees, pipeline);
    degrees += "; of the others: ";
  }
  degrees += "Tensor parallel " + span_of(plan, &LayerStrategy::tp).text();
  const auto add = [&](const char* name, int LayerStrategy::*degree) {
    const Span span = span_of(plan, degree);
    if (span.most > 1) degrees += fmt::format(", {} {}", name, span.text());
  };
  add("context parallel", &LayerStrategy::cp);
  add("expert parallel", &LayerStrategy::ep);
  degrees += ", data parallel " + span_of(plan, &LayerStrategy::dp).text();
  return fmt::format("{}; {}; ZeRO {}; {}.", degrees, pipeline,
                     span_of(plan, &LayerStrategy::zero).text(), recompute_text(plan));
}

}  // namespace orrery::cli
