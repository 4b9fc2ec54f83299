"""Semantic mutants: mistakes that a competent engineer makes, listed as edits of text in `semantic/*.toml`."""

import ast
import hashlib
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from mutant import ROOT

LISTS: Final = Path(__file__).parent / "semantic"
COPIED: Final = ("kgverify", "reference")
COPIED_FOR_TESTS: Final = (
    "tests",
    "docs",
    "traces",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    ".ci",
)


class SemanticMutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edit of one file.

    file:       the path from the root of the repository
    old:        a text that occurs in the file exactly once
    new:        the text that takes its place
    what:       a description of the mistake
    stage:      the stage that the mistake is in, for mistakes in a prover; several, if the text serves all of them
    equivalent: the reason why no run can show the edit; such an entry is not tried
    hole:       the reason why the commands are known not to notice it, which the table prints beside its result
    list:       the name of the list
    """

    file: str
    old: str
    new: str
    what: str
    stage: str = ""
    equivalent: str = ""
    hole: str = ""
    list: str = ""

    @property
    def digest(self) -> str:
        """A hash of the edit."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:16]

    @property
    def lines(self) -> Iterator[tuple[str, int]]:
        """The lines that the old text touches, each with the file."""
        before = (ROOT / self.file).read_text().partition(self.old)[0]
        first = before.count("\n") + 1
        # A text that ends with a newline does not touch the next line.
        last = first + self.old.rstrip("\n").count("\n")
        return ((self.file, line) for line in range(first, last + 1))

    def source(self, root: Path = ROOT) -> str:
        """Return the whole file with the edit made. ValueError unless it applies, exactly once, and changes the code."""
        text = (root / self.file).read_text()
        if (num := text.count(self.old)) != 1:
            raise ValueError(f"{self.file}: found {num} times, expected once: {self.old!r}")
        changed = text.replace(self.old, self.new)
        if not self.file.endswith(".py"):
            return changed
        before, after = _dump_statements(text), ast.parse(changed).body
        # The first statement that differs ends the comparison: dumping a whole file takes long.
        if len(before) == len(after) and all(dump == ast.dump(node) for dump, node in zip(before, after, strict=True)):
            raise ValueError(f"{self.file}: changes nothing: {self.old!r} -> {self.new!r}")
        return changed

    def __str__(self) -> str:
        return f"{self.list}: {self.what} ({self.file})"


def read_lists(folder: Path = LISTS) -> list[SemanticMutant]:
    """Read the entries of every list of a folder. msgspec.ValidationError for a malformed one."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        entries = msgspec.convert(tomllib.loads(path.read_text()).get("mutant", []), list[SemanticMutant])
        found += [msgspec.structs.replace(entry, list=path.stem) for entry in entries]
    return found


def check_lists(mutants: Iterable[SemanticMutant], stages: Iterable[str]) -> list[str]:
    """Describe the mutants that do not apply, are listed twice, lack a description or name an unknown stage."""
    problems = []
    seen: set[str] = set()
    known = set(stages)
    for mutant in mutants:
        try:
            mutant.source()
        except (OSError, ValueError, SyntaxError) as error:
            problems.append(f"{mutant.list}: {error}")
        if mutant.digest in seen:
            problems.append(f"listed twice: {mutant}")
        seen.add(mutant.digest)
        if len(mutant.what.split()) < 3:
            problems.append(f"lacks a description: {mutant}")
        if any(reason and len(reason.split()) < 5 for reason in (mutant.equivalent, mutant.hole)):
            problems.append(f"lacks a reason: {mutant}")
        if not known.issuperset(mutant.stage.split()):
            problems.append(f"unknown stage {mutant.stage!r}: {mutant}")
    return problems


def plant_copy(mutant: SemanticMutant | None, target: Path, *, has_tests: bool = False) -> None:
    """Make a copy of the tree with the mutant in it (the original, for None). Unchanged files are hard links."""
    target.mkdir(parents=True)
    for name in (*COPIED, *(COPIED_FOR_TESTS if has_tests else ())):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, copy_function=_link, symlinks=True)
        elif source.exists():
            _link(str(source), str(target / name))
    if mutant is not None:
        path = target / mutant.file
        changed = mutant.source()
        path.unlink()
        path.write_text(changed)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


@cache
def _dump_statements(text: str) -> tuple[str, ...]:
    return tuple(map(ast.dump, ast.parse(text).body))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
