#include "executor/measure/recorded_training.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/measure/microbench.h"
#include "executor/runtime/interpreter.h"
#include "plan/lowering/lower.h"

namespace orrery::executor {

base::Result<plan::Program> uniform_program(const model::ModelSpec& model,
                                            plan::UniformOptions options, int micro_batches) {
  options.global_batch = options.micro_batch * options.dp * micro_batches;
  TRY(const plan::Plan plan, plan::uniform_plan(model, "local", 1, options));
  return plan::lower(plan, model);
}

base::Result<plan::Program> program_alone(const model::ModelSpec& model, std::int64_t sequences,
                                          std::int64_t tokens, model::Precision precision) {
  return uniform_program(model,
                         {.micro_batch = sequences, .sequence = tokens, .precision = precision}, 2);
}

namespace {

base::Result<void> train(Site& site, Communicator& transport, const plan::Program& program,
                         std::int64_t vocab, const OnStep& visit, const Repeats& repeats) {
  std::optional<TokenData> data;
  if (!reads_images(program)) {
    TRY(data, TokenData::open("", vocab, tokens_of_text(program)));
  }
  TRY(const auto interpreter,
      Interpreter::create(program, transport, data ? &*data : nullptr, site, {}));
  for (int step = 0; step < repeats.warm + repeats.steps; ++step) {
    TRY_VOID(site.communicator->barrier());
    const double cpu = thread_cpu_seconds();
    const Stopwatch clock;
    TRY_VOID(interpreter->step(step, repeats.recorded));
    if (!site.device.is_cpu()) cuda_synchronize(site.device.index());
    const double wall = clock.seconds();
    if (step < repeats.warm) continue;
    visit({.wall_seconds = wall,
           .used_seconds = site.device.is_cpu() ? thread_cpu_seconds() - cpu : wall,
           .spans = interpreter->spans()});
  }
  return {};
}

}  // namespace

base::Result<void> train_alone(Site& site, const plan::Program& program, std::int64_t vocab,
                               const OnStep& visit, const Repeats& repeats) {
  const std::unique_ptr<Communicator> nobody = make_stub_communicator(0, program.world_size);
  return train(site, *nobody, program, vocab, visit, repeats);
}

base::Result<void> train_together(Site& site, const plan::Program& program, std::int64_t vocab,
                                  const OnStep& visit, const Repeats& repeats) {
  ORRERY_CHECK(program.world_size == site.communicator->world_size(),
               "{} ranks for a Program of {}", site.communicator->world_size(), program.world_size);
  return train(site, *site.communicator, program, vocab, visit, repeats);
}

const plan::Op& operation_of(const plan::Program& program, const plan::Span& span) {
  return program.templates[plan::TemplateId(span.template_id)].ops[span.template_index];
}

namespace {

/// Every rank's value on rank 0 becomes one value on all ranks.
base::Result<double> over_ranks(Communicator& world, double value,
                                double (*of)(const std::vector<double>&)) {
  TRY(const auto texts, world.gather(fmt::format("{:.17g}", value)));
  std::vector<double> values;
  for (const std::string& t : texts) values.push_back(base::parse_real(t).value_or(0));
  TRY(const std::string answer,
      world.broadcast(values.empty() ? "" : fmt::format("{:.17g}", of(values))));
  return base::parse_real(answer).value_or(0);
}

}  // namespace

base::Result<double> mean_over_ranks(Communicator& world, double value) {
  return over_ranks(world, value, [](const std::vector<double>& v) {
    return std::accumulate(v.begin(), v.end(), 0.0) / real(v.size());
  });
}

base::Result<double> largest_over_ranks(Communicator& world, double value) {
  return over_ranks(world, value,
                    [](const std::vector<double>& v) { return *std::ranges::max_element(v); });
}

}  // namespace orrery::executor
