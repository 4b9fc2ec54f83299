"""The check of an evaluation on known ones: what it samples, how it judges, and the confidence that it states.

Each part of it is compared with a loop over single items, or with a formula for small numbers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import ceil, comb
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from altered_results import find_altered_rankings, with_results
from evaluation_answers.evaluations import FormulaEngine
from evaluation_answers.known_models import NUM_CONSTANTS, NUM_PREDICATES, build_program, list_programs
from evaluation_answers.reference_model import derive_least_model

from kgverify.engines.reference.ranking import ReferenceDraw, sum_mixed
from kgverify.errors import InternalError
from kgverify.evaluation.closure import check_model
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.judge import (
    CONFIDENCE,
    SHARE,
    DrawnRanking,
    Endings,
    Judge,
    choose_rankings,
    choose_single,
    derive_endings,
    find_smallest_gaps,
    hash_results,
    judge_sample,
    word_outcome,
)
from kgverify.evaluation.parts import PartResult, identify
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Rule
from kgverify.ranking.draw import ALL, may_be_drawn, number_atoms
from kgverify.runs.run import Run, plan_parts, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet

Known = tuple[Run, FormulaEngine, PartResult]
Triple = tuple[int, ...]

_KEY: Final = 0x5EED
_TOLERANCE: Final = 1e-4
_BOUND: Final = 0.75
"""A bound of errors that turns ties of the formula's scores, which are half a nat apart, into both orders."""


def check_known_checks(evaluated: Sequence[Known]) -> None:
    """Check samples, judgement and confidence. InternalError if one is wrong.

    evaluated: known evaluations
    """
    _check_confidence()
    _check_models()
    _check_endings(evaluated[0][0])
    _check_known_triples(evaluated[0][0])
    for run, engine, results in evaluated:
        _check_samples(run, engine, results)
        _check_judge(run, engine, results)


def _require(is_right: Any, what: str) -> None:
    if not is_right:
        raise InternalError(f"the check of evaluations is wrong on a known one: {what}")


def _check_confidence() -> None:
    """Compare confidence with the exact probabilities of small populations, over every way to spread a defect."""
    for strata in ([(40, 10)], [(300, 30), (150, 90)], [(20, 0), (230, 40)], [(120, 120), (90, 7)], [(7, 0)]):
        num = sum(members for members, _ in strata)
        first, second = (*strata, (0, 0))[:2]

        def chance(size: int, first: tuple[int, int] = first, second: tuple[int, int] = second) -> float:
            splits = range(max(0, size - second[0]), min(size, first[0]) + 1)
            return 1 - max(_miss(*first, each) * _miss(*second, size - each) for each in splits)

        found = judge_sample(strata)
        _require(abs(found.chance - chance(ceil(SHARE * num))) < 1e-9, f"the chance of a sample of {strata}")
        enough = next((size for size in range(num + 1) if chance(size) >= CONFIDENCE - 1e-9), num)
        _require(abs(found.share - enough / num) < 1e-9, f"the share that a sample of {strata} shows")


def _miss(members: int, drawn: int, defective: int) -> float:
    """Return the probability that a sample has none of the defective members."""
    return comb(members - defective, drawn) / comb(members, drawn)


def _check_models() -> None:
    """Compare the check of least models, whole and with an atom too few or too many, with single conclusions."""
    for number, (facts, rules) in enumerate(list_programs()):
        model = derive_least_model(NUM_PREDICATES, NUM_CONSTANTS, facts, rules)
        program = build_program(facts, rules, NUM_CONSTANTS)
        every = sorted({(p, a, b) for p in range(NUM_PREDICATES) for a in range(7) for b in range(7)} - model)
        some = sorted(model)[number % len(model)]
        for atoms in (model, model - {some}, model | {every[number % len(every)]}):
            keys = np.array([(p * NUM_CONSTANTS + a) * NUM_CONSTANTS + b for p, a, b in atoms], np.int64)
            concluded = {tuple(fact) for fact in facts}.union(*(_conclude(rule, atoms) for rule in rules))
            found = check_model(program, keys)
            sides = (found.missing, concluded - atoms), (found.unsupported, atoms - concluded)
            is_right = all({*map(tuple, each.tolist())} == wanted for each, wanted in sides)
            _require(found.is_complete and is_right, f"the closure of program {number}")


def _conclude(rule: Rule, atoms: Collection[Triple]) -> Iterator[Triple]:
    """Yield the heads of a rule's instances whose bodies are among some atoms."""
    bindings: list[dict[int, int]] = [{}]
    for predicate, *terms in rule.body:
        bindings = [
            bound
            for each in bindings
            for atom in atoms
            if atom[0] == predicate and (bound := _bind(each, terms, atom[1:])) is not None
        ]
    for each in bindings:
        free = sorted({term for term in rule.clause_head[1:] if term < 0 and term not in each})
        for number in range(NUM_CONSTANTS ** len(free)):
            values = {term: number // NUM_CONSTANTS**i % NUM_CONSTANTS for i, term in enumerate(free)} | each
            yield (rule.clause_head[0], *(values.get(term, term) for term in rule.clause_head[1:]))


def _bind(bound: dict[int, int], terms: Sequence[int], values: Triple) -> dict[int, int] | None:
    bound = {**bound}
    for term, value in zip(terms, values, strict=True):
        if (term if term >= 0 else bound.setdefault(term, value)) != value:
            return None
    return bound


def _check_endings(run: Run) -> None:
    """Compare bounds, and the closeness of choices, with the steps of the reference, whose scores are made unequal."""
    reference = reference_pipeline(run)
    size = len(run.graph.program.symbols.constants)
    atoms = run.triples[np.argsort(number_atoms(run.triples, size))[::4]]
    sides = np.zeros(len(atoms), np.int32)
    columns = reference.engine.prove(CandidateSet(sides, sides.astype(np.int8), atoms))
    resolvents, steps = columns.resolvents, columns.steps
    resolvents = resolvents._replace(score=resolvents.score - 0.125 * (np.arange(len(resolvents.score)) % 3))
    columns = columns._replace(resolvents=resolvents)
    gaps, row, step = [], 0, 0
    for num_steps in columns.candidates.num_steps.tolist():
        gaps.append(np.inf)
        for _ in range(num_steps):
            scores = resolvents.score[row : row + steps.num_resolvents[step]].tolist()
            chosen = scores.pop(steps.choice[step])
            gaps[-1] = min([gaps[-1], *(chosen - each for each in scores)])
            row, step = row + len(scores) + 1, step + 1
    _require(find_smallest_gaps(columns).tolist() == gaps, "the closeness of choices")
    engine: Any = SimpleNamespace(info=reference.engine.info, prove=lambda *_: columns)
    smallest = min(gap for gap in gaps if 0 < gap < np.inf)
    for error in (0.0, smallest / 2 - 1e-6, smallest / 2 + 1e-6):
        found = derive_endings(run, reference._replace(engine=engine), atoms, error, lambda _: None)
        bounds = (found.candidates.num_steps * (2 * error + 1e-9)).tolist()
        _require(np.allclose(found.bound, bounds, 1e-12), "the bounds of errors")
        _require(found.is_unclear.tolist() == [gap <= 2 * error and error > 0 for gap in gaps], "the near-ties")


def _check_known_triples(run: Run) -> None:
    """Check which atoms may be drawn: those of the run's triples with any entity that make no known one."""
    graph = run.graph
    known = {*map(tuple, graph.known_triples.tolist())}
    rows = graph.known_triples[[0, 1, len(known) // 2, -2, -1]]
    size = len(graph.program.symbols.constants)
    atoms = np.repeat(rows, size, axis=0)
    atoms[:, 2] = np.tile(np.arange(size), len(rows))
    for side in (0, 1):
        found = may_be_drawn(graph, atoms, np.full(len(atoms), side)).tolist()
        _require(found == [tuple(atom) not in known for atom in atoms.tolist()], "the atoms that may be drawn")


def _check_samples(run: Run, engine: FormulaEngine, results: PartResult) -> None:
    """Check what is sampled of an evaluation, and that it depends on every result."""
    sample = results.sample
    num_true = int(sample.is_true.sum())
    num_others = len(sample.candidates.query) - num_true
    for num in (10, 2 * min(num_true, num_others) + 20, num_true + num_others):
        chosen = choose_single(results, _KEY, num)
        wanted = max(min(num_true, num // 2), min(num_true, num - num_others))
        found = int(chosen.is_true.sum()), len(chosen.candidates.query)
        _require(found == (wanted, wanted + min(num - wanted, num_others)), "the number of single candidates")
        _require(
            len({*zip(chosen.priority.tolist(), chosen.is_true.tolist(), strict=True)}) == found[1],
            "single candidates are chosen twice",
        )
    _require(
        choose_single(results, _KEY, 10).candidates.query.tolist()
        != choose_single(results, _KEY + 1, 10).candidates.query.tolist(),
        "single candidates do not depend on the key",
    )
    plan = plan_parts(run, "cpu", 1 << 20)
    whole = EvaluationResult(identify(run, engine, plan, {}), plan, {0: results}, 0, 0, 0.0, 0.0)
    last = results.pessimistic.copy()
    last[-1] += 1
    other = replace(whole, results={0: results._replace(pessimistic=last)})
    _require(hash_results(whole) != hash_results(other), "the key does not depend on the last rank")
    model = engine.endings.model
    size = len(run.graph.program.symbols.constants)
    keys = np.sort(number_atoms(np.array(sorted(model), np.int32), size))
    drawn, strata = choose_rankings(run, results, _KEY, 150, keys)
    is_short = (results.outcome == Outcome.PROVED) & (results.log_probability > -99.9)
    rows = [each.row for each in drawn]
    taken = [sum(bool(is_short[row]) == each for row in rows) for each in (True, False)]
    members = int(is_short.sum()), int((~is_short).sum())
    _require(strata == list(zip(members, taken, strict=True)) and all(taken), "the numbers of rankings")
    draw = ReferenceDraw(run.graph, run.split, run.num_corruptions, run.seed)
    for each in drawn:
        atoms = draw.draw(int(results.query[each.row]), int(results.side[each.row]))
        derived = [*map(tuple, each.atoms.tolist())]
        outside = [atom for atom in atoms[1:] if tuple(atom) not in model]
        num = len(atoms) - len(outside) + min(2, len(outside)) if is_short[each.row] else len(atoms)
        missing = {tuple(atom) for atom in atoms} - {*derived}
        _require(
            derived[0] == tuple(atoms[0]) and len({*derived}) == num and missing <= {tuple(atom) for atom in outside},
            "the candidates of a ranking",
        )


def _check_judge(run: Run, engine: FormulaEngine, results: PartResult) -> None:
    """Judge known rankings, right and altered, exactly and with errors."""
    reference = reference_pipeline(run)
    draw = ReferenceDraw(run.graph, run.split, run.num_corruptions, run.seed)
    size = len(run.graph.program.symbols.constants)
    groups = [(row, int(results.query[row]), int(results.side[row])) for row in range(0, len(results.query), 31)]
    drawn, every = [], dict[int, Triple]()
    for row, query, side in groups:
        atoms = [tuple(atom) for atom in draw.draw(query, side)]
        table = np.array(atoms, np.int32)
        drawn.append(DrawnRanking(row, len(atoms), sum_mixed([atom[1 + side] for atom in atoms]), table))
        every |= zip(number_atoms(table, size).tolist(), atoms, strict=True)
    numbers = sorted(every)
    endings = _endings([every[number] for number in numbers], numbers, engine)
    rank_only = bool((results.num_ranked != results.num_outcomes.sum(1)).any())
    judge = Judge(run, results, reference, endings, rank_only=rank_only, may_stop=engine.takes_floors)
    ranks = judge.rank(drawn)
    compared = judge.compare_rankings(drawn, ranks)
    _require(all(each.is_equal for each in compared), "a right ranking")
    for each in compared:
        names = {figure.name for figure in each.figures}
        counts = {f"candidates {word_outcome(outcome)}" for outcome in Outcome}
        row = each.drawn.row
        is_low = results.outcome[row] != Outcome.PROVED or results.log_probability[row] < -99.9
        num_left_out = int(results.num_ranked[row]) - int(results.num_outcomes[row].sum())
        is_whole = not num_left_out or (is_low and engine.takes_floors)
        wanted = {"candidates", "outcome of the true triple", "log-probability of the true triple"}
        wanted |= {"optimistic rank", "pessimistic rank"} | (counts if is_whole else {"candidates proved"})
        wanted |= {"candidates limited"} if is_whole else set()
        wanted |= set() if rank_only and run.num_corruptions == ALL else {"hash of the entities drawn"}
        _require(names == wanted, "the figures of a ranking")
        find_altered_rankings(judge, [each], [ranks[compared.index(each)]])
        more = results.num_outcomes.copy()
        more[row, Outcome.FAILED] += num_left_out + 1
        (other,) = with_results(judge, results._replace(num_outcomes=more)).compare_rankings(
            [each.drawn], [ranks[compared.index(each)]]
        )
        _require(other.wrong is not None or not (is_low or not rank_only), "a candidate too many")
    unclear = np.arange(len(numbers)) % 7 == 3
    errors = endings._replace(bound=np.full(len(numbers), _BOUND), is_unclear=unclear)
    lenient = Judge(run, results, reference, errors, rank_only=rank_only, may_stop=engine.takes_floors)
    _check_bounds(judge, lenient, drawn, ranks)


def _endings(atoms: Sequence[Triple], numbers: Sequence[int], engine: FormulaEngine) -> Endings:
    found = [engine.endings[p, a, b] for p, a, b in atoms]
    zeros = np.zeros(len(atoms), np.int32)
    candidates = Candidates(
        zeros,
        zeros.astype(np.int8),
        np.array(atoms, np.int32),
        zeros.astype(np.uint32),
        np.array([each.outcome for each in found], np.int8),
        np.array([each.is_limited for each in found], np.uint8),
        np.array([each.log_probability for each in found]),
    )
    nothing: Any = None
    return Endings(np.array(numbers), candidates, zeros.astype(np.float64), zeros.astype(np.bool_), nothing)


def _check_bounds(
    judge: Judge, lax: Judge, drawn: Sequence[DrawnRanking], ranks: Sequence[tuple[float, float]]
) -> None:
    """Check the ranks that errors allow.

    lax: the same judge with errors, and with unclear choices
    """
    for each, found in zip(drawn, lax.compare_rankings(drawn, ranks), strict=True):
        own = judge.find_endings(each.atoms)
        is_unclear = lax.find_endings(each.atoms).is_unclear.tolist()
        scores = own.candidates.log_probability - 100.0 * (own.candidates.outcome != Outcome.PROVED)
        bounds = [[1, 1], [1, 1]]
        for score, is_open in zip(scores[1:].tolist(), is_unclear[1:], strict=True):
            margin = np.inf if is_open or is_unclear[0] else 2 * _BOUND
            for high, shift in enumerate((-margin, margin)):
                gap = score - scores[0] + shift
                bounds[high][0] += bool(gap >= _TOLERANCE)
                bounds[high][1] += bool(gap > -_TOLERANCE)
        figures = {figure.name: figure for figure in found.figures}
        for kind, name in enumerate(("optimistic rank", "pessimistic rank")):
            limits = figures[name].low, figures[name].high
            _require(limits == (bounds[0][kind], bounds[1][kind]), f"the bounds of an {name}")
