"""The progress and the result of a campaign: what was tried and exercised, and each divergence once."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec

from kgverify.testing.campaigns.corpus import Block, is_shrunk
from kgverify.testing.campaigns.known_divergences import KnownDivergence, KnownStatus
from kgverify.testing.checking.failure import Signature
from kgverify.testing.problems.features import ALL_FEATURES
from kgverify.testing.reproducers.reproducer import Reproducer


class Tally(NamedTuple):
    """The progress of a campaign.

    phase:       `start`, `replay`, `try` or `shrink`
    done, total: reproducers, problems or shrinks; total 0 if seconds are the budget
    seconds:     of the phase so far
    resumed:     of the problems done, those of earlier campaigns
    at_work:     problems that processes are working on
    is_ending:   whether it was interrupted, and only finishes blocks in progress
    candidates, steps, resolvents: compared so far
    differing:   problems that differ in the run of their block
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


Watch = Callable[[Tally], None]


class Counts:
    """Totals over the finished blocks."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.problems = self.candidates = self.steps = self.resolvents = self.differing = 0
        self.found: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.features: set[str] = set()
        for block in blocks:
            self.add(block)

    def add(self, block: Block) -> None:
        """Count a block."""
        self.problems += block.num_problems
        self.candidates += block.num_candidates
        self.steps += block.num_steps
        self.resolvents += block.num_resolvents
        self.differing += block.num_differing
        self.features.update(name for name, count in block.features.items() if count)
        for each in block.sightings:
            self.found[str(each.signature)] += each.count
            self.stages[each.signature.stage or "none"] += each.count
            self.classes[each.signature.kind] += each.count

    def tally(self, *, total: int, seconds: float, resumed: int, at_work: int, is_ending: bool) -> Tally:
        """Return the progress of the phase `try`."""
        return Tally(
            phase="try",
            done=self.problems,
            total=total,
            seconds=seconds,
            resumed=resumed,
            at_work=at_work,
            is_ending=is_ending,
            candidates=self.candidates,
            steps=self.steps,
            resolvents=self.resolvents,
            differing=self.differing,
            found=dict(self.found),
            stages=dict(self.stages),
            classes=dict(self.classes),
            features=frozenset(self.features),
        )


class FoundDivergence(msgspec.Struct, kw_only=True):
    """A divergence, once for all problems that show it.

    is_new:       whether no known divergence has its signature
    num_problems: generated problems confirmed to show it; 0 if only a reproducer of the corpus does
    first:        index of the first of these in the seed's sequence; -1 if none does
    file:         its reproducer; empty if only several problems in one run show it
    size:         facts, rules and body atoms of the reproducer's problem
    program:      the problem as text
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

    num_resumed:   of the problems, those tried by earlier campaigns
    num_skipped:   of the problems, those with a policy that the engine does not support
    num_differing: problems that differ in the run of their block
    num_confirmed: of these, those run by themselves; the signatures of the others are unknown
    seconds:       of trying problems, in this campaign
    num_measured:  problems whose features were counted
    features:      feature to the number of these in which it occurs; every feature is listed
    stages, classes: of divergences, to the number of confirmed problems
    """

    engine: str
    seed: int
    lockstep: bool
    is_interrupted: bool
    num_problems: int
    num_resumed: int
    num_skipped: int
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

    @property
    def new(self) -> list[FoundDivergence]:
        """The divergences that are not known."""
        return [each for each in self.divergences if each.is_new]

    @property
    def missing(self) -> list[str]:
        """The features that never occurred."""
        return [name for name, count in self.features.items() if not count]

    @property
    def is_vacuous(self) -> bool:
        """True if nothing was compared, since the engine supports no policy."""
        return 0 < self.num_problems == self.num_skipped

    @property
    def is_passed(self) -> bool:
        """True if something was compared, nothing is new, and each known divergence is as its entry says."""
        return not self.is_vacuous and not self.new and not any(each.fails for each in self.known)


def summarise_campaign(
    *,
    engine: str,
    seed: int,
    lockstep: bool,
    blocks: Sequence[Block],
    num_resumed: int,
    seconds: float,
    replays: Sequence[tuple[Path, Signature, Signature | None]],
    reproducers: Sequence[tuple[Path, Reproducer]],
    known: Sequence[KnownDivergence],
    today: date,
    is_interrupted: bool,
) -> CampaignResult:
    """Return the result of blocks, in order, and of the corpus, as replayed at first and as it is now."""
    counts: Counter[Signature] = Counter()
    first: dict[Signature, int] = {}
    features: Counter[str] = Counter()
    for block in blocks:
        features.update(block.features)
        for sighting in block.sightings:
            counts[sighting.signature] += sighting.count
            first.setdefault(sighting.signature, sighting.index)
    shown_by = {found: path for path, _, found in reversed(replays) if found is not None}
    shown = [
        *first,
        *(found for found in dict.fromkeys(found for _, _, found in replays if found) if found not in first),
    ]
    allowed = {entry.signature for entry in known}
    totals = Counts(blocks)
    gone = {path for path, signature, found in replays if found != signature}
    files = {made.signature: (path, made) for path, made in reversed(reproducers) if path not in gone}
    made_of = dict(reproducers)
    divergences = []
    for signature in shown:
        each = FoundDivergence(
            signature=str(signature),
            stage=signature.stage,
            kind=signature.kind,
            is_new=str(signature) not in allowed,
            num_problems=counts[signature],
            first=first.get(signature, -1),
        )
        path, made = files.get(signature, (None, None))
        if made is None and signature in shown_by:
            path = shown_by[signature]
            made = made_of[path]
        if made is not None:
            each.file, each.size, each.is_shrunk = str(path), made.problem.size, is_shrunk(made)
            each.program, each.neighbour = str(made.problem), made.neighbour
        divergences.append(each)
    seen = {each.signature: each.num_problems for each in divergences}
    replayed = {str(signature) for _, signature, _ in replays}
    return CampaignResult(
        engine=engine,
        seed=seed,
        lockstep=lockstep,
        is_interrupted=is_interrupted,
        num_problems=totals.problems,
        num_resumed=num_resumed,
        num_skipped=sum(block.num_skipped for block in blocks),
        num_candidates=totals.candidates,
        num_steps=totals.steps,
        num_resolvents=totals.resolvents,
        num_differing=totals.differing,
        num_confirmed=sum(block.num_confirmed for block in blocks),
        seconds=seconds,
        problems_per_second=(totals.problems - num_resumed) / seconds if seconds else 0.0,
        num_measured=sum(block.num_measured for block in blocks),
        features={name: features[name] for name in ALL_FEATURES},
        stages=dict(totals.stages),
        classes=dict(totals.classes),
        divergences=divergences,
        known=[
            KnownJudgement(
                signature=entry.signature,
                issue=entry.issue,
                reason=entry.reason,
                expires=entry.expires,
                status=entry.judge(seen, replayed, totals.problems, today),
                num_problems=seen.get(entry.signature, 0),
            )
            for entry in known
        ],
        replays=[
            ReplayedFile(file=str(path), signature=str(signature), found=str(found or ""))
            for path, signature, found in replays
        ],
    )
