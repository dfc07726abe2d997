#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

// One block a token of a sequence; threads take packs of pairs of all its heads in turn.
template <class T, int N>
__global__ void rotate_token(T* to, const T* from, Heads to_place, Heads from_place,
                             const float* cos, const float* sin, std::int64_t heads,
                             std::int64_t half, float sign) {
  const std::int64_t token = blockIdx.x, sequence = blockIdx.y, packs = half / N;
  T* y = to + sequence * to_place.batch_stride + token * to_place.token_stride;
  const T* x = from + sequence * from_place.batch_stride + token * from_place.token_stride;
  for (std::int64_t i = threadIdx.x; i < heads * packs; i += kThreads) {
    const std::int64_t head = i / packs, pack = i % packs;
    const Pack<float, N> c = pack_at<N>(cos + token * half, pack),
                         s = pack_at<N>(sin + token * half, pack);
    const T* x1 = x + head * from_place.head_stride;
    T* y1 = y + head * to_place.head_stride;
    Pack<T, N> a = pack_at<N>(x1, pack), b = pack_at<N>(x1 + half, pack);
    for (int k = 0; k < N; ++k) {
      const float of_a = wide(a.number[k]), of_b = wide(b.number[k]);
      store(a.number[k], of_a * c.number[k] - of_b * (sign * s.number[k]));
      store(b.number[k], of_b * c.number[k] + of_a * (sign * s.number[k]));
    }
    put_pack(y1, pack, a);
    put_pack(y1 + half, pack, b);
  }
}

constexpr int kThreadsOfPairs = 128;
/// Blocks of tokens that pack heads: as many as a multiprocessor holds at once.
constexpr std::int64_t kBlocksThatPack = 8;

// A thread has a pair of packs of a head, i and half a head behind it, of every gridDim.y-th token,
// and sums what it writes.
template <class T, int N, bool Sums>
__global__ void pack_pairs(HeadsToPack from, T* to, float* sums, Arrivals arrivals) {
  const std::int64_t half = from.head_dim / 2, packs = half / N,
                     all_heads = from.heads + 2 * from.kv_heads,
                     item = blockIdx.x * kThreadsOfPairs + threadIdx.x, number = item / packs,
                     pack = item % packs, column = number * from.head_dim + pack * N;
  const bool inside = number < all_heads;
  const bool of_q = number < from.heads, of_k = !of_q && number < from.heads + from.kv_heads;
  const Heads& heads = of_q ? from.q : of_k ? from.k : from.v;
  const std::int64_t head = of_q ? number : number - from.heads - (of_k ? 0 : from.kv_heads);
  const T* const x =
      static_cast<const T*>(heads.numbers.data) + head * heads.head_stride + pack * N;
  const bool turns = from.cos != nullptr && (of_q || of_k);
  float sum[2 * N] = {};
  const std::int64_t rows = from.batch * from.tokens;
  for (std::int64_t row = inside ? blockIdx.y : rows; row < rows; row += gridDim.y) {
    const std::int64_t sequence = row / from.tokens, token = row % from.tokens;
    const T* const at = x + sequence * heads.batch_stride + token * heads.token_stride;
    Pack<T, N> a = pack_at<N>(at, 0), b = pack_at<N>(at + half, 0);
    if (turns) {
      const Pack<float, N> c = pack_at<N>(from.cos + token * half, pack),
                           s = pack_at<N>(from.sin + token * half, pack);
      for (int k = 0; k < N; ++k) {
        const float of_a = wide(a.number[k]), of_b = wide(b.number[k]);
        store(a.number[k], of_a * c.number[k] + of_b * s.number[k]);
        store(b.number[k], of_b * c.number[k] - of_a * s.number[k]);
      }
    }
    T* const y = to + row * all_heads * from.head_dim + column;
    put_pack(y, 0, a);
    put_pack(y + half, 0, b);
    if constexpr (Sums) {
      for (int k = 0; k < N; ++k) {
        sum[k] += wide(a.number[k]);
        sum[N + k] += wide(b.number[k]);
      }
    }
  }
  if constexpr (Sums) {
    over_blocks<kThreadsOfPairs>(sum, arrivals, [&](int m, float all) {
      if (inside) sums[column + (m < N ? 0 : half) + m % N] += all;
    });
  }
}

template <int N>
dim3 grid_of_pairs(const HeadsToPack& from) {
  const std::int64_t pairs = (from.heads + 2 * from.kv_heads) * (from.head_dim / 2 / N),
                     wide = (pairs + kThreadsOfPairs - 1) / kThreadsOfPairs,
                     high = (kBlocksThatPack * kProcessors + wide - 1) / wide;
  return {grid_of(wide), blocks_that_sum(from.batch * from.tokens, high)};
}

}  // namespace

const char* rotate(Queue queue, const Heads& to, const Heads& from, const float* cos,
                   const float* sin, std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                   std::int64_t head_dim, float sign) {
  // Packs are powers of two: what divides all of these divides what has the bits of all.
  const std::int64_t alike = (head_dim / 2) | to.batch_stride | to.token_stride | to.head_stride |
                             from.batch_stride | from.token_stride | from.head_stride;
  return by_width(to.numbers, alike, {to.numbers.data, from.numbers.data, cos, sin},
                  [&]<class T, class W>(T* numbers, W) {
                    launch(rotate_token<T, W::value>, dim3(grid_of(tokens), grid_of(batch)),
                           kThreads, queue, numbers, as(from.numbers, numbers), to, from, cos, sin,
                           heads, head_dim / 2, sign);
                  });
}

const char* pack_heads(Queue queue, const HeadsToPack& from, const Numbers& to, float* sums,
                       const Arrivals& arrivals) {
  if (sums != nullptr && !may_meet(grid_of_pairs<1>(from))) return "too many heads to sum";
  std::int64_t alike = from.head_dim / 2;
  for (const Heads* heads : {&from.q, &from.k, &from.v})
    alike |= heads->batch_stride | heads->token_stride | heads->head_stride;
  return by_width(
      to, alike,
      {to.data, from.q.numbers.data, from.k.numbers.data, from.v.numbers.data, from.cos, from.sin},
      [&]<class T, class W>(T* numbers, W) {
        const auto run = [&](auto kernel) {
          launch(kernel, grid_of_pairs<W::value>(from), kThreadsOfPairs, queue, from, numbers, sums,
                 arrivals);
        };
        if (sums == nullptr)
          run(pack_pairs<T, W::value, false>);
        else
          run(pack_pairs<T, W::value, true>);
      });
}

std::int64_t pack_partials(const HeadsToPack& from, bool bf16) {
  return most_partials(bf16, from.head_dim / 2, [&]<int N>(std::integral_constant<int, N>) {
    return partials_of(grid_of_pairs<N>(from), 2 * N * kThreadsOfPairs);
  });
}

}  // namespace orrery::executor::device
