#include <algorithm>
#include <optional>

#include "base/ids.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {

namespace {

bool has(const Parameter& p, std::string_view part) {
  return p.name.find(part) != std::string::npos;
}

bool of_attention(const Parameter& p) { return has(p, ".norm1.") || has(p, ".attn."); }

/// Biases of row-parallel products are added with the residual: they belong to no product.
std::optional<Product> product_of(const Parameter& p) {
  if (has(p, ".attn.q.") || has(p, ".attn.k.") || has(p, ".attn.v.")) return Product::kQkv;
  if (has(p, ".attn.proj.weight")) return Product::kProjection;
  if (has(p, ".mlp.gate.") || has(p, ".mlp.in.")) return Product::kMlpIn;
  if (has(p, ".mlp.out.weight")) return Product::kMlpOut;
  return std::nullopt;
}

std::string_view name_of(Product p) {
  return base::EnumNames<Product::kMlpOut>("qkv", "projection", "mlp_in", "mlp_out")[p];
}

template <class Keep>  // bool(const Parameter&)
Parameters select(Parameters all, Keep keep) {
  std::erase_if(all, [&](const Parameter& p) { return !keep(p); });
  return all;
}

/// Columns of the product's matrices; its bias goes with the first slice.
Parameters slice_of(const Parameters& all, Product product, int slices, int slice) {
  Parameters some = select(all, [&](const Parameter& p) {
    return product_of(p) == product && (slice == 0 || p.shape.size() > 1);
  });
  for (Parameter& p : some) {
    if (p.shape.size() == 1) continue;
    p.slices = slices;
    p.slice = slice;
    p.local_shape[1] /= slices;
  }
  return some;
}

}  // namespace

const UnitUse& BlockUnits::of(Product p, int slice) const {
  const auto i = as_index(p);
  if (slices[i] > 1) return all[first_slice[i] + as_index(slice)];
  return all[p == Product::kQkv || p == Product::kProjection ? attention : mlp];
}

BlockUnits block_units(Builder& b, const LayerStrategy& strategy) {
  const ShardedOperators operators = effective_operators(strategy);
  const int slices = effective_slices(strategy);
  LayerStrategy own = strategy;
  own.ep = 1;  // where experts live is a matter of their own unit
  own.operators = ShardedOperators::kAll;
  own.slices = 1;
  LayerStrategy replicated = own;
  replicated.zero = replicated.shard = 0;
  if (strategy.grad_reduce == GradReduce::kMicroBatch) replicated.grad_reduce = GradReduce::kStep;
  const auto sharded = [&](bool attention) {
    return operators == ShardedOperators::kAll ||
           attention == (operators == ShardedOperators::kAttention);
  };
  Parameters all = block_parameters(b.model(), strategy.tp);
  BlockUnits units;
  const auto add = [&](const std::string& name, Parameters parameters, const LayerStrategy& s) {
    units.all.push_back(b.use(b.unit(name, std::move(parameters), s, Scope::kLayer), "block"));
    return units.all.size() - 1;
  };
  const auto rest = [&](const char* name, bool cut, const LayerStrategy& s, auto keep) {
    return add(cut ? fmt::format("{} rest", name) : name,
               select(all, [&](const Parameter& p) { return keep(p) && !(cut && product_of(p)); }),
               s);
  };
  if (operators == ShardedOperators::kAll) {
    units.attention = units.mlp =
        slices > 1 ? rest("block", true, own, [](const Parameter&) { return true; })
                   : add("block", std::move(all), own);
  } else {
    for (const bool attention : {true, false}) {
      const bool cut = slices > 1 && sharded(attention);
      (attention ? units.attention : units.mlp) =
          rest(attention ? "attention" : "mlp", cut, sharded(attention) ? own : replicated,
               [&](const Parameter& p) { return of_attention(p) == attention; });
    }
  }
  for (const Product p : {Product::kQkv, Product::kProjection, Product::kMlpIn, Product::kMlpOut}) {
    const auto i = as_index(p);
    if (slices == 1 || !sharded(p == Product::kQkv || p == Product::kProjection)) continue;
    units.slices[i] = slices;
    units.first_slice[i] = units.all.size();
    for (int j = 0; j < slices; ++j) {
      add(fmt::format("{} {}/{}", name_of(p), j + 1, slices), slice_of(all, p, slices, j), own);
      units.all.back().sliced = true;
    }
  }
  units.adapters = units.all.size();
  if (b.model().frozen())
    add(std::string(kAdapters), adapter_parameters(b.model(), strategy.tp), own);
  if (b.model().experts > 0) units.all.push_back(expert_use(b, strategy));
  return units;
}

void gather_slices(Builder& b, const UnitUses& units, Ops& ops) {
  const auto use_of = [&](const Op& op) -> const UnitUse* {
    const auto found = std::ranges::find_if(units, [&](const UnitUse& u) {
      return u.sliced && op.weights &&
             (*op.weights == u.weights_forward || *op.weights == u.weights_backward);
    });
    return found == units.end() ? nullptr : &*found;
  };
  Ops gathers, out;  // of each user, in order
  for (const Op& op : ops) {
    const UnitUse* use = use_of(op);
    if (use == nullptr) continue;
    gathers.push_back(gather_op(b, *use, *op.weights));
    gathers.back().acquire = b.slice_pool();
    gathers.back().recomputed = op.recomputed;
  }
  if (gathers.empty()) return;
  // As with_prefetch places those of layers.
  const auto depth = as_index(b.context().prefetch_depth);
  std::size_t issued = 0, used = 0;
  for (Op& op : ops) {
    const bool uses = use_of(op) != nullptr;
    for (const std::size_t ahead = std::min(gathers.size(), used + depth + (uses ? 1 : 0));
         issued < ahead; ++issued)
      out.push_back(std::move(gathers[issued]));
    if (uses) {
      op.release = b.slice_pool();
      ++used;
    }
    out.push_back(std::move(op));
  }
  ops = std::move(out);
}

void reduce_slices(Builder& b, const UnitUses& units, Ops& ops) {
  Ops out;
  for (Op& op : ops) {
    const auto use = std::ranges::find_if(
        units, [&](const UnitUse& u) { return u.sliced && u.parts && op.gradients == u.gradient; });
    if (use != units.end()) append(out, zero_part_ops(b, *use));
    out.push_back(std::move(op));
    if (use != units.end()) append(out, sync_ops(b, *use, 0));
  }
  ops = std::move(out);
}

}  // namespace orrery::plan
