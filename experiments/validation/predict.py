"""Step times of published rows by `orrery simulate --table`, with a profile made of micro measurements and six constants.

The constants, all of the software and network of a whole machine room, none of one row:

    composition        kernels in a step / the same kernels alone (clocks under sustained load, libraries of 2021 against those measured)
    kernel_seconds     what the host needs to issue one kernel
    collective_factor  a collective in training / alone (vTrain, MICRO 2024, reports 1.3)
    collective_seconds what the host adds to a collective
    fabric             share of a network card's rate that transfers between hosts get
    stream             share of the memory bandwidth that element-wise kernels get
"""
import csv
import json
import pathlib
import re
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ("composition", "kernel_seconds", "collective_factor", "collective_seconds", "fabric", "stream")
LOSS_PASSES = 23       # over fp16 logits: 11.5 over their fp32 copy, counted in Megatron-LM's vocabulary-parallel cross-entropy
NORM_BACKWARD = 0.45   # of the stream's rate: median of Sailor's measured layer norms, A100


def rows():
    with open(HERE / "rows.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def profile(constants, name="a100-megatron", source="experiments/validation"):
    """A profile of the software of these rows: Megatron-LM before flash attention, on A100s, fp16 with dropout."""
    device = json.loads((ROOT / "costmodel/profiles/devices/a100.json").read_text(encoding="utf-8"))
    surface = next(s for s in device["surfaces"] if s["dtype"] == "bf16")
    surface["stream"] = {"efficiency": constants["stream"], "norm_backward": NORM_BACKWARD}
    collectives = json.loads((HERE / "collectives.json").read_text(encoding="utf-8"))["collectives"]
    for entry in collectives:
        for point in entry["points"]:
            point["seconds"] = float(f"{point['seconds'] * constants['collective_factor'] + constants['collective_seconds']:.4g}")
    return {"schema": "orrery.profile/1", "name": name, "provenance": {"source": source}, "device": device["device"],
            "composition_factor": constants["composition"], "surfaces": [surface], "collectives": collectives,
            "framework": {"name": "Megatron-LM", "attention": "explicit", "dropout": True, "kernel_seconds": constants["kernel_seconds"],
                          "loss_passes": LOSS_PASSES}}


def cluster(constants):
    """The catalog's DGX A100 with a fabric that gives its cards a share of their rate."""
    text = (ROOT / "topologies/catalog/dgx-a100.yaml").read_text(encoding="utf-8")
    head, fabric = text.split("\nfabric:")
    rate = f"bandwidth_per_direction: {200 * constants['fabric']:.4g} Gb/s"
    return head + "\nfabric:" + re.sub(r"bandwidth_per_direction: [^\n]*", rate, fabric, count=1)


def simulate(orrery, table, constants, threads=2):
    """Seconds of each row of `table` (dictionaries with the columns of --table)."""
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        (at / "profile.json").write_text(json.dumps(profile(constants)), encoding="utf-8")
        (at / "cluster.yaml").write_text(cluster(constants), encoding="utf-8")
        with open(at / "rows.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        command = [orrery, "simulate", "--table", at / "rows.csv", "--out", at / "out.csv", "--profile", at / "profile.json",
                   "--cluster", at / "cluster.yaml", "--threads", str(threads)]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[0])
        with open(at / "out.csv", newline="", encoding="utf-8") as file:
            return [float(r["step_time_s"]) for r in csv.DictReader(file)]
