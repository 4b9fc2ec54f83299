"""The features that an engine declares itself: what kgverify cannot see from outside, such as lanes, slots or chunks."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.instances import Instance, Unit
from kgverify.engines.protocol import DescribedEngine, Engine
from kgverify.errors import UserError
from kgverify.trace.model.columns import Columns

MOST_DECLARED: Final = 64
MOST_OF_NAME: Final = 60
"""The features that an engine may declare, and the characters of a name."""

_OF_STEPS: Final = frozenset({Unit.FACT, Unit.RULE, Unit.RESOLVENT, Unit.STEP})


def read_declared(engine: Engine, columns: Columns) -> tuple[Feature, ...]:
    """Return the features that an engine declares for the columns that it returned last; none if it has no `features`.

    UserError unless they are numbers by name, one for each candidate or one for each step.
    """
    if not isinstance(engine, DescribedEngine):
        return ()
    found: Any = engine.features(columns)
    if not isinstance(found, Mapping) or len(found) > MOST_DECLARED:
        raise _refuse(f"expected at most {MOST_DECLARED} arrays by name, found {type(found).__name__}")
    return tuple(_read(name, values, columns) for name, values in found.items())


def _read(name: object, values: object, columns: Columns) -> Feature:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MOST_OF_NAME:
        raise _refuse(f"expected a name of at most {MOST_OF_NAME} characters, found {name!r:.80}")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _refuse(f"{name}: expected numbers, found {error}") from error
    num, total = len(columns.candidates.num_steps), int(columns.candidates.num_steps.sum())
    if array.dtype.kind not in "biuf" or array.shape not in ((num,), (total,)):
        expected = f"{num:,} numbers, one for each candidate, or {total:,}, one for each step"
        raise _refuse(f"{name}: expected {expected}, found {array.dtype} {list(array.shape)}")
    numbers = array.astype(np.float64)
    scale = {"b": Scale.FLAG, "f": Scale.NUMBER}.get(array.dtype.kind, Scale.COUNT)
    is_flag = scale is Scale.FLAG
    is_of_steps = array.shape != (num,)
    return Feature(
        name=name,
        unit="" if is_flag else name,
        of=_OF_STEPS if is_of_steps else _OF_STEPS | {Unit.CANDIDATE},
        scale=scale,
        phrase=f"with {name}" if is_flag else f"whose {name} is {{}}",
        opposite=f"without {name}" if is_flag else "",
        value=_of_step(numbers, columns) if is_of_steps else lambda instance: float(numbers[instance.candidate.row]),
        is_declared=True,
    )


def _of_step(numbers: NDArray[np.float64], columns: Columns) -> Any:
    starts = np.concatenate(([0], np.cumsum(columns.candidates.num_steps.astype(np.int64))))

    def value(instance: Instance) -> float | None:
        if instance.step is None:
            return None
        row = int(starts[instance.candidate.row]) + instance.step.number
        return float(numbers[row]) if row < starts[instance.candidate.row + 1] else None

    return value


def _refuse(message: str) -> UserError:
    return UserError(
        message, where="features", fix="return {name: array}, with a number for each candidate or each step"
    )
