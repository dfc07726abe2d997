"""Wall time of the process `orrery plan`, beside another build's in the same run."""
import json
import pathlib

import program as runs

# name, bar (share of the baseline's wall time), options
CASES = (
    ("Llama-2-7B, 8 A100, its profile", 0.25,
     "--model llama-2-7b --cluster dgx-a100 --profile llama2-7b-a100-8gpu --memory 36GiB "
     "--global-batch 64 --sequence-length 2048"),
    ("Llama-3-70B, 128 H100", 0.25,
     "--model llama-3-70b --cluster dgx-h100 --hosts 16 --global-batch 256 "
     "--sequence-length 8192"),
    ("Llama-3-70B, 1,024 H100", 0.25,
     "--model llama-3-70b --cluster dgx-h100 --hosts 128 --global-batch 1024 "
     "--sequence-length 8192"),
    ("Llama-3-405B, 2,048 hosts of h100-fat-tree", 0.25,
     "--model llama-3-405b --cluster h100-fat-tree --hosts 2048 --global-batch 2048 "
     "--sequence-length 8192"),
    ("Llama-3-405B, 2,048 hosts of dgx-h100", 0.5,
     "--model llama-3-405b --cluster dgx-h100 --hosts 2048 --global-batch 2048 "
     "--sequence-length 8192"),
)  # fmt: skip


def best_of(done):
    """Least wall time and its user time; the most memory."""
    fastest = min(done, key=lambda r: r.wall_s)
    ended = all(not r.killed and r.code == 0 for r in done)
    return {
        "wall_s": fastest.wall_s,
        "user_s": fastest.user_s,
        "max_rss_mib": max(r.max_rss_mib for r in done),
        "ended": ended,
    }


def step_time_s(done):
    try:
        return json.loads(done.stdout)["predicted"]["step_time_s"]
    except (json.JSONDecodeError, KeyError):
        return None


def measure(arguments, name, bar, options):
    """Both programs by turns, so that the machine's load falls on both."""
    programs = {"baseline": arguments.baseline, "program": arguments.program}
    done = {key: [] for key in programs}
    for _ in range(arguments.rounds):
        for key, program in programs.items():
            command = [program, "plan", *options.split(), "--json"]
            done[key].append(runs.run(command, arguments.limit))
    result = {"case": name, "bar": bar, "options": options}
    for key in programs:
        result[key] = best_of(done[key])
        result[key]["step_time_s"] = step_time_s(done[key][0])
    result["share"] = result["program"]["wall_s"] / result["baseline"]["wall_s"]
    result["user_share"] = result["program"]["user_s"] / result["baseline"]["user_s"]
    return result


def row_text(r):
    cells = [r["case"]]
    for key in ("baseline", "program"):
        cells += [f"{r[key]['wall_s']:.3f}", f"{r[key]['user_s']:.3f}",
                  f"{r[key]['max_rss_mib']:.0f}"]  # fmt: skip
        step = r[key]["step_time_s"]
        cells.append("none" if step is None else f"{step:.6g}")
    held = r["share"] <= r["bar"] and r["program"]["ended"]
    cells += [f"{r['share']:.3f}", f"{r['user_share']:.3f}", f"{r['bar']}"]
    cells.append("yes" if held else "**no**")
    return "| " + " | ".join(cells) + " |"


def main(arguments):
    lines = [
        "| case | baseline: wall s | user s | MiB | its step s | program: wall s | user s | MiB "
        "| its step s | share | of user time | bar | held |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    results = []
    for name, bar, options in CASES:
        results.append(measure(arguments, name, bar, options))
        lines.append(row_text(results[-1]))
        print(lines[-1], flush=True)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    if arguments.table:
        pathlib.Path(arguments.table).write_text("\n".join(lines) + "\n")
    held = all(r["share"] <= r["bar"] and r["program"]["ended"] for r in results)
    return 0 if held else 1
