"""A corpus: a folder with a reproducer of each divergence found, and logs of the problems tried."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kgverify.comparison.exercise.exercise import NOT_EXERCISED, Exercise
from kgverify.files.writing import explained, make_folders
from kgverify.program.dialect import OURS, Dialect
from kgverify.runs.engine_makers import EngineSpec
from kgverify.runs.ledger import Ledger, WorkIdentity
from kgverify.testing.checking.failure import LAW, Signature
from kgverify.testing.reproducers.text_format import SUFFIX, Reproducer, read_reproducer, write_reproducer

NOT_SHRUNK: Final = "not shrunk yet"
"""A note in reproducers that have not been shrunk."""
LOG_SUFFIX: Final = ".jsonl"


class Sighting(msgspec.Struct, kw_only=True):
    """A divergence in a block.

    index: of the first problem that shows it, in the seed's sequence
    count: confirmed problems of the block that show it
    text:  a reproducer; empty if no single problem shows it
    """

    signature: Signature
    index: int
    count: int = 0
    text: str = ""


class Counts(msgspec.Struct, kw_only=True):
    """The numbers of problems, and of what was compared, in a block or in a campaign.

    num_problems:  tried
    num_skipped:   of these, problems with a policy that the engine does not support
    num_left:      of these, problems not run, since an engine that hangs or ends its process ends its block
    num_differing: problems that differ in their run
    num_confirmed: of these, those that were run by themselves; the signatures of the others are unknown
    num_measured:  problems whose features were counted; 0 in another dialect, and with a reference other than kgverify's
    features:      feature to the number of these in which it occurs
    exercise:      of the problems on which both sides agree, by the reference
    """

    num_problems: int = 0
    num_skipped: int = 0
    num_left: int = 0
    num_candidates: int = 0
    num_steps: int = 0
    num_resolvents: int = 0
    num_differing: int = 0
    num_confirmed: int = 0
    num_measured: int = 0
    features: dict[str, int] = {}
    exercise: Exercise = NOT_EXERCISED

    def plus(self, other: "Counts") -> "Counts":
        """Return the sums of both."""
        numbers = [name for name in Counts.__struct_fields__ if name.startswith("num_")]
        return Counts(
            **{name: getattr(self, name) + getattr(other, name) for name in numbers},
            features=dict(Counter(self.features) + Counter(other.features)),
            exercise=self.exercise.plus(other.exercise),
        )


class Block(Counts, kw_only=True):
    """The result of trying consecutive problems of a seed's sequence: fewer than a whole block at the end of a campaign.

    Of problems that ran alone, those tried after others gave evidence are left out of its exercise.

    number: of the block
    """

    number: int
    sightings: list[Sighting] = []


class Identity(WorkIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """The inputs of a campaign: it resumes the blocks of earlier ones with the same identity.

    dialect: of the problems; the default one is left out of the file
    scope:   of the problems, instead of the seed's sequence
    """

    engine: EngineSpec
    reference: EngineSpec
    lockstep: bool
    seed: int
    block_size: int
    dialect: Dialect = OURS
    scope: str | None = None


class Corpus:
    """A folder of reproducers and logs, created if it does not exist. UserError if it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folders(folder)

    def reproducers(self) -> list[tuple[Path, Reproducer]]:
        """Return every reproducer of a divergence, by name. UserError, with its line, for an invalid file.

        Reproducers of laws are left out: a campaign compares, and `kgverify replay` checks laws.
        """
        every = [(path, read_reproducer(path)) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]
        return [(path, made) for path, made in every if made.signature.kind != LAW]

    def add(self, reproducer: Reproducer) -> Path:
        """Write a reproducer to a new file named after its signature."""
        stem, number = name_file(reproducer.signature), 1
        path = self.folder / f"{stem}{SUFFIX}"
        while os.path.lexists(path):
            number += 1
            path = self.folder / f"{stem}-{number}{SUFFIX}"
        write_reproducer(reproducer, path)
        return path

    def log(self, identity: Identity, *, is_fresh: bool = False, accept_changed: Collection[str] = ()) -> Ledger[Block]:
        """Open the log of a campaign; begin it again if `is_fresh`, and if code changed that is not accepted."""
        settings = msgspec.structs.replace(identity, code={})
        digest = hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:12]
        path = self.folder / f"campaign-{digest}{LOG_SUFFIX}"
        if is_fresh:
            with explained(path):
                path.unlink(missing_ok=True)
        title = "log of a campaign"
        return Ledger(path, identity, Block, title=title, accept_changed=accept_changed)


def name_source(seed: int, scope: str | None) -> str:
    """Return the name of the sequence from which a campaign's problems come."""
    return f"seed {seed}" if scope is None else f"the scope {scope}"


def name_file(signature: Signature) -> str:
    """Return a file name for a signature: readable, and different for different ones."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{signature.stage} {signature.kind} {signature.situation}".lower()).strip(
        "-"
    )
    return f"{readable[:60]}-{hashlib.sha256(repr(tuple(signature)).encode()).hexdigest()[:8]}"


def is_shrunk(reproducer: Reproducer) -> bool:
    """Return whether a reproducer has been shrunk."""
    return NOT_SHRUNK not in reproducer.notes


def mark_shrunk(reproducer: Reproducer) -> Reproducer:
    """Return a reproducer without the note that it has not been shrunk."""
    return replace(reproducer, notes=tuple(note for note in reproducer.notes if note != NOT_SHRUNK))
