#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/json_fwd.h"
#include "base/result.h"
#include "model/segment.h"
#include "model/surface.h"

namespace orrery::model {

/// Where numbers come from: printed with every prediction that uses them.
struct Provenance {
  std::string source = {};    // publication, repository and commit, or "orrery calibrate"
  std::string machine = {};   // CPU or GPU name, driver, threads per rank
  std::string software = {};  // library versions
  std::string date = {};      // ISO 8601
  std::string note = {};
  bool operator==(const Provenance&) const = default;
};

/// One measured operation: a segment phase at one shape.
struct OperatorPoint {
  SegmentShape shape = {};
  Phase phase = Phase::kF;
  double seconds_median = 0, seconds_p10 = 0, seconds_p90 = 0;
  std::int64_t samples = 0;
  bool operator==(const OperatorPoint&) const = default;
};

/// Forward time of a whole layer, measured: per sample (one sequence) at several batches,
/// tensor-parallel degree 1.
struct LayerPoint {
  std::int64_t batch = 0;
  double layer_seconds_per_sample = 0;  // one block, forward
  double other_seconds_per_sample = 0;  // embedding + head + loss, forward
  bool operator==(const LayerPoint&) const = default;
};
struct LayerTimes {
  std::string model = {};  // catalog name the numbers were taken on
  std::int64_t sequence = 0;
  std::int64_t hidden = 0;
  Precision precision = Precision::kBFloat16;
  std::vector<LayerPoint> points = {};  // ascending batch
  bool operator==(const LayerTimes&) const = default;
};

enum class Collective : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kPointToPoint
};
std::string_view to_string(Collective op);

/// Measured collective on a group of `size` ranks `stride` apart, over `hosts` hosts.
/// Either points (bytes of the whole tensor -> seconds) or a bus bandwidth (as nccl-tests defines
/// it) with a latency.
struct CollectivePoint {
  std::int64_t bytes = 0;
  double seconds = 0;
  bool operator==(const CollectivePoint&) const = default;
};
struct CollectiveTimes {
  Collective op = Collective::kAllReduce;
  std::int64_t size = 0;
  std::int64_t stride = 1;
  std::int64_t hosts = 1;
  double bus_bandwidth = 0;                  // bytes/s; 0: use points
  double latency_seconds = 0;                // per ring step (with bus_bandwidth)
  std::vector<CollectivePoint> points = {};  // ascending bytes
  bool operator==(const CollectiveTimes&) const = default;
};

/// What communication takes in a training step beyond the same communication alone, on a quiet
/// machine.
struct StepCommunication {
  double factor = 1;         // inside a host, and where it was measured: time in a step / alone
  double issue_seconds = 0;  // what the host adds to every operation
  // of the rate of a link of the fabric (its ends count), what transfers get
  double fabric_share = 1;
  bool operator==(const StepCommunication&) const = default;
};

/// What a fixed work took (executor/measure/control.h): how fast the machine was.
struct Control {
  double compute_seconds = 0;
  double collective_seconds = 0;  // 0: one rank
  // of the compute time, timed several times: (p90 - p10) / (2 median)
  double spread = 0;
  bool operator==(const Control&) const = default;
};

/// What predictions from a profile err by, source by source: 80 % of ln(true / price) lie within ±
/// the share. Sources: costmodel/compute/price_factors.h; `step`: all prices of a step alike.
/// docs/models/uncertainty.md.
struct Spread {
  double operators = 0, products = 0, attention = 0, streams = 0, launches = 0, in_hosts = 0,
         fabric = 0, step = 0;
  bool operator==(const Spread&) const = default;
};
/// Of computation priced by datasheet: 72 to 89 % of the peak on A100 where 80 % is assumed,
/// attention 77 to 116 % around 90 % (costmodel/compute/compute.h); streams assumed.
/// Transfers: shares of datasheet rates fitted to published steps (docs/models/uncertainty.md).
inline constexpr Spread kDatasheetSpread{
    .products = 0.11, .attention = 0.2, .streams = 0.2, .in_hosts = 0.3, .fabric = 0.3};
/// The fields by name, in the order of the schema.
inline constexpr std::array<std::pair<std::string_view, double Spread::*>, 8> kSpreadFields{
    {{"operators", &Spread::operators},
     {"products", &Spread::products},
     {"attention", &Spread::attention},
     {"streams", &Spread::streams},
     {"launches", &Spread::launches},
     {"in_hosts", &Spread::in_hosts},
     {"fabric", &Spread::fabric},
     {"step", &Spread::step}}};

/// A measured profile (schema `orrery.profile/1`, docs/schemas.md). Any part may be empty: what is
/// missing is priced from the datasheet, and the prediction says so.
struct Profile {
  std::string name = {};
  Provenance provenance = {};
  std::string device = {};                    // device model the compute numbers belong to
  std::vector<ComputeSurface> surfaces = {};  // at most one per compute type
  std::optional<Framework> framework = {};    // none: one fused kernel per segment
  std::vector<OperatorPoint> operators = {};
  // of operators in a step / alone (executor/measure/composition.h); of a surface, products and
  // attention in a step / alone
  double composition_factor = 1.0;
  double composition_residual = 0.0;  // relative residual of that fit
  std::vector<LayerTimes> layers = {};
  std::vector<CollectiveTimes> collectives = {};  // all_reduce, ..., point_to_point
  // relative standard deviation of the times of equal devices; a step waits for the slowest
  double device_deviation = 0;
  StepCommunication step_communication = {};
  std::optional<Control> control = {};  // of the machine while it was measured
  // none: derived from the residuals and percentiles above (costmodel/uncertainty/uncertainty.h)
  std::optional<Spread> spread = {};
  // devices of the largest published step held against on this kind of device; 0: none was
  std::int64_t held_ranks = 0;
  // compute and communication that overlap both slow down by this
  double overlap_slowdown = 1.0;
  // false: communication never runs beside compute (one core per rank)
  bool overlaps = true;
  // overhead of one segment beyond its operators' medians (dispatch, and between segments)
  double launch_seconds = 0;
  // framework bytes per rank outside the Program's buffers
  std::int64_t context_bytes = 0;
  // of a machine with several kinds of device: what computation takes on each, in the order of its
  // device models; of these only what prices computation counts. Not in the file. Empty: the same
  // on all
  std::vector<Profile> kinds = {};
  bool operator==(const Profile&) const = default;
};

/// JSON of a profile. Keys are the field names above, with these differences: a `schema`,
/// CollectiveTimes::bus_bandwidth is `bus_bandwidth_bytes_per_second`; enumerators are their
/// to_string(). Absent keys keep their defaults, except name, provenance.source and what an entry
/// cannot do without; percentiles default to the median.
///
///     { "schema": "orrery.profile/1", "name": "two cores",
///       "provenance": {"source": "orrery calibrate"},
///       "operators": [{"shape": {"kind": "qkv", "dtype": "fp32", "sequences": 1, "tokens": 128,
///                                "in": 128, "out": 384},
///                      "phase": "F", "seconds_median": 2.5e-4, "samples": 30}],
///       "layers": [{"model": "llama-2-7b", "sequence": 2048, "hidden": 4096, "precision": "bf16",
///                   "points": [{"batch": 1, "layer_seconds_per_sample": 5.3e-3,
///                               "other_seconds_per_sample": 2.2e-2}]}],
///       "collectives": [{"op": "all_reduce", "size": 8,
///                        "bus_bandwidth_bytes_per_second": 1.6e11, "latency_seconds": 2e-6},
///                       {"op": "all_gather", "size": 2,
///                        "points": [{"bytes": 1024, "seconds": 1e-5}]}] }
///
/// The reader is strict and reports every fault with its place: unknown keys, times that are not
/// positive (kOutOfRange), points that do not ascend, entries given twice, a collective with
/// neither or both of bandwidth and points (kInconsistent), a shape without a dimension its kind
/// needs (kMissingKey), another schema (kUnsupported). read_profile(parse(to_json(p))) == p for
/// every p that the reader accepts.
///
/// With `of_name` a file may say `like` NAME: what a step adds (framework member by member,
/// step_communication, control, spread, numbers) is as `of_name` has it where the file does not
/// state it. Without, the key is unknown. Errors: those of `of_name` too, at `like`.
using ProfileOfName = std::function<base::Result<Profile>(const std::string& name)>;
base::Result<Profile> read_profile(const base::Node& root, const ProfileOfName& of_name = {});
base::Result<Profile> load_profile(const std::string& path);
base::Json to_json(const Profile& profile);
base::Json to_json(const Control& control);

/// JSON of a shape: kind and dtype always, other fields only where they differ from SegmentShape{}.
base::Result<SegmentShape> read_segment_shape(const base::Node& node);
base::Json to_json(const SegmentShape& shape);

}  // namespace orrery::model
