"""One rank of PyTorch's side: trains and writes a line `STEP SECONDS CPU_SECONDS LOSS` for each step (rank 0's loss is the global one)."""
import argparse
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import gpt


class Plain:
    """One process; also the base of the others: `forward_backward` gives this rank's part of the loss."""

    def __init__(self, config, state, args):
        self.rank, self.world = args.rank, args.world
        self.batches = gpt.Batches(args.seed, args.batch, args.tokens)
        self.model = gpt.Gpt(config)
        self.model.load(state)
        self.build(config, args)
        self.optimizer = gpt.optimizer_of(self.model)
        self.share = args.batch

    def build(self, config, args):
        pass

    def forward_backward(self, step):
        tokens, targets = self.batches.read(step)
        loss = gpt.cross_entropy(self.model(tokens), targets)
        loss.backward()
        return loss.detach()

    def step(self, step):
        loss = self.forward_backward(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


class Compiled(Plain):

    def build(self, config, args):
        self.run = torch.compile(self.model)

    def forward_backward(self, step):
        tokens, targets = self.batches.read(step)
        loss = gpt.cross_entropy(self.run(tokens), targets)
        loss.backward()
        return loss.detach()


class Data(Plain):
    """DistributedDataParallel."""

    def build(self, config, args):
        self.run = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True, static_graph=True)

    def forward_backward(self, step):
        count = self.batches.batch // self.world
        tokens, targets = self.batches.read(step, self.rank * count, count)
        loss = gpt.cross_entropy(self.run(tokens), targets)
        loss.backward()
        return loss.detach() / self.world


class Sharded(Data):
    """FSDP2, a unit for each block."""

    def build(self, config, args):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (self.world,))
        for block in self.model.blocks.values():
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.run = self.model


class Tensor(Plain):
    """parallelize_module: columns, then rows; the table by rows of the vocabulary, and the loss over its shards."""

    def build(self, config, args):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (self.world,))
        for block in self.model.blocks.values():
            # each rank's q, k and v side by side, so that one product serves them
            for p in (block.qkv.weight, block.qkv.bias):
                parts = p.data.view(3, self.world, -1, *p.shape[1:]).transpose(0, 1)
                p.data = parts.reshape(p.shape).contiguous()
            parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "proj": RowwiseParallel(),
                                             "up": ColwiseParallel(), "down": RowwiseParallel()})
            block.heads //= self.world
        parallelize_module(self.model, mesh,
                           {"token": RowwiseParallel(input_layouts=Replicate()),
                            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
        self.model.tie()

    def forward_backward(self, step):
        from torch.distributed.tensor.parallel import loss_parallel
        tokens, targets = self.batches.read(step)
        with loss_parallel():
            loss = gpt.cross_entropy(self.model(tokens), targets)
            loss.backward()
        return loss.detach().full_tensor() / self.world


class Pipeline(Plain):
    """torch.distributed.pipelining, 1F1B; the tied table's gradient is summed over both ends."""

    def build(self, config, args):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        layers, last = config["n_layer"], self.rank == self.world - 1
        own = range(self.rank * layers // self.world, (self.rank + 1) * layers // self.world)
        part = gpt.Gpt(config, own, self.rank == 0, last)
        part.load(self.model.state_dict())
        self.model = part
        self.last = last
        stage = PipelineStage(part, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=gpt.cross_entropy)

    def forward_backward(self, step):
        tokens, targets = self.batches.read(step)
        losses = []
        if self.last:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step(tokens)
        dist.all_reduce(self.model.token.weight.grad)
        return torch.stack(losses).mean().detach() if self.last else torch.zeros(())


CASES = {"one": Plain, "compiled": Compiled, "dp2": Data, "zero3": Sharded, "tp2": Tensor, "pp2": Pipeline}


def initial_state(config, args):
    """Made once for each model and seed, by rank 0's launcher."""
    path = pathlib.Path(args.state)
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        torch.save(gpt.initial_parameters(config, args.seed), draft)
        draft.rename(path)
    return torch.load(path, weights_only=True, mmap=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    for name in ("config", "state", "store"):
        parser.add_argument("--" + name, required=True)
    for name in ("rank", "world", "threads", "batch", "tokens", "micro-batches", "steps", "seed"):
        parser.add_argument("--" + name, type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = json.loads(pathlib.Path(args.config).read_text())
    if args.world > 1:
        dist.init_process_group("gloo", init_method="file://" + args.store, rank=args.rank, world_size=args.world)
    case = CASES[args.case](config, initial_state(config, args), args)
    for step in range(args.steps):
        if args.world > 1:
            dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = case.step(step)
        if args.world > 1:
            dist.barrier()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if args.world > 1:
            dist.all_reduce(loss)
        if args.rank == 0:
            print(step, f"{wall:.6f} {cpu:.6f} {float(loss):.9f}", flush=True)
    sys.stdout.flush()
    if args.world > 1:
        dist.barrier()
        os._exit(0)  # Gloo's threads may still wait for a peer that has left


if __name__ == "__main__":
    main()
