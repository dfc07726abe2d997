#!/usr/bin/env python3
"""Rebuilds the tables of the paper-era tool, repeats its predictions, and finds the best plan of every row with `orrery solve`.

    experiments/galvatron/run.py [--orrery build/release/orrery] [--only TEXT] [--svg FILE]

Exit code 1 when a prediction of the tool is not repeated, one of its plans is faster than ours, or a number differs from
expected.json. Inputs: constants.json, reference.json (plans and predictions of the tool), expected.json.
"""
import argparse
import json
import math
import pathlib
import sys

import plot
from search import Search
from tables import parse_plan

HERE = pathlib.Path(__file__).resolve().parent
ROUNDED = 0.6e-4  # the tool prints samples per second to four places
TIE = 1e-6  # our tables are rounded up to picoseconds


def name_of(row):
    return f"{row['model']}/{row['gpus']}gpu/{row['memory_gib']}GiB/{row['space']}"


def priced(search, row):
    """The tool's plan: samples per second (tool's price, with the slowest stage), and whether the tool's own prediction and the memory
    of every stage come out."""
    tables = search.tables(row["model"], row["gpus"])
    stages = parse_plan(row["plan"], row["pp"])
    rates = [row["batch"] / seconds for seconds in tables.price(row["batch"], stages)]
    stated = row["memory_mb"] * (row["pp"] if len(row["memory_mb"]) == 1 else 1)
    return rates, abs(rates[0] - row["samples_per_s"]) <= ROUNDED and tables.stage_mb(row["batch"], stages) == stated


def found_for(search, row):
    """Our plans, (batch, samples per second, pipeline degree) for the tool's price and with the slowest stage; None where nothing fits.
    Both are priced again as the tool's plan is, whole and in floating point."""
    limit_mb = row["memory_gib"] * 1024
    tables = search.tables(row["model"], row["gpus"])
    best = search.best(row["model"], row["gpus"], limit_mb, row["space"])
    for which, plan in enumerate(best):
        if plan is None:
            continue
        seconds = tables.price(plan.batch, plan.stages)[which]
        if abs(plan.cost_ps / 1e12 / seconds - 1) > 1e-9 or max(tables.stage_mb(plan.batch, plan.stages)) > limit_mb:
            raise RuntimeError(f"{name_of(row)}: the answer is not what it says")
    return [plan and (plan.batch, plan.batch / plan.cost_ps * 1e12, len(plan.stages)) for plan in best]


def gains_text(gains):
    wins = sum(gain > TIE for gain in gains)
    losses = sum(gain < -TIE for gain in gains)
    mean = math.exp(sum(map(math.log1p, gains)) / len(gains)) - 1 if gains else 0
    return f"{wins} wins, {len(gains) - wins - losses} ties, {losses} losses, mean gain {100 * mean:.2f} %, largest {100 * max(gains, default=0):.1f} %", losses


def panels(rows, found):
    result = []
    for model, gpus in dict.fromkeys((r["model"], r["gpus"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["gpus"]) == (model, gpus)]
        limits = sorted({r["memory_gib"] for r in mine})
        tool, baseline, ours = {}, {}, {}
        for r in mine:
            rate = r.get("samples_per_s")
            if r["space"] == "full":
                if rate:
                    tool[r["memory_gib"]] = rate
                if found[name_of(r)][0]:
                    ours[r["memory_gib"]] = found[name_of(r)][0][1]
            elif rate:
                baseline[r["memory_gib"]] = max(rate, baseline.get(r["memory_gib"], 0))
        result.append((f"{model}, {gpus} GPUs", limits, baseline, tool, ours))
    return result


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"), help="program to run")
    parser.add_argument("--only", default="", help="search only for rows whose name holds this text")
    parser.add_argument("--svg", help="write the figure to this file")
    parser.add_argument("--write-expected", action="store_true", help="write expected.json anew")
    return parser.parse_args()


def write_expected(answers):
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in answers.items())
    note = "[batch, samples per second, pp] by the tool's price and with the slowest stage; null: nothing fits"
    (HERE / "expected.json").write_text(f'{{\n  "note": "{note}",\n  "rows": {{\n{lines}\n  }}\n}}\n')


def line_of(row, rates, ours):
    """A line of the table, and the two gains; None where one of the two has no plan."""
    name = name_of(row)
    if rates is None or ours[0] is None:
        plan = f"{ours[0][0]}, {ours[0][2]} | {ours[0][1]:.4f}" if ours[0] else "none |"
        return f"| {name} | none | | {plan} | | | | | | |", None
    gains = [plan[1] / rate - 1 for plan, rate in zip(ours, rates)]
    bound = ours[0][1] / ours[1][1] - 1  # the price with the slowest stage is never below the tool's
    line = (f"| {name} | {row['batch']}, {row['pp']} | {rates[0]:.4f} | {ours[0][0]}, {ours[0][2]} | {ours[0][1]:.4f} | {100 * gains[0]:+.3f} % "
            f"| {rates[1]:.4f} | {ours[1][0]}, {ours[1][2]} | {ours[1][1]:.4f} | {100 * gains[1]:+.3f} % | {100 * bound:+.3f} % |")
    return line, gains


def main():
    arguments = arguments_of()
    rows = json.loads((HERE / "reference.json").read_text())["rows"]
    expected = json.loads((HERE / "expected.json").read_text())["rows"]
    search = Search(arguments.orrery)
    tool = {name_of(row): priced(search, row) for row in rows if "plan" in row}
    wrong = [f"{name}: the tool's prediction comes out as {rates[0]:.4f}" for name, (rates, same) in tool.items() if not same]
    repeated = len(tool) - len(wrong)

    print("| row | tool: batch, pp | samples/s | ours: batch, pp | samples/s | gain | slowest stage: tool | ours: batch, pp | samples/s | gain | at most |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    found, answers, gains, without = {}, {}, ([], []), []
    rows = [row for row in rows if arguments.only in name_of(row)]
    for row in rows:
        name = name_of(row)
        found[name] = ours = found_for(search, row)
        answers[name] = ours[0] and [[batch, round(rate, 4), pp] for batch, rate, pp in ours]
        if not arguments.write_expected and answers[name] != expected.get(name, "missing"):
            wrong.append(f"{name}: {answers[name]}, expected {expected.get(name, 'missing')}")
        line, row_gains = line_of(row, tool[name][0] if name in tool else None, ours)
        print(line)
        if name not in tool:
            without.append(ours[0])
        elif row_gains is None:
            wrong.append(f"{name}: the tool has a plan, we have none")
        else:
            for list_, gain in zip(gains, row_gains):
                list_.append(gain)

    summaries = [gains_text(g) for g in gains]
    print(f"\nthe tool's own predictions, memory of every stage included: {repeated} of {len(tool)} repeated")
    print(f"by the tool's price: {summaries[0][0]}\nwith the slowest stage: {summaries[1][0]}")
    print(f"rows without a plan of the tool: {len(without)}, ours has one in {sum(plan is not None for plan in without)}")
    print(f"stages solved and certified: {len(search.solver.known)}")
    if arguments.svg:
        pathlib.Path(arguments.svg).write_text(plot.figure(panels(rows, found)))
    if arguments.write_expected:
        write_expected(answers)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong or any(losses for _, losses in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
