#!/usr/bin/env python3
"""Fits what other head sizes and windows change in attention, and holds it against the other half of the points.

    experiments/surfaces/heads.py attention_forward_shapes.csv

Columns: device, attn_dtype, batch_size, isl, num_heads, num_key_value_heads, head_dim, window_size (0: none), latency_ms;
bf16 alone counts. Every second row of the file is fitted, the others are held back. The formula is that of
costmodel/compute/surface.h with the numbers that ship: the factor of a head size is the median over large points without a
window (above 2^36 products of queries and keys), the cost of a window the median over those of its head size above 2^18
queries, taken from the first head size alone: the others are held back whole.
"""
import csv
import json
import math
import pathlib
import statistics
import sys

PROFILES = pathlib.Path(__file__).resolve().parents[2] / "costmodel/profiles/devices"
PROFILE = {"H100-SXM5-80GB": "h100", "H200-SXM5": "h200", "B200": "b200", "GB200": "gb200", "B300": "b300", "GB300": "gb300"}
MEASURED_HEAD = 128  # that of attention_forward_bf16.csv: factor 1


class Point:
    def __init__(self, row, surface):
        batch, self.tokens, heads, keys, self.head, window = (
            int(row[c]) for c in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size"))
        self.window = window if window < self.tokens else 0
        self.seconds = float(row["latency_ms"]) / 1e3
        self.queries = batch * heads * self.tokens
        a, seen = surface["attention"], self.window or self.tokens
        traffic = 2 * batch * self.head * self.tokens * (2 * heads + 2 * a["key_weight"] * keys)
        self.rest = (a["launch_seconds"] + a["seconds_per_token"] * seen
                     + traffic / (a["memory_efficiency"] * surface["memory_bandwidth"]))
        share = 1 - self.window / (2 * self.tokens) if self.window else 0.5
        self.products = 4 * share * self.queries * seen * self.head / (a["efficiency"] * surface["peak"])

    def large(self):
        return self.queries >= 2**18 if self.window else self.queries * self.tokens * self.head > 2**36


def points_of(path, device, surface):
    with open(path, newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["device"] == device and r["attn_dtype"] == "bfloat16"]
    points = [Point(r, surface) for r in rows]
    return points[::2], points[1::2]


def report(device, what, held, predicted):
    errors = sorted(abs(predicted(p) / p.seconds - 1) for p in held)
    print(f"{device:<15} {what:<22} {len(errors):>4} held back: median {errors[len(errors) // 2]:.3f}, "
          f"90th percentile {errors[9 * len(errors) // 10]:.3f}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for device, name in PROFILE.items():
        profile = json.loads((PROFILES / f"{name}.json").read_text(encoding="utf-8"))
        fitted, held = points_of(sys.argv[1], device, profile["surfaces"][0])
        sizes = sorted({p.head for p in fitted if not p.window} | {MEASURED_HEAD})
        factors = {MEASURED_HEAD: 1.0}
        for size in sizes:
            some = [p.products / (p.seconds - p.rest) for p in fitted if p.head == size and not p.window and p.large()]
            if size != MEASURED_HEAD:
                factors[size] = round(statistics.median(some), 3)
        windowed = sorted({p.head for p in fitted if p.window})
        window = statistics.median((p.seconds - p.rest - p.products / factors[p.head]) / p.queries
                                   for p in fitted if p.window and p.head == windowed[0] and p.large())
        print(json.dumps({"sizes": sizes, "factors": [factors[s] for s in sizes]}), f"window_seconds {window:.3g}")
        for size in sizes:
            if size != MEASURED_HEAD:
                report(device, f"head {size}", [p for p in held if p.head == size and not p.window],
                       lambda p: p.rest + p.products / factors[p.head])
        for size in windowed:
            report(device, f"head {size}, window", [p for p in held if p.head == size and p.window],
                   lambda p: p.rest + p.products / factors[p.head] + window * p.queries)


if __name__ == "__main__":
    main()
