// Profiles travel to JSON and back without loss.
#include "model/profile.h"
#include "base/json.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <utility>

#include "base/rng.h"

namespace orrery::model {
namespace {

/// Draws values over their whole range, from a seed: RapidCheck picks the seed and the sizes of the
/// lists.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool flag() { return rng_.below(2) == 1; }
  double share() { return static_cast<double>(rng_.next() >> 11) * 0x1p-53; }  // below 1
  double seconds() {
    return 1e-12 + share() * static_cast<double>(between(1, 1000)) /
                       static_cast<double>(between(1, 1000000));
  }
  std::string text() {
    static constexpr std::string_view kPieces[] = {"a", " ", "\"", "\\", "\n",  "{",
                                                   ":", "#", "8",  "é",  "true"};
    std::string out = "x";
    for (std::int64_t i = between(0, 6); i > 0; --i) out += kPieces[rng_.below(std::size(kPieces))];
    return out;
  }
  template <class E>
  E one_of(E last) {
    return static_cast<E>(between(0, static_cast<std::int64_t>(last)));
  }

  SegmentShape shape(std::int64_t distinct) {
    SegmentShape s{.kind = one_of(kLastSegmentKind),
                   .dtype = flag() ? DType::kFloat32 : DType::kBFloat16};
    s.sequences = distinct;  // no two points of one profile are alike
    for (auto member :
         {&SegmentShape::tokens, &SegmentShape::in, &SegmentShape::out, &SegmentShape::heads,
          &SegmentShape::kv_heads, &SegmentShape::head_dim, &SegmentShape::elements,
          &SegmentShape::vocab, &SegmentShape::kv_tokens, &SegmentShape::experts,
          &SegmentShape::top_k, &SegmentShape::capacity, &SegmentShape::value_dim,
          &SegmentShape::index_heads, &SegmentShape::index_dim, &SegmentShape::state,
          &SegmentShape::kernel, &SegmentShape::chunk, &SegmentShape::weights}) {
      s.*member = between(1, 5000);
    }
    ++s.head_dim;
    s.rope_dim = between(1, s.head_dim - 1);
    for (auto member : {&SegmentShape::gated, &SegmentShape::bias, &SegmentShape::rotary,
                        &SegmentShape::causal, &SegmentShape::residual, &SegmentShape::shared}) {
      s.*member = flag();
    }
    s.norm = one_of(NormKind::kRmsNorm);
    s.activation = one_of(Activation::kSilu);
    s.epsilon = flag() ? 1e-5 : 0.1 * share() + 1e-9;
    s.rope_theta = flag() ? 10000.0 : 1.0 + 1e6 * share();
    s.dim = static_cast<int>(between(0, 3));
    s.parts = static_cast<int>(between(1, 8));
    s.part_stride = static_cast<int>(between(1, 8));
    s.ring_step = static_cast<int>(between(0, 8));
    s.token_parts = static_cast<int>(between(1, 8));
    s.token_stride = static_cast<int>(between(1, 8));
    return s;
  }

  OperatorPoint point(std::int64_t distinct) {
    OperatorPoint p{.shape = shape(distinct), .phase = one_of(Phase::kBG)};
    p.seconds_p10 = seconds();
    p.seconds_median = p.seconds_p10 + seconds();
    p.seconds_p90 = p.seconds_median + seconds();
    p.samples = between(0, 1000);
    return p;
  }

  LayerTimes layer(std::int64_t distinct) {
    LayerTimes l{.model = text(),
                 .sequence = distinct,
                 .hidden = between(1, 20000),
                 .precision = one_of(kLastPrecision)};
    std::int64_t batch = 0;
    for (std::int64_t i = between(1, 5); i > 0; --i) {
      batch += between(1, 9);
      l.points.push_back({.batch = batch,
                          .layer_seconds_per_sample = seconds(),
                          .other_seconds_per_sample = flag() ? 0 : seconds()});
    }
    return l;
  }

  CollectiveTimes collective(std::int64_t distinct) {
    CollectiveTimes c{
        .op = one_of(Collective::kPointToPoint), .size = between(2, 512), .stride = distinct};
    c.hosts = between(1, c.size);
    if (flag()) {
      c.bus_bandwidth = 1.0 + 1e12 * share();
      c.latency_seconds = flag() ? 0 : seconds();
      return c;
    }
    std::int64_t bytes = 0;
    for (std::int64_t i = between(1, 5); i > 0; --i)
      c.points.push_back({.bytes = bytes += between(1, 1 << 20), .seconds = seconds()});
    return c;
  }

  Profile profile(std::int64_t operators, std::int64_t layers, std::int64_t collectives) {
    Profile p{.name = text(),
              .provenance = {.source = text(),
                             .machine = text(),
                             .software = text(),
                             .date = "2024-05-01",
                             .note = text()},
              .device = flag() ? "" : text()};
    for (std::int64_t i = 1; i <= operators; ++i) p.operators.push_back(point(i));
    for (std::int64_t i = 1; i <= layers; ++i) p.layers.push_back(layer(i));
    for (std::int64_t i = 1; i <= collectives; ++i) p.collectives.push_back(collective(i));
    p.composition_factor = 0.5 + share();
    p.composition_residual = share();
    if (flag()) p.spread = Spread{.products = share(), .fabric = share()};
    p.overlap_slowdown = 1.0 + share();
    p.overlaps = flag();
    p.launch_seconds = flag() ? 0 : seconds();
    if (flag())
      p.control = Control{.compute_seconds = seconds(),
                          .collective_seconds = flag() ? 0 : seconds(),
                          .spread = share()};
    p.context_bytes = between(0, std::int64_t{1} << 40);
    return p;
  }

 private:
  base::Rng rng_;
};

TEST(ProfileProperty, JsonRoundTripIsExact) {
  EXPECT_TRUE(rc::check(
      "read(write(p)) == p, and writing again gives the same bytes", [](std::uint64_t seed) {
        const auto lists = std::make_tuple(*rc::gen::inRange(0, 6), *rc::gen::inRange(0, 4),
                                           *rc::gen::inRange(0, 6));
        const Profile written =
            Draw(seed).profile(std::get<0>(lists), std::get<1>(lists), std::get<2>(lists));
        const std::string text = base::to_text(to_json(written));
        const auto node = base::Node::parse_text(text, "profile.json");
        RC_ASSERT(node.has_value());
        const auto read = read_profile(*node);
        if (!read) RC_FAIL(base::to_string(read.error()) + "\n" + text);
        RC_ASSERT(*read == written);
        RC_ASSERT(base::to_text(to_json(*read)) == text);
      }));
}

TEST(ProfileProperty, ShapesWithOnlyTheNeededSizesHaveWork) {
  EXPECT_TRUE(rc::check("an accepted shape never trips a check of work()", [](std::uint64_t seed) {
    Draw draw(seed);
    SegmentShape shape = draw.shape(draw.between(0, 3));
    for (auto member : {&SegmentShape::tokens, &SegmentShape::in, &SegmentShape::out,
                        &SegmentShape::heads, &SegmentShape::kv_heads, &SegmentShape::head_dim,
                        &SegmentShape::elements, &SegmentShape::vocab, &SegmentShape::kv_tokens,
                        &SegmentShape::experts, &SegmentShape::top_k, &SegmentShape::capacity}) {
      if (draw.between(0, 3) == 0) shape.*member = 0;
    }
    const auto node = base::Node::parse_text(base::to_text(to_json(shape)), "shape.json");
    RC_ASSERT(node.has_value());
    const auto read = read_segment_shape(*node);
    RC_PRE(read.has_value());
    RC_ASSERT(*read == shape);
    for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG, Phase::kBG}) {
      const PhaseWork w = work(*read, phase);
      RC_ASSERT(w.flops.raw() >= 0 && w.bytes.raw() >= 0 && w.transient_bytes >= 0);
    }
  }));
}

}  // namespace
}  // namespace orrery::model
