#pragma once
/// \file
/// Reads a Galvatron profile folder (Hetu-Galvatron, commit cea12ff, Apache-2.0) into an
/// `orrery.profile/1`.
///
/// Files, in the folder or in its `configs/` and `hardware_configs/`:
///
///   computation_profiling_<fp32|fp16|bf16>_<...>.json      milliseconds
///     layernum[L]_bszB_seqS      forward of an L-layer model
///     layertype_0_bszB_seqS      one layer, per sample; layertype_other_...: embedding, head and
///                                loss, per sample. Where only layernum is there:
///                                layer = (t[L2] - t[L1]) / (L2 - L1) / B,
///                                other = t[L1] / B - L1 * layer
///   memory_profiling_*           MiB; checked, not used (memory is computed exactly):
///                                parameter_size of a layer = 4 bytes per parameter
///   allreduce_bandwidth_<H>nodes_<G>gpus_per_node.json
///     GB/s (10^9) of bus bandwidth, allreduce_size_<n>_consec_<1|0>
///     consec 1: ranks side by side; consec 0: ranks HG/n apart. Hosts that a group spans follow
///     from that.
///   p2p_bandwidth_<H>nodes_<G>gpus_per_node.json
///     GB/s, pp_size_<p>: neighbouring stages of a pipeline of p stages
///   sp_time_<H>nodes_<G>gpus_per_node.json
///     milliseconds, <allreduce|all2all>_size_<n>_<M>MB_time, M in MiB
///   overlap_coefficient.json
///     overlap_coe: slowdown of compute and communication that overlap
///
/// Into SI: bytes/s, seconds, bytes. (That tool divides MiB by 10^9 bytes/s, 4.9 % optimistic; here
/// the units are what they say.) Of several host shapes the one with most devices per host is read.
/// Groups inside one host take the one-host file, groups across hosts the others. The all-reduce
/// keeps the bandwidth by group (sp_time disagrees with it by up to 45 %, and has no strided
/// groups, so one source prices all strategies alike) and takes from sp_time the latency of a ring
/// step: time of the smallest message beyond its bandwidth part, over 2(n-1). The all-to-all keeps
/// its points.
#include <filesystem>

#include "base/result.h"
#include "model/profile.h"
#include "model/spec.h"

namespace orrery::costmodel {

/// The folder does not say its device or its model: `device` of the result is empty (any cluster is
/// accepted), layers belong to `model`, whose parameter count the memory profile must match within
/// 5 %. Errors: kNotFound (no such folder, no computation profile), kUnknownKey, kInconsistent,
/// kUnsupported (several layer types), all with file.
base::Result<model::Profile> import_galvatron(const std::filesystem::path& folder,
                                              const model::ModelSpec& model);

}  // namespace orrery::costmodel
