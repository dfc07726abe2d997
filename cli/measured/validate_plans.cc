#include "cli/measured/validate_plans.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numbers.h"
#include "cli/refuse.h"
#include "cli/train_log.h"
#include "costmodel/uncertainty/uncertainty.h"

namespace orrery::cli {

namespace {

struct Recipe {
  const char* name;
  std::int64_t micro_batches = 1;
  plan::Recompute recompute = plan::Recompute::kNone;
  int tp = 1, pp = 1, zero = 0;
  bool sequence_parallel = false;
};

std::vector<Recipe> recipes_of(int n) {
  using enum plan::Recompute;
  if (n == 1)
    return {{"1 micro-batch", 1},
            {"2 micro-batches", 2},
            {"4 micro-batches", 4},
            {"8 micro-batches", 8},
            {"2, full recomputation", 2, kFull},
            {"8, full recomputation", 8, kFull},
            {"2, selective", 2, kSelective},
            {"8, selective", 8, kSelective}};
  const int half = std::max(1, n / 2);
  return {{"dp"},
          {.name = "zero1", .zero = 1},
          {.name = "zero3", .zero = 3},
          {.name = "tp", .tp = n},
          {.name = "tp+sp", .tp = n, .sequence_parallel = true},
          {.name = "pp, 2 micro-batches", .micro_batches = 2, .pp = n},
          {.name = "pp, 8 micro-batches", .micro_batches = 8, .pp = n},
          {"dp, recomputation", 1, kFull},
          {.name = "zero2", .zero = 2},
          {.name = "tp, recomputation", .micro_batches = 2, .recompute = kFull, .tp = n},
          {.name = "half tp, zero1", .tp = half, .zero = 1},
          {.name = "half pp, dp", .micro_batches = 4, .pp = half}};
}

}  // namespace

Result<std::vector<NamedPlan>> validation_plans(const model::ModelSpec& model,
                                                const std::string& cluster, int ranks,
                                                std::int64_t global_batch, std::int64_t sequence,
                                                model::Precision precision, std::size_t count) {
  std::vector<NamedPlan> plans;
  base::Diagnostics last;
  for (const Recipe& r : recipes_of(ranks)) {
    if (plans.size() == count) break;
    plan::UniformOptions o{.tp = r.tp,
                           .pp = r.pp,
                           .dp = ranks / (r.tp * r.pp),
                           .zero = r.zero,
                           .sequence_parallel = r.sequence_parallel,
                           .recompute = r.recompute,
                           .global_batch = global_batch,
                           .sequence = sequence,
                           .precision = precision};
    o.micro_batch = global_batch / (o.dp * r.micro_batches);
    auto p = o.micro_batch > 0
                 ? plan::uniform_plan(model, cluster, 1, o)
                 : Result<plan::Plan>(base::fail(kInconsistent, "global batch too small"));
    if (p)
      plans.push_back({r.name, std::move(*p)});
    else
      last = std::move(p).error();
  }
  if (plans.empty()) return base::fail(std::move(last));
  return plans;
}

double ValidationRow::measured_s() const { return median(rounds_s); }

double ValidationRow::spread() const {
  std::vector<double> sorted = rounds_s;
  std::ranges::sort(sorted);
  const auto at = [&](double q) { return sorted[as_index(q * real(sorted.size() - 1) + 0.5)]; };
  return (at(0.9) - at(0.1)) / (2 * measured_s());
}

double ValidationRow::noise() const { return costmodel::median_error(spread(), rounds_s.size()); }

std::pair<double, double> ValidationRow::memory_errors() const {
  std::vector<double> errors;
  for (std::size_t s = 0; s < std::min(predicted_peak_bytes.size(), measured_peak_bytes.size());
       ++s)
    errors.push_back(real(predicted_peak_bytes[s]) / real(measured_peak_bytes[s]) - 1.0);
  if (errors.empty()) return {0, 0};
  const auto [least, most] = std::ranges::minmax(errors);
  return {least, most};
}

namespace {

/// Ranks 0.. of values; ties share their mean rank.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    double below = 0, equal = 0;
    for (double v : values) {
      below += v < values[i] ? 1 : 0;
      equal += v == values[i] ? 1 : 0;
    }
    ranks[i] = below + (equal - 1) / 2;
  }
  return ranks;
}

/// Of values around their mean.
double correlation(std::vector<double> a, std::vector<double> b) {
  for (std::vector<double>* v : {&a, &b}) {
    const double mean = std::accumulate(v->begin(), v->end(), 0.0) / real(v->size());
    for (double& x : *v) x -= mean;
  }
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double aa = dot(a, a), bb = dot(b, b);
  return aa > 0 && bb > 0 ? dot(a, b) / std::sqrt(aa * bb) : 1.0;
}

}  // namespace

StepErrors errors_of(std::span<const double> signed_errors) {
  StepErrors e;
  for (const double error : signed_errors) {
    e.mean += std::abs(error) / real(signed_errors.size());
    e.largest = std::max(e.largest, std::abs(error));
  }
  return e;
}

StepErrors step_errors(const std::vector<ValidationRow>& rows, double drift) {
  std::vector<double> errors;
  for (const ValidationRow& r : rows) errors.push_back(r.step_error(drift));
  return errors_of(errors);
}

ValidationSummary summarize(const std::vector<ValidationRow>& rows) {
  ValidationSummary s;
  s.step = step_errors(rows);
  std::vector<double> predicted, measured;
  for (const ValidationRow& r : rows) {
    const auto [least, most] = r.memory_errors();
    s.max_memory_error = std::max({s.max_memory_error, std::abs(least), std::abs(most)});
    s.max_memory_shortfall = std::max(s.max_memory_shortfall, -least);
    predicted.push_back(r.predicted_s);
    measured.push_back(r.measured_s());
  }
  s.chosen = as_index(std::ranges::min_element(predicted) - predicted.begin());
  s.fastest = as_index(std::ranges::min_element(measured) - measured.begin());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double noise =
        std::hypot(measured[i] * rows[i].noise(), measured[s.fastest] * rows[s.fastest].noise());
    if (measured[i] <= measured[s.fastest] + noise) s.fastest_within_noise.push_back(i);
  }
  s.regret = measured[s.chosen] / measured[s.fastest] - 1.0;
  s.rank_correlation = correlation(ranks_of(predicted), ranks_of(measured));
  return s;
}

}  // namespace orrery::cli
