"""What run.py and gpu.py share: plans for one strategy, the lines of `orrery train`, files of results."""
import csv
import json
import subprocess


def plan_of(orrery, config, path, *, batch, tokens, precision, layers, micro_batches, stages=1, **degrees):
    """Writes a plan of equal stages with one strategy; devices that it leaves idle do not matter."""
    subprocess.run([orrery, "plan", "--model", config, "--cluster", "local", "--precision", precision, "--global-batch", str(2 * batch),
                    "--sequence-length", str(tokens), "--space", "dp,idle", "--memory", "1TiB", "--out", path], check=True, capture_output=True)
    plan = json.loads(path.read_text())
    strategy = {"tp": 1, "dp": 1, "zero": 0, "sequence_parallel": False, "recompute": "none", "grad_reduce": "step"} | degrees
    plan |= {"global_batch": batch, "micro_batches": micro_batches, "vocabulary": strategy,
             "stages": [{"runs": [{"count": layers // stages, "strategy": strategy}]}] * stages}
    path.write_text(json.dumps(plan))
    return path


def step_of(line):
    """(seconds, loss) of a line of `orrery train`, None of others."""
    words = line.split()
    if len(words) != 6 or words[0] != "step" or words[2] != "loss":
        return None
    return float(words[4]) * {"s": 1, "ms": 1e-3, "us": 1e-6}[words[5]], float(words[3])


def write(rows, rows_path, table, table_path):
    with open(rows_path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    table_path.write_text(table)
