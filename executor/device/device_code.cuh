#pragma once
/// What the files of kernels for devices share: accesses, sums over a block, launches by type.
///
/// Without nvcc tests/support/device_on_cpu.h stands for the toolkit, so that a test without a
/// device runs the same kernels.
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

#include <initializer_list>
#include <type_traits>

#include "executor/device/device_kernels.h"

namespace orrery::executor::device {
namespace {

[[maybe_unused]] constexpr int kThreads = 256, kWarp = 32;
#ifdef __CUDACC__
constexpr bool kOnDevice = true;
#else
constexpr bool kOnDevice = false;  // few blocks of many rows, that meet in groups
#endif
[[maybe_unused]] constexpr int kProcessors = kOnDevice ? 132 : 1;  // of an H100

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

/// e^x by the device's power of two: its error is that of x log2(e), small where e^x is not.
__device__ float exponential(float x) {
  constexpr float kLog2E = 1.4426950408889634F;
  return exp2f(x * kLog2E);
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
  for (int other = kWarp / 2; other > 0; other /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  if constexpr (kWarps > 1) {
    __shared__ float of_warp[kWarps];
    __syncthreads();  // the numbers of the call before are read
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = threadIdx.x % kWarp < kWarps ? of_warp[threadIdx.x % kWarp] : Op::kNothing;
    for (int other = kWarp / 2; other > 0; other /= 2)
      x = op(x, __shfl_xor_sync(0xffffffffU, x, other));
  }
  return x;
}

/// Whether the block is the last of `of` to come here, whose writes it may then read; `arrived` is
/// 0 before and after.
__device__ bool is_last(unsigned* arrived, unsigned of) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1U) + 1 == of;
    if (last) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

/// Blocks of rows that sum columns: `most`, unless that leaves few rows to each, since every block
/// costs room for its sums.
unsigned blocks_that_sum(std::int64_t rows, std::int64_t most) {
  constexpr std::int64_t kLeastRows = kOnDevice ? 16 : 1;
  const std::int64_t blocks = (rows + kLeastRows - 1) / kLeastRows;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Adds up M sums of each thread over the blocks of one blockIdx.x, in an order of the shape alone:
/// the last block of a group sums those of its group, the last of the groups theirs, which `add`
/// gets of each thread: void(number 0 .. M - 1, sum). Room: M Threads numbers a block, and
/// Arrivals::kMost counts, of a blockIdx.x as many as groups and one.
constexpr int kBlocksOfGroup = kOnDevice ? 24 : 2;
template <int Threads, int M, class Add>
__device__ void over_blocks(float (&sum)[M], const Arrivals& to, Add add) {
  const unsigned blocks = gridDim.y, groups = (blocks + kBlocksOfGroup - 1) / kBlocksOfGroup,
                 group = blockIdx.y / kBlocksOfGroup, first = group * kBlocksOfGroup,
                 end = first + kBlocksOfGroup < blocks ? first + kBlocksOfGroup : blocks;
  const auto row = [&](unsigned block) {
    const std::int64_t number = static_cast<std::int64_t>(block) * gridDim.x + blockIdx.x;
    return to.partial + number * (M * Threads) + threadIdx.x;
  };
  const auto put = [&](unsigned block) {
    for (int m = 0; m < M; ++m) row(block)[m * Threads] = sum[m];
  };
  const auto collect = [&](unsigned from, unsigned until, unsigned step) {
    for (int m = 0; m < M; ++m) sum[m] = 0;
    for (unsigned block = from; block < until; block += step)
      for (int m = 0; m < M; ++m) sum[m] += __ldcg(row(block) + m * Threads);
  };
  unsigned* arrived = to.arrived + blockIdx.x * (groups + 1);
  put(blockIdx.y);
  if (!is_last(arrived + group, end - first)) return;
  collect(first, end, 1);
  put(first);
  if (!is_last(arrived + groups, groups)) return;
  collect(0, blocks, kBlocksOfGroup);
  for (int m = 0; m < M; ++m) add(m, sum[m]);
}
/// Whether there are counts enough.
bool may_meet(const dim3& grid) {
  return grid.x * ((grid.y + kBlocksOfGroup - 1) / kBlocksOfGroup + 1) <= Arrivals::kMost;
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

/// Numbers for the sums of so many of every block.
std::int64_t partials_of(const dim3& grid, std::int64_t numbers) {
  return numbers * grid.x * grid.y;
}
/// The most that `count`, of an integral constant, says of the widths that packs of `features` may
/// have: addresses may not allow the widest.
template <class Count>
std::int64_t most_partials(bool bf16, std::int64_t features, Count count) {
  const std::int64_t single = count(std::integral_constant<int, 1>());
  std::int64_t packed = 0;
  if (bf16 && features % kPacked<__nv_bfloat16> == 0)
    packed = count(std::integral_constant<int, kPacked<__nv_bfloat16>>());
  if (!bf16 && features % kPacked<float> == 0)
    packed = count(std::integral_constant<int, kPacked<float>>());
  return single > packed ? single : packed;
}

unsigned grid_of(std::int64_t blocks) { return static_cast<unsigned>(blocks); }

/// The numbers as what `like` points to.
template <class T>
T* as(const Numbers& numbers, const T*) {
  return static_cast<T*>(numbers.data);
}

/// What a norm's kernels read of their rows.
template <class T>
struct Norm {
  const T *x, *gain, *bias;
  float *mean, *rstd;
  std::int64_t features;
};

template <class T>
Norm<T> norm_of(const NormRows& r, const T*) {
  return {static_cast<const T*>(r.x.data),
          static_cast<const T*>(r.gain.data),
          static_cast<const T*>(r.bias.data),
          r.mean,
          r.rstd,
          r.features};
}

}  // namespace
}  // namespace orrery::executor::device
