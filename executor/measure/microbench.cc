#include "executor/measure/microbench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <time.h>

#include <algorithm>

#include "base/numbers.h"
#include "executor/device/timed_wait.h"
#include "executor/measure/recorded_training.h"

namespace orrery::executor {
namespace {

using model::Collective;
using model::SegmentKind;

constexpr double kContaminated = 1.1;
constexpr double kClockSeconds = 2e-6;  // reading two clocks twice
// Operands of all copies together, about: several times the last cache.
constexpr std::int64_t kRotatedBytes = 32 << 20, kRotatedBytesOfAccelerator = 256 << 20;
constexpr std::size_t kMostCopies = 8;

// Positive numbers of order one: no phase meets a NaN, a denormal or a root of less than zero.
// Token ids lie in the vocabulary.
at::Tensor filled(at::IntArrayRef shape, model::DType type, std::int64_t vocab,
                  const at::Device& device) {
  if (type == model::DType::kInt64) {
    return at::randint(std::max<std::int64_t>(vocab, 1), shape,
                       at::TensorOptions().dtype(at::kLong).device(device));
  }
  at::Tensor t = at::rand(shape, at::TensorOptions().dtype(at::kFloat).device(device));
  return t.mul_(0.9).add_(0.1).to(scalar_type(type));
}

/// Choices of experts, or rows of tokens: no two alike of a token.
at::Tensor numbered(const model::SegmentShape& s, model::Phase phase, at::IntArrayRef shape,
                    const at::Device& device) {
  const bool chooses = s.kind == SegmentKind::kRouter ||
                       (s.kind == SegmentKind::kDispatch && phase == model::Phase::kF);
  at::Tensor ids = at::arange(c10::multiply_integers(shape),
                              at::TensorOptions().dtype(at::kLong).device(device));
  return ids.remainder_(chooses ? s.experts : s.expert_rows()).view(shape);
}

std::int64_t bytes_of(const Operands& o) {
  std::size_t bytes = 0;
  for (const auto* list : {&o.reads, &o.updates, &o.weights, &o.gradients}) {
    for (const at::Tensor& t : *list) bytes += t.nbytes();
  }
  return static_cast<std::int64_t>(bytes);
}

Operands copy_of(const Operands& o) {
  Operands copy = o;
  for (auto* list : {&copy.reads, &copy.updates, &copy.weights, &copy.gradients}) {
    for (at::Tensor& t : *list) t = t.clone();
  }
  return copy;
}

}  // namespace

double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return real(t.tv_sec) + 1e-9 * real(t.tv_nsec);
}

bool disturbed(double wall, double cpu) { return wall > kContaminated * cpu + kClockSeconds; }

Timing timing_of(std::vector<double> seconds) {
  ORRERY_CHECK(!seconds.empty());
  std::ranges::sort(seconds);
  const auto at = [&](double q) { return seconds[as_index(q * real(seconds.size() - 1) + 0.5)]; };
  const std::size_t half = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  return {.median = median, .p10 = at(0.1), .p90 = at(0.9), .samples = as_int(seconds.size())};
}

Timing time_calls(const std::function<void(std::size_t)>& call, const Sampling& sampling) {
  std::size_t i = 0;
  for (; i < 2; ++i) call(i);  // warm
  std::vector<double> seconds;
  int refused = 0;
  const Stopwatch all;
  while (as_int(seconds.size()) < sampling.samples || all.seconds() < sampling.seconds) {
    const double cpu = thread_cpu_seconds();
    const Stopwatch clock;
    call(i++);
    const double wall = clock.seconds();
    const double used = thread_cpu_seconds() - cpu;
    if (!sampling.cpu_time && disturbed(wall, used) && refused < sampling.samples) {
      ++refused;
      continue;
    }
    seconds.push_back(sampling.cpu_time ? used : wall);
    if (seconds.size() >= 3 && all.seconds() > 5 * sampling.seconds) break;
  }
  Timing timing = timing_of(std::move(seconds));
  timing.refused = refused;
  return timing;
}

namespace {

// Calls of one sample on an accelerator: long against the resolution of its events (0.5 us), few
// enough for its queue.
constexpr double kSampleSeconds = 5e-4;
constexpr int kMostCallsOfSample = 40;
// What the host takes for a call: before it is known, and at most (the first ones load kernels).
constexpr double kIssueSeconds = 1e-4, kMostIssueSeconds = 2e-3, kIssueMargin = 1.5;

/// What follows on the device's queue starts `seconds` from now at the earliest.
void hold(c10::Device device, at::Tensor& clock, double seconds) {
  auto* const time = clock.mutable_data_ptr<std::int64_t>();
  const auto done = [](const char* fault) { TORCH_CHECK(fault == nullptr, fault); };
  const c10::impl::VirtualGuardImpl guard(device.type());
  void* const queue = guard.getStream(device).native_handle();
  done(device::store_time(queue, time));
  done(device::wait_since(queue, time, static_cast<std::int64_t>(1e9 * seconds)));
}

}  // namespace

Timing time_on_accelerator(const std::function<void(std::size_t)>& call, const Sampling& sampling,
                           c10::Device device) {
  std::size_t i = 0;
  double issue = kIssueSeconds;
  at::Tensor clock = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(device));
  const auto timed = [&](int samples, int calls) {
    DeviceMarks marks(device);
    double longest = 0;
    for (int s = 0; s < samples; ++s) {
      hold(device, clock, kIssueMargin * issue * calls);
      marks.mark();
      const Stopwatch host;
      for (int c = 0; c < calls; ++c) call(i++);
      longest = std::max(longest, host.seconds() / calls);
      marks.mark();
    }
    issue = std::min(longest, kMostIssueSeconds);
    const std::vector<std::int64_t> at = marks.picoseconds();
    std::vector<double> seconds;
    for (std::size_t s = 1; s < at.size(); s += 2)
      seconds.push_back(1e-12 * real(at[s] - at[s - 1]) / calls);
    return timing_of(std::move(seconds));
  };
  timed(1, 2);  // warm: kernels loaded, memory cached
  const double once = std::max(timed(1, 3).median, 1e-7);
  const int calls = std::clamp(as_int(kSampleSeconds / once) + 1, 1, kMostCallsOfSample);
  const int samples = std::clamp(as_int(sampling.seconds / (once * calls)), 3, sampling.samples);
  return timed(samples, calls);
}

Bench bench_of(const plan::Program& program, const plan::Op& op, const at::Device& device) {
  Bench bench{.shape = program.segments[op.segment], .phase = op.phase, .device = device};
  const std::int64_t vocab = std::max(bench.shape.vocab, program.spec.vocab);
  const auto tensor = [&](const plan::BufferRef& ref) {
    const plan::BufferDecl& decl = program.buffers[ref.buffer];
    if (decl.dtype == model::DType::kInt64 && bench.shape.experts > 0)
      return numbered(bench.shape, op.phase, decl.shape, device);
    return filled(decl.shape, decl.dtype, vocab, device);
  };
  Operands& o = bench.operands;
  for (const plan::BufferRef& ref : op.reads) o.reads.push_back(tensor(ref));
  for (const plan::BufferRef& ref : op.updates) o.updates.push_back(tensor(ref));
  for (const plan::BufferRef& ref : op.writes) {
    const plan::BufferDecl& decl = program.buffers[ref.buffer];
    o.writes.push_back({.shape = decl.shape, .dtype = decl.dtype, .device = device});
  }
  for (const plan::ParameterView& view : op.views) {
    if (op.weights)
      o.weights.push_back(
          filled(view.shape, program.buffers[op.weights->buffer].dtype, vocab, device));
    if (op.gradients)
      o.gradients.push_back(
          filled(view.shape, program.buffers[op.gradients->buffer].dtype, vocab, device));
  }
  if (bench.shape.kind == SegmentKind::kAdamW) {
    // The shard's first elements, as one parameter: where it begins does not change the time.
    plan::Parameter all;
    all.shape = all.local_shape = {bench.shape.elements};
    bench.unit.parameters = {all};
    bench.unit.elements = bench.unit.padded = bench.shape.elements;
  }
  return bench;
}

Bench product_bench(const model::SegmentShape& shape, model::Phase phase,
                    const at::Device& device) {
  Bench bench{.shape = shape, .phase = phase, .device = device};
  Operands& o = bench.operands;
  const std::vector<std::int64_t> x{shape.sequences, shape.tokens, shape.in},
      y{shape.sequences, shape.tokens, shape.out};
  o.weights.push_back(filled({shape.out, shape.in}, shape.dtype, 1, device));
  if (shape.bias) o.weights.push_back(filled({shape.out}, shape.dtype, 1, device));
  if (phase == model::Phase::kF) {
    o.reads.push_back(filled(x, shape.dtype, 1, device));
    o.writes.push_back({.shape = y, .dtype = shape.dtype, .device = device});
    return bench;
  }
  o.reads = {filled(y, shape.dtype, 1, device), filled(x, shape.dtype, 1, device)};
  for (const at::Tensor& w : o.weights)
    o.gradients.push_back(filled(w.sizes(), model::DType::kFloat32, 1, device));
  if (phase != model::Phase::kG)
    o.writes.push_back({.shape = x, .dtype = shape.dtype, .device = device});
  return bench;
}

base::Result<Timing> time_bench(const Bench& bench, const Sampling& sampling) {
  const c10::InferenceMode no_autograd;
  const std::int64_t bytes = std::max<std::int64_t>(bytes_of(bench.operands), 1);
  const std::int64_t rotated = bench.device.is_cpu() ? kRotatedBytes : kRotatedBytesOfAccelerator;
  const auto copies = std::clamp<std::size_t>(as_index(rotated / bytes), 2, kMostCopies);
  std::vector<Operands> sets;
  for (std::size_t i = 0; i < copies; ++i) sets.push_back(copy_of(bench.operands));
  RotaryTables rotary;
  SegmentContext context;
  context.unit = &bench.unit;
  context.rotary = &rotary;
  context.loss_scale = 1e-6;  // repeated in-place phases stay of order one
  base::Result<void> failed;
  const auto call = [&](std::size_t i) {
    Operands now = sets[i % sets.size()];  // its outputs die with it, as a Program's do
    if (auto done = run_segment(bench.shape, bench.phase, now, context); !done)
      failed = std::move(done);
  };
  const Timing timing = bench.device.is_cpu() ? time_calls(call, sampling)
                                              : time_on_accelerator(call, sampling, bench.device);
  if (!failed) return base::fail(failed.error());
  return timing;
}

namespace {

/// Samples that start together; a rank's sample lasts until its own call returns.
base::Result<double> time_together(Communicator& communicator, c10::Device device,
                                   const std::function<base::Result<void>()>& call) {
  constexpr int kSamples = 15;
  std::vector<double> seconds;
  for (int i = -2; i < kSamples; ++i) {
    TRY_VOID(communicator.barrier());
    const Stopwatch clock;
    TRY_VOID(call());
    if (!device.is_cpu()) cuda_synchronize(device.index());
    if (i >= 0) seconds.push_back(clock.seconds());
  }
  return largest_over_ranks(communicator, timing_of(std::move(seconds)).median);
}

}  // namespace

base::Result<double> time_collective(Communicator& communicator, const Channel& channel,
                                     Collective op, std::int64_t bytes, c10::Device device) {
  const c10::InferenceMode no_autograd;
  const std::int64_t elements = std::max<std::int64_t>(bytes / 4 / channel.size, 1) * channel.size;
  at::Tensor whole = filled({elements}, model::DType::kFloat32, 1, device);
  at::Tensor part = filled({elements / channel.size}, model::DType::kFloat32, 1, device);
  at::Tensor other = whole.clone();
  return time_together(communicator, device, [&]() -> base::Result<void> {
    switch (op) {
      case Collective::kAllReduce:
        return communicator.all_reduce(channel, whole, plan::Reduce::kMax);
      case Collective::kAllGather: return communicator.all_gather(channel, part, whole, 0);
      case Collective::kReduceScatter: return communicator.reduce_scatter(channel, whole, part, 0);
      case Collective::kAllToAll: return communicator.all_to_all(channel, whole, other);
      case Collective::kBroadcast: return communicator.broadcast(channel, whole, 0);
      case Collective::kPointToPoint: break;
    }
    ORRERY_CHECK(false, "not a collective");
  });
}

base::Result<double> time_transfer(Communicator& communicator, std::int64_t bytes,
                                   c10::Device device) {
  const c10::InferenceMode no_autograd;
  const int rank = communicator.rank(), peer = rank ^ 1;
  at::Tensor tensor =
      filled({std::max<std::int64_t>(bytes / 4, 1)}, model::DType::kFloat32, 1, device);
  return time_together(communicator, device, [&]() -> base::Result<void> {
    if (peer >= communicator.world_size()) return {};
    TRY(const std::unique_ptr<Transfer> transfer,
        communicator.post({{.send = rank < peer, .peer = peer, .lane = 0, .tensor = tensor}}));
    return transfer->wait();
  });
}

}  // namespace orrery::executor
