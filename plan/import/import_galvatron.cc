#include <algorithm>

#include "base/numbers.h"
#include "base/text.h"
#include "plan/import/import.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

constexpr base::Named<Schedule> kPipelineTypes[] = {{"pipedream_flush", Schedule::k1F1B},
                                                    {"gpipe", Schedule::kGPipe}};
constexpr base::Named<int> kDataTypes[] = {{"ddp", 0}, {"zero1", 1}, {"zero2", 2}, {"zero3", 3}};

class GalvatronReader {
 public:
  GalvatronReader(const base::Node& root, const ImportTarget& target)
      : target_(target),
        reader_(root, "Galvatron plan", sink_),
        layers_(as_index(target.model.layers)) {}

  base::Result<ImportedPlan> read() {
    Plan& plan = imported_.plan;
    head();
    const std::int64_t world = read_world(),
                       stages = reader_.required_int("pp_deg", {1, kMaxWorldSize});
    if (sink_.ok() && world % stages != 0)
      reader_.error("pp_deg", kInconsistent, "{} stages do not divide {} devices", stages, world);
    devices_ = sink_.ok() ? world / stages : 0;
    plan.schedule =
        reader_.optional_enum("pipeline_type", kPipelineTypes).value_or(Schedule::kGPipe);
    default_zero_ = reader_.optional_enum("default_dp_type", kDataTypes).value_or(0);
    plan.global_batch = reader_.required_int("global_bsz", {1, std::int64_t{1} << 32});
    plan.micro_batches = reader_.required_int("chunks", {1, std::int64_t{1} << 32});
    const std::vector<LayerStrategy> layers = read_layers();
    const std::vector<std::int64_t> division = read_division(stages);
    read_vocabulary();
    reader_.finish();
    if (!sink_.ok()) return sink_.result(ImportedPlan{});
    std::size_t layer = 0;
    for (const std::int64_t count : division) {
      plan.stages.emplace_back();
      for (std::int64_t i = 0; i < count; ++i)
        plan.stages.back().runs.push_back({1, layers[layer++]});
    }
    plan = canonical(std::move(plan));
    return validated(std::move(imported_), target_.model,
                     {{"micro_batches", reader_.span("chunks")},
                      {"micro-batch", reader_.span("chunks")},
                      {"vocabulary", reader_.span("vtp")},
                      {"stages", reader_.span("tp_sizes_enc")},
                      {"", reader_.span("pp_deg")}});
  }

 private:
  void head() {
    Plan& plan = imported_.plan = plan_for(target_);
    plan.precision = target_.precision.value_or(model::Precision::kBFloat16);
    plan.sequence = target_.sequence > 0 ? target_.sequence : target_.model.max_positions;
  }

  /// Files of late 2025 and after say it.
  std::int64_t read_world() {
    const auto stated = reader_.optional_int("world_size", {1, kMaxWorldSize});
    if (stated && *stated > target_.devices)
      reader_.fault("world_size", kInconsistent, "use more --hosts, or --devices as many",
                    "a plan for {} devices, and there are {}", *stated, target_.devices);
    if (!stated)
      imported_.notes.push_back(
          fmt::format("the file does not say the world size: {} devices", target_.devices));
    return stated.value_or(target_.devices);
  }

  /// "1,1,2,2": one number in [low, high] each; nothing when the key is absent or wrong.
  std::optional<std::vector<std::int64_t>> numbers(std::string_view key, std::int64_t low,
                                                   std::int64_t high) {
    const auto text = reader_.optional_string(key);
    if (!text) return std::nullopt;
    std::vector<std::int64_t> values;
    for (const std::string& piece : base::split(*text, ',')) {
      const auto value = base::parse_integer(base::trim(piece));
      if (!value || *value < low || *value > high) {
        reader_.error(key, kBadValue, "'{}': entry {} is '{}', not a number between {} and {}", key,
                      values.size(), piece, low, high);
        return std::nullopt;
      }
      values.push_back(*value);
    }
    return values;
  }

  /// One number for every layer of the model.
  std::vector<std::int64_t> per_layer(std::string_view key, std::int64_t high,
                                      std::int64_t by_default) {
    auto values = numbers(key, 0, high).value_or(std::vector<std::int64_t>(layers_, by_default));
    if (values.size() != layers_) {
      reader_.error(key, kInconsistent, "'{}' has {} layers and model '{}' has {}", key,
                    values.size(), target_.model.name, layers_);
      values.assign(layers_, by_default);
    }
    return values;
  }

  /// `degree` is Ulysses' or tensor parallelism's, `ring` that of context parallelism beside it.
  struct Degrees {
    std::int64_t degree = 1, ring = 1;
    bool ulysses = false;
  };

  LayerStrategy spread(std::string_view key, const Degrees& d, int zero) {
    LayerStrategy s;
    const std::int64_t ranks = d.degree * d.ring;
    if (ranks < 1 || (devices_ > 0 && devices_ % ranks != 0)) {
      reader_.error(key, kInconsistent, "'{}': degree {} does not divide the {} devices of a stage",
                    key, ranks, devices_);
      return s;
    }
    if (d.ulysses && d.degree > 1 && d.ring > 1) {
      reader_.error(key, kUnsupported, "'{}': Ulysses beside a ring cannot be said in a plan", key);
      return s;
    }
    const bool ulysses = d.ulysses && d.degree > 1;
    s.tp = ulysses ? 1 : as_int(d.degree);
    s.cp = as_int(ulysses ? d.degree : d.ring);
    if (ulysses) s.context = ContextKind::kUlysses;
    s.dp = as_int(std::max<std::int64_t>(devices_ / ranks, 1));
    s.zero = s.replicas() == 1 ? 0 : zero;
    if (s.zero >= 2 && target_.beside.reduce_every_micro_batch)
      s.grad_reduce = GradReduce::kMicroBatch;
    return s;
  }

  std::vector<LayerStrategy> read_layers() {
    if (!reader_.has("tp_sizes_enc")) static_cast<void>(reader_.required_string("tp_sizes_enc"));
    const auto degrees = per_layer("tp_sizes_enc", kMaxWorldSize, 1);
    const auto consecutive = per_layer("tp_consecutive_flags", 1, 1);
    const auto sharded = per_layer("dp_types_enc", 1, 0);
    const auto ulysses = per_layer("use_sp", 1, 0);
    const auto rings = per_layer("cp_sizes_enc", kMaxWorldSize, 1);
    const auto checkpoints = per_layer("checkpoint", 1, 0);
    std::vector<LayerStrategy> layers;
    bool tensor = false;
    for (std::size_t i = 0; i < layers_ && sink_.ok(); ++i) {
      LayerStrategy s = spread("tp_sizes_enc", {degrees[i], rings[i], ulysses[i] == 1},
                               sharded[i] == 1 ? 3 : default_zero_);
      s.sequence_parallel = s.tp > 1 && target_.beside.sequence_parallel;
      s.strided = consecutive[i] == 0 && s.tp > 1 && s.dp > 1;
      if (checkpoints[i] == 1) s.recompute = Recompute::kFull;
      tensor = tensor || s.tp > 1;
      layers.push_back(s);
    }
    if (tensor && target_.beside.sequence_parallel) {
      imported_.notes.push_back(
          "tensor parallelism is taken with sequence parallelism, as that tool's search assumes");
    }
    return layers;
  }

  std::vector<std::int64_t> read_division(std::int64_t stages) {
    const auto even = target_.model.layers / std::max<std::int64_t>(stages, 1);
    std::vector<std::int64_t> by_default(as_index(stages), even);
    if (stages > 0) by_default.back() += target_.model.layers - even * stages;
    const auto division = numbers("pp_division", 1, kMaxWorldSize).value_or(by_default);
    std::int64_t sum = 0;
    for (const std::int64_t count : division) sum += count;
    if (sink_.ok() &&
        (static_cast<std::int64_t>(division.size()) != stages || sum != target_.model.layers)) {
      reader_.error("pp_division", kInconsistent,
                    "'pp_division' has {} stages of {} layers in all, not {} stages of {}",
                    division.size(), sum, stages, target_.model.layers);
    }
    return division;
  }

  void read_vocabulary() {
    const std::int64_t degree = reader_.optional_int("vtp", {1, kMaxWorldSize}).value_or(1);
    const bool ulysses = reader_.optional_int("vsp", {0, 1}).value_or(0) == 1;
    const std::int64_t ring = reader_.optional_int("vcp", {1, kMaxWorldSize}).value_or(1);
    const auto searched = reader_.optional_int("embed_sdp", {0, 1}),
               runs = reader_.optional_int("vocab_sdp", {0, 1});
    if (searched && runs && *searched != *runs)
      reader_.fault("vocab_sdp", kInconsistent, "the runtime reads vocab_sdp: drop the other",
                    "vocab_sdp is {} and embed_sdp is {}", *runs, *searched);
    const bool sharded = runs.value_or(searched.value_or(0)) == 1;
    imported_.plan.vocabulary = spread("vtp", {degree, ring, ulysses}, sharded ? 3 : default_zero_);
  }

  const ImportTarget& target_;
  base::ErrorSink sink_;
  base::Reader reader_;
  std::size_t layers_;
  std::int64_t devices_ = 0;  // of a stage; 0: unknown, a fault already says why
  int default_zero_ = 0;
  ImportedPlan imported_;
};

}  // namespace

base::Result<ImportedPlan> import_galvatron(const base::Node& root, const ImportTarget& target) {
  return GalvatronReader(root, target).read();
}

}  // namespace orrery::plan
