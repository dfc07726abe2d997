#pragma once
/// \file
/// From the times of passes to the time of a step, twice: by the closed form that the search's
/// programs can add up, and pass by pass.
///
/// Closed form: closed_form.h.
///
/// Pass by pass. Every pipeline rank runs its passes in the order of plan::pass_order; with e(x)
/// the end of pass x and p its predecessor on the rank, a pass of stage s for micro-batch k ends at
///
///     forward     e(F_s,k) = max(e(p), a) + F_s         a = max(e(F_{s-1},k), a of the transfer
///     backward    e(B_s,k) = max(e(p), a) + B_s             before it) + f_s
///     weight      e(W_s,k) = e(p) + W_s
///
/// and likewise for gradients, with e(B_{s+1},k) and b_s: transfers of one direction between two
/// stages follow one another. Without overlap a rank is held while it receives: a = max(e(p), ...)
/// + f_s. The first pass of a rank begins at Z, the zeroing of its gradients. In the last
/// micro-batch the gradients of a run of n equal layers, whose passes take β each, are reduced
/// beside them, δ each, one after another:
///
///     d = max(e + δ, max(d, begin + β) + n δ + q σ),      e = begin of the run + n β + q σ
///
/// where each of the q layers beside a reduction (all but the first, and that too when one of
/// before is not done) slows it, and is slowed, by σ. The step ends with the last of max(e, d) + U
/// over the ranks. In the first micro-batch each layer l waits for its updated parameters
/// (ZeRO-1/2), which take γ_l and are gathered in order from the start of the step. With Γ of the
/// stages before it on the rank,
///
///     e(F_s,0) >= Γ + M_s,      M_s = max over l of (Σ_{j<=l} γ_j + Σ_{j>=l} φ_j)
///
/// for passes of φ each; where computing is slowed beside gathers, M_s is the sum of what layers
/// then take, from Z or Γ on, whichever is later: a stage that begins behind them meets none.
/// ZeRO-3: a pass cannot begin before the weights of its first layer are gathered, g. That may
/// begin while the last layer of the pass before computes, but stands behind what that layer's
/// backward reduces, in the first pass behind all γ of the rank. Copies to the host: of n layers
/// of a pass that without them takes φ each, h a copy, the first forward waits for nothing, that
/// of the third layer for the copy of the first, and so on, with o the end of the rank's last copy
///
///     e(F_s,k) >= max(begin + φ, o) + (n - 2) h + φ
///
/// (and what stands in front of the first and behind the last). A backward waits for the copy of
/// its first layer, whose stash must be on the host and whose place was left when the last layer
/// but one of the backward before ended; the copy of the third begins as the first has ended:
///
///     e(B_s,k) >= max(a_1, begin + φ) + (n - 2) h + φ,     a_1 of the second copy
///
/// Every quantity is one that the closed form knows; what it adds is who waits for whom, which no
/// sum over stages can say where stages differ. It is O(m v p) for m micro-batches, v virtual
/// stages, p ranks; from kSettled groups of p micro-batches on each group is taken to last as long
/// as the one before.
///
/// Examples (tests), 1F1B with p = 2, m = 4: stages of F = 1, B = 2 take 15, as by the closed form;
/// with transfers of 1 they take 19, where the closed form says 17: each cycle waits for one.
/// Stages of (F, B) = (3, 6) and (1, 2) take 36, the work of the first, and the closed form
/// says 39.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "costmodel/closed_form/closed_form.h"
#include "plan/program/plan.h"
#include "plan/program/schedule.h"

namespace orrery::costmodel {

/// Equal layers of the last backward (or weight) pass, in its order, whose gradients are reduced
/// beside it.
struct ReducedRun {
  std::int64_t layers = 0;
  std::int64_t pass_ps = 0, reduction_ps = 0;  // of one layer: β, δ
  std::int64_t slowed_ps = 0;                  // σ
};

/// Layers of a pass whose activations are copied to the host, or back. Times are those of layers
/// without copies.
struct CopiedLayers {
  std::int64_t layers = 0;
  std::int64_t copies_ps = 0, last_copy_ps = 0;  // of all, of the last
  std::int64_t held_ps = 0;    // of the pass's time, what it waits for them in the closed form
  std::int64_t before_ps = 0;  // in front of the first
  std::int64_t first_ps = 0, last_ps = 0;
  std::int64_t until_ps = 0;  // from the pass's begin until the last has ended
  /// `count` equal layers behind what takes `so_far_ps` with its waits.
  void add(std::int64_t so_far_ps, std::int64_t count, std::int64_t layer_ps, std::int64_t copy_ps,
           std::int64_t held_each_ps);
};

/// The updates of a rank, layer by layer. Of states on the host layer l ends what reduces its
/// gradients, its copy in, its update and its copy out, which take r, i, u and o, at
///
///     R_l = R_{l-1} + r
///     I_l = max(I_{l-1}, O_{l-2}, R_l) + i
///     U_l = max(U_{l-1}, I_l) + u
///     O_l = max(O_{l-1}, U_l) + o
///
/// as two layers are on the device. Gradients that are reduced in turn with the updates, f, stand
/// between them: R_l = U_{l-1} + f. Example (tests): four layers of i = o = 3 and u = 2 end at 19,
/// with f = 1 at 27.
class UpdateTimes {
 public:
  void add(std::int64_t layers, const LayerCost::StateCopies& copies);
  [[nodiscard]] std::int64_t ps(bool overlaps) const {
    return overlaps ? std::max(updated_ps_, out_ps_) : all_ps_;
  }

 private:
  std::int64_t in_ps_ = 0, updated_ps_ = 0, out_ps_ = 0, before_ps_ = 0, reduced_ps_ = 0,
               all_ps_ = 0;
};

/// One stage: its layers in order, with resharding between them.
struct StageTimes {
  std::int64_t forward_ps = 0, backward_ps = 0, backward_sync_ps = 0, weight_ps = 0,
               weight_sync_ps = 0;
  // of the whole rank, in its first stage; late: LayerCost::late_forward_ps
  std::int64_t zero_ps = 0, late_ps = 0, update_ps = 0;
  UpdateTimes updates;
  std::int64_t gathered_ps = 0, first_forward_ps = 0;  // Γ and M
  bool slowed_forward = false;                         // M is from Z on
  /// Equal layers behind the others: φ, γ, and by how much they hold each other up side by side.
  void add_first_forward(std::int64_t layers, std::int64_t pass_ps, std::int64_t gather_ps,
                         std::int64_t slowed_ps);
  std::int64_t receive_forward_ps = 0, receive_backward_ps = 0;
  std::vector<ReducedRun> last_backward, last_weight;
  // Of a pass's first layer: its gather. Of its last: its time, and what every micro-batch reduces.
  struct Ends {
    std::int64_t gather_ps = 0, layer_ps = 0, reduction_ps = 0;
  };
  Ends forward_ends, backward_ends;
  CopiedLayers copied_out, copied_in;  // beside the forward, the backward
};

struct StepTimes {
  plan::Schedule schedule = plan::Schedule::k1F1B;
  int ranks = 1, virtual_stages = 1;
  std::int64_t micro_batches = 1;
  bool overlaps = true;
  std::vector<StageTimes> stages;  // ranks * virtual_stages
};

/// Orders of passes, each made once.
class PassOrders {
 public:
  struct Pass {
    plan::PassKind kind = plan::PassKind::kForward;
    bool last = false;
    std::int32_t stage = 0, micro_batch = 0;
  };
  /// [rank] passes in order.
  using Order = std::vector<std::vector<Pass>>;
  const Order& of(plan::Schedule schedule, int ranks, int virtual_stages,
                  std::int64_t micro_batches);

 private:
  std::map<std::tuple<plan::Schedule, int, int, std::int64_t>, Order> known_;
};

/// The formula of closed_form.h.
std::int64_t closed_form_ps(const StepTimes& step);
/// The recurrence above.
std::int64_t pass_by_pass_ps(const StepTimes& step, PassOrders& orders);

}  // namespace orrery::costmodel
