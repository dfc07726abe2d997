"""The cost tables of the paper-era tool, rebuilt from its constants (constants.json).

Time of one layer with strategy (pp, tp, dp), b = batch / dp samples on a rank, L layers of which the tool takes the mean (ms):
    forward  f = forward_ms * b / tp               backward  g = 2 f
    tensor   t = 2 (tp-1)/tp * b * tokens * hidden * 4 B * (4 all-reduces, 6 in a decoder layer) * ms/MB of the tp group
    gradients    2 (dp-1)/dp * parameters / tp (two hosts: halved when sharded, the other halves are the gathers below)
    overlap: while gradients travel beside a share of the backward both run 1.3 times slower; the share is 1, 1/2 for dp = 2
             beside tp > 1, 2/3 in a decoder layer (1/2 for tp = dp = 2 in a pipeline)
    pipeline (f + g + t) (pp + m - 1) / (pp m), m micro-batches by the tool's rule; gradients are not pipelined. This is
             w / m + w (m - 1) / m / pp with w = f + g + t: it takes all stages to be equally long
    sharded: gather of parameters, half the volume of the gradients, once (one host) or twice (two hosts)
    two hosts, pp > 1: 2 * b * tokens * hidden * 4 B sent to the next stage, once for L layers
The sum times 1.1. One host, tp = 1, pp > 1, not sharded: what of the gradients outlasts the backward counts once, not pp times.

Memory of one layer (MB, rounded up): 4 parameters / tp (sharded: * (1/dp + bias)) + activation[tp] * b.
Beside the layers: embedding, head, loss and the context, other_mb(); of the first stage on one host, of first and last on two.
"""
import functools
import itertools
import json
import math
import pathlib
from typing import NamedTuple

CONSTANTS = json.loads((pathlib.Path(__file__).resolve().parent / "constants.json").read_text())
TIMES = 24  # layers of which the tool takes the mean; two hosts, BERT and ViT: the model's


class Strategy(NamedTuple):
    pp: int
    tp: int
    dp: int
    near: bool  # the tensor-parallel group holds consecutive ranks
    sharded: bool

    def __str__(self):
        parts = [f"tp{self.tp}"] * (self.tp > 1) + [f"dp{self.dp}"] * (self.dp > 1)
        return ".".join(parts + ["z3"] * self.sharded + ["strided"] * (not self.near)) or "one"


def strategies(gpus, pp):
    """All of the tool's decision tree, in its order."""
    rest = gpus // pp
    result = []
    tp = 1
    while tp <= rest:
        dp = rest // tp
        for sharded in (False, True) if dp > 1 else (False,):
            for near in (False, True) if tp > 1 and dp > 1 and rest > 2 else (True,):
                result.append(Strategy(pp, tp, dp, near, sharded))
        tp *= 2
    return result


def parse_plan(text, pp):
    """"5 tp2.dp2, 3 dp4 | 8 dp4" (reference.json) as stages of strategies."""
    stages = []
    for stage in text.split(" | "):
        layers = []
        for run in stage.split(", "):
            count, name = run.split(" ")
            parts = name.split(".")
            degree = lambda kind: next((int(p[2:]) for p in parts if p.startswith(kind)), 1)
            layers += [Strategy(pp, degree("tp"), degree("dp"), "strided" not in parts, "z3" in parts)] * int(count)
        stages.append(layers)
    return stages * pp if len(stages) == 1 else stages


def micro_batches(rule, samples, s):
    """The tool's number of micro-batches (not always whole) for `samples` on a rank."""
    if rule == "bert":
        if (s.pp, s.tp) in ((2, 4), (4, 2)):
            return samples / 4
        return samples / 2 if samples < 6 else samples / 8 + 2
    if rule == "vit":
        return 1 if samples == 8 else 2
    if rule == "t5":
        return 1 if samples == 2 else 3 if s.pp == 8 else 2
    if rule == "swin":
        return 1 if samples <= 8 else 2 if samples < 32 else 3 if samples <= 96 else 4
    size = 4 if rule == "ceil4" else 16 if s.pp <= 8 else 32
    return max(1, math.ceil(samples // s.tp / size))


class Tables:
    """Of one model on one number of GPUs."""

    def __init__(self, model, gpus):
        family, kinds = CONSTANTS["models"][model]
        self.gpus = gpus
        self.two_hosts = gpus == 16
        self.machine = CONSTANTS["machines"][str(gpus)]
        self.family = family
        self.layout = CONSTANTS["families"][family]
        self.memory = self.layout[str(gpus)]
        self.kinds = [(CONSTANTS["kinds"][name], count) for name, count in kinds]
        self.layers = [kind for kind, (_, count) in enumerate(self.kinds) for _ in range(count)]
        self.uniform = len(self.kinds) == 1
        self.mean_layers = len(self.layers) if self.two_hosts and self.uniform else TIMES

    @functools.cache
    def counts(self, start, end):
        """Kinds of the layers [start, end) with their numbers, in order."""
        groups = itertools.groupby(self.layers[start:end])
        return tuple((kind, sum(1 for _ in group)) for kind, group in groups)

    def ms_per_mb(self, s, size, near):
        if size == 1:
            return 0.0
        return self.machine["all_reduce_ms_per_mb"][str(s.pp)][str(size)][near]

    def group_ms_per_mb(self, s):
        """(data, tensor): the group that is not near is strided; a group of all ranks of the stage is consecutive."""
        alone = s.tp == 1 or s.dp == 1
        return self.ms_per_mb(s, s.dp, alone or not s.near), self.ms_per_mb(s, s.tp, alone or s.near)

    def layer_seconds(self, kind, batch, s):
        once, piped = self.layer_parts(kind, batch, s)
        return once + piped / s.pp

    def layer_parts(self, kind, batch, s):
        """(once, piped) in s: a step takes the sum of once over all layers, and the sum of piped over a stage's layers for the
        slowest stage; the tool takes the mean of the stages."""
        k = self.kinds[kind][0]
        decoder = k.get("decoder", False)
        data_ms, tensor_ms = self.group_ms_per_mb(s)
        slow = CONSTANTS["overlap_slowdown"]
        samples = batch / s.dp
        forward = k["forward_ms"] * samples / s.tp
        backward = 2 * forward
        sample_mb = k["tokens"] * k["hidden"] * 4 / 2**20
        tensor = 2 * (s.tp - 1) / s.tp * samples * sample_mb * (6 if decoder else 4) * tensor_ms
        gradients_mb = 2 * (s.dp - 1) / s.dp * k["parameters_mb"] / s.tp
        if s.sharded and self.two_hosts:
            gradients_mb /= 2
        exposed = 0.0
        if s.dp > 1:
            share = self.overlap_share(s, decoder)
            beside, travel = backward * share * slow, gradients_mb * data_ms * slow
            if travel > beside:
                left = (travel - beside) / slow
                once = s.pp > 1 and s.tp == 1 and not self.two_hosts and not s.sharded
                exposed = beside + (left / s.pp if once else left) - backward * share
            else:
                exposed = travel - travel / slow
            exposed += self.layout["overhead_ms"] / self.mean_layers
        work = forward + backward + tensor
        m = micro_batches(self.memory["micro_batches"], samples, s) if s.pp > 1 else 1
        once = work / m + exposed
        if s.sharded:
            once += gradients_mb * data_ms * (2 if self.two_hosts else 0.5)
        if s.pp > 1 and self.two_hosts:
            once += 2 * samples * sample_mb * self.machine["p2p_ms_per_mb"][str(s.pp)] / self.mean_layers
        factor = CONSTANTS["time_factor"] / 1000
        return once * factor, work * (m - 1) / m * factor

    def overlap_share(self, s, decoder):
        if s.tp == 1:
            return 1.0
        if s.pp > 1 and s.tp == 2 and s.dp == 2:
            return 0.5
        if decoder:
            return 2 / 3
        return 0.5 if s.dp == 2 else 1.0

    def change_seconds(self, batch, a, b):
        """Between neighbours in a stage: the activation, taken as 2 MB a sample, is gathered where b needs another part of it."""
        if (a.pp, a.tp, a.dp, a.near) == (b.pp, b.tp, b.dp, b.near) and a.sharded and not b.sharded:
            return 1e-4
        turned = a.dp > 1 and b.dp > 1 and a.tp > 1 and b.tp > 1 and a.near != b.near
        if self.two_hosts and self.uniform:
            back = turned and b.tp < a.tp
        else:
            back = turned and a.tp == 4 and b.tp == 2 and a.dp == 2
        if not (b.tp > a.tp or (turned and a.tp == b.tp) or back):
            return 0.0
        return (b.tp - 1) / b.tp * 2 * batch / b.dp * self.group_ms_per_mb(b)[1] / 1000

    def layer_mb(self, kind, batch, s):
        k = self.kinds[kind][0]
        states = 4 * k["parameters_mb"] / s.tp
        if s.sharded:
            states *= 1 / s.dp + self.machine["sharded_bias"]
        return math.ceil(states + k["activation_mb"][str(s.tp)] * batch / s.dp)

    def price(self, batch, stages):
        """Of a plan in s: (the tool's, the same with the slowest stage in place of the mean one)."""
        once, piped, layer = 0.0, [], 0
        for stage in stages:
            parts = [self.layer_parts(self.layers[layer + i], batch, s) for i, s in enumerate(stage)]
            once += sum(part[0] for part in parts) + sum(self.change_seconds(batch, a, b) for a, b in zip(stage, stage[1:]))
            piped.append(sum(part[1] for part in parts))
            layer += len(stage)
        return once + sum(piped) / len(piped), once + max(piped)

    def stage_mb(self, batch, stages):
        result, layer = self.other_mb(batch, len(stages)), 0
        for i, stage in enumerate(stages):
            result[i] += sum(self.layer_mb(self.layers[layer + j], batch, s) for j, s in enumerate(stage))
            layer += len(stage)
        return result

    def other_mb(self, batch, pp):
        """By stage. The tool takes the pure data-parallel strategy of the pipeline degree."""
        samples = batch / (self.gpus // pp)
        m = self.memory
        context = CONSTANTS["context_mb"]
        if not self.two_hosts:
            first = m["other_mb"][0] + m["other_mb"][1] * samples + context
            return [math.ceil(first)] * pp if self.uniform else [math.ceil(first)] + [0] * (pp - 1)
        result = [0.0] * pp
        if pp == 1:
            result[0] = m["other_mb"][0] + m["other_mb"][1] * samples
        else:
            chunks = micro_batches(m["micro_batches"], batch // (self.gpus // pp), Strategy(pp, 1, self.gpus // pp, True, False))
            saved = m["peak_reduction_mb"] * samples * (1 - 1 / min(chunks, batch // (self.gpus // pp)))
            first, last = m["first_mb"], m["last_mb"]
            language, swin = self.family in ("bert", "t5"), self.family == "swin"
            result[0] += first[0] + (first[1] * samples / pp if language else first[1] * samples - saved)
            result[-1] += last[0] + (last[1] * samples / pp if swin else last[1] * samples - saved)
        result = [math.ceil(mb + context) for mb in result]
        return [max(result)] * pp if self.uniform else result
