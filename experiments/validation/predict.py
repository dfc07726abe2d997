"""Step times of published rows by `orrery simulate --table`: the A100's micro measurements and five constants of training steps.

The constants, all of software and network of whole machine rooms, none of one row. They ship in costmodel/profiles/software/megatron-2021.json, and there alone:

    composition        products and attention in a step / alone (clocks under sustained load, libraries of 2021 against those measured)
    kernel_seconds     what the host needs for one kernel, with all that it does around it
    collective_factor  a collective in a step / alone (vTrain, MICRO 2024, reports 1.3)
    issue_seconds      what the host adds to a collective
    fabric_share       share of a network card's rate that transfers between hosts get
"""
import csv
import functools
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEVICE = ROOT / "costmodel/profiles/devices/a100.json"
SOFTWARE = ROOT / "costmodel/profiles/software/megatron-2021.json"
PLACES = {"composition": ("composition_factor",), "kernel_seconds": ("framework", "kernel_seconds"), "collective_factor": ("step_communication", "factor"),
          "issue_seconds": ("step_communication", "issue_seconds"), "fabric_share": ("step_communication", "fabric_share")}
NAMES = tuple(PLACES)
COVERAGE = 0.8  # of a band
BY_GROUPS = "vtrain-one-host"  # the one family that hosts hold up: kernel_seconds is seen nowhere else


def rows():
    with open(HERE / "rows.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def constants(left_out=None):
    """The constants that ship, or those fitted without some rows, named as by left_out()."""
    if left_out:
        return json.loads((HERE / "constants.json").read_text(encoding="utf-8"))[left_out]
    software = json.loads(SOFTWARE.read_text(encoding="utf-8"))
    return {name: software[place[0]] if len(place) == 1 else software[place[0]][place[1]] for name, place in PLACES.items()}


def left_out(row):
    """The rows that constants for this one may not have seen: its family, or its half of the groups of one that alone shows a constant."""
    return f"{row['family']} {folds()[row['id']]}" if row["family"] == BY_GROUPS else row["family"]


@functools.cache
def folds():
    """0 or 1 for each row's id: groups of rows (one model, batch and number of GPUs of a family) are dealt out in turn."""
    dealt = {}
    return {r["id"]: dealt.setdefault((r["family"], r["layers"], r["hidden"], r["global_batch"], r["gpus"]), len(dealt)) % 2 for r in rows()}


def spreads():
    """[fold] the spread of errors fitted without the rows of that fold."""
    return json.loads((HERE / "spreads.json").read_text(encoding="utf-8"))


def with_constants(software, values):
    """The software's profile with other constants."""
    changed = json.loads(json.dumps(software))
    for name, place in PLACES.items():
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = values[name]
    return changed


def product_residual():
    """What 80 % of the device's measured products stay within of its surface."""
    return json.loads(DEVICE.read_text(encoding="utf-8"))["surfaces"][0]["residual"]


def profile(values, spread=None, streams=1.0):
    """What the program uses for an A100 when no profile is named, with these constants, this spread of errors, and with streams that take so many times as long."""
    device, software = (json.loads(path.read_text(encoding="utf-8")) for path in (DEVICE, SOFTWARE))
    software = with_constants(software, values)
    for surface in device["surfaces"]:
        surface["stream"]["efficiency"] /= streams
    made = dict(device, **{key: software[key] for key in ("composition_factor", "device_deviation", "framework", "step_communication")})
    return dict(made, spread=spread) if spread is not None else made


def simulate(orrery, table, values=None, threads=2):
    """Seconds of each row of `table` (dictionaries with the columns of --table); without `values` those of the default command, no profile named."""
    return [float(r["step_time_s"]) for r in run_table(orrery, table, profile(values) if values else None, threads)]


def simulate_bands(orrery, table, values, spread, threads=2):
    """(low, high) of each row's 80 % band, in seconds."""
    return [(float(r["step_time_low_s"]), float(r["step_time_high_s"])) for r in run_table(orrery, table, profile(values, spread), threads, "--bands")]


def run_table(orrery, table, named, threads, *more):
    """The rows of `simulate --table`."""
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        with open(at / "rows.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        command = [orrery, "simulate", "--table", at / "rows.csv", "--out", at / "out.csv", "--threads", str(threads), *more]
        if named:
            (at / "profile.json").write_text(json.dumps(named), encoding="utf-8")
            command += ["--profile", at / "profile.json"]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[0])
        with open(at / "out.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
