#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

/// A warp has a row whose packs it can keep in registers, four have a wider one.
constexpr int kHeldOfWarp = 8, kHeldOfWarps = 4, kThreadsOfRow = 128;

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

/// The packs of a row that a thread has, the first of them in registers.
template <class T, int N, int Threads>
class RowPart {
 public:
  /// Null: a row of zeros.
  __device__ RowPart(const T* row, std::int64_t packs) : row_(row), packs_(packs) {
    for (int j = 0; j < kHeld; ++j)
      if (index(j) < packs_ && row != nullptr) held_[j] = pack_at<N>(row_, index(j));
  }
  /// visit(index in the row, pack, the others' packs there ..) in order.
  template <class Visit, class... Others>
  __device__ void each(Visit visit, const Others&... others) const {
    for (int j = 0; j < kHeld; ++j)
      if (index(j) < packs_) visit(index(j), held_[j], others.held_[j]...);
    for (std::int64_t i = index(kHeld); i < packs_; i += Threads)
      visit(i, read(i), others.read(i)...);
  }

 private:
  template <class, int, int>
  friend class RowPart;
  static constexpr int kHeld = Threads == kWarp ? kHeldOfWarp : kHeldOfWarps;
  __device__ static std::int64_t index(int j) { return threadIdx.x + j * Threads; }
  __device__ Pack<T, N> read(std::int64_t i) const {
    return row_ == nullptr ? Pack<T, N>{} : pack_at<N>(row_, i);
  }
  const T* row_;
  std::int64_t packs_;
  Pack<T, N> held_[kHeld] = {};
};

template <class T, int N, int Threads>
__global__ void norm_of_row(Norm<T> n, T* y, double epsilon) {
  using Numbers = Pack<T, N>;
  const std::int64_t row = blockIdx.x;
  const RowPart<T, N, Threads> part(n.x + row * n.features, n.features / N);
  const float share = 1.0F / static_cast<float>(n.features);
  float mean = 0;
  if (n.mean != nullptr) {
    part.each([&](std::int64_t, const Numbers& x) {
      for (int k = 0; k < N; ++k) mean += wide(x.number[k]);
    });
    mean = over_block<Threads>(mean, Sum()) * share;
  }
  float squares = 0;
  part.each([&](std::int64_t, const Numbers& x) {
    for (int k = 0; k < N; ++k) {
      const float distance = wide(x.number[k]) - mean;
      squares += distance * distance;
    }
  });
  squares = over_block<Threads>(squares, Sum());
  const float rstd = rsqrtf(squares * share + static_cast<float>(epsilon));
  part.each([&](std::int64_t i, const Numbers& x) {
    const Numbers gain = pack_at<N>(n.gain, i);
    Numbers bias{}, result;
    if (n.bias != nullptr) bias = pack_at<N>(n.bias, i);
    for (int k = 0; k < N; ++k) {
      const float scaled = (wide(x.number[k]) - mean) * rstd * wide(gain.number[k]);
      store(result.number[k], n.bias == nullptr ? scaled : scaled + wide(bias.number[k]));
    }
    put_pack(y + row * n.features, i, result);
  });
  if (threadIdx.x != 0) return;
  n.rstd[row] = rstd;
  if (n.mean != nullptr) n.mean[row] = mean;
}

// dx = r (g - [layer] mean(g) - x' mean(g x')) with g = dy gain, x' = (x - mean) r.
template <class T, int N, int Threads>
__global__ void norm_backward_of_row(Norm<T> n, const T* dy, const T* residual, T* dx) {
  using Numbers = Pack<T, N>;
  const std::int64_t row = blockIdx.x, first = row * n.features, packs = n.features / N;
  const RowPart<T, N, Threads> of_dy(dy + first, packs), of_x(n.x + first, packs),
      beside(residual == nullptr ? nullptr : residual + first, packs);
  const float centre = n.mean == nullptr ? 0.0F : n.mean[row], rstd = n.rstd[row];
  float sum = 0, product = 0;
  of_dy.each(
      [&](std::int64_t i, const Numbers& d, const Numbers& x) {
        const Numbers gain = pack_at<N>(n.gain, i);
        for (int k = 0; k < N; ++k) {
          const float g = wide(d.number[k]) * wide(gain.number[k]);
          sum += g;
          product += g * ((wide(x.number[k]) - centre) * rstd);
        }
      },
      of_x);
  const float share = 1.0F / static_cast<float>(n.features);
  sum = n.mean == nullptr ? 0.0F : over_block<Threads>(sum, Sum()) * share;
  product = over_block<Threads>(product, Sum()) * share;
  of_dy.each(
      [&](std::int64_t i, const Numbers& d, const Numbers& x, const Numbers& other) {
        const Numbers gain = pack_at<N>(n.gain, i);
        Numbers result;
        for (int k = 0; k < N; ++k) {
          const float g = wide(d.number[k]) * wide(gain.number[k]);
          const float of_norm = rstd * (g - sum - (wide(x.number[k]) - centre) * rstd * product);
          store(result.number[k], of_norm + wide(other.number[k]));
        }
        put_pack(dx + first, i, result);
      },
      of_x, beside);
}

/// Calls `launch` with the threads that take a row, as a constant.
template <int N, class Launch>
void by_row(std::int64_t features, Launch launch) {
  if (features / N <= kWarp * kHeldOfWarp)
    launch(std::integral_constant<int, kWarp>());
  else
    launch(std::integral_constant<int, kThreadsOfRow>());
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

const char* norm(Queue queue, const NormRows& rows, const Numbers& y, double epsilon) {
  return by_width(rows.x, rows.features, {rows.x.data, rows.gain.data, rows.bias.data, y.data},
                  [&]<class T, class W>(T* x, W) {
                    by_row<W::value>(rows.features, [&]<class Threads>(Threads) {
                      launch(norm_of_row<T, W::value, Threads::value>, grid_of(rows.rows),
                             Threads::value, queue, norm_of(rows, x), as(y, x), epsilon);
                    });
                  });
}

const char* norm_backward(Queue queue, const NormRows& rows, const Numbers& dy,
                          const Numbers& residual, const Numbers& dx) {
  return by_width(
      rows.x, rows.features, {rows.x.data, rows.gain.data, dy.data, residual.data, dx.data},
      [&]<class T, class W>(T* x, W) {
        by_row<W::value>(rows.features, [&]<class Threads>(Threads) {
          launch(norm_backward_of_row<T, W::value, Threads::value>, grid_of(rows.rows),
                 Threads::value, queue, norm_of(rows, x), as(dy, x), as(residual, x), as(dx, x));
        });
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
