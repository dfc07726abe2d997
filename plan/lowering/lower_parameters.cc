/// \file
/// The parameters of a block.
#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {
namespace {

class BlockParameters {
 public:
  BlockParameters(const ModelSpec& m, int tp) : m_(m), tp_(tp) {}

  /// Replicated parameters first, of them those of heads, so that gradients that are partial sums
  /// are one range; then q, k, v and gate, up side by side, so that each fused product is one
  /// matrix.
  Parameters all() {
    if (m_.qk_norm == model::QkNorm::kHead && m_.mixer == model::Mixer::kAttention) {
      for (const char* name : {"attn.q_norm.weight", "attn.k_norm.weight"}) {
        add(name, {m_.head_dim}, -1, kOne);
        ps_.back().partial = true;
      }
    }
    if (m_.mixer == model::Mixer::kDeltaNet) {
      add("attn.gain.weight", {m_.scan.head_dim}, -1, kOne);
      ps_.back().partial = true;
    }
    norms();
    if (m_.has_mixer() && m_.projection_bias) add("attn.proj.bias", {m_.hidden}, -1, kZero);
    if (m_.mlp_bias && m_.has_mlp()) add("mlp.out.bias", {m_.hidden}, -1, kZero);
    router();
    mixer();
    mlp();
    return std::move(ps_);
  }

 private:
  void add(const std::string& name, Extents shape, int shard_dim, Init init) {
    Parameter& p = ps_.emplace_back();
    p.name = "blocks.{layer}." + name;
    p.shape = p.local_shape = std::move(shape);
    p.shard_dim = shard_dim;
    if (shard_dim >= 0) p.local_shape[as_index(shard_dim)] /= tp_;
    p.init = init;
    p.decay = p.shape.size() > 1;
    p.quantised = p.decay && shard_dim >= 0;
  }
  void norm(const std::string& name, std::int64_t features) {
    if (m_.norm_gain) add(name + ".weight", {features}, -1, kOne);
    if (m_.norm == model::NormKind::kLayerNorm && m_.norm_bias)
      add(name + ".bias", {features}, -1, kZero);
  }

  void norms() {
    const bool before = m_.norm_before || m_.post_norm;
    if (before && m_.has_mixer()) norm("norm1", m_.hidden);
    if (before && m_.has_mlp() && m_.branches != model::Branches::kParallel)
      norm("norm2", m_.hidden);
    if (m_.norm_after && m_.has_mixer()) norm("attn.after", m_.hidden);
    if (m_.norm_after && m_.has_mlp()) norm("mlp.after", m_.hidden);
  }

  void router() {
    if (m_.cross_attention) add("cross.norm.weight", {m_.hidden}, -1, kOne);
    if (m_.entry == model::BlockEntry::kEncoderEnd)
      add("encoder_norm.weight", {m_.hidden}, -1, kOne);
    if (m_.entry == model::BlockEntry::kPatchMerging) {
      norm("merge.norm", 2 * m_.hidden);
      add("merge.weight", {m_.hidden, 2 * m_.hidden}, -1, kNormal);
    }
    if (m_.experts > 0) add("router.weight", {m_.experts, m_.hidden}, -1, kNormal);
    if (m_.experts > 0 && m_.expert_bias) add("router.bias", {m_.experts}, -1, kZero);
    if (m_.shared_ffn > 0 && m_.shared_gate) add("shared_gate.weight", {1, m_.hidden}, -1, kNormal);
    if (m_.experts > 0 && m_.expert_hidden > 0) {
      add("mlp.to_latent.weight", {m_.expert_hidden, m_.hidden}, -1, kNormal);
      add("mlp.from_latent.weight", {m_.hidden, m_.expert_hidden}, -1, kNormalScaled);
    }
    if (m_.mixer != model::Mixer::kLatent) return;
    if (m_.q_rank > 0) {
      add("attn.q_down.weight", {m_.q_rank, m_.hidden}, -1, kNormal);
      add("attn.q_latent.weight", {m_.q_rank}, -1, kOne);
    }
    add("attn.kv_down.weight", {m_.kv_rank, m_.hidden}, -1, kNormal);
    add("attn.kv_latent.weight", {m_.kv_rank}, -1, kOne);
    add("attn.rotated.weight", {m_.rope_dim, m_.hidden}, -1, kNormal);
    if (!m_.indexed()) return;
    add("attn.index_q.weight", {m_.index_queries(), m_.q_rank}, -1, kNormal);
    add("attn.index_k.weight", {m_.indexer.dim, m_.hidden}, -1, kNormal);
    add("attn.index_w.weight", {m_.indexer.heads, m_.hidden}, -1, kNormal);
    add("attn.index_norm.weight", {m_.indexer.dim}, -1, kOne);
    add("attn.index_norm.bias", {m_.indexer.dim}, -1, kZero);
  }

  void qkv(const std::string& name) {
    const std::int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    add(name + ".q.weight", {q, m_.hidden}, 0, kNormal);
    for (const char* part : {".k.weight", ".v.weight"})
      add(name + part, {kv, m_.hidden}, 0, kNormal);
  }

  void attention() {
    const std::int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    qkv("attn");
    if (m_.qkv_bias) {
      add("attn.q.bias", {q}, 0, kZero);
      add("attn.k.bias", {kv}, 0, kZero);
      add("attn.v.bias", {kv}, 0, kZero);
    }
    if (m_.output_gate) add("attn.output_gate.weight", {q, m_.hidden}, 0, kNormal);
    if (m_.qk_norm == model::QkNorm::kWhole) {
      add("attn.q_norm.weight", {q}, 0, kOne);
      add("attn.k_norm.weight", {kv}, 0, kOne);
    }
    if (m_.sinks) add("attn.sinks", {m_.heads}, 0, kZero);
  }

  void latent() {
    const std::int64_t q = m_.heads * m_.head_dim,
                       kv = m_.heads * (m_.head_dim - m_.rope_dim + m_.value_dim);
    add("attn.q.weight", {q, m_.q_rank > 0 ? m_.q_rank : m_.hidden}, 0, kNormal);
    add("attn.kv_up.weight", {kv, m_.kv_rank}, 0, kNormal);
  }

  void scan() {
    const model::Scan& s = m_.scan;
    for (const char* part : {"attn.z.weight", "attn.x.weight"})
      add(part, {s.values(), m_.hidden}, 0, kNormal);
    for (const char* part : {"attn.b.weight", "attn.c.weight"})
      add(part, {s.keys(), m_.hidden}, 0, kNormal);
    if (m_.scan_steps() > 0)
      add("attn.steps.weight", {m_.scan_steps() * s.heads, m_.hidden}, 0, kNormal);
    if (s.kernel > 0) convolution();
    if (m_.scan_steps() > 0) add("attn.decay", {s.heads}, 0, kLogDecay);
    if (m_.mixer == model::Mixer::kMamba2) add("attn.skip", {s.heads}, 0, kOne);
    if (m_.scan_steps() > 0) add("attn.steps.bias", {s.heads}, 0, kLogStep);
    if (m_.mixer != model::Mixer::kDeltaNet) add("attn.gain.weight", {s.values()}, 0, kOne);
  }

  /// Of x, B and C, each cut by itself: a rank has the channels of its heads and groups.
  void convolution() {
    const model::Scan& s = m_.scan;
    const std::pair<const char*, std::int64_t> parts[] = {
        {"attn.taps.x", s.values()}, {"attn.taps.b", s.keys()}, {"attn.taps.c", s.keys()}};
    for (const auto& [name, channels] : parts) {
      add(std::string(name) + ".weight", {channels, s.kernel}, 0, kTaps);
      ps_.back().quantised = false;
    }
    if (m_.mixer != model::Mixer::kMamba2) return;
    for (const auto& [name, channels] : parts)
      add(std::string(name) + ".bias", {channels}, 0, kZero);
  }

  void mixer() {
    if (!m_.has_mixer()) return;
    if (m_.scans())
      scan();
    else if (m_.mixer == model::Mixer::kLatent)
      latent();
    else
      attention();
    add("attn.proj.weight", {m_.hidden, m_.mixed_features()}, 1, kNormalScaled);
    if (m_.window > 0) {  // added to the scores
      add("attn.relative.weight", {m_.heads, m_.relative_positions()}, 0, kNormal);
      ps_.back().quantised = false;
    }
    if (!m_.cross_attention) return;
    qkv("cross");
    add("cross.proj.weight", {m_.hidden, m_.heads * m_.head_dim}, 1, kNormalScaled);
  }

  // of a mixture only the shared expert is the block's own
  void mlp() {
    const std::int64_t ffn = m_.experts > 0 ? m_.shared_ffn : m_.ffn;
    if (ffn == 0) return;
    if (m_.gated_mlp) add("mlp.gate.weight", {ffn, m_.hidden}, 0, kNormal);
    add("mlp.in.weight", {ffn, m_.hidden}, 0, kNormal);
    if (m_.gated_mlp && m_.mlp_bias) add("mlp.gate.bias", {ffn}, 0, kZero);
    if (m_.mlp_bias) add("mlp.in.bias", {ffn}, 0, kZero);
    add("mlp.out.weight", {m_.hidden, ffn}, 1, kNormalScaled);
  }

  const ModelSpec& m_;
  int tp_;
  Parameters ps_;
};

}  // namespace

std::int64_t partial_elements(const ParameterUnit& unit) {
  const LayerStrategy& s = unit.strategy;
  std::int64_t n = 0;
  if (s.tp == 1) return n;
  for (const Parameter& p : unit.parameters) {
    if (p.shard_dim >= 0 || !(s.sequence_parallel || p.partial)) break;
    n = p.offset + elements_of(p);
  }
  return n;
}

Parameters block_parameters(const ModelSpec& m, int tp) { return BlockParameters(m, tp).all(); }

}  // namespace orrery::plan
