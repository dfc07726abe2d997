#!/usr/bin/env python3
"""Holds the surfaces that ship against the measured points that they were not fitted to.

    experiments/surfaces/held_out.py [FOLDER] [--sample N]

FOLDER holds gemm_bf16.csv and attention_forward_bf16.csv (columns: fit.py); default: data/compute
of the folder that ORRERY_SHARED names. The formulas are those of costmodel/compute/surface.h,
written a second time, without a library. Exit code 1 when a device's median error, or the median
or the 90th percentile of all points, is above its bar. --sample N prints every N-th point held back
instead, as tests/data/device_points.csv holds them (there N = 5).
"""
import argparse
import bisect
import csv
import json
import math
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PROFILES = HERE.parents[1] / "costmodel/profiles/devices"
PROFILE = {"A100-SXM4-80GB": "a100", "H100-SXM5-80GB": "h100", "H200-SXM5": "h200",
           "B200": "b200", "GB200": "gb200"}
TILES = ((256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 3))
SPLITS = (1, 2, 3, 4, 6, 8)
THROTTLE_SECONDS = 100e-6
TABLES = {"product": ("gemm_bf16.csv", ("m", "n", "k")),
          "attention": ("attention_forward_bf16.csv",
                        ("batch", "sequence", "heads", "kv_heads", "head_dim"))}
MEDIAN_BAR, NINETIETH_BAR, DEVICE_MEDIAN_BAR = 0.04, 0.12, 0.06


def correction(grid, size):
    """Trilinear in the logarithms, constant outside the grid."""
    corners = [(0, 1.0)]
    for value, axis in zip(size, ("m", "n", "k")):
        knots = [math.log(k) for k in grid[axis]]
        x = min(max(math.log(value), knots[0]), knots[-1])
        low = min(max(bisect.bisect_right(knots, x) - 1, 0), len(knots) - 2)
        high = (x - knots[low]) / (knots[low + 1] - knots[low])
        corners = [(index * len(knots) + low + step, weight * share)
                   for index, weight in corners for step, share in ((0, 1 - high), (1, high))]
    return math.exp(sum(weight * grid["ln"][index] for index, weight in corners))


def product_seconds(p, device, size):
    m, n, k = size
    rate = p["efficiency"] * device["peak"]
    best = math.inf
    for rows, columns, halvings in TILES:
        for split in SPLITS:
            tiles = math.ceil(m / rows) * math.ceil(n / columns) * split / p["units"]
            waves = p["quantisation"] * math.ceil(tiles) + (1 - p["quantisation"]) * max(tiles, 1)
            features = math.ceil(k / split) + p["prologue_features"]
            work = 2 * rows * columns * p["units"] * waves * features
            time = work / (rate * p["half_tile"]**halvings)
            if split > 1:
                time += p["split_traffic"] * 8 * split * m * n / device["bandwidth"]
            best = min(best, time)
    memory = 2 * (m * k + k * n + m * n) / (p["memory_efficiency"] * device["bandwidth"])
    load = (best**4 + memory**4) ** 0.25
    kernel = p["launch_seconds"] + load * (1 + load / THROTTLE_SECONDS) ** p["throttle"]
    return kernel * correction(p["correction"], size)


def attention_seconds(p, device, size):
    b, s, n, v, d = size
    rate = p["memory_efficiency"] * device["bandwidth"]
    traffic = 2 * b * s * d * (2 * n + 2 * p["key_weight"] * v) / rate
    return (p["launch_seconds"] + p["seconds_per_token"] * s + traffic
            + 2 * b * n * s * s * d / (p["efficiency"] * device["peak"]))


def read(path, device, columns):
    with open(path, newline="", encoding="utf-8") as file:
        return [(tuple(int(r[c]) for c in columns), float(r["latency_ms"]) / 1e3)
                for r in csv.DictReader(file) if r["device"] == device]


def held_back(points):
    """All but the tenth that fit.py fits to, spread evenly over the logarithms of the sizes."""
    logs = [[math.log2(v) for v in size] for size, _ in points]
    middle = [sum(column) / len(points) for column in zip(*logs)]
    distance = [-math.dist(p, middle)**2 for p in logs]
    taken = set()
    while len(taken) < len(points) // 10:
        farthest = max(range(len(points)), key=distance.__getitem__)
        nearer = [math.dist(p, logs[farthest])**2 for p in logs]
        distance = [min(a, b) for a, b in zip(distance, nearer)] if taken else nearer
        taken.add(farthest)
    return [p for i, p in enumerate(points) if i not in taken]


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--sample", type=int, metavar="N")
    options = parser.parse_args()
    folder = options.folder
    if folder is None:
        if "ORRERY_SHARED" not in os.environ:
            parser.error("name the folder of the measured tables, or set ORRERY_SHARED")
        folder = pathlib.Path(os.environ["ORRERY_SHARED"]) / "data/compute"
    devices = json.loads((HERE / "devices.json").read_text(encoding="utf-8"))
    everything, failed = [], False
    if options.sample:
        print("device,work,sizes,microseconds")
    for name, profile in PROFILE.items():
        text = (PROFILES / f"{profile}.json").read_text(encoding="utf-8")
        surface = json.loads(text)["surfaces"][0]
        for work, (table, columns) in TABLES.items():
            points = held_back(read(folder / table, name, columns))
            if options.sample:
                for size, seconds in points[options.sample // 2::options.sample]:
                    print(f"{profile},{work},{' '.join(map(str, size))},{seconds * 1e6:.5g}")
                continue
            if not points:
                continue  # attention was not measured on every device
            formula = product_seconds if work == "product" else attention_seconds
            errors = [abs(formula(surface[work], devices[name], size) / seconds - 1)
                      for size, seconds in points]
            median, ninetieth = quantile(errors, 0.5), quantile(errors, 0.9)
            failed |= median >= DEVICE_MEDIAN_BAR
            print(f"{name:<15} {work:<9} {len(errors):>5} points held back: median {median:.3f},"
                  f" 90th percentile {ninetieth:.3f}")
            everything += errors
    if not options.sample:
        median, ninetieth = quantile(everything, 0.5), quantile(everything, 0.9)
        print(f"all {len(everything)}: median {median:.4f}, 90th percentile {ninetieth:.4f}")
        failed |= median > MEDIAN_BAR or ninetieth > NINETIETH_BAR
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
