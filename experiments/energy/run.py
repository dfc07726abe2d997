#!/usr/bin/env python3
"""Mean watts of measured training runs, of a host and of a device, against what `simulate --energy` predicts.

    experiments/energy/run.py [--orrery build/release/orrery]

Prints tables in Markdown. Exit code 1 when a mean error is above its bar of 10 %. See README.md.
"""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BAR = 0.10
AIR = "host_power: 2.4 kW"  # of the catalog's files; without fans 1.6 kW
NO_FANS = "host_power: 1.6 kW"
DEVICES = 8


def catalog_file(row):
    return (ROOT / "topologies/catalog" / f"{row['base']}.yaml").read_text(encoding="utf-8")


def cluster_of(row, folder):
    """The catalog's file, its host without fans where it had none."""
    text = catalog_file(row)
    if text.count(AIR) != 1:
        sys.exit(f"{row['base']} does not say '{AIR}'")
    path = folder / f"{row['base']}-{row['cooling']}.yaml"
    path.write_text(text if row["cooling"] == "air" else text.replace(AIR, NO_FANS), encoding="utf-8")
    return path


def model_of(row, folder):
    """The model's file; with more positions where the run had longer sequences than it."""
    config = json.loads((ROOT / row["model"]).read_text(encoding="utf-8"))
    if row["positions"] and "max_position_embeddings" in config:
        config["max_position_embeddings"] = int(row["positions"])
    path = folder / pathlib.Path(row["model"]).name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def software_of(row):
    """A file beside this one, or a name that the program knows."""
    beside = HERE / f"{row['software']}.json"
    return beside if beside.exists() else row["software"]


def predicted(row, program, folder):
    command = [program, "simulate", "--model", model_of(row, folder), "--cluster", cluster_of(row, folder), "--hosts", row["hosts"],
               *row["arguments"].split(), "--precision", "fp8-delayed", "--software", software_of(row), "--energy", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 2):  # 2: adapters fit where full training does not
        sys.exit(f"{row['id']}: {done.stderr}")
    return json.loads(done.stdout)


def without_host(row, watts):
    """Of a device: what the host draws beside its devices is taken as the catalog has it."""
    return (watts - (2400 if row["cooling"] == "air" else 1600)) / DEVICES


def at_measured_step(row, prediction):
    """A line: watts of a host if the predicted joules above waiting were spread over the measured step."""
    energy, seconds = prediction["energy"], prediction["predicted"]["step_time_s"]
    waiting = energy["waiting_w"] / energy["hosts"]
    measured, watts = float(row["step_seconds"]), float(row["step_watts"])
    spread = waiting + (energy["host_w"]["mean"] - waiting) * seconds / measured
    return (f"| {row['id']} | {measured:.3f} s | {seconds:.3f} s | {seconds / measured - 1:+.1%} | {watts:,.0f} W | {spread:,.0f} W "
            f"| {spread / watts - 1:+.1%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orrery", default=str(ROOT / "build/release/orrery"))
    program = parser.parse_args().orrery
    with open(HERE / "rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    errors = {"fit": [], "held back": []}
    at_limit = {"fit": [], "held back": []}
    steps = []
    print("| run | use | mean of | host measured | predicted | error | at limits | device measured | predicted | error |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for row in rows:
            prediction = predicted(row, program, pathlib.Path(name))
            energy = prediction["energy"]
            if row["step_seconds"]:
                steps.append(at_measured_step(row, prediction))
            measured, host, device = float(row["watts"]), energy["host_w"]["mean"], energy["device_w"]["mean"]
            limit = float(re.search(r"^    power: (\d+) W$", catalog_file(row), re.MULTILINE)[1]) * DEVICES + measured - without_host(row, measured) * DEVICES
            errors[row["use"]].append((host / measured - 1, device / without_host(row, measured) - 1))
            at_limit[row["use"]].append(limit / measured - 1)
            print(f"| {row['id']} | {row['use']} | {row['of']} | {measured:,.0f} W | {host:,.0f} W | {host / measured - 1:+.1%} | {limit / measured - 1:+.1%} "
                  f"| {without_host(row, measured):.0f} W | {device:.0f} W | {errors[row['use']][-1][1]:+.1%} |")
    print("\n| | rows | host, mean error | within 10 % | device, mean error | all devices at their limit, mean error |\n|---|---|---|---|---|---|")
    held = True
    for use, some in errors.items():
        host, device = (sum(abs(e[i]) for e in some) / len(some) for i in (0, 1))
        held = held and host <= BAR and device <= BAR
        print(f"| {use} | {len(some)} | {host:.1%} | {sum(abs(e[0]) <= BAR for e in some)} | {device:.1%} "
              f"| {sum(map(abs, at_limit[use])) / len(some):.1%} |")
    print("\nWhere the run says how long its steps take, the predicted energy over that time, of training blocks:\n\n"
          "| run | step measured | predicted | error | host measured | predicted over the measured step | error |\n|---|---|---|---|---|---|---|")
    print("\n".join(steps))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
