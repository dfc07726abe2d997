#pragma once
/// \file
/// Spatial-temporal partitions of an operator (Wang et al., PrimePar, ASPLOS 2024,
/// doi 10.1145/3620666.3651357, section 3), as integers alone.
///
/// 2^n devices have the id bits D = (d_1 .. d_n), d_1 the highest. A linear operator has the
/// dimensions B (batch), M (tokens), N (input features), K (output features) and three phases:
///
///   F  O[B,M,K] = I[B,M,N] W[N,K]     B  dI = dO W^T     G  dW = I^T dO
///
/// The *slice* of a dimension X that a device works on in step t of a phase starts at 0. The
/// elements of a sequence consume the id bits from d_1 on, i is the next:
///
///   split of X   slice(X) = 2 slice(X) + d_i in every phase; one bit
///   P(2^k x 2^k) S = 2^k, 2k bits:
///                r = sum_j 2^(k-1-j) d_(i+2j),  c = sum_j 2^(k-1-j) d_(i+2j+1),  j < k
///                S steps; slice(X) = S slice(X) + the entry below mod S
///
///                phase   M        N                K
///                F       r        r + c + t        c
///                B       r        r + c - 1        c + t
///                G       r + t    r + c - 1 + e    c - 1 + e      e = 1 in the last step, else 0
///
/// Several primitives nest: the first one's steps are outermost. Skew s replaces c by c - s r mod
/// S: with s = 1, 2, .. along a chain of products, the output of one lies where the next one reads
/// it, and only the input's gradient moves, by one place.
///
/// Invariants (tests/unit/plan/partition_test.cc trains by them):
///   1. No all-reduce inside P: the contracted dimension takes all S values on every device.
///   2. No replica inside P: in every step the slices of a tensor are distinct over (r, c).
///   3. I ends F where G starts, W ends F where B starts, dO ends B where G starts, and W after
///      the last move of B, W at the start of F and dW at the end of G lie alike.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/segment.h"

namespace orrery::plan {

using model::Phase;

/// Of operators: batch, tokens (queries), input and output features; attention products also heads
/// and keys; kReplicas: devices that do the same.
enum class Dimension : std::uint8_t { kBatch, kTokens, kIn, kOut, kHeads, kKeys, kReplicas };
inline constexpr int kDimensions = 7;
/// B, M, N, K, H, L, R.
char letter_of(Dimension d);

/// A split of one dimension, or P(2^k x 2^k).
struct Element {
  Dimension split = Dimension::kBatch;
  int k = 0;     // > 0: a primitive
  int skew = 0;  // of a primitive, below 2^k
  int bits() const { return k > 0 ? 2 * k : 1; }
  bool operator==(const Element&) const = default;
};
using Sequence = std::vector<Element>;

/// "K,P2x2", "B,M", "P4x4+1" with a skew of 1; "-" without elements.
std::string to_string(const Sequence& sequence);
/// Inverse of to_string. Errors: an unknown element, a skew that the primitive has not.
base::Result<Sequence> parse_sequence(std::string_view text);

inline constexpr int kMostBits = 6;  // 64 devices: a set of devices is a word

class Partition {
 public:
  /// @pre at most kMostBits bits.
  explicit Partition(Sequence sequence);

  const Sequence& sequence() const { return sequence_; }
  int bits() const { return bits_; }
  int devices() const { return 1 << bits_; }
  int steps() const { return steps_; }
  /// How many slices a dimension has.
  int slices(Dimension d) const { return 1 << slice_bits_[static_cast<std::size_t>(d)]; }
  int slice_bits(Dimension d) const { return slice_bits_[static_cast<std::size_t>(d)]; }
  /// The one that a device works on. @pre phase F, B or G; step < steps().
  int slice(Dimension d, Phase phase, int device, int step) const;
  /// Of every device.
  std::vector<int> slices_of(Dimension d, Phase phase, int step) const;
  /// Id bits that split a dimension outside of primitives, as a mask of device numbers: those of
  /// the contracted dimensions span the groups of an all-reduce.
  std::uint32_t split_mask(Dimension d) const { return split_mask_[static_cast<std::size_t>(d)]; }
  std::uint32_t primitive_mask() const { return row_mask_ | column_mask_; }
  /// Bits of r and of c of all primitives.
  std::uint32_t row_mask() const { return row_mask_; }
  std::uint32_t column_mask() const { return column_mask_; }

 private:
  Sequence sequence_;
  int bits_ = 0, steps_ = 1;
  std::array<int, kDimensions> slice_bits_{};
  std::array<std::uint32_t, kDimensions> split_mask_{};
  std::uint32_t row_mask_ = 0, column_mask_ = 0;
};

/// Tensors of a linear operator, each of two or three dimensions.
enum class Operand : std::uint8_t { kInput, kWeight, kOutputGradient, kWeightGradient };
std::string_view to_string(Operand operand);
std::span<const Dimension> dimensions_of(Operand operand);

/// Blocks of `operand` travel beside a step: device d gets what sender[d] has (itself: nothing).
struct Move {
  Operand operand = Operand::kInput;
  std::vector<int> sender;
};
/// What travels beside step `step` of a linear operator, so that the next step finds its operands:
/// those of the same phase, at the end of B the weights of the next F; in G the sum so far of the
/// weights' gradient, to where this step's own product is added.
std::vector<Move> moves(const Partition& partition, Phase phase, int step);

/// The move from where a phase has the blocks of an operand in a step to where another wants them
/// in one of its own; none where they lie alike. @pre both have every block, primitive by
/// primitive.
std::optional<Move> move_between(const Partition& partition, Operand operand, Phase from,
                                 int from_step, Phase to, int to_step);
/// A move as an order of the devices that differ in the primitives' id bits alone: the one with
/// these bits i receives from the one with bits senders[i].
std::vector<int> senders_of(const Partition& partition, const Move& move);

/// Why a sequence is not one of `bits` bits of the space; empty: it is.
std::string fault_of(const struct SequenceSpace& space, const Sequence& sequence, int bits);

/// Sequences of `bits` bits that split `dimensions`, in lexicographic order, with P of every size
/// where `primitives`, each with skews 0 .. `skews` that it has. At most limit[i] bits split
/// dimensions[i], counting primitives' (k of M, N and K each). Replicas are neighbours, or of
/// one place in blocks of neighbours: R takes the first bits or the last. Without limits and skews
/// there are f(n) = 4 f(n-1) + sum_k f(n-2k) of a linear: 4, 17, 72, 306, 1300, 5524.
struct SequenceSpace {
  std::vector<Dimension> dimensions;
  std::vector<int> limits;  // bits of each
  bool primitives = false;
  int skews = 0;
  int least_skew = 0;  // 1: for operators that only follow a layout, which no skew makes M,K
};
std::vector<Sequence> sequences(const SequenceSpace& space, int bits);

}  // namespace orrery::plan
