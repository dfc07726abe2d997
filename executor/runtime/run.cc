#include "executor/runtime/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "executor/runtime/guarded.h"
#include "executor/runtime/interpreter.h"
#include "executor/runtime/report.h"
#include "executor/runtime/site.h"
#include "plan/program/memory.h"

namespace orrery::executor {

using base::ErrorCode;

namespace {

/// One Program's training, in order of construction.
struct Session {
  Site& site;
  const plan::Program& program;
  const RunOptions& options;
  Communicator& world = *site.communicator;
  DeviceMemory memory{site.allocator, site.device};
  std::optional<TokenData> data = {};
  std::unique_ptr<Interpreter> interpreter = {};
};

/// All ranks leave with the same answer: nothing, or the first fault of the lowest rank that has
/// one.
base::Result<void> agree(Session& s, const base::Diagnostics& faults) {
  // What every rank must have alike before step 0, or the reason why this one cannot start.
  const std::string own = faults.empty() ? s.program.fingerprint() : "!" + base::to_string(faults);
  TRY(const std::vector<std::string> texts, s.world.gather(own));
  std::string verdict;
  for (std::size_t rank = 0; rank < texts.size() && verdict.empty(); ++rank) {
    if (texts[rank].starts_with('!'))
      verdict = fmt::format("rank {} cannot start: {}", rank, texts[rank].substr(1));
    else if (texts[rank] != texts[0])
      verdict = fmt::format("rank {} runs Program {}, rank 0 runs {}", rank, texts[rank], texts[0]);
  }
  TRY(verdict, s.world.broadcast(verdict));
  if (!faults.empty()) return base::fail(faults);
  if (!verdict.empty()) return base::fail(ErrorCode::kMismatch, "{}", verdict);
  return {};
}

/// What of it devices have no kernels for; empty: nothing.
std::string trained_on_cpus_alone(const plan::Program& program) {
  if (model::format_of(program.precision) != model::Format::kNone)
    return fmt::format("{}, whose products are emulated,", model::to_string(program.precision));
  if (std::ranges::any_of(program.segments, [](const model::SegmentShape& s) {
        return s.kind == model::SegmentKind::kScan;
      }))
    return "a model with a recurrent mixer";
  if (program.spec.has_experts()) return "a mixture of experts";
  if (reads_images(program)) return "a model that looks at images";
  if (program.spec.encoder_decoder()) return "an encoder-decoder";
  return is_masked(program) ? "a model that predicts masked tokens" : "";
}

/// What a rank can find wrong by itself.
base::Diagnostics prepare(Session& s) {
  if (s.world.world_size() != s.program.world_size) {
    return {base::make_error(ErrorCode::kInconsistent,
                             "the plan is for {} ranks, and {} were started", s.program.world_size,
                             s.world.world_size())
                .with_hint(fmt::format("start it with --ranks {}", s.program.world_size))};
  }
  if (const std::string only = trained_on_cpus_alone(s.program);
      !only.empty() && !s.site.device.is_cpu())
    return {base::make_error(ErrorCode::kUnsupported, "{} trains on CPUs alone", only)
                .with_hint("train with --device cpu; 'orrery simulate' runs this plan anywhere")};
  if (reads_images(s.program)) {
    if (s.options.data.empty()) return {};
    return {base::make_error(ErrorCode::kUnsupported, "{}: images are made up, and no file is read",
                             s.options.data)
                .with_hint("train without --data")};
  }
  base::Result<TokenData> data =
      TokenData::open(s.options.data, s.program.spec.vocab, tokens_of_text(s.program));
  if (!data) return data.error();
  s.data.emplace(*std::move(data));
  if (s.options.data.empty() && s.program.spec.vocab < 256) {
    return {base::make_error(ErrorCode::kInconsistent,
                             "the built-in corpus has 256 tokens, the model's vocabulary {}",
                             s.program.spec.vocab)};
  }
  return {};
}

base::Result<StepResult> timed_step(Session& s, int index, bool record) {
  TRY_VOID(s.world.barrier());
  const Stopwatch clock;
  TRY_VOID(s.interpreter->step(index, record));
  s.memory.synchronize();
  TRY_VOID(s.world.barrier());
  const double seconds = clock.seconds();
  // Exact decimal text: %.17g reads back as the same double.
  TRY(const std::vector<std::string> parts,
      s.world.gather(fmt::format("{:.17g} {:.17g}", s.interpreter->loss_part(), seconds)));
  StepResult result{.step = index, .loss = 0, .seconds = 0};
  for (const std::string& part : parts) {
    double loss = 0, time = 0;
    ORRERY_CHECK(std::sscanf(part.c_str(), "%lf %lf", &loss, &time) == 2, "'{}'", part);
    result.loss += loss;
    result.seconds = std::max(result.seconds, time);
  }
  TRY(const std::string everywhere,
      s.world.broadcast(fmt::format("{:.17g} {:.17g}", result.loss, result.seconds)));
  ORRERY_CHECK(std::sscanf(everywhere.c_str(), "%lf %lf", &result.loss, &result.seconds) == 2,
               "'{}'", everywhere);
  return result;
}

base::Result<RunReport> train(Session& s, const Hooks& hooks) {
  RunReport report;
  report.program_fingerprint = s.program.fingerprint();
  report.device = s.site.device.is_cpu() ? "cpu" : "cuda";
  const int steps = s.options.warmup + s.options.steps;
  s.memory.reset_peak();
  for (int step = 0; step < steps; ++step) {
    TRY(const StepResult result, timed_step(s, step, s.options.timeline && step + 1 == steps));
    if (s.world.rank() == 0 && hooks.on_step) hooks.on_step(result);
    report.steps.push_back(result);
  }
  const RankReport own{.stage = s.program.class_of(s.world.rank()).stage,
                       .memory = s.memory.count(),
                       .spans = s.interpreter->spans(),
                       .samples = s.interpreter->memory()};
  TRY(const std::vector<std::string> texts, s.world.gather(to_text(own)));
  if (texts.empty()) return report;
  TRY_VOID(merge(texts, s.program, report));
  return report;
}

/// Ends the job and this process. No destructors: MPI_Finalize would wait for ranks that are stuck.
[[noreturn]] void leave(Site& site, const base::Diagnostics& diagnostics) {
  site.communicator->abort(base::exit_code(diagnostics));
  std::_Exit(base::exit_code(diagnostics));
}

/// A rank that failed alone takes the others with it: they would wait for it for ever.
[[noreturn]] void fail_alone(Site& site, const base::Diagnostics& diagnostics) {
  site.communicator->report(diagnostics);
  site.board.fail(diagnostics);
  if (!site.board.attached()) {
    fmt::print(stderr, "rank {} failed:\n{}\n", site.communicator->rank(),
               base::to_string(diagnostics));
    std::fflush(stderr);
  }
  leave(site, diagnostics);
}

/// What the plan needs beside the message that there was not enough.
base::Diagnostics with_memory(base::Diagnostics diagnostics, const plan::Program& program,
                              const Site& site) {
  base::Diagnostic& first = diagnostics.front();
  if (first.message.find(kOutOfMemory) == std::string::npos) return diagnostics;
  const int rank = site.communicator->rank();
  const plan::RankClass& own = program.class_of(rank);
  const plan::StaticMemory memory = plan::static_memory(program, own);
  const auto shown = [](std::int64_t bytes) { return base::to_string(base::Bytes(real(bytes))); };
  first.notes.push_back(fmt::format("the plan states a peak of {} on rank {} (stage {}):",
                                    shown(memory.peak_bytes), rank, own.stage));
  for (int c = 0; c < plan::kBufferCategories; ++c)
    if (const std::int64_t bytes = memory.at_peak[as_index(c)]; bytes > 0)
      first.notes.push_back(fmt::format(
          "  {:<13} {}", plan::to_string(static_cast<plan::BufferCategory>(c)), shown(bytes)));
  return diagnostics;
}

}  // namespace

base::Result<Site> open_site(const std::string& device, const std::string& backend, int ranks) {
  return guarded([&]() -> base::Result<Site> {
    TRY(const Launch launch, detect_launch());
    TRY(const std::string device_name, resolve_device(device, backend));
    const std::string transport = resolve_backend(backend, device_name, launch);
    TRY(const c10::Device opened, open_device(device_name, launch.local_rank));
    CountingAllocator& allocator = install_cpu_allocator();
    TRY(std::unique_ptr<Communicator> communicator,
        make_communicator(transport, launch, ranks > 0 ? ranks : launch.world_size, opened));
    const bool together = communicator->world_size() > 1 && transport != "stub";
    Board board = Board::attach(communicator->rank());
    return Site{opened, std::move(communicator), std::move(board), allocator, together};
  });
}

base::Result<RunReport> train_at(Site& site, const plan::Program& program,
                                 const RunOptions& options, const Hooks& hooks) {
  Session s{site, program, options};
  const base::Diagnostics faults = prepare(s);
  if (auto ready = agree(s, faults); !ready) {
    site.board.fail(ready.error());
    if (site.board.attached()) leave(site, ready.error());  // the launcher speaks for all
    return base::fail(ready.error());
  }
  site.communicator->when_stuck([&site](const base::Diagnostics& why) { fail_alone(site, why); });
  base::Result<RunReport> report = guarded([&]() -> base::Result<RunReport> {
    TRY(s.interpreter, Interpreter::create(program, *site.communicator, s.data ? &*s.data : nullptr,
                                           site, options));
    return train(s, hooks);
  });
  site.communicator->when_stuck({});
  if (report) return report;
  const base::Diagnostics failed = with_memory(report.error(), program, site);
  if (site.together) fail_alone(site, failed);
  return base::fail(failed);
}

base::Result<RunReport> run(const plan::Program& program, const RunOptions& options,
                            const Hooks& hooks) {
  TRY(Site site, open_site(options.device, options.backend, program.world_size));
  base::Result<RunReport> report = train_at(site, program, options, hooks);
  site.board.finish();
  return report;
}

}  // namespace orrery::executor
