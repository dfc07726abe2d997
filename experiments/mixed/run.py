#!/usr/bin/env python3
"""Published trials on mixed clusters against the simulator: ranking and feasibility within a setting first, then errors.

    experiments/mixed/run.py [--orrery build/release/orrery] [--rows] [--fit]

Prints tables in Markdown; --rows: every trial too; --fit: the constants of constants.json again. Exit code 1 when the mean error of a setting is above its
bar. See README.md.
"""
import argparse
import csv
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOFTWARE = "megatron-2021"  # Megatron of 2020 and a fork of Megatron-DeepSpeed: attention written out, no fused kernels
SEQUENCE = {"amp-gpt2": 1024}
# Fitted, to AMP's trials alone: each of its settings is predicted with what is best on the other one.
FITTED = ("12 V100 + 4 T4", "16 T4")
GRID = {"composition_factor": (1.1, 1.3, 1.5, 2), "factor": (1.264, 1.6, 2, 2.5, 3, 4)}
# Sailor's trials ran in fp32, and its rates between hosts are what was measured there; those inside RTX hosts were measured in layers.
PRECISION = {"GH200": "fp32", "RTX 3090, 2080, Titan": "fp32"}
KNOWN = {"12 V100 + 4 T4": {"gradient_bytes": 4}, "16 T4": {"gradient_bytes": 4}, "GH200": {"gradient_bytes": 4, "fabric_share": 1},
         "RTX 3090, 2080, Titan": {"gradient_bytes": 4, "fabric_share": 1, "factor": 1}}


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stderr}")
    return json.loads(done.stdout)


def fingerprint(program, model, known={}):
    if model not in known:
        one = run(program, "simulate", "--model", HERE / "models" / f"{model}.json", "--cluster", "dgx-a100", "--tp", "1", "--dp", "1", "--micro-batch", "1",
                  "--global-batch", "1", "--sequence-length", "128", "--json")
        known[model] = one["plan"]["model_fingerprint"]
    return known[model]


def stages_of(counts, strategy):
    """DeepSpeed's pipeline sends each tensor rank's share of an activation, which the next stage gathers (runtime/pipe/engine.py, is_pipe_partitioned): so does
    a stage whose last block has sequence parallelism."""
    if strategy["tp"] == 1:
        return [{"runs": [{"count": count, "strategy": strategy}]} for count in counts]
    last = {**strategy, "sequence_parallel": True}
    inner = [[{"count": count - 1, "strategy": strategy}, {"count": 1, "strategy": last}] for count in counts[:-1]]
    return [{"runs": [run for run in runs if run["count"]]} for runs in [*inner, [{"count": counts[-1], "strategy": strategy}]]]


def plan_of(program, row):
    """The trial as a plan (orrery.plan/1): tensor groups next to each other, stages in the order of the hosts."""
    tp, dp, batch = int(row["tp"]), int(row["dp"]), int(row["global_batch"])
    strategy = {"tp": tp, "dp": dp, "zero": 0, "sequence_parallel": False, "recompute": "none", "grad_reduce": "step"}
    cluster, _, hosts = row["cluster"].partition(":")
    return {"schema": "orrery.plan/1", "model": str(HERE / "models" / f"{row['model']}.json"), "model_fingerprint": fingerprint(program, row["model"]),
            "cluster": str(HERE / "clusters" / f"{cluster}.yaml"), "hosts": int(hosts or 1), "precision": PRECISION.get(row["setting"], "bf16"),
            "sequence": SEQUENCE.get(row["model"], 2048), "global_batch": batch, "micro_batches": batch // (dp * int(row["micro_batch"])),
            "schedule": "1f1b", "prefetch_depth": 1, "vocabulary": strategy,
            "stages": stages_of([int(count) for count in row["blocks"].split("-")], strategy)}


def predict(program, row, folder, constants):
    path = pathlib.Path(folder) / "plan.json"
    path.write_text(json.dumps(plan_of(program, row)), encoding="utf-8")
    values = ",".join(f"software.{name}={value}" for name, value in {**KNOWN[row["setting"]], **constants}.items())
    found = run(program, "simulate", "--plan", path, "--software", SOFTWARE, "--set", values, "--json")
    step = found["predicted"]
    row.update(ours=step["step_time_s"], fits=found["status"] == "ok", peak=max(s["peak_memory_bytes"] for s in step["stages"]))
    row["measured"] = float(row["measured_step_s"]) if row["measured_step_s"] else None


def mean_error(program, rows, folder, constants):
    errors = []
    for row in (r for r in rows if r["measured_step_s"]):
        predict(program, row, folder, constants)
        errors.append(abs(row["ours"] / row["measured"] - 1))
    return sum(errors) / len(errors)


def fit(program, settings, folder):
    """By setting: the point of the grid that is best on the other one."""
    points = [dict(zip(GRID, values)) for values in itertools.product(*GRID.values())]
    return {name: min(points, key=lambda point: mean_error(program, settings[other], folder, point)) for name, other in (FITTED, FITTED[::-1])}


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    for first in range(len(order)):
        alike = [i for i in range(len(order)) if values[order[i]] == values[order[first]]]
        found[order[first]] = sum(alike) / len(alike)
    return found


def spearman(a, b):
    x, y = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    over = sum((p - mean) * (q - mean) for p, q in zip(x, y))
    return over / (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5


def regret(times, measured):
    """How much slower than the best the one is that comes out first."""
    return measured[min(range(len(times)), key=times.__getitem__)] / min(measured) - 1


def show_ranking(settings):
    print("| setting | trials | Spearman | regret | AMP's model: Spearman | regret | ran and fits | did not run and does not fit | ran, does not fit | did not run, fits |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, rows in settings.items():
        ran = [r for r in rows if r["measured"]]
        measured, ours = [r["measured"] for r in ran], [r["ours"] for r in ran]
        amp = [float(r["amp_step_s"]) for r in ran if r["amp_step_s"]]
        one_batch = len({(r["model"], r["global_batch"], r["cluster"]) for r in rows}) == 1
        cells = [f"{spearman(ours, measured):.2f}", f"{regret(ours, measured):.1%}"] if one_batch else ["–", "–"]
        cells += [f"{spearman(amp, measured):.2f}", f"{regret(amp, measured):.1%}"] if len(amp) == len(ran) else ["–", "–"]
        cells += [sum(bool(r["measured"]) == ran_too and r["fits"] == fits for r in rows)
                  for ran_too, fits in ((True, True), (False, False), (True, False), (False, True))]
        print(f"| {name} | {len(rows)} | " + " | ".join(map(str, cells)) + " |")


def pairs(settings):
    """Plans of one model, batch and cluster, where a setting has several of those."""
    right = total = 0
    for rows in settings.values():
        for i, a in enumerate(rows):
            for b in rows[:i]:
                if not a["measured"] or not b["measured"] or a["measured"] == b["measured"]:
                    continue
                if all(a[k] == b[k] for k in ("model", "global_batch", "cluster")):
                    total += 1
                    right += (a["ours"] < b["ours"]) == (a["measured"] < b["measured"])
    print(f"\nPairs of trials of one model, batch and cluster that come out in the measured order: {right} of {total}.\n")


def show_errors(settings):
    held = True
    print("| setting | trials that ran | mean error | median | max | bias | bar | AMP's model: mean error | memory: mean error | bias |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, rows in settings.items():
        ran = [r for r in rows if r["measured"]]
        errors = [r["ours"] / r["measured"] - 1 for r in ran]
        amp = [abs(float(r["amp_step_s"]) / r["measured"] - 1) for r in ran if r["amp_step_s"]]
        memory = [r["peak"] / float(r["measured_peak_bytes"]) - 1 for r in ran if r["measured_peak_bytes"]]
        sizes = sorted(map(abs, errors))
        mean = sum(sizes) / len(sizes)
        held = held and mean <= BARS[name]
        print(f"| {name} | {len(ran)} | {mean:.1%} | {sizes[len(sizes) // 2]:.1%} | {sizes[-1]:.1%} | {sum(errors) / len(errors):+.1%} | {BARS[name]:.0%} | "
              + (f"{sum(amp) / len(amp):.1%}" if amp else "–")
              + (f" | {sum(map(abs, memory)) / len(memory):.1%} | {sum(memory) / len(memory):+.1%} |" if memory else " | – | – |"))
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    with open(HERE / "rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    settings = {}
    for row in rows:
        settings.setdefault(row["setting"], []).append(row)
    constants = json.loads((HERE / "constants.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if options.fit:
            constants = fit(options.orrery, settings, folder)
            (HERE / "constants.json").write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")
        for row in rows:
            predict(options.orrery, row, folder, constants.get(row["setting"], {}))
    show_ranking(settings)
    pairs(settings)
    held = show_errors(settings)
    if options.rows:
        print("\n| trial | setting | plan | blocks | measured | predicted | error |\n|---|---|---|---|---|---|---|")
        for r in rows:
            measured = f"{r['measured']:.2f} s" if r["measured"] else "did not run"
            error = f"{r['ours'] / r['measured'] - 1:+.0%}" if r["measured"] else ""
            print(f"| {r['id']} | {r['setting']} | tp {r['tp']} pp {r['pp']} dp {r['dp']}, micro-batch {r['micro_batch']} of {r['global_batch']} | {r['blocks']} "
                  f"| {measured} | {r['ours']:.2f} s{'' if r['fits'] else ', does not fit'} | {error} |")
    return 0 if held else 1


# Mean errors; what they are, and why they are no lower, is in README.md.
BARS = {"12 V100 + 4 T4": 0.15, "16 T4": 0.15, "GH200": 0.15, "RTX 3090, 2080, Titan": 0.15}

if __name__ == "__main__":
    sys.exit(main())
