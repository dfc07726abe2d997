#include "executor/scans/scan_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "executor/scans/scan_math.h"

namespace orrery::executor::kernels {
namespace {

constexpr float kKeyEpsilon = 1e-6F;

std::vector<float> numbers(const at::Tensor& fp32, std::int64_t first, std::int64_t n) {
  const float* from = fp32.const_data_ptr<float>() + first;
  return {from, from + n};
}

std::vector<float> lightning_decays(const model::SegmentShape& s, const SegmentContext& context) {
  const double depth = real(context.layer) / (real(context.layers) - 1 + 1e-5),
               factor = 1 - depth + 1e-5;
  std::vector<float> decays;
  for (std::int64_t h = 0; h < s.heads; ++h)
    decays.push_back(
        static_cast<float>(std::exp(-std::exp2(-8.0 * real(h + 1) / real(s.heads)) * factor)));
  return decays;
}

}  // namespace

Numbers::Numbers(const at::Tensor& t)
    : data_(t.mutable_data_ptr()), bf16_(t.scalar_type() == at::kBFloat16) {
  TORCH_CHECK(t.is_cpu(), "scans run on CPUs alone");
  ORRERY_CHECK(t.is_contiguous() && (bf16_ || t.scalar_type() == at::kFloat));
}

void Numbers::load(std::int64_t first, std::int64_t n, float* to) const {
  if (bf16_)
    load_row(static_cast<const at::BFloat16*>(data_) + first, n, to);
  else
    load_row(static_cast<const float*>(data_) + first, n, to);
}

void Numbers::store(const float* from, std::int64_t n, std::int64_t first) const {
  if (bf16_)
    store_row(from, n, static_cast<at::BFloat16*>(data_) + first);
  else
    store_row(from, n, static_cast<float*>(data_) + first);
}

ScanMixer::ScanMixer(const model::SegmentShape& shape, const std::vector<at::Tensor>& weights,
                     const SegmentContext& context)
    : s(shape),
      n(s.heads),
      size(s.head_dim),
      groups(s.kv_heads),
      state(s.state),
      per_group(n / groups),
      values(n * size),
      keys(groups * state),
      steps(model::is_lightning(s) ? 0
            : s.delta              ? 2
                                   : 1),
      lightning(model::is_lightning(s)) {
  ORRERY_CHECK(n % groups == 0 && s.in == first_step() + steps * n && s.out == values);
  norm = {.width = group_values(), .gains = group_values(), .gate_first = true};
  if (lightning) {
    norm = {.width = values, .gains = values, .sigmoid = true};
    gains = weights[0].to(at::kFloat);
    decays = lightning_decays(s, context);
  } else {
    taps = weights[0].to(at::kFloat);
    vectors = weights[1].to(at::kFloat);
    const std::int64_t first = s.delta ? 0 : model::convolved(s);
    rates = numbers(vectors, first, n);
    for (float& rate : rates) rate = std::exp(rate);
    if (!s.delta) skips = numbers(vectors, first + n, n);
    step_biases = numbers(vectors, first + (s.delta ? n : 2 * n), n);
    gains = s.delta ? weights[2].to(at::kFloat) : vectors.narrow(0, first + 3 * n, values);
  }
  if (s.delta) norm = {.width = size, .gains = size};
  norm.epsilon = s.epsilon;
}

Convolution ScanMixer::convolution(std::int64_t group) const {
  Convolution c;
  c.channels = channels();
  c.taps = std::max<std::int64_t>(s.kernel, 1);
  c.weights.assign(as_index(c.taps * c.channels), 1.0F);
  c.bias.assign(as_index(c.channels), 0.0F);
  if (lightning) return c;
  const float* all = taps.const_data_ptr<float>();
  each_part(group, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < c.taps; ++j)
        c.weights[as_index(j * c.channels + to + i)] = all[(from + i) * c.taps + j];
    if (s.delta) return;
    const float* biases = vectors.const_data_ptr<float>() + from;
    std::copy(biases, biases + count, c.bias.begin() + to);
  });
  return c;
}

GroupGradients::GroupGradients(const ScanMixer& m)
    : taps(as_index(std::max<std::int64_t>(m.s.kernel, 1) * m.channels())),
      bias(as_index(m.channels())),
      rates(as_index(m.per_group)),
      skips(rates),
      step_biases(rates),
      gains(as_index(m.s.delta ? m.size : m.group_values())) {}

void GroupGradients::add_to(const ScanMixer& m, std::int64_t group,
                            std::vector<at::Tensor>& gradients) const {
  const auto add = [](const std::vector<double>& from, float* to) {
    for (const double x : from) *to++ += static_cast<float>(x);
  };
  const auto tensor = [&](std::size_t i) { return gradients[i].mutable_data_ptr<float>(); };
  if (m.lightning) return add(gains, tensor(0) + group * m.group_values());
  const std::int64_t kernel = m.s.kernel, heads = group * m.per_group,
                     first = m.s.delta ? 0 : model::convolved(m.s);
  float *d_taps = tensor(0), *vectors = tensor(1);
  m.each_part(group, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j < kernel; ++j)
        d_taps[(to + i) * kernel + j] +=
            static_cast<float>(taps[as_index(j * m.channels() + from + i)]);
      if (!m.s.delta) vectors[to + i] += static_cast<float>(bias[as_index(from + i)]);
    }
  });
  add(rates, vectors + first + heads);
  if (m.s.delta) {
    add(step_biases, vectors + m.n + heads);
    return add(gains, tensor(2));
  }
  add(skips, vectors + first + m.n + heads);
  add(step_biases, vectors + first + 2 * m.n + heads);
  add(gains, vectors + first + 3 * m.n + group * m.group_values());
}

ScanTile::ScanTile(const ScanMixer& m, std::int64_t sequence, std::int64_t group,
                   std::int64_t tokens, bool back)
    : m_(m), sequence_(sequence), group_(group), convolution_(m.convolution(group)) {
  const std::int64_t history = convolution_.history(), c = m.channels(), h = m.per_group;
  u_.resize(as_index((tokens + history) * c));
  p_.resize(as_index(tokens * c));
  x_.resize(p_.size());
  rnorms_.resize(as_index(2 * tokens));
  raw_steps_.resize(as_index(tokens * h * m.steps));
  for (std::vector<float>* each : {&steps_, &soft_, &decays_}) each->resize(as_index(tokens * h));
  if (!back) return;
  d_.resize(u_.size());
  d_u_.resize(p_.size());
  d_decays_.resize(steps_.size());
  d_steps_.resize(steps_.size());
}

void ScanTile::load(const Numbers& u, std::int64_t first, std::int64_t rows) {
  const std::int64_t history = convolution_.history(), c = m_.channels();
  const std::int64_t later = rows_;
  first_ = first;
  rows_ = rows;
  for (std::int64_t t = -history; t < rows; ++t) {
    float* to = u_.data() + (t + history) * c;
    if (first + t < 0) {
      std::fill(to, to + c, 0.0F);
      continue;
    }
    m_.each_part(group_, [&](std::int64_t from, std::int64_t at, std::int64_t count) {
      u.load(place(t, m_.s.in, m_.first_channel() + from), count, to + at);
    });
  }
  convolve(convolution_, u_.data(), rows, p_.data());
  activate(p_.data(), rows * c, x_.data());
  if (m_.s.delta) norm_keys();
  load_steps(u);
  if (d_.empty()) return;
  // Of the tokens behind, where there are any: their first gradients.
  if (later > 0)
    std::copy_backward(d_.begin(), d_.begin() + history * c, d_.begin() + (rows + history) * c);
  std::fill(d_.begin(), d_.begin() + rows * c, 0.0F);
}

void ScanTile::load_steps(const Numbers& u) {
  const std::int64_t h = m_.per_group;
  for (std::int64_t t = 0; t < rows_; ++t) {
    float* raw = raw_steps_.data() + t * h * m_.steps;
    if (m_.steps > 0)
      u.load(place(t, m_.s.in, m_.first_step() + group_ * h * m_.steps), h * m_.steps, raw);
    for (std::int64_t j = 0; j < h; ++j) {
      const std::size_t at = as_index(t * h + j), head = as_index(group_ * h + j);
      if (m_.lightning) {
        steps_[at] = 1;
        decays_[at] = m_.decays[head];
        continue;
      }
      soft_[at] = softplus(raw[j * m_.steps + m_.steps - 1] + m_.step_biases[head]);
      steps_[at] = m_.s.delta ? sigmoid(raw[2 * j]) : soft_[at];
      decays_[at] = std::exp(-m_.rates[head] * soft_[at]);
    }
  }
}

float ScanTile::key_scale(std::int64_t part) const {
  return part == 0 ? 1 : 1 / std::sqrt(static_cast<float>(m_.state));
}

void ScanTile::norm_keys() {
  for (std::int64_t t = 0; t < rows_; ++t) {
    for (const std::int64_t part : {0, 1}) {
      float* key = x_.data() + t * m_.channels() + m_.group_values() + part * m_.state;
      const float rnorm = 1 / std::sqrt(dot(key, key, m_.state) + kKeyEpsilon);
      rnorms_[as_index(2 * t + part)] = rnorm;
      for (std::int64_t i = 0; i < m_.state; ++i) key[i] *= rnorm * key_scale(part);
    }
  }
}

// y = s r k, r = 1 / |k|:  dk = r (s dy - y (y . dy) / s).
void ScanTile::norm_keys_back() {
  for (std::int64_t t = 0; t < rows_; ++t) {
    for (const std::int64_t part : {0, 1}) {
      const std::int64_t at = t * m_.channels() + m_.group_values() + part * m_.state;
      const float *key = x_.data() + at, rnorm = rnorms_[as_index(2 * t + part)];
      const float scale = key_scale(part);
      float* d = d_.data() + at;
      const float along = dot(key, d, m_.state) / scale;
      for (std::int64_t i = 0; i < m_.state; ++i) d[i] = rnorm * (scale * d[i] - key[i] * along);
    }
  }
}

ScanToken ScanTile::token(std::int64_t j, std::int64_t t) const {
  const float* row = x_.data() + t * m_.channels();
  const std::size_t at = as_index(t * m_.per_group + j);
  return {.x = row + j * m_.size,
          .b = row + m_.group_values(),
          .c = row + m_.group_values() + m_.state,
          .decay = decays_[at],
          .step = steps_[at],
          .skip = m_.skips.empty() ? 0 : m_.skips[as_index(group_ * m_.per_group + j)]};
}

ScanGradient ScanTile::gradient(std::int64_t j, std::int64_t t) {
  float* row = d_.data() + t * m_.channels();
  return {.x = row + j * m_.size,
          .b = row + m_.group_values(),
          .c = row + m_.group_values() + m_.state};
}

void ScanTile::keep_steps(std::int64_t j, std::int64_t t, const ScanGradient& g) {
  const std::size_t at = as_index(t * m_.per_group + j);
  d_decays_[at] = g.decay;
  d_steps_[at] = g.step;
}

void ScanTile::store_gradients(const Numbers& du, GroupGradients& sums) {
  const std::int64_t c = m_.channels();
  if (m_.s.delta) norm_keys_back();
  activate_back(p_.data(), rows_ * c, d_.data());
  add_taps(convolution_, u_.data(), d_.data(), rows_, sums.taps.data(), sums.bias.data());
  convolve_back(convolution_, d_.data(), rows_, d_u_.data());
  for (std::int64_t t = 0; t < rows_; ++t)
    m_.each_part(group_, [&](std::int64_t to, std::int64_t at, std::int64_t count) {
      du.store(d_u_.data() + t * c + at, count, place(t, m_.s.in, m_.first_channel() + to));
    });
  if (m_.steps > 0) store_steps(du, sums);
}

// d ln a = a da;  ln a = -e^A softplus(v), v = u + bias, softplus' = sigma.
void ScanTile::store_steps(const Numbers& du, GroupGradients& sums) {
  const std::int64_t h = m_.per_group;
  std::vector<float> d(as_index(h * m_.steps));
  for (std::int64_t t = 0; t < rows_; ++t) {
    for (std::int64_t j = 0; j < h; ++j) {
      const std::size_t at = as_index(t * h + j), head = as_index(group_ * h + j);
      const float v =
          raw_steps_[as_index((t * h + j) * m_.steps + m_.steps - 1)] + m_.step_biases[head];
      const float d_log = d_decays_[at] * decays_[at], rate = m_.rates[head];
      const float d_soft = (m_.s.delta ? 0 : d_steps_[at]) - rate * d_log, dv = d_soft * sigmoid(v);
      sums.rates[as_index(j)] -= static_cast<double>(d_log * rate * soft_[at]);
      sums.step_biases[as_index(j)] += static_cast<double>(dv);
      d[as_index(j * m_.steps + m_.steps - 1)] = dv;
      if (m_.s.delta) d[as_index(2 * j)] = d_steps_[at] * steps_[at] * (1 - steps_[at]);
    }
    du.store(d.data(), h * m_.steps, place(t, m_.s.in, m_.first_step() + group_ * h * m_.steps));
  }
}

}  // namespace orrery::executor::kernels
