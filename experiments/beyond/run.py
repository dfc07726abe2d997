#!/usr/bin/env python3
"""Published training steps on H100, under the software that ran them, against what was measured.

    experiments/beyond/run.py [--orrery build/release/orrery]

Prints a table in Markdown. See README.md.
"""
import argparse
import csv
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "results.csv"
        done = subprocess.run([given.orrery, "simulate", "--table", HERE / "rows.csv", "--out", out],
                              capture_output=True, text=True)
        if done.returncode not in (0, 2):
            sys.exit(done.stderr)
        with open(out, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    print("| step | GPUs | measured | predicted | error |\n|---|---|---|---|---|")
    for row in rows:
        measured, predicted = float(row["measured_step_s"]), float(row["step_time_s"])
        print(f"| {row['note']} | {row['gpus']} | {measured:.2f} s | {predicted:.2f} s "
              f"| {100 * (predicted / measured - 1):+.0f} % |")


if __name__ == "__main__":
    main()
