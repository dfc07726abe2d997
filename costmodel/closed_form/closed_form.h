#pragma once
/// \file
/// Closed forms over lowered templates: the same operations that the simulator runs, summed instead
/// of simulated, so that a formula and a simulation cannot disagree about what a layer does.
#include <cstdint>
#include <vector>

#include "costmodel/cost_model.h"
#include "plan/lowering/lower.h"
#include "plan/program/memory.h"

namespace orrery::costmodel {

class LayerCosts;

/// What a step shall take least of.
enum class Objective : std::uint8_t { kTime, kEnergy };

/// One layer (or embedding, head, resharding) under one strategy in one stage of the cluster. Times
/// in ps, memory in bytes.
struct LayerCost {
  std::int64_t forward_ps = 0;   // compute + exposed communication of one micro-batch
  std::int64_t backward_ps = 0;  // without gradient synchronisation
  // weight gradients as a pass of their own (plan::LayerTemplates::weight), else 0
  std::int64_t weight_ps = 0;
  // the same of the micro-batch that synchronises; backward_ps and backward_sync_ps are then equal
  std::int64_t weight_sync_ps = 0;
  // of the micro-batch that synchronises (last, or every one: grad_reduce), overlap counted
  std::int64_t backward_sync_ps = 0;
  // Where energy is minimised: what a step draws for it, as time (layer_energy.h). No time passes:
  // it stands in backward_sync_ps for the search's sums, and plan_cost() takes it out of there.
  std::int64_t energy_ps = 0;
  /// The time that backward_sync_ps is of.
  [[nodiscard]] std::int64_t last_backward_ps() const { return backward_sync_ps - energy_ps; }
  // reductions of the micro-batch that synchronises, as far as backward_ps or weight_ps does not
  // hold them, whatever they hide behind
  std::int64_t reduction_ps = 0;
  // on the data stream alone: ZeRO-3's gathers, and what every micro-batch reduces
  std::int64_t gather_forward_ps = 0, gather_backward_ps = 0, reduction_each_ps = 0;
  // once per step: zero gradients, optimizer
  std::int64_t update_ps = 0;
  /// Of optimizer states in the host's memory: their copies to the device and back, the update
  /// between, what of memory they take; what reduces gradients in front of the copy: in turn with
  /// the updates, so that it stands behind that of the layer before (front), or on a stream of its
  /// own. With in, u, out, f and r of n equal layers, two of them on the device, all take
  /// (UpdateTimes) at least
  ///
  ///     n max(u, (in + u + out) / 2, r)  or, with f, n (f + in + u)
  ///
  /// of which update_ps is a layer's part (where layers differ, their sum may be more); without
  /// overlap the sum. Of states on the device `update_ps` is all.
  struct StateCopies {
    std::int64_t in_ps = 0, out_ps = 0, update_ps = 0, front_ps = 0, reduction_ps = 0, bytes = 0;
    bool operator==(const StateCopies&) const = default;
  };
  StateCopies states;
  // the part of update_ps that stands at the start of the step
  std::int64_t zero_gradient_ps = 0;
  // Updated parameters (ZeRO-1/2) gathered beside the step's first forward: time on the data
  // stream, and how much longer that forward takes.
  std::int64_t gather_updated_ps = 0, late_forward_ps = 0;
  /// What stands before the forward of a rank's first micro-batch, or holds it up.
  [[nodiscard]] std::int64_t start_ps() const { return zero_gradient_ps + late_forward_ps; }
  /// What a layer of the first rank, which never waits at the start, adds to a step once.
  [[nodiscard]] std::int64_t once_ps() const { return update_ps + late_forward_ps; }
  std::int64_t persistent_bytes = 0;  // parameters + gradients + optimizer shards
  // forward, backward: with the layer's own ZeRO-3 gather before it
  plan::TemplateMemory forward, backward, sync;
  plan::TemplateMemory weight;
  bool splits = false;  // has a weight pass, and synchronises behind it
  plan::TemplateMemory gather_forward, gather_backward, zero_gradient, update;
  // kept on the device from forward to backward per micro-batch in flight (= forward.delta_bytes -
  // copied_bytes)
  std::int64_t stash_bytes = 0;
  // what the forward leaves behind until its copy to the host has ended
  std::int64_t copied_bytes = 0;
  /// Copies to the host beside the forward, back beside the backward; what they add to forward_ps
  /// and backward_ps.
  struct Copies {
    std::int64_t out_ps = 0, in_ps = 0, held_forward_ps = 0, held_backward_ps = 0;
    bool operator==(const Copies&) const = default;
  };
  Copies copies;
  // synchronisation after every micro-batch: backward_ps holds it too, but for replicated operators
  bool reduces_per_micro_batch = false;
  bool operator==(const LayerCost&) const = default;
};

/// Time of a template whose compute and tensor streams are serial (c) and whose data stream (d)
/// overlaps them; what overlaps runs k times slower on both sides:
///
///   time = k · min(c, d) + |c - d|,   without overlap c + d
///
/// A layer whose activations go to the host takes as long as their copies h where these are longer:
/// max(time, h), without overlap time + h.
std::int64_t overlapped_ps(std::int64_t serial_ps, std::int64_t data_ps, std::int64_t slowdown_ppm,
                           bool overlaps);

/// What a whole plan costs by closed form. With F_i, B_i forward and backward of one micro-batch on
/// stage i (B'_i: the last one, with synchronisation), f_i, b_i what it waits for a transfer of
/// activation or gradient, Z_i and U_i zeroing and update, p pipeline ranks:
///
///   step = Z + Σ_{i<p} (F_i + f_i) + (m-1) · cycle + R + Σ_{i<p} (B'_i + b_i) + U
///     (Galvatron, arXiv 2211.13878, section on the cost of pipelines)
///
///   GPipe         cycle = max_i F_i + max_i B_i: two flow shops;  R = 0
///   1F1B          cycle = max_i (F_i + B_i);  R = 0
///   interleaved   cycle = max over ranks of the sum of F_i + B_i over its v stages. The pipeline
///                 fills and drains through the first stage of each rank; R = cycle - (F + B) of
///                 stage p-1, and the synchronisation of the other stages of the rank that has
///                 most of it. Equal stages, with F and B of a whole rank: (m + (p-1)/v) (F + B)
///                 (arXiv 2104.04473, section 2.2)
///   ZB-H1         B without weight gradients, W those of one micro-batch;
///                 cycle = max_i (F_i + B_i + W_i);
///                 R = max_i W'_i less the min(m,p) - 1 smallest of min(F_i, B_i, W_i).
///                 Equal stages and m ≥ p: m (F + B + W) + (p-1) max(F, B, F + B - W); the paper
///                 states (p-1)(F + B - W) of bubble, which is the same for W ≤ min(F, B)
///                 (arXiv 2401.10241, table 1)
///   ZB-V,         a lower bound where no pass laps over the next, of the rank r where it is
///   DualPipeV     largest: its start Σ_{i<r} F_i + Σ_{i<=r} f_i (or Z, if that is later), m
///                 times its F + B + W, and U
///
/// Z (with what gathers of updated parameters add to the first forward: LayerCost::start_ps) and U:
/// those of the rank where they hurt most, given that ranks start and end one after another.
/// Without overlap a rank is held while it receives, so f_i and b_i count in the cycle as well. How
/// right it is for equal stages without overlap: exact with free transfers (ZB-H1 with m < p and W
/// > B: an upper bound). With transfers that take time GPipe stays exact, 1F1B and interleaved on
/// two ranks; on more ranks they are an upper bound that counts up to half a transfer per
/// micro-batch and stage of a rank too much, since ranks wait for one another at the same time; so
/// is ZB-H1, whose weight passes hide more of them. With overlap, 1F1B may expose up to 2(p-1)/p of
/// a transfer per cycle that the formula leaves out. Example: p = 2, m = 4, F = 1, B = 2, free
/// transfers: 3 + 3 · 3 + 3 = 15; with v = 2: 12 + 1/2 · 3 = 13.5; ZB-H1 with B = W = 1: 12 + 1
/// = 13.
struct PlanCost {
  std::int64_t step_ps = 0;
  // the same step with every wait of one pass for another (step_times.h)
  std::int64_t pass_by_pass_ps = 0;
  std::int64_t energy_ps = 0;  // in both, of all layers; 0 where time is minimised
  // By pipeline rank.
  // one micro-batch, forward + backward, without synchronisation
  std::vector<std::int64_t> stage_ps;
  // what the step adds once: synchronisation + update
  std::vector<std::int64_t> stage_sync_ps;
  // equals plan::static_memory of the lowered Program, byte for byte
  std::vector<std::int64_t> stage_peak_bytes;
};
base::Result<PlanCost> plan_cost(const CostModel& cost, const plan::Plan& plan);
/// The same for many plans: layers are priced once (layer_costs.h). @pre all plans have the cost
/// model's precision and sequence, and one global batch.
base::Result<PlanCost> plan_cost(LayerCosts& costs, const plan::Plan& plan);

/// PlanCost::step_ps alone. @pre as above, and the plan is valid and fits the cluster.
std::int64_t step_ps(LayerCosts& costs, const plan::Plan& plan);
/// Both forms of the step's time. @pre as above.
struct StepForms {
  std::int64_t closed_form_ps = 0, pass_by_pass_ps = 0, energy_ps = 0;
};
StepForms step_forms(LayerCosts& costs, const plan::Plan& plan);

/// Peak of one stage alone, as plan_cost() would say. Of the other stages only the layer before the
/// stage is read, and of models with blocks of several kinds how many layers there are. @pre the
/// stage and that layer are those of a valid plan.
std::int64_t stage_peak_bytes(LayerCosts& costs, const plan::Plan& plan, int stage);

/// Micro-batches of which stage `stage` holds the full stash at once: GPipe m; 1F1B and ZB-H1
/// min(stages - stage, m). @pre one stage a rank: else a rank holds chunks of micro-batches, see
/// plan::pass_order.
std::int64_t in_flight(plan::Schedule schedule, int stage, int stages, std::int64_t micro_batches);

}  // namespace orrery::costmodel
