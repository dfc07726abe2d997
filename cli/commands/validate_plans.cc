#include "cli/commands/validate_plans.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "cli/train_log.h"
#include "costmodel/uncertainty/uncertainty.h"

namespace orrery::cli {

namespace {

struct Recipe {
  const char* name;
  int tp, pp, zero;
  bool sequence_parallel;
  plan::Recompute recompute;
  std::int64_t micro_batches;
};

std::vector<Recipe> recipes_of(int n) {
  if (n == 1) {
    return {
        {"1 micro-batch", 1, 1, 0, false, plan::Recompute::kNone, 1},
        {"2 micro-batches", 1, 1, 0, false, plan::Recompute::kNone, 2},
        {"4 micro-batches", 1, 1, 0, false, plan::Recompute::kNone, 4},
        {"8 micro-batches", 1, 1, 0, false, plan::Recompute::kNone, 8},
        {"2, full recomputation", 1, 1, 0, false, plan::Recompute::kFull, 2},
        {"8, full recomputation", 1, 1, 0, false, plan::Recompute::kFull, 8},
        {"2, selective", 1, 1, 0, false, plan::Recompute::kSelective, 2},
        {"8, selective", 1, 1, 0, false, plan::Recompute::kSelective, 8},
    };
  }
  const int half = std::max(1, n / 2);
  return {
      {"dp", 1, 1, 0, false, plan::Recompute::kNone, 1},
      {"zero1", 1, 1, 1, false, plan::Recompute::kNone, 1},
      {"zero3", 1, 1, 3, false, plan::Recompute::kNone, 1},
      {"tp", n, 1, 0, false, plan::Recompute::kNone, 1},
      {"tp+sp", n, 1, 0, true, plan::Recompute::kNone, 1},
      {"pp, 2 micro-batches", 1, n, 0, false, plan::Recompute::kNone, 2},
      {"pp, 8 micro-batches", 1, n, 0, false, plan::Recompute::kNone, 8},
      {"dp, recomputation", 1, 1, 0, false, plan::Recompute::kFull, 1},
      {"zero2", 1, 1, 2, false, plan::Recompute::kNone, 1},
      {"tp, recomputation", n, 1, 0, false, plan::Recompute::kFull, 2},
      {"half tp, zero1", half, 1, 1, false, plan::Recompute::kNone, 1},
      {"half pp, dp", 1, half, 0, false, plan::Recompute::kNone, 4},
  };
}

}  // namespace

base::Result<std::vector<NamedPlan>> validation_plans(
    const model::ModelSpec& model, const std::string& cluster, int ranks, std::int64_t global_batch,
    std::int64_t sequence, model::Precision precision, std::size_t count) {
  std::vector<NamedPlan> plans;
  base::Diagnostics last;
  for (const Recipe& r : recipes_of(ranks)) {
    if (plans.size() == count) break;
    plan::UniformOptions o;
    o.tp = r.tp;
    o.pp = r.pp;
    o.dp = ranks / (r.tp * r.pp);
    o.zero = r.zero;
    o.sequence_parallel = r.sequence_parallel;
    o.recompute = r.recompute;
    o.schedule = plan::Schedule::k1F1B;
    o.global_batch = global_batch;
    o.micro_batch = global_batch / (o.dp * r.micro_batches);
    o.sequence = sequence;
    o.precision = precision;
    auto p = o.micro_batch > 0 ? plan::uniform_plan(model, cluster, 1, o)
                               : base::Result<plan::Plan>(base::fail(base::ErrorCode::kInconsistent,
                                                                     "global batch too small"));
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
  const auto at = [&](double q) {
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  };
  return (at(0.9) - at(0.1)) / (2 * measured_s());
}

double ValidationRow::noise() const { return costmodel::median_error(spread(), rounds_s.size()); }

std::pair<double, double> ValidationRow::memory_errors() const {
  std::vector<double> errors;
  for (std::size_t s = 0; s < std::min(predicted_peak_bytes.size(), measured_peak_bytes.size());
       ++s)
    errors.push_back(static_cast<double>(predicted_peak_bytes[s]) /
                         static_cast<double>(measured_peak_bytes[s]) -
                     1.0);
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

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double ma = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mb = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - ma) * (b[i] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i] - mb) * (b[i] - mb);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 1.0;
}

}  // namespace

StepErrors step_errors(const std::vector<ValidationRow>& rows, double drift) {
  StepErrors e;
  for (const ValidationRow& r : rows) {
    const double error = std::abs(r.step_error(drift));
    e.mean += error / static_cast<double>(rows.size());
    e.largest = std::max(e.largest, error);
  }
  return e;
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
  s.chosen = static_cast<std::size_t>(std::ranges::min_element(predicted) - predicted.begin());
  s.fastest = static_cast<std::size_t>(std::ranges::min_element(measured) - measured.begin());
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
