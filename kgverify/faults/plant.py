"""Planting faults: what of the compiled evaluator a fault may change, and a pipeline that carries some."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kgverify.engines.protocol import Engine
from kgverify.faults.catalogue import find_faults
from kgverify.faults.fault import Fault
from kgverify.ranking.corrupt import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Draw, Pipeline, Rank, Run, compiled_pipeline

if TYPE_CHECKING:
    from kgverify.engines.compiled.stages.stage_functions import Stages


class Plant(NamedTuple):
    """A run and what evaluates it, as far as faults may change it. A fault takes one and gives another; faults compose.

    stages:      the functions of a step, and of the pool around it
    wrap_engine: what stands between the engine and its caller; normally nothing
    """

    run: Run
    stages: "Stages"
    wrap_engine: Callable[[Engine], Engine]
    draw: Draw
    rank: Rank

    def with_stages(self, **stages: Callable[..., Any]) -> "Plant":
        """The same with some stages replaced."""
        return self._replace(stages=self.stages._replace(**stages))


def leave_as_it_is(engine: Engine) -> Engine:
    """What stands between an engine and its caller where no fault does."""
    return engine


def plant_faults(run: Run, faults: Sequence[Fault]) -> Plant:
    """The compiled evaluator's parts with the faults in them, each planted on top of those before it."""
    from kgverify.engines.compiled.stages.choose import SCORES
    from kgverify.engines.compiled.stages.stage_functions import build_stages

    plant = Plant(run, build_stages(SCORES[run.policy.name]), leave_as_it_is, draw_candidates, rank_candidates)
    for fault in faults:
        plant = fault.plant(plant)
    return plant


def compiled_pipeline_with_faults(
    run: Run,
    names: Sequence[str],
    *,
    mode: str = "auto",
    device: str = "auto",
    slots: int | None = None,
    **options: Any,
) -> Pipeline:
    """The compiled evaluator with the named faults in it; none gives it as it is. UserError for an unknown name.

    Further options are those of `compiled_pipeline`.
    """
    faults = find_faults(names)
    if not faults:
        return compiled_pipeline(run, mode=mode, device=device, slots=slots, **options)
    plant = plant_faults(run, faults)
    sound = compiled_pipeline(
        run,
        mode=mode,
        device=device,
        slots=slots,
        stages=plant.stages,
        faults=tuple(fault.name for fault in faults),
        **options,
    )
    return Pipeline(plant.wrap_engine(sound.engine), plant.draw, plant.rank)
