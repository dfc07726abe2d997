/// Profile of this machine. What is measured, and where from:
///
///  * operators: every distinct segment phase of the Programs that training the focus models would run at tp 1, 2, 4, with and without sequence
///    parallelism, at several sequences per micro-batch; then a grid of bare products for whatever lies elsewhere;
///  * composition factor: a whole training step of each focus model over the sum of its operators' medians;
///    the residual is the largest relative deviation of a model from the common factor;
///  * launch: time of a step outside its spans, per operation;
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
#include <numeric>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "executor/device.h"
#include "executor/interpreter.h"
#include "executor/microbench.h"
#include "plan/lower.h"

namespace orrery::executor {
namespace {

using base::ErrorCode;
using Clock = std::chrono::steady_clock;
using model::Phase;
using model::SegmentKind;
using model::SegmentShape;

/// Shares of the budget; what is left over passes on.
constexpr double kOperatorShare = 0.60, kProductShare = 0.68, kCompositionShare = 0.75;

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
  Calibration(const CalibrateOptions& options, Communicator& communicator, CountingAllocator& allocator, c10::Device device)
      : options_(options), communicator_(communicator), allocator_(allocator), device_(device), memory_(allocator, device), range_(range_of(device)), begin_(Clock::now()) {
    const unsigned cores = std::thread::hardware_concurrency();
    oversubscribed_ = device.is_cpu() && static_cast<unsigned>(communicator.world_size()) > cores;
    sampling_.cpu_time = oversubscribed_;
    if (oversubscribed_) ranks_per_core_ = static_cast<double>(communicator.world_size()) / cores;
  }

  base::Result<model::Profile> run() {
    TRY_VOID(operators());
    TRY_VOID(products());
    TRY_VOID(composition());
    TRY_VOID(collectives());
    describe();
    return std::move(profile_);
  }

 private:
  base::Result<void> operators();
  base::Result<void> products();
  base::Result<void> composition();
  base::Result<void> compose(const model::ModelSpec& model, std::vector<double>& ratios, std::vector<double>& gaps);
  base::Result<void> collectives();
  void describe();

  base::Result<void> point(const Bench& bench);
  /// Rank 0's clock decides for all, so that all measure the same points.
  base::Result<bool> time_left(double share);
  base::Result<double> mean_over_ranks(double value);
  base::Result<double> largest_over_ranks(double value);
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
  Communicator& communicator_;
  CountingAllocator& allocator_;
  c10::Device device_;
  DeviceMemory memory_;
  Range range_;
  Clock::time_point begin_;
  bool oversubscribed_ = false;
  double ranks_per_core_ = 1.0;
  Sampling sampling_{.samples = 9, .seconds = 0.02};
  model::Profile profile_;
};

base::Result<bool> Calibration::time_left(double share) {
  const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
  TRY(const std::string answer, communicator_.broadcast(spent < share * options_.budget_seconds ? "yes" : "no"));
  return answer == "yes";
}

base::Result<double> Calibration::mean_over_ranks(double value) {
  TRY(const auto texts, communicator_.gather(fmt::format("{:.17g}", value)));
  double sum = 0;
  for (const std::string& t : texts) sum += base::parse_real(t).value_or(0);
  TRY(const std::string mean, communicator_.broadcast(fmt::format("{:.17g}", sum / communicator_.world_size())));
  return base::parse_real(mean).value_or(0);
}

base::Result<double> Calibration::largest_over_ranks(double value) {
  TRY(const auto texts, communicator_.gather(fmt::format("{:.17g}", value)));
  double most = 0;
  for (const std::string& t : texts) most = std::max(most, base::parse_real(t).value_or(0));
  TRY(const std::string largest, communicator_.broadcast(fmt::format("{:.17g}", most)));
  return base::parse_real(largest).value_or(0);
}

base::Result<void> Calibration::point(const Bench& bench) {
  TRY_VOID(communicator_.barrier());
  TRY(const Timing t, time_bench(bench, sampling_));
  model::OperatorPoint p{.shape = bench.shape, .phase = bench.phase};
  TRY(p.seconds_median, mean_over_ranks(t.median));
  TRY(p.seconds_p10, mean_over_ranks(t.p10));
  TRY(p.seconds_p90, mean_over_ranks(t.p90));
  p.samples = t.samples;
  profile_.operators.push_back(std::move(p));
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

base::Result<void> Calibration::operators() {
  double done = 0;
  for (const std::int64_t sequences : range_.sequences) {
    for (const model::ModelSpec& model : options_.focus) {
      progress(kOperatorShare * done / static_cast<double>(range_.sequences.size() * options_.focus.size()),
               fmt::format("{} at {} sequences", model.name, sequences));
      done += 1;
      for (const plan::Program& program : programs_of(model, precision(), options_.ranks, sequences, tokens_of(model))) {
        for (const plan::Template& t : program.templates) {
          for (const plan::Op& op : t.ops) {
            if (op.kind != plan::OpKind::kCompute) continue;
            const SegmentShape& shape = program.segments[op.segment];
            const bool load = shape.kind == SegmentKind::kLoadTokens || shape.kind == SegmentKind::kLoadTargets;
            if (load || find(shape, op.phase) != nullptr || operand_bytes(program, op) > range_.most_bytes) continue;
            TRY(const bool left, time_left(kOperatorShare));
            if (!left) return {};
            TRY_VOID(point(bench_of(program, op, device_)));
          }
        }
      }
    }
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

/// A whole step against the medians of its operations: on the CPU in the thread's CPU time, as the medians are of samples that nothing
/// disturbed; on an accelerator in its own time, which spans of a step cover without a gap.
base::Result<void> Calibration::compose(const model::ModelSpec& model, std::vector<double>& ratios, std::vector<double>& gaps) {
  constexpr std::int64_t kSequences = 4;
  constexpr int kWarm = 2, kSteps = 8;
  plan::UniformOptions o;
  o.micro_batch = kSequences;
  o.global_batch = 2 * kSequences;
  o.precision = precision();
  o.sequence = tokens_of(model);
  TRY(const plan::Plan plan, plan::uniform_plan(model, "local", 1, o));
  TRY(const plan::Program program, plan::lower(plan, model));
  TRY(const TokenData data, TokenData::open("", model.vocab, program.sequence));
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  Board board = Board::attach(communicator_.rank());
  TRY(const auto interpreter, Interpreter::create(program, *alone, data, allocator_, board, {.seed = 1, .optimizer = {}, .device = device_}));
  std::vector<double> step_ratios, step_gaps;
  for (int step = 0; step < kWarm + kSteps; ++step) {
    TRY_VOID(communicator_.barrier());
    const double cpu = thread_cpu_seconds();
    const auto begin = Clock::now();
    TRY_VOID(interpreter->step(step, true));
    const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
    const double used = device_.is_cpu() ? thread_cpu_seconds() - cpu : wall;
    if (step < kWarm) continue;
    double spans = 0, known = 0, predicted = 0;
    for (const plan::Span& s : interpreter->spans()) {
      const plan::Op& op = program.templates[plan::TemplateId(s.template_id)].ops[s.template_index];
      const double seconds = 1e-12 * static_cast<double>(s.duration_ps);
      spans += seconds;
      const model::OperatorPoint* p = op.kind == plan::OpKind::kCompute ? find(program.segments[op.segment], op.phase) : nullptr;
      if (p == nullptr) continue;
      known += seconds;
      predicted += p->seconds_median;
    }
    if (predicted == 0) return {};  // the budget ended before this model's operators
    step_ratios.push_back(used * known / wall / predicted);  // the known operations' share of what the step used
    step_gaps.push_back((wall - spans) * used / wall / static_cast<double>(interpreter->spans().size()));
  }
  TRY(const double ratio, mean_over_ranks(timing_of(step_ratios).median));
  TRY(const double gap, mean_over_ranks(timing_of(step_gaps).median));
  ratios.push_back(ratio);
  gaps.push_back(gap);
  return {};
}

base::Result<void> Calibration::composition() {
  progress(kProductShare, "composition");
  std::vector<double> ratios, gaps;
  for (const model::ModelSpec& model : options_.focus) TRY_VOID(compose(model, ratios, gaps));
  if (ratios.empty()) return {};
  const auto mean = [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size()); };
  profile_.composition_factor = mean(ratios);
  for (const double ratio : ratios) {
    profile_.composition_residual = std::max(profile_.composition_residual, std::abs(ratio / profile_.composition_factor - 1));
  }
  profile_.composition_factor *= ranks_per_core_;
  profile_.launch_seconds = std::max(0.0, mean(gaps)) * ranks_per_core_;
  return {};
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
        progress(kCompositionShare, fmt::format("{} over {} ranks", model::to_string(op), size));
        model::CollectiveTimes times{.op = op, .size = size, .stride = stride};
        for (const std::int64_t bytes : sizes) {
          TRY(const bool left, time_left(1.0));
          if (!left && !is_coarse(bytes)) continue;
          TRY(const Timing t, time_collective(communicator_, channel, op, bytes, device_, sampling));
          TRY(const double seconds, largest_over_ranks(t.median));
          times.points.push_back({bytes, seconds});
        }
        profile_.collectives.push_back(std::move(times));
      }
    }
  }
  model::CollectiveTimes transfers{.op = model::Collective::kPointToPoint, .size = 2, .stride = 1};
  for (const std::int64_t bytes : sizes) {
    TRY(const Timing t, time_transfer(communicator_, bytes, device_, sampling));
    TRY(const double seconds, largest_over_ranks(t.median));
    transfers.points.push_back({bytes, seconds});
  }
  profile_.collectives.push_back(std::move(transfers));
  return {};
}

std::string processor_name() {
  const auto text = base::read_file("/proc/cpuinfo");
  if (!text) return "unknown processor";
  for (const std::string& line : base::split(*text, '\n')) {
    if (!line.starts_with("model name")) continue;
    return std::string(base::trim(line.substr(line.find(':') + 1)));
  }
  return "unknown processor";
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
  profile_.name = fmt::format("{} x {} ranks, {}", device_.is_cpu() ? "cpu" : accelerator.model, world, options_.dtype);
  profile_.device = device_.is_cpu() ? "cpu" : accelerator.model;
  profile_.overlaps = !device_.is_cpu();
  profile_.context_bytes = memory_.framework_bytes();
  utsname system{};
  ::uname(&system);
  profile_.provenance = {.source = "orrery calibrate",
                         .machine = fmt::format("{}{}, {} cores, {} ranks measuring at once", device_.is_cpu() ? "" : accelerator.model + ", host ", processor_name(), cores, world),
                         .software = fmt::format("LibTorch {}{}, {} {}", TORCH_VERSION, device_.is_cpu() ? "" : ", " + accelerator.software, system.sysname, system.release),
                         .date = today(),
                         .note = oversubscribed_ ? fmt::format("{} ranks on {} cores: compute times are CPU times multiplied by ranks / cores", world, cores) : ""};
}

}  // namespace

base::Result<model::Profile> calibrate(const CalibrateOptions& options) {
  if (options.dtype != "fp32" && options.dtype != "bf16") {
    return base::fail(ErrorCode::kBadValue, "dtype '{}' is neither fp32 nor bf16", options.dtype);
  }
  TRY(const Launch launch, detect_launch());
  TRY(const std::string device_name, resolve_device(options.device, "auto"));
  TRY(const c10::Device device, open_device(device_name, launch.local_rank));
  CountingAllocator& allocator = install_cpu_allocator();
  TRY(const std::unique_ptr<Communicator> communicator,
      make_communicator(resolve_backend("auto", device_name, launch), launch, launch.world_size));
  if (launch.world_size != 1 && launch.world_size != options.ranks) {
    return base::fail(ErrorCode::kInconsistent, "{} ranks were started to calibrate {}", launch.world_size, options.ranks);
  }
  return Calibration(options, *communicator, allocator, device).run();
}

}  // namespace orrery::executor
