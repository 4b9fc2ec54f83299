"""The corpus and the result of a campaign: the corpus is a folder of reproducers and logs of the problems tried."""

import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from kgverify.codes import Code, Coded
from kgverify.comparison.exercise.exercise import NOT_EXERCISED, Exercise, explain_missing
from kgverify.comparison.result import Verdict
from kgverify.engines.table import REFERENCE
from kgverify.errors import count_of, cut_middle
from kgverify.escaping import ShownAsText, make_visible
from kgverify.files.writing import explained, make_folders
from kgverify.graphs.graph import GraphFile, GraphFiles
from kgverify.program.limits import OURS, Dialect
from kgverify.report.wording import describe_exercise
from kgverify.runs.engine_makers import EngineSpec, Sides
from kgverify.runs.ledger import Ledger, WorkIdentity
from kgverify.testing.checking.failure import HOW_TO_SUPPORT, LAW, REFUSED, Signature, describe_refusals
from kgverify.testing.reproducers.text_format import SUFFIX, Reproducer, read_reproducer, write_reproducer

NOT_SHRUNK: Final = "not shrunk yet"
"""A note in reproducers that have not been shrunk."""
LOG_SUFFIX: Final = ".jsonl"


class Sighting(msgspec.Struct, kw_only=True):
    """A divergence in a block.

    index: the index of the first problem that shows it, in the seed's sequence
    count: the number of confirmed problems of the block that show it
    text:  a reproducer; empty if no single problem shows it
    """

    signature: Signature
    index: int
    count: int = 0
    text: str = ""


class Counts(msgspec.Struct, kw_only=True):
    """The numbers of problems, and the amount compared, in a block or in a campaign.

    num_problems:  tried
    num_skipped:   problems that an engine refused when it was made: for their policy, names or rules
    refusals:      the number of refused problems by reason, for the most frequent reasons
    num_left:      problems not run: those too slow, and those of a block that a hang or the end of the process ended
    num_differing: problems that differ in their run
    num_confirmed: differing problems that were run by themselves; the signatures of the others are unknown
    exercise:      the exercise, by the reference, of the problems on which both sides agree
    """

    num_problems: int = 0
    num_skipped: int = 0
    num_left: int = 0
    num_candidates: int = 0
    num_steps: int = 0
    num_resolvents: int = 0
    num_differing: int = 0
    num_confirmed: int = 0
    refusals: dict[str, int] = {}
    exercise: Exercise = NOT_EXERCISED


class Tried(Counts, kw_only=True):
    """The counts of problems, and the divergences that they show, each once."""

    sightings: list[Sighting] = []

    def plus(self, other: "Tried") -> "Tried":
        """Return the sum of both. A divergence keeps its first index and its first reproducer."""
        numbers = [name for name in Counts.__struct_fields__ if name.startswith("num_")]
        merged = {each.signature: each for each in self.sightings}
        for each in other.sightings:
            first = merged.get(each.signature, each)
            count = each.count + (first.count if first is not each else 0)
            merged[each.signature] = msgspec.structs.replace(first, count=count, text=first.text or each.text)
        return Tried(
            **{name: getattr(self, name) + getattr(other, name) for name in numbers},
            refusals=dict(Counter(self.refusals) + Counter(other.refusals)),
            exercise=self.exercise.plus(other.exercise),
            sightings=list(merged.values()),
        )

    def count_by(self, name: Callable[[Signature], str]) -> dict[str, int]:
        """Return the number of confirmed problems for each name of a signature."""
        counts: Counter[str] = Counter()
        for each in self.sightings:
            counts[name(each.signature)] += each.count
        return dict(counts)

    @property
    def stages(self) -> dict[str, int]:
        """The number of confirmed problems by stage."""
        return self.count_by(lambda signature: signature.stage or "none")

    @property
    def classes(self) -> dict[str, int]:
        """The number of confirmed problems by class of difference."""
        return self.count_by(lambda signature: signature.kind)


class Block(Tried, kw_only=True):
    """The result of trying consecutive problems of a seed's sequence: fewer than a whole block at the end of a campaign.

    The exercise omits problems that ran alone and were tried after other problems gave evidence.

    number: the number of the block
    """

    number: int


NOTHING_TRIED: Final = Tried()


class Identity(WorkIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """The inputs of a campaign.

    A campaign resumes the blocks of earlier campaigns with the same identity.

    dialect: the dialect of the problems; the file omits the default
    graph, files: a graph, whose problems precede the seed's sequence, and the contents of its files
    """

    engine: EngineSpec
    reference: EngineSpec
    lockstep: bool
    seed: int
    block_size: int
    dialect: Dialect = OURS
    graph: GraphFiles | None = None
    files: tuple[GraphFile, ...] = ()

    @property
    def sides(self) -> Sides:
        """Both engines."""
        return Sides(self.engine, self.reference)


class Corpus:
    """A folder of reproducers and logs, created if it does not exist. UserError if it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folders(folder)

    def reproducers(self) -> list[tuple[Path, Reproducer]]:
        """Return every reproducer of a divergence, by name.

        UserError for an invalid file, with the line.

        Reproducers of laws are omitted: a campaign only compares, while `kgverify replay` checks laws.
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
        """Open the log of a campaign. Start it anew if `is_fresh`, or if code has changed and the change is not accepted."""
        settings = msgspec.structs.replace(identity, code={})
        digest = hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:12]
        path = self.folder / f"campaign-{digest}{LOG_SUFFIX}"
        if is_fresh:
            with explained(path):
                path.unlink(missing_ok=True)
        title = "log of a campaign"
        return Ledger(path, identity, Block, title=title, accept_changed=accept_changed)


class _Source(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def graph(self) -> GraphFiles | None: ...


def name_source(source: _Source) -> str:
    """Return the name of the sequence of a campaign's problems."""
    graph = source.graph
    before = "" if graph is None else f"the graph {graph.spec or graph.train[0]} and "
    return f"{before}seed {source.seed}"


def name_file(signature: Signature) -> str:
    """Return a file name for a signature, readable and unique."""
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


_MOST_LISTED: Final = 20
"""The largest number of divergences that are shown; the corpus and the JSON contain all of them."""
_MOST_LINES: Final = 12
"""The largest number of lines of a program that are shown."""


class Tally(NamedTuple):
    """The progress of a campaign.

    phase:       `start`, `replay`, `try` or `shrink`
    done, total: the numbers of reproducers, problems or shrinks; total is 0 if the budget is in seconds
    seconds:     the seconds of the phase so far
    is_ending:   whether the campaign was interrupted, and only finishes blocks in progress
    tried:       the results of all blocks so far
    """

    phase: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    is_ending: bool = False
    tried: Tried = NOTHING_TRIED


Watch = Callable[[Tally], None]


class FoundDivergence(msgspec.Struct, kw_only=True):
    """A divergence, as `kgverify shrink` writes it, or `kgverify fuzz` once for all problems that show it.

    code:         the stable code of its kind: docs/verdicts.md has a section for each
    num_problems: generated problems confirmed to show it; 0 if only a reproducer of the corpus does
    first:        the index of the first such problem in the seed's sequence; -1 without such a problem
    file:         its reproducer; empty without a corpus, and if only several problems in one run show it
    size:         the number of facts, rules and body atoms of the reproducer's problem
    program:      the problem as text; empty if only several problems in one run show it
    message:      the engine's exception, and the lines of its code that raised it
    """

    signature: str
    stage: str
    kind: str
    code: str = ""
    num_problems: int = 0
    first: int = -1
    file: str = ""
    size: int = 0
    is_shrunk: bool = False
    program: str = ""
    neighbour: str = ""
    message: str = ""


def describe_signature(
    signature: Signature, path: Path | None = None, made: Reproducer | None = None
) -> FoundDivergence:
    """Describe the divergence of a signature, with its reproducer at a path, if there is one."""
    code = Code.__members__.get(signature.kind.upper(), "")
    found = FoundDivergence(signature=str(signature), stage=signature.stage, kind=signature.kind, code=code)
    if made is not None:
        found.file, found.size, found.is_shrunk = str(path), made.problem.size, is_shrunk(made)
        found.program, found.neighbour, found.message = str(made.problem), made.neighbour, made.message
    return found


class ReplayedFile(msgspec.Struct, kw_only=True):
    """A reproducer of the corpus that was run again; `found` is its current signature, empty if both sides agree."""

    file: str
    signature: str
    found: str


class CampaignResult(ShownAsText, Counts, kw_only=True):
    """The result of a campaign, including the blocks of the earlier campaigns that it resumed.

    engine, reference: the engine under test, and the engine that it was compared with
    dialect:     the dialect of both engines and of the problems
    graph:       the graph whose problems precede the seed's sequence
    stopped:     what was tried before the time was over; empty if everything was
    num_resumed: the number of problems that earlier campaigns tried
    seconds:     the seconds that this campaign spent on trying problems
    stages, classes: the number of confirmed problems for each stage and class of divergence
    minimum:     the exercise required of the campaign
    """

    engine: str
    reference: str
    seed: int
    lockstep: bool
    is_interrupted: bool
    num_resumed: int
    seconds: float
    problems_per_second: float
    stages: dict[str, int]
    classes: dict[str, int]
    divergences: list[FoundDivergence]
    replays: list[ReplayedFile]
    minimum: dict[str, int] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    dialect: Dialect = OURS
    graph: GraphFiles | None = None
    stopped: str = ""

    @property
    def is_vacuous(self) -> bool:
        """True if nothing was compared: no time was left, every problem was too slow, or the engine supports no policy."""
        return self.num_problems == self.num_skipped + self.num_left

    @property
    def reasons(self) -> tuple[Coded, ...]:
        """The reasons why the campaign decides nothing, if it found nothing."""
        if self.is_vacuous and self.num_skipped and not self.num_left:
            text = f"nothing was compared: the engine or the reference {REFUSED} every problem; {HOW_TO_SUPPORT}"
            return (Code.NOTHING_COMPARED.mark(text),)
        if self.is_vacuous:
            return (Code.NOTHING_COMPARED.mark("nothing was compared"),)
        if self.num_differing and not self.divergences:
            text = f"the time ended before one of {count_of(self.num_differing, 'differing problem')} was confirmed"
            return (Code.NOT_CONFIRMED.mark(text),)
        return explain_missing({"": self.exercise}, self.minimum)

    @property
    def verdict(self) -> Verdict:
        """DIVERGE if a divergence was found, INCONCLUSIVE if too little was exercised."""
        if self.divergences:
            return Verdict.DIVERGE
        return Verdict.INCONCLUSIVE if self.reasons else Verdict.AGREE

    @property
    def is_passed(self) -> bool:
        """True if enough was exercised and nothing diverges."""
        return self.verdict is Verdict.AGREE

    def __str__(self) -> str:
        """Return the result as the terminal shows it."""
        return "\n".join(
            map(make_visible, describe_campaign(self, lambda file: shlex.join(["kgverify", "replay", file])))
        )


def describe_campaign(result: CampaignResult, replay: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a result; `replay` returns the command that replays a file of the corpus."""
    resumed = f", {result.num_resumed:,} of them earlier" if result.num_resumed else ""
    so_far = " SO FAR" if result.is_interrupted else ""
    yield f"{_headline(result)}{so_far}   {count_of(result.num_problems, 'problem')}{resumed}"
    yield from (f"   {title:<12}{text}" for title, text in _list_rows(result) if text)
    for each in result.divergences[:_MOST_LISTED]:
        yield ""
        yield from _describe_divergence(each, replay)
    if len(result.divergences) > _MOST_LISTED:
        yield ""
        yield f"{len(result.divergences) - _MOST_LISTED:,} more in the corpus"


def _headline(result: CampaignResult) -> str:
    if result.verdict is Verdict.DIVERGE:
        return count_of(len(result.divergences), "NEW DIVERGENCE")
    return "NOTHING NEW" if result.is_passed else "INCONCLUSIVE"


def _list_rows(result: CampaignResult) -> Iterator[tuple[str, str]]:
    """Yield the titles and texts of a result, without rows whose text is empty."""
    yield "engine", result.engine + (", in lockstep as well" if result.lockstep else "")
    yield "reference", result.reference if result.reference != REFERENCE else ""
    yield "dialect", str(result.dialect) if result.dialect != OURS else ""
    yield (
        "compared",
        f"{count_of(result.num_candidates, 'candidate')}, {count_of(result.num_steps, 'step')},"
        f" {count_of(result.num_resolvents, 'resolvent')} of {name_source(result)}",
    )
    yield "stopped", result.stopped
    yield from (("because", each) for each in result.reasons if result.verdict is Verdict.INCONCLUSIVE)
    yield "exercised", describe_exercise(result.exercise) if result.exercise.outcomes is not None else ""
    yield from (("note", each) for each in result.notes)
    left = count_of(result.num_left, "problem")
    yield "skipped", describe_refusals(result.refusals, result.num_skipped, result.num_problems)
    why = "too slow, or in blocks that a hang or the end of the process ended"
    yield "not run", f"{left} {why}" * (result.num_left > 0)
    yield "time", f"{result.seconds:.1f} s, {result.problems_per_second:,.0f} problems a second"
    for title, counts in (("stages", result.stages), ("classes", result.classes)):
        yield title, ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    alone = result.num_differing - result.num_confirmed
    common = f"; {alone:,} of them only in the run of their block, not confirmed one by one" if alone else ""
    yield "differ", f"{count_of(result.num_differing, 'problem')}{common}" if result.num_differing else ""
    yield from _list_replays(result.replays)


def _list_replays(replays: list[ReplayedFile]) -> Iterator[tuple[str, str]]:
    if replays:
        still = sum(1 for each in replays if each.found)
        yield "replayed", f"{count_of(len(replays), 'reproducer')} of the corpus: {still} diverge"
    for each in replays:
        now = f"now {each.found}" if each.found else "no longer"
        yield "", f"  {now}: {each.signature}   {each.file}" if each.found != each.signature else ""


def _describe_divergence(found: FoundDivergence, replay: Callable[[str], str]) -> Iterator[str]:
    where = f"in {count_of(found.num_problems, 'problem')}, first in problem {found.first}"
    code = f" [{found.code}]" if found.code else ""
    yield f"{found.signature}   {where if found.num_problems else 'in the corpus'}{code}"
    yield from (f"   {line}" for line in found.message.splitlines())
    if not found.program:
        yield "   shows only where several problems share a run; try those of its block again with --fresh"
        return
    # The queries are its last lines.
    yield from (f"   {line}" for line in cut_middle(found.program.splitlines(), _MOST_LINES))
    if found.neighbour:
        yield f"   both sides agree with one change: {found.neighbour}"
    state = "" if found.is_shrunk else "   (not shrunk yet)"
    yield f"   {replay(found.file) if found.file else 'not saved: a corpus keeps its reproducer'}{state}"
