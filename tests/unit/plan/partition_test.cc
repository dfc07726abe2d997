// Partition sequences by numbers: every block is one number, so that a tensor has as many elements
// as slices, and data reach a device only by the moves and all-reduces that the algebra lists.
#include "plan/partition/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "base/numbers.h"
#include "plan/partition/layout.h"

namespace orrery::plan {
namespace {

using enum Dimension;
using Block = std::vector<int>;                // slices, one of each dimension
using Tensor = std::map<Block, std::int64_t>;  // its elements
using Numbers = std::vector<std::int64_t>;     // [device]

constexpr std::array kOutputDimensions{kBatch, kTokens, kOut};
constexpr std::array kPhases{Phase::kF, Phase::kB, Phase::kG};

Sequence parse(std::string_view text) { return parse_sequence(text).value(); }

Block block_of(const Partition& p, std::span<const Dimension> dimensions, Phase phase, int device,
               int step) {
  Block block;
  for (const Dimension d : dimensions) block.push_back(p.slice(d, phase, device, step));
  return block;
}

/// One linear operator, trained for some steps on the devices of a partition and densely.
class Training {
 public:
  explicit Training(const Sequence& sequence) : p_(sequence) {
    for (const Block& b : blocks(dimensions_of(Operand::kWeight))) weight_[b] = number();
    w_ = held(weight_, Operand::kWeight, Phase::kF, 0);
  }

  void step() {
    Tensor input, d_output, output, d_input, d_weight;
    for (const Block& b : blocks(dimensions_of(Operand::kInput))) input[b] = number();
    for (const Block& b : blocks(kOutputDimensions)) d_output[b] = number();
    for (int b = 0; b < p_.slices(kBatch); ++b)
      for (int m = 0; m < p_.slices(kTokens); ++m)
        for (int n = 0; n < p_.slices(kIn); ++n)
          for (int k = 0; k < p_.slices(kOut); ++k) {
            output[{b, m, k}] += input[{b, m, n}] * weight_[{n, k}];
            d_input[{b, m, n}] += d_output[{b, m, k}] * weight_[{n, k}];
            d_weight[{n, k}] += input[{b, m, n}] * d_output[{b, m, k}];
          }
    i_ = held(input, Operand::kInput, Phase::kF, 0);
    expect(run(Phase::kF), output, kOutputDimensions, Phase::kF);
    // The gradient comes in the layout of the output.
    d_o_ = held(d_output, Operand::kOutputGradient, Phase::kB, 0);
    for (int d = 0; d < p_.devices(); ++d)
      ASSERT_EQ(block_of(p_, kOutputDimensions, Phase::kB, d, 0),
                block_of(p_, kOutputDimensions, Phase::kF, d, p_.steps() - 1));
    expect(run(Phase::kB), d_input, dimensions_of(Operand::kInput), Phase::kB);
    const Numbers gradient = run(Phase::kG);
    expect(gradient, d_weight, dimensions_of(Operand::kWeight), Phase::kG);
    for (auto& [block, value] : weight_) value -= d_weight[block] % 7;
    for (std::size_t d = 0; d < w_.size(); ++d) w_[d] -= gradient[d] % 7;  // local
    EXPECT_EQ(w_, held(weight_, Operand::kWeight, Phase::kF, 0));
  }

  int messages = 0;  // of all devices

 private:
  std::int64_t number() { return static_cast<std::int64_t>(random_() % 19) - 9; }

  std::vector<Block> blocks(std::span<const Dimension> dimensions) const {
    std::vector<Block> all{{}};
    for (const Dimension d : dimensions) {
      std::vector<Block> longer;
      for (const Block& b : all)
        for (int s = 0; s < p_.slices(d); ++s) {
          longer.push_back(b);
          longer.back().push_back(s);
        }
      all = std::move(longer);
    }
    return all;
  }

  Numbers held(const Tensor& tensor, Operand operand, Phase phase, int step) const {
    Numbers numbers;
    for (int d = 0; d < p_.devices(); ++d)
      numbers.push_back(tensor.at(block_of(p_, dimensions_of(operand), phase, d, step)));
    return numbers;
  }

  Numbers& of(Operand operand) {
    return operand == Operand::kInput ? i_ : operand == Operand::kWeight ? w_ : d_o_;
  }

  /// Steps of a phase, then the all-reduce over the dimensions that it contracts.
  Numbers run(Phase phase) {
    Numbers sum(as_index(p_.devices()));
    for (int t = 0; t < p_.steps(); ++t) {
      const std::vector<Move> all = moves(p_, phase, t);
      const auto sent = [&](const Move& move, const Numbers& from) {
        Numbers to;
        for (int d = 0; d < p_.devices(); ++d) {
          to.push_back(from[as_index(move.sender[as_index(d)])]);
          messages += move.sender[as_index(d)] != d;
        }
        return to;
      };
      for (const Move& move : all)  // arrives before this step's product is added
        if (move.operand == Operand::kWeightGradient) sum = sent(move, sum);
      const Numbers& a = phase == Phase::kB ? d_o_ : i_;
      const Numbers& b = phase == Phase::kG ? d_o_ : w_;
      for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += a[d] * b[d];
      for (const Move& move : all)
        if (move.operand != Operand::kWeightGradient)
          of(move.operand) = sent(move, of(move.operand));
    }
    std::uint32_t group = 0;
    for (const Dimension d : contracted(phase)) group |= p_.split_mask(d);
    Numbers reduced(sum.size());
    for (std::size_t d = 0; d < sum.size(); ++d)
      for (std::size_t e = 0; e < sum.size(); ++e)
        if (((d ^ e) & ~std::size_t{group}) == 0) reduced[d] += sum[e];
    return reduced;
  }

  static std::vector<Dimension> contracted(Phase phase) {
    if (phase == Phase::kF) return {kIn};
    if (phase == Phase::kB) return {kOut};
    return {kBatch, kTokens};
  }

  void expect(const Numbers& numbers, const Tensor& tensor, std::span<const Dimension> dimensions,
              Phase phase) const {
    for (int d = 0; d < p_.devices(); ++d)
      ASSERT_EQ(numbers[as_index(d)], tensor.at(block_of(p_, dimensions, phase, d, p_.steps() - 1)))
          << to_string(p_.sequence()) << ' ' << to_string(phase) << " on device " << d;
  }

  Partition p_;
  std::mt19937_64 random_{1};
  Tensor weight_;
  Numbers i_, w_, d_o_;
};

TEST(Partition, TrainsAsOneProcess) {
  for (const char* text : {"P2x2", "P4x4", "P8x8", "P2x2,P2x2", "K,P2x2", "N,P2x2", "B,P2x2",
                           "P2x2,K", "M,P2x2,N", "P4x4,B", "N,M", "B,K,K", "B,N,N", "P2x2,P4x4",
                           "P4x4,P2x2", "P2x2+1", "P4x4+3", "P8x8+2", "K,P4x4+1,B"}) {
    Training training(parse(text));
    for (int step = 0; step < 3; ++step) training.step();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Partition, TrainsUnderEverySequenceOfUpToFourBits) {
  const SequenceSpace space{
      .dimensions = {kBatch, kTokens, kIn, kOut}, .limits = {}, .primitives = true, .skews = 1};
  int count = 0;
  for (int bits = 1; bits <= 4; ++bits)
    for (const Sequence& s : sequences(space, bits)) {
      Training(s).step();
      if (testing::Test::HasFatalFailure()) return;
      ++count;
    }
  EXPECT_EQ(count, 4 + 18 + 80 + 358);
}

TEST(Partition, SendsSixMessagesAStepAndTwo) {
  for (int k = 1; k <= 3; ++k) {
    Training training(Sequence{{.k = k}});
    training.step();
    EXPECT_EQ(training.messages, (6 * ((1 << k) - 1) + 2) << (2 * k));
  }
}

TEST(Partition, CountsAsPublished) {
  const SequenceSpace space{
      .dimensions = {kBatch, kTokens, kIn, kOut}, .limits = {}, .primitives = true};
  const std::vector<std::size_t> published{17, 72, 306, 1300, 5524};
  for (int bits = 2; bits <= 6; ++bits) {
    const std::vector<Sequence> all = sequences(space, bits);
    EXPECT_EQ(all.size(), published[as_index(bits - 2)]);
    std::set<std::string> names;
    for (const Sequence& s : all) {
      names.insert(to_string(s));
      EXPECT_EQ(parse(to_string(s)), s);
    }
    EXPECT_EQ(names.size(), all.size());
  }
}

/// Senders of the paper's Table 1, as (row, column) beside the receiver's, by step: before the one
/// before the last, that one, the last.
using Offset = std::optional<std::pair<int, int>>;
using Offsets = std::array<Offset, 3>;
constexpr Offsets in_all_but_the_last(int row, int column) {
  return {Offset({row, column}), Offset({row, column}), std::nullopt};
}
const std::map<std::pair<Phase, Operand>, Offsets> kPublishedSenders{
    {{Phase::kF, Operand::kInput}, in_all_but_the_last(0, 1)},
    {{Phase::kF, Operand::kWeight}, in_all_but_the_last(1, 0)},
    {{Phase::kB, Operand::kWeight}, {Offset({-1, 1}), Offset({-1, 1}), Offset({0, 1})}},
    {{Phase::kB, Operand::kOutputGradient}, in_all_but_the_last(0, 1)},
    {{Phase::kG, Operand::kInput}, {Offset({1, -1}), Offset({1, 0}), std::nullopt}},
    {{Phase::kG, Operand::kOutputGradient}, {Offset({1, 0}), Offset({1, 1}), std::nullopt}},
    {{Phase::kG, Operand::kWeightGradient}, {std::nullopt, std::nullopt, Offset({0, 1})}},
};

Offset published_sender(Phase phase, Operand operand, int t, int size) {
  const auto at = kPublishedSenders.find({phase, operand});
  if (at == kPublishedSenders.end()) return std::nullopt;
  return at->second[as_index(std::clamp(t - (size - 3), 0, 2))];
}

TEST(Partition, MovesAsInTableOne) {
  for (int k = 1; k <= 3; ++k) {
    const Partition p(Sequence{{.k = k}});
    const int size = 1 << k;
    const auto device = [&](int r, int c) {
      int d = 0;
      for (int j = k - 1; j >= 0; --j) d = 4 * d + 2 * (r >> j & 1) + (c >> j & 1);
      return d;
    };
    for (const Phase phase : kPhases)
      for (int t = 0; t < size; ++t) {
        std::map<Operand, std::vector<int>> found;
        for (const Move& move : moves(p, phase, t)) found[move.operand] = move.sender;
        for (const Operand o : {Operand::kInput, Operand::kWeight, Operand::kOutputGradient,
                                Operand::kWeightGradient}) {
          const auto offset = published_sender(phase, o, t, size);
          ASSERT_EQ(found.contains(o), offset.has_value())
              << k << ' ' << to_string(phase) << ' ' << t << ' ' << to_string(o);
          if (!offset) continue;
          for (int r = 0; r < size; ++r)
            for (int c = 0; c < size; ++c)
              EXPECT_EQ(
                  found[o][as_index(device(r, c))],
                  device((r + offset->first + size) % size, (c + offset->second + size) % size));
        }
      }
  }
}

TEST(Partition, ReducesInGroupsAsPublished) {
  const auto sizes = [](std::string_view text) {
    const Partition p(parse(text));
    const auto size = [&](std::initializer_list<Dimension> dimensions) {
      std::uint32_t mask = 0;
      for (const Dimension d : dimensions) mask |= p.split_mask(d);
      return 1 << std::popcount(mask);
    };
    return std::array{size({kIn}), size({kOut}), size({kBatch, kTokens})};
  };
  EXPECT_EQ(sizes("N,M"), (std::array{2, 1, 2}));
  EXPECT_EQ(sizes("B,K,K"), (std::array{1, 4, 2}));
  EXPECT_EQ(sizes("B,N,N"), (std::array{4, 1, 2}));
  EXPECT_EQ(sizes("K,P2x2"), (std::array{1, 2, 1}));
  EXPECT_EQ(sizes("N,P2x2"), (std::array{2, 1, 1}));
  EXPECT_EQ(sizes("B,P2x2"), (std::array{1, 1, 2}));
  EXPECT_EQ(sizes("P2x2"), (std::array{1, 1, 1}));
  EXPECT_EQ(sizes("P4x4"), (std::array{1, 1, 1}));
}

TEST(Partition, RefusesUnknownElements) {
  for (const char* text : {"X", "K,,M", "P3x3", "P2x4", "P2x2+2", "k"}) {
    const auto sequence = parse_sequence(text);
    ASSERT_FALSE(sequence) << text;
    EXPECT_EQ(sequence.error().front().code, base::ErrorCode::kBadValue);
  }
}

/// What devices must fetch, block by block of the finer grid.
Traffic counted_traffic(const Partition& from, std::span<const Dimension> held, const Partition& to,
                        std::span<const Dimension> wanted, int host_bits) {
  constexpr int kCells = 1 << kMostBits;  // of a dimension
  const auto cells = [&](const Partition& p, std::span<const Dimension> dimensions, int device,
                         int step) {
    std::vector<std::array<int, 2>> ranges;
    for (const Dimension d : dimensions) {
      const int size = kCells / p.slices(d), first = p.slice(d, Phase::kF, device, step) * size;
      ranges.push_back({first, first + size});
    }
    return ranges;
  };
  Traffic traffic;
  for (int device = 0; device < from.devices(); ++device) {
    const auto want = cells(to, wanted, device, 0);
    // Blocks are products of ranges: walk cells of the finer slices of either.
    for (int b = want[0][0]; b < want[0][1]; ++b)
      for (int f = want[1][0]; f < want[1][1]; ++f) {
        const auto holds = [&](int owner) {
          const auto have = cells(from, held, owner, from.steps() - 1);
          return b >= have[0][0] && b < have[0][1] && f >= have[1][0] && f < have[1][1];
        };
        if (holds(device)) continue;
        bool near = false;
        for (int other = 0; other < 1 << host_bits; ++other)
          near = near || holds((device >> host_bits << host_bits) + other);
        (near ? traffic.in_hosts : traffic.across_hosts) += 1;
      }
  }
  return traffic;
}

TEST(Layout, CountsWhatMoves) {
  constexpr std::array kHeld{kTokens, kOut}, kWanted{kTokens, kIn};
  const SequenceSpace space{
      .dimensions = {kBatch, kTokens, kIn, kOut}, .limits = {}, .primitives = true, .skews = 1};
  std::mt19937 random{3};
  for (int bits = 1; bits <= 5; ++bits) {
    const std::vector<Sequence> all = sequences(space, bits);
    for (int i = 0; i < 12; ++i) {
      const Partition from(all[random() % all.size()]), to(all[random() % all.size()]);
      const int host_bits = as_int(random() % static_cast<unsigned>(bits + 1));
      const Layout64 held = layout_of(from, kHeld, Phase::kF, from.steps() - 1);
      // Cells are 2^-12 of the tensor: the unit of Traffic.
      EXPECT_EQ(traffic(held, layout_of(to, kWanted, Phase::kF, 0), bits, host_bits),
                counted_traffic(from, kHeld, to, kWanted, host_bits))
          << to_string(from.sequence()) << " to " << to_string(to.sequence());
    }
  }
}

TEST(Layout, CountsBothWaysAtOnce) {
  constexpr std::array kHeld{kTokens, kOut}, kWanted{kTokens, kIn};
  const SequenceSpace space{
      .dimensions = {kBatch, kTokens, kIn, kOut}, .limits = {}, .primitives = true, .skews = 1};
  std::mt19937 random{4};
  for (int bits = 1; bits <= kMostBits; ++bits) {
    const std::vector<Sequence> all = sequences(space, bits);
    const auto any = [&](std::span<const Dimension> dimensions) {
      const Partition p(all[random() % all.size()]);
      return layout_of(p, dimensions, Phase::kF, p.steps() - 1);
    };
    const int host_bits = as_int(random() % static_cast<unsigned>(bits + 1));
    std::vector<Layout64> held, wanted;
    for (int i = 0; i < 8; ++i) held.push_back(any(kHeld));
    for (int i = 0; i < 12; ++i) wanted.push_back(any(kWanted));
    const TrafficTable table(held, wanted, bits, host_bits);
    for (std::size_t h = 0; h < held.size(); ++h) {
      constexpr std::size_t kFirst = 3, kColumns = 9;
      std::array<std::array<std::int32_t, kColumns>, 4> moved{};
      table.between(h, kFirst, {moved[0], moved[1]}, {moved[2], moved[3]});
      for (std::size_t i = 0; i < kColumns; ++i) {
        const Layout64& other = wanted[kFirst + i];
        EXPECT_EQ((Traffic{moved[0][i], moved[1][i]}), traffic(held[h], other, bits, host_bits));
        EXPECT_EQ((Traffic{moved[2][i], moved[3][i]}), traffic(other, held[h], bits, host_bits));
      }
    }
  }
}

TEST(Layout, SkewLeavesAChainInPlace) {
  constexpr std::array kHeld{kTokens, kOut}, kWanted{kTokens, kIn};
  for (int k = 1; k <= 3; ++k) {
    const Partition first(Sequence{{.k = k}}), second(Sequence{{.k = k}}),
        skewed(Sequence{{.k = k, .skew = 1}});
    const int bits = 2 * k;
    const Layout64 held = layout_of(first, kHeld, Phase::kF, first.steps() - 1);
    // 1 - 2^-k of the blocks move without, none with.
    EXPECT_EQ(traffic(held, layout_of(second, kWanted, Phase::kF, 0), bits, bits).in_hosts,
              (1 << kShareBits) - (1 << (kShareBits - k)));
    EXPECT_EQ(traffic(held, layout_of(skewed, kWanted, Phase::kF, 0), bits, bits), Traffic{});
  }
}

}  // namespace
}  // namespace orrery::plan
