/// With n ranks, t = s / n tokens, features in sections of width w (q, k, v; over all ranks):
///
///   dim 2   in      [b, t, F]
///           blocks  [n, b, t, F/n]: block i holds part i of every section
///           out     [b, n t, F/n]: block i gives tokens i t ...
///   dim 1   in      [b, n t, F/n]
///           blocks  [n, b, t, F/n]: block i holds tokens i t ...
///           out     [b, t, F]: block i gives part i of every section
#include "executor/transport/all_to_all.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

namespace orrery::executor {
namespace {

/// [b, n t, f] seen as [n, b, t, f].
at::Tensor token_blocks(const at::Tensor& x, int n) {
  return x.view({x.size(0), n, x.size(1) / n, x.size(2)}).permute({1, 0, 2, 3});
}

/// Part i of a section at [i]: columns [first, first + width) of [b, t, F] seen as [n, b, t, width
/// / n].
at::Tensor feature_blocks(const at::Tensor& x, std::int64_t first, std::int64_t width, int n) {
  return x.narrow(2, first, width).unflatten(2, {n, width / n}).permute({2, 0, 1, 3});
}

}  // namespace

base::Result<void> all_to_all(Communicator& communicator, const Channel& channel,
                              const plan::Op& op, const at::Tensor& in, at::Tensor& out) {
  if (op.dim == 0) return communicator.all_to_all(channel, in, out);
  const int n = channel.size;
  std::vector<std::int64_t> sections = op.sections;
  if (sections.empty()) sections = {op.dim == 2 ? in.size(2) : out.size(2)};
  at::Tensor blocks;
  if (op.dim == 1) {
    blocks = token_blocks(in, n).contiguous();
  } else {
    std::vector<at::Tensor> parts;
    std::int64_t first = 0;
    for (const std::int64_t width : sections) {
      parts.push_back(feature_blocks(in, first, width, n));
      first += width;
    }
    blocks = at::cat(parts, -1).contiguous();
  }
  at::Tensor received = at::empty_like(blocks);
  TRY_VOID(communicator.all_to_all(channel, blocks, received));
  if (op.dim == 2) {
    token_blocks(out, n).copy_(received);
    return {};
  }
  std::int64_t first = 0;
  for (const std::int64_t width : sections) {
    feature_blocks(out, first, width, n).copy_(received.narrow(3, first / n, width / n));
    first += width;
  }
  return {};
}

}  // namespace orrery::executor
