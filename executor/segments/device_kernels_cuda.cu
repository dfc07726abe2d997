// Without nvcc tests/support/device_on_cpu.h stands for the toolkit, so that a test without a
// device runs the same kernels.
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

#include <initializer_list>
#include <type_traits>

#include "executor/segments/device_kernels.h"

namespace orrery::executor::device {
namespace {

constexpr int kThreads = 256, kThreadsOfNorm = 128, kWarp = 32;

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

/// N numbers that one access moves: 16 bytes, or one number where rows do not begin and end there.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T number[N];
};
template <int N, class T>
__device__ Pack<T, N> pack_at(const T* row, std::int64_t pack) {
  return reinterpret_cast<const Pack<T, N>*>(row)[pack];
}
template <class T, class Packed>
__device__ void put_pack(T* row, std::int64_t pack, const Packed& numbers) {
  reinterpret_cast<Packed*>(row)[pack] = numbers;
}

struct Largest {
  static constexpr float kNothing = -INFINITY;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  static constexpr float kNothing = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// Of one number of each of the block's `Threads`; every thread gets it.
template <int Threads, class Op>
__device__ float over_block(float x, Op op) {
  constexpr int kWarps = Threads / kWarp;
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

// One block a row wherever a kernel's name ends in `row`; its threads take packs of N in turn.
template <class T, int N>
__global__ void max_of_row(const T* logits, std::int64_t columns, std::int64_t stride, float* m) {
  const T* x = logits + blockIdx.x * stride;
  float largest = Largest::kNothing;
  for (std::int64_t i = threadIdx.x; i * N < columns; i += kThreads) {
    const Pack<T, N> pack = pack_at<N>(x, i);
    for (int k = 0; k < N; ++k)
      if (i * N + k < columns) largest = fmaxf(largest, wide(pack.number[k]));
  }
  largest = over_block<kThreads>(largest, Largest());
  if (threadIdx.x == 0) m[blockIdx.x] = largest;
}

template <class T, int N>
__global__ void sum_of_row(const T* logits, std::int64_t columns, std::int64_t stride,
                           std::int64_t first, const float* m, const std::int64_t* targets,
                           float* stat) {
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * stride;
  const float largest = m[row];
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i * N < columns; i += kThreads) {
    const Pack<T, N> pack = pack_at<N>(x, i);
    for (int k = 0; k < N; ++k)
      if (i * N + k < columns) sum += expf(wide(pack.number[k]) - largest);
  }
  sum = over_block<kThreads>(sum, Sum());
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[row] - first;
  stat[row] = sum;
  stat[gridDim.x + row] = target >= 0 && target < columns ? wide(x[target]) - largest : 0.0F;
}

template <class T, int N>
__global__ void gradient_of_row(T* logits, std::int64_t columns, std::int64_t stride,
                                std::int64_t first, const float* m, const float* stat,
                                const std::int64_t* targets, float scale) {
  const std::int64_t row = blockIdx.x, target = targets[row] - first;
  T* x = logits + row * stride;
  const float largest = m[row], factor = scale / stat[row];
  for (std::int64_t i = threadIdx.x; i * N < stride; i += kThreads) {
    Pack<T, N> pack = pack_at<N>(x, i);
    for (int k = 0; k < N; ++k) {
      const std::int64_t c = i * N + k;
      float d = c < columns ? expf(wide(pack.number[k]) - largest) * factor : 0.0F;
      if (c == target && c < columns) d -= scale;
      store(pack.number[k], d);
    }
    put_pack(x, i, pack);
  }
}

/// What a norm's kernels read of their rows.
template <class T>
struct Norm {
  const T *x, *gain, *bias;
  float *mean, *rstd;
  std::int64_t features;
};

template <class T, int N>
__global__ void norm_of_row(Norm<T> n, T* y, double epsilon) {
  const std::int64_t row = blockIdx.x, packs = n.features / N;
  const T* x = n.x + row * n.features;
  const float share = 1.0F / static_cast<float>(n.features);
  float mean = 0;
  if (n.mean != nullptr) {
    for (std::int64_t i = threadIdx.x; i < packs; i += kThreadsOfNorm) {
      const Pack<T, N> of_x = pack_at<N>(x, i);
      for (int k = 0; k < N; ++k) mean += wide(of_x.number[k]);
    }
    mean = over_block<kThreadsOfNorm>(mean, Sum()) * share;
  }
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < packs; i += kThreadsOfNorm) {
    const Pack<T, N> of_x = pack_at<N>(x, i);
    for (int k = 0; k < N; ++k) {
      const float distance = wide(of_x.number[k]) - mean;
      squares += distance * distance;
    }
  }
  squares = over_block<kThreadsOfNorm>(squares, Sum());
  const float rstd = rsqrtf(squares * share + static_cast<float>(epsilon));
  for (std::int64_t i = threadIdx.x; i < packs; i += kThreadsOfNorm) {
    const Pack<T, N> of_x = pack_at<N>(x, i), gain = pack_at<N>(n.gain, i);
    Pack<T, N> bias{}, result;
    if (n.bias != nullptr) bias = pack_at<N>(n.bias, i);
    for (int k = 0; k < N; ++k) {
      const float scaled = (wide(of_x.number[k]) - mean) * rstd * wide(gain.number[k]);
      store(result.number[k], n.bias == nullptr ? scaled : scaled + wide(bias.number[k]));
    }
    put_pack(y + row * n.features, i, result);
  }
  if (threadIdx.x != 0) return;
  n.rstd[row] = rstd;
  if (n.mean != nullptr) n.mean[row] = mean;
}

// dx = r (g - [layer] mean(g) - x' mean(g x')) with g = dy gain, x' = (x - mean) r.
template <class T, int N>
__global__ void norm_backward_of_row(Norm<T> n, const T* dy, const T* residual, T* dx) {
  const std::int64_t row = blockIdx.x, first = row * n.features, packs = n.features / N;
  const float centre = n.mean == nullptr ? 0.0F : n.mean[row], rstd = n.rstd[row];
  float sum = 0, product = 0;
  for (std::int64_t i = threadIdx.x; i < packs; i += kThreadsOfNorm) {
    const Pack<T, N> of_dy = pack_at<N>(dy + first, i), of_x = pack_at<N>(n.x + first, i),
                     gain = pack_at<N>(n.gain, i);
    for (int k = 0; k < N; ++k) {
      const float g = wide(of_dy.number[k]) * wide(gain.number[k]);
      sum += g;
      product += g * ((wide(of_x.number[k]) - centre) * rstd);
    }
  }
  const float share = 1.0F / static_cast<float>(n.features);
  sum = n.mean == nullptr ? 0.0F : over_block<kThreadsOfNorm>(sum, Sum()) * share;
  product = over_block<kThreadsOfNorm>(product, Sum()) * share;
  for (std::int64_t i = threadIdx.x; i < packs; i += kThreadsOfNorm) {
    const Pack<T, N> of_dy = pack_at<N>(dy + first, i), of_x = pack_at<N>(n.x + first, i),
                     gain = pack_at<N>(n.gain, i);
    Pack<T, N> beside{}, result;
    if (residual != nullptr) beside = pack_at<N>(residual + first, i);
    for (int k = 0; k < N; ++k) {
      const float g = wide(of_dy.number[k]) * wide(gain.number[k]);
      const float d = rstd * (g - sum - (wide(of_x.number[k]) - centre) * rstd * product);
      store(result.number[k], residual == nullptr ? d : d + wide(beside.number[k]));
    }
    put_pack(dx + first, i, result);
  }
}

// A block sums columns: a lane has a pack of them, of every kThreadsOfColumn-th row. Numbers of
// several rows are asked for before they are added: what is under way hides the memory.
constexpr int kLanes = 4, kThreadsOfColumn = 128;
constexpr int kRowsOfNorm = 4, kRowsOfSums = 8;

/// Adds what the threads of its columns have to to[0, N), where that is not null; all threads of
/// the block call it.
template <int N>
__device__ void add_over_columns(const float (&x)[N], float* to) {
  __shared__ float of_thread[kThreadsOfColumn][kLanes * N + 1];
  float* own = of_thread[threadIdx.y] + threadIdx.x * N;
  __syncthreads();  // the numbers of the call before are read
  for (int k = 0; k < N; ++k) own[k] = x[k];
  for (int half = kThreadsOfColumn / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) >= half) continue;
    const float* other = of_thread[threadIdx.y + half] + threadIdx.x * N;
    for (int k = 0; k < N; ++k) own[k] += other[k];
  }
  if (threadIdx.y != 0 || to == nullptr) return;
  for (int k = 0; k < N; ++k) to[k] += own[k];
}

template <class T, int N>
struct NormGradients {
  const Norm<T>& n;
  const T* dy;
  std::int64_t pack;  // of a row
  float gain[N] = {}, bias[N] = {};

  template <int Rows>
  __device__ void add(std::int64_t row) {
    Pack<T, N> d[Rows], x[Rows];
    float mean[Rows], rstd[Rows];
    for (int i = 0; i < Rows; ++i) {
      const std::int64_t r = row + i * kThreadsOfColumn;
      d[i] = pack_at<N>(dy + r * n.features, pack);
      x[i] = pack_at<N>(n.x + r * n.features, pack);
      mean[i] = n.mean == nullptr ? 0.0F : n.mean[r];
      rstd[i] = n.rstd[r];
    }
    for (int i = 0; i < Rows; ++i) {
      for (int k = 0; k < N; ++k) {
        const float of_d = wide(d[i].number[k]);
        gain[k] += of_d * ((wide(x[i].number[k]) - mean[i]) * rstd[i]);
        bias[k] += of_d;
      }
    }
  }
};

template <class T, int N>
struct Sums {
  const T* numbers;
  std::int64_t columns, pack;
  float sum[N] = {};

  template <int Rows>
  __device__ void add(std::int64_t row) {
    Pack<T, N> x[Rows];
    for (int i = 0; i < Rows; ++i)
      x[i] = pack_at<N>(numbers + (row + i * kThreadsOfColumn) * columns, pack);
    for (int i = 0; i < Rows; ++i)
      for (int k = 0; k < N; ++k) sum[k] += wide(x[i].number[k]);
  }
};

/// The thread's rows, Rows of them at once.
template <int Rows, class Of>
__device__ void add_rows(Of& of, std::int64_t rows) {
  std::int64_t row = threadIdx.y;
  for (; row + (Rows - 1) * kThreadsOfColumn < rows; row += Rows * kThreadsOfColumn)
    of.template add<Rows>(row);
  for (; row < rows; row += kThreadsOfColumn) of.template add<1>(row);
}

// Launch bounds leave the registers for all numbers that are under way.
template <class T, int N>
__global__ void __launch_bounds__(kLanes* kThreadsOfColumn, 1)
    norm_gradients_of_columns(Norm<T> n, std::int64_t rows, const T* dy, float* gain, float* bias) {
  const std::int64_t pack = blockIdx.x * kLanes + threadIdx.x;
  const bool inside = pack * N < n.features;
  NormGradients<T, N> of{n, dy, pack};
  if (inside) add_rows<kRowsOfNorm>(of, rows);
  add_over_columns(of.gain, inside ? gain + pack * N : nullptr);
  if (bias != nullptr) add_over_columns(of.bias, inside ? bias + pack * N : nullptr);
}

template <class T, int N>
__global__ void __launch_bounds__(kLanes* kThreadsOfColumn, 1)
    sums_of_columns(const T* x, std::int64_t rows, std::int64_t columns, float* sums) {
  const std::int64_t pack = blockIdx.x * kLanes + threadIdx.x;
  const bool inside = pack * N < columns;
  Sums<T, N> of{x, columns, pack};
  if (inside) add_rows<kRowsOfSums>(of, rows);
  add_over_columns(of.sum, inside ? sums + pack * N : nullptr);
}

template <class T, int N>
__global__ void add_with_bias_of_row(const T* x, const T* p, const T* bias, T* y,
                                     std::int64_t columns) {
  const std::int64_t first = blockIdx.x * columns;
  for (std::int64_t i = threadIdx.x; i < columns / N; i += kThreadsOfNorm) {
    const Pack<T, N> of_x = pack_at<N>(x + first, i), of_p = pack_at<N>(p + first, i),
                     of_bias = pack_at<N>(bias, i);
    Pack<T, N> result;
    for (int k = 0; k < N; ++k)
      store(result.number[k],
            wide(of_x.number[k]) + wide(of_p.number[k]) + wide(of_bias.number[k]));
    put_pack(y + first, i, result);
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

/// How many numbers of T an access of 16 bytes moves.
template <class T>
constexpr int kPacked = 16 / static_cast<int>(sizeof(T));

/// Calls `launch` with the numbers' type and the width of a pack: rows of `features` may begin at
/// every multiple of them from each of the addresses.
template <class Launch>
const char* by_width(const Numbers& numbers, std::int64_t features,
                     std::initializer_list<const void*> addresses, Launch launch) {
  return by_type(numbers, [&]<class T>(T* data) {
    bool packed = features % kPacked<T> == 0;
    for (const void* address : addresses)
      packed = packed && reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
    if (packed)
      launch(data, std::integral_constant<int, kPacked<T>>());
    else
      launch(data, std::integral_constant<int, 1>());
  });
}

unsigned grid_of(std::int64_t blocks) { return static_cast<unsigned>(blocks); }

}  // namespace

const char* loss_max(Queue queue, const Logits& x, float* m) {
  return by_width(x.numbers, x.stride, {x.numbers.data}, [&]<class T, class W>(T* logits, W) {
    launch(max_of_row<T, W::value>, grid_of(x.rows), kThreads, queue, logits, x.columns, x.stride,
           m);
  });
}

const char* loss_sum(Queue queue, const Logits& x, const float* m, const std::int64_t* targets,
                     float* stat) {
  return by_width(x.numbers, x.stride, {x.numbers.data}, [&]<class T, class W>(T* logits, W) {
    launch(sum_of_row<T, W::value>, grid_of(x.rows), kThreads, queue, logits, x.columns, x.stride,
           x.first, m, targets, stat);
  });
}

const char* loss_gradient(Queue queue, const Logits& x, const float* m, const float* stat,
                          const std::int64_t* targets, float scale) {
  return by_width(x.numbers, x.stride, {x.numbers.data}, [&]<class T, class W>(T* logits, W) {
    launch(gradient_of_row<T, W::value>, grid_of(x.rows), kThreads, queue, logits, x.columns,
           x.stride, x.first, m, stat, targets, scale);
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
template <int N>
unsigned grid_of_columns(std::int64_t columns) {
  constexpr int kColumns = kLanes * N;
  return grid_of((columns + kColumns - 1) / kColumns);
}

}  // namespace

const char* norm(Queue queue, const NormRows& rows, const Numbers& y, double epsilon) {
  return by_width(rows.x, rows.features, {rows.x.data, rows.gain.data, rows.bias.data, y.data},
                  [&]<class T, class W>(T* x, W) {
                    launch(norm_of_row<T, W::value>, grid_of(rows.rows), kThreadsOfNorm, queue,
                           norm_of(rows, x), as(y, x), epsilon);
                  });
}

const char* norm_backward(Queue queue, const NormRows& rows, const Numbers& dy,
                          const Numbers& residual, const Numbers& dx) {
  return by_width(rows.x, rows.features,
                  {rows.x.data, rows.gain.data, dy.data, residual.data, dx.data},
                  [&]<class T, class W>(T* x, W) {
                    launch(norm_backward_of_row<T, W::value>, grid_of(rows.rows), kThreadsOfNorm,
                           queue, norm_of(rows, x), as(dy, x), as(residual, x), as(dx, x));
                  });
}

const char* norm_gradients(Queue queue, const NormRows& rows, const Numbers& dy, float* gain,
                           float* bias) {
  return by_width(rows.x, rows.features, {rows.x.data, dy.data}, [&]<class T, class W>(T* x, W) {
    launch(norm_gradients_of_columns<T, W::value>, grid_of_columns<W::value>(rows.features),
           dim3(kLanes, kThreadsOfColumn), queue, norm_of(rows, x), rows.rows, as(dy, x), gain,
           bias);
  });
}

const char* add_column_sums(Queue queue, const Numbers& x, std::int64_t rows, std::int64_t columns,
                            float* sums) {
  return by_width(x, columns, {x.data}, [&]<class T, class W>(T* numbers, W) {
    launch(sums_of_columns<T, W::value>, grid_of_columns<W::value>(columns),
           dim3(kLanes, kThreadsOfColumn), queue, numbers, rows, columns, sums);
  });
}

const char* add_with_bias(Queue queue, const Numbers& x, const Numbers& p, const Numbers& bias,
                          const Numbers& y, std::int64_t rows, std::int64_t columns) {
  return by_width(x, columns, {x.data, p.data, bias.data, y.data},
                  [&]<class T, class W>(T* numbers, W) {
                    launch(add_with_bias_of_row<T, W::value>, grid_of(rows), kThreadsOfNorm, queue,
                           numbers, as(p, numbers), as(bias, numbers), as(y, numbers), columns);
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
