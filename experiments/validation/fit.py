#!/usr/bin/env python3
"""Fits the five constants of predict.py: on all families, into the profile that ships, and without each of them, into constants.json; of
vTrain's one-host rows, which alone show what the host does, without each half of their groups.

    experiments/validation/fit.py [--orrery build/release/orrery]

Objective: mean over families of the mean |ln(predicted / measured)|; of vTrain's one-host rows every sixth. ln of a step time is taken as linear in the
logarithms of the constants, with slopes by differences of 10 %, first around START, then around the optimum for all families. Minimum of the linear
form, plus DOUBT times the squared distance from START in those logarithms, so that what the rows do not say stays there: coordinate search, steps halved
until 0.1 %. Deterministic; 14 runs of the table.

Then the spread of errors (docs/models/uncertainty.md), on all rows into the profile that ships, and on each half of the groups of rows into spreads.json. To first
order the band of a row is exp(±W), W² = sum over sources of (slope · spread)². Objective: mean over families of the mean interval score of ln(measured /
predicted), predicted without the row's family. Same search, within SPREAD_BOUNDS: the lower ones are assumed. Then all are widened
alike until HELD of the rows are held. Rows whose settings are not published (SC21) do not count.
"""
import argparse
import json
import math

import predict

START = {"composition": 1.1, "kernel_seconds": 42e-6, "collective_factor": 1.3, "issue_seconds": 12e-6, "fabric_share": 0.9}
BOUNDS = {"composition": (0.9, 1.3), "kernel_seconds": (1e-5, 1e-4), "collective_factor": (1.0, 1.6), "issue_seconds": (5e-6, 1.5e-4), "fabric_share": (0.2, 1.0)}
DOUBT = 0.02
DIFFERENCE, FIRST_STEP, LAST_STEP = 0.1, 0.2, 0.001
SPREAD_START = {"products": 0.05, "streams": 0.05, "launches": 0.15, "in_hosts": 0.05, "fabric": 0.1, "step": 0.05}
SPREAD_BOUNDS = {"products": (0.02, 0.3), "streams": (0.05, 0.3), "launches": (0.05, 0.3), "in_hosts": (0.05, 0.3), "fabric": (0.1, 0.3), "step": (0.05, 0.3)}
SPREAD_FIRST_STEP, SPREAD_LAST_STEP = 0.1, 0.002
# Their errors are of settings that their source leaves open, which no price errs by.
SETTINGS_OPEN = {"sc21"}
HELD = 0.85  # of the rows that a fit has seen, for 0.8 of others
DIRECTIONS = [[sign * float(n == name) for n in predict.NAMES] for name in predict.NAMES for sign in (1, -1)]


class Linear:
    """ln(predicted / measured) of every row around a point."""

    def __init__(self, orrery, table, point):
        self.table, self.point = table, point
        base = self.logs(orrery, point)
        self.base = [b - math.log(float(r["measured_step_s"])) for b, r in zip(base, table)]
        self.slopes = []
        for name in predict.NAMES:
            step = 1 + DIFFERENCE
            if point[name] * step > BOUNDS[name][1]:
                step = 1 / step
            moved = self.logs(orrery, dict(point, **{name: point[name] * step}))
            self.slopes.append([(m - b) / math.log(step) for m, b in zip(moved, base)])

    def logs(self, orrery, values):
        return [math.log(s) for s in predict.simulate(orrery, self.table, values)]

    def slopes_by_row(self):
        return [dict(zip(predict.NAMES, row)) for row in zip(*self.slopes)]

    def objective(self, move, left_out):
        by_family = {}
        for i, row in enumerate(self.table):
            if predict.left_out(row) != left_out:
                error = self.base[i] + sum(m * s[i] for m, s in zip(move, self.slopes))
                by_family.setdefault(row["family"], []).append(abs(error))
        doubt = sum((math.log(self.point[n] / START[n]) + m) ** 2 for n, m in zip(predict.NAMES, move))
        return sum(sum(errors) / len(errors) for errors in by_family.values()) / len(by_family) + DOUBT * doubt

    def minimum(self, left_out):
        low, high = ([math.log(BOUNDS[n][side] / self.point[n]) for n in predict.NAMES] for side in (0, 1))
        move = [0.0] * len(predict.NAMES)
        least, step = self.objective(move, left_out), FIRST_STEP
        while step >= LAST_STEP:
            before = least
            for direction in DIRECTIONS:
                trial = [min(max(m + step * d, lo), hi) for m, d, lo, hi in zip(move, direction, low, high)]
                value = self.objective(trial, left_out)
                if value < least:
                    move, least = trial, value
            if least > before - 1e-7:
                step /= 2
        return {n: float(f"{self.point[n] * math.exp(m):.4g}") for n, m in zip(predict.NAMES, move)}, least


class Spreads:
    """Errors of every row, and how each source moves it."""

    def __init__(self, orrery, linear, left_out):
        """`left_out`: constants without each set of rows of predict.left_out()."""
        self.table, point = linear.table, linear.point
        slowed = [math.log(float(r["step_time_s"])) for r in predict.run_table(orrery, self.table, predict.profile(point, streams=1 + DIFFERENCE), 2)]
        now = [b + math.log(float(r["measured_step_s"])) for b, r in zip(linear.base, self.table)]
        self.errors = [0.0] * len(self.table)
        for name, values in left_out.items():
            rows = [i for i, r in enumerate(self.table) if predict.left_out(r) == name]
            for i, seconds in zip(rows, predict.simulate(orrery, [self.table[i] for i in rows], values)):
                self.errors[i] = math.log(float(self.table[i]["measured_step_s"]) / seconds)
        self.slopes = []
        for row, slow, base in zip(linear.slopes_by_row(), slowed, now):
            self.slopes.append({"products": row["composition"], "streams": (slow - base) / math.log(1 + DIFFERENCE), "launches": row["kernel_seconds"] + row["issue_seconds"],
                                "in_hosts": row["collective_factor"], "fabric": row["fabric_share"], "step": 1.0})

    def objective(self, spread, rows):
        by_family = {}
        for i in rows:
            half = math.sqrt(sum((self.slopes[i][s] * w) ** 2 for s, w in spread.items()))
            score = 2 * half + 2 / (1 - predict.COVERAGE) * max(0.0, abs(self.errors[i]) - half)
            by_family.setdefault(self.table[i]["family"], []).append(score)
        return sum(sum(scores) / len(scores) for scores in by_family.values()) / len(by_family)

    def minimum(self, rows):
        rows = [i for i in rows if self.table[i]["family"] not in SETTINGS_OPEN]
        spread, step = dict(SPREAD_START), SPREAD_FIRST_STEP
        least = self.objective(spread, rows)
        while step >= SPREAD_LAST_STEP:
            before = least
            for source, (low, high) in SPREAD_BOUNDS.items():
                for sign in (1, -1):
                    trial = dict(spread, **{source: min(max(spread[source] + sign * step, low), high)})
                    value = self.objective(trial, rows)
                    if value < least - 1e-9:
                        spread, least = trial, value
            if least > before - 1e-6:
                step /= 2
        wider = self.wider(spread, rows)
        spread = {s: float(f"{w * wider:.3g}") for s, w in spread.items()}
        return dict(spread, attention=spread["products"])

    def wider(self, spread, rows):
        """The least factor, in hundredths, at which bands hold HELD of the rows, families weighing alike."""
        for percent in range(100, 300):
            by_family = {}
            for i in rows:
                half = math.sqrt(sum((self.slopes[i][s] * w) ** 2 for s, w in spread.items())) * percent / 100
                by_family.setdefault(self.table[i]["family"], []).append(abs(self.errors[i]) <= half)
            if sum(sum(held) / len(held) for held in by_family.values()) / len(by_family) >= HELD:
                return percent / 100
        raise ValueError("no width holds the rows")


def write(values, spread):
    """The constants of all families and the spread into the profile that ships."""
    software = predict.with_constants(json.loads(predict.SOFTWARE.read_text(encoding="utf-8")), values)
    software["spread"] = spread
    predict.SOFTWARE.write_text(json.dumps(software, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orrery", default=str(predict.ROOT / "build/release/orrery"))
    orrery = parser.parse_args().orrery
    table = [r for i, r in enumerate(predict.rows()) if r["family"] != "vtrain-one-host" or i % 6 == 0]
    linear = Linear(orrery, table, START)
    linear = Linear(orrery, table, linear.minimum("none")[0])
    result = {}
    for left_out in ["none", *sorted({predict.left_out(r) for r in table})]:
        result[left_out], value = linear.minimum(left_out)
        print(f"without {left_out}: objective {value:.4f}, {result[left_out]}", flush=True)
    values = result.pop("none")
    spreads = Spreads(orrery, linear, result)
    fold = predict.folds()
    halves = [spreads.minimum([i for i, r in enumerate(table) if fold[r["id"]] != left_out]) for left_out in (0, 1)]
    write(values, spreads.minimum(range(len(table))))
    (predict.HERE / "spreads.json").write_text(json.dumps(halves, indent=1) + "\n", encoding="utf-8")
    (predict.HERE / "constants.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
