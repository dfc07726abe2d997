#pragma once
/// Times one thing many times: segment phases through the same run_segment as training, and
/// collectives.
///
/// A segment is run over several copies of its operands in turn, so that it finds its inputs as
/// cold as training leaves them, and its outputs come from the caching allocator, as in training. A
/// sample whose wall time exceeds its thread's CPU time by more than kContaminated was disturbed
/// and is taken again (at most as often as there are samples). When ranks measure together they
/// start each point together, so that they share caches and memory as in training. With more ranks
/// than cores every sample is disturbed, and CPU time is taken instead.
#include <functional>
#include <vector>

#include "executor/segments/segments.h"
#include "executor/state/device.h"
#include "executor/transport/communicator.h"
#include "model/profile.h"

namespace orrery::executor {

struct Sampling {
  int samples = 15;
  double seconds = 0.06;  // spent on one point, about
  bool cpu_time = false;  // of the thread, instead of wall time
};

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // seconds
  int samples = 0;
  int refused = 0;  // disturbed and taken again
};

/// CPU time of the calling thread.
double thread_cpu_seconds();
/// Whether other work took part of `wall` seconds of a thread that used `cpu` of them.
bool disturbed(double wall, double cpu);

/// Order statistics of `seconds` (not empty).
Timing timing_of(std::vector<double> seconds);

/// Median wall seconds of `call(i)`, i = 0, 1, …
Timing time_calls(const std::function<void(std::size_t)>& call, const Sampling& sampling);

/// The same by events of the device's stream, per call: a sample is a run of calls that the host
/// has issued before the first of them starts, as in training, where it is ahead; what a host takes
/// is no part of it. At most `sampling.samples` of them in about `sampling.seconds`.
Timing time_on_accelerator(const std::function<void(std::size_t)>& call, const Sampling& sampling,
                           c10::Device device);

/// One segment phase with everything needed to run it alone.
struct Bench {
  model::SegmentShape shape;
  model::Phase phase = model::Phase::kF;
  at::Device device{at::kCPU};
  Operands operands = {};         // reads, updates, weights and gradients filled; writes declared
  plan::ParameterUnit unit = {};  // AdamW: one parameter over the whole shard
};

/// The bench of a compute operation of a Program, from its buffers' declarations; loads are not
/// benched.
Bench bench_of(const plan::Program& program, const plan::Op& op, const at::Device& device);
/// A bare product, T rows.
Bench product_bench(const model::SegmentShape& shape, model::Phase phase, const at::Device& device);

base::Result<Timing> time_bench(const Bench& bench, const Sampling& sampling);

/// Median seconds of a collective of `bytes` (whole tensor) on a channel, of the slowest rank.
base::Result<double> time_collective(Communicator& communicator, const Channel& channel,
                                     model::Collective op, std::int64_t bytes, c10::Device device);
/// Likewise what an exchange of `bytes` takes its receiver; ranks 2i send to 2i + 1.
base::Result<double> time_transfer(Communicator& communicator, std::int64_t bytes,
                                   c10::Device device);

}  // namespace orrery::executor
