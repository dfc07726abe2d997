#include "costmodel/closed_form/operation_prices.h"

#include "base/check.h"
#include "base/numbers.h"
#include "plan/program/memory.h"

namespace orrery::costmodel {
namespace {

std::uint64_t mix(std::uint64_t digest, std::uint64_t value) {
  digest ^= value + 0x9e3779b97f4a7c15ULL + (digest << 6) + (digest >> 2);
  return digest * 0xff51afd7ed558ccdULL;
}

std::uint64_t digest_of(const model::SegmentShape& s) {
  std::uint64_t d = static_cast<std::uint64_t>(s.kind);
  for (const std::int64_t v : {s.sequences, s.tokens, s.in, s.out, s.heads, s.kv_heads, s.elements})
    d = mix(d, static_cast<std::uint64_t>(v));
  return d;
}

std::uint64_t word(Ranks ranks) {
  return static_cast<std::uint64_t>(ranks.first) << 32 | static_cast<std::uint64_t>(ranks.count);
}

}  // namespace

OperationPrices::ShapeIndex OperationPrices::shape(const model::SegmentShape& shape) {
  const std::uint64_t digest = digest_of(shape);
  const auto [begin, end] = known_->by_digest.equal_range(digest);
  for (auto i = begin; i != end; ++i) {
    if (known_->shapes[i->second] == shape) return i->second;
  }
  const auto index = static_cast<ShapeIndex>(known_->shapes.size());
  known_->shapes.push_back(shape);
  known_->by_digest.emplace(digest, index);
  return index;
}

const OperationPrices::Segment& OperationPrices::segment(ShapeIndex index, plan::Phase phase,
                                                         std::int64_t b, DeviceKinds kinds) {
  constexpr std::int64_t kMaxSequences = std::int64_t{1} << 34;
  ORRERY_CHECK(b >= 0 && b < kMaxSequences, "{} sequences on a rank", b);
  const std::uint64_t key =
      (static_cast<std::uint64_t>(b) * 4 + static_cast<std::uint64_t>(phase)) << 28 | index;
  const auto [segment, fresh] = segments_on(kinds)[{key}];
  if (fresh) {
    const model::SegmentShape s = known_->shapes[index].of_sequences(b);
    segment = {cost_.segment_ps(s, phase, kinds),
               plan::transient_bytes(s, phase, cost_.loss_bytes())};
  }
  return segment;
}

OperationPrices::Segments& OperationPrices::segments_on(DeviceKinds kinds) {
  if (!cost_.mixed()) kinds = kAllKinds;
  if (last_ == nullptr || last_kinds_ != kinds) {
    last_ = &segments_[kinds];
    last_kinds_ = kinds;
  }
  return *last_;
}

std::int64_t OperationPrices::collective_ps(plan::Collective op, const plan::Group& group,
                                            std::int64_t bytes, bool in_pieces, Ranks ranks) {
  if (group.size <= 1 || ranks.count == 0) return 0;
  const auto what = static_cast<std::uint64_t>(op) << 1 | (in_pieces ? 1 : 0);
  const auto [ps, fresh] =
      collectives_[{what << 60 | static_cast<std::uint64_t>(group.size) << 30 |
                        static_cast<std::uint64_t>(group.stride),
                    word(ranks), group.bits, static_cast<std::uint64_t>(bytes)}];
  if (!fresh) return ps;
  return ps = duration_ps(op, group, bytes, in_pieces, [&](Pattern p) -> const PathSummary& {
           return paths_of(p, group, ranks);
         });
}

std::int64_t OperationPrices::collective_ps(plan::Collective op, const plan::Group& group,
                                            std::int64_t bytes, bool in_pieces, Ranks part,
                                            Ranks all) {
  if (part == all) return collective_ps(op, group, bytes, in_pieces, all);
  if (group.size <= 1) return 0;
  const auto what = static_cast<std::uint64_t>(op) << 1 | (in_pieces ? 1 : 0);
  const auto [ps, fresh] =
      in_parts_[{what << 60 | static_cast<std::uint64_t>(group.size) << 30 |
                     static_cast<std::uint64_t>(group.stride),
                 word(part), word(all), group.bits, static_cast<std::uint64_t>(bytes)}];
  if (!fresh) return ps;
  return ps = duration_ps(op, group, bytes, in_pieces, [&](Pattern p) -> const PathSummary& {
           return paths_of(p, group, part, all);
         });
}

template <class PathsOf>
std::int64_t OperationPrices::duration_ps(plan::Collective op, const plan::Group& group,
                                          std::int64_t bytes, bool in_pieces,
                                          const PathsOf& paths_of) const {
  const CollectivePrices& prices = cost_.communication();
  const RunsAs how =
      prices.runs_as(op, group, bytes, paths_of(CollectivePrices::usual_pattern(op)), in_pieces);
  return prices.duration_ps(op, group, bytes, how, paths_of(how.pattern));
}

const PathSummary& OperationPrices::paths_of(Pattern pattern, const plan::Group& group, Ranks part,
                                             Ranks all) {
  const auto [paths, fresh] = known_->part_paths[{static_cast<std::uint64_t>(pattern) << 60 |
                                                      static_cast<std::uint64_t>(group.size) << 30 |
                                                      static_cast<std::uint64_t>(group.stride),
                                                  word(part), word(all), group.bits}];
  if (fresh) {
    paths = cost_.communication().paths().loads_of_part(pattern, group, part.first, part.count,
                                                        all.first, all.count);
    known_->routes += paths.routes;
  }
  return paths;
}

const PathSummary& OperationPrices::paths_of(Pattern pattern, const plan::Group& group,
                                             Ranks ranks) {
  // Places of a stage that lie on hosts alike, and the ranks of each, have one entry.
  const CollectivePaths& all = cost_.communication().paths();
  if (const auto period = period_of(all.topology(), group, ranks.first, ranks.count))
    ranks = {0, *period};
  const auto [paths, fresh] = known_->paths[{static_cast<std::uint64_t>(pattern) << 60 |
                                                 static_cast<std::uint64_t>(group.size) << 30 |
                                                 static_cast<std::uint64_t>(group.stride),
                                             word(ranks), group.bits}];
  if (fresh) {
    paths = all.summary(pattern, group, ranks.first, ranks.count);
    known_->routes += paths.routes;
  }
  return paths;
}

std::int64_t OperationPrices::exchange_ps(Ranks ranks, int peer_offset, std::int64_t bytes) {
  if (peer_offset == 0) return 0;
  const auto [ps, unpriced] =
      exchanges_[{as_u32(peer_offset), word(ranks), static_cast<std::uint64_t>(bytes)}];
  if (!unpriced) return ps;
  const auto [paths, fresh] =
      known_->paths[{std::uint64_t{7} << 60 | as_u32(peer_offset), word(ranks), 0}];
  if (fresh) paths = cost_.communication().paths().summary(ranks.first, ranks.count, peer_offset);
  return ps = cost_.communication().exchange_ps(peer_offset, bytes, paths);
}

std::int64_t OperationPrices::copy_ps(bool to_host, std::int64_t bytes, Ranks ranks) const {
  const auto ps = cost_.copy_ps(to_host, bytes, ranks.first, ranks.count);
  ORRERY_CHECK(ps.has_value(), "no way to the hosts of ranks from {} on", ranks.first);
  return *ps;
}

}  // namespace orrery::costmodel
