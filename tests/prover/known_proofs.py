"""The known-answer test of evaluators: they prove candidates as no small run has them, and the reference says what is right.

One program has steps of more clauses than a window holds, beside a derivation that keeps the other slot busy. The other one has
a network of three blocks, and constants that float32 cannot tell apart, so that choices are made again in float64. Derivations
meet goals visited long before, and reach the depth limit after something was dropped.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify import Engine, Limits
from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import Evaluation, positions_of, take_positions
from kgverify.errors import InternalError
from kgverify.program.atoms import Atom
from kgverify.program.program import Program, Rule, Symbols
from kgverify.trace.model.columns import CandidateSet, Columns, select_candidates, select_steps, starts_of
from kgverify.trace.model.digests import compute_sequence

NUM_CLAUSES: Final = 1_600
"""The facts tried in a step."""
NUM_KEPT: Final = NUM_CLAUSES - 300
"""The resolvents kept of them, more than 1,023, and as many as the score window holds."""
_MATCH_WINDOW: Final = 320
"""The clauses of a window. The last one but one begins behind 1,023 others, keeps some resolvents and drops more than 255."""

_DEPTH: Final = 8
"""The depth of the derivation beside, more than the windows of the wide step."""
_LENGTH: Final = 16
"""The constants of the chains between which scores decide."""
_SEED: Final = 163
"""The seed of the network, with which every kind of ending occurs, and goals of five atoms and nine variables."""
_NUM_FAR: Final = 6
"""The candidates without choices that are made again."""
_APART: Final = 1e-7
"""The size of the differences between the embeddings of twins: of their scores, float32 tells nothing."""
_THREADS: Final = 4
_PLACES: Final = 8
"""The places among the candidates of a part in which the one with the smallest gap is proved, by any of the threads."""
_PART: Final = 64
"""The candidates of the first part that the native evaluator proves."""


@dataclass(frozen=True)
class KnownRun:
    """Candidates of a program. near: those with choices that are made again."""

    program: Program
    limits: Limits
    policy: Policy
    atoms: tuple[Atom, ...]
    near: frozenset[int] = frozenset()

    @property
    def candidates(self) -> CandidateSet:
        """The candidates, each of a query of its own."""
        num = len(self.atoms)
        return CandidateSet(np.arange(num, dtype=np.int32), np.zeros(num, np.int8), np.array(self.atoms, np.int32))

    @cached_property
    def expected(self) -> Columns:
        """The reference's proofs."""
        from kgverify.dialects import ReferenceEngine

        return ReferenceEngine(self.program, self.limits, self.policy).prove(self.candidates)

    @cached_property
    def gaps(self) -> list[list[float]]:
        """The gap between the best resolvent and the next one that differs, for each candidate's choices."""
        steps, resolvents = self.expected.steps, self.expected.resolvents
        first, first_atom = starts_of(steps.num_resolvents), starts_of(resolvents.num_atoms)
        score = resolvents.score.tolist()
        goals = [resolvents.atoms[first_atom[row] : first_atom[row + 1]].tobytes() for row in range(len(score))]
        found = []
        step = 0
        for num_steps in self.expected.candidates.num_steps.tolist():
            gaps = []
            for rows in (range(first[i], first[i + 1]) for i in range(step, step + num_steps)):
                best = max(rows, key=score.__getitem__)
                if len(rows) > 1:
                    gaps.append(
                        min((score[best] - score[row] for row in rows if goals[row] != goals[best]), default=np.inf)
                    )
            found.append(gaps)
            step += num_steps
        return found


def _build_program(
    predicates: str, num_constants: int, facts: Iterable[Sequence[int]], rules: Sequence[Rule]
) -> Program:
    return Program(
        symbols=Symbols(tuple(predicates), tuple(f"c{i:05}" for i in range(num_constants))),
        facts=np.array(sorted(set(map(tuple, facts))), np.int32),
        rules=tuple(rules),
        named_rules=(),
        named_facts=(),
        named_queries=(),
    )


def build_wide_run() -> KnownRun:
    """Return a run whose second candidate has a step of many clauses, while the first one goes along a chain and back.

    The third one is proved by its first step, and the fourth one fails.
    """
    starts, has, ends, leads, links, nothing, is_true = range(7)
    x, y, z, u, v = -1, -2, -3, -4, -5
    rules = (
        Rule(Atom(starts, x, y), (Atom(has, x, z), Atom(ends, z, y))),
        Rule(Atom(ends, x, y), (Atom(nothing, x, y),)),
        Rule(Atom(is_true, x, y), (Atom(has, x, y),)),
        Rule(Atom(leads, x, y), (Atom(links, x, z), Atom(leads, z, y))),
        # Longer than the limit.
        Rule(Atom(leads, x, y), (Atom(links, x, z), Atom(links, z, u), Atom(links, u, v), Atom(leads, v, y))),
    )
    facts = [(has, 0, i) for i in range(NUM_CLAUSES)]
    facts += [(links, i, to) for i in range(_DEPTH) for to in (0, i + 1)]
    limits = Limits(max_depth=_DEPTH, max_atoms=3, max_resolvents=NUM_KEPT)
    program = _build_program("hiklmno", NUM_CLAUSES, facts, rules)
    atoms = Atom(leads, 0, NUM_CLAUSES - 1), Atom(starts, 0, 1), Atom(is_true, 0, 1), Atom(nothing, 0, 1)
    return KnownRun(program, limits, SHORTEST, atoms)


def build_close_run() -> KnownRun:
    """Return a run with a network of three blocks, goals of up to five atoms, and proofs.

    Some candidates begin with a step that drops one resolvent. Those that begin in the second chain choose between twins.
    """
    leads, links, ends, is_long, has_many = range(5)
    x, y, z = -1, -2, -3
    others = range(-3, -12, -1)
    along = Rule(Atom(leads, x, y), (Atom(links, x, z), Atom(leads, z, y)))
    # Its resolvent has nine variables.
    loose = (Atom(links, x, others[0]), *(Atom(ends, first, first - 1) for first in others[1::2]))
    rules = [
        along,
        Rule(Atom(leads, x, y), (Atom(links, x, z), Atom(ends, z, y))),
        # The same resolvents as those of the first one.
        along,
        Rule(Atom(leads, x, y), loose),
        Rule(Atom(is_long, x, y), (*loose, Atom(ends, x, y))),
        Rule(Atom(is_long, x, y), (Atom(leads, x, y),)),
        *(Rule(Atom(has_many, x, y), (Atom(leads, x, y), *loose[:i])) for i in range(5)),
    ]
    near = _LENGTH
    twins = 2 * _LENGTH
    facts = [(links, i, to) for i in range(_LENGTH) for to in (i + 1, i + 2, i - 3) if 0 <= to < _LENGTH]
    for i in range(_LENGTH - 1):
        for of in (near + i, twins + i):
            facts += [(links, of, near + i + 1), (links, of, twins + i + 1)]
            facts += [(links, of, near)] if i % 3 else []
    facts += [(ends, i, to) for i in range(twins) for to in range(_LENGTH) if (i * 5 + to * 3) % 7 < 2]
    program = _build_program("klmno", 3 * _LENGTH, facts, rules)
    limits = Limits(max_depth=8, max_atoms=5, max_resolvents=4)
    atoms = [Atom((leads, is_long, has_many)[i % 3], i % 7, i * 5 % _LENGTH) for i in range(_NUM_FAR)]
    atoms += [Atom(leads, near + i, to) for i, to in enumerate((5, 2, 5))]
    policy = make_two_tower(program, limits, seed=_SEED, embedding=12, hidden=24, blocks=3)
    constants = policy.weights["embedding.constant"].astype(np.float64)
    apart = np.random.default_rng(5).standard_normal((_LENGTH, constants.shape[1])) * _APART
    constants[twins:] = constants[near:twins] + apart
    weights = dict(policy.weights) | {"embedding.constant": constants}
    near_rows = frozenset(range(_NUM_FAR, len(atoms)))
    return KnownRun(program, limits, Policy("two_tower", weights), tuple(atoms), near_rows)


def list_proof_checks() -> dict[str, Callable[[], None]]:
    """Return the known-answer tests of the evaluators that this process has loaded; each name says what it depends on."""
    checks: dict[str, Callable[[], None]] = {}
    if "kgverify.prover.native.engine" in sys.modules:
        checks["proofs of the native evaluator"] = check_native_proofs
    if "kgverify.prover.engine" in sys.modules:
        from known_stages import check_known_stages

        torch = f"torch {version('torch')}"
        checks |= {f"stages, {torch}": check_known_stages, f"proofs on tensors, {torch}": check_tensor_proofs}
    return checks


@cache
def check_native_proofs() -> None:
    """InternalError unless the native evaluator proves known candidates as the reference does."""
    from kgverify.prover.native.engine import NativeEngine

    for run in (build_wide_run(), build_close_run()):
        engine = NativeEngine(run.program, run.limits, run.policy, threads=_THREADS, name="the native evaluator")
        near, far = sorted(run.near), [row for row in range(len(run.atoms)) if row not in run.near]
        # Only candidates of the first part have choices that are made again.
        rows = [*near, *(far * _PART)[:_PART], *far]
        _check_proofs(run, engine, rows)
        _check_steps(run, engine)
        _check_gaps(run, engine, _check_endings(run, engine, rows, has_digests=True), rows)
        for place in range(0, _PART if near else 0, _PART // _PLACES):
            rows = (far * _PART)[:_PART]
            rows[place] = near[0]
            _check_gaps(run, engine, engine.evaluate(run.candidates.take(np.array(rows))), rows)


@cache
def check_tensor_proofs() -> None:
    """InternalError unless eager stages prove known candidates as the reference does, on the CPU."""
    from kgverify.prover.engine import CompiledEngine
    from kgverify.prover.execution.device import single_thread
    from kgverify.prover.execution_choice import choose_layout

    wide, close = build_wide_run(), build_close_run()
    options: dict[str, Any] = {"mode": "eager", "device": "cpu"}
    sizes = {"slots": 2, "match_window": _MATCH_WINDOW, "score_window": NUM_KEPT, "pool": 2}
    with single_thread():
        engine = CompiledEngine(
            wide.program, wide.limits, wide.policy, layout=choose_layout(wide.limits, **sizes), **options
        )
        _check_proofs(wide, engine, range(len(wide.atoms)))
        _check_steps(wide, engine)
        # Of three pools.
        _check_endings(wide, engine, (0, 1, 2, 2, 3, 3), has_digests=False)
        layout = choose_layout(close.limits, slots=3, match_window=40, score_window=12, pool=4)
        engine = CompiledEngine(close.program, close.limits, close.policy, layout=layout, **options)
        _check_proofs(close, engine, range(_NUM_FAR))


def _check_proofs(run: KnownRun, engine: Engine, rows: Sequence[int]) -> None:
    """InternalError unless candidates are proved as expected."""
    chosen = np.array(rows)
    _require_columns(engine, engine.prove(run.candidates.take(chosen)), select_candidates(run.expected, chosen))


def _check_steps(run: KnownRun, engine: Engine) -> None:
    """InternalError unless steps are repeated from their positions, the later ones of a derivation first.

    The last one is left out, so that a slot with many clauses is beside one with few.
    """
    positions = positions_of(run.expected)
    rows = np.arange(len(positions.depth) - 1)[::-1]
    _require_columns(engine, engine.step(take_positions(positions, rows))[1:3], select_steps(run.expected, rows)[1:3])


def _check_endings(run: KnownRun, engine: Any, rows: Sequence[int], *, has_digests: bool) -> Evaluation:
    """Evaluate candidates, with digests if the engine takes some; InternalError unless they end as expected."""
    chosen = np.array(rows)
    found: Evaluation = engine.evaluate(run.candidates.take(chosen), has_digests=has_digests)
    expected = select_candidates(run.expected, chosen)
    outcome, is_limited, log_probability = found.results
    ended = expected.candidates._replace(
        outcome=outcome.astype(np.int8), is_limited=is_limited.astype(np.uint8), log_probability=log_probability
    )
    _require_columns(engine, [ended], [expected.candidates])
    if found.digests is not None:
        words = found.digests.digests.sequence
        _require(engine, np.array_equal(words, compute_sequence(expected)), "digests")
    return found


def _check_gaps(run: KnownRun, engine: Engine, found: Evaluation, rows: Sequence[int]) -> None:
    """InternalError unless choices are counted, and their gaps measured, up to the error of scores."""
    margin = 2 * engine.info.score_error
    # Scores without an error are never computed again.
    gaps = [gap for row in rows for gap in run.gaps[row]] if margin else []
    _require(engine, found.num_choices == len(gaps), "number of choices")
    # No gap is close to the margin.
    _require(engine, found.num_rescored == sum(gap <= margin for gap in gaps), "number of choices made again")
    smallest = min(gaps, default=np.inf)
    _require(engine, found.smallest_gap == smallest or abs(found.smallest_gap - smallest) <= margin, "smallest gap")


def _require_columns(engine: Engine, found: Sequence[Any], expected: Sequence[Any]) -> None:
    tolerance = engine.info.score_error * 2 * _LENGTH + 1e-9
    for group, other in zip(found, expected, strict=True):
        for name, column in group._asdict().items():
            right: NDArray[Any] = getattr(other, name)
            if right.dtype.kind == "f":
                is_right = column.shape == right.shape and bool((np.abs(column - right) <= tolerance).all())
            else:
                is_right = np.array_equal(column, right)
            _require(engine, is_right, f"column {name}")


def _require(engine: Engine, is_right: bool, what: str) -> None:
    if not is_right:
        raise InternalError(f"{engine.info.name} proves known candidates with a wrong {what}")
