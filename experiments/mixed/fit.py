#!/usr/bin/env python3
"""Fits the efficiency of products on devices that were measured in layers of Transformers only, and prints a profile of each.

    experiments/mixed/fit.py OPERATORS.csv [DEVICE]

OPERATORS.csv: device,model,micro_batch,tp,operator,forward_us (sequence 2048; Sailor's profiles). Fitted: efficiency and prologue, by least squares on the
logarithms of the products that take over 0.4 ms (those behind which a group sums hold an all-reduce, and are left out); shapes of tiles and what waits on memory are those of the A100 (as costmodel/profiles/devices/rtx-titan.json).
Attention runs at that efficiency over the A100's. A GH200 is an H100 but for its element-wise kernels. Needs numpy and scipy.
"""
import argparse
import csv
import json
import pathlib
import sys

import numpy
from scipy.optimize import brentq, least_squares

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments/surfaces"))
import fit as surfaces  # noqa: E402

HIDDEN = {"OPT-350": (1024, 16), "GPT-Neo-2.7": (2560, 32), "OPT-30": (7168, 56)}  # and heads
SEQUENCE, SHORTEST_S, SHORTEST_STREAM_S = 2048, 0.4e-3, 0.2e-3
# name in the table: profile, device, fp16 tensor peak, bytes/s, units; data sheets as in clusters/
DEVICES = {"RTX-3090": ("rtx-3090", "RTX-3090", 142e12, 936e9, 82), "RTX-2080": ("rtx-2080-ti", "RTX-2080-Ti", 107.6e12, 616e9, 68)}
GH200 = ("GH-96", "gh200", "GH200", 4000e9)  # products and attention of an H100
# One product that was measured under the limit of 70 W; tiles and prologue of an RTX 2080 Ti, of Turing too
T4 = ("T4", "t4", "T4", 65e12, 320e9, 40)
T4_SIZE, T4_RATE, T4_SOURCE = (4096, 4096, 4096), 24e12, "forums.developer.nvidia.com/t/about-gpu-peak-performance/264462"


def products(path, device):
    """(m, n, k) and seconds of the four products of a layer."""
    sizes, seconds = [], []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            h, tp, m = HIDDEN[row["model"]][0], int(row["tp"]), SEQUENCE * int(row["micro_batch"])
            shape = {"enc-attention-qkv": (m, 3 * h // tp, h), "enc-attention-dense": (m, h, h // tp), "enc-MLP-GEMM-1": (m, 4 * h // tp, h),
                     "enc-MLP-GEMM-2": (m, h, 4 * h // tp)}.get(row["operator"])
            took = float(row["forward_us"]) * 1e-6
            reduced = tp > 1 and row["operator"] in ("enc-attention-dense", "enc-MLP-GEMM-2")  # the time holds an all-reduce
            if row["device"] == device and shape and not reduced and SHORTEST_S < took < 1:
                sizes.append(shape)
                seconds.append(took)
    return numpy.array(sizes, float), numpy.array(seconds)


def stream_share(path, device, bandwidth):
    """Median share of the memory bandwidth of softmax, its dropout and GELU, forward and backward, by the bytes that costmodel/compute/surface.h counts."""
    shares = []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            (h, heads), tp, batch = HIDDEN[row["model"]], int(row["tp"]), int(row["micro_batch"])
            scores, inner = 2 * batch * heads / tp * SEQUENCE**2, 2 * batch * SEQUENCE * 4 * h / tp
            moved = {"enc-attention-softmax": (1.5 * scores, 2 * scores), "enc-attention-dropout": (2.5 * scores, 2.5 * scores),
                     "enc-MLP-gelu": (2 * inner, 3 * inner)}.get(row["operator"], (0, 0))
            for moved_bytes, phase in zip(moved, ("forward_us", "backward_us")):
                took = float(row[phase]) * 1e-6
                if row["device"] == device and moved_bytes and SHORTEST_STREAM_S < took < 1:
                    shares.append(moved_bytes / took / bandwidth)
    return float(numpy.median(shares))


def like_h100(path):
    device, name, model, bandwidth = GH200
    profile = json.loads((ROOT / "costmodel/profiles/devices/h100.json").read_text(encoding="utf-8"))
    share = stream_share(path, device, bandwidth)
    sys.stderr.write(f"{device}: streams at {share:.3f} of the memory bandwidth\n")
    profile.update({"name": name, "device": model})
    del profile["held_ranks"]
    profile["provenance"]["source"] += "; experiments/mixed/fit.py"
    profile["provenance"]["note"] += (" All that of the H100, the same chip, but for element-wise kernels: the median of softmax, dropout and GELU in Sailor's "
                                      "measured layers on GH200 with 96 GB (MIT).")
    del profile["surfaces"][0]["peak"], profile["surfaces"][0]["memory_bandwidth"]  # no other device is like it
    profile["surfaces"][0]["stream"]["efficiency"] = round(share, 3)
    return profile


def like_turing():
    _, name, model, peak, bandwidth, units = T4
    profile = json.loads((ROOT / "costmodel/profiles/devices/rtx-2080-ti.json").read_text(encoding="utf-8"))
    surface = profile["surfaces"][0]
    product, sheet = surface["product"], {"peak": peak, "bandwidth": bandwidth, "units": units}
    size, took = numpy.array([T4_SIZE], float), 2 * numpy.prod(T4_SIZE) / T4_RATE
    longer = lambda e: surfaces.product_seconds(parameters(e, numpy.log(product["prologue_features"]), product), size, sheet)[0] - took
    efficiency = float(numpy.exp(brentq(longer, numpy.log(0.1), numpy.log(0.9))))
    sys.stderr.write(f"{name}: efficiency {efficiency:.3f}\n")
    profile.update({"name": name, "device": model, "provenance": {
        "source": f"a product of 4096 rows, columns and features in fp16 at 24 TFLOP/s: {T4_SOURCE}; experiments/mixed/fit.py",
        "note": "fp16 on tensor cores stands in the place of bf16, which the device does not have. That one rate, of continuous work "
                "under its limit of 70 W, gives the efficiency; tiles, prologue and streams are those of the RTX 2080 Ti; attention "
                "scaled by the products' efficiency, not measured."}})
    del surface["peak"], surface["memory_bandwidth"]  # no other device is like it
    surface["attention"]["efficiency"] = round(surface["attention"]["efficiency"] * efficiency / product["efficiency"], 4)
    product.update({"units": units, "efficiency": round(efficiency, 4)})
    return profile


def parameters(efficiency, prologue, like):
    logit = lambda x: numpy.log(x / (1 - x))
    return numpy.array([numpy.log(like["launch_seconds"]), efficiency, prologue, logit(like["memory_efficiency"] / 0.95 * 0.9999), logit(like["half_tile"]),
                        30.0, numpy.log(like["split_traffic"]), like["throttle"] ** 0.5])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators")
    parser.add_argument("device", nargs="?", choices=[*DEVICES, GH200[0], T4[0]])
    options = parser.parse_args()
    like = json.loads((ROOT / "costmodel/profiles/devices/rtx-titan.json").read_text(encoding="utf-8"))
    if options.device in (None, GH200[0]):
        print(json.dumps(like_h100(options.operators), indent=1))
    if options.device in (None, T4[0]):
        print(json.dumps(like_turing(), indent=1))
    for name in DEVICES if options.device is None else {options.device} & set(DEVICES):
        profile, device, peak, bandwidth, units = DEVICES[name]
        sizes, seconds = products(options.operators, name)
        sheet = {"peak": peak, "bandwidth": bandwidth, "units": units}
        surface = like["surfaces"][0]
        error = lambda p: numpy.log(surfaces.product_seconds(parameters(p[0], p[1], surface["product"]), sizes, sheet) / seconds)
        found = least_squares(error, [numpy.log(0.7), numpy.log(280)], loss="soft_l1", f_scale=0.1)
        efficiency, prologue = numpy.exp(found.x)
        residual = float(numpy.median(numpy.abs(error(found.x))))
        sys.stderr.write(f"{name}: streams at {stream_share(options.operators, name, bandwidth):.3f}, {len(seconds)} products, efficiency {efficiency:.3f}, prologue {prologue:.1f}, median error {residual:.1%}\n")
        share = efficiency / surface["product"]["efficiency"]
        entry = json.loads(json.dumps(surface))
        entry.update({"peak": peak, "memory_bandwidth": bandwidth, "residual": round(float(numpy.std(error(found.x))) * 1.2816, 3)})
        entry["product"].update({"units": units, "efficiency": round(float(efficiency), 4), "prologue_features": round(float(prologue), 1)})
        entry["attention"]["efficiency"] = round(surface["attention"]["efficiency"] * float(share), 4)
        print(json.dumps({"schema": "orrery.profile/1", "name": profile, "device": device, "provenance": {
            "source": like["provenance"]["source"] + "; experiments/mixed/fit.py", "note": like["provenance"]["note"]}, "surfaces": [entry]}, indent=1))


if __name__ == "__main__":
    main()
