#!/usr/bin/env python3
"""Predicted against measured time of collectives, by `orrery collective`; writes table.md and errors.png. See README.md.

Usage: run.py [--orrery PROGRAM] [--no-plot]
"""
import argparse
import collections
import concurrent.futures
import csv
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 2**20
ONE_HOST = {"a100": "dgx-a100", "h100": "dgx-h100", "h200": "dgx-h200", "b200": "b200-efa", "gb200": "gb200-rack", "b300": "b300-host", "gb300": "gb300-nvl72"}
CALIBRATED = set(ONE_HOST)
MACHINES = [*ONE_HOST, "mi300x"]
# Bars of the two ways, in percent: (profile, rows, from bytes, below bytes, bar).
BARS = [("measured", "held_out", 64 * MIB, None, 8), ("measured", "held_out", MIB, 64 * MIB, 20), ("measured", "held_out", 0, MIB, None),
        ("published", "all", 256 * MIB, None, 15), ("published", "all", MIB, None, 35), ("published", "all", 0, MIB, None)]
Row = collections.namedtuple("Row", "machine cluster hosts operation ranks bytes seconds source")


def read_rows():
    rows, left_out = [], collections.Counter()
    with open(HERE / "measured" / "one_host.csv", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            rows.append(Row(r["machine"], ONE_HOST[r["machine"]], 1, r["operation"], int(r["ranks"]), int(r["bytes"]), float(r["time_us"]) / 1e6, "one_host"))
    with open(HERE / "measured" / "all_reduce.csv", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["left_out"]:
                left_out[r["left_out"]] += 1
                continue
            rows.append(Row(r["machine"], r["cluster"], int(r["hosts"]), "all_reduce", int(r["ranks"]), int(r["bytes"]), float(r["time_us"]) / 1e6, r["source"]))
    return rows, left_out


def cluster_argument(name):
    own = HERE / "clusters" / f"{name}.yaml"
    return str(own) if own.exists() else name


def predict(program, row, profile):
    name = f"{row.machine}-measured" if profile == "measured" else "published"
    command = [program, "collective", "--cluster", cluster_argument(row.cluster), "--hosts", str(row.hosts), "--op", row.operation, "--bytes", f"{row.bytes}B",
               "--ranks", str(row.ranks), "--profile", name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def held_out(row):
    """4 GPUs of one host, and whatever spans several."""
    return row.ranks > 8 or (row.source == "one_host" and row.ranks == 4)


def mean(values):
    values = list(values)
    return (sum(values) / len(values), len(values)) if values else (None, 0)


def errors(table, profile, machine, choose, low, high):
    return [abs(p["time_s"] / row.seconds - 1) for row, p in table[profile] if row.machine == machine and choose(row) and row.bytes >= low and (high is None or row.bytes < high)]


GROUPS = {"held_out": [("4 GPUs", lambda r: r.source == "one_host" and r.ranks == 4), ("several hosts", lambda r: r.ranks > 8), ("both", held_out)],
          "all": [("one host", lambda r: r.ranks <= 8), ("several hosts", lambda r: r.ranks > 8), ("all", lambda r: True)]}


def size_text(low, high):
    if low == 0:
        return "below 1 MiB"
    return f"from {low // MIB} MiB" if high is None else f"{low // MIB} to {high // MIB} MiB"


def write_table(table, left_out):
    lines = [f"Rows left out of `measured/all_reduce.csv`: {left_out['degraded']} marked degraded, {left_out['zero']} with bus bandwidth zero.", ""]
    for profile, rows, low, high, bar in BARS:
        title = "calibrated on 2 and 8 GPUs of one host, predicted elsewhere" if profile == "measured" else "datasheet links and NCCL's published constants"
        lines += [f"**{title}, {size_text(low, high)}** (mean absolute error of time{f'; bar {bar} %' if bar else ''})", ""]
        names = [name for name, _ in GROUPS[rows]]
        lines += ["| machine | " + " | ".join(names) + (" | bar |" if bar else " |"), "|---" * (len(names) + 1 + bool(bar)) + "|"]
        for machine in MACHINES:
            if profile == "measured" and machine not in CALIBRATED:
                continue
            results = [mean(errors(table, profile, machine, choose, low, high)) for _, choose in GROUPS[rows]]
            cells = [f"{100 * e:.1f} % ({n})" if n else "–" for e, n in results]
            e, n = results[-1]
            verdict = f" {'held' if n and 100 * e <= bar else 'missed' if n else '–'} |" if bar else ""
            lines.append(f"| {machine} | " + " | ".join(cells) + " |" + verdict)
        lines.append("")
    (HERE / "table.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def plot(table):
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    figure, axes = pyplot.subplots(2, 4, figsize=(17, 7), sharex=True, sharey=True)
    for axis, machine in zip(axes.flat, MACHINES):
        for profile, colour in (("published", "tab:orange"), ("measured", "tab:blue")):
            for several, marker in ((False, "."), (True, "x")):
                points = [(row.bytes, 100 * (p["time_s"] / row.seconds - 1)) for row, p in table[profile]
                          if row.machine == machine and (row.ranks > 8) == several and (profile == "published" or held_out(row))]
                if points:
                    label = f"{profile}, {'several hosts' if several else 'one host'}"
                    axis.scatter(*zip(*points), s=14, c=colour, marker=marker, label=label, alpha=0.7)
        axis.set(xscale="log", title=machine, ylim=(-100, 100))
        axis.axhline(0, color="black", linewidth=0.6)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.supxlabel("bytes of the tensor")
    figure.supylabel("predicted / measured time − 1, %")
    figure.tight_layout()
    figure.savefig(HERE / "errors.png", dpi=90, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--orrery", default=None)
    parser.add_argument("--no-plot", action="store_true")
    arguments = parser.parse_args()
    program = arguments.orrery or next((str(p) for p in (ROOT / "build/release/orrery", ROOT / "build/no-executor/orrery") if p.exists()), None)
    if program is None:
        sys.exit("no orrery: run scripts/build.sh first")
    rows, left_out = read_rows()
    table = {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for profile in ("published", "measured"):
            chosen = [r for r in rows if profile == "published" or r.machine in CALIBRATED]
            questions = list(dict.fromkeys(r._replace(seconds=0.0, source="") for r in chosen))  # runs of one row have one prediction
            answers = dict(zip(questions, pool.map(lambda q, profile=profile: predict(program, q, profile), questions)))
            table[profile] = [(r, answers[r._replace(seconds=0.0, source="")]) for r in chosen]
    write_table(table, left_out)
    if not arguments.no_plot:
        plot(table)


if __name__ == "__main__":
    main()
