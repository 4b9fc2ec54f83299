"""Parts that workers prove: the last are cut, several are stored at the same time, and what a stop or an error leaves behind."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import kgverify as kv
from kgverify import Engine, UserError
from kgverify.evaluation import parts
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.parts import hash_result
from kgverify.evaluation.proving import do_piece
from kgverify.runs.pool import Workers
from kgverify.runs.run import Pipeline, Run, reference_pipeline

RUN = Run(kv.load_graph("countries"), num_queries=6, num_corruptions=2)


class Threads(Workers, ThreadPoolExecutor):
    """Workers in threads of this process."""

    def count(self) -> int:
        return 4


def evaluate_by_threads(folder: Path | None = None, **options: Any) -> EvaluationResult:
    with Threads(4) as workers:
        given = {"workers": workers, "make": partial(reference_pipeline, RUN)}
        found = evaluate(
            RUN, reference_pipeline(RUN), EvaluationSettings(folder=folder, part_size=6, **given, **options)
        )
    assert found is not None
    return found


def hashes(found: EvaluationResult) -> dict[int, str]:
    return {number: hash_result(result, "") for number, result in found.results.items()}


def test_several_parts_are_stored_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, write = threading.Barrier(4), parts.write_part
    first = iter(range(4))

    def write_together(*arguments: Any) -> None:
        if next(first, None) is not None:
            # None of the first four is written before all four are about to be; one at a time would end with an error.
            together.wait(timeout=20)
        write(*arguments)

    monkeypatch.setattr(parts, "write_part", write_together)
    found = evaluate_by_threads(tmp_path / "run")
    alone = evaluate(RUN, reference_pipeline(RUN), EvaluationSettings(part_size=6))
    assert alone is not None
    assert hashes(found) == hashes(alone)
    assert len(list((tmp_path / "run").glob("part-*"))) == len(found.plan.parts) == 6


def test_a_part_that_cannot_be_stored_ends_the_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = parts.write_part

    def refuse(path: Path, *arguments: Any) -> None:
        if path.name == "part-000003.npz":
            raise UserError("no room")
        write(path, *arguments)

    monkeypatch.setattr(parts, "write_part", refuse)
    with pytest.raises(UserError, match="no room"):
        evaluate_by_threads(tmp_path / "run")
    monkeypatch.undo()
    assert evaluate_by_threads(tmp_path / "run").num_resumed > 0


def test_results_that_arrived_before_a_stop_are_stored(tmp_path: Path) -> None:
    stored: list[int] = []

    def should_stop() -> bool:
        stored[:] = [int(path.stem[-6:]) for path in (tmp_path / "run").glob("part-*.npz")]
        return len(stored) > 1

    found = evaluate_by_threads(tmp_path / "run", should_stop=should_stop)
    assert set(stored) <= set(found.results)
    again = evaluate_by_threads(tmp_path / "run")
    assert again.num_resumed == len(found.results) >= 2
    assert not again.missing


def test_four_parts_are_sent_ahead_for_each_thread() -> None:
    sent: list[Future[Any]] = []
    polls = iter(range(3))

    class Idle(Threads):
        """A worker with one thread, which never begins."""

        def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
            sent.append(Future())
            return sent[-1]

        def count(self) -> int:
            return 1

    given = {"workers": Idle(1), "make": partial(reference_pipeline, RUN)}
    settings = EvaluationSettings(part_size=6, should_stop=lambda: next(polls, None) is None, **given)
    found = evaluate(RUN, reference_pipeline(RUN), settings)
    assert found is not None
    assert len(found.missing) == 6
    assert len(sent) == 4
    assert all(each.cancelled() for each in sent)


class Counting(Threads):
    """Workers that keep the functions called, and the candidates of each piece."""

    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.calls: list[tuple[str, int]] = []

    def submit(self, function: Any, *arguments: Any, **options: Any) -> Future[Any]:
        self.calls.append((function.__name__, len(arguments[-1].query) if function is do_piece else 0))
        return super().submit(function, *arguments, **options)


class Slotted:
    """The reference, which calls itself an engine with slots."""

    def __init__(self, engine: Any) -> None:
        self.prove = engine.prove
        self.info = msgspec.structs.replace(engine.info, layout={"slots": 8})


def make_slotted(run: Run) -> Pipeline:
    pipeline = reference_pipeline(run)
    return pipeline._replace(engine=cast(Engine, Slotted(pipeline.engine)))


@pytest.mark.parametrize("part_size", [None, 100])
def test_the_last_parts_are_cut_into_pieces_and_their_results_are_the_same(part_size: int | None) -> None:
    run = Run(kv.load_graph("countries"), num_queries=12, num_corruptions=50)
    with Counting(4) as workers:
        given: dict[str, Any] = {"workers": workers, "make": partial(reference_pipeline, run)}
        found = evaluate(run, reference_pipeline(run), EvaluationSettings(part_size=part_size, **given))
    alone = evaluate(run, reference_pipeline(run), EvaluationSettings(part_size=part_size))
    assert found is not None
    assert alone is not None
    assert hashes(found) == hashes(alone)
    num_parts, sizes = len(found.plan.parts), [num for name, num in workers.calls if name == "do_piece"]
    assert len(workers.calls) - len(sizes) == max(0, num_parts - 8)
    if part_size is None:
        # The only part occupies all four.
        assert (num_parts, len(sizes)) == (1, 16)
    assert min(sizes) >= 32
    assert sum(sizes) == sum(part.num_candidates for part in found.plan.parts[-8:])


def test_parts_of_an_engine_with_slots_are_sent_whole() -> None:
    run = Run(kv.load_graph("countries"), num_queries=2, num_corruptions=50)
    with Counting(4) as workers:
        given: dict[str, Any] = {"workers": workers, "make": partial(make_slotted, run)}
        found = evaluate(run, make_slotted(run), EvaluationSettings(**given))
    assert found is not None
    assert [name for name, _ in workers.calls] == ["do_part"] * len(found.plan.parts)


def test_no_part_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_by_threads(tmp_path / "run")
    (tmp_path / "run" / "part-000002.npz").unlink()
    read, names = parts.read_part, []

    def count(path: Path, *arguments: Any) -> Any:
        names.append(path.name)
        return read(path, *arguments)

    monkeypatch.setattr(parts, "read_part", count)
    found = evaluate_by_threads(tmp_path / "run")
    assert (len(found.results), found.num_resumed) == (6, 5)
    assert sorted(names) == [f"part-{number:06d}.npz" for number in (0, 1, 3, 4, 5)]
