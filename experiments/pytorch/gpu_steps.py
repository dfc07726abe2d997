"""PyTorch's side of gpu.py: trains on one GPU in bf16 (autocast, fp32 parameters) and writes a line `STEP SECONDS LOSS` for each step.

Compiled: each block (one graph serves all), and the head with its loss.
"""
import argparse
import json
import sys
import time

import torch

import gpt
import llama


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("eager", "torch.compile"))
    parser.add_argument("--config", required=True)
    for name in ("batch", "tokens", "micro-batches", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--exact", action="store_true", help="Orrery's parameters, for one curve of losses (GPT-2)")
    args = parser.parse_args()
    with open(args.config) as file:
        config = json.load(file)
    own = dict(config)
    config["vocab_size"] += -config["vocab_size"] % 128
    torch.manual_seed(args.seed)
    with torch.device("cuda"):
        model = (gpt.Gpt if config["model_type"] == "gpt2" else llama.Llama)(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.02)
    if args.exact:
        state = gpt.initial_parameters(own, args.seed)
        state["token.weight"] = torch.cat((state["token.weight"], torch.zeros(config["vocab_size"] - own["vocab_size"], own["n_embd"])))
        model.load(state)

    def head_loss(x, targets):
        logits = model.head(model.norm(x))
        if args.exact:
            logits = logits[..., :own["vocab_size"]]
        return gpt.cross_entropy(logits, targets)

    if args.mode == "torch.compile":
        for block in model.blocks.values() if isinstance(model, gpt.Gpt) else model.blocks:
            block.compile()
        head_loss = torch.compile(head_loss)
    optimizer, batches = gpt.optimizer_of(model), gpt.Batches(args.seed, args.batch, args.tokens)
    part = args.batch // args.micro_batches
    for step in range(args.steps):
        torch.cuda.synchronize()
        begin, total = time.perf_counter(), 0
        for number in range(args.micro_batches):
            tokens, targets = (t.cuda(non_blocking=True) for t in batches.read(step, number * part, part))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = head_loss(model.features(tokens), targets) / args.micro_batches
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = float(total)
        torch.cuda.synchronize()
        print(step, time.perf_counter() - begin, loss, flush=True)
    print("peak", torch.cuda.max_memory_allocated(), file=sys.stderr)


if __name__ == "__main__":
    main()
