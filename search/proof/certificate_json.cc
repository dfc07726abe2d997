#include "search/proof/certificate_json.h"

#include "base/json.h"
#include "base/numbers.h"
#include "model/names.h"

#include <array>
#include <limits>

namespace orrery::search {
namespace {

using base::Json;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
/// Time is not named.
constexpr std::array kObjectives{
    base::Named<costmodel::Objective>{"energy", costmodel::Objective::kEnergy}};

struct Flag {
  std::string_view name;
  bool Space::*field;
};
constexpr std::array kFlags{Flag{"dp", &Space::data},
                            Flag{"zero1", &Space::zero1},
                            Flag{"zero2", &Space::zero2},
                            Flag{"zero3", &Space::zero3},
                            Flag{"tp", &Space::tensor},
                            Flag{"sp", &Space::sequence_parallel},
                            Flag{"tp_alone", &Space::tensor_alone},
                            Flag{"pp", &Space::pipeline},
                            Flag{"ring", &Space::ring},
                            Flag{"ulysses", &Space::ulysses},
                            Flag{"ep", &Space::expert},
                            Flag{"hybrid", &Space::hybrid},
                            Flag{"strided", &Space::strided},
                            Flag{"tensor_overlap", &Space::tensor_overlap},
                            Flag{"gpipe", &Space::gpipe},
                            Flag{"1f1b", &Space::one_f_one_b},
                            Flag{"recompute_none", &Space::recompute_none},
                            Flag{"recompute_selective", &Space::recompute_selective},
                            Flag{"recompute_operator", &Space::recompute_operator},
                            Flag{"recompute_full", &Space::recompute_full},
                            Flag{"reduce_per_step", &Space::reduce_per_step},
                            Flag{"reduce_per_micro_batch", &Space::reduce_per_micro_batch},
                            Flag{"reduce_at_end", &Space::reduce_at_end},
                            Flag{"vocabulary_like_layers", &Space::vocabulary_like_layers},
                            Flag{"even_stages", &Space::even_stages},
                            Flag{"interleaved", &Space::interleaved},
                            Flag{"zb-h1", &Space::zero_bubble},
                            Flag{"idle", &Space::idle},
                            Flag{"operators", &Space::operators},
                            Flag{"slices", &Space::slices}};

template <class T>
struct Fixed {
  std::string_view name;
  std::optional<T> Space::*field;
};
constexpr std::array kDegrees{Fixed<int>{"fix_tp", &Space::fix_tp},
                              Fixed<int>{"fix_cp", &Space::fix_cp},
                              Fixed<int>{"fix_pp", &Space::fix_pp},
                              Fixed<int>{"fix_dp", &Space::fix_dp},
                              Fixed<int>{"fix_slices", &Space::fix_slices},
                              Fixed<int>{"fix_ep", &Space::fix_ep},
                              Fixed<int>{"fix_tensor_pieces", &Space::fix_tensor_pieces},
                              Fixed<int>{"fix_virtual_stages", &Space::fix_virtual_stages}};
constexpr std::array kCounts{Fixed<std::int64_t>{"fix_micro_batches", &Space::fix_micro_batches},
                             Fixed<std::int64_t>{"fix_micro_batch", &Space::fix_micro_batch}};

/// Does not compile when Space has got a field: name it above, and say in stated_space.cc what it
/// allows.
constexpr std::size_t fields_of(const Space& space) {
  [[maybe_unused]] const auto& [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15,
                                f16, f17, f18, f19, f20, f21, f22, f23, f24, f25, f26, f27, f28,
                                f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40, f41,
                                f42, f43, f44, f45, f46, f47, f48, f49, f50] = space;
  return 50;
}
// and fix_operators, single_stage, folding, unfolded, spatial_temporal, recompute_offload,
// states_on_device, states_on_host; no proof speaks of zero_bubble_v and dual_pipe_v
static_assert(fields_of(Space{}) == kFlags.size() + kDegrees.size() + kCounts.size() + 10);

Json space_json(const Space& space) {
  Json json = Json::object();
  for (const Flag& f : kFlags) json[f.name] = space.*f.field;
  if (!space.single_stage) json["single_stage"] = false;
  if (!space.folding) json["folding"] = false;
  if (!space.unfolded) json["unfolded"] = false;
  if (space.spatial_temporal) json["spatial_temporal"] = true;
  if (space.recompute_offload) json["recompute_offload"] = true;
  if (!space.states_on_device) json["states_on_device"] = false;
  if (space.states_on_host) json["states_on_host"] = true;
  for (const auto& f : kDegrees) {
    if (space.*f.field) json[f.name] = *(space.*f.field);
  }
  for (const auto& f : kCounts) {
    if (space.*f.field) json[f.name] = *(space.*f.field);
  }
  if (space.fix_operators)
    json["fix_operators"] = std::string(plan::to_string(*space.fix_operators));
  return json;
}

Space read_space(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "space", sink);
  Space space;
  for (const Flag& f : kFlags) space.*f.field = r.required_bool(f.name);
  space.single_stage = r.optional_bool("single_stage").value_or(true);
  space.folding = r.optional_bool("folding").value_or(true);
  space.unfolded = r.optional_bool("unfolded").value_or(true);
  space.spatial_temporal = r.optional_bool("spatial_temporal").value_or(false);
  space.recompute_offload = r.optional_bool("recompute_offload").value_or(false);
  space.states_on_device = r.optional_bool("states_on_device").value_or(true);
  space.states_on_host = r.optional_bool("states_on_host").value_or(false);
  for (const auto& f : kDegrees) {
    if (const auto value = r.optional_int(f.name, {1, plan::kMaxWorldSize}))
      space.*f.field = as_int(*value);
  }
  for (const auto& f : kCounts) space.*f.field = r.optional_int(f.name, {1, kLargest});
  space.fix_operators =
      r.optional_enum("fix_operators", model::names_up_to(plan::ShardedOperators::kMlp));
  r.finish();
  return space;
}

Json multipliers_json(const ProblemMultipliers& p) {
  const plan::LayerStrategy& v = p.vocabulary;
  Json vocabulary{{"tp", v.tp}, {"dp", v.dp}, {"zero", v.zero}};
  if (v.grad_reduce != plan::GradReduce::kStep)
    vocabulary["grad_reduce"] = plan::to_string(v.grad_reduce);
  if (v.states != plan::States::kDevice) vocabulary["states"] = plan::to_string(v.states);
  return {{"stages", p.stages},
          {"virtual_stages", p.virtual_stages},
          {"micro_batches", p.micro_batches},
          {"schedule", std::string(plan::to_string(p.schedule))},
          {"vocabulary", std::move(vocabulary)},
          {"unit", p.unit},
          {"weights", p.weights},
          {"prices", p.prices}};
}

ProblemMultipliers read_multipliers(const base::Node& node, base::ErrorSink& sink) {
  base::Reader r(node, "multipliers", sink);
  ProblemMultipliers p;
  const base::IntRange degree{1, plan::kMaxWorldSize};
  p.stages = as_int(r.required_int("stages", degree));
  p.virtual_stages = as_int(r.required_int("virtual_stages", degree));
  p.micro_batches = r.required_int("micro_batches", {1, kLargest});
  p.schedule = r.required_enum("schedule", model::names_up_to(plan::kLastSchedule));
  base::Reader v(r.required_object("vocabulary"), "vocabulary", sink);
  p.vocabulary.tp = as_int(v.required_int("tp", degree));
  p.vocabulary.dp = as_int(v.required_int("dp", degree));
  p.vocabulary.zero = as_int(v.required_int("zero", {0, 3}));
  p.vocabulary.grad_reduce =
      v.optional_enum("grad_reduce", model::names_up_to(plan::GradReduce::kEnd))
          .value_or(plan::GradReduce::kStep);
  p.vocabulary.states = v.optional_enum("states", model::names_up_to(plan::States::kHost))
                            .value_or(plan::States::kDevice);
  v.finish();
  p.unit = r.required_int("unit", {1, kLargest});
  p.weights = r.required_ints("weights", {0, kLargest});
  for (const base::Node& list : r.required_list("prices")) {
    p.prices.emplace_back();
    for (const base::Node& price : list.items())
      p.prices.back().push_back(sink.take(price.as_int64({0, kLargest})));
  }
  r.finish();
  return p;
}

}  // namespace

Json to_json(const Certificate& c) {
  Json json{{"schema", "orrery.certificate/1"},
            {"cost_s", real(c.cost_ps) * 1e-12},
            {"cost_ps", c.cost_ps},
            {"bound_ps", c.bound_ps},
            {"gap", c.gap},
            {"multiplier_bound_ps", c.multiplier_bound_ps},
            {"multiplier_gap", c.multiplier_gap},
            {"stage_peak_bytes", c.stage_peak_bytes},
            {"cost_model_fingerprint", c.cost_model_fingerprint}};
  if (c.objective == costmodel::Objective::kEnergy) json["minimises"] = kObjectives.front().name;
  if (c.partition_bound_ps) json["partition_bound_ps"] = *c.partition_bound_ps;
  if (c.memory_limit_bytes > 0) json["memory_limit_bytes"] = c.memory_limit_bytes;
  json["proofs"] = Json::array();
  for (const SpaceProof& proof : c.proofs) {
    Json problems = Json::array();
    for (const ProblemMultipliers& p : proof.problems) problems.push_back(multipliers_json(p));
    Json stated{{"space", space_json(proof.space)}, {"problems", std::move(problems)}};
    if (!proof.device_order.empty()) stated["device_order"] = proof.device_order;
    json["proofs"].push_back(std::move(stated));
  }
  return json;
}

PlanClaim read_certificate(const base::Node& root, base::ErrorSink& sink) {
  base::Reader r(root, "certificate", sink);
  r.allow_unknown();
  PlanClaim claim;
  claim.cost_ps = r.required_int("cost_ps", {1, kBeyondAnyCost});
  claim.bound_ps = r.required_int("bound_ps", {0, kBeyondAnyCost});
  claim.stage_peak_bytes = r.required_ints("stage_peak_bytes", {0, kBeyondAnyCost});
  claim.memory_limit_bytes = r.optional_int("memory_limit_bytes", {1, kBeyondAnyCost}).value_or(0);
  claim.multiplier_bound_ps =
      r.optional_int("multiplier_bound_ps", {0, kBeyondAnyCost}).value_or(0);
  claim.partition_bound_ps = r.optional_int("partition_bound_ps", {0, kBeyondAnyCost});
  claim.objective = r.optional_enum("minimises", kObjectives).value_or(costmodel::Objective::kTime);
  claim.gap = r.optional_double("gap");
  claim.multiplier_gap = r.optional_double("multiplier_gap");
  for (const base::Node& node : r.optional_list("proofs").value_or(std::vector<base::Node>{})) {
    base::Reader proof(node, "proof", sink);
    claim.proofs.emplace_back().space = read_space(proof.required_object("space"), sink);
    for (const base::Node& problem : proof.required_list("problems"))
      claim.proofs.back().problems.push_back(read_multipliers(problem, sink));
    for (const base::Node& name :
         proof.optional_list("device_order").value_or(std::vector<base::Node>{}))
      claim.proofs.back().device_order.push_back(sink.take(name.as_string()));
    proof.finish();
  }
  return claim;
}

PlanClaim claim_of(const Certificate& c) {
  return {.cost_ps = c.cost_ps,
          .bound_ps = c.bound_ps,
          .stage_peak_bytes = c.stage_peak_bytes,
          .memory_limit_bytes = c.memory_limit_bytes,
          .multiplier_bound_ps = c.multiplier_bound_ps,
          .gap = c.gap,
          .multiplier_gap = c.multiplier_gap,
          .partition_bound_ps = c.partition_bound_ps,
          .proofs = c.proofs,
          .objective = c.objective};
}

}  // namespace orrery::search
