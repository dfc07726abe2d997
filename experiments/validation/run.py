#!/usr/bin/env python3
"""Predicts every published row, with constants fitted without the row's family (predict.left_out), and compares with what was measured.

    experiments/validation/run.py [--orrery build/release/orrery] [--out results.csv] [--plot scatter.svg] [--family NAME] [--default]

Exit code 1 when a bar of README.md is missed. Needs the standard library only; --plot needs matplotlib.
"""
import argparse
import csv
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import predict

FAMILIES = ("korthikanti", "sc21", "vtrain-one-host", "vtrain-multi-host")
BARS = {"korthikanti": 0.03, "sc21": 0.06, "vtrain-one-host": 0.08, "vtrain-multi-host": 0.08}  # of the constants that ship
LEFT_OUT = 1.5  # times as much for constants that have not seen the rows
LAYERS_BAR = 0.06
SPARSE = 12  # --default takes every so many of vTrain's one-host rows


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def quantile(values, q):
    """Linear between order statistics."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def ranks(values):
    """Mean rank of equals."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0.0] * len(values)
    for _, group in itertools.groupby(enumerate(order), key=lambda p: values[p[1]]):
        group = list(group)
        for _, i in group:
            out[i] = mean(position for position, _ in group)
    return out


def spearman(a, b):
    x, y = ranks(a), ranks(b)
    mx, my = mean(x), mean(y)
    covariance = sum((p - mx) * (q - my) for p, q in zip(x, y))
    return covariance / math.sqrt(sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y))


def ranking(table):
    """Over groups of plans for one model, batch and number of GPUs: Spearman (three plans or more), pairs in order, regret of the predicted best."""
    groups = {}
    for row in table:
        groups.setdefault((row["layers"], row["hidden"], row["global_batch"], row["gpus"]), []).append((row["predicted"], row["measured"]))
    correlations, right, pairs, regrets = [], 0, 0, []
    for plans in groups.values():
        if len(plans) < 2:
            continue
        predicted, measured = zip(*plans)
        if len(plans) > 2:
            correlations.append(spearman(predicted, measured))
        for (p, m), (q, n) in itertools.combinations(plans, 2):
            if m != n:
                pairs += 1
                right += (p - q) * (m - n) > 0
        regrets.append(measured[predicted.index(min(predicted))] / min(measured) - 1)
    return {"groups": len(regrets), "spearman": mean(correlations), "pairwise": right / pairs, "mean_regret": mean(regrets), "worst_regret": max(regrets),
            "regrets": regrets}


def layer_parts(orrery, case, model, constants, layers):
    """Seconds of a step's parts for a model of so many layers."""
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        config = {"model_type": "gpt2", "n_embd": model["hidden"], "n_head": model["heads"], "n_layer": layers, "n_positions": model["seq"],
                  "vocab_size": model["vocab"], "activation_function": "gelu_new"}
        (at / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (at / "profile.json").write_text(json.dumps(predict.profile(constants)), encoding="utf-8")
        command = [orrery, "simulate", "--model", at / "config.json", "--cluster", "dgx-a100", "--profile", at / "profile.json", "--tp", model["tp"],
                   "--dp", 1, "--micro-batch", model["micro_batch"], "--global-batch", model["micro_batch"], "--recompute", case["recompute"], "--json"]
        if case["sequence_parallel"]:
            command.append("--sequence-parallel")
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
        parts = json.loads(done.stdout)["predicted"]["stages"][0]["parts_ps"]
        return {name: ps / 1e12 for name, ps in parts.items()}


def layer_rows(orrery, constants):
    """Table 4: one more layer of the same model, alone on its machine, so without `composition`. Its collectives are shared evenly over its passes: two each forward, backward and recomputed forward."""
    facts = json.loads((predict.HERE / "layer_times.json").read_text(encoding="utf-8"))
    constants = dict(constants, composition=1.0)
    out = []
    for case in facts["rows"]:
        two, three = (layer_parts(orrery, case, facts["model"], constants, n) for n in (2, 3))
        part = {name: three[name] - two[name] for name in three}
        passes = 3 if case["recompute"] == "full" else 2
        forward = part["forward"] + part["tensor"] / passes
        backward = part["backward"] + part["recompute"] + part["tensor"] * (passes - 1) / passes
        for what, predicted in (("forward", forward), ("backward", backward)):
            out.append({"id": f"{case['id']}, {what}", "predicted": predicted, "measured": case[f"{what}_ms"] / 1e3})
    return out


def bands(orrery, table):
    """The program's 80 % bands, of a row by constants fitted without its family and a spread fitted without its group. By family:
    rows, share held, mean width and interval score relative to the measured time, the same of one width for all rows (the quantile of all their errors)."""
    one = quantile([abs(math.log(r["measured"] / r["predicted"])) for r in table], predict.COVERAGE)
    folds, out = predict.folds(), {}
    for family in FAMILIES:
        part = [r for r in table if r["family"] == family]
        scores, before = [], []
        for fold, spread in enumerate(predict.spreads()):
            mine = [r for r in part if folds[r["id"]] == fold]
            ends = predict.simulate_bands(orrery, mine, predict.constants(predict.left_out(mine[0])), dict(spread, operators=predict.product_residual())) if mine else []
            for row, (low, high) in zip(mine, ends):
                scores.append(score(row, low, high))
                before.append(score(row, row["predicted"] * math.exp(-one), row["predicted"] * math.exp(one)))
        out[family] = (len(part), [mean(x) for x in zip(*scores)], [mean(x) for x in zip(*before)])
    return out


def score(row, low, high):
    """Held, width, interval score (Gneiting and Raftery 2007), relative to the measured time."""
    low, high = low / row["measured"], high / row["measured"]
    return low <= 1 <= high, high - low, high - low + 2 / (1 - predict.COVERAGE) * (max(0, low - 1) + max(0, 1 - high))


def report_bands(orrery, table):
    by_family = bands(orrery, table)
    error = mean(abs(r["predicted"] / r["measured"] - 1) for r in table)
    print("\n| 80 % bands | held | width | interval score | one width for all: held | width | interval score |\n|---|---|---|---|---|---|---|")
    rows = sum(n for n, _, _ in by_family.values())
    overall = [[sum(n * part[which][k] for n, *part in by_family.values()) / rows for k in range(3)] for which in (0, 1)]
    for name, ours, one in [(f, ours, one) for f, (_, ours, one) in by_family.items()] + [("all rows", *overall)]:
        print(f"| {name} | " + " | ".join(percent(x) for x in [*ours, *one]) + " |")
    held, width, _ = overall[0]
    print(f"\nmean width {width / error:.2f} x the mean error; 80 % of the rows are predicted within {percent(quantile([abs(r['measured'] / r['predicted'] - 1) for r in table], predict.COVERAGE))}")
    return 0.7 <= held <= 0.9 and width <= 4 * error


def percent(x):
    return f"{100 * x:.1f} %"


def error_line(name, table, bar):
    errors = [r["predicted"] / r["measured"] - 1 for r in table]
    absolute = [abs(e) for e in errors]
    print(f"| {name} | {len(table)} | {percent(mean(absolute))} | {percent(max(absolute))} | {100 * mean(errors):+.1f} % | {percent(bar)} |")
    return mean(absolute) <= bar


def report(table, layers, families=FAMILIES):
    fine = True
    print("| family | rows | mean error | max | bias | bar |\n|---|---|---|---|---|---|")
    for family in families:
        fine &= error_line(family, [r for r in table if r["family"] == family], LEFT_OUT * BARS[family])
    fine &= error_line("layer times", layers, LAYERS_BAR)
    if families != FAMILIES:
        return fine
    print("\n| ranking | groups | Spearman | pairs in order | mean regret | worst regret |\n|---|---|---|---|---|---|")
    for family in ("vtrain-one-host", "vtrain-multi-host"):
        r = ranking([row for row in table if row["family"] == family])
        print(f"| {family} | {r['groups']} | {r['spearman']:.3f} | {percent(r['pairwise'])} | {percent(r['mean_regret'])} | {percent(r['worst_regret'])} |")
        fine &= r["spearman"] >= 0.85 and r["pairwise"] >= 0.85 and r["mean_regret"] <= 0.03 and r["worst_regret"] <= 0.15
    return fine


def sweep(orrery, table, constants):
    """SC21 with every micro-batch and interleaving that divides: the range that the unpublished settings leave."""
    print("\n| SC21 row | stated rule | range over the sweep |\n|---|---|---|")
    for row in (r for r in table if r["family"] == "sc21"):
        layers, pp, dp, batch = (int(row[k]) for k in ("layers", "pp", "dp", "global_batch"))
        trials = []
        for micro_batch, chunks in itertools.product((1, 2, 4, 8), range(1, 7)):
            if batch % (dp * micro_batch) or layers // pp % chunks or (chunks > 1 and (pp == 1 or batch // dp // micro_batch % pp)):
                continue
            trials.append(dict({k: row[k] for k in predict.rows()[0]}, micro_batch=micro_batch, virtual_stages=chunks))
        errors = [s / row["measured"] - 1 for s in predict.simulate(orrery, trials, constants)]
        print(f"| tp {row['tp']}, pp {pp}, {row['gpus']} GPUs | {100 * (row['predicted'] / row['measured'] - 1):+.1f} % "
              f"| {100 * min(errors):+.1f} % to {100 * max(errors):+.1f} % |")


def plot(table, path):
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "orrery"
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    figure, (axes, order) = pyplot.subplots(1, 2, figsize=(11, 5))
    for family in FAMILIES:
        points = [(r["measured"], r["predicted"]) for r in table if r["family"] == family]
        axes.loglog(*zip(*points), ".", label=family, alpha=0.6)
    ends = [min(r["measured"] for r in table), max(r["measured"] for r in table)]
    half = quantile([abs(r["measured"] / r["predicted"] - 1) for r in table], predict.COVERAGE)
    axes.loglog(ends, ends, "k-", linewidth=0.8)
    axes.fill_between(ends, [e / (1 + half) for e in ends], [e / (1 - half) for e in ends], color="k", alpha=0.1, label=f"80 % band, ±{percent(half)}")
    axes.set_xlabel("measured step time, s")
    axes.set_ylabel("predicted step time, s")
    axes.legend()
    losses = sorted(100 * loss for loss in ranking([r for r in table if r["family"] == "vtrain-one-host"])["regrets"])
    order.step(range(1, len(losses) + 1), losses, where="mid")
    order.set_xlabel("groups of plans for one model, batch and number of GPUs (vTrain, one host), by regret")
    order.set_ylabel("predicted best plan slower than the real best, %")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def default_errors(orrery, sparse):
    """The command without --profile: the constants of all families, as they ship."""
    table = [r for i, r in enumerate(predict.rows()) if not sparse or r["family"] != "vtrain-one-host" or i % SPARSE == 0]
    table = [dict(r, predicted=s, measured=float(r["measured_step_s"])) for r, s in zip(table, predict.simulate(orrery, table))]
    print("| default command | rows | mean error | max | bias | bar |\n|---|---|---|---|---|---|")
    return all([error_line(f, [r for r in table if r["family"] == f], BARS[f]) for f in FAMILIES])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(predict.ROOT / "build/release/orrery"))
    parser.add_argument("--out", help="CSV of all rows")
    parser.add_argument("--plot", help="SVG")
    parser.add_argument("--default", action="store_true", help="errors of the command without --profile only, on a twelfth of vTrain's one-host rows")
    parser.add_argument("--family", choices=FAMILIES, help="errors of one family and of the layers only")
    options = parser.parse_args()
    families = (options.family,) if options.family else FAMILIES
    if options.default:
        return 0 if default_errors(options.orrery, sparse=True) else 1
    table = []
    for family in families:
        part = [r for r in predict.rows() if r["family"] == family]
        for name in sorted({predict.left_out(r) for r in part}):
            mine = [r for r in part if predict.left_out(r) == name]
            for row, seconds in zip(mine, predict.simulate(options.orrery, mine, predict.constants(name))):
                table.append(dict(row, predicted=seconds, measured=float(row["measured_step_s"])))
    fine = report(table, layer_rows(options.orrery, predict.constants("korthikanti")), families)
    if options.family:
        return 0 if fine else 1
    fine &= report_bands(options.orrery, table)
    print()
    fine &= default_errors(options.orrery, sparse=False)
    sweep(options.orrery, table, predict.constants("sc21"))
    if options.out:
        with open(options.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    if options.plot:
        plot(table, options.plot)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
