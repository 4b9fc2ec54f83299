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
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.schema import TraceLevel, has_goals
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import Storage, TraceWriter

MAX_BLOCKS: Final = 4
"""The blocks of calls that wait to be written. If there are more, the loop waits."""

BLOCK_SECONDS: Final = 5.0
"""The time after which rows are copied to the host at the latest."""

OBSERVED: Final = ("observations", "masks", "states")
"""The groups of an observation, which a reset has, too."""

_SHARD_BYTES: Final = 1 << 28
_DTYPES: Final = {name: ENVIRONMENT.column_of[f"steps/{name}"].dtypes[0] for name in Steps._fields}


_Call = dict[str, tuple[Any, ...]]


class EnvironmentRecorder:
    """The recorder of a loop, which `kgverify.record_env` makes: call `reset` and `step` after those of the environment.

    A context manager: an error keeps what was recorded in `<path>.partial`. UserError for values that do not fit the first
    ones, or cannot be written.
    """

    def __init__(self, path: Path, seeds: int | Sequence[int], share: float, autoreset: Autoreset, name: str) -> None:
        self._path, self._share, self._autoreset, self._name = path, share, autoreset, name
        self._seeds: Any = seeds
        self._num_slots = 0
        self._device: Any = None
        self._rows: Any = None
        self._leaves: dict[str, dict[str, Any]] = {}
        self._widths: dict[str, int] = {}
        self._waiting: list[_Call] = []
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
        call |= self._convert({"which": np.ones(self._num_slots, np.bool_) if which is None else which})
        if self._rows is not None:
            self._add(call)
        else:
            # The other columns are not known before the first step.
            self._waiting.append({name: tuple(each.clone() for each in leaves) for name, leaves in call.items()})

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
        call = self._convert(
            {"observations": observation, "masks": mask, "states": states, "actions": action, "hidden": hidden}
            | {"reward": reward, "terminated": terminated, "truncated": truncated, "final": final}
            | {"log_probability": log_probability, "value": value}
        )
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

    def _convert(self, given: dict[str, Any]) -> _Call:
        """Return the tensors of each column and group that is not None; the first observation sets slots and device."""
        from kgverify.torch.trajectory_rows import to_tensor

        call = {}
        for name, value in given.items():
            if value is None:
                continue
            leaves = {part: to_tensor(each, self._device) for part, each in walk(value)}
            first = next(iter(leaves.values()))
            self._device, self._num_slots = first.device, self._num_slots or (len(first) if first.ndim else 1)
            check_rows(leaves, self._num_slots, str(self._path))
            if self._rows is None:
                self._leaves.setdefault(name, leaves)
            call[name] = tuple(leaves.values())
        return call

    def _open(self, call: _Call) -> None:
        """Open the traces, with the columns of the first step, or of a reset if there is no step."""
        from kgverify.torch.trajectory_rows import RowRecorder

        num, leaves = self._num_slots, self._leaves
        described = {name: describe_numbers(name, leaves[name]) for name in leaves.keys() & {*_DTYPES, *GROUPS}}
        self._seeds = np.asarray(self._seeds, np.int64) + (np.arange(num) if isinstance(self._seeds, int) else 0)
        check_rows({"seeds": self._seeds}, num, str(self._path))
        self._chosen = np.sort(np.random.default_rng(0).permutation(num)[: max(1, round(self._share * num))])
        self._widths = {name: len(names) for name, (names, _) in described.items()}
        names, dtypes = ({each: described[each][i] for each in GROUPS if each in described} for i in (0, 1))
        known = frozenset(_DTYPES.keys() & call.keys())
        mode = self._autoreset.value
        empty = Side(self._name, ENVIRONMENT.empty(), names, dtypes, known, mode).as_trace()
        digests = self._path.with_suffix(f".digests{self._path.suffix}")
        for path, level in ((digests, TraceLevel.DIGESTS), (self._path, TraceLevel.STEPS)):
            storage = Storage(level, shard_steps=1 << 24, shard_bytes=_SHARD_BYTES)
            self._writers.append(TraceWriter(path, empty.header, empty.symbols, storage=storage, schema=ENVIRONMENT))
        columns = {name: dtype == "<f8" for name, dtype in _DTYPES.items()}
        groups = {group: (count, self._widths.get(group, 0)) for group, count in GROUPS.items()}
        self._rows = RowRecorder(columns, groups, mode, num, self._chosen, self._device)
        self._leaves, waiting = {}, self._waiting
        for each in waiting:
            self._add(each)
        waiting.clear()

    def _add(self, call: _Call) -> None:
        found = {name: sum(each.numel() for each in call[name]) // self._num_slots for name in call if name != "which"}
        expected = {name: num for name, num in self._widths.items() if "which" not in call or name in OBSERVED}
        if "final" in call:
            expected["final"] = self._widths["observations"]
        for name, _ in sorted(found.items() ^ expected.items()):
            raise UserError(
                f"{name} has {found.get(name, 0)} numbers in each slot, expected {expected.get(name, 0)} as before",
                where=str(self._path),
                fix="give the same columns, of the same shapes, in every call",
            )
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
        present, rows = block.present.transpose(2, 0, 1) != 0, block.rows.transpose(2, 0, 1, 3)
        words, every = block.digests.transpose(2, 0, 1).view(np.uint64), np.arange(self._num_slots)
        if not self._rows.has_digests:
            columns = self._columns(start, every, present, as_numbers(rows[present]))
            words[present] = compute_sequence(columns, schema=ENVIRONMENT)
            rows = rows[self._chosen]
        kept = present[self._chosen]
        self._writers[0].append(self._columns(start, every, present, None), words[present])
        own = self._columns(start, self._chosen, kept, as_numbers(rows[kept]))
        self._writers[1].append(own, words[self._chosen][kept])

    def _columns(
        self, start: int, slots: NDArray[np.int64], present: NDArray[np.bool_], table: NDArray[np.float64] | None
    ) -> Any:
        """Return the columns of some rows.

        present: bool [slots, calls, 2]
        table: float64 [n, width], the rows that are present; None for zeros, since level `digests` leaves the columns out
        """
        counts = present.sum((1, 2), dtype=np.uint32)
        has, num = counts > 0, int(counts.sum())
        at = slots[has]
        candidates = Slots(self._seeds[at], at.astype(np.int32), np.full(len(at), start, np.uint32), counts[has])
        if table is None:
            zeros = Steps(*(np.broadcast_to(np.zeros((), dtype), num) for dtype in _DTYPES.values()))
            return Trajectories(candidates, zeros, *(Numbers(np.zeros(0)) for _ in GROUPS))
        steps = Steps(*(table[:, i].astype(dtype) for i, dtype in enumerate(_DTYPES.values())))
        ends = np.cumsum([len(_DTYPES), *(self._widths.get(group, 0) for group in GROUPS)])
        parts = np.split(table, ends, axis=1)[1:-1]
        numbers = [part[getattr(steps, count) > 0] for part, count in zip(parts, GROUPS.values(), strict=True)]
        return Trajectories(candidates, steps, *(Numbers(part.reshape(-1)) for part in numbers))


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
        >>> import numpy as np
        >>> import kgverify as kv
        >>> with kv.record_env("run.h5", share=1) as recorder:
        ...     recorder.reset(np.zeros((4, 3)))
        ...     recorder.step(np.ones(4), np.ones((4, 3)), reward=np.zeros(4), terminated=np.zeros(4, bool))
        >>> from pathlib import Path
        >>> sorted(each.name for each in Path(".").glob("run*"))
        ['run.digests.h5', 'run.h5']
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
    trace: Any = read_recording(path)
    if not has_goals(trace.header.level):
        raise UserError("holds digests only", where=str(path), fix="read the trace beside it, without .digests")
    names: dict[str, list[str]] = {}
    dtypes: dict[str, list[str]] = {}
    for text in trace.symbols.predicates:
        name, _, dtype = text.rpartition(" ")
        group = next(each for each in GROUPS if name.startswith(each.removesuffix("s")))
        names.setdefault(group, []).append(name)
        dtypes.setdefault(group, []).append(dtype)
    known = frozenset(name for name in _DTYPES if f"steps.{name}" in trace.fields and name not in GROUPS.values())
    info = trace.header.engine
    return Side(info.name, trace.columns, names, dtypes, known - {"kind"}, info.mode)
