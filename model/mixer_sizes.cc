#include "model/mixer_sizes.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::model {
namespace {

using enum Phase;
constexpr double kFloatBytes = 4, kFloatReadWrite = 8;

struct Rows {
  const SegmentShape& s;
  const bool has_b, has_g;
  const double e = real(element_bytes(s.dtype)), t = real(s.token_count());

  explicit Rows(const SegmentShape& shape, Phase phase)
      : s(shape), has_b(phase == kB || phase == kBG), has_g(phase == kG || phase == kBG) {}
  bool forward() const { return !has_b && !has_g; }

  // The norm runs in fp32, on a copy of what it reads; backward makes the statistics anew.
  PhaseWork head_norm() const {
    ORRERY_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
    const std::int64_t normed = (s.heads + s.kv_heads) * s.head_dim;
    const double x = t * real(normed), all = e * t * real(normed + s.kv_heads * s.head_dim);
    const std::int64_t copy = 4 * s.token_count() * normed;
    if (forward()) return {base::Flops(4 * x), base::Bytes(2 * all), copy};
    double flops = 0, bytes = 0;
    if (has_b) {
      flops += 8 * x;
      bytes += 3 * all;
    }
    if (has_g && s.bias) {
      flops += 2 * x;
      bytes += kFloatReadWrite * real(s.whole ? normed : 2 * s.head_dim);
    }
    return {base::Flops(flops), base::Bytes(bytes), 3 * copy};
  }

  PhaseWork latent_attention() const {
    ORRERY_CHECK(s.heads > 0 && s.head_dim > s.rope_dim && s.rope_dim > 0 && s.value_dim > 0);
    if (!forward() && !has_b) return {};
    const std::int64_t n = s.heads, d = s.head_dim, v = s.value_dim;
    const double core = latent_core();
    const double operands = e * t * real(n * d + n * (d - s.rope_dim + v) + s.rope_dim + n * v) +
                            kFloatBytes * t * real(n) + index_bytes();
    const std::int64_t joined = element_bytes(s.dtype) * s.token_count() * n * (2 * d + v);
    if (forward())
      return {base::Flops(core + index_flops()), base::Bytes(operands),
              joined + index_temporaries()};
    return {base::Flops(core + 3 * index_flops()), base::Bytes(2 * operands),
            2 * joined + index_temporaries()};
  }

  /// Of a core, its products of `d` numbers of each key and `v` of each value.
  double core_flops(double keys, std::int64_t d, std::int64_t v) const {
    const double product = 2 * t * keys * real(s.heads);
    return product * real(forward() ? d + v : 3 * d + 2 * v);
  }
  /// Under an index all keys behind a mask, or the chosen ones as the latent has them: the fewer.
  /// Under a causal mask the whole square counts, of which kernels skip half; of chosen keys too,
  /// less their own triangle.
  double latent_core() const {
    const double all = core_flops(real(s.keys_seen()), s.head_dim, s.value_dim);
    if (s.index_heads == 0 || s.top_k >= s.tokens) return all;
    const double k = real(s.top_k), counted = s.causal ? k * (2 - k / real(s.tokens)) : k;
    return std::min(all, core_flops(counted, s.in + s.rope_dim, s.in));
  }
  double index_flops() const {
    return 2 * t * real(s.tokens) * real(s.index_heads) * real(s.index_dim);
  }
  /// In fp32: queries and keys of the index turned, backward their gradients; of a block of queries
  /// two of its scores by index head and two by head.
  std::int64_t index_temporaries() const {
    if (s.index_heads == 0) return 0;
    const std::int64_t rows = std::min(s.tokens, SegmentShape::kQueryRows),
                       block = s.sequences * rows * s.tokens * (s.index_heads + s.heads),
                       features = s.token_count() * (s.index_heads + 1) * s.index_dim;
    return 4 * ((forward() ? 1 : 2) * features + 2 * block);
  }
  double index_bytes() const {
    if (s.index_heads == 0) return 0;
    return e * t * real((s.index_heads + 1) * s.index_dim + s.index_heads) + kFloatBytes * t;
  }

  // What the kernels of a scan read and write, without its weights: mixer_sizes.h.
  double scan_bytes(bool backward) const {
    const double d = t * real(s.heads * s.head_dim), k = t * real(s.kv_heads * s.state);
    // One state a chunk; the last chunk of a sequence may be short.
    const double states =
        real(s.sequences * ceil_div(s.tokens, s.chunk) * s.heads) * real(s.head_dim * s.state);
    if (s.kernel == 0) {
      const double in = t * real(s.in);
      return backward ? e * (2 * in + 3 * d) + 2 * kFloatBytes * states
                      : e * (in + 2 * d) + kFloatBytes * states;
    }
    if (s.delta) {
      const double each = t * real(s.heads * s.state), square = t * real(s.chunk * s.heads);
      return backward ? e * (23 * d + 8 * k + 29 * each + 4 * states + 2 * square)
                      : e * (11 * d + 6 * k + 13 * each + 2 * states + 2 * square) +
                            2 * kFloatBytes * square;
    }
    const double square = kFloatBytes * t * real(s.chunk * s.kv_heads);
    return backward ? 21 * e * (d + k) + 4 * kFloatBytes * k + (6 * kFloatBytes + 5 * e) * states +
                          6 * square
                    : 8 * e * (d + k) + (2 * kFloatBytes + 2 * e) * states + 2 * square;
  }

  PhaseWork scan() const {
    ORRERY_CHECK(s.heads > 0 && s.head_dim > 0 && s.state > 0 && s.chunk > 0 && s.in > 0);
    const double d = real(s.heads * s.head_dim), k = real(s.kv_heads * s.state);
    const double states = d * real(s.state), w = real(s.weights);
    const double convolution = 2 * real(s.kernel) * t * (d + 2 * k);
    const double scan = t * (s.delta ? 8 * states : 2 * real(s.chunk) * (k + d) + 4 * states);
    const std::int64_t chunks = s.sequences * ceil_div(s.tokens, s.chunk);
    const std::int64_t temporary = 4 * chunks * s.heads * s.head_dim * s.state;
    if (forward())
      return {base::Flops(scan + convolution), base::Bytes(scan_bytes(false) + e * w), temporary};
    double flops = 0, bytes = 0;
    if (has_b) {
      flops += 2 * (scan + convolution);
      bytes += scan_bytes(true);
    }
    if (has_g) {
      flops += convolution;
      bytes += kFloatReadWrite * w;
    }
    return {base::Flops(flops), base::Bytes(bytes), 2 * temporary};
  }
};

}  // namespace

PhaseWork mixer_work(const SegmentShape& shape, Phase phase) {
  const Rows rows(shape, phase);
  if (shape.kind == SegmentKind::kHeadNorm) return rows.head_norm();
  if (shape.kind == SegmentKind::kLatentAttention) return rows.latent_attention();
  return rows.scan();
}

}  // namespace orrery::model
