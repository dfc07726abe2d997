/// Profile of this machine. What is measured, and where from:
///
///  * operators: every distinct segment phase of the Programs that training the focus models would
///    run at tp 1, 2, 4, with and without sequence parallelism, at several sequences per
///    micro-batch; blocks of other widths; then a grid of bare products for whatever lies
///    elsewhere. On the CPU they are timed where they run: every rank plays the Programs by itself,
///    their communication left out, and finds its operands as cold or warm as training leaves them.
///    All Programs take turns until their share of the budget is spent, so that the machine's drift
///    reaches all alike. On a GPU, where a Program takes longer to set up than to run, each
///    operation runs alone over rotating buffers, the host ahead of it;
///  * composition: whole training steps against the sum of their operators' medians: a factor and
///    an overhead per operation (composition.h). On a GPU steps without marks: an event between two
///    operations costs as much as a short one;
///  * launch: that overhead, and on the CPU time of a step outside its spans, per operation;
///  * control: a fixed work, timed again and again between all of this (control.h);
///  * collectives: every group size that is a power of two up to the number of ranks, neighbours
///    and strided, all groups at once;
///  * communication in steps, on the CPU: collectives of whole steps that the ranks train together,
///    against the same collectives alone (step_communication.h).
///
/// With several ranks every point is measured by all of them at once (medians are averaged over
/// ranks, collectives take the slowest), so that sharing of caches and memory bandwidth is in the
/// numbers. With more ranks than cores operators are taken in CPU time and the composition factor
/// is multiplied by ranks / cores: every rank gets that share of a core while all compute. It is an
/// upper bound where ranks wait for each other (pipelines), holds for that number of ranks only,
/// and the profile's note says so.
#include "executor/measure/calibrate.h"

#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <set>
#include <thread>

#include "base/numbers.h"
#include "base/text.h"
#include "executor/measure/calibration_programs.h"
#include "executor/measure/composition.h"
#include "executor/measure/control.h"
#include "executor/measure/microbench.h"
#include "executor/measure/operation_samples.h"
#include "executor/measure/recorded_training.h"
#include "executor/measure/step_communication.h"
#include "executor/measure/timed_block.h"
#include "topologies/import/local.h"

namespace orrery::executor {
namespace {

using base::ErrorCode;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

/// Shares of the budget; what is left over passes on.
constexpr double kOperatorShare = 0.72, kProductShare = 0.78;
// On a GPU: of whole Programs of few layers, for as many parameters as are drawn in a few seconds.
constexpr std::int64_t kCompositionLayers = 2, kMostParameters = 700'000'000;
constexpr std::size_t kTurnsOfControl = 8;
// in a round: nothing but these turns measures such a block, while operations are in many Programs
constexpr std::size_t kTurnsOfHeldOut = 3;

/// A turn: operations of few layers need more steps for as many samples.
Repeats turn_of(const plan::Program& program) {
  return {.warm = 1, .steps = program.spec.layers > 2 ? 2 : 4};
}

/// What is measured on a kind of device: models and products of the size it trains.
struct Range {
  std::vector<std::int64_t> sequences;  // of a micro-batch, most useful first
  std::int64_t most_rows;               // tokens of all of them
  std::int64_t longest;                 // tokens of a sequence
  std::vector<std::int64_t> rows, widths;
  std::int64_t most_bytes;  // operands of one operation
};
Range range_of(c10::Device device) {
  if (device.is_cpu())
    return {{4, 1, 8, 2},    1 << 30,          1 << 20,
            {64, 512, 2048}, {128, 512, 2048}, std::int64_t{1} << 40};
  return {{1, 4, 16, 2},        16384, 4096, {1024, 4096, 16384}, {1024, 2048, 4096, 8192, 16384},
          std::int64_t{6} << 30};
}

std::int64_t operand_bytes(const plan::Program& program, const plan::Op& op) {
  std::int64_t bytes = 0;
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    for (const plan::BufferRef& ref : *list) bytes += program.buffers[ref.buffer].bytes();
  }
  return bytes;
}

/// Sizes measured even when the budget is spent.
bool is_coarse(std::int64_t bytes) {
  return bytes == 1 << 10 || bytes == 64 << 10 || bytes == 1 << 20 || bytes == 16 << 20;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

class Calibration {
 public:
  Calibration(const CalibrateOptions& options, Site& site)
      : options_(options),
        site_(site),
        communicator_(*site.communicator),
        device_(site.device),
        memory_(site.allocator, site.device),
        range_(range_of(site.device)) {
    const unsigned cores = std::thread::hardware_concurrency();
    oversubscribed_ = device_.is_cpu() && static_cast<unsigned>(communicator_.world_size()) > cores;
    sampling_.cpu_time = oversubscribed_;
    if (oversubscribed_) ranks_per_core_ = real(communicator_.world_size()) / cores;
  }

  base::Result<Calibrated> run() {
    for (const BlockCase& block : options_.held_out) {
      TRY(TimedBlock timed, TimedBlock::make(block, precision()));
      held_out_.push_back(std::move(timed));
    }
    TRY_VOID(device_.is_cpu() ? operators_in_steps() : operators_alone());
    TRY_VOID(products());
    TRY_VOID(composition());
    TRY_VOID(collectives());
    TRY_VOID(communication_in_steps());
    TRY_VOID(control());
    describe();
    std::vector<BlockTiming> held_out;
    for (const TimedBlock& block : held_out_) {
      TRY(held_out.emplace_back(), block.timing(communicator_));
    }
    return Calibrated{std::move(profile_), std::move(held_out)};
  }

 private:
  /// Rank 0's clock decides for all, so that all measure the same points.
  base::Result<bool> time_left(double share) {
    TRY(const std::string answer,
        communicator_.broadcast(clock_.seconds() < share * options_.budget_seconds ? "yes" : "no"));
    return answer == "yes";
  }

  base::Result<void> point(const Bench& bench) {
    TRY_VOID(communicator_.barrier());
    TRY(const Timing t, time_bench(bench, sampling_));
    TRY(profile_.operators.emplace_back(),
        point_over_ranks(bench.shape, bench.phase, t, communicator_));
    samples_ += t.samples;
    refused_ += t.refused;
    return {};
  }

  base::Result<void> control() {
    TRY(controls_.emplace_back(), time_control(site_, precision()));
    return {};
  }

  /// False when the budget ended before all was measured.
  base::Result<bool> operators_of(const plan::Program& program) {
    for (const plan::Template& t : program.templates) {
      for (const plan::Op& op : t.ops) {
        if (op.kind != plan::OpKind::kCompute) continue;
        const SegmentShape& shape = program.segments[op.segment];
        if (is_load(shape) || find(shape, op.phase) != nullptr ||
            operand_bytes(program, op) > range_.most_bytes)
          continue;
        TRY(const bool left, time_left(kOperatorShare));
        if (!left) return false;
        TRY_VOID(point(bench_of(program, op, device_)));
      }
    }
    return true;
  }

  base::Result<void> operators_alone() {
    const double all = real(range_.sequences.size() * options_.focus.size());
    double done = 0;
    bool left = true;
    for (const std::int64_t sequences : range_.sequences) {
      for (const model::ModelSpec& model : options_.focus) {
        if (!left) break;
        progress(kOperatorShare * done++ / all,
                 fmt::format("{} at {} sequences", model.name, sequences));
        TRY_VOID(control());
        for (const plan::Program& program : programs_at(model, sequences)) {
          if (!left) break;
          TRY(left, operators_of(program));
        }
        if (left && in_range(model, sequences)) TRY_VOID(train_whole(model, sequences));
      }
    }
    for (TimedBlock& block : held_out_) TRY_VOID(block.train(site_, {}));
    return {};
  }

  /// A step of a few layers with embedding and head, as training runs it.
  base::Result<void> train_whole(model::ModelSpec model, std::int64_t sequences) {
    model.layers = std::min(model.layers, kCompositionLayers);
    if (model.parameters() > kMostParameters) return {};
    TRY(plan::Program program, program_alone(model, sequences, tokens_of(model), precision()));
    std::vector<double> seconds;
    TRY_VOID(train_alone(site_, program, program.spec.vocab,
                         [&](const RecordedStep& step) { seconds.push_back(step.wall_seconds); },
                         {.recorded = false}));
    trained_.push_back({std::move(program), timing_of(std::move(seconds)).median});
    return {};
  }

  base::Result<void> operators_in_steps() {
    std::vector<plan::Program> programs;
    for (const std::int64_t sequences : range_.sequences) {
      for (const model::ModelSpec& model : options_.focus) {
        for (plan::Program& p : programs_at(model, sequences)) programs.push_back(std::move(p));
      }
    }
    for (const BlockCase& block : options_.blocks) {
      TRY(programs.emplace_back(),
          program_alone(block.model, block.sequences, block.tokens, precision()));
    }
    played_.resize(programs.size());
    const std::size_t round = programs.size() + kTurnsOfHeldOut * held_out_.size();
    // Later rounds go in long steps, so that what is alike is not timed in one breath.
    std::size_t stride = round * 5 / 8;
    while (std::gcd(stride, round) != 1) ++stride;
    for (std::size_t turn = 0;; ++turn) {
      TRY(const bool left, time_left(kOperatorShare));
      if (!left && turn >= (held_out_.empty() ? 1 : round)) break;
      const std::size_t i = turn < round ? turn : turn * stride % round;
      if (turn % kTurnsOfControl == 0) {
        progress(clock_.seconds() / options_.budget_seconds,
                 fmt::format("round {}: {}", turn / round + 1,
                             i < programs.size() ? programs[i].model : "blocks that are held out"));
        TRY_VOID(control());
      }
      if (i < programs.size()) {
        TRY_VOID(play(programs[i], turn_of(programs[i]), played_[i]));
      } else {
        TimedBlock& block = held_out_[(i - programs.size()) % held_out_.size()];
        TRY_VOID(block.train(site_, turn_of(block.program())));
      }
    }
    TRY(profile_.operators, steps_.points(communicator_));
    return {};
  }

  /// Of steps that were disturbed only the last counts, and only where no other does.
  base::Result<void> play(const plan::Program& program, const Repeats& repeats,
                          PlayedProgram& played) {
    int visited = 0;
    TRY_VOID(train_alone(
        site_, program, program.spec.vocab,
        [&](const RecordedStep& step) {
          const bool needed = ++visited == repeats.steps && played.gaps.empty();
          if (!oversubscribed_ && !needed && disturbed(step.wall_seconds, step.used_seconds)) {
            ++refused_;
            return;
          }
          ++samples_;
          steps_.add(program, step, played);
        },
        repeats));
    return {};
  }

  base::Result<void> products() {
    progress(kOperatorShare, "products");
    for (const std::int64_t rows : range_.rows) {
      for (const std::int64_t in : range_.widths) {
        for (const std::int64_t out : range_.widths) {
          SegmentShape s;
          s.kind = SegmentKind::kMlpOut;
          s.dtype = dtype();
          s.sequences = 1;
          s.tokens = rows;
          s.in = in;
          s.out = out;
          for (const Phase phase : {Phase::kF, Phase::kB, Phase::kG}) {
            TRY(const bool left, time_left(kProductShare));
            if (!left) break;
            if (find(s, phase) == nullptr) TRY_VOID(point(product_bench(s, phase, device_)));
          }
        }
      }
    }
    return {};
  }

  base::Result<void> composition() {
    std::vector<ComposedStep> steps;
    std::vector<double> gaps;
    for (const TrainedProgram& trained : trained_) {
      TRY(const double seconds, mean_over_ranks(communicator_, trained.seconds));
      if (const auto step = composed_of(trained.program, seconds, profile_.operators))
        steps.push_back(*step);
    }
    for (const PlayedProgram& played : played_) {
      if (played.gaps.empty()) continue;  // the budget ended before
      TRY(const ComposedStep step, steps_.composed(played, profile_.operators, communicator_));
      TRY(const double gap, mean_over_ranks(communicator_, timing_of(played.gaps).median));
      if (step.operations == 0) continue;
      steps.push_back(step);
      gaps.push_back(gap);
    }
    if (steps.empty()) return {};
    const Composition c = fit_composition(steps);
    profile_.composition_factor = c.factor * ranks_per_core_;
    profile_.composition_residual = c.residual;
    const double gap = gaps.empty() ? 0.0 : std::max(0.0, timing_of(gaps).median);
    profile_.launch_seconds = (c.overhead + gap) * ranks_per_core_;
    return {};
  }

  base::Result<void> collectives() {
    const int world = communicator_.world_size();
    if (world == 1) return {};
    std::vector<std::int64_t> sizes;
    for (std::int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 4) sizes.push_back(bytes);
    for (int size = 2; size <= world; size *= 2) {
      if (world % size != 0) continue;
      std::set<int> strides{1, world / size};
      for (const int stride : strides) {
        const plan::Group group{.name = "", .size = size, .stride = stride};
        TRY(const Channel channel, channel_of(communicator_, group, plan::Stream::kData));
        for (const auto op : {model::Collective::kAllReduce, model::Collective::kAllGather,
                              model::Collective::kReduceScatter}) {
          progress(kProductShare, fmt::format("{} over {} ranks", model::to_string(op), size));
          model::CollectiveTimes times{.op = op, .size = size, .stride = stride};
          for (const std::int64_t bytes : sizes) {
            TRY(const bool left, time_left(1.0));
            if (!left && !is_coarse(bytes)) continue;
            TRY(const double seconds, time_collective(communicator_, channel, op, bytes, device_));
            times.points.push_back({bytes, seconds});
          }
          profile_.collectives.push_back(std::move(times));
        }
      }
    }
    model::CollectiveTimes transfers{
        .op = model::Collective::kPointToPoint, .size = 2, .stride = 1};
    for (const std::int64_t bytes : sizes) {
      TRY(const double seconds, time_transfer(communicator_, bytes, device_));
      transfers.points.push_back({bytes, seconds});
    }
    profile_.collectives.push_back(std::move(transfers));
    return {};
  }

  base::Result<void> communication_in_steps() {
    const int world = communicator_.world_size();
    if (world == 1 || !device_.is_cpu() || oversubscribed_) return {};
    progress(kProductShare, "communication in steps");
    std::vector<ComposedStep> steps;
    for (const std::int64_t sequences : {8, 2}) {
      for (const model::ModelSpec& model : options_.focus) {
        TRY(const bool left, time_left(1.0));
        if (!left && !steps.empty()) break;
        for (const plan::Program& program :
             communicating_programs(model, precision(), world, sequences, tokens_of(model))) {
          TRY(const ComposedStep step, collectives_in_step(site_, program));
          if (step.operations > 0) steps.push_back(step);
        }
      }
    }
    if (!steps.empty()) profile_.step_communication = fit_step_communication(steps);
    return {};
  }

  /// What a reader of the profile should know of how its times were taken.
  [[nodiscard]] std::string note() const {
    if (oversubscribed_)
      return fmt::format(
          "{} ranks on {} cores: compute times are CPU times multiplied by ranks / cores",
          communicator_.world_size(), std::max(1U, std::thread::hardware_concurrency()));
    if (!device_.is_cpu() && profile_.launch_seconds == 0)
      return "no whole step was short enough to measure: nothing is known of what steps add";
    if (refused_ == 0) return "";
    return fmt::format("{} samples were disturbed by other work and taken again, {} were kept",
                       refused_, samples_);
  }

  void describe() {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    const int world = communicator_.world_size();
    const AcceleratorName accelerator = accelerator_name(device_);
    const auto host = topologies::probe_local_machine();
    profile_.name = fmt::format("{} x {} ranks, {}", device_.is_cpu() ? "cpu" : accelerator.model,
                                world, options_.dtype);
    profile_.device = device_.is_cpu() ? "cpu" : accelerator.model;
    profile_.overlaps = !device_.is_cpu();
    profile_.control = summary_of(controls_);
    profile_.context_bytes = memory_.framework_bytes();
    utsname system{};
    ::uname(&system);
    profile_.provenance = {
        .source = "orrery calibrate",
        .machine = fmt::format("{}{}, {} cores, {} ranks measuring at once",
                               device_.is_cpu() ? "" : accelerator.model + ", host ",
                               host ? host->cpu_name : "unknown processor", cores, world),
        .software = fmt::format("LibTorch {}{}, {} {}", TORCH_VERSION,
                                device_.is_cpu() ? "" : ", " + accelerator.software, system.sysname,
                                system.release),
        .date = today(),
        .note = note()};
  }

  void progress(double fraction, const std::string& what) {
    if (options_.on_progress && communicator_.rank() == 0) options_.on_progress(fraction, what);
  }
  [[nodiscard]] model::DType dtype() const {
    return options_.dtype == "bf16" ? model::DType::kBFloat16 : model::DType::kFloat32;
  }
  [[nodiscard]] model::Precision precision() const {
    return options_.dtype == "bf16" ? model::Precision::kBFloat16 : model::Precision::kFloat32;
  }
  [[nodiscard]] std::int64_t tokens_of(const model::ModelSpec& model) const {
    return std::min(model.max_positions, range_.longest);
  }
  [[nodiscard]] bool in_range(const model::ModelSpec& model, std::int64_t sequences) const {
    return sequences * tokens_of(model) <= range_.most_rows;
  }
  [[nodiscard]] std::vector<plan::Program> programs_at(const model::ModelSpec& model,
                                                       std::int64_t sequences) const {
    if (!in_range(model, sequences)) return {};
    return programs_of(model, precision(), options_.ranks, sequences,
                       sequences == range_.sequences.front(), tokens_of(model));
  }
  [[nodiscard]] const model::OperatorPoint* find(const SegmentShape& shape, Phase phase) const {
    return point_of(profile_.operators, shape, phase);
  }

  const CalibrateOptions& options_;
  Site& site_;
  Communicator& communicator_;
  c10::Device device_;
  DeviceMemory memory_;
  Range range_;
  Stopwatch clock_;
  bool oversubscribed_ = false;
  double ranks_per_core_ = 1.0;
  Sampling sampling_{.samples = 12, .seconds = 0.045};
  model::Profile profile_;
  std::int64_t samples_ = 0, refused_ = 0;  // operations alone or steps, on this rank
  OperationSamples steps_;
  std::vector<PlayedProgram> played_;
  struct TrainedProgram {
    plan::Program program;
    double seconds = 0;  // of a step
  };
  std::vector<TrainedProgram> trained_;  // on a GPU
  std::vector<TimedBlock> held_out_;
  std::vector<model::Control> controls_;
};

}  // namespace

base::Result<Calibrated> calibrate(const CalibrateOptions& options) {
  if (options.dtype != "fp32" && options.dtype != "bf16") {
    return base::fail(ErrorCode::kBadValue, "dtype '{}' is neither fp32 nor bf16", options.dtype);
  }
  TRY(Site site, open_site(options.device, "auto"));
  const int started = site.communicator->world_size();
  if (started != 1 && started != options.ranks)
    return base::fail(ErrorCode::kInconsistent, "{} ranks were started to calibrate {}", started,
                      options.ranks);
  return Calibration(options, site).run();
}

}  // namespace orrery::executor
