#!/usr/bin/env python3
"""Reproduces the optima of the OSDP tables with `orrery solve` and prints them beside the expected ones.

    experiments/osdp/run.py [--orrery build/release/orrery]

Exit code 1 when a row differs. Inputs: tables.json (measured time and memory of a block); expected.json.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MB = 2**20  # the tables' MB: 14 bytes a parameter come out in 2^20


def instance(tables, limit_mb, layers, block):
    """A block's memory counts in whole MB, as in the paper's tool."""
    options = [
        {"name": name, "time_ps": time_ns * 1000, "memory_bytes": int(mb) * MB}
        for name, time_ns, mb in zip(tables["choices"], block["time_ns"], block["memory_mb"])
    ]
    return {
        "schema": "orrery.instance/1",
        "budget_bytes": (limit_mb - tables["overhead_mb"]) * MB,
        "layers": [{"count": layers, "options": options}],
    }


def solve(orrery, document):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "instance.json"
        path.write_text(json.dumps(document))
        run = subprocess.run([orrery, "solve", path, "--json", "--check"], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 2):
        sys.exit(f"{orrery} solve: {run.stderr}")
    return json.loads(run.stdout)


def blocks_of(choices, names):
    return {name: choices.count(name) for name in names if name in choices}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(HERE.parents[1] / "build/release/orrery"), help="program to run")
    orrery = parser.parse_args().orrery
    tables = json.loads((HERE / "tables.json").read_text())
    expected = json.loads((HERE / "expected.json").read_text())
    block_of = {(b["hidden"], b["batch"]): b for b in tables["blocks"]}

    print("| layers × hidden | b | optimal blocks | time s | all ZDP s | gain | memory MB | states | as expected |")
    print("|---|---|---|---|---|---|---|---|---|")
    wrong = 0
    times = {}
    for row in expected["optima"]:
        block = block_of[row["hidden"], row["batch"]]
        answer = solve(orrery, instance(tables, expected["limit_mb"], row["layers"], block))
        name = f"{row['layers']}×{row['hidden']}"
        if answer["status"] == "infeasible":
            least = answer["least_memory_bytes"] // MB
            same = "blocks" not in row and least == row["memory_mb"]
            print(f"| {name} | {row['batch']} | infeasible | | | | least {least} | | {'yes' if same else 'NO'} |")
            wrong += not same
            continue
        time_s = answer["time_ps"] / 1e12
        sharded_s = row["layers"] * block["time_ns"][3] / 1e9
        blocks = blocks_of(answer["choices"], tables["choices"])
        same = (
            answer["status"] == "optimal"
            and answer["check"]["holds"]
            and blocks == row.get("blocks")
            and abs(time_s - row["time_s"]) <= 0.5000001e-6
            and answer["memory_bytes"] == row["memory_mb"] * MB
        )
        wrong += not same
        times[row["layers"], row["hidden"], row["batch"]] = {"optimal": time_s, "zdp": sharded_s}
        text = ", ".join(f"{count} {choice}" for choice, count in blocks.items())
        print(
            f"| {name} | {row['batch']} | {text} | {time_s:.6f} | {sharded_s:.3f} | {sharded_s / time_s:.2f} × "
            f"| {answer['memory_bytes'] // MB} | {answer['states']} | {'yes' if same else 'NO'} |"
        )

    print("\n| published iteration | measured s | tables say s | difference |")
    print("|---|---|---|---|")
    for p in expected["published"]:
        table = times[p["layers"], p["hidden"], p["batch"]][p["plan"]]
        print(
            f"| {p['layers']}×{p['hidden']}, b = {p['batch']}, {p['plan']} | {p['iteration_s']} | {table:.3f} "
            f"| {100 * (table / p['iteration_s'] - 1):+.1f} % |"
        )
    print(f"\n{len(expected['optima']) - wrong} of {len(expected['optima'])} rows as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
