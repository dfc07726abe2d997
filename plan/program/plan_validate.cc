/// \file
/// All faults of a plan against its model (plan.h, validate).

#include <algorithm>

#include "plan/program/block_degrees.h"
#include "plan/program/divisors.h"
#include "plan/program/plan.h"
#include "plan/program/validate_partition.h"

namespace orrery::plan {
namespace {

using base::Diagnostics;
using base::ErrorCode;
using enum ErrorCode;

/// Collects the faults of one plan.
class PlanValidator {
 public:
  PlanValidator(const Plan& plan, const model::ModelSpec& model)
      : plan_(plan), model_(model), block_(&model) {
    for (int k = 0; k < model.kinds() && model.kinds() > 1; ++k) kinds_.push_back(model.of_kind(k));
  }

  Diagnostics validate() {
    check_numbers();
    check_model();
    check_strategy("vocabulary", plan_.vocabulary);
    check_vocabulary();
    check_stages();
    return std::move(faults_);
  }

 private:
  template <class... Args>
  void fault(ErrorCode code, std::string hint, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(
        base::make_error(code, format, std::forward<Args>(args)...).with_hint(std::move(hint)));
  }

  static std::string describe(const model::Adapter& a) {
    if (a.rank == 0) return "no adapters";
    return fmt::format("adapters of rank {} on {}", a.rank, model::targets_of(a));
  }
  void check_range(std::string_view field, std::int64_t value, std::int64_t min, std::int64_t max) {
    if (value >= min && value <= max) return;
    fault(kOutOfRange, fmt::format("{} lies between {} and {}", field, min, max), "{} is {}", field,
          value);
  }

  void check_numbers() {
    constexpr std::int64_t kLarge = std::int64_t{1} << 32;
    check_range("hosts", plan_.hosts, 1, kMaxWorldSize);
    check_range("global_batch", plan_.global_batch, 1, kLarge);
    check_range("micro_batches", plan_.micro_batches, 1, kLarge);
    check_range("prefetch_depth", plan_.prefetch_depth, 0, 1024);
    if (plan_.sequence < 1 || plan_.sequence > model_.max_positions) {
      fault(kOutOfRange,
            fmt::format("model '{}' takes 1 to {} tokens", model_.name, model_.max_positions),
            "sequence is {} tokens", plan_.sequence);
    } else if (model_.patch_features > 0 && plan_.sequence != model_.max_positions) {
      fault(kInconsistent,
            fmt::format("an image of model '{}' is {} tokens", model_.name, model_.max_positions),
            "sequence is {} tokens", plan_.sequence);
    }
    if (plan_.global_batch < 1 || plan_.micro_batches < 1) return;
    if (plan_.global_batch % plan_.micro_batches != 0) {
      fault(kInconsistent,
            fmt::format("micro_batches must divide {}; nearest: {}", plan_.global_batch,
                        nearest_divisors(plan_.global_batch, plan_.micro_batches)),
            "global_batch of {} sequences does not divide into {} micro_batches",
            plan_.global_batch, plan_.micro_batches);
    } else {
      micro_batch_sequences_ = plan_.micro_batch_sequences();
    }
  }

  void check_model() {
    if (plan_.adapter != model_.adapter)
      fault(kInconsistent, "a plan is of one fine-tuning: plan again with other --lora options",
            "the plan has {}, model '{}' has {}", describe(plan_.adapter), model_.name,
            describe(model_.adapter));
    if (plan_.model_fingerprint == model_.fingerprint()) return;
    fault(kInconsistent,
          fmt::format("plan again with --model {}, or use the model of the plan", model_.name),
          "the plan was made for model '{}' ({}), not for '{}' ({})", plan_.model,
          plan_.model_fingerprint, model_.name, model_.fingerprint());
  }

  void must_divide(const std::string& field, std::int64_t degree, std::int64_t n,
                   std::string_view what) {
    if (n % degree == 0) return;
    fault(kInconsistent,
          fmt::format("{} must divide {} {}: {}", field.substr(field.rfind('.') + 1), n, what,
                      divisors({n})),
          "{} = {} does not divide {} {}", field, degree, n, what);
  }

  /// Operators or slices of zero 3 are chosen.
  static bool chooses(const LayerStrategy& s) {
    return s.operators != ShardedOperators::kAll || s.slices > 1;
  }

  /// More would only lengthen the Program: products get too small to be worth a gather long before.
  static constexpr int kMaxSlices = 64, kMaxPieces = 64;

  void check_zero(const std::string& field, const LayerStrategy& s) {
    check_range(field + ".zero", s.zero, 0, 3);
    if (s.grad_reduce == GradReduce::kMicroBatch && s.zero < 2) {
      fault(kInconsistent,
            "gradients that are not sharded are reduced once per step: use zero 2 or 3, or "
            "grad_reduce step",
            "{}.grad_reduce is micro_batch with zero = {}", field, s.zero);
    }
  }

  /// Ranges and what holds for vocabulary and layers alike.
  void check_strategy(const std::string& field, const LayerStrategy& s) {
    for (const auto& [name, degree] : {std::pair{".tp", s.tp},
                                       {".dp", s.dp},
                                       {".cp", s.cp},
                                       {".ep", s.ep},
                                       {".slices", s.slices}})
      check_range(field + name, degree, 1, kMaxWorldSize);
    check_range(field + ".tensor_pieces", s.tensor_pieces, 1, kMaxPieces);
    check_zero(field, s);
    if (s.tp >= 1 && s.cp >= 1 && s.dp >= 1) check_sharding(field, s);
    if (s.tensor_pieces > 1) check_pieces(field, s);
    if (s.dp >= 1 && micro_batch_sequences_ > 0) {
      must_divide(field + ".dp", s.dp, micro_batch_sequences_, "sequences of a micro-batch");
    }
  }

  void check_pieces(const std::string& field, const LayerStrategy& s) {
    if (!s.sequence_parallel || s.tp == 1 || s.slices > 1) {
      fault(kInconsistent,
            "pieces are of what sequence parallelism gathers: use sequence_parallel with tp above "
            "1 and without slices, or tensor_pieces 1",
            "{}.tensor_pieces is {}", field, s.tensor_pieces);
      return;
    }
    const std::int64_t tokens = plan_.sequence / block_->token_share,
                       ranks = std::int64_t{s.tp} * s.cp;
    if (s.tp >= 1 && s.cp >= 1 && tokens > 0 && tokens % ranks == 0)
      must_divide(field + ".tensor_pieces", s.tensor_pieces, tokens / ranks,
                  "tokens of a sequence on a rank");
  }

  void check_sharding(const std::string& field, const LayerStrategy& s) {
    if (s.shard != 0) {
      check_range(field + ".shard", s.shard, 1, s.replicas());
      if (s.shard > 0)
        must_divide(field + ".shard", s.shard, s.replicas(), "ranks of the data group (cp * dp)");
      if (s.zero == 0) {
        fault(kInconsistent,
              "hybrid sharding says over how many ranks states are split: use zero 1, 2 or 3, or "
              "drop it",
              "{}.shard is {} with zero = 0", field, s.shard);
      }
    }
    if (chooses(s) && s.zero != 3) {
      fault(kInconsistent, "operators and slices say what zero 3 shards: use zero 3, or drop them",
            "{} chooses operators or slices with zero = {}", field, s.zero);
    }
    if (s.slices > 1 && s.recompute == Recompute::kOffload) {
      fault(kUnsupported, "drop slices or offload", "{}.recompute is offload with slices = {}",
            field, s.slices);
    }
    if (s.slices > 1 && s.recompute == Recompute::kOperator) {
      fault(kUnsupported, "products in slices are kept or recomputed as a whole: drop one of them",
            "{}.recompute is operator with slices = {}", field, s.slices);
    }
    const bool plain = !model_.encoder_decoder() && model_.patch_features == 0;
    if (s.cp > 1 && !plain) {
      fault(kUnsupported,
            fmt::format("context parallelism of family {} is not supported: use cp 1",
                        to_string(model_.family)),
            "{}.cp is {}", field, s.cp);
    }
    if (s.cp > 1 && plan_.sequence >= 1)
      must_divide(field + ".cp", s.cp, plan_.sequence, "tokens of a sequence");
  }

  void check_experts(const std::string& field, const LayerStrategy& s) {
    if (block_->experts == 0) {
      fault(kInconsistent, "ep splits the experts of a mixture: drop it",
            "{} has ep {}{}, and model '{}' has no experts", field, s.ep,
            s.folded ? ", folded" : "", model_.name);
      return;
    }
    must_divide(
        field + ".ep", s.ep, s.expert_ranks(),
        s.folded ? "ranks of the stage (tp * cp * dp)" : "ranks of the data group (cp * dp)");
    if (s.folded && (s.tp == 1 || !s.sequence_parallel || s.strided || s.shard > 0)) {
      fault(kUnsupported,
            "each tensor rank sends its own tokens: use tp above 1 with sequence_parallel, without "
            "strided and shard, or drop folded",
            "{} folds experts over the tensor group", field);
    }
    must_divide(field + ".ep", s.ep, block_->experts, "experts");
    if (s.ep > 1 && (s.shard > 0 || s.strided)) {
      fault(kUnsupported,
            "experts are sharded over all replicas they have, on consecutive tensor groups: drop "
            "shard and strided, or ep",
            "{} splits experts and is {}", field, s.shard > 0 ? "sharded by groups" : "strided");
    }
    if (chooses(s)) {
      fault(kUnsupported, "experts are sharded as a whole: drop operators and slices",
            "{} chooses operators or slices of a mixture of experts", field);
    }
  }

  void check_vocabulary() {
    const LayerStrategy& v = plan_.vocabulary;
    if (v.sequence_parallel) {
      fault(kUnsupported, "embedding and head are never sequence parallel",
            "vocabulary.sequence_parallel is true");
    }
    if (v.recompute != Recompute::kNone) {
      fault(kUnsupported, "embedding and head are never recomputed", "vocabulary.recompute is {}",
            to_string(v.recompute));
    }
    if (v.ep > 1 || v.folded || chooses(v)) {
      fault(kUnsupported, "those are of layers only",
            "vocabulary chooses experts, operators or slices");
    }
    const std::int64_t devices = devices_of(v);
    const auto stages = static_cast<std::int64_t>(plan_.stages.size());
    const std::int64_t ranks = stages / std::max(plan_.virtual_stages, 1);
    if (v.tp >= 1 && v.dp >= 1 && devices * std::max<std::int64_t>(ranks, 1) > kMaxWorldSize) {
      fault(kOutOfRange, fmt::format("a plan has at most {} ranks", kMaxWorldSize),
            "{} stages of {} ranks each", stages, devices);
    }
  }

  /// @pre degrees in range, else their faults are said already.
  void check_token_chunks() {
    if (!faults_.empty()) return;
    const int chunks = token_chunks(plan_, model_);
    if (plan_.sequence % chunks == 0) return;
    fault(kInconsistent, fmt::format("use a sequence that {} divides, ulysses, or cp 1", chunks),
          "ring attention under a causal mask cuts a sequence into {} chunks, and it has {} tokens",
          chunks, plan_.sequence);
  }

  void check_stages() {
    if (plan_.stages.empty())
      fault(kOutOfRange, "a plan has at least one stage", "stages is empty");
    if (static_cast<std::int64_t>(plan_.stages.size()) > model_.layers) {
      fault(kInconsistent,
            fmt::format("a pipeline has at most {} stages, one layer each", model_.layers),
            "{} stages for {} layers", plan_.stages.size(), model_.layers);
    }
    check_virtual_stages();
    std::int64_t total = 0;
    int tp = plan_.vocabulary.tp;
    std::vector<std::pair<std::string, const LayerRun*>> partitioned;
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      std::int64_t layers = 0;
      for (std::size_t k = 0; k < plan_.stages[i].runs.size(); ++k) {
        const LayerRun& run = plan_.stages[i].runs[k];
        const std::string field = fmt::format("stages[{}].runs[{}]", i, k);
        check_range(field + ".count", run.count, 1, model_.layers);
        if (run.partition.empty())
          check_kinds(field + ".strategy", total + layers, run);
        else
          partitioned.emplace_back(field, &run);
        layers += std::max(run.count, 0);
        check_neighbours(field + ".strategy.tp", tp, run.strategy.tp);
        tp = run.strategy.tp;
      }
      if (layers == 0) fault(kInconsistent, "remove the stage", "stages[{}] has no layers", i);
      total += layers;
    }
    check_neighbours("vocabulary.tp", tp, plan_.vocabulary.tp);
    check_token_chunks();
    for (const auto& [field, run] : partitioned) check_partition(field, *run);
    if (!plan_.stages.empty() && total != model_.layers) {
      fault(kInconsistent, fmt::format("the counts of all runs must add up to {}", model_.layers),
            "the stages hold {} layers and model '{}' has {}", total, model_.name, model_.layers);
    }
  }

  /// A run against every kind of block that it holds.
  void check_kinds(const std::string& field, std::int64_t first, const LayerRun& run) {
    if (kinds_.empty()) return check_layer(field, run.strategy);
    std::vector<bool> held(kinds_.size(), false);
    for (std::int64_t l = first; l < std::min(first + run.count, model_.layers); ++l)
      held[as_index(model_.kind_of(l))] = true;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      block_ = &kinds_[k];
      if (held[k]) check_layer(fmt::format("{} ({})", field, model_.runs[k].name), run.strategy);
    }
  }

  /// @pre degrees in range, else their faults are said already.
  void check_partition(const std::string& field, const LayerRun& run) {
    if (!faults_.empty()) return;
    if (model_.frozen())
      fault(kUnsupported, "use a strategy", "{} has a partition, with low-rank adapters", field);
    const LayerStrategy& s = run.strategy;
    if (s != LayerStrategy{.dp = plan_.devices_per_stage(),
                           .zero = s.zero,
                           .recompute = s.recompute,
                           .grad_reduce = s.grad_reduce})
      fault(kInconsistent, "a partition stands in place of degrees",
            "{} has a partition, and the strategy {}", field, to_string(s));
    if (s.recompute != Recompute::kNone && s.recompute != Recompute::kFull)
      fault(kUnsupported, "use 'none' or 'full'", "{} has a partition, and recomputation '{}'",
            field, to_string(s.recompute));
    check_zero(field + ".sharding", s);
    base::Diagnostics more = partition_faults(plan_, run, field, model_);
    faults_.insert(faults_.end(), more.begin(), more.end());
  }

  void check_virtual_stages() {
    check_range("virtual_stages", plan_.virtual_stages, 1, kMaxWorldSize);
    if (plan_.virtual_stages < 1) return;
    if (is_v_shaped(plan_.schedule)) {
      if (plan_.virtual_stages != 2)
        fault(kInconsistent, "a V has two stages on every pipeline rank: virtual_stages = 2",
              "schedule {} with virtual_stages = {}", to_string(plan_.schedule),
              plan_.virtual_stages);
    } else if ((plan_.schedule == Schedule::kInterleaved) != (plan_.virtual_stages > 1)) {
      fault(kInconsistent,
            "the interleaved schedule runs several virtual stages on a pipeline rank, zb-v and "
            "dualpipe-v two, others one",
            "schedule {} with virtual_stages = {}", to_string(plan_.schedule),
            plan_.virtual_stages);
    }
    if (model_.encoder_decoder() && plan_.schedule != Schedule::kGPipe &&
        plan_.schedule != Schedule::k1F1B) {
      fault(kUnsupported,
            "the encoder's output stays on a stage until its backward ends: use gpipe or 1f1b",
            "schedule {} of an encoder-decoder", to_string(plan_.schedule));
    }
    const auto stages = static_cast<std::int64_t>(plan_.stages.size());
    must_divide("virtual_stages", plan_.virtual_stages, stages, "stages");
    if (plan_.virtual_stages == 1 || stages % plan_.virtual_stages != 0 || stages == 0) return;
    const std::int64_t ranks = stages / plan_.virtual_stages;
    if (ranks == 1) {
      fault(
          kInconsistent,
          "virtual stages shorten the bubble of a pipeline: use more pipeline ranks, or one stage",
          "{} virtual stages on one pipeline rank", stages);
    }
    if (is_v_shaped(plan_.schedule)) return;
    if (plan_.micro_batches >= 1 && plan_.micro_batches % ranks != 0) {
      fault(kInconsistent,
            plan_.global_batch % ranks == 0
                ? fmt::format("the interleaved schedule takes them in groups of {}: use a multiple "
                              "of {} that divides global_batch",
                              ranks, ranks)
                : fmt::format("the interleaved schedule takes them in groups of {}, which do not "
                              "divide a global_batch of {} either",
                              ranks, plan_.global_batch),
            "{} micro_batches on {} pipeline ranks with virtual stages", plan_.micro_batches,
            ranks);
    }
  }

  void check_layer(const std::string& field, const LayerStrategy& s) {
    check_strategy(field, s);
    if (s.tp < 1 || s.cp < 1 || s.dp < 1) return;
    for (const auto& [size, of] : tensor_extents(*block_))
      must_divide(field + ".tp", s.tp, size, of);
    if (s.ep >= 1 && (s.ep > 1 || s.folded || block_->experts > 0)) check_experts(field, s);
    if (s.cp > 1 && s.context == ContextKind::kUlysses) {
      const std::int64_t ranks = std::int64_t{s.tp} * s.cp;
      must_divide(field + ".tp * cp", ranks, block_->heads, "heads, which Ulysses shares out");
      if (block_->kv_heads != block_->heads)
        must_divide(field + ".tp * cp", ranks, block_->kv_heads,
                    "kv_heads, which Ulysses shares out");
    }
    if (s.sequence_parallel && s.tp == 1) {
      fault(kInconsistent,
            "sequence parallelism splits over the tensor group: use tp > 1, or drop it",
            "{}.sequence_parallel is true with tp = 1", field);
    }
    if (s.sequence_parallel && plan_.sequence >= 1) {
      must_divide(field + ".tp", std::int64_t{s.tp} * s.cp, plan_.sequence / block_->token_share,
                  "tokens of a sequence");
    }
    check_slices(field, s);
    check_kind(field, s);
    check_adapters(field, s);
    const std::int64_t devices = devices_of(plan_.vocabulary);
    if (devices_of(s) != devices) {
      fault(kInconsistent,
            fmt::format("every layer uses all ranks of its stage: tp * cp * dp = {}", devices),
            "{} has tp * cp * dp = {} and vocabulary has {}", field, devices_of(s), devices);
    }
  }

  /// What blocks of families with blocks of several kinds cannot do.
  void check_kind(const std::string& field, const LayerStrategy& s) {
    const auto unsupported = [&](std::string_view what, const char* hint) {
      fault(kUnsupported, hint, "{}: {} in blocks of family {}", field, what,
            to_string(model_.family));
    };
    if (const auto whole = unsplit_by_tensor(*block_); s.tp > 1 && !whole.empty())
      unsupported(fmt::format("tp splits {}", whole), "use tp 1");
    if (const auto whole = unsplit_by_context(*block_); s.cp > 1 && !whole.empty())
      unsupported(fmt::format("cp splits {}", whole), "use cp 1");
    if (s.cp > 1 && block_->mixer == model::Mixer::kAttention && s.context == ContextKind::kRing &&
        model_.unlike_flash())
      unsupported("a ring carries neither windows, caps, sinks nor slopes", "use ulysses, or cp 1");
    if (chooses(s) && (block_->cross_attention || block_->entry != model::BlockEntry::kNone ||
                       block_->window > 0 || !block_->plain_attention())) {
      fault(kUnsupported,
            fmt::format("blocks of family {} are sharded as a whole: drop operators and slices",
                        to_string(model_.family)),
            "{} chooses operators or slices", field);
    }
  }

  /// Beside adapters.
  void check_adapters(const std::string& field, const LayerStrategy& s) {
    if (!model_.frozen()) return;
    if (s.recompute == Recompute::kOperator)
      fault(kUnsupported, "use recompute none, selective or full",
            "{}.recompute is operator, with low-rank adapters", field);
  }

  /// Every sharded product is cut into equal slices of its contraction.
  void check_slices(const std::string& field, const LayerStrategy& s) {
    if (s.slices < 2 || block_->experts > 0 || block_->heads % s.tp != 0 || block_->ffn % s.tp != 0)
      return;
    if (s.slices > kMaxSlices) {
      fault(kOutOfRange, fmt::format("at most {}", kMaxSlices), "{}.slices is {}", field, s.slices);
      return;
    }
    must_divide(field + ".slices", s.slices, block_->hidden,
                "hidden features, which the first products contract");
    if (s.operators != ShardedOperators::kMlp) {
      must_divide(field + ".slices", s.slices, block_->heads * block_->head_dim / s.tp,
                  "features of a rank's heads, which the projection contracts");
    }
    if (s.operators != ShardedOperators::kAttention) {
      must_divide(field + ".slices", s.slices, block_->ffn / s.tp,
                  "ffn features of a rank, which the last product contracts");
    }
  }

  /// Resharding between neighbours is one all-gather or one slice of the batch only when degrees
  /// divide one another.
  void check_neighbours(const std::string& field, int before, int after) {
    if (before < 1 || after < 1 || before % after == 0 || after % before == 0) return;
    fault(kUnsupported, "tensor-parallel degrees of neighbouring layers must divide one another",
          "{} = {} follows a layer with tp = {}", field, after, before);
  }

  static std::int64_t devices_of(const LayerStrategy& s) {
    return std::int64_t{s.tp} * s.cp * s.dp;
  }

  const Plan& plan_;
  const model::ModelSpec& model_;
  std::vector<model::ModelSpec> kinds_;     // when there are several
  const model::ModelSpec* block_;           // the kind at hand
  std::int64_t micro_batch_sequences_ = 0;  // 0: unknown, a fault already says why
  Diagnostics faults_;
};

}  // namespace

base::Diagnostics validate(const Plan& plan, const model::ModelSpec& model) {
  return PlanValidator(plan, model).validate();
}

}  // namespace orrery::plan
