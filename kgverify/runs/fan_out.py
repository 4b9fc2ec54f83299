"""The reference prover on several processes or machines."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgverify.errors import UserError
from kgverify.files.reading import open_file
from kgverify.files.writing import temporary_folder, write_file
from kgverify.runs.dask_workers import DaskWorkers, check_same_engine
from kgverify.runs.run import Pipeline, Run, reference_pipeline, reference_triples, with_reference_ranking
from kgverify.runs.separate_workers import RepeatingWorkers
from kgverify.trace.model.header import EngineInfo

if TYPE_CHECKING:
    from kgverify.engines.reference.parallel import FannedOut

_MOST_BESIDE: Final = 16
"""The most processes that wait beside other work. Each holds the program in its memory."""

_NUM_OF_PROCESS: Final = 1024
"""The candidates for which a further process is worth its start."""

_NUM_OF_COSTLY: Final = 96
"""The same for a network with more than `_WIDE` weights, or for more than `_LARGE` facts, of which more match at each step."""

_WIDE: Final = 100_000

_LARGE: Final = 100_000


@contextmanager
def reference_over(run: Run, *, jobs: int = 1, scheduler: str | None = None) -> Iterator[Pipeline]:
    """Provide the reference's pipeline until the context ends; its traces are the same wherever it runs.

    jobs:      processes on this machine; 1 means this process
    scheduler: the address of a dask scheduler, used instead of `jobs`; its workers need kgverify installed

    UserError as for `DaskWorkers`.
    """
    if scheduler is not None:
        with DaskWorkers(scheduler) as executor:
            yield with_reference_ranking(_fan_out(run, executor, **_options_of(executor)))
    elif jobs > 1:
        with RepeatingWorkers(jobs) as executor:
            yield with_reference_ranking(_fan_out(run, executor, count_workers=lambda: jobs))
    else:
        yield reference_pipeline(run)


@contextmanager
def reference_beside(run: Run, num: int) -> Iterator[Pipeline]:
    """Provide the reference's pipeline to prove `num` candidates after other work.

    Its processes start at once, if they save time and there are cores left.
    """
    num_weights = sum(array.size for name, array in run.policy.weights.items() if name.startswith("block."))
    is_costly = num_weights > _WIDE or len(run.graph.program.facts) > _LARGE
    worth = _NUM_OF_COSTLY if is_costly else _NUM_OF_PROCESS
    jobs = min(_MOST_BESIDE, len(os.sched_getaffinity(0)) - 1, (num - 1) // worth)
    if jobs < 2:
        yield reference_pipeline(run)
        return
    with temporary_folder("kgverify-program-") as folder, RepeatingWorkers(jobs) as executor:
        engine = _fan_out(run, executor, share=partial(_SharedFile.write, folder))
        engine.warm_up(jobs)
        yield with_reference_ranking(engine)


class _SharedFile:
    """Bytes that each process of this machine reads from a file, once, and not from the pipe of every call.

    Only their digest comes through the pipe: what others put in place of the file is not believed.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest = path, digest

    @classmethod
    def write(cls, folder: Path, content: bytes) -> "_SharedFile":
        """Write the only file of a folder."""
        path = folder / "shared"
        write_file(path, content)
        return cls(path, sha256(content).hexdigest())

    def __reduce__(self) -> tuple[Callable[[Path, str], bytes], tuple[Path, str]]:
        """Arrive as the bytes."""
        return _read_shared, (self._path, self._digest)


@lru_cache(maxsize=1)
def _read_shared(path: Path, digest: str) -> bytes:
    with open_file(path, purpose="the program for the workers") as file:
        content = file.read()
    if sha256(content).hexdigest() != digest:
        raise UserError("was replaced", where=str(path), fix="let TMPDIR name a folder that only you can write")
    return content


@contextmanager
def pipeline_over(scheduler: str, make: Callable[[], Pipeline]) -> Iterator[Pipeline]:
    """Provide a pipeline whose engine proves on the workers of a dask scheduler until the context ends.

    make: makes the pipeline, here and on the workers; it can be pickled

    UserError as for `DaskWorkers`.
    """
    from kgverify.engines.reference.parallel import CHUNK, FannedOut

    with DaskWorkers(scheduler) as executor:
        here = make()
        executor.engines, info = here.engines, here.engine.info
        # An engine with slots proves them in batches, which should be full.
        chunk = max(CHUNK, info.layout.get("slots", 0))
        engine = FannedOut(partial(_make_same_engine, make, info), executor, chunk, **_options_of(executor))
        yield here._replace(engine=engine)


def _make_same_engine(make: Callable[[], Pipeline], info: EngineInfo) -> Any:
    engine = make().engine
    check_same_engine(engine.info, info)
    return engine


def _options_of(executor: DaskWorkers) -> dict[str, Any]:
    return {"share": executor.share, "count_workers": executor.count_threads}


def _fan_out(run: Run, executor: Any, **options: Any) -> "FannedOut":
    from kgverify.engines.reference.engine import ReferenceEngine
    from kgverify.engines.reference.parallel import FannedOut

    make = partial(ReferenceEngine, run.graph.program, run.limits, run.policy, triples=reference_triples(run))
    return FannedOut(make, executor, **options)
