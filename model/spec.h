#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/numbers.h"
#include "base/result.h"
#include "model/adapter.h"

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
  kSwin,
  kQwen3,
  kQwen3Moe,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kLlama4,
  kGemma,
  kGemma2,
  kGemma3,
  kPhi,
  kPhi3,
  kDeepSeekV2,
  kDeepSeekV3,
  kKimiK2,
  kGptOss,
  kGlm4,
  kGlm4Moe,
  kOlmo,
  kOlmo2,
  kOlmo3,
  kOlmoe,
  kGptNeox,
  kFalcon,
  kOpt,
  kBloom,
  kStarcoder2,
  kGranite,
  kGraniteMoeHybrid,
  kCohere,
  kMinimax,
  kMinimaxM2,
  kInternlm2,
  kNemotron,
  kNemotronH,
  kMamba2,
  kRoberta,
  kDeepSeekV32,
  kGlmMoeDsa
};
inline constexpr Family kLastFamily = Family::kGlmMoeDsa;
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm };
///   kSquaredRelu   max(x, 0)² (So et al., "Primer", arXiv 2109.08668)
///   kClampedSwiglu (up + 1) gate sigmoid(1.702 gate), gate <= 7, |up| <= 7 (gpt-oss); gated only
///   kSigmoid       of output gates
enum class Activation : std::uint8_t {
  kGelu,
  kGeluTanh,
  kSilu,
  kRelu,
  kSquaredRelu,
  kClampedSwiglu,
  kSigmoid
};
inline constexpr Activation kLastActivation = Activation::kSigmoid;
///   kAlibi   scores less slope (i - j), slopes 2^(-8 h / n) of head h = 1 .. n (arXiv 2108.12409)
///   kNone    none at all (recurrent mixers know the order)
enum class PositionKind : std::uint8_t { kLearned, kRotary, kRelative, kAlibi, kNone };
/// What mixes the tokens of a block.
///   kLatent     attention over keys and values made of a narrow latent (DeepSeek-V2, arXiv
///               2405.04434, section 2.1): q = W_uq n(W_dq x), c = n(W_dkv x), k = [W_uk c,
///               rope(W_kr x)], v = W_uv c; the rotated key is shared by all heads
///   kMamba2     a state space dual (arXiv 2405.21060): z, x, B, C and steps from one product, a
///               causal convolution of x, B, C, the scan, a norm gated by z
///   kDeltaNet   gated delta rule (arXiv 2412.06464): the same with keys and queries for B and C
///   kLightning  linear attention with decay (arXiv 2401.04658), its output normed and gated
///   kNone       nothing: the block is an MLP alone
enum class Mixer : std::uint8_t { kAttention, kLatent, kMamba2, kDeltaNet, kLightning, kNone };
/// RMS norms of queries and keys in front of the scores: per head over its own numbers, with gains
/// of head_dim that heads share, or over all heads at once (OLMo 2), or per head without gains.
enum class QkNorm : std::uint8_t { kNone, kHead, kWhole, kPlain };
/// Rescaled rotary frequencies (docs/models/attention.md).
enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3, kLongRope };
/// Frequencies theta^(-2i/dims) of the first `dims` numbers of a head (0: all of them), rescaled.
struct Rope {
  std::int64_t dims = 0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double low = 1, high = 4;   // llama3: of wave lengths; yarn: beta_slow, beta_fast
  std::int64_t original = 0;  // positions that the frequencies were trained for
  double magnitude = 1;       // of the rotated numbers (yarn)
  bool operator==(const Rope&) const = default;
};
/// A recurrent mixer: `heads` of `head_dim` values (P), `groups` of keys and queries of `state`
/// numbers each (N), a causal convolution over `kernel` tokens (0: none), chunks of `chunk` tokens.
struct Scan {
  std::int64_t heads = 0, head_dim = 0, groups = 0, state = 0, kernel = 0, chunk = 0;
  std::int64_t values() const { return heads * head_dim; }  // d_in = n P
  std::int64_t keys() const { return groups * state; }      // G N
  bool operator==(const Scan&) const = default;
};
/// Which keys latent attention sees (DeepSeek-V3.2, arXiv 2512.02556, section 2.1): of those before
/// a query the `keys` of largest score
///
///   I = sum_j w_j relu(q_j · k) / sqrt(heads dim),  j = 1 .. heads
///
/// with `heads` queries of `dim` numbers made of the queries' latent, and a key with a layer norm
/// and `heads` weights made of the block's input; all see as many keys as share the least score.
/// Its weights learn from the Kullback-Leibler divergence of softmax(I) over the chosen keys from
/// what the heads' probabilities sum to; no gradient leaves it.
struct Indexer {
  std::int64_t heads = 0, dim = 0, keys = 0;
  bool operator==(const Indexer&) const = default;
};
/// How a mixture's router makes choices and gates of a token's logits, one an expert. Scores are
/// the softmax of the logits, or with `sigmoid` a sigmoid of each. A token goes to the experts of
/// largest score. Experts stand in `groups` equal groups side by side, and only those of the
/// `groups_per_token` best count (DeepSeek-V2, arXiv 2405.04434, section 2.2.2; V3, 2412.19437,
/// section 2.1.2): best by the largest score of a group, with `sigmoid` by the sum of its two
/// largest. Gates are the chosen scores, `normalised` over their sum, times `scale`. They weight
/// what experts make or, `of_inputs`, what they read (Llama 4). It changes no size.
struct Routing {
  bool sigmoid = false;
  std::int64_t groups = 1, groups_per_token = 1;
  bool normalised = true;
  double scale = 1;
  bool of_inputs = false;
  bool operator==(const Routing&) const = default;
};
/// Attention and MLP one behind the other, or both on the block's input: behind one norm, or each
/// behind its own (GPT-NeoX, Falcon).
enum class Branches : std::uint8_t { kSerial, kParallel, kParallelTwoNorms };
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

  Mixer mixer = Mixer::kAttention;
  // a query sees the last `reach` keys, its own among them; chunked: those of its own
  // floor(position / reach); 0: all before it
  std::int64_t reach = 0;
  bool chunked = false;
  bool rotates = true;  // where the model has rotary positions
  double rope_theta = 10000.0;
  Rope rope = {};
  // Latent attention: ranks of queries (0: one matrix) and of keys and values; of head_dim numbers
  // of a query or key the last rope_dim are rotated; numbers of a value.
  std::int64_t q_rank = 0, kv_rank = 0, rope_dim = 0, value_dim = 0;
  Indexer indexer = {};  // of latent attention; no heads: every key is seen
  Scan scan = {};
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
  bool post_norm = false;  // BERT: norm after the residual, and no final norm
  bool pooler = false;     // BERT: linear [hidden, hidden] + bias over the first token

  // see expert_capacity(); 1: dropless with balanced routers; 1.0 to 1.25 in Switch Transformers
  // (arXiv 2101.03961, section 2.2)
  double capacity_factor = 1;

  // false: the shared expert's output is added as it is (DeepSeek)
  bool shared_gate = true;
  Routing routing = {};

  std::vector<BlockRun> runs = {};  // in order; empty: `layers` blocks of the fields above
  // Kind of every block, where kinds take turns (windows between full attention); the runs then are
  // the kinds, each with all its blocks. Empty: the runs lie one behind the other.
  std::vector<int> order = {};

  QkNorm qk_norm = QkNorm::kNone;
  bool norm_before = true, norm_after = false;  // of each branch
  // x + attention(n(x)) + mlp(n(x)), with one norm or two, in place of one behind the other
  Branches branches = Branches::kSerial;
  bool norm_gain = true, norm_bias = true;  // of a layer norm: whether it has them
  bool embedding_norm = false;              // behind the embedding (BLOOM, BERT)
  bool key_bias = true;                     // where qkv_bias
  bool head_bias = false;
  bool output_gate = false;  // attention's output times sigmoid(W_g x) (Qwen3-Next)
  bool sinks = false;        // one more logit a head in the softmax, a weight (gpt-oss)
  // c tanh(x / c) on scores and on logits (Gemma 2); 0: none
  double score_cap = 0, logit_cap = 0;
  double score_scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  // longrope: what the frequency of each rotated pair is divided by, in sequences of up to
  // Rope::original tokens and in longer ones (arXiv 2402.13753)
  std::vector<double> short_factors = {}, long_factors = {};
  bool expert_bias = false;  // of router and experts (gpt-oss)
  // width that experts read and write between two products of their own (Nemotron 3); 0: hidden
  std::int64_t expert_hidden = 0;
  // width of the token table between two products of their own (OPT-350M); 0: hidden
  std::int64_t embedding_hidden = 0;
  std::int64_t embedding_width() const { return embedding_hidden > 0 ? embedding_hidden : hidden; }
  std::int64_t expert_width() const { return expert_hidden > 0 ? expert_hidden : hidden; }

  // Images (ViT, Swin): patches in place of a token table, `vocab` classes, `max_positions` tokens
  // of one image.
  std::int64_t patch_features = 0;  // numbers of a patch: channels * side²; 0: text
  // one more token, and the head reads it alone; else the head reads the mean of all
  bool class_token = false;
  bool patch_norm = false;  // norm behind the patch product

  // with a rank: its products are trained, and nothing else
  Adapter adapter = {};

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
  int last_kind() const { return order.empty() ? kinds() - 1 : order.back(); }
  bool encoder_decoder() const;
  bool has_experts() const;  // in some block
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
  /// Keys that a query sees at most: those of attention_span, of them the last `reach`, or those
  /// that an indexer chooses.
  std::int64_t keys_seen(std::int64_t tokens) const {
    const std::int64_t span = attention_span(tokens), most = indexed() ? indexer.keys : reach;
    return most > 0 && most < span ? most : span;
  }
  bool indexed() const { return indexer.heads > 0; }
  /// Columns of the products that feed an indexer, of the queries' latent and of the block's input.
  std::int64_t index_queries() const { return indexer.heads * indexer.dim; }
  std::int64_t index_columns() const { return indexed() ? indexer.dim + indexer.heads : 0; }
  /// Plain attention and an MLP, one behind the other.
  bool plain_attention() const { return mixer == Mixer::kAttention && has_mlp() && !output_gate; }
  /// Scores that are not those of plain attention over all keys: in some block.
  bool unlike_flash() const;
  bool has_mlp() const { return ffn > 0; }
  bool has_mixer() const { return mixer != Mixer::kNone; }
  bool scans() const {
    return mixer == Mixer::kMamba2 || mixer == Mixer::kDeltaNet || mixer == Mixer::kLightning;
  }
  /// Norms of a branch, of the whole block.
  std::int64_t block_norms() const {
    const int branches_normed =
        branches == Branches::kParallel ? 1 : (has_mlp() ? 1 : 0) + (has_mixer() ? 1 : 0);
    return branches_normed * ((norm_before ? 1 : 0) + (norm_after ? 1 : 0));
  }

  /// Rows of the fused QKV product: (heads + 2 kv_heads) * head_dim. Of a scan: z and x (2 n P), B
  /// and C (2 G N), and a step for each head (Mamba-2), or two gates (DeltaNet).
  std::int64_t qkv_features() const {
    if (!scans()) return (heads + 2 * kv_heads) * head_dim;
    return 2 * scan.values() + 2 * scan.keys() + scan_steps() * scan.heads;
  }
  std::int64_t scan_steps() const {
    return mixer == Mixer::kMamba2 ? 1 : mixer == Mixer::kDeltaNet ? 2 : 0;
  }
  /// What the output projection reads.
  std::int64_t mixed_features() const {
    return scans() ? scan.values() : heads * (mixer == Mixer::kLatent ? value_dim : head_dim);
  }
  /// Weights of a scan itself (model/scan.h): convolution (Mamba-2: with a bias), decay and step
  /// bias of each head (Mamba-2: a skip as well), gains of its norm (DeltaNet: of one head).
  std::int64_t scan_parameters() const;
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
  /// Of the mixer: its products, norms of queries and keys, biases, sinks.
  std::int64_t mixer_parameters() const;
  /// Of the MLP or the mixture.
  std::int64_t mlp_parameters() const;
  /// FLOPs of a scan for one token: inside chunks of Q tokens 2 Q (G N + n P), between them 4 n P N
  /// (Mamba-2, lightning); the delta rule 8 n P N (as Megatron-Core counts).
  double scan_flops() const;
  /// Of one block of the fields above, in the model's forward_matmul_flops(seq): of its products
  /// with weights, and with what its mixer multiplies.
  double block_product_flops(std::int64_t seq) const;
  /// Of these, those that feed an indexer: their input gets no gradient.
  double index_product_flops(std::int64_t seq) const;
  double block_matmul_flops(std::int64_t seq) const;
  /// Forward matmul FLOPs of one sequence of `seq` tokens: 2mnk per product, full s² attention, LM
  /// head included, BERT's pooler not (masked-token training does not run it); of experts those
  /// that a token goes to, and the router. T5: `seq` tokens of the encoder and as many of the
  /// decoder; windows: scores inside them; the base of MFU (MFU = 3 x this x sequences / (step time
  /// x peak)).
  double forward_matmul_flops(std::int64_t seq) const;
  /// FLOPs of a sequence's step: 3 x forward, which is forward, gradients of inputs and gradients
  /// of weights; less those gradients of frozen weights, and 3 x the adapters' products; less the
  /// gradients of inputs that an indexer does not have.
  double training_matmul_flops(std::int64_t seq) const;
  /// Parameters of adapters; of a model without, all.
  std::int64_t trained_parameters() const;
  /// All weights but adapters are.
  bool frozen() const { return adapter.rank > 0; }
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
