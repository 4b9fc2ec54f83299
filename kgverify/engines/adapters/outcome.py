"""An engine from a black box, which reports only whether a triple is proved, and perhaps a score."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions
from kgverify.errors import UserError
from kgverify.program.atoms import decode_variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Candidates, CandidateSet, Columns, empty_columns
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel

Answer: TypeAlias = bool | tuple[bool, float]
"""True for a proved triple, else False; optionally with its log-probability in nats."""

NamedTriple: TypeAlias = tuple[str, str, str]
"""A predicate and two arguments; an argument that begins with `?` is a variable."""

SIGNATURE: Final = "decide(query) -> True or False, or a pair of that and a score"

OUTCOMES: Final = "outcomes"
"""The mode of these engines, which by default are compared with the reference `search`."""

_KNOWN: Final = frozenset({"candidates.query", "candidates.side", "candidates.atom", "candidates.outcome"})
_SCORE: Final = "candidates.log_probability"


class OutcomeEngine:
    """A black box whose author provides `decide`, which reports whether a triple is proved.

    Its steps remain unknown.

    program, limits, policy: as given, for `setup` and `decide` to use
    facts, rules: those of the program, in names
    score_error: bound on the error of its scores, in nats

    Its outcomes and ranks are compared with the reference `search`, which finds any proof, unless the user names another
    reference. Scores are compared if the reference has scores. The stage of a difference remains unknown.

    Example:
        >>> import kgverify as kv
        >>> class KnowsFacts(kv.OutcomeEngine):
        ...     def decide(self, query):
        ...         return query in self.facts
        >>> report = kv.verify("countries", KnowsFacts, queries=1, corruptions=1)
        >>> report.verdict.value, "steps.choice" in report.coverage.not_compared
        ('DIVERGE', True)
    """

    score_error: ClassVar[float] = 0.0

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        self.program, self.limits, self.policy = program, limits, policy
        self._gives_scores = False
        self.setup()

    @cached_property
    def facts(self) -> frozenset[NamedTriple]:
        """The facts in names."""
        return frozenset(map(self._spell, self.program.facts.tolist()))

    @cached_property
    def rules(self) -> tuple[tuple[NamedTriple, tuple[NamedTriple, ...]], ...]:
        """The rules in names, each a head and a body. Their variables are `?0`, `?1` and so on."""
        return tuple((self._spell(head), tuple(map(self._spell, body))) for head, body in self.program.rules)

    def setup(self) -> None:
        """Prepare the engine for `self.program` and `self.limits`. Optional."""

    def decide(self, query: tuple[str, str, str]) -> Answer:
        """Return whether a triple (predicate, first, second) is proved, optionally with its score.

        The score is compared with the log-probability of the other side's derivation, in nats. An argument that begins
        with `?` is a variable.
        """
        raise NotImplementedError

    def decide_all(self, queries: Sequence[tuple[str, str, str]]) -> Iterable[Answer]:
        """Return the answer for each of many triples. Override it to decide them together."""
        return [self.decide(query) for query in queries]

    @property
    def info(self) -> EngineInfo:
        """The engine's info: the name of the class, and every column but the outcomes as unknown."""
        known = _KNOWN | {_SCORE} if self._gives_scores else _KNOWN
        return EngineInfo(
            name=type(self).__name__,
            mode=OUTCOMES,
            score_error=self.score_error,
            unknown=tuple(sorted(KNOWLEDGE_GRAPH.columns_kept(TraceLevel.STEPS) - known)),
            variables="own",
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Decide every candidate. UserError for answers of the wrong form."""
        num = candidates.num_candidates
        queries = list(map(self._spell, candidates.atom.tolist()))
        answers = list(self.decide_all(queries))
        if len(answers) != num:
            raise self._misshapen(f"found {len(answers)} answers to {num} queries")
        is_proved, scores = np.zeros(num, np.bool_), np.zeros(num)
        pairs = [isinstance(answer, tuple | list) for answer in answers]
        if any(pairs) and not all(pairs):
            raise self._misshapen("found scores for some queries only")
        self._gives_scores = any(pairs)
        for i, answer in enumerate(answers):
            is_proved[i], scores[i] = self._read(answer)
        progress(num)
        return build_outcomes(candidates, np.where(is_proved, Outcome.PROVED, Outcome.FAILED).astype(np.int8), scores)

    def step(self, positions: Positions) -> Columns:
        """Raise UserError: the steps of a black box are unknown."""
        raise UserError(
            "the steps of a black box are unknown, and so none can be taken",
            where=type(self).__name__,
            fix="compare without lockstep, or write an engine whose steps are known: see kgverify.engine_of",
        )

    def _spell(self, atom: Sequence[int]) -> NamedTriple:
        predicate, *arguments = atom
        constants = self.program.symbols.constants
        first, second = (constants[each] if each >= 0 else f"?{decode_variable(each)}" for each in arguments)
        return self.program.symbols.predicates[predicate], first, second

    def _read(self, answer: Any) -> tuple[bool, float]:
        is_proved, score = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, 0.0)
        if not isinstance(is_proved, bool | np.bool_):
            raise self._misshapen(f"found {answer!r}")
        try:
            return bool(is_proved), float(score)
        except (TypeError, ValueError):
            raise self._misshapen(f"found {answer!r}") from None

    def _misshapen(self, message: str) -> UserError:
        return UserError(message, where=f"{type(self).__name__}.decide", fix=f"write {SIGNATURE}")


def build_outcomes(
    candidates: CandidateSet, outcomes: NDArray[np.int8], scores: NDArray[np.float64] | None = None
) -> Columns:
    """Return the columns of candidates without steps."""
    num = candidates.num_candidates
    return empty_columns()._replace(
        candidates=Candidates(
            *candidates,
            np.zeros(num, np.uint32),
            outcomes,
            np.zeros(num, np.uint8),
            np.zeros(num) if scores is None else scores,
        )
    )
