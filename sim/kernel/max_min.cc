#include "sim/kernel/max_min.h"

#include <algorithm>

#include "base/check.h"

namespace orrery::sim::kernel {

ConstraintId MaxMin::add_constraint(std::int64_t capacity) {
  ORRERY_CHECK(capacity >= 0, "capacity {}", capacity);
  constraints_.push_back(Constraint{});
  constraints_.back().capacity = capacity;
  return ConstraintId(static_cast<std::uint32_t>(constraints_.size() - 1));
}

VariableId MaxMin::add_variable(std::int64_t cap, std::span<const Consumption> consumptions) {
  ORRERY_CHECK(cap >= 0 && (cap < kNoCap || !consumptions.empty()), "cap {}", cap);
  const auto id = static_cast<std::uint32_t>(variables_.size());
  Variable variable;
  variable.first = static_cast<std::uint32_t>(elements_.size());
  variable.count = static_cast<std::uint32_t>(consumptions.size());
  variable.cap = cap;
  for (const Consumption& use : consumptions) {
    ORRERY_CHECK(use.weight >= 1 && use.constraint.raw() < constraints_.size(), "weight {}", use.weight);
    elements_.push_back(Element{id, use.constraint.raw(), use.weight, 0});
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
  variable.active = true;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    std::vector<std::uint32_t>& list = constraints_[elements_[e].constraint].active;
    elements_[e].position = static_cast<std::uint32_t>(list.size());
    list.push_back(e);
    touch(elements_[e].constraint);
  }
  if (variable.count == 0) lonely_.push_back(id.raw());
}

void MaxMin::deactivate(VariableId id) {
  Variable& variable = variables_[id.raw()];
  ORRERY_CHECK(variable.active, "variable {} is not active", id.raw());
  variable.active = false;
  variable.rate = 0;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    std::vector<std::uint32_t>& list = constraints_[elements_[e].constraint].active;
    const std::uint32_t last = list.back();
    list[elements_[e].position] = last;  // order in the list does not matter: sums are exact
    elements_[last].position = elements_[e].position;
    list.pop_back();
    touch(elements_[e].constraint);
  }
}

/// The component of a constraint: into component_ and rising_.
void MaxMin::collect(std::uint32_t first) {
  component_.assign(1, first);
  rising_.clear();
  constraints_[first].seen = round_;
  for (std::size_t i = 0; i < component_.size(); ++i) {
    for (const std::uint32_t e : constraints_[component_[i]].active) {
      Variable& variable = variables_[elements_[e].variable];
      if (variable.seen == round_) continue;
      variable.seen = round_;
      rising_.push_back(elements_[e].variable);
      for (std::uint32_t k = variable.first; k < variable.first + variable.count; ++k) {
        Constraint& other = constraints_[elements_[k].constraint];
        if (other.seen == round_) continue;
        other.seen = round_;
        component_.push_back(elements_[k].constraint);
      }
    }
  }
}

std::int64_t MaxMin::next_level() const {
  std::int64_t level = kNoCap;
  for (const std::uint32_t c : component_) {
    if (constraints_[c].weight > 0) level = std::min(level, constraints_[c].left / constraints_[c].weight);
  }
  for (const std::uint32_t v : rising_) level = std::min(level, variables_[v].cap);
  return level;
}

bool MaxMin::stops(const Variable& variable, std::int64_t level) const {
  if (variable.cap == level) return true;
  for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
    if (constraints_[elements_[e].constraint].saturated) return true;
  }
  return false;
}

void MaxMin::fill() {
  for (const std::uint32_t c : component_) {
    Constraint& constraint = constraints_[c];
    constraint.left = constraint.capacity;
    constraint.weight = 0;
    for (const std::uint32_t e : constraint.active) constraint.weight += elements_[e].weight;
  }
  while (!rising_.empty()) {
    const std::int64_t level = next_level();
    for (const std::uint32_t c : component_) {
      Constraint& constraint = constraints_[c];
      constraint.saturated = constraint.weight > 0 && constraint.left / constraint.weight == level;
    }
    stopped_.clear();
    std::size_t kept = 0;
    for (const std::uint32_t v : rising_) {
      ++ticks_;
      if (stops(variables_[v], level)) stopped_.push_back(v);
      else rising_[kept++] = v;
    }
    rising_.resize(kept);
    for (const std::uint32_t v : stopped_) {
      Variable& variable = variables_[v];
      for (std::uint32_t e = variable.first; e < variable.first + variable.count; ++e) {
        Constraint& constraint = constraints_[elements_[e].constraint];
        constraint.left -= elements_[e].weight * level;
        constraint.weight -= elements_[e].weight;
      }
      if (variable.rate != level) changed_.push_back(VariableId(v));
      variable.rate = level;
    }
  }
}

std::span<const VariableId> MaxMin::solve() {
  changed_.clear();
  ++round_;
  for (const std::uint32_t c : dirty_) {
    constraints_[c].dirty = false;
    if (constraints_[c].seen == round_) continue;
    collect(c);
    fill();
  }
  dirty_.clear();
  for (const std::uint32_t v : lonely_) {
    if (!variables_[v].active || variables_[v].rate == variables_[v].cap) continue;
    variables_[v].rate = variables_[v].cap;
    changed_.push_back(VariableId(v));
  }
  lonely_.clear();
  std::sort(changed_.begin(), changed_.end());
  return changed_;
}

}  // namespace orrery::sim::kernel
