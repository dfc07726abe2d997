/// \file
/// config.json of models whose blocks are of several kinds (T5, Swin, mixtures behind dense
/// blocks), and of images (ViT, Swin). Keys and defaults are those of the transformers library, as
/// in hf_config.cc.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/numbers.h"
#include "model/import/hf_config_fields.h"

namespace orrery::model::hf {
namespace {

using enum Activation;
using enum base::ErrorCode;

/// The model's runs, and its own fields as those of the first.
void set_runs(ModelSpec& m, std::vector<BlockRun> runs) {
  m.layers = 0;
  for (BlockRun& run : runs) {
    m.layers += run.count;
    if (run.count > 0) m.runs.push_back(std::move(run));
  }
  m = m.of_kind(0);
  if (m.runs.size() == 1) m.runs.clear();
}

/// "relu", or "gated-" before the name of an activation; "gated-gelu" is the tanh form (T5 1.1,
/// google-research/t5x).
void read_feed_forward(base::Reader& r, ModelSpec& m) {
  const std::string word = r.optional_string("feed_forward_proj").value_or("relu");
  m.gated_mlp = word.starts_with("gated-");
  const std::string act = m.gated_mlp ? word.substr(6) : word;
  if (act == "relu")
    m.activation = kRelu;
  else if (act == "gelu")
    m.activation = m.gated_mlp ? kGeluTanh : kGelu;
  else if (act == "gelu_new")
    m.activation = kGeluTanh;
  else if (act == "silu" || act == "swish")
    m.activation = kSilu;
  else
    r.fault("feed_forward_proj", kBadValue, "one of relu, gelu, silu, or gated- before it",
            "'feed_forward_proj' is '{}'", word);
}

/// Raffel et al., arXiv 1910.10683: pre-norm RMS, no biases; relative positions; the decoder's
/// blocks attend to the encoder's output as well. Scores are not scaled; the decoder's output is,
/// by hidden^-1/2, where the head shares the embedding.
void read_t5(base::Reader& r, ModelSpec& m) {
  m.norm = NormKind::kRmsNorm;
  m.norm_epsilon = r.optional_double("layer_norm_epsilon", kEpsilon).value_or(1e-6);
  m.qkv_bias = m.projection_bias = m.mlp_bias = false;
  m.position = PositionKind::kRelative;
  m.hidden = require_size(r, {"d_model", "hidden_size"});
  m.heads = m.kv_heads = require_size(r, {"num_heads", "num_attention_heads"});
  m.head_dim = require_size(r, {"d_kv"});
  m.ffn = require_size(r, {"d_ff"});
  m.vocab = require_size(r, {"vocab_size"}, kTable);
  m.max_positions = find_int(r, {"n_positions"}, kTable).value.value_or(512);
  m.relative_buckets = r.optional_int("relative_attention_num_buckets", kSize).value_or(32);
  m.tied_embeddings = r.optional_bool("tie_word_embeddings").value_or(true);
  m.score_scale = 1;
  if (m.tied_embeddings) m.logit_scale = 1 / std::sqrt(real(m.hidden));
  read_feed_forward(r, m);
  const std::int64_t encoder = require_size(r, {"num_layers", "num_hidden_layers"});
  const std::int64_t decoder = find_int(r, {"num_decoder_layers"}, kSize).value.value_or(encoder);
  if (!r.sink().ok()) return;
  BlockShape shape = m;
  shape.causal = false;
  std::vector<BlockRun> runs{{"encoder", encoder, shape}};
  shape.causal = true;
  shape.cross_attention = true;
  shape.entry = BlockEntry::kEncoderEnd;
  runs.push_back({"decoder 1", 1, shape});
  shape.entry = BlockEntry::kNone;
  runs.push_back({"decoder", decoder - 1, shape});
  set_runs(m, std::move(runs));
}

/// Classes: "num_labels", else the entries of id2label, else transformers' default of 2.
std::int64_t classes(base::Reader& r) {
  if (const auto stated = r.optional_int("num_labels", kTable)) return *stated;
  const auto labels = r.optional_object("id2label");
  return labels && labels->size() > 0 ? static_cast<std::int64_t>(labels->size()) : 2;
}

/// Patches of a side in an image; 1 when something is wrong.
std::int64_t read_patches(base::Reader& r, ModelSpec& m, std::int64_t default_patch) {
  const std::int64_t image = r.optional_int("image_size", kSize).value_or(224);
  const std::int64_t patch = r.optional_int("patch_size", kSize).value_or(default_patch);
  const std::int64_t channels = r.optional_int("num_channels", {1, 1 << 10}).value_or(3);
  m.patch_features = channels * patch * patch;
  m.vocab = classes(r);
  m.tied_embeddings = false;
  m.causal = false;
  if (image % patch == 0) return image / patch;
  r.fault("patch_size", kInconsistent, "every pixel belongs to one patch",
          "patches of {} do not divide an image of {}", patch, image);
  return 1;
}

/// Dosovitskiy et al., arXiv 2010.11929: an encoder over patches and a class token.
void read_vit(base::Reader& r, ModelSpec& m) {
  m.norm_epsilon = r.optional_double("layer_norm_eps", kEpsilon).value_or(1e-12);
  m.activation = find_activation(r, "hidden_act").value_or(kGelu);
  m.qkv_bias = r.optional_bool("qkv_bias").value_or(true);
  m.layers = r.optional_int("num_hidden_layers", kSize).value_or(12);
  m.hidden = r.optional_int("hidden_size", kSize).value_or(768);
  m.heads = m.kv_heads = r.optional_int("num_attention_heads", kSize).value_or(12);
  m.ffn = r.optional_int("intermediate_size", kSize).value_or(3072);
  const std::int64_t side = read_patches(r, m, 16);
  m.class_token = true;
  m.max_positions = side * side + 1;
  m.head_dim = m.hidden / m.heads;
  if (r.sink().ok() && m.hidden % m.heads != 0)
    r.fault("num_attention_heads", kInconsistent, "change one of them",
            "{} heads do not divide the hidden size {}", m.heads, m.hidden);
}

/// Liu et al., arXiv 2103.14030: stages of doubled hidden size and a quarter of the tokens,
/// attention inside windows; patch merging between them.
class Swin {
 public:
  Swin(base::Reader& r, ModelSpec& m) : r_(r), m_(m) {}

  void read() {
    m_.norm_epsilon = r_.optional_double("layer_norm_eps", kEpsilon).value_or(1e-5);
    m_.activation = find_activation(r_, "hidden_act").value_or(kGelu);
    m_.qkv_bias = r_.optional_bool("qkv_bias").value_or(true);
    m_.position = PositionKind::kRelative;
    m_.patch_norm = true;
    m_.hidden = r_.optional_int("embed_dim", kSize).value_or(96);
    const std::vector<std::int64_t> depths = list("depths", {2, 2, 6, 2}),
                                    heads = list("num_heads", {3, 6, 12, 24});
    window_ = r_.optional_int("window_size", {1, 1 << 10}).value_or(7);
    ratio_ = r_.optional_double("mlp_ratio", {1.0 / 16, 64.0}).value_or(4.0);
    const std::int64_t side = read_patches(r_, m_, 4);
    m_.max_positions = side * side;
    if (r_.optional_bool("use_absolute_embeddings").value_or(false))
      r_.fault("use_absolute_embeddings", kUnsupported, "set it to false",
               "absolute positions beside the relative ones are not supported");
    if (depths.size() != heads.size())
      r_.fault("num_heads", kInconsistent, "one entry for each stage",
               "{} stages in 'depths', {} in 'num_heads'", depths.size(), heads.size());
    if (!r_.sink().ok()) return;
    std::vector<BlockRun> runs;
    for (std::size_t i = 0; i < depths.size(); ++i) stage(i, depths[i], heads[i], side, runs);
    if (r_.sink().ok()) set_runs(m_, std::move(runs));
  }

 private:
  std::vector<std::int64_t> list(std::string_view key, std::vector<std::int64_t> otherwise) {
    if (!r_.has(key)) return otherwise;
    const std::vector<std::int64_t> values = r_.required_ints(key, kSize);
    constexpr std::size_t kMaxStages = 8;
    if (values.empty() || values.size() > kMaxStages)
      r_.fault(key, kOutOfRange, fmt::format("one for each of 1 to {} stages", kMaxStages),
               "'{}' has {} entries", key, values.size());
    return values;
  }

  void stage(std::size_t index, std::int64_t depth, std::int64_t heads, std::int64_t image_side,
             std::vector<BlockRun>& runs) {
    const std::int64_t shrink = std::int64_t{1} << index, side = image_side / shrink,
                       window = std::min(window_, side);
    BlockShape s = m_;
    s.hidden = m_.hidden * shrink;
    s.heads = s.kv_heads = heads;
    s.head_dim = s.hidden / heads;
    s.ffn = std::llround(real(s.hidden) * ratio_);
    s.token_share = shrink * shrink;
    if (s.hidden % heads != 0)
      r_.fault("num_heads", kInconsistent, "change 'num_heads' or 'embed_dim'",
               "{} heads do not divide the hidden size {} of stage {}", heads, s.hidden, index + 1);
    if (image_side % shrink != 0 || window == 0 || side % window != 0) {
      r_.fault("window_size", kUnsupported,
               "padding is not modelled: change 'image_size' or 'window_size'",
               "windows of {} do not divide the {} x {} tokens of stage {}", window_, side, side,
               index + 1);
      return;
    }
    s.window = window * window;
    if (index > 0) {
      s.entry = BlockEntry::kPatchMerging;
      runs.push_back({fmt::format("stage {} merge", index + 1), 1, s});
      s.entry = BlockEntry::kNone;
      --depth;
    }
    runs.push_back({fmt::format("stage {}", index + 1), depth, s});
  }

  base::Reader& r_;
  ModelSpec& m_;
  std::int64_t window_ = 0;
  double ratio_ = 4.0;
};

}  // namespace

bool has_kinds(Family family) {
  return family == Family::kT5 || family == Family::kViT || family == Family::kSwin;
}

void read_kinds(base::Reader& r, ModelSpec& m) {
  const Family family = m.family;
  const std::string name = m.name;
  m = ModelSpec{};
  m.name = name;
  m.family = family;
  if (family == Family::kT5) read_t5(r, m);
  if (family == Family::kViT) read_vit(r, m);
  if (family == Family::kSwin) Swin(r, m).read();
}

void read_dense_first(base::Reader& r, ModelSpec& m) {
  const std::int64_t dense = r.optional_int("first_k_dense_replace", {0, 1 << 20}).value_or(0);
  const std::int64_t ffn = dense > 0 ? require_size(r, {"intermediate_size"}) : 0;
  if (r.optional_int("moe_layer_freq", {1, 1 << 20}).value_or(1) != 1)
    r.fault("moe_layer_freq", kUnsupported, "1, or leave the key out",
            "dense blocks between blocks of experts are not supported");
  if (dense > m.layers)
    r.fault("first_k_dense_replace", kInconsistent, "at most all blocks", "{} dense blocks of {}",
            dense, m.layers);
  if (!r.sink().ok() || dense == 0) return;
  BlockShape shape = m;
  const BlockRun experts{"experts", m.layers - dense, shape};
  shape.experts = shape.experts_per_token = shape.shared_ffn = 0;
  shape.ffn = ffn;
  set_runs(m, {{"dense", dense, shape}, experts});
}

}  // namespace orrery::model::hf
