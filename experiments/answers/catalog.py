"""Plans every published model whose dimensions are known exactly, on 64 H100: how long, what ends."""
import collections
import json
import pathlib
import tempfile

import program as runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINE = ("--cluster", "dgx-h100", "--hosts", "8", "--global-batch", "512")
TOKENS = 4096  # a sequence, at the most
REPEATS = 3  # of a run over the bar, in case the machine was busy; the best counts


def models():
    """(name, config) as the tests of the importer hold them."""
    for path in sorted((ROOT / "tests/data/models").glob("*.json")):
        for row in json.loads(path.read_text())["models"]:
            yield row["name"], row["config"]


def command(program, name, config, folder):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    words = [program, "plan", "--model", path, *MACHINE]
    longest = config.get("max_position_embeddings", config.get("n_positions", 0))
    return words + (["--sequence-length", TOKENS] if longest > TOKENS else [])


def measure(arguments, name, config, folder):
    words = command(arguments.program, name, config, folder)
    took = "cpu_s" if arguments.clock == "cpu" else "wall_s"
    done = [runs.run(words, arguments.limit)]
    while getattr(done[-1], took) > arguments.bar and len(done) < REPEATS:
        done.append(runs.run(words, arguments.limit))
    result = {"model": name, "seconds": min(getattr(run, took) for run in done)}
    result["ends"] = end_of(done[0])
    if result["ends"].startswith(("refused", "failed")):
        result["why"] = done[0].stderr.strip().splitlines()[-1:]
    return result


def end_of(run):
    """As --json names it, which would prove the answer a second time."""
    said = run.stdout + run.stderr
    if run.code == 0:
        return "budget" if "stopped at its limit of effort" in said else "optimal"
    if run.code == 2 and "no plan fits" in said:
        return "infeasible"
    return "refused" if run.code == 1 and "error[E" in said else f"failed: exit code {run.code}"


def main(arguments):
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, config in models():
            results.append(measure(arguments, name, config, pathlib.Path(folder)))
            r = results[-1]
            print(f"{name}: {r['ends']}, {r['seconds']:.2f} s", *r.get("why", []), flush=True)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    slowest = sorted(results, key=lambda r: -r["seconds"])
    ends = collections.Counter(r["ends"] for r in results)
    late = [r for r in results if r["seconds"] > arguments.bar]
    failed = [r for r in results if r["ends"].startswith("failed")]
    text = f"{len(results)} models: " + ", ".join(f"{n} {e}" for e, n in ends.most_common())
    text += f"; {len(late)} over {arguments.bar:g} s of {arguments.clock} time\n\n"
    text += "| slowest | ends | s |\n|---|---|---|\n"
    text += "".join(f"| {r['model']} | {r['ends']} | {r['seconds']:.2f} |\n" for r in slowest[:10])
    if arguments.table:
        pathlib.Path(arguments.table).write_text(text)
    print("\n" + text)
    return 1 if late or failed else 0
