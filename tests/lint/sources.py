"""The text files that people wrote: shared by the lints, no lint itself."""
import pathlib

SKIPPED = {".git", "build", ".cache", "__pycache__", "seeds"}
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".py", ".sh", ".cmake", ".yaml", ".yml", ".md", ".txt"}


def source_files(root: pathlib.Path):
    """Sorted paths; data in JSON and other formats is left out."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if SKIPPED.isdisjoint(parts) and path.suffix in SUFFIXES and path.is_file():
            yield path
