#include <algorithm>
#include <array>

#include "base/numbers.h"
#include "base/text.h"
#include "plan/import/import.h"
#include "plan/import/import_arguments.h"
#include "plan/import/pipeline_layout.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

struct Unsupported {
  std::string_view key, why;
};
/// They change what runs, and no plan can say how.
constexpr Unsupported kBeyondPlans[] = {
    {"account-for-embedding-in-pipeline-split",
     "embedding and head stand beside the layers of their stages"},
    {"account-for-loss-in-pipeline-split",
     "embedding and head stand beside the layers of their stages"},
    {"pipeline-model-parallel-split-rank", "models are one stack of blocks"},
    {"hierarchical-context-parallel-sizes", "context parallelism is a ring or Ulysses"},
    {"use-tp-pp-dp-mapping", "ranks lie as tp, cp, ep, dp, pp"},
    {"rampup-batch-size", "the batch of a plan is constant: drop it to plan the final batch"},
    {"cpu-offloading", "everything stays on the device"},
    {"optimizer-cpu-offload", "everything stays on the device"},
    {"distribute-saved-activations",
     "stashes are not split over the tensor group; use sequence-parallel"},
};
/// Known, read only for the spelling of others.
constexpr std::array kPlanKeys{"tensor-model-parallel-size",
                               "pipeline-model-parallel-size",
                               "context-parallel-size",
                               "expert-model-parallel-size",
                               "num-layers-per-virtual-pipeline-stage",
                               "num-virtual-stages-per-pipeline-rank",
                               "sequence-parallel",
                               "decoder-first-pipeline-num-layers",
                               "decoder-last-pipeline-num-layers",
                               "pipeline-model-parallel-layout",
                               "use-distributed-optimizer",
                               "overlap-grad-reduce",
                               "tp-comm-overlap",
                               "num-distributed-optimizer-instances",
                               "data-parallel-sharding-strategy",
                               "recompute-granularity",
                               "recompute-method",
                               "recompute-num-layers",
                               "recompute-activations",
                               "micro-batch-size",
                               "global-batch-size"};

class MegatronReader : ArgumentReader {
 public:
  MegatronReader(std::vector<Argument> arguments, const std::string& name,
                 const ImportTarget& target)
      : ArgumentReader(std::move(arguments), name), target_(target) {}

  base::Result<ImportedPlan> read() {
    check_model();
    check_unsupported();
    read_layer();
    imported_.plan.vocabulary = vocabulary_like(layer_);
    read_batch();
    reduce_once_where_there_is_one();
    read_precision();
    read_stages();
    read_rest();
    if (!sink_.ok()) return sink_.result(ImportedPlan{});
    return validated(std::move(imported_), target_.model,
                     {{".tp", where("tensor-model-parallel-size")},
                      {".cp", where("context-parallel-size")},
                      {".ep", where("expert-model-parallel-size")},
                      {".shard", where("num-distributed-optimizer-instances")},
                      {"sequence is", where("seq-length")},
                      {"batch", where("global-batch-size")},
                      {"stages", where("pipeline-model-parallel-size")},
                      {"", where("")}});
  }

 private:
  std::int64_t degree(std::string_view key) { return integer(key).value_or(1); }

  void check_model() {
    const model::ModelSpec& m = target_.model;
    const std::pair<std::string_view, std::int64_t> sizes[] = {{"num-layers", m.layers},
                                                               {"hidden-size", m.hidden},
                                                               {"num-attention-heads", m.heads},
                                                               {"num-query-groups", m.kv_heads},
                                                               {"ffn-hidden-size", m.ffn}};
    for (const auto& [key, value] : sizes) {
      const auto given = resolved(key);
      if (!given || *given == value) continue;
      fault(key, kInconsistent, "name the model that the file trains with --model",
            "--{} is {} and model '{}' has {}", key, *given, m.name, value);
    }
    Plan& plan = imported_.plan = plan_for(target_);
    const auto sequence = resolved("seq-length");
    plan.sequence = target_.sequence > 0 ? target_.sequence : sequence.value_or(m.max_positions);
  }

  void check_unsupported() {
    for (const Unsupported& u : kBeyondPlans) {
      if (flag(u.key))
        fault(u.key, kUnsupported, std::string(u.why), "--{} cannot be said in a plan", u.key);
    }
    const auto etp = integer("expert-tensor-parallel-size");
    if (etp && *etp != 1 && *etp != degree("tensor-model-parallel-size")) {
      fault("expert-tensor-parallel-size", kUnsupported, "1, or the degree of the other layers",
            "experts with tensor-parallel degree {} cannot be said in a plan", *etp);
    }
    if (const auto optimizer = text("optimizer"); optimizer && *optimizer != "adam") {
      fault("optimizer", kUnsupported, "states are counted for adam", "optimizer '{}'", *optimizer);
    }
  }

  void read_layer() {
    const std::int64_t tp = degree("tensor-model-parallel-size"),
                       cp = degree("context-parallel-size");
    stages_ = degree("pipeline-model-parallel-size");
    layer_.ep = as_int(degree("expert-model-parallel-size"));
    const std::int64_t world = world_size(), model_parallel = tp * cp * stages_;
    if (world % model_parallel != 0) {
      fault("tensor-model-parallel-size", kInconsistent, "the rest of the ranks is data parallel",
            "tensor {} × context {} × pipeline {} does not divide {} ranks", tp, cp, stages_,
            world);
    }
    layer_.tp = as_int(tp);
    layer_.cp = as_int(cp);
    layer_.dp = as_int(std::max<std::int64_t>(world / model_parallel, 1));
    layer_.sequence_parallel = flag("sequence-parallel") && tp > 1;
    layer_.folded = target_.model.has_experts() && tp > 1 &&
                    integer("expert-tensor-parallel-size").value_or(tp) == 1;
    // Transformer Engine splits a product before its scatter in four by default
    if (flag("tp-comm-overlap") && layer_.sequence_parallel) layer_.tensor_pieces = 4;
    const std::string kind = text("cp-comm-type").value_or("p2p");
    if (kind == "a2a" && cp > 1) layer_.context = ContextKind::kUlysses;
    if (kind != "a2a" && kind != "p2p") {
      fault("cp-comm-type", kUnsupported, "p2p (a ring) or a2a (Ulysses)",
            "context parallelism by '{}'", kind);
    }
    read_sharding();
    read_recompute();
  }

  std::int64_t world_size() {
    const auto local = resolved("nproc-per-node"), nodes = resolved("nnodes");
    if (!local) {
      imported_.notes.push_back(
          fmt::format("the file does not say the world size: {} devices", target_.devices));
      return target_.devices;
    }
    // A number of nodes that the file does not know comes from the cluster.
    const std::int64_t hosts = nodes.value_or(has("nnodes") ? target_.hosts : 1),
                       world = *local * hosts;
    if (world > target_.devices) {
      fault("nproc-per-node", kInconsistent, "--hosts, or another cluster",
            "{} × {} ranks, cluster '{}' has {} devices", hosts, *local, target_.cluster,
            target_.devices);
      return target_.devices;
    }
    return world;
  }

  void read_sharding() {
    constexpr std::array<std::string_view, 4> kStrategies{"no_shard", "optim", "optim_grads",
                                                          "optim_grads_params"};
    int zero = flag("use-distributed-optimizer") ? 1 : 0;
    if (flag("use-torch-fsdp2")) zero = 3;
    const bool fsdp = flag("use-megatron-fsdp"), custom = flag("use-custom-fsdp");
    const std::string strategy = text("data-parallel-sharding-strategy").value_or("no_shard");
    const auto known = std::ranges::find(kStrategies, strategy);
    if (known == kStrategies.end()) {
      fault("data-parallel-sharding-strategy", kBadValue,
            fmt::format("{}", fmt::join(kStrategies, ", ")), "unknown sharding strategy '{}'",
            strategy);
    } else if (fsdp || custom) {
      zero = as_int(known - kStrategies.begin());
    }
    layer_.zero = layer_.replicas() == 1 ? 0 : zero;
    if (layer_.zero >= 2) layer_.grad_reduce = GradReduce::kMicroBatch;
    const bool overlaps = flag("overlap-grad-reduce");
    if (layer_.zero < 2 && layer_.replicas() > 1 && !overlaps)
      layer_.grad_reduce = GradReduce::kEnd;
    const std::int64_t instances = degree("num-distributed-optimizer-instances");
    if (instances == 1 || layer_.zero == 0) return;
    if (layer_.replicas() % instances != 0) {
      fault("num-distributed-optimizer-instances", kInconsistent, {},
            "{} instances do not divide {} replicas", instances, layer_.replicas());
      return;
    }
    layer_.shard = as_int(layer_.replicas() / instances);
  }

  void read_recompute() {
    const auto granularity = text("recompute-granularity");
    const std::string method = text("recompute-method").value_or("uniform");
    const auto count = integer("recompute-num-layers");
    const bool selective = flag("recompute-activations") || granularity == "selective";
    if (granularity && *granularity != "full" && *granularity != "selective") {
      fault("recompute-granularity", kBadValue, "full or selective",
            "--recompute-granularity is '{}'", *granularity);
    }
    if (const auto modules = text("recompute-modules");
        modules && selective && *modules != "core_attn") {
      fault("recompute-modules", kUnsupported, "selective recomputes the attention core",
            "recomputation of '{}'", *modules);
    }
    layer_.recompute = selective ? Recompute::kSelective : Recompute::kNone;
    if (granularity != "full") return;
    layer_.recompute = Recompute::kFull;
    if (method == "block") {
      recomputed_layers_ = count.value_or(target_.model.layers);
    } else if (method != "uniform") {
      fault("recompute-method", kBadValue, "uniform or block", "--recompute-method is '{}'",
            method);
    } else if (count.value_or(1) != 1) {
      fault("recompute-num-layers", kUnsupported, "every layer keeps its own input: 1",
            "chunks of {} layers that are recomputed as one", *count);
    }
  }

  void read_batch() {
    const auto micro = integer("micro-batch-size");
    if (!micro && !has("micro-batch-size")) {
      fault("micro-batch-size", kMissingKey, "sequences of a micro-batch on one data-parallel rank",
            "--micro-batch-size is missing");
    }
    const std::int64_t sequences = micro.value_or(1) * layer_.dp;
    const std::int64_t global = integer("global-batch-size").value_or(sequences);
    if (global % sequences != 0) {
      fault("global-batch-size", kInconsistent, fmt::format("a multiple of {}", sequences),
            "global batch of {} sequences does not divide into "
            "micro-batches of {} on {} data-parallel ranks",
            global, micro.value_or(1), layer_.dp);
    }
    imported_.plan.global_batch = global;
    imported_.plan.micro_batches = std::max<std::int64_t>(global / sequences, 1);
  }

  /// One micro-batch is reduced once either way, beside its backward.
  void reduce_once_where_there_is_one() {
    if (imported_.plan.micro_batches > 1 || layer_.grad_reduce != GradReduce::kMicroBatch) return;
    layer_.grad_reduce = imported_.plan.vocabulary.grad_reduce = GradReduce::kStep;
  }

  /// Of Transformer Engine, by Megatron-LM's names; fp8 without a recipe scales by steps before.
  std::optional<model::Precision> recipe() {
    using enum model::Precision;
    static_cast<void>(text("fp4-recipe"));  // the plan's only one
    if (text("fp4-format")) return kNvFp4;
    const auto name = text("fp8-recipe");
    if (!text("fp8-format") && !name) return std::nullopt;
    constexpr std::array<base::Named<model::Precision>, 4> kRecipes{{{"delayed", kFp8Delayed},
                                                                     {"tensorwise", kFp8Current},
                                                                     {"blockwise", kFp8Block},
                                                                     {"mxfp8", kMxFp8}}};
    const auto known =
        std::ranges::find(kRecipes, name.value_or("delayed"), &base::Named<model::Precision>::name);
    if (known != kRecipes.end()) return known->value;
    fault("fp8-recipe", kBadValue, "delayed, tensorwise, blockwise or mxfp8",
          "no recipe of fp8 '{}'", *name);
    return std::nullopt;
  }

  void read_precision() {
    const bool bf16 = flag("bf16"), fp16 = flag("fp16");
    if (fp16 && !target_.precision)
      imported_.notes.push_back("fp16 is taken as bf16, which has the same sizes");
    const auto own = bf16 || fp16 ? model::Precision::kBFloat16 : model::Precision::kFloat32;
    imported_.plan.precision = target_.precision.value_or(recipe().value_or(own));
  }

  /// Layers of each (virtual) stage of pipeline-model-parallel-layout.
  std::vector<std::int64_t> layout(const std::string& text) {
    constexpr std::string_view kKey = "pipeline-model-parallel-layout";
    for (const std::string_view other :
         {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
          "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"}) {
      if (!has(other)) continue;
      fault(other, kInconsistent, "leave one of them out", "--{} beside --{}", other, kKey);
      return {};
    }
    auto stages = read_pipeline_layout(text);
    if (!stages) {
      for (base::Diagnostic& d : stages.error())
        sink_.add(std::move(d)
                      .at(where(kKey))
                      .with_hint("as in \"Et*3|(t*4|)*2t*3L\": embedding, layers, head"));
      return {};
    }
    std::int64_t sum = 0;
    for (const std::int64_t count : *stages) sum += count;
    const auto turns = static_cast<std::int64_t>(stages->size()) / stages_;
    if (sum != target_.model.layers || turns * stages_ != std::ssize(*stages)) {
      fault(kKey, kInconsistent,
            fmt::format("a multiple of {} stages with {} layers in all", stages_,
                        target_.model.layers),
            "--{} has {} stages and {} layers", kKey, stages->size(), sum);
      return {};
    }
    set_turns(turns);
    return *stages;
  }

  void set_turns(std::int64_t turns) {
    imported_.plan.virtual_stages = as_int(turns);
    imported_.plan.schedule = turns > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  }

  /// Layers of each (virtual) stage.
  std::vector<std::int64_t> division() {
    if (const auto stages = text("pipeline-model-parallel-layout")) return layout(*stages);
    const std::int64_t layers = target_.model.layers;
    const auto first = integer("decoder-first-pipeline-num-layers"),
               last = integer("decoder-last-pipeline-num-layers");
    const auto chunk = integer("num-layers-per-virtual-pipeline-stage");
    std::int64_t turns = integer("num-virtual-stages-per-pipeline-rank").value_or(1);
    std::string_view key = "pipeline-model-parallel-size";
    if (chunk) {
      key = "num-layers-per-virtual-pipeline-stage";
      turns = layers % (stages_ * *chunk) == 0 ? layers / (stages_ * *chunk) : 0;
    }
    const std::int64_t rest = layers - first.value_or(0) - last.value_or(0),
                       slots = stages_ * turns - first.has_value() - last.has_value();
    if (turns < 1 || slots < 0 || rest < slots || (slots > 0 ? rest % slots : rest) != 0 ||
        (turns > 1 && (first || last))) {
      fault(key, kInconsistent,
            turns > 1 && (first || last) ? "virtual stages have equal numbers of layers here"
                                         : "stages of equal numbers of layers",
            "{} layers do not divide into the stages asked for ({} of "
            "pipeline-model-parallel-size)",
            layers, stages_);
      return {};
    }
    std::vector<std::int64_t> counts(as_index(stages_ * turns), slots > 0 ? rest / slots : 0);
    if (first) counts.front() = *first;
    if (last) counts.back() = *last;
    set_turns(turns);
    return counts;
  }

  void read_stages() {
    for (const std::int64_t layers : division()) {
      const std::int64_t recomputed =
          recomputed_layers_ ? std::min(*recomputed_layers_, layers) : layers;
      LayerStrategy plain = layer_;
      if (recomputed_layers_) plain.recompute = Recompute::kNone;
      Stage stage;
      if (recomputed > 0) stage.runs.push_back({as_int(recomputed), layer_});
      if (layers > recomputed) stage.runs.push_back({as_int(layers - recomputed), plain});
      imported_.plan.stages.push_back(std::move(stage));
    }
    if (sink_.ok()) keep_experts_where_they_are(imported_.plan, target_.model);
    imported_.plan = canonical(std::move(imported_.plan));
  }

  /// A name near one that matters is a slip; the others do not bear on the plan.
  void read_rest() {
    const std::vector<std::string> known(kPlanKeys.begin(), kPlanKeys.end());
    std::vector<std::string> ignored;
    for (const Argument& argument : rest()) {
      const auto near = base::nearest(argument.key, known);
      if (near && base::edit_distance(argument.key, *near) <= 2) {
        fault(argument.key, kUnknownKey, fmt::format("did you mean --{}?", *near),
              "unknown argument --{}", argument.key);
      } else {
        ignored.push_back("--" + argument.key);
      }
    }
    if (!ignored.empty())
      imported_.notes.push_back(fmt::format("not part of a plan: {}", fmt::join(ignored, ", ")));
  }

  const ImportTarget& target_;
  std::int64_t stages_ = 1;
  LayerStrategy layer_;
  std::optional<std::int64_t> recomputed_layers_;  // of each stage, its first; nothing: all
  ImportedPlan imported_;
};

}  // namespace

base::Result<ImportedPlan> megatron_plan(std::vector<Argument> arguments, const std::string& name,
                                         const ImportTarget& target) {
  return MegatronReader(std::move(arguments), name, target).read();
}

base::Result<ImportedPlan> import_megatron(std::string_view text, const std::string& name,
                                           const ImportTarget& target) {
  return megatron_plan(read_arguments(text, name), name, target);
}

}  // namespace orrery::plan
