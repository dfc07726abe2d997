#include "plan/partition/partition.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/check.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::plan {
namespace {

constexpr std::string_view kLetters = "BMNKHLR";

/// Slice of a dimension inside a primitive of S slices.
int primitive_slice(Dimension d, Phase phase, int r, int c, int t, int size) {
  const int last = t == size - 1 ? 1 : 0;
  switch (phase) {
    case Phase::kF: return d == Dimension::kTokens ? r : d == Dimension::kIn ? r + c + t : c;
    case Phase::kB: return d == Dimension::kTokens ? r : d == Dimension::kIn ? r + c - 1 : c + t;
    default:
      return d == Dimension::kTokens ? r + t
             : d == Dimension::kIn   ? r + c - 1 + last
                                     : c - 1 + last;
  }
}

bool in_primitive(Dimension d) {
  return d == Dimension::kTokens || d == Dimension::kIn || d == Dimension::kOut;
}

std::optional<Element> parse_element(std::string_view text) {
  if (text.size() == 1) {
    const auto at = kLetters.find(text.front());
    if (at == kLetters.npos) return std::nullopt;
    return Element{.split = static_cast<Dimension>(at)};
  }
  for (int k = 1; 2 * k <= kMostBits; ++k)
    for (int skew = 0; skew < 1 << k; ++skew)
      if (const Element e{.k = k, .skew = skew}; to_string(Sequence{e}) == text) return e;
  return std::nullopt;
}

bool is_replicas(const Element& e) { return e.k == 0 && e.split == Dimension::kReplicas; }
bool has_replicas(const Sequence& s) { return std::ranges::any_of(s, is_replicas); }
/// Behind which only replicas may follow: not those that began it.
bool ends_in_replicas(const Sequence& s) {
  return !s.empty() && is_replicas(s.back()) && !is_replicas(s.front());
}

/// Appends all ends of `head` that use up `bits`; `room`: bits left to each dimension.
void extend(const SequenceSpace& space, int bits, std::vector<int>& room, Sequence& head,
            std::vector<Sequence>& all) {
  if (bits == 0) {
    all.push_back(head);
    return;
  }
  const bool behind_replicas = ends_in_replicas(head);
  for (std::size_t i = 0; i < space.dimensions.size(); ++i) {
    const Dimension d = space.dimensions[i];
    const bool replicas = d == Dimension::kReplicas;
    if (room[i] == 0 || (behind_replicas && !replicas)) continue;
    if (replicas && !behind_replicas && !std::ranges::all_of(head, is_replicas) &&
        has_replicas(head))
      continue;  // a second block of them
    --room[i];
    head.push_back({.split = d});
    extend(space, bits - 1, room, head, all);
    head.pop_back();
    ++room[i];
  }
  for (int k = 1; space.primitives && !behind_replicas && 2 * k <= bits; ++k) {
    const auto use = [&](int sign) {
      bool fits = true;
      for (std::size_t i = 0; i < room.size(); ++i)
        if (in_primitive(space.dimensions[i])) fits = (room[i] += sign * k) >= 0 && fits;
      return fits;
    };
    if (use(-1))
      for (int skew = space.least_skew; skew <= std::min(space.skews, (1 << k) - 1); ++skew) {
        head.push_back({.k = k, .skew = skew});
        extend(space, bits - 2 * k, room, head, all);
        head.pop_back();
      }
    use(1);
  }
}

}  // namespace

char letter_of(Dimension d) { return kLetters[static_cast<std::size_t>(d)]; }

std::string to_string(const Sequence& sequence) {
  if (sequence.empty()) return "-";
  std::string text;
  for (const Element& e : sequence) {
    if (!text.empty()) text += ',';
    if (e.k == 0)
      text += letter_of(e.split);
    else
      text += fmt::format("P{0}x{0}", 1 << e.k);
    if (e.skew > 0) text += fmt::format("+{}", e.skew);
  }
  return text;
}

base::Result<Sequence> parse_sequence(std::string_view text) {
  Sequence sequence;
  if (text == "-") return sequence;
  for (const std::string& part : base::split(text, ',')) {
    const std::string_view word = base::trim(part);
    const std::optional<Element> element = parse_element(word);
    if (!element) {
      base::Diagnostic d = base::make_error(base::ErrorCode::kBadValue,
                                            "'{}' is no element of a partition sequence", word);
      d.hint = "write B, M, N, K, H, L, R or a primitive such as P2x2 or P4x4+1, e.g. 'K,P2x2'";
      return base::fail(std::move(d));
    }
    sequence.push_back(*element);
  }
  return sequence;
}

Partition::Partition(Sequence sequence) : sequence_(std::move(sequence)) {
  for (const Element& e : sequence_) bits_ += e.bits();
  ORRERY_CHECK(bits_ <= kMostBits, "{} id bits", bits_);
  int next = bits_;  // bits from here down are free
  for (const Element& e : sequence_) {
    next -= e.bits();
    if (e.k == 0) {
      ++slice_bits_[static_cast<std::size_t>(e.split)];
      split_mask_[static_cast<std::size_t>(e.split)] |= 1U << next;
      continue;
    }
    steps_ <<= e.k;
    constexpr std::uint32_t kColumns = 0b010101;  // r and c alternate, r first
    const std::uint32_t all = (1U << e.bits()) - 1;
    column_mask_ |= (all & kColumns) << next;
    row_mask_ |= (all & ~kColumns) << next;
    for (const Dimension d : {Dimension::kTokens, Dimension::kIn, Dimension::kOut})
      slice_bits_[static_cast<std::size_t>(d)] += e.k;
  }
  slice_bits_[static_cast<std::size_t>(Dimension::kReplicas)] = 0;
}

int Partition::slice(Dimension d, Phase phase, int device, int step) const {
  return slices_of(d, phase, step)[as_index(device)];
}

std::vector<int> Partition::slices_of(Dimension d, Phase phase, int step) const {
  std::vector<int> slices(as_index(devices()), 0);
  if (slice_bits(d) == 0) return slices;
  int next = bits_, steps_left = steps_;
  for (const Element& e : sequence_) {
    next -= e.bits();
    if (e.k == 0) {
      if (e.split != d) continue;
      for (int device = 0; device < devices(); ++device)
        slices[as_index(device)] = 2 * slices[as_index(device)] + (device >> next & 1);
      continue;
    }
    const int size = 1 << e.k;
    steps_left /= size;
    if (!in_primitive(d)) continue;
    const int t = step / steps_left % size;
    // [the element's id bits] slice inside the primitive
    std::array<int, 1 << kMostBits> inside{};
    for (int bits = 0; bits < size * size; ++bits) {
      int r = 0, c = 0;
      for (int j = e.k - 1; j >= 0; --j) {
        r = 2 * r + (bits >> (2 * j + 1) & 1);
        c = 2 * c + (bits >> 2 * j & 1);
      }
      c = (c + (size - e.skew) * r) & (size - 1);
      inside[as_index(bits)] = primitive_slice(d, phase, r, c, t, size) & (size - 1);
    }
    for (int device = 0; device < devices(); ++device)
      slices[as_index(device)] =
          size * slices[as_index(device)] + inside[as_index(device >> next & (size * size - 1))];
  }
  return slices;
}

std::string_view to_string(Operand operand) {
  constexpr std::array<std::string_view, 4> kNames{"I", "W", "dO", "dW"};
  return kNames[static_cast<std::size_t>(operand)];
}

std::span<const Dimension> dimensions_of(Operand operand) {
  using enum Dimension;
  static constexpr std::array kInput{kBatch, kTokens, kIn}, kOutput{kBatch, kTokens, kOut};
  static constexpr std::array kWeights{kIn, kOut};
  switch (operand) {
    case Operand::kInput: return kInput;
    case Operand::kOutputGradient: return kOutput;
    default: return kWeights;
  }
}

std::optional<Move> move_between(const Partition& p, Operand operand, Phase from, int from_step,
                                 Phase to, int to_step) {
  const auto blocks = [&](Phase phase, int step) {
    std::vector<int> all(as_index(p.devices()), 0);
    for (const Dimension d : dimensions_of(operand)) {
      const std::vector<int> slices = p.slices_of(d, phase, step);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = (all[i] << kMostBits) + slices[i];
    }
    return all;
  };
  const std::vector<int> held = blocks(from, from_step), needed = blocks(to, to_step);
  Move move{operand, {}};
  bool moves = false;
  for (int device = 0; device < p.devices(); ++device) {
    const int wanted = needed[as_index(device)];
    // Devices that differ in other bits have blocks of other slices, or the same ones.
    const int fixed = device & ~as_int(p.primitive_mask());
    int sender = -1;
    for (int bits = as_int(p.primitive_mask());; bits = (bits - 1) & as_int(p.primitive_mask())) {
      if (held[as_index(fixed | bits)] == wanted) sender = fixed | bits;
      if (bits == 0) break;
    }
    ORRERY_CHECK(sender >= 0, "no device has block {} of {}", wanted, to_string(p.sequence()));
    move.sender.push_back(sender);
    moves = moves || sender != device;
  }
  if (!moves) return std::nullopt;
  return move;
}

std::vector<int> senders_of(const Partition& p, const Move& move) {
  std::vector<int> senders;
  const std::uint32_t mask = p.primitive_mask();
  for (std::uint32_t i = 0; i < 1U << std::popcount(mask); ++i)
    senders.push_back(
        as_int(extract_bits(as_u32(move.sender[as_index(deposit_bits(i, mask))]), mask)));
  return senders;
}

std::vector<Move> moves(const Partition& p, Phase phase, int step) {
  const int last = p.steps() - 1;
  std::vector<Move> all;
  const auto add = [&](Operand operand, int from, Phase to_phase, int to) {
    if (auto move = move_between(p, operand, phase, from, to_phase, to))
      all.push_back(std::move(*move));
  };
  using enum Operand;
  const Operand first = phase == Phase::kB ? kOutputGradient : kInput;
  const Operand second = phase == Phase::kG ? kOutputGradient : kWeight;
  if (step < last) {
    add(first, step, phase, step + 1);
    add(second, step, phase, step + 1);
  } else if (phase == Phase::kB) {
    add(kWeight, step, Phase::kF, 0);
  }
  if (phase == Phase::kG && step > 0) add(kWeightGradient, step - 1, phase, step);
  return all;
}

std::vector<Sequence> sequences(const SequenceSpace& space, int bits) {
  std::vector<int> room = space.limits;
  room.resize(space.dimensions.size(), kMostBits);
  std::vector<Sequence> all;
  Sequence head;
  extend(space, bits, room, head, all);
  return all;
}

std::string fault_of(const SequenceSpace& space, const Sequence& sequence, int bits) {
  int used = 0;
  std::array<int, kDimensions> split{};
  for (const Element& e : sequence) {
    used += e.bits();
    if (e.k > 0 && !space.primitives)
      return fmt::format("'{}' is no product of a matrix", to_string(Sequence{e}));
    for (const Dimension d : {Dimension::kTokens, Dimension::kIn, Dimension::kOut})
      split[static_cast<std::size_t>(d)] += e.k;
    if (e.k > 0) continue;
    if (std::ranges::find(space.dimensions, e.split) == space.dimensions.end())
      return fmt::format("it has no dimension {}", letter_of(e.split));
    ++split[static_cast<std::size_t>(e.split)];
  }
  if (used != bits) return fmt::format("it takes {} id bits of {}", used, bits);
  for (std::size_t i = 0; i < space.dimensions.size() && i < space.limits.size(); ++i) {
    const Dimension d = space.dimensions[i];
    if (split[static_cast<std::size_t>(d)] > space.limits[i])
      return fmt::format("{} halves {} times and is to be split {} times", letter_of(d),
                         space.limits[i], split[static_cast<std::size_t>(d)]);
  }
  return "";
}

}  // namespace orrery::plan
