#pragma once
/// What the passes of the checker share: one class's step with its buffer instances numbered, and
/// the list of faults.

#include <map>
#include <optional>

#include "plan/check/check.h"

namespace orrery::plan::checker {

using model::SegmentKind;
using model::SegmentShape;
using enum FaultKind;
using enum model::SegmentKind;  // by the names of the table in model/segment.h
using enum Phase;

using ClassIndex = std::size_t;  ///< into Program::classes

enum class AccessKind : std::uint8_t { kRead, kUpdate, kWrite, kFree };

struct Access {
  InstanceIndex instance = 0;
  AccessKind kind = AccessKind::kRead;
};

/// One class's step. Accesses of op i are accesses[access_begin[i] .. access_begin[i + 1]): reads,
/// updates, writes, frees. Operands that an op names twice (the buffer of a leg, a gradient that is
/// also in `updates`) count once.
struct ClassStep {
  const Program* program = nullptr;
  const RankClass* rank_class = nullptr;
  std::span<const OpInstance> ops;
  std::vector<InstanceKey> instances;  // by InstanceIndex
  std::vector<std::uint32_t> access_begin;
  std::vector<Access> accesses;
  std::vector<bool> persistent;  // by InstanceIndex

  std::span<const Access> accesses_of(std::size_t op) const {
    return {accesses.data() + access_begin[op], access_begin[op + 1] - access_begin[op]};
  }
  /// Instance of the op's operand `ref`. @pre the op accesses it.
  InstanceIndex instance_of(std::size_t op, const BufferRef& ref) const;
  /// "operation 12 'qkv' F (layer 3, micro-batch 1)"
  std::string describe(std::size_t op) const;
  /// "'hidden' (layer 3, micro-batch 1)"
  std::string describe_instance(InstanceIndex instance) const;
};

ClassStep number_instances(const Program& program, const RankClass& rank_class,
                           std::span<const OpInstance> ops);

/// Collects faults; of one kind in one class only the first kMaxPerKind are kept, the rest are
/// echoes.
class FaultList {
 public:
  static constexpr int kMaxPerKind = 16;

  template <class... Args>
  void add(FaultKind kind, int stage, std::size_t op, fmt::format_string<Args...> format,
           Args&&... args) {
    if (++counts_[{stage, kind}] > kMaxPerKind) return;
    faults_.push_back({kind, stage, static_cast<std::int64_t>(op),
                       fmt::format(format, std::forward<Args>(args)...)});
  }
  bool empty() const { return faults_.empty(); }
  std::size_t size() const { return faults_.size(); }
  std::vector<Fault> take() { return std::move(faults_); }

 private:
  std::vector<Fault> faults_;
  std::map<std::pair<int, FaultKind>, int> counts_;
};

/// Elements of a tensor.
std::int64_t product_of(const std::vector<std::int64_t>& shape);

/// Classes that the members of `group` belong to, seen from `rank`, ascending without duplicates;
/// empty when a member lies outside the world. Class indices into Program::classes.
std::vector<ClassIndex> classes_of_group(const Program& program, const Group& group, int rank);
/// Class of a world rank, none outside the world.
std::optional<ClassIndex> class_index(const Program& program, std::int64_t rank);
/// True when every rank's group lies in its own class, so that the group's collectives are
/// symmetric.
bool within_class(const RankClass& rank_class, const Group& group);

// The passes. Each adds what it finds; they do not depend on each other's success, except where
// noted.
void check_lifetimes(const ClassStep& step, FaultList& faults);
void check_phase_order(const ClassStep& step, FaultList& faults);
void check_operands(const ClassStep& step, FaultList& faults);
/// Partial values and slices are completed exactly once before they are read.
void check_values(const ClassStep& step, FaultList& faults);
/// Matching of legs and of collectives that span classes, then, when all of that matches, progress
/// under the rendezvous rules.
void check_progress(std::span<const ClassStep> steps, FaultList& faults);
/// Algebra of gradient contributions.
void check_gradients(std::span<const ClassStep> steps, FaultList& faults);

}  // namespace orrery::plan::checker
