#!/usr/bin/env python3
"""Fails when an #include "room/..." leaves the graph of rooms or of sub-rooms. Usage: include_dag.py ROOT

Prints the graph of the sub-rooms as the sources have it, lowest first."""
import collections
import pathlib
import re
import sys

# Room: the rooms it may include; itself is implied.
UP_TO_PLAN = {"base", "model", "topologies", "plan"}
ALLOWED = {
    "base": set(),
    "model": {"base"},
    "topologies": {"base"},
    "plan": {"base", "model", "topologies"},
    "costmodel": UP_TO_PLAN,
    "sim": UP_TO_PLAN | {"costmodel"},
    "search": UP_TO_PLAN | {"costmodel", "sim"},
    "executor": UP_TO_PLAN,
    "cli": UP_TO_PLAN | {"costmodel", "sim", "search", "executor"},
}
ONLY = {("search", "sim"): {"sim/simulate.h"}}  # (from, to): the headers open to it
# Sub-rooms, lowest first: a folder may include, of its room, the folders of its row. "." is the room's front door.
SUB_ROOMS = {
    "model": {
        ".": set(),
        "import": {"."},
    },
    "topologies": {
        "fabric": set(),
        "graph": {"fabric"},
        "routes": {"fabric", "graph"},
        ".": {"fabric", "graph", "routes"},
        "import": {"fabric", "."},
        "picture": {"graph", "."},
    },
    "plan": {
        "partition": set(),
        "program": {"partition"},
        "lowering": {"partition", "program"},
        "check": {"program"},
        "import": {"program"},
        "export": {"program", "import"},
    },
    "costmodel": {
        "compute": set(),
        "collectives": set(),
        "profiles": set(),
        ".": {"compute", "collectives", "profiles"},
        "energy": {"compute"},
        "closed_form": {"energy", "."},
        "uncertainty": {"compute", "closed_form", "."},
    },
    "sim": {
        "kernel": set(),
        "network": {"kernel"},
        "step": {"kernel", "network"},
        "report": {"network", "step"},
        ".": {"report", "step"},
        "cells": {"kernel", "network", "step", "report"},
        "scenario": {"network", "step", "cells"},
        "run": {"scenario"},
    },
    "search": {
        ".": set(),
        "space": set(),
        "programs": set(),
        "table": {".", "programs"},
        "partition": set(),
        "proof": {"space", "partition", "table"},
        "costs": {"space", "programs"},
        "solvers": {".", "programs", "proof", "costs"},
        "loop": {".", "space", "programs", "proof", "costs", "partition", "solvers"},
        "explain": {"space", "programs", "costs", "loop"},
    },
    "executor": {
        "launch": set(),
        "state": set(),
        "device": set(),
        "transport": {"launch", "state", "device"},
        "segments": {"state", "device"},
        "scans": {"segments"},
        "quantised": {"segments"},
        "runtime": {"launch", "state", "transport", "segments", "quantised"},
        "measure": {"state", "transport", "device", "segments", "runtime"},
    },
    "cli": {
        ".": set(),
        "text": set(),
        "html": {"text"},
        "tables": {".", "text"},
        "shell": {".", "text"},
        "measured": {".", "text"},
        "commands": {".", "text", "html", "tables", "measured"},
    },
}
# What a sub-room may see of other rooms, where that is less than its room may.
ONLY_ROOMS = {"sim/kernel": {"base"}, "search/programs": {"base"}}
LARGEST = 20  # files of a sub-room, a header and its source counted as one
# Library headers with one owner: (pattern of the include, rooms that may).
OWNED = [
    (re.compile(r"^(torch|ATen|c10|caffe2)/|^cuda|^nccl\.h$|^mpi\.h$"), {"executor"}),
    (re.compile(r"^yaml\.h$"), {"base"}),
    (re.compile(r"^pugixml"), {"topologies"}),
]
QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
ANGLED = re.compile(r"^\s*#\s*include\s+<([^>]+)>")
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh"}


def room(path: str) -> str:
    return path.split("/", 1)[0]


def sub_room(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[1:-1]) or "."


def folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def table_faults():
    """A row may name rows above it only, so the table itself has no circle."""
    for name, rows in SUB_ROOMS.items():
        above = set()
        for sub, may in rows.items():
            for wrong in sorted(may - above):
                yield f"include_dag.py: {name}/{sub} names {wrong}, which is not above it"
            above.add(sub)


def include_fault(name: str, target_file: str):
    """Why `name` may not include "target_file", or None."""
    source, target = room(name), room(target_file)
    if target not in ALLOWED:
        return f'"{target_file}" is in no room; write the path from the root'
    if target != source:
        may = ONLY_ROOMS.get(folder(name), ALLOWED[source])
        if target not in may:
            return f"{folder(name)} may not include {target} ({target_file})"
        if target_file not in ONLY.get((source, target), {target_file}):
            return f"{source} may include of {target} only {ONLY[source, target]}"
        return None
    sub, target_sub = sub_room(name), sub_room(target_file)
    rows = SUB_ROOMS.get(source)
    if rows is None or sub == target_sub:
        return None
    if target_sub not in rows.get(sub, set()):
        return f"{folder(name)} may not include {folder(target_file)} ({target_file})"
    return None


def findings(root: pathlib.Path, seen: dict):
    for top in sorted(ALLOWED):
        files = collections.defaultdict(set)
        for file in sorted((root / top).rglob("*.[hc]*")):
            if file.suffix not in SUFFIXES:
                continue
            name = file.relative_to(root).as_posix()
            files[sub_room(name)].add(file.with_suffix(""))
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if match := QUOTED.match(line):
                    if fault := include_fault(name, match[1]):
                        yield f"{name}:{number}: {fault}"
                    elif room(match[1]) == top and sub_room(match[1]) != sub_room(name):
                        seen[top, sub_room(name)].add(sub_room(match[1]))
                elif match := ANGLED.match(line):
                    for pattern, owners in OWNED:
                        if pattern.search(match[1]) and room(name) not in owners:
                            yield f"{name}:{number}: only {', '.join(sorted(owners))} may include <{match[1]}>"
        for sub, units in sorted(files.items()):
            if top in SUB_ROOMS and sub not in SUB_ROOMS[top]:
                yield f"{top}/{sub}: no row of include_dag.py"
            if len(units) > LARGEST:
                yield f"{top}/{sub}: {len(units)} files, {LARGEST} at most: give it sub-rooms"


def main():
    seen = collections.defaultdict(set)
    found = list(table_faults()) + list(findings(pathlib.Path(sys.argv[1]), seen))
    for name, rows in SUB_ROOMS.items():
        for sub, may in rows.items():
            uses = seen[name, sub]
            print(f"{name}/{sub} -> {' '.join(sorted(uses)) or '-'}")
            found += [f"include_dag.py: {name}/{sub} never includes {x}; drop it" for x in sorted(may - uses)]
    print("\n".join(found) if found else "every include stays in the graph of rooms")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
