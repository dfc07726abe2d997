#!/usr/bin/env python3
"""Fails when a header or source of a room is reached by no command. Usage: reachable.py ROOT

A file is reached when a program's main includes it, directly or not; a source, when it is a program's main, or when
it belongs to a reached header: that of the same name, or without one any that it sees and of which it defines something."""
import pathlib
import re
import sys

from include_dag import ALLOWED

MAINS = ["cli/main.cc", "cli/executor_calls.cc", "cli/executor_absent.cc"]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# A definition starts in the first column (nothing is indented in a namespace); its name stands before "(" or "[".
DEFINITION = re.compile(r"^[A-Za-z][^\n;={}#]*?\b(\w+)\s*[(\[]", re.M)
KEYWORDS = {"if", "for", "while", "switch", "return", "TRY", "decltype", "static_assert"}


def declares(header: str, source: str) -> bool:
    names = set(DEFINITION.findall(source)) - KEYWORDS
    return any(re.search(rf"\b{name}\b", header) for name in names)


def closure(files, followers: dict) -> set:
    seen, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += followers[file]
    return seen


def unreached(root: pathlib.Path):
    text = {
        path.relative_to(root).as_posix(): COMMENT.sub(" ", path.read_text())
        for room in ALLOWED
        for path in (root / room).rglob("*")
        if path.suffix in (".h", ".cc")
    }
    includes = {file: [i for i in INCLUDE.findall(text[file]) if i in text] for file in text}
    sources = {}  # header: sources that belong to it
    for file in (f for f in text if f.endswith(".cc")):
        own = file.removesuffix(".cc") + ".h"
        for header in [own] if own in text else closure([file], includes) - {file}:
            if header == own or declares(text[header], text[file]):
                sources.setdefault(header, []).append(file)
    followers = {file: includes[file] + sources.get(file, []) for file in text}
    return sorted(text.keys() - closure(MAINS, followers))


if __name__ == "__main__":
    found = [f"{file}: no command reaches it" for file in unreached(pathlib.Path(sys.argv[1]))]
    print("\n".join(found) if found else "every source is reached by a command")
    sys.exit(bool(found))
