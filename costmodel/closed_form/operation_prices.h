#pragma once
/// \file
/// Prices of single operations for the closed forms, each found once.
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "costmodel/closed_form/price_table.h"
#include "costmodel/cost_model.h"
#include "model/segment.h"
#include "plan/program/program.h"

namespace orrery::costmodel {

/// The ranks of a stage: [first, first + count).
struct Ranks {
  int first = 0, count = 0;
  bool operator==(const Ranks&) const = default;
};

/// Prices of segments and groups, each found once.
class OperationPrices {
 public:
  explicit OperationPrices(const CostModel& cost)
      : cost_(cost), known_(std::make_shared<Known>()) {}
  /// Of a draw of the model that `like` prices by: shapes have the same numbers, groups the same
  /// paths.
  OperationPrices(const CostModel& drawn, const OperationPrices& like)
      : cost_(drawn), known_(like.known_) {}
  using ShapeIndex = std::uint32_t;
  /// Dense number of a shape; equal shapes have equal numbers.
  ShapeIndex shape(const model::SegmentShape& shape);
  const model::SegmentShape& shape_of(ShapeIndex index) const { return known_->shapes[index]; }
  /// Of the shape for b sequences (flat segments stay as they are).
  struct Segment {
    std::int64_t ps = 0, transient_bytes = 0;
  };
  const Segment& segment(ShapeIndex index, plan::Phase phase, std::int64_t b,
                         DeviceKinds kinds = kAllKinds);
  const CostModel& cost() const { return cost_; }
  /// 0 on no ranks. `in_pieces`: beside a product.
  std::int64_t collective_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                             bool in_pieces, Ranks ranks);
  /// Of the groups of `part`, while those of `all` ranks run. @pre groups of `part` are whole.
  std::int64_t collective_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                             bool in_pieces, Ranks part, Ranks all);
  std::int64_t exchange_ps(Ranks ranks, int peer_offset, std::int64_t bytes);
  /// @pre the ranks have ways to their hosts (CostModel::check_copies).
  std::int64_t copy_ps(bool to_host, std::int64_t bytes, Ranks ranks) const;
  /// Looked up so far.
  std::uint64_t routes() const { return known_->routes; }
  /// Operations so far: kLowered for each that was lowered, one each time that it was priced.
  std::uint64_t priced() const { return priced_; }
  void count(std::uint64_t operations) { priced_ += operations; }
  static constexpr std::uint64_t kLowered = 8;

 private:
  /// What does not depend on prices.
  struct Known {
    std::vector<model::SegmentShape> shapes;
    std::unordered_multimap<std::uint64_t, ShapeIndex> by_digest;
    PriceTable<3, PathSummary> paths;       // (what, ranks, id bits of a group)
    PriceTable<4, PathSummary> part_paths;  // (what, part, all, id bits of a group)
    std::uint64_t routes = 0;
  };
  const PathSummary& paths_of(Pattern pattern, const plan::Group& group, Ranks ranks);
  const PathSummary& paths_of(Pattern pattern, const plan::Group& group, Ranks part, Ranks all);
  template <class PathsOf>
  std::int64_t duration_ps(plan::Collective op, const plan::Group& group, std::int64_t bytes,
                           bool in_pieces, const PathsOf& paths_of) const;

  const CostModel& cost_;
  std::shared_ptr<Known> known_;
  using Segments = PriceTable<1, Segment>;  // of (shape, phase, b)
  Segments& segments_on(DeviceKinds kinds);
  std::map<DeviceKinds, Segments> segments_;
  PriceTable<4, std::int64_t> collectives_;  // of (what, ranks, id bits of a group, bytes)
  PriceTable<5, std::int64_t> in_parts_;     // of (what, part, all, id bits of a group, bytes)
  PriceTable<3, std::int64_t> exchanges_;    // of (offset of the peer, ranks, bytes)
  DeviceKinds last_kinds_ = 0;               // asked for last
  Segments* last_ = nullptr;
  std::uint64_t priced_ = 0;
};

}  // namespace orrery::costmodel
