"""The fastest plan of a row under the tool's tables: over batches, pipeline degrees, partitions and layer strategies.

A step takes (tables.py, layer_parts)
    tool's price     sum of once over all layers and of change_seconds in stages  +  mean over stages of their sum of piped
    slowest stage    the same with the maximum in place of the mean: what a pipeline of uneven stages takes
The first is a sum over layers, so it is minimised exactly; it bounds the second from below. The plan of most batch / seconds
whose stages, layers + other_mb, keep the limit in whole MB.

A stage is an `orrery.instance/1`, solved by `orrery solve`, its certificate checked. Around it:
* pairs (pipeline degree, batch) in the order of a lower bound: the linear relaxation of the whole model in the memory of all stages;
* partitions: dynamic program over cuts, f[i][e] = min over s of f[i-1][s] + stage(s, e). A stage first counts with its relaxation
  and is solved only when it is part of the best partition; once that one is solved throughout, it is optimal. Equal prices: the
  partition whose slowest stage computes least;
* slowest stage: the same program again and again, without the stages that compute as long as the longest of the last answer,
  until its price, a lower bound, reaches the best found. Exact where each layer has one option; else the gap is printed.
"""
import json
import math
import pathlib
import subprocess
import tempfile
from typing import NamedTuple

from tables import Tables, strategies

MB = 2**20
STEP = 8  # the tool's batches are multiples of 8, in some searches on two hosts of 16 or 32


def space(name, gpus):
    """The strategies of a baseline, by pipeline degree."""
    allowed = {
        "full": lambda s: True,
        "dp+tp": lambda s: s.pp == 1 and not s.sharded,
        "dp+pp": lambda s: s.tp == 1 and not s.sharded,
        "dp": lambda s: s.dp == gpus and not s.sharded,
        "sdp": lambda s: s.dp == gpus and s.sharded,
        "tp": lambda s: s.tp == gpus,
        "pp": lambda s: s.pp == gpus,
        "3d": lambda s: (s.pp, s.tp, s.near, s.sharded) == (2, 2, True, False),
    }[name]
    result = {}
    for pp in (2**e for e in range(gpus.bit_length())):
        options = [s for s in strategies(gpus, pp) if allowed(s)]
        if options:
            result[pp] = options
    return result


def ps(seconds):
    return math.ceil(seconds * 1e12)


class Layers:
    """The table of one (model, batch, pipeline degree): options[kind] = [(time_ps, mb)], change[from][to] in ps."""

    def __init__(self, tables, batch, options):
        kinds = range(len(tables.kinds))
        self.strategies = options
        self.options = [[(ps(tables.layer_seconds(k, batch, s)), tables.layer_mb(k, batch, s)) for s in options] for k in kinds]
        self.piped = [[tables.layer_parts(k, batch, s)[1] for s in options] for k in kinds]
        self.change = [[ps(tables.change_seconds(batch, a, b)) if a != b else 0 for b in options] for a in options]
        self.hulls = [hull(o) for o in self.options]
        self.fastest = [min(range(len(o)), key=lambda i: o[i]) for o in self.options]


def hull(options):
    """Lower convex hull of (mb, time): the point of least memory, then steps (mb more, ps less) of falling worth."""
    points = []
    for time, mb in sorted(options, key=lambda o: (o[1], o[0])):
        if points and time >= points[-1][1]:
            continue
        while len(points) > 1:
            (m0, t0), (m1, t1) = points[-2:]
            if (t0 - t1) * (mb - m1) > (t1 - time) * (m1 - m0):
                break
            points.pop()
        points.append((mb, time))
    return points[0], [(b[0] - a[0], a[1] - b[1]) for a, b in zip(points, points[1:])]


def relaxed(layers, counts, budget_mb):
    """Lower bound of a stage in ps (changes are free, fractions of layers allowed), None when nothing fits."""
    mb = sum(n * layers.hulls[k][0][0] for k, n in counts)
    if mb > budget_mb:
        return None
    time = sum(n * layers.hulls[k][0][1] for k, n in counts)
    steps = [(gain / more, more * n, gain * n) for k, n in counts for more, gain in layers.hulls[k][1]]
    for _, more, gain in sorted(steps, reverse=True):
        if mb + more > budget_mb:
            return time - gain * (budget_mb - mb) // more - 1
        mb += more
        time -= gain
    return time


class Stage(NamedTuple):
    time_ps: int
    mb: int
    choices: tuple  # index of each layer's option
    piped: float  # s


def stage_of(layers, counts, choices):
    kinds = [k for k, n in counts for _ in range(n)]
    options = [layers.options[k][c] for k, c in zip(kinds, choices)]
    change = sum(layers.change[a][b] for a, b in zip(choices, choices[1:]))
    return Stage(sum(o[0] for o in options) + change, sum(o[1] for o in options), choices, sum(layers.piped[k][c] for k, c in zip(kinds, choices)))


class Solver:
    """Stages solved by the program, each once."""

    def __init__(self, orrery):
        self.orrery = orrery
        self.known = {}

    def solve(self, key, layers, counts, budget_mb):
        key = (key, counts, budget_mb)
        if key not in self.known:
            self.known[key] = self.run(layers, counts, budget_mb)
        return self.known[key]

    def run(self, layers, counts, budget_mb):
        names = [str(s) for s in layers.strategies]
        option = lambda name, o: {"name": name, "time_ps": o[0], "memory_bytes": o[1] * MB}
        document = {
            "schema": "orrery.instance/1",
            "budget_bytes": budget_mb * MB,
            "layers": [{"count": n, "options": [option(*pair) for pair in zip(names, layers.options[k])]} for k, n in counts],
            "transition_ps": layers.change,
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "instance.json"
            path.write_text(json.dumps(document))
            run = subprocess.run([self.orrery, "solve", path, "--json", "--check"], capture_output=True, text=True, check=False)
        if run.returncode == 2:
            return None
        answer = json.loads(run.stdout) if run.returncode == 0 else {}
        if answer.get("status") != "optimal" or not answer["check"]["holds"]:
            raise RuntimeError(f"{self.orrery} solve: {run.stderr or run.stdout}")
        stage = stage_of(layers, counts, tuple(answer["choice_indices"]))
        if (stage.time_ps, stage.mb * MB) != (answer["time_ps"], answer["memory_bytes"]):
            raise RuntimeError(f"{self.orrery} solve: its choices do not sum to its answer")
        return stage


class Plan(NamedTuple):
    batch: int
    cost_ps: int  # what the search minimised
    stages: tuple  # of tuples of Strategy


class Pipeline:
    """All partitions of one (model, batch, pipeline degree, limit)."""

    def __init__(self, solver, key, tables, layers, limit_mb):
        self.solver, self.key, self.tables, self.layers = solver, key, tables, layers
        self.batch, self.pp = key[2], key[3]
        self.other = tables.other_mb(self.batch, self.pp)
        self.budgets = [limit_mb - other for other in self.other]
        self.values = {}  # (start, end, budget) -> [lower bound in ps or None, solved stage or None]

    def places(self):
        """Where each stage may begin and end."""
        count, pp = len(self.tables.layers), self.pp
        begins = lambda i: range(i, count - pp + i + 1) if i else (0,)
        ends = lambda i, s: range(s + 1, count - pp + i + 2) if i + 1 < pp else (count,)
        return [[(s, e) for s in begins(i) for e in ends(i, s)] for i in range(pp)]

    def value(self, place):
        if place not in self.values:
            start, end, budget = place
            counts = self.tables.counts(start, end)
            obvious = self.obvious(counts, budget)
            self.values[place] = [obvious.time_ps if obvious else relaxed(self.layers, counts, budget), obvious]
        return self.values[place]

    def obvious(self, counts, budget):
        """The stage where every layer may take its fastest option and nothing changes; None when that is not so."""
        layers = self.layers
        mb = sum(n * layers.options[k][layers.fastest[k]][1] for k, n in counts)
        choices = [layers.fastest[k] for k, _ in counts]
        if mb > budget or any(layers.change[a][b] for a, b in zip(choices, choices[1:])):
            return None
        return stage_of(layers, counts, tuple(c for c, (_, n) in zip(choices, counts) for _ in range(n)))

    def route(self, places, longest):
        """Least (price, slowest stage's price), and its places; stages known to compute `longest` s or more are left out."""
        front = {0: (0, 0, ())}
        for stage_places, budget in zip(places, self.budgets):
            after = {}
            for start, end in stage_places:
                before = front.get(start)
                if before is None:
                    continue
                place = (start, end, budget)
                time, stage = self.value(place)
                if time is None or (stage and stage.piped >= longest):
                    continue
                label = (before[0] + time, max(before[1], time), before[2] + (place,))
                if end not in after or label < after[end]:
                    after[end] = label
            front = after
        return front.get(len(self.tables.layers))

    def least(self, cap=math.inf, longest=math.inf):
        """(price in ps, stages) of the best partition, None when none is below cap."""
        places = self.places()
        while True:
            route = self.route(places, longest)
            if route is None or route[0] >= cap:
                return None
            unsolved = [place for place in route[2] if self.values[place][1] is None]
            if not unsolved:
                return route[0], [self.values[place][1] for place in route[2]]
            for start, end, budget in unsolved:
                stage = self.solver.solve(self.key, self.layers, self.tables.counts(start, end), budget)
                self.values[start, end, budget] = [stage.time_ps, stage] if stage else [None, None]

    def least_slowest(self, cap=math.inf):
        """The same for the price with the slowest stage."""
        best, longest = None, math.inf
        while True:
            answer = self.least(cap, longest)
            if answer is None:
                return best
            longest = max(stage.piped for stage in answer[1])
            mean = sum(stage.piped for stage in answer[1]) / self.pp
            cost = answer[0] + ps(longest - mean)
            if cost < cap:
                best, cap = (cost, answer[1]), cost
            if self.pp == 1:
                return best

    def plan(self, answer):
        stages = tuple(tuple(self.layers.strategies[c] for c in stage.choices) for stage in answer[1])
        return Plan(self.batch, answer[0], stages)


class Search:
    def __init__(self, orrery):
        self.solver = Solver(orrery)
        self.known_tables = {}
        self.known_layers = {}

    def tables(self, model, gpus):
        if (model, gpus) not in self.known_tables:
            self.known_tables[model, gpus] = Tables(model, gpus)
        return self.known_tables[model, gpus]

    def pipelines(self, tables, model, gpus, limit_mb, space_name):
        """(lower bound in ps per sample, Pipeline), best first."""
        result = []
        for pp, options in space(space_name, gpus).items():
            for batch in range(STEP, 1 << 20, STEP):
                if batch % (gpus // pp):
                    continue
                key = (model, gpus, batch, pp, tuple(options))
                if key not in self.known_layers:
                    self.known_layers[key] = Layers(tables, batch, options)
                pipeline = Pipeline(self.solver, key, tables, self.known_layers[key], limit_mb)
                bound = relaxed(pipeline.layers, tables.counts(0, len(tables.layers)), sum(pipeline.budgets))
                if min(pipeline.budgets) < 0 or bound is None:
                    break  # activations grow with the batch
                result.append((bound / batch, pp, batch, pipeline))
        return [(bound, pipeline) for bound, _, _, pipeline in sorted(result, key=lambda r: r[:3])]

    def best(self, model, gpus, limit_mb, space_name):
        """(best by the tool's price, best by that with the slowest stage), None when nothing fits."""
        tables = self.tables(model, gpus)
        best = [None, None]
        for bound, pipeline in self.pipelines(tables, model, gpus, limit_mb, space_name):
            if best[1] and bound >= best[1].cost_ps / best[1].batch:
                break
            for which, program in enumerate((pipeline.least, pipeline.least_slowest)):
                found = best[which]
                answer = program(-(-found.cost_ps * pipeline.batch // found.batch) if found else math.inf)
                if answer and (not found or answer[0] * found.batch < found.cost_ps * pipeline.batch):
                    best[which] = pipeline.plan(answer)
        return best
