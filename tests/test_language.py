"""Plain English: the project's text contains none of the phrases that its readers stumble over.

Run it as a script to list the phrases in some files or folders: `python tests/test_language.py kgverify/trace docs`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = {".py", ".md", ".html", ".j2", ".js", ".toml", ".cff", ".yaml", ".yml"}

PHRASES = re.compile(
    "|".join(
        (
            r"\b(?:is|are|was|were|be|been|being|as|not) told\b",
            r"\btells? of\b",
            r"\btold (?:as|by|of|in|with)\b",
            r"\b(?:to|can|cannot|could) be had\b",
            r"\b(?:go|goes|gone|going|went) on with\b",
            r"\b(?:give|gives|gave|given) out\b",
            r"\blet (?:be|go of)\b",
            r"\bmade small\b",
            r"\b(?:comes?|came|coming) to\b",
            r"\b(?:stands?|stood|standing) in the way\b",
            r"\bof one'?s own\b",
            r"\bso many\b",
            r"\b(?:is|are|was|were) (?-i:none)\b",
            r"\b(?:that|which) (?:is|are|was|were) no\b",
            r"\bat hand\b",
            r"\bas (?:it|they) comes?\b",
            r"\bwhat came of\b",
        )
    ),
    re.IGNORECASE,
)
FRAGMENT = re.compile(r'"""(?:What|Of|As|How|Whether|Where|Which|Who|Yes|No|In|On|By|From|To|With|For)\b')
"""Beginnings of docstrings that are fragments, not sentences."""


def files_below(paths: Sequence[Path]) -> Iterator[Path]:
    """List the tracked text files below some paths."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in listed:
        path = ROOT / name
        if name and path.suffix in TEXT and path.is_file() and path != Path(__file__).resolve():
            yield path


def find_phrases(path: Path) -> Iterator[str]:
    """Describe each phrase that a file contains, with its line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        plain = line.replace("_", " ")
        found = [match[0] for match in PHRASES.finditer(plain)]
        if path.suffix == ".py":
            found += [match[0] for match in FRAGMENT.finditer(line)]
        for phrase in found:
            yield f"{path.relative_to(ROOT)}:{number}: {phrase!r} in: {line.strip()[:110]}"


def test_the_text_of_the_project_is_plain_english():
    found = [line for path in files_below([ROOT]) for line in find_phrases(path)]
    assert found == []


if __name__ == "__main__":
    wanted = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT]
    lines = [line for path in files_below(wanted) for line in find_phrases(path)]
    print(*lines, sep="\n")
    print(f"{len(lines)} phrases")
