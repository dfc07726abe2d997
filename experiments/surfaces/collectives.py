#!/usr/bin/env python3
"""Writes `collectives` into the device profiles: NCCL on one host of each device, measured alone (experiments/collectives/measured/one_host.csv).

    experiments/surfaces/collectives.py

Every fourth size from 64 KiB, the median where a size was measured more than once. `link_rate_bytes_per_second` is the datasheet's rate of a device's NVLink, as in
topologies/catalog: on other links these times do not hold.
"""
import csv
import json
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK_RATES = {"a100": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9, "gb200": 900e9}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = [1 << power for power in range(16, 30, 2)]


def entries(rows, device):
    """One JSON line for each operation and number of ranks."""
    for operation in OPERATIONS:
        for ranks in sorted({int(r["ranks"]) for r in rows if r["machine"] == device}):
            times = {size: [float(r["time_us"]) for r in rows if (r["machine"], r["operation"], int(r["ranks"]), int(r["bytes"])) == (device, operation, ranks, size)]
                     for size in SIZES}
            points = [{"bytes": size, "seconds": float(f"{statistics.median(t) * 1e-6:.4g}")} for size, t in times.items()]
            yield json.dumps({"op": operation, "size": ranks, "link_rate_bytes_per_second": LINK_RATES[device], "points": points})


def main():
    with open(ROOT / "experiments/collectives/measured/one_host.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for device in LINK_RATES:
        path = ROOT / f"costmodel/profiles/devices/{device}.json"
        head = path.read_text(encoding="utf-8").split(',\n "collectives":')[0].rstrip().removesuffix("}").rstrip()
        path.write_text(head + ',\n "collectives": [\n  ' + ",\n  ".join(entries(rows, device)) + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
