#!/usr/bin/env python3
"""What overlap changes in a step of two CPU ranks: predicted against measured, in paired rounds.

    experiments/overlap/run.py [--orrery build/release/orrery] [--models gpt2-tiny,llama-tiny] [--rounds 15]

Every pair of plans differs in one overlap alone. All plans of a model train in turns, so that a round's difference is of one state of the machine.
Prints a table in Markdown; exit code 1 when a predicted difference is more than 5 % of the step away from the measured one. Needs a quiet machine of two
cores; calibrates it where `orrery validate` has not. See README.md.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BAR = 0.05
# What overlaps, the options of both plans, and what the one without has in place of the one with.
PAIRS = {
    "gradients of a layer beside the backward of others": (["--dp", "2"], {"grad_reduce": "end"}),
    "ZeRO-1: gradients, and parameters beside the next forward": (["--dp", "2", "--zero", "1"], {"grad_reduce": "end"}),
    "ZeRO-3: parameters of the next layer": (["--dp", "2", "--zero", "3"], {"prefetch_depth": 0}),
    "tensor parallelism in two pieces": (["--tp", "2", "--sequence-parallel", "--tensor-pieces", "2"], {"tensor_pieces": 1}),
}
COMMON = ["--cluster", "local", "--micro-batch", "2", "--global-batch", "16", "--precision", "fp32", "--json"]


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}")
    return json.loads(done.stdout)


def without(plan, changes):
    """The plan with other values of the fields of its strategies, or of its own."""
    plan = json.loads(json.dumps(plan))
    strategies = [plan["vocabulary"]] + [r["strategy"] for s in plan["stages"] for r in s["runs"]]
    for field, value in changes.items():
        for owner in [plan] if field in plan else strategies:
            owner[field] = value
    return plan


def compare(program, model, rounds, steps):
    """(pair, step in seconds, predicted and measured change without the overlap, as shares of it)."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, (options, changes) in enumerate(PAIRS.values()):
            plan = run(program, "simulate", "--model", model, *COMMON, *options)["plan"]
            for side, it in (("with", plan), ("without", without(plan, changes))):
                files.append(pathlib.Path(folder) / f"{i}-{side}.json")
                files[-1].write_text(json.dumps(it), encoding="utf-8")
        plans = [word for file in files for word in ("--plan", file)]
        found = run(program, "validate", "--model", model, "--ranks", 2, "--rounds", rounds, "--steps", steps, "--json", *plans)["plans"]
    for i, pair in enumerate(PAIRS):
        one, other = found[2 * i], found[2 * i + 1]
        step = one["measured"]["step_time_s"]
        changes = [b - a for a, b in zip(one["measured"]["rounds_s"], other["measured"]["rounds_s"])]
        scale = one["predicted"]["step_time_s"]
        yield (pair, step, (other["predicted"]["step_time_s"] - scale) / scale, statistics.median(changes) / step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    parser.add_argument("--models", default="gpt2-tiny,llama-tiny")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    print("| model | overlap | step | without it, predicted | measured | apart |\n|---|---|---|---|---|---|")
    held = True
    for model in options.models.split(","):
        for pair, step, predicted, measured in compare(options.orrery, model, options.rounds, options.steps):
            held = held and abs(predicted - measured) <= BAR
            print(f"| {model} | {pair} | {1e3 * step:.1f} ms | {predicted:+.1%} | {measured:+.1%} | {abs(predicted - measured):.1%} |")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
