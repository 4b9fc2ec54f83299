"""Known explanations: steps of generated problems whose resolvents are edited in known ways, and the stage named for each.

Each edit is explained twice: by the contents of the two lists, and by the step taken again with one stage changed. The
explanations are stored as the number of times that each stage and class is named, and as the hash of every detail. So are
the normal forms of outputs.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify import Limits, Problem, Stage
from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.inference.single_fault import StepProgram, explain_by_one_stage
from kgverify.comparison.inference.step_difference import Given, LimitsSeen, StepDifference, explain_difference
from kgverify.comparison.modulo import normalise_outputs
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import ResolventView, StepReader, StepView
from kgverify.laws import draw_problems
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.step.clauses import Clauses, number_variables
from kgverify.testing.checking.check import prepare_batches
from kgverify.testing.problems.problem import SHORTEST
from kgverify.trace.model.stage_items import StageOutputs, StageReader
from kgverify.verification.record import prove_deep

PATH: Final = Path(__file__).with_suffix(".json")
SEED: Final = 11
NUM_PROBLEMS: Final = 48
MOST_OF_CANDIDATE: Final = 3
"""Steps of a derivation that are edited."""


class Sample(NamedTuple):
    """A step of the reference, with everything that explains an edit of it."""

    view: StepView
    earlier: tuple[StepView, ...]
    query: tuple[int, int, int]
    inference: OriginInference
    outputs: StageOutputs
    limits: Limits
    num_symbols: tuple[int, int]


Resolvents = list[ResolventView]
Edit = Callable[[Resolvents, Sample, random.Random], Resolvents]


@cache
def samples() -> tuple[Sample, ...]:
    """Return steps of generated problems."""
    problems = (replace(each, policy=SHORTEST) for each in islice(draw_problems(SEED), NUM_PROBLEMS))
    return tuple(each for problem in problems for each in _of_problem(problem))


def _of_problem(problem: Problem) -> Iterator[Sample]:
    (batch,) = prepare_batches([problem])
    run = batch.merged.run
    columns = prove_deep(batch.pipeline.engine, batch.pipeline.draw_for(run))
    program, limits = run.graph.program, run.limits.with_defaults()
    inference = OriginInference(Clauses(program, exclude_query=limits.exclude_query))
    reader, stages = StepReader(columns), StageReader(columns)
    sizes = len(program.symbols.predicates), len(program.symbols.constants)
    for candidate, atom in enumerate(columns.candidates.atom.tolist()):
        rows = range(*reader.first_step[candidate : candidate + 2])
        views = [reader.read(row) for row in rows]
        for step, row in islice(enumerate(rows), MOST_OF_CANDIDATE):
            outputs = stages.read(row)
            # Scores differ in their last bits from one machine to another.
            outputs = {**outputs, Stage.SCORE: tuple(-0.5 * i for i in range(len(outputs[Stage.SCORE])))}
            yield Sample(views[step], tuple(views[:step]), tuple(atom), inference, outputs, limits, sizes)


def _pick(listed: Sequence[Any], rng: random.Random) -> int:
    return rng.randrange(len(listed)) if listed else 0


def _with_atoms(change: Callable[[list[Atom], Sample, random.Random], Sequence[Atom]]) -> Edit:
    """Return an edit of the atoms of one resolvent."""

    def edit(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
        at = _pick(resolvents, rng)
        return [
            each._replace(atoms=tuple(change(list(each.atoms), sample, rng))) if i == at else each
            for i, each in enumerate(resolvents)
        ]

    return edit


def _without(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    at = _pick(resolvents, rng)
    return resolvents[:at] + resolvents[at + 1 :]


def _moved(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    at = _pick(resolvents, rng)
    return [*_without(resolvents, sample, random.Random(0)), *resolvents[at : at + 1]]


def _without_atom(atoms: list[Atom], sample: Sample, rng: random.Random) -> Sequence[Atom]:
    at = _pick(atoms, rng)
    return atoms[:at] + atoms[at + 1 :]


def _other_term(atoms: list[Atom], sample: Sample, rng: random.Random) -> Sequence[Atom]:
    at = _pick(atoms, rng)
    term = rng.choice([-1, -2, -3, rng.randrange(sample.num_symbols[1])])
    return [each._replace(second=term) if i == at else each for i, each in enumerate(atoms)]


def _hole(atoms: list[Atom], sample: Sample, rng: random.Random) -> Sequence[Atom]:
    at = _pick(atoms, rng)
    return [Atom(-1, -1, -1) if i == at else each for i, each in enumerate(atoms)]


def _earlier(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    return list(sample.earlier[-1].resolvents) if sample.earlier else resolvents[::-1]


def _visited(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    return [*resolvents, _goal(sample.view.goal)]


def _made_apart(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    """Add the rest of the goal, as if a fact that does not match matched."""
    return [*resolvents, _goal(sample.view.goal[1:])]


def _dropped(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    """Add a resolvent that the reference does not list."""
    listed = {(each.origin_kind, each.origin) for each in resolvents}
    made = [
        (kind, clause, atoms) for kind, clause, atoms in sample.outputs[Stage.RENAME] if (kind, clause) not in listed
    ]
    added = [_goal(atoms, kind, clause) for kind, clause, atoms in made[:1]]
    return [*resolvents, *added]


def _unpruned(resolvents: Resolvents, sample: Sample, rng: random.Random) -> Resolvents:
    """Leave facts in the resolvents."""
    made = {(kind, clause): atoms for kind, clause, atoms in sample.outputs[Stage.RESOLVE]}
    return [
        each._replace(atoms=tuple(Atom(*atom) for atom in made.get((each.origin_kind, each.origin), each.atoms)))
        for each in resolvents
    ]


def _goal(atoms: Any, kind: int = int(Origin.RULE), clause: int = 0) -> ResolventView:
    return ResolventView(int(GoalKind.GOAL), tuple(Atom(*atom) for atom in atoms), kind, clause, 0.0)


def _end(kind: GoalKind, *atoms: Atom) -> ResolventView:
    return ResolventView(int(kind), atoms, int(Origin.NONE), 0, 0.0)


EDITS: Final[Mapping[str, Edit]] = {
    "none": lambda resolvents, sample, rng: resolvents,
    "empty": lambda resolvents, sample, rng: [],
    "one lost": _without,
    "two lost": lambda resolvents, sample, rng: _without(_without(resolvents, sample, rng), sample, rng),
    "an end twice": lambda resolvents, sample, rng: [r for r in resolvents if r.kind != GoalKind.GOAL] * 2,
    "the first lost": lambda resolvents, sample, rng: resolvents[1:],
    "half lost": lambda resolvents, sample, rng: resolvents[::2],
    "cut": lambda resolvents, sample, rng: resolvents[: max(1, len(resolvents) - 1)],
    "twice": lambda resolvents, sample, rng: resolvents + resolvents[:1],
    "all twice": lambda resolvents, sample, rng: resolvents * 2,
    "once": lambda resolvents, sample, rng: list({each.atoms: each for each in resolvents}.values()),
    "reversed": lambda resolvents, sample, rng: resolvents[::-1],
    "moved": _moved,
    "facts first": lambda resolvents, sample, rng: sorted(resolvents, key=lambda each: -each.origin_kind),
    "TRUE": lambda resolvents, sample, rng: [_end(GoalKind.TRUE)],
    "TRUE as well": lambda resolvents, sample, rng: [*resolvents, _end(GoalKind.TRUE)],
    "TRUE with atoms": lambda resolvents, sample, rng: [_end(GoalKind.TRUE, *sample.view.goal[:1])],
    "FALSE": lambda resolvents, sample, rng: [_end(GoalKind.FALSE)],
    "FALSE as well": lambda resolvents, sample, rng: [*resolvents, _end(GoalKind.FALSE)],
    "an atom lost": _with_atoms(_without_atom),
    "the last atom lost": _with_atoms(lambda atoms, sample, rng: atoms[:-1]),
    "an atom more": _with_atoms(lambda atoms, sample, rng: [*atoms, *sample.view.goal[:1]]),
    "atoms reversed": _with_atoms(lambda atoms, sample, rng: atoms[::-1]),
    "arguments swapped": _with_atoms(lambda atoms, sample, rng: [Atom(p, b, a) for p, a, b in atoms]),
    "another term": _with_atoms(_other_term),
    "another predicate": _with_atoms(lambda atoms, sample, rng: [Atom(0, a, b) for _, a, b in atoms]),
    "variables merged": _with_atoms(lambda atoms, sample, rng: [Atom(p, max(a, -1), max(b, -1)) for p, a, b in atoms]),
    "variables apart": _with_atoms(
        lambda atoms, sample, rng: [Atom(p, a if a >= 0 else -1 - i, b) for i, (p, a, b) in enumerate(atoms)]
    ),
    "a hole": _with_atoms(_hole),
    "no atoms": _with_atoms(lambda atoms, sample, rng: ()),
    "an earlier step": _earlier,
    "a visited goal": _visited,
    "the rest of the goal": _made_apart,
    "a dropped one": _dropped,
    "facts left": _unpruned,
    "replaced": lambda resolvents, sample, rng: [*_without(resolvents, sample, rng), _goal(sample.view.goal[::-1])],
}


MIXED: Final = tuple(f"mixed {number}" for number in range(12))
"""Two edits at random for each sample."""
MODULO: Final = ("names", "order", "duplicates", "names+order", "order+duplicates", "names+order+duplicates")


def known_explanations() -> dict[str, Any]:
    """Return what is found of each edit, and of each normal form."""
    return {edit: explanations(edit) for edit in (*EDITS, *MIXED)} | {
        f"modulo {each}": normal_forms(each) for each in MODULO
    }


def explanations(edit: str) -> dict[str, Any]:
    """Return what is found of an edit of every sample: the numbers of stages and classes, and a hash of all details."""
    rng, details = random.Random(edit), hashlib.sha256()
    named: Counter[str] = Counter()
    for number, sample in enumerate(samples()):
        edited = list(sample.view.resolvents)
        for one in (edit,) if edit in EDITS else rng.sample([*EDITS], 2):
            edited = EDITS[one](edited, sample, rng)
        actual = sample.view._replace(resolvents=tuple(edited))
        if [each.content for each in edited] != [each.content for each in sample.view.resolvents]:
            found = explain_difference(StepPair(sample.view, actual), _given(sample, actual, number))
            named[f"{found.stage.value} {found.kind.value}"] += 1
            details.update(repr((found.stage.value, found.kind.value, found.evidence, found.confidence)).encode())
        guesses = _guess(sample, actual, number)
        first = f"{guesses[0].stage.value} {guesses[0].kind.value}" if guesses else "none"
        named[f"by one stage: {first}"] += 1
        details.update(
            repr([(each.stage.value, each.kind.value, each.evidence, each.confidence) for each in guesses]).encode()
        )
    return {"named": dict(sorted(named.items())), "sha256": details.hexdigest()[:16]}


def normal_forms(modulo: str) -> dict[str, Any]:
    """Return the hash of the normal forms of the outputs of every sample: as they are, and with the last list turned."""
    details = hashlib.sha256()
    kinds = frozenset(modulo.split("+"))
    for sample in samples():
        items, *counts = sample.outputs[Stage.LIMIT]
        turned: StageOutputs = {**sample.outputs, Stage.LIMIT: ((*items[::-1], *items[:1]), *counts)}
        turned |= {stage: sample.outputs[stage][::-1] for stage in (Stage.MATCH_RULES, Stage.MATCH_FACTS)}
        scored: StageOutputs = {**turned, Stage.SCORE: (*sample.outputs[Stage.SCORE][::-1], 0.5)}
        fewer = {stage: output for stage, output in turned.items() if stage is not Stage.LIMIT}
        repeated: StageOutputs = {**turned, Stage.CHOOSE: len(items)}
        for outputs in (sample.outputs, turned, scored, fewer, repeated):
            normal = normalise_outputs(outputs, kinds)
            details.update(repr(sorted((stage.value, repr(output)) for stage, output in normal.items())).encode())
    return {"sha256": details.hexdigest()[:16]}


def _given(sample: Sample, actual: StepView, number: int) -> Given:
    """Return what explains an edit: with the program or without, with declared limits, or with those that are seen."""
    goal = tuple((p, a, b) for p, a, b in sample.view.goal)
    query = sample.query if sample.limits.exclude_query and min(sample.query[1:]) >= 0 else None
    origins = sample.inference.at(goal, query) if number % 5 else None
    sides = [_seen(step, sample.limits if number % 2 else None) for step in (sample.view, actual)]
    return Given(origins, sample.earlier, (sides[0], sides[1]), sample.num_symbols)


def _seen(step: StepView, limits: Limits | None) -> LimitsSeen:
    longest = max((len(each.atoms) for each in step.resolvents), default=0)
    resolvents = frozenset() if limits is None else frozenset({limits.max_resolvents})
    atoms = frozenset() if limits is None else frozenset({limits.max_atoms})
    return LimitsSeen(resolvents, atoms, len(step.resolvents), longest)


def _guess(sample: Sample, actual: StepView, number: int) -> list[StepDifference]:
    """Explain a step by one stage, where the other side knows its clauses and what it dropped, or lacks either."""
    steps = (*sample.earlier, sample.view)
    visited = [number_variables((p, a, b) for p, a, b in step.goal) for step in steps]
    program = StepProgram(sample.inference.clauses, sample.limits, visited, sample.query)
    dropped = actual.dropped_resolvents + (number % 3 == 0)
    known = {"has_origins": number % 4 > 0, "has_counts": number % 5 > 0}
    return explain_by_one_stage(program, StepPair(sample.view, actual._replace(dropped_resolvents=dropped), **known))
