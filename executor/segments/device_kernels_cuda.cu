#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "executor/segments/device_kernels.h"

namespace orrery::executor::device {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;

const char* fault_of_launch() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

__device__ float wide(float x) { return x; }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(float& to, float x) { to = x; }
__device__ void store(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

struct Largest {
  static constexpr float kNothing = -INFINITY;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  static constexpr float kNothing = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// Of one number of each thread of the block; every thread of the first warp gets it.
template <class Op>
__device__ float over_block(float x, Op op) {
  __shared__ float of_warp[kWarps];
  for (int other = kWarp / 2; other > 0; other /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = threadIdx.x % kWarp < kWarps ? of_warp[threadIdx.x % kWarp] : Op::kNothing;
  for (int other = kWarp / 2; other > 0; other /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  return x;
}

// One block a row in all three.
template <class T>
__global__ void max_of_row(const T* logits, std::int64_t columns, std::int64_t stride, float* m) {
  const T* x = logits + blockIdx.x * stride;
  float largest = Largest::kNothing;
  for (std::int64_t c = threadIdx.x; c < columns; c += kThreads)
    largest = fmaxf(largest, wide(x[c]));
  largest = over_block(largest, Largest());
  if (threadIdx.x == 0) m[blockIdx.x] = largest;
}

template <class T>
__global__ void sum_of_row(const T* logits, std::int64_t columns, std::int64_t stride,
                           std::int64_t first, const float* m, const std::int64_t* targets,
                           float* stat) {
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * stride;
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < columns; c += kThreads) sum += expf(wide(x[c]) - m[row]);
  sum = over_block(sum, Sum());
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[row] - first;
  stat[row] = sum;
  stat[gridDim.x + row] = target >= 0 && target < columns ? wide(x[target]) - m[row] : 0.0F;
}

template <class T>
__global__ void gradient_of_row(T* logits, std::int64_t columns, std::int64_t stride,
                                std::int64_t first, const float* m, const float* stat,
                                const std::int64_t* targets, float scale) {
  const std::int64_t row = blockIdx.x, target = targets[row] - first;
  T* x = logits + row * stride;
  const float factor = scale / stat[row];
  for (std::int64_t c = threadIdx.x; c < stride; c += kThreads) {
    float d = c < columns ? expf(wide(x[c]) - m[row]) * factor : 0.0F;
    if (c == target && c < columns) d -= scale;
    store(x[c], d);
  }
}

__global__ void adamw_of_elements(float* p, const float* g, float* m, float* v,
                                  __nv_bfloat16* rounded, std::int64_t elements, DecayRanges ranges,
                                  AdamWStep c) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
       i < elements; i += threads) {
    int range = 0;
    while (range < ranges.count && i >= ranges.end[range]) ++range;
    const float decay = range < ranges.count && ranges.decays[range] ? c.decay : 1.0F;
    const float first = m[i] + c.beta1 * (g[i] - m[i]);
    const float second = v[i] + c.beta2 * (g[i] * g[i] - v[i]);
    const float moved =
        decay * p[i] - c.step * (first / (sqrtf(second) * c.root_correction + c.epsilon));
    m[i] = first;
    v[i] = second;
    p[i] = moved;
    if (rounded != nullptr) rounded[i] = __float2bfloat16_rn(moved);
  }
}

// One block a token of a sequence; threads take pairs of all its heads in turn.
template <class T>
__global__ void rotate_token(T* to, const T* from, Heads to_place, Heads from_place,
                             const float* cos, const float* sin, std::int64_t heads,
                             std::int64_t half, float sign) {
  const std::int64_t token = blockIdx.x, sequence = blockIdx.y;
  T* y = to + sequence * to_place.batch_stride + token * to_place.token_stride;
  const T* x = from + sequence * from_place.batch_stride + token * from_place.token_stride;
  for (std::int64_t i = threadIdx.x; i < heads * half; i += kThreads) {
    const std::int64_t head = i / half, pair = i % half;
    const float c = cos[token * half + pair], s = sign * sin[token * half + pair];
    const T *x1 = x + head * from_place.head_stride + pair, *x2 = x1 + half;
    T *y1 = y + head * to_place.head_stride + pair, *y2 = y1 + half;
    const float a = wide(*x1), b = wide(*x2);
    store(*y1, a * c - b * s);
    store(*y2, b * c + a * s);
  }
}

/// Calls `launch` with the numbers' own type.
template <class Launch>
const char* by_type(const Numbers& numbers, Launch launch) {
  if (numbers.bf16)
    launch(static_cast<__nv_bfloat16*>(numbers.data));
  else
    launch(static_cast<float*>(numbers.data));
  return fault_of_launch();
}

cudaStream_t stream_of(Queue queue) { return static_cast<cudaStream_t>(queue); }
unsigned grid_of(std::int64_t blocks) { return static_cast<unsigned>(blocks); }

}  // namespace

const char* loss_max(Queue queue, const Logits& x, float* m) {
  return by_type(x.numbers, [&](auto* logits) {
    max_of_row<<<grid_of(x.rows), kThreads, 0, stream_of(queue)>>>(logits, x.columns, x.stride, m);
  });
}

const char* loss_sum(Queue queue, const Logits& x, const float* m, const std::int64_t* targets,
                     float* stat) {
  return by_type(x.numbers, [&](auto* logits) {
    sum_of_row<<<grid_of(x.rows), kThreads, 0, stream_of(queue)>>>(logits, x.columns, x.stride,
                                                                   x.first, m, targets, stat);
  });
}

const char* loss_gradient(Queue queue, const Logits& x, const float* m, const float* stat,
                          const std::int64_t* targets, float scale) {
  return by_type(x.numbers, [&](auto* logits) {
    gradient_of_row<<<grid_of(x.rows), kThreads, 0, stream_of(queue)>>>(
        logits, x.columns, x.stride, x.first, m, stat, targets, scale);
  });
}

const char* adamw(Queue queue, float* p, const float* g, float* m, float* v, void* rounded,
                  std::int64_t elements, const DecayRanges& ranges, const AdamWStep& step) {
  constexpr std::int64_t kMostBlocks = 1 << 14;
  const std::int64_t blocks = (elements + kThreads - 1) / kThreads;
  adamw_of_elements<<<grid_of(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
                      stream_of(queue)>>>(p, g, m, v, static_cast<__nv_bfloat16*>(rounded),
                                          elements, ranges, step);
  return fault_of_launch();
}

const char* rotate(Queue queue, const Heads& to, const Heads& from, const float* cos,
                   const float* sin, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                   std::int64_t head_dim, float sign) {
  return by_type(to.numbers, [&](auto* numbers) {
    rotate_token<<<dim3(grid_of(tokens), grid_of(batch)), kThreads, 0, stream_of(queue)>>>(
        numbers, static_cast<decltype(numbers)>(from.numbers.data), to, from, cos, sin, heads,
        head_dim / 2, sign);
  });
}

}  // namespace orrery::executor::device
