#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

template <int N>
__global__ void adamw_of_elements(float* p, const float* g, float* m, float* v,
                                  __nv_bfloat16* rounded, std::int64_t elements, DecayRanges ranges,
                                  AdamWStep c) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
       i * N < elements; i += threads) {
    Pack<float, N> of_p = pack_at<N>(p, i), of_m = pack_at<N>(m, i), of_v = pack_at<N>(v, i);
    const Pack<float, N> of_g = pack_at<N>(g, i);
    Pack<__nv_bfloat16, N> of_rounded;
    int range = 0;
    for (int k = 0; k < N; ++k) {
      while (range < ranges.count && i * N + k >= ranges.end[range]) ++range;
      const float decay = range < ranges.count && ranges.decays[range] ? c.decay : 1.0F;
      const float d = of_g.number[k];
      const float first = of_m.number[k] + c.beta1 * (d - of_m.number[k]);
      const float second = of_v.number[k] + c.beta2 * (d * d - of_v.number[k]);
      const float moved = decay * of_p.number[k] -
                          c.step * (first / (sqrtf(second) * c.root_correction + c.epsilon));
      of_m.number[k] = first;
      of_v.number[k] = second;
      of_p.number[k] = moved;
      store(of_rounded.number[k], moved);
    }
    put_pack(m, i, of_m);
    put_pack(v, i, of_v);
    put_pack(p, i, of_p);
    if (rounded != nullptr) put_pack(rounded, i, of_rounded);
  }
}

// One block a token of a sequence; threads take packs of pairs of all its heads in turn.
template <class T, int N>
__global__ void rotate_token(T* to, const T* from, Heads to_place, Heads from_place,
                             const float* cos, const float* sin, std::int64_t heads,
                             std::int64_t half, float sign) {
  const std::int64_t token = blockIdx.x, sequence = blockIdx.y, packs = half / N;
  T* y = to + sequence * to_place.batch_stride + token * to_place.token_stride;
  const T* x = from + sequence * from_place.batch_stride + token * from_place.token_stride;
  for (std::int64_t i = threadIdx.x; i < heads * packs; i += kThreads) {
    const std::int64_t head = i / packs, pack = i % packs;
    const Pack<float, N> c = pack_at<N>(cos + token * half, pack),
                         s = pack_at<N>(sin + token * half, pack);
    const T* x1 = x + head * from_place.head_stride;
    T* y1 = y + head * to_place.head_stride;
    Pack<T, N> a = pack_at<N>(x1, pack), b = pack_at<N>(x1 + half, pack);
    for (int k = 0; k < N; ++k) {
      const float of_a = wide(a.number[k]), of_b = wide(b.number[k]);
      store(a.number[k], of_a * c.number[k] - of_b * (sign * s.number[k]));
      store(b.number[k], of_b * c.number[k] + of_a * (sign * s.number[k]));
    }
    put_pack(y1, pack, a);
    put_pack(y1 + half, pack, b);
  }
}

/// act(x) = x sigma with sigma of a(x), and its derivative sigma + x sigma (1 - sigma) a', as
/// segments_activation.cc states them, in fused multiply-adds.
struct Act {
  float value, slope;
  __device__ Act(float x, bool gelu) {
    constexpr float kSlope = 1.5957691216057308F, kCubic = 0.044715F;  // 2 sqrt(2/pi)
    const float square = x * x;
    const float a = gelu ? x * __fmaf_rn(square, kSlope * kCubic, kSlope) : x;
    const float of_a = gelu ? __fmaf_rn(square, 3.0F * kSlope * kCubic, kSlope) : 1.0F;
    constexpr float kLeast = -80.0F;  // e stays finite, and sigma nothing
    const float e = exponential(-fmaxf(a, kLeast)), sigma = __fdividef(1.0F, 1.0F + e);
    value = x * sigma;
    slope = __fmaf_rn(value * (e * sigma), of_a, sigma);  // 1 - sigma without what cancels
  }
};

template <class T, int N>
__device__ Pack<T, N> pack_or_ones(const T* row, std::int64_t pack) {
  if (row != nullptr) return pack_at<N>(row, pack);
  Pack<T, N> ones;
  for (int k = 0; k < N; ++k) store(ones.number[k], 1.0F);
  return ones;
}
template <class T>
__device__ T* row_of(T* rows, std::int64_t stride) {
  return rows == nullptr ? nullptr : rows + blockIdx.x * stride;
}

// A block has a row's packs [blockIdx.y kThreads, + kThreads). Without a gate up and d_up are null.
template <class T, int N>
__global__ void activation_of_row(const T* gate, const T* up, std::int64_t stride, bool gelu, T* g,
                                  std::int64_t columns) {
  const std::int64_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i * N >= columns) return;
  const Pack<T, N> x = pack_at<N>(row_of(gate, stride), i),
                   u = pack_or_ones<T, N>(row_of(up, stride), i);
  Pack<T, N> result;
  for (int k = 0; k < N; ++k)
    store(result.number[k], Act(wide(x.number[k]), gelu).value * wide(u.number[k]));
  put_pack(row_of(g, columns), i, result);
}

template <class T, int N>
__global__ void activation_backward_of_row(const T* gate, const T* up, std::int64_t stride,
                                           bool gelu, const T* dg, T* d_gate, T* d_up,
                                           std::int64_t columns) {
  const std::int64_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i * N >= columns) return;
  const Pack<T, N> x = pack_at<N>(row_of(gate, stride), i),
                   u = pack_or_ones<T, N>(row_of(up, stride), i),
                   d = pack_at<N>(row_of(dg, columns), i);
  Pack<T, N> of_gate, of_up;
  for (int k = 0; k < N; ++k) {
    const Act act(wide(x.number[k]), gelu);
    const float of_d = wide(d.number[k]);
    store(of_gate.number[k], of_d * wide(u.number[k]) * act.slope);
    store(of_up.number[k], of_d * act.value);
  }
  put_pack(row_of(d_gate, stride), i, of_gate);
  if (d_up != nullptr) put_pack(row_of(d_up, stride), i, of_up);
}

}  // namespace

const char* adamw(Queue queue, float* p, const float* g, float* m, float* v, void* rounded,
                  std::int64_t elements, const DecayRanges& ranges, const AdamWStep& step) {
  constexpr std::int64_t kMostBlocks = 1 << 14;
  return by_width({p, false}, elements, {p, g, m, v, rounded}, [&]<class T, class W>(T*, W) {
    const std::int64_t blocks = (elements / W::value + kThreads - 1) / kThreads;
    launch(adamw_of_elements<W::value>, grid_of(blocks < kMostBlocks ? blocks : kMostBlocks),
           kThreads, queue, p, g, m, v, static_cast<__nv_bfloat16*>(rounded), elements, ranges,
           step);
  });
}

const char* rotate(Queue queue, const Heads& to, const Heads& from, const float* cos,
                   const float* sin, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                   std::int64_t head_dim, float sign) {
  // Packs are powers of two: what divides all of these divides what has the bits of all.
  const std::int64_t alike = (head_dim / 2) | to.batch_stride | to.token_stride | to.head_stride |
                             from.batch_stride | from.token_stride | from.head_stride;
  return by_width(to.numbers, alike, {to.numbers.data, from.numbers.data, cos, sin},
                  [&]<class T, class W>(T* numbers, W) {
                    launch(rotate_token<T, W::value>, dim3(grid_of(tokens), grid_of(batch)),
                           kThreads, queue, numbers, as(from.numbers, numbers), to, from, cos, sin,
                           heads, head_dim / 2, sign);
                  });
}

namespace {

template <int N>
dim3 grid_of_rows(const Activated& x) {
  return {grid_of(x.rows), grid_of((x.columns / N + kThreads - 1) / kThreads)};
}

}  // namespace

const char* activation(Queue queue, const Activated& x, const Numbers& g) {
  return by_width(x.gate, x.columns | x.stride, {x.gate.data, x.up.data, g.data},
                  [&]<class T, class W>(T* gate, W) {
                    launch(activation_of_row<T, W::value>, grid_of_rows<W::value>(x), kThreads,
                           queue, gate, as(x.up, gate), x.stride, x.gelu, as(g, gate), x.columns);
                  });
}

const char* activation_backward(Queue queue, const Activated& x, const Numbers& dg,
                                const Numbers& d_gate, const Numbers& d_up) {
  return by_width(x.gate, x.columns | x.stride,
                  {x.gate.data, x.up.data, dg.data, d_gate.data, d_up.data},
                  [&]<class T, class W>(T* gate, W) {
                    launch(activation_backward_of_row<T, W::value>, grid_of_rows<W::value>(x),
                           kThreads, queue, gate, as(x.up, gate), x.stride, x.gelu, as(dg, gate),
                           as(d_gate, gate), as(d_up, gate), x.columns);
                  });
}

}  // namespace orrery::executor::device
