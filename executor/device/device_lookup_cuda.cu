#include "executor/device/device_code.cuh"

namespace orrery::executor::device {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kAtOnce = 16;  // rows asked for before they are added

// A block has a token's packs [blockIdx.y kThreads, + kThreads).
template <class T, int N>
__global__ void row_of_token(Lookup l, const T* table, T* y) {
  const std::int64_t token = blockIdx.x, pack = blockIdx.y * kThreads + threadIdx.x;
  const std::int64_t row = l.ids[token] - l.first;
  if (pack * N >= l.features) return;
  Pack<T, N> numbers{};
  if (row >= 0 && row < l.rows) numbers = pack_at<N>(table + row * l.features, pack);
  put_pack(y + token * l.features, pack, numbers);
}

/// Whether one of ids[0, count) is `id`; all threads of the block ask.
__device__ bool has(const std::int64_t* ids, std::int64_t count, std::int64_t id) {
  constexpr int kIdsOfThread = 4;
  for (std::int64_t first = threadIdx.x; first - threadIdx.x < count;
       first += kThreads * kIdsOfThread) {
    bool found = false;
    for (int j = 0; j < kIdsOfThread; ++j) {
      const std::int64_t i = first + j * kThreads;
      found = found || (i < count && ids[i] == id);
    }
    if (__syncthreads_or(found)) return true;
  }
  return false;
}

/// Where among ids[0, count), at most kThreads of them, `id` stands, in order; how often. All
/// threads of the block call it.
__device__ int places_of(std::int64_t id, const std::int64_t* ids, std::int64_t count,
                         int (&places)[kThreads]) {
  __shared__ int of_warp[kWarps];
  const int own = static_cast<int>(threadIdx.x), warp = own / kWarp, lane = own % kWarp;
  const bool here = own < count && ids[own] == id;
  const unsigned found = __ballot_sync(0xffffffffU, here);
  if (lane == 0) of_warp[warp] = __popc(found);
  __syncthreads();  // the places of the call before are read as well
  int before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  if (here) places[before + __popc(found & ((1U << lane) - 1))] = own;
  __syncthreads();
  return all;
}

// The first token of an id adds the rows of all tokens that have it, in their order.
template <class T, int N>
__global__ void sum_of_tokens(Lookup l, const T* dy, float* gradient) {
  __shared__ int places[kThreads];
  const std::int64_t token = blockIdx.x, pack = blockIdx.y * kThreads + threadIdx.x;
  const std::int64_t id = l.ids[token], row = id - l.first;
  if (row < 0 || row >= l.rows || has(l.ids, token, id)) return;
  const bool inside = pack * N < l.features;
  float sum[N] = {};
  for (std::int64_t first = token; first < l.tokens; first += kThreads) {
    const int count = places_of(id, l.ids + first, l.tokens - first, places);
    for (int i = 0; inside && i < count; i += kAtOnce) {
      Pack<T, N> d[kAtOnce];
      for (int j = 0; j < kAtOnce; ++j)
        if (i + j < count) d[j] = pack_at<N>(dy + (first + places[i + j]) * l.features, pack);
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j >= count) continue;
        for (int k = 0; k < N; ++k) sum[k] += wide(d[j].number[k]);
      }
    }
  }
  if (!inside) return;
  float* to = gradient + row * l.features + pack * N;
  for (int k = 0; k < N; ++k) to[k] += sum[k];
}

template <int N>
dim3 grid_of_tokens(const Lookup& l) {
  return {grid_of(l.tokens), grid_of((l.features / N + kThreads - 1) / kThreads)};
}

}  // namespace

const char* look_up(Queue queue, const Lookup& l, const Numbers& table, const Numbers& y) {
  return by_width(y, l.features, {table.data, y.data}, [&]<class T, class W>(T* numbers, W) {
    launch(row_of_token<T, W::value>, grid_of_tokens<W::value>(l), kThreads, queue, l,
           as(table, numbers), numbers);
  });
}

const char* add_looked_up(Queue queue, const Lookup& l, const Numbers& dy, float* gradient) {
  return by_width(dy, l.features, {dy.data}, [&]<class T, class W>(T* numbers, W) {
    launch(sum_of_tokens<T, W::value>, grid_of_tokens<W::value>(l), kThreads, queue, l, numbers,
           gradient);
  });
}

}  // namespace orrery::executor::device
