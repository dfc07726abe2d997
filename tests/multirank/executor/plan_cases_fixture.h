#pragma once
/// Plans that must train like one process, by name, on two small models.
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "executor/runtime/run.h"
#include "plan/program/plan.h"
#include "plan/program/program.h"
#include "rank_cases_fixture.h"

namespace orrery::executor::testing {

struct PlanCase {
  std::string name;
  int ranks = 1;
  std::function<plan::Plan(const model::ModelSpec&)> make;
  std::int64_t layers = 4;
};

/// The table of the acceptance: every parallel dimension alone, with recomputation, and their
/// mixes.
const std::vector<PlanCase>& plan_cases();
/// Of these, the ones with partitioned operators.
std::vector<PlanCase> partition_cases();
/// And with activations on the host.
std::vector<PlanCase> offload_cases();
const PlanCase& plan_case(const std::string& name);

/// Four layers of width 64 and a vocabulary that no degree divides: "gpt2" (tied, biases, learned
/// positions) or "llama" (grouped queries, rotary, gated, untied).
model::ModelSpec small_model(const std::string& family);
/// The same with the layers of the case.
model::ModelSpec model_of(const PlanCase& plan_case, const std::string& family);

plan::Program lowered(const PlanCase& plan_case, const model::ModelSpec& model);
/// A uniform plan in fp32 for the batch of train_alone(): 8 sequences of 32 tokens.
plan::Program lowered(const model::ModelSpec& model, plan::UniformOptions options);
/// The same, but for what `change` makes of it.
plan::Program lowered(const model::ModelSpec& model, plan::UniformOptions options,
                      const std::function<void(plan::Plan&)>& change);
/// Peaks of all stages are the Program's within 5 %; returns the largest difference, as a share.
double expect_stated_bytes(const plan::Program& program,
                           const std::vector<std::int64_t>& peak_bytes);

/// 30 AdamW steps at 3e-4. (At 1e-3 an embedding row of the untied model can pass near zero, where
/// RMS norm magnifies the rounding of any summation order beyond 1e-6 for a step.)
RunOptions training();
/// How many of these ranks train: $ORRERY_TEST_STEPS, else 8. Gradients, moments and their
/// correction are all in the third loss. Exactness has all, and the format that remembers earlier
/// steps.
int steps_together();

struct Curve {
  std::vector<double> losses;
  std::vector<std::int64_t> peak_memory_bytes;    // by stage
  std::map<int, std::vector<std::string>> order;  // of the last step, by rank; of several ranks
  std::vector<double> in_arena = {};              // losses, of steps_together() steps
};
/// In a rank body: trains; {losses, peaks}. Null after a failure, which it reports.
base::Json train_over_mpi(const plan::Program& program, int steps = steps_together());
/// The Program is sound; what train_over_mpi() found of it are the losses of one process within
/// 1e-6, which fall, and the stated bytes. Prints both under the two names.
void expect_trained_like_one(const model::ModelSpec& model, const plan::Program& program,
                             const base::Json& found, const char* layout, const char* name);

/// What each rank did, in order of its beginning: "name template.index layer l micro-batch m".
/// Without sends: they are left behind, and their spans in the simulator begin when the receiver
/// comes.
std::map<int, std::vector<std::string>> order_of(const plan::Program& program,
                                                 const plan::Timeline& timeline);
/// What `train` gives: it is asked once a process for each key.
const Curve& trained_once(const std::string& key, const std::function<Curve()>& train);
/// One process, in this process.
Curve train_alone(const model::ModelSpec& model);
inline constexpr std::array<const char*, 2> kFamilies{"gpt2", "llama"};
/// Both families, by kFamilies, over MPI: this binary again, once per rank (body
/// Rank.Trains). Empty after a failure, which it reports.
std::vector<Curve> train_ranks(const PlanCase& plan_case);

/// max_i |a_i - b_i| / |b_i|; infinite where there are not as many.
double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b);
/// Of what ranks trained, steps_together() losses or more, from the first of one process.
double difference_of_first(const std::vector<double>& losses, std::vector<double> alone);

}  // namespace orrery::executor::testing
