"""An engine may declare columns unknown: each one is either not compared, or cannot be unknown and is refused."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from run_engines import ForeignEngine, countries_run, foreign_pipeline

from kgverify import EngineInfo, Equality, UserError, Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model.header import NUM_STEPS, unknown_columns
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify

COLUMNS = KNOWLEDGE_GRAPH.compared_names
NEEDED = {"candidates.query", "candidates.side", "candidates.atom"}
COUNTS = {"steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms"}


class Unknowing(ForeignEngine):
    """An engine that gives every column, and says that it does not know one."""

    column = ""

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("unknowing", unknown=(self.column,))


@pytest.fixture(scope="module")
def run() -> Run:
    return countries_run(num_queries=1, num_corruptions=2)


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


@pytest.mark.sample(7)
@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_each_unknown_column_is_left_out_or_refused(run: Run, trace: Trace, tmp_path: Path, column: str):
    engine = Unknowing(run)
    engine.column = column
    header = msgspec.structs.replace(trace.header, engine=engine.info)
    write_again(trace, tmp_path / "whole.h5")

    def compare_both() -> list[frozenset[str]]:
        expected = reference_pipeline(run)
        found = verify(run, expected, foreign_pipeline(run, engine), equality=Equality(lockstep=True)).report
        write_again(replace(trace, header=header), tmp_path / "partial.h5")
        recorded = compare_recorded(tmp_path / "whole.h5", tmp_path / "partial.h5").report
        assert Verdict.DIVERGE not in (found.verdict, recorded.verdict)
        return [frozenset(each.coverage.not_compared) for each in (found, recorded)]

    if column in NEEDED | COUNTS:
        with pytest.raises(UserError, match=f"engine.unknown names {column}"):
            compare_both()
        with pytest.raises(UserError, match=f"engine.unknown names {column}"):
            build_trace(run, engine, trace.columns, None)
        return
    for not_compared in compare_both():
        assert unknown_columns(engine.info) <= not_compared
        if column == NUM_STEPS:
            assert not_compared >= {each for each in COLUMNS if each.startswith(("steps.", "resolvents."))}


def test_an_unknown_column_that_does_not_exist_is_refused(run: Run, trace: Trace):
    engine = Unknowing(run)
    engine.column = "steps.choices"
    with pytest.raises(UserError, match=r"'steps.choices', which is not a column\nfix: did you mean 'steps.choice'"):
        build_trace(run, engine, trace.columns, None)
