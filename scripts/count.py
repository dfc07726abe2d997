#!/usr/bin/env python3
"""Tokens, files, longest file and longest function of each room. Usage: scripts/count.py [ROOT]

A token is a name, a number, a literal or an operator of C++; comments and white space count nothing, so formatting
changes no number. Functions are counted in lines, from the first of their statement to the closing brace."""
import pathlib
import re
import sys

ROOMS = "base model topologies plan costmodel sim search executor cli".split()
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'"""
    r"""|[A-Za-z_]\w*|\.?\d(?:[\w.]|'\d)*|<=>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^]=|\S""", re.S)
BODY_FOLLOWS = {")", "const", "noexcept", "override", "&", "&&", "final", ">"}


def tokens(text: str):
    """Pairs of a token and the number of its line."""
    line, at = 1, 0
    for match in TOKEN.finditer(text):
        line, at = line + text.count("\n", at, match.start()), match.start()
        if not match["comment"]:
            yield match[0], line


def functions(text: str):
    """Pairs of lines and name of the functions of a file; not those inside others."""
    scopes, statement, depth = [], [], 0  # scopes: "outer" for namespaces and types, else (name, first line) or None
    for token, line in tokens(re.sub(r"^\s*#.*(\\\n.*)*$", "", text, flags=re.M)):
        outer = all(scope == "outer" for scope in scopes)
        if token in "()":
            depth += 1 if token == "(" else -1
        if token == "{":
            words = [t for t, _ in statement]
            if not outer or depth > 0:
                scopes.append(None)
            elif {"namespace", "extern"} & set(words[:1]) or ({"class", "struct", "union"} & set(words) and "(" not in words):
                scopes.append("outer")
            elif "(" in words and (words[-1] in BODY_FOLLOWS or ":" not in words and "=" not in words):
                scopes.append((words[words.index("(") - 1], statement[0][1]))
            elif "(" in words and words[-1] == "}":  # the last member of a constructor's list
                scopes.append((words[words.index("(") - 1], statement[0][1]))
            else:
                scopes.append(None)
            if scopes[-1] is not None:
                statement = []
                continue
        elif token == "}" and scopes:
            scope = scopes.pop()
            if isinstance(scope, tuple):
                yield line - scope[1] + 1, scope[0]
            if scope is not None:
                statement = []
                continue
        elif token == ";" and outer:
            statement = []
            continue
        if outer:
            statement.append((token, line))
        elif token == "}" and all(scope == "outer" for scope in scopes):
            statement.append((token, line))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    print(f"{'room':<11}{'tokens':>8}{'files':>7}  longest file, lines{'':<27}longest function, lines")
    total, files = 0, 0
    for room in ROOMS:
        text = {p: p.read_text() for p in sorted((root / room).rglob("*")) if p.suffix in (".h", ".cc")}
        count = sum(1 for t in text.values() for _ in tokens(t))
        lines, longest = max((t.count("\n"), p.relative_to(root).as_posix()) for p, t in text.items())
        body, name, where = max((*f, p.stem) for p, t in text.items() for f in functions(t))
        print(f"{room:<11}{count:>8}{len(text):>7}  {longest + ' ' + str(lines):<46}{where + ': ' + name + ' ' + str(body)}")
        total, files = total + count, files + len(text)
    print(f"{'all':<11}{total:>8}{files:>7}")


if __name__ == "__main__":
    main()
