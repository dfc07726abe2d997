#!/usr/bin/env python3
"""Fits costmodel/tunings/<machine>-measured.json to measured/one_host.csv: 2 and 8 GPUs only (GB200 and GB300 have 2 and 4: 2 only).

Formulas are those of costmodel/collectives/collective_forms.h for one host; which of them holds for a row, the algorithm and protocol that NCCL takes, `orrery collective` says. Free are at most 17 numbers a machine: rate of a link, of the copy and of the switch's
reduction; base and hop latency of each protocol; limits of LL and LL128; base, shares and copy of direct exchange. Each starts at NCCL's published
constant and is pulled there (in logarithms), so that what the data does not show stays published. Levenberg-Marquardt on log(model / measured),
large residuals damped. Usage: calibrate.py [PROGRAM] (needs numpy)
"""
import concurrent.futures
import copy
import csv
import json
import math
import pathlib
import subprocess
import sys

import numpy as np

from run import ONE_HOST, cluster_argument

HERE = pathlib.Path(__file__).resolve().parent
TUNINGS = HERE.parent.parent / "costmodel" / "tunings"
MACHINES = {  # architecture, datasheet GB/s of a device's links, ranks to fit on
    "a100": ("ampere", "A100", 300, (2, 8)), "h100": ("hopper", "H100", 450, (2, 8)), "h200": ("hopper", "H200", 450, (2, 8)),
    "b200": ("blackwell", "B200", 900, (2, 8)), "gb200": ("blackwell", "GB200", 900, (2,)),
    "b300": ("blackwell", "B300", 900, (2, 8)), "gb300": ("blackwell", "GB300", 900, (2,))}
STEPS = {"all_reduce": lambda n: 2 * (n - 1), "all_gather": lambda n: n - 1, "reduce_scatter": lambda n: n - 1}
# Two GB200 or GB300 do not use the switch's reduction; the same chip and NVLink on 8 B200 or B300 do.
NVLS_FROM = {"gb200": "b200", "gb300": "b300"}
SMALLEST_BYTES = 1024
# How firmly a number stays at its published value (weight of its logarithm): a link's rate is well known, LL128's hops are seldom seen alone.
PULL = {"link": 4.0, ("hop", 1): 0.3}


def number(text):
    return float(text.split()[0])


def unpack(tuning):
    """The record in us, GB/s and shares."""
    ring, tree, direct = tuning["ring"], tuning["tree"], tuning["direct"]
    p = {"link": tuning["link_efficiency"]["nvlink"], "copy": number(tuning["local_copy"]), "direct_copy": number(direct["local_copy"])}
    for i in range(3):
        p["base", i], p["hop", i], p["share", i] = number(ring["base"][i]), number(ring["device_hop"][i]), ring["rate"][i]
        p["direct_base", i], p["direct_share", i] = number(direct["base"][i]), direct["rate"][i]
        p["tree_base", i], p["tree_hop", i], p["tree_share", i] = number(tree["base"][i]), number(tree["device_hop"][i]), tree["rate"][i]
    channels, simple = tuning["channels"], number(tree["channel_limit"][0]) * tuning["channels"]
    p["limit", 0], p["limit", 1], p["limit", 2] = number(ring["ll_limit"][0]), number(ring["ll128_channel_limit"]) * channels, math.inf
    p["tree_limit", 0], p["tree_limit", 1], p["tree_limit", 2] = p["limit", 0], number(tree["ll128_channel_limit"][0]) * channels, simple
    if "nvls" in tuning:
        p["nvls"], p["nvls_latency"] = tuning["nvls"]["efficiency"], number(tuning["nvls"]["latency"])
    return p


def nvls_us(p, nvls, rate, n, size):
    chunk = nvls["chunk_bytes"]
    heads = min(n, nvls["max_heads"])
    parallel = nvls["channels"] * heads
    for fill, largest in ((64, 65536), (8, 32768), (2, 16384)):
        if size < fill * parallel * chunk:
            chunk = min(chunk, largest)
    repeats = max(1, math.ceil(size / (chunk * parallel)))
    unit = size / repeats / heads / p["nvls"] / rate
    return p["nvls_latency"] + (2 * unit * heads + (repeats + 1) * unit * (heads + 1)) / 1e3


def tree_us(p, tuning, rate, n, size, i):
    row = tuning["tree"]["correction"][i]
    index = max(0, int(math.log2(max(1, int(size) >> 6))))
    correction = row[index] if index < len(row) else 1
    part, depth = size / n, n - 1
    repeats = max(1, math.ceil(part / 524288), min((8 if i == 2 else 64) * depth, math.ceil(part / (1024 if i == 2 else 128))))
    flow = min(p["tree_share", i] * rate / (2 * (n - 1)), p["tree_limit", i] / (2 * n))
    d = part / repeats / correction / flow / 1e3
    return p["tree_base", i] + 2 * depth * p["tree_hop", i] + repeats * d + (2 * depth - 1) * d / 2


def time_us(p, tuning, datasheet, operation, n, size, choice):
    rate = datasheet * p["link"]
    if operation == "all_to_all":
        return min(p["direct_base", i] + size * (n - 1) / n / p["direct_share", i] / rate / 1e3 + size / n / p["direct_copy"] / 1e3 for i in (0, 2))
    algorithm, i = choice
    if algorithm == "nvls":
        return nvls_us(p, tuning["nvls"], rate, n, size)
    if algorithm == "tree":
        return tree_us(p, tuning, rate, n, size, i)
    steps = STEPS[operation](n)
    bus = min(p["share", i] * rate, p["limit", i])
    return p["base", i] + steps * (p["hop", i] + size / n / bus / 1e3) + (size / n / p["copy"] / 1e3 if i == 2 else 0)


def ratio_to_published(p, start, i):
    """A tree's hops are made of the same messages as a ring's: what a protocol costs there, it does here."""
    p["tree_base", i] = start["tree_base", i] * p["base", i] / start["base", i]
    p["tree_hop", i] = start["tree_hop", i] * p["hop", i] / start["hop", i]
    if i < 2:
        p["tree_limit", i] = min(start["tree_limit", i], p["limit", i])


def fit(tuning, datasheet, rows):
    start = unpack(tuning)
    published = dict(start)
    for i in range(2):  # a limit beyond what the links carry says nothing here: from where it begins to
        start["limit", i] = min(start["limit", i], 0.98 * start["share", i] * datasheet * start["link"])
    free = ["link", "copy", "direct_copy"] + [(k, i) for k in ("base", "hop") for i in range(3)] + [("limit", 0), ("limit", 1)]
    free += [("direct_base", 0), ("direct_base", 2), ("direct_share", 0), ("direct_share", 2)]
    if any(choice[0] == "nvls" for *_, choice in rows):
        free += ["nvls", "nvls_latency"]
    pull = np.array([PULL.get(k, 0.15) for k in free])

    def values(x):
        p = dict(start)
        for k, v in zip(free, x):
            p[k] = start[k] * math.exp(v)
            if isinstance(k, tuple) and "share" in k[0] or k in ("link", "nvls"):
                p[k] = min(p[k], 1.0)
        for i in range(3):
            ratio_to_published(p, published, i)
        return p

    def residuals(x):
        p = values(x)
        r = np.array([math.log(time_us(p, tuning, datasheet, op, n, size, choice) / t) * (1.5 if size >= 2**26 else 1 if size >= 2**20 else 0.4)
                      for op, n, size, t, choice in rows])
        damped = np.sign(r) * 0.1 * np.sqrt(2 * (np.sqrt(1 + (r / 0.1) ** 2) - 1))
        return np.concatenate([damped, pull * x])

    best = None
    random = np.random.default_rng(1)
    for attempt in range(5):
        x, damping = random.normal(0, 0.0 if attempt == 0 else 0.25, len(free)), 1.0
        r = residuals(x)
        for _ in range(60):
            jacobian = np.array([(residuals(x + 1e-4 * e) - r) / 1e-4 for e in np.eye(len(x))]).T
            step = np.linalg.solve(jacobian.T @ jacobian + damping * np.eye(len(x)) * 0.01, -jacobian.T @ r)
            trial = residuals(x + step)
            if trial @ trial < r @ r:
                done = (r @ r - trial @ trial) < 1e-7 * (r @ r)
                x, r, damping = x + step, trial, damping / 3
                if done:
                    break
            else:
                damping *= 4
                if damping > 1e8:
                    break
        if best is None or r @ r < best[0]:
            best = (r @ r, x)
    return values(best[1])


def record(machine, tuning, device, p, ranks):
    t = copy.deepcopy(tuning)
    us, rate = (lambda v: f"{v:.4g} us"), (lambda v: f"{v:.4g} GB/s")
    t["name"] = f"{machine}-measured"
    t["devices"] = [device]
    t["chosen_by"] = tuning["name"]
    t["description"] = f"NCCL on {device}: calibrated on {' and '.join(map(str, ranks))} GPUs of one host"
    t["source"] = ("experiments/collectives/calibrate.py on experiments/collectives/measured/one_host.csv (aiconfigurator data files, Apache-2.0); network and trees' limits: "
                   + tuning["source"])
    t["link_efficiency"]["nvlink"] = round(p["link"], 4)
    t["local_copy"] = rate(p["copy"])
    for name, prefix in (("ring", ""), ("tree", "tree_")):
        t[name]["base"] = [us(p[prefix + "base", i]) for i in range(3)]
        t[name]["device_hop"] = [us(p[prefix + "hop", i]) for i in range(3)]
    t["ring"]["ll_limit"][0] = rate(p["limit", 0])
    t["ring"]["ll128_channel_limit"] = rate(p["limit", 1] / t["channels"])
    t["tree"]["ll128_channel_limit"] = [rate(min(number(limit), p["limit", 1] / t["channels"])) for limit in tuning["tree"]["ll128_channel_limit"]]
    t["direct"] = {"base": [us(p["direct_base", i]) for i in range(3)], "rate": [round(p["direct_share", i], 4) for i in range(3)], "local_copy": rate(p["direct_copy"])}
    if "nvls" in t:
        t["nvls"].pop("tree_channel_limit")
        t["nvls"]["efficiency"], t["nvls"]["latency"] = round(p["nvls"], 4), us(p["nvls_latency"])
    return t


def with_choices(program, machine, rows):
    """Each row with the (algorithm, protocol) that NCCL takes for it."""
    protocols = {"LL": 0, "LL128": 1, "Simple": 2}

    def ask(question):
        operation, n, size = question
        done = subprocess.run([program, "collective", "--cluster", cluster_argument(ONE_HOST[machine]), "--op", operation, "--bytes", f"{size}B", "--ranks", str(n), "--json"],
                              capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        return answer["algorithm"], protocols[answer["protocol"]]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        questions = list(dict.fromkeys(row[:3] for row in rows))
        answers = dict(zip(questions, pool.map(ask, questions)))
    return [(*row, answers[row[:3]]) for row in rows]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(HERE.parent.parent / "build/release/orrery")
    with open(HERE / "measured" / "one_host.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    records = {}
    for machine, (architecture, device, datasheet, ranks) in MACHINES.items():
        tuning = json.loads((TUNINGS / f"{architecture}.json").read_text(encoding="utf-8"))
        rows = [(r["operation"], int(r["ranks"]), int(r["bytes"]), float(r["time_us"])) for r in table
                if r["machine"] == machine and int(r["ranks"]) in ranks and int(r["bytes"]) >= SMALLEST_BYTES]
        rows = with_choices(program, machine, rows)
        p = fit(tuning, datasheet, rows)
        errors = [abs(time_us(p, tuning, datasheet, op, n, size, choice) / t - 1) for op, n, size, t, choice in rows]
        target = TUNINGS / f"{machine}-measured.json"
        new = record(machine, tuning, device, p, ranks)
        records[machine] = new
        if machine in NVLS_FROM:
            new["nvls"] = records[NVLS_FROM[machine]]["nvls"]
            new["description"] += f"; reduction in the switch as on {MACHINES[NVLS_FROM[machine]][1]}"
        target.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{target.name}: {len(rows)} rows, mean error of the fit {100 * sum(errors) / len(errors):.1f} %")


if __name__ == "__main__":
    main()
