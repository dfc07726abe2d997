#pragma once
/// \file
/// `--minimise` of `plan` and `sweep`: the plan that takes least time, money or energy.
///
/// Time: on the hosts that are given. Money and energy: on as many of them as take least, 1 to all.
/// With T the step of a plan on h hosts,
///
///     money    hours of devices = h · devices a host · wall time, spares included
///     energy   (T + e) P0(h) / goodput(h)       costmodel/closed_form/layer_energy.h
///
/// of a step, or of the run that --tokens asks for; a run that misses its deadline or its budget
/// does not count. Money grows with T alone, so the fastest plan on h hosts is the cheapest there;
/// energy has a search of its own. So the answer is the least of all numbers of hosts. What one has
/// cuts off the others (PlanRequest::known): most end with their first bounds. Of energy all are
/// searched before the best of them are simulated, that of the least closed form first. Numbers of
/// hosts are tried one first, then four at a time with one cutoff, on as many threads as there are.
#include "base/options.h"
#include "base/result.h"
#include "cli/plan_question.h"

namespace orrery::cli {

struct LeastAnswer {
  search::PlanAnswer answer;
  int hosts = 1, given = 1;  // that are used, of those given; one where there was no choice
  bool met = true;           // some number of hosts meets the limits of the run
  // numbers of hosts whose search ended at its limit of effort before its bound was dearer
  int undecided = 0;
};
/// The answer; `question` becomes that of the hosts that are used. Where no number of hosts meets
/// the run's limits, the answer is that of all hosts. @pre the question is that of these options.
Result<LeastAnswer> least_answer(const base::Options& options, PlanQuestion& question);

}  // namespace orrery::cli
