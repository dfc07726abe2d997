#include "model/surface.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ids.h"
#include "base/numbers.h"
#include "model/config_fields.h"
#include "model/names.h"

namespace orrery::model {
namespace {

constexpr base::DoubleRange kShare{1e-6, 2.0};  // of a datasheet's number
constexpr base::DoubleRange kSmall{0.0, 1.0};
constexpr base::DoubleRange kSecondsOfKernel{0.0, 1.0};
constexpr base::DoubleRange kTimes{0.0, 1e4};
constexpr base::DoubleRange kBytesOfProcess{0.0, 1e12};
constexpr base::DoubleRange kSize{1.0, 1e9};
constexpr base::DoubleRange kRate{1.0, 1e18};  // per second
// a correction by more than e³ is a fault, not a fit
constexpr base::DoubleRange kLog{-3.0, 3.0};

void check_ascending(base::Reader& r, std::string_view key, const std::vector<double>& knots) {
  for (std::size_t i = 1; i < knots.size(); ++i) {
    if (knots[i] <= knots[i - 1])
      r.error(key, base::ErrorCode::kInconsistent, "knots must ascend: {} follows {}", knots[i],
              knots[i - 1]);
  }
}

ProductCorrection read_correction(const base::Node& node, const std::string& what,
                                  base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  ProductCorrection c{r.required_doubles("m", kSize), r.required_doubles("n", kSize),
                      r.required_doubles("k", kSize), r.required_doubles("ln", kLog)};
  check_ascending(r, "m", c.m);
  check_ascending(r, "n", c.n);
  check_ascending(r, "k", c.k);
  if (sink.ok() && (c.ln.empty() || c.ln.size() != c.m.size() * c.n.size() * c.k.size())) {
    r.error("ln", base::ErrorCode::kInconsistent, "{} numbers for {} x {} x {} knots", c.ln.size(),
            c.m.size(), c.n.size(), c.k.size());
  }
  r.finish();
  return c;
}

constexpr Field<ProductSurface> kProduct[] = {
    {"units", &ProductSurface::units, {1, 1 << 20}},
    {"efficiency", &ProductSurface::efficiency, kShare},
    {"launch_seconds", &ProductSurface::launch_seconds, kSecondsOfKernel},
    {"prologue_features", &ProductSurface::prologue_features, kTimes},
    {"half_tile", &ProductSurface::half_tile, kShare},
    {"quantisation", &ProductSurface::quantisation, kSmall},
    {"split_traffic", &ProductSurface::split_traffic, kTimes},
    {"memory_efficiency", &ProductSurface::memory_efficiency, kShare},
    {"throttle", &ProductSurface::throttle, kSmall},
};
constexpr Field<AttentionSurface> kAttention[] = {
    {"efficiency", &AttentionSurface::efficiency, kShare},
    {"launch_seconds", &AttentionSurface::launch_seconds, kSecondsOfKernel},
    {"seconds_per_token", &AttentionSurface::seconds_per_token, kSecondsOfKernel},
    {"memory_efficiency", &AttentionSurface::memory_efficiency, kShare},
    {"key_weight", &AttentionSurface::key_weight, kTimes},
    {"backward_efficiency", &AttentionSurface::backward_efficiency, kShare},
};
constexpr Field<StreamSurface> kStream[] = {
    {"efficiency", &StreamSurface::efficiency, kShare},
    {"norm_backward", &StreamSurface::norm_backward, kShare},
};
constexpr Field<PowerSurface> kPower[] = {
    {"idle_watts", &PowerSurface::idle_watts, kTimes},
    {"limit_watts", &PowerSurface::limit_watts, kTimes},
    {"joules_per_flop", &PowerSurface::joules_per_flop, kSecondsOfKernel},
    {"exponent", &PowerSurface::exponent, {1.0, 4.0}},
};
constexpr Field<Framework> kFramework[] = {
    {"dropout", &Framework::dropout},
    {"tensor_overlap", &Framework::tensor_overlap},
    {"tokens_sent_once", &Framework::tokens_sent_once},
    {"expert_overlap", &Framework::expert_overlap},
    {"kernel_seconds", &Framework::kernel_seconds, kSecondsOfKernel},
    {"loss_passes", &Framework::loss_passes, kTimes},
    {"norm_passes", &Framework::norm_passes, kTimes},
    {"activation_passes", &Framework::activation_passes, kTimes},
    {"rotary_passes", &Framework::rotary_passes, kTimes},
    {"expert_bias_bytes", &Framework::expert_bias_bytes, kTimes},
    {"expert_bias_gradient_bytes", &Framework::expert_bias_gradient_bytes, kTimes},
    {"clamp_bytes", &Framework::clamp_bytes, kTimes},
    {"clamp_gradient_bytes", &Framework::clamp_gradient_bytes, kTimes},
    {"gradient_bytes", &Framework::gradient_bytes, {0.0, 4.0}},
    {"gather_copies", &Framework::gather_copies, kTimes},
    {"reduce_copies", &Framework::reduce_copies, kTimes},
    {"loss_bytes", &Framework::loss_bytes, kTimes},
    {"reserved_share", &Framework::reserved_share, {1.0, 2.0}},
    {"driver_share", &Framework::driver_share, {0.0, 0.5}},
    {"context_bytes", &Framework::context_bytes, kBytesOfProcess},
    {"communicator_bytes", &Framework::communicator_bytes, kBytesOfProcess},
};

void read_attention(base::Reader& inner, const std::string& what, AttentionSurface& a,
                    base::ErrorSink& sink) {
  a.flash2_efficiency = inner.optional_double("flash2_efficiency", kShare).value_or(0);
  a.window_seconds = inner.optional_double("window_seconds", kSmall).value_or(0);
  const auto heads = inner.optional_object("heads");
  if (!heads) return;
  base::Reader r(*heads, what + ".heads", sink);
  a.head_sizes = r.required_doubles("sizes", kSize);
  a.head_factors = r.required_doubles("factors", kShare);
  r.finish();
  if (a.head_sizes.size() != a.head_factors.size() ||
      std::ranges::adjacent_find(a.head_sizes, std::greater_equal<>()) != a.head_sizes.end())
    r.error("sizes", base::ErrorCode::kInconsistent, "ascending sizes and a factor for each");
}

void read_product(base::Reader& inner, const std::string& what, ProductSurface& product,
                  base::ErrorSink& sink) {
  if (const auto correction = inner.optional_object("correction"))
    product.correction = read_correction(*correction, what + ".correction", sink);
}

FormatSurface read_format(const base::Node& node, const std::string& what, base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  FormatSurface f;
  for (const std::string& name : r.required_strings("formats")) {
    const auto known = names_up_to(Format::kNvFp4);
    const auto row = std::ranges::find(known, name, &base::Named<Format>::name);
    if (row == known.end() || row->value == Format::kNone)
      r.error("formats", base::ErrorCode::kBadValue, "no number format '{}'", name);
    else
      f.formats.push_back(row->value);
  }
  f.peak = r.required_double("peak", kRate);
  base::Reader product(r.required_object("product"), what + ".product", sink);
  read_fields(product, kProduct, f.product);
  read_product(product, what + ".product", f.product, sink);
  product.finish();
  f.residual = r.required_double("residual", kSmall);
  r.finish();
  return f;
}

base::Json to_json(const ProductSurface& p) {
  base::Json json = fields_to_json(p, kProduct);
  const ProductCorrection& c = p.correction;
  if (!c.ln.empty()) json["correction"] = {{"m", c.m}, {"n", c.n}, {"k", c.k}, {"ln", c.ln}};
  return json;
}

}  // namespace

std::string_view to_string(AttentionKernel kernel) {
  return base::EnumNames<AttentionKernel::kExplicit>("flash", "flash-2", "explicit")[kernel];
}

ComputeSurface read_surface(const base::Node& node, const std::string& what,
                            base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  ComputeSurface s;
  s.dtype = r.required_enum("dtype", names_up_to(DType::kBFloat16));
  const auto read_part = [&](std::string_view key, const base::Node& part_node, const auto& fields,
                             auto& surface, const auto& more) {
    if (!part_node.is_object()) return;
    base::Reader inner(part_node, fmt::format("{}.{}", what, key), sink);
    read_fields(inner, fields, surface);
    more(inner);
    inner.finish();
  };
  const auto part = [&](std::string_view key, const auto& fields, auto& surface, const auto& more) {
    read_part(key, r.required_object(key), fields, surface, more);
  };
  const auto nothing = [](const base::Reader&) {};
  s.peak = r.optional_double("peak", kRate).value_or(0);
  s.memory_bandwidth = r.optional_double("memory_bandwidth", kRate).value_or(0);
  part("product", kProduct, s.product,
       [&](base::Reader& inner) { read_product(inner, what + ".product", s.product, sink); });
  part("attention", kAttention, s.attention,
       [&](base::Reader& inner) { read_attention(inner, what + ".attention", s.attention, sink); });
  part("stream", kStream, s.stream, nothing);
  if (const auto power = r.optional_object("power"))
    read_part("power", *power, kPower, s.power, nothing);
  if (const auto formats = r.optional_list("formats"))
    for (const base::Node& one : *formats)
      s.formats.push_back(read_format(one, what + ".formats", sink));
  s.residual = r.required_double("residual", kSmall);
  r.finish();
  return s;
}

Framework read_framework(const base::Node& node, const std::optional<Framework>& like,
                         base::ErrorSink& sink) {
  base::Reader r(node, "framework", sink);
  Framework f = like.value_or(Framework{});
  if (!like || r.has("name")) f.name = r.required_string("name");
  if (!like || r.has("attention"))
    f.attention = r.required_enum("attention", names_up_to(AttentionKernel::kExplicit));
  read_fields(r, kFramework, f, Fields::kOptional);
  r.finish();
  return f;
}

base::Json to_json(const ComputeSurface& s) {
  base::Json attention = fields_to_json(s.attention, kAttention);
  if (s.attention.flash2_efficiency > 0)
    attention["flash2_efficiency"] = s.attention.flash2_efficiency;
  if (s.attention.window_seconds > 0) attention["window_seconds"] = s.attention.window_seconds;
  if (!s.attention.head_sizes.empty())
    attention["heads"] = {{"sizes", s.attention.head_sizes}, {"factors", s.attention.head_factors}};
  base::Json json = {{"dtype", to_string(s.dtype)},
                     {"product", to_json(s.product)},
                     {"attention", std::move(attention)},
                     {"stream", fields_to_json(s.stream, kStream)},
                     {"residual", s.residual}};
  if (s.peak > 0) json["peak"] = s.peak;
  for (const FormatSurface& f : s.formats) {
    base::Json names = base::Json::array();
    for (const Format format : f.formats) names.push_back(to_string(format));
    json["formats"].push_back({{"formats", std::move(names)},
                               {"peak", f.peak},
                               {"product", to_json(f.product)},
                               {"residual", f.residual}});
  }
  if (s.memory_bandwidth > 0) json["memory_bandwidth"] = s.memory_bandwidth;
  if (s.power != PowerSurface{}) json["power"] = fields_to_json(s.power, kPower);
  return json;
}

base::Json to_json(const Framework& f) {
  base::Json json = fields_to_json(f, kFramework);
  json["name"] = f.name;
  json["attention"] = to_string(f.attention);
  return json;
}

}  // namespace orrery::model
