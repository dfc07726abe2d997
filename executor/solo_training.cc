#include "executor/solo_training.h"

#include <chrono>

#include "base/text.h"
#include "executor/interpreter.h"
#include "executor/microbench.h"
#include "plan/lower.h"
#include "plan/plan.h"

namespace orrery::executor {

base::Result<plan::Program> program_alone(const model::ModelSpec& model, std::int64_t sequences, std::int64_t tokens, model::Precision precision) {
  plan::UniformOptions o;
  o.micro_batch = sequences;
  o.global_batch = 2 * sequences;
  o.precision = precision;
  o.sequence = tokens;
  TRY(const plan::Plan plan, plan::uniform_plan(model, "local", 1, o));
  return plan::lower(plan, model);
}

base::Result<void> train_alone(const plan::Program& program, std::int64_t vocab, Communicator& world, CountingAllocator& allocator, c10::Device device,
                               const std::function<void(const SoloStep&)>& visit) {
  constexpr int kWarm = 2, kSteps = 8;
  TRY(const TokenData data, TokenData::open("", vocab, program.sequence));
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  Board board = Board::attach(world.rank());
  TRY(const auto interpreter, Interpreter::create(program, *alone, data, allocator, board, {.seed = 1, .optimizer = {}, .device = device}));
  for (int step = 0; step < kWarm + kSteps; ++step) {
    TRY_VOID(world.barrier());
    const double cpu = thread_cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    TRY_VOID(interpreter->step(step, true));
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step < kWarm) continue;
    visit({.wall_seconds = wall, .used_seconds = device.is_cpu() ? thread_cpu_seconds() - cpu : wall, .spans = interpreter->spans()});
  }
  return {};
}

const plan::Op& operation_of(const plan::Program& program, const plan::Span& span) {
  return program.templates[plan::TemplateId(span.template_id)].ops[span.template_index];
}

base::Result<double> mean_over_ranks(Communicator& world, double value) {
  TRY(const auto texts, world.gather(fmt::format("{:.17g}", value)));
  double sum = 0;
  for (const std::string& t : texts) sum += base::parse_real(t).value_or(0);
  TRY(const std::string mean, world.broadcast(fmt::format("{:.17g}", sum / world.world_size())));
  return base::parse_real(mean).value_or(0);
}

}  // namespace orrery::executor
