"""A small run, how it is measured in these tests, and results made by hand."""

import msgspec

from kgverify.bench.plan import Plan, Size
from kgverify.bench.result import BenchResult, Environment, Measurement, State, Work
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.run import Run, load_policy

TINY = Size(queries=1, corruptions=3, slots=8, sample=5, seconds=0.0)


def small_run(policy: str = "shortest") -> Run:
    graph, limits = load_graph("countries"), Limits(max_depth=6)
    return Run(graph, limits, load_policy(policy, graph, limits, 0), num_queries=1, num_corruptions=3)


def tiny_plan(*modes: str, **changes: object) -> Plan:
    options = {"modes": modes or ("eager",), "device": "cpu", "repeats": 3, **changes}
    return Plan("small", TINY, **options)


def timed(name: str, *samples: float, num_units: int = 10) -> Measurement:
    return Measurement(name=name, state=State.TIMED, num_units=num_units, samples=samples)


def made_result(*measurements: Measurement, **changes: object) -> BenchResult:
    """changes: of the work or the environment."""
    work = Work(
        kind="modes",
        size="small",
        graph="countries",
        graph_sha256="ab",
        split="test",
        seed=0,
        num_queries=2,
        num_corruptions=3,
        num_candidates=10,
        slots=8,
        policy="shortest",
        policy_sha256="",
        limits={"max_depth": 20},
        precision="float32",
    )
    environment = Environment(
        kgverify="0.1.0",
        python="3.11.7",
        torch="2.13.0",
        triton="",
        cuda="",
        device="cpu",
        device_name="a processor",
        platform="Linux x86_64",
        num_cpus=2,
        threads=1,
        matmul_precision="highest",
        tf32=False,
        caches="as found",
    )
    parts = [
        msgspec.structs.replace(part, **{key: value for key, value in changes.items() if hasattr(part, key)})
        for part in (work, environment)
    ]
    return BenchResult(work=parts[0], environment=parts[1], unit="candidate", measurements=measurements)
