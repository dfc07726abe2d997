#include "model/surface.h"

#include <fmt/format.h>

#include "base/json.h"
#include "model/names.h"

namespace orrery::model {
namespace {

using base::ErrorCode;

constexpr base::DoubleRange kShare{1e-6, 2.0};  // of a datasheet's number
constexpr base::DoubleRange kSmall{0.0, 1.0};
constexpr base::DoubleRange kSecondsOfKernel{0.0, 1.0};
constexpr base::DoubleRange kTimes{0.0, 1e4};
constexpr base::DoubleRange kSize{1.0, 1e9};
// a correction by more than e³ is a fault, not a fit
constexpr base::DoubleRange kLog{-3.0, 3.0};

void check_ascending(base::Reader& r, std::string_view key, const std::vector<double>& knots) {
  for (std::size_t i = 1; i < knots.size(); ++i) {
    if (knots[i] <= knots[i - 1])
      r.error(key, ErrorCode::kInconsistent, "knots must ascend: {} follows {}", knots[i],
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
    r.error("ln", ErrorCode::kInconsistent, "{} numbers for {} x {} x {} knots", c.ln.size(),
            c.m.size(), c.n.size(), c.k.size());
  }
  r.finish();
  return c;
}

ProductSurface read_product(const base::Node& node, const std::string& what,
                            base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  ProductSurface p{.units = r.required_int("units", {1, 1 << 20}),
                   .efficiency = r.required_double("efficiency", kShare),
                   .launch_seconds = r.required_double("launch_seconds", kSecondsOfKernel),
                   .prologue_features = r.required_double("prologue_features", kTimes),
                   .half_tile = r.required_double("half_tile", kShare),
                   .quantisation = r.required_double("quantisation", kSmall),
                   .split_traffic = r.required_double("split_traffic", kTimes),
                   .memory_efficiency = r.required_double("memory_efficiency", kShare),
                   .throttle = r.required_double("throttle", kSmall),
                   .correction = {}};
  if (const auto correction = r.optional_object("correction"))
    p.correction = read_correction(*correction, what + ".correction", sink);
  r.finish();
  return p;
}

AttentionSurface read_attention(const base::Node& node, const std::string& what,
                                base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  const AttentionSurface a{
      .efficiency = r.required_double("efficiency", kShare),
      .launch_seconds = r.required_double("launch_seconds", kSecondsOfKernel),
      .seconds_per_token = r.required_double("seconds_per_token", kSecondsOfKernel),
      .memory_efficiency = r.required_double("memory_efficiency", kShare),
      .key_weight = r.required_double("key_weight", kTimes),
      .backward_efficiency = r.required_double("backward_efficiency", kShare)};
  r.finish();
  return a;
}

StreamSurface read_stream(const base::Node& node, const std::string& what, base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  const StreamSurface s{.efficiency = r.required_double("efficiency", kShare),
                        .norm_backward = r.required_double("norm_backward", kShare)};
  r.finish();
  return s;
}

}  // namespace

std::string_view to_string(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kFlash: return "flash";
    case AttentionKernel::kExplicit: return "explicit";
  }
  return "";
}

ComputeSurface read_surface(const base::Node& node, const std::string& what,
                            base::ErrorSink& sink) {
  base::Reader r(node, what, sink);
  ComputeSurface s;
  s.dtype = r.required_enum("dtype", names_up_to(DType::kBFloat16));
  if (const base::Node n = r.required_object("product"); n.is_object())
    s.product = read_product(n, what + ".product", sink);
  if (const base::Node n = r.required_object("attention"); n.is_object())
    s.attention = read_attention(n, what + ".attention", sink);
  if (const base::Node n = r.required_object("stream"); n.is_object())
    s.stream = read_stream(n, what + ".stream", sink);
  s.residual = r.required_double("residual", kSmall);
  r.finish();
  return s;
}

Framework read_framework(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "framework", sink);
  Framework f;
  f.name = r.required_string("name");
  f.attention = r.required_enum("attention", names_up_to(AttentionKernel::kExplicit));
  f.dropout = r.optional_bool("dropout").value_or(false);
  f.kernel_seconds = r.optional_double("kernel_seconds", kSecondsOfKernel).value_or(0);
  f.loss_passes = r.optional_double("loss_passes", kTimes).value_or(0);
  r.finish();
  return f;
}

base::Json to_json(const ComputeSurface& s) {
  base::Json product{{"units", s.product.units},
                     {"efficiency", s.product.efficiency},
                     {"launch_seconds", s.product.launch_seconds},
                     {"prologue_features", s.product.prologue_features},
                     {"half_tile", s.product.half_tile},
                     {"quantisation", s.product.quantisation},
                     {"split_traffic", s.product.split_traffic},
                     {"memory_efficiency", s.product.memory_efficiency},
                     {"throttle", s.product.throttle}};
  const ProductCorrection& c = s.product.correction;
  if (!c.ln.empty()) product["correction"] = {{"m", c.m}, {"n", c.n}, {"k", c.k}, {"ln", c.ln}};
  return {
      {"dtype", to_string(s.dtype)},
      {"product", std::move(product)},
      {"attention",
       {{"efficiency", s.attention.efficiency},
        {"launch_seconds", s.attention.launch_seconds},
        {"seconds_per_token", s.attention.seconds_per_token},
        {"memory_efficiency", s.attention.memory_efficiency},
        {"key_weight", s.attention.key_weight},
        {"backward_efficiency", s.attention.backward_efficiency}}},
      {"stream", {{"efficiency", s.stream.efficiency}, {"norm_backward", s.stream.norm_backward}}},
      {"residual", s.residual}};
}

base::Json to_json(const Framework& f) {
  return {{"name", f.name},
          {"attention", to_string(f.attention)},
          {"dropout", f.dropout},
          {"kernel_seconds", f.kernel_seconds},
          {"loss_passes", f.loss_passes}};
}

}  // namespace orrery::model
