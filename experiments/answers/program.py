"""Runs the program under test: its documents, and what a process took."""
import json
import math
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass


@dataclass
class Run:
    """One process. `killed`: it ran past the limit. `cpu_s`: user and system time."""

    code: int
    killed: bool
    wall_s: float
    user_s: float
    cpu_s: float
    max_rss_mib: float
    stdout: str
    stderr: str


def run(command, limit_s=600.0, clock="wall"):
    """Runs `command` to its end or to the limit; processor time and memory are the kernel's.

    With clock "cpu" the limit is one of processor time, for a machine that others use as well.
    """

    def limit_processor_time():
        most = math.ceil(limit_s)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))

    on_cpu = clock == "cpu"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command], stdout=out, stderr=err,
            preexec_fn=limit_processor_time if on_cpu else None,
        )  # fmt: skip
        killed = threading.Event()

        def kill():
            killed.set()
            process.kill()

        timer = threading.Timer(100 * limit_s if on_cpu else limit_s, kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Run(
            code=process.returncode,
            killed=killed.is_set() or (on_cpu and process.returncode == -signal.SIGXCPU),
            wall_s=wall_s,
            user_s=usage.ru_utime,
            cpu_s=usage.ru_utime + usage.ru_stime,
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
        "precision",
    ):
        if pair.get(column):
            options += ["--" + column.replace("_", "-"), pair[column]]
    return options
