#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

// A block sums columns: a lane has a pack of them, of every Threads-th row. Numbers of several rows
// are asked for before they are added: what is under way hides the memory.
constexpr int kRowsAtOnce = 8;

template <class T, int N, int Threads>
struct Sums {
  const T* numbers;
  std::int64_t columns, pack;
  float sum[N] = {};

  template <int Rows>
  __device__ void add(std::int64_t row) {
    Pack<T, N> x[Rows];
    for (int i = 0; i < Rows; ++i) x[i] = pack_at<N>(numbers + (row + i * Threads) * columns, pack);
    for (int i = 0; i < Rows; ++i)
      for (int k = 0; k < N; ++k) sum[k] += wide(x[i].number[k]);
  }
  __device__ void add_rows(std::int64_t rows) {
    std::int64_t row = threadIdx.y;
    for (; row + (kRowsAtOnce - 1) * Threads < rows; row += kRowsAtOnce * Threads)
      add<kRowsAtOnce>(row);
    for (; row < rows; row += Threads) add<1>(row);
  }
};

// Launch bounds leave the registers for all numbers that are under way.
template <class T, int N, int Lanes, int Threads>
__global__ void __launch_bounds__(Lanes* Threads, 1)
    sums_of_columns(const T* x, std::int64_t rows, std::int64_t columns, float* sums) {
  __shared__ float of_thread[Threads][Lanes * N + 1];
  const std::int64_t pack = blockIdx.x * Lanes + threadIdx.x;
  const bool inside = pack * N < columns;
  Sums<T, N, Threads> of{x, columns, pack};
  if (inside) of.add_rows(rows);
  float* own = of_thread[threadIdx.y] + threadIdx.x * N;
  for (int k = 0; k < N; ++k) own[k] = of.sum[k];
  for (int half = Threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) >= half) continue;
    const float* other = of_thread[threadIdx.y + half] + threadIdx.x * N;
    for (int k = 0; k < N; ++k) own[k] += other[k];
  }
  if (threadIdx.y != 0 || !inside) return;
  for (int k = 0; k < N; ++k) sums[pack * N + k] += own[k];
}

/// Wide lines of memory where that leaves blocks enough, many rows at once where it does not.
constexpr std::int64_t kWideColumns = 4096;

template <int Lanes, int Threads>
const char* add_sums(Queue queue, const Numbers& x, std::int64_t rows, std::int64_t columns,
                     float* sums) {
  return by_width(x, columns, {x.data}, [&]<class T, class W>(T* numbers, W) {
    constexpr int kColumns = Lanes * W::value;
    launch(sums_of_columns<T, W::value, Lanes, Threads>,
           grid_of((columns + kColumns - 1) / kColumns), dim3(Lanes, Threads), queue, numbers, rows,
           columns, sums);
  });
}

}  // namespace

const char* add_column_sums(Queue queue, const Numbers& x, std::int64_t rows, std::int64_t columns,
                            float* sums) {
  return columns < kWideColumns ? add_sums<4, 256>(queue, x, rows, columns, sums)
                                : add_sums<8, 128>(queue, x, rows, columns, sums);
}

}  // namespace orrery::executor::device
