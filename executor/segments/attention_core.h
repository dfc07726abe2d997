#pragma once
/// What the attention core of a whole sequence and that of a block of keys share.
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {

/// Heads [first, first + count) of a packed [b, s, heads * d], as [b, s, count, d]; a view.
at::Tensor heads_of(const SegmentShape& s, const at::Tensor& packed, std::int64_t first,
                    std::int64_t count);
/// to = from turned by the angle of its position (sign 1) or back (sign -1); [b, s, heads, d], not
/// in place.
void rotate(const SegmentShape& s, at::Tensor to, const at::Tensor& from,
            const RotaryTables::Table& table, double sign);
/// Gradient of heads that core_inputs may repeat: [b, s, n or k, d] into [b, s, k, d].
void sum_groups(const SegmentShape& s, at::Tensor to, const at::Tensor& from);

/// The heads of a packed tensor of queries' size, as [b, n, s, d]; a view.
at::Tensor by_head(const SegmentShape& s, const at::Tensor& packed);

/// The early (0) or the late (1) chunks along `dim`, [..., pairs, tokens of a chunk, ...]; a view.
at::Tensor half_of(const SegmentShape& s, const at::Tensor& x, std::int64_t dim, int late);

struct AttentionInputs {
  at::Tensor q, k, v;  // [b, n, queries or keys, d]
};
/// Of q, k and v as heads_of() gives them.
AttentionInputs core_inputs(const SegmentShape& s, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v);
struct AttentionOutputs {
  at::Tensor o, lse;  // [b, n, queries, d]; the log-sum-exp [b, n, queries] fp32
};
/// Queries and keys as they are given: under the mask by position.
AttentionOutputs core_forward(const SegmentShape& s, const AttentionInputs& in);
/// Writes o, packed, and the log-sum-exp.
void write_outputs(const AttentionOutputs& out, Operands& operands);
/// dq, dk, dv by head, of o with its gradient d.
struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients core_backward(const SegmentShape& s, const AttentionInputs& in,
                                 const at::Tensor& d, const AttentionOutputs& out);
/// The same for the rank's own tokens as they lie: where that is not by position, through copies.
AttentionOutputs masked_forward(const SegmentShape& s, const AttentionInputs& in);
AttentionGradients masked_backward(const SegmentShape& s, const AttentionInputs& in,
                                   const at::Tensor& d, const AttentionOutputs& out);

/// Queries [first, end) and the keys that some of them see.
struct QueryBlock {
  std::int64_t first, end, first_key, end_key;
  at::Tensor rows(const at::Tensor& x) const { return x.narrow(2, first, end - first); }
  at::Tensor keys(const at::Tensor& x) const { return x.narrow(2, first_key, end_key - first_key); }
  /// [queries, keys], true where a key lies behind its query.
  at::Tensor later(const at::TensorOptions& options) const;
};

/// The keys that an indexer chooses (model::Indexer), all in fp32. Queries q [b,H,s,e] and keys
/// k [b,1,s,e] turned, the keys behind their norm; weights w [b,H,s]; the least score of each
/// query's keys [b,1,s].
class AttentionIndex {
 public:
  /// Operands behind kr of kLatentAttention, their norm's weights last.
  AttentionIndex(const SegmentShape& s, const Operands& o, std::size_t first,
                 const RotaryTables::Table& table);
  /// Chooses for a block of queries.
  void choose(const QueryBlock& block);
  /// [b,1,queries,keys]: true where a query does not see a key.
  at::Tensor unseen(const QueryBlock& block) const;
  /// Gradient of the divergence, `scale` of each query, from the heads' probabilities
  /// [b,n,queries,keys].
  void learn(const QueryBlock& block, const at::Tensor& probabilities, double scale);
  /// Of queries, keys and weights as they came, to `writes` from `at` on; of the norm added.
  void write_gradients(Operands& o, std::size_t at) const;

  at::Tensor least;

 private:
  struct Scores {
    at::Tensor products, of_keys;  // relu(q · k) [b,H,queries,keys]; I [b,queries,keys]
  };
  Scores scores(const QueryBlock& block) const;

  const SegmentShape& s_;
  const RotaryTables::Table& table_;
  at::Tensor gain_, normed_, rstd_, q_, k_, w_;  // normed: keys before gain and bias
  at::Tensor dq_, dk_, dw_;
};

/// What scores have beside q k^T: undefined where they have not.
struct ScoreTerms {
  at::Tensor sinks;           // [n], a logit of each head without a value
  at::Tensor sink_gradients;  // [n] fp32, added to
  at::Tensor slopes;          // [n], ALiBi's
  AttentionIndex* index = nullptr;
  double index_scale = 0;  // of its divergence
};
ScoreTerms score_terms(const SegmentShape& s, Operands& operands, Phase phase,
                       const SegmentContext& context);
/// The core written out, a block of SegmentShape::kQueryRows queries at a time and only over keys
/// that one of them sees: windows, chunks, soft caps, sinks, slopes, values of another size than
/// keys. Tokens lie by position.
AttentionOutputs explicit_forward(const SegmentShape& s, const AttentionInputs& in,
                                  const ScoreTerms& terms);
AttentionGradients explicit_backward(const SegmentShape& s, const AttentionInputs& in,
                                     const at::Tensor& d, const AttentionOutputs& out,
                                     ScoreTerms& terms);

/// Inside windows, [windows, n, w, d] by token, in block `layer`. `gradient`: fp32, added to;
/// undefined where none is wanted.
struct WindowBiases {
  at::Tensor table, gradient;  // [n, (2r-1)^2]
};
AttentionOutputs windows_forward(const SegmentShape& s, std::int64_t layer,
                                 const AttentionInputs& in, const at::Tensor& table);
AttentionGradients windows_backward(const SegmentShape& s, std::int64_t layer,
                                    const AttentionInputs& in, const at::Tensor& d,
                                    const AttentionOutputs& out, const WindowBiases& windows);

}  // namespace orrery::executor::kernels
