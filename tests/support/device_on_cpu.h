#pragma once
/// The part of CUDA that the kernels in executor/device/device_*_cuda.cu use, on the CPU: the
/// blocks of a launch in turn, each thread of one a context of its own that gives way where it
/// waits, so that indices, barriers and shuffles of its kernels are tested where there is no
/// device. A warp runs as far as it can before the next, of every other block from the last to the
/// first: what is read before it was written, or written before it was read, is wrong in one of
/// the orders. Blocks are whole warps. Include it, then a .cu.
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
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
inline dim3 threadIdx, blockIdx, gridDim, blockDim;

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

struct Barrier {
  unsigned threads = 0, arrived = 0, passed = 0;
};
struct Warp {
  Barrier barrier{32};
  float value[32] = {};
};
struct Thread {
  static constexpr std::size_t kStack = 64 * 1024;
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool over = false;
};
inline Barrier block_barrier;
inline std::vector<Warp> warps;
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline std::function<void()> kernel_of_thread;
inline std::size_t running = 0;     // thread
inline std::uint64_t happened = 0;  // arrivals and ends
inline bool any = false;
inline unsigned lane = 0;
inline Warp* warp = nullptr;

inline void wait(Barrier& at) {
  ++happened;
  if (++at.arrived == at.threads) {
    at.arrived = 0;
    ++at.passed;
    return;
  }
  for (const unsigned turn = at.passed; at.passed == turn;)
    swapcontext(&threads[running].context, &scheduler);
}

inline void run_thread() {
  kernel_of_thread();
  threads[running].over = true;
  ++happened;
}

/// Until it waits or ends.
inline void resume(std::size_t thread) {
  running = thread;
  lane = static_cast<unsigned>(thread % 32);
  warp = &warps[thread / 32];
  threadIdx =
      dim3(static_cast<unsigned>(thread % blockDim.x), static_cast<unsigned>(thread / blockDim.x));
  swapcontext(&scheduler, &threads[thread].context);
}

inline void run_block(bool from_the_last) {
  for (Thread& thread : threads) {
    thread.over = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = Thread::kStack;
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, run_thread, 0);
  }
  std::size_t left = threads.size();
  const auto run_warp = [&](std::size_t of) {
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t thread = 32 * of + (from_the_last ? 31 - i : i);
      if (threads[thread].over) continue;
      resume(thread);
      if (threads[thread].over) --left;
    }
  };
  while (left > 0) {
    const std::uint64_t before = happened;
    for (std::size_t i = 0; i < warps.size(); ++i) {
      for (std::uint64_t last = happened + 1; last != happened;) {
        last = happened;
        run_warp(from_the_last ? warps.size() - 1 - i : i);
      }
    }
    if (happened != before) continue;
    std::fputs("some threads of a block wait where others never come\n", stderr);
    std::abort();
  }
}

}  // namespace device_on_cpu

inline void __syncthreads() { device_on_cpu::wait(device_on_cpu::block_barrier); }
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
  wait(warp->barrier);
  unsigned found = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (warp->value[i] != 0) found |= 1U << i;
  wait(warp->barrier);
  return found;
}
inline float __shfl_xor_sync(unsigned, float x, int other) {
  using namespace device_on_cpu;
  warp->value[lane] = x;
  wait(warp->barrier);
  const float found = warp->value[lane ^ static_cast<unsigned>(other)];
  wait(warp->barrier);
  return found;
}

template <class Kernel, class... Arguments>
void launch(Kernel* kernel, dim3 grid, dim3 block, void*, Arguments... arguments) {
  using namespace device_on_cpu;
  gridDim = grid;
  blockDim = block;
  const unsigned size = block.x * block.y;
  block_barrier = {size};
  warps.assign(size / 32, {});
  threads.resize(size);
  kernel_of_thread = [&] { kernel(arguments...); };
  for (unsigned b = 0; b < grid.x * grid.y; ++b) {
    blockIdx = dim3(b % grid.x, b / grid.x);
    run_block(b % 2 == 1);
  }
}
