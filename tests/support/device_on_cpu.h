#pragma once
/// The part of CUDA that the kernels in executor/device/device_*_cuda.cu use, on threads of the
/// CPU: the blocks of a launch in turn, each with a thread for every thread, so that indices,
/// barriers and shuffles of its kernels are tested where there is no device. Include it, then a
/// .cu.
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

// Names of CUDA.
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1) : x(of_x), y(of_y), z(of_z) {}
};
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 gridDim, blockDim;

using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "a device on the CPU has no faults"; }

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16U);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U)};
}
struct float2 {
  float x, y;
};
// Blocks run in turn, one thread of each counts.
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* to, unsigned x) { return std::exchange(*to, *to + x); }
inline float __ldcg(const float* from) { return *from; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }

namespace device_on_cpu {

struct Warp {
  std::barrier<> barrier{32};
  float value[32] = {};
};
inline std::unique_ptr<std::barrier<>> block_barrier;
inline std::vector<std::unique_ptr<Warp>> warps;
inline std::atomic<bool> any = false;
inline thread_local unsigned lane = 0;
inline thread_local Warp* warp = nullptr;

}  // namespace device_on_cpu

inline void __syncthreads() { device_on_cpu::block_barrier->arrive_and_wait(); }
inline int __syncthreads_or(int predicate) {
  using namespace device_on_cpu;
  if (predicate != 0) any = true;
  __syncthreads();
  const bool found = any;
  __syncthreads();
  any = false;
  __syncthreads();
  return found ? 1 : 0;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline unsigned __ballot_sync(unsigned, int predicate) {
  using namespace device_on_cpu;
  warp->value[lane] = predicate != 0 ? 1.0F : 0.0F;
  warp->barrier.arrive_and_wait();
  unsigned found = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (warp->value[i] != 0) found |= 1U << i;
  warp->barrier.arrive_and_wait();
  return found;
}
inline float __shfl_xor_sync(unsigned, float x, int other) {
  using namespace device_on_cpu;
  warp->value[lane] = x;
  warp->barrier.arrive_and_wait();
  const float found = warp->value[lane ^ static_cast<unsigned>(other)];
  warp->barrier.arrive_and_wait();
  return found;
}

template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 grid, dim3 block, void*, Arguments... arguments) {
  using namespace device_on_cpu;
  const unsigned threads = block.x * block.y;
  gridDim = grid;
  blockDim = block;
  block_barrier = std::make_unique<std::barrier<>>(threads);
  warps.clear();
  for (unsigned w = 0; w < threads / 32; ++w) warps.push_back(std::make_unique<Warp>());
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      lane = i % 32;
      warp = warps[i / 32].get();
      threadIdx = dim3(i % block.x, i / block.x);
      for (unsigned b = 0; b < grid.x * grid.y; ++b) {
        blockIdx = dim3(b % grid.x, b / grid.x);
        kernel(arguments...);
        block_barrier->arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}
