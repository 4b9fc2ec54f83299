"""Normal forms of the outputs of stages: outputs that are equal up to what was declared become equal."""

from collections.abc import Sequence
from typing import Any

from kgverify.comparison.locate import canonical
from kgverify.comparison.modulo.policy import DUPLICATES, NAMES, ORDER, Modulo
from kgverify.program.atoms import Atom, Goal
from kgverify.program.stages import Stage
from kgverify.trace.model.stage_items import StageOutputs

_MATCHES = (Stage.MATCH_RULES, Stage.MATCH_FACTS)
_LISTS = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME, Stage.REVISIT, Stage.CLOSE)


def normalise_outputs(outputs: StageOutputs, modulo: Modulo) -> StageOutputs:
    """Return the outputs of the stages of a step in normal form, without those that lack what they refer to."""
    if not modulo:
        return outputs
    normal = dict(outputs)
    for stage, output in outputs.items():
        if stage in _MATCHES and ORDER in modulo:
            normal[stage] = tuple(sorted(output))
        elif stage in _LISTS:
            items = [_rename_item(item, modulo) for item in output]
            normal[stage] = tuple(items[i] for i in _arrange(items, modulo))
        elif stage is Stage.SELECT and NAMES in modulo:
            normal[stage] = _rename((output,))[0]
        elif stage is Stage.ADVANCE and NAMES in modulo:
            normal[stage] = (output[0], _rename(output[1]), output[2])
    if Stage.LIMIT in outputs:
        _normalise_limit(normal, modulo)
    elif modulo & {ORDER, DUPLICATES}:
        for stage in (Stage.SCORE, Stage.CHOOSE):
            normal.pop(stage, None)
    return normal


def _normalise_limit(normal: StageOutputs, modulo: Modulo) -> None:
    """Bring what `limit` left into normal form, with the scores and the choice, which refer to it."""
    listed, *counts = normal[Stage.LIMIT]
    items = [_rename_item(item, modulo) for item in listed]
    scores = normal.get(Stage.SCORE)
    rows = _arrange(items, modulo, scores if scores is not None and len(scores) == len(items) else ())
    normal[Stage.LIMIT] = (tuple(items[i] for i in rows), *counts)
    if not modulo & {ORDER, DUPLICATES}:
        return
    if scores is not None and len(scores) == len(items):
        normal[Stage.SCORE] = tuple(scores[i] for i in rows)
    choice = normal.get(Stage.CHOOSE)
    if choice is not None and 0 <= choice < len(items):
        contents = [_content(items[i]) for i in rows]
        normal[Stage.CHOOSE] = contents.index(_content(items[choice]))


def _arrange(items: Sequence[Any], modulo: Modulo, scores: Sequence[float] = ()) -> list[int]:
    """Return the indices of the items that remain, in their normal order."""
    rows = list(range(len(items)))
    if DUPLICATES in modulo:
        first = {_content(items[i]): i for i in reversed(rows)}
        rows = sorted(first.values())
    if ORDER in modulo:
        rows.sort(key=lambda i: (_content(items[i]), items[i][-3:-1], scores[i] if scores else 0.0))
    return rows


def _content(item: Any) -> tuple[Any, ...]:
    """Return the kind, if it is listed, and the atoms of an item."""
    return (*item[:-3], item[-1])


def _rename_item(item: Any, modulo: Modulo) -> tuple[Any, ...]:
    return (*item[:-1], _rename(item[-1])) if NAMES in modulo else tuple(item)


def _rename(atoms: Any) -> Goal:
    return canonical(tuple(Atom(*atom) for atom in atoms))
