// Resharding carries every sequence and token to the ranks that need it: the operations are run on
// indices instead of numbers.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <vector>

#include "base/rng.h"
#include "plan/lowering/lower.h"

namespace orrery::plan {
namespace {

constexpr std::int64_t kSequences = 48, kTokens = 144;  // degrees up to 16, and 12 = 3 * 4

/// What a rank holds: [sequence][token], each entry sequence * kTokens + token.
using Share = std::vector<std::vector<std::int64_t>>;

/// The definition in plan/program/plan.h: r has tensor index r % tp and replica index r / tp, of
/// which cp are innermost; strided: replicas innermost.
Share share_of(const LayerStrategy& s, int rank) {
  const int replica = s.strided ? rank % s.replicas() : rank / s.tp,
            tensor = s.strided ? rank / s.replicas() : rank % s.tp;
  const int token_share = replica % s.cp, batch_share = replica / s.cp;
  const std::int64_t rows = kSequences / s.dp, whole = kTokens / s.cp,
                     columns = s.sequence_parallel ? whole / s.tp : whole;
  const std::int64_t first = token_share * whole + (s.sequence_parallel ? tensor * columns : 0);
  Share share(static_cast<std::size_t>(rows));
  for (std::int64_t b = 0; b < rows; ++b) {
    for (std::int64_t t = 0; t < columns; ++t)
      share[static_cast<std::size_t>(b)].push_back((batch_share * rows + b) * kTokens + first + t);
  }
  return share;
}

Share joined(const Share& a, const Share& b, int dim) {
  Share all = a;
  if (dim == 0)
    all.insert(all.end(), b.begin(), b.end());
  else
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i].insert(all[i].end(), b[i].begin(), b[i].end());
  return all;
}

Share cut(const Share& a, int dim, int parts, int part) {
  const std::size_t n = (dim == 0 ? a.size() : a[0].size()) / static_cast<std::size_t>(parts),
                    first = n * static_cast<std::size_t>(part);
  Share own;
  for (std::size_t i = dim == 0 ? first : 0; i < (dim == 0 ? first + n : a.size()); ++i) {
    const auto begin = a[i].begin() + static_cast<std::ptrdiff_t>(dim == 0 ? 0 : first);
    own.emplace_back(begin, dim == 0 ? a[i].end() : begin + static_cast<std::ptrdiff_t>(n));
  }
  return own;
}

/// All ranks' shares after the operations of a template that starts with `shares` of one buffer.
std::vector<Share> moved(const Program& program, TemplateId id, std::vector<Share> shares) {
  for (const Op& op : program.templates[id].ops) {
    const std::vector<Share> before = shares;
    for (int r = 0; r < static_cast<int>(shares.size()); ++r) {
      Share& mine = shares[static_cast<std::size_t>(r)];
      if (op.kind == OpKind::kCompute) {
        const model::SegmentShape& s = program.segments[op.segment];
        mine = cut(mine, s.dim, s.parts, (r / s.part_stride) % s.parts);
        continue;
      }
      const Group& g = program.groups[op.group];
      mine = before[static_cast<std::size_t>(g.base(r))];
      for (int i = 1; i < g.size; ++i)
        mine = joined(mine, before[static_cast<std::size_t>(g.base(r) + i * g.stride)], op.dim);
    }
  }
  return shares;
}

LayerStrategy any_strategy(base::Rng& rng, int ranks) {
  const auto divisor = [&rng](int n) {
    int d = static_cast<int>(rng.below(static_cast<std::uint64_t>(n))) + 1;
    while (n % d != 0) --d;
    return d;
  };
  LayerStrategy s;
  s.tp = divisor(ranks);
  s.cp = divisor(ranks / s.tp);
  s.dp = ranks / s.tp / s.cp;
  s.sequence_parallel = s.tp > 1 && rng.below(2) == 1;
  s.strided = rng.below(2) == 1;
  return s;
}

TEST(ReshardProperty, EveryRankGetsItsShareForwardAndBackward) {
  const model::ModelSpec model = model::find_model("llama-tiny").value();
  const LayerContext context{.precision = model::Precision::kFloat32,
                             .sequence = kTokens,
                             .micro_batch_sequences = kSequences,
                             .global_batch = kSequences};
  ASSERT_TRUE(rc::check("moved == needed", [&](std::uint64_t seed) {
    base::Rng rng(seed);
    constexpr int kRanks[] = {1, 2, 4, 6, 8, 12, 16};
    const int ranks = kRanks[rng.below(std::size(kRanks))];
    const LayerStrategy from = any_strategy(rng, ranks), to = any_strategy(rng, ranks);
    std::vector<Share> before, after;
    for (int r = 0; r < ranks; ++r)
      before.push_back(share_of(from, r)), after.push_back(share_of(to, r));
    const LayerTemplates t = lower_reshard(model, from, to, context);
    if (moved(t.program, t.forward, before) != after)
      RC_FAIL("forward " + to_string(from) + " to " + to_string(to));
    if (moved(t.program, t.backward, after) != before)
      RC_FAIL("backward " + to_string(from) + " to " + to_string(to));
  }));
}

}  // namespace
}  // namespace orrery::plan
