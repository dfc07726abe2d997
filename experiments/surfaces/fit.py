#!/usr/bin/env python3
"""Fits a device's surface (costmodel/compute/surface.h) to a tenth of its measured points, holds it against the rest, and prints the entry of a profile.

    experiments/surfaces/fit.py GEMM.csv ATTENTION.csv [--device NAME]
    experiments/surfaces/fit.py --formats LOW_PRECISION.csv [--device NAME]

GEMM.csv: device,m,n,k,latency_ms; ATTENTION.csv: device,batch,sequence,heads,kv_heads,head_dim,latency_ms (bf16, causal forward); LOW_PRECISION.csv:
GEMM.csv with a column dtype, of products whose operands are quantised already. devices.json has the datasheet's numbers that the fractions refer to.
Needs numpy and scipy.

The tenth is spread evenly: starting at the middle, always the point farthest from those taken, in logarithms of the sizes. A point that took over 1.2
times as long as one at least as large in every size is contaminated: not fitted to, but held against like any other.
"""
import argparse
import csv
import itertools
import json
import pathlib

import numpy
from scipy.optimize import least_squares

HERE = pathlib.Path(__file__).resolve().parent
TILES = ((256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 3))
SPLITS = (1, 2, 3, 4, 6, 8)
KNOTS = {"m": (256, 1024, 2896, 8192), "n": (256, 1024, 2896, 8192, 65536), "k": (256, 1448, 8192, 65536)}
RIDGE = 0.5             # of the correction, in units of squared logarithms
THROTTLE_SECONDS = 100e-6
CONTAMINATED = 1.2
# of the table: number formats of ours, whose peak, bytes of an operand's element with its scales
FORMATS = {"fp8": (["fp8-delayed", "fp8-current"], "peak_fp8", 1), "fp8_block": (["fp8-block", "mxfp8"], "peak_fp8", 33 / 32),
           "nvfp4": (["nvfp4"], "peak_fp4", 9 / 16)}


def share(x):
    """Real numbers to (0, 1)."""
    return 1 / (1 + numpy.exp(-x))


def product_seconds(p, size, device):
    """The formula of costmodel/compute/surface.h without its correction. p: logarithms of launch, efficiency, prologue; memory efficiency, half tile and
    quantisation through share(); logarithm of the split's traffic; root of the throttle."""
    m, n, k = size.T
    peak, bandwidth, units = device["peak"], device["bandwidth"], device["units"]
    rate, half, wait = numpy.exp(p[1]) * peak, share(p[4]), share(p[5])
    best = numpy.full(len(m), numpy.inf)
    for (rows, columns, halvings), split in itertools.product(TILES, SPLITS):
        each = numpy.ceil(m / rows) * numpy.ceil(n / columns) * split / units
        waves = wait * numpy.ceil(each) + (1 - wait) * numpy.maximum(each, 1)
        t = waves * units * 2 * rows * columns * (numpy.ceil(k / split) + numpy.exp(p[2])) / (rate * half**halvings)
        if split > 1:
            t = t + numpy.exp(p[6]) * 8 * split * m * n / bandwidth
        best = numpy.minimum(best, t)
    memory = (device.get("operand_bytes", 2) * (m * k + k * n) + 2 * m * n) / (0.95 * share(p[3]) * bandwidth)
    load = (best**4 + memory**4) ** 0.25
    return numpy.exp(p[0]) + load * (1 + load / THROTTLE_SECONDS) ** numpy.minimum(p[7] ** 2, 1)


def attention_seconds(p, size, device):
    b, s, n, v, d = size.T
    traffic = 2 * b * s * d * (2 * n + 2 * numpy.exp(p[4]) * v) / (numpy.exp(p[3]) * device["bandwidth"])
    return numpy.exp(p[0]) + numpy.exp(p[2]) * s + traffic + 2 * b * n * s * s * d / (numpy.exp(p[1]) * device["peak"])


def contaminated(size, seconds):
    larger = (size[None] >= size[:, None]).all(-1)
    return numpy.where(larger, seconds[None], numpy.inf).min(1) * CONTAMINATED < seconds


def spread(size, count):
    logs = numpy.log2(size)
    taken = [int(numpy.argmin(((logs - logs.mean(0)) ** 2).sum(1)))]
    distance = ((logs - logs[taken[0]]) ** 2).sum(1)
    while len(taken) < count:
        taken.append(int(numpy.argmax(distance)))
        distance = numpy.minimum(distance, ((logs - logs[taken[-1]]) ** 2).sum(1))
    mask = numpy.zeros(len(size), bool)
    mask[taken] = True
    return mask


def robust(formula, start, size, seconds, device):
    def errors(p):
        return numpy.log(formula(p, size, device) / seconds)

    return min((least_squares(errors, s, loss="cauchy", f_scale=0.04) for s in start), key=lambda r: r.cost).x


def hats(size):
    """Weights of the correction's knots, m slowest."""
    axes = []
    for x, knots in zip(numpy.log(size).T, (numpy.log(KNOTS[a]) for a in "mnk")):
        x = numpy.clip(x, knots[0], knots[-1])
        low = numpy.clip(numpy.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        high = (x - knots[low]) / (knots[low + 1] - knots[low])
        weights = numpy.zeros((len(x), len(knots)))
        weights[numpy.arange(len(x)), low] = 1 - high
        weights[numpy.arange(len(x)), low + 1] += high
        axes.append(weights)
    return numpy.einsum("pi,pj,pk->pijk", *axes).reshape(len(size), -1)


def correction(size, residual):
    """Ridge regression with Huber weights."""
    matrix, weight = hats(size), numpy.ones(len(size))
    for _ in range(8):
        normal = matrix.T @ (matrix * weight[:, None]) + RIDGE * numpy.eye(matrix.shape[1])
        knots = numpy.linalg.solve(normal, matrix.T @ (weight * residual))
        error = abs(residual - matrix @ knots)
        weight = 1 / numpy.maximum(1, error / (2 * max(1.5 * numpy.median(error), 0.01)))
    return knots


def read(path, device, columns, dtype=None):
    with open(path, newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["device"] == device and dtype in (None, r["dtype"])]
    return (numpy.array([[float(r[c]) for c in columns] for r in rows]), numpy.array([float(r["latency_ms"]) / 1e3 for r in rows]))


def summary(name, predicted, seconds):
    error = abs(predicted / seconds - 1)
    print(f"{name}: {len(error)} points held back, median {numpy.median(error):.3f}, 90th percentile {numpy.quantile(error, 0.9):.3f}")
    return float(numpy.quantile(error, 0.8))


def four(x):
    return float(f"{x:.4g}")


def tenth(size, seconds):
    """Which points are fitted to, and those of them that are not contaminated."""
    held = spread(size, len(size) // 10)
    x, t = size[held], seconds[held]
    clean = ~contaminated(x, t)
    return held, x[clean], t[clean]


def fit_products(path, name, device, dtype=None):
    size, seconds = read(path, name, ("m", "n", "k"), dtype)
    held, x, t = tenth(size, seconds)
    start = [numpy.array([numpy.log(3e-6), numpy.log(0.85), numpy.log(k0), 1.7, 2, 1, 0, 0.1]) for k0 in (64, 256)]
    p = robust(product_seconds, start, x, t, device)
    knots = correction(x, numpy.log(t / product_seconds(p, x, device)))
    rest = size[~held]
    residual = summary(f"{name} products", product_seconds(p, rest, device) * numpy.exp(hats(rest) @ knots), seconds[~held])
    return entry(p, knots, device), residual


def entry(p, knots, device):
    return {"units": device["units"], "efficiency": four(numpy.exp(p[1])), "launch_seconds": four(numpy.exp(p[0])),
            "prologue_features": four(numpy.exp(p[2])), "half_tile": four(share(p[4])), "quantisation": round(float(share(p[5])), 3),
            "split_traffic": four(numpy.exp(p[6])) if p[6] > numpy.log(1e-6) else 0, "memory_efficiency": four(0.95 * share(p[3])), "throttle": four(p[7] ** 2),
            "correction": dict({a: list(k) for a, k in KNOTS.items()}, ln=[round(float(v), 3) + 0.0 for v in knots])}


def quantised_seconds(p, size, device):
    """Whoever measured them quantised the [m, k] operand for each product: p[8] bytes an element and p[9] seconds of launches, apart from the product's,
    whose launch is the one in bf16."""
    return quantising_seconds(p, size, device) + product_seconds(numpy.concatenate(([numpy.log(device["launch"])], p[1:8])), size, device)


def quantising_seconds(p, size, device):
    return numpy.exp(p[8]) * size[:, 0] * size[:, 2] / device["bandwidth"] + numpy.exp(p[9])


def fit_quantised(path, name, device, dtype):
    size, seconds = read(path, name, ("m", "n", "k"), dtype)
    held, x, t = tenth(size, seconds)
    start = [numpy.array([0, numpy.log(0.75), numpy.log(k0), 1.7, 2, 1, 0, 0.1, numpy.log(5), numpy.log(8e-6)]) for k0 in (64, 256)]
    p = robust(quantised_seconds, start, x, t, device)
    p[0] = numpy.log(device["launch"])
    alone = numpy.maximum(t - quantising_seconds(p, x, device), 0.3 * t)
    knots = correction(x, numpy.log(alone / product_seconds(p, x, device)))
    rest = size[~held]
    predicted = quantising_seconds(p, rest, device) + product_seconds(p, rest, device) * numpy.exp(hats(rest) @ knots)
    print(f"{name} {dtype}: quantising {numpy.exp(p[8]):.2f} bytes an element, {numpy.exp(p[9]) * 1e6:.1f} us")
    return entry(p, knots, device), summary(f"{name} products in {dtype}", predicted, seconds[~held])


def fit_attention(path, name, device):
    size, seconds = read(path, name, ("batch", "sequence", "heads", "kv_heads", "head_dim"))
    held, x, t = tenth(size, seconds)
    p = robust(attention_seconds, [numpy.array([numpy.log(10e-6), numpy.log(0.6), numpy.log(1e-8), numpy.log(0.5), 0.0])], x, t, device)
    summary(f"{name} attention", attention_seconds(p, size[~held], device), seconds[~held])
    names = ("launch_seconds", "efficiency", "seconds_per_token", "memory_efficiency", "key_weight")
    return {n: four(numpy.exp(v)) for n, v in zip(names, p)}


def fit_formats(path, name, device):
    """Products of quantised operands: entries of a surface's `formats`."""
    if "profile" in device:
        profile = json.loads((HERE.parents[1] / "costmodel/profiles/devices" / f"{device['profile']}.json").read_text(encoding="utf-8"))
        product = profile["surfaces"][0]["product"]
    else:
        product, residual = fit_products(path, name, device, "bfloat16")
        print(json.dumps({"product": product, "residual": four(residual)}))
    device = dict(device, launch=product["launch_seconds"])
    for dtype, (formats, peak, operand_bytes) in FORMATS.items():
        if peak not in device:
            continue
        rates = dict(device, peak=device[peak], operand_bytes=operand_bytes)
        product, residual = fit_quantised(path, name, rates, dtype)
        print(json.dumps({"formats": formats, "peak": device[peak], "product": product, "residual": four(residual)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gemm", nargs="?")
    parser.add_argument("attention", nargs="?")
    parser.add_argument("--formats", help="measured products of quantised operands, instead of the two")
    parser.add_argument("--device", help="one of devices.json; default: all")
    options = parser.parse_args()
    devices = json.loads((HERE / "devices.json").read_text(encoding="utf-8"))
    for name, device in devices.items():
        if options.device not in (None, name):
            continue
        if options.formats:
            if "peak_fp8" in device:
                fit_formats(options.formats, name, device)
            continue
        product, residual = fit_products(options.gemm, name, device)
        attention = dict(fit_attention(options.attention, device.get("attention", name), device), backward_efficiency=0.8)
        print(json.dumps({"dtype": "bf16", "product": product, "attention": attention, "stream": {"efficiency": 0.8, "norm_backward": 0.45},
                          "residual": four(residual)}))


if __name__ == "__main__":
    main()
