#!/usr/bin/env python3
"""Fails when a document names what is not there, or is larger than a reader was promised. Usage: links.py ROOT

Of every Markdown file: relative links resolve, their anchors name a heading, and what stands between backticks and
looks like a path of this repository exists (from the root, from the document's folder, or, of a source named without
a folder, anywhere). README has at most 150 lines; the documents of the root at most 120 columns. Records of runs
(docs/results/) are output: their links are checked, their words are not.
"""
import pathlib
import re
import sys

from sources import SKIPPED, source_files

README_LINES, COLUMNS = 150, 120
NARROW = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
CODE = re.compile(r"(`+)(.+?)\1", re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.M)
PATH = re.compile(r"^[\w.*+-]+(/[\w.*+-]+)*/?$")
NAMED = re.compile(r"^[\w*-]+\.(h|cc|py|sh|cmake)$")  # a source without its folder


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def anchors(file: pathlib.Path):
    return {slug(h) for h in HEADING.findall(FENCE.sub("", file.read_text()))}


def dead_links(file: pathlib.Path, text: str):
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (file.parent / name) if name else file
        if not place.exists():
            yield f"link to {target}, which is not there"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            yield f"link to {target}: no such heading"


def dead_paths(root: pathlib.Path, file: pathlib.Path, text: str, tops: set, sources: set):
    for match in CODE.finditer(text):
        for word in match[2].split():
            word = word.rstrip(".,:;)").lstrip("(")
            if not PATH.match(word):
                continue
            if "/" in word and word.split("/", 1)[0] in tops or word in tops:
                if not any(root.glob(word.rstrip("/"))):
                    yield f"`{word}` is not there"
            elif NAMED.match(word) and not any(pathlib.PurePath(s).match(word) for s in sources):
                yield f"`{word}` is no source here"
            elif "/" in word and word.split("/", 1)[0] not in SKIPPED:
                if word.endswith("/") or (file.parent / word.split("/", 1)[0]).is_dir():
                    if not any(file.parent.glob(word.rstrip("/"))):
                        yield f"`{word}` is not there"


def findings(root: pathlib.Path):
    tops = {p.name for p in root.iterdir() if p.is_dir() and p.name not in SKIPPED}
    sources = {p.name for p in source_files(root)}
    for file in source_files(root):
        if file.suffix != ".md":
            continue
        name, text = file.relative_to(root).as_posix(), file.read_text()
        prose = FENCE.sub("", text)
        faults = list(dead_links(file, prose))
        if not name.startswith("docs/results/"):
            faults += dead_paths(root, file, prose, tops, sources)
        if name in NARROW:
            lines = text.splitlines()
            faults += [f"line {i} has {len(l)} columns, more than {COLUMNS}" for i, l in enumerate(lines, 1) if len(l) > COLUMNS]
            if name == "README.md" and len(lines) > README_LINES:
                faults.append(f"{len(lines)} lines, more than {README_LINES}")
        yield from (f"{name}: {fault}" for fault in faults)


if __name__ == "__main__":
    found = list(findings(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "every link and path that a document names is there")
    sys.exit(bool(found))
