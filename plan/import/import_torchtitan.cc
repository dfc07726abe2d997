#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "plan/import/import.h"
#include "plan/import/toml.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

constexpr int kAsyncPieces = 4;  // in which a plan prices collectives beside products

/// Keys of v0.2.2 that bear on the plan. Another key of these sections is a fault, as it is there.
const std::map<std::string_view, std::vector<std::string>> kKeys{
    {"training",
     {"local_batch_size", "global_batch_size", "seq_len", "dtype", "mixed_precision_param",
      "mixed_precision_reduce", "enable_cpu_offload", "dataset", "dataset_path", "max_norm",
      "steps", "gc_freq", "gc_debug"}},
    {"parallelism",
     {"data_parallel_replicate_degree",
      "data_parallel_shard_degree",
      "fsdp_reshard_after_forward",
      "tensor_parallel_degree",
      "disable_loss_parallel",
      "enable_async_tensor_parallel",
      "pipeline_parallel_degree",
      "module_fqns_per_model_part",
      "pipeline_parallel_first_stage_less_layers",
      "pipeline_parallel_last_stage_less_layers",
      "pipeline_parallel_layers_per_stage",
      "pipeline_parallel_schedule",
      "pipeline_parallel_schedule_csv",
      "pipeline_parallel_microbatch_size",
      "pipeline_parallel_expert_parallel_overlap",
      "context_parallel_degree",
      "context_parallel_load_balancer",
      "context_parallel_rotate_method",
      "expert_parallel_degree",
      "expert_tensor_parallel_degree",
      "expert_parallel_comm_backend"}},
    {"activation_checkpoint",
     {"mode", "selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop",
      "memory_budget", "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check",
      "debug"}},
};

/// Values by section and key, with faults collected on the way.
class TomlTable {
 public:
  TomlTable(std::vector<TomlEntry> entries, std::string file)
      : entries_(std::move(entries)), file_(std::move(file)) {}

 protected:
  const TomlValue* value(std::string_view section, std::string_view key, TomlValue::Kind kind,
                         std::string_view what) {
    const TomlEntry* entry = find(section, key);
    if (entry == nullptr) return nullptr;
    if (entry->value.kind == kind) return &entry->value;
    fault(section, key, kWrongType, {}, "'{}' is {}", key, what);
    return nullptr;
  }

  std::int64_t integer(std::string_view section, std::string_view key, std::int64_t by_default,
                       std::int64_t low = 1) {
    const TomlValue* v = value(section, key, TomlValue::Kind::kInteger, "a whole number");
    if (v == nullptr) return by_default;
    const auto number = base::parse_integer(v->text);
    if (number && *number >= low && *number <= std::int64_t{1} << 32) return *number;
    fault(section, key, kOutOfRange, fmt::format("a whole number from {} on", low), "'{}' is {}",
          key, v->text);
    return by_default;
  }

  std::string text(std::string_view section, std::string_view key, std::string by_default) {
    const TomlValue* v = value(section, key, TomlValue::Kind::kString, "a text");
    return v == nullptr ? by_default : v->text;
  }

  bool flag(std::string_view section, std::string_view key, bool by_default = false) {
    const TomlValue* v = value(section, key, TomlValue::Kind::kBool, "true or false");
    return v == nullptr ? by_default : v->text == "true";
  }

  [[nodiscard]] const TomlEntry* find(std::string_view section, std::string_view key) const {
    const auto entry = std::ranges::find_if(
        entries_, [&](const TomlEntry& e) { return e.section == section && e.key == key; });
    return entry == entries_.end() ? nullptr : &*entry;
  }

  [[nodiscard]] base::SourceSpan where(std::string_view section, std::string_view key) const {
    const TomlEntry* entry = find(section, key);
    return entry == nullptr ? base::SourceSpan{file_, 0, 0} : entry->where;
  }

  template <class... Args>
  void fault(std::string_view section, std::string_view key, base::ErrorCode code, std::string hint,
             fmt::format_string<Args...> format, Args&&... args) {
    sink_.add(base::make_error(code, format, std::forward<Args>(args)...)
                  .at(where(section, key))
                  .with_hint(std::move(hint)));
  }

  std::vector<TomlEntry> entries_;
  std::string file_;
  base::ErrorSink sink_;
};

constexpr std::string_view kParallelism = "parallelism", kTraining = "training",
                           kCheckpoint = "activation_checkpoint";

class TorchTitanReader : TomlTable {
 public:
  TorchTitanReader(std::vector<TomlEntry> entries, const std::string& name,
                   const ImportTarget& target)
      : TomlTable(std::move(entries), name), target_(target) {}

  base::Result<ImportedPlan> read() {
    imported_.plan = plan_for(target_);
    check_keys();
    read_degrees();
    read_schedule();
    read_batch();
    read_sharding();
    read_precision();
    read_layers();
    if (!sink_.ok()) return sink_.result(ImportedPlan{});
    const auto at = [&](std::string_view key) { return where(kParallelism, key); };
    return validated(std::move(imported_), target_.model,
                     {{".tp", at("tensor_parallel_degree")},
                      {".cp", at("context_parallel_degree")},
                      {".ep", at("expert_parallel_degree")},
                      {"sequence is", where(kTraining, "seq_len")},
                      {"batch", where(kTraining, "local_batch_size")},
                      {"stages", at("pipeline_parallel_degree")},
                      {"", {file_, 0, 0}}});
  }

 private:
  void check_keys() {
    std::set<std::string> ignored;
    for (const TomlEntry& entry : entries_) {
      const auto known = kKeys.find(entry.section);
      if (known == kKeys.end()) {
        const bool plans = entry.section == "compile" || entry.section == "model" ||
                           entry.section.starts_with("quantize.linear.");
        if (!plans) ignored.insert(fmt::format("[{}]", entry.section));
      } else if (std::ranges::find(known->second, entry.key) == known->second.end()) {
        fault(entry.section, entry.key, kUnknownKey, base::did_you_mean(entry.key, known->second),
              "unknown key '{}' in [{}]", entry.key, entry.section);
      }
    }
    if (!ignored.empty())
      imported_.notes.push_back(fmt::format("not part of a plan: {}", fmt::join(ignored, ", ")));
    if (flag(kTraining, "enable_cpu_offload"))
      fault(kTraining, "enable_cpu_offload", kUnsupported, "everything stays on the device",
            "offloading cannot be said in a plan");
    if (!text(kParallelism, "pipeline_parallel_schedule_csv", "").empty())
      fault(kParallelism, "pipeline_parallel_schedule_csv", kUnsupported,
            "1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble or DualPipeV",
            "a schedule of one's own cannot be said in a plan");
  }

  std::int64_t degree(std::string_view key) { return integer(kParallelism, key, 1); }

  void read_degrees() {
    replicate_ = degree("data_parallel_replicate_degree");
    shard_ = integer(kParallelism, "data_parallel_shard_degree", -1, -1);
    stages_ = degree("pipeline_parallel_degree");
    const std::int64_t tp = degree("tensor_parallel_degree"),
                       cp = degree("context_parallel_degree"),
                       ep = degree("expert_parallel_degree"),
                       etp = degree("expert_tensor_parallel_degree");
    for (const std::int64_t d : {replicate_, shard_, stages_, tp, cp, ep}) {
      if (d <= kMaxWorldSize) continue;
      fault(kParallelism, "", kOutOfRange, {}, "a degree of {}", d);
      return;
    }
    if (shard_ == 0)
      fault(kParallelism, "data_parallel_shard_degree", kOutOfRange, "-1, or from 1 on",
            "'data_parallel_shard_degree' is 0");
    std::int64_t ranks = 1;
    for (const std::int64_t d : {replicate_, tp, cp, stages_, std::max(shard_, std::int64_t{1})})
      ranks = std::min(ranks * d, kMaxWorldSize + 1);
    if (shard_ < 0 && target_.devices % ranks == 0) {
      shard_ = target_.devices / ranks;
      imported_.notes.push_back(
          fmt::format("the file does not say the world size: {} devices", target_.devices));
    } else if (shard_ < 0 || ranks > target_.devices) {
      fault(kParallelism, "data_parallel_shard_degree", kInconsistent, "other degrees, or --hosts",
            "degrees of {} ranks in all, and there are {} devices", ranks, target_.devices);
    }
    if (ep > 1 && etp != tp && etp != 1)
      fault(kParallelism, "expert_tensor_parallel_degree", kUnsupported,
            "1, or the degree of the other layers",
            "experts with tensor-parallel degree {} beside {}", etp, tp);
    layer_.tp = as_int(tp);
    layer_.cp = as_int(cp);
    layer_.ep = as_int(ep);
    layer_.folded = ep > 1 && tp > 1 && etp == 1;
    layer_.dp = as_int(replicate_ * std::max(shard_, std::int64_t{1}));
    layer_.sequence_parallel = tp > 1;
    const bool async = flag(kParallelism, "enable_async_tensor_parallel") && tp > 1;
    if (async && flag("compile", "enable")) layer_.tensor_pieces = kAsyncPieces;
    if (cp > 1 && text(kParallelism, "context_parallel_rotate_method", "allgather") != "alltoall")
      imported_.notes.push_back("keys and values of all ranks at once are taken as a ring");
  }

  void read_schedule() {
    constexpr base::Named<Schedule> kSchedules[] = {{"1F1B", Schedule::k1F1B},
                                                    {"GPipe", Schedule::kGPipe},
                                                    {"Interleaved1F1B", Schedule::kInterleaved},
                                                    {"ZBVZeroBubble", Schedule::kZeroBubbleV},
                                                    {"DualPipeV", Schedule::kDualPipeV}};
    const std::string name = text(kParallelism, "pipeline_parallel_schedule", "1F1B");
    const auto known = std::ranges::find(kSchedules, name, &base::Named<Schedule>::name);
    if (stages_ == 1) return;
    if (known == std::end(kSchedules)) {
      fault(kParallelism, "pipeline_parallel_schedule", kUnsupported,
            "1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble or DualPipeV",
            "schedule '{}' cannot be said in a plan", name);
      return;
    }
    imported_.plan.schedule = known->value;
  }

  void read_batch() {
    Plan& plan = imported_.plan;
    const std::int64_t local = integer(kTraining, "local_batch_size", 8),
                       global = integer(kTraining, "global_batch_size", -1, -1),
                       part = integer(kParallelism, "pipeline_parallel_microbatch_size", 1),
                       sequence = integer(kTraining, "seq_len", 2048);
    plan.sequence = target_.sequence > 0 ? target_.sequence : sequence;
    const std::int64_t together = local * layer_.dp;
    plan.global_batch = global < 1 ? together : global;
    if (plan.global_batch % together != 0) {
      fault(kTraining, "global_batch_size", kInconsistent,
            fmt::format("a multiple of {}", together),
            "{} sequences on {} data-parallel ranks of {}", plan.global_batch, layer_.dp, local);
      return;
    }
    plan.micro_batches = plan.global_batch / together;
    if (stages_ == 1) return;
    if (local % part != 0) {
      fault(kParallelism, "pipeline_parallel_microbatch_size", kInconsistent,
            "a divisor of local_batch_size", "micro-batches of {} of {} sequences", part, local);
    } else if (plan.micro_batches > 1) {
      fault(kTraining, "global_batch_size", kUnsupported,
            "a plan's pipeline runs once a step: local_batch_size of all its sequences",
            "{} pipelines a step", plan.micro_batches);
    }
    plan.micro_batches = local / std::max<std::int64_t>(part, 1);
  }

  void read_sharding() {
    const bool shards = shard_ > 1 || layer_.cp > 1;
    const std::string reshard = text(kParallelism, "fsdp_reshard_after_forward", "default");
    constexpr std::array<std::string_view, 3> kWords{"default", "always", "never"};
    if (std::ranges::find(kWords, reshard) == kWords.end())
      fault(kParallelism, "fsdp_reshard_after_forward", kBadValue, "default, always or never",
            "'fsdp_reshard_after_forward' is '{}'", reshard);
    const bool always = reshard == "always" || (reshard == "default" && stages_ == 1);
    if (shards) layer_.zero = always ? 3 : 2;
    if (shards && replicate_ > 1) layer_.shard = as_int(shard_ * layer_.cp);
    if (!shards && replicate_ > 1) {
      if (layer_.tp > 1 || stages_ > 1)
        fault(kParallelism, "data_parallel_replicate_degree", kUnsupported,
              "data_parallel_shard_degree in its place",
              "replicas beside tensor or pipeline parallelism");
      if (imported_.plan.micro_batches > 1)
        imported_.notes.push_back("gradients of replicas are summed once a step, not every time");
    }
    if (layer_.zero < 2) return;
    if (stages_ > 1) {
      layer_.grad_reduce = GradReduce::kEnd;
    } else if (imported_.plan.micro_batches > 1) {
      layer_.grad_reduce = GradReduce::kMicroBatch;
    }
  }

  void read_precision() {
    using enum model::Precision;
    const std::string dtype = text(kTraining, "mixed_precision_param", "bfloat16");
    if (dtype != "bfloat16" && dtype != "float32")
      fault(kTraining, "mixed_precision_param", kUnsupported, "bfloat16 or float32",
            "'mixed_precision_param' is '{}'", dtype);
    model::Precision own = dtype == "float32" ? kFloat32 : kBFloat16;
    const TomlValue* converters =
        value("model", "converters", TomlValue::Kind::kArray, "a list of names");
    for (const TomlValue& converter : converters ? converters->items : std::vector<TomlValue>{}) {
      if (converter.text == "quantize.linear.float8") own = kFp8Current;
      if (converter.text == "quantize.linear.mx") own = kMxFp8;
    }
    const std::string recipe = text("quantize.linear.float8", "recipe_name", "tensorwise");
    if (own == kFp8Current && recipe != "tensorwise")
      fault("quantize.linear.float8", "recipe_name", kUnsupported, "tensorwise",
            "products in fp8 by '{}'", recipe);
    imported_.plan.precision = target_.precision.value_or(own);
  }

  /// Layers of each stage by the rule of generate_llm_fqn_per_model_part: the layers and what
  /// embedding and head weigh are dealt out evenly, the rest to the first stages.
  std::vector<std::int64_t> dealt_out() {
    const std::int64_t layers = target_.model.layers;
    const auto less = [&](std::string_view key) { return integer(kParallelism, key, 1, 0); };
    const std::int64_t first = less("pipeline_parallel_first_stage_less_layers"),
                       last = less("pipeline_parallel_last_stage_less_layers"),
                       all = layers + first + last;
    const std::int64_t each = integer(kParallelism, "pipeline_parallel_layers_per_stage", 0, 1);
    const Schedule schedule = imported_.plan.schedule;
    const bool several = schedule == Schedule::kInterleaved || is_v_shaped(schedule);
    const std::int64_t count = each > 0 ? ceil_div(all, each) : stages_ * (several ? 2 : 1);
    std::vector<std::int64_t> sizes;
    if (count > all) return sizes;
    for (std::int64_t i = 0; i < count; ++i)
      sizes.push_back(all / count + (i < all % count ? 1 : 0));
    sizes.front() -= first;
    sizes.back() -= last;
    return sizes;
  }

  /// Layers of each stage as module_fqns_per_model_part lists them.
  std::vector<std::int64_t> listed(const TomlValue& parts) {
    std::vector<std::int64_t> sizes;
    std::int64_t next = 0;
    for (const TomlValue& part : parts.items) {
      sizes.push_back(0);
      for (const TomlValue& module : part.items) {
        if (!module.text.starts_with("layers.")) continue;
        if (module.text != fmt::format("layers.{}", next)) {
          fault(kParallelism, "module_fqns_per_model_part", kUnsupported, "layers in order",
                "'{}' where layer {} is next", module.text, next);
          return {};
        }
        ++sizes.back();
        ++next;
      }
    }
    return sizes;
  }

  std::vector<std::int64_t> stage_sizes() {
    if (stages_ == 1) return {target_.model.layers};
    const TomlValue* parts = value(kParallelism, "module_fqns_per_model_part",
                                   TomlValue::Kind::kArray, "a list of lists of modules");
    std::vector<std::int64_t> sizes = parts == nullptr ? dealt_out() : listed(*parts);
    if (!sink_.ok()) return {};
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes) sum += size;
    const auto count = static_cast<std::int64_t>(sizes.size());
    const bool loops = imported_.plan.schedule == Schedule::kInterleaved,
               in_v = is_v_shaped(imported_.plan.schedule);
    const std::int64_t turns = count / stages_;
    if (count % stages_ != 0 || (loops ? turns < 2 : turns != (in_v ? 2 : 1)) ||
        sum != target_.model.layers ||
        std::ranges::any_of(sizes, [](std::int64_t size) { return size < 1; })) {
      fault(kParallelism,
            parts == nullptr ? "pipeline_parallel_degree" : "module_fqns_per_model_part",
            kInconsistent,
            loops  ? "two or more stages a rank"
            : in_v ? "two stages a rank"
                   : "one stage a rank",
            "{} stages of {} layers in all on {} ranks, and model '{}' has {} layers", count, sum,
            stages_, target_.model.name, target_.model.layers);
      return {};
    }
    imported_.plan.virtual_stages = as_int(turns);
    return sizes;
  }

  /// Every which layer of a rank is recomputed as a whole; 0: none.
  std::int64_t every() {
    const std::string mode = text(kCheckpoint, "mode", "selective"),
                      option = text(kCheckpoint, "selective_ac_option", "2");
    if (mode == "none") return 0;
    if (mode == "full") return 1;
    if (mode != "selective") {
      fault(kCheckpoint, "mode", kUnsupported, "none, selective or full",
            "recomputation by '{}' cannot be said in a plan", mode);
      return 0;
    }
    if (option == "op") {
      layer_.recompute = Recompute::kOperator;
      return 0;
    }
    const auto number = base::parse_integer(option);
    if (number && *number >= 0 && *number <= kMaxWorldSize)
      return std::max<std::int64_t>(*number, 1);
    fault(kCheckpoint, "selective_ac_option", kBadValue, "op, or a number",
          "'selective_ac_option' is '{}'", option);
    return 0;
  }

  void read_layers() {
    Plan& plan = imported_.plan;
    const std::vector<std::int64_t> sizes = stage_sizes();
    const std::int64_t step = every();
    if (!sink_.ok()) return;
    std::vector<std::int64_t> seen(as_index(stages_), 0);  // [rank] layers so far
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Stage stage;
      for (std::int64_t k = 0; k < sizes[i]; ++k) {
        LayerStrategy own = layer_;
        const std::int64_t place =
            ++seen[as_index(rank_of(plan.schedule, as_int(i), as_int(stages_)))];
        if (step > 0 && place % step == 0) own.recompute = Recompute::kFull;
        stage.runs.push_back({1, own});
      }
      plan.stages.push_back(std::move(stage));
    }
    plan.vocabulary = vocabulary_like(layer_);
    keep_experts_where_they_are(plan, target_.model);
    plan = canonical(std::move(plan));
  }

  const ImportTarget& target_;
  std::int64_t replicate_ = 1, shard_ = 1, stages_ = 1;
  LayerStrategy layer_;
  ImportedPlan imported_;
};

}  // namespace

base::Result<ImportedPlan> import_torchtitan(std::string_view text, const std::string& name,
                                             const ImportTarget& target) {
  TRY(std::vector<TomlEntry> entries, read_toml(text, name));
  return TorchTitanReader(std::move(entries), name, target).read();
}

}  // namespace orrery::plan
