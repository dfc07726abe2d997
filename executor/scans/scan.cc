/// \file
/// Scans on the CPU: the recurrence over tokens, then the gated norm. A task is one group of one
/// sequence, whose heads share keys and queries; its sums go over tokens in order, those of weights
/// in fp64, and are added in order of sequence, so threads change nothing.
///
/// Backward goes over the tokens twice: first to the states in front of every chunk, which it
/// keeps; then from the last chunk to the first. Of one head inside a chunk of Q tokens it makes
/// the states anew, in front of every sqrt(Q)-th token and then in front of each of these, so that
/// it holds about 2 sqrt(Q) of them. Beside states, which are counted, a thread has the rows of one
/// tile of tokens.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "executor/scans/scan_group.h"
#include "executor/segments/segment_kernels.h"

namespace orrery::executor::kernels {
namespace {

constexpr std::int64_t kForwardTokens = 64;

/// visit(sequence, group) for each, on threads.
template <class Visit>
void each_task(const ScanMixer& m, Visit visit) {
  at::parallel_for(0, m.s.sequences * m.groups, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) visit(i / m.groups, i % m.groups);
  });
}

at::Tensor fp32(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions().dtype(at::kFloat));
}

/// Heads of a tile one by one: `h` becomes the states behind it, y is what they give, [rows,
/// values of the group].
void run_tile(const ScanMixer& m, const ScanTile& tile, float* h, float* y, float* work) {
  const ScanHead head = m.head();
  for (std::int64_t j = 0; j < m.per_group; ++j)
    for (std::int64_t t = 0; t < tile.rows(); ++t)
      advance(head, tile.token(j, t), h + j * head.elements(),
              y + t * m.group_values() + j * m.size, work);
}

void group_forward(const ScanMixer& m, const Numbers& u, const Numbers& y, std::int64_t sequence,
                   std::int64_t group) {
  const std::int64_t tokens = std::min(m.s.tokens, kForwardTokens), width = m.group_values();
  ScanTile tile(m, sequence, group, tokens, false);
  at::Tensor h = fp32({m.per_group, m.head().elements()});
  h.zero_();
  std::vector<float> work(as_index(m.size)), made(as_index(tokens * width));
  for (std::int64_t first = 0; first < m.s.tokens; first += tokens) {
    tile.load(u, first, std::min(tokens, m.s.tokens - first));
    run_tile(m, tile, h.mutable_data_ptr<float>(), made.data(), work.data());
    for (std::int64_t t = 0; t < tile.rows(); ++t)
      y.store(made.data() + t * width, width, tile.place(t, m.values, group * width));
  }
}

/// visit(token, feature a norm's group begins at) for each, with room for three rows, on threads.
template <class Visit>
void each_norm(const ScanMixer& m, Visit visit) {
  at::parallel_for(0, m.s.token_count(), 16, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> rows(as_index(3 * m.norm.width));
    for (std::int64_t t = first; t < last; ++t)
      for (std::int64_t f = 0; f < m.values; f += m.norm.width) visit(t, f, rows.data());
  });
}

void forward(const ScanMixer& m, const Numbers& u, const Numbers& o, const Numbers& y) {
  each_task(m, [&](std::int64_t i, std::int64_t g) { group_forward(m, u, y, i, g); });
  const std::int64_t width = m.norm.width;
  each_norm(m, [&](std::int64_t t, std::int64_t f, float* rows) {
    float *scanned = rows, *z = rows + width, *to = z + width;
    y.load(t * m.values + f, width, scanned);
    u.load(t * m.s.in + f, width, z);
    gated_norm(m.norm, scanned, z, m.gain(f), to);
    o.store(to, width, t * m.values + f);
  });
}

struct Backward {
  const ScanMixer& m;
  Numbers d_o, u, y, du;
  std::int64_t chunk, chunks;
  at::Tensor states;  // [sequences, chunks, heads, N P], in front of each chunk
  std::vector<NormStatistics> statistics;  // [tokens, groups of the norm]

  Backward(const ScanMixer& mixer, Operands& o)
      : m(mixer),
        d_o(o.reads[0]),
        u(o.reads[1]),
        y(o.reads[2]),
        du(o.writes[0].make()),
        chunk(std::min(m.s.chunk, m.s.tokens)),
        chunks(ceil_div(m.s.tokens, chunk)),
        states(fp32({m.s.sequences, chunks, m.n, m.head().elements()})),
        statistics(as_index(m.s.token_count() * (m.values / m.norm.width))) {
    const std::int64_t width = m.norm.width;
    each_norm(m, [&](std::int64_t t, std::int64_t f, float* rows) {
      float *scanned = rows, *z = rows + width, *d = z + width;
      y.load(t * m.values + f, width, scanned);
      u.load(t * m.s.in + f, width, z);
      d_o.load(t * m.values + f, width, d);
      statistics[as_index((t * m.values + f) / width)] =
          norm_statistics(m.norm, scanned, z, m.gain(f), d);
    });
  }
  /// Of the heads of a group.
  [[nodiscard]] float* states_of(std::int64_t sequence, std::int64_t c, std::int64_t group) const {
    return states.mutable_data_ptr<float>() +
           ((sequence * chunks + c) * m.n + group * m.per_group) * m.head().elements();
  }
  [[nodiscard]] std::int64_t rows(std::int64_t c) const {
    return std::min(chunk, m.s.tokens - c * chunk);
  }
  void keep_states(std::int64_t sequence, std::int64_t group) const;
  GroupGradients run(std::int64_t sequence, std::int64_t group) const;
  void norm_back(const ScanTile& tile, float* dy, GroupGradients& sums) const;
};

void Backward::keep_states(std::int64_t sequence, std::int64_t group) const {
  const std::int64_t elements = m.per_group * m.head().elements();
  ScanTile tile(m, sequence, group, chunk, false);
  std::vector<float> y_of_tile(as_index(chunk * m.group_values())), work(as_index(m.size));
  std::fill_n(states_of(sequence, 0, group), elements, 0.0F);
  for (std::int64_t c = 0; c + 1 < chunks; ++c) {
    float* h = states_of(sequence, c + 1, group);
    std::copy_n(states_of(sequence, c, group), elements, h);
    tile.load(u, c * chunk, rows(c));
    run_tile(m, tile, h, y_of_tile.data(), work.data());
  }
}

/// dy of a tile, [rows, values of the group]; stores dz.
void Backward::norm_back(const ScanTile& tile, float* dy, GroupGradients& sums) const {
  const std::int64_t width = m.group_values(), part = std::min(width, m.norm.width);
  std::vector<float> scanned(as_index(width)), z(scanned), d(scanned), dz(scanned);
  const std::int64_t first = tile.group() * width;
  for (std::int64_t t = 0; t < tile.rows(); ++t) {
    const std::int64_t at = tile.place(t, m.values, first), in = tile.place(t, m.s.in, first);
    y.load(at, width, scanned.data());
    u.load(in, width, z.data());
    d_o.load(at, width, d.data());
    for (std::int64_t f = 0; f < width; f += part)
      gated_norm_back(m.norm, statistics[as_index((at + f) / m.norm.width)], part,
                      scanned.data() + f, z.data() + f, m.gain(first + f), d.data() + f,
                      dy + t * width + f, dz.data() + f, sums.gains.data());
    du.store(dz.data(), width, in);
  }
}

/// One head over the tokens of a tile, from its last to its first.
class HeadBackward {
 public:
  HeadBackward(const ScanMixer& m, std::int64_t tokens)
      : m_(m),
        stride_(static_cast<std::int64_t>(std::ceil(std::sqrt(real(tokens))))),
        marks_(fp32({ceil_div(tokens, stride_), m.head().elements()})),
        states_(fp32({stride_ + 1, m.head().elements()})),
        work_(as_index(2 * m.size)),
        y_(as_index(m.size)) {}

  /// From `h`, the state in front; dh becomes the gradient of it. dy: [rows, values of the group].
  void run(ScanTile& tile, std::int64_t j, const float* h, float* dh, const float* dy,
           GroupGradients& sums) {
    const std::int64_t elements = m_.head().elements(), rows = tile.rows();
    float *marks = marks_.mutable_data_ptr<float>(), *states = states_.mutable_data_ptr<float>();
    std::copy_n(h, elements, marks);
    for (std::int64_t first = stride_; first < rows; first += stride_) {
      float* mark = marks + first / stride_ * elements;
      std::copy_n(mark - elements, elements, mark);
      for (std::int64_t t = first - stride_; t < first; ++t) step(tile, j, t, mark);
    }
    for (std::int64_t first = (rows - 1) / stride_ * stride_; first >= 0; first -= stride_) {
      const std::int64_t end = std::min(first + stride_, rows);
      std::copy_n(marks + first / stride_ * elements, elements, states);
      for (std::int64_t t = first; t < end; ++t) {
        float* behind = states + (t - first + 1) * elements;
        std::copy_n(behind - elements, elements, behind);
        step(tile, j, t, behind);
      }
      for (std::int64_t t = end - 1; t >= first; --t)
        back(tile, j, t, states + (t - first) * elements, dh,
             dy + t * m_.group_values() + j * m_.size, sums);
    }
  }

 private:
  void step(const ScanTile& tile, std::int64_t j, std::int64_t t, float* h) {
    advance(m_.head(), tile.token(j, t), h, y_.data(), work_.data());
  }
  void back(ScanTile& tile, std::int64_t j, std::int64_t t, const float* before, float* dh,
            const float* dy, GroupGradients& sums) {
    const ScanToken token = tile.token(j, t);
    ScanGradient g = tile.gradient(j, t);
    retreat(m_.head(), token, before, before + m_.head().elements(), dy, dh, g, work_.data());
    tile.keep_steps(j, t, g);
    double skip = 0;
    for (std::int64_t p = 0; p < m_.size; ++p) skip += static_cast<double>(token.x[p] * dy[p]);
    sums.skips[as_index(j)] += skip;
  }

  const ScanMixer& m_;
  std::int64_t stride_;
  at::Tensor marks_, states_;
  std::vector<float> work_, y_;
};

GroupGradients Backward::run(std::int64_t sequence, std::int64_t group) const {
  keep_states(sequence, group);
  GroupGradients sums(m);
  ScanTile tile(m, sequence, group, chunk, true);
  HeadBackward head(m, chunk);
  std::vector<float> dy(as_index(chunk * m.group_values()));
  at::Tensor dh = fp32({m.per_group, m.head().elements()});
  dh.zero_();
  for (std::int64_t c = chunks - 1; c >= 0; --c) {
    tile.load(u, c * chunk, rows(c));
    norm_back(tile, dy.data(), sums);
    for (std::int64_t j = 0; j < m.per_group; ++j)
      head.run(tile, j, states_of(sequence, c, group) + j * m.head().elements(),
               dh.mutable_data_ptr<float>() + j * m.head().elements(), dy.data(), sums);
    tile.store_gradients(du, sums);
  }
  return sums;
}

void backward(const ScanMixer& m, Phase phase, Operands& o) {
  const Backward back(m, o);
  std::vector<GroupGradients> sums(as_index(m.s.sequences * m.groups), GroupGradients(m));
  each_task(m, [&](std::int64_t i, std::int64_t g) {
    sums[as_index(i * m.groups + g)] = back.run(i, g);
  });
  if (!has_weight_gradient(phase)) return;
  for (std::int64_t i = 0; i < m.s.sequences * m.groups; ++i)
    sums[as_index(i)].add_to(m, i % m.groups, o.gradients);
}

}  // namespace

void scan(const SegmentShape& s, Phase phase, Operands& o, SegmentContext& context) {
  const ScanMixer mixer(s, o.weights, context);
  if (phase != Phase::kF) return backward(mixer, phase, o);
  const Numbers to(o.writes[0].make()), y(o.writes[1].make());
  forward(mixer, Numbers(o.reads[0]), to, y);
}

}  // namespace orrery::executor::kernels
