"""The list of known survivors, each with the reason why nothing can, or need, tell it from the original."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from mutant import Mutant

LIST: Final = Path(__file__).parent / "survivors.toml"
REASONS: Final = ("equivalent: ", "unobservable: ", "known hole: ")


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """An entry: the key of a mutant, and the reason why it survives."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The key of the mutant."""
        return self.file, self.function, self.operator, self.before, self.after


def read_review(path: Path = LIST) -> list[Survivor]:
    """Read the entries of a list; raise msgspec.ValidationError if one is malformed."""
    with path.open("rb") as file:
        return msgspec.convert(tomllib.load(file).get("survivor", []), list[Survivor])


def check_review(entries: Iterable[Survivor], survivors: Iterable[Mutant], every: Iterable[Mutant]) -> list[str]:
    """Describe survivors without an entry, and entries without a mutant, without a reason, or listed twice."""
    problems, seen = [], set()
    existing = {mutant.key for mutant in every}
    for entry in entries:
        name = " ".join(entry.key)
        if entry.key in seen:
            problems.append(f"listed twice: {name}")
        seen.add(entry.key)
        if entry.key not in existing:
            problems.append(f"no such mutant any more: {name}")
        if not entry.reason.startswith(REASONS):
            problems.append(f"no reason: {name}")
    problems += [f"survived and is not explained: {mutant}" for mutant in survivors if mutant.key not in seen]
    return problems
