"""All uniform plans of a problem: one strategy for every layer, layers spread evenly.

A row is a plan as `orrery simulate --table` reads it. A problem has

    tp, pp, dp    every factorisation of its devices, dp the rest
    cp            1; from 32,768 tokens on 2, 4, 8, ... 64 too, by ring
    micro_batch   every divisor of global batch / dp
    zero          0 ... 3 where cp * dp > 1
    recompute     none, selective, full
    sequence_parallel   where tp > 1
    ep            of mixtures: every common divisor of dp and the experts
    schedule      1f1b, gpipe, zb-h1 where pp > 1, and interleaved with v = 2 ... 24 virtual stages
                  where pp divides the micro-batches and pp * v is at most the layers

What of these no plan may be (heads that tp does not divide) the table itself says. Rows that hold
more bytes of parameters and optimizer than the device has are left out: a bound from below, with
16 bytes a parameter (bf16 training keeps 16 or 18).
"""
import random

COLUMNS = (
    "tp", "pp", "cp", "ep", "zero", "sequence_parallel", "recompute", "micro_batch", "schedule",
    "virtual_stages",
)  # fmt: skip
RECOMPUTES = ("none", "selective", "full")
LONG_SEQUENCE = 32768  # tokens from which a search looks at rings
VIRTUAL_STAGES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def schedules(pp, layers, micro_batches):
    """(schedule, virtual stages) that a pipeline of `pp` ranks may have."""
    if pp == 1:
        return [("1f1b", 1)]
    found = [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1)]
    if micro_batches % pp == 0:
        found += [("interleaved", v) for v in VIRTUAL_STAGES if pp * v <= layers]
    return found


def context_degrees(problem, devices):
    if problem["tokens"] < LONG_SEQUENCE:
        return [1]
    return [c for c in (1, 2, 4, 8, 16, 32, 64) if devices % c == 0]


def least_bytes(problem, tp, pp, dp, ep, zero):
    """Of parameters, gradients and optimizer on a device, were layers and experts spread best."""
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[zero]  # of the 16 bytes a parameter: what dp divides
    return problem["parameters"] / (tp * pp) * ((16 - shared) / ep + shared / dp)


def grid(problem):
    """All rows, in a fixed order."""
    devices, layers, batch = problem["devices"], problem["layers"], problem["global_batch"]
    rows = []
    for tp in divisors(devices):
        if tp > problem["devices_per_host"]:
            continue
        for pp in divisors(devices // tp):
            for cp in context_degrees(problem, devices // tp // pp):
                dp = devices // tp // pp // cp
                if pp <= layers and batch % dp == 0:
                    rows += of_degrees(problem, tp, pp, cp, dp)
    return rows


def of_degrees(problem, tp, pp, cp, dp):
    layers, batch = problem["layers"], problem["global_batch"]
    replicas = cp * dp
    experts = [e for e in divisors(problem["experts"] or 1) if replicas % e == 0]
    rows = []
    for ep in experts:
        for zero in range(4) if replicas > 1 else (0,):
            if least_bytes(problem, tp, pp, replicas, ep, zero) > problem["memory_bytes"]:
                continue
            for b in divisors(batch // dp):
                for schedule, virtual in schedules(pp, layers, batch // dp // b):
                    for recompute in RECOMPUTES:
                        for sp in ("no", "yes") if tp > 1 else ("no",):
                            rows.append((tp, pp, cp, ep, zero, sp, recompute, b, schedule, virtual))
    return rows


def distance(a, b):
    """How many decisions differ; a schedule and its virtual stages are one."""
    return sum(x != y for x, y in zip(a[:-2], b[:-2])) + (a[-2:] != b[-2:])


def sample(rows, count, seed):
    """At most `count` of the rows, the same for the same seed, in their order."""
    if len(rows) <= count:
        return list(rows)
    chosen = random.Random(seed).sample(range(len(rows)), count)
    return [rows[i] for i in sorted(chosen)]


def neighbours(rows, best, known, count):
    """Unpriced rows that differ from one of `best` in one decision, or in two; nearest first."""
    found = []
    for row in rows:
        if row in known:
            continue
        near = min(distance(row, other) for other in best)
        if near <= 2:
            found.append((near, row))
    found.sort(key=lambda pair: pair[0])
    return [row for _, row in found[:count]]
