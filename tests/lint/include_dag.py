#!/usr/bin/env python3
"""Fails when an #include "room/..." leaves the graph of rooms. Usage: include_dag.py ROOT"""
import pathlib
import re
import sys

# Room: the rooms it may include; itself is implied. search and cli see of sim only what the second table says.
UP_TO_PLAN = {"base", "model", "topologies", "plan"}
ALLOWED = {
    "base": set(),
    "model": {"base"},
    "topologies": {"base"},
    "plan": {"base", "model", "topologies"},
    "costmodel": UP_TO_PLAN,
    "sim/kernel": {"base"},
    "sim": UP_TO_PLAN | {"costmodel", "sim/kernel"},
    "search": UP_TO_PLAN | {"costmodel", "sim"},
    "executor": UP_TO_PLAN,
    "cli": UP_TO_PLAN | {"costmodel", "sim", "search", "executor"},
}
ONLY = {("search", "sim"): {"sim/simulate.h"}}  # (from, to): the headers open to it
# Library headers with one owner: (pattern of the include, rooms that may).
OWNED = [
    (re.compile(r"^(torch|ATen|c10|caffe2)/|^cuda|^nccl\.h$|^mpi\.h$"), {"executor"}),
    (re.compile(r"^yaml-cpp/"), {"base"}),
    (re.compile(r"^pugixml"), {"topologies"}),
]
QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
ANGLED = re.compile(r"^\s*#\s*include\s+<([^>]+)>")


def room(path: str) -> str:
    return "sim/kernel" if path.startswith("sim/kernel/") else path.split("/", 1)[0]


def findings(root: pathlib.Path):
    for top in sorted({name.split("/")[0] for name in ALLOWED}):
        for file in sorted((root / top).rglob("*.[hc]*")):
            if file.suffix not in {".h", ".cc", ".cpp", ".cu", ".cuh"}:
                continue
            name = file.relative_to(root).as_posix()
            source = room(name)
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if match := QUOTED.match(line):
                    target = room(match[1])
                    if target not in ALLOWED:
                        yield f'{name}:{number}: "{match[1]}" is in no room; write the path from the root'
                    elif target != source and target not in ALLOWED[source]:
                        yield f"{name}:{number}: {source} may not include {target} ({match[1]})"
                    elif match[1] not in ONLY.get((source, target), {match[1]}):
                        yield f"{name}:{number}: {source} may include of {target} only {ONLY[source, target]}"
                elif match := ANGLED.match(line):
                    for pattern, owners in OWNED:
                        if pattern.search(match[1]) and source not in owners:
                            yield f"{name}:{number}: only {', '.join(sorted(owners))} may include <{match[1]}>"


if __name__ == "__main__":
    found = list(findings(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "every include stays in the graph of rooms")
    sys.exit(bool(found))
