"""The text files that people wrote, and C++ without its texts: shared by the lints, no lint itself."""
import pathlib
import re

SKIPPED = {".git", "build", ".cache", "__pycache__", "seeds"}
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".py", ".sh", ".cmake", ".yaml", ".yml", ".md", ".txt"}
CPP = {".h", ".cc", ".cpp", ".cu", ".cuh"}
TEXTS = re.compile(
    r'R"([^()\\ ]{0,16})\(.*?\)\1"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)


def source_files(root: pathlib.Path):
    """Sorted paths; data in JSON and other formats is left out."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if SKIPPED.isdisjoint(parts) and path.suffix in SUFFIXES and path.is_file():
            yield path


def cpp_files(root: pathlib.Path):
    return (path for path in source_files(root) if path.suffix in CPP)


def blanked(text: str) -> str:
    """C++ with spaces for comments and underscores for what literals hold: every place stays its place."""

    def blank(match: re.Match) -> str:
        if match[0].startswith("/"):
            return re.sub(r"[^\n]", " ", match[0])
        return '"' + re.sub(r"[^\n]", "_", match[0][1:-1]) + '"'

    return TEXTS.sub(blank, text)
