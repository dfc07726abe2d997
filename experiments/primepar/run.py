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
# The two constants that are taken from the paper's own timeline: what fp32 products run at (operations a second), and what a
# device gets of its host's card in a collective over hosts, a quarter of 6.6 GB/s.
FP32 = ("fp32", 14.8e12)
QUARTER_OF_A_CARD = 1.65e9
# What Figures 7 and 8 may have had instead: half precision on tensor cores, at half of their peak of 125 TFLOP/s (bf16 has fp16's
# sizes), and a third of the card.
HALF = ("bf16", 62.5e12)
A_THIRD_OF_A_CARD = 2.2e9
STATE_BYTES = {"fp32": 16, "bf16": 18}  # of a parameter: its value, its gradient, and Adam's states in fp32
# What a device gets in collectives over more than two hosts, if OPT-175B on 16 GPUs in Figure 9 (left) is to take its time.
OVER_MORE_HOSTS = 1.18e9
PRIMEPAR = "mlp in=K,P2x2; activation=K,M,K; mlp out=N,P2x2+1"
DEVICES = (4, 8, 16, 32)
HIDDEN = {"opt-6.7b": 4096, "opt-175b": 12288, "llama-2-7b": 4096, "llama-2-70b": 8192, "bloom-7b1": 4096, "bloom-176b": 14336}


def profile(folder, name, rates, products=FP32):
    """V100 at one rate of products; `rates`: bytes a second of a device in collectives over so many hosts, else NCCL's."""
    extent = 4096
    dtype, flops = products
    seconds = 2 * extent**3 / flops
    point = {"samples": 1, "seconds_median": seconds, "seconds_p10": seconds, "seconds_p90": seconds}
    shape = {"dtype": dtype, "sequences": 1, "tokens": extent, "in": extent, "out": extent, "bias": False}
    document = {
        "schema": "orrery.profile/1", "name": "primepar-v100", "device": "V100-SXM2-32GB",
        "provenance": {"source": "Wang et al., PrimePar, ASPLOS 2024, Figure 9", "machine": "V100-SXM2-32GB", "software": "",
                       "date": "2024-04-27", "note": f"one rate of {dtype} products"},
        "operators": [point | {"phase": phase, "shape": shape | {"kind": kind}}
                      for kind in ("qkv", "projection", "mlp_in", "mlp_out") for phase in "FBG"],
        "composition_factor": 1.0, "composition_residual": 0.0, "context_bytes": 0, "launch_seconds": 5e-6, "layers": [],
        "collectives": [{"op": "all_reduce", "size": size, "stride": 1, "hosts": hosts, "latency_seconds": 1e-5,
                         "bus_bandwidth_bytes_per_second": rate}
                        for size in DEVICES + (2,) for hosts, rate in rates.items() if hosts <= size],
        "overlap_slowdown": 1.0, "overlaps": True}
    path = pathlib.Path(folder) / f"profile-{name}-{dtype}.json"
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

    def on_cluster(self, model, gpus, batch, prices, *options, precision="fp32"):
        return self.partition("--model", MODELS.get(model, model), "--cluster", HERE / "cluster.yaml", "--hosts", max(1, gpus // 4),
                              "--precision", precision, "--sequence-length", 2048, "--micro-batch", batch, "--profile", prices,
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


def memory(plan, scores=1, state_bytes=16, counted=STATE_BYTES["fp32"]):
    """A device's bytes, if so many tensors of the scores' size are kept and so many bytes a parameter, `counted` of the plan's."""
    operators = [(layer["count"], o) for layer in plan["layers"] for o in layer["operators"]]
    states = sum(count * o["state_bytes"] for count, o in operators)
    softmax = sum(count * o["stash_bytes"] for count, o in operators if o["name"] == "softmax")
    return plan["memory_bytes"] + states * (state_bytes / counted - 1) + softmax * (scores - 1)


def filled(cell):
    """A batch in proportion to GPUs and 1 / hidden size, rounded down to a quarter of a sequence per GPU."""
    return int(cell["gpus"]) * (4 * 12288 // HIDDEN[cell["model"]]) // 4


def ratios(orrery, cells, batch_of, prices, least_tensor, scores=1):
    """(published, ours, published memory, ours) of each cell, over Megatron-LM of so many tensor ranks at least."""
    result = []
    for cell in cells:
        answer = orrery.on_cluster(cell["model"], int(cell["gpus"]), batch_of(cell), prices, "--layers", 2)
        best, megatron = answer["best"], fastest([c for c in answer["conventional"]
                                                     if c["tensor"] >= least_tensor and not c["sequence_parallel"]])
        result.append((float(cell["megatron_over_primepar"]), megatron["time_ps"] / best["time_ps"],
                       float(cell["memory_ratio"] or "nan"), memory(best, scores) / memory(megatron, scores)))
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
        memory_table(cells, columns)
    if plot:
        draw(columns, plot)


def memory_table(cells, columns):
    print("\nPeak memory over Megatron-LM's:\n")
    print("| model | GPUs | published |" + "".join(f" {name} |" for name in columns))
    print("|---|---|---|" + "---|" * len(columns))
    for i, cell in enumerate(cells):
        print(f"| {cell['model']} | {cell['gpus']} | {cell['memory_ratio']} |" +
              "".join(f" {column[i][3]:.2f} |" for column in columns.values()))


def explained(orrery, cells, prices):
    """The setting, of those that the paper leaves open, that comes nearest to each cell's two ratios at once."""
    print("| model | GPUs | published | then | memory: published | then | batch | products | collectives over hosts | "
          "Megatron-LM's tensor degree at least | tensors of scores kept | bytes a parameter | explained |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    counts = [0, 0, 0]
    for cell in cells:
        speed, kept, gpus = float(cell["megatron_over_primepar"]), float(cell["memory_ratio"]), int(cell["gpus"])
        tried = []
        of_cell = {key: path for key, path in prices.items() if gpus > 4 or key[1] == "NCCL"}
        for batch, ((precision, name), profile_path) in itertools.product(sorted({4, 8, 12, 16, 24, 32, filled(cell)}), of_cell.items()):
            answer = orrery.on_cluster(cell["model"], gpus, batch, profile_path, "--layers", 2, precision=precision)
            for least, scores, state_bytes in itertools.product((1, 4, 8), (1, 2, 4, 7), (4, 8, 16)):
                some = [c for c in answer["conventional"] if c["tensor"] >= least and not c["sequence_parallel"]]
                if some:
                    megatron, best = fastest(some), answer["best"]
                    ratio = megatron["time_ps"] / best["time_ps"]
                    of = (scores, state_bytes, STATE_BYTES[precision])
                    share = memory(best, *of) / memory(megatron, *of)
                    tried.append((max(abs(ratio - speed), abs(share - kept)), precision != "fp32", least, batch, name, scores, state_bytes,
                                  ratio, share))
        near = [t for t in tried if t[0] <= 0.05]  # products as in the timeline before others
        off, half, least, batch, name, scores, state_bytes, ratio, share = min(near, key=lambda t: (t[1], t[0])) if near else min(tried)
        within = [min(abs(t[-2] - speed) for t in tried) <= 0.05, min(abs(t[-1] - kept) for t in tried) <= 0.05, off <= 0.05]
        counts = [n + w for n, w in zip(counts, within)]
        why = "both" if off <= 0.05 else "memory, not speed" if abs(share - kept) <= 0.05 else "none of these"
        print(f"| {cell['model']} | {cell['gpus']} | {speed} | {ratio:.2f} | {kept} | {share:.2f} | {batch} | "
              f"{'half precision' if half else 'fp32'} | {name if gpus > 4 else 'none'} | {least} | {scores} | {state_bytes} | {why} |")
    print(f"\nWithin 0.05 by some setting: the speed-up of {counts[0]} of {len(cells)}, the memory ratio of {counts[1]}, "
          f"both by one setting {counts[2]}.")


def pipelines(orrery, cells, prices, batch=16, micro_batch=4):
    """Figure 10: (p, d, m) on 32 GPUs, m of them to a replica of a stage; samples a second of `batch` sequences a step, beside those of
    the Megatron-LM that the figure is relative to: p / ((micro-batches + p - 1) t(m) + reduction over d by a quarter of the card)."""
    speeds, of_model = {}, {model: [c for c in cells if c["model"] == model] for model in dict.fromkeys(c["model"] for c in cells)}
    name = lambda c: f"{c['pipeline']}, {c['data']}, {c['tensor']}"  # noqa: E731
    for model, tensor in itertools.product(of_model, (4, 8, 16)):
        answer = orrery.on_cluster(model, tensor, micro_batch, prices, "--layers", 2)
        plans = [("primepar", answer["best"])]
        plans += [("megatron", c) for c in answer["conventional"] if c["tensor"] == tensor and not c["sequence_parallel"]]
        for c, (who, plan) in itertools.product([c for c in of_model[model] if int(c["tensor"]) == tensor], plans):
            p, d = int(c["pipeline"]), int(c["data"])
            gradients = sum(layer["count"] * o["state_bytes"] for layer in plan["layers"] for o in layer["operators"]) / 4
            reduce_ps = 1e12 * 2 * (d - 1) / d * gradients / QUARTER_OF_A_CARD
            speeds[model, name(c), who] = p / ((batch / d / micro_batch + p - 1) * plan["time_ps"] + reduce_ps)
    print("| model | p, d, m | Megatron-LM, published | ours | PrimePar, published | ours |\n|---|---|---|---|---|---|")
    pairs, best = [], []
    for model, of in of_model.items():
        base = next(speeds[model, name(c), "megatron"] for c in of if c["megatron"] == "1.0")
        for c in of:
            ours = {who: speeds.get((model, name(c), who), 0) / base for who in ("megatron", "primepar")}
            pairs += [(float(c[who]), ours[who]) for who in ours if c[who] and ours[who]]
            print(f"| {model} | {name(c)} |" + "".join(f" {c[who] or '-'} | {f'{ours[who]:.2f}' if ours[who] else '-'} |" for who in ours))
        ends = [max((float(c[who] or 0), name(c)) for c in of) + max((speeds.get((model, name(c), who), 0), name(c)) for c in of)
                for who in ("megatron", "primepar")]
        best.append(f"| {model} | {ends[1][0] / ends[0][0]:.2f} | {ends[0][1]} | {ends[1][1]} | {ends[1][2] / ends[0][2]:.2f} | "
                    f"{ends[0][3]} | {ends[1][3]} |")
    print(f"| mean error | | | | | {error(pairs):.2f} |\n| Spearman | | | | | {spearman(*zip(*pairs)):.2f} |")
    print("\n| best against best | published | Megatron-LM's p, d, m | PrimePar's | ours | Megatron-LM's | PrimePar's |\n"
          "|---|---|---|---|---|---|---|", *best, sep="\n")


def draw(columns, path):
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "orrery"
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    figure, both = pyplot.subplots(1, 2, figsize=(10, 5))
    for axes, first, ends, what in zip(both, (0, 2), ([1, 2], [0.4, 1]), ("throughput", "peak memory")):
        for name in ("batch 8", "batch 16 on 32, tensor 4 at least", "batch by memory, less over more hosts"):
            axes.plot([r[first] for r in columns[name]], [r[first + 1] for r in columns[name]], ".", label=name)
        axes.plot(ends, ends, "k--", linewidth=0.8)
        axes.set_xlabel(f"published {what} over the best Megatron-LM's")
        axes.set_ylabel("ours")
    both[1].legend()
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
        of_hosts = {"a quarter of the card each": ("quarter", dict.fromkeys((2, 4, 8), QUARTER_OF_A_CARD)),
                    "less over more hosts": ("slower", {2: QUARTER_OF_A_CARD, 4: OVER_MORE_HOSTS, 8: OVER_MORE_HOSTS}),
                    "NCCL": ("nccl", {})}
        quarter, slower, nccl = (profile(folder, *how) for how in of_hosts.values())
        of_hosts["a third of the card each"] = ("third", dict.fromkeys((2, 4, 8), A_THIRD_OF_A_CARD))
        print("\n### Timeline\n")
        timeline(orrery, nccl)
        print("\n### Figure 9\n")
        of_cell = lambda cell: int(cell["batch"])  # noqa: E731
        cell_table(orrery, [c for c in cells if c["figure"] == "9"],
                   [("a quarter of the card each", of_cell, quarter, 1), ("less over more hosts", of_cell, slower, 1),
                    ("NCCL", of_cell, nccl, 1)], None)
        print("\n### Figures 7 and 8\n")
        by_size = lambda cell: 16 if int(cell["gpus"]) == 32 else 8  # noqa: E731
        cell_table(orrery, [c for c in cells if c["figure"] != "9"],
                   [("batch 8", lambda c: 8, quarter, 1), ("batch 16", lambda c: 16, quarter, 1), ("batch 16 on 32", by_size, quarter, 1),
                    ("batch 16 on 32, tensor 4 at least", by_size, quarter, 4), ("batch 8, NCCL", lambda c: 8, nccl, 1),
                    ("batch 8, 7 tensors of scores", lambda c: 8, quarter, 1, 7), ("batch by memory, 7 tensors", filled, quarter, 1, 7),
                    ("batch by memory, less over more hosts", filled, slower, 1, 7), ("the same, tensor 4 at least", filled, slower, 4, 7)],
                   given.plot)
        print("\n### What would explain a cell of Figures 7 and 8\n")
        explained(orrery, [c for c in cells if c["figure"] != "9"],
                  {(products[0], name): profile(folder, file, rates, products)
                   for products in (FP32, HALF) for name, (file, rates) in of_hosts.items()})
        print("\n### Figure 10, with pipelines on 32 GPUs\n")
        with open(HERE / "published_pipelines.csv", newline="", encoding="utf-8") as file:
            pipelines(orrery, list(csv.DictReader(file)), nccl)
        print("\n### Search\n")
        search_times(orrery, nccl)
    print("\n### Today\n")
    today(orrery)


if __name__ == "__main__":
    main()
