"""The tick driven by hand, to look at the buffers between two of them."""

from typing import NamedTuple

import torch
from engine_checks import small_layout
from random_programs import Problem

from kgverify.prover.program.tables import Tables, build_tables
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.recycle import recycle
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import OPEN, Derivations, Pool, StepRecord, Work
from kgverify.prover.tick.tick import Setting, empty_derivations, empty_pool, empty_work, tick

CPU = torch.device("cpu")


class Machine(NamedTuple):
    setting: Setting
    tables: Tables
    pool: Pool
    derivations: Derivations
    work: Work

    @property
    def is_running(self) -> bool:
        return bool((self.derivations.outcome == OPEN).any())

    def recycle(self) -> "Machine":
        pool, derivations = recycle(self.pool, self.derivations)
        return self._replace(pool=pool, derivations=derivations)

    def tick(self) -> tuple["Machine", StepRecord]:
        derivations, work, record = tick(self.setting, self.tables, (), self.derivations, self.work)
        return self._replace(derivations=derivations, work=work), record


def build_machine(problem: Problem, **sizes: int) -> Machine:
    """All candidates wait in the pool; no slot holds one."""
    layout = small_layout(problem.limits, **sizes)
    pool, num = empty_pool(layout, CPU), len(problem.candidates.query)
    pool.query[:num] = torch.as_tensor(problem.candidates.atom)
    return Machine(
        Setting(Stages(SCORES["shortest"]), problem.limits, layout),
        build_tables(problem.program, layout.atoms, CPU),
        pool._replace(size=torch.tensor(num)),
        empty_derivations(layout, problem.limits.max_depth, CPU),
        empty_work(layout, CPU),
    )
