#!/usr/bin/env python3
"""Spatial-temporal partitions beside what PrimePar published (ASPLOS 2024), and where they still win today.

    experiments/primepar/run.py [--orrery build/release/orrery] [--plot ratios.svg]

Prints tables in Markdown; the plot needs matplotlib. See README.md.
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
MODELS = {name: str(HERE / "models" / f"{name}.json") for name in ("opt-6.7b", "opt-175b", "bloom-7b1", "bloom-176b")}
# The two constants that are taken from the paper's own timeline: what fp32 products run at, and what a device gets of its
# host's card in a collective over hosts, a quarter of 6.6 GB/s.
FLOPS = 14.8e12
QUARTER_OF_A_CARD = 1.65e9
PRIMEPAR = "mlp in=K,P2x2; activation=K,M,K; mlp out=N,P2x2+1"
DEVICES = (4, 8, 16, 32)


def profile(folder, quarter):
    """V100 at one rate of products; `quarter`: collectives over hosts at a quarter of the card a device."""
    extent = 4096
    seconds = 2 * extent**3 / FLOPS
    point = {"samples": 1, "seconds_median": seconds, "seconds_p10": seconds, "seconds_p90": seconds}
    shape = {"dtype": "fp32", "sequences": 1, "tokens": extent, "in": extent, "out": extent, "bias": False}
    document = {
        "schema": "orrery.profile/1", "name": "primepar-v100", "device": "V100-SXM2-32GB",
        "provenance": {"source": "Wang et al., PrimePar, ASPLOS 2024, Figure 9", "machine": "V100-SXM2-32GB", "software": "",
                       "date": "2024-04-27", "note": "one rate of fp32 products"},
        "operators": [point | {"phase": phase, "shape": shape | {"kind": kind}}
                      for kind in ("qkv", "projection", "mlp_in", "mlp_out") for phase in "FBG"],
        "composition_factor": 1.0, "composition_residual": 0.0, "context_bytes": 0, "launch_seconds": 5e-6, "layers": [],
        "collectives": [{"op": "all_reduce", "size": size, "stride": 1, "hosts": hosts, "latency_seconds": 1e-5,
                         "bus_bandwidth_bytes_per_second": QUARTER_OF_A_CARD}
                        for size in DEVICES + (2,) for hosts in (2, 4, 8) if hosts <= size] if quarter else [],
        "overlap_slowdown": 1.0, "overlaps": True}
    path = pathlib.Path(folder) / f"profile-{'quarter' if quarter else 'nccl'}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


class Orrery:
    def __init__(self, program):
        self.program = program

    def partition(self, *options):
        done = subprocess.run([self.program, "partition", "--json", *map(str, options)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(done.args)}\n{done.stderr}")
        return json.loads(done.stdout)

    def on_cluster(self, model, gpus, batch, prices, *options):
        return self.partition("--model", MODELS.get(model, model), "--cluster", HERE / "cluster.yaml", "--hosts", max(1, gpus // 4),
                              "--precision", "fp32", "--sequence-length", 2048, "--micro-batch", batch, "--profile", prices,
                              "--skew", *options)


def fastest(answers):
    return min(answers, key=lambda a: a["time_ps"])


def operator(answer, name):
    return next(o for o in answer["layers"][0]["operators"] if o["name"] == name)


def timeline(orrery, prices):
    """Figure 9, right: the MLP block of OPT-175B on two hosts, batch 8."""
    answer = orrery.on_cluster("opt-175b", 8, 8, prices, "--fix", PRIMEPAR)
    megatron = next(c for c in answer["conventional"] if c["data"] == 2 and not c["sequence_parallel"])
    rows = []
    published = {"megatron": {"forward": (167, 168), "backward": (162, 165), "gradient": (164, 166)},
                 "primepar": {"forward": (162, 164), "backward": (167, 168), "gradient": (168, 169)}}
    for who, plan in (("megatron", megatron), ("primepar", answer["best"])):
        first, second = operator(plan, "mlp in"), operator(plan, "mlp out")
        for phase, values in published[who].items():
            for name, op, value in (("fc1", first, values[0]), ("fc2", second, values[1])):
                p = op["phases"][phase]
                rows.append((who, f"{name} {phase}", value, (p["compute_ps"] + p["exposed_ps"]) / 1e9))
        reduce = [sum(o["phases"][p]["all_reduce_ps"] for o in (first, second)) / 1e9 for p in ("forward", "backward", "gradient")]
        if who == "megatron":
            rows += [(who, "all-reduces in hosts", 24 + 41, reduce[0] + reduce[1]),
                     (who, "all-reduces over hosts", 364 + 377, reduce[2])]
        else:
            rows += [(who, "all-reduces over hosts", 157 + 128, sum(reduce)),
                     (who, "redistribution", 19, (second["forward_layout_ps"] + second["backward_layout_ps"]) / 1e9)]
        of = [r for r in rows if r[0] == who]
        rows.append((who, "total", sum(r[2] for r in of), sum(r[3] for r in of)))
    print("| plan | part | published, ms | ours, ms | off |\n|---|---|---|---|---|")
    for who, part, value, ours in rows:
        print(f"| {who} | {part} | {value} | {ours:.1f} | {100 * (ours / value - 1):+.1f} % |")


def ranks(values):
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def spearman(a, b):
    x, y = ranks(a), ranks(b)
    mean = (len(x) - 1) / 2
    covariance = sum((p - mean) * (q - mean) for p, q in zip(x, y))
    return covariance / (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5


def ratios(orrery, cells, batch_of, prices, least_tensor):
    """(published, ours, published memory, ours) of each cell, over Megatron-LM of so many tensor ranks at least."""
    result = []
    for cell in cells:
        answer = orrery.on_cluster(cell["model"], int(cell["gpus"]), batch_of(cell), prices, "--layers", 2)
        best, megatron = answer["best"], fastest([c for c in answer["conventional"]
                                                     if c["tensor"] >= least_tensor and not c["sequence_parallel"]])
        result.append((float(cell["megatron_over_primepar"]), megatron["time_ps"] / best["time_ps"],
                       float(cell["memory_ratio"] or "nan"), best["memory_bytes"] / megatron["memory_bytes"]))
    return result


def error(pairs):
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def cell_table(orrery, cells, variants, plot):
    columns = {name: ratios(orrery, cells, *how) for name, *how in variants}
    print("| model | GPUs | batch | published |" + "".join(f" {name} |" for name in columns))
    print("|---|---|---|---|" + "---|" * len(columns))
    for i, cell in enumerate(cells):
        print(f"| {cell['model']} | {cell['gpus']} | {cell['batch'] or 'not stated'} | {cell['megatron_over_primepar']} |" +
              "".join(f" {column[i][1]:.2f} |" for column in columns.values()))
    print("| mean error of the ratio | | | |" + "".join(f" {error([r[:2] for r in c]):.3f} |" for c in columns.values()))
    print("| Spearman | | | |" + "".join(f" {spearman(*zip(*[r[:2] for r in c])):.2f} |" for c in columns.values()))
    if cells[0]["memory_ratio"]:
        print("| mean error of the memory ratio | | | |" + "".join(f" {error([r[2:] for r in c]):.2f} |" for c in columns.values()))
        print("| Spearman of it | | | |" + "".join(f" {spearman(*zip(*[r[2:] for r in c])):.2f} |" for c in columns.values()))
    if plot:
        draw(cells, columns, plot)


def explained(orrery, cells, prices):
    """The setting, of those that the paper leaves open, that comes nearest to each cell."""
    print("| model | GPUs | published | nearest | batch | collectives over hosts | Megatron-LM's tensor degree at least | memory: published | then |")
    print("|---|---|---|---|---|---|---|---|---|")
    near = 0
    for cell in cells:
        tried = []
        for batch, (name, profile_path) in itertools.product((4, 8, 16, 32), prices.items()):
            answer = orrery.on_cluster(cell["model"], int(cell["gpus"]), batch, profile_path, "--layers", 2)
            for least in (1, 4, 8):
                some = [c for c in answer["conventional"] if c["tensor"] >= least and not c["sequence_parallel"]]
                if some:
                    megatron, best = fastest(some), answer["best"]
                    ratio = megatron["time_ps"] / best["time_ps"]
                    tried.append((abs(ratio - float(cell["megatron_over_primepar"])), least, batch, name, ratio,
                                  best["memory_bytes"] / megatron["memory_bytes"]))
        off, least, batch, name, ratio, memory = min(tried)
        near += off <= 0.05
        print(f"| {cell['model']} | {cell['gpus']} | {cell['megatron_over_primepar']} | {ratio:.2f} | {batch} | "
              f"{name if int(cell['gpus']) > 4 else 'none'} | {least} | {cell['memory_ratio']} | {memory:.2f} |")
    print(f"| within 0.05 | | | {near} of {len(cells)} | | | | | |")


def draw(cells, columns, path):
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "orrery"
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    figure, axes = pyplot.subplots(figsize=(5, 5))
    for name, column in columns.items():
        axes.plot([r[0] for r in column], [r[1] for r in column], ".", label=name)
    axes.plot([1, 2], [1, 2], "k--", linewidth=0.8)
    axes.set_xlabel("published throughput over the best Megatron-LM")
    axes.set_ylabel("ours")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def today(orrery):
    """What primitives add to splits alone, sequence splits included, with NCCL's collectives; attention is one kernel on all sides."""
    print("| cluster | GPUs | model | Megatron-LM, ms | with sequence parallelism | splits alone | with P | P over splits | mlp in; mlp out |")
    print("|---|---|---|---|---|---|---|---|---|")
    for cluster, precision, places in (("dgx-1-v100", "fp32", ((8, 1), (16, 2), (32, 4))), ("dgx-a100", "bf16", ((8, 1), (16, 2), (32, 4))),
                                       ("dgx-h100", "bf16", ((8, 1), (16, 2), (32, 4))), ("gb200-nvl72", "bf16", ((8, 1), (16, 1), (32, 1)))):
        for gpus, hosts in places:
            for model in ("llama-2-7b", "llama-2-70b"):
                common = ("--model", model, "--cluster", cluster, "--hosts", hosts, "--devices", gpus, "--precision", precision,
                          "--sequence-length", 4096, "--micro-batch", 4, "--layers", 4, "--skew", "--fused-attention")
                best, splits = orrery.partition(*common), orrery.partition(*common, "--no-primitives")
                whole, split = ([c["time_ps"] for c in best["conventional"] if c["sequence_parallel"] == sp] for sp in (False, True))
                ms = [a / 1e9 / 4 for a in (min(whole), min(whole + split), splits["best"]["time_ps"], best["best"]["time_ps"])]
                print(f"| {cluster} | {gpus} | {model} |" + "".join(f" {t:.2f} |" for t in ms) + f" {100 * (ms[2] / ms[3] - 1):+.1f} % | "
                      f"{operator(best['best'], 'mlp in')['sequence']}; {operator(best['best'], 'mlp out')['sequence']} |")


def search_times(orrery, prices):
    print("| devices | OPT-6.7B, ms | Llama-2-7B | BLOOM-7B1 | published (OPT) |\n|---|---|---|---|---|")
    for devices, published in ((4, 85), (8, 87), (16, 171), (32, 5357), (64, None)):
        times = [min(orrery.partition("--model", MODELS.get(m, m), "--cluster", HERE / "cluster.yaml", "--hosts", 16, "--devices", devices,
                                      "--precision", "fp32", "--sequence-length", 2048, "--micro-batch", 8, "--profile", prices,
                                      "--timing")["seconds"] for _ in range(3)) for m in ("opt-6.7b", "llama-2-7b", "bloom-7b1")]
        print(f"| {devices} |" + "".join(f" {1e3 * t:.1f} |" for t in times) + f" {published or ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"))
    parser.add_argument("--plot", help="SVG")
    given = parser.parse_args()
    orrery = Orrery(given.orrery)
    with open(HERE / "published.csv", newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    with tempfile.TemporaryDirectory() as folder:
        quarter, nccl = profile(folder, True), profile(folder, False)
        print("\n### Timeline\n")
        timeline(orrery, nccl)
        print("\n### Figure 9\n")
        of_cell = lambda cell: int(cell["batch"])  # noqa: E731
        cell_table(orrery, [c for c in cells if c["figure"] == "9"],
                   [("a quarter of the card each", of_cell, quarter, 1), ("NCCL", of_cell, nccl, 1)], None)
        print("\n### Figures 7 and 8\n")
        by_size = lambda cell: 16 if int(cell["gpus"]) == 32 else 8  # noqa: E731
        cell_table(orrery, [c for c in cells if c["figure"] != "9"],
                   [("batch 8", lambda c: 8, quarter, 1), ("batch 16", lambda c: 16, quarter, 1), ("batch 16 on 32", by_size, quarter, 1),
                    ("the same, tensor 4 at least", by_size, quarter, 4), ("batch 8, NCCL", lambda c: 8, nccl, 1)], given.plot)
        print("\n### What would explain a cell of Figures 7 and 8\n")
        explained(orrery, [c for c in cells if c["figure"] != "9"], {"a quarter of the card each": quarter, "NCCL": nccl})
        print("\n### Search\n")
        search_times(orrery, nccl)
    print("\n### Today\n")
    today(orrery)


if __name__ == "__main__":
    main()
