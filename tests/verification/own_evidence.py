"""Recomputes the evidence of each divergence from the two traces, and from the stages where the step was replayed.

Nothing here uses the code that finds, classifies or groups divergences.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kgverify import Engine, Stage
from kgverify.comparison.result import Divergence
from kgverify.engines.protocol import Positions
from kgverify.program.outcomes import STEP_STAGES
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.trace import Trace

NOTHING: Final = ["nothing more"]
BORROWED: Final = ("assumed to be like",)
"""Texts that state what was found at another divergence."""

OUTSIDE_STEPS: Final = ("candidates.", "rankings", "ranks.")


class Step(NamedTuple):
    """A recorded step, in ids: each resolvent is (kind, atoms, origin kind, origin)."""

    goal: tuple[Any, ...]
    resolvents: tuple[tuple[Any, ...], ...]
    scores: tuple[float, ...]
    dropped: tuple[int, int]
    choice: int
    outcome: int
    depth: int


class Steps:
    """The steps of a trace by candidate (query, side, atom) and number."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.first = np.cumsum([0, *columns.candidates.num_steps])
        self._resolvent = np.cumsum([0, *columns.steps.num_resolvents])
        self._goal = np.cumsum([0, *columns.steps.num_atoms])
        self._atom = np.cumsum([0, *columns.resolvents.num_atoms])
        c = columns.candidates
        keys = zip(c.query.tolist(), c.side.tolist(), map(tuple, c.atom.tolist()), strict=True)
        self.row_of = {key: row for row, key in reversed(list(enumerate(keys)))}
        self.num_steps = c.num_steps

    def at(self, row: int, step: int) -> Step | None:
        if not 0 <= step < int(self.num_steps[row]):
            return None
        return self.read(int(self.first[row]) + step)

    def read(self, at: int) -> Step:
        s, r = self._columns.steps, self._columns.resolvents
        goal = s.goal_atoms[self._goal[at] : self._goal[at + 1]]
        resolvents, scores = [], []
        for i in range(int(self._resolvent[at]), int(self._resolvent[at + 1])):
            atoms = tuple(map(tuple, r.atoms[self._atom[i] : self._atom[i + 1]].tolist()))
            resolvents.append((int(r.kind[i]), atoms, int(r.origin_kind[i]), int(r.origin[i])))
            scores.append(float(r.score[i]))
        return Step(
            tuple(map(tuple, goal.tolist())),
            tuple(resolvents),
            tuple(scores),
            (int(s.dropped_atoms[at]), int(s.dropped_resolvents[at])),
            int(s.choice[at]),
            int(s.outcome[at]),
            int(s.depth[at]),
        )


class Own(NamedTuple):
    """A divergence with both steps, and the outputs of its stage where both engines were asked."""

    divergence: Divergence
    expected: Step | None
    actual: Step | None
    outputs: tuple[Any, Any] | None
    is_first_fault: bool


def check_evidence(
    divergences: Sequence[Divergence],
    expected: Trace,
    actual: Trace,
    stepped: Trace | None,
    probe: Callable[[int, int], tuple[Any, Any]] | None,
) -> Iterator[tuple[int, str]]:
    """Yield the number of each divergence whose evidence is not its own, and why.

    stepped: the actual steps from the expected goals, in the order of the expected steps; None if each engine ran freely
    probe:   gives the outputs of all stages of both engines at a step of a candidate
    """
    left, right = Steps(expected.columns), Steps(actual.columns)
    lockstep = Steps(stepped.columns) if stepped is not None else None
    keys = {row: key for key, row in left.row_of.items()}
    for number, each in enumerate(divergences):
        if any(text in each.evidence for text in BORROWED):
            yield number, f"borrowed: {each.evidence}"
            continue
        if each.step < 0 or each.field.startswith(OUTSIDE_STEPS) or each.expected == "no such candidate":
            continue
        mine = left.at(each.candidate, each.step)
        row = right.row_of.get(keys.get(each.candidate, ()))
        theirs = [right.at(row, each.step) if row is not None else None]
        if lockstep is not None:
            # In lockstep what no wrong step explains is of the free run.
            theirs.insert(0, lockstep.at(int(left.first[each.candidate]) + each.step, 0))
        outputs, is_first = None, True
        if probe is not None and each.is_replayed and each.field.startswith("stage."):
            at = each.step - (each.stage == Stage.ADVANCE and mine is not None and each.step > 0 and stepped is None)
            both = probe(each.candidate, at)
            differing = [
                s for s in STEP_STAGES if s in both[0] and s in both[1] and not _is_same(s, both[0][s], both[1][s])
            ]
            is_first = bool(differing) and differing[0] == each.stage
            outputs = both[0].get(Stage(each.stage)), both[1].get(Stage(each.stage))
        found = [list(_contradictions(Own(each, mine, their, outputs, is_first))) for their in theirs]
        if all(found):
            yield number, found[0][0]


def _is_same(stage: Stage, left: Any, right: Any) -> bool:
    if stage is Stage.SCORE:
        return len(left) == len(right) and bool(np.allclose(left, right, rtol=0, atol=1e-4))
    return bool(left == right)


def probe_both(engines: tuple[Engine, Engine], columns: Columns) -> Callable[[int, int], tuple[Any, Any]]:
    """Return a function that asks both engines for the outputs of the stages at a step."""
    from kgverify.verification.replay import find_position

    def probe(candidate: int, step: int) -> tuple[Any, Any]:
        position: Positions = find_position(columns, candidate, step)
        # mypy does not see that a tuple made of a pair has two elements.
        return tuple(engine.probe(position) for engine in engines)  # type: ignore[return-value]

    return probe


def _contradictions(own: Own) -> Iterator[str]:
    text = own.divergence.evidence
    shown = _shown(own.divergence)
    for pattern, judge in _CLAIMS:
        for match in re.finditer(pattern, text):
            why = judge(own, match, shown)
            if why:
                yield f"{own.divergence.stage}/{own.divergence.field}: {text!r}: {why}"


def _shown(divergence: Divergence) -> tuple[int, int] | None:
    """Return the number of items that the lists beside the evidence state as missing and extra; None without lists."""
    sizes = []
    for value in (divergence.expected, divergence.actual):
        if not isinstance(value, list):
            return None
        more = re.fullmatch(r"\.\.\. and (\d+) more", value[-1]) if value else None
        sizes.append(0 if value == NOTHING else len(value) + (int(more[1]) - 1 if more else 0))
    return sizes[0], sizes[1]


def _number(text: str) -> int:
    return 0 if text in ("no", "none") else int(text.replace(",", ""))


def _differing(left: Sequence[Any], right: Sequence[Any]) -> tuple[int, int]:
    a, b = Counter(left), Counter(right)
    return (a - b).total(), (b - a).total()


def _judge_clauses(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    """Judge `4 facts missing, none extra`."""
    stated = _number(match[1]), _number(match[3])
    if own.outputs is not None and own.is_first_fault:
        found = _differing(*own.outputs)
        return "" if found == stated and shown == stated else f"{found} in the stages, {shown} shown"
    if "origins inferred" in match.string or "no program" in match.string:
        # What later stages change is shown as well, and stated apart.
        return "" if shown is None or (stated[0] <= shown[0] and stated[1] <= shown[1]) else f"{shown} shown"
    if own.outputs is None and own.expected and own.actual:
        kind = 1 if match[2].startswith("rule") else 2
        found = _differing(*([r[2:] for r in step.resolvents if r[2] == kind] for step in (own.expected, own.actual)))
        return "" if found == stated else f"{found} in the traces"
    return "" if shown in (None, stated) else f"{shown} shown"


def _judge_resolvents(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    """Judge `2 resolvents missing, 1 extra`."""
    stated = _number(match[1] or "0"), _number(match[2] or "0")
    if "origins inferred" in match.string or "no program" in match.string:
        return "" if shown is None or (stated[0] <= shown[0] and stated[1] <= shown[1]) else f"{shown} shown"
    if own.outputs is None and own.expected and own.actual:
        sides = [[r for r in step.resolvents if r[0] != 2] for step in (own.expected, own.actual)]
        found = [_differing(*sides), _differing(own.expected.resolvents, own.actual.resolvents)]
        return "" if stated in found else f"{found} in the traces"
    return "" if shown in (None, stated) else f"{shown} shown"


def _judge_dropped(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    stated = [tuple(map(int, match[i].split(", "))) for i in (1, 2)]
    if own.outputs is not None:
        found = [tuple(output[1:]) for output in own.outputs]
        if not own.is_first_fault:
            found, stated = found[1:], stated[1:]
    elif own.expected and own.actual:
        found = [own.expected.dropped, own.actual.dropped]
    else:
        return ""
    return "" if found == stated else f"{found} found"


def _judge_scores(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    if own.outputs is not None and own.is_first_fault:
        pairs = list(zip(*own.outputs, strict=False))
    elif own.outputs is None and own.expected and own.actual:
        pairs = list(zip(own.expected.scores, own.actual.scores, strict=False))
    else:
        pairs = [(float(e), float(a)) for e, a in zip(own.divergence.expected, own.divergence.actual, strict=False)]
    worst = max((abs(e - a) / max(1.0, abs(e), abs(a)) for e, a in pairs), default=0.0)
    return "" if f"{worst:.1e}" == match[1] else f"{worst:.1e} found"


def _judge_depth(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    found = (own.actual and own.actual.depth, own.expected and own.expected.depth)
    return "" if found == (int(match[1]), int(match[2])) else f"{found} found"


def _judge_extra_clauses(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
    """Judge `2 facts extra, none missing`."""
    if own.outputs is not None and own.is_first_fault:
        found = _differing(*own.outputs)
    elif own.outputs is None and own.expected and own.actual:
        kind = 1 if match[2].startswith("rule") else 2
        found = _differing(*([r[2:] for r in step.resolvents if r[2] == kind] for step in (own.expected, own.actual)))
    else:
        found = shown or (0, _number(match[1]))
    return "" if found == (0, _number(match[1])) else f"{found} found"


def _judge_lists(number: int, counts: Callable[[Step, Step], Sequence[int]]) -> Callable[..., str]:
    """Return the judge of counts of the recorded lists: the last `number` groups of the match."""

    def judge(own: Own, match: re.Match[str], shown: tuple[int, int] | None) -> str:
        if own.expected is None or own.actual is None:
            return ""
        stated, found = [_number(each) for each in match.groups()[-number:]], list(counts(own.expected, own.actual))
        return "" if stated == found else f"{found} in the traces"

    return judge


def _num_open(step: Step) -> int:
    return sum(r[0] != 2 or bool(r[1]) for r in step.resolvents)


_CLAIMS: Final = (
    (r"(\d+) (rules?|facts?) extra, none missing", _judge_extra_clauses),
    (
        r"FALSE is \w+: (\d+) resolvents? expected, (\d+) actual",
        _judge_lists(2, lambda e, a: (len(e.resolvents), len(a.resolvents))),
    ),
    (r"TRUE stands where (\d+|no) ", _judge_lists(1, lambda e, a: (_num_open(e),))),
    (r"TRUE is lost: (\d+|no) ", _judge_lists(1, lambda e, a: (_num_open(a),))),
    (r"\d+ of (\d+) resolvents are", _judge_lists(1, lambda e, a: (_num_open(a),))),
    (
        r"the resolvents kept are (\d+) instead of (\d+)",
        _judge_lists(2, lambda e, a: sorted((_num_open(e), _num_open(a)))),
    ),
    (r"the same (\d+) resolvents", _judge_lists(1, lambda e, a: (_num_open(e),))),
    (r"(\d+|no) (rules?|facts?) missing, (\d+|none) extra", _judge_clauses),
    (r"(\d+) resolvents? missing(?:, (\d+|none) extra)?", _judge_resolvents),
    (r"(?<!missing, )()(\d+) resolvents? extra", _judge_resolvents),
    (r"expected \((\d+, \d+)\), actual \((\d+, \d+)\)", _judge_dropped),
    (r"differ by (?:at most|up to) ([\d.e+-]+)", _judge_scores),
    (r"^depth (\d+), expected (\d+)", _judge_depth),
)
