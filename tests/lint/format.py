#!/usr/bin/env python3
"""Fails when C++ is not as clang-format 14 writes it, or a line is longer than 100 columns. Usage: format.py ROOT

clang-format leaves long literals and URLs as they are, so lines are measured apart: in bytes of UTF-8, as tools that know no encoding count columns."""
import pathlib
import shutil
import subprocess
import sys

from sources import cpp_files

LIMIT = 100
FILES_AT_ONCE = 200


def clang_format():
    """The program of scripts/setup.sh; other versions write other code."""
    for name in ("clang-format-14", "clang-format"):
        program = shutil.which(name)
        if program and " version 14." in subprocess.run([program, "--version"], capture_output=True, text=True).stdout:
            return program
    return None


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    files = list(cpp_files(root))
    found = [
        f"{file.relative_to(root)}:{number}: {len(line.encode())} bytes, more than {LIMIT}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line.encode()) > LIMIT
    ]
    program = clang_format()
    if program is None:
        found.append("clang-format 14 was not found; scripts/setup.sh installs it")
    else:
        for first in range(0, len(files), FILES_AT_ONCE):
            run = subprocess.run(
                [program, "--dry-run", "-Werror", "--ferror-limit=1", *files[first : first + FILES_AT_ONCE]],
                capture_output=True, text=True, cwd=root,
            )
            lines = run.stderr.splitlines()
            found += [line for line in lines if ": error:" in line] or lines[:5] if run.returncode else []
    print("\n".join(found) if found else f"{len(files)} files are formatted, at most {LIMIT} bytes a line")
    sys.exit(bool(found))
