"""The inference for a comparison: for a program, and for the steps of one block of two traces."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from kgverify.comparison.classify import Finding
from kgverify.comparison.inference.origins import Deviation, OriginInference, StepOrigins
from kgverify.comparison.inference.single_fault import (
    ALONE,
    STAGE_OF_FILTER,
    StepProgram,
    explain_by_one_stage,
    has_stage,
)
from kgverify.comparison.inference.step_difference import (
    Given,
    LimitsSeen,
    StepDifference,
    explain_difference,
    explain_stopping,
    find_limits,
)
from kgverify.comparison.locate import MOST_SHOWN, Difference, shorten
from kgverify.comparison.result import NOTHING_MORE, Divergence
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import Names, ResolventView, StepView, content_of, plain
from kgverify.program.fact_index import Ids
from kgverify.program.limits import OURS, RANKED, SEARCHES, UNSEEN, Dialect
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Stage
from kgverify.program.program import Program
from kgverify.step.clauses import Clauses
from kgverify.trace.model.trace import Trace


def adopt_guess(divergence: Divergence, guess: StepDifference) -> Divergence:
    """Return the divergence with the stage and the class of a guess."""
    return replace(
        divergence, stage=guess.stage.value, kind=guess.kind, evidence=guess.evidence, confidence=guess.confidence
    )


def prefer_one_stage(guesses: Sequence[Sequence[StepDifference]]) -> list[StepDifference]:
    """Choose a guess for each of several steps: preferably all of one stage that explains every step, else the likeliest.

    Other stages that also explain every step are named in the evidence, since the records cannot distinguish them.

    guesses: one or more guesses for each step, the likeliest first
    """
    likeliest = [found[0] for found in guesses]
    common = set.intersection(*({each.stage for each in found} for found in guesses)) if guesses else set()
    if not common:
        return likeliest

    def rank(stage: Stage) -> tuple[int, int]:
        return sum([each.stage for each in found].index(stage) for found in guesses), STEP_STAGES.index(stage)

    stage = min(common, key=rank)
    if {each.stage for each in likeliest} == {likeliest[0].stage}:
        stage = likeliest[0].stage
    chosen = [next(each for each in found if each.stage is stage) for found in guesses]
    others = " or ".join(each.value for each in STEP_STAGES if each in common - {stage})
    doubt = f"; the recorded steps cannot tell it from a fault of {others}" if others else ""
    return [each._replace(evidence=f"{each.evidence}{doubt}") for each in chosen]


MOST_CLAUSES: Final = 3
"""The most clauses to name among those that may have made a resolvent; the rest are counted."""


class ProgramInference:
    """The program of a comparison, indexed when the first step needs it. trace: a trace that holds it, or None."""

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        self.rules = (trace.rules or ()) if trace is not None else ()

    @cached_property
    def origins(self) -> OriginInference | None:
        """The inference of origins; None without facts and rules."""
        trace = self._trace
        if trace is None or trace.facts is None:
            return None
        program = Program(trace.symbols, trace.facts, self.rules, (), (), ())
        limits = trace.header.limits.with_defaults()
        return OriginInference(Clauses(program, exclude_query=limits.exclude_query, dialect=limits.dialect))

    def at(self, goal: Sequence[Sequence[int]], query: Sequence[int]) -> StepOrigins | None:
        """Return the inference for one goal in a query's derivation; None without a program."""
        if self.origins is None:
            return None
        return self.origins.at(tuple(map(_ids, goal)), _ids(query))

    def render(self, r: ResolventView, step: StepOrigins | None, names: Names) -> str:
        """Render a resolvent with the clauses that may have made it, marked as inferred."""
        text = names.goal(r.atoms, r.kind)
        if r.kind != GoalKind.GOAL and r.atoms:
            text = f"{text}, {names.goal(r.atoms)}"
        if step is None or self._trace is None or r.kind not in (GoalKind.GOAL, GoalKind.TRUE):
            return text
        found = step.explain(content_of(r)[1])
        if found.deviation is not Deviation.NONE:
            return f"{text}   ({found.detail})"
        own, num_more = Names(self._trace), len(found.clauses) - MOST_CLAUSES
        named = [own.clause(*clause) for clause in found.clauses[:MOST_CLAUSES]]
        more = [f"{num_more} more"] if num_more > 0 else []
        return f"{text}   by {' or '.join([*named, *more])} (inferred)"


def find_program(traces: Sequence[Trace]) -> Trace | None:
    """Return the first of two traces, in one numbering, that holds its facts and rules; None if neither trace holds them."""
    known = (trace for trace in traces if trace.facts is not None)
    return next((trace for trace in known if trace.rules is not None or not trace.header.clauses.rules), None)


class BlockInference:
    """The inference for the steps of a block of two traces.

    earlier:     a function that returns the steps of a candidate before a step
    has_origins: whether both traces know the clauses that made their resolvents
    has_counts:  whether both know how many resolvents the limits dropped
    guesses:     the guesses for each explained step, by (candidate, step)
    """

    def __init__(
        self,
        program: ProgramInference,
        traces: tuple[Trace, Trace],
        names: Names,
        earlier: Callable[[int, int], tuple[StepView, ...]],
        *,
        has_origins: bool,
        has_counts: bool,
    ) -> None:
        self._program, self._traces, self._names, self._earlier = program, traces, names, earlier
        self.has_origins, self._has_counts = has_origins, has_counts
        self.guesses: dict[tuple[int, int], list[StepDifference]] = {}
        self._declared = traces[0].header.limits.with_defaults()
        self._num_symbols = (
            max(len(trace.symbols.predicates) for trace in traces),
            max(len(trace.symbols.constants) for trace in traces),
        )

    @cached_property
    def _limits(self) -> tuple[LimitsSeen, LimitsSeen]:
        expected, actual = (find_limits(trace, self._at) for trace in self._traces)
        return expected, actual

    def name(
        self, candidate: int, step: int, expected: StepView, actual: StepView, difference: Difference
    ) -> Difference:
        """Return a difference of resolvents, or of dropped counts, with the stage that explains it."""
        field = difference.field
        if field == "resolvents.score" or not field.startswith(("resolvents.", "steps.dropped_")):
            return difference
        found = self.explain(candidate, step, expected, actual)
        if found is None:
            return difference
        if not self.has_origins and field.startswith("resolvents."):
            difference = self._show_contents(candidate, expected, actual, found)
        return difference._replace(stage=found.stage, found=found)

    def _show_contents(self, candidate: int, expected: StepView, actual: StepView, found: StepDifference) -> Difference:
        """Show a difference of resolvents by their contents, without recorded clauses."""
        left, right = (Counter(r.content for r in step.resolvents) for step in (expected, actual))
        sides: Sequence[Sequence[ResolventView]] = (found.missing, found.extra)
        if not any(sides):
            pairs = zip(expected.resolvents, actual.resolvents, strict=False)
            shown = [pair for pair in pairs if pair[0].content != pair[1].content]
            sides = list(zip(*shown, strict=True)) or (expected.resolvents, actual.resolvents)
        origins = self._at(candidate, expected)
        # Only the resolvents that are shown are rendered: their clauses have to be inferred.
        texts = [
            [self._program.render(r, origins, self._names) if i < MOST_SHOWN else "" for i, r in enumerate(side)]
            for side in sides
        ]
        field = "resolvents.order" if left == right else "resolvents.atoms"
        shown_left, shown_right = (shorten(side) or NOTHING_MORE for side in texts)
        return Difference(found.stage, field, shown_left, shown_right)

    def explain(self, candidate: int, step: int, expected: StepView, actual: StepView) -> StepDifference | None:
        """Explain two steps that differ in resolvents or dropped counts; return None if the steps themselves say more.

        Contents alone fit many faults. Therefore, if clauses are unknown, the rules for contents are tried first: they know
        the limits that other steps show. They hold only in a dialect with the usual order of stages. Lists that differ in
        more than STOP, an engine's own terminal action, are explained without it.
        """
        whole = StepPair(expected, actual, has_origins=self.has_origins, has_counts=self._has_counts)
        stopping = explain_stopping(whole)
        if stopping is not None:
            self.guesses[candidate, step] = [stopping]
            return stopping
        pair, limits = whole.without_stopping(), self._declared
        expected, actual = pair.steps
        limits = replace(limits, dialect=replace(limits.dialect, stopping=OURS.stopping))
        earlier = self._earlier(candidate, step)
        guesses: list[StepDifference] = []
        if self._program.origins is not None and len(earlier) >= min(step, 1):
            visited = [plain(each.goal) for each in (*earlier, expected)]
            query = _ids(self._traces[0].columns.candidates.atom[candidate].tolist())
            program = StepProgram(self._program.origins.clauses, limits, visited, query)
            guesses = explain_by_one_stage(program, pair)
        is_same = [r.content for r in expected.resolvents] == [r.content for r in actual.resolvents]
        is_open = not guesses or follows_inference(limits.dialect)
        if is_open and not is_same and not self.has_origins:
            given = Given(self._at(candidate, expected), earlier, self._limits, self._num_symbols)
            guesses = [*explain_difference(pair, given), *guesses]
        if guesses:
            self.guesses[candidate, step] = guesses
        return guesses[0] if guesses else None

    def _at(self, candidate: int, step: StepView) -> StepOrigins | None:
        return self._program.at(step.goal, self._traces[0].columns.candidates.atom[candidate].tolist())


def _ids(atom: Sequence[int]) -> Ids:
    predicate, a, b = atom
    return int(predicate), int(a), int(b)


UNNAMED: Final = "unknown"
"""The stage of a divergence that cannot be named."""

_STAGE_OF: Final = {name: of for name, of in STAGE_OF_FILTER.items() if name != "duplicates" and of is not Stage.LIMIT}


def order_of_stages(dialect: Dialect) -> tuple[Stage, ...]:
    """Return the stages of a step in the order of a dialect. `limit` is the last filter: its output is the final list."""
    applied = [_STAGE_OF[name] for name in dialect.filters if name in _STAGE_OF]
    applied.insert(applied.index(Stage.REVISIT) if Stage.REVISIT in applied else len(applied), Stage.RENAME)
    begin, end = STEP_STAGES.index(Stage.PRUNE), STEP_STAGES.index(Stage.LIMIT)
    return (*STEP_STAGES[:begin], *applied, *STEP_STAGES[end:])


def follows_inference(dialect: Dialect) -> bool:
    """Return whether the rules that infer a stage from the outputs of others hold in a dialect."""
    return _knows(dialect) and dialect.filters == OURS.filters and dialect.stopping == OURS.stopping


def _knows(dialect: Dialect) -> bool:
    """Return whether the rules about the content of two lists hold in a dialect: filters are in the usual order, if any."""
    is_usual = [*dialect.filters] == [name for name in OURS.filters if name in dialect.filters]
    others = (name for name in Dialect.__struct_fields__ if name not in _KNOWN_TO_INFERENCE)
    is_same = all(getattr(dialect, name) == getattr(OURS, name) for name in others)
    return is_usual and is_same and dialect.exclusion != "positives_only"


def name_in_dialect(
    divergences: Sequence[Divergence], findings: Sequence[Finding], dialect: Dialect | None
) -> tuple[tuple[Divergence, ...], tuple[Finding, ...]]:
    """Return divergences and their classes without the stages that cannot be named; the evidence says why.

    A stage that explains another step alone is also named in steps that no stage explains alone.
    """
    if dialect is None or dialect == OURS:
        return tuple(divergences), tuple(findings)
    pairs = list(zip(divergences, findings, strict=True))
    explaining = {divergence.stage for divergence, finding in pairs if ALONE in finding.evidence}
    named, explained = [], []
    for divergence, finding in pairs:
        why = "" if divergence.stage in explaining else _why_unnamed(divergence, dialect)
        if why:
            divergence = replace(divergence, stage=UNNAMED)
            # What the rules for the default dialect say about the lists may be wrong in another one.
            parts = [finding.evidence] if _knows(dialect) or divergence.field.startswith("stage.") else []
            finding = finding._replace(evidence="; ".join([*filter(None, parts), f"no stage is named: {why}"]))
        named.append(divergence)
        explained.append(finding)
    return tuple(named), tuple(explained)


def _why_unnamed(divergence: Divergence, dialect: Dialect) -> str:
    if divergence.stage not in (*STAGE_OF_FILTER.values(), Stage.MATCH_RULES, Stage.MATCH_FACTS):
        return ""
    stage = Stage(divergence.stage)
    if not has_stage(dialect, stage):
        return f"the dialect does not apply {stage.value}"
    if divergence.field == f"stage.{stage.value}":
        # Both engines showed the outputs of their stages, in the order of the dialect.
        hidden = _first_hidden(dialect)
        is_behind = hidden is not None and stage in STAGE_OF_FILTER.values()
        return f"its filter {hidden} shows no output of its own" if is_behind else ""
    return "" if _knows(dialect) else "no fault of one stage explains the step in its dialect"


def _first_hidden(dialect: Dialect) -> str | None:
    """Return the first filter that other filters follow and whose output no stage shows."""
    filters = dialect.filters
    last = max((i for i, name in enumerate(filters) if name in _STAGE_OF), default=-1)
    return next((name for i, name in enumerate(filters) if name not in _STAGE_OF and i < last), None) or (
        "duplicates" if "duplicates" in filters else None
    )


_KNOWN_TO_INFERENCE: Final = {
    "unification",
    "order",
    "is_reversed",
    "exclusion",
    "filters",
    "stopping",
    *UNSEEN,
    *RANKED,
    *SEARCHES,
}
"""The switches that the rules of inference support. They assume the default of every other switch."""
