"""The table of calls of the public API, each a small function. What they have to do stands in stated.toml.

A call returns a report, or a dictionary of figures; what it prints is stored. `reads` names what the commands of
locked_commands.MADE have to make before.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import kgverify as kv
from kgverify.dialects import Dialect, propose_dialect
from kgverify.laws import check_laws, compiled_maker, draw_problems, find_law

CALLS: dict[str, Any] = {}


def call(*reads: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put a function into the table, under its name with hyphens."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        function.reads = reads
        CALLS[f"call-{function.__name__.replace('_', '-')}"] = function
        return function

    return add


def evaluator(mode: str = "native", **options: Any) -> kv.Evaluator:
    """Return the evaluator on the CPU, with few slots."""
    return kv.Evaluator(mode=mode, device="cpu", slots=8, **options)


ONCE = kv.Equality(determinism=False)


def verify(graph: Any = "countries", engine: Any = None, **options: Any) -> kv.Report:
    """Verify a few candidates. The other calls go through here, so that its arguments stand in one place."""
    return kv.verify(graph, evaluator() if engine is None else engine, **{"queries": 2, "corruptions": 5, **options})


def record(path: str, engine: str = "reference", **options: Any) -> Any:
    """Record a few candidates."""
    return kv.record("countries", path, engine, queries=2, corruptions=5, **options)


def evaluate(**options: Any) -> Any:
    """Rank a few candidates."""
    return kv.evaluate("countries", evaluator(**options), queries=2, corruptions=5)


def summarize_evaluation(report: Any) -> dict[str, Any]:
    return {
        "verdict": report.verdict.value,
        "sound": report.is_sound,
        "mrr": report.metrics["both.realistic.mean_reciprocal_rank"],
    }


def fuzz(**options: Any) -> dict[str, Any]:
    """Try a few problems."""
    result = kv.fuzz(corpus="found", jobs=1, **{"examples": 20, **options})
    print(result)
    return {
        "verdict": result.verdict.value,
        "passed": result.is_passed,
        "new": len(result.new),
        "problems": result.num_problems,
    }


def conform(engine: Any, **options: Any) -> dict[str, Any]:
    """Check an engine on a few problems."""
    result = kv.check_engine(engine, **{"examples": 10, **options})
    print(result)
    return {"verdict": result.verdict.value, "conforming": result.is_conforming}


@call()
def verify_agrees() -> kv.Report:
    return verify()


@call()
def verify_fault() -> kv.Report:
    return verify(engine=evaluator("eager", faults="fact-cap"), queries=1, corruptions=2, equality=ONCE)


@call()
def verify_minimum_missed() -> kv.Report:
    return verify(equality=kv.Equality(minimum={"proved": 100}))


@call()
def verify_limits() -> kv.Report:
    return verify(limits=kv.Limits(max_depth=3, max_atoms=3, max_resolvents=20))


@call()
def verify_dialect() -> kv.Report:
    return verify(engine="reference", limits=kv.Limits(dialect=Dialect(memory="set")))


@call()
def verify_policy() -> kv.Report:
    return verify(policy="two_tower", queries=1, corruptions=2)


@call()
def verify_class() -> kv.Report:
    from users_engines import Capped

    return verify(engine=Capped)


@call()
def verify_function() -> kv.Report:
    from users_engines import proves_nothing

    return verify("family_of_ann", proves_nothing, queries=3, corruptions=2)


@call()
def verify_two_own_engines() -> kv.Report:
    return verify(
        "family_of_ann", "users_engines.py:Capped", reference="users_engines.py:Plain", queries=3, corruptions=2
    )


@call()
def verify_loaded_graph() -> kv.Report:
    return verify(kv.load_graph("family_of_ann"), queries=3, corruptions=2)


@call()
def verify_unknown_fault() -> kv.Report:
    return verify(engine=evaluator("eager", faults="fact-cup"))


@call()
def verify_unknown_graph() -> kv.Report:
    return verify("countris")


@call()
def verify_saves() -> dict[str, Any]:
    report = verify(save="kept")
    return {"verdict": report.verdict.value, "files": sorted(path.name for path in Path("kept").iterdir())}


@call()
def record_trace() -> dict[str, Any]:
    recording = record("new.h5")
    return {"candidates": recording.num_candidates, "num_steps": recording.num_steps}


@call("expected.h5")
def record_over_a_trace() -> Any:
    return record("expected.h5")


@call("expected.h5", "actual.h5")
def compare_agrees() -> kv.Report:
    return kv.compare("expected.h5", "actual.h5")


@call("expected.h5", "faulty.h5")
def compare_diverges() -> kv.Report:
    return kv.compare(kv.open_trace("expected.h5"), kv.open_trace("faulty.h5").load())


@call("expected.h5", "seeded.h5")
def compare_other_seed() -> kv.Report:
    return kv.compare("expected.h5", "seeded.h5")


@call("faulty.h5")
def compare_with_an_engine() -> kv.Report:
    return kv.compare("reference", "faulty.h5")


@call("mine.h5", "wrong.h5")
def compare_minimum_none() -> kv.Report:
    return kv.compare("mine.h5", "wrong.h5", equality=kv.Equality(minimum={}))


@call("damaged.h5")
def compare_damaged() -> kv.Report:
    return kv.compare("expected.h5", "damaged.h5")


@call("expected.h5")
def open_trace() -> dict[str, Any]:
    trace = kv.open_trace("expected.h5")
    candidate, step = trace.candidate(0), trace.step(0, 1)
    return {
        "candidates": trace.num_candidates,
        "num_steps": trace.num_steps,
        "outcome": candidate["outcome"],
        "choice": step["choice"],
    }


@call("expected.h5")
def copy_trace() -> dict[str, Any]:
    trace = kv.open_trace("expected.h5").load()
    with kv.TraceWriter("copy.h5", trace.header, trace.symbols) as writer:
        writer.append(trace.columns)
        writer.set_rankings(trace.rankings)
    return {"equal": kv.open_trace("copy.h5").load().root == trace.root}


@call()
def write_trace_in_a_loop() -> dict[str, Any]:
    candidates = {"atom": [[0, 0, 1]], "num_steps": [1], "outcome": [1]}
    steps = {"num_atoms": [1], "num_resolvents": [1], "choice": [0], "goal_atoms": [[0, 0, 1]]}
    resolvents = {"kind": [1], "num_atoms": [0], "atoms": []}
    with kv.LoopWriter("loop.h5", engine="mine", predicates=["capitalOf"], constants=["paris", "france"]) as trace:
        trace.append(candidates, steps, resolvents)
    return {"num_steps": kv.open_trace("loop.h5").num_steps}


@call()
def open_missing_trace() -> Any:
    return kv.open_trace("none.h5")


@call()
def load_graph() -> dict[str, Any]:
    graph = kv.load_graph("countries")
    print(graph)
    return {"train": len(graph.train), "valid": len(graph.valid), "test": len(graph.test), "rules": len(graph.rules)}


@call()
def load_malformed_graph() -> Any:
    return kv.load_graph("malformed")


@call()
def evaluate_agrees() -> dict[str, Any]:
    report = evaluate()
    print(report)
    return summarize_evaluation(report)


@call()
def evaluate_fault() -> dict[str, Any]:
    report = evaluate(mode="eager", faults="fact-cap")
    print(report)
    return summarize_evaluation(report)


@call()
def fuzz_agrees() -> dict[str, Any]:
    return fuzz()


@call("run")
def shrink_run() -> dict[str, Any]:
    small = kv.shrink("run", max_calls=40, seconds=600)
    print(small)
    small.save("new.kg")
    again = kv.replay("new.kg")
    right = kv.replay("new.kg", "compiled")
    return {
        "num_facts": len(small.problem.facts),
        "num_rules": len(small.problem.rules),
        "verdict": again.verdict.value,
        "same": again.is_same,
        "without_fault": right.verdict.value,
    }


@call()
def shrink_missing_divergence() -> Any:
    return kv.shrink(verify(engine=evaluator("eager"), queries=1, corruptions=2, equality=ONCE), 1)


@call("smallest.kg")
def replay_own_engine() -> dict[str, Any]:
    result = kv.replay("smallest.kg", "users_engines.py:Plain")
    print(result)
    return {"verdict": result.verdict.value, "same": result.is_same}


@call()
def check_right_engine() -> dict[str, Any]:
    from users_engines import Plain

    return conform(Plain)


@call()
def check_wrong_engine() -> dict[str, Any]:
    from users_engines import Capped

    return conform(Capped)


@call()
def assert_equivalent() -> None:
    kv.assert_equivalent("users_engines.py:Plain", "family_of_ann", queries=kv.Queries(3, corruptions=2))


@call()
def assert_equivalent_fails() -> None:
    kv.assert_equivalent("users_engines.py:proves_nothing", "family_of_ann", queries=kv.Queries(3, corruptions=2))


@call("smallest.kg")
def assert_agrees() -> None:
    kv.assert_agrees("users_engines.py:Plain", kv.replay("smallest.kg").reproducer.problem)


@call("smallest.kg")
def assert_agrees_fails() -> None:
    kv.assert_agrees("users_engines.py:proves_nothing", kv.replay("smallest.kg").reproducer.problem)


@call()
def propose() -> dict[str, Any]:
    proposal = propose_dialect("users_engines.py:Plain", examples=5)
    print(proposal)
    return {"verdict": proposal.verdict.value, "memory": proposal.dialect.memory}


@call()
def laws() -> dict[str, Any]:
    violations = check_laws(compiled_maker(), list(islice(draw_problems(3), 5)), [find_law("alone")])
    return {"violations": len(violations)}
