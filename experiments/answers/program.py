"""Runs the program under test: its documents, and what a process took."""
import json
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass


@dataclass
class Run:
    """One process. `killed`: it ran past the limit."""

    code: int
    killed: bool
    wall_s: float
    user_s: float
    max_rss_mib: float
    stdout: str
    stderr: str


def run(command, limit_s=600.0):
    """Runs `command` to its end or to the limit; user time and memory are the kernel's."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err)
        killed = threading.Event()

        def kill():
            killed.set()
            process.kill()

        timer = threading.Timer(limit_s, kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Run(
            code=process.returncode,
            killed=killed.is_set(),
            wall_s=wall_s,
            user_s=usage.ru_utime,
            max_rss_mib=usage.ru_maxrss / 1024,
            stdout=out.read().decode(errors="replace"),
            stderr=err.read().decode(errors="replace"),
        )


def document(command, limit_s=600.0):
    """The JSON document that `command` prints, or None with the run."""
    done = run(command, limit_s)
    try:
        return json.loads(done.stdout), done
    except json.JSONDecodeError:
        return None, done


def names(program, what):
    """Catalog names: `what` is models or clusters."""
    found, done = document([program, "list", what, "--json"])
    if found is None:
        raise SystemExit(f"{program} list {what}: {done.stderr}")
    rows = found if isinstance(found, list) else found[what]
    return [row["name"] for row in rows]


def problem_options(pair):
    """A row of pairs.csv as options of `orrery plan` and `orrery simulate`."""
    options = []
    for column in (
        "model", "cluster", "hosts", "global_batch", "sequence_length", "memory", "profile",
    ):
        if pair.get(column):
            options += ["--" + column.replace("_", "-"), pair[column]]
    return options
