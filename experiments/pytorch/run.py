#!/usr/bin/env python3
"""Steps of `orrery train` against PyTorch on the same cores: paired rounds in turn, medians, losses compared.

    experiments/pytorch/run.py [--orrery build/release/orrery] [--python PYTHON] [--models gpt-1m,gpt-30m] [--cases one,dp2] [--rounds N]

PYTHON (default: this one) needs torch 2.11, numpy and sympy. Writes rows.csv and table.md beside itself unless --out says elsewhere. Exit code 1
when losses differ by more than 1e-5 of themselves or a case fails.
"""
import argparse
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import sides

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# name: config, layers, sequences of a step, tokens, steps of a round
MODELS = {"gpt-1m": (ROOT / "model/catalog/gpt2-tiny.json", 4, 8, 128, 40),
          "gpt-30m": (HERE / "models/gpt-30m.json", 6, 4, 256, 8),
          "gpt-124m": (ROOT / "model/catalog/gpt2.json", 12, 4, 256, 5)}
# name: tp, dp, zero, pp, micro-batches, PyTorch's counterpart
CASES = {"one": (1, 1, 0, 1, 1, "eager"), "compiled": (1, 1, 0, 1, 1, "torch.compile"), "dp2": (1, 2, 0, 1, 1, "DDP"),
         "zero3": (1, 2, 3, 1, 1, "FSDP2"), "tp2": (2, 1, 0, 1, 1, "parallelize_module"), "pp2": (1, 1, 0, 2, 4, "Schedule1F1B")}
SEED = 1


def plan_of(orrery, model, case, folder):
    config, layers, batch, tokens, _ = MODELS[model]
    tp, dp, zero, pp, micro_batches, _ = CASES[case]
    return sides.plan_of(orrery, config, folder / f"{model}-{case}.json", batch=batch, tokens=tokens, precision="fp32", layers=layers,
                         micro_batches=micro_batches, stages=pp, tp=tp, dp=dp, zero=zero)


def cpu_ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def orrery_steps(orrery, plan, ranks, steps):
    """Seconds, CPU seconds (of one rank alone, by the kernel's ticks) and loss of each step."""
    command = [orrery, "train", "--plan", plan, "--steps", str(steps), "--warmup", "0", "--seed", str(SEED), "--device", "cpu"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found, before = [], None
    for line in running.stderr:
        if step := sides.step_of(line):
            used = cpu_ticks(running.pid) if ranks == 1 else math.nan
            seconds, loss = step
            found.append((seconds, used - before if before is not None else math.nan, loss))
            before = used
    if running.wait() != 0:
        sys.exit(f"{command} ended with {running.returncode}")
    return found


def pytorch_steps(python, model, case, ranks, steps, folder):
    config, _, batch, tokens, _ = MODELS[model]
    with tempfile.TemporaryDirectory() as meeting:
        processes = []
        for rank in range(ranks):
            threads = max(1, os.cpu_count() // ranks)
            command = [python, HERE / "ranks.py", case, "--config", config, "--state", folder / f"{model}.pt", "--store",
                       pathlib.Path(meeting) / "store", "--rank", rank, "--world", ranks, "--threads", threads, "--batch", batch,
                       "--tokens", tokens, "--micro-batches", CASES[case][4], "--steps", steps, "--seed", SEED]
            processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                              env=dict(os.environ, OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo")))
        output = [p.communicate() for p in processes]
    if any(p.returncode for p in processes):
        raise RuntimeError("\n".join(errors for _, errors in output))
    rows = [line.split() for line in output[0][0].splitlines()]
    return [(float(r[1]), float(r[2]) if ranks == 1 else math.nan, float(r[3])) for r in rows]


def compare(args, model, case, folder):
    _, _, _, _, steps = MODELS[model]
    tp, dp, _, pp, _, counterpart = CASES[case]
    ranks = tp * dp * pp
    plan = plan_of(args.orrery, model, case, folder)
    warmup, rounds, losses = 2, [], 0.0
    for number in range(args.rounds):
        of_side = {}
        for side in (("orrery", "pytorch"), ("pytorch", "orrery"))[number % 2]:
            if side == "orrery":
                of_side[side] = orrery_steps(args.orrery, plan, ranks, steps + warmup)
            else:
                of_side[side] = pytorch_steps(args.python, model, case, ranks, steps + warmup, folder)
        losses = max(losses, max(abs(a[2] - b[2]) / b[2] for a, b in zip(of_side["orrery"], of_side["pytorch"])))
        rounds.append([statistics.median(row[column] for row in of_side[side][warmup:])
                       for column in (0, 1) for side in ("orrery", "pytorch")])
    middle = [statistics.median(r[i] for r in rounds) for i in range(4)]
    return {"model": model, "case": case, "pytorch": counterpart, "orrery_s": middle[0], "pytorch_s": middle[1],
            "ratio": statistics.median(r[0] / r[1] for r in rounds), "cpu_ratio": statistics.median(r[2] / r[3] for r in rounds),
            "loss_difference": losses}


def table_of(rows):
    lines = ["| model | plan | against | Orrery, ms | PyTorch, ms | ratio | CPU time | losses |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cpu = "" if math.isnan(r["cpu_ratio"]) else f"{r['cpu_ratio']:.3f}"
        lines.append(f"| {r['model']} | {r['case']} | {r['pytorch']} | {1e3 * r['orrery_s']:.1f} | {1e3 * r['pytorch_s']:.1f} | "
                     f"{r['ratio']:.3f} | {cpu} | {r['loss_difference']:.0e} |")
    ratios = [r["ratio"] for r in rows]
    lines += ["", f"Geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, largest {max(ratios):.3f}."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orrery", default=str(ROOT / "build/release/orrery"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    args = parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            for case in args.cases.split(","):
                try:
                    rows.append(compare(args, model, case, pathlib.Path(folder)))
                    print(table_of(rows[-1:]).splitlines()[2], flush=True)
                except RuntimeError as error:
                    failed = True
                    print(f"| {model} | {case} | {CASES[case][-1]} failed: {str(error).strip().splitlines()[-1:]}", flush=True)
    if not rows:
        return 3
    sides.write(rows, args.out / "rows.csv", table_of(rows), args.out / "table.md")
    print(table_of(rows).splitlines()[-1])
    return 1 if failed or any(r["loss_difference"] > 1e-5 for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
