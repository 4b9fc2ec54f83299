"""Small real runs to report on, and reports of any size made from them."""

from typing import Any

import msgspec

from kgverify import Equality, KnowledgeGraph, Report, load_graph
from kgverify.comparison.result import Cause, Divergence
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.verification.verify import Verification, verify

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"' onmouseover=alert(3) x='",
    "]]>&lt;b&gt;&amp;",
    "{{ 7 * 7 }}{% raw %}",
    "a|b`c`\\|d @all #1 *e* [f](javascript:alert(4))",
    "100%::error::%0A",
    "\x00\x07\x1b[31m\x7f\ufffe\u202etxt",
    "https://example.invalid/x.png",
    "line\n::error::break",
)
"""Names that mean something to HTML, scripts, XML, Jinja, Markdown, GitHub's runner or a terminal."""


def verify_run(run: Run, fault: str = "", *, lockstep: bool = False) -> Verification:
    judged = evaluator_pipeline(run, faults=[fault] if fault else [], mode="eager", device="cpu", slots=32)
    return verify(run, reference_pipeline(run), judged, equality=Equality(lockstep=lockstep, determinism=False))


def countries_verification(fault: str = "", *, lockstep: bool = False) -> Verification:
    return verify_run(Run(load_graph("countries"), num_queries=3, num_corruptions=6), fault, lockstep=lockstep)


def hostile_verification() -> Verification:
    """`fact-cap` loses the one fact that proves the query; every name that is lost with it is hostile."""
    start, end = HOSTILE[0], HOSTILE[1]
    others = [HOSTILE[i - 50] if i >= 50 else f"m{i}" for i in range(60)]
    edges = [NamedAtom(HOSTILE[2], start, each) for each in others]
    last = [NamedAtom(HOSTILE[3], each, end) for each in others[52:]]
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom(HOSTILE[4], x, y), (NamedAtom(HOSTILE[2], x, z), NamedAtom(HOSTILE[3], z, y)))
    query = NamedAtom(HOSTILE[4], start, end)
    graph = KnowledgeGraph(HOSTILE[0], train=(*edges, *last), test=(query,), rules=(rule,))
    return verify_run(Run(graph, num_queries=1, num_corruptions=3), "fact-cap")


def change(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def without_causes(report: Report) -> Report:
    """Return the report in an older form: divergences without classes, no causes, no attribution."""
    plain = tuple(
        msgspec.convert(
            {
                k: v
                for k, v in msgspec.to_builtins(each).items()
                if k not in ("kind", "evidence", "confidence", "cause")
            },
            Divergence,
        )
        for each in report.divergences
    )
    return change(report, divergences=plain, first_cause=plain[0] if plain else None, causes=(), attribution=None)


def enlarged(report: Report, num: int) -> Report:
    """The report with `num` divergences, the first ones over and over."""
    listed = report.divergences * (num // len(report.divergences) + 1)
    return change(report, divergences=listed[:num])


def with_many_causes(report: Report, num: int) -> Report:
    """Every divergence a cause of its own."""
    large = enlarged(report, num)
    causes = tuple(
        Cause(
            stage=each.stage,
            kind=each.kind,
            situation=f"situation {i}",
            num_candidates=1,
            num_queries=1,
            num_divergences=1,
            num_later=each.later_steps,
            first=i,
        )
        for i, each in enumerate(large.divergences)
    )
    divergences = tuple(change(each, cause=i) for i, each in enumerate(large.divergences))
    return change(large, divergences=divergences, causes=causes, attribution=None)
