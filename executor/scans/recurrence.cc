#include "executor/scans/recurrence.h"

#include "executor/scans/scan_math.h"

namespace orrery::executor::kernels {
namespace {

/// sum = factor sum_n weights[n] rows[n].
inline void weighted_rows(const ScanHead& head, const float* rows, const float* weights,
                          float factor, float* sum) {
  std::fill(sum, sum + head.size, 0.0F);
  for (std::int64_t n = 0; n < head.state; ++n)
    for (std::int64_t p = 0; p < head.size; ++p) sum[p] += weights[n] * rows[n * head.size + p];
  for (std::int64_t p = 0; p < head.size; ++p) sum[p] *= factor;
}

/// What a token writes: w; of the delta rule not yet times d.
inline void written(const ScanHead& head, const ScanToken& token, const float* before, float* w) {
  if (!head.delta) {
    std::copy(token.x, token.x + head.size, w);
    return;
  }
  weighted_rows(head, before, token.b, -token.decay, w);
  for (std::int64_t p = 0; p < head.size; ++p) w[p] += token.x[p];
}

}  // namespace

ORRERY_EACH_WIDTH
void advance(const ScanHead& head, const ScanToken& token, float* h, float* y, float* work) {
  const std::int64_t size = head.size;
  written(head, token, h, work);
  for (std::int64_t p = 0; p < size; ++p) {
    work[p] *= token.step;
    y[p] = token.skip * token.x[p];
  }
  for (std::int64_t n = 0; n < head.state; ++n) {
    float* row = h + n * size;
    const float key = token.b[n], query = token.c[n];
    for (std::int64_t p = 0; p < size; ++p) {
      row[p] = token.decay * row[p] + key * work[p];
      y[p] += query * row[p];
    }
  }
}

ORRERY_EACH_WIDTH
void retreat(const ScanHead& head, const ScanToken& token, const float* before, const float* behind,
             const float* dy, float* dh, ScanGradient& gradient, float* work) {
  const std::int64_t size = head.size;
  float *w = work, *dw = work + size;
  written(head, token, before, w);
  for (std::int64_t n = 0; n < head.state; ++n) {
    float* row = dh + n * size;
    for (std::int64_t p = 0; p < size; ++p) row[p] += token.c[n] * dy[p];
    gradient.b[n] += token.step * dot(row, w, size);
    gradient.c[n] += dot(behind + n * size, dy, size);
  }
  weighted_rows(head, dh, token.b, 1, dw);
  gradient.step = dot(dw, w, size);
  for (std::int64_t p = 0; p < size; ++p) {
    dw[p] *= token.step;
    gradient.x[p] = dw[p] + token.skip * dy[p];
  }
  gradient.decay = 0;
  for (std::int64_t n = 0; n < head.state; ++n) {
    float* row = dh + n * size;
    const float* old = before + n * size;
    if (head.delta) {
      gradient.b[n] -= token.decay * dot(old, dw, size);
      for (std::int64_t p = 0; p < size; ++p) row[p] -= token.b[n] * dw[p];
    }
    gradient.decay += dot(row, old, size);
    for (std::int64_t p = 0; p < size; ++p) row[p] *= token.decay;
  }
}

}  // namespace orrery::executor::kernels
