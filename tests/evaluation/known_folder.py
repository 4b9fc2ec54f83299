"""A folder of parts that an evaluation resumes from: it must not take what belongs to another evaluation or another part.

The parts of a known evaluation are stored and read again. Then each property of the evaluation is changed, the files of two
parts are exchanged, and a value of a part is changed; none of these may be taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from evaluation_answers.evaluations import (
    FEW,
    NUM_QUERIES,
    SEED,
    FormulaEngine,
    build_engine,
    build_graph,
)
from run_engines import memory_folder

from kgverify import Limits, UserError
from kgverify.engines.policy import make_two_tower
from kgverify.errors import InternalError
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.parts import (
    Identity,
    PartFolder,
    PartResult,
    PartStore,
    build_result,
    hash_result,
    identify,
    join_results,
    list_columns,
)
from kgverify.evaluation.proving import FullWork
from kgverify.program.atoms import NamedAtom
from kgverify.progress import no_progress
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.run import Part, Pipeline, Run, plan_parts

SIZE: Final = 2 * (1 + FEW) * (NUM_QUERIES // 3)
"""The candidates of a part: the first ones have as many queries each."""

_KNOWN_TRIPLE: Final = NamedAtom("q", "c0", "c5")
"""A triple that the graph does not have."""
_KEPT: Final = ("format",)
"""Properties that no evaluation of this version changes."""


def check_known_folder() -> None:
    """Store, read and alter the parts of a known evaluation. InternalError if something wrong is taken."""
    run = Run(build_graph(), num_queries=NUM_QUERIES, num_corruptions=FEW, seed=SEED)
    engine = build_engine(run.graph, "cpu")
    pipeline = Pipeline(engine, draw_candidates, rank_candidates)
    work = FullWork(run, pipeline)
    plan = plan_parts(run, "cpu", SIZE)
    parts = plan.parts
    identity = identify(run, engine, plan, pipeline.identify_code())
    results = {part.number: work.summarize(part, work.prove(part, work.draw(part), no_progress)) for part in parts}
    if not np.array_equal(join_results(results.values()).query, np.repeat(np.arange(NUM_QUERIES), 2)):
        raise InternalError("the parts of a known evaluation do not hold every query once")
    with memory_folder() as folder:
        store = PartStore(PartFolder(folder), identity)
        store.open(parts, _nothing)
        for part in parts:
            store.put(part, results[part.number])
        if not _are_equal(_read(folder, identity, parts), results):
            raise InternalError("the parts of a known evaluation are read as others than those stored")
        for what, other in _alter_identity(run, engine, identity):
            if other.sha256 == identity.sha256 or _is_taken(folder, other, parts):
                raise InternalError(f"a known evaluation is resumed with another {what}")
        for what, alter in (("another part", _exchange), ("an altered value", _alter_value)):
            contents = [(folder / part.name).read_bytes() for part in parts]
            alter(folder, parts)
            if {0, 1} & _read(folder, identity, parts).keys():
                raise InternalError(f"a known evaluation is resumed with {what}")
            for part, content in zip(parts, contents, strict=True):
                (folder / part.name).write_bytes(content)
        for part in (parts[0], parts[-1]):
            (folder / part.name).unlink()
        resumed = evaluate(run, pipeline, EvaluationSettings(folder=folder, part_size=SIZE))
        if resumed is None or resumed.num_resumed != len(parts) - 2 or not _are_equal(resumed.results, results):
            raise InternalError("a known evaluation that is resumed has other results")
        if resumed.num_candidates != parts[0].num_candidates + parts[-1].num_candidates:
            raise InternalError(
                "a known evaluation that is resumed counts other candidates than those of its missing parts"
            )
    _check_checksums(join_results([results[0]] * 64))


def _nothing(warning: str) -> None:
    """Ignore a warning."""


def _read(folder: Path, identity: Identity, parts: Sequence[Part]) -> dict[int, PartResult]:
    return PartStore(PartFolder(folder), identity).collect(parts, _nothing)


def _is_taken(folder: Path, identity: Identity, parts: Sequence[Part]) -> bool:
    """Return whether a folder is opened, or a part of it read, for an evaluation."""
    try:
        PartStore(PartFolder(folder), identity).open(parts, _nothing)
    except UserError:
        return bool(_read(folder, identity, parts[:1]))
    return True


def _are_equal(found: dict[int, PartResult], expected: dict[int, PartResult]) -> bool:
    return found.keys() == expected.keys() and all(
        hash_result(found[number], "") == hash_result(expected[number], "") for number in expected
    )


def _alter_identity(run: Run, engine: FormulaEngine, identity: Identity) -> Iterator[tuple[str, Identity]]:
    """Yield the identities of evaluations that differ in one property each. InternalError if one is not among them."""
    graph = run.graph
    *facts, last = graph.train
    others = {
        "program": replace(run, graph=replace(graph, train=(*facts, last._replace(second=last.first)))),
        "rule": replace(run, graph=replace(graph, rules=graph.rules[:1])),
        "set of known triples": replace(run, graph=replace(graph, valid=graph.test[-1:], test=graph.test[:-1])),
        "known triple": replace(run, graph=replace(graph, valid=(_KNOWN_TRIPLE,))),
        "split": replace(run, split="train"),
        "number of queries": replace(run, num_queries=NUM_QUERIES - 1),
        "number of corruptions": replace(run, num_corruptions=FEW + 1),
        "seed": replace(run, seed=SEED - (1 << 40)),
        "policy": replace(run, policy=make_two_tower(graph.program, run.limits, seed=0)),
        "depth": replace(run, limits=Limits(max_depth=run.limits.max_depth - 1)),
        "rule about the query": replace(run, limits=Limits(exclude_query=False)),
    }
    plan = plan_parts(run, "cpu", SIZE)
    altered = [(what, identify(other, engine, plan, identity.code)) for what, other in others.items()]
    info = engine.info
    for name in ("name", "mode", "device", "precision", "versions", "faults"):
        value = {"torch": "0"} if name == "versions" else ("fault",) if name == "faults" else "other"
        other = msgspec.structs.replace(info, **{name: value})
        altered.append((name, identify(run, replace(engine, info=other), plan, identity.code)))
    altered.append(("size of parts", identify(run, engine, plan._replace(size=SIZE + 1), identity.code)))
    altered.append(("way to rank", identify(run, engine, plan._replace(rank_only=True), identity.code)))
    altered.append(("code", identify(run, engine, plan, identity.code | {"helper.py": "1"})))
    names = {"rank_tolerance", *_KEPT}
    for _, other_identity in altered:
        names |= {
            each for each in identity.__struct_fields__ if getattr(other_identity, each) != getattr(identity, each)
        }
    if names != {*identity.__struct_fields__}:
        raise InternalError(f"evaluations that differ have the same {', '.join({*identity.__struct_fields__} - names)}")
    yield from altered


def _check_checksums(results: PartResult) -> None:
    """InternalError if a change of the last value of a large column does not change the checksum."""
    columns = list_columns(results)
    for name, column in columns.items():
        altered = np.atleast_1d(column).copy()
        altered.view(np.uint8)[..., -1].flat[-1] ^= 1
        changed = columns | {name: altered.reshape(column.shape)}
        if hash_result(build_result(changed), "") == hash_result(results, ""):
            raise InternalError(f"the checksum of a known evaluation does not hold all of {name}")


def _exchange(folder: Path, parts: Sequence[Part]) -> None:
    first, second = (folder / part.name for part in parts[:2])
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def _alter_value(folder: Path, parts: Sequence[Part]) -> None:
    for part in parts[:2]:
        with np.load(folder / part.name) as file:
            arrays = {name: file[name] for name in file.files}
        arrays["optimistic"] = arrays["optimistic"] + 1
        np.savez(folder / part.name, **arrays)
