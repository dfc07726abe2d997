"""Holds the answer of `orrery plan` against every uniform plan of the same problem."""
import csv
import json
import pathlib
import re
import tempfile
import time

import program as runs
import uniform

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALWAYS_SAID = ("tp", "pp", "zero", "micro_batch", "recompute", "schedule")
BAR = 0.001  # share of the answer's step time by which a uniform plan may beat it


def of_model(name):
    """Experts of a catalog model; 0: none."""
    document = json.loads((ROOT / f"model/catalog/{name}.json").read_text())
    for key in ("num_local_experts", "n_routed_experts", "num_experts"):
        if key in document:
            return document[key]
    return 0


def describe_problem(program, pair):
    """Sizes that bound the rows: parameters and layers from a plan on one device."""
    in_bf16 = runs.problem_options(pair | {"precision": ""})
    command = [program, "simulate", *in_bf16, "--json", "--dp", "1"]
    found, done = runs.document(command)
    if found is None:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    topology, done = runs.document(
        [program, "topology", "show", pair["cluster"], "--hosts", pair["hosts"], "--json"]
    )
    if topology is None:
        raise SystemExit(f"topology {pair['cluster']}: {done.stderr}")
    memory = found["predicted"]["stages"][0]["memory_at_peak_bytes"]
    layers = sum(run["count"] for stage in found["plan"]["stages"] for run in stage["runs"])
    return {
        "devices": topology["devices"],
        "devices_per_host": topology["devices"] // int(pair["hosts"]),
        "layers": layers,
        "parameters": memory["parameter"] // 2,
        "experts": of_model(pair["model"]),
        "global_batch": int(pair["global_batch"]),
        "tokens": int(pair["sequence_length"] or 0),
        "memory_bytes": found["memory_limit_bytes"],
    }


def price(program, pair, rows):
    """{row: step time in seconds} of the rows that are plans and fit."""
    if not rows:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.csv"
        out = pathlib.Path(folder) / "results.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(uniform.COLUMNS)
            writer.writerows(rows)
        command = [program, "simulate", *runs.problem_options(pair), "--table", path, "--out", out]
        done = runs.run(command, limit_s=3600)
        if done.code not in (0, 1) or not out.exists():
            raise SystemExit(f"simulate --table: {done.stderr[-2000:]}")
        with out.open(newline="") as file:
            results = list(csv.DictReader(file))
    return {
        row: float(result["step_time_s"])
        for row, result in zip(rows, results, strict=True)
        if result["status"] == "ok"
    }


def row_of_plan(plan):
    """The uniform row nearest to a plan: the strategy of most layers."""
    counts = {}
    for stage in plan["stages"]:
        for run in stage["runs"]:
            key = json.dumps(run["strategy"], sort_keys=True)
            counts[key] = counts.get(key, 0) + run["count"]
    layer = json.loads(max(counts, key=counts.get))
    virtual = plan.get("virtual_stages", 1)
    dp = layer["dp"]
    return uniform.Row(
        tp=layer["tp"],
        pp=len(plan["stages"]) // virtual,
        cp=layer.get("cp", 1),
        ep=layer.get("ep", 1),
        folded="yes" if layer.get("folded") else "no",
        zero=layer["zero"],
        grad_reduce=layer["grad_reduce"],
        sequence_parallel="yes" if layer["sequence_parallel"] else "no",
        tensor_pieces=layer.get("tensor_pieces", 1),
        recompute=layer["recompute"],
        micro_batch=plan["global_batch"] // plan["micro_batches"] // dp,
        schedule=plan["schedule"],
        virtual_stages=virtual,
    )


def cheapest(priced, count):
    return sorted(priced, key=lambda row: (priced[row], row))[:count]


def price_all(program, pair, problem, answer_row, limit):
    """Every row up to `limit`; of more rows a sample, then what is near the fastest of it."""
    rows = uniform.grid(problem)
    if len(rows) <= limit:
        return price(program, pair, rows), len(rows), len(rows)
    chosen = uniform.sample(rows, limit // 2, seed=json.dumps(pair, sort_keys=True))
    known = set(chosen)
    priced = price(program, pair, chosen)
    while len(known) < limit:
        best = cheapest(priced, 12) + [answer_row]
        near = uniform.neighbours(rows, best, known, min(limit - len(known), limit // 8))
        if not near:
            break
        known.update(near)
        priced.update(price(program, pair, near))
    return priced, len(known), len(rows)


def flags(row):
    """A row as options of `orrery simulate`."""
    words = []
    for column, value in row._asdict().items():
        option = "--" + column.replace("_", "-")
        if column in ("folded", "sequence_parallel"):
            words += [option] if value == "yes" else []
        elif column in ALWAYS_SAID or value != getattr(uniform.PLAIN, column):
            words += [option, str(value)]
    return words


def one_line(row):
    text = f"tp{row.tp} pp{row.pp} zero{row.zero} micro-batch {row.micro_batch} {row.schedule}"
    text += f" v{row.virtual_stages}" if row.virtual_stages > 1 else ""
    text += f" cp{row.cp}" if row.cp > 1 else ""
    text += f" ep{row.ep}" if row.ep > 1 else ""
    text += " folded" if row.folded == "yes" else ""
    text += " sp" if row.sequence_parallel == "yes" else ""
    text += f" pieces={row.tensor_pieces}" if row.tensor_pieces > 1 else ""
    text += f" reduce={row.grad_reduce}" if row.grad_reduce != "step" else ""
    return text + (f" recompute={row.recompute}" if row.recompute != "none" else "")


def measure(program, pair, limit):
    """One pair: the answer, the fastest uniform plan, and what it took."""
    start = time.perf_counter()
    problem = describe_problem(program, pair)
    command = [program, "plan", *runs.problem_options(pair), "--json"]
    answer, done = runs.document(command, limit_s=600)
    result = {"pair": pair, "plan_s": done.wall_s, "answer_s": None}
    if done.killed:
        result["answer"] = "did not end in 600 s"
        return result
    if answer is None:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    answer_row = None
    result["answer"] = answer["status"]
    if "plan" in answer:
        result["answer_s"] = answer["predicted"]["step_time_ps"] / 1e12
        result["answer_plan"] = answer["plan"]
        result["bound_s"] = answer["search"]["certificate"]["bound_ps"] / 1e12
        answer_row = row_of_plan(answer["plan"])
    # The search has pieces where the software of the devices overlaps them; without an answer none
    # are needed, they save no memory.
    proofs = answer["search"]["certificate"].get("proofs", [])
    problem["tensor_overlap"] = any(proof["space"]["tensor_overlap"] for proof in proofs)
    seed_row = answer_row or uniform.PLAIN
    priced, rows, all_rows = price_all(program, pair, problem, seed_row, limit)
    result.update(rows=rows, grid=all_rows, fitting=len(priced))
    result.update(fastest(program, pair, priced))
    if result.get("uniform_s") and result["answer_s"]:
        result["beaten_by"] = 1 - result["uniform_s"] / result["answer_s"]
    elif result.get("uniform_s"):
        result["beaten_by"] = 1.0  # the answer is that nothing fits
    result["seconds"] = time.perf_counter() - start
    return result


def fastest(program, pair, priced):
    """What is said of the fastest row."""
    each_step = {row: ps for row, ps in priced.items() if row.grad_reduce == "step"}
    others = [row for row in cheapest(priced, 12) if row not in each_step]
    times = {row: simulated(program, pair, row) for row in cheapest(each_step, 1) + others}
    times = {row: seconds for row, seconds in times.items() if seconds is not None}
    if not times:
        return {}
    row = cheapest(times, 1)[0]
    found = {"uniform": one_line(row), "uniform_s": times[row]}
    found["command"] = " ".join(["orrery simulate", *runs.problem_options(pair), *flags(row)])
    if row in each_step and abs(times[row] - priced[row]) > 1e-9 * priced[row]:
        found["table_s"] = priced[row]
    return found


def simulated(program, pair, row):
    """The row once more, by its flags: no table between. Where its layers reduce gradients in every
    micro-batch, embedding and head still do so once a step, as in all plans that a search looks at;
    None where that does not fit.
    """
    command = [program, "simulate", *runs.problem_options(pair), *flags(row), "--json"]
    found, done = runs.document(command)
    if found is not None and row.grad_reduce != "step":
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.json"
            found["plan"]["vocabulary"]["grad_reduce"] = "step"
            path.write_text(json.dumps(found["plan"]))
            where = {c: pair.get(c) for c in ("model", "memory", "profile")}
            command = [program, "simulate", "--plan", path, *runs.problem_options(where), "--json"]
            found, done = runs.document(command)
        if found is not None and found["status"] == "infeasible":
            return None
    if found is None or found["status"] != "ok":
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return found["predicted"]["step_time_ps"] / 1e12


def problem_text(pair):
    hosts = "" if pair["hosts"] == "1" else f"{pair['hosts']} × "
    text = f"{pair['model']} | {hosts}{pair['cluster']} | {pair['global_batch']} | "
    text += pair["sequence_length"] or "its own"
    return text + "".join(f", {pair[c]}" for c in ("memory", "precision") if pair.get(c))


def seconds_text(value):
    return "none" if value is None else f"{value:.6g}"


def table(results):
    """The results as Markdown, beaten answers marked."""
    lines = [
        "| model | cluster | batch | tokens | answer s | fastest uniform s | uniform is faster by "
        "| rows | of | fit | plan | sweep |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        beaten = r.get("beaten_by")
        share = "" if beaten is None else f"{100 * beaten:+.2f} %"
        if beaten is not None and beaten > BAR:
            share = f"**{share}**"
        lines.append(
            f"| {problem_text(r['pair'])} | {seconds_text(r['answer_s'])} "
            f"| {seconds_text(r.get('uniform_s'))}: {r.get('uniform', '')} | {share} "
            f"| {r.get('rows', '')} | {r.get('grid', '')} | {r.get('fitting', '')} "
            f"| {r['plan_s']:.2f} s | {r.get('seconds', 0):.0f} s |"
        )
    return "\n".join(lines)


def beaten(results):
    return [r for r in results if r.get("beaten_by", 0) > BAR or r.get("answer_s") is None]


def read_pairs(path, wanted):
    with pathlib.Path(path).open(newline="") as file:
        pairs = list(csv.DictReader(file))
    if wanted:
        pattern = re.compile(wanted)
        pairs = [p for p in pairs if pattern.search(" ".join(p.values()))]
    return pairs


def main(arguments):
    results = []
    for pair in read_pairs(arguments.pairs, arguments.only):
        results.append(measure(arguments.program, pair, arguments.rows))
        print(table(results[-1:]).splitlines()[-1], flush=True)
        if arguments.out:
            pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    worse = beaten(results)
    text = table(results)
    text += f"\n\n{len(results) - len(worse)} of {len(results)} answers hold: no uniform plan is "
    text += f"faster by more than {100 * BAR} %\n"
    for r in worse:
        text += f"\n    {r.get('command', 'no answer: ' + r['answer'])}\n"
    if arguments.table:
        pathlib.Path(arguments.table).write_text(text)
    print("\n" + text)
    return 1 if worse else 0
