#!/usr/bin/env python3
"""Published training steps on machines since 2022, under the software that ran them, against what was measured.

    experiments/beyond/run.py [--orrery build/release/orrery]

Prints tables in Markdown: errors by source and format, and every row. Exit code 1 when a mean is above its bar. See README.md.
"""
import argparse
import csv
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Mean errors, by first word of the id and format ("*": any other).
BARS = {("fsdp", "bf16"): 0.08, ("megatron", "bf16"): 0.06, ("nemo", "*"): 0.08, ("mlperf", "fp8"): 0.08, ("bridge", "fp8"): 0.10,
        ("bridge", "*"): 0.12, ("lora", "*"): 0.12, ("titan", "*"): 0.10, ("mixture", "*"): 0.15}
SOURCES = {"fsdp": "TorchTitan", "megatron": "Megatron-Core", "nemo": "NeMo 24.07", "mlperf": "MLPerf", "bridge": "Megatron-Bridge",
           "lora": "Megatron-Bridge, LoRA", "titan": "TorchTitan", "mixture": "Mixtures"}


def predicted(program, table):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "results.csv"
        done = subprocess.run([program, "simulate", "--table", HERE / table, "--bands", "--out", out], capture_output=True, text=True)
        if done.returncode not in (0, 2):
            sys.exit(done.stderr)
        with open(out, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def family(row):
    return row["id"].split("-")[0], row["precision"].split("-")[0]


def summary(rows):
    """Errors by source and format; True where every mean is within its bar."""
    held = True
    print("| source | format | rows | mean error | max | bias | bar | in their bands |\n|---|---|---|---|---|---|---|---|")
    for key in dict.fromkeys(map(family, rows)):
        some = [r for r in rows if family(r) == key]
        errors = [float(r["step_time_s"]) / float(r["measured_step_s"]) - 1 for r in some]
        inside = sum(float(r["step_time_low_s"]) <= float(r["measured_step_s"]) <= float(r["step_time_high_s"]) for r in some)
        mean = sum(map(abs, errors)) / len(errors)
        bar = BARS.get(key, BARS.get((key[0], "*")))
        held = held and (bar is None or mean <= bar)
        print(f"| {SOURCES[key[0]]} | {key[1]} | {len(some)} | {mean:.1%} | {max(map(abs, errors)):.1%} | {sum(errors) / len(errors):+.1%} "
              f"| {'–' if bar is None else format(bar, '.0%')} | {inside} |")
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    program = parser.parse_args().orrery
    rows = predicted(program, "rows.csv") + predicted(program, "mixtures.csv")
    held = summary(rows)
    print("\n| step | cluster | GPUs | format | measured | predicted | error |\n|---|---|---|---|---|---|---|")
    for row in rows:
        measured, ours = float(row["measured_step_s"]), float(row["step_time_s"])
        print(f"| {row['note']} | {row['cluster']} | {row['gpus']} | {row['precision']} | {measured:.2f} s | {ours:.2f} s | {ours / measured - 1:+.0%} |")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
