#include "sim/kernel/max_min.h"

#include <algorithm>

#include "base/check.h"
#include "base/numbers.h"

namespace orrery::sim::kernel {

ConstraintId MaxMin::add_constraint(std::int64_t capacity) {
  ORRERY_CHECK(capacity >= 0, "capacity {}", capacity);
  constraints_.push_back(Constraint{});
  constraints_.back().capacity = capacity;
  return ConstraintId(as_u32(constraints_.size() - 1));
}

VariableId MaxMin::add_variable(std::int64_t cap, std::span<const Consumption> consumptions) {
  ORRERY_CHECK(cap >= 0 && (cap < kNoCap || !consumptions.empty()), "cap {}", cap);
  const auto id = as_u32(variables_.size());
  Variable variable;
  variable.first = as_u32(elements_.size());
  variable.count = as_u32(consumptions.size());
  variable.cap = cap;
  for (const Consumption& use : consumptions) {
    ORRERY_CHECK(use.weight >= 1 && use.constraint.raw() < constraints_.size(), "weight {}",
                 use.weight);
    elements_.push_back(Element{use.constraint.raw(), 0, use.weight});
  }
  variables_.push_back(variable);
  return VariableId(id);
}

void MaxMin::touch(std::uint32_t constraint) {
  if (constraints_[constraint].dirty) return;
  constraints_[constraint].dirty = true;
  dirty_.push_back(constraint);
}

void MaxMin::activate(VariableId id) {
  Variable& variable = variables_[id.raw()];
  ORRERY_CHECK(!variable.active, "variable {} is active already", id.raw());
  variable.active = variable.fresh = true;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    Constraint& constraint = constraints_[elements_[e].constraint];
    elements_[e].position = as_u32(constraint.active.size());
    constraint.active.push_back(Use{id.raw(), e, elements_[e].weight});
    constraint.gained = true;
    constraint.total += elements_[e].weight;
    touch(elements_[e].constraint);
  }
  if (variable.count == 0) lonely_.push_back(id.raw());
}

void MaxMin::deactivate(VariableId id) {
  Variable& variable = variables_[id.raw()];
  ORRERY_CHECK(variable.active, "variable {} is not active", id.raw());
  if (!variable.fresh) restart_ = std::min(restart_, variable.rate);
  variable.active = variable.fresh = false;
  variable.rate = 0;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    Constraint& constraint = constraints_[elements_[e].constraint];
    const Use last = constraint.active.back();
    // order in the list does not matter: sums are exact
    constraint.active[elements_[e].position] = last;
    elements_[last.element].position = elements_[e].position;
    constraint.active.pop_back();
    constraint.total -= elements_[e].weight;
    touch(elements_[e].constraint);
  }
}

std::int64_t MaxMin::full_at(const Constraint& constraint) const {
  if (constraint.total == 0) return kNoCap;
  std::int64_t level = 0;
  for (;;) {
    std::int64_t left = constraint.capacity, weight = constraint.total;
    for (const Use& use : constraint.active) {
      const Variable& variable = variables_[use.variable];
      if (variable.fresh || variable.rate >= level) continue;
      left -= use.weight * variable.rate;
      weight -= use.weight;
    }
    if (weight == 0) return kNoCap;
    const std::int64_t next = left / weight;
    if (next <= level) return level;
    level = next;
  }
}

bool MaxMin::idle_around(VariableId id) const {
  const Variable& variable = variables_[id.raw()];
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    if (!constraints_[elements_[e].constraint].active.empty()) return false;
  }
  return true;
}

std::int64_t MaxMin::rate_alone(VariableId id) const {
  const Variable& variable = variables_[id.raw()];
  std::int64_t rate = variable.cap;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e)
    rate = std::min(rate, constraints_[elements_[e].constraint].capacity / elements_[e].weight);
  return rate;
}

/// Settles a variable that is alone on all its constraints.
void MaxMin::settle_alone(std::uint32_t c) {
  if (constraints_[c].active.size() > 1) return;
  if (constraints_[c].active.empty()) {
    constraints_[c].seen = round_;
    return;
  }
  const std::uint32_t v = constraints_[c].active.front().variable;
  Variable& variable = variables_[v];
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    if (constraints_[elements_[e].constraint].active.size() > 1) return;
  }
  const std::int64_t level = rate_alone(VariableId(v));
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e)
    constraints_[elements_[e].constraint].seen = round_;
  variable.fresh = false;
  if (variable.rate != level) changed_.push_back(VariableId(v));
  variable.rate = level;
  ++ticks_;
}

void MaxMin::find_restart() {
  for (const std::uint32_t c : dirty_) {
    if (restart_ > 0 && constraints_[c].gained && constraints_[c].seen != round_)
      restart_ = std::min(restart_, full_at(constraints_[c]));
    constraints_[c].gained = false;
  }
}

/// What rises again together with a constraint: into component_ and rising_, as it is at level
/// restart_.
void MaxMin::collect(std::uint32_t first) {
  component_.assign(1, first);
  rising_.clear();
  least_cap_ = kNoCap;
  constraints_[first].seen = round_;
  for (std::size_t i = 0; i < component_.size(); ++i) {
    Constraint& constraint = constraints_[component_[i]];
    std::int64_t left = constraint.capacity, weight = constraint.total;
    for (const Use& use : constraint.active) {
      Variable& variable = variables_[use.variable];
      if (variable.seen == round_) continue;
      if (!variable.fresh && variable.rate < restart_) {
        left -= use.weight * variable.rate;
        weight -= use.weight;
        continue;
      }
      variable.seen = round_;
      variable.rising = true;
      least_cap_ = std::min(least_cap_, variable.cap);
      rising_.push_back(use.variable);
      for (std::uint32_t k = variable.first; k < variable.first + variable.count; ++k) {
        Constraint& other = constraints_[elements_[k].constraint];
        if (other.seen == round_) continue;
        other.seen = round_;
        component_.push_back(elements_[k].constraint);
      }
    }
    constraint.left = left;
    constraint.weight = weight;
    constraint.touched = true;
  }
  left_to_stop_ = rising_.size();
}

void MaxMin::stop(std::uint32_t v, std::int64_t level) {
  Variable& variable = variables_[v];
  variable.rising = variable.fresh = false;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    Constraint& constraint = constraints_[elements_[e].constraint];
    constraint.left -= elements_[e].weight * level;
    constraint.weight -= elements_[e].weight;
    constraint.touched = true;
  }
  if (variable.rate != level) changed_.push_back(VariableId(v));
  variable.rate = level;
  --left_to_stop_;
  ++ticks_;
}

void MaxMin::stop_capped(std::int64_t level) {
  least_cap_ = kNoCap;
  std::size_t kept = 0;
  for (const std::uint32_t v : rising_) {
    if (!variables_[v].rising) continue;
    if (variables_[v].cap == level) {
      stop(v, level);
      continue;
    }
    least_cap_ = std::min(least_cap_, variables_[v].cap);
    rising_[kept++] = v;
  }
  rising_.resize(kept);
}

/// Levels of the constraints that something still rises in; the others leave component_.
void MaxMin::refresh_levels() {
  std::size_t kept = 0;
  for (const std::uint32_t c : component_) {
    Constraint& constraint = constraints_[c];
    if (constraint.weight == 0) continue;
    if (constraint.touched) {
      constraint.level = constraint.left / constraint.weight;
      constraint.touched = false;
    }
    component_[kept++] = c;
  }
  component_.resize(kept);
}

void MaxMin::fill() {
  refresh_levels();
  while (left_to_stop_ > 0) {
    std::int64_t level = least_cap_;
    for (const std::uint32_t c : component_) level = std::min(level, constraints_[c].level);
    for (const std::uint32_t c : component_) {
      if (constraints_[c].level != level) continue;
      for (const Use& use : constraints_[c].active) {
        if (variables_[use.variable].rising) stop(use.variable, level);
      }
    }
    if (least_cap_ == level) stop_capped(level);
    refresh_levels();
  }
}

std::span<const VariableId> MaxMin::solve() {
  changed_.clear();
  ++round_;
  for (const std::uint32_t c : dirty_) {
    if (constraints_[c].seen != round_) settle_alone(c);
  }
  find_restart();
  for (const std::uint32_t c : dirty_) {
    constraints_[c].dirty = false;
    if (constraints_[c].seen == round_) continue;
    collect(c);
    fill();
  }
  dirty_.clear();
  restart_ = kNoCap;
  for (const std::uint32_t v : lonely_) {
    if (!variables_[v].active || variables_[v].rate == variables_[v].cap) continue;
    variables_[v].rate = variables_[v].cap;
    changed_.push_back(VariableId(v));
  }
  lonely_.clear();
  return changed_;
}

}  // namespace orrery::sim::kernel
