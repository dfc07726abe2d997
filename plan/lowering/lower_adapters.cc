#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/numbers.h"
#include "plan/lowering/lower_parts.h"

namespace orrery::plan {
namespace {

struct Adapted {
  bool model::Adapter::*target;
  const char* name;  // of operations and of A
  bool row_parallel;
};
constexpr std::array<Adapted, kProducts> kAdapted{
    {{&model::Adapter::qkv, "qkv", false},
     {&model::Adapter::projection, "projection", true},
     {&model::Adapter::mlp_in, "mlp_in", false},
     {&model::Adapter::mlp_out, "mlp_out", true}}};

const Adapted& adapted(Product p) { return kAdapted[as_index(p)]; }

class AdapterParameters {
 public:
  AdapterParameters(const ModelSpec& m, int tp) : m_(m), tp_(tp) {}

  /// What every tensor rank holds whole first, as block_parameters() has it; then the B of q, k, v
  /// and of gate, up side by side, as the products they are added to.
  Parameters all() {
    const std::int64_t q = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    const model::Adapter& a = m_.adapter;
    if (a.qkv) first("qkv", m_.hidden, -1);
    if (a.mlp_in) first("mlp_in", m_.hidden, -1);
    if (a.projection) second("projection", m_.hidden, -1);
    if (a.mlp_out) second("mlp_out", m_.hidden, -1);
    if (a.projection) first("projection", m_.mixed_features(), 1);
    if (a.mlp_out) first("mlp_out", m_.ffn, 1);
    if (a.qkv) {
      second("qkv.q", q, 0);
      second("qkv.k", kv, 0);
      second("qkv.v", kv, 0);
    }
    if (a.mlp_in && m_.gated_mlp) second("mlp_in.gate", m_.ffn, 0);
    if (a.mlp_in) second("mlp_in.up", m_.ffn, 0);
    return std::move(ps_);
  }

 private:
  void first(const std::string& name, std::int64_t in, int shard_dim) {
    add(name + ".a", {m_.adapter.rank, in}, shard_dim, kNormal);
  }
  void second(const std::string& name, std::int64_t out, int shard_dim) {
    add(name + ".b", {out, m_.adapter.rank}, shard_dim, kZero);
  }
  void add(const std::string& name, Extents shape, int shard_dim, Init init) {
    Parameter& p = ps_.emplace_back();
    p.name = "blocks.{layer}.adapter." + name;
    p.shape = p.local_shape = std::move(shape);
    p.shard_dim = shard_dim;
    if (shard_dim >= 0) p.local_shape[as_index(shard_dim)] /= tp_;
    p.init = init;
  }

  const ModelSpec& m_;
  int tp_;
  Parameters ps_;
};

}  // namespace

Parameters adapter_parameters(const ModelSpec& m, int tp) { return AdapterParameters(m, tp).all(); }

Adapters::Adapters(Builder& b, const LayerStrategy& strategy, const UnitUse& use)
    : TensorPart(b, strategy), use_(use) {}

bool Adapters::has(Product p) const { return m_.adapter.*adapted(p).target; }
std::string Adapters::named(Product p, const char* what) const {
  return fmt::format("{} adapter {}", adapted(p).name, what);
}
BufferRef Adapters::narrow(Product p, const char* what) {
  return b_.tensor(named(p, what), l_, m_.adapter.rank);
}

void Adapters::first(Product p, Phase phase, const Layout& l, BufferRefs reads, BufferRef to,
                     Ops& ops) {
  const BufferRef x = reads.back();
  const SegmentShape s = b_.shape(kAdapterIn, l, b_.decl(x).shape.back(), m_.adapter.rank);
  Op op = compute(b_, named(p, "in"), s, phase, std::move(reads), {to});
  if (phase != kF) std::swap(op.writes, op.updates);
  const std::string a = std::string(adapted(p).name) + ".a";
  ops.push_back(with_weights(std::move(op), use_, {b_.view(use_, {a.c_str()})}));
}

void Adapters::second(Product p, Phase phase, const Layout& l, BufferRefs reads, BufferRef to,
                      Ops& ops) {
  const BufferRef y = phase == kF ? to : reads.front();
  SegmentShape s = b_.shape(kAdapterOut, l, m_.adapter.rank, b_.decl(y).shape.back());
  s.scale = m_.adapter.scale() * (adapted(p).row_parallel ? m_.residual_scale : 1);
  Op op = compute(b_, named(p, "out"), s, phase, std::move(reads), {to});
  if (phase == kF) std::swap(op.writes, op.updates);
  ops.push_back(with_weights(std::move(op), use_, {columns(p)}));
}

ParameterView Adapters::columns(Product p) const {
  switch (p) {
    case Product::kQkv: return b_.view(use_, {"qkv.q.b", "qkv.k.b", "qkv.v.b"});
    case Product::kMlpIn:
      return m_.gated_mlp ? b_.view(use_, {"mlp_in.gate.b", "mlp_in.up.b"})
                          : b_.view(use_, {"mlp_in.up.b"});
    case Product::kProjection: return b_.view(use_, {"projection.b"});
    case Product::kMlpOut: return b_.view(use_, {"mlp_out.b"});
  }
  ORRERY_CHECK(false, "product out of range");
}

void Adapters::gathered_side(Product p, Phase phase, BufferRef in, BufferRef x, BufferRef out,
                             Ops& ops) {
  if (!has(p)) return;
  const BufferRef t = narrow(p, "t");
  if (phase == kF) {
    first(p, kF, l_, {in}, t, ops);
    second(p, kF, full_, {gathered(named(p, "t"), t, ops)}, out, ops);
    return;
  }
  const BufferRef dt = narrow(p, "dt");
  second(p, kBG, l_, {in, t}, dt, ops);
  first(p, kBG, full_, {gathered(named(p, "dt"), dt, ops), x}, out, ops);
}

void Adapters::reduced_side(Product p, Phase phase, BufferRef from, BufferRef x, BufferRef out,
                            Ops& ops) {
  if (!has(p)) return;
  const BufferRef t = narrow(p, "t");
  if (phase == kF) {
    first(p, kF, full_, {from}, whole(named(p, "t"), t), ops);
    reduced(named(p, "t"), t, ops);
    second(p, kF, l_, {t}, out, ops);
    return;
  }
  const BufferRef dt = narrow(p, "dt");
  second(p, kBG, full_, {from, whole(named(p, "t"), t)}, whole(named(p, "dt"), dt), ops);
  reduced(named(p, "dt"), dt, ops);
  first(p, kBG, l_, {dt, x}, out, ops);
}

void freeze(Builder& b, Ops& ops) {
  if (!b.model().frozen()) return;
  const auto frozen = [&](const Op& op) {
    return op.kind == OpKind::kCompute && op.unit && b.program().units[*op.unit].frozen &&
           op.phase != kF;
  };
  std::erase_if(
      ops, [&](const Op& op) { return frozen(op) && op.writes.empty() && op.updates.empty(); });
  for (Op& op : ops) {
    if (!frozen(op)) continue;
    op.phase = kB;
    if (is_product(b.program().segments[op.segment].kind)) op.reads.resize(1);
  }
  BufferRefs read;
  for (const Op& op : ops) read.insert(read.end(), op.reads.begin(), op.reads.end());
  std::erase_if(ops, [&](const Op& op) {
    return op.kind == OpKind::kCollective && op.collective == Collective::kAllGather &&
           !op.writes.empty() && !contains(read, op.writes[0]);
  });
}

}  // namespace orrery::plan
