"""Two recorded traces without engines decide what they can and admit what they cannot."""

from dataclasses import replace

import msgspec
import numpy as np
from comparison_traces import small_trace, with_columns, with_header_error

from kgverify import Verdict
from kgverify.comparison.compare import compare
from kgverify.comparison.rankings import compare_rankings
from kgverify.program.program import Symbols
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import compare_recorded


def compare_with_ranks(expected: Trace, actual: Trace):
    return compare_rankings(compare(expected, actual), expected, actual)


def test_wrong_ranks_are_not_excused_by_a_declared_error():
    expected = with_header_error(small_trace(), 1e-4)
    ranks = expected.rankings
    wrong = replace(
        expected, rankings=ranks._replace(optimistic=ranks.optimistic + 2, pessimistic=ranks.pessimistic + 2)
    )
    comparison = compare_with_ranks(expected, wrong)
    assert comparison.verdict is Verdict.DIVERGE
    assert {each.stage for each in comparison.divergences} == {"rank"}


def test_a_rank_that_rounding_can_move_is_excused():
    trace = with_header_error(small_trace(), 1.0)
    ranks = trace.rankings
    behind = (ranks.optimistic > 1).astype(float)
    assert behind.any()
    better = ranks._replace(optimistic=ranks.optimistic - behind, pessimistic=ranks.pessimistic - behind)
    moved = replace(trace, rankings=better)
    comparison = compare_with_ranks(trace, moved)
    assert comparison.verdict is Verdict.AGREE
    assert any("near-ties" in note for note in comparison.notes)


def test_recorded_near_ties_leave_the_verdict_open(tmp_path):
    expected = with_header_error(small_trace(), 1e9)
    columns = expected.columns
    row = int(np.flatnonzero(columns.steps.num_resolvents > 1)[0])
    choice = columns.steps.choice.copy()
    choice[row] = (choice[row] + 1) % columns.steps.num_resolvents[row]
    score = columns.resolvents.score.copy()
    score[int(columns.steps.num_resolvents[:row].sum()) + choice[row]] += 1000
    resolvents = columns.resolvents._replace(score=score)
    actual = with_columns(
        expected, columns._replace(steps=columns.steps._replace(choice=choice), resolvents=resolvents)
    )
    for name, trace in (("expected.h5", expected), ("actual.h5", actual)):
        write_again(trace, tmp_path / name)
    report = compare_recorded(tmp_path / "expected.h5", tmp_path / "actual.h5").report
    assert len(report.near_ties) == 1
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "differ from a near-tie on" in report.reasons[0]


def renumbered(trace: Trace, facts: bool) -> Trace:
    """The same trace with constants numbered backwards, so that facts are ordered otherwise."""
    constants = trace.symbols.constants
    last = len(constants) - 1

    def convert(atoms):
        converted = atoms.copy()
        for column in (1, 2):
            converted[:, column] = np.where(atoms[:, column] >= 0, last - atoms[:, column], atoms[:, column])
        return converted

    c = trace.columns
    table = convert(trace.facts)
    order = np.lexsort(table.T[::-1])
    place = np.argsort(order).astype(np.int32)
    is_fact = c.resolvents.origin_kind == 2
    origin = np.where(is_fact, place[np.where(is_fact, c.resolvents.origin, 0)], c.resolvents.origin)
    columns = c._replace(
        candidates=c.candidates._replace(atom=convert(c.candidates.atom)),
        steps=c.steps._replace(goal_atoms=convert(c.steps.goal_atoms)),
        resolvents=c.resolvents._replace(atoms=convert(c.resolvents.atoms), origin=origin),
    )
    header = msgspec.structs.replace(trace.header, program_sha256="")
    return with_columns(
        replace(
            trace,
            header=header,
            symbols=Symbols(trace.symbols.predicates, constants[::-1]),
            facts=table[order] if facts else None,
        ),
        columns,
    )


def test_facts_numbered_otherwise_are_the_same_facts():
    comparison = compare(small_trace(), renumbered(small_trace(), facts=True))
    assert comparison.verdict is Verdict.AGREE
    assert "resolvents.origin" in comparison.coverage.fields


def test_without_a_table_of_facts_another_numbering_leaves_origins_out():
    comparison = compare(small_trace(), renumbered(small_trace(), facts=False))
    assert comparison.verdict is Verdict.AGREE
    assert "resolvents.origin" in comparison.coverage.not_compared
