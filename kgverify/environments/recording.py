"""Record a training loop on its device: a digest of each row of every slot, and all columns of some slots.

On disk, the rows of a slot lie in several candidates, one for each block of calls; `start` is the number of the block's first
call. `read_recording` joins them.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kgverify.arguments import checked
from kgverify.environments.protocol import Autoreset, check_rows, describe_numbers, walk
from kgverify.environments.side import Side
from kgverify.environments.trajectory import ENVIRONMENT, GROUPS, Numbers, Slots, Steps, Trajectories, as_numbers
from kgverify.errors import UserError, check_known
from kgverify.trace.model.columns import expand_rows, select_candidates, starts_of
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import Storage, TraceWriter

NUM_CALLS: Final = 64
"""The calls whose rows stay on the device before they are copied to the host."""

MAX_BLOCKS: Final = 4
"""The blocks of calls that wait to be written. If there are more, the loop waits."""

BLOCK_SECONDS: Final = 5.0
"""The time after which rows are copied to the host at the latest."""

_SHARD_BYTES: Final = 1 << 28
_DTYPES: Final = {name: ENVIRONMENT.column_of[f"steps/{name}"].dtypes[0] for name in Steps._fields}


class EnvironmentRecorder:
    """The recorder of a loop, which `kgverify.record_env` makes: call `reset` and `step` after those of the environment.

    A context manager: an error keeps what was recorded in `<path>.partial`. UserError for values that do not fit the first
    ones, or cannot be written.
    """

    def __init__(self, path: Path, seeds: int | Sequence[int], share: float, autoreset: Autoreset, name: str) -> None:
        self._path, self._seeds, self._share, self._autoreset, self._name = path, seeds, share, autoreset, name
        self._names: dict[str, list[str]] = {}
        self._dtypes: dict[str, list[str]] = {}
        self._num_slots, self._device = 0, None
        self._rows: Any = None
        self._waiting: list[dict[str, Any]] = []
        self._writers: list[TraceWriter] = []
        self._start, self._due = 0, time.monotonic() + BLOCK_SECONDS
        self._pool, self._jobs = ThreadPoolExecutor(1), deque[Future[None]]()

    def reset(self, observation: Any, mask: Any = None, *, states: Any = None, which: Any = None) -> None:
        """Record the first observation of an episode in every slot, or in some: `which`, bool [N].

        observation: a tensor [N, ...], or a nested mapping or tuple of these
        mask:   bool [N, A]  the legal actions
        states: the state of the environment, likewise
        """
        call = self._convert({"observations": observation, "masks": mask, "states": states})
        everyone = np.ones(self._num_slots, np.bool_) if which is None else which
        call["which"] = self._to_tensor(everyone).bool().reshape(-1)
        if self._rows is None:
            # The other columns are not known before the first step.
            self._waiting.append({name: _clone(each) for name, each in call.items()})
        else:
            self._add(call)

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any = None,
        mask: Any = None,
        *,
        final: Any = None,
        log_probability: Any = None,
        value: Any = None,
        hidden: Any = None,
        states: Any = None,
    ) -> None:
        """Record an action in every slot, and what followed. The tensors may be overwritten as soon as this returns.

        action, hidden: of the policy: a tensor [N, ...], or a nested mapping or tuple of these
        observation, mask, states: as in `reset`; in mode same_step those of the next episode if one ended
        reward, terminated, truncated, log_probability, value: [N]
        final: the observation that ended the episode, in mode same_step; the rows of other slots are not read
        """
        groups = {"actions": action, "hidden": hidden, "states": states, "observations": observation, "masks": mask}
        call = self._convert(groups | {"final": final})
        values = {"log_probability": log_probability, "value": value}
        values |= {"reward": reward, "terminated": terminated, "truncated": truncated}
        call |= {name: self._to_tensor(each).reshape(-1) for name, each in values.items() if each is not None}
        if self._rows is None:
            self._open(call)
        self._add(call)

    def flush(self) -> None:
        """Wait until every row so far has been passed to the writers, which commit every few seconds."""
        if self._rows is not None:
            self._send()
        while self._jobs:
            self._jobs.popleft().result()

    def close(self) -> None:
        """Write the rest. The traces appear at their paths."""
        self.__exit__(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._pool:
            if self._waiting:
                self._open({})
            self.flush()
        for writer in self._writers:
            writer.__exit__(kind, *error)

    def _to_tensor(self, value: Any) -> Any:
        from kgverify.torch.trajectory_rows import to_tensor

        tensor = to_tensor(value, self._device)
        self._device = self._device or tensor.device
        if self._num_slots and (not tensor.ndim or len(tensor) != self._num_slots):
            check_rows({"a value": tensor}, self._num_slots, str(self._path))
        return tensor

    def _convert(self, groups: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors of each group, without groups that are None; the first observation sets slots and device."""
        call = {}
        for group, value in groups.items():
            if value is None:
                continue
            leaves = {name: self._to_tensor(each) for name, each in walk(value)}
            self._num_slots = self._num_slots or len(next(iter(leaves.values())))
            whole = "observations" if group == "final" else group
            if whole not in self._names and self._rows is None:
                self._names[whole], self._dtypes[whole] = describe_numbers(whole, leaves)
            width = sum(each.numel() for each in leaves.values()) // self._num_slots
            if width != len(self._names.get(whole, ())):
                raise UserError(
                    f"{group} has {width} numbers in each slot, expected {len(self._names.get(whole, ()))} as before",
                    where=str(self._path),
                    fix="give the same columns, of the same shapes, in every call",
                )
            call[group] = tuple(leaves.values())
        return call

    def _open(self, call: dict[str, Any]) -> None:
        """Open the traces, with the columns of the first step."""
        from kgverify.torch.trajectory_rows import Column, Plan, RowRecorder

        num = self._num_slots
        self._seeds = (
            np.arange(num) + self._seeds if isinstance(self._seeds, int) else np.asarray(self._seeds, np.int64)
        )
        check_rows({"seeds": self._seeds}, num, str(self._path))
        drawn = np.random.default_rng(0).permutation(num)[: max(1, round(self._share * num))]
        self._chosen = np.sort(drawn)
        known = frozenset(_DTYPES.keys() & call.keys())
        self._names = {group: self._names[group] for group in GROUPS if group in self._names}
        empty = Side(
            self._name, ENVIRONMENT.empty(), self._names, self._dtypes, known, self._autoreset.value
        ).as_trace()
        digests = self._path.with_suffix(f".digests{self._path.suffix}")
        for path, level in ((digests, TraceLevel.DIGESTS), (self._path, TraceLevel.STEPS)):
            storage = Storage(level, shard_steps=1 << 24, shard_bytes=_SHARD_BYTES)
            self._writers.append(TraceWriter(path, empty.header, empty.symbols, storage=storage, schema=ENVIRONMENT))
        group_of = {count: group for group, count in GROUPS.items()}
        columns = tuple(Column(name, dtype == "<f8", group_of.get(name, "")) for name, dtype in _DTYPES.items())
        plan = Plan(
            columns,
            {group: len(names) for group, names in self._names.items()},
            self._autoreset is Autoreset.SAME_STEP,
            self._autoreset is Autoreset.DISABLED,
        )
        self._rows = RowRecorder(plan, num, self._chosen, NUM_CALLS, self._device)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._add(each)

    def _add(self, call: dict[str, Any]) -> None:
        if self._rows.add(call) or time.monotonic() > self._due:
            self._send()

    def _send(self) -> None:
        """Copy the rows to the host, and write them in another thread."""
        while self._jobs and (self._jobs[0].done() or len(self._jobs) >= MAX_BLOCKS):
            self._jobs.popleft().result()
        if self._rows.num_filled:
            start, self._start = self._start, self._start + self._rows.num_filled
            self._jobs.append(self._pool.submit(self._append, start, self._rows.take()))
        self._due = time.monotonic() + BLOCK_SECONDS

    def _append(self, start: int, copied: Any) -> None:
        block = copied.wait()
        num = self._num_slots
        present = block.present.transpose(2, 0, 1).reshape(num, -1) != 0
        words = block.digests.transpose(2, 0, 1).reshape(num, -1).view(np.uint64)
        rows = block.rows.transpose(2, 0, 1, 3).reshape(len(self._chosen), present.shape[1], -1)
        kept = present[self._chosen]
        for writer, slots, mask, table in (
            (self._writers[0], np.arange(num), present, None),
            (self._writers[1], self._chosen, kept, as_numbers(rows[kept])),
        ):
            writer.append(self._columns(start, slots, mask, table), words[slots][mask])

    def _columns(
        self, start: int, slots: NDArray[np.int64], present: NDArray[np.bool_], table: NDArray[np.float64] | None
    ) -> Any:
        """Return the rows of some slots, [n, width]; without a table, columns of zeros, which level `digests` leaves out."""
        counts = present.sum(1, dtype=np.uint32)
        has, num = counts > 0, int(counts.sum())
        at = slots[has]
        candidates = Slots(self._seeds[at], at.astype(np.int32), np.full(len(at), start, np.uint32), counts[has])
        if table is None:
            zeros = Steps(*(np.broadcast_to(np.zeros((), dtype), num) for dtype in _DTYPES.values()))
            return Trajectories(candidates, zeros, *(Numbers(np.zeros(0)) for _ in GROUPS))
        steps = Steps(*(table[:, i].astype(dtype) for i, dtype in enumerate(_DTYPES.values())))
        numbers, begin = {}, len(_DTYPES)
        for group, count in GROUPS.items():
            end = begin + len(self._names.get(group, ()))
            numbers[group] = Numbers(table[getattr(steps, count) > 0, begin:end].reshape(-1))
            begin = end
        return Trajectories(candidates, steps, **numbers)


def _clone(value: Any) -> Any:
    return tuple(map(_clone, value)) if isinstance(value, tuple) else value.clone()


@checked
def record_env(
    path: str | Path,
    *,
    seeds: int | Sequence[int] = 0,
    share: float = 1 / 16,
    autoreset: str = "same_step",
    name: str = "recorded",
) -> EnvironmentRecorder:
    """Record the environment of your own loop, on its device: call the recorder after `reset` and `step`.

    `path` receives all columns of a share of the slots, which `kgverify env diff` compares with another environment. Beside
    it, `<name>.digests.h5` receives a digest of every row of every slot: two recordings of the same loop show the first row
    that differs. On a GPU the digests are computed there, and copied without waiting. Call the recorder outside of captured
    CUDA graphs and compiled functions; it reads their output at once, so they may reuse it. Whole numbers beyond 2^53 are
    rounded to float64.

    Args:
        path: The trace to write, such as `run.h5`.
        seeds: The seed of each slot's first episode; a number is that of slot 0, and the others count up from it.
        share: The share of slots whose columns are all recorded.
        autoreset: What the environment does when an episode ends: same_step, next_step, or disabled if you reset it.
        name: The name of the environment in reports.

    Returns:
        The recorder. Close it, or use it as a context manager.

    Raises:
        UserError: If an option is wrong.

    Example:
        >>> import kgverify as kv, numpy as np
        >>> with kv.record_env("run.h5", share=1) as recorder:
        ...     recorder.reset(np.zeros((4, 3)))
        ...     recorder.step(np.ones(4, int), np.ones((4, 3)), np.zeros(4), np.zeros(4, bool), np.zeros(4, bool))
        >>> kv.kinds.read(kv.kinds.ENVIRONMENT, "run.h5").columns.steps.kind.tolist()
        [0, 1, 0, 1, 0, 1, 0, 1]
    """
    check_known(autoreset, tuple(Autoreset), "mode", "autoreset")
    if not 0 < share <= 1:
        raise UserError(
            f"expected a share above 0 and up to 1, found {share}", where="share", fix="give such as 0.0625"
        )
    return EnvironmentRecorder(Path(path), seeds, share, Autoreset(autoreset), name)


def read_recording(path: Path | str) -> Trace:
    """Read a recorded loop, of level steps or digests, with one candidate for each slot. UserError if it cannot be read."""
    trace: Any = read_trace(path, ENVIRONMENT)
    candidates = trace.columns.candidates
    order = np.lexsort((candidates.start, candidates.slot))
    columns = select_candidates(trace.columns, order, ENVIRONMENT)
    steps = expand_rows(starts_of(candidates.num_steps), order)
    first = np.flatnonzero(np.diff(candidates.slot[order], prepend=-1))
    counts = np.add.reduceat(columns.candidates.num_steps, first, dtype=np.uint32) if len(first) else first
    whole = Slots(*(each[first] for each in columns.candidates))
    whole = whole._replace(start=np.zeros_like(whole.start), num_steps=counts.astype(np.uint32))
    digests = type(trace.digests)(*(each[steps] for each in trace.digests))
    found: Trace = replace(trace, columns=columns._replace(candidates=whole), digests=digests)
    return found


def read_side(path: Path | str) -> Side:
    """Read a recorded loop as a side of a comparison. UserError if it cannot be read."""
    return Side.of_trace(read_recording(path))
