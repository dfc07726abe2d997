#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

/// Units of one launch; a block has kElementsOfBlock of one, or what is left of it.
struct Units {
  AdamWUnit unit[kMostUnits];
  int blocks_until[kMostUnits];  // of a unit and those before it
};
constexpr std::int64_t kElementsOfBlock = 1 << 13;

template <int N>
__global__ void adamw_of_units(const __grid_constant__ Units units, AdamWStep c) {
  const int block = static_cast<int>(blockIdx.x);
  int number = 0;
  while (block >= units.blocks_until[number]) ++number;
  const AdamWUnit& unit = units.unit[number];
  const DecayRanges& ranges = unit.ranges;
  auto* const rounded = static_cast<__nv_bfloat16*>(unit.rounded);
  const std::int64_t first =
      (block - (number == 0 ? 0 : units.blocks_until[number - 1])) * kElementsOfBlock;
  const std::int64_t end =
      first + kElementsOfBlock < unit.elements ? first + kElementsOfBlock : unit.elements;
  for (std::int64_t i = first / N + threadIdx.x; i * N < end; i += kThreads) {
    Pack<float, N> of_p = pack_at<N>(unit.p, i), of_m = pack_at<N>(unit.m, i),
                   of_v = pack_at<N>(unit.v, i);
    const Pack<float, N> of_g = pack_at<N>(unit.g, i);
    Pack<__nv_bfloat16, N> of_rounded;
    int range = 0;
    for (int k = 0; k < N; ++k) {
      while (range < ranges.count && i * N + k >= ranges.end[range]) ++range;
      const float decay = range < ranges.count && ranges.decays[range] ? c.decay : 1.0F;
      const float d = of_g.number[k];
      const float first_moment = of_m.number[k] + c.beta1 * (d - of_m.number[k]);
      const float second = of_v.number[k] + c.beta2 * (d * d - of_v.number[k]);
      const float moved = decay * of_p.number[k] -
                          c.step * (first_moment / (sqrtf(second) * c.root_correction + c.epsilon));
      of_m.number[k] = first_moment;
      of_v.number[k] = second;
      of_p.number[k] = moved;
      store(of_rounded.number[k], moved);
    }
    put_pack(unit.m, i, of_m);
    put_pack(unit.v, i, of_v);
    put_pack(unit.p, i, of_p);
    if (rounded != nullptr) put_pack(rounded, i, of_rounded);
  }
}

/// act(x) = x sigma with sigma of a(x), and its derivative sigma + x sigma (1 - sigma) a', as
/// segments_activation.cc states them, in fused multiply-adds.
struct Act {
  float value, slope;
  __device__ Act(float x, bool gelu) {
    constexpr float kSlope = 1.5957691216057308F, kCubic = 0.044715F;  // 2 sqrt(2/pi)
    const float square = x * x;
    const float a = gelu ? x * __fmaf_rn(square, kSlope * kCubic, kSlope) : x;
    const float of_a = gelu ? __fmaf_rn(square, 3.0F * kSlope * kCubic, kSlope) : 1.0F;
    constexpr float kLeast = -80.0F;  // e stays finite, and sigma nothing
    const float e = exponential(-fmaxf(a, kLeast)), sigma = __fdividef(1.0F, 1.0F + e);
    value = x * sigma;
    slope = __fmaf_rn(value * (e * sigma), of_a, sigma);  // 1 - sigma without what cancels
  }
};

template <class T, int N>
__device__ Pack<T, N> pack_or_ones(const T* row, std::int64_t pack) {
  if (row != nullptr) return pack_at<N>(row, pack);
  Pack<T, N> ones;
  for (int k = 0; k < N; ++k) store(ones.number[k], 1.0F);
  return ones;
}
template <class T>
__device__ T* row_of(T* rows, std::int64_t stride) {
  return rows == nullptr ? nullptr : rows + blockIdx.x * stride;
}

// A block has a row's packs [blockIdx.y kThreads, + kThreads). Without a gate up and d_up are null.
template <class T, int N>
__global__ void activation_of_row(const T* gate, const T* up, std::int64_t stride, bool gelu, T* g,
                                  std::int64_t columns) {
  const std::int64_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i * N >= columns) return;
  const Pack<T, N> x = pack_at<N>(row_of(gate, stride), i),
                   u = pack_or_ones<T, N>(row_of(up, stride), i);
  Pack<T, N> result;
  for (int k = 0; k < N; ++k)
    store(result.number[k], Act(wide(x.number[k]), gelu).value * wide(u.number[k]));
  put_pack(row_of(g, columns), i, result);
}

/// What backward gives of a pack.
template <class T, int N>
struct Gradients {
  Pack<T, N> of_gate, of_up;
  __device__ Gradients(const Pack<T, N>& x, const Pack<T, N>& u, const Pack<T, N>& d, bool gelu) {
    for (int k = 0; k < N; ++k) {
      const Act act(wide(x.number[k]), gelu);
      const float of_d = wide(d.number[k]);
      store(of_gate.number[k], of_d * wide(u.number[k]) * act.slope);
      store(of_up.number[k], of_d * act.value);
    }
  }
};

template <class T, int N>
__global__ void activation_backward_of_row(const T* gate, const T* up, std::int64_t stride,
                                           bool gelu, const T* dg, T* d_gate, T* d_up,
                                           std::int64_t columns) {
  const std::int64_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i * N >= columns) return;
  const Pack<T, N> x = pack_at<N>(row_of(gate, stride), i),
                   u = pack_or_ones<T, N>(row_of(up, stride), i),
                   d = pack_at<N>(row_of(dg, columns), i);
  const Gradients<T, N> to(x, u, d, gelu);
  put_pack(row_of(d_gate, stride), i, to.of_gate);
  if (d_up != nullptr) put_pack(row_of(d_up, stride), i, to.of_up);
}

// The same of every gridDim.y-th row, with the columns' sums.
template <class T, int N>
__global__ void activation_backward_of_rows(const T* gate, const T* up, std::int64_t stride,
                                            bool gelu, const T* dg, T* d_gate, T* d_up,
                                            std::int64_t columns, std::int64_t rows, float* sums,
                                            Arrivals arrivals) {
  const std::int64_t i = blockIdx.x * kThreads + threadIdx.x;
  const bool inside = i * N < columns;
  float sum[2 * N] = {};
  for (std::int64_t row = inside ? blockIdx.y : rows; row < rows; row += gridDim.y) {
    const auto at = [&](auto* numbers) {
      return numbers == nullptr ? nullptr : numbers + row * stride;
    };
    const Pack<T, N> x = pack_at<N>(at(gate), i), u = pack_or_ones<T, N>(at(up), i),
                     d = pack_at<N>(dg + row * columns, i);
    const Gradients<T, N> to(x, u, d, gelu);
    for (int k = 0; k < N; ++k) {
      sum[k] += wide(to.of_gate.number[k]);
      sum[N + k] += wide(to.of_up.number[k]);
    }
    put_pack(at(d_gate), i, to.of_gate);
    if (d_up != nullptr) put_pack(at(d_up), i, to.of_up);
  }
  over_blocks<kThreads>(sum, arrivals, [&](int m, float all) {
    if (!inside || (m >= N && d_up == nullptr)) return;
    sums[(m < N ? 0 : columns) + i * N + m % N] += all;
  });
}

}  // namespace

const char* adamw(Queue queue, const AdamWUnit* units, int count, const AdamWStep& step) {
  Units all{};
  std::uintptr_t addresses = 0;  // aligned as the least aligned of all
  std::int64_t elements = 0;
  int blocks = 0;
  for (int i = 0; i < kMostUnits; ++i) {
    if (i < count) {
      const AdamWUnit& unit = all.unit[i] = units[i];
      blocks += static_cast<int>((unit.elements + kElementsOfBlock - 1) / kElementsOfBlock);
      elements |= unit.elements;
      for (const void* address :
           {static_cast<const void*>(unit.p), static_cast<const void*>(unit.g),
            static_cast<const void*>(unit.m), static_cast<const void*>(unit.v),
            static_cast<const void*>(unit.rounded)})
        addresses |= reinterpret_cast<std::uintptr_t>(address);
    }
    all.blocks_until[i] = blocks;
  }
  if (blocks == 0) return nullptr;
  return by_width({}, elements, {reinterpret_cast<const void*>(addresses)},
                  [&]<class T, class W>(T*, W) {
                    launch(adamw_of_units<W::value>, grid_of(blocks), kThreads, queue, all, step);
                  });
}

namespace {

template <int N>
dim3 grid_of_rows(const Activated& x) {
  return {grid_of(x.rows), grid_of((x.columns / N + kThreads - 1) / kThreads)};
}

/// Blocks of rows that sum columns: a few of each multiprocessor.
constexpr std::int64_t kBlocksThatSum = 4;

template <int N>
dim3 grid_of_sums(const Activated& x) {
  const std::int64_t wide = (x.columns / N + kThreads - 1) / kThreads,
                     high = (kBlocksThatSum * kProcessors + wide - 1) / wide;
  return {grid_of(wide), blocks_that_sum(x.rows, high)};
}

}  // namespace

const char* activation(Queue queue, const Activated& x, const Numbers& g) {
  return by_width(x.gate, x.columns | x.stride, {x.gate.data, x.up.data, g.data},
                  [&]<class T, class W>(T* gate, W) {
                    launch(activation_of_row<T, W::value>, grid_of_rows<W::value>(x), kThreads,
                           queue, gate, as(x.up, gate), x.stride, x.gelu, as(g, gate), x.columns);
                  });
}

const char* activation_backward(Queue queue, const Activated& x, const Numbers& dg,
                                const Numbers& d_gate, const Numbers& d_up) {
  return by_width(x.gate, x.columns | x.stride,
                  {x.gate.data, x.up.data, dg.data, d_gate.data, d_up.data},
                  [&]<class T, class W>(T* gate, W) {
                    launch(activation_backward_of_row<T, W::value>, grid_of_rows<W::value>(x),
                           kThreads, queue, gate, as(x.up, gate), x.stride, x.gelu, as(dg, gate),
                           as(d_gate, gate), as(d_up, gate), x.columns);
                  });
}

const char* activation_backward_with_sums(Queue queue, const Activated& x, const Numbers& dg,
                                          const Numbers& d_gate, const Numbers& d_up, float* sums,
                                          const Arrivals& arrivals) {
  if (!may_meet(grid_of_sums<1>(x))) return "too many columns to sum";
  return by_width(x.gate, x.columns | x.stride,
                  {x.gate.data, x.up.data, dg.data, d_gate.data, d_up.data},
                  [&]<class T, class W>(T* gate, W) {
                    launch(activation_backward_of_rows<T, W::value>, grid_of_sums<W::value>(x),
                           kThreads, queue, gate, as(x.up, gate), x.stride, x.gelu, as(dg, gate),
                           as(d_gate, gate), as(d_up, gate), x.columns, x.rows, sums, arrivals);
                  });
}

std::int64_t activation_partials(const Activated& x) {
  return most_partials(x.gate.bf16, x.columns, [&]<int N>(std::integral_constant<int, N>) {
    return partials_of(grid_of_sums<N>(x), 2 * N * kThreads);
  });
}

}  // namespace orrery::executor::device
