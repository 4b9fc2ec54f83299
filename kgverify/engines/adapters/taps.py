"""Taps: lines in a step that show the values of its stages. They have no effect unless somebody records."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.engines.adapters.encoding import Translation
from kgverify.errors import UserError, count_of, suggest
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Stage
from kgverify.step.clauses import number_variables
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.stage_items import StageOutputs

NUM_CALLS: Final = 3
"""The calls of compiled code with taps: torch warms up, then captures a CUDA graph, then replays it."""

TAPPED: Final = STEP_STAGES[: STEP_STAGES.index(Stage.ADVANCE)]
"""The stages that a tap can show; the rest follows from them."""

_MATCHES: Final = (Stage.MATCH_RULES, Stage.MATCH_FACTS)
_LISTS: Final = TAPPED[TAPPED.index(Stage.RESOLVE) : TAPPED.index(Stage.LIMIT) + 1]
T = TypeVar("T")

_seen: set[str] = set()
_ever_seen: set[str] = set()
_names_of: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()
_record: Callable[[str, Any, Any], Any] | None = None
_kept: "dict[str, list[Tapped]]" = {}


class Tapped(NamedTuple):
    """A value that a tap recorded, and its counts, if there are any."""

    value: NDArray[Any]
    counts: NDArray[Any] | None


def tap(name: str, value: Any, count: Any = None) -> Any:
    """Return `value`, and show it to kgverify as the output of a stage if somebody records.

    Write one line behind a stage in `TensorEngine.expand`, or in a function that it calls: `x = kv.tap("resolve", x, n)`. The
    line is the same in eager code, under `torch.compile` (also with `fullgraph=True` and CUDA graphs), and in a captured graph.
    When a step diverges, kgverify repeats it, records the taps, and compares each stage with the reference's.

    Args:
        name: The name of a stage, `"select"` to `"choose"`. It may fire once in a step.
        value: B states, S items of M atoms, in the numbers of the engine's encoding. `"select"`: atoms [B, 3];
            `"match_rules"`, `"match_facts"`: the clauses, as their numbers in the program [B, S], as a mask over all of them
            bool [B, N], or as the facts themselves [B, S, 3]; `"resolve"` to `"limit"`: successors [B, S, M, 3];
            `"score"`: floats [B, S]; `"choose"`: the index of the successor [B].
        count: The number of items of each state, int [B], or a mask of the items, bool [B, S]; all items by default. With
            counts, `value` may also list the items of all states one after the other: [N] or [N, M, 3].

    Returns:
        The value itself.

    Raises:
        UserError: When the engine proves, if `name` is not such a stage; when a step is repeated, if `value` has another shape,
            or if the tap fires twice.

    Example:
        >>> import kgverify as kv
        >>> kv.tap("match_facts", [3, 5])
        [3, 5]
    """
    if _record is None:
        _see(name)
        return value
    return _record(name, value, count)


def _see(name: str) -> None:
    _seen.add(name)
    _ever_seen.add(name)


def are_in_use() -> bool:
    """Return whether any tap ran in this process. Compiled code shows its taps only when it is traced, to one engine."""
    return bool(_ever_seen)


# Dynamo calls such a function once, when it traces: compiled code then contains nothing of it.
_see._dynamo_marked_constant = True  # type: ignore[attr-defined]


@dataclass
class TapLog:
    """The taps of an engine: the names seen in its code, and what happened in the steps that were repeated with the taps.

    changed: the number of steps that ended otherwise with the taps recorded than without
    other:   the stages whose taps show something else, also in steps whose results agree
    """

    seen: set[str] = field(default_factory=set)
    fired: set[str] = field(default_factory=set)
    num_probes: int = 0
    changed: int = 0
    other: set[Stage] = field(default_factory=set)

    def describe(self, name: str) -> tuple[list[Coded], list[str]]:
        """Return the reasons for INCONCLUSIVE and the notes that follow from the taps of an engine."""
        silent = sorted(self.seen - self.fired) if self.num_probes else ()
        reasons = [
            Code.SILENT_TAP.mark(
                f"tap {each!r} of {name} never fired in {count_of(self.num_probes, 'repeated step')}, so its stage was not"
                " compared: capture graphs in `setup` or in `expand`, and place the tap where every step passes"
            )
            for each in silent
        ]
        notes = []
        if self.changed:
            notes.append(
                f"{self.changed:,} of {count_of(self.num_probes, 'step')} of {name} ended otherwise with taps recorded than"
                " without: the compiler does something else when the values are read, and the taps do not show the fault"
            )
        if self.other:
            notes.append(
                f"taps of {name} that were not compared: {', '.join(sorted(self.other))}; they differ from the stages of"
                " these names in steps whose results agree"
            )
        return reasons, notes

    @classmethod
    def of(cls, engine: object) -> "TapLog":
        """Return the log of an engine. Engines of a class have the same code, and share the names that were seen in it."""
        return cls(_names_of.setdefault(type(engine), set()))

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Note the names of the taps in the code that runs. UserError for an unknown name."""
        global _seen
        before, _seen = _seen, self.seen
        try:
            yield
        finally:
            _seen = before
        for name in self.seen:
            if name not in tuple(TAPPED):
                raise UserError(
                    f"unknown tap {name!r}",
                    where="kgverify.tap",
                    fix=suggest(name, tuple(TAPPED)) or f"give one of {', '.join(TAPPED)}",
                )


def call_with_taps(
    call: Callable[[], T], device: str, replaced: Mapping[str, Tapped] | None = None, *, is_repeated: bool = True
) -> tuple[T, dict[str, Tapped]]:
    """Return the result of a function and the values of the taps in it, or with the values of some taps replaced.

    Compiled code is called several times, and the last call counts: it replays a CUDA graph if there is one. UserError for a
    tap that fires twice in a call.
    device: the device of torch tensors
    """
    global _record
    before, _record = _record, _keep
    taps: Any = None
    num_calls = 1
    try:
        if "torch" in sys.modules:
            from kgverify.torch import taps

            _record = taps.start(device, _keep, replaced or {})
            if is_repeated and taps.may_be_compiled():
                num_calls = NUM_CALLS
                with taps.run_eagerly():
                    call()
        for _ in range(num_calls):
            _kept.clear()
            if taps is not None:
                taps.clear()
            result = call()
        found = dict(_kept)
        for name, *tapped in taps.collect() if taps is not None else ():
            found.setdefault(name, []).append(Tapped(*tapped))
    finally:
        _record = before
        _kept.clear()
    for name, values in found.items():
        if len(values) > 1:
            raise UserError(
                f"tap {name!r} fired {len(values)} times in one step",
                where="kgverify.tap",
                fix="show the value of the whole stage once, behind the loop",
            )
    return result, {name: values[0] for name, values in found.items()}


def _keep(name: str, value: Any, count: Any) -> Any:
    """Record an array of NumPy."""
    _kept.setdefault(name, []).append(Tapped(np.array(value), None if count is None else np.array(count)))
    return value


# The values of taps as outputs of stages


def read_taps(tapped: Mapping[str, Tapped], translation: Translation, facts: NDArray[np.int32]) -> StageOutputs:
    """Return the outputs of stages from recorded taps, for the first state. UserError for a value of another shape."""
    return {stage: _read(stage, *tapped[stage], translation, facts) for stage in TAPPED if stage in tapped}


def write_tap(stage: Stage, output: Any, tapped: Tapped, translation: Translation) -> Tapped | None:
    """Return the value of a tap with the output of a stage in each row; None if it has no room, or another form."""
    value, count = (None if each is None else each.copy() for each in tapped)
    assert value is not None
    items = output[0] if stage is Stage.LIMIT else output
    if stage is Stage.SELECT or (value.dtype != np.bool_ and value.ndim != _num_axes(stage)):
        return None
    if stage is Stage.CHOOSE:
        value[...] = output
    elif value.dtype == np.bool_:
        value[...] = False
        value[:, list(items)] = True
    elif len(items) > value.shape[1] or (count is None and len(items) != value.shape[1]):
        return None
    elif stage not in _LISTS:
        value[:, : len(items)] = items
    else:
        encoding = translation.encoding
        markers = {GoalKind.TRUE: encoding.true, GoalKind.FALSE: encoding.false}
        for i, (*kind, _, _, atoms) in enumerate(items):
            marker = markers.get(kind[0]) if kind else None
            if len(atoms) > value.shape[2] or (kind and kind[0] != GoalKind.GOAL and marker is None):
                return None
            value[:, i] = encoding.padding
            value[:, i, : len(atoms)] = translation.encode(np.array(atoms, np.int64).reshape(-1, 3))
            if marker is not None:
                value[:, i, 0, encoding.order.index("p")] = marker
    if count is not None:
        count[...] = np.arange(count.shape[-1]) < len(items) if count.dtype == np.bool_ else len(items)
    return Tapped(value, count)


def _num_axes(stage: Stage) -> int:
    """Return the number of axes of a padded value of a stage."""
    return 1 if stage is Stage.CHOOSE else 4 if stage in _LISTS else 2


def _read(stage: Stage, value: NDArray[Any], count: NDArray[Any] | None, translation: Translation, facts: Any) -> Any:
    """Return the output of a stage for the first state."""
    num_axes = _num_axes(stage)
    is_score, is_mask = stage is Stage.SCORE, value.dtype == np.bool_ and stage in _MATCHES
    is_flat = count is not None and value.ndim == num_axes - 1
    of_facts = stage is Stage.MATCH_FACTS and value.ndim == 3
    if value.dtype.kind not in ("f" if is_score else "b" if is_mask else "iu") or (
        value.ndim != num_axes and not is_flat and not of_facts
    ):
        raise UserError(
            f"tap {stage.value!r} shows {value.dtype} {list(value.shape)}",
            where="kgverify.tap",
            fix="see help(kgverify.tap) for the values of each stage",
        )
    if stage is Stage.SELECT:
        return tuple(translation.decode(value[:1, None].astype(np.int64)).atoms[0].tolist())
    if stage is Stage.CHOOSE:
        return int(value[0])
    items = value if is_flat else value[0]
    if is_mask:
        items = np.flatnonzero(items)
    elif count is not None:
        first = count.reshape(-1) if is_flat or count.ndim < 2 else count[0]
        items = items[first[: len(items)]] if count.dtype == np.bool_ else items[: int(first[0])]
    if is_score or (stage in _MATCHES and not of_facts):
        return tuple(items.tolist())
    if of_facts:
        number = {fact: i for i, fact in enumerate(map(tuple, facts.tolist()))}
        atoms = translation.decode(items[:, None].astype(np.int64)).atoms
        return tuple(number.get(atom, -1) for atom in map(tuple, atoms.tolist()))
    decoded = translation.decode(items.astype(np.int64))
    starts = starts_of(decoded.num_atoms).tolist()
    atoms = decoded.atoms.tolist()
    goals = [tuple(map(tuple, atoms[a:b])) for a, b in pairwise(starts)]
    if stage in (Stage.RESOLVE, Stage.PRUNE, Stage.CLOSE):
        goals = list(map(number_variables, goals))
    if stage not in (Stage.CLOSE, Stage.LIMIT):
        return tuple((0, 0, goal) for goal in goals)
    listed = tuple((kind, 0, 0, goal) for kind, goal in zip(decoded.kind.tolist(), goals, strict=True))
    return listed if stage is Stage.CLOSE else (listed, 0, 0)
