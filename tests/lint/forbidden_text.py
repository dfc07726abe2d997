#!/usr/bin/env python3
"""Fails on text that has no place in the tree. Usage: forbidden_text.py ROOT

Unfinished work belongs in an issue, not in a comment; a path of one machine works on no other.
"""
import pathlib
import re
import sys

from sources import CPP, source_files

FORBIDDEN = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"), "unfinished work"),
    (re.compile(r"(?<![\w$}.-])/(home|root|Users|work|mnt|scratch)/\w"), "path of one machine"),
    (re.compile(r"\bDIS" r"ABLED_"), "a test that does not run; what ranks run is a RANK_BODY (tests/support/rank_body.h)"),
    (re.compile(r"-ffast-" r"math"), "unsafe floating point"),
    (re.compile(r"std::(uniform_(int|real)|normal|bernoulli|poisson|exponential|discrete)_dist" r"ribution"),
     "std distributions differ between libraries; see base/rng.h"),
]
# Words of this house alone; the field has its own (GLOSSARY.md). In C++, where they name something or explain it.
PRIVATE_WORDS = re.compile(r"\b(told|[Dd]eeds?|[Tt]ellers?|[Ll]ightest_?|Page(Time|Words)?)\b")
PRINTED = re.compile(r'"[^"]*"')  # what users read is under the golden tests
FAST_MATH_EXPLAINED = re.compile(r"never\s+`?-ffast-")

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    found = []
    for file in source_files(root):
        name = file.relative_to(root).as_posix()
        words = file.suffix in CPP
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if words and (match := PRIVATE_WORDS.search(PRINTED.sub("", line))):
                found.append(f"{name}:{number}: a private word, '{match[0]}': {line.strip()}")
            for pattern, why in FORBIDDEN:
                if pattern.search(line) and not FAST_MATH_EXPLAINED.search(line):
                    found.append(f"{file.relative_to(root)}:{number}: {why}: {line.strip()}")
    print("\n".join(found) if found else "nothing forbidden")
    sys.exit(bool(found))
