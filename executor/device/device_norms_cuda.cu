#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

/// Sums of two numbers of each of the block's threads; every thread gets them. Calls in turn take
/// the two `turn`s in turn: the numbers of one may be read still when the next are written.
template <int Threads>
__device__ float2 sums_over_block(float2 x, int turn) {
  constexpr int kWarpsOfBlock = Threads / kWarp;
  __shared__ float2 of_warp[2][kWarpsOfBlock];
  for (int other = kWarp / 2; other > 0; other /= 2) {
    x.x += __shfl_xor_sync(0xffffffffU, x.x, other);
    x.y += __shfl_xor_sync(0xffffffffU, x.y, other);
  }
  if (threadIdx.x % kWarp == 0) of_warp[turn][threadIdx.x / kWarp] = x;
  __syncthreads();
  float2 all{0.0F, 0.0F};
  for (int w = 0; w < kWarpsOfBlock; ++w) {
    all.x += of_warp[turn][w].x;
    all.y += of_warp[turn][w].y;
  }
  return all;
}

/// The packs of a row that a thread has, the first of them in registers.
template <class T, int N, int Threads>
class RowPart {
 public:
  __device__ RowPart(const T* row, std::int64_t packs) : row_(row), packs_(packs) {
    for (int j = 0; j < kHeld; ++j)
      if (index(j) < packs_) held_[j] = pack_at<N>(row_, index(j));
  }
  template <class Visit>  // void(index in the row, pack), in order
  __device__ void each(Visit visit) const {
    for (int j = 0; j < kHeld; ++j)
      if (index(j) < packs_) visit(index(j), held_[j]);
    for (std::int64_t i = index(kHeld); i < packs_; i += Threads) visit(i, pack_at<N>(row_, i));
  }

 private:
  static constexpr int kHeld = Threads == kWarp ? 8 : 4;
  __device__ static std::int64_t index(int j) { return threadIdx.x + j * Threads; }
  const T* row_;
  std::int64_t packs_;
  Pack<T, N> held_[kHeld] = {};
};

// A warp has a row that it can keep in registers, eight of them a block; four have a wider one.
constexpr int kRowsOfBlock = 8, kThreadsOfWideRow = 128, kPacksOfWarp = kWarp * 8;

template <class T>
struct Addition {
  const T *x, *p, *bias;
  T* to;
};

/// A thread adds up what it reads itself of the row.
template <class T, int N, int Threads>
__device__ void add_row(const Addition<T>& sum, std::int64_t row, std::int64_t features) {
  const std::int64_t first = row * features;
  for (std::int64_t i = threadIdx.x; i < features / N; i += Threads) {
    const Pack<T, N> x = pack_at<N>(sum.x + first, i), p = pack_at<N>(sum.p + first, i);
    Pack<T, N> result;
    for (int k = 0; k < N; ++k) {
      const float both = wide(x.number[k]) + wide(p.number[k]);
      store(result.number[k], sum.bias == nullptr ? both : both + wide(sum.bias[i * N + k]));
    }
    put_pack(sum.to + first, i, result);
  }
}

template <class T, int N, int Threads, bool Adds>
__global__ void norm_of_rows(Norm<T> n, std::int64_t rows, T* y, double epsilon, Addition<T> sum) {
  using Numbers = Pack<T, N>;
  const std::int64_t row = blockIdx.x * static_cast<std::int64_t>(blockDim.y) + threadIdx.y;
  if (row >= rows) return;
  if constexpr (Adds) add_row<T, N, Threads>(sum, row, n.features);
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

/// Threads of the backward kernel on one multiprocessor: more, and their sums leave the registers.
constexpr int kThreadsOfProcessor = 1024;

/// What a thread of the backward kernel has of a row: J packs of each operand.
template <class T, int N, int Threads, int J>
struct Part {
  Pack<T, N> dy[J] = {}, x[J] = {}, residual[J] = {};
  float mean = 0, rstd = 0;

  __device__ static int index(int j) { return static_cast<int>(threadIdx.x) + j * Threads; }
  __device__ Part(const Norm<T>& n, const T* of_dy, const T* of_residual, std::int64_t row) {
    const std::int64_t first = row * n.features;
    for (int j = 0; j < J; ++j) {
      if (index(j) * N >= n.features) continue;
      dy[j] = pack_at<N>(of_dy + first, index(j));
      x[j] = pack_at<N>(n.x + first, index(j));
      if (of_residual != nullptr) residual[j] = pack_at<N>(of_residual + first, index(j));
    }
    mean = n.mean == nullptr ? 0.0F : n.mean[row];
    rstd = n.rstd[row];
  }
};

// dx = r (g - [layer] mean(g) - x' mean(g x')) with g = dy gain, x' = (x - mean) r; a block has
// every gridDim.y-th row. Its sums over them are those of dy x', of dy and of dx: the first Sums.
template <class T, int N, int Threads, int J, int Sums>
__global__ void __launch_bounds__(Threads, kThreadsOfProcessor / Threads)
    norm_backward_of_rows(Norm<T> n, std::int64_t rows, const T* dy, const T* residual, T* dx,
                          NormGradients to, Arrivals arrivals) {
  using Of = Part<T, N, Threads, J>;
  constexpr int kNumbers = J * N;
  Pack<T, N> gain[J] = {};
  for (int j = 0; j < J; ++j)
    if (Of::index(j) * N < n.features) gain[j] = pack_at<N>(n.gain, Of::index(j));
  float sum[Sums == 0 ? 1 : Sums * kNumbers] = {};
  const float share = 1.0F / static_cast<float>(n.features);
  int turn = 0;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const Of of(n, dy, residual, row);
    float2 sums{0.0F, 0.0F};  // beyond the row dy is 0
    for (int j = 0; j < J; ++j) {
      for (int k = 0; k < N; ++k) {
        const float d = wide(of.dy[j].number[k]), g = d * wide(gain[j].number[k]),
                    at = (wide(of.x[j].number[k]) - of.mean) * of.rstd;
        sums.x += g;
        sums.y += g * at;
        if constexpr (Sums > 0) sum[j * N + k] += d * at;
        if constexpr (Sums > 1) sum[kNumbers + j * N + k] += d;
      }
    }
    sums = sums_over_block<Threads>(sums, turn);
    turn ^= 1;
    const float mean = n.mean == nullptr ? 0.0F : sums.x * share, product = sums.y * share;
    for (int j = 0; j < J; ++j) {
      if (Of::index(j) * N >= n.features) continue;
      Pack<T, N> result;
      for (int k = 0; k < N; ++k) {
        const float g = wide(of.dy[j].number[k]) * wide(gain[j].number[k]),
                    at = (wide(of.x[j].number[k]) - of.mean) * of.rstd;
        store(result.number[k],
              of.rstd * (g - mean - at * product) + wide(of.residual[j].number[k]));
        if constexpr (Sums > 2) sum[2 * kNumbers + j * N + k] += wide(result.number[k]);
      }
      put_pack(dx + row * n.features, Of::index(j), result);
    }
  }
  if constexpr (Sums > 0) {
    over_blocks<Threads>(sum, arrivals, [&](int m, float all) {
      const int number = m % kNumbers;
      const std::int64_t c = Of::index(number / N) * N + number % N;
      float* const gradient = m < kNumbers ? to.gain : m < 2 * kNumbers ? to.bias : to.behind;
      if (c < n.features && gradient != nullptr) gradient[c] += all;
    });
  }
}

int sums_of(const NormGradients& to) {
  if (to.behind != nullptr) return 3;
  if (to.bias != nullptr) return 2;
  return to.gain != nullptr ? 1 : 0;
}

/// Threads that have a row: enough for a pack each, as far as that goes.
constexpr int kMostThreads = 1024, kMostFeatures = kMostThreads * 32;

int threads_of(std::int64_t packs) {
  int threads = 128;
  while (threads < packs && threads < kMostThreads) threads *= 2;
  return threads;
}

/// As many blocks as an H100 holds at once, whatever the device has: the order of sums is that of
/// the shape alone.
int blocks_of(std::int64_t rows, int threads) {
  return static_cast<int>(blocks_that_sum(rows, kProcessors * kThreadsOfProcessor / threads));
}

/// Calls `launch` with threads and packs of each as constants.
template <int N, class Launch>
void by_threads(std::int64_t features, Launch launch) {
  const std::int64_t packs = features / N;
  const auto most = [&]<int J>(std::integral_constant<int, J> each) {
    launch(std::integral_constant<int, kMostThreads>(), each);
  };
  const std::integral_constant<int, 1> one;
  if (packs > 4 * kMostThreads)
    return most(std::integral_constant<int, kMostFeatures / kMostThreads / N>());
  if (packs > 2 * kMostThreads) return most(std::integral_constant<int, 4>());
  if (packs > kMostThreads) return most(std::integral_constant<int, 2>());
  switch (threads_of(packs)) {
    case 128: return launch(std::integral_constant<int, 128>(), one);
    case 256: return launch(std::integral_constant<int, 256>(), one);
    case 512: return launch(std::integral_constant<int, 512>(), one);
    default: return most(one);
  }
}

template <bool Adds>
const char* run_norm(Queue queue, const NormRows& rows, const Addends& sum, const Numbers& y,
                     double epsilon) {
  return by_width(rows.x, rows.features,
                  {rows.x.data, rows.gain.data, rows.bias.data, y.data, sum.x.data, sum.p.data},
                  [&]<class T, class W>(T* x, W) {
                    const auto run = [&](auto kernel, int threads, int of_block) {
                      launch(kernel, grid_of((rows.rows + of_block - 1) / of_block),
                             dim3(threads, of_block), queue, norm_of(rows, x), rows.rows, as(y, x),
                             epsilon, Addition<T>{as(sum.x, x), as(sum.p, x), as(sum.bias, x), x});
                    };
                    if (rows.features / W::value <= kPacksOfWarp)
                      run(norm_of_rows<T, W::value, kWarp, Adds>, kWarp, kRowsOfBlock);
                    else
                      run(norm_of_rows<T, W::value, kThreadsOfWideRow, Adds>, kThreadsOfWideRow, 1);
                  });
}

}  // namespace

const char* norm(Queue queue, const NormRows& rows, const Numbers& y, double epsilon) {
  return run_norm<false>(queue, rows, {}, y, epsilon);
}

const char* norm_of_sum(Queue queue, const NormRows& rows, const Addends& sum, const Numbers& y,
                        double epsilon) {
  return run_norm<true>(queue, rows, sum, y, epsilon);
}

std::int64_t norm_partials(const NormRows& rows, const NormGradients& to) {
  return most_partials(rows.x.bf16, rows.features, [&]<int N>(std::integral_constant<int, N>) {
    std::int64_t numbers = 0;
    by_threads<N>(rows.features, [&]<class Threads, class J>(Threads, J) {
      const dim3 grid(1, grid_of(blocks_of(rows.rows, Threads::value)));
      numbers = partials_of(grid, sums_of(to) * N * J::value * Threads::value);
    });
    return numbers;
  });
}

const char* norm_backward(Queue queue, const NormRows& rows, const Numbers& dy,
                          const Numbers& residual, const Numbers& dx, const NormGradients& to,
                          const Arrivals& arrivals) {
  if (rows.features > kMostFeatures) return "a norm of more than 32,768 features";
  return by_width(
      rows.x, rows.features, {rows.x.data, rows.gain.data, dy.data, residual.data, dx.data},
      [&]<class T, class W>(T* x, W) {
        by_threads<W::value>(rows.features, [&]<class Threads, class J>(Threads, J) {
          const auto run = [&](auto kernel) {
            launch(kernel, dim3(1, grid_of(blocks_of(rows.rows, Threads::value))), Threads::value,
                   queue, norm_of(rows, x), rows.rows, as(dy, x), as(residual, x), as(dx, x), to,
                   arrivals);
          };
          switch (sums_of(to)) {
            case 0: return run(norm_backward_of_rows<T, W::value, Threads::value, J::value, 0>);
            case 1: return run(norm_backward_of_rows<T, W::value, Threads::value, J::value, 1>);
            case 2: return run(norm_backward_of_rows<T, W::value, Threads::value, J::value, 2>);
            default: return run(norm_backward_of_rows<T, W::value, Threads::value, J::value, 3>);
          }
        });
      });
}

}  // namespace orrery::executor::device
