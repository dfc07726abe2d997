#!/usr/bin/env python3
"""How much of a training step is not tensor operations: samples of perf inside a step and outside of every segment.

    experiments/pytorch/overhead.py [--orrery build/release/orrery] [--models gpt-1m,gpt-30m] [--out FOLDER]

Needs Linux's perf. One rank, one thread: a sample is of a step where its stack has Interpreter::step, and of a tensor operation where it has
run_segment as well; what is between (operands, memory, streams, checks, losses) is overhead. MKL's kernels cannot be unwound: a stack that ends in
one is of a tensor operation. Overhead over operations is outside / inside, with one standard deviation of drawing so many samples. Writes
overhead.csv and overhead.md.
"""
import argparse
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import run
import sides

STEPS = {"gpt-1m": 400, "gpt-30m": 12, "gpt-124m": 4}
RATE = 499  # samples a second; no divisor of what repeats in milliseconds


def stacks(data):
    """Sets of functions, a set for each sample."""
    script = subprocess.Popen(["perf", "script", "--no-inline", "-F", "ip,sym", "-i", data], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = []
    for line in script.stdout:
        if line.strip():
            lines.append(line)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)
    if script.wait() != 0:
        sys.exit("perf script failed")


def measured(orrery, model, folder):
    plan = run.plan_of(orrery, model, "one", folder)
    data = folder / f"{model}.perf"
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(RATE), "--call-graph", "dwarf,32768", "-o", data, "--", orrery, "train", "--plan",
               plan, "--steps", str(STEPS[model]), "--warmup", "0", "--device", "cpu"]
    recorded = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if recorded.returncode != 0:
        sys.exit(f"{command} ended with {recorded.returncode}:\n{recorded.stderr}")
    inside = outside = 0
    for stack in stacks(data):
        outermost = stack.split("\n")[-2].split()[-1]
        operation = "executor::run_segment" in stack or outermost.startswith(("mkl_", "vms"))
        inside += operation
        outside += not operation and "Interpreter::step" in stack
    data.unlink()
    if inside < 100:
        sys.exit(f"{inside} samples inside segments of {model}: perf saw no stacks")
    share = outside / (inside + outside)
    return {"model": model, "steps": STEPS[model], "samples": inside + outside, "overhead": round(outside / inside, 5),
            "deviation": round(math.sqrt(share * (1 - share) / (inside + outside)), 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orrery", default=run.ROOT / "build/release/orrery", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(STEPS))
    parser.add_argument("--out", default=run.HERE, type=pathlib.Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(given.orrery.resolve(), model, pathlib.Path(folder)) for model in given.models.split(",")]
    table = "| model | steps | samples | overhead over tensor operations |\n|---|---|---|---|\n"
    for row in rows:
        table += f"| {row['model']} | {row['steps']} | {row['samples']} | {100 * row['overhead']:.2f} ± {100 * row['deviation']:.2f} % |\n"
    given.out.mkdir(parents=True, exist_ok=True)
    sides.write(rows, given.out / "overhead.csv", table, given.out / "overhead.md")
    print(table)


if __name__ == "__main__":
    main()
