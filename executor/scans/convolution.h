#pragma once
/// The causal convolution of a scan's x, B and C, each channel by itself (arXiv 2405.21060, section
/// 7), in fp32, K taps, the last one of the token itself:
///
///   p_t = bias + sum_j w_j u_(t-K+1+j);   what follows reads silu(p)
///   du_t = sum_j w_j dp_(t+K-1-j),  dw_j = sum_t dp_t u_(t-K+1+j),  dbias = sum_t dp_t
#include <cstdint>
#include <vector>

namespace orrery::executor::kernels {

struct Convolution {
  std::int64_t channels = 0, taps = 1;
  std::vector<float> weights;  // [taps, channels]
  std::vector<float> bias;     // [channels]
  /// Rows of tokens before the first that it reads.
  [[nodiscard]] std::int64_t history() const { return taps - 1; }
};

/// `u`: history() rows, then `rows`; p: `rows`.
void convolve(const Convolution& c, const float* u, std::int64_t rows, float* p);
/// `dp`: `rows`, then history() of the tokens behind; du: `rows`, written.
void convolve_back(const Convolution& c, const float* dp, std::int64_t rows, float* du);
/// Added to dw [taps, channels] and dbias [channels].
void add_taps(const Convolution& c, const float* u, const float* dp, std::int64_t rows, double* dw,
              double* dbias);

/// to = silu(p), or, with the gradient `d` of silu(p), to = d silu'(p).
void activate(const float* p, std::int64_t n, float* to);
void activate_back(const float* p, std::int64_t n, float* d);

}  // namespace orrery::executor::kernels
