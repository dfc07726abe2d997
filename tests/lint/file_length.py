#!/usr/bin/env python3
"""Fails when a source of C++, Python, shell or CMake is longer than 500 lines. Usage: file_length.py ROOT

Recorded outputs of golden tests (folders `expected`) are data."""
import pathlib
import sys

from sources import CPP, source_files

LIMIT = 500
SUFFIXES = CPP | {".py", ".sh", ".cmake"}

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    found = []
    for file in source_files(root):
        name = file.relative_to(root).as_posix()
        if file.suffix not in SUFFIXES and file.name != "CMakeLists.txt":
            continue
        count = len(file.read_text().splitlines())
        if count > LIMIT and "expected" not in file.parts:
            found.append(f"{name}: {count} lines, more than {LIMIT}")
    print("\n".join(found) if found else f"every source has at most {LIMIT} lines")
    sys.exit(bool(found))
