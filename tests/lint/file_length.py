#!/usr/bin/env python3
"""Fails when a source file is longer than 600 lines (recorded outputs of golden tests apart). Usage: file_length.py ROOT"""
import pathlib
import sys

from sources import source_files

LIMIT = 600

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    found = [
        f"{file.relative_to(root)}: {count} lines, more than {LIMIT}"
        for file in source_files(root)
        if "expected" not in file.parts and (count := len(file.read_text().splitlines())) > LIMIT
    ]
    print("\n".join(found) if found else f"every file has at most {LIMIT} lines")
    sys.exit(bool(found))
