#include "search/partition/partition_prices.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/numbers.h"
#include "costmodel/closed_form/closed_form.h"

namespace orrery::search {
namespace {

using model::SegmentKind;
using model::SegmentShape;
using plan::Operand;
using plan::OperatorKind;
using plan::Phase;
using enum plan::Dimension;
using enum plan::Phase;

/// Sequence with its splits alike: moves depend on where primitives stand alone.
std::string placement_of(const plan::Partition& p) {
  plan::Sequence sequence = p.sequence();
  for (plan::Element& e : sequence) e.split = kBatch;
  return plan::to_string(sequence);
}

}  // namespace

PartitionPrices::PartitionPrices(const costmodel::CostModel& cost, plan::LayerGraph graph, int bits,
                                 const PartitionStep& step)
    : cost_(cost), graph_(std::move(graph)), bits_(bits), step_(step) {
  const auto per_host = as_int(cost.topology().devices_per_host());
  const int devices = 1 << bits;
  ORRERY_CHECK(per_host >= devices || std::has_single_bit(as_u32(per_host)), "{} devices a host",
               per_host);
  host_bits_ = std::min(bits, std::countr_zero(as_u32(per_host)));
  if (per_host >= devices) host_bits_ = bits;
  const model::Precision precision = cost.options().precision;
  element_bytes_ = model::bytes_of(model::compute_dtype(precision), 1);
  optimizer_bytes_ = precision == model::Precision::kFloat32 ? 8 : 12;  // moments, master
  gradient_element_ = 4;
  if (const auto& profile = cost.profile(); profile && profile->framework)
    if (profile->framework->gradient_bytes > 0)
      gradient_element_ = profile->framework->gradient_bytes;

  const auto slower = [&](const Rate& known, int neighbour) {
    std::vector<int> sender;
    for (int d = 0; d < devices; ++d) sender.push_back(d ^ neighbour);
    const costmodel::PathSummary paths = cost.communication().paths().summary(sender);
    constexpr std::int64_t kLarge = std::int64_t{1} << 30;
    const std::int64_t none = cost.communication().exchange_ps(neighbour, 0, paths),
                       large = cost.communication().exchange_ps(neighbour, kLarge, paths);
    return Rate{std::max(known.latency, real(none)),
                std::max(known.per_byte, real(large - none) / real(kLarge))};
  };
  for (int bit = 0; bit < host_bits_; ++bit) in_host_ = slower(in_host_, 1 << bit);
  if (host_bits_ < bits_) across_ = slower(across_, 1 << host_bits_);
}

std::int64_t PartitionPrices::gradient_bytes(std::int64_t elements) const {
  return std::llround(real(elements) * gradient_element_);
}

PartitionPrices::MoveTerms PartitionPrices::move_terms(std::int64_t elements) const {
  const double unit =
      real(elements) * real(element_bytes_) / real(1 << plan::kShareBits) / (1 << bits_);
  return {in_host_.latency, in_host_.per_byte * unit, across_.latency, across_.per_byte * unit};
}

std::int64_t PartitionPrices::segment_ps(const SegmentShape& s, Phase phase) {
  const auto [known, fresh] = segments_.try_emplace(
      {as_int(s.kind), as_int(phase), s.sequences, s.tokens, s.in, s.out, s.residual, s.heads}, 0);
  if (fresh) known->second = cost_.segment_ps(s, phase);
  return known->second;
}

std::int64_t PartitionPrices::all_reduce_ps(std::uint32_t mask, std::int64_t bytes) {
  if (mask == 0 || bytes == 0) return 0;
  const auto [known, fresh] = reduces_.try_emplace({mask, bytes}, 0);
  if (fresh) known->second = priced_all_reduce_ps(mask, bytes);
  return known->second;
}

std::int64_t PartitionPrices::priced_all_reduce_ps(std::uint32_t mask, std::int64_t bytes) {
  const costmodel::CollectivePrices& prices = cost_.communication();
  const plan::Group group{"partition", 1 << std::popcount(mask), as_int(mask & ~(mask - 1))};
  const auto paths = [&](costmodel::Pattern pattern) -> const costmodel::PathSummary& {
    const auto [known, fresh] = groups_[mask].try_emplace(as_int(pattern));
    if (!fresh) return known->second;
    std::vector<std::vector<int>> members;
    for (std::uint32_t d = 0; d < 1U << bits_; ++d)
      if ((d & mask) == 0) {
        members.emplace_back();
        for (std::uint32_t e = d; e < 1U << bits_; ++e)
          if ((e & ~mask) == d) members.back().push_back(as_int(e));
      }
    return known->second = prices.paths().summary(pattern, members);
  };
  constexpr auto kOp = plan::Collective::kAllReduce;
  const costmodel::RunsAs how =
      prices.runs_as(kOp, group, bytes, paths(costmodel::CollectivePrices::usual_pattern(kOp)));
  return prices.duration_ps(kOp, group, bytes, how, paths(how.pattern));
}

const PartitionPrices::Shifts& PartitionPrices::shifts_of(const plan::Partition& p) {
  const auto [known, fresh] = shifts_.try_emplace(placement_of(p));
  if (!fresh) return known->second;
  for (const Phase phase : {kF, kB, kG})
    for (int t = 0; t < p.steps(); ++t) {
      auto& step = known->second[as_index(phase)].emplace_back();
      for (const plan::Move& move : plan::moves(p, phase, t))
        step.push_back({move.operand, cost_.communication().paths().summary(move.sender)});
    }
  return known->second;
}

std::int64_t PartitionPrices::local_sequences(const plan::Partition& p) const {
  return graph_.sequences / p.slices(kBatch);
}
std::int64_t PartitionPrices::local_tokens(const plan::Partition& p) const {
  return graph_.tokens / p.slices(kTokens);
}

SegmentShape PartitionPrices::shape_of(SegmentKind kind, const plan::Partition& p) const {
  const model::ModelSpec& m = cost_.model();
  SegmentShape s;
  s.kind = kind;
  s.dtype = model::compute_dtype(cost_.options().precision);
  s.sequences = local_sequences(p);
  s.tokens = local_tokens(p);
  s.norm = m.norm;
  s.epsilon = m.norm_epsilon;
  s.activation = m.activation;
  s.causal = m.causal;
  return s;
}

std::int64_t PartitionPrices::update_ps(std::int64_t elements, std::int64_t owned) const {
  if (step_.micro_batches == 0) return 0;
  const SegmentShape zero{
      .kind = SegmentKind::kZeroGradient, .dtype = model::DType::kFloat32, .elements = elements},
      adamw{.kind = SegmentKind::kAdamW,
            .dtype = model::compute_dtype(cost_.options().precision),
            .elements = owned};
  return (cost_.segment_ps(zero, kF) + cost_.segment_ps(adamw, kF)) / step_.micro_batches;
}

/// Of an operator's parameters on a device, whose gradients are sums over id bits.
void PartitionPrices::price_weights(std::int64_t elements, std::uint32_t summed,
                                    OperatorPrice& price) {
  const std::int64_t copies = 1 << std::popcount(summed),
                     owned = step_.zero > 0 ? elements / copies : elements,
                     micro_batches = std::max<std::int64_t>(1, step_.micro_batches),
                     bytes = elements * element_bytes_;
  price.phases[2].reduce_ps = all_reduce_ps(summed, gradient_bytes(elements)) / micro_batches;
  price.update_ps = update_ps(elements, owned);
  price.state_bytes =
      (step_.zero == 3 ? bytes / copies : bytes) + 4 * elements + optimizer_bytes_ * owned;
  if (step_.zero < 3) return;
  const std::int64_t gather_ps = all_reduce_ps(summed, bytes) / 2;  // half of a ring's way
  for (const Phase phase : {kF, kB}) {
    if (phase == kB && step_.recomputes) continue;  // gathered for the F that runs again
    PhasePrice& part = price.phases[as_index(phase)];
    part.exposed_ps += costmodel::overlapped_ps(part.compute_ps, gather_ps,
                                                cost_.overlap_slowdown_ppm(), cost_.overlaps()) -
                       part.compute_ps;
  }
}

void PartitionPrices::price_linear(const plan::Operator& op, const plan::Partition& p,
                                   OperatorPrice& price) {
  SegmentShape s = shape_of(op.segment, p);
  s.in = op.in / p.slices(kIn);
  s.out = op.out / p.slices(kOut);
  const std::int64_t t = s.token_count();
  const auto bytes_of = [&](Operand o) {
    if (o == Operand::kInput) return t * s.in * element_bytes_;
    if (o == Operand::kOutputGradient) return t * s.out * element_bytes_;
    return o == Operand::kWeight ? s.in * s.out * element_bytes_ : gradient_bytes(s.in * s.out);
  };
  const Shifts& shifts = shifts_of(p);
  for (const Phase phase : {kF, kB, kG}) {
    PhasePrice& part = price.phases[as_index(phase)];
    const std::int64_t step_ps = segment_ps(s, phase);
    part.steps = p.steps();
    part.compute_ps = step_ps * p.steps();
    for (const auto& step : shifts[as_index(phase)]) {
      std::int64_t moves_ps = 0;
      for (const Shift& shift : step)
        moves_ps += cost_.communication().exchange_ps(1, bytes_of(shift.operand), shift.paths);
      part.moves_ps += moves_ps;
      part.exposed_ps += costmodel::overlapped_ps(step_ps, moves_ps, cost_.overlap_slowdown_ppm(),
                                                  cost_.overlaps()) -
                         step_ps;
    }
  }
  price.phases[0].reduce_ps = all_reduce_ps(p.split_mask(kIn), bytes_of(Operand::kOutputGradient));
  price.phases[1].reduce_ps = all_reduce_ps(p.split_mask(kOut), bytes_of(Operand::kInput));
  price_weights(s.in * s.out, p.split_mask(kBatch) | p.split_mask(kTokens), price);
  price.stash_bytes = bytes_of(Operand::kInput);
}

void PartitionPrices::price_product(const plan::Operator& op, const plan::Partition& p,
                                    OperatorPrice& price) {
  const model::ModelSpec& m = cost_.model();
  const bool scores = op.kind == OperatorKind::kScores;
  const std::int64_t heads = m.heads / p.slices(kHeads), keys = graph_.tokens / p.slices(kKeys),
                     key_bytes = local_sequences(p) * keys * (m.kv_heads * m.head_dim) /
                                 p.slices(kHeads) * element_bytes_;
  SegmentShape s = shape_of(SegmentKind::kMlpIn, p);
  const std::int64_t query_bytes = s.token_count() * heads * m.head_dim * element_bytes_;
  s.sequences *= heads;
  s.in = scores ? m.head_dim : keys;
  s.out = scores ? keys : m.head_dim;
  for (const Phase phase : {kF, kB, kG})
    price.phases[as_index(phase)].compute_ps = segment_ps(s, phase);
  const std::uint32_t by_keys = p.split_mask(kKeys), by_queries = p.split_mask(kTokens);
  // Scores contract keys for dQ; values contract them for O. Keys' and values' gradients: queries.
  price.phases[scores ? 1 : 0].reduce_ps = all_reduce_ps(by_keys, query_bytes);
  price.phases[2].reduce_ps = all_reduce_ps(by_queries, key_bytes);
  price.stash_bytes = key_bytes + (scores ? query_bytes : 0);
}

void PartitionPrices::price_stream(const plan::Operator& op, const plan::Partition& p,
                                   OperatorPrice& price) {
  SegmentShape sum = shape_of(SegmentKind::kResidual, p), norm = shape_of(SegmentKind::kNorm, p);
  sum.in = sum.out = norm.in = norm.out = op.in / p.slices(kOut);
  norm.residual = true;
  price.phases[0].compute_ps = segment_ps(sum, kF) + segment_ps(norm, kF);
  price.phases[1].compute_ps = segment_ps(norm, kBG);
  // Features of a token lie over c, tokens of a feature over r (skewed: over as many devices).
  const std::int64_t statistics = 2 * 4 * norm.token_count();
  price.phases[0].reduce_ps = price.phases[1].reduce_ps =
      all_reduce_ps(p.split_mask(kOut) | p.column_mask(), statistics);
  price.phases[2].reduce_ps =
      all_reduce_ps(p.split_mask(kBatch) | p.split_mask(kTokens) | p.row_mask(),
                    gradient_bytes(2 * norm.in)) /
      std::max<std::int64_t>(1, step_.micro_batches);
  price.stash_bytes = norm.token_count() * norm.in * element_bytes_;
}

void PartitionPrices::price_pointwise(const plan::Operator& op, const plan::Partition& p,
                                      OperatorPrice& price) {
  const model::ModelSpec& m = cost_.model();
  SegmentShape s = shape_of(SegmentKind::kActivation, p);
  if (op.kind == OperatorKind::kSoftmax) {
    s.sequences *= m.heads / p.slices(kHeads);
    s.in = s.out = graph_.tokens;
    price.stash_bytes = s.token_count() * s.out * element_bytes_;
  } else {
    s.gated = m.gated_mlp;
    s.in = op.in / p.slices(kOut);
    s.out = op.out / p.slices(kOut);
    price.stash_bytes = s.token_count() * s.in * element_bytes_;
  }
  price.phases[0].compute_ps = segment_ps(s, kF);
  price.phases[1].compute_ps = segment_ps(s, kB);
}

OperatorPrice PartitionPrices::fused_attention(const plan::Partition& p) {
  const model::ModelSpec& m = cost_.model();
  SegmentShape s = shape_of(SegmentKind::kAttention, p);
  s.heads = m.heads / p.slices(kHeads);
  s.kv_heads = m.kv_heads / p.slices(kHeads);
  s.head_dim = m.head_dim;
  s.in = (s.heads + 2 * s.kv_heads) * s.head_dim;
  s.out = s.heads * s.head_dim;
  s.rotary = m.position == model::PositionKind::kRotary && m.rotates;
  s.rope_theta = m.rope_theta;
  s.rope = m.rope;
  OperatorPrice price;
  price.phases[0].compute_ps = segment_ps(s, kF);
  price.phases[1].compute_ps = segment_ps(s, kB);
  price.stash_bytes = s.token_count() * (s.in * element_bytes_ + 4 * s.heads);
  return recomputed(price);
}

/// As the layer is: what runs again keeps nothing.
OperatorPrice PartitionPrices::recomputed(OperatorPrice price) const {
  if (!step_.recomputes) return price;
  price.phases[0].runs = 2;
  price.stash_bytes = 0;
  return price;
}

OperatorPrice PartitionPrices::price(const plan::Operator& op, const plan::Partition& p) {
  OperatorPrice price;
  switch (op.kind) {
    case OperatorKind::kLinear: price_linear(op, p, price); break;
    case OperatorKind::kScores:
    case OperatorKind::kValues: price_product(op, p, price); break;
    case OperatorKind::kStream: price_stream(op, p, price); break;
    default: price_pointwise(op, p, price); break;
  }
  return recomputed(price);
}

base::Result<void> check_partitionable(const costmodel::CostModel& cost, int bits,
                                       std::int64_t sequences, std::int64_t tokens) {
  const auto refuse = [](base::ErrorCode code, const std::string& text, std::string hint) {
    return base::fail(base::make_error(code, "{}", text).with_hint(std::move(hint)));
  };
  const model::ModelSpec& m = cost.model();
  if (!plan::has_layer_graph(m))
    return refuse(
        base::ErrorCode::kUnsupported,
        fmt::format("layers of {} are not all dense ones of one kind with plain attention", m.name),
        "partition a decoder or encoder without experts, such as llama-2-7b");
  if (const auto precision = cost.options().precision;
      model::format_of(precision) != model::Format::kNone)
    return refuse(base::ErrorCode::kUnsupported,
                  fmt::format("partitions are not priced in {}", model::to_string(precision)),
                  "--precision bf16 or fp32");
  const std::uint32_t devices = as_u32(cost.topology().device_count()),
                      host = as_u32(cost.topology().devices_per_host());
  if (devices < 1U << bits)
    return refuse(base::ErrorCode::kInconsistent,
                  fmt::format("{} devices of a cluster of {}", 1 << bits, devices),
                  "--hosts adds more");
  if (host < 1U << bits && !std::has_single_bit(host))
    return refuse(base::ErrorCode::kInconsistent,
                  fmt::format("hosts of {} devices, and id bits split a power of two", host),
                  "take as many devices as one host has, or another cluster");
  // Scores beyond take longer than picoseconds count.
  if (real(sequences) * real(tokens) * real(tokens) * real(m.heads) > 0x1p44)
    return refuse(base::ErrorCode::kOutOfRange,
                  fmt::format("scores of {} sequences of {} tokens", sequences, tokens),
                  "a layer's scores are materialised here; take a smaller micro-batch or shorter "
                  "sequences");
  const plan::LayerGraph graph = plan::layer_graph(m, sequences, tokens, /*skews=*/0);
  for (const plan::Operator& op : graph.operators)
    if (plan::sequences(op.space, bits).empty())
      return refuse(base::ErrorCode::kInconsistent,
                    fmt::format("nothing splits '{}' over {} devices", op.name, 1 << bits),
                    "take a micro-batch and a sequence length with more factors of two");
  return {};
}

}  // namespace orrery::search
