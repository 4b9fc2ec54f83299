"""The differences that count: what a comparison accepts as equal, and the evidence that it requires."""

from collections.abc import Collection
from dataclasses import dataclass

from kgverify.arguments import check_fields
from kgverify.comparison.exercise.exercise import Minimum, parse_minimum
from kgverify.comparison.modulo import Modulo, parse_modulo
from kgverify.trace.model.score_tolerance import parse_score_error


@dataclass(frozen=True)
class Equality:
    """The differences that a comparison accepts, and the evidence that AGREE requires.

    Attributes:
        lockstep: Take each of the actual engine's steps from the expected goal, so that independent faults are separated.
        determinism: Run a sample twice, and report an engine that gives different results.
        score_error: An error of the actual engine's scores to accept instead of the judge's bound: in nats, or a float
            type such as `float16`.
        modulo: The kinds of benign differences, such as `names,order`: the names of variables, the order of the resolvents
            of a step, duplicates of a resolvent; `none` for no kind. If not given: names, if an engine numbers variables
            its own way.
        minimum: The exercise that AGREE requires, `proved=1,rules=1,choices=1` if not given: candidates proved, rules
            used, steps with more than one resolvent; `none` for nothing. In Python also a mapping, such as
            `{"proved": 1}`.
        allow_dialects: Compare recorded traces of different dialects, and name the switches in which they differ.

    UserError for an unknown kind or item, and for an error that is neither a number nor a float type.

    Example:
        >>> import kgverify as kv
        >>> renamed = kv.Equality(modulo="names,order", minimum={"proved": 1})
        >>> kv.verify("countries", "reference", queries=1, corruptions=3, equality=renamed).verdict.value
        'AGREE'
    """

    lockstep: bool = False
    determinism: bool = True
    score_error: float | str | None = None
    modulo: str | Collection[str] | None = None
    minimum: str | Minimum | None = None
    allow_dialects: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        parse_score_error(self.score_error)
        parse_modulo(self.modulo)
        parse_minimum(self.minimum)

    @property
    def accepted_error(self) -> float | str | None:
        """The error of scores, or the name of a float type."""
        return parse_score_error(self.score_error)

    @property
    def benign(self) -> Modulo | None:
        """The kinds of benign differences."""
        return parse_modulo(self.modulo)

    @property
    def required(self) -> Minimum:
        """The exercise that AGREE requires."""
        return parse_minimum(self.minimum)


DEFAULT_EQUALITY = Equality()
