#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "costmodel/closed_form/closed_form.h"
#include "tests/unit/sim/step_maker.h"

namespace orrery::sim {
namespace {

// Any pipeline, any prices: accounts add up, no rank computes more or less than its share, and the
// step is not shorter than its critical path.
RC_GTEST_PROP(PipelineProperty, AccountsAddUpAndTheStepCoversItsWork, ()) {
  testing::PipelineOptions o;
  o.stages = *rc::gen::inRange(1, 6);
  o.micro_batches = *rc::gen::inRange(1, 9);
  o.forward_ps = *rc::gen::inRange<std::int64_t>(1, 1'000'000);
  o.backward_ps = *rc::gen::inRange<std::int64_t>(1, 1'000'000);
  o.message_bytes = 4 * *rc::gen::inRange<std::int64_t>(0, 500);
  o.stash_bytes = 400;
  o.one_f_one_b = *rc::gen::arbitrary<bool>();
  auto maker = testing::pipeline(o);
  maker.profile.overlaps = *rc::gen::arbitrary<bool>();
  const SimReport r = maker.run(testing::star(o.stages, 1'000'000'007, 3));
  const std::int64_t pass = o.forward_ps + o.backward_ps;
  RC_ASSERT(r.step_time_ps >= (o.micro_batches + o.stages - 1) * pass);
  for (const StageReport& s : r.stages) {
    RC_ASSERT(s.busy_compute_ps == o.micro_batches * pass);
    RC_ASSERT(s.busy_compute_ps + s.exposed_tensor_ps + s.exposed_data_ps + s.exposed_pipeline_ps +
                  s.idle_ps ==
              r.step_time_ps);
    RC_ASSERT(std::accumulate(s.parts.begin(), s.parts.end(), std::int64_t{0}) == r.step_time_ps);
  }
  RC_ASSERT(maker.run(testing::star(o.stages, 1'000'000'007, 3)).fingerprint == r.fingerprint);
}

// More slowdown, or a slower network, never makes a step of one class shorter.
RC_GTEST_PROP(OverlapProperty, OneClassNeverGainsFromSlowdown, ()) {
  const std::int64_t compute = *rc::gen::inRange<std::int64_t>(1, 100'000'000),
                     bytes = 4 * *rc::gen::inRange<std::int64_t>(1, 20'000);
  std::int64_t before = 0;
  for (const double k : {1.0, 1.1, 1.5, 3.0}) {
    testing::StepMaker m(2);
    m.stages(1, 2);
    m.profile.overlap_slowdown = k;
    m.run_once(
        0, {m.compute("c", compute), m.all_reduce("d", m.group(2, 1), bytes, plan::Stream::kData)});
    const std::int64_t step = m.run(testing::star(2, 1'000'000'000, 50)).step_time_ps;
    const std::int64_t alone = bytes * 1000 + 2 * 100'000;
    RC_ASSERT(step == costmodel::overlapped_ps(compute, alone,
                                               static_cast<std::int64_t>(k * 1e6 + 0.5), true));
    RC_ASSERT(step >= before);
    before = step;
  }
}

}  // namespace
}  // namespace orrery::sim
