#pragma once
/// A Program's unrolled step that tests plant faults in: instances can be dropped, repeated and
/// moved, and an op can be edited without touching the template it came from.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "plan/check/check.h"

namespace orrery::plan {

class Mutant {
 public:
  explicit Mutant(const Program& program) : step_(unroll_all(program)) {}

  [[nodiscard]] std::vector<Fault> faults() const { return check(step_); }
  [[nodiscard]] bool has(FaultKind kind) const {
    const std::vector<Fault> all = faults();
    return std::any_of(all.begin(), all.end(), [kind](const Fault& f) { return f.kind == kind; });
  }

  [[nodiscard]] const std::vector<OpInstance>& ops(std::size_t c) const { return step_.classes[c]; }
  /// Issue indices of the instances that `wanted` accepts.
  [[nodiscard]] std::vector<std::size_t> all(
      std::size_t c, const std::function<bool(const OpInstance&)>& wanted) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < ops(c).size(); ++i) {
      if (wanted(ops(c)[i])) found.push_back(i);
    }
    return found;
  }
  /// The first one. @pre there is one.
  [[nodiscard]] std::size_t first(std::size_t c,
                                  const std::function<bool(const OpInstance&)>& wanted) const {
    const std::vector<std::size_t> found = all(c, wanted);
    ORRERY_CHECK(!found.empty());
    return found.front();
  }
  [[nodiscard]] std::size_t named(std::size_t c, std::string_view name,
                                  Phase phase = Phase::kF) const {
    return first(c,
                 [&](const OpInstance& o) { return o.op->name == name && o.op->phase == phase; });
  }

  void drop(std::size_t c, std::size_t i) {
    at(c).erase(at(c).begin() + static_cast<std::ptrdiff_t>(i));
  }
  void repeat(std::size_t c, std::size_t i) {
    const OpInstance copy = ops(c)[i];
    at(c).insert(at(c).begin() + static_cast<std::ptrdiff_t>(i), copy);
  }
  void swap(std::size_t c, std::size_t i, std::size_t k) { std::swap(at(c)[i], at(c)[k]); }
  void move(std::size_t c, std::size_t from, std::size_t to) {
    const OpInstance moved = ops(c)[from];
    drop(c, from);
    at(c).insert(at(c).begin() + static_cast<std::ptrdiff_t>(to), moved);
  }
  /// A private copy of the instance's op, to be changed.
  Op& edit(std::size_t c, std::size_t i) {
    Op& copy = storage_.emplace_back(*ops(c)[i].op);
    at(c)[i].op = &copy;
    return copy;
  }

 private:
  std::vector<OpInstance>& at(std::size_t c) { return step_.classes[c]; }

  CheckedProgram step_;
  std::deque<Op> storage_;  // stable addresses
};

}  // namespace orrery::plan
