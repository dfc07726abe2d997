#include "plan/program/validate_partition.h"

#include <bit>

#include "plan/partition/layer_graph.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

/// Faults of one run.
class Checker {
 public:
  Checker(const Plan& plan, const std::string& field, const model::ModelSpec& model)
      : plan_(plan), field_(field), model_(model) {}

  base::Diagnostics run(const LayerRun& run) {
    check_model();
    check_plan();
    if (faults_.empty()) check_sequences(run);
    return std::move(faults_);
  }

 private:
  template <class... Args>
  void fault(base::ErrorCode code, std::string hint, fmt::format_string<Args...> format,
             Args&&... args) {
    faults_.push_back(
        base::make_error(code, format, std::forward<Args>(args)...).with_hint(std::move(hint)));
  }

  void check_model() {
    if (!has_layer_graph(model_) || model_.post_norm || model_.token_share != 1)
      fault(kUnsupported,
            "partition dense decoders of one kind of layer, plain attention, norms in front",
            "{} is partitioned, and layers of model '{}' are no such ones", field_, model_.name);
    if (model::format_of(plan_.precision) != model::Format::kNone)
      fault(kUnsupported, "precision bf16 or fp32", "{} is partitioned in {}", field_,
            model::to_string(plan_.precision));
  }

  void check_plan() {
    const auto devices = as_u32(plan_.devices_per_stage());
    if (!std::has_single_bit(devices) || devices > 1U << kMostBits)
      fault(kUnsupported, "id bits split 1, 2, 4 .. 64 ranks of a stage",
            "{} is partitioned over {} ranks", field_, devices);
    if (splits_backward(plan_.schedule))
      fault(kUnsupported, "use gpipe, 1f1b or interleaved",
            "schedule {} splits the backward, and {} is partitioned", to_string(plan_.schedule),
            field_);
    if (token_chunks(plan_, model_) > 1)
      fault(kUnsupported, "use ulysses, or cp 1, in the other layers",
            "rings keep tokens in zig-zag order, and {} wants them as they stand", field_);
    check_layout("vocabulary", plan_.vocabulary);
    for (const Stage& stage : plan_.stages)
      for (const LayerRun& other : stage.runs)
        if (other.partition.empty()) check_layout("a run of layers", other.strategy);
  }

  /// Between layers ranks hold shares that id bits say.
  void check_layout(std::string_view what, const LayerStrategy& s) {
    const bool bits = std::has_single_bit(as_u32(s.tp)) && std::has_single_bit(as_u32(s.cp)) &&
                      std::has_single_bit(as_u32(s.dp));
    if (bits && !(s.strided && s.sequence_parallel && s.cp > 1)) return;
    fault(kUnsupported, "use powers of two, not strided with cp and sequence_parallel",
          "{} lies on ranks as {}, which no id bits say, beside {} that is partitioned", what,
          to_string(s), field_);
  }

  void check_sequences(const LayerRun& run) {
    const auto names = partitioned_operators();
    if (run.partition.size() != names.size())
      return fault(kInconsistent, "give each operator one sequence",
                   "{}.partition has {} sequences for {} operators", field_, run.partition.size(),
                   names.size());
    const LayerGraph graph =
        layer_graph(model_, plan_.micro_batch_sequences(), plan_.sequence, /*skews=*/1);
    const int bits = std::countr_zero(as_u32(plan_.devices_per_stage()));
    const bool fused = run.partition[kSoftmaxOf].empty() && bits > 0;
    if (fused && (run.partition[kScoreProduct] != run.partition[kValueProduct] ||
                  !can_fuse(Partition(run.partition[kScoreProduct]))))
      return fault(kInconsistent, "split scores and values by the same bits of B and H",
                   "{}.partition.softmax is '-', for attention in one operation", field_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (fused && i == kSoftmaxOf) continue;
      const std::string why = fault_of(graph.operators[i].space, run.partition[i], bits);
      if (why.empty()) continue;
      fault(kInconsistent,
            "every id bit once, dimensions of the operator, and extents that halve so often",
            "{}.partition.{} is '{}': {}", field_, names[i], to_string(run.partition[i]), why);
    }
  }

  const Plan& plan_;
  const std::string& field_;
  const model::ModelSpec& model_;
  base::Diagnostics faults_;
};

}  // namespace

base::Diagnostics partition_faults(const Plan& plan, const LayerRun& run, const std::string& field,
                                   const model::ModelSpec& model) {
  return Checker(plan, field, model).run(run);
}

}  // namespace orrery::plan
