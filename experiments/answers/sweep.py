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
    command = [program, "simulate", *runs.problem_options(pair), "--json", "--dp", "1"]
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
    return (
        layer["tp"],
        len(plan["stages"]) // virtual,
        layer.get("cp", 1),
        layer.get("ep", 1),
        layer["zero"],
        "yes" if layer["sequence_parallel"] else "no",
        layer["recompute"],
        plan["global_batch"] // plan["micro_batches"] // dp,
        plan["schedule"],
        virtual,
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
    tp, pp, cp, ep, zero, sp, recompute, micro_batch, schedule, virtual = row
    words = ["--tp", tp, "--pp", pp, "--zero", zero, "--micro-batch", micro_batch,
             "--recompute", recompute, "--schedule", schedule]  # fmt: skip
    if cp > 1:
        words += ["--cp", cp]
    if ep > 1:
        words += ["--ep", ep]
    if virtual > 1:
        words += ["--virtual-stages", virtual]
    if sp == "yes":
        words.append("--sequence-parallel")
    return [str(word) for word in words]


def one_line(row):
    tp, pp, cp, ep, zero, sp, recompute, micro_batch, schedule, virtual = row
    text = f"tp{tp} pp{pp} zero{zero} micro-batch {micro_batch} {schedule}"
    text += f" v{virtual}" if virtual > 1 else ""
    text += f" cp{cp}" if cp > 1 else ""
    text += f" ep{ep}" if ep > 1 else ""
    text += " sp" if sp == "yes" else ""
    return text + (f" recompute={recompute}" if recompute != "none" else "")


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
    seed_row = answer_row or (1, 1, 1, 0, "no", "none", 1, "1f1b", 1)
    priced, rows, all_rows = price_all(program, pair, problem, seed_row, limit)
    result.update(rows=rows, grid=all_rows, fitting=len(priced))
    if priced:
        fastest = cheapest(priced, 1)[0]
        result["uniform"] = one_line(fastest)
        result["uniform_s"] = simulated(program, pair, fastest)
        result["command"] = " ".join(
            ["orrery simulate", *runs.problem_options(pair), *flags(fastest)]
        )
        if abs(result["uniform_s"] - priced[fastest]) > 1e-9 * priced[fastest]:
            result["table_s"] = priced[fastest]
    if result.get("uniform_s") and result["answer_s"]:
        result["beaten_by"] = 1 - result["uniform_s"] / result["answer_s"]
    elif priced:
        result["beaten_by"] = 1.0  # the answer is that nothing fits
    result["seconds"] = time.perf_counter() - start
    return result


def simulated(program, pair, row):
    """The row once more, by its flags: no table between."""
    command = [program, "simulate", *runs.problem_options(pair), *flags(row), "--json"]
    found, done = runs.document(command)
    if found is None or found["status"] != "ok":
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return found["predicted"]["step_time_ps"] / 1e12


def problem_text(pair):
    hosts = "" if pair["hosts"] == "1" else f"{pair['hosts']} × "
    text = f"{pair['model']} | {hosts}{pair['cluster']} | {pair['global_batch']} | "
    text += pair["sequence_length"] or "its own"
    return text + (f", {pair['memory']}" if pair.get("memory") else "")


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
