#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

constexpr int kThreadsOfRow = 128;

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
      if (i * N + k < columns) sum += exponential(wide(pack.number[k]) - largest);
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
      float d = c < columns ? exponential(wide(pack.number[k]) - largest) * factor : 0.0F;
      if (c == target && c < columns) d -= scale;
      store(pack.number[k], d);
    }
    put_pack(x, i, pack);
  }
}

template <class T, int N>
__global__ void add_with_bias_of_row(const T* x, const T* p, const T* bias, T* y,
                                     std::int64_t columns) {
  const std::int64_t first = blockIdx.x * columns;
  for (std::int64_t i = threadIdx.x; i < columns / N; i += kThreadsOfRow) {
    const Pack<T, N> of_x = pack_at<N>(x + first, i), of_p = pack_at<N>(p + first, i),
                     of_bias = pack_at<N>(bias, i);
    Pack<T, N> result;
    for (int k = 0; k < N; ++k)
      store(result.number[k],
            wide(of_x.number[k]) + wide(of_p.number[k]) + wide(of_bias.number[k]));
    put_pack(y + first, i, result);
  }
}

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

const char* add_with_bias(Queue queue, const Numbers& x, const Numbers& p, const Numbers& bias,
                          const Numbers& y, std::int64_t rows, std::int64_t columns) {
  return by_width(x, columns, {x.data, p.data, bias.data, y.data},
                  [&]<class T, class W>(T* numbers, W) {
                    launch(add_with_bias_of_row<T, W::value>, grid_of(rows), kThreadsOfRow, queue,
                           numbers, as(p, numbers), as(bias, numbers), as(y, numbers), columns);
                  });
}

}  // namespace orrery::executor::device
