#!/usr/bin/env python3
"""Step time of one model under the best plan, from few GPUs to many, on several fabrics.

    experiments/scaling/run.py [--orrery build/release/orrery] [--out results.csv] [--plot scaling.svg]

Prints a table in Markdown; the plot needs matplotlib. See README.md.
"""
import argparse
import csv
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FABRICS = ("dgx-h100", "h100-rail-optimised", "h100-fat-tree")
HOSTS = [2**i for i in range(1, 14)]
DEVICES = 8
MODEL = ["--model", "llama-3-70b", "--global-batch", "4096", "--sequence-length", "8192"]


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
ANSWER = re.compile(r"step time +(\S+) (\w+) .*?MFU +(\S+) %.*?band: (\S+) (\w+) to (\S+) (\w+) ", re.DOTALL)
HEADLINE = re.compile(r"ranks.*?: (?P<shape>.*?) of .*?\n  stages? 0[^:]*: (?P<layers>.*?)(,|\n)")


def best(orrery, fabric, hosts):
    done = subprocess.run([orrery, "plan", *MODEL, "--cluster", fabric, "--hosts", str(hosts)],
                          capture_output=True, text=True)
    answer, headline = ANSWER.search(done.stdout), HEADLINE.search(done.stdout)
    if done.returncode != 0 or not answer or not headline:
        sys.exit(f"{fabric}, {hosts} hosts: {done.stderr or done.stdout}")
    seconds, unit, mfu, low, low_unit, high, high_unit = answer.groups()
    return {"fabric": fabric, "gpus": hosts * DEVICES, "step_time_s": float(seconds) * UNITS[unit],
            "low_s": float(low) * UNITS[low_unit], "high_s": float(high) * UNITS[high_unit], "mfu": float(mfu) / 100,
            "plan": f"{headline['shape']}: {headline['layers']}"}


def draw(rows, path):
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "orrery"
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    figure, axes = pyplot.subplots(figsize=(7, 5))
    for fabric in FABRICS:
        of = [r for r in rows if r["fabric"] == fabric]
        gpus = [r["gpus"] for r in of]
        axes.fill_between(gpus, [r["low_s"] for r in of], [r["high_s"] for r in of], alpha=0.15)
        axes.loglog(gpus, [r["step_time_s"] for r in of], ".-", label=fabric)
    first = min(rows, key=lambda r: r["gpus"])
    ends = [first["gpus"], max(r["gpus"] for r in rows)]
    axes.loglog(ends, [first["step_time_s"] * first["gpus"] / g for g in ends], "k--", linewidth=0.8, label="linear")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("step time of the best plan, s (bands: 80 %)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    parser.add_argument("--out", help="the rows, as CSV")
    parser.add_argument("--plot", help="SVG")
    given = parser.parse_args()
    rows = [best(given.orrery, fabric, hosts) for fabric in FABRICS for hosts in HOSTS]
    if given.out:
        with open(given.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if given.plot:
        draw(rows, given.plot)
    print("| GPUs |" + "".join(f" {f}, s | MFU |" for f in FABRICS) + f" plan on {FABRICS[0]}, first stage |")
    print("|---|" + "---|---|" * len(FABRICS) + "---|")
    for hosts in HOSTS:
        of = [r for r in rows if r["gpus"] == hosts * DEVICES]
        cells = [f" {r['step_time_s']:.4g} ({r['low_s']:.4g} to {r['high_s']:.4g}) | {100 * r['mfu']:.0f} % |" for r in of]
        print(f"| {hosts * DEVICES:,} |" + "".join(cells) + f" {of[0]['plan']} |")


if __name__ == "__main__":
    main()
