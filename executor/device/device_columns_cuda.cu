#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

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

template <int N>
unsigned grid_of_columns(std::int64_t columns) {
  constexpr int kColumns = kLanes * N;
  return grid_of((columns + kColumns - 1) / kColumns);
}

}  // namespace

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

}  // namespace orrery::executor::device
