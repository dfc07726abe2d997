#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/numbers.h"
#include "base/result.h"

namespace orrery::model {

enum class Family : std::uint8_t {
  kGpt2,
  kLlama,
  kMistral,
  kQwen2,
  kBert,
  kMixtral,
  kQwen2Moe,
  kDeepSeek,
  kT5,
  kViT,
  kSwin
};
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm };
enum class Activation : std::uint8_t { kGelu, kGeluTanh, kSilu, kRelu };
enum class PositionKind : std::uint8_t { kLearned, kRotary, kRelative };
/// What a block does before its own first norm.
///   kPatchMerging  Swin: four neighbouring tokens of half the hidden size become one: norm of the
///                  4 (hidden / 2) numbers, product to `hidden`
///   kEncoderEnd    T5: the encoder's last output is normed; from here on it is what
///                  cross-attention reads, and the decoder's own input goes on
enum class BlockEntry : std::uint8_t { kNone, kPatchMerging, kEncoderEnd };
/// Names as in files: "gpt2", "layer_norm", "gelu_tanh", "rotary".
std::string_view to_string(Family family);
std::string_view to_string(NormKind norm);
std::string_view to_string(Activation activation);

/// What may differ from block to block.
struct BlockShape {
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  // intermediate size of the MLP (one branch when gated), of one expert in a mixture
  std::int64_t ffn = 0;
  bool causal = true;

  // Mixture of experts, in place of the MLP (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv
  // 2401.04088): a token goes to the experts_per_token experts of its largest router scores, and
  // their outputs are added with those weights.
  std::int64_t experts = 0;  // 0: a dense MLP
  std::int64_t experts_per_token = 0;
  // intermediate size of an expert that sees every token, behind a sigmoid gate; 0: none
  std::int64_t shared_ffn = 0;

  // a second attention behind the first, over the encoder's output (T5's decoder)
  bool cross_attention = false;
  BlockEntry entry = BlockEntry::kNone;
  // attention inside windows of so many tokens (Swin); 0: over the whole sequence
  std::int64_t window = 0;
  // tokens of the sequence for one token here (Swin: 4 for each patch merging before)
  std::int64_t token_share = 1;
  bool operator==(const BlockShape&) const = default;
};

/// `count` blocks of one shape.
struct BlockRun {
  std::string name = {};  // "encoder", "decoder", "stage 3"
  std::int64_t count = 0;
  BlockShape shape = {};
  bool operator==(const BlockRun&) const = default;
};

/// What is trained: a stack of `layers` Transformer blocks between an embedding and a head. Mostly
/// they are identical; a model with blocks of several kinds lists its `runs`, and its own fields
/// are those of the first. Degree-free: nothing here knows of parallelism.
struct ModelSpec : BlockShape {
  std::string name = {};
  Family family = Family::kGpt2;
  std::int64_t layers = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t type_vocab = 0;  // BERT segment embeddings, else 0
  NormKind norm = NormKind::kLayerNorm;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::kGeluTanh;
  bool gated_mlp = false;  // gate and up products, silu(gate) * up
  bool qkv_bias = true;
  bool projection_bias = true;  // attention output projection
  bool mlp_bias = true;
  bool tied_embeddings = true;  // LM head shares the token embedding
  // of attention and residuals in training; the executor trains without (it has its own loss curves
  // to repeat)
  bool dropout = false;
  PositionKind position = PositionKind::kLearned;
  double rope_theta = 10000.0;
  bool post_norm = false;  // BERT: norm after the residual; embedding norm; no final norm
  bool pooler = false;     // BERT: linear [hidden, hidden] + bias over the first token

  // see expert_capacity(); 1.0 to 1.25 in Switch Transformers (arXiv 2101.03961, section 2.2)
  double capacity_factor = 1.25;

  // false: the shared expert's output is added as it is (DeepSeek)
  bool shared_gate = true;

  std::vector<BlockRun> runs = {};  // in order; empty: `layers` blocks of the fields above

  // Images (ViT, Swin): patches in place of a token table, `vocab` classes, `max_positions` tokens
  // of one image.
  std::int64_t patch_features = 0;  // numbers of a patch: channels * side²; 0: text
  // one more token, and the head reads it alone; else the head reads the mean of all
  bool class_token = false;
  bool patch_norm = false;  // norm behind the patch product

  // T5: rows of the tables of relative position biases, one of the encoder's stack and one of the
  // decoder's, a column per head. They are counted, and held with the embedding; adding a bias to
  // scores costs nothing here and is not trained.
  std::int64_t relative_buckets = 0;

  /// Kinds of blocks: runs, or one.
  int kinds() const { return runs.empty() ? 1 : as_int(runs.size()); }
  /// Kind of block `layer`. @pre 0 <= layer < layers.
  int kind_of(std::int64_t layer) const;
  /// The model seen from its blocks of one kind: the fields of BlockShape are those of that run.
  ModelSpec of_kind(int kind) const;
  /// How many blocks there are of it.
  std::int64_t blocks_of(int kind) const;
  /// Kind of the last block, whose output the head reads.
  int last_kind() const { return kinds() - 1; }
  bool encoder_decoder() const;
  /// Hidden size and token share of what the block reads: that of the block before, but for patch
  /// merging its own.
  std::int64_t input_hidden() const {
    return entry == BlockEntry::kPatchMerging ? hidden / 2 : hidden;
  }
  std::int64_t input_token_share() const {
    return entry == BlockEntry::kPatchMerging ? token_share / 4 : token_share;
  }
  /// Tokens over which a token attends, of a sequence of `tokens`.
  std::int64_t attention_span(std::int64_t tokens) const { return window > 0 ? window : tokens; }

  /// Rows of the fused QKV product: (heads + 2 kv_heads) * head_dim.
  std::int64_t qkv_features() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Rows of the MLP input product: ffn, or 2 ffn when gated.
  std::int64_t mlp_in_features() const { return gated_mlp ? 2 * ffn : ffn; }
  /// Rows that an expert takes of `tokens` tokens of one sequence: ceil(tokens * experts_per_token
  /// / experts * capacity_factor), at most `tokens`. What comes beyond is dropped and what stays
  /// free is padding, so sizes do not depend on the data (GShard, arXiv 2006.16668, section 3.2).
  /// Counted per sequence, so that it does not depend on the micro-batch. @pre experts > 0.
  std::int64_t expert_capacity(std::int64_t tokens) const;
  /// Exact number of parameters (tied weights counted once).
  std::int64_t parameters() const;
  /// Parameters of one block of the fields above: QKV, output projection, MLP (two products, three
  /// when gated), two norms, biases. A mixture: all experts' MLPs, the router, and the shared
  /// expert's MLP with its gate. Cross-attention: its products and norm. Windows: the table of
  /// relative position biases. And what its entry has.
  std::int64_t block_parameters() const;
  /// Biases of a head in a window: one for each difference of two places in it. @pre window is a
  /// square.
  std::int64_t relative_positions() const;
  /// Of one block of the fields above, in the model's forward_matmul_flops(seq).
  double block_matmul_flops(std::int64_t seq) const;
  /// Forward matmul FLOPs of one sequence of `seq` tokens: 2mnk per product, full s² attention, LM
  /// head included, BERT's pooler not (masked-token training does not run it); of experts those
  /// that a token goes to, and the router. T5: `seq` tokens of the encoder and as many of the
  /// decoder; windows: scores inside them; the base of MFU (MFU = 3 x this x sequences / (step time
  /// x peak)).
  double forward_matmul_flops(std::int64_t seq) const;
  /// Hex digest of every field but the name: plans are bound to it, and a catalog entry equals the
  /// file it was taken from.
  std::string fingerprint() const;
  bool operator==(const ModelSpec&) const = default;
};

/// What a family fixes, or defaults to when a `config.json` is silent; no sizes.
ModelSpec family_defaults(Family family);

/// Reads a Hugging Face `config.json`, old and new spellings of keys (n_embd | hidden_size, ...).
/// Keys that do not bear on the shape of the model are allowed and not read (rope_scaling and
/// sliding windows too: attention is modelled as full). `name` becomes ModelSpec::name;
/// load_hf_config uses the path. Errors: unknown model_type (with "did you mean"), missing or
/// contradictory sizes, with file:line:column.
base::Result<ModelSpec> read_hf_config(const base::Node& root, std::string_view name);
base::Result<ModelSpec> load_hf_config(const std::string& path);

struct CatalogModel {
  std::string name = {};
  std::string description;  // one line
  std::string source;       // where its config comes from
};
/// Models of model/catalog, by name.
std::vector<CatalogModel> list_catalog();

/// Model by catalog name, or by path to a config.json when `name` contains '/' or ends in ".json".
/// Errors: kNotFound with "did you mean"; those of read_hf_config.
base::Result<ModelSpec> find_model(std::string_view name);

}  // namespace orrery::model
