"""Naming the stage of a divergence by what the stages gave, where both traces recorded it."""

from typing import Any

import msgspec

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Divergence
from kgverify.comparison.stage_difference import first_difference, name_stage, starts_wrong
from kgverify.program.stages import STEP_STAGES, Stage
from kgverify.trace.model.stage_items import StageReader

Outputs = tuple[Any, Any]
"""What the stage at fault gave on both sides."""


class StageNamer:
    """Names the stages of the divergences of one comparison, of two traces of level `deep`."""

    def __init__(self, comparer: Comparer) -> None:
        self._comparer = comparer
        self._readers = StageReader(comparer.expected.columns), StageReader(comparer.actual.columns)
        self._actual_of: dict[int, int] = {}
        if all(reader.has_stages for reader in self._readers):
            rows = comparer.alignment.expected.tolist(), comparer.alignment.actual.tolist()
            self._actual_of = dict(zip(*rows, strict=True))

    def name(self, divergence: Divergence) -> tuple[Divergence, Outputs | None]:
        """The divergence with the earliest stage that both sides told and that differs, and its two outputs.

        A step that is not what its stages gave, which agree, is the doing of what ran around them (`recycle`). As it was,
        where a side has no such step or did not tell.
        """
        actual = self._actual_of.get(divergence.candidate)
        if actual is None or divergence.step < 0 or not divergence.field.startswith(("steps.", "resolvents.")):
            return divergence, None
        is_wrong_before = starts_wrong(divergence)
        if is_wrong_before and not divergence.step:
            # Nothing before it went wrong: it began so.
            return divergence, None
        comparer = self._comparer
        step = 0 if comparer.lockstep else divergence.step - is_wrong_before
        rows = (comparer.readers[i].first_step[row] + step for i, row in enumerate((divergence.candidate, actual)))
        expected, given = (reader.read(row) for reader, row in zip(self._readers, rows, strict=True))
        stage = first_difference(expected, given, comparer.score_tolerance)
        if stage is not None:
            outputs = expected[stage], given[stage]
            return name_stage(divergence, stage, *outputs, comparer.names), outputs
        decisive = [Stage.ADVANCE] if is_wrong_before else STEP_STAGES
        if all(each in expected and each in given for each in decisive):
            return msgspec.structs.replace(divergence, stage=Stage.RECYCLE.value), None
        return divergence, None
