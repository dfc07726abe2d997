#include "model/adapter.h"

#include <array>
#include <vector>

#include "base/text.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

using base::ErrorCode;

struct Target {
  std::string_view name;
  bool Adapter::*field;
};
constexpr std::array<Target, 4> kTargets{{{"qkv", &Adapter::qkv},
                                          {"projection", &Adapter::projection},
                                          {"mlp-in", &Adapter::mlp_in},
                                          {"mlp-out", &Adapter::mlp_out}}};

/// Several by one name.
struct Set {
  std::string_view name, members;
};
constexpr std::array<Set, 3> kSets{{{"attention", "qkv,projection"},
                                    {"mlp", "mlp-in,mlp-out"},
                                    {"all-linear", "qkv,projection,mlp-in,mlp-out"}}};

base::Result<void> add_targets(Adapter& adapter, std::string_view list) {
  for (const std::string_view word : base::split(list, ',')) {
    const std::string_view name = base::trim(word);
    bool known = false;
    for (const Target& t : kTargets)
      if (t.name == name) known = adapter.*t.field = true;
    for (const Set& s : kSets) {
      if (s.name != name) continue;
      TRY_VOID(add_targets(adapter, s.members));
      known = true;
    }
    if (known) continue;
    return base::fail(
        base::make_error(ErrorCode::kNotFound, "no product is called '{}'", name)
            .with_hint("qkv, projection, mlp-in, mlp-out; attention, mlp, all-linear"));
  }
  return {};
}

/// What of a block has no adapters here; empty: nothing.
std::string_view without_adapters(const ModelSpec& m, const Adapter& a) {
  if (m.patch_features > 0 || m.window > 0) return "images";
  if (m.cross_attention || m.entry != BlockEntry::kNone) return "an encoder";
  if ((a.qkv || a.projection) && !m.has_mixer()) return "blocks without attention";
  if (a.qkv && (m.mixer != Mixer::kAttention || m.output_gate))
    return "queries, keys and values of a scan, a latent or a gate";
  if ((a.mlp_in || a.mlp_out) && m.experts > 0) return "experts";
  if ((a.mlp_in || a.mlp_out) && !m.has_mlp()) return "blocks without an MLP";
  return "";
}

}  // namespace

std::string targets_of(const Adapter& adapter) {
  std::vector<std::string> names;
  for (const Target& t : kTargets)
    if (adapter.*t.field) names.emplace_back(t.name);
  return base::join(names, ",");
}

base::Result<Adapter> adapter_of(std::int64_t rank, std::string_view targets) {
  Adapter a{rank, false, false, false, false};
  TRY_VOID(add_targets(a, targets));
  return a;
}

base::Result<ModelSpec> with_adapter(ModelSpec model, const Adapter& adapter) {
  model.adapter = adapter;
  if (adapter.rank == 0) return model;
  for (int kind = 0; kind < model.kinds(); ++kind) {
    const std::string_view what = without_adapters(model.of_kind(kind), adapter);
    if (what.empty()) continue;
    return base::fail(
        base::make_error(ErrorCode::kUnsupported, "no low-rank adapters for {}, which '{}' has",
                         what, model.name)
            .with_hint("name other products with --lora-targets (attention, mlp), or train all "
                       "weights"));
  }
  return model;
}

}  // namespace orrery::model
