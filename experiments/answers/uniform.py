"""All uniform plans of a problem: one strategy for every layer, layers spread evenly.

A row is a plan as `orrery simulate --table` reads it. A problem has

    tp, pp, dp    every factorisation of its devices, dp the rest
    cp            1; from 32,768 tokens on 2, 4, 8, ... 64 too, by ring
    micro_batch   every divisor of global batch / dp
    zero          0 ... 3 where cp * dp > 1
    grad_reduce   step; of zero 2 and 3 with several micro-batches micro_batch too
    recompute     none, selective, full
    sequence_parallel   where tp > 1; then tensor_pieces 1, and 4 where the search has them (by the
                  space that its answer states) and cp = 1
    ep            of mixtures: every common divisor of cp * dp and the experts; with
                  sequence parallelism folded too: of tp * cp * dp and the experts
    schedule      1f1b, gpipe, zb-h1 where pp > 1, and interleaved with v = 2 ... 24 virtual stages
                  where pp divides the micro-batches and pp * v is at most the layers

What of these no plan may be (heads that tp does not divide) the table itself says. Rows that hold
more bytes of parameters and optimizer than the device has are left out: a bound from below, with
16 bytes a parameter (bf16 training keeps 16 or 18).
"""
import collections
import itertools
import random

COLUMNS = (
    "tp", "pp", "cp", "ep", "folded", "zero", "grad_reduce", "sequence_parallel", "tensor_pieces",
    "recompute", "micro_batch", "schedule", "virtual_stages",
)  # fmt: skip
Row = collections.namedtuple("Row", COLUMNS)
DECISIONS = [(c,) for c in COLUMNS[:-2]] + [COLUMNS[-2:]]  # a schedule and its virtual stages
PLAIN = Row(1, 1, 1, 1, "no", 0, "step", "no", 1, "none", 1, "1f1b", 1)
RECOMPUTES = ("none", "selective", "full")
LONG_SEQUENCE = 32768  # tokens from which a search looks at rings
TENSOR_PIECES = 4  # what a search looks at beside 1, without a ring
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


def least_bytes(problem, tp, pp, replicas, ep, folded, zero):
    """Of parameters, gradients and optimizer on a device, were layers and experts spread best."""
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[zero]  # of the 16 bytes a parameter: what is sharded
    split = max(tp, ep) if folded else tp * ep
    return problem["parameters"] / pp * ((16 - shared) / split + shared / (tp * replicas))


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


def splits_of_tensor(problem, tp, cp, replicas):
    """(sequence parallelism, pieces, ep, folded) of a tensor degree and what is left."""
    degrees = divisors(problem["experts"] or 1)
    plain = [(e, "no") for e in degrees if replicas % e == 0]
    if tp == 1:
        return [("no", 1, *of_experts) for of_experts in plain]
    folded = [(e, "yes") for e in degrees if problem["experts"] and tp * replicas % e == 0]
    found = [("no", 1, *of_experts) for of_experts in plain]
    pieces = (1, TENSOR_PIECES) if problem["tensor_overlap"] and cp == 1 else (1,)
    found += [("yes", n, *of_experts) for n in pieces for of_experts in plain + folded]
    return found


def shardings(replicas, micro_batches):
    """(zero, when gradients are reduced)."""
    found = [(zero, "step") for zero in (range(4) if replicas > 1 else (0,))]
    if replicas > 1 and micro_batches > 1:
        found += [(zero, "micro_batch") for zero in (2, 3)]
    return found


def of_degrees(problem, tp, pp, cp, dp):
    batch, replicas = problem["global_batch"], cp * dp
    rows = []
    for b in divisors(batch // dp):
        in_time = schedules(pp, problem["layers"], batch // dp // b)
        for zero, reduce in shardings(replicas, batch // dp // b):
            for sp, pieces, ep, folded in splits_of_tensor(problem, tp, cp, replicas):
                least = least_bytes(problem, tp, pp, replicas, ep, folded == "yes", zero)
                if least > problem["memory_bytes"]:
                    continue
                rows += [
                    Row(tp, pp, cp, ep, folded, zero, reduce, sp, pieces, recompute, b, *order)
                    for recompute, order in itertools.product(RECOMPUTES, in_time)
                ]
    return rows


def sample(rows, count, seed):
    """At most `count` of the rows, the same for the same seed, in their order."""
    if len(rows) <= count:
        return list(rows)
    chosen = random.Random(seed).sample(range(len(rows)), count)
    return [rows[i] for i in sorted(chosen)]


def changed(row, decisions, values):
    """Rows with other values of these decisions."""
    for chosen in itertools.product(*(values[d] for d in decisions)):
        fields = {}
        for names, of_names in zip(decisions, chosen):
            fields.update(zip(names, of_names))
        yield row._replace(**fields)


def neighbours(rows, best, known, count):
    """Unpriced rows that differ from one of `best` in one decision, or in two; nearest first."""
    place = {row: i for i, row in enumerate(rows)}
    values = {d: sorted({tuple(getattr(row, c) for c in d) for row in rows}) for d in DECISIONS}
    found, taken = [], set()
    for width in (1, 2):
        near = set()
        for row, of_row in itertools.product(best, itertools.combinations(DECISIONS, width)):
            near.update(r for r in changed(row, of_row, values) if r in place)
        new = sorted(near - known - taken, key=place.get)
        taken.update(new)
        found += new
    return found[:count]
