#!/usr/bin/env python3
"""Exports plans and gives the files to the frameworks' own parsers, as far as they are installed.

    experiments/exports/run.py [--orrery build/no-executor/orrery]

A line for each file: what the parser read. Exit code 1 when a parser refuses a file or reads other degrees than the plan's.
Needed in this Python, each for its framework: megatron-core 0.16, torchtitan 0.2.2, deepspeed 0.19, accelerate 1.15.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import warnings

# Model, cluster and hosts, by framework, and what a step trains: thirty plans for each.
SMALL = ["llama-2-7b dgx-a100 1", "llama-2-7b dgx-h100 2", "llama-3-8b dgx-h100 1", "llama-3-8b dgx-h100 2", "llama-3.1-8b dgx-a100 2"]
LARGE = ["llama-2-13b dgx-a100 1", "llama-2-70b dgx-a100 8", "llama-3-70b dgx-h100 8", "llama-3.1-70b dgx-h100 16"]
WHERE = {
    "megatron": SMALL[:3] + LARGE + ["mixtral-8x7b dgx-h100 4", "mixtral-8x22b dgx-h100 16", "llama-3-405b dgx-h100 64"],
    "torchtitan": SMALL + LARGE + ["llama-3-405b dgx-h100 64"],
    "deepspeed": SMALL + ["llama-2-13b dgx-a100 2", "llama-2-13b dgx-h100 1", "mistral-7b dgx-h100 1", "olmo-2-7b dgx-a100 1", "qwen3-8b dgx-h100 2"],
    "accelerate": SMALL + ["llama-2-13b dgx-a100 2", "llama-2-13b dgx-h100 2", "mistral-7b dgx-h100 1", "olmo-2-7b dgx-a100 2", "qwen3-8b dgx-h100 2"],
}
STEPS = ["--global-batch 512 --sequence-length 2048", "--global-batch 1024 --sequence-length 4096", "--global-batch 2048 --sequence-length 1024"]
# Where memory decides: other ZeRO stages, recomputation.
TIGHT = {
    "megatron": ["llama-2-7b dgx-a100 1 --memory 24GiB", "llama-2-13b dgx-a100 1 --memory 36GiB"],
    "torchtitan": ["llama-2-7b dgx-a100 1 --memory 24GiB", "llama-3-8b dgx-a100 2 --memory 20GiB"],
    "deepspeed": ["llama-2-7b dgx-a100 1 --memory 36GiB", "llama-2-7b dgx-a100 1 --memory 24GiB", "llama-2-13b dgx-a100 2 --memory 36GiB"],
    "accelerate": ["llama-2-7b dgx-a100 1 --memory 36GiB", "llama-2-7b dgx-a100 1 --memory 30GiB", "llama-2-13b dgx-a100 2 --memory 36GiB"],
}
TARGETS = {"accelerate": "fsdp"}


class Refused(Exception):
    pass


def require(found, planned, what):
    if found != planned:
        raise Refused(f"{what} is {found}, planned {planned}")


def first(plan):
    return plan["stages"][0]["runs"][0]["strategy"]


def world_of(plan):
    v = plan["vocabulary"]
    return v["tp"] * v.get("cp", 1) * v["dp"] * len(plan["stages"]) // plan.get("virtual_stages", 1)


def megatron(path, plan):
    """The shell reads the file; TransformerConfig and the layout hold the rules that the argument check leaves out."""
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    words = subprocess.run(["bash", "-euc", f"source '{path}'; printf '%s\\n' \"${{PLAN_ARGS[@]}}\""],
                           capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    args = {w[2:]: (words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else True)
            for i, w in enumerate(words) if w.startswith("--")}
    layers = sum(run["count"] for stage in plan["stages"] for run in stage["runs"])
    pp = int(args["pipeline-model-parallel-size"])
    virtual = plan.get("virtual_stages", 1)
    fields = {"num_layers": layers, "hidden_size": 8192, "num_attention_heads": 64, "ffn_hidden_size": 4 * 8192,
              "tensor_model_parallel_size": int(args["tensor-model-parallel-size"]), "pipeline_model_parallel_size": pp,
              "sequence_parallel": "sequence-parallel" in args, "pipeline_dtype": "bf16", "bf16": "bf16" in args,
              "recompute_granularity": args.get("recompute-granularity"), "recompute_method": args.get("recompute-method"),
              "recompute_num_layers": int(args["recompute-num-layers"]) if "recompute-num-layers" in args else None,
              "virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None}
    if "pipeline-model-parallel-layout" in args:
        layout = PipelineParallelLayerLayout.from_str(args["pipeline-model-parallel-layout"], pp)
        layout.validate_layer_layout(num_layers=layers, mtp_num_layers=0)
        fields["pipeline_model_parallel_layout"] = layout
    config = TransformerConfig(**fields)
    require(config.tensor_model_parallel_size, first(plan)["tp"], "tp")
    require(pp, len(plan["stages"]) // virtual, "pp")
    dp = world_of(plan) // (config.tensor_model_parallel_size * pp * int(args.get("context-parallel-size", 1)))
    require(int(args["micro-batch-size"]) * dp * plan["micro_batches"], plan["global_batch"], "global batch")
    return f"TransformerConfig tp {config.tensor_model_parallel_size} pp {pp} virtual {virtual} dp {dp}"


def stand_in(package):
    """torchtitan's packages import models, which want the newest torch: their own folders are enough."""
    import importlib.util
    if "torchtitan" in sys.modules:
        return
    spec = importlib.util.find_spec("torchtitan")
    if spec is None:
        raise ImportError("torchtitan")
    for name in package:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(spec.submodule_search_locations[0], *name.split(".")[1:])]
        sys.modules[name] = module


def torchtitan(path, plan):
    stand_in(["torchtitan", "torchtitan.distributed", "torchtitan.config", "torchtitan.tools"])
    from torchtitan.config import job_config
    for name in dir(job_config):
        setattr(sys.modules["torchtitan.config"], name, getattr(job_config, name))
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims
    config = ConfigManager().parse_args(["--job.config_file", str(path)])
    p, t = config.parallelism, config.training
    dims = ParallelDims(p.data_parallel_replicate_degree, p.data_parallel_shard_degree, p.context_parallel_degree,
                        p.tensor_parallel_degree, p.pipeline_parallel_degree, p.expert_parallel_degree,
                        p.expert_tensor_parallel_degree, world_of(plan))
    require(dims.tp, first(plan)["tp"], "tp")
    require(dims.dp_replicate * dims.dp_shard, first(plan)["dp"], "dp")
    steps = t.global_batch_size // (t.local_batch_size * dims.dp_replicate * dims.dp_shard)
    parts = t.local_batch_size // p.pipeline_parallel_microbatch_size if dims.pp > 1 else 1
    require(steps * parts, plan["micro_batches"], "micro-batches")
    if dims.pp > 1:
        require([sum(name.startswith("layers.") for name in part) for part in p.module_fqns_per_model_part],
                [sum(run["count"] for run in stage["runs"]) for stage in plan["stages"]], "layers of stages")
    return (f"ParallelDims replicate {dims.dp_replicate} shard {dims.dp_shard} cp {dims.cp} tp {dims.tp} pp {dims.pp}, "
            f"{steps * parts} micro-batches, {p.pipeline_parallel_schedule}, {config.activation_checkpoint.mode}")


def deepspeed(path, plan):
    from deepspeed.runtime import config as module
    world = world_of(plan)
    stages = len(plan["stages"]) // plan.get("virtual_stages", 1)
    ranks = world // stages  # what the parser counts: PipelineModule passes its own world
    module.dist.get_rank = lambda *a, **k: 0
    module.dist.get_world_size = lambda *a, **k: ranks
    module.dist.is_initialized = lambda *a, **k: True
    config = module.DeepSpeedConfig(json.loads(path.read_text()))
    require(config.gradient_accumulation_steps, plan["micro_batches"], "micro-batches")
    require(config.zero_config.stage, first(plan)["zero"], "zero")
    require(config.train_micro_batch_size_per_gpu * first(plan)["dp"] * plan["micro_batches"], plan["global_batch"],
            "global batch")
    return f"DeepSpeedConfig stage {config.zero_config.stage}, batch {config.train_batch_size} on {ranks} ranks"


def accelerate(path, plan):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    config = load_config_from_file(str(path))
    require(config.num_processes, world_of(plan), "ranks")
    if not config.parallelism_config:
        return f"{config.distributed_type} of {config.num_processes}"
    sizes = {key.removeprefix("parallelism_config_"): value for key, value in config.parallelism_config.items()
             if key.endswith("_size")}
    sharded = ParallelismConfig(**sizes)
    require(sharded.total_size, world_of(plan), "ranks")
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2,
                                            reshard_after_forward=config.fsdp_config["fsdp_reshard_after_forward"])
    require(3 if plugin.reshard_after_forward else 2, first(plan)["zero"], "zero")
    return f"{config.distributed_type} {sizes}, reshard {plugin.reshard_after_forward}"


CHECKS = {"megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed, "accelerate": accelerate}


def exported(orrery, framework, case, folder):
    model, cluster, hosts, *rest = case.split()
    plan, file = folder / "plan.json", folder / "file"
    subprocess.run([orrery, "plan", "--model", model, "--cluster", cluster, "--hosts", hosts, *rest, "--target",
                    TARGETS.get(framework, framework), "--out", plan], check=True, capture_output=True)
    out = subprocess.run([orrery, "export", "--plan", plan, "--to", framework, "--out", file, "--json"],
                         capture_output=True, text=True)
    if not out.stdout:
        raise Refused(out.stderr.strip().split("\n")[-1])
    return file, json.loads(out.stdout)


def fidelity(report):
    fields = sorted({d["field"].removeprefix("vocabulary.") for d in report["differences"]})
    state = "exact" if report["exact"] else "changes " + ", ".join(fields)
    fits = report["runs"]["peak_memory_bytes"] <= report["memory_limit_bytes"]
    return state if fits else state + ", does not fit"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orrery", default="build/no-executor/orrery")
    orrery = parser.parse_args().orrery
    warnings.simplefilter("ignore")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        for framework, places in WHERE.items():
            roomy = [f"{place} {step}" for place in places for step in STEPS]
            for case in roomy + [f"{place} --global-batch 64 --sequence-length 2048" for place in TIGHT[framework]]:
                try:
                    file, report = exported(orrery, framework, case, pathlib.Path(name))
                    line = f"{fidelity(report)}: {CHECKS[framework](file, report['plan'])}"
                except ImportError as missing:
                    line = f"not checked: {missing.name or missing} is not installed"
                except Exception as fault:  # whatever a parser raises is its answer
                    line, failed = f"REFUSED: {type(fault).__name__}: {fault}", True
                print(f"{framework:<11} {' '.join(case.split()[:3]):<26} {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
