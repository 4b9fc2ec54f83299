"""How an engine under test is made for a run of problems."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import Fault
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.problems.problem import Sizes

MakePipeline: TypeAlias = Callable[[Run, Sizes], Pipeline]
"""From a run and the sizes of its batch to what is under test."""

MakeEngine: TypeAlias = Callable[[Program, Limits, Policy], Engine]
"""What a third party gives: an engine for a program."""


def compiled_maker(*, mode: str = "eager", device: str = "cpu", faults: Sequence[str | Fault] = ()) -> MakePipeline:
    """Makes the compiled evaluator, with the given faults in it, by name or as they are. UserError for an unknown name.

    With a `mode` other than eager each run is a compilation.
    """
    planted = tuple(find_faults([each])[0] if isinstance(each, str) else each for each in faults)

    def make(run: Run, sizes: Sizes) -> Pipeline:
        from kgverify.engines.compiled.engine import CompiledEngine
        from kgverify.engines.compiled.layout import choose_layout
        from kgverify.faults.plant import plant_faults

        plant = plant_faults(run, planted)
        limits = run.limits
        layout = choose_layout(
            limits,
            slots=sizes.slots,
            atoms=limits.max_atoms + sizes.atoms,
            resolvents=limits.max_resolvents + sizes.resolvents,
            match_window=sizes.match_window,
            score_window=max(limits.max_resolvents, sizes.score_window),
            pool=sizes.pool,
        )
        engine = CompiledEngine(
            run.graph.program,
            limits,
            run.policy,
            mode=mode,
            device=device,
            layout=layout,
            stages=plant.stages,
            faults=tuple(fault.name for fault in planted),
        )
        return Pipeline(plant.wrap_engine(engine), plant.draw, plant.rank)

    return make


def engine_maker(make_engine: MakeEngine) -> MakePipeline:
    """Makes an engine of one's own; corruptions are drawn and ranks counted by kgverify."""

    def make(run: Run, sizes: Sizes) -> Pipeline:
        return Pipeline(make_engine(run.graph.program, run.limits, run.policy), draw_candidates, rank_candidates)

    return make
