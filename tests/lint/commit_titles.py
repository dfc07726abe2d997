#!/usr/bin/env python3
"""Fails when the title of a commit is longer than 72 characters. Usage: commit_titles.py ROOT

Looks at what came after the rule was first checked; without a history that reaches there (an archive, a shallow clone) at nothing."""
import pathlib
import subprocess
import sys

LIMIT = 72
SINCE = "638d731"


def git(root: pathlib.Path, *arguments: str):
    try:
        run = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return run.stdout if run.returncode == 0 else None


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    log = git(root, "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD")
    if log is None:
        print("no history to look at")
        sys.exit(0)
    found = []
    for line in log.splitlines():
        commit, title = line.split(" ", 1)
        if len(title) > LIMIT:
            found.append(f"{commit}: {len(title)} characters, more than {LIMIT}: {title}")
    print("\n".join(found) if found else f"titles of {len(log.splitlines())} commits have at most {LIMIT} characters")
    sys.exit(bool(found))
