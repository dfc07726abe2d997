"""Random requests over the catalogs: every search ends within the bar.

An end is an answer (exit code 0), "infeasible" (2), or an error of input that says so (1 with a
diagnostic). Anything else, a signal or another code, is a crash.
"""
import json
import pathlib
import random
import time

import program as runs
import sweep

AWKWARD = (2016, 1000, 997, 30030, 1, 7, 24, 360, 1155, 4095, 2310, 1536, 6000, 10007)
FIXED_LENGTH = ("vit", "swin")  # an image is what it is
FIXED_HOSTS = {"mixed-h100-a100": 32, "h100-torus-4x4x4": 64}  # their files count them


def random_hosts(rng):
    kind = rng.random()
    if kind < 0.3:
        return 1
    if kind < 0.7:
        return 2 ** rng.randint(1, 11)
    return round(2 ** rng.uniform(1, 11))


def random_batch(rng, devices_guess):
    kind = rng.random()
    if kind < 0.35:
        return 2 ** rng.randint(3, 13)
    if kind < 0.6:
        return rng.choice(AWKWARD)
    if kind < 0.85:
        return devices_guess * rng.choice((1, 2, 3, 4, 6, 8, 10, 12))
    return round(2 ** rng.uniform(0, 14))


def longest_sequence(model):
    """Tokens that a catalog model allows, 0: of an image model, which has but one length."""
    document = json.loads((sweep.ROOT / f"model/catalog/{model}.json").read_text())
    if document["model_type"] in FIXED_LENGTH:
        return 0
    for key in ("max_position_embeddings", "n_positions"):
        if key in document:
            return document[key]
    return 2048


def random_request(rng, models, clusters):
    """Options of one `orrery plan`."""
    model, cluster = rng.choice(models), rng.choice(clusters)
    hosts = random_hosts(rng)
    if cluster in FIXED_HOSTS and rng.random() < 0.9:  # else a clear error of input
        hosts = FIXED_HOSTS[cluster]
    options = ["--model", model, "--cluster", cluster, "--hosts", str(hosts)]
    options += ["--global-batch", str(random_batch(rng, 8 * hosts))]
    longest = longest_sequence(model)
    if longest and rng.random() < 0.8:
        lengths = [n for n in (128, 512, 1000, 1024, 2048, 4096, 8192, 32768) if n <= longest]
        options += ["--sequence-length", str(rng.choice(lengths))]
    if rng.random() < 0.15:
        options += ["--memory", rng.choice(("8GiB", "16GiB", "24GiB", "36GiB", "60GiB"))]
    if rng.random() < 0.1:
        options += ["--precision", "fp32"]
    return options


def outcome(done):
    if done.killed:
        return "killed"
    if done.code in (0, 2):
        try:
            status = json.loads(done.stdout)["status"]
        except (json.JSONDecodeError, KeyError):
            return f"crash: exit code {done.code} without a document"
        return status
    if done.code == 1 and "error" in done.stderr:
        return "input error"
    return f"crash: exit code {done.code}: {done.stderr.strip()[-300:]}"


def quantile(ordered, q):
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def report(results, bar, clock):
    times = sorted(r[f"{clock}_s"] for r in results)
    lines = [f"{len(results)} requests", ""]
    counts = {}
    for r in results:
        key = r["outcome"].split(":")[0]
        counts[key] = counts.get(key, 0) + 1
    lines += [f"* {key}: {count}" for key, count in sorted(counts.items())]
    spread = ", ".join(
        f"{name} {quantile(times, q):.3f} s"
        for name, q in (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("slowest", 1.0))
    )
    late = sum(t > bar for t in times)
    lines += [f"* {clock} time: {spread}; {late} above {bar:g} s", "", "Slowest:", ""]
    for r in sorted(results, key=lambda r: -r[f"{clock}_s"])[:10]:
        lines.append(f"    {r[f'{clock}_s']:7.2f} s  {r['outcome']:<12}  {r['command']}")
    bad = [r for r in results if r["outcome"].startswith("crash")]
    lines += [f"    {r['outcome']}\n        {r['command']}" for r in bad]
    return "\n".join(lines) + "\n"


def main(arguments):
    models = runs.names(arguments.program, "models")
    clusters = runs.names(arguments.program, "clusters")
    clusters = [name for name in clusters if name != "local"]  # this machine: not every one's
    start = time.perf_counter()
    time_of = f"{arguments.clock}_s"
    results = []
    for index in range(arguments.first, arguments.first + arguments.count):
        if arguments.budget and time.perf_counter() - start > arguments.budget:
            break
        rng = random.Random(f"{arguments.seed}/{index}")
        options = random_request(rng, models, clusters)
        done = runs.run([arguments.program, "plan", *options, "--json"],
                        arguments.limit, arguments.clock)
        results.append({
            "index": index, "command": "orrery plan " + " ".join(options),
            "outcome": outcome(done), "wall_s": done.wall_s, "cpu_s": done.cpu_s,
            "max_rss_mib": done.max_rss_mib,
        })  # fmt: skip
        last = results[-1]
        if last[time_of] > arguments.bar or last["outcome"].startswith("crash"):
            print(f"{last[time_of]:7.2f} s  {last['outcome']}  {last['command']}", flush=True)
        if arguments.out:
            pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    text = report(results, arguments.bar, arguments.clock)
    if arguments.table:
        pathlib.Path(arguments.table).write_text(text)
    print("\n" + text)
    held = all(
        r[time_of] <= arguments.bar and not r["outcome"].startswith("crash") for r in results
    )
    return 0 if held else 1
