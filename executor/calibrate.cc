/// Profile of this machine. What is measured, and where from:
///
///  * operators: every distinct segment phase of the Programs that training the focus models would run at tp 1, 2, 4, with and without sequence
///    parallelism, at several sequences per micro-batch; then blocks of other widths, alone; then a grid of bare products for whatever lies elsewhere;
///  * composition: a whole training step of each focus model and block, measured right after its operators, against the sum of their medians:
///    a factor and an overhead per operation (composition.h);
///  * launch: that overhead, and time of a step outside its spans, per operation;
///  * control: a fixed work, timed again and again between all of this (control.h);
///  * collectives: every group size that is a power of two up to the number of ranks, neighbours and strided, all groups at once.
///
/// With several ranks every point is measured by all of them at once (medians are averaged over ranks, collectives take the slowest),
/// so that sharing of caches and memory bandwidth is in the numbers. With more ranks than cores operators are taken in CPU time and the
/// composition factor is multiplied by ranks / cores: every rank gets that share of a core while all compute. It is an upper
/// bound where ranks wait for each other (pipelines), holds for that number of ranks only, and the profile's note says so.
#include "executor/calibrate.h"

#include <sys/utsname.h>
#include <torch/version.h>

#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <algorithm>
#include <set>
#include <thread>

#include "base/text.h"
#include "executor/composition.h"
#include "executor/control.h"
#include "executor/microbench.h"
#include "executor/solo_training.h"
#include "plan/lower.h"
#include "topologies/local.h"

namespace orrery::executor {
namespace {

using base::ErrorCode;
using Clock = std::chrono::steady_clock;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

/// Shares of the budget; what is left over passes on.
constexpr double kOperatorShare = 0.68, kProductShare = 0.75;
constexpr std::int64_t kCompositionSequences = 4;

/// What is measured on a kind of device: models and products of the size it trains.
struct Range {
  std::vector<std::int64_t> sequences;  // of a micro-batch, most useful first
  std::int64_t longest;                 // tokens of a sequence
  std::vector<std::int64_t> rows, widths;
  std::int64_t most_bytes;              // operands of one operation
};
Range range_of(c10::Device device) {
  if (device.is_cpu()) return {{4, 1, 8, 2}, 1 << 20, {64, 512, 2048}, {128, 512, 2048}, std::int64_t{1} << 40};
  return {{1, 4, 2}, 4096, {1024, 4096, 16384}, {1024, 2048, 4096, 8192, 16384}, std::int64_t{6} << 30};
}

class Calibration {
 public:
  Calibration(const CalibrateOptions& options, Site& site)
      : options_(options), site_(site), communicator_(*site.communicator), device_(site.device), memory_(site.allocator, site.device), range_(range_of(site.device)), begin_(Clock::now()) {
    const unsigned cores = std::thread::hardware_concurrency();
    oversubscribed_ = device_.is_cpu() && static_cast<unsigned>(communicator_.world_size()) > cores;
    sampling_.cpu_time = oversubscribed_;
    if (oversubscribed_) ranks_per_core_ = static_cast<double>(communicator_.world_size()) / cores;
  }

  base::Result<model::Profile> run() {
    TRY_VOID(operators());
    TRY_VOID(products());
    composition();
    TRY_VOID(collectives());
    TRY_VOID(control());
    describe();
    return std::move(profile_);
  }

 private:
  base::Result<bool> operators_of(const plan::Program& program);
  base::Result<void> operators();
  base::Result<void> products();
  base::Result<void> compose(const BlockCase& c);
  void composition();
  base::Result<void> collectives();
  void describe();

  base::Result<void> point(const Bench& bench);
  base::Result<void> control();
  /// Rank 0's clock decides for all, so that all measure the same points.
  base::Result<bool> time_left(double share);
  void progress(double fraction, const std::string& what) {
    if (options_.on_progress && communicator_.rank() == 0) options_.on_progress(fraction, what);
  }
  [[nodiscard]] model::DType dtype() const { return options_.dtype == "bf16" ? model::DType::kBFloat16 : model::DType::kFloat32; }
  [[nodiscard]] model::Precision precision() const {
    return options_.dtype == "bf16" ? model::Precision::kBFloat16 : model::Precision::kFloat32;
  }
  [[nodiscard]] std::int64_t tokens_of(const model::ModelSpec& model) const { return std::min(model.max_positions, range_.longest); }
  const model::OperatorPoint* find(const SegmentShape& shape, Phase phase) const {
    for (const auto& p : profile_.operators) {
      if (p.phase == phase && p.shape == shape) return &p;
    }
    return nullptr;
  }

  const CalibrateOptions& options_;
  Site& site_;
  Communicator& communicator_;
  c10::Device device_;
  DeviceMemory memory_;
  Range range_;
  Clock::time_point begin_;
  bool oversubscribed_ = false;
  double ranks_per_core_ = 1.0;
  Sampling sampling_{.samples = 12, .seconds = 0.045};
  model::Profile profile_;
  std::int64_t samples_ = 0, refused_ = 0;  // of operators, on this rank
  std::vector<ComposedStep> composed_;
  std::vector<model::Control> controls_;
  std::vector<double> gaps_;  // of each step composed: time outside spans per operation
};

base::Result<bool> Calibration::time_left(double share) {
  const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
  TRY(const std::string answer, communicator_.broadcast(spent < share * options_.budget_seconds ? "yes" : "no"));
  return answer == "yes";
}

base::Result<void> Calibration::point(const Bench& bench) {
  TRY_VOID(communicator_.barrier());
  TRY(const Timing t, time_bench(bench, sampling_));
  model::OperatorPoint p{.shape = bench.shape, .phase = bench.phase};
  TRY(p.seconds_median, mean_over_ranks(communicator_, t.median));
  TRY(p.seconds_p10, mean_over_ranks(communicator_, t.p10));
  TRY(p.seconds_p90, mean_over_ranks(communicator_, t.p90));
  p.samples = t.samples;
  samples_ += t.samples, refused_ += t.refused;
  profile_.operators.push_back(std::move(p));
  return {};
}

base::Result<void> Calibration::control() {
  TRY(controls_.emplace_back(), time_control(site_, precision()));
  return {};
}

/// The Programs whose segments are measured: one process training the shares that tp and dp would leave it.
std::vector<plan::Program> programs_of(const model::ModelSpec& model, model::Precision precision, int ranks, std::int64_t sequences,
                                       std::int64_t tokens) {
  std::vector<plan::Program> programs;
  for (const int tp : {1, 2, 4}) {
    if (tp > std::max(ranks, 2)) continue;
    for (const bool sequence_parallel : {false, true}) {
      for (const int zero : {0, 3}) {
        if (sequence_parallel && tp == 1) continue;
        plan::UniformOptions o{.tp = tp, .dp = zero > 0 ? 2 : 1, .zero = zero, .sequence_parallel = sequence_parallel};
        o.micro_batch = sequences;
        o.global_batch = sequences * o.dp * 2;
        o.precision = precision;
        o.sequence = tokens;
        const base::Result<plan::Plan> plan = plan::uniform_plan(model, "local", 1, o);
        if (!plan) continue;  // tp does not divide this model
        base::Result<plan::Program> program = plan::lower(*plan, model);
        if (program) programs.push_back(*std::move(program));
      }
    }
  }
  return programs;
}

std::int64_t operand_bytes(const plan::Program& program, const plan::Op& op) {
  std::int64_t bytes = 0;
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    for (const plan::BufferRef& ref : *list) bytes += program.buffers[ref.buffer].bytes();
  }
  return bytes;
}

/// False when the budget ended before all was measured.
base::Result<bool> Calibration::operators_of(const plan::Program& program) {
  for (const plan::Template& t : program.templates) {
    for (const plan::Op& op : t.ops) {
      if (op.kind != plan::OpKind::kCompute) continue;
      const SegmentShape& shape = program.segments[op.segment];
      const bool load = shape.kind == SegmentKind::kLoadTokens || shape.kind == SegmentKind::kLoadTargets;
      if (load || find(shape, op.phase) != nullptr || operand_bytes(program, op) > range_.most_bytes) continue;
      TRY(const bool left, time_left(kOperatorShare));
      if (!left) return false;
      TRY_VOID(point(bench_of(program, op, device_)));
    }
  }
  return true;
}

base::Result<void> Calibration::operators() {
  const double all = static_cast<double>(range_.sequences.size() * options_.focus.size() + options_.blocks.size());
  double done = 0;
  bool left = true;
  for (const std::int64_t sequences : range_.sequences) {
    for (const model::ModelSpec& model : options_.focus) {
      progress(kOperatorShare * done++ / all, fmt::format("{} at {} sequences", model.name, sequences));
      if (left) TRY_VOID(control());
      for (const plan::Program& program : programs_of(model, precision(), options_.ranks, sequences, tokens_of(model))) {
        if (!left) break;
        TRY(left, operators_of(program));
      }
      if (left && sequences == range_.sequences.front()) TRY_VOID(compose({model, kCompositionSequences, tokens_of(model)}));
    }
  }
  for (const BlockCase& block : options_.blocks) {
    if (!left) break;
    progress(kOperatorShare * done++ / all, block.model.name);
    TRY_VOID(control());
    TRY(const plan::Program program, program_alone(block.model, block.sequences, block.tokens, precision()));
    TRY(left, operators_of(program));
    if (left) TRY_VOID(compose(block));
  }
  return {};
}

base::Result<void> Calibration::products() {
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
          if (!left) return {};
          if (find(s, phase) == nullptr) TRY_VOID(point(product_bench(s, phase, device_)));
        }
      }
    }
  }
  return {};
}

/// A whole step against the medians of its operations, right after them: a shared machine's speed drifts. @pre they are measured
base::Result<void> Calibration::compose(const BlockCase& c) {
  TRY(const plan::Program program, program_alone(c.model, c.sequences, c.tokens, precision()));
  std::vector<double> step_seconds, step_gaps;
  ComposedStep composed;
  TRY_VOID(train_alone(site_, program, c.model.vocab, [&](const SoloStep& step) {
    double spans = 0, known = 0;
    composed.medians = composed.operations = 0;
    for (const plan::Span& s : step.spans) {
      const plan::Op& op = operation_of(program, s);
      const double seconds = 1e-12 * static_cast<double>(s.duration_ps);
      spans += seconds;
      const model::OperatorPoint* p = op.kind == plan::OpKind::kCompute ? find(program.segments[op.segment], op.phase) : nullptr;
      if (p == nullptr) continue;
      known += seconds;
      composed.medians += p->seconds_median;
      composed.operations += 1;
    }
    const double used = step.used_seconds / step.wall_seconds;
    step_seconds.push_back(known * used);
    step_gaps.push_back((step.wall_seconds - spans) * used / static_cast<double>(step.spans.size()));
  }));
  TRY(composed.seconds, mean_over_ranks(communicator_, timing_of(step_seconds).median));
  TRY(const double gap, mean_over_ranks(communicator_, timing_of(step_gaps).median));
  composed_.push_back(composed);
  gaps_.push_back(gap);
  return {};
}

void Calibration::composition() {
  if (composed_.empty()) return;
  const Composition c = fit_composition(composed_);
  profile_.composition_factor = c.factor * ranks_per_core_;
  profile_.composition_residual = c.residual;
  profile_.launch_seconds = (c.overhead + std::max(0.0, timing_of(gaps_).median)) * ranks_per_core_;
}

/// Sizes measured even when the budget is spent.
bool is_coarse(std::int64_t bytes) { return bytes == 1 << 10 || bytes == 64 << 10 || bytes == 1 << 20 || bytes == 16 << 20; }

base::Result<void> Calibration::collectives() {
  const int world = communicator_.world_size();
  if (world == 1) return {};
  const Sampling sampling{.samples = 15, .seconds = 0};
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 4) sizes.push_back(bytes);
  for (int size = 2; size <= world; size *= 2) {
    if (world % size != 0) continue;
    std::set<int> strides{1, world / size};
    for (const int stride : strides) {
      const plan::Group group{.name = "", .size = size, .stride = stride};
      std::vector<int> ranks;
      for (int i = 0; i < size; ++i) ranks.push_back(group.base(communicator_.rank()) + i * stride);
      TRY(const Channel channel, communicator_.channel(ranks, plan::Stream::kData));
      for (const auto op : {model::Collective::kAllReduce, model::Collective::kAllGather, model::Collective::kReduceScatter}) {
        progress(kProductShare, fmt::format("{} over {} ranks", model::to_string(op), size));
        model::CollectiveTimes times{.op = op, .size = size, .stride = stride};
        for (const std::int64_t bytes : sizes) {
          TRY(const bool left, time_left(1.0));
          if (!left && !is_coarse(bytes)) continue;
          TRY(const Timing t, time_collective(communicator_, channel, op, bytes, device_, sampling));
          TRY(const double seconds, largest_over_ranks(communicator_, t.median));
          times.points.push_back({bytes, seconds});
        }
        profile_.collectives.push_back(std::move(times));
      }
    }
  }
  model::CollectiveTimes transfers{.op = model::Collective::kPointToPoint, .size = 2, .stride = 1};
  for (const std::int64_t bytes : sizes) {
    TRY(const Timing t, time_transfer(communicator_, bytes, device_, sampling));
    TRY(const double seconds, largest_over_ranks(communicator_, t.median));
    transfers.points.push_back({bytes, seconds});
  }
  profile_.collectives.push_back(std::move(transfers));
  return {};
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

void Calibration::describe() {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const int world = communicator_.world_size();
  const AcceleratorName accelerator = accelerator_name(device_);
  const auto host = topologies::probe_local_machine();
  profile_.name = fmt::format("{} x {} ranks, {}", device_.is_cpu() ? "cpu" : accelerator.model, world, options_.dtype);
  profile_.device = device_.is_cpu() ? "cpu" : accelerator.model;
  profile_.overlaps = !device_.is_cpu();
  profile_.control = summary_of(controls_);
  profile_.context_bytes = memory_.framework_bytes();
  utsname system{};
  ::uname(&system);
  profile_.provenance = {.source = "orrery calibrate",
                         .machine = fmt::format("{}{}, {} cores, {} ranks measuring at once", device_.is_cpu() ? "" : accelerator.model + ", host ", host ? host->cpu_name : "unknown processor", cores, world),
                         .software = fmt::format("LibTorch {}{}, {} {}", TORCH_VERSION, device_.is_cpu() ? "" : ", " + accelerator.software, system.sysname, system.release),
                         .date = today(),
                         .note = oversubscribed_ ? fmt::format("{} ranks on {} cores: compute times are CPU times multiplied by ranks / cores", world, cores)
                                               : refused_ > 0 ? fmt::format("{} samples were disturbed by other work and taken again, {} were kept", refused_, samples_) : ""};
}

}  // namespace

base::Result<model::Profile> calibrate(const CalibrateOptions& options) {
  if (options.dtype != "fp32" && options.dtype != "bf16") {
    return base::fail(ErrorCode::kBadValue, "dtype '{}' is neither fp32 nor bf16", options.dtype);
  }
  TRY(Site site, open_site(options.device, "auto"));
  const int started = site.communicator->world_size();
  if (started != 1 && started != options.ranks) return base::fail(ErrorCode::kInconsistent, "{} ranks were started to calibrate {}", started, options.ranks);
  return Calibration(options, site).run();
}

}  // namespace orrery::executor
