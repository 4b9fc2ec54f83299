"""The list of mutants that survive, each with the reason why nothing can tell it from the original, or need not."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from mutant import Mutant

LIST: Final = Path(__file__).parent / "survivors.toml"
REASONS: Final = ("equivalent: ", "unobservable: ")


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """An entry: the mutant by its `key`, and the reason."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """As that of the mutant."""
        return self.file, self.function, self.operator, self.before, self.after


def read_review(path: Path = LIST) -> list[Survivor]:
    """The entries of a list. msgspec.ValidationError for one that is none."""
    with path.open("rb") as file:
        return msgspec.convert(tomllib.load(file).get("survivor", []), list[Survivor])


def check_review(entries: Iterable[Survivor], survivors: Iterable[Mutant], every: Iterable[Mutant]) -> list[str]:
    """What is wrong: a survivor without an entry, an entry whose mutant does not exist, without a reason, or twice there."""
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
