// Without nvcc tests/support/device_on_cpu.h stands for the toolkit, so that a test without a
// device runs the same kernels.
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

#include "executor/segments/device_kernels.h"

namespace orrery::executor::device {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;

const char* fault_of_launch() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

#ifdef __CUDACC__
template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 grid, dim3 block, Queue queue, Arguments... arguments) {
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(queue)>>>(arguments...);
}
#endif

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

/// Of one number of each thread of the block; every thread gets it.
template <class Op>
__device__ float over_block(float x, Op op) {
  __shared__ float of_warp[kWarps];
  __syncthreads();  // the numbers of the call before are read
  for (int other = kWarp / 2; other > 0; other /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = threadIdx.x % kWarp < kWarps ? of_warp[threadIdx.x % kWarp] : Op::kNothing;
  for (int other = kWarp / 2; other > 0; other /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  return x;
}

// One block a row wherever a kernel's name ends in `row`.
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

/// What a norm's kernels read of their rows.
template <class T>
struct Norm {
  const T *x, *gain, *bias;
  float *mean, *rstd;
  std::int64_t features;

  __device__ float normalised(std::int64_t row, std::int64_t c) const {
    const float centre = mean == nullptr ? 0.0F : mean[row];
    return (wide(x[row * features + c]) - centre) * rstd[row];
  }
};

template <class T>
__global__ void norm_of_row(Norm<T> n, T* y, double epsilon) {
  const std::int64_t row = blockIdx.x;
  const T* x = n.x + row * n.features;
  const float share = 1.0F / static_cast<float>(n.features);
  float mean = 0;
  if (n.mean != nullptr) {
    for (std::int64_t c = threadIdx.x; c < n.features; c += kThreads) mean += wide(x[c]);
    mean = over_block(mean, Sum()) * share;
  }
  float squares = 0;
  for (std::int64_t c = threadIdx.x; c < n.features; c += kThreads) {
    const float distance = wide(x[c]) - mean;
    squares += distance * distance;
  }
  squares = over_block(squares, Sum());
  const float rstd = rsqrtf(squares * share + static_cast<float>(epsilon));
  for (std::int64_t c = threadIdx.x; c < n.features; c += kThreads) {
    const float scaled = (wide(x[c]) - mean) * rstd * wide(n.gain[c]);
    store(y[row * n.features + c], n.bias == nullptr ? scaled : scaled + wide(n.bias[c]));
  }
  if (threadIdx.x != 0) return;
  n.rstd[row] = rstd;
  if (n.mean != nullptr) n.mean[row] = mean;
}

// dx = r (g - [layer] mean(g) - x' mean(g x')) with g = dy gain, x' = (x - mean) r.
template <class T>
__global__ void norm_backward_of_row(Norm<T> n, const T* dy, const T* residual, T* dx) {
  const std::int64_t row = blockIdx.x, first = row * n.features;
  float sum = 0, product = 0;
  for (std::int64_t c = threadIdx.x; c < n.features; c += kThreads) {
    const float g = wide(dy[first + c]) * wide(n.gain[c]);
    sum += g;
    product += g * n.normalised(row, c);
  }
  const float share = 1.0F / static_cast<float>(n.features);
  sum = n.mean == nullptr ? 0.0F : over_block(sum, Sum()) * share;
  product = over_block(product, Sum()) * share;
  for (std::int64_t c = threadIdx.x; c < n.features; c += kThreads) {
    const float g = wide(dy[first + c]) * wide(n.gain[c]);
    const float d = n.rstd[row] * (g - sum - n.normalised(row, c) * product);
    store(dx[first + c], residual == nullptr ? d : d + wide(residual[first + c]));
  }
}

// A block has so many columns, a sector of 32 bytes in bf16, and as many threads for each.
constexpr int kColumns = 16, kThreadsOfColumn = 64;

/// Adds the sum of the column's threads to *to; all threads of the block call it.
__device__ void add_over_column(float x, float* to) {
  __shared__ float of_thread[kThreadsOfColumn][kColumns + 1];
  __syncthreads();
  of_thread[threadIdx.y][threadIdx.x] = x;
  for (int half = kThreadsOfColumn / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) < half)
      of_thread[threadIdx.y][threadIdx.x] += of_thread[threadIdx.y + half][threadIdx.x];
  }
  if (threadIdx.y == 0 && to != nullptr) *to += of_thread[0][threadIdx.x];
}

template <class T>
__global__ void norm_gradients_of_columns(Norm<T> n, std::int64_t rows, const T* dy, float* gain,
                                          float* bias) {
  const std::int64_t c = blockIdx.x * kColumns + threadIdx.x;
  const bool inside = c < n.features;
  float of_gain = 0, of_bias = 0;
  for (std::int64_t row = threadIdx.y; inside && row < rows; row += kThreadsOfColumn) {
    const float d = wide(dy[row * n.features + c]);
    of_gain += d * n.normalised(row, c);
    of_bias += d;
  }
  add_over_column(of_gain, inside ? gain + c : nullptr);
  if (bias != nullptr) add_over_column(of_bias, inside ? bias + c : nullptr);
}

template <class T>
__global__ void sums_of_columns(const T* x, std::int64_t rows, std::int64_t columns, float* sums) {
  const std::int64_t c = blockIdx.x * kColumns + threadIdx.x;
  float sum = 0;
  for (std::int64_t row = threadIdx.y; c < columns && row < rows; row += kThreadsOfColumn)
    sum += wide(x[row * columns + c]);
  add_over_column(sum, c < columns ? sums + c : nullptr);
}

template <class T>
__global__ void add_with_bias_of_row(const T* x, const T* p, const T* bias, T* y,
                                     std::int64_t columns) {
  const std::int64_t first = blockIdx.x * columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += kThreads)
    store(y[first + c], wide(x[first + c]) + wide(p[first + c]) + wide(bias[c]));
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

unsigned grid_of(std::int64_t blocks) { return static_cast<unsigned>(blocks); }

}  // namespace

const char* loss_max(Queue queue, const Logits& x, float* m) {
  return by_type(x.numbers, [&]<class T>(T* logits) {
    launch(max_of_row<T>, grid_of(x.rows), kThreads, queue, logits, x.columns, x.stride, m);
  });
}

const char* loss_sum(Queue queue, const Logits& x, const float* m, const std::int64_t* targets,
                     float* stat) {
  return by_type(x.numbers, [&]<class T>(T* logits) {
    launch(sum_of_row<T>, grid_of(x.rows), kThreads, queue, logits, x.columns, x.stride, x.first, m,
           targets, stat);
  });
}

const char* loss_gradient(Queue queue, const Logits& x, const float* m, const float* stat,
                          const std::int64_t* targets, float scale) {
  return by_type(x.numbers, [&]<class T>(T* logits) {
    launch(gradient_of_row<T>, grid_of(x.rows), kThreads, queue, logits, x.columns, x.stride,
           x.first, m, stat, targets, scale);
  });
}

namespace {

template <class T>
Norm<T> norm_of(const NormRows& r, const T*) {
  return {static_cast<const T*>(r.x.data),
          static_cast<const T*>(r.gain.data),
          static_cast<const T*>(r.bias.data),
          r.mean,
          r.rstd,
          r.features};
}
/// The numbers as what `like` points to.
template <class T>
T* as(const Numbers& numbers, const T*) {
  return static_cast<T*>(numbers.data);
}
unsigned grid_of_columns(std::int64_t columns) {
  return grid_of((columns + kColumns - 1) / kColumns);
}

}  // namespace

const char* norm(Queue queue, const NormRows& rows, const Numbers& y, double epsilon) {
  return by_type(rows.x, [&]<class T>(T* x) {
    launch(norm_of_row<T>, grid_of(rows.rows), kThreads, queue, norm_of(rows, x), as(y, x),
           epsilon);
  });
}

const char* norm_backward(Queue queue, const NormRows& rows, const Numbers& dy,
                          const Numbers& residual, const Numbers& dx) {
  return by_type(rows.x, [&]<class T>(T* x) {
    launch(norm_backward_of_row<T>, grid_of(rows.rows), kThreads, queue, norm_of(rows, x),
           as(dy, x), as(residual, x), as(dx, x));
  });
}

const char* norm_gradients(Queue queue, const NormRows& rows, const Numbers& dy, float* gain,
                           float* bias) {
  const dim3 block(kColumns, kThreadsOfColumn);
  return by_type(rows.x, [&]<class T>(T* x) {
    launch(norm_gradients_of_columns<T>, grid_of_columns(rows.features), block, queue,
           norm_of(rows, x), rows.rows, as(dy, x), gain, bias);
  });
}

const char* add_column_sums(Queue queue, const Numbers& x, std::int64_t rows, std::int64_t columns,
                            float* sums) {
  const dim3 block(kColumns, kThreadsOfColumn);
  return by_type(x, [&]<class T>(T* numbers) {
    launch(sums_of_columns<T>, grid_of_columns(columns), block, queue, numbers, rows, columns,
           sums);
  });
}

const char* add_with_bias(Queue queue, const Numbers& x, const Numbers& p, const Numbers& bias,
                          const Numbers& y, std::int64_t rows, std::int64_t columns) {
  return by_type(x, [&]<class T>(T* numbers) {
    launch(add_with_bias_of_row<T>, grid_of(rows), kThreads, queue, numbers, as(p, numbers),
           as(bias, numbers), as(y, numbers), columns);
  });
}

const char* adamw(Queue queue, float* p, const float* g, float* m, float* v, void* rounded,
                  std::int64_t elements, const DecayRanges& ranges, const AdamWStep& step) {
  constexpr std::int64_t kMostBlocks = 1 << 14;
  const std::int64_t blocks = (elements + kThreads - 1) / kThreads;
  launch(adamw_of_elements, grid_of(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, queue,
         p, g, m, v, static_cast<__nv_bfloat16*>(rounded), elements, ranges, step);
  return fault_of_launch();
}

const char* rotate(Queue queue, const Heads& to, const Heads& from, const float* cos,
                   const float* sin, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                   std::int64_t head_dim, float sign) {
  return by_type(to.numbers, [&]<class T>(T* numbers) {
    launch(rotate_token<T>, dim3(grid_of(tokens), grid_of(batch)), kThreads, queue, numbers,
           static_cast<T*>(from.numbers.data), to, from, cos, sin, heads, head_dim / 2, sign);
  });
}

}  // namespace orrery::executor::device
