#!/usr/bin/env python3
"""Steps of `orrery train` on one GPU in bf16 against PyTorch there, each at its best micro-batch.

    experiments/pytorch/gpu.py [--orrery build/cuda/orrery] [--python PYTHON] [--models gpt2-xl,llama-3-8b] [--steps N] [--losses N]

PYTHON (default: this one) needs torch 2.11 with CUDA, Triton and numpy. Writes gpu_rows.csv and gpu_table.md beside itself unless --out says
elsewhere. Both sides keep fp32 parameters, gradients and moments, and compute in bf16. `--losses N` compares N steps of gpt-30m's curve instead.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import sides

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# name: config, layers, sequences of a step, tokens, numbers of micro-batches
MODELS = {"gpt2-xl": (ROOT / "model/catalog/gpt2-xl.json", 48, 16, 1024, (1, 2, 4)),
          "llama-3-8b": (ROOT / "model/catalog/llama-3-8b.json", 4, 2, 8192, (1, 2)),
          "gpt-30m": (HERE / "models/gpt-30m.json", 6, 16, 512, (1,))}
MODES = ("eager", "torch.compile")
# FLOP/s in bf16 without sparsity, by the datasheets.
PEAK = {"H100": 989e12, "H200": 989e12}
SEED = 1


def config_of(model, folder):
    path, layers, *_ = MODELS[model]
    config = json.loads(path.read_text())
    config["num_hidden_layers" if "num_hidden_layers" in config else "n_layer"] = layers
    cut = folder / f"{model}.json"
    cut.write_text(json.dumps(config))
    return cut, config


def flops_of(model, config):
    """Of a step's products, attention over all pairs of tokens."""
    _, layers, batch, tokens, _ = MODELS[model]
    h = config.get("n_embd", config.get("hidden_size"))
    block = 12 * h * h
    if "hidden_size" in config:
        kv = h * config["num_key_value_heads"] // config["num_attention_heads"]
        block = h * (2 * h + 2 * kv) + 3 * h * config["intermediate_size"]
    return 6 * batch * tokens * (layers * (block + 2 * h * tokens) + h * config["vocab_size"])


def plan_of(orrery, model, config, micro_batches, folder):
    _, layers, batch, tokens, _ = MODELS[model]
    return sides.plan_of(orrery, config, folder / f"{model}-{micro_batches}.plan.json", batch=batch, tokens=tokens, precision="bf16",
                         layers=layers, micro_batches=micro_batches)


def orrery_steps(args, plan, steps):
    command = [args.orrery, "train", "--plan", plan, "--steps", str(steps), "--warmup", "0", "--seed", str(SEED), "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [step for step in map(sides.step_of, done.stderr.splitlines()) if step]


def pytorch_steps(args, model, config, mode, micro_batches, steps, exact=False):
    _, _, batch, tokens, _ = MODELS[model]
    command = [args.python, HERE / "gpu_steps.py", mode, "--config", config, "--batch", batch, "--tokens", tokens, "--micro-batches",
               micro_batches, "--steps", steps, "--seed", SEED] + ["--exact"] * exact
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [(float(w[1]), float(w[2])) for w in map(str.split, done.stdout.splitlines())]


def compare(args, model, device, folder):
    """A row for each side and number of micro-batches that runs."""
    config, numbers = config_of(model, folder)
    rows = []
    for micro_batches in args.micro_batches or MODELS[model][-1]:
        plan = plan_of(args.orrery, model, config, micro_batches, folder)
        for side in ("orrery",) + MODES:
            try:
                steps = orrery_steps(args, plan, args.steps) if side == "orrery" else pytorch_steps(args, model, config, side, micro_batches, args.steps)
            except RuntimeError as error:
                print(f"{model}, {micro_batches} micro-batches, {side}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                continue
            seconds = statistics.median(s for s, _ in steps[2:])
            rows.append({"model": model, "device": device, "micro_batches": micro_batches, "side": side, "step_s": seconds,
                         "mfu": flops_of(model, numbers) / seconds / PEAK.get(device, float("nan"))})
            print(" ".join(str(v) for v in rows[-1].values()), flush=True)
    return rows


def table_of(rows):
    lines = ["| model | | micro-batches | step, ms | MFU | Orrery is faster by |", "|---|---|---|---|---|---|"]
    for model in dict.fromkeys(r["model"] for r in rows):
        best = {}
        for r in rows:
            if r["model"] == model and r["step_s"] < best.get(r["side"], {"step_s": float("inf")})["step_s"]:
                best[r["side"]] = r
        for side, r in best.items():
            ratio = f"{r['step_s'] / best['orrery']['step_s']:.3f}" if side != "orrery" and "orrery" in best else ""
            lines.append(f"| {model} | {side} | {r['micro_batches']} | {1e3 * r['step_s']:.1f} | {100 * r['mfu']:.1f} % | {ratio} |")
    return "\n".join(lines) + "\n"


def losses(args, folder):
    """Exit code 1 when the curves differ by more than 2 % of themselves anywhere, or by 0.3 % on average over the last half."""
    config, _ = config_of("gpt-30m", folder)
    ours = orrery_steps(args, plan_of(args.orrery, "gpt-30m", config, 1, folder), args.losses)
    theirs = pytorch_steps(args, "gpt-30m", config, "eager", 1, args.losses, exact=True)
    apart = [a / b - 1 for (_, a), (_, b) in zip(ours, theirs)]
    half = statistics.fmean(apart[len(apart) // 2:])
    print(f"{len(apart)} steps: loss {ours[0][1]:.4f} to {ours[-1][1]:.4f}, PyTorch {theirs[0][1]:.4f} to {theirs[-1][1]:.4f}; "
          f"apart by at most {max(map(abs, apart)):.2e}, on average over the last half {half:.2e}")
    return 0 if max(map(abs, apart)) < 0.02 and abs(half) < 0.003 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orrery", default=str(ROOT / "build/cuda/orrery"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--models", default="gpt2-xl,llama-3-8b")
    parser.add_argument("--micro-batches", type=lambda text: [int(n) for n in text.split(",")], help="default: each model's own")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    args = parser.parse_args()
    query = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    device = query.stdout.replace("NVIDIA", "").split()[0] if query.returncode == 0 else "?"
    with tempfile.TemporaryDirectory() as folder:
        if args.losses:
            return losses(args, pathlib.Path(folder))
        rows = [row for model in args.models.split(",") for row in compare(args, model, device, pathlib.Path(folder))]
    if not rows:
        return 3
    sides.write(rows, args.out / "gpu_rows.csv", table_of(rows), args.out / "gpu_table.md")
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
