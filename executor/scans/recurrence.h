#pragma once
/// The recurrence of one head of a scan, in fp32. A state H is N x P numbers, a row for each number
/// of a key; x, y have P numbers, B and C N. Of token t, with decay a and step d:
///
///   state space   w = d x                    (Mamba-2, arXiv 2405.21060; lightning attention with
///                                            d = 1, arXiv 2501.08313)
///   delta rule    w = d (x - a H' B)         (arXiv 2412.06464, H' the state transposed)
///   both          H = a H_before + B w',  y = H' C + D x
///
/// Gradients, dH that of H from all later tokens:
///
///   dH += C dy',  dC = H dy,  dw = dH' B,  dB = dH w,  dx = D dy
///   state space   dd = dw . x,  dx += d dw
///   delta rule    dd = dw . w / d,  e = d dw,  dx += e,  dB -= a H_before e,  dH -= B e'
///   both          da = dH . H_before,  dH_before = a dH
#include <cstdint>

namespace orrery::executor::kernels {

struct ScanHead {
  std::int64_t state = 0, size = 0;  // N, P
  bool delta = false;
  [[nodiscard]] std::int64_t elements() const { return state * size; }
};

struct ScanToken {
  const float *x = nullptr, *b = nullptr, *c = nullptr;
  float decay = 1, step = 1, skip = 0;  // a, d, D
};

/// h becomes the state behind the token; y is written. `work`: P numbers.
void advance(const ScanHead& head, const ScanToken& token, float* h, float* y, float* work);

struct ScanGradient {
  float *x = nullptr, *b = nullptr, *c = nullptr;  // x written; of b and c added to
  float decay = 0, step = 0;
};
/// dh, that of the state behind the token from later ones, becomes that of the state before it.
/// `work`: 2 P numbers.
void retreat(const ScanHead& head, const ScanToken& token, const float* before, const float* behind,
             const float* dy, float* dh, ScanGradient& gradient, float* work);

}  // namespace orrery::executor::kernels
