// Changes of layout element by element: what a device fetches is what it wants, and as much as
// layouts count.
#include "plan/partition/redistribution.h"

#include <gtest/gtest.h>

#include <random>

#include "base/numbers.h"

namespace orrery::plan {
namespace {

constexpr std::int64_t kExtent = 64;  // halves as often as there are id bits

/// Of [1, 1, tokens, features].
Layout64 layout(const Partition& p, Dimension features, int step) {
  const std::array dimensions{Dimension::kTokens, features};
  const Layout64 two = layout_of(p, dimensions, Phase::kF, step);
  Layout64 l;
  l.dimensions[2] = two.dimensions[0];
  l.dimensions[3] = two.dimensions[1];
  return l;
}

/// Where a device's block begins.
Extents4 begin_of(const Layout64& l, const Extents4& block, int device) {
  Extents4 begin{};
  for (std::size_t x = 0; x < begin.size(); ++x) {
    int slice = 0;
    for (int j = 0; j < l.dimensions[x].bits; ++j)
      slice = 2 * slice + as_int(l.dimensions[x].planes[as_index(j)] >> device & 1);
    begin[x] = slice * block[x];
  }
  return begin;
}

RedistributedTensor change(const Partition& from, const Partition& to) {
  return {.held = layout(from, Dimension::kOut, from.steps() - 1),
          .wanted = layout(to, Dimension::kIn, 0),
          .extents = {1, 1, kExtent, kExtent}};
}

void expect_what_is_wanted(const RedistributedTensor& t, int bits, int device) {
  std::int64_t cells = 0;
  for (const Fetch& f : fetches(t, bits, device)) {
    const Extents4 there = begin_of(t.held, t.held_extents(), f.sender),
                   here = begin_of(t.wanted, t.wanted_extents(), device);
    for (std::size_t x = 0; x < there.size(); ++x) {
      EXPECT_EQ(there[x] + f.held[x], here[x] + f.wanted[x]);
      EXPECT_LE(f.held[x] + t.cell()[x], t.held_extents()[x]);
    }
    ++cells;
  }
  EXPECT_EQ(cells * t.cell_elements(), t.wanted_elements());
}

TEST(Redistribution, FetchesWhatIsWantedAndAsMuchAsLayoutsCount) {
  const SequenceSpace space{
      .dimensions = {Dimension::kBatch, Dimension::kTokens, Dimension::kIn, Dimension::kOut},
      .limits = {},
      .primitives = true,
      .skews = 1};
  std::mt19937 random{5};
  for (int bits = 1; bits <= 5; ++bits) {
    const std::vector<Sequence> all = sequences(space, bits);
    for (int i = 0; i < 20; ++i) {
      const Partition from(all[random() % all.size()]), to(all[random() % all.size()]);
      const Redistribution r{bits, {change(from, to)}};
      const RedistributedTensor& t = r.tensors.front();
      std::int64_t received = 0;
      for (int device = 0; device < 1 << bits; ++device) {
        expect_what_is_wanted(t, bits, device);
        received += received_elements(r, device);
      }
      const Traffic counted = traffic(t.held, t.wanted, bits, bits);
      EXPECT_EQ(received, counted.in_hosts * kExtent * kExtent >> kShareBits)
          << to_string(from.sequence()) << " to " << to_string(to.sequence());
    }
  }
}

TEST(Redistribution, ComesFromTheOwnHostWhereItHasTheCell) {
  // M on the first bit, copies on the second: device 3 wants all and finds the other half at 1.
  const RedistributedTensor t{
      .held = layout(Partition(parse_sequence("M,R").value()), Dimension::kOut, 0),
      .wanted = {},
      .extents = {1, 1, 2, 2}};
  const std::vector<Fetch> all = fetches(t, 2, 3);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].sender, 1);
  EXPECT_EQ(all[1].sender, 3);
}

}  // namespace
}  // namespace orrery::plan
