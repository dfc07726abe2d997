#include "cli/text/partition_words.h"

#include <fmt/format.h>

namespace orrery::cli {
namespace {

using plan::Dimension;
using enum plan::Dimension;

std::string_view name_of(Dimension d) {
  switch (d) {
    case kBatch: return "batch";
    case kTokens: return "tokens";
    case kIn: return "input features";
    case kOut: return "output features";
    case kHeads: return "heads";
    case kKeys: return "keys";
    case kReplicas: return "replicas";
  }
  return {};
}

}  // namespace

std::string words_of(const plan::Sequence& sequence) {
  std::string words;
  int bit = 1;
  for (const plan::Element& e : sequence) {
    if (!words.empty()) words += "; ";
    if (e.k > 0)
      words += fmt::format("bits {} to {} are {}: M, N and K in {} each, {} steps", bit,
                           bit + e.bits() - 1, to_string(plan::Sequence{e}), 1 << e.k, 1 << e.k);
    else if (e.split == kReplicas)
      words += fmt::format("over id bit {} devices do the same", bit);
    else
      words += fmt::format("id bit {} splits {} ({}) in 2", bit, plan::letter_of(e.split),
                           name_of(e.split));
    bit += e.bits();
  }
  return words;
}

const plan::LayerPartition* partition_of(const plan::Plan& plan) {
  for (const plan::Stage& stage : plan.stages)
    for (const plan::LayerRun& run : stage.runs)
      if (!run.partition.empty()) return &run.partition;
  return nullptr;
}

std::string partition_text(const plan::Plan& plan) {
  const plan::LayerPartition* partition = partition_of(plan);
  if (partition == nullptr) return {};
  std::string text =
      "How the devices of a stage share each product of the first partitioned layer (bit 1 of an "
      "id is the highest)\n";
  for (const plan::LayerOperator op : kProducts)
    text += fmt::format("  {:<11} {:<12} {}\n", plan::partitioned_operators()[op],
                        plan::to_string((*partition)[op]), words_of((*partition)[op]));
  return text;
}

}  // namespace orrery::cli
