"""The progress and the result of a campaign: what was tried and exercised, and each divergence once."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Final, NamedTuple

import msgspec

from kgverify.comparison.exercise.exercise import NOT_EXERCISED, Exercise, explain_missing
from kgverify.comparison.result import Verdict
from kgverify.engines.table import REFERENCE
from kgverify.errors import count_of
from kgverify.escaping import make_visible
from kgverify.program.dialect import OURS, Dialect
from kgverify.report.exercise import describe_exercise
from kgverify.testing.campaigns.corpus import Block, name_source
from kgverify.testing.campaigns.known_divergences import KnownStatus
from kgverify.testing.checking.failure import Signature

_MOST_LISTED: Final = 20
"""Divergences that are shown; the corpus and the JSON have them all."""
_MOST_LINES: Final = 12
"""Lines of a program that are shown."""


class Tally(NamedTuple):
    """The progress of a campaign.

    phase:       `start`, `replay`, `try` or `shrink`
    done, total: reproducers, problems or shrinks; total 0 if seconds are the budget
    seconds:     of the phase so far
    resumed:     of the problems done, those of earlier campaigns
    at_work:     problems that processes are working on
    is_ending:   whether it was interrupted, and only finishes blocks in progress
    candidates, steps, resolvents: compared so far
    differing:   problems that differ in their run
    found:       signature to confirmed problems
    stages, classes: of these signatures, to confirmed problems
    features:    that occurred so far
    """

    phase: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    resumed: int = 0
    at_work: int = 0
    is_ending: bool = False
    candidates: int = 0
    steps: int = 0
    resolvents: int = 0
    differing: int = 0
    found: Mapping[str, int] = {}
    stages: Mapping[str, int] = {}
    classes: Mapping[str, int] = {}
    features: frozenset[str] = frozenset()

    def add(self, block: Block) -> "Tally":
        """Return the progress with one more finished block."""

        def plus(counts: Mapping[str, int], name: Callable[[Signature], str]) -> Mapping[str, int]:
            total = Counter(counts)
            for each in block.sightings:
                total[name(each.signature)] += each.count
            return dict(total)

        return self._replace(
            done=self.done + block.num_problems,
            candidates=self.candidates + block.num_candidates,
            steps=self.steps + block.num_steps,
            resolvents=self.resolvents + block.num_resolvents,
            differing=self.differing + block.num_differing,
            found=plus(self.found, str),
            stages=plus(self.stages, lambda signature: signature.stage or "none"),
            classes=plus(self.classes, lambda signature: signature.kind),
            features=self.features.union(name for name, count in block.features.items() if count),
        )


Watch = Callable[[Tally], None]


class FoundDivergence(msgspec.Struct, kw_only=True):
    """A divergence, once for all problems that show it.

    is_new:       whether no known divergence has its signature
    num_problems: generated problems confirmed to show it; 0 if only a reproducer of the corpus does
    first:        index of the first of these in the seed's sequence; -1 if none does
    file:         its reproducer; empty without a corpus, and if only several problems in one run show it
    size:         facts, rules and body atoms of the reproducer's problem
    program:      the problem as text; empty if only several problems in one run show it
    """

    signature: str
    stage: str
    kind: str
    is_new: bool
    num_problems: int = 0
    first: int = -1
    file: str = ""
    size: int = 0
    is_shrunk: bool = False
    program: str = ""
    neighbour: str = ""


class KnownJudgement(msgspec.Struct, kw_only=True):
    """An entry of the file of known divergences with its status; `num_problems` show it."""

    signature: str
    issue: str
    reason: str
    expires: date
    status: KnownStatus
    num_problems: int

    @property
    def fails(self) -> bool:
        """True if the campaign fails because of it."""
        return self.status in (KnownStatus.EXPIRED, KnownStatus.GONE)


class ReplayedFile(msgspec.Struct, kw_only=True):
    """A reproducer of the corpus that was run again; `found` is the signature now, empty if both sides agree."""

    file: str
    signature: str
    found: str


class CampaignResult(msgspec.Struct, kw_only=True):
    """The result of a campaign, the blocks of the earlier campaigns that it resumed included.

    engine, reference: the engine under test, and the one that it was compared with
    dialect:       of both, and of the problems
    scope:         of the problems, instead of the seed's sequence
    num_resumed:   of the problems, those tried by earlier campaigns
    num_skipped:   of the problems, those with a policy that the engine does not support
    num_left:      of the problems, those not run, since an engine that hangs or ends its process ends its block
    num_differing: problems that differ in their run
    num_confirmed: of these, those run by themselves; the signatures of the others are unknown
    seconds:       of trying problems, in this campaign
    num_measured:  problems whose features were counted; 0 in another dialect, and with a reference other than kgverify's
    features:      feature to the number of these in which it occurs; every feature is listed
    stages, classes: of divergences, to the number of confirmed problems
    exercise:      of the problems on which both sides agree, by the reference
    minimum:       the exercise required of the campaign
    """

    engine: str
    reference: str
    seed: int
    lockstep: bool
    is_interrupted: bool
    num_problems: int
    num_resumed: int
    num_skipped: int
    num_left: int
    num_candidates: int
    num_steps: int
    num_resolvents: int
    num_differing: int
    num_confirmed: int
    seconds: float
    problems_per_second: float
    num_measured: int
    features: dict[str, int]
    stages: dict[str, int]
    classes: dict[str, int]
    divergences: list[FoundDivergence]
    known: list[KnownJudgement]
    replays: list[ReplayedFile]
    exercise: Exercise = NOT_EXERCISED
    minimum: dict[str, int] = {}
    notes: list[str] = []
    dialect: Dialect = OURS
    scope: str | None = None

    @property
    def new(self) -> list[FoundDivergence]:
        """The divergences that are not known."""
        return [each for each in self.divergences if each.is_new]

    @property
    def missing(self) -> list[str]:
        """The features that never occurred."""
        return [name for name, count in self.features.items() if not count]

    @property
    def is_proof(self) -> bool:
        """True if every problem of a scope was compared and none diverges."""
        num_missing = self.num_skipped + self.num_left
        return (
            self.scope is not None
            and self.is_passed
            and not (self.is_interrupted or self.divergences or self.num_differing or num_missing)
        )

    @property
    def is_vacuous(self) -> bool:
        """True if nothing was compared: no time was left, or the engine supports no policy."""
        return self.num_problems == self.num_skipped

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the campaign decides nothing, if it found nothing."""
        if self.is_vacuous:
            return ("nothing was compared",)
        return explain_missing({"": self.exercise}, self.minimum)

    @property
    def verdict(self) -> Verdict:
        """DIVERGE if a divergence is new or a known one is not as its entry says, INCONCLUSIVE if too little was exercised."""
        if self.new or any(each.fails for each in self.known):
            return Verdict.DIVERGE
        return Verdict.INCONCLUSIVE if self.reasons else Verdict.AGREE

    @property
    def is_passed(self) -> bool:
        """True if enough was exercised, nothing is new, and each known divergence is as its entry says."""
        return self.verdict is Verdict.AGREE

    def __str__(self) -> str:
        """Return the result as the terminal shows it."""
        return "\n".join(
            map(make_visible, describe_campaign(self, lambda file: shlex.join(["kgverify", "replay", file])))
        )

    def __repr__(self) -> str:
        """Return the first line."""
        return f"<CampaignResult {str(self).partition(chr(10))[0]}>"


def describe_campaign(result: CampaignResult, replay: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a result; `replay` returns the command that replays a file of the corpus."""
    new, known = result.new, [each for each in result.divergences if not each.is_new]
    resumed = f", {result.num_resumed:,} of them earlier" if result.num_resumed else ""
    first = (
        "NOTHING NEW"
        if result.is_passed
        else "INCONCLUSIVE"
        if result.verdict is Verdict.INCONCLUSIVE
        else count_of(len(new), "NEW DIVERGENCE")
        if new
        else "KNOWN DIVERGENCES TO REVIEW"
    )
    so_far = " SO FAR" if result.is_interrupted else ""
    yield f"{first}{so_far}   {count_of(result.num_problems, 'problem')}{resumed}"
    yield f"   engine      {result.engine}" + (", in lockstep as well" if result.lockstep else "")
    if result.reference != REFERENCE:
        yield f"   reference   {result.reference}"
    if result.dialect != OURS:
        yield f"   dialect     {result.dialect}"
    yield (
        f"   compared    {count_of(result.num_candidates, 'candidate')}, {count_of(result.num_steps, 'step')},"
        f" {count_of(result.num_resolvents, 'resolvent')} of {name_source(result.seed, result.scope)}"
    )
    if result.is_proof:
        yield f"   proved      no divergence exists in the scope {result.scope}"
    for reason in result.reasons if result.verdict is Verdict.INCONCLUSIVE else ():
        yield f"   because     {reason}"
    if result.exercise.outcomes is not None:
        yield f"   exercised   {describe_exercise(result.exercise)}"
    for note in result.notes:
        yield f"   note        {note}"
    if result.num_skipped:
        yield f"   skipped     {count_of(result.num_skipped, 'problem')} whose policy the engine does not know"
    if result.num_left:
        yield f"   not run     {count_of(result.num_left, 'problem')} in blocks that a hang or the end of the process ended"
    yield f"   time        {result.seconds:.1f} s, {result.problems_per_second:,.0f} problems a second"
    yield from _coverage(result)
    if result.num_differing:
        unconfirmed = result.num_differing - result.num_confirmed
        yield f"   differ      {count_of(result.num_differing, 'problem')}" + (
            f"; {unconfirmed:,} of them only in the run of their block, not confirmed one by one" if unconfirmed else ""
        )
    if result.replays:
        still = sum(1 for each in result.replays if each.found)
        yield f"   replayed    {count_of(len(result.replays), 'reproducer')} of the corpus: {still} diverge"
        for replayed in result.replays:
            if replayed.found != replayed.signature:
                now = f"now {replayed.found}" if replayed.found else "no longer"
                yield f"                 {now}: {replayed.signature}   {replayed.file}"
    for entry in result.known:
        if entry.status is KnownStatus.EXPIRED:
            yield f"EXPIRED   {entry.signature}   on {entry.expires}   {entry.issue}: {entry.reason}"
            yield "   fix: repair it, or review its entry and give it another day"
        elif entry.status is KnownStatus.GONE:
            yield f"GONE      {entry.signature}   {entry.issue}: {entry.reason}"
            yield "   fix: it no longer occurs: take it out of the file"
    if known:
        yield f"   known       {count_of(len(known), 'divergence')}"
        for each in known:
            yield f"                 {each.signature}   in {count_of(each.num_problems, 'problem')}"
    for each in new[:_MOST_LISTED]:
        yield ""
        yield from _describe_divergence(each, replay)
    if len(new) > _MOST_LISTED:
        yield ""
        yield f"{len(new) - _MOST_LISTED:,} more in the corpus"


def _coverage(result: CampaignResult) -> Iterator[str]:
    if not result.num_measured:
        return
    met = len(result.features) - len(result.missing)
    yield f"   features    {met} of {len(result.features)}, counted in {count_of(result.num_measured, 'problem')}"
    if result.missing:
        yield f"                 never: {', '.join(result.missing)}"
    for title, counts in (("stages", result.stages), ("classes", result.classes)):
        if counts:
            yield f"   {title:<9}   {', '.join(f'{name} {count:,}' for name, count in sorted(counts.items()))}"


def _describe_divergence(found: FoundDivergence, replay: Callable[[str], str]) -> Iterator[str]:
    where = f"in {count_of(found.num_problems, 'problem')}, first in problem {found.first}"
    yield f"{found.signature}   {where if found.num_problems else 'in the corpus'}"
    if not found.program:
        yield "   shows only where several problems share a run; try those of its block again with --fresh"
        return
    program = found.program.splitlines()
    shown = (
        program if len(program) <= _MOST_LINES else [*program[: _MOST_LINES - 1], f"... {len(program)} lines in all"]
    )
    yield from (f"   {line}" for line in shown)
    if found.neighbour:
        yield f"   both sides agree with one change: {found.neighbour}"
    state = "" if found.is_shrunk else "   (not shrunk yet)"
    yield f"   {replay(found.file) if found.file else 'not saved: a corpus keeps its reproducer'}{state}"
