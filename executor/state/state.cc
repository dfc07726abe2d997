#include "executor/state/state.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/numbers.h"
#include "base/rng.h"
#include "executor/state/tensor.h"

namespace orrery::executor {
namespace {

// 64-bit FNV-1a: turns a name into the number of a random stream.
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

std::string full_name(const plan::Parameter& p, std::int64_t layer) {
  constexpr std::string_view kLayer = "{layer}";
  std::string name = p.name;
  if (const auto at = name.find(kLayer); at != std::string::npos)
    name.replace(at, kLayer.size(), std::to_string(layer));
  return name;
}

/// A local tensor as [outer, local, inner] around the dimension that is split; `local` rows are
/// rows first ... of `global`.
struct Cut {
  std::int64_t local = 1, global = 1, inner = 1, first = 0;
  // of a matrix cut along its rows that holds a slice of its columns
  std::int64_t global_inner = 1, inner_first = 0;
  // of a stack of experts: how many of those around come before
  std::int64_t outer_first = 0;

  Cut(const plan::Parameter& p, std::int64_t tensor_index, std::int64_t expert_index) {
    const auto dim = as_index(std::max(p.shard_dim, 0));
    local = p.local_shape[dim];
    global = p.shape[dim];
    for (std::size_t d = dim + 1; d < p.shape.size(); ++d) {
      inner *= p.local_shape[d];
      global_inner *= p.shape[d];
    }
    first = p.shard_dim < 0 ? 0 : tensor_index * local;
    if (p.expert_dim >= 0) {
      ORRERY_CHECK(p.expert_dim == 0 && dim > 0);
      outer_first = expert_index;
      for (std::size_t d = 0; d < dim; ++d) outer_first *= p.local_shape[d];
    }
    if (p.slices == 1) return;
    ORRERY_CHECK(p.shape.size() == 2 && p.shard_dim >= 0);
    if (p.shard_dim == 1)
      first = (tensor_index * p.slices + p.slice) * local;
    else
      inner_first = p.slice * inner;
  }
  /// Of a partitioned operator: a block of the rows and columns.
  Cut(const plan::Parameter& p, const plan::Partition& partition, int device) {
    const auto slice = [&](plan::Dimension d) {
      return partition.slice(d, plan::Phase::kF, device, 0);
    };
    local = p.local_shape[0];
    global = p.shape[0];
    first = slice(plan::Dimension::kOut) * local;
    if (p.in_dim < 0) return;
    inner = p.local_shape[1];
    global_inner = p.shape[1];
    inner_first = slice(plan::Dimension::kIn) * inner;
  }
  /// Local elements from i on whose indices in the global tensor follow one another.
  [[nodiscard]] std::int64_t rest_of_row(std::int64_t i) const { return inner - i % inner; }
  /// Row-major index in the global tensor of local element i; -1 for padding.
  [[nodiscard]] std::int64_t global_index(std::int64_t i) const {
    const std::int64_t outer = i / (local * inner) + outer_first, rest = i % (local * inner);
    const std::int64_t row = rest / inner + first;
    return row >= global ? -1 : (outer * global + row) * global_inner + inner_first + rest % inner;
  }
};

constexpr std::int64_t kElementsOfTask = 1 << 16;

/// Of element `index` of the whole tensor, whose rows have `columns` elements.
double initial_value(plan::Init init, std::uint64_t stream, std::uint64_t index, double columns,
                     std::int64_t layers) {
  using enum plan::Init;
  const auto uniform = [&](double from, double to) {
    const double share = (static_cast<double>(base::hash(stream, index) >> 11U) + 0.5) * 0x1p-53;
    return from + (to - from) * share;
  };
  switch (init) {
    case kZero: return 0;
    case kOne: return 1;
    case kNormal: return 0.02 * base::normal(stream, index);
    case kNormalScaled: return 0.02 / std::sqrt(2.0 * real(layers)) * base::normal(stream, index);
    case kTaps: return uniform(-1, 1) / std::sqrt(columns);
    case kLogDecay: return std::log(uniform(1, 16));
    case kLogStep: return std::log(std::expm1(std::exp(uniform(std::log(0.001), std::log(0.1)))));
  }
  ORRERY_CHECK(false, "initial value out of range");
}

}  // namespace

void initial_parameters(const plan::ParameterUnit& unit, const FlatRange& range, std::uint64_t seed,
                        std::int64_t layers, std::span<float> out) {
  ORRERY_CHECK(static_cast<std::int64_t>(out.size()) == range.end - range.begin);
  at::parallel_for(0, range.end - range.begin, kElementsOfTask,
                   [&](std::int64_t first, std::int64_t last) {
                     std::fill(out.begin() + first, out.begin() + last, 0.0F);
                   });
  for (const plan::Parameter& p : unit.parameters) {
    const std::int64_t from = std::max(p.offset, range.begin),
                       to = std::min(p.offset + elements_of(p.local_shape), range.end);
    if (from >= to || p.init == plan::Init::kZero) continue;
    const Cut cut = unit.partitioned() ? Cut(p, plan::Partition(unit.partition), range.device)
                                       : Cut(p, range.tensor_index, range.expert_index);
    const std::uint64_t stream = base::derive(seed, name_hash(full_name(p, range.layer)));
    const double columns = real(p.shape.back());
    // Each element's value depends on its index alone, so the number of threads changes nothing.
    at::parallel_for(from, to, kElementsOfTask, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first, end = first; i < last; i = end) {
        end = std::min(last, i + cut.rest_of_row(i - p.offset));
        const std::int64_t index = cut.global_index(i - p.offset);
        if (index < 0) continue;
        for (std::int64_t k = i; k < end; ++k) {
          const double value = initial_value(
              p.init, stream, static_cast<std::uint64_t>(index + k - i), columns, layers);
          out[as_index(k - range.begin)] = static_cast<float>(value);
        }
      }
    });
  }
}

}  // namespace orrery::executor
