#!/usr/bin/env python3
"""Fails on statements that do two things. Usage: statements.py ROOT

 * `a = x, b = y;`: assignments joined by commas are two statements;
 * `if (... std::exchange(x, y) ...)`: a condition changes nothing; the state is named, then changed;
 * `p ? f(x) : q ? g(x) : h(x)` where branches call: a named function says what is meant."""
import pathlib
import re
import sys

from sources import blanked, cpp_files

PREPROCESSOR = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.MULTILINE)
# What stands before a "{" that begins a block; before others stands the type or name of an initialiser.
BLOCK = re.compile(
    r"([);{}:\]]|\b(else|do|try|const|mutable|noexcept|override|final)"
    r"|->[^;{}()]*|\b(namespace|class|struct|union|enum)\b[^;{}()]*|^)\s*$"
)
CONTROL = re.compile(r"\s*(?:(?:if\s*(?:constexpr\s*)?|for\s*|while\s*|switch\s*)(?=\()|else\b|do\b|case\b(?:[^:]|::)*:(?!:)|(?:default|public|private|protected)\s*:)")
DECLARATION = re.compile(
    r"\s*((const|constexpr|static|auto|inline|using|template|friend|extern|return|mutable)\b"
    r"|[A-Za-z_][\w:]*(<[^;=]*>)?[&*]*\s+[&*]*[A-Za-z_]\w*\s*(\[[^\]]*\])?\s*(=|,|\(|\{|$))"
)
CHANGE = re.compile(r"(?<![=!<>])=(?!=)|\+\+|--")


def statements(code: str):
    """(start, end) of what ends with a semicolon, from behind the last semicolon or brace of a block."""
    start, nested = 0, []
    for at, char in enumerate(code):
        if char in "([":
            nested.append(char)
        elif char in ")]" and nested:
            nested.pop()
        elif char == "{":
            block = BLOCK.search(code[max(start, at - 300) : at]) is not None
            nested.append("{" if block else "initialiser")
            start = at + 1 if block else start
        elif char == "}" and nested:
            start = at + 1 if nested.pop() == "{" else start
        elif char == ";" and (not nested or nested[-1] == "{"):
            yield start, at
            start = at + 1


def behind_control(code: str, start: int, end: int):
    """Where the statement begins that `if (...)`, `for (...)`, `else` or a label governs, and whether one does."""
    governed = False
    while match := CONTROL.match(code, start, end):
        start = match.end()
        governed = governed or not re.match(r"\s*(case|default|public|private|protected)\b", match[0])
        depth = 0
        while start < end and code[start] in "(" or depth > 0 and start < end:
            depth += (code[start] == "(") - (code[start] == ")")
            start += 1
            if depth == 0:
                break
    return start, governed


def top_level(code: str, start: int, end: int):
    """Positions outside of all brackets; none when a bracket closes that opened before."""
    depth, positions = 0, []
    for at in range(start, end):
        depth -= code[at] in ")]}"
        if depth < 0:
            return []
        if depth == 0:
            positions.append(at)
        depth += code[at] in "([{"
    return positions


def joined_by_commas(code: str):
    """(start, end, commas, governed) of every expression statement with commas that changes something."""
    for begin, end in statements(code):
        start, governed = behind_control(code, begin, end)
        if DECLARATION.match(code, start, end):
            continue
        positions = top_level(code, start, end)
        commas = [at for at in positions if code[at] == ","]
        if commas and CHANGE.search("".join(code[at] for at in positions)):
            yield start, end, commas, governed


def conditions(code: str):
    for match in re.finditer(r"\b(if|while)\s*(constexpr\s*)?\(", code):
        depth, at = 1, match.end()
        while at < len(code) and depth > 0:
            depth += (code[at] == "(") - (code[at] == ")")
            at += 1
        yield match.start(), code[match.end() : at - 1]


def nested_ternaries(code: str):
    """Starts of `a ? b : c ? d : e`, in one pair of brackets, where the statement calls from `a` on."""
    for begin, end in statements(code):
        open_at = [[]]  # by bracket: positions of the "?" of the expression that is being read
        for at in range(begin, end):
            char = code[at]
            if char in "([{":
                open_at.append([])
            elif char in ")]}" and len(open_at) > 1:
                open_at.pop()
            elif char in ",;":
                open_at[-1] = []
            elif char == "?":
                open_at[-1].append(at)
                if len(open_at[-1]) == 2 and re.search(r"\w\(", code[open_at[-1][0] : end].split(",\n")[0]):
                    yield open_at[-1][0]


def line_of(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return text.count("\n", 0, at) + 1


def findings(name: str, text: str):
    code = PREPROCESSOR.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), blanked(text))
    for start, _, _, _ in joined_by_commas(code):
        yield f"{name}:{line_of(code, start)}: statements joined by commas"
    for start, condition in conditions(code):
        if "std::exchange" in condition:
            yield f"{name}:{line_of(code, start)}: a condition that changes something"
    for start in nested_ternaries(code):
        yield f"{name}:{line_of(code, start)}: conditional expressions of calls within one another"


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    found = []
    for file in cpp_files(root):
        found += findings(file.relative_to(root).as_posix(), file.read_text())
    print("\n".join(found) if found else "every statement does one thing")
    sys.exit(bool(found))
