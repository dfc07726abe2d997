#!/usr/bin/env python3
"""Fails when a function of C++ is longer than 60 lines, braces included. Usage: function_length.py ROOT

A lambda counts to the function around it; a class inside a function does too. Tables outside of
functions are data."""
import pathlib
import re
import sys

from sources import blanked, cpp_files

LIMIT = 60
SCOPE = re.compile(r'(inline\s+)?namespace\b|extern\s*"')
TYPE = re.compile(r"(template\s*<.*>\s*)?(class|struct|union|enum)\b", re.DOTALL)
AFTER_PARAMETERS = re.compile(r"\)\s*(const|noexcept|override|final|->.*)*\s*$", re.DOTALL)
ACCESS = re.compile(r"\s*(public|private|protected)\s*")


def kind(head: str, inside_function: bool, inside_parentheses: bool) -> str:
    """What an opening brace behind `head` begins: 'function', 'scope' or 'other'."""
    if inside_function or inside_parentheses:
        return "other"
    if SCOPE.match(head) or TYPE.match(head) and not AFTER_PARAMETERS.search(head):
        return "scope"
    if "(" not in head or re.search(r"=\s*[\w:<>,\s]*$", head):  # an initialiser
        return "other"
    return "function"


def functions(text: str):
    """(head, first line, lines) of every function with a body."""
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", lambda m: "\n" * m[0].count("\n"), blanked(text), flags=re.M)
    open_braces, head, first, line, parentheses = [], "", 1, 1, 0
    for char in code:
        if char == "\n":
            line += 1
        parentheses += (char == "(") - (char == ")")
        if char == "{":
            inside = any(brace[0] == "function" for brace in open_braces)
            open_braces.append((kind(head.strip(), inside, parentheses > 0), head, first))
            head = ""
        elif char == "}" and open_braces:
            what, its_head, its_first = open_braces.pop()
            if what == "function":
                yield " ".join(its_head.split()), its_first, line - its_first + 1
            head = ""
        elif char == ";" and parentheses == 0 or char == ":" and ACCESS.fullmatch(head):
            head = ""
        else:
            if not head.strip() and not char.isspace():
                first = line
            head += char


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    found, count = [], 0
    for file in cpp_files(root):
        for head, first, lines in functions(file.read_text()):
            count += 1
            if lines > LIMIT:
                found.append(f"{file.relative_to(root)}:{first}: {lines} lines, more than {LIMIT}: {head[:60]}")
    print("\n".join(found) if found else f"each of {count} functions has at most {LIMIT} lines")
    sys.exit(bool(found))
